"""The components of a fit, and their uncertainty."""

from __future__ import annotations

import numpy as np

from robustcp.model.kruskal import component_name
from robustcp.plot.factors import intervals_of, limits_with_zero
from robustcp.report.curves import plot_along_mode
from robustcp.report.data import ReportData
from robustcp.report.indices import MAX_CURVE_POINTS, Index
from robustcp.report.markup import (
    NO_VALUE,
    Markup,
    element,
    join,
    label,
    number,
    paragraph,
    percent,
    table,
)

#: Intervals are cut off at this multiple of the largest entry.
MAX_INTERVAL_RATIO = 1.25


def components(report: ReportData) -> Markup:
    """Pictures of the factors: a row for each component, with a picture for each mode."""
    fit = report.fit
    intervals = intervals_of(fit, report.uncertainty)
    indices = [Index.of(fit, n, MAX_CURVE_POINTS) for n in range(len(fit.shape))]
    limits = [
        limits_with_zero(A, *_clip_intervals(A, ends))
        for A, ends in zip(report.factors, intervals, strict=True)
    ]
    rows = []
    for r in range(fit.rank):
        panels = [
            plot_along_mode(
                index,
                A[:, r],
                ends,
                group=f"factor-{index.mode}",
                interval=None if interval is None else (interval[0][:, r], interval[1][:, r]),
                alt=_alt_text(component_name(r), index, A[:, r]),
            )
            for index, A, ends, interval in zip(
                indices, report.factors, limits, intervals, strict=True
            )
        ]
        share = f"{percent(float(fit.shares[r]))} of the data"
        rows.append(
            join(
                [
                    element("h3", component_name(r).capitalize(), element("small", f" {share}")),
                    element("div", *panels, class_="panels"),
                ]
            )
        )
    return element(
        "figure",
        *(element("div", row, class_="component") for row in rows),
        element("figcaption", _caption(report)),
    )


def _clip_intervals(
    A: np.ndarray, ends: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, ...]:
    """The finite ends of intervals, cut off where they would set the scale of the picture."""
    if ends is None:
        return ()
    limit = MAX_INTERVAL_RATIO * float(np.abs(A).max(initial=0.0))
    return tuple(np.clip(end[np.isfinite(end)], -limit, limit) for end in ends)


def _alt_text(name: str, index: Index, values: np.ndarray) -> str:
    peak = int(np.argmax(np.abs(values)))
    return (
        f"{name.capitalize()} along {index.name}: {index.size} values, "
        f"furthest from zero at {index.text(peak)} ({number(float(values[peak]), 3)})."
    )


def _caption(report: ReportData) -> str:
    caption = (
        "Unit columns of the factors, the component of the largest weight first; all "
        "pictures of a mode have one scale. Look for shapes that make sense in your field, and "
        "for components that live on single indices, which are more likely faults."
    )
    if report.uncertainty is not None:
        caption += (
            f" Bands and bars are {100 * report.uncertainty.level:g}% intervals; of those that "
            "run to the edge the data says little."
        )
    return caption


def component_table(report: ReportData) -> Markup:
    """A table of the share, weight and largest entries of each component."""
    fit, component_facts = report.fit, report.summary["components"]
    head = ["component", "share", "weight", *(f"largest at {label(name)}" for name in fit.modes)]
    indices = [Index.of(fit, n, MAX_CURVE_POINTS) for n in range(len(fit.shape))]
    rows = [
        [
            r + 1,
            percent(component_facts[r]["share"]),
            number(component_facts[r]["weight"], 6),
            *(
                index.text(largest["index"])
                for index, largest in zip(indices, component_facts[r]["largest"], strict=True)
            ),
        ]
        for r in range(fit.rank)
    ]
    return table(head, rows, text_columns=(0, *range(3, 3 + len(fit.shape))))


def uncertainty(report: ReportData) -> Markup:
    """A table of standard errors and of how often components came back from resamples."""
    intervals = report.uncertainty
    assert intervals is not None
    resampled = intervals.count > 0
    head = ["component", *(f"median error, {label(name)}" for name in report.fit.modes)]
    head += ["came back"] if resampled else []
    rows = []
    for r in range(report.fit.rank):
        row = [str(r + 1)]
        row += [
            NO_VALUE if errors is None else number(float(np.median(errors[:, r])), 2)
            for errors in intervals.errors
        ]
        row += [percent(float(intervals.came_back[r]))] if resampled else []
        rows.append(row)
    method_text = {
        "normal": "By asymptotic normality of the estimate, jointly over all modes",
        "bootstrap": f"From {intervals.count} resamples (bootstrap)",
        "jackknife": f"From {intervals.count} fits with slabs left out (jackknife)",
    }[intervals.method]
    text = (
        f"{method_text}. Standard errors are those of the unit columns; "
        f"{100 * intervals.level:g}% intervals are drawn with the components. What the search "
        "or the rank may have missed is not in them."
    )
    failure_text = (
        f"{intervals.failed} of the resamples could not be fitted." if intervals.failed else ""
    )
    notes = [paragraph(note[:1].upper() + note[1:] + ".") for note in intervals.notes]
    return join(
        [
            paragraph(text),
            table(head, rows),
            paragraph(failure_text) if failure_text else None,
            *notes,
        ]
    )
