"""The distance map of samples, and a table of the most outlying."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp.plot.labelling import shorten
from robustcp.report.drawing import (
    LETTER_WIDTH,
    LINE_HEIGHT,
    Frame,
    Ticks,
    legend,
    mark_of,
    number_ticks,
    picture,
)
from robustcp.report.markup import Markup, element, join, label, number, percent, table
from robustcp.results.distances import BAD_LEVERAGE, GOOD_LEVERAGE, ORTHOGONAL, REGULAR, Distances

#: The mark of each kind of sample.
KIND_MARKS = {
    REGULAR: "dot regular",
    GOOD_LEVERAGE: "triangle good",
    ORTHOGONAL: "square outside",
    BAD_LEVERAGE: "cross bad",
}
#: The most samples that are drawn, named, and listed.
MAX_DRAWN_SAMPLES, MAX_NAMED_SAMPLES, ROWS_IN_VIEW, MAX_ROWS = 2000, 14, 10, 200
#: The most lines from where a sample was.
MAX_TRACKS = 150
#: An axis is logarithmic if the largest distance is so many times its cut-off.
LOG_SCALE_RATIO = 4.0
#: Samples that move by more than so many pixels have a line.
MIN_TRACK_LENGTH = 14.0

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
        if cutoff <= 0 or largest <= LOG_SCALE_RATIO * cutoff:
            return cls(-0.03 * largest, 1.08 * largest, length, log=False)
        smallest = float(np.min(values[values > 0], initial=cutoff))
        return cls(max(smallest, cutoff / 100) / 1.25, 1.4 * largest, length, log=True)

    def __call__(self, value: np.ndarray | float) -> np.ndarray:
        clipped = np.clip(value, self.low, self.high)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return np.asarray(self.length * (np.log(clipped) - low) / (high - low))
        return np.asarray(self.length * (clipped - self.low) / (self.high - self.low))

    def ticks(self, upwards: bool) -> Ticks:
        if not self.log:
            return number_ticks(self.low, self.high, self.length, upwards=upwards)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            values = [k * 10.0**p for p in powers for k in digits]
            values = [v for v in values if self.low <= v <= self.high]
            if len(values) <= 8:
                break
        positions = [(float(self(v)), number(v)) for v in values]
        return [
            (self.length - position if upwards else position, text) for position, text in positions
        ]


def distance_map(distances: Distances) -> Markup:
    """Residual against score distances; a click or the pointer tells which sample it is."""
    after = np.stack([distances.score, distances.residual], axis=1)
    before = np.stack([distances.score_before, distances.residual_before], axis=1)
    before = np.where(np.isfinite(before), before, after)
    finite_indices = np.flatnonzero(np.isfinite(after).all(axis=1))
    all_points = np.concatenate([after[finite_indices], before[finite_indices]])
    x_axis = Axis.of(all_points[:, 0], distances.score_cutoff, FRAME.w)
    y_axis = Axis.of(all_points[:, 1], distances.residual_cutoff, FRAME.h)

    def to_pixels(points: np.ndarray) -> np.ndarray:
        return np.stack([x_axis(points[:, 0]), FRAME.h - y_axis(points[:, 1])], axis=1)

    drawn_indices = _select_drawn(distances, finite_indices)
    ends, begins = to_pixels(after[drawn_indices]), to_pixels(before[drawn_indices])
    moved = np.hypot(*(ends - begins).T) > MIN_TRACK_LENGTH
    corner = (
        float(x_axis(distances.score_cutoff)),
        FRAME.h - float(y_axis(distances.residual_cutoff)),
    )
    content = join(
        [
            element(
                "path",
                class_="limit",
                d=f"M{corner[0]:.1f} 0V{FRAME.h:.1f}M0 {corner[1]:.1f}H{FRAME.w:.1f}",
            ),
            *(_track(begins[k], ends[k]) for k in np.flatnonzero(moved)[-MAX_TRACKS:]),
            *(_point(distances, k, p) for k, p in zip(drawn_indices, ends, strict=True)),
            *_sample_labels(distances, drawn_indices, ends),
        ]
    )
    alt = f"Residual distance against score distance: {distances.words}."
    return join(
        [
            legend(
                [
                    (mark, kind)
                    for kind, mark in KIND_MARKS.items()
                    if (distances.kinds == kind).any()
                ]
                + (
                    [("line moved", "from • with all entries, to where it is without flagged ones")]
                    if moved.any()
                    else []
                )
            ),
            picture(
                FRAME,
                content,
                x=x_axis.ticks(upwards=False),
                y=y_axis.ticks(upwards=True),
                axis_names=("score distance", "residual distance"),
                alt=alt,
                kind="points",
            ),
        ]
    )


def _track(begin: np.ndarray, end: np.ndarray) -> Markup:
    """From where a sample is with all its entries to where it is without the flagged ones."""
    (a, b), (c, d) = begin, end
    return join(
        [
            element("path", class_="moved", d=f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"),
            element("circle", class_="moved-from", cx=f"{a:.1f}", cy=f"{b:.1f}", r=1.6),
        ]
    )


def _select_drawn(distances: Distances, finite_indices: np.ndarray) -> np.ndarray:
    """Which samples are drawn: all that are outlying, and as many others as there is room for."""
    is_outlying = distances.kinds[finite_indices] != REGULAR
    outlying, regular = finite_indices[is_outlying], finite_indices[~is_outlying]
    max_regular = max(MAX_DRAWN_SAMPLES - len(outlying), MAX_DRAWN_SAMPLES // 4)
    drawn_regular = regular[:: max(1, math.ceil(len(regular) / max_regular))]
    return np.concatenate(
        [
            drawn_regular,
            outlying[np.argsort(_relative_distance(distances)[outlying])][-MAX_DRAWN_SAMPLES:],
        ]
    )


def _relative_distance(distances: Distances) -> np.ndarray:
    """How far each sample is, in units of the cut-offs."""
    ratios = (
        distances.score / (distances.score_cutoff or 1),
        distances.residual / (distances.residual_cutoff or 1),
    )
    return np.nan_to_num(np.maximum(*ratios), nan=-1.0, posinf=1e300)


def _sample_name(distances: Distances, k: int) -> str:
    return f"[{k}]" if distances.labels is None else label(distances.labels[k])


def _point(distances: Distances, k: int, position: np.ndarray) -> Markup:
    tip = (
        f"{label(distances.name)} {_sample_name(distances, k)}: {distances.kinds[k]}\n"
        f"score {number(distances.score[k], 3)}, residual {number(distances.residual[k], 3)}\n"
        f"{percent(float(distances.shares[k]))} of its entries flagged"
    )
    transform = f"translate({position[0]:.1f} {position[1]:.1f})"
    return mark_of(KIND_MARKS[str(distances.kinds[k])], transform=transform, data_tip=tip)


def _sample_labels(distances: Distances, indices: np.ndarray, ends: np.ndarray) -> list[Markup]:
    """The names of the most outlying samples, where there is room beside them."""
    order = np.argsort(-_relative_distance(distances)[indices], kind="stable")
    occupied: list[tuple[float, float, float, float]] = []
    texts: list[Markup] = []
    for k in order[:MAX_NAMED_SAMPLES]:
        if distances.kinds[indices[k]] == REGULAR:
            break
        text = shorten(_sample_name(distances, int(indices[k])), 18)
        box = _free_box(ends[k], LETTER_WIDTH * len(text), occupied, ends)
        if box is not None:
            occupied.append(box)
            texts.append(
                element("text", text, class_="point-name", x=f"{box[0]:.1f}", y=f"{box[3] - 3:.1f}")
            )
    return texts


def _free_box(
    anchor: np.ndarray,
    width: float,
    occupied: Sequence[tuple[float, float, float, float]],
    points: np.ndarray,
) -> tuple[float, float, float, float] | None:
    """Room for a name beside a point, if there is any."""
    x, y = anchor
    for dx, dy in (
        (7, -LINE_HEIGHT / 2),
        (-width - 7, -LINE_HEIGHT / 2),
        (-width / 2, -LINE_HEIGHT - 6),
        (-width / 2, 6),
        (6, -LINE_HEIGHT - 4),
        (6, 4),
    ):
        box = (x + dx, y + dy, x + dx + width, y + dy + LINE_HEIGHT)
        inside = box[0] >= 0 and box[2] <= FRAME.w and box[1] >= 0 and box[3] <= FRAME.h
        apart = all(
            box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in occupied
        )
        covered = ((points > (box[0] - 2, box[1])) & (points < (box[2] + 2, box[3]))).all(axis=1)
        if inside and apart and covered.sum() <= 1:
            return box
    return None


def distance_table(distances: Distances) -> Markup:
    """The most outlying samples."""
    rows = [row for row in distances.rows() if row["kind"] != REGULAR or row["only_cells"]]
    table_rows = [
        (
            _sample_name(distances, row["index"]),
            row["kind"] + (", bad entries only" if row["only_cells"] else ""),
            _change_text(row["score_before"], row["score"]),
            _change_text(row["residual_before"], row["residual"]),
            percent(row["share"]),
        )
        for row in rows[:MAX_ROWS]
    ]
    head = (label(distances.name), "kind", "score distance", "residual distance", "entries flagged")
    remaining_rows = None
    if len(rows) > ROWS_IN_VIEW:
        remaining_text = f"{len(rows) - ROWS_IN_VIEW:,} more" + (
            f", {MAX_ROWS - ROWS_IN_VIEW} shown" if len(rows) > MAX_ROWS else ""
        )
        remaining_rows = element(
            "details",
            element("summary", remaining_text),
            table(head, table_rows[ROWS_IN_VIEW:], text_columns=(0, 1)),
        )
    return join([table(head, table_rows[:ROWS_IN_VIEW], text_columns=(0, 1)), remaining_rows])


def _change_text(before: float, after: float) -> str:
    """A distance with all entries and without the flagged ones, where that differs."""
    texts = number(before, 3), number(after, 3)
    return texts[1] if texts[0] == texts[1] else f"{texts[0]} → {texts[1]}"
