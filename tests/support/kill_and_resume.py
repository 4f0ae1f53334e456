"""Fits that are killed, and go on: run as a program, since what is killed is a process.

    python tests/support/kill_and_resume.py FOLDER KIND POINTS CASE...

kills the fits of some cases at so many points of a kind each, lets them go on, and prints one line
of JSON each time: what the fit's bits are, which sweeps were seen after it went on, of the fit and
of the search for its start, and all that for a fit that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np

import robustcp
from robustcp import as_engine, cp, cpal1, cpals
from robustcp.engines import to_host
from robustcp.engines.installed import numba_kernels

SHAPE = (60, 50, 40)


def tensor(shape=(16, 15, 14)):
    return robustcp.simulate(shape, 2, eta=0.2, gamma=1.0, rng=1).data


def bad_samples():
    X = tensor()
    X[:3] += 2.0
    return X


def holes():
    X = tensor()
    return np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)


def observed():
    at = np.argwhere(~np.isnan(holes()))
    return robustcp.Observed(at, holes()[tuple(at.T)], holes().shape)


def torch_array():
    import torch

    torch.set_num_threads(1)
    return torch.tensor(tensor())


def threaded(count):
    return lambda: as_engine(tensor(SHAPE), threads=count)


#: For each case: the data, the method, and its options.
CASES = {
    "cp": (tensor, cp, {}),
    "cp, 1 thread": (threaded(1), cp, {}),
    "cp, 2 threads": (threaded(2), cp, {}),
    "cp, nonnegative": (tensor, cp, {"nonnegative": True}),
    "cp, missing": (holes, cp, {}),
    "cp, Observed": (observed, cp, {}),
    "cp, float32": (lambda: tensor().astype(np.float32), cp, {}),
    "cp, torch": (torch_array, cp, {}),
    "cp, huge": (lambda: 1e250 * tensor(), cp, {}),
    "cp, losses": (tensor, cp, {"loss": [robustcp.Huber(0.3), robustcp.Welsch(1.0)]}),
    "cpal1, 3 starts": (tensor, cpal1, {"starts": 3, "rng": 5}),
    "cpal1, 3 starts, 1 thread": (threaded(1), cpal1, {"starts": 3}),
    "cpal1, 3 starts, 2 threads": (threaded(2), cpal1, {"starts": 3}),
    "cpal1, published": (tensor, cpal1, {"smoothing": "fixed", "max_sweeps": 40}),
    "cpals": (tensor, cpals, {"starts": 2}),
    "cp, cases": (bad_samples, cp, {"cases": 0, "starts": 8}),
    "weighted medians": (tensor, robustcp.baselines.weighted_median, {"max_sweeps": 20}),
}


def bits(fit):
    """A digest of all that a fit is."""
    digest = hashlib.sha256()
    cases = () if fit.cases is None else (fit.cases.weights, fit.cases.distances, fit.cases.cutoffs)
    for array in (fit.weights, *fit.factors, fit.trace, *cases):
        digest.update(np.ascontiguousarray(to_host(array)).tobytes())
    rest = fit.result, fit.notes, repr(fit.loss), fit.stages, tuple(fit.starts)
    digest.update(repr((rest, float(fit.explained), float(fit.scale))).encode())
    return digest.hexdigest()


def followed(case, kept, at_sweep=lambda count: None, at_search=lambda count: None):
    """A fit's bits, the start and sweep of each call of its callback, and sweeps of its search."""
    data, method, options = CASES[case]
    seen, searched = [], []

    def callback(state):
        seen.append((state.start, state.sweep))
        at_sweep(len(seen))

    def emit(record):
        searched.append(str(record.step.position))
        at_search(len(searched))

    handler, logger = logging.Handler(), logging.getLogger("robustcp.starts.search_log")
    handler.emit, logger.propagate = emit, False
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        fit = method(data(), 2, callback=callback, checkpoint=kept, **options)
    finally:
        logger.removeHandler(handler)
    return {"bits": bits(fit), "seen": seen, "searched": sorted(searched)}


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def killing_at(point):
    """A function that kills the process when it is called for the n-th time."""
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1
        if calls == point:
            kill()

    return count


def killed_at_sweep(case, kept, point):
    followed(case, kept, lambda count: kill() if count == point else None)


def killed_in_writing(case, kept, point):
    """Before, while and after a file gets its name, in turn."""
    name = ("fsync", "replace", "replace")[point % 3]
    real, count = getattr(os, name), killing_at(point)

    def replaced(*arguments):
        if point % 3 < 2:
            count()
        real(*arguments)
        if point % 3 == 2:
            count()

    setattr(os, name, replaced)
    followed(case, kept)


def killed_in_search(case, kept, point):
    followed(case, kept, at_search=lambda count: kill() if count == point else None)


KINDS = {
    "sweep": killed_at_sweep,
    "writing": killed_in_writing,
    "search": killed_in_search,
}


def apart(work):
    """Do some work in a process of its own: what it returns, or None if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    return json.loads(said)


def lines(case, folder, kind, points):
    # what takes long is imported and compiled once, and not in each process
    CASES[case][0]()
    if "torch" not in case:  # whose threads, like ours, would not come along
        followed(case.replace("2 threads", "1 thread"), None)
    straight = apart(lambda: followed(case, None))
    counted = {"sweep": ["seen"], "search": ["searched"], "writing": ["seen", "searched"]}[kind]
    last = sum(len(straight[part]) for part in counted)
    rng = np.random.default_rng(0)
    for number, point in enumerate(rng.integers(1, last, size=points, endpoint=True).tolist()):
        kept = robustcp.Checkpoint(Path(folder) / f"{case} {number}.ckpt", every=0)
        assert apart(partial(KINDS[kind], case, kept, point)) is None
        resumed = apart(partial(followed, case, kept))
        again = apart(partial(followed, case, kept))
        yield {
            "case": case, "point": point, "straight": straight, "resumed": resumed, "again": again
        }  # fmt: skip


def main(folder, kind, points, *cases):
    numba_kernels()
    for case in cases:
        for line in lines(case, folder, kind, int(points)):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
