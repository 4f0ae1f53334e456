"""How well the methods recover models from each kind of contamination, and what the limit is."""

from __future__ import annotations

import inspect
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.constraints import Nonnegative
from robustcp.files.writing import make_folder
from robustcp.fitted import Fit
from robustcp.kruskal import KruskalTensor
from robustcp.methods import cp, cpal1, cpals
from robustcp.metrics import factor_match_score
from robustcp.studies.figures import LOOKS, methods_of, table
from robustcp.studies.kinds import KINDS, Kind, Target, Trial
from robustcp.studies.ledger import KEYS, Row, Task, task_of
from robustcp.studies.oracle import Limit, oracle
from robustcp.studies.study import Progress, Study, check_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    *KEYS, "fms", "fms_unweighted", "sweeps", "seconds", "converged", "status", "false_alarms",
    "detected", "slabs_found",
)  # fmt: skip
#: The status of a fit that raised an error begins with this.
ERROR = "error: "


# The methods


def _called(method: Callable[..., Fit], trial: Trial, **more: Any) -> Fit:
    """A method called with those of the trial's options that it has."""
    known = inspect.signature(method).parameters
    options = {name: value for name, value in trial.options.items() if name in known}
    if trial.options.get("nonnegative") and "nonnegative" not in known:
        options["constraints"] = {mode: Nonnegative() for mode in range(trial.data.ndim)}
    return method(trial.given, trial.rank, **options, **more)


def _at_truth(trial: Trial) -> Fit:
    """`cp` begun at the true factors: what its criterion makes of them, without any search.

    Components that are asked for beyond the true ones begin small.
    """
    rng, more = np.random.default_rng(0), trial.rank - trial.truth[0].shape[1]
    small = [1e-2 * np.abs(A).mean() * rng.random((A.shape[0], more)) for A in trial.truth]
    begin = [np.hstack(pair) for pair in zip(trial.truth, small, strict=True)]
    return _called(cp, trial, init=begin)


METHODS: dict[str, Callable[[Trial], Fit | Limit]] = {
    "cp": partial(_called, cp),
    "cpal1": partial(_called, cpal1),
    "cpals": partial(_called, cpals),
    "oracle": oracle,
    "cp_at_truth": _at_truth,
}
#: Those that are run if none is named, with those that the targets of a kind refer to.
USUAL = ("cp", "cpal1", "cpals", "oracle")


# Tasks and rows


@dataclass(frozen=True)
class Selection:
    """Which trials: kinds, seeds 0 to `seeds` - 1, and methods; without methods the usual ones."""

    kinds: Sequence[str]
    seeds: int
    methods: Sequence[str] = ()


def _tasks(chosen: Selection) -> list[Task]:
    tasks = []
    for kind in (KINDS[name] for name in chosen.kinds):
        methods = chosen.methods or dict.fromkeys((*USUAL, *kind.target.below))
        tasks += [
            Task("trials", seed, f"kind={kind.name} {cell}".strip(), method)
            for cell in kind.cells
            for seed in range(chosen.seeds * kind.tensors)
            for method in methods
        ]
    return tasks


def _kind_and_cell(settings: str) -> tuple[Kind, str]:
    name, _, cell = settings.partition(" ")
    return KINDS[name.removeprefix("kind=")], cell


def score_row(task: Task) -> Row:
    """The data of a task fitted by its method, and compared with the truth."""
    kind, cell = _kind_and_cell(task.settings)
    trial = kind.trial(task.seed, cell)
    row = dict(zip(KEYS, task.key, strict=True))
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the status says it too
            found = METHODS[task.method](trial)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        return row | {
            "fms": "0.0", "fms_unweighted": "0.0", "sweeps": "0",
            "seconds": f"{time.perf_counter() - begin:.4f}", "converged": "False",
            "status": ERROR + " ".join(str(error).split()),
            **dict.fromkeys(("false_alarms", "detected", "slabs_found"), "nan"),
        }  # fmt: skip
    seconds = time.perf_counter() - begin
    model, truth = (
        trial.model_of(m) for m in (found.model, KruskalTensor.from_factors(trial.truth))
    )
    return row | {
        "fms": repr(factor_match_score(model, truth)),
        "fms_unweighted": repr(factor_match_score(model, truth, weights=False)),
        "sweeps": str(found.sweeps),
        "seconds": f"{seconds:.4f}",
        "converged": str(found.converged),
        "status": found.status,
        **_flagged(kind, trial, found),
    }


def _flagged(kind: Kind, trial: Trial, found: Fit | Limit) -> Row:
    """Which shares of clean entries, bad entries and bad slabs `outliers` flags."""
    alarms = detected = slabs = math.nan
    if kind.flags and isinstance(found, Fit):
        outliers = found.outliers(trial.data)
        mask, bad = np.asarray(outliers.mask), ~trial.clean & ~np.isnan(trial.data)
        alarms = float(mask[trial.clean].mean())
        detected = float(mask[bad].mean()) if bad.any() else math.nan
        if trial.spoilt:
            mode, rows = trial.spoilt
            slabs = float(np.isin(rows, [k for k, _ in outliers.worst(mode, 10)]).mean())
    values = {"false_alarms": alarms, "detected": detected, "slabs_found": slabs}
    return {name: repr(value) for name, value in values.items()}


# Results, by kind, cell and method


@dataclass(frozen=True)
class Results:
    """The rows of one kind, or of one of its cells."""

    rows: Sequence[Row]

    def of(self, method: str) -> Results:
        return Results([r for r in self.rows if r["method"] == method])

    def cells(self) -> dict[str, Results]:
        groups: dict[str, list[Row]] = {}
        for r in self.rows:
            groups.setdefault(_kind_and_cell(r["settings"])[1], []).append(r)
        return {cell: Results(rows) for cell, rows in groups.items()}

    def values(self, column: str = "fms") -> np.ndarray:
        """The numbers of a column, without those that are not known."""
        numbers = np.array([float(r[column]) for r in self.rows])
        return np.asarray(numbers[~np.isnan(numbers)])

    def median(self, column: str = "fms") -> float:
        values = self.values(column)
        return float(np.median(values)) if values.size else math.nan

    def worst(self) -> float:
        return float(self.values().min(initial=math.inf))


def by_kind(rows: Sequence[Row]) -> dict[str, Results]:
    """The results of each kind."""
    groups: dict[str, list[Row]] = {}
    for r in rows:
        groups.setdefault(task_of(r)["kind"], []).append(r)
    return {name: Results(mine) for name, mine in groups.items()}


@dataclass(frozen=True)
class Claim:
    """Something that a target asks for, and whether it was reached."""

    text: str
    holds: bool


def claims(target: Target, results: Results) -> list[Claim]:
    """What a target asks for, as far as the methods that were run can tell.

    A claim about a kind with several cells holds if it does for each of them.
    """
    ours = results.of("cp")
    if not ours.rows:
        return []
    cells = results.cells().values()
    fits = [cell.of("cp") for cell in cells]
    found = []
    if target.median is not None:
        found.append(_least("median", target.median, min(fit.median() for fit in fits)))
    if target.worst is not None:
        found.append(_least("worst", target.worst, ours.worst()))
    for method, margin in target.below.items():
        if results.of(method).rows:
            found.append(_near(method, margin, cells))
    if target.failures is not None and results.of("oracle").rows:
        share = float(np.mean(_failures(results)))
        text = f"failures ≤ {target.failures:.1%} (found: {share:.1%})"
        found.append(Claim(text, share <= target.failures))
    if target.alarms is not None:
        low, high = target.alarms
        rate = ours.median("false_alarms")
        found.append(Claim(f"false alarms {low:.2%} to {high:.2%}", low <= rate <= high))
    if target.slabs:
        found.append(Claim("all bad slabs found", bool(np.all(ours.values("slabs_found") == 1))))
    return found


def _least(what: str, limit: float, value: float) -> Claim:
    return Claim(f"{what} ≥ {limit:.3f}", value >= limit)


def _near(method: str, margin: float, cells: Collection[Results]) -> Claim:
    """That in no cell the median is further than this below that of another method."""
    limits = [cell.of(method).median() - margin for cell in cells]
    near = [cell.of("cp").median() >= limit for cell, limit in zip(cells, limits, strict=True)]
    told = f"{limits[0]:.3f} ({method} - {margin:.3f})" if len(limits) == 1 else ""
    return Claim(f"median ≥ {told or f'{method} - {margin:.3f}'}", all(near))


def _failures(results: Results) -> list[bool]:
    """For each tensor: whether `cp` scores below .9 and the oracle above .94."""
    limits = {(r["seed"], r["settings"]): float(r["fms"]) for r in results.of("oracle").rows}
    ours = {(r["seed"], r["settings"]): float(r["fms"]) for r in results.of("cp").rows}
    return [ours[key] < 0.9 and limit > 0.94 for key, limit in limits.items() if key in ours]


# The summary


def _scores(results: Results) -> str:
    if not results.rows:
        return ""
    return f"{results.median():.3f} ({results.worst():.3f})"


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2%}"


def summary(rows: Sequence[Row]) -> str:
    """The table of kinds, what became of the targets, cells, and what the kinds are."""
    kinds = by_kind(rows)
    methods = [m for m in methods_of(rows) if 2 * _kinds_with(m, kinds) > len(kinds)]
    lines = []
    for name, results in kinds.items():
        ours, asked = results.of("cp"), claims(KINDS[name].target, results)
        lines.append([
            name, *(_scores(results.of(m)) for m in methods),
            f"{ours.median('seconds'):.2f}" if ours.rows else "",
            _percent(ours.median("false_alarms")), _percent(ours.median("detected")),
            ", ".join(c.text if c.holds else f"**{c.text}**" for c in asked),
        ])  # fmt: skip
    head = ["kind", *methods, "seconds", "false alarms", "detected", "target (missed: bold)"]
    parts = [
        f"Factor match scores: the median over {_seeds(kinds)}, and the worst in brackets. "
        "Seconds, false alarms (the share of clean entries that are flagged) and the share of bad "
        "entries that are detected: medians, of `cp`.",
        table(head, lines).rstrip(),
        verdict(rows),
        *_cells(kinds, methods),
        "## The kinds",
        table(["kind", "data"], [[name, KINDS[name].description] for name in kinds]).rstrip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _seeds(kinds: dict[str, Results]) -> str:
    most = max(
        int(r["seed"]) // KINDS[name].tensors for name, results in kinds.items()
        for r in results.rows
    )  # fmt: skip
    return f"seeds 0 to {most}" if most else "seed 0"


def verdict(rows: Sequence[Row]) -> str:
    """In a few sentences: how many targets hold, and which fits went wrong."""
    kinds = by_kind(rows)
    asked = {name: claims(KINDS[name].target, results) for name, results in kinds.items()}
    judged = {name: all(c.holds for c in mine) for name, mine in asked.items() if mine}
    missed = [name for name, holds in judged.items() if not holds]
    text = ""
    if judged:
        text = f"Targets hold for {len(judged) - len(missed)} of {len(judged)} kinds"
        text += f"; missed: {', '.join(missed)}." if missed else "."
    if failed := [r for r in rows if r["status"].startswith(ERROR)]:
        where = _listed(f"{r['method']} on {task_of(r)['kind']}" for r in failed)
        text += f" Ended in an error and scored 0: {len(failed)} fits, by {where}."
    return text.strip()


def _kinds_with(method: str, kinds: dict[str, Results]) -> int:
    return sum(bool(results.of(method).rows) for results in kinds.values())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _cells(kinds: dict[str, Results], methods: Sequence[str]) -> list[str]:
    """The scores in each cell, for the kinds that have several."""
    lines = [
        [name, cell, *(_scores(mine.of(m)) for m in methods)]
        for name, results in kinds.items()
        if len(results.cells()) > 1
        for cell, mine in results.cells().items()
    ]
    if not lines:
        return []
    return ["## By cell", table(["kind", "cell", *methods], lines).rstrip()]


# The figure

#: Scores are drawn as -log10(1 - FMS), so that 0.99 can be told from 0.999.
TICKS = (0.0, 0.5, 0.9, 0.99, 0.999)
MOST = 0.9998


def _stretched(scores: Any) -> np.ndarray:
    return np.asarray(-np.log10(1 - np.clip(scores, 0.0, MOST)))


def draw(rows: Sequence[Row]) -> Figure:
    """Medians with the range over the seeds, kinds down the side."""
    import matplotlib.pyplot as plt

    kinds, methods = by_kind(rows), methods_of(rows)
    figure, ax = plt.subplots(figsize=(8, 1.4 + 0.34 * len(kinds)), layout="constrained")
    for y in range(0, len(kinds), 2):
        ax.axhspan(y - 0.5, y + 0.5, color="0.95", linewidth=0)
    for k, method in enumerate(methods):
        colour, _, marker = LOOKS[method]
        drawn = [(y, r.of(method)) for y, r in enumerate(kinds.values()) if r.of(method).rows]
        heights = np.array([y for y, _ in drawn]) + 0.7 * ((k + 0.5) / len(methods) - 0.5)
        ends = _stretched([(r.worst(), r.values().max()) for _, r in drawn])
        ax.hlines(heights, ends[:, 0], ends[:, 1], color=colour, linewidth=1, alpha=0.6)
        medians = _stretched([r.median() for _, r in drawn])
        ax.plot(medians, heights, marker, color=colour, markersize=4.5, label=method)
    ax.set_yticks(range(len(kinds)), [name.replace("_", " ") for name in kinds])
    ax.set_ylim(len(kinds) - 0.5, -0.5)
    ax.set_xticks(_stretched(TICKS), [f"{tick:g}" for tick in TICKS])
    ax.set_xlim(-0.05, float(_stretched(MOST)) + 0.05)
    ax.grid(axis="x", color="0.8", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel("factor match score (dots: medians; lines: worst to best seed)")
    figure.legend(loc="outside upper center", ncols=len(methods), frameon=False)
    return figure


# The study

STUDY: Study[Selection] = Study(
    "trials",
    "Recovery from each kind of contamination",
    "`cp`, `cpal1` (the 1-norm) and `cpals` (least squares) are called with the data, the rank and "
    "what the kind says of constraints. The oracle is weighted least squares that is told which "
    "entries are clean and how noisy each is, begun at the truth: the limit.",
    _tasks, score_row, draw, summary, columns=COLUMNS,
)  # fmt: skip


def trials(
    chosen: Selection,
    out: str | Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Run trials; an interrupted run goes on where it stopped when it is called again.

    Parameters
    ----------
    chosen : Selection
        Kinds, seeds and methods. Results of others that the folder holds stay in its CSV file.
    out : str or Path
        The folder for raw results (CSV), figure (PNG, PDF) and summary (Markdown).
    jobs : int, optional
        How many processes; by default one for each core.
    progress : callable, optional
        Called with "trials", how many tasks are done, and of how many.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    check_folder(Path(out), STUDY.files)
    return STUDY.run(chosen, make_folder(out), jobs, progress)
