"""What is hard for `cp`: the kinds of data that are judged beside the oracle, and held-out counts.

    python scripts/hard_data.py --out hard --first 2000 --seeds 10
    python scripts/hard_data.py --out hard --seeds 3 --data DATA --only counts,real

kinds: all kinds of `robustcp trials` whose targets are near the oracle, by cell. counts:
overdispersed counts of 24 components, a fifth of them held out, at rank 6: the root mean square
error of what is held out, beside that of `cpals`. real, with --data, a folder with hangzhou.mat,
girls.csv, elind.csv and aminoacids.mat: the same for the counts of passengers; models of two
three-way tables with cases=0 between seeds; the share of the clean amino acids that is flagged.
An interrupted run goes on where it stopped. What is missed is bold.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import robustcp
from robustcp.studies.figures import markdown_table
from robustcp.studies.kinds import KINDS
from robustcp.studies.results_file import KEY_COLUMNS, ResultsFile, Row, Task, run_tasks
from robustcp.studies.trials import Selection, check_target, results_by_kind, run_trials

METHODS = ("cp", "cpals", "oracle")
#: Of held-out counts the root mean square error may be so many times that of least squares.
MOST_ERROR = 1.05
COLUMNS = (*KEY_COLUMNS, "rmse", "mae", "seconds", "converged", "status")


def judge(text: str, holds: bool) -> str:
    return text if holds else f"**{text}**"


# Kinds of robustcp trials


def kinds_table(options: argparse.Namespace) -> str:
    """Median and worst of each cell, and which parts of the target are missed."""
    kinds = [name for name, kind in KINDS.items() if kind.target.worst_margins]
    selection = Selection(kinds, options.seeds, METHODS, options.first)
    rows = run_trials(selection, options.out, jobs=options.jobs)
    lines = []
    for name, results in results_by_kind(rows).items():
        for cell, of_cell in results.by_cell().items():
            scores = [of_cell.for_method(method) for method in METHODS]
            claims = check_target(KINDS[name].target, of_cell)
            lines.append(
                [name, cell, *(f"{each.median():.3f} ({each.worst():.3f})" for each in scores),
                 f"{scores[0].median('seconds'):.1f}",
                 f"{scores[0].median('false_alarms'):.2%}",
                 ", ".join(f"**{claim.text}**" for claim in claims if not claim.holds)]
            )  # fmt: skip
    header = ["kind", "cell", *METHODS, "seconds", "false alarms", "missed"]
    return markdown_table(header, lines)


# Held-out counts


def overdispersed_counts(seed: int) -> np.ndarray:
    """40 stations x 25 days x 54 times: negative binomial counts of mean 100, 24 short peaks."""
    rng = np.random.default_rng(seed)
    stations, days = rng.lognormal(0, 1.3, (40, 24)), rng.gamma(4, 0.25, (25, 24))
    centres, widths = rng.uniform(0, 54, 24), rng.uniform(1, 4, 24)
    times = np.exp(-0.5 * ((np.arange(54)[:, None] - centres) / widths) ** 2)
    M = np.einsum("ir,jr,kr->ijk", stations, days, times)
    M *= 100 / M.mean()
    return rng.poisson(rng.gamma(20, M / 20)).astype(float)


def predict(data: Callable[[int], np.ndarray], task: Task) -> Row:
    """The errors of a method in a fifth of the entries, which it did not see."""
    X = data(task.seed)
    held_out = np.random.default_rng([task.seed, 1]).random(X.shape) < 0.2
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status says it too
        fit = getattr(robustcp, task.method)(np.where(held_out, np.nan, X), int(task["rank"]))
    errors = (np.asarray(fit.full()) - X)[held_out]
    return dict(zip(KEY_COLUMNS, task.key, strict=True)) | {
        "rmse": repr(float(np.sqrt(np.mean(errors**2)))),
        "mae": repr(float(np.mean(np.abs(errors)))),
        "seconds": f"{time.perf_counter() - begin:.3f}",
        "converged": str(fit.converged),
        "status": " ".join(sorted({warning.code for warning in fit.warnings})),
    }


def prediction_table(
    name: str, data: Callable[[int], np.ndarray], rank: int, options: argparse.Namespace
) -> str:
    """Errors beside those of least squares."""
    seeds = range(options.first, options.first + options.seeds)
    tasks = [Task(name, seed, f"rank={rank}", m) for m in METHODS[:2] for seed in seeds]
    results = ResultsFile(options.out / f"{name}.csv", COLUMNS)
    rows = run_tasks(tasks, partial(predict, data), results, options.jobs, lambda: None)
    errors = {
        column: np.reshape([float(row[column]) for row in rows], (2, -1))
        for column in ("rmse", "mae")
    }
    ratios = errors["rmse"][0] / errors["rmse"][1]
    verdict = f"{np.median(ratios):.3f} ({ratios.max():.3f})"
    lines = [
        [name, str(rank), *(f"{m:.1f}" for E in errors.values() for m in np.median(E, axis=1)),
         judge(verdict, bool(np.median(ratios) <= MOST_ERROR))]
    ]  # fmt: skip
    header = ["counts", "rank", "RMSE of cp", "of cpals", "MAE of cp", "of cpals", "ratio (worst)"]
    return markdown_table(header, lines)


# Real data


def passengers(folder: Path, _: int) -> np.ndarray:
    from scipy.io import loadmat

    return np.asarray(loadmat(folder / "hangzhou.mat")["tensor"], dtype=float)


def read_table(path: Path) -> np.ndarray:
    """A three-way table in long form, centred over the samples, each variable of size one."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("sample", "variable", "occasion")
    levels = [list(dict.fromkeys(row[name] for row in rows)) for name in names]
    X = np.full([len(level) for level in levels], np.nan)
    for row in rows:
        index = tuple(level.index(row[name]) for level, name in zip(levels, names, strict=True))
        X[index] = float(row["value"])
    X -= np.nanmean(X, axis=0)
    return np.asarray(X / np.sqrt(np.nanmean(X**2, axis=(0, 2), keepdims=True)))


def compare_seeds(name: str, X: np.ndarray, seeds: int) -> list[str]:
    """The least factor match score between models of two seeds, and whether `cp` says so."""
    fits = [robustcp.cp(X, 3, cases=0, rng=seed) for seed in range(seeds)]
    scores = [robustcp.factor_match_score(a, b) for k, a in enumerate(fits) for b in fits[k + 1 :]]
    said = all("ambiguous" in {warning.code for warning in fit.warnings} for fit in fits)
    text = f"{min(scores):.3f}{', ambiguous' * said}"
    return [f"{name}: least score between {seeds} seeds", judge(text, said or min(scores) >= 0.99)]


def real_table(options: argparse.Namespace) -> str:
    from scipy.io import loadmat

    lines = [
        compare_seeds(name, read_table(options.data / f"{name}.csv"), 5)
        for name in ("girls", "elind")
    ]
    stored: Any = loadmat(options.data / "aminoacids.mat")["X"]
    X = np.asarray(stored if stored.ndim == 3 else stored["data"][0, 0])
    share = robustcp.cp(X, 3, rng=0).outliers(X).share
    lines.append(["amino acids: flagged", judge(f"{share:.1%}", share <= 0.04)])
    return markdown_table(["real data", ""], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for all results")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="kinds,counts,real")
    parser.add_argument("--data", type=Path, help="a folder with real data")
    options = parser.parse_args()
    parts: Sequence[str] = options.only.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    if "kinds" in parts:
        print(kinds_table(options), flush=True)
    if "counts" in parts:
        print(prediction_table("simulated", overdispersed_counts, 6, options), flush=True)
    if "real" in parts and options.data:
        print(prediction_table("passengers", partial(passengers, options.data), 8, options))
        print(real_table(options))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
