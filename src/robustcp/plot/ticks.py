"""Indices and labels along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.plot.colours import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

#: Unlabelled modes with at most this many indices are drawn as bars.
FEW = 12


def is_ordered(labels: Sequence[Any]) -> bool:
    """Whether labels are numbers or dates."""
    dates = all(isinstance(label, date) for label in labels)
    numbers = all(isinstance(label, int | float) for label in labels)
    flags = any(isinstance(label, bool) for label in labels)
    return dates or (numbers and not flags and all(map(math.isfinite, labels)))


def label_text(label: Any) -> str:
    """A label as it is written at a tick or in a title."""
    return f"{label:g}" if isinstance(label, float) else str(label)


def index_ticks(axis: Axis, labels: list[Any] | None, size: int) -> None:
    """Ticks at whole indices with their labels; at every index only for a few names."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    def text(x: float, _: Any = None) -> str:
        k = round(x)
        if not 0 <= k < size or abs(x - k) > 1e-6:
            return ""
        return str(k) if labels is None else label_text(labels[k])

    named = labels is not None and not is_ordered(labels)
    if named and size <= FEW:
        axis.set_major_locator(FixedLocator(range(size)))
        if axis is axis.axes.xaxis and sum(len(text(k)) for k in range(size)) > 24:
            for tick in axis.get_ticklabels():
                tick.set(rotation=30, ha="right", rotation_mode="anchor")
    else:
        axis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(text))


def plain_log_ticks(axis: Axis) -> None:
    """Ticks such as 1, 2, 5, 10 on a logarithmic axis, even if it spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def curve(ax: Axes, values: np.ndarray, labels: list[Any] | None) -> None:
    """A line over the labels if they are numbers or dates, otherwise over the indices."""
    colour, line, marker = STYLES[1]
    style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.3}
    if values.size <= 3 * FEW:
        style |= {"marker": marker, "markersize": 3.5}
    if labels is not None and is_ordered(labels):
        order = sorted(range(values.size), key=lambda k: labels[k])
        ax.plot([labels[k] for k in order], values[order], **style)
    else:
        ax.plot(np.arange(values.size), values, **style)
        index_ticks(ax.xaxis, labels, values.size)
