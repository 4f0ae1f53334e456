"""Lines and bars along the indices of a mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from robustcp.plot.colours import STYLES
from robustcp.plot.ticks import FEW_INDICES, is_monotonic
from robustcp.report.indices import Index, text_room
from robustcp.report.markup import Markup
from robustcp.report.pictures import (
    MIN_TICK_DISTANCE,
    new_axes,
    picture,
    set_left_margin,
    set_number_ticks,
    set_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE = STYLES[1][0]


def plot_along_mode(
    index: Index,
    values: np.ndarray,
    limits: tuple[float, float],
    *,
    alt: str,
    group: str,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
    size: tuple[float, float] = (330, 150),
    name: str = "",
    line: float | None = None,
    unit: str = "",
    targets: list[str | None] | None = None,
    bars: bool | None = None,
) -> Markup:
    """A picture of values along a mode: a line if its labels are ordered, otherwise bars.

    A block of indices is drawn from its smallest to its largest value; the value at the pointer
    is the one furthest from zero.

    Parameters
    ----------
    group : str
        Pictures of a group are zoomed together.
    interval : pair of arrays, optional
        Ends of an interval for each value.
    size : (width, height)
        Of the picture, in pixels.
    name : str
        The name of the values.
    line : float, optional
        A value that is marked by a dotted line.
    targets : list, optional
        For each block, the id of what a click on it leads to.
    bars : bool, optional
        Whether there are bars, whatever the labels.
    """
    ax = new_axes(*size)
    ax.set(ylim=limits, xlim=(0, index.count), xlabel=index.name, ylabel=name)
    set_number_ticks(ax.yaxis, MIN_TICK_DISTANCE)
    y_texts = ax.yaxis.get_major_formatter().format_ticks(ax.yaxis.get_majorticklocs().tolist())
    left = max(38.0, text_room(y_texts) + 4 + 14 * bool(name))
    set_left_margin(ax, left)
    scale = index.count / ax.bbox.width
    ticks = index.ticks_across(ax.bbox.width)
    set_ticks(ax.xaxis, [(position * scale, text) for position, text in ticks])
    low, high = (np.clip(end, *limits) for end in block_ends(values, index.step))
    x = np.arange(index.count) + 0.5
    bars = _uses_bars(index) if bars is None else bars
    if limits[0] <= 0 <= limits[1]:
        ax.axhline(0, color="0.4", linewidth=0.8)
    (_draw_bars if bars else _draw_line)(ax, x, low, high)
    if line is not None:
        ax.axhline(line, color="0.1", linewidth=1, linestyle=(0, (2, 3)))
    interval_data: dict[str, Any] = {}
    if interval is not None:
        low_ends, high_ends = (_furthest_from_zero(*block_ends(e, index.step)) for e in interval)
        ends = np.clip(low_ends, *limits), np.clip(high_ends, *limits)
        if bars:
            _draw_strokes(ax, x, *ends, color="0.1", linewidth=1.3)
        else:
            ax.fill_between(x, *ends, color=BLUE, alpha=0.25, linewidth=0, gid="band")
        interval_data = {"data_low": _join_numbers(low_ends), "data_high": _join_numbers(high_ends)}
    furthest = _furthest_from_zero(*block_ends(values, index.step))
    links = None if targets is None else " ".join(target or "-" for target in targets)
    return picture(
        ax,
        alt=alt,
        kind="along",
        data_axis=index.key,
        data_group=group,
        data_unit=unit or None,
        data_y=_join_numbers(furthest),
        data_targets=links,
        data_scale=f"{limits[0]:.6g},{limits[1]:.6g}",
        **interval_data,
    )


def _uses_bars(index: Index) -> bool:
    """Whether values are drawn as bars: if labels are not ordered, or indices are few."""
    return index.size <= FEW_INDICES if index.labels is None else not is_monotonic(index.labels)


def block_ends(values: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest value of each block; NaN if all its values are missing."""
    starts = np.arange(0, len(values), step)
    return np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)


def _furthest_from_zero(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.where(np.abs(high) >= np.abs(low), high, low)


def _join_numbers(values: np.ndarray) -> str:
    return ",".join(f"{v:.4g}" for v in values)


def _draw_line(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """A line through the ends of all blocks, with dots where there are few."""
    ends = np.stack([low, high], axis=1)
    drawn = np.stack([np.ones(len(x), bool), low != high], axis=1)
    ax.plot(np.repeat(x, 2)[drawn.ravel()], ends[drawn], color=BLUE, linewidth=1.5)
    if len(x) <= 3 * FEW_INDICES:
        _draw_strokes(ax, x, high, high, color=BLUE, linewidth=5, solid_capstyle="round")


def _draw_bars(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Bars from zero to the ends of all blocks, as one patch."""
    bottom, top = np.minimum(np.nan_to_num(low), 0.0), np.maximum(np.nan_to_num(high), 0.0)
    left, right = x - 0.4, x + 0.4
    corners = np.stack([left, bottom, left, top, right, top, right, bottom], axis=1)
    boxes = Path.make_compound_path_from_polys(corners.reshape(-1, 4, 2))
    ax.add_patch(PathPatch(boxes, facecolor=BLUE, linewidth=0))


def _draw_strokes(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
    """A vertical stroke at each position, which keeps its width when the picture is zoomed."""
    gap = np.full(len(x), np.nan)
    ax.plot(np.repeat(x, 3), np.stack([low, high, gap], axis=1).ravel(), **style)
