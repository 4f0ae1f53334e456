"""The distance of each sample from the other samples and from the model."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp._util.text import label_text, shorten
from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES
from robustcp.plot.labelling import name_points
from robustcp.plot.ticks import set_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.legend import Legend
    from matplotlib.text import Annotation

    from robustcp.results.distances import Distances

#: Each kind of sample with its corner, if any, (colour, marker) and size; distinct in greyscale.
KIND_STYLES: dict[str, tuple[tuple[float, float] | None, tuple[str, str], float]] = {
    "regular": ((0, 0), ("0.8", "o"), 24),
    "good leverage": ((1, 0), (STYLES[1][0], "^"), 30),
    "orthogonal outlier": ((0, 1), (STYLES[0][0], "s"), 26),
    "bad leverage": ((1, 1), ("0.05", "X"), 36),
    "many bad entries": (None, ("0.62", "D"), 26),
}
#: An axis is logarithmic if the largest distance exceeds this multiple of its cut-off.
LOG_SCALE_RATIO = 4.0
#: The cut-offs lie between these shares of the axes, so that each corner has room for its name.
CUTOFF_RANGE = (0.25, 0.75)
#: Samples that move further than this have an arrow, in points.
MIN_ARROW_LENGTH = 12.0
#: Room is sought for this multiple of the largest number of names, the most outlying samples first.
CANDIDATES_PER_NAME = 4
#: The number of points on an arrow that names avoid.
POINTS_PER_ARROW = 12


def distance_map(
    distances: Distances,
    *,
    labels: Sequence[Any] | None = None,
    most: int = 25,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """The residual distance of each sample against its score distance.

    Samples left of and below the dashed cut-offs are regular. Those on the right are far from
    the others but described by the model (good leverage); those above are not described by it.
    An arrow leads from where a sample is with all its entries to where it is without the
    flagged ones, if it moves notably: bad entries let it go, a bad sample stays. Samples with far
    more bad entries than others, and a small residual without them, have a mark of their own.
    Outlying samples are named, the most outlying first, as far as there is room; one that is
    outlying only with its flagged entries is named at the beginning of its arrow. An axis is
    logarithmic where distances are far beyond the cut-off. Samples without distances (NaN) are left
    out.

    Parameters
    ----------
    distances : Distances
    labels : sequence, optional
        Names of the samples, in place of those of the mode; without any, their indices.
    most : int
        The largest number of samples that are named.
    ax : matplotlib Axes, optional
    figsize : (width, height) in inches, optional
        Names are placed for its present size.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((30, 12, 10), 2, eta=0.02, gamma=0.5, rng=0).data
    >>> robustcp.plot.distance_map(robustcp.cp(X, 2).distances(X, mode=0)).get_ylabel()
    'residual distance'
    """
    most = checks.whole_number("most", most, 0)
    names = _sample_names(distances, labels)
    after = np.stack([distances.score, distances.residual], axis=1).astype(np.float64)
    before = np.stack([distances.score_before, distances.residual_before], axis=1)
    cutoffs = float(distances.score_cutoff), float(distances.residual_cutoff)
    ax = axes_or_new(ax, figsize or (7, 5.2))
    is_finite = np.asarray(np.isfinite(after).all(axis=1))
    before = np.where(np.isfinite(before), before, after)
    for axis, column, cutoff in zip((ax.xaxis, ax.yaxis), (0, 1), cutoffs, strict=True):
        values = np.concatenate([after[is_finite, column], before[is_finite, column]])
        smallest = _set_scale(axis, values, cutoff)
        after[:, column] = np.maximum(after[:, column], smallest)
        before[:, column] = np.maximum(before[:, column], smallest)
    _draw_frame(ax, distances, cutoffs)
    quadrant_labels = _label_quadrants(ax)
    _draw_markers(ax, np.asarray(distances.kinds), after, is_finite)
    legend = _draw_legend(ax, distances, is_finite)
    figure = ax.figure.canvas.figure
    if figure.get_layout_engine() is not None:  # names are placed for the final layout
        figure.draw_without_rendering()
    moved = is_finite & _find_moved(ax, before, after)
    _draw_arrows(ax, before[moved], after[moved])
    occupied = [np.asarray(text.get_window_extent().extents) for text in quadrant_labels]
    unnamed_count = _name_outlying(
        ax, distances, names, (before, after), is_finite, moved, occupied, most
    )
    _complete_legend(legend, bool(moved.any()), unnamed_count)
    return ax


def _sample_names(distances: Distances, labels: Sequence[Any] | None) -> list[str]:
    size = len(distances.score)
    sample_labels = distances.labels if labels is None else list(labels)
    if sample_labels is None:
        return [str(k) for k in range(size)]
    if len(sample_labels) != size:
        raise ValueError(
            f"labels: must be one for each of the {size} samples, got {len(sample_labels)}"
        )
    return [shorten(label_text(label)) for label in sample_labels]


def _set_scale(axis: Axis, values: np.ndarray, cutoff: float) -> float:
    """Set the scale and the limits of an axis; returns the smallest value that can be drawn."""
    largest = float(max(values.max(initial=0.0), cutoff)) or 1.0
    set_limits = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    if cutoff <= 0 or largest <= LOG_SCALE_RATIO * cutoff:
        high = max(largest, cutoff / CUTOFF_RANGE[1])
        set_limits(-0.08 * high, 1.1 * high)
        return 0.0
    set_scale("log")
    smallest = max(float(values[values > 0].min()), cutoff / 100)
    low, middle, high = math.log10(min(smallest, cutoff)), math.log10(cutoff), math.log10(largest)
    low = min(low, middle - CUTOFF_RANGE[0] / (1 - CUTOFF_RANGE[0]) * (high - middle))
    high = max(high, middle + (1 - CUTOFF_RANGE[1]) / CUTOFF_RANGE[1] * (middle - low))
    margin = 0.08 * (high - low)
    set_limits(10 ** (low - margin), 10 ** (high + margin))
    set_log_ticks(axis)
    return 10**low


def _draw_frame(ax: Axes, distances: Distances, cutoffs: tuple[float, float]) -> None:
    """Draw the cut-offs, the names of the axes and the note."""
    ax.axvline(cutoffs[0], color="0.4", linestyle="--", linewidth=1, zorder=1)
    ax.axhline(cutoffs[1], color="0.4", linestyle="--", linewidth=1, zorder=1)
    ax.set_xlabel("score distance")
    ax.set_ylabel("residual distance")
    hide_top_and_right(ax)
    if distances.note:
        ax.annotate(
            textwrap.fill(distances.note, 90),
            (0, 0),
            (0, -36),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize="small",
            color="0.35",
        )


def _label_quadrants(ax: Axes) -> list[Annotation]:
    """Write the name of each quadrant into its corner."""
    texts = []
    for kind, (corner, _, _) in KIND_STYLES.items():
        if corner is None:
            continue
        x, y = corner
        offset = 4 * (1 - 2 * x), 3 * (1 - 2 * y)
        texts.append(
            ax.annotate(
                kind,
                (x, y),
                offset,
                xycoords="axes fraction",
                textcoords="offset points",
                ha="right" if x else "left",
                va="top" if y else "bottom",
                style="italic",
                fontsize="small",
                color="0.4",
                zorder=1.5,
            )
        )
    return texts


def _draw_markers(ax: Axes, kinds: np.ndarray, points: np.ndarray, is_finite: np.ndarray) -> None:
    for depth, (kind, (_, (colour, marker), size)) in enumerate(KIND_STYLES.items()):
        x, y = points[is_finite & (kinds == kind)].T
        ax.scatter(
            x,
            y,
            s=size,
            marker=marker,
            facecolor=colour,
            edgecolor="0.3" if depth == 0 else "w",
            linewidth=0.5,
            zorder=3 + depth / 10,
            label=kind,
        )


def _draw_legend(ax: Axes, distances: Distances, is_finite: np.ndarray) -> Legend:
    """Draw the legend: the kinds with their counts, the arrow, and room for one more line."""
    from matplotlib.lines import Line2D

    kinds = np.asarray(distances.kinds)[is_finite]
    handles, texts = ax.get_legend_handles_labels()
    labels = [f"{kind} ({np.count_nonzero(kinds == kind)})" for kind in texts]
    arrow = Line2D([], [], color="0.45", linewidth=0.9, marker=">", markersize=4, markevery=[1])
    arrow.set_data([0, 1], [0, 0])
    outlying = np.count_nonzero(kinds != "regular")
    blank = Line2D([], [], linestyle="none")
    return ax.legend(
        [*handles, arrow, blank],
        [*labels, "without flagged entries", " "],
        ncols=3,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        alignment="left",
        title_fontsize="medium",
        fontsize="small",
        columnspacing=1.2,
        title=f"{distances.name}: {outlying} of {kinds.size} are outlying",
    )


def _find_moved(ax: Axes, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """True for samples that move far enough for an arrow."""
    with np.errstate(invalid="ignore"):
        shift = ax.transData.transform(after) - ax.transData.transform(before)
        return np.asarray(np.hypot(*shift.T) > MIN_ARROW_LENGTH * ax.figure.dpi / 72)


def _draw_arrows(ax: Axes, begin: np.ndarray, end: np.ndarray) -> None:
    for tail, head in zip(begin, end, strict=True):
        ax.annotate(
            "",
            tuple(head),
            tuple(tail),
            zorder=2,
            arrowprops={
                "arrowstyle": "-|>,head_length=0.35,head_width=0.15",
                "color": "0.45",
                "linewidth": 0.8,
                "shrinkA": 0,
                "shrinkB": 3,
            },
        )
    ax.plot(*begin.T, ".", color="0.45", markersize=3, zorder=2)


def _name_outlying(
    ax: Axes,
    distances: Distances,
    names: Sequence[str],
    positions: tuple[np.ndarray, np.ndarray],
    is_finite: np.ndarray,
    moved: np.ndarray,
    occupied: Sequence[np.ndarray],
    max_names: int,
) -> int:
    """Name outlying samples; returns the number of those without room for a name."""
    before, after = positions
    outlying = is_finite & (np.asarray(distances.kinds) != "regular")
    was_outlying = moved & ~outlying & (np.asarray(distances.kinds_before) != "regular")
    points = np.where(was_outlying[:, None], before, after)
    cutoffs = np.array([distances.score_cutoff, distances.residual_cutoff], dtype=np.float64)
    relative_distance = (points / np.where(cutoffs > 0, cutoffs, 1.0)).max(axis=1)
    indices = np.flatnonzero(outlying | was_outlying)
    indices = indices[np.lexsort((-relative_distance[indices], was_outlying[indices]))]
    candidates = indices[: CANDIDATES_PER_NAME * max_names]
    markers = ax.transData.transform(after[is_finite])
    begin, end = (ax.transData.transform(position[moved]) for position in positions)
    fractions = np.linspace(0, 1, POINTS_PER_ARROW)[:, None, None]
    arrows = (begin + fractions * (end - begin)).reshape(-1, 2)
    name_texts = name_points(
        ax,
        points[candidates],
        [names[k] for k in candidates.tolist()],
        max_names=max_names,
        markers=markers,
        line_points=arrows,
        occupied=occupied,
    )
    return len(indices) - len(name_texts)


def _complete_legend(legend: Legend, any_moved: bool, unnamed_count: int) -> None:
    """Hide the arrow if no sample moved, and write the number of samples without a name."""
    *_, arrow, remaining = legend.get_texts()
    if not any_moved:
        arrow.set_text(" ")
        for line in legend.get_lines():
            line.set_visible(False)
    if unnamed_count:
        remaining.set_text(f"and {unnamed_count} other{'s' * (unnamed_count != 1)} without a name")
