"""Curves, bars and points along the indices of a mode, or sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robustcp.plot.slicing import finite_values
from robustcp.plot.ticks import FEW_INDICES, is_monotonic
from robustcp.report.drawing import (
    Frame,
    Index,
    horizontal_line,
    number_ticks,
    path,
    picture,
    tick_label_width,
)
from robustcp.report.markup import Markup, element, join


@dataclass(frozen=True)
class VerticalScale:
    """Values from low to high along a height, upwards."""

    low: float
    high: float
    height: float

    def __call__(self, value: Any) -> Any:
        span = (self.high - self.low) or 1.0
        return self.height * (1 - (np.clip(value, self.low, self.high) - self.low) / span)


def limits_with_zero(*values: np.ndarray) -> tuple[float, float]:
    """Limits with some margin that hold zero and all that is finite."""
    pooled = np.concatenate([[0.0], *(finite_values(np.asarray(array)) for array in values)])
    low, high = float(pooled.min()), float(pooled.max())
    margin = 0.06 * ((high - low) or 1.0)
    return low - margin * (1.0 if low < 0 else 0.6), high + margin


def plot_along_mode(
    index: Index,
    values: np.ndarray,
    limits: tuple[float, float],
    *,
    alt: str,
    group: str,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
    frame: Frame | None = None,
    axis_names: tuple[str, str] = ("", ""),
    line: float | None = None,
    unit: str = "",
    targets: list[str | None] | None = None,
    bars: bool | None = None,
) -> Markup:
    """Values along a mode: a line where its order means something, otherwise bars.

    Where there are many indices, each part of them is drawn from its least to its largest value,
    and stands for the one that is furthest from zero.

    Parameters
    ----------
    interval : pair of arrays, optional
        Ends of an interval for each value.
    line : float, optional
        A value that is marked by a dotted line.
    targets : list, optional
        For each part, the id of what a click on it leads to.
    bars : bool, optional
        Whether there are bars, whatever the labels.
    """
    y_ticks = number_ticks(*limits, 100.0, upwards=True)
    frame = frame or Frame(
        330, 150, left=max(38.0, tick_label_width(y_ticks) + 4 + 14 * bool(axis_names[1]))
    )
    scale = VerticalScale(*limits, frame.h)
    low, high, extremes = _block_extremes(values, index.step)
    positions = (np.arange(index.count) + 0.5) / index.count * frame.w
    marks = (
        [horizontal_line(float(scale(0.0)), frame.w, "zero")] if limits[0] <= 0 <= limits[1] else []
    )
    bars = _uses_bars(index) if bars is None else bars
    draw = _bar_path if bars else _line_path
    marks.append(draw(positions, scale(low), scale(high), float(scale(0.0)), frame.w / index.count))
    if line is not None:
        marks.append(horizontal_line(float(scale(line)), frame.w, "limit"))
    interval_data = {}
    if interval is not None:
        low_ends, high_ends = (
            _block_extremes(end, index.step)[k] for k, end in enumerate(interval)
        )
        marks.append(_interval_path(positions, scale(low_ends), scale(high_ends), bars))
        interval_data = {"data_low": _join_numbers(low_ends), "data_high": _join_numbers(high_ends)}
    links = None if targets is None else " ".join(target or "-" for target in targets)
    return picture(
        frame,
        join(marks),
        x=index.ticks_across(frame.w),
        y=number_ticks(*limits, frame.h, upwards=True),
        axis_names=(axis_names[0] or index.name, axis_names[1]),
        alt=alt,
        kind="along",
        data_axis=index.key,
        data_group=group,
        data_unit=unit or None,
        data_y=_join_numbers(extremes),
        data_targets=links,
        data_scale=f"{limits[0]:.6g},{limits[1]:.6g}",
        **interval_data,
    )


def _uses_bars(index: Index) -> bool:
    """Whether values are drawn as bars: labels that are names, or few indices."""
    return index.size <= FEW_INDICES if index.labels is None else not is_monotonic(index.labels)


def _block_extremes(values: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least and largest value of each part, and that which is furthest from zero."""
    starts = np.arange(0, len(values), step)
    low = np.fmin.reduceat(values, starts)
    high = np.fmax.reduceat(values, starts)
    return low, high, np.where(np.abs(high) >= np.abs(low), high, low)


def _join_numbers(values: np.ndarray) -> str:
    return ",".join(f"{v:.4g}" for v in values)


def _line_path(
    x: np.ndarray, low: np.ndarray, high: np.ndarray, zero: float, width: float
) -> Markup:
    del zero, width
    heights = [(a, b) if a != b else (a,) for a, b in zip(low, high, strict=True)]
    points = [(position, y) for position, ends in zip(x, heights, strict=True) for y in ends]
    pieces: list[list[tuple[float, float]]] = [[]]
    for position, y in points:
        if np.isfinite(y):
            pieces[-1].append((position, y))
        elif pieces[-1]:
            pieces.append([])
    dots = "".join(f"M{position:.1f} {y:.1f}h0" for position, y in points if np.isfinite(y))
    dot_path = None if len(x) > 3 * FEW_INDICES else _path_element("dots", dots)
    return join([*(path(piece, class_="line") for piece in pieces if piece), dot_path])


def _bar_path(
    x: np.ndarray, low: np.ndarray, high: np.ndarray, zero: float, width: float
) -> Markup:
    """Bars from zero, as one path of strokes."""
    tops = [
        (position, y)
        for position, ends in zip(x, zip(low, high, strict=True), strict=True)
        for y in dict.fromkeys(ends)
        if np.isfinite(y)
    ]
    half = 0.4 * width
    d = "".join(
        f"M{position - half:.2f} {zero:.1f}V{y:.1f}h{2 * half:.2f}V{zero:.1f}z"
        for position, y in tops
    )
    return _path_element("bar", d)


def _interval_path(x: np.ndarray, low: np.ndarray, high: np.ndarray, bars: bool) -> Markup:
    is_finite = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[is_finite], low[is_finite], high[is_finite]
    if bars:
        ends = zip(x, low, high, strict=True)
        return _path_element(
            "whisker", "".join(f"M{position:.1f} {a:.1f}V{b:.1f}" for position, a, b in ends)
        )
    outline = [*zip(x, low, strict=True), *list(zip(x, high, strict=True))[::-1]]
    return path(outline, class_="band")


def _path_element(class_: str, d: str) -> Markup:
    return element("path", class_=class_, d=d or None)
