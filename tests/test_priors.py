"""A prior for rows of which the data says little."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import robustcp
from robustcp.constraints import Free, Smooth
from robustcp.engines import Axes, as_engine
from robustcp.losses import LeastSquares
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import Prior, RowPosterior, RowPrior
from robustcp.optimize.schedules import Level
from robustcp.optimize.solver import Solver, Stage


def thin_data(rng, rows=60, entries=8, rank=2):
    factors = [rng.standard_normal((size, rank)) for size in (rows, 12, 12)]
    M = np.einsum("ir,jr,kr->ijk", *factors)
    X = M + 0.1 * rng.standard_normal(M.shape)
    X[rng.random(M.shape) > entries / 144] = np.nan
    return X, factors


def test_as_many_entries_as_components_are_not_too_few():
    known = RowPosterior(
        (np.ones(2), None), (np.zeros((3, 2, 2)), np.zeros((4, 2, 2))), (np.zeros(3), None)
    )
    (few,) = known.prior_dominated_rows([np.array([1, 2, 3]), np.full(4, 9)])
    assert (few.mode, few.count) == (0, 1)


class TestNeed:
    def test_few_entries(self, rng):
        X, _ = thin_data(rng)
        rows = RowPrior((0, 1, 2))
        assert rows.is_needed(as_engine(X), 2)
        assert not rows.is_needed(as_engine(rng.standard_normal((20, 20, 20))), 2)

    def test_rows_that_depend_on_each_other_have_none(self):
        assert RowPrior.of((Free(), Smooth(1.0), Free()), (0, 1)).modes == (0,)

    def test_plenty_of_data_has_no_prior(self, rng):
        sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=1.0, rng=0)
        states = []
        robustcp.cp(sim.data, 2, callback=states.append)
        assert all(state.prior is None for state in states)


class TestObjective:
    def test_rows_minimise_loss_and_prior(self, rng):
        X, factors = thin_data(rng)
        factors = tuple(factors)
        prior = Prior((np.array([0.5, 2.0]), None, np.array([1.0, 3.0])))
        problem = Problem.of(as_engine(X))
        objective = Objective.of(problem, LeastSquares(), (Free(),) * 3, (0, 1, 2), prior=prior)
        equations = objective.equations(factors, 0)
        found = objective.solve_rows(equations, factors, 0, slice(0, 60))
        row = 5
        j, k = np.nonzero(np.isfinite(X[row]))
        K = factors[1][j] * factors[2][k]
        expected = np.linalg.solve(K.T @ K + np.diag([0.5, 2.0]), K.T @ X[row, j, k])
        assert np.allclose(found[row], expected)
        squares = [(A**2).sum(axis=0) for A in factors]
        assert objective.penalty(factors) == pytest.approx(
            0.5 * (squares[0] @ [0.5, 2.0] + squares[2] @ [1.0, 3.0])
        )

    def test_balancing_lowers_the_prior(self, rng):
        X, factors = thin_data(rng)
        prior = Prior(tuple(rng.uniform(0.1, 10, 2) for _ in range(3)))
        solver = Solver(Problem.of(as_engine(X)), [Stage("s", None, 1e-3)])
        before = tuple(A * rng.uniform(0.5, 2) for A in factors)
        after = solver._balance_norms(before, prior)
        assert prior.value(after) < prior.value(before)
        model = [robustcp.KruskalTensor.from_factors(F).full() for F in (before, after)]
        assert np.allclose(*model)


class TestKnown:
    def test_leverages_are_those_of_linear_regression(self, rng):
        X, factors = thin_data(rng)
        engine = as_engine(X)
        rows = RowPrior((0,))
        known = rows.row_posterior(engine, tuple(factors), LeastSquares(), 0.01, None)
        only = type(known)(known.prior_variances[:1], known.covariances[:1], known.prior_shares[:1])
        sample = engine.sample(tuple(factors))
        found = only.leverages(sample, tuple(factors), np.ones(sample.values.size))
        row = int(sample.indices[0][0])
        inside = sample.indices[0] == row
        K = factors[1][sample.indices[1][inside]] * factors[2][sample.indices[2][inside]]
        ridge = np.diag(0.01 / known.prior_variances[0])
        hat = np.diag(K @ np.linalg.inv(K.T @ K + ridge) @ K.T)
        assert np.allclose(found[inside], np.minimum(hat, 0.9))

    def test_variances_are_those_of_the_rows(self, rng):
        X, factors = thin_data(rng, entries=100)
        known = RowPrior((0,)).row_posterior(
            as_engine(X), tuple(factors), LeastSquares(), 0.01, None
        )
        assert np.allclose(known.prior_variances[0], np.mean(factors[0] ** 2, axis=0), rtol=0.05)

    def test_notes(self, rng):
        X, factors = thin_data(rng)
        X[7] = np.nan
        X[7, 0, 0] = 1.0
        known = RowPrior((0,)).row_posterior(
            as_engine(X), tuple(factors), LeastSquares(), 0.01, None
        )
        counts = [as_engine(X).slab_counts(mode) for mode in range(3)]
        assert (
            known.prior_dominated_rows(counts)[0]
            .describe(Axes())
            .endswith("of mode 0 rests on fewer entries than components")
        )


class TestFits:
    def test_thin_rows_do_not_blow_up(self, rng):
        X, factors = thin_data(rng, rows=150, entries=10)
        fit = robustcp.cp(X, 2)
        truth = robustcp.KruskalTensor.from_factors(factors)
        assert robustcp.factor_match_score(fit, truth) > 0.95
        assert np.abs(fit.full()).max() < 3 * np.abs(truth.full()).max()

    def test_the_objective_does_not_rise_within_a_level(self, rng):
        X, _ = thin_data(rng)
        states = []
        robustcp.cp(X, 2, callback=states.append)
        for one, other in itertools.pairwise(states):
            if (one.start, one.stage, one.level) == (other.start, other.stage, other.level):
                assert other.objective <= one.objective
        assert any(state.prior is not None for state in states)

    def test_status_says_where_the_prior_did_the_work(self, rng):
        X, _ = thin_data(rng, rows=150, entries=10)
        X[:4] = np.nan
        X[:4, 0, 0] = 1.0
        assert "of mode 0 rest on fewer entries than components" in robustcp.cp(X, 2).status

    @pytest.mark.recovery
    @pytest.mark.parametrize("count", [1, 3])
    def test_as_many_starts_as_asked_for(self, rng, count):
        X, _ = thin_data(rng)
        assert len(robustcp.cp(X, 2, starts=count).starts) == count

    def test_checkpoints(self, rng, tmp_path):
        X, _ = thin_data(rng)
        whole = robustcp.cp(X, 2)
        for _ in range(50):
            seen = []

            def stop(state, seen=seen):
                seen.append(state)
                return len(seen) == 3

            part = robustcp.cp(X, 2, checkpoint=tmp_path / "c", callback=stop)
            if part.result.name != "stopped":
                break
        assert np.array_equal(part.weights, whole.weights)
        assert part.starts == whole.starts
        assert part.starts.final == whole.starts.final

    def test_levels_know_their_prior(self):
        assert Level(LeastSquares()).prior is None
