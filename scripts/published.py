"""Others' published experiments on robust CP: `cp` on their data, beside their figures.

    python scripts/published.py --out published.csv                        # everything, hours
    python scripts/published.py todorov --runs 20 --first 1000 --out published.csv

An interrupted run goes on where it stopped. The tables are printed in Markdown.

todorov: Todorov, Simonacci, Gallo & Trendafilov (2023). 100 x 20 x 20, R congruent components, F
asked for, 10 or 20% bad samples: bad leverage (BL), good leverage (GL), orthogonal (OG). A run
fails if the worst congruence of a component, the product of its cosines in the three modes without
the bad samples, is below .95. Congruence and levels of noise are drawn from their grid. `cp` is
told that mode 0 holds samples (cases=0).
heng: Heng, Chi & Liu (2023). 50^3, rank 5 to 45, a quarter of the entries are outliers; the
relative error of the tensor.
brtf: Zhao, Zhou, Zhang, Cichocki & Amari (2016). 30^3, rank 5, smooth and random components, 20 dB,
5% outliers; the relative error, and the rank that `rank_profile` recommends.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import beta

import robustcp
from robustcp.studies.figures import markdown_table
from robustcp.studies.kinds import Factors, full_tensor
from robustcp.studies.results_file import KEY_COLUMNS, ResultsFile, Row, Task, run_tasks

#: The value is the worst congruence, or the relative error.
COLUMNS = (*KEY_COLUMNS, "value", "rank_found", "seconds", "converged", "status")


@dataclass(frozen=True)
class Data:
    """Data, the factors behind it, and the indices of bad samples."""

    X: np.ndarray
    factors: Factors
    bad: np.ndarray


# Todorov et al.

CONGRUENCES, LEVELS, SIGNAL_LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7), (0.15, 0.2, 0.25), (0.1, 0.15, 0.2)


@dataclass(frozen=True)
class Published:
    """A cell of their tables: percentages of failures by classical ALS, R-ALS and R-INT2.

    Where they give a range, that is the range over their cells.
    """

    R: int
    F: int
    kind: str
    share: float
    classical: str
    r_als: str
    r_int2: str

    @property
    def settings(self) -> str:
        return f"R={self.R} F={self.F} kind={self.kind} share={self.share}"

    @property
    def limit(self) -> float:
        """The better of the two robust methods; of a range, its upper end."""
        return min(float(text.split("-")[-1]) for text in (self.r_als, self.r_int2)) / 100


TODOROV = [
    Published(3, 3, "none", 0.0, "", ".2-.8", ".2-.8"),
    Published(5, 5, "none", 0.0, "", "3.6-4.8", "3.6-4.8"),
    Published(3, 3, "BL", 0.1, "98", ".2", ".6"),
    Published(3, 3, "BL", 0.2, "99", ".2", ".8"),
    Published(3, 3, "OG", 0.1, "100", ".5", ".8"),
    Published(3, 3, "OG", 0.2, "100", ".4", ".8"),
    Published(5, 5, "BL", 0.1, "95", "4.6", "5.7"),
    Published(5, 5, "BL", 0.2, "95", "5.0", "6.6"),
    Published(3, 4, "GL", 0.1, "53", "36", ".1"),
    Published(3, 4, "GL", 0.2, "75", "70", ".2"),
    Published(5, 6, "OG", 0.1, "28", "1.9", "2.0"),
    Published(5, 6, "OG", 0.2, "30", "2.1", "2.5"),
    Published(5, 6, "GL", 0.1, "32", "13", "1.0"),
    Published(5, 6, "GL", 0.2, "46", "43", ".7"),
]


def congruent_factor(rng: np.random.Generator, size: int, rank: int, cosine: float) -> np.ndarray:
    """Unit columns of which each two have this cosine."""
    Q, R = np.linalg.qr(rng.random((size, rank)))
    target = np.full((rank, rank), cosine) + (1 - cosine) * np.eye(rank)
    return np.asarray((Q * np.sign(np.diag(R))) @ np.linalg.cholesky(target).T)


def noise_of_level(M: np.ndarray, E: np.ndarray, level: float) -> np.ndarray:
    """Noise that is this share of the sum of squares in each fibre along the samples."""
    ratio = np.sum(M * M, axis=0) / np.sum(E * E, axis=0)
    return np.asarray(np.sqrt(level / (1 - level) * ratio) * E)


def todorov_data(rng: np.random.Generator, R: int, kind: str, share: float) -> Data:
    """Homoscedastic noise and noise by the signal, and bad samples of mode 0."""
    cosine, level, signal_level = (
        float(rng.choice(grid)) for grid in (CONGRUENCES, LEVELS, SIGNAL_LEVELS)
    )
    factors = tuple(congruent_factor(rng, size, R, cosine) for size in (100, 20, 20))
    M = full_tensor(factors)
    noise = noise_of_level(M, rng.standard_normal(M.shape), level)
    noise += noise_of_level(M, M * rng.standard_normal(M.shape), signal_level)
    bad = rng.choice(100, round(100 * share), replace=False)
    X = M.copy()
    if kind in ("BL", "GL"):
        X[bad] *= 10
    X += noise
    if kind in ("BL", "OG"):
        X[bad] += 0.1
    return Data(X, factors, bad)


def worst_congruence(estimate: Any, data: Data) -> float:
    """The least product of cosines of a true component and its partner, without bad samples."""
    cosines = 1.0
    for mode, (A, B) in enumerate(zip(data.factors, estimate.factors, strict=True)):
        pair = [np.delete(C, data.bad, 0) if mode == 0 else C for C in (A, np.asarray(B))]
        A, B = (C / np.maximum(np.linalg.norm(C, axis=0), 1e-300) for C in pair)
        cosines = cosines * np.abs(A.T @ B)
    return float(np.min(cosines[linear_sum_assignment(-cosines)]))


# The other two


def relative_error(estimate: Any, data: Data) -> float:
    M = full_tensor(data.factors)
    return float(np.linalg.norm(np.asarray(estimate.full()) - M) / np.linalg.norm(M))


def heng_data(rng: np.random.Generator, rank: int) -> Data:
    """No noise but outliers of up to ten standard deviations in a quarter of the entries."""
    factors = tuple(rng.standard_normal((50, rank)) for _ in range(3))
    M = full_tensor(factors)
    bad = rng.permutation(M.size).reshape(M.shape) < M.size // 4
    X = np.where(bad, M + 10 * M.std() * rng.uniform(-1, 1, M.shape), M)
    return Data(X, factors, np.array([], dtype=int))


def brtf_data(rng: np.random.Generator) -> Data:
    """Sines, cosines, square waves and two random columns; noise of 20 dB."""
    t = np.linspace(0, 2 * np.pi, 30)
    factors = tuple(
        np.column_stack(
            [np.sin(k * t), np.cos(k * t), np.where(np.sin(k * t) >= 0, 1.0, -1.0),
             rng.standard_normal((30, 2))]
        )
        for k in (1, 2, 3)
    )  # fmt: skip
    M = full_tensor(factors)
    X = M + 0.1 * np.sqrt(np.mean(M * M)) * rng.standard_normal(M.shape)
    bad = rng.random(M.shape) < 0.05
    X = np.where(bad, X + M.max() * rng.uniform(-1, 1, M.shape), X)
    return Data(X, factors, np.array([], dtype=int))


# Tasks


def run_task(task: Task) -> Row:
    """One fit, and its score."""
    rng = np.random.default_rng([task.seed, 2023])
    find_rank, options = False, {}
    if task.study == "todorov":
        data = todorov_data(rng, int(task["R"]), task["kind"], float(task["share"]))
        rank, options, score = int(task["F"]), {"cases": 0}, worst_congruence
    elif task.study == "heng":
        rank, score = int(task["rank"]), relative_error
        data = heng_data(rng, rank)
    else:
        data, rank, score, find_rank = brtf_data(rng), 5, relative_error, True
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it too
        if task.method == "cp":
            fit = robustcp.cp(data.X, rank, rng=task.seed, **options)
        else:
            fit = robustcp.cpals(data.X, rank)
        seconds = time.perf_counter() - begin
        found: float = np.nan
        if find_rank and task.method == "cp":
            found = robustcp.rank_profile(data.X, range(1, 9), jobs=1, rng=task.seed).rank
    row = dict(zip(KEY_COLUMNS, task.key, strict=True))
    return row | {
        "value": repr(score(fit, data)),
        "rank_found": repr(float(found)),
        "seconds": f"{seconds:.3f}",
        "converged": str(fit.converged),
        "status": " ".join(sorted({warning.code for warning in fit.warnings})),
    }


EXPERIMENTS = {
    "todorov": [cell.settings for cell in TODOROV],
    "heng": [f"rank={rank}" for rank in (5, 15, 25, 35, 45)],
    "brtf": ["rank=5"],
}
#: The others need fewer runs: their scores hardly vary.
MOST_RUNS = {"heng": 10, "brtf": 20}


def list_tasks(names: Sequence[str], first: int, runs: int) -> list[Task]:
    """Seed by seed, so that an interrupted run says something of all cells."""
    return [
        Task(name, seed, settings, method)
        for name in names
        for seed in range(first, first + min(runs, MOST_RUNS.get(name, runs)))
        for settings in EXPERIMENTS[name]
        for method in ("cp", "cpals")
    ]


# Tables


def interval(failures: int, runs: int) -> tuple[float, float]:
    """Of a share, 95% (Clopper and Pearson)."""
    low = beta.ppf(0.025, failures, runs - failures + 1) if failures else 0.0
    high = beta.ppf(0.975, failures + 1, runs - failures) if failures < runs else 1.0
    return float(low), float(high)


def todorov_table(rows: Sequence[Row]) -> str:
    """Percentages of failures; bold where ours are more than the better of theirs."""
    lines = []
    for cell in TODOROV:
        own = [row for row in rows if row["settings"] == cell.settings]
        failed = {
            method: [row for row in own if row["method"] == method and float(row["value"]) < 0.95]
            for method in ("cp", "cpals")
        }
        runs = sum(row["method"] == "cp" for row in own)
        if not runs:
            continue
        low, high = interval(len(failed["cp"]), runs)
        text = f"{len(failed['cp']) / runs:.1%} ({low:.1%} to {high:.1%})"
        silent = sum(not row["status"] for row in failed["cp"])
        lines.append(
            [f"{cell.R}, {cell.F}", cell.kind, f"{cell.share:.0%}", cell.classical, cell.r_als,
             cell.r_int2, f"{len(failed['cpals']) / runs:.0%}",
             text if low <= cell.limit else f"**{text}**", f"{silent / runs:.1%}", str(runs)]
        )  # fmt: skip
    header = ["R, F", "bad samples", "share", "classical", "R-ALS", "R-INT2", "`cpals`",
              "`cp`, `cases=0` (95%)", "silently", "runs"]  # fmt: skip
    return markdown_table(header, lines)


def error_table(rows: Sequence[Row]) -> str:
    """Medians and worst of the relative errors, and how often the rank is right."""
    lines = []
    for settings in dict.fromkeys(row["settings"] for row in rows):
        own = [row for row in rows if row["settings"] == settings]
        line = [settings.removeprefix("rank=")]
        for method in ("cpals", "cp"):
            values = [float(row["value"]) for row in own if row["method"] == method]
            line.append(f"{np.median(values):.2g} ({max(values):.2g})")
        fits = [row for row in own if row["method"] == "cp"]
        ranks = [float(row["rank_found"]) for row in fits]
        right = sum(f"rank={rank:.0f}" == settings for rank in ranks)
        seconds = np.median([float(row["seconds"]) for row in fits])
        line += [f"{right} of {len(ranks)}" if np.isfinite(ranks).any() else "", f"{seconds:.2g}"]
        lines.append([*line, str(len(ranks))])
    header = ["rank", "`cpals`", "`cp`", "rank found", "seconds", "runs"]
    return markdown_table(header, lines)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "todorov": todorov_table, "heng": error_table, "brtf": error_table,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="todorov, heng, brtf")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file of all runs")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    names = options.names or list(EXPERIMENTS)
    if unknown := set(names) - set(EXPERIMENTS):
        parser.error(f"unknown experiment {unknown.pop()!r}")
    tasks = list_tasks(names, options.first, options.runs)
    rows = run_tasks(
        tasks, run_task, ResultsFile(options.out, COLUMNS), options.jobs, partial(int, 0)
    )
    for name in names:
        print(f"{name}\n\n{TABLES[name]([row for row in rows if row['study'] == name])}")


if __name__ == "__main__":
    main()
