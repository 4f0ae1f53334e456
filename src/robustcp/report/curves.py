"""Curves, bars and points along the indices of a mode, or sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robustcp.plot.slicing import finite
from robustcp.plot.ticks import FEW, is_monotonic
from robustcp.report.drawing import (
    Frame,
    Index,
    horizontal,
    path,
    picture,
    room_for,
    ticks_of_numbers,
)
from robustcp.report.markup import Markup, element, joined


@dataclass(frozen=True)
class Scale:
    """Values from low to high along a height, upwards."""

    low: float
    high: float
    height: float

    def __call__(self, value: Any) -> Any:
        span = (self.high - self.low) or 1.0
        return self.height * (1 - (np.clip(value, self.low, self.high) - self.low) / span)


def limits_with_zero(*values: np.ndarray) -> tuple[float, float]:
    """Limits with some margin that hold zero and all that is finite."""
    known = np.concatenate([[0.0], *(finite(np.asarray(part)) for part in values)])
    low, high = float(known.min()), float(known.max())
    margin = 0.06 * ((high - low) or 1.0)
    return low - margin * (1.0 if low < 0 else 0.6), high + margin


def column(
    index: Index, values: np.ndarray, limits: tuple[float, float], *, alt: str, group: str,
    interval: tuple[np.ndarray, np.ndarray] | None = None, frame: Frame | None = None,
    names: tuple[str, str] = ("", ""), line: float | None = None, unit: str = "",
    targets: list[str | None] | None = None, bars: bool | None = None,
) -> Markup:  # fmt: skip
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
    y_ticks = ticks_of_numbers(*limits, 100.0, up=True)
    frame = frame or Frame(330, 150, left=max(38.0, room_for(y_ticks) + 4 + 14 * bool(names[1])))
    scale = Scale(*limits, frame.h)
    low, high, far = _parts(values, index.step)
    place = (np.arange(index.count) + 0.5) / index.count * frame.w
    drawn = [horizontal(float(scale(0.0)), frame.w, "zero")] if limits[0] <= 0 <= limits[1] else []
    bars = _as_bars(index) if bars is None else bars
    shape = _rods if bars else _line
    drawn.append(shape(place, scale(low), scale(high), float(scale(0.0)), frame.w / index.count))
    if line is not None:
        drawn.append(horizontal(float(scale(line)), frame.w, "limit"))
    ends = {}
    if interval is not None:
        low_ends, high_ends = (_parts(end, index.step)[k] for k, end in enumerate(interval))
        drawn.append(_band(place, scale(low_ends), scale(high_ends), bars))
        ends = {"data_low": _listed(low_ends), "data_high": _listed(high_ends)}
    links = None if targets is None else " ".join(each or "-" for each in targets)
    return picture(
        frame, joined(drawn), x=index.across(frame.w),
        y=ticks_of_numbers(*limits, frame.h, up=True), names=(names[0] or index.name, names[1]),
        alt=alt, kind="along", data_axis=index.key, data_group=group, data_unit=unit or None,
        data_y=_listed(far), data_targets=links,
        data_scale=f"{limits[0]:.6g},{limits[1]:.6g}", **ends,
    )  # fmt: skip


def _as_bars(index: Index) -> bool:
    """Whether values are drawn as bars: labels that are names, or few indices."""
    return index.size <= FEW if index.labels is None else not is_monotonic(index.labels)


def _parts(values: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least and largest value of each part, and that which is furthest from zero."""
    at = np.arange(0, len(values), step)
    low = np.fmin.reduceat(values, at)
    high = np.fmax.reduceat(values, at)
    return low, high, np.where(np.abs(high) >= np.abs(low), high, low)


def _listed(values: np.ndarray) -> str:
    return ",".join(f"{v:.4g}" for v in values)


def _line(x: np.ndarray, low: np.ndarray, high: np.ndarray, zero: float, width: float) -> Markup:
    del zero, width
    both = [(a, b) if a != b else (a,) for a, b in zip(low, high, strict=True)]
    points = [(at, y) for at, ends in zip(x, both, strict=True) for y in ends]
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, y in points:
        if np.isfinite(y):
            pieces[-1].append((at, y))
        elif pieces[-1]:
            pieces.append([])
    dots = "".join(f"M{at:.1f} {y:.1f}h0" for at, y in points if np.isfinite(y))
    few = None if len(x) > 3 * FEW else _d("dots", dots)
    return joined([*(path(piece, class_="line") for piece in pieces if piece), few])


def _rods(x: np.ndarray, low: np.ndarray, high: np.ndarray, zero: float, width: float) -> Markup:
    """Bars from zero, as one path of strokes."""
    tops = [(at, y) for at, ends in zip(x, zip(low, high, strict=True), strict=True)
            for y in dict.fromkeys(ends) if np.isfinite(y)]  # fmt: skip
    half = 0.4 * width
    d = "".join(f"M{at - half:.2f} {zero:.1f}V{y:.1f}h{2 * half:.2f}V{zero:.1f}z" for at, y in tops)
    return _d("bar", d)


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray, bars: bool) -> Markup:
    known = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[known], low[known], high[known]
    if bars:
        ends = zip(x, low, high, strict=True)
        return _d("whisker", "".join(f"M{at:.1f} {a:.1f}V{b:.1f}" for at, a, b in ends))
    around = [*zip(x, low, strict=True), *list(zip(x, high, strict=True))[::-1]]
    return path(around, class_="band")


def _d(class_: str, d: str) -> Markup:
    return element("path", class_=class_, d=d or None)
