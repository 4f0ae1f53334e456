"""Pictures of cells, starts, halves and intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray
from matplotlib.collections import PolyCollection

import robustcp
from robustcp import KruskalTensor, cp, cpals, simulate
from robustcp.plot import (
    cellmap,
    components,
    ensemble,
    outlier_map,
    replicability,
    split_half,
)
from robustcp.plot.colours import cell_colormap
from support.pictures import LABELS, grey, outside, overlapping

pytestmark = pytest.mark.pictures

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


# Cells


@pytest.fixture(scope="module")
def large():
    """Data of many samples, with a bad sample, a bad fibre and missing blocks."""
    X = simulate((130, 210, 3), 1, eta=0.0, gamma=1.0, rng=0).data
    X[60:63] += 50 * X.std()
    X[:, 99:102] -= 50 * X.std()
    X[0:3, 0:3] = np.nan
    names = [f"patient {k}" for k in range(130)]
    X = xarray.DataArray(X, dims=("sample", "emission", "excitation"), coords={"sample": names})
    return X, cp(X, 1, starts=1)


def test_cells_are_red_blue_or_pale_and_blue_is_darker_in_grey():
    colours = cell_colormap(1 / 3)
    low, middle, high = (colours(x)[:, :3] for x in (np.linspace(0, 0.332, 50),
                         np.linspace(0.335, 0.665, 50), np.linspace(0.668, 1, 50)))  # fmt: skip
    assert (low[:, 2] > low[:, 0] + 0.2).all()
    assert (high[:, 0] > high[:, 2] + 0.2).all()
    assert grey(low[-1]) < grey(high[-1]) - 0.1  # the palest blue, and the darkest red
    assert (np.diff(low @ [0.299, 0.587, 0.114]) > -1e-3).all()
    assert (np.diff(high @ [0.299, 0.587, 0.114]) < 1e-3).all()
    assert (middle @ [0.299, 0.587, 0.114]).min() > 0.9
    assert cell_colormap(1.0)(0.0)[0] > 0.9
    assert cell_colormap(np.inf)(1.0)[0] > 0.9


def test_blocks_have_the_mean_colour_of_their_cells(large):
    X, fit = large
    found = fit.outliers(X)
    ax = cellmap(found, 2, 1)
    image = ax.images[0]
    shown = np.asarray(image.get_array())
    assert shown.shape == (44, 70, 4)
    scores = found.scores_of({2: 1})
    colours = image.cmap(image.norm(scores))
    for i, j in ((0, 0), (20, 5), (20, 33), (5, 33), (43, 69), (1, 1)):
        block = colours[3 * i : 3 * i + 3, 3 * j : 3 * j + 3].reshape(-1, 4)
        known = block[:, 3] > 0
        expected = block[known].mean(axis=0) if known.any() else np.zeros(4)
        np.testing.assert_allclose(shown[i, j], expected, atol=1e-12)
    assert shown[0, 0, 3] == 0  # missing as a whole
    assert shown[20, 5, 0] > 0.9 > 0.4 > shown[20, 5, 2]  # a bad sample, too high
    assert shown[5, 33, 2] > 0.3 > shown[5, 33, 0]  # a bad fibre, too low
    assert ax.patch.get_hatch()
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("sample (blocks of 3)", "emission (blocks of 3)")
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ticks[:2] == ["patient 0 to 2", "patient 3 to 5"]
    assert ticks[-1] == "patient 129"


@pytest.mark.parametrize(
    ("blocks", "shape"), [(1, (130, 210)), (50, (3, 5, 4)), ((10, 1), (13, 210, 4))]
)
def test_blocks_as_asked(large, blocks, shape):
    X, fit = large
    assert cellmap(fit.outliers(X), 2, 1, blocks=blocks).images[0].get_array().shape == shape


def test_without_an_index_cells_are_averaged_over_the_mode(large):
    X, fit = large
    found = fit.outliers(X)
    ax = cellmap(found, blocks=1)
    image = ax.images[0]
    slices = [image.cmap(image.norm(found.scores_of({2: k}))) for k in range(3)]
    np.testing.assert_allclose(
        np.asarray(image.get_array())[3:], np.mean(slices, axis=0)[3:], atol=1e-12
    )
    assert ax.get_title() == f"mean over excitation, {found.share:.1%} flagged"
    other = cellmap(found, "sample")
    assert (other.get_ylabel(), other.get_xlabel()) == ("emission (blocks of 4)", "excitation")
    assert other.get_title().startswith("mean over sample, ")


def test_all_of_a_matrix():
    X = simulate((5, 6), 1, eta=0, gamma=0.1, rng=0).data
    found = cpals(X, 1, starts=1).outliers(X)
    np.testing.assert_allclose(cellmap(found).images[0].get_array(), found.scores)


@pytest.mark.parametrize(
    ("size", "labels"),
    [(5, "long"), (50, "patients"), (500, "dates"), (200, "long")],
)
def test_names_of_rows_and_columns_do_not_overlap(size, labels):
    rng = np.random.default_rng(0)
    X = np.outer(rng.random(size), rng.random(30)) + 0.01 * rng.standard_normal((size, 30))
    names = np.array(LABELS[labels](size))
    columns = [f"a variable {k}" for k in range(30)]
    X = xarray.DataArray(X, dims=("sample", "variable"), coords={
        "sample": names.astype("datetime64[ns]") if labels == "dates" else names,
        "variable": columns})  # fmt: skip
    for data, mode in ((X, 0), (X.T, 1)):
        ax = cellmap(cpals(data, 1, starts=1).outliers(data))
        ax.figure.canvas.draw()
        rows = [t for t in ax.get_yticklabels() if t.get_text()]
        assert overlapping(rows) == []
        assert outside([*rows, ax.xaxis.label, ax.title], ax.figure.bbox) == []
        upright = [t for t in ax.get_xticklabels() if t.get_text()]
        if {t.get_rotation() for t in upright} != {30.0}:  # boxes of turned texts overlap anyway
            assert overlapping(upright) == []
        assert outside(upright, ax.figure.bbox) == []
        if size == 50 and mode == 0 and labels != "dates":
            assert len(rows) == 50


def test_the_old_name_warns_and_works(large):
    X, fit = large
    found = fit.outliers(X)
    with pytest.warns(DeprecationWarning, match=r"plot\.outlier_map is now plot\.cellmap") as told:
        ax = outlier_map(found, "excitation", 1)
    assert told[0].filename == __file__
    assert ax.get_title() == cellmap(found, "excitation", 1).get_title()
    with pytest.warns(DeprecationWarning, match="cellmap"):
        assert outlier_map(found).get_title().startswith("sample patient 0, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": 0}, "blocks: must be an integer >= 1, got 0"),
        ({"blocks": (1, 2, 3)}, r"blocks: must be a number or \(rows, columns\), got \(1, 2, 3\)"),
        ({"blocks": "many"}, "blocks: must be an integer >= 1, got 'many'"),
        ({"index": 3}, "index: needs the mode that it is of, got 3"),
        ({"mode": 7}, "mode: must be an integer from 0 to 2, got 7"),
        ({"mode": (0, 1, 2)}, "mode: must fix 1 or 2 of the 3 modes"),
    ],
)
def test_wrong_arguments_of_cellmaps(large, arguments, message):
    X, fit = large
    with pytest.raises(ValueError, match=message):
        cellmap(fit.outliers(X), **arguments)


# Starts of several ranks


@dataclass(frozen=True)
class Ensemble:
    ranks: tuple[int, ...]
    errors: dict[int, np.ndarray]
    similarities: dict[int, np.ndarray]


def an_ensemble(ranks, starts):
    """The starts of real fits, and how much alike they are."""
    X = simulate((8, 7, 6), 2, eta=0.0, gamma=0.1, rng=0).data
    errors, alike = {}, {}
    for rank in ranks:
        fits = [cpals(X, rank, starts=1, rng=k, max_sweeps=30) for k in range(starts)]
        fits.sort(key=lambda fit: fit.objective)
        errors[rank] = np.array([np.linalg.norm(fit.residuals(X)) for fit in fits])
        errors[rank] /= np.linalg.norm(X)
        alike[rank] = np.array([robustcp.factor_match_score(fit, fits[0]) for fit in fits])
    return Ensemble(tuple(ranks), errors, alike)


@pytest.mark.parametrize(("ranks", "starts"), [((1, 2, 3), 5), ((2,), 1)])
def test_every_start_has_a_dot_of_its_own(ranks, starts):
    found = an_ensemble(ranks, starts)
    panels = ensemble(found)
    for ax, values in zip(panels, (found.errors, found.similarities), strict=True):
        best, *dots = ax.lines
        np.testing.assert_allclose(best.get_xdata(), ranks)
        np.testing.assert_allclose(best.get_ydata(), [values[rank][0] for rank in ranks])
        for rank, line in zip(ranks, dots, strict=True):
            np.testing.assert_allclose(line.get_ydata(), values[rank])
            assert np.unique(line.get_xdata()).size == starts
            assert np.abs(np.asarray(line.get_xdata()) - rank).max() < 0.45
            assert line.get_xdata()[0] == rank
        assert list(ax.get_xticks()) == list(ranks)
    with pytest.raises(ValueError, match=r"axes: must be an array of \(2,\) Axes"):
        ensemble(found, axes=[panels[0]])


def test_many_ranks_and_starts():
    ranks = tuple(range(1, 31))
    found = Ensemble(
        ranks, {rank: np.full(50, 1 / rank) for rank in ranks}, {r: np.ones(50) for r in ranks}
    )
    for ax in ensemble(found):
        ax.figure.canvas.draw()
        low, high = ax.get_xlim()
        ticks = [t for t in ax.get_xticklabels() if low <= t.get_position()[0] <= high]
        assert len(ticks) > 3
        assert overlapping(ticks) == []
        assert {int(t.get_text()) for t in ticks} <= set(ranks)


# Halves


@dataclass(frozen=True)
class Replicability:
    mode: int
    rank: int
    fit: Any
    models: tuple[KruskalTensor, ...]
    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    congruences: np.ndarray
    scores: np.ndarray


@cache
def halves(splits):
    """Real fits of halves of the samples; of more than three splits the same ones again."""
    rng, size = np.random.default_rng(0), 20
    B, C = rng.random((40, 2)), rng.random((6, 2))
    X = np.einsum("ar,br,cr->abc", rng.random((size, 2)), B, C)
    X = xarray.DataArray(
        X + 0.01 * rng.standard_normal(X.shape),
        dims=("sample", "wavelength", "laser"),
        coords={"wavelength": 300.0 + 5 * np.arange(40),
                "laser": [f"laser of {k} nm" for k in range(6)]},
    )  # fmt: skip
    fit = cp(X, 2, nonnegative=True, starts=1)
    models: list[KruskalTensor] = []
    for _ in range(min(splits, 3)):
        some = rng.permutation(size)
        for part in (some[: size // 2], some[size // 2 :]):
            model = cp(np.asarray(X)[part], 2, nonnegative=True, starts=1).model
            both = zip(fit.factors[1:], model.factors[1:], strict=True)
            order = np.argmax(np.prod([A.T @ B for A, B in both], axis=0), axis=1)
            factors = tuple(A[:, order] for A in model.factors)
            models.append(KruskalTensor(model.weights[order], factors))
    models = (models * splits)[: 2 * splits]
    names = tuple(f"{'ABCDEFGH'[k // 2]}{k % 2 + 1}" for k in range(2 * splits))
    pairs = tuple((2 * k, 2 * k + 1) for k in range(splits))
    congruences = np.array([
        np.prod([(A * B).sum(axis=0) for A, B in zip(fit.factors[1:], m.factors[1:], strict=True)],
                axis=0) for m in models])  # fmt: skip
    scores = congruences.min(axis=1)[::2]
    return Replicability(0, 2, fit, tuple(models), names, pairs, congruences, scores)


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_halves_lie_over_each_other(splits):
    found = halves(splits)
    grid = split_half(found)
    assert grid.shape == (2, 2)
    for r in range(2):
        for ax, n in zip(grid[r], (1, 2), strict=True):
            whole, *lines = ax.lines[:-1]  # the last is zero
            np.testing.assert_allclose(whole.get_ydata(), found.fit.factors[n][:, r])
            assert len(lines) == 2 * splits
            for line, model in zip(lines, found.models, strict=True):
                np.testing.assert_allclose(line.get_ydata(), model.factors[n][:, r], atol=1e-12)
            assert [line.get_linestyle() for line in lines] == ["-", "--"] * splits
        np.testing.assert_allclose(grid[r, 0].lines[1].get_xdata(), found.fit.labels[1])
    assert [ax.get_xlabel() for ax in grid[-1]] == ["wavelength", "laser"]
    (legend,) = grid[0, 0].figure.legends
    texts = legend.get_texts()
    for k in range(min(splits, 3)):
        assert any(f"(score {found.scores[k]:.3f})" in text.get_text() for text in texts)
    assert any("5 more" in text.get_text() for text in texts) == (splits == 8)
    titles = [ax._left_title for ax in grid[:, 0]]
    assert overlapping([*texts, *titles]) == []
    assert outside([*texts, *titles], grid[0, 0].figure.bbox) == []
    low, high = found.congruences[:, 0].min(), found.congruences[:, 0].max()
    assert grid[0, 0].get_title("left") == f"component 1: congruence {low:.2f} to {high:.2f}"


def test_modes_and_axes_of_halves():
    found = halves(1)
    assert split_half(found, modes=["laser"]).shape == (2, 1)
    given = plt.figure().subplots(2, 2)
    assert split_half(found, axes=given)[0, 0] is given[0, 0]
    assert given[0, 1].get_legend() is not None
    for modes, message in (
        ([0], "modes: sample was split"),
        ([3], "modes: must be an integer from 0 to 2, got 3"),
        (["time"], "modes: must be one of sample, wavelength, laser, got 'time'"),
        ("laser", "modes: must be a sequence of modes, got 'laser'"),
        ([], "modes: must be a sequence of modes"),
    ):
        with pytest.raises(ValueError, match=message):
            split_half(found, modes=modes)


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_scores_of_splits_and_congruences_of_components(splits):
    found = halves(splits)
    scores, congruences = replicability(found)
    drawn = np.concatenate([line.get_ydata() for line in scores.lines if line.get_marker() == "o"])
    np.testing.assert_allclose(drawn, found.scores)
    by_component = [line.get_ydata() for line in congruences.lines if line.get_marker() == "s"]
    np.testing.assert_allclose(by_component, found.congruences.T)
    assert (len(scores.patches), len(congruences.patches)) == (splits > 6, 2 * (splits > 2))
    if splits == 3:
        low, high = np.quantile(found.congruences[:, 1], [0.25, 0.75])
        box = congruences.patches[1]
        np.testing.assert_allclose([box.get_y(), box.get_y() + box.get_height()], [low, high])
    scores.figure.canvas.draw()
    names = [tick.get_text() for tick in scores.get_xticklabels()]
    assert names == (["A1, A2", "B1, B2", "C1, C2"][:splits] if splits < 6 else [])
    assert scores.get_xlabel() == f"{splits} pair{'s' * (splits > 1)} of parts of sample"


# Intervals


@dataclass(frozen=True)
class Uncertainty:
    low: tuple[np.ndarray | None, ...]
    high: tuple[np.ndarray | None, ...]
    level: float
    came_back: np.ndarray


def with_intervals(size):
    raw = simulate((size, 40, 12), 2, eta=0.0, gamma=0.1, rng=0).data
    X = xarray.DataArray(raw, dims=("sample", "wavelength", "pixel"), coords={
        "sample": [f"patient {k}" for k in range(size)],
        "wavelength": (300 + 2.5 * np.arange(40))[::-1]})  # fmt: skip
    fit = cp(X, 2, starts=1)
    low = tuple(A - 0.1 for A in fit.factors)
    high = tuple(A + 0.7 for A in fit.factors)
    return fit, Uncertainty(low, high, 0.95, np.array([1.0, 0.974]))


@pytest.mark.parametrize("size", [5, 50, 500])
def test_intervals_are_bands_and_error_bars(size):
    fit, known = with_intervals(size)
    axes = components(fit, uncertainty=known, shapes={2: (3, 4)})
    for r, (bars, line, image) in enumerate(axes):
        (band,) = line.collections
        assert isinstance(band, PolyCollection)
        ends = band.get_paths()[0].get_extents()
        assert (ends.y0, ends.y1) == pytest.approx(
            (known.low[1][:, r].min(), known.high[1][:, r].max())
        )
        at = {tuple(np.round(v, 9)) for v in band.get_paths()[0].vertices}
        place = fit.labels[1].index(300.0), r  # the last index, the first wavelength
        for end in (known.low[1], known.high[1]):
            assert (300.0, round(float(end[place]), 9)) in at
        assert len(bars.patches) == size
        (drawn,) = bars.collections
        if size == 5:
            segments = np.array(drawn.get_segments())
            np.testing.assert_allclose(segments[:, 0, 1], known.low[0][:, r])
            np.testing.assert_allclose(segments[:, 1, 1], known.high[0][:, r])
        assert bars.get_ylim()[1] > known.high[0].max()
        assert not image.collections
    titles = [ax.get_title("left") for ax in axes[:, 0]]
    assert titles == [
        f"component 1: {fit.shares[0]:.1%} of the data",
        f"component 2: {fit.shares[1]:.1%} of the data,\nback in 97% of resamples",
    ]
    titles = [ax._left_title for ax in axes[:, 0]]
    axes[0, 0].figure.canvas.draw()
    assert outside(titles, axes[0, 0].figure.bbox) == []
    top = axes[1, 1].get_ylim()[1]
    ticks = [t for t in axes[1, 1].get_yticklabels() if t.get_position()[1] <= top]
    assert overlapping([titles[1], *ticks]) == []


def test_intervals_without_an_end_run_to_the_edge():
    fit, known = with_intervals(5)
    known.low[0][1, 0], known.high[0][1, 0] = -np.inf, np.inf
    known.high[1][7, 0], known.low[1][9, 0] = np.inf, np.nan
    bars, line, _ = components(fit, uncertainty=known)[0]
    low, high = bars.get_ylim()
    assert known.low[0][0].min() > low
    assert high < 2
    np.testing.assert_allclose(bars.collections[0].get_segments()[1][:, 1], [low, high])
    tops = [path.vertices[:, 1].max() for path in line.collections[0].get_paths()]
    assert max(tops) == pytest.approx(line.get_ylim()[1])


def test_nothing_is_drawn_where_nothing_is_known():
    fit, known = with_intervals(5)
    part = replace(known, low=(None, *known.low[1:]), high=(None, *known.high[1:]))
    first, second, _ = components(fit, uncertainty=part)[0]
    assert not first.collections
    assert second.collections
    assert "resamples" not in components(fit)[1, 0].get_title("left")
    for wrong in (
        replace(known, low=known.low[:2], high=known.high[:2]),
        replace(known, low=(known.low[0][:3], *known.low[1:])),
        replace(known, low=tuple(A[:, :1] for A in known.low)),
    ):
        with pytest.raises(ValueError, match=r"uncertainty: must be of a fit of \(5, 40, 12\)"):
            components(fit, uncertainty=wrong)
