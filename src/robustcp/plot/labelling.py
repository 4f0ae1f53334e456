"""Names of points, placed without overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

#: Directions and distances (in points) that are tried around a point.
LABEL_DIRECTIONS = 16
LABEL_DISTANCES = (5.0, 9.0, 15.0, 24.0, 36.0, 52.0)
#: A name further away than this is joined to its point by a line.
MIN_LEADER_DISTANCE = 12.0
#: Free space between names, and between a name and a point, in points.
LABEL_PADDING, POINT_CLEARANCE = 1.0, 3.5
#: The cost of covering a point or a piece of a line, in points of distance, and the largest number
#: of points that a name may cover.
COVER_COST, CROSS_COST, MAX_COVERED_POINTS = 25.0, 4.0, 1


def name_points(
    ax: Axes,
    points: np.ndarray,
    names: Sequence[str],
    *,
    max_names: int,
    markers: np.ndarray,
    line_points: np.ndarray,
    occupied: Sequence[np.ndarray] = (),
) -> list[Annotation]:
    """Write names beside points, those first that come first; those without room are left out.

    Names stay inside the axes and off each other and what is `occupied`; they cover at most one
    point, and none where there is a choice. They are placed for the figure as it is: limits,
    scales and legends must have been set. All places are in pixels, but for `points`.

    Parameters
    ----------
    ax : matplotlib Axes
    points : array (count, 2)
        In the coordinates of the data.
    names : sequence of str
    max_names : int
        The largest number of names.
    markers : array (any, 2)
        All points that are drawn.
    line_points : array (any, 2)
        Points on lines that are drawn, which names had better not cross.
    occupied : sequence of boxes (left, bottom, right, top)

    Returns
    -------
    list of matplotlib Annotation
        The names that had room, in their order.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    pixels_per_point, bounds = ax.figure.dpi / 72, np.asarray(ax.bbox.extents)
    boxes: list[np.ndarray] = [np.asarray(box) for box in occupied]
    name_texts: list[Annotation] = []
    for point, anchor, name in zip(points, ax.transData.transform(points), names, strict=True):
        if len(name_texts) == max_names:
            break
        text = ax.annotate(
            name,
            point,
            (0, 0),
            textcoords="offset points",
            fontsize="small",
            color="0.1",
            ha="left",
            va="bottom",
            zorder=5,
            annotation_clip=False,
            path_effects=[withStroke(linewidth=2, foreground="w", alpha=0.8)],
            arrowprops={
                "arrowstyle": "-",
                "color": "0.3",
                "linewidth": 0.5,
                "shrinkA": 0,
                "shrinkB": 3,
            },
        )
        size = np.asarray(Text.get_window_extent(text).size)  # without its line
        corners, distances = _candidate_corners(anchor, size, pixels_per_point)
        candidates = np.hstack([corners, corners + size])
        cost = (
            _placement_costs(candidates, bounds, boxes, markers, line_points, pixels_per_point)
            + distances / pixels_per_point
        )
        best = int(np.argmin(cost))
        if not np.isfinite(cost[best]):
            text.remove()
            continue
        boxes.append(candidates[best])
        text.set_position(tuple((corners[best] - anchor) / pixels_per_point))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(
                bool(distances[best] > MIN_LEADER_DISTANCE * pixels_per_point)
            )
        name_texts.append(text)
    return name_texts


def _candidate_corners(
    anchor: np.ndarray, size: np.ndarray, pixels_per_point: float
) -> tuple[np.ndarray, np.ndarray]:
    """The lower left corners of boxes around a point, and their distances from it."""
    angle = 2 * np.pi * np.arange(LABEL_DIRECTIONS) / LABEL_DIRECTIONS
    direction = np.tile(np.stack([np.cos(angle), np.sin(angle)], axis=1), (len(LABEL_DISTANCES), 1))
    distances = pixels_per_point * np.repeat(LABEL_DISTANCES, LABEL_DIRECTIONS)
    return anchor + distances[:, None] * direction - size * (1 - direction) / 2, distances


def _placement_costs(
    boxes: np.ndarray,
    bounds: np.ndarray,
    occupied: Sequence[np.ndarray],
    points: np.ndarray,
    line_points: np.ndarray,
    pixels_per_point: float,
) -> np.ndarray:
    """The cost of placing a name in each box; infinite where there is no room."""
    padding = pixels_per_point * LABEL_PADDING * np.array([-1, -1, 1, 1])
    covered = _count_covered(boxes + POINT_CLEARANCE / LABEL_PADDING * padding, points)
    cost = COVER_COST * covered + CROSS_COST * _count_covered(boxes, line_points)
    free = _is_free(boxes + padding, bounds, occupied) & (covered <= MAX_COVERED_POINTS)
    return np.asarray(np.where(free, cost, np.inf))


def _count_covered(boxes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The number of points in each box."""
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    return np.asarray(((points >= low) & (points <= high)).all(axis=2).sum(axis=1))


def _is_free(boxes: np.ndarray, bounds: np.ndarray, occupied: Sequence[np.ndarray]) -> np.ndarray:
    """True for boxes that lie within the bounds and overlap no occupied box."""
    free = np.hstack([boxes[:, :2] >= bounds[:2], boxes[:, 2:] <= bounds[2:]]).all(axis=1)
    for left, bottom, right, top in occupied:
        apart_horizontally = (boxes[:, 2] <= left) | (boxes[:, 0] >= right)
        apart_vertically = (boxes[:, 3] <= bottom) | (boxes[:, 1] >= top)
        free = free & (apart_horizontally | apart_vertically)
    return np.asarray(free)
