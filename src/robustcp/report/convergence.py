"""The sweeps and starts of a fit, and the diagnostics of its rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.plot.colours import STYLES
from robustcp.plot.profiles import draw_agreement, draw_errors
from robustcp.plot.traces import convergence as draw_convergence
from robustcp.report.data import ReportData
from robustcp.report.markup import (
    Markup,
    count_text,
    element,
    figure,
    join,
    number,
    paragraph,
    percent,
    table,
)
from robustcp.report.pictures import MIN_TICK_DISTANCE, legend, new_axes, picture, set_number_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.inference.rank_profile import RankProfile

#: The largest numbers of sweeps and of starts that are drawn.
MAX_DRAWN_SWEEPS, MAX_DRAWN_STARTS = 1500, 400
SIZE = 440, 230


def convergence_and_starts(report: ReportData) -> Markup:
    """Pictures of the objective over the sweeps and of the cost of each start."""
    return element("div", convergence(report), starts(report), class_="panels wide")


def convergence(report: ReportData) -> Markup:
    """A picture of the objective after each sweep, scaled to each stage."""
    fit, tips, begin = report.fit, {}, 0
    ax = new_axes(*SIZE, left=78)
    draw_convergence(fit, ax=ax)
    every = max(1, fit.sweeps // MAX_DRAWN_SWEEPS)
    for k, (line, (name, sweeps)) in enumerate(zip(ax.lines, fit.stages, strict=True)):
        line.set(gid=f"mark stage-{k}", markevery=every)
        tips[f"mark stage-{k}"] = [
            f"sweep {s + 1}, {name}\nobjective {number(float(fit.trace[s]), 6)}"
            for s in range(begin, begin + sweeps, every)
        ]
        begin += sweeps
    svg = picture(
        ax,
        tips=tips,
        alt=f"The objective after each of {count_text(fit.sweeps, 'sweep')}; it ended at "
        f"{number(fit.objective, 6)}.",
        kind="points",
    )
    caption = (
        f"The objective after each sweep, between its lowest and highest value in each stage. "
        f"{fit.result.sentence.capitalize()}. Each stage, and each level of a stage, minimises "
        "another objective, so values may jump between them; within a level they never rise."
    )
    return figure(join([legend(*ax.get_legend_handles_labels()), svg]), caption)


def starts(report: ReportData) -> Markup:
    """A picture of the cost of each start, in ascending order."""
    all_starts = report.fit.starts
    costs = np.array([float(value) for value in all_starts])
    order = np.argsort(costs, kind="stable")[:MAX_DRAWN_STARTS]
    order = order[np.isfinite(costs[order])]
    followed = np.array([all_starts.final[k] is not None for k in order], dtype=bool)
    ax = new_axes(*SIZE, left=78)
    ax.set(xlabel="starts, the best first", ylabel="cost", xticks=[])
    ax.set_xlim(-0.5, max(len(order), 1) - 0.5)
    set_number_ticks(ax.yaxis, MIN_TICK_DISTANCE)
    groups = {"tried": ~followed, "followed to the end": followed}
    if not followed.any():
        groups = {"cost in the end": ~followed}
    tips = {}
    for (name, shown), (colour, _, marker) in zip(groups.items(), STYLES[1::-1], strict=False):
        gid = f"mark {marker}"
        style: dict[str, Any] = {
            "color": colour,
            "markersize": 5.5,
            "markeredgecolor": "w",
            "gid": gid,
        }
        ax.plot(np.flatnonzero(shown), costs[order[shown]], marker, label=name, **style)
        tips[gid] = [_start_tip(report, int(k)) for k in order[shown]]
    svg = picture(
        ax,
        tips=tips,
        kind="points",
        alt=f"Cost of {count_text(len(costs), 'start')}; {all_starts.reached} reached this model.",
    )
    caption = (
        f"{all_starts.reached} of {count_text(len(costs), 'start')} reached this model. If only "
        "one of many did, a better one may have been missed; if two levels of cost are close to "
        "each other, there may be two answers."
    )
    parts = [legend(*ax.get_legend_handles_labels()), svg, *_starts_table(report, order)]
    return figure(join(parts), caption)


def _starts_table(report: ReportData, order: np.ndarray) -> list[Markup]:
    """The family, costs and seconds of each start; nothing if families are not known."""
    all_starts = report.fit.starts
    if not all_starts.families:
        return []
    rows = []
    for k in order:
        final, seconds = all_starts.final[k], all_starts.seconds[k]
        final_text = "" if final is None else number(float(final), 6)
        cost = number(float(all_starts[k]), 6)
        rows.append([all_starts.families[k], k + 1, cost, final_text, f"{seconds:.2g}"])
    return [table(["kind of start", "start", "cost", "followed to the end", "seconds"], rows)]


def _start_tip(report: ReportData, k: int) -> str:
    tip = f"start {k + 1}\ncost {number(float(report.fit.starts[k]), 6)}"
    final_cost = report.fit.starts.final[k]
    if final_cost is None:
        return tip
    return f"{tip}\nfollowed to the end: {number(float(final_cost), 6)}"


def rank_profile(report: ReportData) -> Markup:
    """Pictures and a table of the diagnostics of each rank: held-out error and agreement."""
    profile = report.rank
    assert profile is not None
    rows = [
        [
            f"{row['rank']:g}" + (" ←" if row["rank"] == profile.rank else ""),
            f"{number(row['error'], 4)} ± {number(row['error_spread'], 2)}",
            f"{number(row['gain'], 3)} ± {number(row['gain_spread'], 2)}",
            number(row["stability"], 3),
            f"{number(row['consistency'], 3)}%",
            percent(row["agreement"]),
        ]
        for row in profile.rows()
    ]
    head = [
        "rank",
        "held-out error",
        "gain, nats per cell",
        "components come back",
        "core consistency",
        "starts agree",
    ]
    runner_up_text = (
        "" if profile.runner_up is None else f" The one to look at next is {profile.runner_up}."
    )
    rank_note = ""
    if profile.rank != report.fit.rank:
        rank_note = f" This report is of a fit of rank {report.fit.rank}."
    recommendation = (
        f"Recommended: rank {profile.rank}. {profile.reason[:1].upper()}{profile.reason[1:]}."
    )
    caption = (
        "Left: the error of cells that the model has not seen, relative to a model of nothing; a "
        "rank is worth its last component if the error falls. Right: whether the component that "
        "comes back worst when samples are left out comes back (1: unchanged), the core "
        "consistency, and the share of starts that agree. The dotted line is the rank recommended."
    )
    panels = [_rank_panel(report, draw, name) for draw, name in PANELS]
    pictures = element("div", *panels, class_="panels wide")
    return join(
        [
            paragraph(recommendation, runner_up_text, rank_note),
            figure(pictures, caption),
            table(head, rows),
        ]
    )


#: The function that draws each panel of a rank profile, and the name of its vertical axis.
PANELS = ((draw_errors, "held-out error"), (draw_agreement, ""))


def _rank_panel(report: ReportData, draw: Callable[[Axes, RankProfile], None], name: str) -> Markup:
    """A picture of curves over the ranks, with the recommended rank marked."""
    profile = report.rank
    assert profile is not None
    ax = new_axes(*SIZE, left=78)
    draw(ax, profile)
    ax.set(xlabel="rank", ylabel=name, xticks=profile.ranks)
    ax.axvline(profile.rank, color="0.1", linewidth=1, linestyle=(0, (2, 3)))
    set_number_ticks(ax.yaxis, MIN_TICK_DISTANCE)
    handles, names = ax.get_legend_handles_labels()
    tips = {}
    for k, (line, text) in enumerate(zip(ax.lines, names, strict=False)):
        line.set_gid(f"mark curve-{k}")
        tips[f"mark curve-{k}"] = [
            f"rank {rank:g}\n{text} {number(float(value), 4)}"
            for rank, value in np.asarray(line.get_xydata())
            if np.isfinite(value)
        ]
    svg = picture(
        ax,
        kind="points",
        tips=tips,
        alt=f"{', '.join(names)}, by rank; recommended is {profile.rank}.",
    )
    return element("div", legend(handles, names), svg)
