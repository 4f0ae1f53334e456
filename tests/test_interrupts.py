"""Requests to stop, in the search for starts too; Ctrl-C at random times (see test_threads.py)."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robustcp
from robustcp._util.interrupts import stop_when

ROOT = Path(__file__).parents[1]
X = robustcp.simulate((8, 9, 10), 2, eta=0.2, gamma=2.0, rng=0).data


def bits(fit):
    return b"".join(A.tobytes() for A in fit.model.factors)


def stop_after(count, **options):
    """A fit that is stopped when it asks for the so many-th time; None if there was no start."""
    questions = itertools.count(1)
    with stop_when(lambda: next(questions) >= count):
        try:
            return robustcp.cp(X, 2, rng=0, **options)
        except KeyboardInterrupt:
            return None


@pytest.mark.parametrize("options", [{}, {"cases": 0}, {"init": "random", "starts": 3}])
def test_stop_at_any_time(options):
    """First there is no start, then the best start after a sweep, then the run so far."""
    statuses, count = [], 1
    while not statuses or statuses[-1] != "converged":
        fit = stop_after(count, **options)
        statuses.append("none" if fit is None else fit.result.name)
        if fit is not None:
            assert all(np.isfinite(A).all() for A in fit.model.factors)
        count *= 2
    assert list(dict.fromkeys(statuses)) == ["none", "stopped", "converged"]


def test_the_search_goes_on_from_the_checkpoint(tmp_path):
    whole, stopped = bits(robustcp.cp(X, 2, rng=0)), 0
    for count in (10, 100):
        path = tmp_path / f"{count}.ckpt"
        fit = stop_after(count, checkpoint=path)
        stopped += fit is None or fit.status.startswith("stopped")
        assert bits(robustcp.cp(X, 2, rng=0, checkpoint=path)) == whole, count
    assert stopped


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_command_line_in_the_search(tmp_path):
    """The first Ctrl-C ends the search before any start is fitted, and says so."""
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "fit.npz"
    program = f"""
import os, signal, sys
from robustcp.starts.search_log import SearchLog

def interrupted(self, *arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return run(self, *arguments)

run, SearchLog.run = SearchLog.run, interrupted
sys.argv = {["robustcp", "fit", str(tmp_path / "x.npy"), "--rank", "2", "--out", str(out)]!r}
from robustcp.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "robustcp: stopped before there was a fit; nothing is written" in done.stderr
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_at_random_times():
    script = str(ROOT / "scripts" / "interrupts.py")
    source = str(Path(robustcp.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, script, "60"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
