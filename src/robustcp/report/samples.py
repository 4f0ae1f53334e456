"""The distance map of samples, and a table of the most outlying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp.distances import BAD_LEVERAGE, GOOD_LEVERAGE, ORTHOGONAL, REGULAR, Distances
from robustcp.plot.labelling import shortened
from robustcp.report.drawing import (
    LETTER,
    LINE,
    Frame,
    Ticks,
    legend,
    mark_of,
    picture,
    ticks_of_numbers,
)
from robustcp.report.markup import Markup, element, joined, label, number, percent, table

#: The mark of each kind of sample.
MARKS = {
    REGULAR: "dot regular",
    GOOD_LEVERAGE: "triangle good",
    ORTHOGONAL: "square outside",
    BAD_LEVERAGE: "cross bad",
}
#: The most samples that are drawn, named, and listed.
DRAWN, NAMED, LISTED, ALL = 2000, 14, 10, 200
#: The most lines from where a sample was.
TRACKS = 150
#: An axis is logarithmic if the largest distance is so many times its cut-off.
FAR = 4.0
#: Samples that move by more than so many pixels have a line.
NOTABLE = 14.0

FRAME = Frame(440, 360, left=60, right=12, top=10, bottom=40)


@dataclass(frozen=True)
class Axis:
    """Distances along a length: linear, or logarithmic where some are far."""

    low: float
    high: float
    length: float
    log: bool

    @classmethod
    def of(cls, values: np.ndarray, cutoff: float, length: float) -> Axis:
        largest = float(max(np.nanmax(values, initial=0.0), cutoff)) or 1.0
        if not math.isfinite(largest):
            largest = float(np.max(values[np.isfinite(values)], initial=cutoff)) or 1.0
        if cutoff <= 0 or largest <= FAR * cutoff:
            return cls(-0.03 * largest, 1.08 * largest, length, log=False)
        least = float(np.min(values[values > 0], initial=cutoff))
        return cls(max(least, cutoff / 100) / 1.25, 1.4 * largest, length, log=True)

    def __call__(self, value: np.ndarray | float) -> np.ndarray:
        held = np.clip(value, self.low, self.high)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return np.asarray(self.length * (np.log(held) - low) / (high - low))
        return np.asarray(self.length * (held - self.low) / (self.high - self.low))

    def ticks(self, up: bool) -> Ticks:
        if not self.log:
            return ticks_of_numbers(self.low, self.high, self.length, up=up)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            values = [k * 10.0**p for p in powers for k in digits]
            values = [v for v in values if self.low <= v <= self.high]
            if len(values) <= 8:
                break
        places = [(float(self(v)), number(v)) for v in values]
        return [(self.length - at if up else at, text) for at, text in places]


def distance_map(found: Distances) -> Markup:
    """Residual against score distances; a click or the pointer tells which sample it is."""
    after = np.stack([found.score, found.residual], axis=1)
    before = np.stack([found.score_before, found.residual_before], axis=1)
    before = np.where(np.isfinite(before), before, after)
    known = np.flatnonzero(np.isfinite(after).all(axis=1))
    both = np.concatenate([after[known], before[known]])
    across = Axis.of(both[:, 0], found.score_cutoff, FRAME.w)
    upwards = Axis.of(both[:, 1], found.residual_cutoff, FRAME.h)

    def place(points: np.ndarray) -> np.ndarray:
        return np.stack([across(points[:, 0]), FRAME.h - upwards(points[:, 1])], axis=1)

    at = _drawn(found, known)
    ends, begins = place(after[at]), place(before[at])
    moved = np.hypot(*(ends - begins).T) > NOTABLE
    corner = float(across(found.score_cutoff)), FRAME.h - float(upwards(found.residual_cutoff))
    inside = joined([
        element("path", class_="limit",
                d=f"M{corner[0]:.1f} 0V{FRAME.h:.1f}M0 {corner[1]:.1f}H{FRAME.w:.1f}"),
        *(_track(begins[k], ends[k]) for k in np.flatnonzero(moved)[-TRACKS:]),
        *(_point(found, k, p) for k, p in zip(at, ends, strict=True)),
        *_names(found, at, ends),
    ])  # fmt: skip
    alt = f"Residual distance against score distance: {found.words}."
    return joined([
        legend([(mark, kind) for kind, mark in MARKS.items() if (found.kinds == kind).any()]
               + ([("line moved", "from • with all entries, to where it is without flagged ones")]
                  if moved.any() else [])),
        picture(FRAME, inside, x=across.ticks(up=False), y=upwards.ticks(up=True),
                names=("score distance", "residual distance"), alt=alt, kind="points"),
    ])  # fmt: skip


def _track(begin: np.ndarray, end: np.ndarray) -> Markup:
    """From where a sample is with all its entries to where it is without the flagged ones."""
    (a, b), (c, d) = begin, end
    return joined([
        element("path", class_="moved", d=f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"),
        element("circle", class_="moved-from", cx=f"{a:.1f}", cy=f"{b:.1f}", r=1.6),
    ])  # fmt: skip


def _drawn(found: Distances, known: np.ndarray) -> np.ndarray:
    """Which samples are drawn: all that are outlying, and as many others as there is room for."""
    odd = found.kinds[known] != REGULAR
    outlying, regular = known[odd], known[~odd]
    room = max(DRAWN - len(outlying), DRAWN // 4)
    some = regular[:: max(1, math.ceil(len(regular) / room))]
    return np.concatenate([some, outlying[np.argsort(_beyond(found)[outlying])][-DRAWN:]])


def _beyond(found: Distances) -> np.ndarray:
    """How far each sample is, in units of the cut-offs."""
    ratios = found.score / (found.score_cutoff or 1), found.residual / (found.residual_cutoff or 1)
    return np.nan_to_num(np.maximum(*ratios), nan=-1.0, posinf=1e300)


def _name(found: Distances, k: int) -> str:
    return f"[{k}]" if found.labels is None else label(found.labels[k])


def _point(found: Distances, k: int, at: np.ndarray) -> Markup:
    tip = (
        f"{label(found.name)} {_name(found, k)}: {found.kinds[k]}\n"
        f"score {number(found.score[k], 3)}, residual {number(found.residual[k], 3)}\n"
        f"{percent(float(found.shares[k]))} of its entries flagged"
    )
    turned = f"translate({at[0]:.1f} {at[1]:.1f})"
    return mark_of(MARKS[str(found.kinds[k])], transform=turned, data_tip=tip)


def _names(found: Distances, at: np.ndarray, ends: np.ndarray) -> list[Markup]:
    """The names of the most outlying samples, where there is room beside them."""
    order = np.argsort(-_beyond(found)[at], kind="stable")
    taken: list[tuple[float, float, float, float]] = []
    texts: list[Markup] = []
    for k in order[:NAMED]:
        if found.kinds[at[k]] == REGULAR:
            break
        text = shortened(_name(found, int(at[k])), 18)
        box = _free_box(ends[k], LETTER * len(text), taken, ends)
        if box is not None:
            taken.append(box)
            texts.append(element("text", text, class_="point-name", x=f"{box[0]:.1f}",
                                 y=f"{box[3] - 3:.1f}"))  # fmt: skip
    return texts


def _free_box(
    at: np.ndarray, width: float, taken: Sequence[tuple[float, float, float, float]],
    points: np.ndarray,
) -> tuple[float, float, float, float] | None:  # fmt: skip
    """Room for a name beside a point, if there is any."""
    x, y = at
    for dx, dy in ((7, -LINE / 2), (-width - 7, -LINE / 2), (-width / 2, -LINE - 6),
                   (-width / 2, 6), (6, -LINE - 4), (6, 4)):  # fmt: skip
        box = (x + dx, y + dy, x + dx + width, y + dy + LINE)
        inside = box[0] >= 0 and box[2] <= FRAME.w and box[1] >= 0 and box[3] <= FRAME.h
        apart = all(box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in taken)
        covered = ((points > (box[0] - 2, box[1])) & (points < (box[2] + 2, box[3]))).all(axis=1)
        if inside and apart and covered.sum() <= 1:
            return box
    return None


def distance_table(found: Distances) -> Markup:
    """The most outlying samples."""
    rows = [row for row in found.rows() if row["kind"] != REGULAR or row["only_cells"]]
    shown = [
        (
            _name(found, row["index"]),
            row["kind"] + (", bad entries only" if row["only_cells"] else ""),
            _change(row["score_before"], row["score"]),
            _change(row["residual_before"], row["residual"]),
            percent(row["share"]),
        )
        for row in rows[:ALL]
    ]
    head = (label(found.name), "kind", "score distance", "residual distance", "entries flagged")
    more = None
    if len(rows) > LISTED:
        left = f"{len(rows) - LISTED:,} more" + (
            f", {ALL - LISTED} shown" if len(rows) > ALL else ""
        )
        more = element("details", element("summary", left),
                       table(head, shown[LISTED:], words=(0, 1)))  # fmt: skip
    return joined([table(head, shown[:LISTED], words=(0, 1)), more])


def _change(before: float, after: float) -> str:
    """A distance with all entries and without the flagged ones, where that differs."""
    texts = number(before, 3), number(after, 3)
    return texts[1] if texts[0] == texts[1] else f"{texts[0]} → {texts[1]}"
