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
from robustcp.plot.labelling import shortened
from robustcp.plot.ticks import ticks_along
from robustcp.report.markup import Markup, clean, element, joined, label, number

#: The width of a letter and the height of a line, in the units of a picture.
LETTER, LINE = 6.1, 13.0
#: The most points of a curve, and cells of an image in each direction.
POINTS, CELLS = 600, 256
#: Letters of a tick's text.
TICK_LETTERS = 14

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
    def of(cls, named: Any, mode: int, most: int) -> Index:
        """A mode of a fit, in at most so many parts."""
        size = named.shape[mode]
        labels = named.labels[mode]
        return cls(mode, clean(named.modes[mode]), labels, size, math.ceil(size / most))

    @property
    def count(self) -> int:
        """How many parts there are."""
        return math.ceil(self.size / self.step)

    @property
    def key(self) -> str:
        """What the script of the page calls these texts."""
        return f"{self.mode}/{self.step}"

    def texts(self) -> list[str] | None:
        """What each part is called; None if by its number."""
        found = block_labels(self.labels, self.size, self.step)
        return None if found is None else [label(text) for text in found]

    def text(self, k: int) -> str:
        """What one index, not a part, is called."""
        return f"[{k}]" if self.labels is None else label(self.labels[k])

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Where ticks are, as shares of the whole, from 0 to 1; indices have a width."""
        return [
            ((at + 0.5) / self.size, shortened(clean(text), TICK_LETTERS))
            for at, text in ticks_along(self.labels, self.size, most)
        ]

    def across(self, width: float) -> list[tuple[float, str]]:
        """Ticks along a width, with room for their texts."""
        for most in (6, 5, 4, 3, 2, 1):
            found = [(at * width, text) for at, text in self.ticks(most)]
            if not _crowded(found):
                break
        return found

    def down(self, height: float) -> list[tuple[float, str]]:
        """Ticks along a height."""
        most = max(1, int(height / (2.4 * LINE)))
        return [(at * height, text) for at, text in self.ticks(most)]


def _crowded(ticks: Ticks) -> bool:
    """Whether texts below ticks lie over each other."""
    ends = [(at - LETTER * len(text) / 2, at + LETTER * len(text) / 2) for at, text in ticks]
    return any(a[1] + LETTER > b[0] for a, b in itertools.pairwise(sorted(ends)))


def room_for(ticks: Ticks) -> float:
    """The room that texts beside an axis need."""
    return 12 + LETTER * max((len(text) for _, text in ticks), default=0)


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two others, at most so many.

    >>> round_numbers(0, 1.1, 4)
    [0.0, 0.5, 1.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1, 2, 5, 10, 20) if (high - low) / (k * power) < most)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def ticks_of_numbers(low: float, high: float, length: float, *, up: bool = False) -> Ticks:
    """Ticks at round numbers along a length; upwards for vertical axes."""
    most = max(2, int(length / (2.1 * LINE if up else 52)))
    span = (high - low) or 1.0
    places = [(value, (value - low) / span * length) for value in round_numbers(low, high, most)]
    return [(length - at if up else at, number(value)) for value, at in places]


def picture(
    frame: Frame, view: Any, *, x: Ticks = (), y: Ticks = (), names: tuple[str, str] = ("", ""),
    alt: str, over: Any = None, kind: str = "", **attributes: Any,
) -> Markup:  # fmt: skip
    """A picture with axes.

    Parameters
    ----------
    frame : Frame
    view : Markup
        What is inside, in pixels from the upper left corner of the inner part.
    x, y : ticks
    names : pair of str
        Those of the axes.
    alt : str
        What it shows, for those who cannot see it.
    over : Markup, optional
        What is drawn over all, in pixels of the whole.
    """
    w, h = round(frame.w, 1), round(frame.h, 1)
    inside = element(
        "svg", view, class_="view", x=frame.left, y=frame.top, width=w, height=h,
        viewBox=f"0 0 {w} {h}", preserveAspectRatio="none",
    )  # fmt: skip
    below, beside = frame.top + h, frame.left
    parts = [
        element("rect", class_="frame", x=beside, y=frame.top, width=w, height=h),
        inside,
        element("g", *(_tick(at, text, "x") for at, text in x), class_="xticks",
                transform=f"translate({beside} {below:.1f})"),
        element("g", *(_tick(at, text, "y") for at, text in y), class_="yticks",
                transform=f"translate({beside} {frame.top})"),
    ]  # fmt: skip
    if names[0]:
        at = {"x": round(beside + w / 2, 1), "y": round(below + 31, 1)}
        parts.append(element("text", shortened(names[0], 40), class_="name", **at))
    if names[1]:
        turned = f"translate(11 {frame.top + h / 2:.1f}) rotate(-90)"
        parts.append(element("text", shortened(names[1], 34), class_="name", transform=turned))
    return element(
        "svg", *parts, over, class_=f"plot {kind}".strip(), role="img", aria_label=alt,
        viewBox=f"0 0 {frame.width:g} {frame.height:g}", **attributes,
    )  # fmt: skip


def _tick(at: float, text: str, axis: str) -> Markup:
    if axis == "x":
        place = f"translate({at:.1f} 0)"
        return element("g", element("line", y2=4), element("text", text, y=16), transform=place)
    place = f"translate(0 {at:.1f})"
    return element("g", element("line", x2=-4), element("text", text, x=-7, dy="0.34em"),
                   transform=place)  # fmt: skip


def path(points: Sequence[tuple[float, float]], **attributes: Any) -> Markup:
    """A line through points."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return element("path", d=f"M{steps}" if steps else None, **attributes)


def horizontal(y: float, width: float, class_: str) -> Markup:
    """A line from left to right."""
    return element("line", class_=class_, x1=0, x2=f"{width:.1f}", y1=f"{y:.1f}", y2=f"{y:.1f}")


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """What classes of marks mean."""
    return element(
        "p",
        joined(
            element("span", element("svg", mark_of(kind), viewBox="-7 -6 14 12", class_="key"),
                    text)
            for kind, text in entries
        ),
        class_="legend",
    )  # fmt: skip


#: Marks, told apart by shape as well as colour.
SHAPES = {
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
    return element("path", d=SHAPES[shape], class_=f"mark {class_}".strip(), **attributes)
