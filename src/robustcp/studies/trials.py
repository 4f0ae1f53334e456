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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from robustcp.constraints import Nonnegative
from robustcp.estimators.cp import cp
from robustcp.estimators.cpal1 import cpal1
from robustcp.estimators.cpals import cpals
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import factor_match_score
from robustcp.persist.writing import make_folder
from robustcp.results.fit import Fit
from robustcp.studies.figures import METHOD_STYLES, list_methods, markdown_table
from robustcp.studies.kinds import KINDS, Kind, Target, Trial
from robustcp.studies.oracle import OracleFit, fit_oracle
from robustcp.studies.results_file import KEY_COLUMNS, Row, Task, task_of
from robustcp.studies.study import Progress, Study, check_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRIAL_COLUMNS = (
    *KEY_COLUMNS, "fms", "fms_unweighted", "sweeps", "seconds", "converged", "status",
    "false_alarms", "detected", "slabs_found",
)  # fmt: skip
#: The status of a fit that raised an error begins with this.
ERROR_PREFIX = "error: "


# The methods


def _call_method(method: Callable[..., Fit], trial: Trial, **extra_options: Any) -> Fit:
    """A method called with those of the trial's options that it has."""
    parameters = inspect.signature(method).parameters
    options = {name: value for name, value in trial.options.items() if name in parameters}
    if trial.options.get("nonnegative") and "nonnegative" not in parameters:
        options["constraints"] = {mode: Nonnegative() for mode in range(trial.data.ndim)}
    return method(trial.input_data, trial.rank, **(options | extra_options))


def _fit_from_truth(trial: Trial) -> Fit:
    """`cp` begun at the true factors: what its criterion makes of them, without any search.

    Components that are asked for beyond the true ones begin small.
    """
    rng, extra_rank = np.random.default_rng(0), trial.rank - trial.truth[0].shape[1]
    extra_columns = [
        1e-2 * np.abs(A).mean() * rng.random((A.shape[0], extra_rank)) for A in trial.truth
    ]
    init = [np.hstack(pair) for pair in zip(trial.truth, extra_columns, strict=True)]
    return _call_method(cp, trial, init=init)


METHODS: dict[str, Callable[[Trial], Fit | OracleFit]] = {
    "cp": partial(_call_method, cp),
    "cpal1": partial(_call_method, cpal1),
    "cpals": partial(_call_method, cpals, limits=None),  # as everybody's least squares
    "oracle": fit_oracle,
    "cp_at_truth": _fit_from_truth,
}
#: Those that are run if none is named, with those that the targets of a kind refer to.
DEFAULT_METHODS = ("cp", "cpal1", "cpals", "oracle")


# Tasks and rows


@dataclass(frozen=True)
class Selection:
    """Which trials: kinds, so many seeds from the first on, methods; by default the usual ones."""

    kinds: Sequence[str]
    seeds: int
    methods: Sequence[str] = ()
    first_seed: int = 0

    def seeds_of(self, kind: Kind) -> range:
        """The seeds of the tensors of a kind."""
        last = self.first_seed + self.seeds
        return range(self.first_seed * kind.tensors, last * kind.tensors)


def _tasks(selection: Selection) -> list[Task]:
    tasks = []
    for kind in (KINDS[name] for name in selection.kinds):
        methods = selection.methods or dict.fromkeys(
            (*DEFAULT_METHODS, *kind.target.margins, *kind.target.worst_margins)
        )
        tasks += [
            Task("trials", seed, f"kind={kind.name} {cell}".strip(), method)
            for cell in kind.cells
            for seed in selection.seeds_of(kind)
            for method in methods
        ]
    return tasks


def _parse_settings(settings: str) -> tuple[Kind, str]:
    name, _, cell = settings.partition(" ")
    return KINDS[name.removeprefix("kind=")], cell


def score_task(task: Task) -> Row:
    """The data of a task fitted by its method, and compared with the truth."""
    kind, cell = _parse_settings(task.settings)
    trial = kind.make_trial(task.seed, cell)
    row = dict(zip(KEY_COLUMNS, task.key, strict=True))
    start_time = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the status says it too
            estimate = METHODS[task.method](trial)
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        return row | {
            "fms": "0.0",
            "fms_unweighted": "0.0",
            "sweeps": "0",
            "seconds": f"{time.perf_counter() - start_time:.4f}",
            "converged": "False",
            "status": ERROR_PREFIX + " ".join(str(error).split()),
            **dict.fromkeys(("false_alarms", "detected", "slabs_found"), "nan"),
        }
    seconds = time.perf_counter() - start_time
    model, truth = (
        trial.recoverable_model(m)
        for m in (estimate.model, KruskalTensor.from_factors(trial.truth))
    )
    return row | {
        "fms": repr(factor_match_score(model, truth)),
        "fms_unweighted": repr(factor_match_score(model, truth, weights=False)),
        "sweeps": str(estimate.sweeps),
        "seconds": f"{seconds:.4f}",
        "converged": str(estimate.converged),
        "status": estimate.status,
        **_flag_rates(kind, trial, estimate),
    }


def _flag_rates(kind: Kind, trial: Trial, estimate: Fit | OracleFit) -> Row:
    """Which shares of clean entries, bad entries and bad slabs `outliers` flags."""
    false_alarms = detected = slabs = math.nan
    if kind.flags and isinstance(estimate, Fit):
        outliers = estimate.outliers(trial.data)
        mask, bad = np.asarray(outliers.mask), ~trial.clean & ~np.isnan(trial.data)
        false_alarms = float(mask[trial.clean].mean())
        detected = float(mask[bad].mean()) if bad.any() else math.nan
        if trial.unrecoverable:
            mode, rows = trial.unrecoverable
            worst = [slab for slab, _ in outliers.worst(mode, 10)]
            slabs = float(np.isin(rows, worst).mean()) if np.size(rows) else math.nan
    values = {"false_alarms": false_alarms, "detected": detected, "slabs_found": slabs}
    return {name: repr(value) for name, value in values.items()}


# Results, by kind, cell and method


@dataclass(frozen=True)
class Results:
    """The rows of one kind, or of one of its cells."""

    rows: Sequence[Row]

    def for_method(self, method: str) -> Results:
        return Results([r for r in self.rows if r["method"] == method])

    def by_cell(self) -> dict[str, Results]:
        groups: dict[str, list[Row]] = {}
        for r in self.rows:
            groups.setdefault(_parse_settings(r["settings"])[1], []).append(r)
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


def results_by_kind(rows: Sequence[Row]) -> dict[str, Results]:
    """The results of each kind."""
    groups: dict[str, list[Row]] = {}
    for r in rows:
        groups.setdefault(task_of(r)["kind"], []).append(r)
    return {name: Results(kind_rows) for name, kind_rows in groups.items()}


@dataclass(frozen=True)
class Claim:
    """Something that a target asks for, and whether it was reached."""

    text: str
    holds: bool


def check_target(target: Target, results: Results) -> list[Claim]:
    """What a target asks for, as far as the methods that were run can tell.

    A claim about a kind with several cells holds if it does for each of them.
    """
    cp_results = results.for_method("cp")
    if not cp_results.rows:
        return []
    cells = results.by_cell().values()
    cp_cells = [cell.for_method("cp") for cell in cells]
    target_claims = []
    if target.median is not None:
        target_claims.append(
            _claim_at_least(
                "median", target.median, min(cell_results.median() for cell_results in cp_cells)
            )
        )
    if target.worst is not None:
        target_claims.append(_claim_at_least("worst", target.worst, cp_results.worst()))
    for method, margin in target.margins.items():
        if results.for_method(method).rows:
            target_claims.append(_claim_near(method, margin, cells))
    for method, margin in target.worst_margins.items():
        if results.for_method(method).rows:
            target_claims.append(_claim_near(method, margin, cells, "worst"))
    if target.failures is not None and results.for_method("oracle").rows:
        share = float(np.mean(_failures(results)))
        text = f"failures ≤ {target.failures:.1%} (found: {share:.1%})"
        target_claims.append(Claim(text, share <= target.failures))
    if target.false_alarms is not None:
        low, high = target.false_alarms
        rate = cp_results.median("false_alarms")
        target_claims.append(Claim(f"false alarms {low:.2%} to {high:.2%}", low <= rate <= high))
    if target.finds_bad_slabs:
        target_claims.append(
            Claim("all bad slabs found", bool(np.all(cp_results.values("slabs_found") == 1)))
        )
    return target_claims


def _claim_at_least(statistic: str, limit: float, value: float) -> Claim:
    return Claim(f"{statistic} ≥ {limit:.3f}", value >= limit)


def _claim_near(
    method: str,
    margin: float,
    cells: Collection[Results],
    statistic: Literal["median", "worst"] = "median",
) -> Claim:
    """That in no cell the median or the worst is further than this below that of a method."""
    values, others = (
        [getattr(cell.for_method(name), statistic)() for cell in cells] for name in ("cp", method)
    )
    limits = [other - margin for other in others]
    holds = [value >= limit for value, limit in zip(values, limits, strict=True)]
    limit_text = f"{limits[0]:.3f} ({method} - {margin:.3f})" if len(limits) == 1 else ""
    return Claim(f"{statistic} ≥ {limit_text or f'{method} - {margin:.3f}'}", all(holds))


def _failures(results: Results) -> list[bool]:
    """For each tensor: whether `cp` scores below .9 and the oracle above .94."""
    oracle_scores = {
        (r["seed"], r["settings"]): float(r["fms"]) for r in results.for_method("oracle").rows
    }
    cp_scores = {(r["seed"], r["settings"]): float(r["fms"]) for r in results.for_method("cp").rows}
    return [
        cp_scores[key] < 0.9 and oracle_score > 0.94
        for key, oracle_score in oracle_scores.items()
        if key in cp_scores
    ]


# The summary


def _format_scores(results: Results) -> str:
    if not results.rows:
        return ""
    return f"{results.median():.3f} ({results.worst():.3f})"


def _format_percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2%}"


def summarize(rows: Sequence[Row]) -> str:
    """The table of kinds, what became of the targets, cells, and what the kinds are."""
    kinds = results_by_kind(rows)
    methods = [m for m in list_methods(rows) if 2 * _count_kinds(m, kinds) > len(kinds)]
    lines = []
    for name, results in kinds.items():
        cp_results, target_claims = (
            results.for_method("cp"),
            check_target(KINDS[name].target, results),
        )
        lines.append(
            [
                name,
                *(_format_scores(results.for_method(m)) for m in methods),
                f"{cp_results.median('seconds'):.2f}" if cp_results.rows else "",
                _format_percent(cp_results.median("false_alarms")),
                _format_percent(cp_results.median("detected")),
                ", ".join(c.text if c.holds else f"**{c.text}**" for c in target_claims),
            ]
        )
    header = ["kind", *methods, "seconds", "false alarms", "detected", "target (missed: bold)"]
    sections = [
        f"Factor match scores: the median over {_format_seeds(kinds)}, and the worst in brackets. "
        "Seconds, false alarms (the share of clean entries that are flagged) and the share of bad "
        "entries that are detected: medians, of `cp`.",
        markdown_table(header, lines).rstrip(),
        summarize_targets(rows),
        *_cell_sections(kinds, methods),
        "## The kinds",
        markdown_table(
            ["kind", "data"], [[name, KINDS[name].description] for name in kinds]
        ).rstrip(),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _format_seeds(kinds: dict[str, Results]) -> str:
    seeds = [
        int(r["seed"]) // KINDS[name].tensors
        for name, results in kinds.items()
        for r in results.rows
    ]
    first, last = min(seeds), max(seeds)
    return f"seeds {first} to {last}" if last > first else f"seed {first}"


def summarize_targets(rows: Sequence[Row]) -> str:
    """In a few sentences: how many targets hold, and which fits went wrong."""
    kinds = results_by_kind(rows)
    claims_by_kind = {
        name: check_target(KINDS[name].target, results) for name, results in kinds.items()
    }
    targets_hold = {
        name: all(c.holds for c in kind_claims)
        for name, kind_claims in claims_by_kind.items()
        if kind_claims
    }
    missed = [name for name, holds in targets_hold.items() if not holds]
    text = ""
    if targets_hold:
        text = f"Targets hold for {len(targets_hold) - len(missed)} of {len(targets_hold)} kinds"
        text += f"; missed: {', '.join(missed)}." if missed else "."
    if failed_rows := [r for r in rows if r["status"].startswith(ERROR_PREFIX)]:
        failed_methods = _join_unique(f"{r['method']} on {task_of(r)['kind']}" for r in failed_rows)
        text += f" Ended in an error and scored 0: {len(failed_rows)} fits, by {failed_methods}."
    return text.strip()


def _count_kinds(method: str, kinds: dict[str, Results]) -> int:
    return sum(bool(results.for_method(method).rows) for results in kinds.values())


def _join_unique(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _cell_sections(kinds: dict[str, Results], methods: Sequence[str]) -> list[str]:
    """The scores in each cell, for the kinds that have several."""
    lines = [
        [name, cell, *(_format_scores(cell_results.for_method(m)) for m in methods)]
        for name, results in kinds.items()
        if len(results.by_cell()) > 1
        for cell, cell_results in results.by_cell().items()
    ]
    if not lines:
        return []
    return ["## By cell", markdown_table(["kind", "cell", *methods], lines).rstrip()]


# The figure

#: Scores are drawn as -log10(1 - FMS), so that 0.99 can be told from 0.999.
SCORE_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999)
MAX_DRAWN_SCORE = 0.9998


def _stretch_scores(scores: Any) -> np.ndarray:
    return np.asarray(-np.log10(1 - np.clip(scores, 0.0, MAX_DRAWN_SCORE)))


def draw(rows: Sequence[Row]) -> Figure:
    """Medians with the range over the seeds, kinds down the side."""
    import matplotlib.pyplot as plt

    kinds, methods = results_by_kind(rows), list_methods(rows)
    figure, ax = plt.subplots(figsize=(8, 1.4 + 0.34 * len(kinds)), layout="constrained")
    for y in range(0, len(kinds), 2):
        ax.axhspan(y - 0.5, y + 0.5, color="0.95", linewidth=0)
    for k, method in enumerate(methods):
        colour, _, marker = METHOD_STYLES[method]
        method_results = [
            (y, r.for_method(method))
            for y, r in enumerate(kinds.values())
            if r.for_method(method).rows
        ]
        heights = np.array([y for y, _ in method_results]) + 0.7 * ((k + 0.5) / len(methods) - 0.5)
        ends = _stretch_scores([(r.worst(), r.values().max()) for _, r in method_results])
        ax.hlines(heights, ends[:, 0], ends[:, 1], color=colour, linewidth=1, alpha=0.6)
        medians = _stretch_scores([r.median() for _, r in method_results])
        ax.plot(medians, heights, marker, color=colour, markersize=4.5, label=method)
    ax.set_yticks(range(len(kinds)), [name.replace("_", " ") for name in kinds])
    ax.set_ylim(len(kinds) - 0.5, -0.5)
    ax.set_xticks(_stretch_scores(SCORE_TICKS), [f"{tick:g}" for tick in SCORE_TICKS])
    ax.set_xlim(-0.05, float(_stretch_scores(MAX_DRAWN_SCORE)) + 0.05)
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
    _tasks, score_task, draw, summarize, columns=TRIAL_COLUMNS,
)  # fmt: skip


def run_trials(
    selection: Selection,
    out: str | Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Run trials; an interrupted run goes on where it stopped when it is called again.

    Parameters
    ----------
    selection : Selection
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
    return STUDY.run(selection, make_folder(out), jobs, progress)
