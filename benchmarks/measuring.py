"""Clocks, turns, rows of results, and what the machine itself can do.

Everything is compared within one run, in turns (A B A B ...), so that a busy machine hurts all
alike; ratios are medians over the turns, with the lowest and the highest beside them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from robustcp.engines.threads import available_threads

Result = dict[str, Any]
Work = Callable[[], Any]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Unit(NamedTuple):
    """Which way is better, and whether it says as much on another machine or a busier day."""

    more_is_better: bool
    absolute: bool = False


UNITS = {
    "x faster": Unit(True),
    "of its limit": Unit(True),
    "x": Unit(False),
    "of its time": Unit(False),
    "of the sweep": Unit(False),
    "of the tensor": Unit(False),
    "of plain alternation": Unit(False),
    "sweeps": Unit(False),
    "MB": Unit(False),
    "s": Unit(False, absolute=True),
    "ms": Unit(False, absolute=True),
    "us": Unit(False, absolute=True),
}


def row(
    name: str,
    unit: str,
    values: Iterable[float],
    target: str = "",
    *,
    limit: float | None = None,
    note: str = "",
    valid: bool = True,
    **more: Any,
) -> Result:
    """A row of the results.

    Parameters
    ----------
    name, unit : str
    values : one for each turn
    target : "<= number" or ">= number", for the median
    limit : what the machine itself would allow, in the same unit
    note : what belongs beside the number
    valid : whether what was computed is good enough for its time to count
    """
    values = list(values)
    if unit not in UNITS:
        raise ValueError(f"unit: must be one of {', '.join(UNITS)}, got {unit!r}")
    return {
        "name": name, "unit": unit, "median": statistics.median(values), "low": min(values),
        "high": max(values), "turns": len(values), "target": target, "limit": limit, "note": note,
        "valid": valid, **more,
    }  # fmt: skip


def median(taken: Iterable[tuple[float, Any]]) -> float:
    return statistics.median(took for took, _ in taken)


def ratios(
    over: Iterable[tuple[float, Any]], under: Iterable[tuple[float, Any]], scale: float = 1.0
) -> list[float]:
    """Of the seconds of two, turn by turn."""
    return [scale * a / b for (a, _), (b, _) in zip(over, under, strict=True)]


# Clocks


def seconds(work: Work, rest: float = 0.0) -> tuple[float, Any]:
    time.sleep(rest)  # threads of the BLAS library spin for a while after their last product
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def in_turns(
    work: Mapping[str, Work], turns: int, clock: Callable[..., Any] = seconds, discarded: int = 1
) -> dict[str, list[Any]]:
    """Each piece of work in turn, so many times; the first turn, which compiles, is not counted.

    The clock returns the seconds and what came of the work.
    """
    taken: dict[str, list[Any]] = {name: [] for name in work}
    for turn in range(discarded + turns):
        for name, one in work.items():
            measured = clock(one, rest=0.2)
            if turn >= discarded:
                taken[name].append(measured)
    return taken


def own_clock(work: Work, rest: float = 0.0) -> Any:
    """For work that returns its seconds and what came of it, such as that of other processes."""
    time.sleep(rest)
    return work()


def steady(work: Work, warm: float = 0.1, measured: float = 0.3) -> float:
    """Seconds for some work that is done again and again, after a while."""
    end = time.perf_counter() + warm
    while time.perf_counter() < end:
        work()
    times: list[float] = []
    while sum(times) < measured:
        times.append(seconds(work)[0])
    return statistics.median(times)


# The machine


def machine(dtype: Any, threads: int) -> dict[str, float]:
    """What the machine does, in ns: a flop of a matrix product, a root, a division, a byte read."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((1024, 1024)).astype(dtype)
    with threadpool_limits(threads, user_api="blas"):
        A @ A
        flop = min(seconds(lambda: A @ A)[0] for _ in range(3)) / (2 * 1024**3)
    small = 1 + np.abs(rng.standard_normal(1 << 14)).astype(dtype)
    out = np.empty_like(small)
    parts = np.array_split(np.ones(1 << 25, dtype), threads)
    repeats = range(200)

    def rate(formula: Work) -> float:
        """Of one thread, by as many as there are: vector units are not shared."""
        best = min(seconds(lambda: [formula() for _ in repeats])[0] for _ in range(3))
        return best / len(repeats) / small.size / threads

    root = rate(lambda: np.sqrt(small, out=out))
    division = rate(lambda: np.divide(1, small, out=out))
    with ThreadPoolExecutor(threads) as pool:  # memory is shared
        read = [seconds(lambda: list(pool.map(np.sum, parts)))[0] for _ in range(4)]
    byte = min(read) / sum(part.nbytes for part in parts)
    return {"flop": 1e9 * flop, "root": 1e9 * root, "division": 1e9 * division, "byte": 1e9 * byte}


@lru_cache
def usual_machine() -> dict[str, float]:
    """The machine in double precision, on the threads that a fit has; measured once in a run."""
    return machine(np.float64, available_threads())


#: Data below this size, in bytes, stays in the cache from one pass to the next.
CACHED = 1 << 22


def pass_limit(
    entries: int, rank: int, rates: Mapping[str, float] | None = None, itemsize: int = 8
) -> float:
    """Ns per entry for a pass: its flops, a root and a division; or to read the data, if longer."""
    rates = rates or usual_machine()
    flops = 4 * rank + rank * (rank + 1)
    work = flops * rates["flop"] + rates["root"] + rates["division"]
    return max(work, _reading(entries, rates, itemsize))


def _reading(entries: int, rates: Mapping[str, float], itemsize: int) -> float:
    return itemsize * rates["byte"] if itemsize * entries > CACHED else 0.0


def sweep_limit(
    entries: int, rank: int, order: int, rates: Mapping[str, float] | None = None
) -> float:
    """Seconds for a sweep under a loss with weights: a pass for each mode."""
    return 1e-9 * order * entries * pass_limit(entries, rank, rates)


def als_limit(entries: int, rank: int) -> float:
    """Seconds for a sweep of least squares: two contractions, each of which reads the data."""
    rates = usual_machine()
    return 2e-9 * entries * max(2 * rank * rates["flop"], _reading(entries, rates, 8))


def pace() -> dict[str, float]:
    """Seconds for a little of each: Python, products, memory. Medians, so a busy day shows."""
    A = np.random.default_rng(0).standard_normal((384, 384))
    line = np.ones(1 << 23)

    def python() -> int:
        total = 0
        for k in range(60_000):
            total += k & 3
        return total

    work = {"python": python, "products": lambda: A @ A, "memory": lambda: line.sum()}
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(9):
        for name, one in work.items():
            taken[name].append(seconds(one)[0])
    return {name: statistics.median(times) for name, times in taken.items()}
