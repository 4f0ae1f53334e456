"""Units scale and nothing else; wild entries are cut where that costs nothing, and reported."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp import L1, Cauchy, Contaminated, Huber, LeastSquares, Quantile, Tukey, Welsch
from robustcp.engines import as_engine
from robustcp.noise.resolution import Magnitudes
from robustcp.optimize.problem import CLIP_RATIO, Problem
from robustcp.optimize.units import Units, power_of_two

LOSSES = [L1(1e-2), Huber(0.7), Cauchy(0.4), Welsch(2.0), Tukey(3.0), Quantile(0.3, 1e-3),
          Contaminated(0.5, 0.1, 0.01), LeastSquares()]  # fmt: skip
by_name = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


class TestUnits:
    @by_name
    @given(exponent=st.integers(-300, 300))
    def test_the_objective_of_the_data_is_that_of_the_fit(self, loss, exponent):
        units = Units(3, exponent)
        r = np.random.default_rng(0).standard_normal(50)
        other = units.loss_of_fit(loss)
        in_fit = float(other.value(np.ldexp(r, -exponent)).sum())
        expected = float(loss.value(r).sum())
        assert units.objective_of_data(in_fit, loss.degree) == pytest.approx(expected, rel=1e-9)

    @by_name
    def test_there_and_back(self, loss):
        units = Units(3, 40)
        back = units.loss_of_data(units.loss_of_fit(loss))
        r = np.linspace(-5, 5, 11)
        np.testing.assert_allclose(back.value(r), loss.value(r), rtol=1e-12)

    @given(order=st.integers(2, 5), exponent=st.integers(-900, 900))
    def test_factors_make_the_model(self, order, exponent):
        units = Units(order, exponent)
        factors = tuple(np.array([[1.5]]) for _ in range(order))
        there = units.factors_of_data(factors)
        log = sum(np.log2(A[0, 0]) for A in there)
        assert log == pytest.approx(exponent + order * np.log2(1.5), abs=1e-9)
        for A, B in zip(units.factors_of_fit(there), factors, strict=True):
            np.testing.assert_allclose(A, B)

    def test_mu_weighs_the_norms_the_same(self):
        units, mu = Units(3, 60), 0.3
        loss, A = LeastSquares(), 2.0
        in_data = mu / 2 * (A * power_of_two(20)) ** 2
        in_fit = units.mu_of_fit(mu, loss.degree) / 2 * A**2
        assert units.objective_of_data(in_fit, loss.degree) == pytest.approx(in_data)

    def test_within_the_range_of_floats(self):
        assert power_of_two(5000) == 2.0**1000
        assert power_of_two(-5000) == 2.0**-1000
        assert Units(3, 1000).objective_of_data(1.0, 2) == np.inf


class TestProblem:
    def test_ordinary_data_is_left_alone(self):
        engine = as_engine(np.random.default_rng(0).standard_normal((5, 6, 7)))
        problem = Problem.of(engine)
        assert problem.engine is engine
        assert problem.units.exponent == 0
        assert problem.clipped_for(L1()) is engine
        assert problem.excess(L1()) == problem.floor(L1()) == 0

    @pytest.mark.parametrize("size", [1e-250, 1e250])
    def test_extreme_data_is_scaled(self, size):
        X = np.random.default_rng(0).standard_normal((5, 6, 7))
        problem, plain = Problem.of(as_engine(size * X)), Problem.of(as_engine(X))
        assert 0.1 < problem.engine.max_abs < 10
        factor = size / 2.0**problem.units.exponent
        assert problem.scale == pytest.approx(factor * plain.scale)
        assert problem.relative_mu(1.0) == pytest.approx(problem.scale ** (1 / 3))
        assert Problem.of(as_engine(1e-250 * X), magnify=False).units.exponent == 0

    def test_a_part_has_the_sizes_of_the_whole(self):
        X = np.arange(1.0, 1001).reshape(10, 10, 10)
        problem = Problem.of(as_engine(X))
        part = problem.with_engine(problem.engine.subtensor([np.array([0]), None, None]))
        assert part.magnitudes == problem.magnitudes
        assert part.engine.max_abs == 100

    def test_sizes_are_those_of_nonzero_entries(self):
        X = np.zeros((10, 10))
        X[0] = 2.0
        assert Magnitudes.of(as_engine(X)) == Magnitudes(2.0, 2.0)
        assert Magnitudes.of(as_engine(np.zeros((3, 3)))) == Magnitudes(1.0, 1.0)

    @by_name
    @pytest.mark.parametrize("wild", [-1e12, 1e12])
    def test_wild_entries_are_cut_where_that_moves_the_loss_by_a_constant(self, loss, wild):
        X = np.random.default_rng(0).standard_normal((6, 5, 4))
        X[1, 2, 3] = wild
        problem = Problem.of(as_engine(X))
        seen = problem.clipped_for(loss)
        if loss.tail is None:
            assert seen is problem.engine
        else:
            assert seen.max_abs == CLIP_RATIO * max(problem.ordinary_magnitude, loss.reach)
        for scale in (0.0, 1.0):
            factors = tuple(scale * np.ones((size, 1)) for size in X.shape)
            whole = float(loss.value(X - scale).sum())
            got = seen.value(factors, loss) + problem.excess(loss)
            assert got == pytest.approx(whole, rel=1e-9)

    def test_a_loss_that_reaches_far_sees_more(self):
        X = np.random.default_rng(0).standard_normal((6, 5, 4))
        X[1, 2, 3] = 1e12
        problem = Problem.of(as_engine(X))
        assert problem.clipped_for(Huber(1e10)).max_abs == 1e12
        assert problem.clipped_for(Huber(1.0)).max_abs < 1e10

    def test_least_squares_goes_by_the_largest(self):
        X = np.random.default_rng(0).standard_normal((6, 5, 4))
        X[1, 2, 3] = 1e250
        assert Problem.of(as_engine(X)).units.exponent == 0
        problem = Problem.of(as_engine(X), keep_outliers=True)
        assert 0.4 < problem.engine.max_abs <= 1
        assert problem.clipped is problem.engine


class TestOneWildEntry:
    """One entry beyond all measure changes neither where a fit ends nor what it reports."""

    @pytest.mark.parametrize("size", [1e12, -1e12, 1e20])
    @pytest.mark.parametrize("loss", LOSSES[:-1], ids=lambda loss: loss.name)
    def test_from_the_same_start(self, loss, size):
        sim = robustcp.simulate((30, 30, 30), 3, eta=0.2, gamma=1.0, rng=0)
        rng = np.random.default_rng(1)
        start = [A + 0.1 * rng.standard_normal(A.shape) for A in sim.truth.absorbed()]
        X = sim.data.copy()
        X[3, 4, 5] = size
        loss = loss.rescaled(sim.sigma)
        plain, wild = (robustcp.cp(data, 3, loss=loss, init=start) for data in (sim.data, X))
        scores = [robustcp.factor_match_score(fit, sim.truth) for fit in (plain, wild)]
        assert scores[1] == pytest.approx(scores[0], abs=1e-3)
        cost = loss.value(X.astype(np.longdouble) - wild.full())
        assert wild.objective == pytest.approx(float(cost.sum()), rel=1e-6)
        assert wild.converged

    @pytest.mark.parametrize("size", [1e12, 1e20])
    def test_baselines_report_the_objective_of_the_data(self, size):
        sim = robustcp.simulate((9, 8, 7), 2, eta=0.1, gamma=1.0, rng=0)
        X = sim.data.copy()
        X[0, 0, 0] = size
        fit = robustcp.baselines.weighted_median(X, 2, init=sim.truth)
        assert fit.objective == pytest.approx(np.abs(fit.residuals(X)).sum(), rel=1e-9)
        assert robustcp.factor_match_score(fit, sim.truth) > 0.97
