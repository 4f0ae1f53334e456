"""Colours, line styles and markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

#: (colour, line style, marker), safe for colour-blind readers and distinct in greyscale.
STYLES = (("#D55E00", "--", "s"), ("#0072B2", "-", "o"), ("#009E73", ":", "^"))


def diverging(pale: float = 0.0) -> Colormap:
    """Blue, white, orange; the blue is darker, so that the signs also differ in greyscale.

    `pale` is the share of each half that stays near white, with a step in colour at its end.
    """
    from matplotlib.colors import LinearSegmentedColormap

    if pale == 0:
        stops = [(0.0, "#08306b"), (0.25, "#4f87bd"), (0.5, "#ffffff"), (0.8, "#f5a55a"),
                 (1.0, "#d55e00")]  # fmt: skip
    elif pale >= 1:
        stops = [(0.0, "#dde8f2"), (0.5, "#ffffff"), (1.0, "#f9e9dc")]
    else:
        low, high = 0.5 - pale / 2, 0.5 + pale / 2
        stops = [(0.0, "#08306b"), (low, "#2f6fae"), (low, "#dde8f2"), (0.5, "#ffffff"),
                 (high, "#f9e9dc"), (high, "#f5a55a"), (1.0, "#d55e00")]  # fmt: skip
    return LinearSegmentedColormap.from_list("blue_orange", stops, N=1024).with_extremes(bad="none")
