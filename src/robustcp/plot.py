"""Pictures. Matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.metrics import congruence, on_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.outliers import Outliers
    from robustcp.rank import RankProfile

#: Colour-blind safe, and apart in grey: (colour, line style, marker).
STYLES = (("#D55E00", "--", "s"), ("#0072B2", "-", "o"), ("#009E73", ":", "^"))


def truth_against_estimates(
    truth: Any,
    estimates: Mapping[str, Any],
    *,
    mode: int = 0,
    component: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """One factor column of the truth and of each estimate (the paper's figure 1b).

    Each estimate's component is the one that goes with the truth's in the best pairing of all
    components, turned to the same sign.

    Parameters
    ----------
    truth : KruskalTensor or pair (weights, factors)
    estimates : mapping from a label to a Fit, KruskalTensor or pair
    mode, component : int
        Which column.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    import matplotlib.pyplot as plt
    from scipy.optimize import linear_sum_assignment

    if ax is None:
        ax = plt.subplots(figsize=(8, 3.6), layout="constrained")[1]
    true = on_host(truth)
    column = true.factors[mode][:, component]
    index = np.arange(column.size)
    ax.bar(index, column, width=0.8, color="0.85", label="truth")
    for (label, estimate), (colour, line, marker) in zip(estimates.items(), STYLES, strict=False):
        model = on_host(estimate)
        rows, partners = linear_sum_assignment(congruence(true, model), maximize=True)
        found = model.factors[mode][:, dict(zip(rows, partners, strict=True)).get(component, 0)]
        found = found * (1.0 if found @ column >= 0 else -1.0)
        ax.plot(
            index, found, line, color=colour, marker=marker, markersize=3.5, linewidth=1.2,
            label=label,
        )  # fmt: skip
    ax.set_xlabel(f"row of the factor of mode {mode}")
    ax.set_ylabel("entry of the unit column")
    ax.set_xlim(-1, column.size)
    ax.legend(frameon=False, ncols=1 + len(estimates), loc="upper left", bbox_to_anchor=(0, 1.13))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def rank_profile(profile: RankProfile, *, ax: Axes | None = None) -> Axes:
    """Held-out error (left axis) and stability (right axis) against the rank."""
    import matplotlib.pyplot as plt

    if ax is None:
        ax = plt.subplots(figsize=(6, 3.6), layout="constrained")[1]
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


def outliers(found: Outliers, mode: int = 0, *, ax: Axes | None = None) -> Axes:
    """The share of flagged entries in each slab of a mode."""
    import matplotlib.pyplot as plt

    if ax is None:
        ax = plt.subplots(figsize=(8, 2.8), layout="constrained")[1]
    shares = found.slabs[mode]
    ax.bar(np.arange(shares.size), 100 * shares, width=1.0, color=STYLES[1][0])
    ax.set_xlabel(f"index of mode {mode}")
    ax.set_ylabel("flagged entries, %")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
