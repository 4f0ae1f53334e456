from __future__ import annotations

import gc
import pickle
import tracemalloc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from robustcp import KruskalTensor, cp, cpal1, cpals, simulate
from robustcp.results.diagnostics import component_warnings
from robustcp.results.view import FittedView
from support.oracles import host


@pytest.fixture(scope="module")
def sim():
    return simulate((20, 18, 16), 2, eta=0.1, gamma=2.0, rng=0)


@pytest.fixture(scope="module")
def fit(sim):
    return cpal1(sim.data, 2)


def test_unpacks_and_is_canonical(fit):
    weights, factors = fit
    assert weights is fit.weights
    assert weights[0] >= weights[1] > 0
    for A in factors:
        np.testing.assert_allclose(np.linalg.norm(A, axis=0), 1.0)
        assert (A[np.abs(A).argmax(axis=0), range(2)] > 0).all()  # the data is nonnegative


def test_repr_is_one_informative_line(fit):
    text = repr(fit)
    assert "\n" not in text
    for part in ("20x18x16", "rank 2", "L1", "explained", "sweeps", "converged"):
        assert part in text


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ("common", "explained, "),
        (0, "explained, noise differs between the slabs of mode 0, "),
        (0.1, "explained, known noise, "),
    ],
)
def test_repr_says_what_the_noise_depends_on(sim, noise, words):
    fit = cp(sim.data, 2, noise=noise, starts=1)
    assert f"{words}{fit.sweeps} sweeps" in repr(fit)


def test_view_computes_what_its_parts_share_once(sim, fit, monkeypatch):
    view = FittedView.of(fit, sim.data)
    assert np.array_equal(view.outliers.mask, fit.outliers(sim.data).mask)
    assert np.array_equal(view.distances(1).score, fit.distances(sim.data, 1).score)
    assert np.array_equal(view.sigma(), fit.sigma(sim.data))
    assert str(view.summary()) == str(fit.summary(sim.data))
    monkeypatch.setattr("robustcp.results.view.estimate_model_noise", None)
    assert view.outliers_at(0.05).share > view.outliers.share > 0
    assert view.outliers is view.outliers


def test_each_call_sees_the_data_as_it_is_then(sim, fit):
    X = sim.data.copy()
    before = fit.outliers(X).mask
    X[3, 4, 5] += 1e3
    after = fit.outliers(X).mask
    assert after[3, 4, 5]
    assert np.count_nonzero(before != after) <= 1


def test_fit_does_not_hold_the_data(sim, fit):
    X = sim.data.copy()
    reference = weakref.ref(X)
    fit.summary(X), fit.distances(X, 0), fit.sigma(X), fit.residuals(X)
    del X
    gc.collect()
    assert reference() is None
    assert len(pickle.dumps(fit)) < sim.data.nbytes


def test_pickles(fit):
    again = pickle.loads(pickle.dumps(fit))
    assert repr(again) == repr(fit)
    assert np.array_equal(again.full(), fit.full())
    assert np.array_equal(again.trace, fit.trace)
    assert again.loss == fit.loss


def test_stages_count_the_sweeps(fit):
    assert fit.stages == (("L1", fit.sweeps),)


def test_explained_and_shares():
    orthogonal = KruskalTensor(np.array([2.0, 1.0]), tuple(np.eye(6)[:, :2] for _ in range(3)))
    rng = np.random.default_rng(0)
    X = orthogonal.full() + 0.05 * rng.standard_normal((6, 6, 6))
    fit = cpals(X, 2)
    expected = 1 - np.sum(fit.residuals(X) ** 2) / np.sum(X**2)
    assert fit.explained == pytest.approx(expected, rel=1e-9)
    assert fit.shares.sum() == pytest.approx(fit.explained)
    assert fit.shares[0] / fit.shares[1] == pytest.approx(4.0, rel=0.2)


def test_explained_by_the_one_norm(sim, fit):
    expected = 1 - np.abs(fit.residuals(sim.data)).sum() / np.abs(sim.data).sum()
    assert fit.explained == pytest.approx(expected, rel=1e-4)


def test_entries(fit):
    indices = np.array([[0, 0, 0], [19, 17, 15], [3, 4, 5]])
    np.testing.assert_allclose(fit.at(indices), fit.full()[tuple(indices.T)])


@pytest.mark.parametrize("form", ["list", "DataArray", "float32", "torch"])
def test_residuals_and_outliers_take_what_a_fit_takes(sim, fit, form):
    if form == "list":
        X = sim.data.tolist()
    elif form == "DataArray":
        X = pytest.importorskip("xarray").DataArray(sim.data)
    elif form == "float32":
        X = sim.data.astype(np.float32)
    else:
        X = pytest.importorskip("torch").asarray(sim.data).requires_grad_()
    np.testing.assert_allclose(host(fit.residuals(X)), fit.residuals(sim.data), atol=1e-5)
    mask = host(fit.outliers(X).mask)
    assert (mask != fit.outliers(sim.data).mask).mean() < 1e-3


class TestOutliers:
    def test_artifacts_are_found(self, paper):
        sim = paper[0]
        fit = cp(sim.data, 5)
        outliers = fit.outliers(sim.data)
        assert outliers.scale == pytest.approx(sim.sigma, rel=0.03)
        assert fit.scale == pytest.approx(sim.sigma, rel=0.03)
        mask = outliers.mask
        assert mask.shape == sim.data.shape
        assert 0.0005 < mask[~sim.artifacts].mean() < 0.002
        assert mask[sim.artifacts].mean() >= 0.999
        assert outliers.share == pytest.approx(mask.mean())
        for mode, shares in enumerate(outliers.slabs):
            others = tuple(m for m in range(3) if m != mode)
            np.testing.assert_allclose(shares, mask.mean(axis=others))

    def test_a_bad_slab_is_named(self):
        sim = simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=0)
        X = sim.data.copy()
        X[:, 7] += 5 * X.std()
        worst = cp(X, 2).outliers(X).worst(1, 2)
        assert worst[0][0] == 7
        assert worst[0][1] > 0.9 > 0.1 > worst[1][1]

    def test_false_discoveries_are_controlled(self):
        sim = simulate((30, 30, 30), 2, eta=0.01, gamma=3.0, rng=0)
        mask = cp(sim.data, 2).outliers(sim.data, rate=0.05, control="fdr").mask
        assert mask[sim.artifacts].mean() > 0.8
        assert 0 < (mask & ~sim.artifacts).sum() / mask.sum() < 0.1

    def test_scores_are_residuals_in_sigmas(self, sim, fit):
        outliers = fit.outliers(sim.data, rate=0.05)
        assert outliers.threshold == pytest.approx(norm.isf(0.025))
        np.testing.assert_allclose(outliers.scores * outliers.scale, fit.residuals(sim.data))

    def test_any_library(self, sim, xp):
        data = xp.asarray(sim.data)
        fit = cpal1(data, 2)
        mask = fit.outliers(data).mask
        assert type(mask) is type(data)
        assert host(mask).mean() > 0.05

    @pytest.mark.parametrize("size", [1e-200, 1e160, 1e300])
    def test_extreme_values(self, sim, size):
        plain = cp(sim.data, 2)
        share = cp(size * sim.data, 2).outliers(size * sim.data).share
        assert share == pytest.approx(plain.outliers(sim.data).share, abs=1e-3)

    @pytest.mark.parametrize("shape", [(30, 30), (10, 10, 10), (20, 20, 20)], ids=str)
    def test_small_clean_data_is_not_flagged_for_its_fit(self, shape):
        sim = simulate(shape, 2, eta=0.0, gamma=0.0, rng=0)
        fit = cp(sim.data, 2)
        assert fit.scale == pytest.approx(sim.sigma, rel=0.12)
        assert fit.outliers(sim.data).share < 0.006

    def test_exact_data_and_cp(self):
        exact = simulate((30, 30, 30), 3, eta=0.1, gamma=1.0, rng=0).truth.full()
        assert cp(exact, 3).outliers(exact).share < 1e-3

    def test_exact_data_has_none(self):
        truth = simulate((8, 8, 8), 1, eta=0, gamma=0, noise=0.0, rng=0).truth
        exact = cpals(truth.full(), 1, tol=1e-12)
        assert not exact.outliers(truth.full()).mask.any()
        spoilt = truth.full()
        spoilt[1, 2, 3] += 1.0
        assert np.argwhere(cpal1(spoilt, 1).outliers(spoilt).mask).tolist() == [[1, 2, 3]]

    def test_zeros_have_none(self):
        X = np.zeros((3, 3, 3))
        assert not cpal1(X, 1).outliers(X).mask.any()

    @pytest.mark.parametrize("rate", [0.0, 1.0, -1, float("nan")])
    def test_bad_rate(self, sim, fit, rate):
        with pytest.raises(ValueError, match=r"^rate: .*got"):
            fit.outliers(sim.data, rate=rate)


def test_other_shapes_are_refused(fit):
    for call in (fit.residuals, fit.outliers):
        with pytest.raises(ValueError, match=r"^X: has shape \(2, 2, 2\)"):
            call(np.ones((2, 2, 2)))


class TestDiagnosis:
    def columns(self, *angles):
        return np.array([[np.cos(t), np.sin(t)] for t in angles]).T

    def test_sound_components(self):
        A = self.columns(0.0, 1.0)
        assert component_warnings(KruskalTensor.from_factors([A, A, A]).normalized()) == []

    def test_collinear(self):
        same, apart = self.columns(0.0, 0.001), self.columns(0.0, 1.0)
        model = KruskalTensor.from_factors([same, same, apart]).normalized()
        (found,) = component_warnings(model)
        assert found.sentence == "components 1 and 2 are collinear: try rank 1"
        assert (found.code, found.numbers) == ("collinear", {"components": [0, 1]})

    def test_empty(self):
        A = self.columns(0.0, 1.0)
        model = KruskalTensor(np.array([1.0, 0.0]), (A, A, A)).normalized()
        (found,) = component_warnings(model)
        assert (found.code, str(found)) == ("empty", "component 2 is empty: try rank 1")


def test_flags_of_a_large_tensor_take_little_beside_them():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 255, (400, 200, 200), dtype=np.uint8)
    factors = [np.ones((size, 1)) * 5 for size in X.shape]
    found = cpals(X[:20, :20, :20], 1, max_sweeps=1)
    fit = replace(found, model=KruskalTensor.from_factors(factors))
    flagged = fit.outliers(X)
    tracemalloc.start()
    mask = flagged.mask
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mask.dtype == bool
    assert np.array_equal(mask[3, 4], np.abs(flagged.scores[3, 4]) > flagged.threshold)
    assert peak <= 3 * X.nbytes


@pytest.mark.parametrize("method", [cp, cpal1, cpals])
@pytest.mark.parametrize("shape", [(9, 8, 7), (70, 60, 50)])
def test_fits_let_go_of_the_data(method, shape):
    """At once: the next tensor may not fit beside this one."""
    X = simulate(shape, 2, eta=0.1, gamma=1.0, rng=0).data
    held = weakref.ref(X)
    gc.collect()
    gc.disable()
    try:
        fit = method(X, 2)
        del X
        assert held() is None
    finally:
        gc.enable()
    assert fit.rank == 2
