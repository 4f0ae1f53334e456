"""The indices of a mode as pictures and tables show them: blocks, labels and ticks."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from robustcp._util.text import shorten
from robustcp.plot.blocks import block_labels
from robustcp.plot.ticks import ticks_along
from robustcp.report.markup import clean, label
from robustcp.report.pictures import FONT_SIZE, LETTER_WIDTH

#: The most points of a curve, and cells of an image in each direction.
MAX_CURVE_POINTS, MAX_IMAGE_CELLS = 600, 256
#: Letters of a tick's text.
MAX_TICK_LETTERS = 14
#: Pixels between ticks of a vertical axis.
MIN_ROW_DISTANCE = 31.0

#: The position of each tick, in pixels, and its text.
Ticks = list[tuple[float, str]]


@dataclass(frozen=True)
class Index:
    """The indices of a mode, in blocks of `step` where there are many.

    Attributes
    ----------
    mode : int
    name : str
        The name of the mode.
    labels : list, optional
    size : int
    step : int
    """

    mode: int
    name: str
    labels: list[Any] | None
    size: int
    step: int = 1

    @classmethod
    def of(cls, fit: Any, mode: int, max_blocks: int) -> Index:
        """A mode of a fit, in at most `max_blocks` blocks."""
        size = fit.shape[mode]
        step = math.ceil(size / max_blocks)
        return cls(mode, clean(fit.modes[mode]), fit.labels[mode], size, step)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return math.ceil(self.size / self.step)

    @property
    def key(self) -> str:
        """The name of these blocks in the script of the page."""
        return f"{self.mode}/{self.step}"

    def block_texts(self) -> list[str] | None:
        """The label of each block; None if blocks are single indices without labels."""
        labels = block_labels(self.labels, self.size, self.step)
        return None if labels is None else [label(text) for text in labels]

    def text(self, k: int) -> str:
        """The label of a single index."""
        return f"[{k}]" if self.labels is None else label(self.labels[k])

    def ticks_across(self, width: float) -> Ticks:
        """Ticks along a width, as many as have room for their texts."""
        return next(
            ticks
            for max_ticks in (6, 5, 4, 3, 2, 1)
            if not _crowded(ticks := self._ticks(max_ticks, width)) or max_ticks == 1
        )

    def ticks_down(self, height: float) -> Ticks:
        """Ticks along a height."""
        return self._ticks(max(1, int(height / MIN_ROW_DISTANCE)), height)

    def _ticks(self, max_ticks: int, length: float) -> Ticks:
        """Ticks along a length, on which every index has the same width."""
        return [
            ((position + 0.5) / self.size * length, shorten(clean(text), MAX_TICK_LETTERS))
            for position, text in ticks_along(self.labels, self.size, max_ticks)
        ]


def _crowded(ticks: Ticks) -> bool:
    """Whether the texts below ticks overlap."""
    return any(
        FONT_SIZE * LETTER_WIDTH * ((len(a) + len(b)) / 2 + 1) > end - begin
        for (begin, a), (end, b) in itertools.pairwise(sorted(ticks))
    )


def text_room(texts: list[str]) -> float:
    """The width that texts beside an axis need, in pixels."""
    return 12 + FONT_SIZE * LETTER_WIDTH * max(map(len, texts), default=0)
