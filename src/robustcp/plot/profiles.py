"""Held-out error and stability against the rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcp.plot.axes import axes_or_new
from robustcp.plot.colours import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.ranks import RankProfile


def rank_profile(profile: RankProfile, *, ax: Axes | None = None) -> Axes:
    """Held-out error (left axis) and stability (right axis) against the rank.

    Parameters
    ----------
    profile : RankProfile
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = axes_or_new(ax, (6, 3.6))
    (orange, _, square), (blue, _, circle), _ = STYLES
    other = ax.twinx()
    error = ax.plot(profile.ranks, profile.error, circle + "-", color=blue)
    stable = other.plot(profile.ranks, profile.stability, square + "--", color=orange)
    ax.axvline(profile.rank, color="0.6", linestyle=":", linewidth=1.5)
    ax.set_xlabel(f"rank (recommended: {profile.rank})")
    ax.set_ylabel("held-out error, of a zero model's")
    ax.set_ylim(bottom=0)
    other.set_ylabel("agreement of halves")
    other.set_ylim(0, 1.05)
    ax.set_xticks(profile.ranks)
    ax.legend([*error, *stable], ["held-out error", "agreement of halves"], frameon=False)
    ax.spines[["top"]].set_visible(False)
    other.spines[["top"]].set_visible(False)
    return ax
