from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from datetime import date, timedelta

import matplotlib as mpl
import numpy as np
import pytest
import xarray
from scipy.stats import norm

import robustcp.plot
from robustcp import KruskalTensor, Observed, cp, cpals, simulate
from robustcp.eem import Spectra
from robustcp.engines.slices import host_slice
from robustcp.inference.rank_profile import RankProfile
from robustcp.plot import (
    cellmap,
    components,
    convergence,
    outliers,
    rank_profile,
    slices,
    truth_against_estimates,
)
from support.pictures import overlapping
from test_plot_diagnostics import an_ensemble, halves

pytestmark = pytest.mark.pictures

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


PUBLIC = [
    "cellmap", "components", "convergence", "distance_map", "ensemble", "outlier_map", "outliers",
    "rank_profile", "replicability", "slices", "spectra", "split_half", "truth_against_estimates",
]  # fmt: skip


def test_the_package_shows_its_functions_and_nothing_else():
    assert dir(robustcp.plot) == PUBLIC
    assert all(callable(getattr(robustcp.plot, name)) for name in PUBLIC)


def test_matplotlib_is_imported_when_something_is_drawn():
    code = """
import sys, robustcp.plot
assert "matplotlib" not in sys.modules
X = robustcp.simulate((4, 3, 2), 1, eta=0, gamma=0, rng=0).data
robustcp.plot.convergence(robustcp.cpals(X, 1, starts=1))
assert "matplotlib" in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def named():
    """Data with names and labels of every kind, and its fit."""
    raw = simulate((4, 30, 12), 2, eta=0.1, gamma=1.0, rng=0).data
    X = xarray.DataArray(
        raw,
        dims=("person", "wavelength", "pixel"),
        coords={"person": ["Ann", "Bo", "Cy", "Di"], "wavelength": 300 + 2.5 * np.arange(30)},
    )
    return X, cp(X, 2)


def small(order):
    X = simulate((3, 4, 5, 3, 2)[:order], 1, eta=0.0, gamma=0.0, rng=order).data
    return X, cpals(X, 1, starts=1)


def tick_labels(axis):
    axis.axes.figure.canvas.draw()
    return [tick.get_text() for tick in axis.get_ticklabels() if tick.get_text()]


def test_estimates_are_paired_with_the_truth_and_turned_to_its_sign():
    truth = simulate((9, 8, 7), 3, eta=0, gamma=0, rng=0).truth
    shuffled = KruskalTensor(
        truth.weights[[2, 0, 1]],
        (
            -truth.factors[0][:, [2, 0, 1]],
            -truth.factors[1][:, [2, 0, 1]],
            truth.factors[2][:, [2, 0, 1]],
        ),
    )
    ax = truth_against_estimates(truth, {"ours": shuffled}, mode=1, component=2)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), truth.factors[1][:, 2])
    assert "mode 1" in ax.get_xlabel()
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"truth", "ours"}


# Components


def test_components_are_bars_for_names_lines_for_numbers_and_images_for_pixels(named):
    _, fit = named
    axes = components(fit, shapes={"pixel": (3, 4)})
    assert axes.shape == (2, 3)
    for r, (names, numbers, pixels) in enumerate(axes):
        heights = [bar.get_height() for bar in names.patches]
        np.testing.assert_allclose(heights, fit.factors[0][:, r])
        np.testing.assert_allclose(numbers.lines[0].get_xdata(), fit.labels[1])
        np.testing.assert_allclose(numbers.lines[0].get_ydata(), fit.factors[1][:, r])
        np.testing.assert_allclose(pixels.images[0].get_array(), fit.factors[2][:, r].reshape(3, 4))
        assert names.get_title("left") == f"component {r + 1}: {fit.shares[r]:.1%} of the data"
    assert [ax.get_xlabel() for ax in axes[-1]] == ["person", "wavelength", "pixel"]
    assert tick_labels(axes[-1, 0].xaxis) == ["Ann", "Bo", "Cy", "Di"]
    assert axes[0, 1].get_ylim() == axes[1, 1].get_ylim()


def test_without_labels_few_indices_are_bars_and_many_a_line():
    X = simulate((5, 13, 4), 1, eta=0, gamma=0, rng=0).data
    fit = cpals(X, 1, starts=1)
    assert [len(ax.patches) for ax in components(fit)[0]] == [5, 0, 4]
    assert [len(ax.patches) for ax in components(fit, kinds={0: "line", 1: "bar"})[0]] == [0, 13, 4]


DAYS = [date(2024, 1, 1) + timedelta(days=k) for k in (4, 0, 2, 1, 3)]


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [([5, 1, 3, 2, 4], "int64"), (DAYS, "datetime64[us]"), (DAYS, "datetime64[ns]")],
    ids=["numbers", "dates", "dates in nanoseconds"],
)
def test_lines_go_in_the_order_of_their_labels(labels, dtype):
    raw = simulate((3, 5), 1, eta=0, gamma=0, rng=0).data
    coordinate = np.array(labels, dtype="datetime64[D]" if labels is DAYS else None).astype(dtype)
    fit = cpals(xarray.DataArray(raw, dims=("a", "b"), coords={"b": coordinate}), 1, starts=1)
    assert isinstance(fit.labels[1][0], type(labels[0]))
    line = components(fit)[0, 1].lines[0]
    assert list(line.get_xdata(orig=True)) == sorted(fit.labels[1])
    np.testing.assert_allclose(line.get_ydata(), fit.factors[1][[1, 3, 2, 4, 0], 0])


@pytest.mark.parametrize(
    ("pixels", "limits"),
    [([0.6, 0.0, 0.8, 0.0], (0.0, 0.8)), ([0.6, 0.0, -0.8, 0.0], (-0.8, 0.8))],
    ids=["nonnegative", "signed"],
)
def test_images_with_negative_pixels_are_on_a_symmetric_scale(pixels, limits):
    factors = (np.array([[1.0], [0.0]]), np.array(pixels)[:, None])
    fit = replace(small(2)[1], model=KruskalTensor(np.ones(1), factors))
    image = components(fit, shapes={1: (2, 2)})[0, 1].images[0]
    assert image.get_clim() == pytest.approx(limits)


def test_components_into_given_axes(named):
    import matplotlib.pyplot as plt

    _, fit = named
    given = plt.figure().subplots(2, 3)
    assert components(fit, axes=given)[1, 2] is given[1, 2]
    with pytest.raises(ValueError, match=r"axes: must be an array of \(2, 3\) Axes"):
        components(fit, axes=given[:1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": {0: "pie"}}, "kinds: must be one of 'line', 'bar', 'image', 'dots', got 'pie'"),
        ({"kinds": {3: "bar"}}, "kinds: must be an integer from 0 to 2, got 3"),
        ({"kinds": {"time": "bar"}}, "kinds: must be one of person, wavelength, pixel"),
        ({"kinds": "bar"}, "kinds: must be a mapping"),
        ({"kinds": {2: "image"}}, "shapes: needs the \\(height, width\\) of pixel"),
        ({"shapes": {2: (3, 5)}}, "shapes: 3 x 5 is not the size of pixel, 12"),
        ({"shapes": {2: (12,)}}, "shapes: must be \\(height, width\\) for pixel"),
        ({"shapes": {2: 12}}, "shapes: must be \\(height, width\\) for pixel"),
        ({"shapes": {-1: (3, 4)}}, "shapes: must be an integer"),
    ],
)
def test_wrong_arguments_of_components(named, arguments, message):
    with pytest.raises(ValueError, match=message):
        components(named[1], **arguments)


# Convergence


def test_convergence_shows_every_sweep_of_every_stage_unjoined(named):
    _, fit = named
    ax = convergence(fit)
    assert len(ax.lines) == len(fit.stages) > 1
    begin = 0
    for line, (_, sweeps) in zip(ax.lines, fit.stages, strict=True):
        values = fit.trace[begin : begin + sweeps]
        drawn = (values - values.min()) / (np.ptp(values) or 1)
        np.testing.assert_allclose(line.get_ydata(), drawn, atol=1e-12)
        begin += sweeps
    drawn = np.concatenate([line.get_xdata() for line in ax.lines])
    np.testing.assert_array_equal(drawn, np.arange(1, fit.sweeps + 1))
    assert all(line.get_linestyle() == "None" for line in ax.lines)
    assert len({line.get_marker() for line in ax.lines}) == len(fit.stages)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [text.split(" (")[0] for text in legend] == [name for name, _ in fit.stages]
    assert len(ax.patches) == len(fit.stages)


def test_convergence_of_one_stage():
    ax = convergence(small(3)[1])
    assert len(ax.lines) == 1
    assert ax.get_ylabel() == "objective, in each stage"


def test_rank_profile_marks_the_recommended_rank():
    some = np.array([0.9, 0.2, 0.3])
    spread = {"error": some / 10}
    profile = RankProfile(
        (1, 2, 3), some, some, 1 - some, some, 100 * (some - 0.5), some, spread, 2, "lowest", 3
    )
    ax = rank_profile(profile)
    error, *_, marked = ax.lines
    other = next(other for other in ax.figure.axes if other is not ax)
    stability, consistency, agreement = other.lines
    np.testing.assert_allclose(error.get_ydata(), profile.error)
    np.testing.assert_allclose(stability.get_ydata(), profile.stability)
    np.testing.assert_allclose(consistency.get_ydata(), [0.4, 0, 0])
    np.testing.assert_allclose(agreement.get_ydata(), some)
    assert list(marked.get_xdata()) == [2, 2]
    assert ax.get_xlabel() == "rank (recommended: 2)"
    assert len(ax.get_legend().get_texts()) == 4


# Outliers


@pytest.mark.parametrize("mode", [0, "person"])
def test_outliers_of_each_slab_with_its_label(named, mode):
    X, fit = named
    found = fit.outliers(X)
    ax = outliers(found, mode)
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], 100 * found.slabs[0])
    assert ax.get_xlabel() == "person"
    assert tick_labels(ax.xaxis) == ["Ann", "Bo", "Cy", "Di"]


def test_some_of_many_labels(named):
    X, fit = named
    ax = outliers(fit.outliers(X), "wavelength")
    assert len(ax.patches) == 30
    ticks = [float(text) for text in tick_labels(ax.xaxis)]
    assert len(ticks) >= 3
    assert all(tick == round(tick / 2.5) * 2.5 for tick in ticks)
    at = np.interp(ticks, fit.labels[1], np.arange(30))
    np.testing.assert_allclose(ax.get_xticks(), at)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("dates", 3), ("dates", 300), ("hours", 30), ("wavelengths", 300), ("falling", 30),
     ("names", 3), ("names", 300)],
)  # fmt: skip
def test_ticks_have_room(kind, count):
    """In bars, lines and images, whatever the labels are."""
    k = np.arange(count)
    labels = {
        "dates": np.datetime64("2023-12-28") + 9 * k,
        "hours": np.datetime64("2023-12-28T21:00") + np.timedelta64(20, "m") * k,
        "wavelengths": 312.7 + 1.37 * k,
        "falling": 312.7 - 1.37 * k,
        "names": [f"patient {n} of the eastern clinic" for n in k],
    }[kind]
    X = simulate((4, count, 5), 1, eta=0.1, gamma=1.0, rng=0).data
    X = xarray.DataArray(X, dims=("a", "b", "c"), coords={"b": labels})
    fit = cpals(X, 1, starts=1)
    found = fit.outliers(X)
    for ax in (components(fit)[-1, 1], outliers(found, "b"), slices(fit, X, 1, "c")[0]):
        axis = ax.yaxis if ax.images else ax.xaxis
        ax.figure.canvas.draw()
        shown = [t.label1 for t in axis.get_major_ticks() if t.label1.get_text()]
        low, high = sorted(axis.get_view_interval())
        place = [t.get_position()[0 if axis is ax.xaxis else 1] for t in shown]
        shown = [t for t, at in zip(shown, place, strict=True) if low <= at <= high]
        assert len(shown) >= 2 - (count == 3)
        turned = {t.get_rotation() for t in shown} - {0.0}
        if not turned:
            assert overlapping(shown) == []
        elif len(shown) > 1:  # lines of text beside each other
            at = [ax.transData.transform((k, 0))[0] for k in place if low <= k <= high]
            line = shown[0].get_fontsize() * ax.figure.dpi / 72
            assert np.diff(at).min() * np.sin(np.deg2rad(turned.pop())) >= line


def test_components_have_the_same_numbers_and_order_everywhere(named, tmp_path):
    """In the order of their weights, though the second component has the larger share here."""
    X, fit = named
    weights, factors = fit.model
    model = KruskalTensor(weights[::-1], tuple(A[:, ::-1] for A in factors))
    turned = replace(fit, model=model)
    assert turned.shares[1] > turned.shares[0]
    names = ["component 1", "component 2"]
    titles = [ax.get_title("left") for ax in components(turned)[:, 0]]
    assert [title.split(":")[0] for title in titles] == names
    legend = components(turned, overlay=True)[0].figure.legends[0]
    assert [text.get_text().split(" (")[0] for text in legend.get_texts()] == names
    assert re.findall(r"component \d", str(turned.summary())) == names
    turned.report(X, tmp_path / "report.html")
    headings = re.findall(r"<h3>(Component \d)", (tmp_path / "report.html").read_text("utf-8"))
    assert headings == ["Component 1", "Component 2"]
    for table in turned.to_frames().values():
        assert list(table.columns) == [1, 2]
    assert turned.to_xarray()["component"].values.tolist() == [1, 2]


def test_components_over_each_other(named):
    _, fit = named
    axes = components(fit, overlay=True, figsize=(9, 4))
    assert axes.shape == (3,)
    assert tuple(axes[0].figure.get_size_inches()) == (9, 4)
    for n, ax in enumerate(axes):
        drawn = [line.get_ydata() for line in ax.lines[: fit.rank]]
        np.testing.assert_allclose(np.transpose(drawn), fit.factors[n])
    (legend,) = axes[0].figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [f"component {r + 1} ({fit.shares[r]:.1%})" for r in range(2)]
    with pytest.raises(ValueError, match="overlay: not together with"):
        components(fit, overlay=True, shapes={"pixel": (3, 4)})


def test_dots_by_group(named):
    _, fit = named
    groups = ["rest", "task", "task", "rest"]
    axes = components(fit, groups={"person": groups})
    for r, ax in enumerate(axes[:, 0]):
        rest, task = ax.lines[:2]
        np.testing.assert_allclose(rest.get_ydata(), fit.factors[0][[0, 3], r])
        np.testing.assert_allclose(task.get_ydata(), fit.factors[0][[1, 2], r])
        assert rest.get_marker() != task.get_marker()
    (legend,) = axes[0, 0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["rest", "task"]
    with pytest.raises(ValueError, match="groups: must be one for each of the 4 indices of person"):
        components(fit, groups={0: groups[:3]})


def test_outliers_beside_what_chance_would_flag(named):
    X, fit = named
    found = fit.outliers(X)
    ax = outliers(found)
    assert ax.lines[0].get_ydata()[0] == pytest.approx(100 * found.by_chance)
    assert found.by_chance == pytest.approx(found.rate)
    some = fit.outliers(X, control="fdr")
    assert some.by_chance == pytest.approx(2 * norm.sf(some.threshold))


def test_long_names_are_turned():
    raw = simulate((3, 4, 5), 1, eta=0, gamma=0.1, rng=0).data
    names = [f"a rather long name {k}" for k in range(3)]
    X = xarray.DataArray(raw, dims=("a", "b", "c"), coords={"a": names})
    ax = outliers(cpals(X, 1, starts=1).outliers(X))
    assert tick_labels(ax.xaxis) == names
    assert {tick.get_rotation() for tick in ax.get_xticklabels()} == {30.0}


def test_cellmap_has_scores_with_flagged_entries_far_from_white(named):
    X, fit = named
    X = X.copy()
    X[1, 3, 4], X[1, 5, 6], X[1, 0, 0] = 1e6, -1e6, np.nan
    found = fit.outliers(X)
    ax = cellmap(found, "person", 1)
    image = ax.images[0]
    np.testing.assert_allclose(image.get_array().filled(np.nan), np.asarray(found.scores)[1])
    assert image.get_clim() == pytest.approx((-3 * found.threshold, 3 * found.threshold))
    colour = image.to_rgba(image.get_array())
    darkness = 1 - colour[..., :3] @ [0.299, 0.587, 0.114]
    flagged, missing = np.asarray(found.mask)[1], np.isnan(np.asarray(X)[1])
    assert darkness[flagged].min() > 0.25 > 0.15 > darkness[~flagged & ~missing].max()
    assert darkness[5, 6] > darkness[3, 4] + 0.2  # too low is darker than too high
    assert colour[0, 0, 3] == 0  # missing: the hatched background
    assert ax.patch.get_hatch()
    share = found.mask[1].sum() / (X[1].size - 1)
    assert ax.get_title() == f"person Bo, {float(share):.1%} flagged"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("pixel", "wavelength")
    assert image.colorbar.extend == "both"
    assert image.colorbar.ax.get_ylabel() == "residual, in units of its own noise"


def test_cellmap_is_in_units_of_each_entrys_own_noise():
    rng = np.random.default_rng(0)
    truth = KruskalTensor(np.ones(2), tuple(rng.random((n, 2)) for n in (12, 20, 15)))
    spread = np.where(np.arange(20) % 2, 0.01, 0.1)
    X = truth.full() + spread[:, None] * rng.standard_normal((12, 20, 15))
    fit = cp(X, 2)
    assert fit.noise.kind.modes == (1,)
    found = fit.outliers(X)
    scores = cellmap(found, 0, 4).images[0].get_array().filled(np.nan)
    np.testing.assert_allclose(scores, found.scores[4])
    np.testing.assert_allclose(scores, fit.residuals(X)[4] / fit.sigma(X)[4], rtol=1e-6)
    quiet, loud = scores[spread == 0.01].std(), scores[spread == 0.1].std()
    assert loud / quiet == pytest.approx(1, abs=0.2)
    known = cp(X, 2, noise=[None, spread, None])
    scores = cellmap(known.outliers(X), (1, 2), (3, 4)).images[0].get_array().filled(np.nan)
    np.testing.assert_allclose(scores[0], known.residuals(X)[:, 3, 4] / 0.01)


def test_cellmap_of_observed_entries(named):
    X, fit = named
    raw = np.asarray(X)
    at = np.argwhere(np.random.default_rng(0).random(raw.shape) < 0.8)
    found = fit.outliers(Observed(at, raw[tuple(at.T)], raw.shape))
    shown = cellmap(found, 2, 5).images[0].get_array().filled(np.nan)
    expected = np.full(raw.shape, np.nan)
    expected[tuple(at.T)] = found.scores
    np.testing.assert_allclose(shown, expected[:, :, 5])


def test_cellmap_where_nothing_is_flagged():
    X = simulate((5, 6, 7), 1, eta=0, gamma=0.1, rng=0).data
    found = cpals(X, 1, starts=1).outliers(X, rate=1e-9, control="fdr")
    assert cellmap(found, 2, 3).get_title() == "mode 2 [3], 0.0% flagged"


# Slices


class TestHostSlice:
    """One slice of any data as a float64 NumPy array."""

    SHAPE = (4, 3, 5)
    PLACES = ({0: 1}, {1: 2}, {2: 0}, {0: 3, 2: 4}, {})

    @pytest.fixture
    def raw(self):
        return np.random.default_rng(0).integers(0, 200, self.SHAPE)

    def check(self, X, expected, fixed):
        part = host_slice(X, fixed, self.SHAPE)
        assert type(part) is np.ndarray
        assert part.dtype == np.float64
        at = tuple(fixed.get(n, slice(None)) for n in range(3))
        np.testing.assert_array_equal(part, np.asarray(expected, dtype=np.float64)[at])

    @pytest.mark.parametrize("fixed", PLACES, ids=str)
    @pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64", "bool"])
    def test_every_array_library(self, xp, raw, dtype, fixed):
        host = raw.astype(dtype)
        self.check(xp.asarray(host), host, fixed)

    @pytest.mark.parametrize("fixed", PLACES, ids=str)
    def test_missing_entries_are_nan(self, raw, fixed):
        known = np.random.default_rng(1).random(self.SHAPE) < 0.6
        expected = np.where(known, raw, np.nan)
        for X in (
            expected,
            expected.tolist(),
            np.ma.array(raw, mask=~known),
            np.ma.array(raw.astype(np.uint8), mask=~known),
            xarray.DataArray(expected, dims=("a", "b", "c")),
            Observed(np.argwhere(known), raw[known], self.SHAPE),
            Observed(np.argwhere(known)[::-1], raw[known][::-1].astype(np.float32), self.SHAPE),
        ):
            self.check(X, expected, fixed)

    @pytest.mark.torch
    def test_tensors_with_a_gradient_and_in_half_precision(self, raw):
        torch = pytest.importorskip("torch")
        for X in (
            torch.asarray(raw, dtype=torch.float64, requires_grad=True),
            torch.asarray(raw).to(torch.bfloat16),
        ):
            self.check(X, X.detach().to(torch.float64).numpy(), {1: 1})

    def test_only_the_slice_is_converted(self):
        X = np.ones((100, 100, 100), dtype=np.uint8)
        mask = np.zeros(X.shape, dtype=bool)
        mask[0, 0, 0] = True
        for data in (X, np.ma.array(X, mask=mask), xarray.DataArray(X, dims=("a", "b", "c"))):
            host_slice(data, {0: 0}, X.shape)  # imports and caches
            tracemalloc.start()
            host_slice(data, {0: 0}, X.shape)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < X.nbytes / 2

    def test_another_shape(self, raw):
        for X in (raw, raw.tolist(), Observed([[0, 0, 0]], [1.0], self.SHAPE)):
            with pytest.raises(ValueError, match=r"X: has shape \(4, 3, 5\), the model has shape"):
                host_slice(X, {0: 0}, (4, 3, 6))


def test_slices_are_data_model_and_residual(named):
    X, fit = named
    X = X.copy()
    X[2, 3, 4] = np.nan
    axes = slices(fit, X, 2)
    model = fit.full()[2]
    for ax, values in zip(axes, (X[2], model, X[2] - model), strict=True):
        np.testing.assert_allclose(ax.images[0].get_array().filled(np.nan), values, atol=1e-12)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("pixel", "wavelength")
        assert ax.images[0].colorbar is not None
        assert ax.patch.get_hatch()
    data, fitted, residual = (ax.images[0].get_clim() for ax in axes)
    assert data == fitted
    assert residual[0] == -residual[1]
    assert [ax.get_title() for ax in axes] == [
        "data, person Cy", "model, person Cy", "residual, person Cy",
    ]  # fmt: skip
    assert axes[0].images[0].origin == "lower"  # wavelengths go up


def test_gross_outliers_do_not_set_the_scale_of_slices(named):
    X, fit = named
    spoilt = X.copy()
    spoilt[0, 0, 0] = 1e9
    axes = slices(fit, spoilt, 0)
    assert max(ax.images[0].get_clim()[1] for ax in axes) < 1e3
    assert axes[0].images[0].colorbar.extend in ("max", "both")


def test_slices_of_masked_arrays_lists_and_observed_entries(named):
    X, fit = named
    raw = np.asarray(X)
    known = np.random.default_rng(0).random(raw.shape) < 0.6
    part = Observed(np.argwhere(known), raw[known], raw.shape)
    expected = np.where(known, raw, np.nan)[:, 7]
    for data in (part, np.ma.array(raw, mask=~known), np.where(known, raw, np.nan).tolist()):
        shown = slices(fit, data, 7, mode="wavelength")[0].images[0].get_array()
        np.testing.assert_allclose(shown.filled(np.nan), expected)
    found = fit.outliers(part)
    shown = cellmap(found, 1, 7).images[0].get_array().filled(np.nan)
    assert (np.isnan(shown) == ~known[:, 7]).all()


def test_a_slice_that_is_all_missing_is_drawn(named):
    X, fit = named
    X = X.copy()
    X[0] = np.nan
    data, model, residual = (ax.images[0].get_array().filled(np.nan) for ax in slices(fit, X, 0))
    assert np.isnan(data).all()
    assert np.isnan(residual).all()
    np.testing.assert_allclose(model, fit.full()[0])
    assert cellmap(fit.outliers(X), 0, 0).get_title() == "person Ann, 0.0% flagged"


def test_one_mode_that_remains_is_drawn_as_lines(named):
    X, fit = named
    axes = slices(fit, X, (1, 4), mode=("person", "pixel"))
    model = fit.full()[1, :, 4]
    for ax, values in zip(axes, (X[1, :, 4], model, X[1, :, 4] - model), strict=True):
        np.testing.assert_allclose(ax.lines[0].get_xdata(), fit.labels[1])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), values, atol=1e-12)
        assert not ax.images
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_title() == "data, person Bo, pixel [4]"


@pytest.mark.parametrize("draw", ["slices", "cellmap"])
@pytest.mark.parametrize(
    ("mode", "index", "message"),
    [
        (3, 0, "mode: must be an integer from 0 to 2, got 3"),
        (-1, 0, "mode: must be an integer"),
        ("time", 0, "mode: must be one of person, wavelength, pixel, got 'time'"),
        ((0, 0), (1, 1), "mode: the same one twice"),
        ((), (), "mode: must fix 1 or 2 of the 3 modes"),
        ((0, 1, 2), (0, 0, 0), "mode: must fix 1 or 2 of the 3 modes"),
        (0, 4, "index: must be an integer from 0 to 3, got 4"),
        (0, -1, "index: must be an integer from 0 to 3, got -1"),
        (0, 1.5, "index: must be"),
        ((0, 1), 0, "index: must be one for each fixed mode"),
    ],
)
def test_wrong_places(named, draw, mode, index, message):
    X, fit = named
    draws = {
        "slices": lambda: slices(fit, X, index, mode),
        "cellmap": lambda: cellmap(fit.outliers(X), mode, index),
    }
    with pytest.raises(ValueError, match=message):
        draws[draw]()


def test_data_of_another_shape_and_modes_of_outliers(named):
    X, fit = named
    with pytest.raises(ValueError, match=r"X: has shape \(3, 30, 12\)"):
        slices(fit, X[:3], 0)
    with pytest.raises(ValueError, match="mode: must be an integer from 0 to 2, got 5"):
        outliers(fit.outliers(X), 5)
    with pytest.raises(ValueError, match="axes: must be an array of"):
        slices(fit, X, 0, axes=[None])


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_every_picture_of_every_order(order):
    X, fit = small(order)
    assert components(fit).shape == (1, order)
    found = fit.outliers(X)
    assert len(outliers(found, order - 1).patches) == X.shape[-1]
    held, at = tuple(range(1, order - 1)), (1,) * (order - 2)
    part = X[(slice(None), *at, slice(None))]
    axes = slices(fit, X, at, mode=held)
    np.testing.assert_allclose(axes[0].images[0].get_array(), part)
    model = fit.full()[(slice(None), *at, slice(None))]
    np.testing.assert_allclose(axes[1].images[0].get_array(), model)
    axes[0].figure.canvas.draw()
    assert cellmap(found, held, at).images[0].get_array().shape == part.shape
    assert cellmap(found, (0, *held), (0, *at)).images[0].get_array().shape == (1, X.shape[-1])
    assert axes[0].get_xlabel() == f"mode {order - 1}"


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "outlier_map"])
def test_every_picture_has_the_size_that_was_asked_for(named, name):
    X, fit = named
    found, drawn = fit.outliers(X), getattr(robustcp.plot, name)
    eem = Spectra(np.array([350.0, 400]), np.array([250.0]), np.ones((2, 1)), np.ones((1, 1)))
    arguments = {
        "cellmap": (found,), "components": (fit,), "convergence": (fit,),
        "distance_map": (fit.distances(X, 0),), "ensemble": (an_ensemble((1,), 2),),
        "outliers": (found,), "rank_profile": (robustcp.rank_profile(np.asarray(X), [1]),),
        "replicability": (halves(1),), "slices": (fit, X, 0), "spectra": (eem,),
        "split_half": (halves(1),), "truth_against_estimates": (fit.model, {"cp": fit}),
    }  # fmt: skip
    axes = np.ravel(drawn(*arguments[name], figsize=(6.5, 4.25)))
    assert tuple(axes[0].figure.get_size_inches()) == (6.5, 4.25)


def test_units_are_at_the_axes_and_in_titles(named, tmp_path):
    X, _ = named
    X = X.assign_coords(wavelength=("wavelength", X.wavelength.values, {"units": "nm"}))
    fit = cpals(X, 1, starts=1)
    fit.save(tmp_path / "fit.npz")
    for one in (fit, robustcp.load(tmp_path / "fit.npz")):
        assert [ax.get_xlabel() for ax in components(one)[-1]] == [
            "person", "wavelength (nm)", "pixel",
        ]  # fmt: skip
    assert slices(fit, X, 0)[0].get_ylabel() == "wavelength (nm)"
    assert "wavelength 305 nm" in slices(fit, X, 2, mode=1)[0].get_title()
    assert cellmap(fit.outliers(X)).get_ylabel() == "person"
    assert outliers(fit.outliers(X), 1).get_xlabel() == "wavelength (nm)"
    assert fit.to_xarray().wavelength.attrs == {"units": "nm"}
    turned = fit.aligned_to(X.transpose("pixel", "wavelength", "person"))
    assert turned.units == ("", "nm", "")
