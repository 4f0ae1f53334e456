"""Flagged entries: their share in each slab, and maps of cells."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.text import shorten
from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.blocks import block_labels, block_sizes, block_sums
from robustcp.plot.colours import STYLES, cell_colormap
from robustcp.plot.modes import Mode, mode_number
from robustcp.plot.slicing import (
    colorbar_extend,
    finite_values,
    fixed_modes,
    hatch_background,
    slice_title,
)
from robustcp.plot.ticks import FEW_INDICES, is_ordered, set_index_ticks, set_name_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from robustcp.results.fit import Fit
    from robustcp.results.outliers import Outliers


def outliers(
    found: Outliers,
    mode: Mode = 0,
    *,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """The percentage of flagged entries in each slab of a mode, and what chance would flag.

    Parameters
    ----------
    found : Outliers
    mode : int or str
    ax : matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> found = robustcp.cp(X, 2).outliers(X)
    >>> robustcp.plot.outliers(found, 1).get_xlabel()
    'mode 1'
    """
    n = mode_number(found.fit, "mode", mode)
    ax = axes_or_new(ax, figsize or (8, 2.8))
    shares = found.slabs[n]
    few_slabs = shares.size <= FEW_INDICES
    ax.bar(
        np.arange(shares.size), 100 * shares, width=0.8 if few_slabs else 1.0, color=STYLES[1][0]
    )
    set_index_ticks(ax.xaxis, found.fit.labels[n], shares.size)
    ax.axhline(
        100 * found.by_chance,
        color="0.1",
        linestyle=":",
        linewidth=1.2,
        label=f"by chance: {100 * found.by_chance:.2g}%",
    )
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    ax.set_xlim(-0.6, shares.size - 0.4)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(found.fit.axes.title(n))
    ax.set_ylabel("flagged entries, %")
    hide_top_and_right(ax)
    return ax


def cellmap(
    found: Outliers,
    mode: Mode | Sequence[Mode] | None = None,
    index: int | Sequence[int] | None = None,
    *,
    blocks: int | Sequence[int] | None = None,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """The cells that the model does not account for: red if too high, blue if too low.

    Ordinary cells are pale yellow, flagged ones darker the larger their score, up to three times
    the threshold; missing ones are hatched. In greyscale every blue is darker than every red. A
    cell of the picture that stands for several of the data has the mean of their colours, as in
    the cellmaps of R's cellWise.

    Parameters
    ----------
    found : Outliers
    mode, index : int, or a sequence with one for each mode, optional
        Which slice: `mode` is fixed at `index`, see `slices`. Without `index`, all slices of
        `mode` are averaged. Without either the first two modes are shown, such as samples and
        variables, averaged over the others.
    blocks : int or (rows, columns), optional
        How many rows and columns become one; by default so many that there are no more than
        60 x 100 cells. Ticks then name the first and last of a block.
    ax : matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> found = robustcp.cp(X, 2).outliers(X)
    >>> robustcp.plot.cellmap(found, 0, 3).get_ylabel()
    'mode 1'
    >>> robustcp.plot.cellmap(found).get_ylabel()
    'mode 0'
    """
    from matplotlib.colors import Normalize

    fit = found.fit
    fixed, averaged = _fixed_and_averaged_modes(fit, mode, index)
    shown_modes = [n for n in range(len(fit.shape)) if n not in fixed and n not in averaged]
    block_shape = block_sizes(blocks, [1, *(fit.shape[n] for n in shown_modes)][-2:])
    limit = 3 * found.threshold if math.isfinite(found.threshold) else 10.0
    colormap, norm = cell_colormap(found.threshold / limit), Normalize(-limit, limit)
    values, score_range, flagged_share = _cell_values(
        found, fixed, averaged, block_shape, lambda v: colormap(norm(v))
    )
    labels = fit.labels[shown_modes[0]]
    ax = axes_or_new(
        ax, figsize or (7, _figure_height([fit.labels[n] for n in shown_modes], len(values)))
    )
    image = ax.imshow(
        values,
        cmap=colormap,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        origin="lower" if labels is not None and is_ordered(labels) else "upper",
    )
    hatch_background(ax)
    ax.set_yticks([])
    _draw_colorbar(ax, image, found.threshold, colorbar_extend(score_range, (-limit, limit)))
    prefix = f"mean over {', '.join(fit.modes[n] for n in averaged)}, " if averaged else ""
    ax.set_title(slice_title(fit, fixed, f"{prefix}{flagged_share:.1%} flagged"), fontsize="medium")
    for _ in range(2):  # names take room, and how many there is room for is known after that
        for axis, n, step in zip(
            (ax.xaxis, ax.yaxis), shown_modes[::-1], block_shape[::-1], strict=False
        ):
            texts = block_labels(fit.labels[n], fit.shape[n], step)
            set_name_ticks(axis, texts, math.ceil(fit.shape[n] / step))
            axis.set_label_text(fit.axes.title(n) + (f" (blocks of {step})" if step > 1 else ""))
        ax.figure.canvas.figure.draw_without_rendering()
    return ax


def _fixed_and_averaged_modes(fit: Fit, mode: Any, index: Any) -> tuple[dict[int, int], list[int]]:
    """The index of each fixed mode, and the modes that are averaged."""
    if mode is None and index is not None:
        raise ValueError(f"index: needs the mode that it is of, got {index!r}")
    modes = range(2, len(fit.shape)) if mode is None else mode
    if index is not None:
        return fixed_modes(fit, mode, index), []
    averaged = list(modes) if isinstance(modes, range | tuple | list) else [modes]
    return {}, list(fixed_modes(fit, averaged, [0] * len(averaged)))


def _cell_values(
    outliers: Outliers,
    fixed: Mapping[int, int],
    averaged: Sequence[int],
    block_shape: tuple[int, int],
    colormap: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, float]:
    """The values of the image, the range of the scores, and the share of flagged entries.

    Values are the scores of a slice if its cells are drawn one by one, otherwise mean colours.
    """
    colour_sums, flagged_count, observed_count, score_range = np.zeros(()), 0, 0, [0.0, 0.0]
    for indices in itertools.product(*(range(outliers.fit.shape[n]) for n in averaged)):
        slice_indices = {**fixed, **dict(zip(averaged, indices, strict=True))}
        scores = np.atleast_2d(outliers.scores_of(slice_indices))
        observed = finite_values(scores)
        flagged_count += int(np.count_nonzero(np.abs(observed) > outliers.threshold))
        observed_count += observed.size
        score_range = [
            min(observed.min(initial=0.0), score_range[0]),
            max(observed.max(initial=0.0), score_range[1]),
        ]
        if not averaged and block_shape == (1, 1):
            return scores, np.array(score_range), flagged_count / max(observed_count, 1)
        colour_sums = colour_sums + block_sums(scores, block_shape, colormap)
    opaque = colour_sums[..., 3:]  # missing cells are transparent
    mean = np.where(opaque > 0, colour_sums / np.maximum(opaque, 1), 0.0)
    return mean, np.array(score_range), flagged_count / max(observed_count, 1)


def _figure_height(labels: Sequence[list[Any] | None], rows: int) -> float:
    """The height of a figure in inches, with room for the names of rows and columns."""
    *vertical, columns = (
        [] if names is None or is_ordered(names) else [shorten(str(name)) for name in names]
        for names in labels
    )
    label_height = max(0.07 * max(map(len, columns), default=0), 1.0)
    return max(3.8, 1.2 + label_height + 0.13 * rows) if any(vertical) else 3.8


def _draw_colorbar(ax: Axes, image: AxesImage, threshold: float, extend: str) -> None:
    """Draw the colour bar of the scores."""
    bar = ax.figure.colorbar(image, ax=ax, extend=extend)
    bar.set_label("residual, in units of its own noise")
    if math.isfinite(threshold):
        bar.set_ticks([s * threshold for s in range(-3, 4)])
        bar.ax.yaxis.set_major_formatter("{x:.1f}")


def outlier_map(
    found: Outliers,
    mode: Mode | Sequence[Mode] = 0,
    index: int | Sequence[int] = 0,
    *,
    ax: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """The old name of `cellmap`.

    .. deprecated:: 0.2

    Examples
    --------
    >>> import matplotlib, robustcp, warnings
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> found = robustcp.cp(X, 2).outliers(X)
    >>> with warnings.catch_warnings(action="ignore"):
    ...     robustcp.plot.outlier_map(found, 0, 3).get_ylabel()
    'mode 1'
    """
    warnings.warn("plot.outlier_map is now plot.cellmap", DeprecationWarning, stacklevel=2)
    return cellmap(found, mode, index, ax=ax, figsize=figsize)
