"""How a fit came about: sweeps and starts; and what speaks for its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robustcp.report.curves import Scale
from robustcp.report.drawing import (
    Frame,
    horizontal,
    legend,
    mark_of,
    path,
    picture,
    ticks_of_numbers,
)
from robustcp.report.markup import (
    Markup,
    counted,
    element,
    figure,
    joined,
    number,
    paragraph,
    percent,
    table,
)
from robustcp.report.material import Material

if TYPE_CHECKING:
    from robustcp.ranks import RankProfile

#: The most sweeps that are drawn one by one, and starts.
SWEEPS, STARTS = 1500, 400
MARKS = ("dot first", "square second", "triangle third", "diamond fourth")
FRAME = Frame(440, 230, left=78)


def course(material: Material) -> Markup:
    """The objective over the sweeps, and what the starts cost."""
    return element("div", convergence(material), starts(material), class_="panels wide")


def convergence(material: Material) -> Markup:
    """The objective after each sweep, on the scale of each stage."""
    fit, marks, stages, begin = material.fit, [], [], 0
    total = max(fit.sweeps, 1)
    for k, (name, sweeps) in enumerate(fit.stages):
        values = np.asarray(fit.trace[begin : begin + sweeps], dtype=float)
        if not values.size:
            continue
        kind = MARKS[k % len(MARKS)]
        heights = 0.05 + 0.9 * _shares(values)
        if begin:
            x = (begin / total) * FRAME.w
            marks.append(element("path", class_="limit", d=f"M{x:.1f} 0V{FRAME.h:.1f}"))
        for s in range(0, values.size, max(1, total // SWEEPS)):
            at = (begin + s + 0.5) / total * FRAME.w, FRAME.h * (1 - heights[s])
            tip = f"sweep {begin + s + 1}, {name}\nobjective {number(values[s], 6)}"
            place = f"translate({at[0]:.1f} {at[1]:.1f})"
            marks.append(mark_of(kind, transform=place, data_tip=tip))
        ends = f"{number(values[0], 5)} to {number(values[-1], 5)}"
        stages.append((kind, f"{name} ({counted(sweeps, 'sweep')}): {ends}"))
        begin += sweeps
    shown = picture(
        FRAME, joined(marks), x=ticks_of_numbers(0, total, FRAME.w),
        y=[(0.05 * FRAME.h, "highest"), (0.95 * FRAME.h, "lowest")], names=("sweep", ""),
        alt=f"The objective after each of {counted(fit.sweeps, 'sweep')}; it ended at "
        f"{number(fit.objective, 6)}.", kind="points",
    )  # fmt: skip
    caption = (
        f"The objective after each sweep, between its lowest and highest value in each stage. "
        f"{fit.result.sentence.capitalize()}. Each stage, and each level of a stage, minimises "
        "another objective, so values may jump between them; within a level they never rise."
    )
    return figure(joined([legend(stages), shown]), caption)


def _shares(values: np.ndarray) -> np.ndarray:
    """Values between the lowest, 0, and the highest, 1; what is infinite is as high."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    return np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)


def starts(material: Material) -> Markup:
    """What each start cost, in ascending order."""
    found = material.fit.starts
    costs = np.array([float(value) for value in found])
    order = np.argsort(costs, kind="stable")[:STARTS]
    known = costs[order][np.isfinite(costs[order])]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    margin = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
    scale = Scale(low - margin, high + margin, FRAME.h)
    marks = []
    for place, k in enumerate(order):
        if not np.isfinite(costs[k]):
            continue
        final = found.final[k]
        followed = final is not None
        tip = f"start {k + 1}\ncost {number(costs[k], 6)}"
        tip += f"\nfollowed to the end: {number(float(final), 6)}" if final is not None else ""
        at = f"translate({(place + 0.5) / len(order) * FRAME.w:.1f} {float(scale(costs[k])):.1f})"
        kind = "square second" if followed else "dot first"
        marks.append(mark_of(kind, transform=at, data_tip=tip))
    ticks = ticks_of_numbers(scale.low, scale.high, FRAME.h, up=True)
    shown = picture(
        FRAME, joined(marks), y=ticks,
        names=("starts, the best first", "cost"), kind="points",
        alt=f"Cost of {counted(len(costs), 'start')}; {found.reached} reached this model.",
    )  # fmt: skip
    caption = (
        f"{found.reached} of {counted(len(costs), 'start')} reached this model. If only one of "
        "many did, a better one may have been missed; if two levels of cost are close to each "
        "other, there may be two answers."
    )
    kinds = [("dot first", "tried"), ("square second", "followed to the end")]
    if all(value is None for value in found.final):
        kinds = [("dot first", "cost in the end")]
    return figure(joined([legend(kinds), shown]), caption)


def rank_profile(material: Material) -> Markup:
    """What speaks for each rank: held-out error, and what tells components from noise."""
    profile = material.rank
    assert profile is not None
    rows = [
        [f"{row['rank']:g}" + (" ←" if row["rank"] == profile.rank else ""),
         f"{number(row['error'], 4)} ± {number(row['error_spread'], 2)}",
         f"{number(row['gain'], 3)} ± {number(row['gain_spread'], 2)}",
         number(row["stability"], 3), f"{number(row['consistency'], 3)}%",
         percent(row["agreement"])]
        for row in profile.rows()
    ]  # fmt: skip
    head = ["rank", "held-out error", "gain, nats per cell", "components come back",
            "core consistency", "starts agree"]  # fmt: skip
    other = "" if profile.runner_up is None else f" The one to look at next is {profile.runner_up}."
    differs = ""
    if profile.rank != material.fit.rank:
        differs = f" This report is of a fit of rank {material.fit.rank}."
    said = f"Recommended: rank {profile.rank}. {profile.reason[:1].upper()}{profile.reason[1:]}."
    caption = (
        "Left: the error of cells that the model has not seen, relative to a model of nothing; a "
        "rank is worth its last component if the error falls. Right: whether the component that "
        "comes back worst when samples are left out comes back (1: unchanged), the core "
        "consistency, and the share of starts that agree. The dotted line is the rank recommended."
    )
    pictures = element("div", _errors(profile), _agreement(profile), class_="panels wide")
    return joined([paragraph(said, other, differs), figure(pictures, caption), table(head, rows)])


def _errors(profile: RankProfile) -> Markup:
    error, spread = np.asarray(profile.error), np.asarray(profile.spread["error"])
    top = float(np.nanmax(np.append(error + np.nan_to_num(spread), 0.0))) or 1.0
    scale = Scale(0.0, 1.05 * top, FRAME.h)
    at = _across(profile)
    bars = [
        element("path", class_="whisker", d=f"M{x:.1f} {scale(e - s):.1f}V{scale(e + s):.1f}")
        for x, e, s in zip(at, error, spread, strict=True) if np.isfinite(e) and np.isfinite(s)
    ]  # fmt: skip
    line = _curve(profile, error, scale, "dot first", "held-out error")
    return _ranks(profile, [*bars, line], scale, "held-out error",
                  [("dot first", "held-out error, with its standard error")])  # fmt: skip


def _agreement(profile: RankProfile) -> Markup:
    scale = Scale(-0.03, 1.05, FRAME.h)
    lines = (
        ("square second", "components come back", np.asarray(profile.stability)),
        ("diamond fourth", "core consistency", np.clip(profile.consistency / 100, 0, 1)),
        ("triangle third", "starts agree", np.asarray(profile.agreement)),
    )  # fmt: skip
    drawn = [_curve(profile, values, scale, kind, name) for kind, name, values in lines]
    return _ranks(profile, drawn, scale, "", [(kind, name) for kind, name, _ in lines])


def _across(profile: RankProfile) -> np.ndarray:
    return (np.arange(len(profile.ranks)) + 0.5) / len(profile.ranks) * FRAME.w


def _curve(profile: RankProfile, values: np.ndarray, scale: Scale, kind: str, name: str) -> Markup:
    at = [(x, float(scale(y)), rank, float(y))
          for x, y, rank in zip(_across(profile), values, profile.ranks, strict=True)
          if np.isfinite(y)]  # fmt: skip
    marks = [
        mark_of(kind, transform=f"translate({x:.1f} {y:.1f})",
                data_tip=f"rank {rank}\n{name} {number(value, 4)}")
        for x, y, rank, value in at
    ]  # fmt: skip
    class_ = "link " + kind.split()[1]
    return joined([path([(x, y) for x, y, *_ in at], class_=class_), *marks])


def _ranks(
    profile: RankProfile, drawn: list[Markup], scale: Scale, name: str,
    entries: list[tuple[str, str]],
) -> Markup:  # fmt: skip
    at = _across(profile)
    x = float(at[profile.ranks.index(profile.rank)])
    best = element("path", class_="limit", d=f"M{x:.1f} 0V{FRAME.h:.1f}")
    zero = horizontal(float(scale(0.0)), FRAME.w, "zero")
    ticks = [(float(p), str(rank)) for p, rank in zip(at, profile.ranks, strict=True)]
    shown = picture(
        FRAME, joined([zero, best, *drawn]), x=ticks, names=("rank", name), kind="points",
        y=ticks_of_numbers(max(scale.low, 0.0), scale.high, FRAME.h, up=True)
        if scale.low >= 0 else [(float(scale(v)), number(v)) for v in (0, 0.25, 0.5, 0.75, 1)],
        alt=f"{', '.join(text for _, text in entries)}, by rank; recommended is {profile.rank}.",
    )  # fmt: skip
    return element("div", legend(entries), shown)
