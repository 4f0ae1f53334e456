"""Axes to draw into: those that were passed, or new ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes_or_new(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """The Axes that were passed, or those of a new figure."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=figsize, layout="constrained")[1] if ax is None else ax


def grid_or_new(axes: Any, shape: tuple[int, ...], figsize: tuple[float, float]) -> np.ndarray:
    """The array of Axes that was passed, or that of a new figure, in this shape."""
    import matplotlib.pyplot as plt

    if axes is None:
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        subplots = plt.subplots(rows, columns, figsize=figsize, squeeze=False, layout="constrained")
        return np.reshape(np.asarray(subplots[1]), shape)
    grid = np.asarray(axes, dtype=object)
    if grid.size != math.prod(shape):
        raise ValueError(f"axes: must be an array of {shape} Axes, got shape {grid.shape}")
    return np.reshape(grid, shape)


def hide_top_and_right(ax: Axes) -> None:
    """Leave only the left and lower edge of the frame."""
    ax.spines[["top", "right"]].set_visible(False)


def add_legend(ax: Axes, handles: Sequence[Any], names: Sequence[str], *, own_figure: bool) -> None:
    """A legend above all panels of a figure of our own; of another one, in a panel."""
    style: dict[str, Any] = {"frameon": False, "fontsize": "small", "columnspacing": 1.2}
    if own_figure:
        figure: Any = ax.figure
        figure.legend(handles, names, loc="outside upper right", ncols=min(4, len(names)), **style)
    else:
        ax.legend(handles, names, **style)
