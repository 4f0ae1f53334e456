"""The objective over the sweeps of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES
from robustcp.plot.ticks import index_ticks, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.fitted import Fit


def convergence(fit: Fit, *, ax: Axes | None = None) -> Axes:
    """The objective after each sweep, with the stages shaded alternately.

    Values can be compared only within one level of one stage: the next level has another
    objective, so the values jump. Points are therefore not joined by lines.

    Parameters
    ----------
    fit : Fit
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = axes_or_new(ax, (6.4, 3.4))
    begin = 0
    for k, (name, sweeps) in enumerate(fit.stages):
        colour, _, marker = STYLES[(k + 1) % len(STYLES)]
        number = np.arange(begin + 1, begin + sweeps + 1)
        ax.axvspan(begin + 0.5, begin + sweeps + 0.5, color=("0.96", "0.9")[k % 2], zorder=0, lw=0)
        ax.plot(
            number, fit.trace[begin : begin + sweeps], linestyle="none", marker=marker,
            markersize=3, color=colour, markerfacecolor=("none", colour)[k % 2],
            label=f"{name} ({sweeps} sweep{'s' * (sweeps != 1)})",
        )  # fmt: skip
        begin += sweeps
    if 0 < 5 * fit.trace.min() < fit.trace.max():  # otherwise stages of small values look flat
        ax.set_yscale("log")
        plain_log_ticks(ax.yaxis)
    ax.set_xlim(0, begin + 1)
    index_ticks(ax.xaxis, None, begin + 1)
    ax.set_xlabel("sweep (jumps: the objective itself changes)")
    ax.set_ylabel("objective")
    ax.legend(
        frameon=False, ncols=len(fit.stages), loc="lower left", bbox_to_anchor=(0, 1),
        borderaxespad=0.2, title="stage", title_fontsize="medium", alignment="left",
    )  # fmt: skip
    hide_top_and_right(ax)
    return ax
