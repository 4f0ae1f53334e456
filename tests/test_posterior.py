"""Models whose rows are uncertain, and the search by births."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import robustcp
from robustcp.constraints import Free, Nonnegative
from robustcp.engines import Scales, as_engine, as_weights
from robustcp.engines.installed import numba_kernels
from robustcp.losses import LeastSquares
from robustcp.optimize.posterior import Posterior
from robustcp.optimize.posterior_means import posterior_means
from robustcp.starts.component_search import ComponentSearch, flag_fibres_of_posterior

SHAPE, RANK = (7, 6, 5), 2


def some_data(rng, shape=SHAPE, rank=RANK, noise=0.1, missing=0.3):
    factors = [rng.standard_normal((size, rank)) for size in shape]
    X = np.einsum("ir,jr,kr->ijk", *factors) + noise * rng.standard_normal(shape)
    X[rng.random(shape) < missing] = np.nan
    return X, factors


def some_posterior(rng):
    X, _ = some_data(rng)
    entries = as_engine(X).entries()
    nothing = Posterior.null_model(entries, (Free(),) * 3, RANK, 0.0)
    return nothing.with_random_components(range(RANK), rng).sweep()


class TestEntries:
    def test_are_those_that_were_observed(self, rng):
        X, _ = some_data(rng)
        entries = as_engine(X).entries()
        assert np.array_equal(X[entries.indices], entries.values)
        assert entries.values.size == np.isfinite(X).sum()

    def test_listed_data_has_the_same(self, rng):
        X, _ = some_data(rng)
        at = np.argwhere(np.isfinite(X))
        listed = robustcp.Observed(at, X[tuple(at.T)], X.shape)
        one, other = as_engine(X).entries(), as_engine(listed).entries()
        assert sorted(one.values) == sorted(other.values)
        assert np.array_equal(X[other.indices], other.values)

    def test_weights(self, rng):
        X, _ = some_data(rng)
        weights = rng.integers(0, 3, X.shape).astype(float)
        entries = as_engine(X).weighted(weights).entries()
        assert entries.values.size == (np.isfinite(X) & (weights > 0)).sum()
        assert np.array_equal(entries.weights, weights[entries.indices])


class TestEquations:
    def test_by_brute_force(self, rng):
        found = some_posterior(rng)
        entries, mode, spread = found.entries, 1, 0.7
        after = found.solve_mode(mode)
        i = int(rng.integers(entries.values.size))
        at = [int(index[i]) for index in entries.indices]
        seconds = [np.outer(A[k], A[k]) + V[k]
                   for A, V, k in zip(found.means, found.covariances, at, strict=True)]  # fmt: skip
        mean = sum(np.prod([A[k, r] for A, k in zip(found.means, at, strict=True)])
                   for r in range(RANK))  # fmt: skip
        square = sum(np.prod([S[r, s] for S in seconds])
                     for r, s in product(range(RANK), repeat=2))  # fmt: skip
        x = entries.values[i]
        assert after.squared_residuals[i] == pytest.approx(x * x - 2 * x * mean + square)
        assert spread > 0

    def test_rows_solve_a_weighted_ridge_regression(self, rng):
        found = some_posterior(rng)
        after = found.solve_mode(0)
        e = found.entries
        weights = 2 / (found.squared_scale + after.squared_residuals)
        row = 3
        inside = e.indices[0] == row
        A, B = found.means[1][e.indices[1][inside]], found.means[2][e.indices[2][inside]]
        VA, VB = (
            found.covariances[1][e.indices[1][inside]],
            found.covariances[2][e.indices[2][inside]],
        )
        second = (A[:, :, None] * A[:, None, :] + VA) * (B[:, :, None] * B[:, None, :] + VB)
        G = np.einsum("i,irs->rs", weights[inside], second) + np.diag(1 / found.prior_variances[0])
        h = (weights[inside] * e.values[inside]) @ (A * B)
        assert np.allclose(after.means[0][row], np.linalg.solve(G, h))
        assert np.allclose(after.covariances[0][row], np.linalg.inv(G))


@pytest.mark.skipif(numba_kernels() is None, reason="needs Numba")
@pytest.mark.parametrize("shape", [(9, 8), (7, 6, 5), (6, 5, 4, 3)])
@pytest.mark.parametrize("constraint", [Free(), Nonnegative()])
@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("weighted", [False, True])
class TestCompiledSweeps:
    """By compiled code and without it, posteriors are the same."""

    @pytest.fixture
    def posterior(self, rng, shape, constraint, rank, weighted):
        X = rng.standard_normal(shape)
        X[rng.random(shape) < 0.3] = np.nan
        X[0] = np.nan  # a row without data
        engine = as_engine(X)
        if weighted:
            engine = engine.weighted(rng.integers(0, 3, shape).astype(float))
        entries = engine.entries()
        mask = rng.integers(0, 2, entries.values.size).astype(float) if weighted else None
        null = Posterior.null_model(entries, (constraint,) * len(shape), rank, 0.01)
        return replace(null.with_random_components(range(rank), rng), entry_mask=mask)

    @pytest.fixture
    def plainly(self, monkeypatch):
        def run(function):
            with monkeypatch.context() as patch:
                patch.setattr(Posterior, "_compiled_solvers", [0] * 4)
                return function()

        return run

    def assert_same(self, one, other):
        assert one.squared_scale == pytest.approx(other.squared_scale)
        assert np.allclose(one.squared_residuals, other.squared_residuals)
        for name in ("means", "covariances", "prior_variances"):
            for A, B in zip(getattr(one, name), getattr(other, name), strict=True):
                assert np.allclose(A, B, rtol=1e-6, atol=1e-9)

    @pytest.mark.parametrize("fixed_noise", [False, True])
    def test_sweeps(self, posterior, plainly, fixed_noise):
        def sweeps():
            return posterior.sweep(4, fixed_noise=fixed_noise)

        self.assert_same(sweeps(), plainly(sweeps))

    def test_one_mode(self, posterior, plainly):
        for mode in range(len(posterior.means)):

            def solve(mode=mode):
                return posterior.solve_mode(mode)

            self.assert_same(solve(), plainly(solve))


@pytest.mark.skipif(numba_kernels() is None, reason="needs Numba")
def test_other_constraints_have_no_compiled_sweeps(rng):
    class Bounded(Nonnegative):
        def solve(self, equations, rows, mu, algebra):
            return np.maximum(algebra.solve_rows(equations, rows, mu), -0.1)

    entries = as_engine(some_data(rng)[0]).entries()
    null = Posterior.null_model(entries, (Free(), Free(), Bounded()), RANK, 0.0)
    found = null.with_random_components(range(RANK), rng).sweep(3, fixed_noise=True)
    assert found.means[2].min() == -0.1


class TestPosterior:
    def test_costs_less_after_more_sweeps(self, rng):
        found = some_posterior(rng)
        assert found.fit().cost <= found.sweep().cost + 1e-9

    def test_scaled_data(self, rng):
        X, _ = some_data(rng)
        costs, sizes = [], []
        for factor in (1.0, 2.0**12):
            entries = as_engine(factor * X).entries()
            nothing = Posterior.null_model(entries, (Free(),) * 3, RANK, 0.0)
            found = (
                nothing.with_random_components(range(RANK), np.random.default_rng(1))
                .sweep_with_fixed_noise()
                .fit()
            )
            costs.append(found.cost - np.log(factor))
            sizes.append(found.component_sizes)
        assert costs[0] == pytest.approx(costs[1], abs=1e-6)
        assert np.allclose(*sizes, rtol=1e-5)

    def test_a_component_that_the_data_does_not_have_dies(self, rng):
        X, _ = some_data(rng, (12, 11, 10), 1, 0.3, 0.5)
        entries = as_engine(X).entries()
        nothing = Posterior.null_model(entries, (Free(),) * 3, 3, 0.0)
        assert nothing.pruned_components.size == 3
        found = nothing.with_random_components(range(3), rng).sweep_with_fixed_noise().fit(300)
        assert found.pruned_components.size >= 1

    def test_nonnegative_rows(self, rng):
        X, _ = some_data(rng)
        entries = as_engine(np.abs(X)).entries()
        nothing = Posterior.null_model(entries, (Nonnegative(),) * 3, RANK, 0.0)
        found = nothing.with_random_components(range(RANK), rng).sweep_with_fixed_noise().fit()
        assert all((A >= 0).all() for A in found.means)

    def test_at_some_factors_the_truth_costs_least(self, rng):
        X, factors = some_data(rng, (20, 20, 20), 2, 0.1, 0.9)
        entries = as_engine(X).entries()
        cost = [
            Posterior.from_factors(
                entries, (Free(),) * 3, tuple(A + off for A in factors), 0.0
            ).cost
            for off in (0.0, 0.3)
        ]
        assert cost[0] < cost[1]


class TestChains:
    def test_only_become_better(self, rng):
        X, _ = some_data(rng, (15, 15, 15), 2, 0.1, 0.9)
        chain = ComponentSearch.start(as_engine(X).entries(), (Free(),) * 3, 2, 0.0, rng)
        costs = [chain.best.cost]
        for _ in range(6):
            chain = chain.propose()
            costs.append(chain.best.cost)
        assert costs == sorted(costs, reverse=True)
        assert chain.proposals == 6

    def test_depend_on_their_seed_alone(self, rng):
        X, _ = some_data(rng, (10, 10, 10), 2, 0.1, 0.8)
        entries = as_engine(X).entries()
        one, other = (
            ComponentSearch.start(entries, (Free(),) * 3, 2, 0.0, np.random.default_rng(5)).run(3)
            for _ in range(2)
        )
        assert all(map(np.array_equal, one.best.means, other.best.means))


@pytest.mark.recovery
@pytest.mark.parametrize("seed", [60, 61])
@pytest.mark.parametrize("listed", [False, True])
def test_few_entries_are_enough(seed, listed):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((25, 2)) for _ in range(3)]
    M = np.einsum("ir,jr,kr->ijk", *factors)
    X = M + 0.1 * M.std() * rng.standard_normal(M.shape)
    X = np.where(rng.random(M.shape) < 0.08, X + 5 * M.std() * rng.standard_normal(M.shape), X)
    X[rng.random(M.shape) > 40 / 625] = np.nan
    if listed:
        at = np.argwhere(np.isfinite(X))
        X = robustcp.Observed(at, X[tuple(at.T)], X.shape)
    fit = robustcp.cp(X, 2)
    assert robustcp.factor_match_score(fit, robustcp.KruskalTensor.from_factors(factors)) > 0.95


class TestMeans:
    def data(self, rng, share):
        factors = [rng.standard_normal((20, 2)) for _ in range(3)]
        X = np.einsum("ar,br,cr->abc", *factors) + 0.3 * rng.standard_normal((20, 20, 20))
        return np.where(rng.random(X.shape) < share, X, np.nan), factors

    def test_they_are_the_likeliest_rows_where_data_is_plenty(self, rng):
        X, factors = self.data(rng, 1.0)
        engine = as_engine(X)
        means = posterior_means(engine, (Free(),) * 3, tuple(factors), LeastSquares(), 0.3)
        likeliest = robustcp.cpals(X, 2, init=factors, tol=1e-10)
        found = robustcp.KruskalTensor.from_factors(means)
        assert robustcp.factor_match_score(found, likeliest) > 0.998

    @pytest.mark.recovery
    def test_they_are_closer_to_the_truth_where_it_is_not(self):
        better = 0
        for seed in range(10):
            X, factors = self.data(np.random.default_rng(seed), 0.03)
            truth = robustcp.KruskalTensor.from_factors(factors)
            begin = robustcp.cpals(X, 2, init=factors, tol=1e-8)
            means = posterior_means(
                as_engine(X), (Free(),) * 3, begin.model.absorbed(), LeastSquares(), 0.3
            )
            found = robustcp.KruskalTensor.from_factors(means)
            scores = [robustcp.factor_match_score(m, truth) for m in (found, begin)]
            better += scores[0] > scores[1]
        assert better >= 8

    def test_a_stage_of_its_own_where_rows_have_a_prior(self, rng):
        X, _ = self.data(rng, 0.1)
        fit = robustcp.cp(X, 2)
        assert fit.stages[-1] == ("posterior means", 1)
        assert sum(sweeps for _, sweeps in fit.stages) == fit.sweeps


def test_outlying_fibres_are_judged_in_units_of_the_noise_of_each_entry(rng):
    factors = [np.abs(rng.standard_normal((size, 1))) + 1 for size in (12, 11, 10)]
    sigma = np.where(np.arange(12) < 4, 5.0, 0.05)[:, None, None]
    X = np.einsum("ir,jr,kr->ijk", *factors) + sigma * rng.standard_normal((12, 11, 10))
    scales = Scales(as_weights([sigma.ravel(), None, None], X.shape))
    entries = as_engine(X).standardized(scales).entries()
    null_model = Posterior.null_model(entries, (Free(),) * 3, 1, 0.0)
    posterior = null_model.with_random_components(range(1), rng).sweep()
    found = flag_fibres_of_posterior(replace(posterior, means=tuple(factors)))
    assert not found.contains(entries.indices).any()
