"""Ticks at the indices and labels of a mode."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from robustcp._util.text import label_text, shorten
from robustcp.plot.colours import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

#: Unlabelled modes with at most this many indices are drawn as bars.
FEW_INDICES = 12
#: The width of a letter and the height of a line of a tick's label, as multiples of the font size.
LETTER_WIDTH, LINE_HEIGHT = 0.65, 1.15
#: The format of dates, for the smallest number of days that they span.
_DATE_FORMATS = ((1500, "%Y"), (60, "%b %Y"), (2, "%d %b"), (0, "%H:%M"))
#: The font size of the labels of ticks, and the smaller one if every index has a label.
FONT_SIZE, SMALL_FONT_SIZE = 10.0, 7.0


def is_ordered(labels: Sequence[Any]) -> bool:
    """Whether labels are numbers or dates."""
    dates = all(isinstance(label, date) for label in labels)
    numbers = all(isinstance(label, int | float) for label in labels)
    booleans = any(isinstance(label, bool) for label in labels)
    return dates or (numbers and not booleans and all(map(math.isfinite, labels)))


def set_index_ticks(axis: Axis, labels: list[Any] | None, size: int) -> None:
    """Set ticks at whole indices with their labels; at every index only for a few names.

    Where labels are numbers or dates that rise or fall, ticks are at round ones.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    if labels is not None and size > 1 and is_monotonic(labels):
        _set_round_ticks(axis, labels)
        return

    def text(x: float, _: Any = None) -> str:
        k = round(x)
        if not 0 <= k < size or abs(x - k) > 1e-6:
            return ""
        return str(k) if labels is None else shorten(label_text(labels[k]))

    are_names = labels is not None and not is_ordered(labels)
    if are_names and size <= FEW_INDICES:
        axis.set_major_locator(FixedLocator(range(size)))
        crowded = sum(len(text(k)) for k in range(size)) > 24
    else:
        longest = max(len(text(k)) for k in range(0, size, max(1, size // 50)))
        length = _length(axis)
        crowded = min(size, 7) * longest * LETTER_WIDTH * FONT_SIZE > length
        max_ticks = int(np.clip(length / (2.6 * FONT_SIZE), 2, 7)) if crowded else 7
        axis.set_major_locator(MaxNLocator(nbins=max_ticks, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(text))
    if axis is axis.axes.xaxis:
        _rotate_labels(axis, crowded)


def is_monotonic(labels: Sequence[Any]) -> bool:
    """Whether labels are numbers or dates that rise, or fall, all along."""
    if not is_ordered(labels):
        return False
    pairs = list(itertools.pairwise(labels))
    return all(a < b for a, b in pairs) or all(a > b for a, b in pairs)


def _set_round_ticks(axis: Axis, labels: list[Any]) -> None:
    """Set ticks at round labels, which may lie between indices."""
    from matplotlib.ticker import FixedFormatter, FixedLocator

    positions, texts = _round_ticks(labels, _max_ticks(axis))
    axis.set_major_locator(FixedLocator(positions))
    axis.set_major_formatter(FixedFormatter(texts))
    if axis is axis.axes.xaxis:
        _rotate_labels(axis, crowded=False)


def _round_ticks(labels: list[Any], max_ticks: int) -> tuple[list[float], list[str]]:
    """The positions of round labels along the indices, and their texts."""
    locator, formatter = _round_locator(max_ticks, labels)
    values = _as_numbers(labels)
    ticks = np.asarray(locator.tick_values(min(labels), max(labels)), dtype=float)
    ticks = ticks[(ticks >= values.min()) & (ticks <= values.max())]
    order = np.argsort(values)
    positions = np.interp(ticks, values[order], order.astype(float))
    return positions.tolist(), list(formatter.format_ticks(ticks.tolist()))


def ticks_along(labels: list[Any] | None, size: int, max_ticks: int) -> list[tuple[float, str]]:
    """The positions of about `max_ticks` ticks along the indices of a mode, and their texts.

    At round labels, which may lie between indices, where these are numbers or dates that rise or
    fall; otherwise at indices, evenly spaced.

    Examples
    --------
    >>> ticks_along(None, 30, 4)
    [(0.0, '0'), (10.0, '10'), (20.0, '20')]
    >>> ticks_along([300.0, 310.0, 330.0], 3, 4)
    [(0.0, '300'), (1.0, '310'), (1.5, '320'), (2.0, '330')]
    >>> ticks_along(["a", "b", "c"], 3, 4)
    [(0.0, 'a'), (1.0, 'b'), (2.0, 'c')]
    """
    if labels is not None and size > 1 and is_monotonic(labels):
        return list(zip(*_round_ticks(labels, max_ticks), strict=True))
    step = next(k for k in _round_steps() if (size - 1) // k < max(max_ticks, 1))
    return [
        (float(k), str(k) if labels is None else label_text(labels[k]))
        for k in range(0, size, step)
    ]


def _round_steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    for power in itertools.count():
        yield from (k * 10**power for k in (1, 2, 5))


def _round_locator(max_ticks: int, labels: list[Any]) -> tuple[Any, Any]:
    """The locator and formatter of about `max_ticks` round numbers or dates."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if not isinstance(labels[0], date):
        plain = FuncFormatter(lambda x, _: f"{x:.10g}")
        return MaxNLocator(nbins=max_ticks, steps=[1, 2, 2.5, 5, 10]), plain
    dates: Any = import_module("matplotlib.dates")
    days = float(np.ptp(_as_numbers(labels)))
    date_format = next(text for min_days, text in _DATE_FORMATS if days >= min_days)
    locator = dates.AutoDateLocator(minticks=min(3, max_ticks), maxticks=max(max_ticks, 4))
    return locator, dates.DateFormatter(date_format)


def _as_numbers(labels: list[Any]) -> np.ndarray:
    dates: Any = import_module("matplotlib.dates")
    return np.asarray(dates.date2num(labels) if isinstance(labels[0], date) else labels, float)


def _max_ticks(axis: Axis) -> int:
    """The number of ticks that an axis has room for."""
    min_distance = (5 if axis is axis.axes.xaxis else 2.5) * FONT_SIZE
    return int(np.clip(_length(axis) / min_distance, 2, 7))


def _length(axis: Axis) -> float:
    """The length of an axis, in points."""
    ax = axis.axes
    pixels = ax.bbox.width if axis is ax.xaxis else ax.bbox.height
    return float(pixels * 72 / ax.figure.dpi)


def _rotate_labels(axis: Axis, crowded: bool) -> None:
    """Turn labels that would overlap."""
    axis.set_tick_params(rotation=30 if crowded else 0)
    mode: Literal["anchor", "default"] = "anchor" if crowded else "default"
    for tick in axis.get_major_ticks():
        tick.label1.set(ha="right" if crowded else "center", rotation_mode=mode)


def set_name_ticks(axis: Axis, labels: list[Any] | None, size: int) -> None:
    """Set a tick at every index if there is room for all labels; else `set_index_ticks`.

    Labels along the horizontal axis stand upright if they must.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter

    length = _length(axis)
    if labels is None or is_ordered(labels) or LINE_HEIGHT * SMALL_FONT_SIZE * size > length:
        axis.set_tick_params(labelsize=FONT_SIZE)
        set_index_ticks(axis, labels, size)
        return
    texts = [shorten(label_text(label)) for label in labels]
    axis.set_major_locator(FixedLocator(range(size)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: texts[round(x)]))
    upright = (
        axis is axis.axes.xaxis
        and max(map(len, texts)) * LETTER_WIDTH * SMALL_FONT_SIZE * size > length
    )
    axis.set_tick_params(labelsize=SMALL_FONT_SIZE, rotation=90 if upright else 0)


def set_log_ticks(axis: Axis) -> None:
    """Set ticks such as 1, 2, 5, 10 on a logarithmic axis, even within a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def prepare_x_axis(ax: Axes, labels: list[Any] | None, size: int) -> tuple[Any, np.ndarray]:
    """Set the ticks of a column; returns the positions of its entries and their order.

    Over the labels, ascending, if they are numbers or dates; otherwise over the indices.
    """
    if labels is None or not is_ordered(labels):
        set_index_ticks(ax.xaxis, labels, size)
        return np.arange(size), np.arange(size)
    locator, formatter = _round_locator(_max_ticks(ax.xaxis), labels)
    if isinstance(labels[0], date):
        ax.xaxis_date()
        ax.tick_params(axis="x", labelsize="small")
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(formatter)
    order = sorted(range(size), key=lambda k: labels[k])
    return [labels[k] for k in order], np.asarray(order)


def draw_curve(ax: Axes, values: np.ndarray, labels: list[Any] | None, **style: Any) -> None:
    """Draw a line over the labels if they are numbers or dates, else over the indices."""
    colour, line, marker = STYLES[1]
    defaults: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.3}
    if values.size <= 3 * FEW_INDICES:
        defaults |= {"marker": marker, "markersize": 3.5}
    x, order = prepare_x_axis(ax, labels, values.size)
    ax.plot(x, values[order], **defaults | style)
