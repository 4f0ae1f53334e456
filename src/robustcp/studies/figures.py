"""What the figures and tables of the studies have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.studies.results_file import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The colour, hatch and marker of each method.
METHOD_STYLES = {
    "CPALS": ("#D55E00", "//", "s"),
    "CPAL1 as published": ("#56B4E9", "..", "D"),
    "CPAL1": ("#0072B2", "", "o"),
    "cp": ("#009E73", "xx", "v"),
    "cp_at_truth": ("#CC79A7", "++", "P"),
    "oracle": ("#999999", "--", "^"),
    "linear programs": ("#D55E00", "", "s"),
    "weighted medians": ("#009E73", "", "^"),
}
METHOD_STYLES |= {"cpals": METHOD_STYLES["CPALS"], "cpal1": METHOD_STYLES["CPAL1"]}


def list_methods(rows: Sequence[Row]) -> list[str]:
    """The methods of some rows, in the order in which they come."""
    return list(dict.fromkeys(r["method"] for r in rows))


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [header, ["---"] * len(header), *lines]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows)


def make_panels(
    count: int, label: str, width: float = 8, height: float = 3.6, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with some panels side by side."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, count, figsize=(width, height), layout="constrained", squeeze=False, **options
    )
    panel_axes = list(axes[0])
    panel_axes[0].set_ylabel(label)
    for ax in panel_axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, panel_axes


def add_legend(figure: Figure, methods: Sequence[str]) -> None:
    """Which method has which colour and hatch, above the panels."""
    from matplotlib.patches import Patch

    _add_legend_above(
        figure,
        [
            Patch(facecolor=METHOD_STYLES[m][0], hatch=METHOD_STYLES[m][1], alpha=0.75, label=m)
            for m in methods
        ],
    )


def add_line_legend(figure: Figure, methods: Sequence[str]) -> None:
    """Which method has which line and marker, above the panels."""
    from matplotlib.lines import Line2D

    _add_legend_above(
        figure,
        [
            Line2D(
                [], [], color=METHOD_STYLES[m][0], marker=METHOD_STYLES[m][2], markersize=4, label=m
            )
            for m in methods
        ],
    )


def _add_legend_above(figure: Figure, handles: Sequence[Any]) -> None:
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)


def set_score_scale(ax: Axes) -> None:
    """A scale on which scores near 1 are told apart, in powers of their distance from it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    smallest = 1e-4
    ax.set_yscale(
        "function",
        functions=(
            lambda y: -np.log10(np.maximum(1 + smallest - np.asarray(y), smallest / 2)),
            lambda z: 1 + smallest - 10.0 ** -np.asarray(z),
        ),
    )
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_locator(FixedLocator([0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 1]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
