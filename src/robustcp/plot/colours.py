"""Colours, line styles and markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

#: (colour, line style, marker), safe for colour-blind readers and distinct in greyscale.
STYLES = (("#D55E00", "--", "s"), ("#0072B2", "-", "o"), ("#009E73", ":", "^"))

#: Colours, line styles and markers for more than three lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F5539")
_LINE_STYLES, _MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X", "*")


def style_of(k: int) -> tuple[str, str, str]:
    """The colour, line style and marker of the k-th of any number of lines.

    >>> style_of(0), style_of(9)[1]
    (('#0072B2', '-', 'o'), '--')
    """
    colour, marker = _COLOURS[k % len(_COLOURS)], _MARKERS[k % len(_MARKERS)]
    return colour, _LINE_STYLES[(k % 3 + k // len(_COLOURS)) % len(_LINE_STYLES)], marker


def diverging_colormap() -> Colormap:
    """Blue, white, orange; the blue is darker, so that the signs also differ in greyscale."""
    from matplotlib.colors import LinearSegmentedColormap

    stops = [
        (0.0, "#08306b"),
        (0.25, "#4f87bd"),
        (0.5, "#ffffff"),
        (0.8, "#f5a55a"),
        (1.0, "#d55e00"),
    ]
    return LinearSegmentedColormap.from_list("blue_orange", stops, N=1024).with_extremes(bad="none")


def cell_colormap(ordinary_share: float) -> Colormap:
    """Blue for too low, pale yellow for ordinary, red for too high, as cellmaps have it.

    `ordinary_share` is the share of each half that is ordinary. In greyscale every blue is darker
    than every red.
    """
    from matplotlib.colors import LinearSegmentedColormap

    low, high = 0.5 - min(ordinary_share, 1) / 2, 0.5 + min(ordinary_share, 1) / 2
    pale = [(low, "#eef0e6"), (0.5, "#fffce6"), (high, "#fff3d0")]
    outlying = [(0.0, "#0a1f5c"), (low, "#3d64a8")], [(high, "#ffb795"), (1.0, "#f5533d")]
    stops = pale if ordinary_share >= 1 else [*outlying[0], *pale, *outlying[1]]
    return LinearSegmentedColormap.from_list("cells", stops, N=1024).with_extremes(bad="none")
