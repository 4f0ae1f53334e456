"""Consecutive flagged entries along a mode, such as a sensor's readings over two weeks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from robustcp.engines import Axes, Entries, Fibres
from robustcp.engines.axes import label_key


@dataclass(frozen=True)
class Run:
    """Flagged entries that follow each other along a mode, all too high or all too low.

    Attributes
    ----------
    fixed : dict from the name of each other mode to a label, or a position where it has no labels
    along : str
        The name of the mode.
    start, end : object
        The labels (or positions) of the first and the last entry.
    side : {"too high", "too low"}
    largest : float
        The score of largest magnitude.
    count : int
        The number of flagged entries; missing ones between them are not counted.
    """

    fixed: dict[str, Any]
    along: str
    start: Any
    end: Any
    side: str
    largest: float
    count: int

    def __str__(self) -> str:
        place = [
            label if isinstance(label, str) else f"{name} {label_in_words(label)}"
            for name, label in self.fixed.items()
        ]
        first, last = label_in_words(self.start), label_in_words(self.end)
        dated = isinstance(self.start, date | np.datetime64)
        name = "" if dated else f"{self.along} "
        if self.start == self.end:
            span = f"{'on ' if dated else name}{first}"
        else:
            span = f"{name}from {first} to {last}"
        entries = "1 entry" if self.count == 1 else f"{self.count} entries"
        return ", ".join([*place, span, f"{self.side} ({entries}, z up to {self.largest:.3g})"])


def label_in_words(label: Any) -> str:
    """A label as sentences have it; dates as days.

    >>> label_in_words(datetime(2024, 3, 17)), label_in_words(datetime(2024, 3, 17, 8, 30))
    ('17 March 2024', '17 March 2024 08:30')
    """
    if isinstance(label, np.datetime64):
        label = label.astype("datetime64[us]").item()
    if not isinstance(label, date):
        return str(label_key(label))
    text = f"{label.day} {label:%B %Y}"
    has_time = isinstance(label, datetime) and label.time().isoformat() != "00:00:00"
    return f"{text} {label:%H:%M}" if has_time else text


def ordered_mode(axes: Axes, shape: Sequence[int]) -> int:
    """The mode along which entries follow each other: of dates, else of rising numbers, else the
    longest."""
    for is_ordered in (_are_dates, _are_rising):
        modes = [n for n, labels in enumerate(axes.labels) if labels and is_ordered(labels)]
        if modes:
            return max(modes, key=lambda n: shape[n])
    return int(np.argmax(shape))


def _are_dates(labels: Sequence[Any]) -> bool:
    return all(isinstance(label, date | np.datetime64) for label in labels)


def _are_rising(labels: Sequence[Any]) -> bool:
    numbers = [label for label in map(label_key, labels) if isinstance(label, int | float)]
    return len(numbers) == len(labels) and all(a < b for a, b in pairwise(numbers))


def find_runs(scores: Entries, threshold: float, mode: int, axes: Axes) -> list[Run]:
    """The runs of entries with scores beyond a threshold, the longest first."""
    shape = scores.shape
    fibre, _ = Fibres.fibre_numbers(shape, mode, scores.indices)
    order = np.lexsort((scores.indices[mode], fibre))
    fibre, z = fibre[order], scores.values[order]
    side = np.sign(z) * (np.abs(z) > threshold)
    starts = np.flatnonzero(np.r_[True, (fibre[1:] != fibre[:-1]) | (side[1:] != side[:-1])])
    starts, ends = starts[side[starts] != 0], np.r_[starts[1:], z.size][side[starts] != 0] - 1
    names = [axes.mode_name(n) for n in range(len(shape))]
    runs = []
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        values = z[first : last + 1]
        places = [
            {n: _label(axes, n, int(index[order[k]])) for n, index in enumerate(scores.indices)}
            for k in (first, last)
        ]
        runs.append(
            Run(
                {names[n]: label for n, label in places[0].items() if n != mode},
                names[mode],
                places[0][mode],
                places[1][mode],
                "too high" if values[0] > 0 else "too low",
                float(values[np.argmax(np.abs(values))]),
                last - first + 1,
            )
        )
    return sorted(runs, key=lambda run: (-run.count, -abs(run.largest)))


def _label(axes: Axes, mode: int, position: int) -> Any:
    labels = axes.labels[mode] if axes.labels else None
    return position if labels is None else labels[position]
