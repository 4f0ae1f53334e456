"""The components of a fit, and how sure they are."""

from __future__ import annotations

import numpy as np

from robustcp.kruskal import component_name
from robustcp.plot.factors import by_share, intervals_of
from robustcp.report.curves import column, limits_with_zero
from robustcp.report.drawing import POINTS, Index
from robustcp.report.markup import (
    NONE,
    Markup,
    element,
    joined,
    label,
    number,
    paragraph,
    percent,
    table,
)
from robustcp.report.material import Material

#: Intervals are drawn up to so many times the largest entry.
WIDE = 1.25


def components(material: Material) -> Markup:
    """The factors: a row of pictures for each component, a picture for each mode."""
    fit = material.fit
    intervals = intervals_of(fit, material.uncertainty)
    indices = [Index.of(fit, n, POINTS) for n in range(len(fit.shape))]
    limits = [
        limits_with_zero(A, *_moderate(A, ends))
        for A, ends in zip(material.factors, intervals, strict=True)
    ]
    rows = []
    for r in by_share(fit):
        panels = [
            column(
                index, A[:, r], ends, group=f"factor-{index.mode}",
                interval=None if held is None else (held[0][:, r], held[1][:, r]),
                alt=_told(component_name(r), index, A[:, r]),
            )
            for index, A, ends, held in zip(
                indices, material.factors, limits, intervals, strict=True
            )
        ]  # fmt: skip
        share = f"{percent(float(fit.shares[r]))} of the data"
        rows.append(joined([
            element("h3", component_name(r).capitalize(), element("small", f" {share}")),
            element("div", *panels, class_="panels"),
        ]))  # fmt: skip
    return element("figure", *(element("div", row, class_="component") for row in rows),
                   element("figcaption", _caption(material)))  # fmt: skip


def _moderate(A: np.ndarray, ends: tuple[np.ndarray, np.ndarray] | None) -> tuple[np.ndarray, ...]:
    """Ends of intervals that are not far beyond the entries themselves."""
    if ends is None:
        return ()
    most = WIDE * float(np.abs(A).max(initial=0.0))
    return tuple(np.clip(end[np.isfinite(end)], -most, most) for end in ends)


def _told(name: str, index: Index, values: np.ndarray) -> str:
    at = int(np.argmax(np.abs(values)))
    return (
        f"{name.capitalize()} along {index.name}: {index.size} values, "
        f"furthest from zero at {index.text(at)} ({number(float(values[at]), 3)})."
    )


def _caption(material: Material) -> str:
    said = (
        "Unit columns of the factors, the component with the largest share of the data first; all "
        "pictures of a mode have one scale. Look for shapes that make sense in your field, and "
        "for components that live on single indices, which are more likely faults."
    )
    if material.uncertainty is not None:
        said += (
            f" Bands and bars are {100 * material.uncertainty.level:g}% intervals; of those that "
            "run to the edge the data says little."
        )
    return said


def component_table(material: Material) -> Markup:
    """Share, weight and largest entries of each component."""
    fit, parts = material.fit, material.summary["components"]
    head = ["component", "share", "weight", *(f"largest at {label(name)}" for name in fit.modes)]
    indices = [Index.of(fit, n, POINTS) for n in range(len(fit.shape))]
    rows = [
        [r + 1, percent(parts[r]["share"]), number(parts[r]["weight"], 6),
         *(index.text(at["index"]) for index, at in zip(indices, parts[r]["largest"], strict=True))]
        for r in by_share(fit)
    ]  # fmt: skip
    return table(head, rows, words=(0, *range(3, 3 + len(fit.shape))))


def uncertainty(material: Material) -> Markup:
    """Standard errors, and whether components came back from resamples."""
    found = material.uncertainty
    assert found is not None
    resampled = found.count > 0
    head = ["component", *(f"median error, {label(name)}" for name in material.fit.modes)]
    head += ["came back"] if resampled else []
    rows = []
    for r in by_share(material.fit):
        row = [str(r + 1)]
        row += [NONE if each is None else number(float(np.median(each[:, r])), 2)
                for each in found.errors]  # fmt: skip
        row += [percent(float(found.came_back[r]))] if resampled else []
        rows.append(row)
    how = {
        "normal": "By asymptotic normality of the estimate, jointly over all modes",
        "bootstrap": f"From {found.count} resamples (bootstrap)",
        "jackknife": f"From {found.count} fits with slabs left out (jackknife)",
    }[found.method]
    said = (
        f"{how}. Standard errors are those of the unit columns; {100 * found.level:g}% intervals "
        "are drawn with the components. What the search or the rank may have missed is not in them."
    )
    failed = f"{found.failed} of the resamples could not be fitted." if found.failed else ""
    notes = [paragraph(note[:1].upper() + note[1:] + ".") for note in found.notes]
    return joined([paragraph(said), table(head, rows), paragraph(failed) if failed else None,
                   *notes])  # fmt: skip
