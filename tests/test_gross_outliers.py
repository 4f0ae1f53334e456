"""Entries far from all others get no component, and data with a long tail is left alone."""

from __future__ import annotations

import numpy as np
import pytest

import robustcp
from robustcp import Observed, cp, cpal1, factor_match_score, simulate
from robustcp.engines import DenseEngine, Tiling, as_engine
from robustcp.optimize.problem import Problem
from support.halves import Halves
from support.oracles import host

each = pytest.mark.parametrize("method", [cp, cpal1], ids=lambda m: m.__name__)


def found(X):
    """How many entries of some data are wild."""
    wild = Problem.of(as_engine(X))._gross_outliers
    return 0 if wild is None else wild.count


def with_one(seed, size, factor):
    """A clean tensor with one entry of so many medians, and where it is."""
    sim = simulate((size,) * 3, 3, eta=0.0, gamma=0.0, rng=seed)
    X = sim.data.copy()
    at = tuple(np.random.default_rng(seed + 99).integers(size, size=3))
    X[at] = factor * np.median(np.abs(X))
    return sim, X, at


def filled(seed, share, value, size=30):
    sim = simulate((size,) * 3, 3, eta=0.1, gamma=1.0, rng=seed)
    hit = np.random.default_rng(seed + 99).random(sim.data.shape) < share
    return sim, np.where(hit, value, sim.data), hit


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]


@pytest.mark.recovery
@each
@pytest.mark.parametrize("seed", SEEDS)
class TestOneEntry:
    @pytest.mark.parametrize("factor", [1e3, -1e6, 1e20])
    @pytest.mark.parametrize("size", [20, 40])
    def test_gets_no_component_and_is_flagged(self, method, seed, size, factor):
        sim, X, at = with_one(seed, size, factor)
        for options in ({}, {"nonnegative": True}) if method is cp else ({},):
            fit, clean = method(X, 3, **options), method(sim.data, 3, **options)
            score, limit = (factor_match_score(f, sim.truth) for f in (fit, clean))
            assert score >= limit - 1e-3
            assert score >= 0.98
            assert fit.outliers(X).mask[at]
            assert "1 entry is left out" in fit.status
            assert np.isfinite(fit.explained)
            assert fit.explained > 0.5

    def test_in_a_matrix(self, method, seed):
        sim = simulate((200, 200), 1, eta=0.0, gamma=0.0, rng=seed)
        X = sim.data.copy()
        X[3, 4] = 1e6 * np.median(np.abs(X))
        assert factor_match_score(method(X, 1), sim.truth) >= 0.99


@each
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.001, 0.01, 0.05])
@pytest.mark.parametrize("value", [1e3, -9999.0, 1e20])
def test_fill_values_are_as_good_as_missing(method, seed, share, value):
    sim, X, hit = filled(seed, share, value)
    fit = method(X, 3)
    told = method(np.where(hit, np.nan, X), 3)
    assert fit.outliers(X).mask[hit].all()
    score, limit = (factor_match_score(f, sim.truth) for f in (fit, told))
    assert score >= limit - 1e-4
    assert score >= (0.99 if method is cp else 0.98)


@pytest.mark.recovery
def test_a_large_tensor_whose_sample_misses_the_entry():
    sim = simulate((100, 100, 100), 3, eta=0.0, gamma=0.0, rng=1)
    X = sim.data.copy()
    X[3, 4, 5] = 1e6
    for method in (cp, cpal1):
        fit = method(X, 3)
        assert factor_match_score(fit, sim.truth) >= 0.99
        assert fit.outliers(X).mask[3, 4, 5]


def test_ordinary_entries_that_the_sample_misses_are_kept():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 40, 40))
    X[:, 7, 7] = 10.0 * 2.0 ** np.arange(40)[::-1].clip(0, 10)  # a ladder without a gap
    X[0, 0, 0] = 1e9
    engine = DenseEngine(X, tiling=Tiling(sample_entries=200))
    wild = Problem.of(engine)._gross_outliers
    assert wild.count == 1


@pytest.mark.parametrize("kind", ["numpy", "plain", "F", "strict", "torch", "observed", "halves"])
def test_any_engine(kind):
    sim, X, at = with_one(3, 20, 1e8)
    X[1, 1, 1] = np.nan
    places = np.argwhere(~np.isnan(X))
    data = {
        "numpy": lambda: X,
        "plain": lambda: as_engine(X, compiled=False),
        "F": lambda: np.asfortranarray(X),
        "strict": lambda: pytest.importorskip("array_api_strict").asarray(X),
        "torch": lambda: pytest.importorskip("torch").asarray(X),
        "observed": lambda: Observed(places, X[tuple(places.T)], X.shape),
        "halves": lambda: Halves(X),
    }[kind]()
    fit = cp(data, 3)
    assert factor_match_score(fit, sim.truth) > 0.99
    assert "1 entry is left out" in fit.status
    flags = host(fit.outliers(data).mask)
    flagged = flags[(places == at).all(axis=1)] if kind == "observed" else flags[at]
    assert bool(np.all(flagged))


@pytest.mark.parametrize("c", [1e-6, 1e6, 1e250])
def test_in_any_units(c):
    _, X, _ = with_one(0, 20, 1e5)
    one, other = cpal1(X, 3), cpal1(c * X, 3)
    np.testing.assert_allclose(other.weights / c, one.weights, rtol=1e-6)
    assert found(c * X) == 1


def test_weights_and_wild_entries():
    sim, X, _at = with_one(0, 20, 1e8)
    X[5, 5, 5] = 1e12  # of weight 0: it does not count, wherever it is
    weights = np.ones(X.shape)
    weights[5, 5, 5] = 0
    fit = cp(X, 3, entry_weights=weights)
    assert factor_match_score(fit, sim.truth) > 0.99
    assert "1 entry is left out" in fit.status


def test_other_losses_begin_without_them_and_see_them():
    sim, X, _ = with_one(0, 20, 1e6)
    fit = cp(X, 3, loss=robustcp.Huber(sim.sigma))
    assert factor_match_score(fit, sim.truth) > 0.98
    cost = robustcp.Huber(sim.sigma).value(fit.residuals(X))
    assert fit.objective == pytest.approx(cost.sum(), rel=1e-6)


def test_a_slab_that_is_wild_as_a_whole():
    sim = simulate((20, 20, 20), 3, eta=0.0, gamma=0.0, rng=0)
    X = sim.data.copy()
    X[3] = 100 * X.max() * np.random.default_rng(1).choice([-1, 1], X[3].shape)
    fit = cp(X, 3)
    assert fit.unobserved == ((3,), (), ())
    assert "1 slab of mode 0 without any observed entry (3)" in fit.status
    assert "400 entries are left out" in fit.status
    rest = [robustcp.KruskalTensor.from_factors(m.factors[1:]) for m in (fit, sim.truth)]
    assert factor_match_score(*rest, weights=False) > 0.99
    assert np.all(fit.factors[0][3] == 0)
    assert fit.outliers(X).worst(0, 1)[0] == (3, 1.0)


class TestLongTails:
    """What is large by nature is no glitch."""

    @pytest.mark.parametrize("density", [0.1, 0.2, 0.3, 0.5, 1.0])
    def test_sparse_factors(self, density):
        for seed in range(5):
            for gamma in (0.0, 1.0, 2.0):
                sim = simulate((20, 20, 20), 3, eta=0.2, gamma=gamma, density=density, rng=seed)
                assert found(sim.data) == 0

    @pytest.mark.parametrize("spread", [0.5, 1.0, 1.5])
    def test_lognormal_factors(self, spread):
        for seed in range(5):
            rng = np.random.default_rng(seed)
            A, B, C = (np.exp(spread * rng.standard_normal((20, 3))) for _ in range(3))
            assert found(np.einsum("ir,jr,kr->ijk", A, B, C)) == 0

    def test_heavy_tails_lose_only_a_few_entries(self):
        for seed in range(10):
            X = np.random.default_rng(seed).standard_cauchy((30, 30, 30))
            assert found(X) <= 10

    def test_counts(self):
        for rate in (0.01, 0.5, 20.0):
            assert found(np.random.default_rng(0).poisson(rate, (20, 20, 20))) == 0

    @pytest.mark.recovery
    def test_a_strong_component_that_is_local(self):
        sim = simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=0)
        rng = np.random.default_rng(1)
        block = np.zeros((20, 20, 20))
        block[2:6, 3:7, 4:8] = 5e3 * np.einsum("i,j,k->ijk", *(1 + rng.random((3, 4))))
        X = sim.data + block
        assert found(X) == 0
        fit = cp(X, 3)
        np.testing.assert_allclose(fit.full()[2:6, 3:7, 4:8], X[2:6, 3:7, 4:8], rtol=1e-2)

    def test_more_than_a_quarter(self):
        X = np.random.default_rng(0).standard_normal((10, 10, 10))
        hit = np.random.default_rng(1).random(X.shape)
        assert found(np.where(hit < 0.2, 1e6, X)) > 0
        assert found(np.where(hit < 0.4, 1e6, X)) == 0
