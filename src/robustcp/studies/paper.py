"""The experiments of Chi & Kolda (2010), and others that test what the paper only states."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp import baselines
from robustcp.engines import as_engine
from robustcp.estimators.cp import cp
from robustcp.estimators.cpal1 import cpal1
from robustcp.estimators.cpals import cpals
from robustcp.losses import L1
from robustcp.model.metrics import factor_match_score
from robustcp.model.simulation import Simulation, simulate
from robustcp.plot import truth_against_estimates
from robustcp.results.fit import Fit
from robustcp.starts.svd import nvecs
from robustcp.studies.figures import (
    METHOD_STYLES,
    add_legend,
    add_line_legend,
    list_methods,
    make_panels,
    markdown_table,
    set_score_scale,
)
from robustcp.studies.results_file import Row, Task, task_of
from robustcp.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANK = 5


def _fit_oracle(sim: Simulation, **options: Any) -> Fit:
    """Least squares with the artifacts marked as missing."""
    clean = np.where(sim.artifacts, np.nan, sim.data)
    return cpals(clean, RANK, **options)


def _fit_published(sim: Simulation, sweeps: int = 400, **options: Any) -> Fit:
    return cpal1(sim.data, RANK, smoothing="fixed", inner=5, max_sweeps=sweeps, **options)


#: The methods that are compared.
METHODS: dict[str, Callable[..., Fit]] = {
    "CPALS": lambda sim, **options: cpals(sim.data, RANK, **options),
    "CPAL1 as published": _fit_published,
    "CPAL1": lambda sim, **options: cpal1(sim.data, RANK, **options),
    "cp": lambda sim, **options: cp(sim.data, RANK, **options),
    "oracle": _fit_oracle,
}


@dataclass(frozen=True)
class StudyExtent:
    """How large the studies are.

    Attributes
    ----------
    size : int
        The size of each of the three modes.
    replicates, fewer : int
        Simulated tensors per cell in figure 1, and in the other studies.
    starts : int
        Starts per tensor in the study of local minima.
    cost_sizes : tuple of int
        The sizes of the cost study.
    pass_size : int
        The size of the tensor of the parallel study.
    published_sweeps : int
        The limit of sweeps for CPAL1 as published.
    """

    size: int = 50
    replicates: int = 100
    fewer: int = 20
    starts: int = 10
    cost_sizes: tuple[int, ...] = (20, 30, 40, 60, 80, 100)
    pass_size: int = 200
    published_sweeps: int = 400

    @classmethod
    def quick(cls) -> StudyExtent:
        return cls(
            size=30,
            replicates=3,
            fewer=2,
            starts=3,
            cost_sizes=(20, 30, 40),
            pass_size=100,
            published_sweeps=100,
        )

    def with_replicates(self, count: int | None) -> StudyExtent:
        return self if count is None else replace(self, replicates=count, fewer=count)


# Data and fits


def simulate_task(task: Task) -> Simulation:
    """The data of a task: with the paper's artifacts, or other noise of the same norm."""
    shape, rng = (int(task["size"]),) * 3, np.random.default_rng(task.seed)
    settings = dict(part.split("=", 1) for part in task.settings.split())
    eta, gamma = float(settings.get("eta", 0.2)), float(settings.get("gamma", 2.0))
    density = float(settings.get("density", 1.0))
    kind = settings.get("noise", "artifacts")
    if kind == "artifacts":
        return simulate(shape, RANK, eta=eta, gamma=gamma, density=density, rng=rng)
    sim = simulate(shape, RANK, eta=0.0, gamma=0.0, density=density, rng=rng)
    bad = np.zeros(shape, dtype=bool)
    if kind == "laplace":
        E = rng.laplace(size=shape)
    elif kind == "student":
        E = rng.standard_t(3, size=shape)
    elif kind == "uniform":
        E = rng.uniform(-1, 1, size=shape)
    elif kind == "symmetric":
        bad = rng.random(shape) < eta
        E = np.where(bad, rng.choice([-1.0, 1.0], shape), 0.0)
    elif kind == "slabs":
        bad[rng.permutation(shape[0])[: round(eta * shape[0])]] = True
        E = bad.astype(np.float64)
    else:
        raise ValueError(f"noise: unknown kind {kind!r}")
    E *= gamma * np.linalg.norm(sim.truth.full()) / np.linalg.norm(E)
    return replace(sim, data=sim.data + E, artifacts=bad)


def fit_task(task: Task) -> Row:
    """The data of a task fitted by its method."""
    sim = simulate_task(task)
    settings = dict(part.split("=", 1) for part in task.settings.split())
    options: dict[str, Any] = {}
    if task.method == "CPAL1 as published":
        options["sweeps"] = int(settings.get("published", 400))
    if int(settings.get("start", 0)) > 0:
        options |= {"init": "random", "rng": int(settings["start"])}
    start_time = time.perf_counter()
    fit = METHODS[task.method](sim, **options)
    return result_row(task, fit, sim, time.perf_counter() - start_time)


def result_row(task: Task, fit: Fit, sim: Simulation, seconds: float) -> Row:
    """The results of a fit as a row of the results file."""
    return {
        "study": task.study,
        "seed": str(task.seed),
        "settings": task.settings,
        "method": task.method,
        "fms": repr(factor_match_score(fit, sim.truth)),
        "fms_unweighted": repr(factor_match_score(fit, sim.truth, weights=False)),
        "l1": repr(float(np.abs(fit.residuals(sim.data)).sum())),
        "sweeps": str(fit.sweeps),
        "seconds": f"{seconds:.4f}",
        "converged": str(fit.converged),
        "status": fit.status,
        "objective": repr(fit.objective),
    }


def _tasks(
    study: str, cells: Iterable[str], seeds: int, methods: Iterable[str], extent: StudyExtent
) -> list[Task]:
    extra = {"CPAL1 as published": f" published={extent.published_sweeps}"}
    return [
        Task(study, seed, f"{cell} size={extent.size}{extra.get(method, '')}", method)
        for cell, seed, method in itertools.product(cells, range(seeds), methods)
    ]


# Figure 1a


def _figure1a_tasks(extent: StudyExtent) -> list[Task]:
    cells = ["eta=0.1 gamma=0.0"]
    cells += [f"eta={eta} gamma={g}" for eta in (0.1, 0.2) for g in (0.5, 1.0, 1.5, 2.0)]
    return _tasks("figure1a", cells, extent.replicates, METHODS, extent)


def _draw_figure1a(rows: Sequence[Row]) -> Figure:
    figure, (left, right) = make_panels(2, "factor match score", sharey=True)
    for ax, eta in zip((left, right), ("0.1", "0.2"), strict=True):
        gammas = ["0.0", "0.5", "1.0", "1.5", "2.0"]
        groups = {
            g: _scores_by_method(rows, eta="0.1" if g == "0.0" else eta, gamma=g) for g in gammas
        }
        _draw_boxes(ax, groups)
        ax.set_title(f"$\\eta$ = {eta}")
        ax.set_xlabel(r"$\gamma$, size of the artifacts (0: Gaussian noise alone)")
    add_legend(figure, list_methods(rows))
    return figure


# Figure 1b


def _figure1b_tasks(extent: StudyExtent) -> list[Task]:
    cells = ["eta=0.2 gamma=2.0"]
    return _tasks("figure1b", cells, extent.replicates, ("CPALS", "CPAL1"), extent)


def _median_replicate(rows: Sequence[Row]) -> Task:
    """The replicate with the median CPALS score."""
    scored = sorted((float(r["fms"]), r["seed"], r) for r in rows if r["method"] == "CPALS")
    return task_of(scored[(len(scored) - 1) // 2][2])


def _draw_figure1b(rows: Sequence[Row]) -> Figure:
    import matplotlib.pyplot as plt

    task = _median_replicate(rows)
    sim = simulate_task(task)
    fits = {name: METHODS[name](sim) for name in ("CPALS", "CPAL1")}
    labels = {f"{k} (FMS {factor_match_score(f, sim.truth):.2f})": f for k, f in fits.items()}
    figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
    truth_against_estimates(sim.truth, labels, ax=ax)
    return figure


def _summary_figure1b(rows: Sequence[Row]) -> str:
    seed = _median_replicate(rows).seed
    scores = {r["method"]: float(r["fms"]) for r in rows if int(r["seed"]) == seed}
    return (
        f"Replicate {seed}, the median one for CPALS: "
        f"CPALS {scores['CPALS']:.3f}, CPAL1 {scores['CPAL1']:.3f}.\n"
    )


# Local minima

#: A fit misses the best known objective if its own is larger by this factor.
MISS_FACTOR = 1.005


def _minima_tasks(extent: StudyExtent) -> list[Task]:
    cells = [f"eta=0.2 gamma=2.0 start={k}" for k in range(extent.starts)]
    methods = [m for m in METHODS if m not in ("cp", "oracle")]  # cp tries several starts itself
    return _tasks("minima", cells, extent.fewer, methods, extent)


def _missed_minima(rows: Sequence[Row]) -> dict[str, list[list[bool]]]:
    """For each method and replicate: which starts ended above the best known objective.

    The robust methods are compared by the 1-norm of the residuals, CPALS by least squares.
    """
    column = {m: "objective" if m == "CPALS" else "l1" for m in list_methods(rows)}
    best: dict[tuple[str, str], float] = {}
    for r in rows:
        key, value = (column[r["method"]], r["seed"]), float(r[column[r["method"]]])
        best[key] = min(best.get(key, math.inf), value)
    missed: dict[str, dict[str, list[bool]]] = {}
    for r in rows:
        name = column[r["method"]]
        is_missed = float(r[name]) > MISS_FACTOR * best[name, r["seed"]]
        missed.setdefault(r["method"], {}).setdefault(r["seed"], []).append(is_missed)
    return {method: list(seeds.values()) for method, seeds in missed.items()}


def _miss_probability(replicates: list[list[bool]], count: int) -> float:
    """The probability that `count` random starts all miss the best; mean over replicates."""
    return float(np.mean([math.comb(sum(a), count) / math.comb(len(a), count) for a in replicates]))


def _draw_minima(rows: Sequence[Row]) -> Figure:
    figure, (ax,) = make_panels(1, "share of fits away from the best")
    for method, replicates in _missed_minima(rows).items():
        colour, _, marker = METHOD_STYLES[method]
        counts = range(1, len(replicates[0]) + 1)
        ax.plot(
            counts, [_miss_probability(replicates, k) for k in counts], marker + "-", color=colour
        )
    ax.set_xlabel("starts, of which the lowest objective is kept")
    ax.set_xticks(range(1, 1 + max(len(a[0]) for a in _missed_minima(rows).values())))
    ax.set_ylim(-0.002, max(0.05, ax.get_ylim()[1]))
    add_line_legend(figure, list_methods(rows))
    return figure


def _summary_minima(rows: Sequence[Row]) -> str:
    missed = _missed_minima(rows)
    max_starts = len(next(iter(missed.values()))[0])
    counts = [k for k in (1, 2, 3, 5, 10) if k <= max_starts]
    header = ["method", "nvecs start alone", *(f"best of {k}" for k in counts)]
    lines = [
        [
            m,
            f"{np.mean([a[0] for a in replicates]):.0%}",
            *(f"{_miss_probability(replicates, k):.0%}" for k in counts),
        ]
        for m, replicates in missed.items()
    ]
    return (
        f"Share of fits whose objective is more than {MISS_FACTOR - 1:.1%} above the lowest one "
        f"found for the same tensor by any start of any method with the same objective.\n\n"
        + markdown_table(header, lines)
    )


# Other noise distributions

NOISE_KINDS = ("artifacts", "symmetric", "slabs", "laplace", "student", "uniform")


def _noises_tasks(extent: StudyExtent) -> list[Task]:
    def methods_for(kind: str) -> list[str]:
        # the oracle needs artifacts at some entries, and no whole slabs without data
        has_artifacts = kind in ("artifacts", "symmetric")
        return [m for m in METHODS if m != "oracle" or has_artifacts]

    return [
        task
        for kind in NOISE_KINDS
        for task in _tasks(
            "noises", [f"noise={kind} gamma=1.0 eta=0.2"], extent.fewer, methods_for(kind), extent
        )
    ]


def _draw_noises(rows: Sequence[Row]) -> Figure:
    figure, (ax,) = make_panels(1, "factor match score", width=9)
    _draw_boxes(ax, {kind: _scores_by_method(rows, noise=kind) for kind in NOISE_KINDS})
    ax.set_xlabel("noise of the same norm as the tensor, on top of 10% Gaussian noise")
    add_legend(figure, list_methods(rows))
    return figure


# Lines over a setting: sparse data and breakdown


def _sparse_tasks(extent: StudyExtent) -> list[Task]:
    cells = [f"density={d} eta=0.1 gamma=1.0" for d in (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)]
    return _tasks("sparse", cells, extent.fewer, METHODS, extent)


def _breakdown_tasks(extent: StudyExtent) -> list[Task]:
    cells = [f"eta={eta} gamma=2.0" for eta in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
    return _tasks("breakdown", cells, extent.fewer, METHODS, extent)


def _draw_lines(setting: str, label: str, rows: Sequence[Row]) -> Figure:
    figure, (ax,) = make_panels(1, "factor match score")
    for method in list_methods(rows):
        groups: dict[float, list[float]] = {}
        for r in rows:
            if r["method"] == method:
                groups.setdefault(float(task_of(r)[setting]), []).append(float(r["fms"]))
        x = sorted(groups)
        low, middle, high = np.array([np.quantile(groups[k], (0.25, 0.5, 0.75)) for k in x]).T
        colour, _, marker = METHOD_STYLES[method]
        ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(x, middle, marker + "-", color=colour, markersize=4)
    ax.set_xlabel(label + " (lines: medians; bands: quartiles)")
    set_score_scale(ax)  # where `cp` and the oracle are
    add_line_legend(figure, list_methods(rows))
    return figure


# Cost against linear programming

COST_METHODS: dict[str, Callable[..., Fit]] = {
    "CPAL1": cpal1,
    "weighted medians": baselines.weighted_median,
    "linear programs": baselines.linear_program,
}


def _cost_tasks(extent: StudyExtent) -> list[Task]:
    return [
        Task("cost", 0, f"eta=0.2 gamma=2.0 size={size}", method)
        for size in extent.cost_sizes
        for method in COST_METHODS
    ]


def _objective_of_truth(sim: Simulation) -> float:
    """The 1-norm of the residuals of the true factors."""
    return float(np.abs(sim.data - sim.truth.full()).sum())


def _cost_row(task: Task) -> Row:
    """A fit that stops when its objective is at most that of the true factors."""
    sim = simulate_task(task)
    target = _objective_of_truth(sim)
    init = [nvecs(sim.data, mode, RANK) for mode in range(3)]
    start_time = time.perf_counter()
    fit = COST_METHODS[task.method](
        sim.data, RANK, init=init, max_sweeps=200, callback=lambda s: s.objective <= target
    )
    return result_row(task, fit, sim, time.perf_counter() - start_time)


def _cost_curves(rows: Sequence[Row]) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each method: sizes, seconds per sweep, seconds to the target (NaN if not reached)."""
    curves = {}
    data = {(r["seed"], r["settings"]): task_of(r) for r in rows}
    targets = {key: _objective_of_truth(simulate_task(task)) for key, task in data.items()}
    for method in list_methods(rows):
        method_rows = [r for r in rows if r["method"] == method]
        sizes = np.array([int(task_of(r)["size"]) for r in method_rows])
        seconds = np.array([float(r["seconds"]) for r in method_rows])
        sweeps = np.array([int(r["sweeps"]) for r in method_rows])
        reached = [float(r["objective"]) <= targets[r["seed"], r["settings"]] for r in method_rows]
        curves[method] = (sizes, seconds / sweeps, np.where(reached, seconds, np.nan))
    return curves


def _growth_exponent(sizes: np.ndarray, seconds: np.ndarray) -> float:
    """The exponent of the growth of seconds with the number of entries."""
    finite = np.isfinite(seconds)
    if finite.sum() < 2:
        return math.nan
    return float(np.polyfit(3 * np.log(sizes[finite]), np.log(seconds[finite]), 1)[0])


def _draw_cost(rows: Sequence[Row]) -> Figure:
    figure, (left, right) = make_panels(2, "seconds", width=9, height=4.6)
    for method, (sizes, per_sweep, to_target) in _cost_curves(rows).items():
        colour, _, marker = METHOD_STYLES[method]
        for ax, seconds in zip((left, right), (per_sweep, to_target), strict=True):
            label = f"{method}: entries$^{{{_growth_exponent(sizes, seconds):.2f}}}$"
            ax.loglog(sizes, seconds, marker + "-", color=colour, label=label)
    for ax, title in zip(
        (left, right), ("per sweep", "to the objective of the true factors"), strict=True
    ):
        ax.set_title(title)
        ax.set_xlabel("size of each of 3 modes")
        ticks = sorted({int(task_of(r)["size"]) for r in rows})
        ax.set_xticks(ticks, [str(k) for k in ticks])
        ax.minorticks_off()
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def _summary_cost(rows: Sequence[Row]) -> str:
    curves = _cost_curves(rows)
    sizes = next(iter(curves.values()))[0]
    unknowns = [
        [f"{n}^3", f"{2 * n**2 * n + RANK * n:,}", f"{2 * n**2 + RANK:,}", str(RANK)] for n in sizes
    ]
    header = ["tensor", "LP, a whole factor at once", "LP, one row", "CPAL1, one row"]
    text = f"Unknowns, rank {RANK}:\n\n" + markdown_table(header, unknowns) + "\n"
    for title, column in (("Seconds per sweep", 1), ("Seconds to the truth's objective", 2)):
        lines = [
            [
                m,
                *(f"{s:.3g}" if np.isfinite(s) else "not reached" for s in c[column]),
                f"{_growth_exponent(c[0], c[column]):.2f}",
            ]
            for m, c in curves.items()
        ]
        header = ["method", *(f"{n}^3" for n in sizes), "growth exponent in the entries"]
        text += f"\n{title}:\n\n" + markdown_table(header, lines)
    return text


# Parallel rows


def _parallel_tasks(extent: StudyExtent) -> list[Task]:
    import os

    counts = [1]
    while counts[-1] * 2 <= (os.cpu_count() or 1):
        counts.append(counts[-1] * 2)
    return [
        Task("parallel", seed, f"size={extent.pass_size} threads={k}", "CPAL1")
        for seed in range(5)
        for k in counts
    ]


def _parallel_row(task: Task) -> Row:
    """The mean time of one pass over the data, over the modes."""
    rng = np.random.default_rng(task.seed)
    shape = (int(task["size"]),) * 3
    X = rng.standard_normal(shape)
    factors = tuple(rng.standard_normal((size, RANK)) for size in shape)
    engine = as_engine(X, threads=int(task["threads"]))
    engine.normal_equations(factors, 0, L1(1e-6))
    start_time = time.perf_counter()
    value = 0.0
    for mode in range(3):
        value = engine.normal_equations(factors, mode, L1(1e-6)).value
    seconds = (time.perf_counter() - start_time) / 3
    return {
        "study": task.study,
        "seed": str(task.seed),
        "settings": task.settings,
        "method": task.method,
        "fms": "nan",
        "fms_unweighted": "nan",
        "l1": repr(value),
        "sweeps": "1",
        "seconds": f"{seconds:.6f}",
        "converged": "True",
        "status": "one pass, not a fit",
        "objective": repr(value),
    }


def _pass_seconds(rows: Sequence[Row]) -> dict[int, float]:
    groups: dict[int, list[float]] = {}
    for r in rows:
        groups.setdefault(int(task_of(r)["threads"]), []).append(float(r["seconds"]))
    return {k: float(np.median(v)) for k, v in sorted(groups.items())}


def _draw_parallel(rows: Sequence[Row]) -> Figure:
    figure, (ax,) = make_panels(1, "speed-up of one pass", width=5)
    seconds = _pass_seconds(rows)
    threads = list(seconds)
    ax.plot(threads, threads, ":", color="0.5", label="ideal")
    ax.plot(
        threads,
        [seconds[1] / s for s in seconds.values()],
        "o-",
        color=METHOD_STYLES["CPAL1"][0],
        label="CPAL1",
    )
    ax.set_xticks(threads)
    ax.set_xlabel("threads")
    ax.legend(frameon=False)
    return figure


def _summary_parallel(rows: Sequence[Row]) -> str:
    seconds = _pass_seconds(rows)
    lines = [[str(k), f"{s:.4f}", f"{seconds[1] / s:.2f}"] for k, s in seconds.items()]
    return (
        f"Tensor of {task_of(rows[0])['size']}^3, rank {RANK}, medians of 5.\n\n"
        + markdown_table(["threads", "seconds per pass", "speed-up"], lines)
    )


# Scores


def _scores_by_method(rows: Sequence[Row], **settings: str) -> dict[str, list[float]]:
    """The scores of each method in the tasks with these settings."""
    groups: dict[str, list[float]] = {m: [] for m in list_methods(rows)}
    for r in rows:
        task = task_of(r)
        if all(task[name] == value for name, value in settings.items()):
            groups[r["method"]].append(float(r["fms"]))
    return {m: v for m, v in groups.items() if v}


def summarize_scores(rows: Sequence[Row]) -> str:
    """Median and quartiles of the scores for each cell and method."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        parts = r["settings"].split()
        cell = " ".join(p for p in parts if not p.startswith(("size", "published")))
        groups.setdefault((cell, r["method"]), []).append(r)
    lines = []
    for (cell, method), cell_rows in groups.items():
        low, middle, high = np.quantile([float(r["fms"]) for r in cell_rows], (0.25, 0.5, 0.75))
        sweeps = np.median([int(r["sweeps"]) for r in cell_rows])
        seconds = np.median([float(r["seconds"]) for r in cell_rows])
        lines.append(
            [
                cell,
                method,
                f"{middle:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{sweeps:.0f}",
                f"{seconds:.2f}",
                str(len(cell_rows)),
            ]
        )
    header = ["settings", "method", "median FMS", "quartiles", "sweeps", "seconds", "fits"]
    return markdown_table(header, lines)


def _draw_boxes(ax: Axes, groups: dict[str, dict[str, list[float]]]) -> None:
    """Boxplots side by side, one group per label."""
    for k, methods in enumerate(groups.values()):
        width = 0.8 / len(methods)
        for j, (method, scores) in enumerate(methods.items()):
            colour, hatch, _ = METHOD_STYLES[method]
            ax.boxplot(
                [scores],
                positions=[k + (j - (len(methods) - 1) / 2) * width],
                widths=0.85 * width,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": colour, "hatch": hatch, "alpha": 0.75, "linewidth": 0.6},
                medianprops={"color": "black"},
                whiskerprops={"linewidth": 0.6},
                capprops={"linewidth": 0.6},
                flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
            )
    ax.set_xticks(range(len(groups)), list(groups))
    set_score_scale(ax)


STUDIES: dict[str, Study[StudyExtent]] = {
    study.name: study
    for study in (
        Study(
            "figure1a",
            "Figure 1a: recovery against the size and share of artifacts",
            "The paper: CPALS degrades as the artifacts grow, to a median of about 0.7 at eta 0.2 "
            "and gamma 2; CPAL1 does not.",
            _figure1a_tasks, fit_task, _draw_figure1a, summarize_scores,
        ),
        Study(
            "figure1b",
            "Figure 1b: one factor column",
            "The paper: In the paper's example CPAL1 scores 0.91 and CPALS 0.64.",
            _figure1b_tasks, fit_task, _draw_figure1b, _summary_figure1b,
        ),
        Study(
            "minima",
            "Local minima",
            "The paper: The methods occasionally find local minima.",
            _minima_tasks, fit_task, _draw_minima, _summary_minima,
        ),
        Study(
            "noises",
            "Other noise distributions",
            "The paper: Not all non-Gaussian perturbations cause noticeable degradation of CPALS.",
            _noises_tasks, fit_task, _draw_noises, summarize_scores,
        ),
        Study(
            "cost",
            "Cost against linear programming",
            "The paper: CPAL1 is slightly faster than linear programming, and the gap may widen.",
            _cost_tasks, _cost_row, _draw_cost, _summary_cost, is_timed=True,
        ),
        Study(
            "parallel",
            "Parallel rows",
            "The paper: The separation over rows offers speed-up through parallelization.",
            _parallel_tasks, _parallel_row, _draw_parallel, _summary_parallel, is_timed=True,
        ),
        Study(
            "sparse",
            "Sparse data",
            "The paper: CPAL1 struggles when the data tensor is sparse as well as the artifacts.",
            _sparse_tasks, fit_task,
            partial(_draw_lines, "density", "share of nonzero entries in the factors"),
            summarize_scores,
        ),
        Study(
            "breakdown",
            "Breakdown",
            "The paper: not covered; here, the share of artifacts at which each method breaks "
            "down.",
            _breakdown_tasks, fit_task,
            partial(_draw_lines, "eta", "share of artifacts, gamma 2"),
            summarize_scores,
        ),
    )
}  # fmt: skip
