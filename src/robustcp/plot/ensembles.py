"""Errors and similarities of many starts at several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.plot.axes import grid_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES
from robustcp.plot.ticks import FEW_INDICES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.inference.ensemble import Ensemble


def ensemble(
    ensemble: Ensemble, *, axes: Any = None, figsize: tuple[float, float] | None = None
) -> np.ndarray:
    """The error of each start, and its similarity to the best of its rank.

    One dot for each start, side by side; those of the best starts, in the middle, are joined. A
    rank is in doubt if starts of about the same error are unlike each other.

    Parameters
    ----------
    ensemble : Ensemble
    axes : array of two matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    array of two matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((8, 7, 6), 2, eta=0, gamma=0, rng=0).data
    >>> error, similarity = robustcp.plot.ensemble(robustcp.ensemble(X, [1, 2], starts=2, jobs=1))
    >>> similarity.get_ylabel()
    'similarity to the best'
    """
    panels = grid_or_new(axes, (2,), figsize or (9, 3.4))
    ranks = list(ensemble.ranks)
    for ax, values, style in zip(
        panels, (ensemble.errors, ensemble.similarities), STYLES[1::-1], strict=True
    ):
        _draw_lines(ax, ranks, [np.asarray(values[rank]) for rank in ranks], style)
        ax.set_xlabel("rank")
        hide_top_and_right(ax)
    panels[0].set_ylabel("error")
    panels[0].set_ylim(bottom=0)
    panels[1].set_ylabel("similarity to the best")
    panels[1].set_ylim(min(0.0, panels[1].get_ylim()[0]), 1.05)
    return panels


def draw_dots(ax: Axes, x: float, values: np.ndarray, style: tuple[str, str, str]) -> None:
    """Draw dots side by side, the first in the middle; small ones if they are many."""
    many = values.size > FEW_INDICES
    ax.plot(
        x + swarm_offsets(values.size),
        values,
        linestyle="none",
        marker=style[2],
        color=style[0],
        markersize=3.0 if many else 4.5,
        markeredgecolor="w",
        markeredgewidth=0.2 if many else 0.5,
        zorder=3,
    )


def _draw_lines(
    ax: Axes, ranks: Sequence[int], values: Sequence[np.ndarray], style: tuple[str, str, str]
) -> None:
    from matplotlib.ticker import MaxNLocator

    best = [float(v[0]) if v.size else np.nan for v in values]
    ax.plot(ranks, best, "-", color=style[0], linewidth=1.3, zorder=2)
    for rank, v in zip(ranks, values, strict=True):
        draw_dots(ax, rank, v, style)
    ax.set_xlim(min(ranks) - 0.6, max(ranks) + 0.6)
    if len(ranks) <= FEW_INDICES:
        ax.set_xticks(ranks)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def swarm_offsets(count: int, width: float = 0.35) -> np.ndarray:
    """Horizontal offsets of dots side by side: 0, right, left, further right, and so on.

    Examples
    --------
    >>> swarm_offsets(4, width=0.1)
    array([ 0.  ,  0.05, -0.05,  0.1 ])
    """
    index = np.arange(count)
    offset = np.where(index % 2, (index + 1) // 2, -(index // 2))
    return np.asarray(offset * min(0.06, width / max(count // 2, 1)), dtype=np.float64) + 0.0
