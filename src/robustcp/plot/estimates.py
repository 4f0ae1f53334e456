"""Estimated and true factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.model.metrics import best_pairing, canonical_model, congruence
from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def truth_against_estimates(
    truth: Any,
    estimates: Mapping[str, Any],
    *,
    mode: int = 0,
    component: int = 0,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """One factor column of the truth and of each estimate (figure 1b of the paper).

    The components of each estimate are matched to those of the truth, all at once, and the
    matching column is drawn with the sign of the true one.

    Parameters
    ----------
    truth : KruskalTensor or pair (weights, factors)
    estimates : mapping from a label to a Fit, KruskalTensor or pair
    mode, component : int
        Which column; components are numbered as in the truth.
    ax : matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    >>> fits = {"cpals": robustcp.cpals(sim.data, 2), "cp": robustcp.cp(sim.data, 2)}
    >>> ax = robustcp.plot.truth_against_estimates(sim.truth, fits, mode=1)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['cpals', 'cp', 'truth']
    """
    ax = axes_or_new(ax, figsize or (8, 3.6))
    true = canonical_model(truth)
    column = true.factors[mode][:, component]
    index = np.arange(column.size)
    ax.bar(index, column, width=0.8, color="0.85", label="truth")
    for (label, estimate), (colour, line, marker) in zip(estimates.items(), STYLES, strict=False):
        model = canonical_model(estimate)
        rows, partners = best_pairing(congruence(true, model))
        matched_column = model.factors[mode][
            :, dict(zip(rows, partners, strict=True)).get(component, 0)
        ]
        matched_column = matched_column * (1.0 if matched_column @ column >= 0 else -1.0)
        ax.plot(
            index,
            matched_column,
            line,
            color=colour,
            marker=marker,
            markersize=3.5,
            linewidth=1.2,
            label=label,
        )
    ax.set_xlabel(f"row of the factor of mode {mode}")
    ax.set_ylabel("entry of the unit column")
    ax.set_xlim(-1, column.size)
    ax.legend(frameon=False, ncols=1 + len(estimates), loc="upper left", bbox_to_anchor=(0, 1.13))
    hide_top_and_right(ax)
    return ax
