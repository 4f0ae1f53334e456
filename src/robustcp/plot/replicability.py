"""The similarity of models of parts of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.engines import to_host
from robustcp.model.kruskal import KruskalTensor, component_name
from robustcp.plot.axes import draw_zero_line, grid_or_new, hide_top_and_right
from robustcp.plot.colours import STYLES
from robustcp.plot.ensembles import draw_dots
from robustcp.plot.modes import Mode, mode_number
from robustcp.plot.ticks import draw_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from robustcp.inference.replicability import Replicability

#: The largest numbers of splits that are named in legends, and of pairs at ticks.
MAX_NAMED_SPLITS, MAX_PAIR_TICKS = 3, 6
#: Congruences from which factors are fairly alike, and the same (Lorenzo-Seva and ten Berge).
FAIR_CONGRUENCE, EQUAL_CONGRUENCE = 0.85, 0.95


def split_half(
    found: Replicability,
    *,
    modes: Sequence[Mode] | None = None,
    axes: Any = None,
    figsize: tuple[float, float] | None = None,
) -> np.ndarray:
    """The factors of the halves over each other: one row for each component, one column a mode.

    Columns have unit length. The fit of all data is a broad grey line. Each split has a colour
    and a marker; its two halves are a solid and a dashed line, and its score is in the legend.

    Parameters
    ----------
    found : Replicability
    modes : sequence of int or str, optional
        Which modes; by default all but the one that was split.
    axes : array of matplotlib Axes (rank, number of modes), optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    array of matplotlib Axes (rank, number of modes)

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((16, 9, 8), 2, eta=0.05, gamma=0.5, rng=0).data
    >>> halves = robustcp.replicability(X, 2, mode=0, preset="split_half", jobs=1)
    >>> robustcp.plot.split_half(halves).shape
    (2, 2)
    """
    fit, shown_modes = found.fit, _modes_to_draw(found, modes)
    grid = grid_or_new(
        axes, (fit.rank, len(shown_modes)), figsize or _figure_size(fit.rank, len(shown_modes))
    )
    unit_factors = [_unit_columns(model) for model in (fit.model, *found.models)]
    for panels, n in zip(grid.T, shown_modes, strict=True):
        whole, *halves = (factors[n] for factors in unit_factors)
        for r, ax in enumerate(panels):
            _draw_overlay(ax, found, whole[:, r], [A[:, r] for A in halves], fit.labels[n])
            ax.tick_params(labelbottom=ax is panels[-1])
        panels[-1].set_xlabel(fit.axes.title(n))
    for r, ax in enumerate(grid[:, 0]):
        lowest, highest = np.nanmin(found.congruences[:, r]), np.nanmax(found.congruences[:, r])
        title = f"{component_name(r)}: congruence {lowest:.2f} to {highest:.2f}"
        ax.set_title(title, loc="left", fontsize="medium")
        ax.set_ylabel("unit column")
    _draw_legend(grid, found, own_figure=axes is None)
    return grid


def _figure_size(rows: int, columns: int) -> tuple[float, float]:
    return max(3.2 * columns, 7.4), 1.5 * rows + 1.1


def _modes_to_draw(result: Replicability, modes: Sequence[Mode] | None) -> list[int]:
    if modes is None:
        return [n for n in range(len(result.fit.shape)) if n != result.mode]
    if isinstance(modes, str) or not isinstance(modes, Sequence) or not modes:
        raise ValueError(f"modes: must be a sequence of modes, got {modes!r}")
    shown_modes = [mode_number(result.fit, "modes", mode) for mode in modes]
    if result.mode in shown_modes:
        raise ValueError(
            f"modes: {_split_mode_name(result)} was split, so that halves are not alike in it"
        )
    return shown_modes


def _unit_columns(model: KruskalTensor) -> list[np.ndarray]:
    factors = [np.asarray(to_host(A), dtype=np.float64) for A in model.factors]
    return [A / np.maximum(np.linalg.norm(A, axis=0), np.finfo(float).tiny) for A in factors]


def _draw_overlay(
    ax: Axes,
    result: Replicability,
    whole: np.ndarray,
    halves: Sequence[np.ndarray],
    labels: list[Any] | None,
) -> None:
    """Draw a column of the fit and of each half."""
    draw_curve(ax, whole, labels, color="0.8", linewidth=5, marker="")
    marker_spacing = max(1, whole.size // 8)  # markers, at other places for each split
    for k, pair in enumerate(result.pairs):
        for line, half in enumerate(pair):
            first_marker = (
                k * marker_spacing // min(len(result.pairs), MAX_NAMED_SPLITS) % marker_spacing
            )
            draw_curve(
                ax,
                halves[half],
                labels,
                markevery=(first_marker, marker_spacing),
                **_line_style(k, line),
            )
    draw_zero_line(ax)
    hide_top_and_right(ax)


def _draw_legend(grid: np.ndarray, result: Replicability, *, own_figure: bool) -> None:
    """Draw the legend of the lines, with the score of each split."""
    from matplotlib.lines import Line2D

    scores, handles = np.asarray(result.scores), []
    for k, (pair, score) in enumerate(zip(result.pairs[:MAX_NAMED_SPLITS], scores, strict=False)):
        first, second = (result.names[half] for half in pair)
        for line, label in ((0, first), (1, f"{second} (score {score:.3f})")):
            handles.append(Line2D([], [], label=label, **_line_style(k, line)))
    handles.append(Line2D([], [], color="0.8", linewidth=5, label="all data"))
    if (unnamed_count := len(result.pairs) - MAX_NAMED_SPLITS) > 0:
        label = f"{unnamed_count} more ({np.nanmin(scores):.3f} to {np.nanmax(scores):.3f})"
        handles.append(Line2D([], [], linestyle="none", label=label))
    if own_figure:
        grid[0, 0].figure.legend(
            handles=handles,
            loc="outside upper left",
            ncols=-(-len(handles) // 2),
            frameon=False,
            fontsize="small",
            columnspacing=1.2,
        )
    else:
        grid[0, -1].legend(handles=handles, fontsize="x-small", framealpha=0.8)


def _line_style(split: int, half: int) -> dict[str, Any]:
    """The style of the line of a half of a split."""
    colour, _, marker = STYLES[(split + 1) % len(STYLES)]
    return {
        "color": colour,
        "linestyle": ("-", "--")[half],
        "linewidth": 1.1 if split < MAX_NAMED_SPLITS else 0.6,
        "marker": marker if split < MAX_NAMED_SPLITS else "",
        "markersize": 3.5,
        "markerfacecolor": (colour, "w")[half],
    }


def replicability(
    found: Replicability, *, axes: Any = None, figsize: tuple[float, float] | None = None
) -> np.ndarray:
    """The scores of pairs of fits, and the congruence of each component with the fit of all data.

    One dot for each split or half, over a box of the quartiles if there are five. Dotted lines
    are at 0.85, from which factors are fairly alike, and at 0.95, from which they are the same
    for all purposes (Lorenzo-Seva and ten Berge, 2006).

    Parameters
    ----------
    found : Replicability
    axes : array of two matplotlib Axes, optional
    figsize : (width, height) in inches, optional

    Returns
    -------
    array of two matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((12, 9, 8), 2, eta=0.05, gamma=0.5, rng=0).data
    >>> found = robustcp.replicability(X, 2, mode=0, folds=3, jobs=1)
    >>> robustcp.plot.replicability(found)[0].get_xlabel()
    '3 pairs of parts of mode 0'
    """
    panels = grid_or_new(axes, (2,), figsize or (9, 3.4))
    scores = np.asarray(found.scores, dtype=np.float64)
    congruences = np.asarray(found.congruences, dtype=np.float64)
    splits = [f"{found.names[a]}, {found.names[b]}" for a, b in found.pairs]
    few_pairs = scores.size <= MAX_PAIR_TICKS
    _draw_boxes(panels[0], list(scores[:, None]) if few_pairs else [scores], STYLES[1])
    panels[0].set_xticks(range(scores.size) if few_pairs else [], splits if few_pairs else [])
    panels[0].set_xlim(-0.7, (scores.size if few_pairs else 1) - 0.3)
    panels[0].set_xlabel(
        f"{scores.size} pair{'s' * (scores.size != 1)} of parts of {_split_mode_name(found)}"
    )
    panels[0].set_ylabel("score of two fits")
    _draw_boxes(panels[1], list(congruences.T), STYLES[0])
    panels[1].set_xticks(range(congruences.shape[1]))
    panels[1].set_xlabel("component")
    panels[1].set_ylabel("congruence with the fit")
    lowest = np.nanmin(np.concatenate([scores, congruences.ravel(), [0.8]]))
    for ax in panels:
        ax.set_ylim(lowest - 0.05 * (1 - lowest), 1 + 0.05 * (1 - lowest))
        for level in (FAIR_CONGRUENCE, EQUAL_CONGRUENCE):
            ax.axhline(level, color="0.5", linestyle=":", linewidth=1, zorder=1)
        hide_top_and_right(ax)
    return panels


def _split_mode_name(result: Replicability) -> str:
    return result.fit.modes[result.mode]


def _draw_boxes(ax: Axes, groups: Sequence[np.ndarray], style: tuple[str, str, str]) -> None:
    """Draw dots side by side, over the quartiles and the median of each group."""
    for k, group in enumerate(groups):
        values = group[np.isfinite(group)]
        if values.size > 4:
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
            ax.bar(k, high - low, 0.8, low, color="0.9", edgecolor="0.5", linewidth=0.8, zorder=0.5)
            ax.plot([k - 0.4, k + 0.4], [middle, middle], color="0.3", linewidth=1.5, zorder=2)
        draw_dots(ax, k, values, style)
