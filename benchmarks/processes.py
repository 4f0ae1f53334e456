"""New processes: how soon the first result is there, and how much memory a fit takes."""

from __future__ import annotations

import statistics
from pathlib import Path

from measuring import Result, in_turns, median, row, seconds
from trees import Tree, folder

FIRST = """
import numpy as np, sys, robustcp
size, rank = int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
A, B, C = (np.abs(rng.standard_normal((size, rank))) for _ in range(3))
X = np.einsum("ir,jr,kr->ijk", A, B, C) + 0.1 * rng.standard_normal((size,) * 3)
X += 5 * (rng.random(X.shape) < 0.2)
getattr(robustcp, sys.argv[1])(X, rank)
"""
#: What any call needs.
NEEDED = "import numpy, scipy.linalg, numba"


def first_result(tree: Tree, method: str, size: int, rank: int, cache: Path) -> None:
    """By a new process, in which nothing has been compiled; the cache may hold it."""
    tree.run(FIRST, method, str(size), str(rank), cache=cache)


def cold(tree: Tree, method: str, size: int, rank: int) -> None:
    with folder() as cache:
        first_result(tree, method, size, rank, cache)


def start(quick: bool) -> list[Result]:
    """Seconds from the start of Python to the first result."""
    tree, turns = Tree.own(), 1 if quick else 5
    found = []
    with folder() as cache:
        taken = in_turns(
            {
                "needed": lambda: tree.run(NEEDED, cache=cache),
                "import": lambda: tree.run("import robustcp", cache=cache),
            },
            turns,
        )
        least = median(taken["needed"])
        note = f"limit: {NEEDED}"
        found.append(
            row(
                "import robustcp", "s", [took for took, _ in taken["import"]], note=note,
                limit=least, first="import robustcp",
            )
        )  # fmt: skip
        for method, size, rank, goals in (
            ("cp", 20, 3, ("< 2", "< 6")),
            ("cp", 50, 5, ("< 2", "< 6")),
            ("cpals", 50, 5, ("", "")),
        ):
            if quick and (method, size) != ("cpals", 50):
                continue
            asked = tree, method, size, rank
            first_result(*asked, cache)
            warm = in_turns({"": lambda a=asked: first_result(*a, cache)}, turns, discarded=0)[""]
            empty = [seconds(lambda a=asked: cold(*a)) for _ in range(1 if quick else 3)]
            for kind, runs, goal in zip(("warm", "cold"), (warm, empty), goals, strict=True):
                found.append(
                    row(
                        f"first result of {method}, {size}^3 rank {rank}, {kind} cache", "s",
                        [took for took, _ in runs], goal.replace("<", "<="), limit=least,
                        first=f"{method}, {size}³ rank {rank}, {kind} cache",
                    )
                )  # fmt: skip
    return found


# Memory

PEAK = """
import sys, numpy as np, robustcp

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def tensor(size):
    truth = [np.random.default_rng(k).standard_normal((size, rank)) for k in range(3)]
    X = np.empty((size,) * 3, dtype)
    rng = np.random.default_rng(9)
    for i in range(size):
        X[i] = np.einsum("r,jr,kr->jk", truth[0][i], truth[1], truth[2])
        X[i] += 0.1 * rng.standard_normal((size, size)) + 20 * (rng.random((size, size)) < 0.1)
    return X

size, rank, dtype = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
fit = getattr(robustcp, sys.argv[1])
if sys.argv[5] == "compiled":
    for small in (20, 60):
        fit(tensor(small), rank)
X = tensor(size)
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before = status("VmRSS")
fit(X, rank)
print(status("VmHWM") - before)
"""


def memory(quick: bool) -> list[Result]:
    """The peak beyond the tensor, once all is compiled and while it is being compiled."""
    tree, rank, turns = Tree.own(), 5, 1 if quick else 2
    size = 100 if quick else 400
    found = []
    for method, dtype, target in (
        ("cpal1", "float64", "<= 0.07"),
        ("cp", "float64", "<= 0.07"),
        ("cpals", "float64", "<= 0.07"),
        ("cp", "float32", ""),
    ):
        if quick and method != "cpals":
            continue
        beyond: list[float] = []
        more: list[float] = []
        with folder() as cache:
            for _ in range(turns):
                asked = method, str(size), str(rank), dtype
                peak = float(tree.run(PEAK, *asked, "compiled", cache=cache))
                with folder() as empty:
                    first = float(tree.run(PEAK, *asked, "new", cache=empty))
                beyond.append(peak)
                more.append((first - peak) / 1e6)
        entry = 8 if dtype == "float64" else 4
        tensor = entry * size**3
        name = f"{method} {size}^3 {dtype} rank {rank}"
        found.append(
            row(
                f"peak memory beyond the tensor, {name}", "of the tensor",
                [peak / tensor for peak in beyond], "" if quick else target,
                note=f"{statistics.median(beyond) / 1e6:.3g} MB", needs=name,
            )
        )  # fmt: skip
        found.append(
            row(
                f"more while compiling, {name}", "MB", more, "<= 120" if target else "",
                note="Numba itself included",
            )
        )  # fmt: skip
    return found
