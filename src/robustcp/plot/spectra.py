"""Spectra of the components of one or several models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.plot.axes import add_legend, grid_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES

if TYPE_CHECKING:
    from robustcp.eem import Spectra

#: The number of panels in a row.
PANELS_PER_ROW = 4


def spectra(
    first: Spectra,
    *others: Spectra,
    labels: Sequence[str] | None = None,
    axes: Any = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """Excitation (dashed) and emission (solid) spectra, one panel for each component.

    Components of other models are drawn over those of the first that they are most like. All are
    drawn with a maximum of 1.

    Parameters
    ----------
    first, *others : Spectra
    labels : sequence of str, optional
        What the models are called.
    axes : array of matplotlib Axes, one for each component of the first, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    array of matplotlib Axes

    Examples
    --------
    >>> import matplotlib, numpy as np, robustcp
    >>> from robustcp.eem import Spectra
    >>> matplotlib.use("Agg")
    >>> nm = np.arange(300.0, 400.0)
    >>> peaks = np.exp(-0.5 * ((nm[:, None] - [330, 360]) / 12) ** 2)
    >>> axes = robustcp.plot.spectra(Spectra(nm + 60, nm, peaks, peaks))
    >>> [ax.get_title(loc="left") for ax in axes]
    ['component 1', 'component 2']
    """
    from scipy.optimize import linear_sum_assignment

    models = (first, *others)
    names = list(labels) if labels is not None else [f"model {k + 1}" for k in range(len(models))]
    if len(names) != len(models):
        raise ValueError(f"labels: must be {len(models)} names, got {names!r}")
    panels = _panels(axes, first.rank, figsize)
    identity = [np.arange(first.rank)] * 2
    pairs = [identity, *(linear_sum_assignment(first.similarity(m), maximize=True) for m in others)]
    for k, (model, name, (rows, columns)) in enumerate(zip(models, names, pairs, strict=True)):
        # The first is a wide grey line, on which the others are seen.
        width = 4.0 if k == 0 and others else 1.5
        colour = "0.72" if k == 0 and others else STYLES[(k - 1) % 3 if others else 1][0]
        for r, c in zip(rows, columns, strict=True):
            for kind, line in (("emission", "-"), ("excitation", "--")):
                nm, column = getattr(model, kind), getattr(model, f"{kind}_loadings")[:, c]
                order = np.argsort(nm)
                peak = column[np.abs(column).argmax()] or 1.0
                panels[r].plot(
                    nm[order],
                    column[order] / peak,
                    line,
                    color=colour,
                    linewidth=width,
                    label=name if kind == "emission" and others else None,
                )
    for r, ax in enumerate(panels):
        ax.set_title(f"component {r + 1}", loc="left", fontsize="medium")
        ax.set_xlabel("wavelength, nm")
        hide_top_and_right(ax)
    panels[0].set_ylabel("loading")
    _draw_legend(panels[0], bool(others), own_figure=axes is None)
    return panels


def _panels(axes: Any, count: int, figsize: tuple[float, float] | None) -> np.ndarray:
    if axes is not None:
        return grid_or_new(axes, (count,), (1, 1))
    columns = min(count, PANELS_PER_ROW)
    rows = math.ceil(count / columns)
    default_size = (3.0 * columns + 0.4, 2.6 * rows)
    grid = grid_or_new(None, (rows, columns), figsize or default_size).ravel()
    for unused in grid[count:]:
        unused.set_visible(False)
    return grid[:count]


def _draw_legend(ax: Any, several_models: bool, *, own_figure: bool) -> None:
    """Draw the legend: the kinds of spectra in black, models in their colours."""
    from matplotlib.lines import Line2D

    kinds = [
        Line2D([], [], color="k", linestyle="--", label="excitation"),
        Line2D([], [], color="k", linestyle="-", label="emission"),
    ]
    handles = [*kinds, *(ax.get_legend_handles_labels()[0] if several_models else [])]
    add_legend(ax, handles, [str(handle.get_label()) for handle in handles], own_figure=own_figure)
