"""Ours and the peers side by side: `make bench`, or `make bench ONLY=sweeps`.

Everything is compared within one run, in turns (A B A B ...), so that a busy machine hurts all
alike; ratios are medians over the turns, with the lowest and the highest beside them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import robustcp
from robustcp.engines import as_engine
from robustcp.init import nvecs
from robustcp.losses import L1

Result = dict[str, Any]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds(work: Callable[[], Any], rest: float = 0.0) -> tuple[float, Any]:
    time.sleep(rest)  # threads of the BLAS library spin for a while after their last product
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def in_turns(work: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[tuple[float, Any]]]:
    """Each piece of work in turn, so many times; and once before, which is not counted."""
    taken: dict[str, list[tuple[float, Any]]] = {name: [] for name in work}
    for turn in range(turns + 1):
        for name, one in work.items():
            measured = seconds(one, rest=0.2)
            if turn:
                taken[name].append(measured)
    return taken


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    values = list(values)
    return statistics.median(values), min(values), max(values)


def row(name: str, unit: str, values: Iterable[float], target: str = "", **more: Any) -> Result:
    middle, low, high = spread(values)
    return {
        "name": name, "unit": unit, "median": middle, "low": low, "high": high,
        "target": target, **more,
    }  # fmt: skip


# Time to a solution


def huber(delta: float) -> tuple[Callable[..., Any], Callable[..., Any], float]:
    """Huber's loss as `pyttb.gcp_opt` takes it: value, derivative in the model, lower bound."""

    def value(x: np.ndarray, m: np.ndarray) -> np.ndarray:
        size = np.abs(x - m)
        return np.where(size <= delta, size * size, 2 * delta * size - delta * delta)

    def slope(x: np.ndarray, m: np.ndarray) -> np.ndarray:
        return -2 * np.clip(x - m, -delta, delta)

    return value, slope, -np.inf


def solution(quick: bool) -> list[Result]:
    import pyttb

    found = []
    for size, rank, turns, targets in (
        (50, 5, 7, (">= 10", ">= 5")),
        (200, 10, 5, (">= 15", ">= 10")),
    ):
        if quick and size > 50:
            continue
        sim = robustcp.simulate((size,) * 3, rank, eta=0.2, gamma=2.0, rng=0)
        X, tensor = sim.data, pyttb.tensor(sim.data)

        def peer(tensor: Any = tensor, X: np.ndarray = X, rank: int = rank) -> Any:
            start = [np.asfortranarray(nvecs(X, mode, rank)) for mode in range(3)]
            model, _, _ = pyttb.gcp_opt(
                tensor, rank, huber(0.25), pyttb.gcp.optimizers.LBFGSB(),
                init=pyttb.ktensor(start), printitn=0,
            )  # fmt: skip
            return robustcp.KruskalTensor.from_tensorly((model.weights, model.factor_matrices))

        taken = in_turns(
            {
                "gcp_opt": peer,
                "cpal1": lambda X=X, rank=rank: robustcp.cpal1(X, rank).model,
                "cp": lambda X=X, rank=rank: robustcp.cp(X, rank).model,
            },
            1 if quick else turns,
        )
        l1 = {k: float(np.abs(X - runs[-1][1].full()).sum()) for k, runs in taken.items()}
        score = {
            k: float(robustcp.factor_match_score(runs[-1][1], sim.truth))
            for k, runs in taken.items()
        }
        for name, target in zip(("cpal1", "cp"), targets, strict=True):
            ratios = [a / b for (a, _), (b, _) in zip(taken["gcp_opt"], taken[name], strict=True)]
            found.append(
                row(
                    f"{name} against gcp_opt, {size}^3 rank {rank}", "x faster", ratios, target,
                    seconds=spread(s for s, _ in taken[name])[0],
                    peer_seconds=spread(s for s, _ in taken["gcp_opt"])[0],
                    l1_of_peers=l1[name] / l1["gcp_opt"], score=score[name],
                    peer_score=score["gcp_opt"],
                )
            )  # fmt: skip
    return found


# Sweeps of least squares


def sweeps(quick: bool) -> list[Result]:
    import pyttb
    from tensorly.decomposition import parafac

    found = []
    for size, rank, count, turns, target in ((50, 5, 500, 9, ">= 1"), (200, 10, 30, 7, ">= 2")):
        if quick and size > 50:
            continue
        X = robustcp.simulate((size,) * 3, rank, eta=0.2, gamma=2.0, rng=0).data
        rng = np.random.default_rng(1)
        start = [rng.standard_normal((size, rank)) for _ in range(3)]
        tensor = pyttb.tensor(X)

        def ours(n: int, X: np.ndarray = X, start: Any = start, rank: int = rank) -> Any:
            return robustcp.cpals(X, rank, init=start, tol=0.0, max_sweeps=n)

        def tensorly(n: int, X: np.ndarray = X, start: Any = start, rank: int = rank) -> Any:
            init = (np.ones(rank), [A.copy() for A in start])
            return parafac(X, rank, n_iter_max=n, init=init, tol=0)

        def pyttb_als(n: int, tensor: Any = tensor, start: Any = start, rank: int = rank) -> Any:
            init = pyttb.ktensor([np.asfortranarray(A) for A in start])
            return pyttb.cp_als(tensor, rank, stoptol=0.0, maxiters=n, init=init, printitn=0)

        # What comes before the first sweep and after the last is in both and falls out.
        work = {}
        for name, method in (("robustcp", ours), ("tensorly", tensorly), ("pyttb", pyttb_als)):
            work[name] = lambda f=method, n=count: f(n)
            work[name + " short"] = lambda f=method, n=count: f(n // 10)
        taken = in_turns(work, 1 if quick else turns)
        each = {
            name: [
                (long - short) / (count - count // 10)
                for (long, _), (short, _) in zip(taken[name], taken[name + " short"], strict=True)
            ]
            for name in ("robustcp", "tensorly", "pyttb")
        }
        best = min(each["tensorly"], each["pyttb"], key=statistics.median)
        found.append(
            row(
                f"a sweep of cpals against the faster peer, {size}^3 rank {rank}", "x faster",
                [a / b for a, b in zip(best, each["robustcp"], strict=True)], target,
                milliseconds={k: 1e3 * spread(v)[0] for k, v in each.items()},
            )
        )  # fmt: skip
    return found


# One pass against the machine


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

    def rate(formula: Callable[[], Any]) -> float:
        """Of one thread, by as many as there are: vector units are not shared."""
        best = min(seconds(lambda: [formula() for _ in repeats])[0] for _ in range(3))
        return best / len(repeats) / small.size / threads

    root = rate(lambda: np.sqrt(small, out=out))
    division = rate(lambda: np.divide(1, small, out=out))
    with ThreadPoolExecutor(threads) as pool:  # memory is shared
        read = [seconds(lambda: list(pool.map(np.sum, parts)))[0] for _ in range(4)]
    byte = min(read) / sum(part.nbytes for part in parts)
    return {"flop": 1e9 * flop, "root": 1e9 * root, "division": 1e9 * division, "byte": 1e9 * byte}


def steady(work: Callable[[], Any], warm: float = 0.1, measured: float = 0.3) -> float:
    """Seconds for some work that is done again and again, after a while."""
    end = time.perf_counter() + warm
    while time.perf_counter() < end:
        work()
    times = []
    while sum(times) < measured:
        times.append(seconds(work)[0])
    return statistics.median(times)


def limit(quick: bool) -> list[Result]:
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
                    rates = machine(dtype, threads)
                    flops = 4 * rank + rank * (rank + 1)
                    bound = max(
                        flops * rates["flop"] + rates["root"] + rates["division"],
                        X.itemsize * rates["byte"],
                    )
                    time.sleep(0.2)
                    took = steady(
                        lambda e=engine, f=factors: [e.normal(f, n, L1(1e-6)) for n in range(3)]
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
                        ns_per_entry=spread(times[threads])[0],
                    )
                )  # fmt: skip
            if CORES > 1:
                gains = [a / b for a, b in zip(times[1], times[CORES], strict=True)]
                what = f"a pass on {CORES} threads, {size}^3 {name}"
                goal = ">= 1.8" if CORES == 2 else ""
                found.append(row(what, "x faster", gains, goal))
    return found


# Growth


def growth(quick: bool) -> list[Result]:
    shapes: list[tuple[str, tuple[int, ...], Any, str]] = [
        (f"{n}^3", (n,) * 3, np.float64, "C")
        for n in ((50, 100) if quick else (50, 100, 200, 300, 500))
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
    base_shape = (100,) * 3
    base = as_engine(rng.standard_normal(base_shape))
    base_factors = tuple(rng.standard_normal((size, rank)) for size in base_shape)

    def pass_ns(engine: Any, factors: Any) -> list[float]:
        engine.normal(factors, 0, L1(1e-6))
        entries = float(np.prod(engine.shape))
        return [
            1e9 * seconds(lambda n=n: engine.normal(factors, n, L1(1e-6)))[0] / entries
            for n in range(len(factors))
        ]

    found = []
    for name, shape, dtype, order in shapes:
        if dtype == np.uint8:
            X = rng.integers(0, 255, shape, dtype=np.uint8)
        else:
            X = np.empty(shape)
            rng.standard_normal(out=X.reshape(-1))
        X = np.asarray(X, order=order)
        engine = as_engine(X)
        factors = tuple(rng.standard_normal((size, rank)) for size in shape)
        ratios, times = [], []
        for turn in range(turns + 1):
            mine = pass_ns(engine, factors)
            theirs = statistics.mean(statistics.mean(pass_ns(base, base_factors)) for _ in range(3))
            if turn:
                ratios.append(statistics.mean(mine) / theirs)
                times.append(mine)
        found.append(
            row(
                f"ns per entry against 100^3: {name}", "x", ratios,
                "" if name == "50^3" else "<= 1.3",
                ns_per_entry=[spread(column)[0] for column in zip(*times, strict=True)],
            )
        )  # fmt: skip
        del X, engine
    return found


# Memory

CHILD = """
import sys, numpy as np, robustcp

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

size, rank, dtype = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
fit = getattr(robustcp, sys.argv[1])
small = np.random.default_rng(0).standard_normal((20, 20, 20)).astype(dtype)
fit(small, rank)
truth = [np.random.default_rng(k).standard_normal((size, rank)) for k in range(3)]
X = np.empty((size,) * 3, dtype)
rng = np.random.default_rng(9)
for i in range(size):
    X[i] = np.einsum("r,jr,kr->jk", truth[0][i], truth[1], truth[2])
    X[i] += 0.1 * rng.standard_normal((size, size)) + 20 * (rng.random((size, size)) < 0.1)
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before = status("VmRSS")
fit(X, rank)
print((status("VmHWM") - before) / X.nbytes)
"""


def memory(quick: bool) -> list[Result]:
    found = []
    cases = [("cpal1", "float64"), ("cp", "float64"), ("cpals", "float64"), ("cp", "float32")]
    for method, dtype in cases:
        size = 150 if quick else 400
        done = subprocess.run(
            [sys.executable, "-c", CHILD, method, str(size), "5", dtype],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        target = "<= 0.15" if dtype == "float64" and method != "cpals" and not quick else ""
        name = f"peak memory beyond the tensor, {method} {size}^3 {dtype} rank 5"
        found.append(row(name, "of the tensor", [float(done.stdout)], target))
    return found


BENCHMARKS: dict[str, Callable[[bool], list[Result]]] = {
    "solution": solution, "sweeps": sweeps, "limit": limit, "growth": growth, "memory": memory,
}  # fmt: skip


# What comes out


def met(result: Result) -> str:
    if not result["target"]:
        return ""
    sign, bound = result["target"].split()
    good = result["median"] >= float(bound) if sign == ">=" else result["median"] <= float(bound)
    return "yes" if good else "NO"


def table(results: Sequence[Result]) -> str:
    lines = ["| what | median | lowest to highest | target | met |", "|---|---|---|---|---|"]
    for r in results:
        lines.append(
            f"| {r['name']} | {r['median']:.3g} {r['unit']} | {r['low']:.3g} to {r['high']:.3g} "
            f"| {r['target']} | {met(r)} |"
        )
    return "\n".join(lines)


def draw(results: Sequence[Result], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
    ratios = [r for r in results if r["bench"] in ("solution", "sweeps")]
    limits = [r for r in results if r["bench"] == "limit" and r["unit"] == "of its limit"]
    sizes = [r for r in results if r["bench"] == "growth"]
    for ax, rows, title in zip(
        panels, (ratios, limits, sizes),
        ("times faster than the peer", "one pass: share of the machine's limit",
         "ns per entry, against 100^3"), strict=True,
    ):  # fmt: skip
        at = np.arange(len(rows))
        middle = [r["median"] for r in rows]
        low = [r["median"] - r["low"] for r in rows]
        high = [r["high"] - r["median"] for r in rows]
        ax.barh(at, middle, xerr=[low, high], color="#0072B2", height=0.6, ecolor="0.3")
        for k, r in enumerate(rows):
            if r["target"]:
                ax.plot([float(r["target"].split()[1])] * 2, [k - 0.4, k + 0.4], color="#D55E00")
        names = [
            r["name"].split(": ")[-1].replace("a pass against the machine, ", "") for r in rows
        ]
        ax.set_yticks(at, names, fontsize=7)
        ax.invert_yaxis()
        ax.set_title(title + " (mark: target)", fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def about_machine() -> dict[str, Any]:
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((s.split(": ")[1] for s in lines if s.startswith("model name")), model)
    packages = ("robustcp", "numpy", "numba", "pyttb", "tensorly")
    return {
        "date": date.today().isoformat(), "processor": model, "cores": CORES,
        "python": platform.python_version(), **{name: version(name) for name in packages},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(BENCHMARKS), help="one of the benchmarks")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("--quick", action="store_true", help="small sizes, one turn: does it run?")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    known = json.loads(path.read_text())["results"] if options.only and path.exists() else []
    names = [options.only] if options.only else list(BENCHMARKS)
    results = [r for r in known if r["bench"] not in names]
    for name in names:
        print(f"\n{name}", flush=True)
        new = [{"bench": name, **result} for result in BENCHMARKS[name](options.quick)]
        print(table(new), flush=True)
        results += new
    results.sort(key=lambda r: list(BENCHMARKS).index(r["bench"]))
    path.write_text(json.dumps({"machine": about_machine(), "results": results}, indent=1))
    (options.out / "table.md").write_text(table(results) + "\n")
    draw(results, options.out / "bench.png")
    print(f"\nwritten to {options.out}: results.json, table.md, bench.png")


if __name__ == "__main__":
    main()
