"""Flagged entries: their share in each slab, maps of cells, and slices of the worst slabs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from robustcp.report.curves import column
from robustcp.report.drawing import CELLS, POINTS, Frame, Index, legend
from robustcp.report.images import (
    Levels,
    common_limits,
    extremes,
    image,
    means,
    share_levels,
    symmetric_limits,
)
from robustcp.report.markup import (
    TIMES,
    Markup,
    counted,
    element,
    figure,
    joined,
    label,
    number,
    percent,
    table,
)
from robustcp.report.material import Material, Slice

#: Slices that are shown, of all modes together.
SLICES = 15
#: Entries of a slice that are listed.
LISTED = 8


# Shares of slabs


def chosen(material: Material) -> dict[str, tuple[int, int]]:
    """The slabs whose slices are shown: the worst of each mode, and an ordinary one.

    A dict from the id of its figure to the mode and the index.
    """
    order = len(material.fit.shape)
    each = max(1, SLICES // order)
    found = {}
    for mode, shares in enumerate(material.found.slabs):
        ranked = np.argsort(-shares, kind="stable")
        picked = ranked[: max(1, each - 1)].tolist()
        picked += [int(ranked[len(ranked) // 2])] if each > 1 else []
        for k in dict.fromkeys(picked):
            found[f"slab-{mode}-{k}"] = mode, int(k)
    return found


def shares(material: Material, slabs: dict[str, tuple[int, int]]) -> Markup:
    """The share of flagged entries in each slab of each mode."""
    panels = []
    for mode, values in enumerate(material.found.slabs):
        index = Index.of(material.fit, mode, POINTS)
        targets: list[str | None] = [None] * index.count
        for name, (n, k) in slabs.items():
            if n == mode:
                targets[k // index.step] = name
        chance = 100 * material.found.by_chance
        high = max(100 * float(values.max(initial=0.0)), 2 * chance) * 1.06
        panels.append(
            column(
                index, 100 * values, (0.0, high), group=f"share-{mode}", line=chance,
                names=("", "flagged, %"), unit="%", targets=targets, bars=True,
                frame=Frame(340, 170, left=52),
                alt=f"Percentage of flagged entries in each slab of {index.name}; "
                f"the largest is {percent(float(values.max(initial=0.0)))}.",
            )
        )  # fmt: skip
    return element("div", *panels, class_="panels")


# Maps of cells


def cellmaps(material: Material) -> Markup:
    """Maps of the samples against each other mode."""
    mode, order = material.distances.mode, len(material.fit.shape)
    maps = [_cellmap(material, mode, other) for other in range(order) if other != mode]
    return element("div", *maps, class_="panels wide")


def _cellmap(material: Material, mode: int, other: int) -> Markup:
    scored = material.scored
    rows, columns = (Index.of(material.fit, n, scored.blocks) for n in (mode, other))
    flat = (scored.at[mode] // rows.step) * columns.count + scored.at[other] // columns.step
    size, limit = rows.count * columns.count, material.found.threshold
    count, high, low = (
        np.bincount(flat, weights, size).reshape(rows.count, columns.count)
        for weights in (None, scored.scores > limit, scored.scores < -limit)
    )
    known = np.where(count > 0, count, np.nan)
    levels = share_levels(high / known, low / known)
    return image(
        levels, "cells", rows, columns, kind="shares", group=f"cells-{other}",
        title=f"{rows.name} {TIMES} {columns.name}",
        alt=f"Cellmap: shares of entries that are too high or too low, for blocks of "
        f"{rows.name} by {columns.name}.",
    )  # fmt: skip


def cell_legend() -> Markup:
    """What the colours of maps of cells mean."""
    return legend(
        [("square high", "too high"), ("square low", "too low"), ("square both", "some of each"),
         ("square pale", "as the model says"), ("square gap", "missing")]
    )  # fmt: skip


# Slices


def slices(material: Material, slabs: dict[str, tuple[int, int]]) -> Markup:
    """A figure for each slab, and a list to choose from."""
    figures = [_slab(material, name, mode, k) for name, (mode, k) in slabs.items()]
    groups = []
    if len(material.fit.shape) == 2:
        figures = [_slice(material, "slab-all", "All of it", {}), *figures]
        groups = [element("option", "all of it", value="slab-all")]
    for mode, name in enumerate(material.fit.modes):
        mine = {key: k for key, (n, k) in slabs.items() if n == mode}
        options = [
            element("option", _slab_name(material, mode, k), value=key) for key, k in mine.items()
        ]
        groups.append(element("optgroup", *options, label=label(name)))
    choice = element(
        "p", element("label", "Slice to look at: ", for_="slab"),
        element("select", *groups, id="slab"), class_="choice js",
    )  # fmt: skip
    return joined([choice, element("div", *figures, id="slabs")])


def _slab_name(material: Material, mode: int, k: int) -> str:
    index = Index.of(material.fit, mode, POINTS)
    share = float(material.found.slabs[mode][k])
    return f"{label(index.name)} {index.text(k)}: {percent(share)} flagged"


def _slab(material: Material, name: str, mode: int, k: int) -> Markup:
    return _slice(material, name, _slab_name(material, mode, k), material.places(mode, k))


def _slice(material: Material, name: str, title: str, fixed: dict[int, int]) -> Markup:
    """Data, model and residual where some modes are held at an index."""
    part = material.slice_of(fixed)
    free = [n for n in range(len(material.fit.shape)) if n not in fixed]
    held = ", ".join(
        f"{label(material.fit.modes[n])} {Index.of(material.fit, n, POINTS).text(i)}"
        for n, i in fixed.items()
    )
    if len(free) == 1:
        panels, said = _fibre(material, name, free[0], part, held)
    else:
        panels, said = _images(material, name, free, part, held)
    heading = element("h4", title)
    where = f"Shown: {held}. " if len(fixed) > 1 else ""
    body = joined([heading, element("div", panels, class_="panels three")])
    return figure(body, joined([where, said, _furthest(material, free, part)]), id=name,
                  class_="slab")  # fmt: skip


def _images(
    material: Material, name: str, free: Sequence[int], part: Slice, held: str
) -> tuple[Markup, str]:
    """Data, model and residual as images."""
    indices = [Index.of(material.fit, n, CELLS) for n in free]
    steps = [math.ceil(index.step / part.stride) for index in indices]
    rows, columns = indices
    common, own = common_limits(part.data, part.model), symmetric_limits(part.residual)
    size = steps[0], steps[1]
    shown: list[tuple[str, np.ndarray, str, Levels]] = [
        ("data", means(part.data, size), "cividis", common),
        ("model", means(part.model, size), "cividis", common),
        ("residual", extremes(part.residual, size), "diverging", own),
    ]
    where = held and f" at {held}"
    panels = joined(
        image(_fitted(scale.of(values), rows, columns), colours, rows, columns, kind="value",
              group=name, scale=scale, title=title,
              alt=f"{title.capitalize()}{where}: {rows.name} by {columns.name}.")
        for title, values, colours, scale in shown
    )  # fmt: skip
    said = ""
    if size != (1, 1):
        said = (
            f"Cells are blocks of {size[0]} by {size[1]}: of data and model the mean, of "
            "residuals the one furthest from zero. "
        )
    if part.stride > 1:
        said += f"Of this large slice every {part.stride}th row and column is shown. "
    return panels, said


def _fitted(levels: np.ndarray, rows: Index, columns: Index) -> np.ndarray:
    """Levels in exactly as many rows and columns as there are names for."""
    found = np.zeros((rows.count, columns.count), dtype=np.uint8)
    part = levels[: rows.count, : columns.count]
    found[: part.shape[0], : part.shape[1]] = part
    return found


def _fibre(material: Material, name: str, mode: int, part: Slice, held: str) -> tuple[Markup, str]:
    """Data, model and residual of a matrix's row or column as curves."""
    index = Index.of(material.fit, mode, POINTS)
    common, own = common_limits(part.data, part.model), symmetric_limits(part.residual)
    shown = ("data", part.data, common), ("model", part.model, common), (
        "residual", part.residual, own)  # fmt: skip
    return joined(
        column(
            index, values, (scale.low, scale.high), group=name, names=("", title),
            frame=Frame(330, 200, left=70), alt=f"{title.capitalize()} at {held}, along "
            f"{index.name}.",
        )
        for title, values, scale in shown
    ), ""  # fmt: skip


def _furthest(material: Material, free: Sequence[int], part: Slice) -> Markup:
    """The flagged entries of a slice that are furthest from the model."""
    size = np.abs(np.nan_to_num(part.scores)).ravel()
    flagged = int(np.count_nonzero(size > material.found.threshold))
    if not flagged:
        return element("span", "Nothing is flagged here.")
    order = np.argsort(-size, kind="stable")[: min(LISTED, flagged)]
    indices = [Index.of(material.fit, n, POINTS) for n in free]

    def row(flat: int) -> list[Any]:
        at = np.unravel_index(flat, part.scores.shape)
        texts = [i.text(int(k) * part.stride) for i, k in zip(indices, at, strict=True)]
        return [*texts, *(number(float(v[at]), 4) for v in (part.data, part.model)),
                number(float(part.scores[at]), 3)]  # fmt: skip

    head = [*(index.name for index in indices), "data", "model", "residual / noise"]
    words = range(len(indices))
    return element(
        "details",
        element("summary", f"{counted(flagged, 'entry', 'entries')} flagged in this slice; "
                "those furthest from the model"),
        table(head, [row(int(flat)) for flat in order], words=tuple(words)),
    )  # fmt: skip
