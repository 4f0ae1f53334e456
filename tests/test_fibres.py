"""Fibres that are outlying as a whole, or stuck."""

from __future__ import annotations

import numpy as np
import pytest

import robustcp
from robustcp.engines import Fibres, as_engine
from robustcp.losses import L1
from robustcp.noise import flag_outlying_fibres
from robustcp.noise.constant_fibres import find_constant_fibres

SHAPE = (12, 14, 16)


def all_indices(shape=SHAPE):
    return tuple(np.indices(shape).reshape(len(shape), -1))


class TestJudging:
    @pytest.mark.parametrize("mode", [0, 1, 2])
    @pytest.mark.parametrize("level", [1.5, -3.0])
    def test_fibres_with_a_level_of_their_own_are_found(self, rng, mode, level):
        Z = rng.standard_normal(SHAPE)
        sizes = tuple(1 if n == mode else size for n, size in enumerate(SHAPE))
        hit = rng.random(sizes) < 0.1
        Z = Z + level * 2 * hit
        found = dict(flag_outlying_fibres(Z.ravel(), all_indices(), SHAPE).along)
        assert np.mean(found[mode][hit]) > 0.95
        assert np.mean(found[mode][~hit]) < 0.01

    def test_fibres_with_larger_noise_are_found(self, rng):
        Z = rng.standard_normal(SHAPE)
        Z[3, :, 5] *= 8
        ((mode, hit),) = flag_outlying_fibres(Z.ravel(), all_indices(), SHAPE).along
        assert mode == 1
        assert hit[3, 0, 5]
        assert hit.sum() == 1

    @pytest.mark.parametrize("outliers", [0.0, 0.1, 0.3])
    def test_noise_and_outlying_entries_make_none(self, outliers):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            Z = rng.standard_normal(SHAPE)
            Z[rng.random(SHAPE) < outliers] += 20
            assert flag_outlying_fibres(Z.ravel(), all_indices(), SHAPE).count <= 1

    def test_too_few_entries_make_none(self, rng):
        indices = tuple(rng.integers(0, size, 100) for size in SHAPE)
        assert not flag_outlying_fibres(5 * rng.standard_normal(100), indices, SHAPE)


class TestLeavingOut:
    def fibres(self, rng):
        first, second = np.zeros((1, 14, 16), bool), np.zeros((12, 14, 1), bool)
        first[0, 3, 5] = first[0, 1, 1] = second[2, 2, 0] = True
        return Fibres(SHAPE, ((0, first), (2, second)))

    def test_at(self, rng):
        inside = self.fibres(rng).contains(all_indices()).reshape(SHAPE)
        assert inside[:, 3, 5].all()
        assert inside[2, 2].all()
        assert inside.sum() == 12 + 12 + 16

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("listed", [False, True])
    def test_is_as_if_they_were_missing(self, rng, listed, weighted):
        X = rng.standard_normal(SHAPE)
        fibres = self.fibres(rng)
        inside = fibres.contains(all_indices()).reshape(SHAPE)
        missing = np.where(inside, np.nan, X)
        factors = tuple(rng.standard_normal((size, 2)) for size in SHAPE)
        engines = [as_engine(X), as_engine(missing)]
        if listed:
            at = np.argwhere(np.isfinite(X))
            engines[0] = as_engine(robustcp.Observed(at, X[tuple(at.T)], SHAPE))
        if weighted:
            weights = [None, rng.uniform(1, 2, 14), None]
            engines = [engine.weighted(weights) for engine in engines]
        one, other = engines[0].without_fibres(fibres), engines[1]
        assert one.value(factors, L1(1e-2)) == pytest.approx(other.value(factors, L1(1e-2)))
        assert one.count == other.count
        for mode in range(3):
            a, b = (engine.normal_equations(factors, mode, L1(1e-2)) for engine in (one, other))
            assert np.allclose(a.gram, b.gram)
            assert np.allclose(a.gradient, b.gradient)


class TestStuck:
    def data(self, rng):
        X = rng.standard_normal((9, 10, 11)) + 3
        hit = rng.random((9, 1, 11)) < 0.2
        return np.where(hit, rng.uniform(1, 5, (9, 1, 11)), X), hit

    def test_are_found(self, rng):
        X, hit = self.data(rng)
        ((mode, found),) = find_constant_fibres(as_engine(X)).along
        assert mode == 1
        assert np.array_equal(found, hit)

    def test_with_missing_entries(self, rng):
        X, hit = self.data(rng)
        X[rng.random(X.shape) < 0.1] = np.nan
        ((mode, found),) = find_constant_fibres(as_engine(X)).along
        assert mode == 1
        assert np.array_equal(found, hit)

    @pytest.mark.parametrize(
        "change",
        [
            lambda X: np.broadcast_to(X[:, :1], X.shape).copy(),  # all of them
            lambda X: np.where(X > 2, X, 0.0) * 0,
            lambda X: X[:, :4],  # too short
            lambda X: X[0],  # a matrix
            np.round,
        ],
    )
    def test_are_not_where_that_is_how_the_data_is(self, rng, change):
        X, _ = self.data(rng)
        assert find_constant_fibres(as_engine(np.ascontiguousarray(change(X)))) is None

    def test_a_fit_says_so(self, rng):
        sim = robustcp.simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=0)
        X = sim.data.copy()
        X[:5, :, 3] = 7.0
        fit = robustcp.cp(X, 2)
        assert "5 fibres along mode 1 with one value throughout left out" in fit.status
        assert robustcp.factor_match_score(fit, sim.truth) > 0.99
        assert fit.outliers(X).mask[:5, :, 3].mean() > 0.8


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_outlying_fibres_are_left_out_of_a_fit(mode):
    rng = np.random.default_rng(3)
    factors = [np.abs(rng.standard_normal((size, 3))) for size in (24, 26, 28)]
    M = np.einsum("ir,jr,kr->ijk", *factors)
    sizes = tuple(1 if n == mode else size for n, size in enumerate(M.shape))
    hit = rng.random(sizes) < 0.15
    X = np.where(hit, 3 * M.std() * rng.random(sizes), M) + 0.1 * M.std() * rng.standard_normal(
        M.shape
    )
    fit = robustcp.cp(X, 3)
    assert f"along mode {mode}" in fit.status
    assert robustcp.factor_match_score(fit, robustcp.KruskalTensor.from_factors(factors)) > 0.99
