"""Names of points, placed so that none lies over another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

#: Directions and distances (in points) that are tried around a point.
DIRECTIONS = 16
DISTANCES = (5.0, 9.0, 15.0, 24.0, 36.0, 52.0)
#: A name further away than this is joined to its point by a line.
JOINED = 12.0
#: Longer names lose their middle.
LONGEST = 26
#: Free space between names, and between a name and a point, in points.
PAD, CLEAR = 1.0, 3.5
#: What it costs to cover a point or a piece of a line, in points of distance; a name that would
#: cover more than so many points is left out.
COVER, CROSS, MOST_COVERED = 25.0, 4.0, 1


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text in one line, without its middle if it is longer than that.

    Examples
    --------
    >>> shortened("patient 17")
    'patient 17'
    >>> len(shortened("an extraordinarily long name of a sample, 17")) == LONGEST
    True
    """
    text = " ".join(text.split())
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[: longest - 1 - half]}…{text[-half:]}"


def name_points(
    ax: Axes,
    points: np.ndarray,
    names: Sequence[str],
    *,
    most: int,
    beside: np.ndarray,
    lines: np.ndarray,
    taken: Sequence[np.ndarray] = (),
) -> list[Annotation]:
    """Write names beside points, those first that come first; those without room are left out.

    Names stay inside the axes and off each other and what is `taken`; they cover at most one
    point, and none where there is a choice. They are placed for the figure as it is: limits,
    scales and legends must have been set. All places are in pixels, but for `points`.

    Parameters
    ----------
    ax : matplotlib Axes
    points : array (count, 2)
        In the coordinates of the data.
    names : sequence of str
    most : int
        The largest number of names.
    beside : array (any, 2)
        All points that are drawn.
    lines : array (any, 2)
        Points on lines that are drawn, which names had better not cross.
    taken : sequence of boxes (left, bottom, right, top)

    Returns
    -------
    list of matplotlib Annotation
        The names that had room, in their order.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    pixels, inside = ax.figure.dpi / 72, np.asarray(ax.bbox.extents)
    boxes: list[np.ndarray] = [np.asarray(box) for box in taken]
    found: list[Annotation] = []
    for point, at, name in zip(points, ax.transData.transform(points), names, strict=True):
        if len(found) == most:
            break
        text = ax.annotate(
            name, point, (0, 0), textcoords="offset points", fontsize="small", color="0.1",
            ha="left", va="bottom", zorder=5, annotation_clip=False,
            path_effects=[withStroke(linewidth=2, foreground="w", alpha=0.8)],
            arrowprops={"arrowstyle": "-", "color": "0.3", "linewidth": 0.5, "shrinkA": 0,
                        "shrinkB": 3},
        )  # fmt: skip
        size = np.asarray(Text.get_window_extent(text).size)  # without its line
        corners, far = _around(at, size, pixels)
        tried = np.hstack([corners, corners + size])
        cost = _costs(tried, inside, boxes, beside, lines, pixels) + far / pixels
        best = int(np.argmin(cost))
        if not np.isfinite(cost[best]):
            text.remove()
            continue
        boxes.append(tried[best])
        text.set_position(tuple((corners[best] - at) / pixels))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(bool(far[best] > JOINED * pixels))
        found.append(text)
    return found


def _around(at: np.ndarray, size: np.ndarray, pixels: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower left corners of boxes around a point, and how far each is from it."""
    angle = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    way = np.tile(np.stack([np.cos(angle), np.sin(angle)], axis=1), (len(DISTANCES), 1))
    far = pixels * np.repeat(DISTANCES, DIRECTIONS)
    return at + far[:, None] * way - size * (1 - way) / 2, far


def _costs(
    boxes: np.ndarray,
    inside: np.ndarray,
    taken: Sequence[np.ndarray],
    points: np.ndarray,
    lines: np.ndarray,
    pixels: float,
) -> np.ndarray:
    """What it costs to put a name into each of some boxes; infinite where there is no room."""
    apart = pixels * PAD * np.array([-1, -1, 1, 1])
    covered = _covered(boxes + CLEAR / PAD * apart, points)
    cost = COVER * covered + CROSS * _covered(boxes, lines)
    free = _free(boxes + apart, inside, taken) & (covered <= MOST_COVERED)
    return np.asarray(np.where(free, cost, np.inf))


def _covered(boxes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """How many points each box covers."""
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    return np.asarray(((points >= low) & (points <= high)).all(axis=2).sum(axis=1))


def _free(boxes: np.ndarray, inside: np.ndarray, taken: Sequence[np.ndarray]) -> np.ndarray:
    """Which boxes lie inside another, and off those that are taken."""
    free = np.hstack([boxes[:, :2] >= inside[:2], boxes[:, 2:] <= inside[2:]]).all(axis=1)
    for left, bottom, right, top in taken:
        beside = (boxes[:, 2] <= left) | (boxes[:, 0] >= right)
        above = (boxes[:, 3] <= bottom) | (boxes[:, 1] >= top)
        free = free & (beside | above)
    return np.asarray(free)
