"""The factors of a fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from robustcp import _checks
from robustcp.engines import to_host
from robustcp.kruskal import component_name
from robustcp.plot.axes import grid_or_new, hide_top_and_right, legend_outside
from robustcp.plot.colours import STYLES, diverging, style_of
from robustcp.plot.modes import Mode, by_number
from robustcp.plot.slicing import finite
from robustcp.plot.ticks import FEW, along, curve, index_ticks, is_ordered, label_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.fitted import Fit

KINDS = ("line", "bar", "image", "dots")


class Uncertainty(Protocol):
    """Intervals of factors; see `robustcp.uncertainty.Uncertainty`."""

    @property
    def low(self) -> Sequence[np.ndarray | None]: ...
    @property
    def high(self) -> Sequence[np.ndarray | None]: ...
    @property
    def came_back(self) -> np.ndarray: ...


def components(
    fit: Fit,
    *,
    kinds: Mapping[Mode, str] | None = None,
    shapes: Mapping[Mode, tuple[int, int]] | None = None,
    groups: Mapping[Mode, Sequence[Any]] | None = None,
    overlay: bool = False,
    uncertainty: Uncertainty | None = None,
    axes: Any = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """The factors: one row of panels for each component, one column for each mode.

    All panels of a mode have the same scale. The titles give the share of the data that each
    component explains; the one with the largest share is first. Component k is column k - 1 of the
    factors. Intervals of an `uncertainty` are bands about lines and error bars on bars; images have
    none. A component that did not come back in all resamples says so.

    Parameters
    ----------
    fit : Fit
    kinds : mapping from a mode to "line", "bar", "image" or "dots", optional
        By default lines for modes labelled with numbers or dates and bars for modes with other
        labels; without labels, bars for at most 12 indices and lines for more.
    shapes : mapping from a mode to (height, width), optional
        Modes whose indices are the pixels of an image, row by row.
    groups : mapping from a mode to one value for each index, optional
        What the indices of a mode belong to, such as the conditions of trials: dots of different
        colour and shape.
    overlay : bool
        Whether all components are drawn into one panel for each mode, as spectra often are. Not
        with images, groups or intervals.
    uncertainty : Uncertainty, optional
        Intervals of the entries of the factors; see `robustcp.uncertainty`.
    axes : array of matplotlib Axes (rank, order), or (order,) with `overlay`, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    array of matplotlib Axes (rank, order), or (order,) with `overlay`

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((4, 30, 12), 2, eta=0, gamma=0, rng=0).data
    >>> fit = robustcp.cp(X, 2)
    >>> robustcp.plot.components(fit, shapes={2: (3, 4)}).shape
    (2, 3)
    >>> robustcp.plot.components(fit, overlay=True).shape
    (3,)
    """
    if overlay:
        if shapes or groups or uncertainty is not None:
            raise ValueError("overlay: not together with shapes, groups or uncertainty")
        return _overlaid(fit, kinds, axes, figsize)
    order = len(fit.shape)
    sizes, belongs = _image_shapes(fit, shapes), _groups(fit, groups)
    drawn = _kinds(fit, kinds, sizes, belongs)
    intervals = intervals_of(fit, uncertainty)
    size = figsize or (2.7 * order, 1.45 * fit.rank + 0.5)
    grid = grid_or_new(axes, (fit.rank, order), size)
    ranked = by_share(fit)
    for n, kind in enumerate(drawn):
        A = np.asarray(to_host(fit.factors[n]), dtype=np.float64)
        for r, ax in zip(ranked, grid[:, n], strict=True):
            if kind == "image":
                _pixels(ax, A[:, r].reshape(sizes[n]), A)
                continue
            if kind == "dots":
                _dots(ax, A, r, fit.labels[n], belongs.get(n), intervals[n])
            else:
                _column(ax, r, kind, fit.labels[n], A, intervals[n])
            ax.tick_params(labelbottom=ax is grid[-1, n])
        grid[-1, n].set_xlabel(fit.axes.title(n))
        if n in belongs:
            legend_outside(grid[0, n], *grid[0, n].get_legend_handles_labels(), own=axes is None)
    for ax, r in zip(grid[:, 0], ranked, strict=True):
        ax.set_ylabel("" if drawn[0] == "image" else "unit column")
        title = f"{component_name(r)}: {fit.shares[r]:.1%} of the data"
        if uncertainty is not None and (back := float(uncertainty.came_back[r])) < 1:
            title += f",\nback in {min(math.floor(100 * back), 99)}% of resamples"
        ax.set_title(title, loc="left", fontsize="medium")
    return grid


def by_share(fit: Fit) -> list[int]:
    """Components, those with the largest share of the data first."""
    return [int(r) for r in np.argsort(-np.asarray(fit.shares, dtype=float), kind="stable")]


def _overlaid(fit: Fit, kinds: Any, axes: Any, figsize: tuple[float, float] | None) -> np.ndarray:
    order = len(fit.shape)
    drawn = _kinds(fit, kinds, {}, {})
    panels = grid_or_new(axes, (order,), figsize or (3.4 * order, 3.0))
    for n, (ax, kind) in enumerate(zip(panels, drawn, strict=True)):
        A = np.asarray(to_host(fit.factors[n]), dtype=np.float64)
        for k, r in enumerate(by_share(fit)):
            colour, line, marker = style_of(k)
            style: dict[str, Any] = {"color": colour, "linestyle": line}
            if kind != "line":
                style["linestyle"] = "none"
            if kind != "line" or len(A) <= 3 * FEW:
                style |= {"marker": marker, "markersize": 3.5}
            curve(ax, A[:, r], fit.labels[n], **style)
        ax.set_ylim(*_limits(A))
        ax.axhline(0, color="0.4", linewidth=0.7)
        ax.set_xlabel(fit.axes.title(n))
        hide_top_and_right(ax)
    panels[0].set_ylabel("unit column")
    names = [f"{component_name(r)} ({fit.shares[r]:.1%})" for r in by_share(fit)]
    legend_outside(panels[-1], panels[0].get_lines()[: fit.rank], names, own=axes is None)
    return panels


def _groups(fit: Fit, groups: Any) -> dict[int, list[Any]]:
    found = {}
    for n, values in by_number(fit, "groups", groups).items():
        each = list(values)
        if len(each) != fit.shape[n]:
            raise ValueError(
                f"groups: must be one for each of the {fit.shape[n]} indices of {fit.modes[n]}, "
                f"got {len(each)}"
            )
        found[n] = each
    return found


def _dots(
    ax: Axes,
    A: np.ndarray,
    r: int,
    labels: list[Any] | None,
    belongs: list[Any] | None,
    interval: tuple[np.ndarray, np.ndarray] | None,
) -> None:
    """Column r of a factor as dots, by the groups that its entries belong to."""
    x, order = along(ax, labels, len(A))
    names = list(dict.fromkeys(belongs or [None]))
    members = [None] * len(A) if belongs is None else belongs
    for k, name in enumerate(names):
        mine = [p for p, index in enumerate(order) if members[index] == name]
        colour, _, marker = style_of(k)
        ax.plot(
            [x[p] for p in mine], A[order[mine], r], linestyle="none", marker=marker,
            markersize=3.5, color=colour, markerfacecolor=colour if k % 2 == 0 else "none",
            label=None if name is None else label_text(name),
        )  # fmt: skip
    bottom, top = _limits(A, *(interval or ()))
    if interval is not None:
        low, high = (np.clip(end[order, r], bottom, top) for end in interval)
        ax.vlines(x, low, high, color="0.5", linewidth=0.8, zorder=0)
    ax.set_ylim(bottom, top)
    ax.axhline(0, color="0.4", linewidth=0.7)
    hide_top_and_right(ax)


def intervals_of(
    fit: Fit, uncertainty: Uncertainty | None
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """The ends of the intervals of each mode's factor, if they are known."""
    if uncertainty is None:
        return [None] * len(fit.shape)
    found = [
        None if low is None or high is None else (np.asarray(low), np.asarray(high))
        for low, high in zip(uncertainty.low, uncertainty.high, strict=True)
    ]
    known = {n: ends[0].shape for n, ends in enumerate(found) if ends is not None}
    right = {n: (size, fit.rank) for n, size in enumerate(fit.shape)}
    if len(found) != len(right) or not known.items() <= right.items():
        raise ValueError(
            f"uncertainty: must be of a fit of {fit.shape} and rank {fit.rank}, got one of "
            f"{len(found)} modes with intervals of shapes {list(known.values())}"
        )
    return found


def _image_shapes(fit: Fit, shapes: Any) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for n, shape in by_number(fit, "shapes", shapes).items():
        pair = tuple(shape) if isinstance(shape, Sequence) else ()
        if len(pair) != 2:
            raise ValueError(f"shapes: must be (height, width) for {fit.modes[n]}, got {shape!r}")
        height, width = (_checks.whole_number("shapes", size, 1) for size in pair)
        if height * width != fit.shape[n]:
            raise ValueError(
                f"shapes: {height} x {width} is not the size of {fit.modes[n]}, {fit.shape[n]}"
            )
        found[n] = height, width
    return found


def _kinds(
    fit: Fit, kinds: Any, sizes: Mapping[int, tuple[int, int]], belongs: Mapping[int, Any]
) -> list[str]:
    """How each mode is drawn."""
    given = by_number(fit, "kinds", kinds)
    drawn = []
    for n, labels in enumerate(fit.labels):
        bars = fit.shape[n] <= FEW if labels is None else not is_ordered(labels)
        usual = "bar" if bars else "line"
        usual = "image" if n in sizes else "dots" if n in belongs else usual
        drawn.append(_checks.choice("kinds", given.get(n, usual), KINDS))
        if drawn[n] == "image" and n not in sizes:
            raise ValueError(f"shapes: needs the (height, width) of {fit.modes[n]}, an image")
    return drawn


def _column(
    ax: Axes,
    r: int,
    kind: str,
    labels: list[Any] | None,
    A: np.ndarray,
    interval: tuple[np.ndarray, np.ndarray] | None,
) -> None:
    """Column r of a factor A as a line or bars, on the scale of all its columns."""
    column = A[:, r]
    bottom, top = _limits(A, *(interval or ()))
    if kind == "line":
        curve(ax, column, labels)
    else:
        ax.bar(np.arange(column.size), column, width=0.8, color=STYLES[1][0])
        index_ticks(ax.xaxis, labels, column.size)
    if interval is not None:  # what has no end runs to the edge
        low, high = (np.clip(end[:, r], bottom, top) for end in interval)
        if kind == "line":
            x, order = along(ax, labels, column.size)
            style: dict[str, Any] = {"color": STYLES[1][0], "alpha": 0.25, "linewidth": 0}
            ax.fill_between(x, low[order], high[order], **style)
        else:
            _error_bars(ax, low, high)
    ax.set_ylim(bottom, top)
    ax.axhline(0, color="0.4", linewidth=0.7)
    hide_top_and_right(ax)


def _limits(*values: np.ndarray) -> tuple[float, float]:
    """Limits with some margin that hold zero and all that is finite."""
    known = np.concatenate([[0.0], *(finite(part) for part in values)])
    low, high = float(known.min()), float(known.max())
    margin = 0.06 * ((high - low) or 1.0)
    return low - margin * (low < 0), high + margin


def _error_bars(ax: Axes, low: np.ndarray, high: np.ndarray) -> None:
    """Intervals, which need not hold the entries themselves; a band where bars are dense."""
    index = np.arange(low.size)
    if low.size > 3 * FEW:
        ax.fill_between(index, low, high, step="mid", color="0.1", alpha=0.35, linewidth=0)
        return
    ax.vlines(index, low, high, color="0.1", linewidth=1.2)
    for end in (low, high):
        ax.plot(index, end, linestyle="none", marker="_", color="0.1", markersize=4)


def _pixels(ax: Axes, pixels: np.ndarray, A: np.ndarray) -> None:
    """One column of a factor A as an image, on the scale of all its columns."""
    most = float(np.abs(A).max()) or 1.0
    signed = bool((A < 0).any())
    image = ax.imshow(
        pixels, cmap=diverging() if signed else "cividis", vmin=-most if signed else 0.0,
        vmax=most, interpolation="nearest",
    )  # fmt: skip
    ax.figure.colorbar(image, ax=ax)
    ax.set_xticks([])
    ax.set_yticks([])
