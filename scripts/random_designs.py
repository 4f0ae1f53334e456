"""Random designs: how often `cp` recovers the factors, whether it says so, and how long it takes.

    python scripts/random_designs.py run --out new.json [--count 1000] [--seed 0] [--kinds all]
    python scripts/random_designs.py run --out old.json --tree ../before --oracle new.json
    python scripts/random_designs.py compare old.json new.json

A design draws a kind of contamination, shape (at most 20,000 entries), order, rank, signs,
density, noise level and share of bad entries. `run` fits each with `cp`, with `cpals` and with an
oracle that knows the clean entries and the noise. --kinds first, the default, has the kinds of
which `cp` is told nothing; more has saturation, shifted entries, leverage and bad samples, which
are told of by cases=; all has both. --tree names another tree whose src is used; scores of the
oracle are then taken from a run of this tree. `run` prints the share of designs where `cp` scores
below .9 while the oracle scores above .95 (failed), the share of these without a warning
(silently), how many clean designs are warned of, and quantiles of seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

MAX_ENTRIES = 20_000
Design = dict[str, Any]
Contaminate = Callable[[Any, Design], None]
KINDS: list[Contaminate] = []
MORE_KINDS: list[Contaminate] = []


def kind(function: Contaminate) -> Contaminate:
    KINDS.append(function)
    return function


def more_kind(function: Contaminate) -> Contaminate:
    MORE_KINDS.append(function)
    return function


def full(factors: list[np.ndarray]) -> np.ndarray:
    return sum(
        reduce(np.multiply.outer, each) for each in zip(*(A.T for A in factors), strict=True)
    )


def add_bad(design: Design, bad: np.ndarray, values: np.ndarray) -> None:
    design["data"] = np.where(bad, values, design["data"])
    design["clean"] &= ~bad


def size(design: Design) -> float:
    return float(np.std(design["model"]))


def spikes(rng: Any, design: Design, share: float, signs: tuple[int, ...] = (1,)) -> None:
    X = design["data"]
    heights = rng.uniform(2, 8) * size(design) * rng.gamma(4, 0.25, X.shape)
    add_bad(design, rng.random(X.shape) < share, X + heights * rng.choice(signs, X.shape))


def remove(rng: Any, design: Design, share: float) -> None:
    design["data"] = np.where(rng.random(design["data"].shape) < share, np.nan, design["data"])


@kind
def clean(rng: Any, design: Design) -> None:
    """Nothing is bad."""


@kind
def one_sided(rng: Any, design: Design) -> None:
    spikes(rng, design, rng.uniform(0.05, 0.3))


@kind
def two_sided(rng: Any, design: Design) -> None:
    spikes(rng, design, rng.uniform(0.05, 0.35), (-1, 1))


@kind
def heavy_tails(rng: Any, design: Design) -> None:
    tails = rng.standard_t(rng.uniform(1, 2), design["data"].shape) * design["sigma"]
    design["data"] = design["model"] + tails
    design["clean"] = np.abs(tails) < 4 * design["sigma"]


@kind
def gross_outliers(rng: Any, design: Design) -> None:
    X = design["data"]
    add_bad(design, rng.random(X.shape) < 0.01, X + 10 ** rng.uniform(2, 5) * size(design))


@kind
def fill_values(rng: Any, design: Design) -> None:
    X, value = design["data"], rng.choice([0.0, -999.0, 1e6])
    add_bad(design, rng.random(X.shape) < rng.uniform(0.02, 0.15), np.full(X.shape, value))


@kind
def missing(rng: Any, design: Design) -> None:
    spikes(rng, design, rng.uniform(0.05, 0.2))
    remove(rng, design, rng.uniform(0.1, 0.5))


@kind
def thin(rng: Any, design: Design) -> None:
    spikes(rng, design, 0.05)
    entries_per_row = max(design["data"].shape) * 8 * design["rank"] / design["data"].size
    remove(rng, design, max(0.0, 1 - min(1.0, entries_per_row)))


@kind
def bad_slabs(rng: Any, design: Design) -> None:
    X, mode = design["data"], int(rng.integers(design["data"].ndim))
    rows = rng.random(X.shape[mode]) < rng.uniform(0.05, 0.15)
    other = full([rng.standard_normal(A.shape) for A in design["truth"]])
    bad = np.zeros(X.shape, bool)
    bad[(slice(None),) * mode + (rows,)] = True
    other = other * size(design) / np.std(other) * rng.uniform(1, 3)
    add_bad(design, bad, other + design["sigma"] * rng.standard_normal(X.shape))
    design["unrecoverable"] = (mode, np.flatnonzero(rows))


@kind
def slab_noise(rng: Any, design: Design) -> None:
    X, mode = design["data"], int(rng.integers(design["data"].ndim))
    scales = np.exp(rng.uniform(-1.5, 1.5, X.shape[mode]))
    scales = scales.reshape([-1 if n == mode else 1 for n in range(X.ndim)])
    design["sigma"] = design["sigma"] * scales
    design["data"] = design["model"] + design["sigma"] * rng.standard_normal(X.shape)
    spikes(rng, design, rng.uniform(0, 0.15))


@kind
def signal_noise(rng: Any, design: Design) -> None:
    M = design["model"]
    design["sigma"] = 0.02 * size(design) + rng.uniform(0.02, 0.1) * np.abs(M)
    design["data"] = M + design["sigma"] * rng.standard_normal(M.shape)
    spikes(rng, design, rng.uniform(0, 0.1))


@kind
def counts(rng: Any, design: Design) -> None:
    factors = [np.abs(A) for A in design["truth"]]
    factors[0] = factors[0] * rng.uniform(2, 20) / np.mean(full(factors))
    design["truth"], design["model"] = factors, full(factors)
    design["sigma"] = np.sqrt(design["model"] + 0.5)
    design["data"] = rng.poisson(design["model"]).astype(float)
    design["clean"][...] = True
    bad = rng.random(design["data"].shape) < rng.choice([0.0, 0.1])
    add_bad(design, bad, design["data"] + rng.poisson(5 * np.mean(design["model"]), bad.shape))


@kind
def outlying_fibres(rng: Any, design: Design) -> None:
    X, mode = design["data"], int(rng.integers(design["data"].ndim))
    shape = [1 if n == mode else size for n, size in enumerate(X.shape)]
    bad = np.broadcast_to(rng.random(shape) < rng.uniform(0.05, 0.15), X.shape)
    add_bad(design, bad, X + size(design) * rng.uniform(2, 5) * (1 + 0.3 * rng.random(X.shape)))


@kind
def constant_fibres(rng: Any, design: Design) -> None:
    X, mode = design["data"], int(rng.integers(design["data"].ndim))
    first = np.take(X, [0], axis=mode) + size(design) * rng.standard_normal()
    bad = np.broadcast_to(rng.random(first.shape) < rng.uniform(0.03, 0.12), X.shape)
    add_bad(design, bad, np.broadcast_to(first, X.shape))


@kind
def bright_block(rng: Any, design: Design) -> None:
    """A contiguous block in a third of the slabs of the last mode."""
    X = design["data"]
    bad = np.zeros(X.shape, bool)
    extents = [rng.integers(n) for n in X.shape[:-1]]
    block = tuple(slice(e, e + max(1, n // 3)) for e, n in zip(extents, X.shape[:-1], strict=True))
    bad[(*block, rng.random(X.shape[-1]) < 1 / 3)] = True
    add_bad(design, bad, X + rng.uniform(2, 6) * size(design))


@kind
def windows(rng: Any, design: Design) -> None:
    """Runs of artifacts along the longest mode."""
    X = design["data"]
    mode = int(np.argmax(X.shape))
    centres = rng.random(X.shape) < 0.02
    bad = centres | np.roll(centres, 1, mode) | np.roll(centres, 2, mode)
    add_bad(design, bad, X + rng.uniform(2, 6) * size(design))


@kind
def noise_free(rng: Any, design: Design) -> None:
    design["data"], design["sigma"] = design["model"].copy(), np.full_like(design["model"], 1e-6)
    spikes(rng, design, rng.uniform(0.05, 0.3), (-1, 1))


@kind
def mostly_bad(rng: Any, design: Design) -> None:
    spikes(rng, design, rng.uniform(0.4, 0.55))


@kind
def quantised(rng: Any, design: Design) -> None:
    step = size(design) / rng.uniform(10, 40)
    spikes(rng, design, rng.uniform(0.05, 0.2))
    design["data"] = np.round(design["data"] / step) * step


@kind
def collinear(rng: Any, design: Design) -> None:
    factors = [A[:, :1] + rng.uniform(0.5, 1.0) * A for A in design["truth"]]
    design["truth"], design["model"] = factors, full(factors)
    design["sigma"] = np.full(design["data"].shape, 0.01 * float(np.std(design["model"])))
    design["data"] = design["model"] + design["sigma"] * rng.standard_normal(design["data"].shape)
    spikes(rng, design, rng.uniform(0.05, 0.2))


@kind
def structured(rng: Any, design: Design) -> None:
    """Small smooth misfit beside the spikes: residuals are never white."""
    phases = [np.sin(rng.uniform(1, 3) * np.linspace(0, 3, n)) for n in design["data"].shape]
    misfit = reduce(np.multiply.outer, phases) ** 2
    design["data"] = design["data"] + 0.05 * size(design) * misfit
    spikes(rng, design, rng.uniform(0, 0.15))


@more_kind
def saturation(rng: Any, design: Design) -> None:
    """A ceiling of all entries."""
    X = design["data"]
    ceiling = np.quantile(X, rng.uniform(0.7, 0.95))
    add_bad(design, ceiling <= X, np.full(X.shape, ceiling))


@more_kind
def saturation_by_sensor(rng: Any, design: Design) -> None:
    """A ceiling of its own for each slab of a mode."""
    mode = int(rng.integers(design["data"].ndim))
    X = np.moveaxis(design["data"], mode, 0)
    ceilings = [np.quantile(slab, rng.uniform(0.7, 0.95)) for slab in X]
    limits = np.moveaxis(
        np.broadcast_to(np.reshape(ceilings, (-1, *[1] * (X.ndim - 1))), X.shape), 0, mode
    )
    add_bad(design, limits <= design["data"], limits)


@more_kind
def saturation_and_spikes(rng: Any, design: Design) -> None:
    spikes(rng, design, rng.uniform(0.02, 0.1), (-1, 1))
    saturation(rng, design)


@more_kind
def shifted_entries(rng: Any, design: Design) -> None:
    X, sigma = design["data"], design["sigma"]
    bad = rng.random(X.shape) < rng.uniform(0.1, 0.3)
    add_bad(design, bad, X + rng.uniform(2.5, 5) * sigma)


def choose_samples(rng: Any, design: Design, low: float, high: float) -> tuple[int, np.ndarray]:
    """A share of the longest mode, which is told; none, if 2 (rank + 2) good ones are not left."""
    mode = int(np.argmax(design["data"].shape))
    count = design["data"].shape[mode]
    number = min(max(1, round(rng.uniform(low, high) * count)), count - 2 * (design["rank"] + 2))
    if number > 0:
        design["options"] = {"cases": mode}
    return mode, rng.choice(count, max(0, number), replace=False)


def add_to_samples(design: Design, mode: int, rows: np.ndarray, added: np.ndarray) -> None:
    bad = np.zeros(added.shape, bool)
    bad[(slice(None),) * mode + (rows,)] = True
    add_bad(design, bad, design["data"] + added)
    design["unrecoverable"] = (mode, rows)


@more_kind
def foreign_samples(rng: Any, design: Design) -> None:
    """Samples with one component that the others do not have."""
    mode, rows = choose_samples(rng, design, 0.1, 0.25)
    vectors = [np.abs(rng.standard_normal((n, 1))) for n in design["data"].shape]
    vectors[mode] = rng.uniform(0.5, 1.5, vectors[mode].shape)
    other = full(vectors)
    other = other * rng.uniform(1.5, 3) * size(design) / np.sqrt(np.mean(other**2))
    add_to_samples(design, mode, rows, other)


@more_kind
def foreign_samples_and_bad_cells(rng: Any, design: Design) -> None:
    foreign_samples(rng, design)
    spikes(rng, design, rng.uniform(0.02, 0.15), (-1, 1))
    remove(rng, design, rng.choice([0.0, 0.2]))


@more_kind
def shifted_samples(rng: Any, design: Design) -> None:
    """Samples with constants of their own added, and bad cells."""
    mode, rows = choose_samples(rng, design, 0.1, 0.25)
    shape = [n if k == mode else 1 for k, n in enumerate(design["data"].shape)]
    heights = size(design) * rng.uniform(1, 4, shape)
    add_to_samples(design, mode, rows, np.broadcast_to(heights, design["data"].shape))
    spikes(rng, design, rng.uniform(0, 0.1))


@more_kind
def samples_of_their_own(rng: Any, design: Design) -> None:
    """Samples with something of rank one of their own, uneven noise, and bad cells."""
    mode, rows = choose_samples(rng, design, 0.05, 0.15)
    X = design["data"]
    scales = np.exp(rng.uniform(-1.5, 1.5, X.shape[mode]))
    scales = scales.reshape([-1 if n == mode else 1 for n in range(X.ndim)])
    design["sigma"] = design["sigma"] * scales
    design["data"] = design["model"] + design["sigma"] * rng.standard_normal(X.shape)
    added = np.zeros(X.shape)
    for row in rows:
        own = full([rng.random((n, 1)) for k, n in enumerate(X.shape) if k != mode])
        added[(slice(None),) * mode + (row,)] = rng.uniform(4, 12) * size(design) * own
    add_to_samples(design, mode, rows, added)
    spikes(rng, design, rng.uniform(0, 0.1))


@more_kind
def good_leverage(rng: Any, design: Design) -> None:
    """Samples that are large and follow the model; the rank may be one too high."""
    mode, rows = choose_samples(rng, design, 0.1, 0.25)
    times = np.ones((design["data"].shape[mode], 1))
    times[rows] = rng.uniform(3, 30)
    truth = [A * times if n == mode else A for n, A in enumerate(design["truth"])]
    noise = design["data"] - design["model"]
    design["truth"], design["model"] = truth, full(truth)
    design["data"] = design["model"] + noise
    design["extra"] = int(rng.integers(2))


@more_kind
def rank_too_high(rng: Any, design: Design) -> None:
    spikes(rng, design, rng.uniform(0, 0.15))
    design["extra"] = 1


@more_kind
def exact_slabs(rng: Any, design: Design) -> None:
    """Slabs that one component fits exactly."""
    X, mode = design["data"], int(np.argmax(design["data"].shape))
    rows = rng.choice(X.shape[mode], max(1, X.shape[mode] // 12), replace=False)
    bad, values = np.zeros(X.shape, bool), np.zeros(X.shape)
    for row in rows:
        own = full([rng.random((n, 1)) for k, n in enumerate(X.shape) if k != mode])
        bad[(slice(None),) * mode + (row,)] = True
        values[(slice(None),) * mode + (row,)] = rng.uniform(2, 8) * size(design) * own
    spikes(rng, design, rng.uniform(0, 0.1))
    add_bad(design, bad, values)
    design["unrecoverable"] = (mode, rows)


@more_kind
def overdispersed_counts(rng: Any, design: Design) -> None:
    factors = [np.abs(A) for A in design["truth"]]
    factors[0] = factors[0] * rng.uniform(5, 30) / np.mean(full(factors))
    design["truth"], design["model"] = factors, full(factors)
    k = rng.uniform(2, 10)
    design["sigma"] = np.sqrt(design["model"] + design["model"] ** 2 / k + 0.5)
    gamma = rng.gamma(k, design["model"] / k + 1e-9)
    design["data"] = rng.poisson(gamma).astype(float)


#: Which kinds are drawn in turn; to the sets of earlier runs nothing is added.
SETS = {"first": KINDS, "more": MORE_KINDS, "all": [*KINDS, *MORE_KINDS]}


def make_design(seed: int, kinds: Sequence[Contaminate] = KINDS) -> Design:
    rng = np.random.default_rng([seed, 34])
    function = kinds[seed % len(kinds)]
    order = int(rng.choice([3, 3, 3, 3, 4, 5]))
    while True:
        shape = tuple(int(n) for n in np.exp(rng.uniform(np.log(6), np.log(90), order)))
        if 1500 <= np.prod(shape) <= MAX_ENTRIES:
            break
    rank = int(rng.integers(1, min(6, 1 + np.sort(shape)[1]) + 1))
    positive, density = bool(rng.random() < 0.5), float(rng.choice([1.0, 1.0, 0.6]))
    factors = [rng.standard_normal((n, rank)) * (rng.random((n, rank)) < density) for n in shape]
    for A in factors:
        A[:, ~A.any(axis=0)] = 1.0
    factors = [np.abs(A) for A in factors] if positive else factors
    model = full(factors)
    sigma = np.full(shape, np.exp(rng.uniform(np.log(0.02), np.log(0.3))) * float(np.std(model)))
    design: Design = {
        "kind": function.__name__, "seed": seed, "shape": shape, "rank": rank,
        "positive": positive, "truth": factors, "model": model, "sigma": sigma,
        "data": model + sigma * rng.standard_normal(shape), "clean": np.ones(shape, bool),
        "unrecoverable": None, "options": {}, "extra": 0,
    }  # fmt: skip
    function(rng, design)
    design["clean"] &= ~np.isnan(design["data"])
    design["options"] |= {"nonnegative": True} if positive and rng.random() < 0.5 else {}
    return design


def oracle_estimate(design: Design) -> Any:
    """The factors by weighted least squares on the clean entries."""
    from robustcp.studies.kinds import Trial
    from robustcp.studies.oracle import fit_oracle

    trial = Trial(
        design["data"], tuple(design["truth"]), design["clean"], design["sigma"], design["rank"],
        design["options"], design["unrecoverable"],
    )  # fmt: skip
    return fit_oracle(trial).model


def recoverable_model(design: Design, estimate: Any) -> Any:
    """An estimate without the rows that cannot be recovered."""
    import robustcp

    weights, factors = estimate
    if design["unrecoverable"]:
        mode, rows = design["unrecoverable"]
        factors = [np.delete(A, rows, 0) if n == mode else A for n, A in enumerate(factors)]
    return robustcp.KruskalTensor(weights, tuple(factors)).normalized()


def measure(seed: int, oracles: dict[str, float], kinds: str) -> dict[str, Any]:
    import robustcp

    design = make_design(seed, SETS[kinds])
    X, rank = design["data"], design["rank"]
    truth = recoverable_model(design, (np.ones(rank), design["truth"]))

    def score(estimate: Any) -> float:
        estimate = recoverable_model(design, estimate)
        return float(robustcp.factor_match_score(estimate, truth, weights=False))

    begin = time.perf_counter()
    fit = robustcp.cp(X, rank + design["extra"], rng=seed, **design["options"])
    seconds = time.perf_counter() - begin
    row = {name: design[name] for name in ("kind", "seed", "shape", "rank", "positive")}
    oracle = oracles.get(str(seed))
    return row | {
        "cp": score(fit), "seconds": seconds, "sweeps": fit.sweeps, "starts": len(fit.starts),
        "codes": [warning.code for warning in fit.warnings],
        "cpals": score(robustcp.cpals(X, rank + design["extra"])),
        "oracle": score(oracle_estimate(design)) if oracle is None else oracle,
    }  # fmt: skip


def work(first: int, last: int, step: int, kinds: str, oracle: Path | None) -> None:
    warnings.simplefilter("ignore")
    rows = [] if oracle is None else json.loads(oracle.read_text())
    oracles = {str(row["seed"]): row["oracle"] for row in rows if "oracle" in row}
    measure(first, oracles, kinds)  # compiled code is loaded
    for seed in range(first, last, step):
        try:
            row = measure(seed, oracles, kinds)
        except Exception as error:
            row = {"seed": seed, "error": repr(error)}
        print(json.dumps(row), flush=True)


def run(options: argparse.Namespace) -> None:
    environment = os.environ | {"PYTHONPATH": str(options.tree.resolve() / "src")}
    last = options.seed + options.count
    workers = [
        subprocess.Popen(
            [
                sys.executable, __file__, "work", str(first), str(last), str(options.jobs),
                options.kinds,
                *([] if options.oracle is None else ["--oracle", str(options.oracle)]),
            ],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for first in range(options.seed, options.seed + options.jobs)
    ]  # fmt: skip
    rows = [json.loads(line) for worker in workers for line in worker.communicate()[0].splitlines()]
    options.out.write_text(json.dumps(sorted(rows, key=lambda row: row["seed"]), indent=0))
    summarise(rows)


def summarise(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if "error" in row:
            print(row)
    rows = [row for row in rows if "error" not in row]
    seconds = np.array([row["seconds"] for row in rows])
    failed = [row for row in rows if row["cp"] < 0.9 and row["oracle"] > 0.95]
    silent = [row for row in failed if not row["codes"]]
    easy = [row for row in rows if row["kind"] == "clean" and row["oracle"] > 0.95]
    for name in sorted({row["kind"] for row in rows}):
        own = [row for row in rows if row["kind"] == name]
        failures = (
            f"failed {sum(r in failed for r in own)}, silently {sum(r in silent for r in own)}"
        )
        print(
            f"{name:16} {len(own):4}  cp {np.median([r['cp'] for r in own]):.4f}  "
            f"oracle {np.median([r['oracle'] for r in own]):.4f}  "
            f"cpals {np.median([r['cpals'] for r in own]):.4f}  "
            f"{failures}  "
            f"seconds {np.median([r['seconds'] for r in own]):6.2f}, "
            f"at most {max(r['seconds'] for r in own):6.2f}"
        )
    print(
        f"{len(rows)} designs: failed {len(failed) / len(rows):.1%}, silently "
        f"{len(silent) / len(rows):.1%}; clean, and warned of: "
        f"{sum(bool(row['codes']) for row in easy)} of {len(easy)}; cpals below .9 in "
        f"{np.mean([row['cpals'] < 0.9 for row in rows]):.0%}; seconds: median "
        f"{np.median(seconds):.2f}, 90% {np.quantile(seconds, 0.9):.2f}, 99% "
        f"{np.quantile(seconds, 0.99):.2f}, worst {seconds.max():.2f}, sum {seconds.sum():.0f}"
    )


def compare(old: Path, new: Path) -> None:
    before = {row["seed"]: row for row in json.loads(old.read_text())}
    for row in json.loads(new.read_text()):
        other = before.get(row["seed"])
        if (
            other
            and other["kind"] == row["kind"]
            and "error" not in row
            and abs(row["cp"] - other["cp"]) > 0.01
        ):
            print(
                f"{row['seed']:5} {row['kind']:16} {row['shape']} rank {row['rank']}  "
                f"cp {other['cp']:.3f} -> {row['cp']:.3f}  oracle {row['oracle']:.3f}  "
                f"{other['seconds']:.1f} -> {row['seconds']:.1f} s  {row['codes']}"
            )
    for path in (old, new):
        print(path)
        summarise(json.loads(path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    command.add_argument("--count", type=int, default=1000)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--kinds", choices=SETS, default="first")
    command.add_argument("--jobs", type=int, default=2)
    command.add_argument("--oracle", type=Path, help="results of a run of this tree")
    command.set_defaults(call=run)
    command = commands.add_parser("compare")
    command.add_argument("old", type=Path)
    command.add_argument("new", type=Path)
    command.set_defaults(call=lambda options: compare(options.old, options.new))
    command = commands.add_parser("work")
    for name in ("first", "last", "step"):
        command.add_argument(name, type=int)
    command.add_argument("kinds", choices=SETS)
    command.add_argument("--oracle", type=Path)
    command.set_defaults(
        call=lambda options: work(
            options.first, options.last, options.step, options.kinds, options.oracle
        )
    )
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
