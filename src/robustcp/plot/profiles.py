"""The diagnostics of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robustcp.plot.axes import axes_or_new
from robustcp.plot.colours import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.inference.rank_profile import RankProfile


def rank_profile(
    profile: RankProfile, *, ax: Axes | None = None, figsize: tuple[float, float] | None = None
) -> Axes:
    """Held-out error (left axis) and, from 0 to 1 (right axis), what tells components from noise.

    Those are: how well the worst component comes back from other samples, the core consistency
    (below 0 at 0), and the share of starts that agree. Bars are standard errors over the folds;
    the recommended rank is marked by a dotted line.

    Parameters
    ----------
    profile : RankProfile
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
    >>> profile = robustcp.rank_profile(X, range(1, 4), folds=3, jobs=1)
    >>> robustcp.plot.rank_profile(profile).get_xlabel()
    'rank (recommended: 2)'
    """
    ax = axes_or_new(ax, figsize or (6.4, 4))
    right_axes = ax.twinx()
    draw_errors(ax, profile)
    draw_agreement(right_axes, profile)
    ax.axvline(profile.rank, color="0.6", linestyle=":", linewidth=1.5)
    ax.set_xlabel(f"rank (recommended: {profile.rank})")
    ax.set_ylabel("held-out error, of a zero model's")
    right_axes.set_ylabel("agreement")
    ax.set_xticks(profile.ranks)
    ax.set_zorder(right_axes.get_zorder() + 1)
    ax.patch.set_visible(False)
    handles, names = (
        [*left, *right]
        for left, right in zip(
            ax.get_legend_handles_labels(), right_axes.get_legend_handles_labels(), strict=True
        )
    )
    ax.legend(handles, names, frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    ax.spines[["top"]].set_visible(False)
    right_axes.spines[["top"]].set_visible(False)
    return ax


def draw_errors(ax: Axes, profile: RankProfile) -> None:
    """Draw the held-out error of each rank, with its standard error."""
    colour, _, marker = STYLES[1]
    ax.errorbar(
        profile.ranks,
        profile.error,
        profile.spread["error"],
        fmt=marker + "-",
        color=colour,
        capsize=2,
        linewidth=1.8,
        zorder=3,
        label="held-out error",
    )
    ax.set_ylim(bottom=0)


def draw_agreement(ax: Axes, profile: RankProfile) -> None:
    """Draw the stability, core consistency and agreement of starts of each rank."""
    (orange, _, square), _, (green, _, triangle) = STYLES
    for name, values, style, colour, fill in (
        ("components come back", profile.stability, square + "--", orange, "full"),
        ("core consistency", np.clip(profile.consistency / 100, 0, 1), "D:", "0.35", "none"),
        ("starts agree", profile.agreement, triangle + "-.", green, "none"),
    ):
        ax.plot(
            profile.ranks,
            values,
            style,
            color=colour,
            fillstyle=fill,
            linewidth=1.2,
            markersize=5,
            label=name,
        )
    ax.set_ylim(-0.03, 1.05)
