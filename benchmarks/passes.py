"""Passes and sweeps in steady state, beside the machine's own limit, and how they grow."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

import peers
import problems
import robustcp
from fits import against_als
from measuring import (
    CORES,
    Result,
    als_limit,
    in_turns,
    machine,
    median,
    pass_limit,
    row,
    seconds,
    steady,
    sweep_limit,
)
from robustcp.constraints import Free
from robustcp.engines import Engine, as_engine
from robustcp.engines.threads import available_threads
from robustcp.losses import L1
from robustcp.optimize.objective import Objective
from robustcp.optimize.updates import MajorizeMinimize

# Sweeps of least squares


def sweeps(quick: bool) -> list[Result]:
    """A sweep of least squares in steady state, against the peers."""
    found = []
    for size, rank, count, turns, target in ((50, 5, 500, 9, ">= 1"), (200, 10, 30, 7, ">= 2")):
        if quick and size > 50:
            continue
        X = problems.one_sided(size, rank).data
        start = problems.start_for(X, rank)

        def ours(rank: int, start: Any, n: int, X: np.ndarray = X) -> Any:
            return robustcp.cpals(X, rank, init=start, tol=0.0, max_sweeps=n)

        # What comes before the first sweep and after the last is in both and falls out.
        work = {}
        methods = {"robustcp": ours, **{name: als(X) for name, als in peers.ALS.items()}}
        for name, fit in methods.items():
            for many in (count, count // 10):
                work[name, many] = lambda f=fit, r=rank, s=start, n=many: f(r, s, n)
        taken: Any = in_turns(work, 1 if quick else turns)
        each = {
            name: [
                ((a - b) / (count - count // 10), None)
                for (a, _), (b, _) in zip(taken[name, count], taken[name, count // 10], strict=True)
            ]
            for name in methods
        }
        faster, of_each, note = against_als(each, 1e3, "ms")
        best = min(median(each[name]) for name in peers.ALS)
        found.append(
            row(
                f"a sweep of cpals against the faster peer, {size}^3 rank {rank}", "x faster",
                faster, target, note=note, peers=of_each,
                limit=best / als_limit(X.size, rank),
                label=f"cpals, a steady sweep, {size}³ rank {rank}",
            )
        )  # fmt: skip
    return found


# One pass against the machine


def limit(quick: bool) -> list[Result]:
    """A pass over a cube, by the share of the machine's limit that it reaches."""
    size, turns = (100, 1) if quick else (200, 5)
    rng = np.random.default_rng(0)
    found = []
    for dtype in (np.float64, np.float32):
        X = rng.standard_normal((size,) * 3).astype(dtype)
        for rank in (3, 5, 10, 20, 50):
            factors = tuple(rng.standard_normal((size, rank)).astype(dtype) for _ in range(3))
            times: dict[int, list[float]] = {}
            shares: dict[int, list[float]] = {}
            counts = sorted({1, CORES})
            engines = {threads: as_engine(X, threads=threads) for threads in counts}
            for turn in range(turns + 1):
                for threads, engine in engines.items():
                    bound = pass_limit(X.size, rank, machine(dtype, threads), X.itemsize)
                    time.sleep(0.2)
                    took = steady(
                        lambda e=engine, f=factors: [
                            e.normal_equations(f, n, L1(1e-6)) for n in range(3)
                        ]
                    )
                    if turn:
                        each = 1e9 * took / 3 / X.size
                        times.setdefault(threads, []).append(each)
                        shares.setdefault(threads, []).append(bound / each)
            name = f"{np.dtype(dtype).name} rank {rank}"
            target = ">= 0.6" if 5 <= rank <= 20 else ""
            for threads in counts:
                found.append(
                    row(
                        f"a pass against the machine, {size}^3 {name}, {threads} threads",
                        "of its limit", shares[threads], target,
                        note=f"{statistics.median(times[threads]):.3g} ns per entry",
                    )
                )  # fmt: skip
            if CORES > 1:
                gains = [a / b for a, b in zip(times[1], times[CORES], strict=True)]
                what = f"a pass on {CORES} threads, {size}^3 {name}"
                goal = ">= 1.8" if CORES == 2 else ""
                found.append(row(what, "x faster", gains, goal, limit=CORES))
    return found


# Growth


def growth(quick: bool) -> list[Result]:
    """How a pass grows with the tensor, and how whole calls do."""
    shapes: list[tuple[str, tuple[int, ...], Any, str]] = [
        (f"{n}^3", (n,) * 3, np.float64, "C")
        for n in ((20, 50, 100) if quick else (20, 50, 100, 200, 300, 500))
    ]
    if not quick:
        shapes += [
            ("100^3 in Fortran order", (100,) * 3, np.float64, "F"),
            ("100^3 uint8", (100,) * 3, np.uint8, "C"),
            ("100^4", (100,) * 4, np.float64, "C"),
            ("40^5", (40,) * 5, np.float64, "C"),
            ("1,000,000 x 10 x 10", (1_000_000, 10, 10), np.float64, "C"),
            ("10 x 10 x 1,000,000", (10, 10, 1_000_000), np.float64, "C"),
            ("3 x 76,800 x 300", (3, 76_800, 300), np.float64, "C"),
            ("10,000 x 10,000", (10_000, 10_000), np.float64, "C"),
        ]
    rng, rank, turns = np.random.default_rng(0), 5, 1 if quick else 5
    base = as_engine(rng.standard_normal((100,) * 3))
    base_factors = tuple(rng.standard_normal((100, rank)) for _ in range(3))
    found = []
    for name, shape, dtype, order in shapes:
        if dtype == np.uint8:
            X = rng.integers(0, 255, shape, dtype=np.uint8)
        else:
            X = np.empty(shape)
            rng.standard_normal(out=X.reshape(-1))
        engine = as_engine(np.asarray(X, order=order))
        factors = tuple(rng.standard_normal((size, rank)) for size in shape)
        ratios, times = [], []
        for turn in range(turns + 1):
            mine = pass_ns(engine, factors)
            theirs = statistics.mean(statistics.mean(pass_ns(base, base_factors)) for _ in range(3))
            if turn:
                ratios.append(statistics.mean(mine) / theirs)
                times.append(mine)
        each = [statistics.median(column) for column in zip(*times, strict=True)]
        least = pass_limit(X.size, rank)
        found.append(
            row(
                f"ns per entry against 100^3: {name}", "x", ratios,
                "<= 1.3" if X.size >= 100**3 else "",
                limit=least * statistics.median(ratios) / statistics.mean(each),
                note="by mode " + ", ".join(f"{ns:.3g}" for ns in each) + " ns",
                cube=name.endswith("^3"), entries=X.size, ns=statistics.mean(each), least_ns=least,
            )
        )  # fmt: skip
        del X, engine
    return found + calls_by_size(quick)


def pass_ns(engine: Engine, factors: Any) -> list[float]:
    """Ns per entry of a pass for each mode."""
    engine.normal_equations(factors, 0, L1(1e-6))
    entries = math.prod(engine.shape)
    return [
        1e9 * seconds(lambda n=n: engine.normal_equations(factors, n, L1(1e-6)))[0] / entries
        for n in range(len(factors))
    ]


def calls_by_size(quick: bool) -> list[Result]:
    """Whole calls on cubes of growing size, rank 5, beside the sweeps at the machine's limit."""
    found = []
    for size, turns in ((20, 5), (50, 5), (100, 3), (200, 3), (400, 1)):
        if quick and size > 50:
            continue
        X = problems.one_sided(size, 5).data
        work: dict[str, Callable[[], Any]] = {
            "cp": lambda X=X: robustcp.cp(X, 5),
            "cpal1": lambda X=X: robustcp.cpal1(X, 5),
            "cpals": lambda X=X: robustcp.cpals(X, 5),
        }
        if size <= 100:
            peer = peers.gcp_opt(X)
            work["gcp_opt"] = lambda peer=peer: peer(5)
        for name, runs in in_turns(work, 1 if quick else turns, discarded=size < 400).items():
            least = None
            if name != "gcp_opt":
                done = runs[-1][1].sweeps
                one = als_limit(X.size, 5)
                if name != "cpals":
                    one = sweep_limit(X.size, 5, 3)
                least = done * one
            found.append(
                row(
                    f"a call of {name}, {size}^3 rank 5", "s", [took for took, _ in runs],
                    limit=least, method=name, entries=X.size,
                )
            )  # fmt: skip
    return found


# Entries that are listed


def reading_loop(order: int, rank: int) -> Any:
    """Compiled: only reads indices, values and factor rows, and adds up what it read."""
    from numba import njit

    @njit(nogil=True, fastmath=True)
    def read(values: Any, indices: Any, factors: Any, first: int, last: int) -> float:
        total = 0.0
        for e in range(first, last):
            total += values[e]
            for m in range(order):
                row = factors[m][indices[m, e]]
                for r in range(rank):
                    total += row[r]
        return total

    return read


def reading_ns(data: dict[str, np.ndarray], factors: tuple[np.ndarray, ...]) -> float:
    """Ns per entry, on the threads of a fit, of a loop that only reads, sorted by the first mode.

    Values of eight bytes and indices of four, which is as few as will do for most data.
    """
    order, rank = len(factors), factors[0].shape[1]
    by_first = np.lexsort(data["indices"].T[::-1])
    indices = np.ascontiguousarray(data["indices"][by_first].T.astype(np.int32))
    values = np.ascontiguousarray(data["values"][by_first])
    threads = available_threads()
    bounds = np.linspace(0, values.size, threads + 1).astype(int)
    parts = list(pairwise(bounds))
    read = reading_loop(order, rank)
    with ThreadPoolExecutor(threads) as pool:

        def once() -> list[float]:
            return list(pool.map(lambda part: read(values, indices, factors, *part), parts))

        once()
        return 1e9 * min(seconds(once)[0] for _ in range(7)) / values.size


def observed(quick: bool) -> list[Result]:
    """A tensor of which some entries are listed: a pass against reading, and a whole fit."""
    count, size, rank = (20_000, 40, 3) if quick else (2_000_000, 2000, 5)
    data = problems.listed(count, size, rank)
    X = problems.as_data(data)[0]
    what = f"{count:,} of {size}^3 rank {rank}"
    rng = np.random.default_rng(1)
    factors = tuple(rng.standard_normal((size, rank)) for _ in range(3))
    engine = as_engine(X)
    for mode in range(3):  # sorts
        engine.normal_equations(factors, mode, L1(1e-6))
    shares, times = [], []
    for _ in range(2 if quick else 5):
        least = reading_ns(data, factors)
        took = steady(lambda: [engine.normal_equations(factors, n, L1(1e-6)) for n in range(3)])
        times.append(1e9 * took / 3 / count)
        shares.append(least / times[-1])
    found = [
        row(
            f"a pass against reading alone, {what}", "of its limit", shares, ">= 0.5",
            note=f"{statistics.median(times):.3g} ns per entry, reading {least:.3g}",
        )
    ]  # fmt: skip
    robustcp.cp(problems.as_data(problems.listed(50_000, 100, rank))[0], rank)  # compiles
    found.append(_whole(data, rank, f"{what}, positive factors", quick, least))
    count, size = (8_000, 40) if quick else (500_000, 1000)
    data, what = problems.listed(count, size, rank, -1.0), f"{count:,} of {size}^3 rank {rank}"
    return [*found, _whole(data, rank, f"{what}, signed factors", quick, least)]


def _whole(data: dict[str, np.ndarray], rank: int, what: str, quick: bool, least: float) -> Result:
    """A fit of listed entries, beside reading them once for each mode and sweep, in ns."""
    X, truth = problems.as_data(data)[0], robustcp.KruskalTensor.from_factors(data["factors"])
    taken = in_turns({"cp": lambda: robustcp.cp(X, rank)}, 1 if quick else 3, discarded=0)["cp"]
    fit = taken[-1][1]
    score = float(robustcp.factor_match_score(fit, truth))
    return row(
        f"cp, {what}", "s", [took for took, _ in taken],
        limit=3e-9 * fit.sweeps * X.values.size * least,
        note=f"{fit.sweeps} sweeps after the starts, score {score:.4f}",
    )  # fmt: skip


# Long modes


def long(quick: bool) -> list[Result]:
    """A sweep where one mode has a million rows, and how much of it goes to solving them."""
    shape, rank = ((100_000, 10, 10) if quick else (1_000_000, 10, 10)), 5
    rng = np.random.default_rng(0)
    X = np.empty(shape)
    rng.standard_normal(out=X.reshape(-1))
    factors = tuple(rng.standard_normal((size, rank)) for size in shape)
    counts = sorted({1, CORES})
    parts: dict[int, list[tuple[float, float]]] = {threads: [] for threads in counts}
    engines = {threads: as_engine(X, threads=threads) for threads in counts}
    for turn in range(2 if quick else 5):
        for threads, engine in engines.items():
            objective = Objective(engine, L1(1e-6), (Free(),) * 3, (0, 1, 2))
            sweep = seconds(lambda o=objective: swept(o, factors), rest=0.2)[0]
            if turn:
                parts[threads].append((sweep, row_solves(objective, factors)))
    what = " x ".join(f"{size:,}" for size in shape) + f" rank {rank}"
    found = []
    for threads, runs in parts.items():
        least = sweep_limit(X.size, rank, 3, machine(np.float64, threads))
        on = f"on {threads} thread" + "s" * (threads > 1)
        found.append(row(f"a sweep {on}, {what}", "s", [sweep for sweep, _ in runs], limit=least))
        found.append(
            row(
                f"row solves {on}, {what}", "of the sweep", [rows / sweep for sweep, rows in runs],
                note=f"{statistics.median(rows for _, rows in runs):.3g} s",
            )
        )  # fmt: skip
    if CORES > 1:
        for place, name in enumerate(("a sweep", "row solves")):
            gains = gained(parts[1], parts[CORES], place)
            found.append(row(f"{name} on {CORES} threads, {what}", "x faster", gains, limit=CORES))
    return found


def gained(
    alone: Iterable[tuple[float, float]], together: Iterable[Any], place: int
) -> list[float]:
    return [a[place] / b[place] for a, b in zip(alone, together, strict=True)]


def swept(objective: Objective, factors: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The factors after a plain sweep."""
    for mode in range(len(factors)):
        new = MajorizeMinimize().update_factor(objective, factors, mode).factor
        factors = (*factors[:mode], new, *factors[mode + 1 :])
    return factors


def row_solves(objective: Objective, factors: tuple[np.ndarray, ...]) -> float:
    """Seconds that the row solves of a sweep take."""
    total = 0.0
    for mode in range(len(factors)):
        for rows in objective.row_blocks(mode, factors[0].shape[1]):
            equations = objective.equations(factors, mode, rows)
            total += seconds(
                lambda e=equations, m=mode, r=rows: objective.solve_rows(e, factors, m, r)
            )[0]
    return total
