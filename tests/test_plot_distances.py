"""The map of samples by their distances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PathCollection

from robustcp.plot import distance_map
from robustcp.plot.labelling import _count_covered
from support.pictures import LABELS, grey, outside, overlapping

pytestmark = pytest.mark.pictures

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


@dataclass(frozen=True)
class Distances:
    mode: int
    name: str
    labels: list[Any] | None
    score: np.ndarray
    residual: np.ndarray
    score_before: np.ndarray
    residual_before: np.ndarray
    score_cutoff: float
    residual_cutoff: float
    shares: np.ndarray
    kinds: np.ndarray
    kinds_before: np.ndarray
    note: str


CORNERS = ["regular", "good leverage", "orthogonal outlier", "bad leverage"]


def kinds_of(score, residual):
    far, off = score > 3.0, residual > 1.8
    return np.array(CORNERS)[far + 2 * off]


def distances(size, wild=1.0, labels=None, note=""):
    """A quarter of the samples outlying, an eighth only before flagged entries are imputed."""
    rng, k = np.random.default_rng(size), max(1, size // 8)
    score, residual = 2 * rng.random(size), 1.7 * rng.random(size)
    score[:k] = 3 + 6 * wild * rng.random(k) + 0.1
    residual[k // 2 : 2 * k] = 1.9 + 6 * wild * rng.random(2 * k - k // 2)
    before = residual.copy()
    before[2 * k : 3 * k] += 8 * wild
    return Distances(
        0, "sample", labels, score, residual, score, before, 3.0, 1.8, np.zeros(size),
        kinds_of(score, residual), kinds_of(score, before), note,
    )  # fmt: skip


def test_a_box_covers_the_points_within_it():
    boxes = np.array([[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 2.0]])
    assert _count_covered(boxes, np.array([[1.5, 0.5], [0.5, 1.5], [0.5, 0.5]])).tolist() == [2, 2]


def named(ax):
    """The names of points, without those of the quadrants and the note."""
    shown = [text for text in ax.texts if text.get_text()]
    return [text for text in shown if text.get_text() not in CORNERS and text.xycoords == "data"]


def arrows(ax):
    return [text for text in ax.texts if not text.get_text()]


@pytest.mark.parametrize(
    ("size", "labels", "wild"),
    [(5, "patients", 1.0), (5, "none", 1e4), (50, "patients", 1.0), (50, "dates", 1e4),
     (50, "long", 1.0), (50, "none", 1e4), (500, "long", 1.0), (500, "dates", 1e4)],
)  # fmt: skip
def test_no_name_lies_over_another_or_leaves_the_axes(size, wild, labels):
    found = distances(size, wild, LABELS[labels](size), note="what else there is to say " * 8)
    ax = distance_map(found)
    ax.figure.canvas.draw()
    texts = [text for text in ax.texts if text.get_text()]
    legend = [text for text in ax.get_legend().get_texts() if text.get_text().strip()]
    assert overlapping([*texts, *legend, ax.get_legend().get_title(), ax.xaxis.label]) == []
    assert outside(named(ax), ax.bbox) == []
    assert outside([*texts, *legend, ax.xaxis.label, ax.yaxis.label], ax.figure.bbox) == []
    assert {text.get_text() for text in texts} >= set(CORNERS)
    outlying = np.count_nonzero((found.kinds != "regular") | (found.kinds_before != "regular"))
    left = [t.get_text() for t in legend if "without a name" in t.get_text()]
    if size == 5:
        assert len(named(ax)) == outlying
    if len(named(ax)) == outlying:
        assert left == []
    else:
        assert left[0].startswith(f"and {outlying - len(named(ax))} other")
    assert len(named(ax)) >= min(outlying, 8)


def test_the_most_outlying_are_named_first():
    found = distances(500)
    ax = distance_map(found, most=3)
    beyond = np.maximum(found.score / 3.0, found.residual / 1.8)
    expected = np.argsort(-beyond)[:3]
    assert [text.get_text() for text in named(ax)] == [str(k) for k in expected]
    for text, k in zip(named(ax), expected, strict=True):
        assert text.xy == pytest.approx((found.score[k], found.residual[k]))
    assert named(distance_map(found, most=0)) == []


def test_points_lie_at_their_distances_with_a_marker_for_each_kind():
    found = distances(50)
    ax = distance_map(found)
    drawn = [c for c in ax.collections if isinstance(c, PathCollection)]
    shapes = {c.get_paths()[0].vertices.tobytes() for c in drawn}
    shades = sorted(grey(c.get_facecolor()[0][:3]) for c in drawn)
    assert len(shapes) == len(drawn) == 5
    assert np.diff(shades).min() > 0.1
    for kind, points in zip([*CORNERS, "many bad entries"], drawn, strict=True):
        at = found.kinds == kind
        expected = np.stack([found.score[at], found.residual[at]], axis=1)
        np.testing.assert_allclose(points.get_offsets(), expected)
        assert points.get_label() == kind
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert f"bad leverage ({np.count_nonzero(found.kinds == 'bad leverage')})" in legend
    vertical, horizontal = ax.lines[:2]
    assert set(vertical.get_xdata()) == {3.0}
    assert set(horizontal.get_ydata()) == {1.8}
    assert vertical.get_linestyle() == horizontal.get_linestyle() == "--"


def test_an_arrow_for_each_sample_that_moves():
    found = distances(48)
    ax = distance_map(found)
    assert len(arrows(ax)) == 6
    for arrow, k in zip(arrows(ax), range(12, 18), strict=True):
        assert arrow.xy == pytest.approx((found.score[k], found.residual[k]))
        assert arrow.xyann == pytest.approx((found.score[k], found.residual_before[k]))
    assert "without flagged entries" in [t.get_text() for t in ax.get_legend().get_texts()]
    tails = [t for t in named(ax) if t.get_text() in map(str, range(12, 18))]
    assert {t.xy[1] for t in tails} <= set(found.residual_before[12:18])
    assert tails
    still = replace(found, residual_before=found.residual + 1e-4, kinds_before=found.kinds)
    ax = distance_map(still)
    assert arrows(ax) == []
    assert "without flagged entries" not in [t.get_text() for t in ax.get_legend().get_texts()]


def test_axes_are_logarithmic_where_distances_are_far():
    near, far = distance_map(distances(50, 0.5)), distance_map(distances(50, 100.0))
    assert near.get_xscale() == "linear"
    assert (far.get_xscale(), far.get_yscale()) == ("log", "log")
    found = distances(50, 100.0)
    found.residual[30:35] = 0.0  # exact fits are at the lower end
    ax = distance_map(found)
    regular = ax.collections[0].get_offsets()
    assert regular[:, 1].min() > ax.get_ylim()[0] > 0


def test_each_quadrant_has_room_for_its_name():
    for size in (5, 50):
        for wild in (0.01, 1.0, 1e6):
            ax = distance_map(distances(size, wild))
            x, y = ax.transAxes.inverted().transform(ax.transData.transform((3.0, 1.8)))
            assert 0.15 < x < 0.85
            assert 0.15 < y < 0.85


def test_samples_without_distances_are_left_out():
    found = distances(50)
    found.score[[3, 40]] = np.nan
    ax = distance_map(found)
    assert sum(len(c.get_offsets()) for c in ax.collections) == 48
    assert " of 48 are outlying" in ax.get_legend().get_title().get_text()
    assert "3" not in [text.get_text() for text in named(ax)]
    found.residual[:] = np.nan
    assert named(distance_map(found)) == []


def test_labels_of_samples_that_have_none():
    found = distances(5)
    ax = distance_map(found, labels="abcde")
    assert {text.get_text() for text in named(ax)} <= set("abcde")
    with pytest.raises(ValueError, match="labels: must be one for each of the 5 samples, got 3"):
        distance_map(found, labels="abc")
    with pytest.raises(ValueError, match="most: must be an integer >= 0, got -1"):
        distance_map(found, most=-1)


def test_the_map_is_drawn_into_given_axes_of_any_kind():
    for axes in (
        plt.figure(figsize=(10, 4)).subplots(1, 2),
        [figure.subplots() for figure in plt.figure(figsize=(10, 4)).subfigures(1, 2)],
    ):
        ax = distance_map(distances(50), ax=axes[1])
        assert ax is axes[1]
        assert overlapping([t for t in ax.texts if t.get_text()]) == []
        assert outside(named(ax), ax.bbox) == []
