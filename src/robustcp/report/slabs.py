"""Flagged entries: their share in each slab, maps of cells, and slices of the worst slabs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from robustcp.report.curves import plot_along_mode
from robustcp.report.data import ReportData, Slice
from robustcp.report.images import (
    BOTH_COLOUR,
    HIGH_COLOUR,
    LOW_COLOUR,
    ORDINARY_COLOUR,
    block_extremes,
    block_means,
    image,
    image_axes,
    share_levels,
    value_levels,
)
from robustcp.report.indices import MAX_CURVE_POINTS, MAX_IMAGE_CELLS, Index
from robustcp.report.markup import (
    TIMES,
    Markup,
    count_text,
    element,
    figure,
    join,
    label,
    number,
    percent,
    table,
)

#: The largest number of slices, over all modes.
MAX_SLICES = 15
#: The largest number of entries that are listed for a slice.
MAX_LISTED_ENTRIES = 8


# Shares of slabs


def select_slabs(report: ReportData) -> dict[str, tuple[int, int]]:
    """The slabs whose slices are shown: the worst of each mode, and an ordinary one.

    Returns a dict from the id of the figure to the mode and the index of the slab.
    """
    order = len(report.fit.shape)
    slabs_per_mode = max(1, MAX_SLICES // order)
    slabs = {}
    for mode, shares in enumerate(report.outliers.slabs):
        ranked = np.argsort(-shares, kind="stable")
        indices = ranked[: max(1, slabs_per_mode - 1)].tolist()
        indices += [int(ranked[len(ranked) // 2])] if slabs_per_mode > 1 else []
        for k in dict.fromkeys(indices):
            slabs[f"slab-{mode}-{k}"] = mode, int(k)
    return slabs


def flagged_shares(report: ReportData, slabs: dict[str, tuple[int, int]]) -> Markup:
    """Pictures of the share of flagged entries in each slab of each mode."""
    panels = []
    for mode, values in enumerate(report.outliers.slabs):
        index = Index.of(report.fit, mode, MAX_CURVE_POINTS)
        targets: list[str | None] = [None] * index.count
        for name, (n, k) in slabs.items():
            if n == mode:
                targets[k // index.step] = name
        chance = 100 * report.outliers.by_chance
        high = max(100 * float(values.max(initial=0.0)), 2 * chance) * 1.06
        panels.append(
            plot_along_mode(
                index,
                100 * values,
                (0.0, high),
                group=f"share-{mode}",
                line=chance,
                name="flagged, %",
                unit="%",
                targets=targets,
                bars=True,
                size=(340, 170),
                alt=f"Percentage of flagged entries in each slab of {index.name}; "
                f"the largest is {percent(float(values.max(initial=0.0)))}.",
            )
        )
    return element("div", *panels, class_="panels")


# Maps of cells


def cellmaps(report: ReportData) -> Markup:
    """Maps of flagged entries: the mode of the samples against each other mode."""
    mode, order = report.distances.mode, len(report.fit.shape)
    maps = [_cellmap(report, mode, other) for other in range(order) if other != mode]
    return element("div", *maps, class_="panels wide")


def _cellmap(report: ReportData, mode: int, other: int) -> Markup:
    score_sample = report.score_sample
    rows, columns = (Index.of(report.fit, n, score_sample.max_blocks) for n in (mode, other))
    flat = (score_sample.indices[mode] // rows.step) * columns.count + score_sample.indices[
        other
    ] // columns.step
    size, limit = rows.count * columns.count, report.outliers.threshold
    count, high, low = (
        np.bincount(flat, weights, size).reshape(rows.count, columns.count)
        for weights in (None, score_sample.scores > limit, score_sample.scores < -limit)
    )
    observed_count = np.where(count > 0, count, np.nan)
    levels = share_levels(high / observed_count, low / observed_count)
    return image(
        image_axes(rows, columns),
        levels,
        "cells",
        rows,
        columns,
        kind="shares",
        group=f"cells-{other}",
        title=f"{rows.name} {TIMES} {columns.name}",
        alt=f"Cellmap: shares of entries that are too high or too low, for blocks of "
        f"{rows.name} by {columns.name}.",
    )


def cell_legend() -> Markup:
    """The legend of the colours of cellmaps."""
    colours = {
        "too high": HIGH_COLOUR,
        "too low": LOW_COLOUR,
        "some of each": BOTH_COLOUR,
        "as the model says": ORDINARY_COLOUR,
    }
    fills = {name: "rgb({},{},{})".format(*rgb) for name, rgb in colours.items()}
    fills["missing"] = "url(#hatch)"
    entries = [
        element(
            "span",
            element(
                "svg",
                element("rect", class_="cell", x=7, y=2, width=8, height=8, fill=fill),
                viewBox="0 0 22 12",
                class_="key",
            ),
            name,
        )
        for name, fill in fills.items()
    ]
    return element("p", *entries, class_="legend")


# Slices


def slices(report: ReportData, slabs: dict[str, tuple[int, int]]) -> Markup:
    """A figure for each slab, and a menu to choose one."""
    figures = [_slab_figure(report, name, mode, k) for name, (mode, k) in slabs.items()]
    groups = []
    if len(report.fit.shape) == 2:
        figures = [_slice_figure(report, "slab-all", "All of it", {}), *figures]
        groups = [element("option", "all of it", value="slab-all")]
    for mode, name in enumerate(report.fit.modes):
        mode_slabs = {key: k for key, (n, k) in slabs.items() if n == mode}
        options = [
            element("option", _slab_name(report, mode, k), value=key)
            for key, k in mode_slabs.items()
        ]
        groups.append(element("optgroup", *options, label=label(name)))
    choice = element(
        "p",
        element("label", "Slice to look at: ", for_="slab"),
        element("select", *groups, id="slab"),
        class_="choice js",
    )
    return join([choice, element("div", *figures, id="slabs")])


def _slab_name(report: ReportData, mode: int, k: int) -> str:
    index = Index.of(report.fit, mode, MAX_CURVE_POINTS)
    share = float(report.outliers.slabs[mode][k])
    return f"{label(index.name)} {index.text(k)}: {percent(share)} flagged"


def _slab_figure(report: ReportData, name: str, mode: int, k: int) -> Markup:
    return _slice_figure(report, name, _slab_name(report, mode, k), report.fixed_indices(mode, k))


def _slice_figure(report: ReportData, name: str, title: str, fixed: dict[int, int]) -> Markup:
    """A figure of data, model and residual where some modes are fixed."""
    slice_ = report.slice_of(fixed)
    free_modes = [n for n in range(len(report.fit.shape)) if n not in fixed]
    fixed_text = ", ".join(
        f"{label(report.fit.modes[n])} {Index.of(report.fit, n, MAX_CURVE_POINTS).text(i)}"
        for n, i in fixed.items()
    )
    draw = _slice_curves if len(free_modes) == 1 else _slice_images
    panels, note = draw(report, name, free_modes, slice_, fixed_text and f" at {fixed_text}")
    position_text = f"Shown: {fixed_text}. " if len(fixed) > 1 else ""
    return figure(
        join([element("h4", title), element("div", *panels, class_="panels three")]),
        join([position_text, note, _worst_entries(report, free_modes, slice_)]),
        id=name,
        class_="slab",
    )


def _slice_curves(
    report: ReportData, name: str, free_modes: Sequence[int], slice_: Slice, position: str
) -> tuple[list[Markup], str]:
    """Data, model and residual of a row or column of a matrix as curves."""
    index = Index.of(report.fit, free_modes[0], MAX_CURVE_POINTS)
    panels = [
        plot_along_mode(
            index,
            values,
            limits,
            group=name,
            name=title,
            size=(330, 200),
            alt=f"{title.capitalize()}{position}, along {index.name}.",
        )
        for title, values, limits in slice_.panels
    ]
    return panels, ""


def _slice_images(
    report: ReportData, name: str, free_modes: Sequence[int], slice_: Slice, position: str
) -> tuple[list[Markup], str]:
    """Data, model and residual as images."""
    rows, columns = (Index.of(report.fit, n, MAX_IMAGE_CELLS) for n in free_modes)
    steps = math.ceil(rows.step / slice_.stride), math.ceil(columns.step / slice_.stride)
    ax, panels = image_axes(rows, columns), []
    for title, values, limits in slice_.panels:
        is_residual = title == "residual"
        blocks = (block_extremes if is_residual else block_means)(values, steps)
        panels.append(
            image(
                ax,
                _pad_levels(value_levels(blocks, limits), rows, columns),
                "diverging" if is_residual else "cividis",
                rows,
                columns,
                kind="value",
                group=name,
                limits=limits,
                title=title,
                alt=f"{title.capitalize()}{position}: {rows.name} by {columns.name}.",
            )
        )
    note = ""
    if steps != (1, 1):
        note = (
            f"Cells are blocks of {steps[0]} by {steps[1]}: of data and model the mean, of "
            "residuals the one furthest from zero. "
        )
    if slice_.stride > 1:
        note += f"Of this large slice every {slice_.stride}th row and column is shown. "
    return panels, note


def _pad_levels(levels: np.ndarray, rows: Index, columns: Index) -> np.ndarray:
    """Levels cut or padded with missing cells to the number of blocks of rows and columns."""
    padded = np.zeros((rows.count, columns.count), dtype=np.uint8)
    cropped = levels[: rows.count, : columns.count]
    padded[: cropped.shape[0], : cropped.shape[1]] = cropped
    return padded


def _worst_entries(report: ReportData, free_modes: Sequence[int], slice_: Slice) -> Markup:
    """A table of the flagged entries of a slice that are furthest from the model."""
    magnitudes = np.abs(np.nan_to_num(slice_.scores)).ravel()
    flagged_count = int(np.count_nonzero(magnitudes > report.outliers.threshold))
    if not flagged_count:
        return element("span", "Nothing is flagged here.")
    order = np.argsort(-magnitudes, kind="stable")[: min(MAX_LISTED_ENTRIES, flagged_count)]
    indices = [Index.of(report.fit, n, MAX_CURVE_POINTS) for n in free_modes]

    def row(flat: int) -> list[Any]:
        position = np.unravel_index(flat, slice_.scores.shape)
        texts = [i.text(int(k) * slice_.stride) for i, k in zip(indices, position, strict=True)]
        return [
            *texts,
            *(number(float(v[position]), 4) for v in (slice_.data, slice_.model)),
            number(float(slice_.scores[position]), 3),
        ]

    head = [*(index.name for index in indices), "data", "model", "residual / noise"]
    text_columns = range(len(indices))
    return element(
        "details",
        element(
            "summary",
            f"{count_text(flagged_count, 'entry', 'entries')} flagged in this slice; "
            "those furthest from the model",
        ),
        table(head, [row(int(flat)) for flat in order], text_columns=tuple(text_columns)),
    )
