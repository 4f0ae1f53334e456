"""Flagged entries: their share in each slab, and maps of cells."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.plot.axes import axes_or_new, hide_top_and_right
from robustcp.plot.blocks import block_labels, block_sizes, block_sums
from robustcp.plot.colours import STYLES, cells
from robustcp.plot.labelling import shortened
from robustcp.plot.modes import Mode, mode_number
from robustcp.plot.slicing import arrows, finite, fixed_modes, hatched, slice_title
from robustcp.plot.ticks import FEW, index_ticks, is_ordered, name_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from robustcp.fitted import Fit
    from robustcp.outlying import Outliers


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
    few = shares.size <= FEW
    ax.bar(np.arange(shares.size), 100 * shares, width=0.8 if few else 1.0, color=STYLES[1][0])
    index_ticks(ax.xaxis, found.fit.labels[n], shares.size)
    ax.axhline(100 * found.by_chance, color="0.1", linestyle=":", linewidth=1.2,
               label=f"by chance: {100 * found.by_chance:.2g}%")  # fmt: skip
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
    fixed, averaged = _places(fit, mode, index)
    shown = [n for n in range(len(fit.shape)) if n not in fixed and n not in averaged]
    steps = block_sizes(blocks, [1, *(fit.shape[n] for n in shown)][-2:])
    limit = 3 * found.threshold if math.isfinite(found.threshold) else 10.0
    colours, norm = cells(found.threshold / limit), Normalize(-limit, limit)
    values, ends, share = _values(found, fixed, averaged, steps, lambda v: colours(norm(v)))
    labels = fit.labels[shown[0]]
    ax = axes_or_new(ax, figsize or (7, _height([fit.labels[n] for n in shown], len(values))))
    image = ax.imshow(
        values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest",
        origin="lower" if labels is not None and is_ordered(labels) else "upper",
    )  # fmt: skip
    hatched(ax)
    ax.set_yticks([])
    _scale_bar(ax, image, found.threshold, arrows(ends, (-limit, limit)))
    over = f"mean over {', '.join(fit.modes[n] for n in averaged)}, " if averaged else ""
    ax.set_title(slice_title(fit, fixed, f"{over}{share:.1%} flagged"), fontsize="medium")
    for _ in range(2):  # names take room, and how many there is room for is known after that
        for axis, n, step in zip((ax.xaxis, ax.yaxis), shown[::-1], steps[::-1], strict=False):
            texts = block_labels(fit.labels[n], fit.shape[n], step)
            name_ticks(axis, texts, math.ceil(fit.shape[n] / step))
            axis.set_label_text(fit.axes.title(n) + (f" (blocks of {step})" if step > 1 else ""))
        ax.figure.canvas.figure.draw_without_rendering()
    return ax


def _places(fit: Fit, mode: Any, index: Any) -> tuple[dict[int, int], list[int]]:
    """The index of each fixed mode, and the modes that are averaged."""
    if mode is None and index is not None:
        raise ValueError(f"index: needs the mode that it is of, got {index!r}")
    modes = range(2, len(fit.shape)) if mode is None else mode
    if index is not None:
        return fixed_modes(fit, mode, index), []
    several = list(modes) if isinstance(modes, range | tuple | list) else [modes]
    return {}, list(fixed_modes(fit, several, [0] * len(several)))


def _values(
    found: Outliers,
    fixed: Mapping[int, int],
    averaged: Sequence[int],
    steps: tuple[int, int],
    colours: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, float]:
    """What is drawn, the least and largest score, and the share of flagged entries.

    The scores of a slice, if its cells are drawn one by one; otherwise mean colours.
    """
    total, flagged, known, ends = np.zeros(()), 0, 0, [0.0, 0.0]
    for at in itertools.product(*(range(found.fit.shape[n]) for n in averaged)):
        place = {**fixed, **dict(zip(averaged, at, strict=True))}
        scores = np.atleast_2d(found.scores_of(place))
        seen = finite(scores)
        flagged += int(np.count_nonzero(np.abs(seen) > found.threshold))
        known += seen.size
        ends = [min(seen.min(initial=0.0), ends[0]), max(seen.max(initial=0.0), ends[1])]
        if not averaged and steps == (1, 1):
            return scores, np.array(ends), flagged / max(known, 1)
        total = total + block_sums(scores, steps, colours)
    opaque = total[..., 3:]  # missing cells are transparent
    mean = np.where(opaque > 0, total / np.maximum(opaque, 1), 0.0)
    return mean, np.array(ends), flagged / max(known, 1)


def _height(labels: Sequence[list[Any] | None], rows: int) -> float:
    """The height of a figure, in inches: with room for names of rows, and of columns below."""
    *vertical, columns = (
        [] if names is None or is_ordered(names) else [shortened(str(name)) for name in names]
        for names in labels
    )
    below = max(0.07 * max(map(len, columns), default=0), 1.0)
    return max(3.8, 1.2 + below + 0.13 * rows) if any(vertical) else 3.8


def _scale_bar(ax: Axes, image: AxesImage, threshold: float, extend: str) -> None:
    """What the colour of a single cell says."""
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
