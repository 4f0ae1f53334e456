"""The objective over the sweeps of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES
from robustcp.plot.ticks import set_index_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.results.fit import Fit


def convergence(
    fit: Fit, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Axes:
    """The objective after each sweep, between its lowest and highest value in each stage.

    Each stage minimises another objective, whose first and last value are in the legend; so does
    each level of a stage, which makes the values jump. Points are therefore not joined by lines.

    Parameters
    ----------
    fit : Fit
    ax : matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> robustcp.plot.convergence(robustcp.cp(X, 2)).get_xlabel()
    'sweep'
    """
    ax = axes_or_new(ax, figsize or (6.4, 3.4))
    begin = 0
    for k, (name, sweeps) in enumerate(fit.stages):
        colour, _, marker = STYLES[(k + 1) % len(STYLES)]
        sweep_numbers = np.arange(begin + 1, begin + sweeps + 1)
        values = np.asarray(fit.trace[begin : begin + sweeps], dtype=float)
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        ends = f"{values[0]:.4g} to {values[-1]:.4g}"
        ax.axvspan(begin + 0.5, begin + sweeps + 0.5, color=("0.96", "0.9")[k % 2], zorder=0, lw=0)
        ax.plot(
            sweep_numbers,
            np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0),
            linestyle="none",
            marker=marker,
            markersize=4,
            color=colour,
            markerfacecolor=("none", colour)[k % 2],
            label=f"{name} ({sweeps} sweep{'s' * (sweeps != 1)}): {ends}",
        )
        begin += sweeps
    ax.set_xlim(0, begin + 1)
    ax.set_ylim(-0.05, 1.05)
    set_index_ticks(ax.xaxis, None, begin + 1)
    ax.set_yticks([0, 1], ["lowest", "highest"])
    ax.set_xlabel("sweep")
    ax.set_ylabel("objective, in each stage")
    ax.legend(
        frameon=False,
        ncols=1 + (len(fit.stages) > 3),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        fontsize="small",
    )
    hide_top_and_right(ax)
    return ax
