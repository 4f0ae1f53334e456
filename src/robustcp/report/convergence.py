"""How a fit came about: sweeps and starts; and what speaks for its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robustcp.report.curves import VerticalScale
from robustcp.report.data import ReportData
from robustcp.report.drawing import (
    Frame,
    horizontal_line,
    legend,
    mark_of,
    number_ticks,
    path,
    picture,
)
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

if TYPE_CHECKING:
    from robustcp.inference.rank_profile import RankProfile

#: The most sweeps that are drawn one by one, and starts.
MAX_DRAWN_SWEEPS, MAX_DRAWN_STARTS = 1500, 400
STAGE_MARKS = ("dot first", "square second", "triangle third", "diamond fourth")
FRAME = Frame(440, 230, left=78)


def convergence_and_starts(report: ReportData) -> Markup:
    """The objective over the sweeps, and what the starts cost."""
    return element("div", convergence(report), starts(report), class_="panels wide")


def convergence(report: ReportData) -> Markup:
    """The objective after each sweep, on the scale of each stage."""
    fit, marks, stages, begin = report.fit, [], [], 0
    total = max(fit.sweeps, 1)
    for k, (name, sweeps) in enumerate(fit.stages):
        values = np.asarray(fit.trace[begin : begin + sweeps], dtype=float)
        if not values.size:
            continue
        kind = STAGE_MARKS[k % len(STAGE_MARKS)]
        heights = 0.05 + 0.9 * _normalise(values)
        if begin:
            x = (begin / total) * FRAME.w
            marks.append(element("path", class_="limit", d=f"M{x:.1f} 0V{FRAME.h:.1f}"))
        for s in range(0, values.size, max(1, total // MAX_DRAWN_SWEEPS)):
            position = (begin + s + 0.5) / total * FRAME.w, FRAME.h * (1 - heights[s])
            tip = f"sweep {begin + s + 1}, {name}\nobjective {number(values[s], 6)}"
            transform = f"translate({position[0]:.1f} {position[1]:.1f})"
            marks.append(mark_of(kind, transform=transform, data_tip=tip))
        value_range = f"{number(values[0], 5)} to {number(values[-1], 5)}"
        stages.append((kind, f"{name} ({count_text(sweeps, 'sweep')}): {value_range}"))
        begin += sweeps
    svg = picture(
        FRAME,
        join(marks),
        x=number_ticks(0, total, FRAME.w),
        y=[(0.05 * FRAME.h, "highest"), (0.95 * FRAME.h, "lowest")],
        axis_names=("sweep", ""),
        alt=f"The objective after each of {count_text(fit.sweeps, 'sweep')}; it ended at "
        f"{number(fit.objective, 6)}.",
        kind="points",
    )
    caption = (
        f"The objective after each sweep, between its lowest and highest value in each stage. "
        f"{fit.result.sentence.capitalize()}. Each stage, and each level of a stage, minimises "
        "another objective, so values may jump between them; within a level they never rise."
    )
    return figure(join([legend(stages), svg]), caption)


def _normalise(values: np.ndarray) -> np.ndarray:
    """Values between the lowest, 0, and the highest, 1; what is infinite is as high."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    return np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)


def starts(report: ReportData) -> Markup:
    """What each start cost, in ascending order."""
    all_starts = report.fit.starts
    costs = np.array([float(value) for value in all_starts])
    order = np.argsort(costs, kind="stable")[:MAX_DRAWN_STARTS]
    finite = costs[order][np.isfinite(costs[order])]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    margin = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    scale = VerticalScale(low - margin, high + margin, FRAME.h)
    marks = []
    for position, k in enumerate(order):
        if not np.isfinite(costs[k]):
            continue
        final_cost = all_starts.final[k]
        followed = final_cost is not None
        tip = f"start {k + 1}\ncost {number(costs[k], 6)}"
        tip += (
            f"\nfollowed to the end: {number(float(final_cost), 6)}"
            if final_cost is not None
            else ""
        )
        transform = (
            f"translate({(position + 0.5) / len(order) * FRAME.w:.1f} {float(scale(costs[k])):.1f})"
        )
        kind = "square second" if followed else "dot first"
        marks.append(mark_of(kind, transform=transform, data_tip=tip))
    ticks = number_ticks(scale.low, scale.high, FRAME.h, upwards=True)
    svg = picture(
        FRAME,
        join(marks),
        y=ticks,
        axis_names=("starts, the best first", "cost"),
        kind="points",
        alt=f"Cost of {count_text(len(costs), 'start')}; {all_starts.reached} reached this model.",
    )
    caption = (
        f"{all_starts.reached} of {count_text(len(costs), 'start')} reached this model. If only "
        "one of many did, a better one may have been missed; if two levels of cost are close to "
        "each other, there may be two answers."
    )
    legend_entries = [("dot first", "tried"), ("square second", "followed to the end")]
    if all(value is None for value in all_starts.final):
        legend_entries = [("dot first", "cost in the end")]
    return figure(join([legend(legend_entries), svg]), caption)


def rank_profile(report: ReportData) -> Markup:
    """What speaks for each rank: held-out error, and what tells components from noise."""
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
    pictures = element(
        "div", _error_panel(profile), _agreement_panel(profile), class_="panels wide"
    )
    return join(
        [
            paragraph(recommendation, runner_up_text, rank_note),
            figure(pictures, caption),
            table(head, rows),
        ]
    )


def _error_panel(profile: RankProfile) -> Markup:
    error, spread = np.asarray(profile.error), np.asarray(profile.spread["error"])
    top = float(np.nanmax(np.append(error + np.nan_to_num(spread), 0.0))) or 1.0
    scale = VerticalScale(0.0, 1.05 * top, FRAME.h)
    positions = _rank_positions(profile)
    bars = [
        element("path", class_="whisker", d=f"M{x:.1f} {scale(e - s):.1f}V{scale(e + s):.1f}")
        for x, e, s in zip(positions, error, spread, strict=True)
        if np.isfinite(e) and np.isfinite(s)
    ]
    line = _curve(profile, error, scale, "dot first", "held-out error")
    return _rank_panel(
        profile,
        [*bars, line],
        scale,
        "held-out error",
        [("dot first", "held-out error, with its standard error")],
    )


def _agreement_panel(profile: RankProfile) -> Markup:
    scale = VerticalScale(-0.03, 1.05, FRAME.h)
    lines = (
        ("square second", "components come back", np.asarray(profile.stability)),
        ("diamond fourth", "core consistency", np.clip(profile.consistency / 100, 0, 1)),
        ("triangle third", "starts agree", np.asarray(profile.agreement)),
    )
    curves = [_curve(profile, values, scale, kind, name) for kind, name, values in lines]
    return _rank_panel(profile, curves, scale, "", [(kind, name) for kind, name, _ in lines])


def _rank_positions(profile: RankProfile) -> np.ndarray:
    return (np.arange(len(profile.ranks)) + 0.5) / len(profile.ranks) * FRAME.w


def _curve(
    profile: RankProfile, values: np.ndarray, scale: VerticalScale, kind: str, name: str
) -> Markup:
    points = [
        (x, float(scale(y)), rank, float(y))
        for x, y, rank in zip(_rank_positions(profile), values, profile.ranks, strict=True)
        if np.isfinite(y)
    ]
    marks = [
        mark_of(
            kind,
            transform=f"translate({x:.1f} {y:.1f})",
            data_tip=f"rank {rank}\n{name} {number(value, 4)}",
        )
        for x, y, rank, value in points
    ]
    class_ = "link " + kind.split()[1]
    return join([path([(x, y) for x, y, *_ in points], class_=class_), *marks])


def _rank_panel(
    profile: RankProfile,
    content: list[Markup],
    scale: VerticalScale,
    name: str,
    entries: list[tuple[str, str]],
) -> Markup:
    positions = _rank_positions(profile)
    x = float(positions[profile.ranks.index(profile.rank)])
    best = element("path", class_="limit", d=f"M{x:.1f} 0V{FRAME.h:.1f}")
    zero = horizontal_line(float(scale(0.0)), FRAME.w, "zero")
    ticks = [(float(p), str(rank)) for p, rank in zip(positions, profile.ranks, strict=True)]
    svg = picture(
        FRAME,
        join([zero, best, *content]),
        x=ticks,
        axis_names=("rank", name),
        kind="points",
        y=number_ticks(max(scale.low, 0.0), scale.high, FRAME.h, upwards=True)
        if scale.low >= 0
        else [(float(scale(v)), number(v)) for v in (0, 0.25, 0.5, 0.75, 1)],
        alt=f"{', '.join(text for _, text in entries)}, by rank; recommended is {profile.rank}.",
    )
    return element("div", legend(entries), svg)
