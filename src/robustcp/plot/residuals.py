"""Data, model and residuals of one slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.plot.axes import draw_zero_line, grid_or_new, hide_top_and_right
from robustcp.plot.colours import diverging_colormap
from robustcp.plot.modes import Mode
from robustcp.plot.slicing import (
    colorbar_extend,
    data_and_model,
    fixed_modes,
    slice_image,
    slice_limits,
    slice_title,
)
from robustcp.plot.ticks import draw_curve

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

    from robustcp.results.fit import Fit


def slices(
    fit: Fit,
    X: Any,
    index: int | Sequence[int],
    mode: Mode | Sequence[Mode] = 0,
    *,
    axes: Any = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """Data, model and residual of one slice, side by side.

    Data and model share one scale; the residual has its own. The scales leave out the lowest
    and highest 1% of the data and the largest 1% of the residuals, so that outliers do not hide
    the rest; the colour bars then end in arrows. Missing entries are grey and hatched. Only the
    slice is computed.

    Parameters
    ----------
    fit : Fit
    X : array or Observed
        The data, or other data of the same shape.
    index, mode : int, or a sequence with one for each fixed mode
        `mode` is fixed at `index`. Two modes must be left, which are drawn as images, or one,
        which is drawn as lines: for a tensor of order 4, ``slices(fit, X, (3, 7), mode=(0, 1))``
        draws X[3, 7, :, :]; for a matrix, ``slices(fit, X, (), mode=())`` draws all of it.
    axes : array of three matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    array of three matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=0, rng=0).data
    >>> data, model, residual = robustcp.plot.slices(robustcp.cp(X, 2), X, 3)
    >>> data.get_title()
    'data, mode 0 [3]'
    """
    fit = fit.aligned_to(X)
    fixed = fixed_modes(fit, mode, index)
    data, model = data_and_model(fit, X, fixed)
    values = data, model, data - model
    limits = slice_limits(*values)
    panels = grid_or_new(axes, (3,), figsize or (10.5, 3.2))
    if data.ndim == 1:
        _draw_lines(panels, fit, values, fixed, limits)
    else:
        _draw_images(panels, fit, values, fixed, limits)
    for ax, name in zip(panels, ("data", "model", "residual"), strict=True):
        ax.set_title(slice_title(fit, fixed, name, name_first=True), fontsize="medium")
    return panels


def _draw_images(
    panels: np.ndarray,
    fit: Fit,
    values: Sequence[np.ndarray],
    fixed: Mapping[int, int],
    limits: Sequence[tuple[float, float]],
) -> None:
    maps: tuple[Colormap | str, ...] = ("cividis", "cividis", diverging_colormap())
    for ax, panel_values, cmap, panel_limits in zip(panels, values, maps, limits, strict=True):
        image = slice_image(ax, fit, panel_values, fixed, cmap, panel_limits)
        ax.figure.colorbar(image, ax=ax, extend=colorbar_extend(panel_values, panel_limits))


def _draw_lines(
    panels: np.ndarray,
    fit: Fit,
    values: Sequence[np.ndarray],
    fixed: Mapping[int, int],
    limits: Sequence[tuple[float, float]],
) -> None:
    (n,) = (n for n in range(len(fit.shape)) if n not in fixed)
    for ax, fibre, (low, high) in zip(panels, values, limits, strict=True):
        draw_curve(ax, fibre, fit.labels[n])
        margin = 0.05 * (high - low)
        ax.set_ylim(low - margin, high + margin)
        ax.set_xlabel(fit.axes.title(n))
        hide_top_and_right(ax)
    draw_zero_line(panels[2])
