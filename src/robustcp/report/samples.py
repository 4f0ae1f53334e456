"""The distance map of samples, and a table of the most outlying."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from robustcp._util.text import shorten
from robustcp.plot.distances import distance_map as draw_distance_map
from robustcp.report.markup import Markup, element, join, label, number, percent, table
from robustcp.report.pictures import legend, new_axes, picture
from robustcp.results.distances import (
    BAD_LEVERAGE,
    GOOD_LEVERAGE,
    MANY_BAD_ENTRIES,
    ORTHOGONAL,
    REGULAR,
    Distances,
)

#: The class of the marks of each kind of sample.
KIND_CLASSES = {
    REGULAR: "mark regular",
    GOOD_LEVERAGE: "mark good",
    ORTHOGONAL: "mark outside",
    BAD_LEVERAGE: "mark bad",
    MANY_BAD_ENTRIES: "mark many",
}
#: The largest numbers of samples that are drawn and named, and of table rows in view and in all.
MAX_DRAWN_SAMPLES, MAX_NAMED_SAMPLES, ROWS_IN_VIEW, MAX_ROWS = 2000, 14, 10, 200
#: The largest number of arrows, which show how samples move without their flagged entries.
MAX_ARROWS = 150


def distance_map(distances: Distances) -> Markup:
    """A picture of residual against score distances, with a tooltip for each sample."""
    indices = _select_drawn(distances)
    fields = ("score", "residual", "score_before", "residual_before", "shares")
    values: dict[str, Any] = {name: getattr(distances, name)[indices] for name in fields}
    no_arrow = np.argsort(-_relative_distance(distances)[indices], kind="stable")[MAX_ARROWS:]
    values["score_before"][no_arrow] = values["residual_before"][no_arrow] = np.nan
    names = [_sample_name(distances, k) for k in indices]
    drawn = replace(distances, labels=None, note="", **values)
    ax = new_axes(440, 360, left=60, right=12, bottom=40)
    names_in_map = [shorten(name, 18) for name in names]
    draw_distance_map(drawn, labels=names_in_map, most=MAX_NAMED_SAMPLES, ax=ax)
    tips = {}
    for marks, (kind, class_) in zip(ax.collections, KIND_CLASSES.items(), strict=True):
        marks.set_gid(class_)
        tips[class_] = [
            _tip(distances, indices[k], names[k]) for k in np.flatnonzero(drawn.kinds == kind)
        ]
    handles, kinds = ax.get_legend_handles_labels()
    present = [k for k, kind in enumerate(kinds) if (distances.kinds == kind).any()]
    return join(
        [
            legend([handles[k] for k in present], [kinds[k] for k in present]),
            picture(
                ax,
                tips=tips,
                alt=f"Residual distance against score distance: {distances.words}.",
                kind="points",
            ),
        ]
    )


def _select_drawn(distances: Distances) -> np.ndarray:
    """The indices of samples to draw: outlying ones, and regular ones up to a limit."""
    is_known = np.isfinite(distances.score) & np.isfinite(distances.residual)
    is_outlying = distances.kinds != REGULAR
    outlying = np.flatnonzero(is_known & is_outlying)
    regular = np.flatnonzero(is_known & ~is_outlying)
    most_outlying = np.argsort(_relative_distance(distances)[outlying])[-MAX_DRAWN_SAMPLES:]
    max_regular = max(MAX_DRAWN_SAMPLES - len(outlying), MAX_DRAWN_SAMPLES // 4)
    step = max(1, math.ceil(len(regular) / max_regular))
    return np.concatenate([regular[::step], outlying[most_outlying]])


def _relative_distance(distances: Distances) -> np.ndarray:
    """The distance of each sample in units of the cut-offs."""
    ratios = (
        distances.score / (distances.score_cutoff or 1),
        distances.residual / (distances.residual_cutoff or 1),
    )
    return np.nan_to_num(np.maximum(*ratios), nan=-1.0, posinf=1e300)


def _sample_name(distances: Distances, k: int) -> str:
    return f"[{k}]" if distances.labels is None else label(distances.labels[k])


def _tip(distances: Distances, k: int, name: str) -> str:
    """The tooltip of a sample."""
    return (
        f"{label(distances.name)} {name}: {distances.kinds[k]}\n"
        f"score {number(distances.score[k], 3)}, residual {number(distances.residual[k], 3)}\n"
        f"{percent(float(distances.shares[k]))} of its entries flagged"
    )


def distance_table(distances: Distances) -> Markup:
    """A table of the most outlying samples."""
    rows = [row for row in distances.rows() if row["kind"] != REGULAR or row["only_cells"]]
    table_rows = [
        (
            _sample_name(distances, row["index"]),
            row["kind"] + (", bad entries only" if row["only_cells"] else ""),
            _change_text(row["score_before"], row["score"]),
            _change_text(row["residual_before"], row["residual"]),
            percent(row["share"]),
        )
        for row in rows[:MAX_ROWS]
    ]
    head = (label(distances.name), "kind", "score distance", "residual distance", "entries flagged")
    remaining_rows = None
    if len(rows) > ROWS_IN_VIEW:
        remaining_text = f"{len(rows) - ROWS_IN_VIEW:,} more" + (
            f", {MAX_ROWS - ROWS_IN_VIEW} shown" if len(rows) > MAX_ROWS else ""
        )
        remaining_rows = element(
            "details",
            element("summary", remaining_text),
            table(head, table_rows[ROWS_IN_VIEW:], text_columns=(0, 1)),
        )
    return join([table(head, table_rows[:ROWS_IN_VIEW], text_columns=(0, 1)), remaining_rows])


def _change_text(before: float, after: float) -> str:
    """A distance with all entries and without the flagged ones, where that differs."""
    texts = number(before, 3), number(after, 3)
    return texts[1] if texts[0] == texts[1] else f"{texts[0]} → {texts[1]}"
