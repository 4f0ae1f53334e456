"""Images of cells: at most 255 levels and one for missing cells, as PNG files in the page.

The script of the page reads the levels back, so that values need not be there twice.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from robustcp.plot.colours import diverging
from robustcp.plot.ticks import is_ordered
from robustcp.report.drawing import Frame, Index, picture, room_for
from robustcp.report.markup import Markup, element, joined, number

#: Levels of values; level 0 is missing.
LEVELS = 255
#: Levels of the share of entries that are too high, and of those that are too low.
STEPS = 15
#: Colours of maps of cells: nothing flagged, all too high, all too low, half of each.
PALE, HIGH, LOW, BOTH = (255, 252, 230), (224, 60, 38), (10, 31, 92), (96, 32, 70)


@cache
def palette(name: str) -> np.ndarray:
    """The colours of the levels 1 to 255."""
    if name == "cells":
        return _of_cells()
    import matplotlib

    colours = diverging() if name == "diverging" else matplotlib.colormaps[name]
    rgb = np.asarray(colours(np.linspace(0, 1, LEVELS)))[:, :3]
    return np.round(255 * rgb).astype(np.uint8)


def _of_cells() -> np.ndarray:
    """Colours by the root of two shares: of entries that are too high, and too low."""
    high, low = np.divmod(np.arange(STEPS * STEPS), STEPS)
    a, b = high[:, None] / (STEPS - 1), low[:, None] / (STEPS - 1)
    both = np.minimum(a, b)
    pale = np.maximum(1 - np.maximum(a, b), 0.0)
    parts = (pale, PALE), (a - both, HIGH), (b - both, LOW), (both, BOTH)
    rgb = sum(np.asarray(weight) * np.array(colour) for weight, colour in parts)
    found = np.zeros((LEVELS, 3), dtype=np.uint8)
    found[: STEPS * STEPS] = np.round(rgb)
    return found


@dataclass(frozen=True)
class Levels:
    """Values from low to high as levels from 1 to 255; 0 is missing."""

    low: float
    high: float

    def of(self, values: np.ndarray) -> np.ndarray:
        """The level of each value; those outside have the first or the last."""
        span = (self.high - self.low) or 1.0
        share = np.clip((values - self.low) / span, 0, 1)
        found = 1 + np.round((LEVELS - 1) * np.nan_to_num(share))
        return np.where(np.isnan(values), 0, found).astype(np.uint8)


def share_levels(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """The level of each pair of shares, NaN where there are none."""
    a, b = (np.round((STEPS - 1) * np.sqrt(np.nan_to_num(part))) for part in (high, low))
    return np.where(np.isnan(high), 0, 1 + STEPS * a + b).astype(np.uint8)


def png(levels: np.ndarray, colours: np.ndarray) -> bytes:
    """A PNG file with a palette; level 0 is transparent.

    >>> png(np.zeros((2, 3), np.uint8), np.zeros((255, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = levels.shape
    rows = np.zeros((height, width + 1), dtype=np.uint8)  # each begins with 0: no filter
    rows[:, 1:] = levels
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", head), (b"PLTE", b"\0\0\0" + colours.tobytes()), (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""),
    )  # fmt: skip
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def as_uri(levels: np.ndarray, colours: np.ndarray) -> str:
    """An image as an address that holds all of it."""
    return "data:image/png;base64," + base64.b64encode(png(levels, colours)).decode()


def means(values: np.ndarray, steps: tuple[int, int]) -> np.ndarray:
    """The mean of what is known in each block; NaN where nothing is.

    >>> means(np.array([[1.0, 3.0, np.nan], [5.0, 7.0, np.nan]]), (2, 2))
    array([[ 4., nan]])
    """
    known = ~np.isnan(values)
    total, count = (
        _reduced(np.add, part, steps) for part in (np.where(known, values, 0.0), known * 1.0)
    )
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def extremes(values: np.ndarray, steps: tuple[int, int]) -> np.ndarray:
    """Of each block the value that is furthest from zero.

    >>> extremes(np.array([[1.0, -3.0, np.nan], [2.0, np.nan, 0.5]]), (2, 2))
    array([[-3. ,  0.5]])
    """
    high, low = _reduced(np.fmax, values, steps), _reduced(np.fmin, values, steps)
    return np.where(np.abs(high) >= np.abs(low), high, low)


def _reduced(by: Any, values: np.ndarray, steps: tuple[int, int]) -> np.ndarray:
    rows = by.reduceat(values, np.arange(0, values.shape[0], steps[0]), axis=0)
    return np.asarray(by.reduceat(rows, np.arange(0, values.shape[1], steps[1]), axis=1))


def image(
    levels: np.ndarray, colours: str, rows: Index, columns: Index, *, alt: str, group: str,
    kind: str, scale: Levels | None = None, title: str = "", **data: Any,
) -> Markup:  # fmt: skip
    """An image with the labels of its rows and columns, and a bar of its colours."""
    upward = rows.labels is not None and is_ordered(rows.labels)
    down = rows.down(1000.0 / 6)
    left = min(max(46.0, room_for(down) + 20), 126.0)
    frame = Frame(340, 250, left=left, right=8, top=26, bottom=38)
    y_ticks = [(frame.h - at if upward else at, text) for at, text in rows.down(frame.h)]
    shown = element(
        "image", href=as_uri(levels[::-1] if upward else levels, palette(colours)), x=0, y=0,
        width=f"{frame.w:.1f}", height=f"{frame.h:.1f}", preserveAspectRatio="none",
    )  # fmt: skip
    missing = element("rect", class_="missing", width=f"{frame.w:.1f}", height=f"{frame.h:.1f}")
    if scale is not None:
        data |= {"data_from": f"{scale.low:.6g}", "data_to": f"{scale.high:.6g}"}
    return picture(
        frame, joined([missing, shown]), x=columns.across(frame.w), y=y_ticks,
        names=(columns.name, rows.name), alt=alt, kind="cells",
        over=_head(frame, title, colours, scale), data_rows=rows.key, data_columns=columns.key,
        data_group=group, data_kind=kind, data_up="1" if upward else None, **data,
    )  # fmt: skip


def _head(frame: Frame, title: str, colours: str, scale: Levels | None) -> Markup:
    """The title, and what the colours mean."""
    name = element("text", title, class_="title", x=frame.left, y=16)
    if scale is None:
        return name
    width, right = 70.0, frame.left + frame.w
    high, low = number(scale.high, 3), number(scale.low, 3)
    bar = right - 6.0 * len(high) - 5 - width
    return joined([
        name,
        element("rect", class_="bar-frame", x=f"{bar:.1f}", y=7, width=width, height=9,
                fill=f"url(#{colours})"),
        element("text", high, class_="end", x=f"{right:.1f}", y=16),
        element("text", low, class_="end", x=f"{bar - 4:.1f}", y=16),
    ])  # fmt: skip


def definitions() -> Markup:
    """Gradients and patterns that pictures refer to."""
    gradients = [
        element(
            "linearGradient",
            *(element("stop", offset=f"{k / 16:.4g}", stop_color="#{:02x}{:02x}{:02x}".format(
                *palette(name)[round(k / 16 * (LEVELS - 1))])) for k in range(17)),
            id=name,
        )
        for name in ("cividis", "diverging")
    ]  # fmt: skip
    hatch = element(
        "pattern",
        element("rect", width=6, height=6, class_="hatch-ground"),
        element("path", d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5", class_="hatch"),
        id="hatch", width=6, height=6, patternUnits="userSpaceOnUse",
    )  # fmt: skip
    return element("svg", element("defs", *gradients, hatch), width=0, height=0, class_="defs",
                   aria_hidden="true")  # fmt: skip


def common_limits(data: np.ndarray, model: np.ndarray) -> Levels:
    """Levels for all of the model and the data between their 1% and 99% quantiles."""
    both = model[np.isfinite(model)]
    known = data[np.isfinite(data)]
    if known.size:
        both = np.concatenate([both, np.quantile(known, [0.01, 0.99])])
    low, high = (float(both.min()), float(both.max())) if both.size else (0.0, 1.0)
    return Levels(low, high) if high > low else Levels(low - 0.5, high + 0.5)


def symmetric_limits(residual: np.ndarray) -> Levels:
    """Levels about zero that leave out the largest 1%."""
    known = np.abs(residual[np.isfinite(residual)])
    most = (float(np.quantile(known, 0.99)) or float(known.max()) or 1.0) if known.size else 1.0
    return Levels(-most, most) if math.isfinite(most) else Levels(-1.0, 1.0)
