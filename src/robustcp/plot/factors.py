"""The factors of a fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp._util.text import label_text
from robustcp.engines import to_host
from robustcp.model.kruskal import component_name
from robustcp.plot.axes import add_legend, draw_zero_line, grid_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES, diverging_colormap, style_of
from robustcp.plot.modes import Mode, resolve_modes
from robustcp.plot.slicing import finite_values
from robustcp.plot.ticks import (
    FEW_INDICES,
    draw_curve,
    is_ordered,
    prepare_x_axis,
    set_index_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.inference.uncertainty import Uncertainty
    from robustcp.results.fit import Fit

PANEL_KINDS = ("line", "bar", "image", "dots")


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
    component explains. Components are in the order of their weights: component k is column k - 1 of
    the factors. Intervals of an `uncertainty` are bands about lines and error bars on bars; images
    have none. A component that did not come back in all resamples says so.

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
        Intervals of the entries of the factors; see `robustcp.inference.uncertainty`.
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
        return _draw_overlay(fit, kinds, axes, figsize)
    order = len(fit.shape)
    image_shapes, memberships = _image_shapes(fit, shapes), _check_groups(fit, groups)
    panel_kinds = _panel_kinds(fit, kinds, image_shapes, memberships)
    intervals = intervals_of(fit, uncertainty)
    size = figsize or (2.7 * order, 1.45 * fit.rank + 0.5)
    grid = grid_or_new(axes, (fit.rank, order), size)
    for n, kind in enumerate(panel_kinds):
        A = np.asarray(to_host(fit.factors[n]), dtype=np.float64)
        for r, ax in enumerate(grid[:, n]):
            if kind == "image":
                _draw_image(ax, A[:, r].reshape(image_shapes[n]), A)
                continue
            _draw_column(ax, A, r, kind, fit.labels[n], memberships.get(n), intervals[n])
            ax.tick_params(labelbottom=ax is grid[-1, n])
        grid[-1, n].set_xlabel(fit.axes.title(n))
        if n in memberships:
            add_legend(grid[0, n], *grid[0, n].get_legend_handles_labels(), own_figure=axes is None)
    for r, ax in enumerate(grid[:, 0]):
        ax.set_ylabel("" if panel_kinds[0] == "image" else "unit column")
        title = f"{component_name(r)}: {fit.shares[r]:.1%} of the data"
        if uncertainty is not None and (recovered_share := float(uncertainty.came_back[r])) < 1:
            title += f",\nback in {min(math.floor(100 * recovered_share), 99)}% of resamples"
        ax.set_title(title, loc="left", fontsize="medium")
    return grid


def _draw_overlay(
    fit: Fit, kinds: Any, axes: Any, figsize: tuple[float, float] | None
) -> np.ndarray:
    order = len(fit.shape)
    panel_kinds = _panel_kinds(fit, kinds, {}, {})
    panels = grid_or_new(axes, (order,), figsize or (3.4 * order, 3.0))
    for n, (ax, kind) in enumerate(zip(panels, panel_kinds, strict=True)):
        A = np.asarray(to_host(fit.factors[n]), dtype=np.float64)
        for r in range(fit.rank):
            colour, line, marker = style_of(r)
            style: dict[str, Any] = {"color": colour, "linestyle": line}
            if kind != "line":
                style["linestyle"] = "none"
            if kind != "line" or len(A) <= 3 * FEW_INDICES:
                style |= {"marker": marker, "markersize": 3.5}
            draw_curve(ax, A[:, r], fit.labels[n], **style)
        ax.set_ylim(*limits_with_zero(A))
        draw_zero_line(ax)
        ax.set_xlabel(fit.axes.title(n))
        hide_top_and_right(ax)
    panels[0].set_ylabel("unit column")
    names = [f"{component_name(r)} ({fit.shares[r]:.1%})" for r in range(fit.rank)]
    add_legend(panels[-1], panels[0].get_lines()[: fit.rank], names, own_figure=axes is None)
    return panels


def _check_groups(fit: Fit, groups: Any) -> dict[int, list[Any]]:
    memberships = {}
    for n, values in resolve_modes(fit, "groups", groups).items():
        membership = list(values)
        if len(membership) != fit.shape[n]:
            raise ValueError(
                f"groups: must be one for each of the {fit.shape[n]} indices of {fit.modes[n]}, "
                f"got {len(membership)}"
            )
        memberships[n] = membership
    return memberships


def intervals_of(
    fit: Fit, uncertainty: Uncertainty | None
) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """The lower and upper ends of the intervals of each factor; None where unknown."""
    if uncertainty is None:
        return [None] * len(fit.shape)
    intervals = [
        None if low is None or high is None else (np.asarray(low), np.asarray(high))
        for low, high in zip(uncertainty.low, uncertainty.high, strict=True)
    ]
    interval_shapes = {n: ends[0].shape for n, ends in enumerate(intervals) if ends is not None}
    factor_shapes = {n: (size, fit.rank) for n, size in enumerate(fit.shape)}
    if len(intervals) != len(factor_shapes) or not interval_shapes.items() <= factor_shapes.items():
        raise ValueError(
            f"uncertainty: must be of a fit of {fit.shape} and rank {fit.rank}, got one of "
            f"{len(intervals)} modes with intervals of shapes {list(interval_shapes.values())}"
        )
    return intervals


def _image_shapes(fit: Fit, shapes: Any) -> dict[int, tuple[int, int]]:
    image_shapes: dict[int, tuple[int, int]] = {}
    for n, shape in resolve_modes(fit, "shapes", shapes).items():
        pair = tuple(shape) if isinstance(shape, Sequence) else ()
        if len(pair) != 2:
            raise ValueError(f"shapes: must be (height, width) for {fit.modes[n]}, got {shape!r}")
        height, width = (checks.whole_number("shapes", size, 1) for size in pair)
        if height * width != fit.shape[n]:
            raise ValueError(
                f"shapes: {height} x {width} is not the size of {fit.modes[n]}, {fit.shape[n]}"
            )
        image_shapes[n] = height, width
    return image_shapes


def _panel_kinds(
    fit: Fit,
    kinds: Any,
    image_shapes: Mapping[int, tuple[int, int]],
    memberships: Mapping[int, Any],
) -> list[str]:
    """The kind of panel for each mode."""
    requested = resolve_modes(fit, "kinds", kinds)
    panel_kinds = []
    for n, labels in enumerate(fit.labels):
        as_bars = fit.shape[n] <= FEW_INDICES if labels is None else not is_ordered(labels)
        default_kind = "bar" if as_bars else "line"
        default_kind = (
            "image" if n in image_shapes else "dots" if n in memberships else default_kind
        )
        panel_kinds.append(checks.choice("kinds", requested.get(n, default_kind), PANEL_KINDS))
        if panel_kinds[n] == "image" and n not in image_shapes:
            raise ValueError(f"shapes: needs the (height, width) of {fit.modes[n]}, an image")
    return panel_kinds


def _draw_column(
    ax: Axes,
    A: np.ndarray,
    r: int,
    kind: str,
    labels: list[Any] | None,
    membership: list[Any] | None,
    interval: tuple[np.ndarray, np.ndarray] | None,
) -> None:
    """Draw column r of a factor A as a line, bars or dots, on the scale of all its columns."""
    bottom, top = limits_with_zero(A, *(interval or ()))
    x, order = np.arange(len(A)), np.arange(len(A))
    if kind == "line":
        draw_curve(ax, A[:, r], labels)
    elif kind == "bar":
        ax.bar(x, A[:, r], width=0.8, color=STYLES[1][0])
        set_index_ticks(ax.xaxis, labels, len(A))
    if kind != "bar":
        x, order = prepare_x_axis(ax, labels, len(A))
    if kind == "dots":
        members = [None] * len(A) if membership is None else [membership[k] for k in order]
        _draw_groups(ax, x, A[order, r], members)
    if interval is not None:  # an infinite end is drawn to the edge
        low, high = (np.clip(end[order, r], bottom, top) for end in interval)
        if kind == "line":
            ax.fill_between(x, low, high, color=STYLES[1][0], alpha=0.25, linewidth=0)
        elif kind == "bar":
            _draw_error_bars(ax, low, high)
        else:
            ax.vlines(x, low, high, color="0.5", linewidth=0.8, zorder=0)
    ax.set_ylim(bottom, top)
    draw_zero_line(ax)
    hide_top_and_right(ax)


def _draw_groups(ax: Axes, x: Any, values: np.ndarray, members: list[Any]) -> None:
    """Draw values as dots, with a colour and a shape for each group."""
    for k, name in enumerate(dict.fromkeys(members)):
        positions = [p for p, member in enumerate(members) if member == name]
        colour, _, marker = style_of(k)
        ax.plot(
            [x[p] for p in positions],
            values[positions],
            linestyle="none",
            marker=marker,
            markersize=3.5,
            color=colour,
            markerfacecolor=colour if k % 2 == 0 else "none",
            label=None if name is None else label_text(name),
        )


def limits_with_zero(*values: np.ndarray) -> tuple[float, float]:
    """Limits with some margin that hold zero and all that is finite."""
    pooled = np.concatenate([[0.0], *(finite_values(array) for array in values)])
    low, high = float(pooled.min()), float(pooled.max())
    margin = 0.06 * ((high - low) or 1.0)
    return low - margin * (low < 0), high + margin


def _draw_error_bars(ax: Axes, low: np.ndarray, high: np.ndarray) -> None:
    """Draw intervals as error bars, or as a band if there are many."""
    index = np.arange(low.size)
    if low.size > 3 * FEW_INDICES:
        ax.fill_between(index, low, high, step="mid", color="0.1", alpha=0.35, linewidth=0)
        return
    ax.vlines(index, low, high, color="0.1", linewidth=1.2)
    for end in (low, high):
        ax.plot(index, end, linestyle="none", marker="_", color="0.1", markersize=4)


def _draw_image(ax: Axes, pixels: np.ndarray, A: np.ndarray) -> None:
    """Draw a column of a factor A as an image, on the scale of all its columns."""
    largest = float(np.abs(A).max()) or 1.0
    signed = bool((A < 0).any())
    image = ax.imshow(
        pixels,
        cmap=diverging_colormap() if signed else "cividis",
        vmin=-largest if signed else 0.0,
        vmax=largest,
        interpolation="nearest",
    )
    ax.figure.colorbar(image, ax=ax)
    ax.set_xticks([])
    ax.set_yticks([])
