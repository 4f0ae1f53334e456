"""Frames of pictures in SVG: where the axes are, with their ticks and names.

The inner part of a picture is an `svg` of class `view`, which the script of the page zooms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robustcp.plot.blocks import block_labels
from robustcp.plot.labelling import shorten
from robustcp.plot.ticks import ticks_along
from robustcp.report.markup import Markup, clean, element, join, label, number

#: The width of a letter and the height of a line, in the units of a picture.
LETTER_WIDTH, LINE_HEIGHT = 6.1, 13.0
#: The most points of a curve, and cells of an image in each direction.
MAX_CURVE_POINTS, MAX_IMAGE_CELLS = 600, 256
#: Letters of a tick's text.
MAX_TICK_LETTERS = 14

#: Places in pixels, and their texts.
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Frame:
    """The size of a picture and the room around its inner part."""

    width: float
    height: float
    left: float = 44.0
    right: float = 10.0
    top: float = 10.0
    bottom: float = 38.0

    @property
    def w(self) -> float:
        """The width of the inner part."""
        return self.width - self.left - self.right

    @property
    def h(self) -> float:
        """The height of the inner part."""
        return self.height - self.top - self.bottom


@dataclass(frozen=True)
class Index:
    """The indices of a mode, some of them together where there are many.

    Attributes
    ----------
    mode : int
    name : str
    labels : list, optional
    size : int
    step : int
        So many indices are one.
    """

    mode: int
    name: str
    labels: list[Any] | None
    size: int
    step: int = 1

    @classmethod
    def of(cls, fit: Any, mode: int, max_blocks: int) -> Index:
        """A mode of a fit, in at most so many parts."""
        size = fit.shape[mode]
        labels = fit.labels[mode]
        return cls(mode, clean(fit.modes[mode]), labels, size, math.ceil(size / max_blocks))

    @property
    def count(self) -> int:
        """How many parts there are."""
        return math.ceil(self.size / self.step)

    @property
    def key(self) -> str:
        """What the script of the page calls these texts."""
        return f"{self.mode}/{self.step}"

    def block_texts(self) -> list[str] | None:
        """What each part is called; None if by its number."""
        labels = block_labels(self.labels, self.size, self.step)
        return None if labels is None else [label(text) for text in labels]

    def text(self, k: int) -> str:
        """What one index, not a part, is called."""
        return f"[{k}]" if self.labels is None else label(self.labels[k])

    def ticks(self, max_ticks: int) -> list[tuple[float, str]]:
        """Where ticks are, as shares of the whole, from 0 to 1; indices have a width."""
        return [
            ((position + 0.5) / self.size, shorten(clean(text), MAX_TICK_LETTERS))
            for position, text in ticks_along(self.labels, self.size, max_ticks)
        ]

    def ticks_across(self, width: float) -> list[tuple[float, str]]:
        """Ticks along a width, with room for their texts."""
        for max_ticks in (6, 5, 4, 3, 2, 1):
            ticks = [(position * width, text) for position, text in self.ticks(max_ticks)]
            if not _crowded(ticks):
                break
        return ticks

    def ticks_down(self, height: float) -> list[tuple[float, str]]:
        """Ticks along a height."""
        max_ticks = max(1, int(height / (2.4 * LINE_HEIGHT)))
        return [(position * height, text) for position, text in self.ticks(max_ticks)]


def _crowded(ticks: Ticks) -> bool:
    """Whether texts below ticks lie over each other."""
    ends = [
        (position - LETTER_WIDTH * len(text) / 2, position + LETTER_WIDTH * len(text) / 2)
        for position, text in ticks
    ]
    return any(a[1] + LETTER_WIDTH > b[0] for a, b in itertools.pairwise(sorted(ends)))


def tick_label_width(ticks: Ticks) -> float:
    """The room that texts beside an axis need."""
    return 12 + LETTER_WIDTH * max((len(text) for _, text in ticks), default=0)


def round_numbers(low: float, high: float, max_count: int) -> list[float]:
    """Round numbers between two others, at most so many.

    >>> round_numbers(0, 1.1, 4)
    [0.0, 0.5, 1.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(max_count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10, 20) if (high - low) / (k * power) < max_count)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def number_ticks(low: float, high: float, length: float, *, upwards: bool = False) -> Ticks:
    """Ticks at round numbers along a length; upwards for vertical axes."""
    max_ticks = max(2, int(length / (2.1 * LINE_HEIGHT if upwards else 52)))
    span = (high - low) or 1.0
    positions = [
        (value, (value - low) / span * length) for value in round_numbers(low, high, max_ticks)
    ]
    return [
        (length - position if upwards else position, number(value)) for value, position in positions
    ]


def picture(
    frame: Frame,
    view: Any,
    *,
    x: Ticks = (),
    y: Ticks = (),
    axis_names: tuple[str, str] = ("", ""),
    alt: str,
    overlay: Any = None,
    kind: str = "",
    **attributes: Any,
) -> Markup:
    """A picture with axes.

    Parameters
    ----------
    frame : Frame
    view : Markup
        What is inside, in pixels from the upper left corner of the inner part.
    x, y : ticks
    axis_names : pair of str
        Those of the axes.
    alt : str
        What it shows, for those who cannot see it.
    overlay : Markup, optional
        What is drawn over all, in pixels of the whole.
    """
    w, h = round(frame.w, 1), round(frame.h, 1)
    inner = element(
        "svg",
        view,
        class_="view",
        x=frame.left,
        y=frame.top,
        width=w,
        height=h,
        viewBox=f"0 0 {w} {h}",
        preserveAspectRatio="none",
    )
    bottom, left = frame.top + h, frame.left
    elements = [
        element("rect", class_="frame", x=left, y=frame.top, width=w, height=h),
        inner,
        element(
            "g",
            *(_tick(position, text, "x") for position, text in x),
            class_="xticks",
            transform=f"translate({left} {bottom:.1f})",
        ),
        element(
            "g",
            *(_tick(position, text, "y") for position, text in y),
            class_="yticks",
            transform=f"translate({left} {frame.top})",
        ),
    ]
    if axis_names[0]:
        position = {"x": round(left + w / 2, 1), "y": round(bottom + 31, 1)}
        elements.append(element("text", shorten(axis_names[0], 40), class_="name", **position))
    if axis_names[1]:
        transform = f"translate(11 {frame.top + h / 2:.1f}) rotate(-90)"
        elements.append(
            element("text", shorten(axis_names[1], 34), class_="name", transform=transform)
        )
    return element(
        "svg",
        *elements,
        overlay,
        class_=f"plot {kind}".strip(),
        role="img",
        aria_label=alt,
        viewBox=f"0 0 {frame.width:g} {frame.height:g}",
        **attributes,
    )


def _tick(position: float, text: str, axis: str) -> Markup:
    if axis == "x":
        transform = f"translate({position:.1f} 0)"
        return element("g", element("line", y2=4), element("text", text, y=16), transform=transform)
    transform = f"translate(0 {position:.1f})"
    return element(
        "g", element("line", x2=-4), element("text", text, x=-7, dy="0.34em"), transform=transform
    )


def path(points: Sequence[tuple[float, float]], **attributes: Any) -> Markup:
    """A line through points."""
    coordinates = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{coordinates}" if coordinates else None, **attributes)


def horizontal_line(y: float, width: float, class_: str) -> Markup:
    """A line from left to right."""
    return element("line", class_=class_, x1=0, x2=f"{width:.1f}", y1=f"{y:.1f}", y2=f"{y:.1f}")


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """What classes of marks mean."""
    return element(
        "p",
        join(
            element(
                "span", element("svg", mark_of(kind), viewBox="-7 -6 14 12", class_="key"), text
            )
            for kind, text in entries
        ),
        class_="legend",
    )


#: Marks, told apart by shape as well as colour.
MARK_SHAPES = {
    "dot": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z",
    "triangle": "M0 -4.2L4 3.2H-4Z",
    "square": "M-3.2 -3.2H3.2V3.2H-3.2Z",
    "cross": "M-4 -2L-2 -4L0 -2L2 -4L4 -2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0Z",
    "diamond": "M0 -4.4L4.4 0L0 4.4L-4.4 0Z",
    "line": "M-7 0H7",
}


def mark_of(kind: str, **attributes: Any) -> Markup:
    """A mark such as "square outside": its shape, and its class."""
    shape, _, class_ = kind.partition(" ")
    return element("path", d=MARK_SHAPES[shape], class_=f"mark {class_}".strip(), **attributes)
