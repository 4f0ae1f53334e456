"""Images of cells as embedded PNG files with 255 levels, and level 0 for missing cells.

The script of the page reads the levels back, so that values need not be there twice.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from PIL import Image

from robustcp.plot.colours import diverging_colormap
from robustcp.plot.ticks import is_ordered
from robustcp.report.indices import Index, text_room
from robustcp.report.markup import Markup, element, join, number
from robustcp.report.pictures import new_axes, picture, set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Levels of values; level 0 is missing.
N_LEVELS = 255
#: Levels of the share of entries that are too high, and of those that are too low.
N_SHARE_LEVELS = 15
#: Colours of maps of cells: nothing flagged, all too high, all too low, half of each.
ORDINARY_COLOUR, HIGH_COLOUR, LOW_COLOUR, BOTH_COLOUR = (
    (255, 252, 230),
    (224, 60, 38),
    (10, 31, 92),
    (96, 32, 70),
)
#: The width and height of a colour bar.
COLORBAR_SIZE = 70, 9


@cache
def palette(name: str) -> np.ndarray:
    """The colours of the levels 1 to 255."""
    if name == "cells":
        return _cell_palette()
    colours = diverging_colormap() if name == "diverging" else mpl.colormaps[name]
    rgb = np.asarray(colours(np.linspace(0, 1, N_LEVELS)))[:, :3]
    return np.round(255 * rgb).astype(np.uint8)


def _cell_palette() -> np.ndarray:
    """Colours by the square roots of two shares: of entries too high and of entries too low."""
    high, low = np.divmod(np.arange(N_SHARE_LEVELS * N_SHARE_LEVELS), N_SHARE_LEVELS)
    a, b = high[:, None] / (N_SHARE_LEVELS - 1), low[:, None] / (N_SHARE_LEVELS - 1)
    both = np.minimum(a, b)
    pale = np.maximum(1 - np.maximum(a, b), 0.0)
    mixture = (
        (pale, ORDINARY_COLOUR),
        (a - both, HIGH_COLOUR),
        (b - both, LOW_COLOUR),
        (both, BOTH_COLOUR),
    )
    rgb = sum(np.asarray(weight) * np.array(colour) for weight, colour in mixture)
    colours = np.zeros((N_LEVELS, 3), dtype=np.uint8)
    colours[: N_SHARE_LEVELS * N_SHARE_LEVELS] = np.round(rgb)
    return colours


def value_levels(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """The level of each value; values outside the limits have the first or last level."""
    low, high = limits
    share = np.clip((values - low) / ((high - low) or 1.0), 0, 1)
    levels = 1 + np.round((N_LEVELS - 1) * np.nan_to_num(share))
    return np.where(np.isnan(values), 0, levels).astype(np.uint8)


def share_levels(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """The level of each pair of shares; 0 where they are NaN."""
    a, b = (np.round((N_SHARE_LEVELS - 1) * np.sqrt(np.nan_to_num(part))) for part in (high, low))
    return np.where(np.isnan(high), 0, 1 + N_SHARE_LEVELS * a + b).astype(np.uint8)


def png(levels: np.ndarray, colours: np.ndarray) -> bytes:
    """A PNG file with a palette; level 0 is transparent.

    >>> png(np.zeros((2, 3), np.uint8), np.zeros((255, 3), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    picture_of_levels, file = Image.fromarray(levels), io.BytesIO()
    picture_of_levels.putpalette(b"\0\0\0" + colours.tobytes())
    picture_of_levels.save(file, "PNG", transparency=0)
    return file.getvalue()


def data_uri(levels: np.ndarray, colours: np.ndarray) -> str:
    """An image as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png(levels, colours)).decode()


def block_means(values: np.ndarray, block_shape: tuple[int, int]) -> np.ndarray:
    """The mean of the known values of each block; NaN if all are missing.

    >>> block_means(np.array([[1.0, 3.0, np.nan], [5.0, 7.0, np.nan]]), (2, 2))
    array([[ 4., nan]])
    """
    observed = ~np.isnan(values)
    total, count = (
        _reduce_blocks(np.add, part, block_shape)
        for part in (np.where(observed, values, 0.0), observed * 1.0)
    )
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def block_extremes(values: np.ndarray, block_shape: tuple[int, int]) -> np.ndarray:
    """The value of each block that is furthest from zero.

    >>> block_extremes(np.array([[1.0, -3.0, np.nan], [2.0, np.nan, 0.5]]), (2, 2))
    array([[-3. ,  0.5]])
    """
    high, low = (
        _reduce_blocks(np.fmax, values, block_shape),
        _reduce_blocks(np.fmin, values, block_shape),
    )
    return np.where(np.abs(high) >= np.abs(low), high, low)


def _reduce_blocks(ufunc: Any, values: np.ndarray, block_shape: tuple[int, int]) -> np.ndarray:
    rows = ufunc.reduceat(values, np.arange(0, values.shape[0], block_shape[0]), axis=0)
    return np.asarray(ufunc.reduceat(rows, np.arange(0, values.shape[1], block_shape[1]), axis=1))


def image_axes(rows: Index, columns: Index) -> Axes:
    """Axes for images of these rows and columns, with ticks at their labels."""
    upwards = rows.labels is not None and is_ordered(rows.labels)
    row_texts = [text for _, text in rows.ticks_down(1000.0 / 6)]
    left = min(max(46.0, text_room(row_texts) + 20), 126.0)
    ax = new_axes(340, 250, left=left, right=8, top=26)
    w, h = np.round(ax.bbox.size, 1)
    ax.set(xlim=(0, w), ylim=(0, h) if upwards else (h, 0), xlabel=columns.name, ylabel=rows.name)
    set_ticks(ax.xaxis, columns.ticks_across(w))
    set_ticks(ax.yaxis, rows.ticks_down(h))
    return ax


def image(
    ax: Axes,
    levels: np.ndarray,
    palette_name: str,
    rows: Index,
    columns: Index,
    *,
    alt: str,
    group: str,
    kind: str,
    limits: tuple[float, float] | None = None,
    title: str = "",
) -> Markup:
    """A picture of an image in the Axes of `image_axes`, with its colour bar."""
    w, h = np.round(ax.bbox.size, 1)
    upwards = not ax.yaxis_inverted()
    pixels = element(
        "image",
        href=data_uri(levels[::-1] if upwards else levels, palette(palette_name)),
        width=w,
        height=h,
        preserveAspectRatio="none",
    )
    ends: dict[str, Any] = {}
    if limits is not None:
        ends = {"data_from": f"{limits[0]:.6g}", "data_to": f"{limits[1]:.6g}"}
    return picture(
        ax,
        alt=alt,
        kind="cells",
        background=join([element("rect", class_="missing", width=w, height=h), pixels]),
        overlay=_title_and_colorbar(ax.bbox.x0, ax.bbox.x1, title, palette_name, limits),
        data_rows=rows.key,
        data_columns=columns.key,
        data_group=group,
        data_kind=kind,
        data_up="1" if upwards else None,
        **ends,
    )


def _title_and_colorbar(
    left: float, right: float, title: str, palette_name: str, limits: tuple[float, float] | None
) -> Markup:
    """The title, the colour bar and the values at its ends."""
    title_text = element("text", title, class_="title", x=f"{left:.1f}", y=16)
    if limits is None:
        return title_text
    low, high = (number(limit, 3) for limit in limits)
    bar_left = right - 6.0 * len(high) - 5 - COLORBAR_SIZE[0]
    return join(
        [
            title_text,
            element("use", href=f"#{palette_name}", x=f"{bar_left:.1f}", y=7),
            element("text", high, class_="end", x=f"{right:.1f}", y=16),
            element("text", low, class_="end", x=f"{bar_left - 4:.1f}", y=16),
        ]
    )


def definitions() -> Markup:
    """Colour bars and a pattern that pictures refer to."""
    all_levels = np.arange(1, N_LEVELS + 1, dtype=np.uint8)[None]
    colorbars = [
        element(
            "image",
            id=name,
            href=data_uri(all_levels, palette(name)),
            width=COLORBAR_SIZE[0],
            height=COLORBAR_SIZE[1],
            preserveAspectRatio="none",
        )
        for name in ("cividis", "diverging")
    ]
    hatch = element(
        "pattern",
        element("rect", width=6, height=6, class_="hatch-ground"),
        element("path", d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5", class_="hatch"),
        id="hatch",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
    )
    definitions = element("defs", *colorbars, hatch)
    return element("svg", definitions, width=0, height=0, class_="defs", aria_hidden="true")
