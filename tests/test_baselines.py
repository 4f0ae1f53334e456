"""The older ways: exact where theory says so, monotone, in the same loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp import baselines, cpal1, simulate
from robustcp.baselines import LinearProgram, WeightedMedian
from test_l1_regression import exact, problem

METHODS = [baselines.linear_program, baselines.weighted_median]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


class TestRows:
    def test_linear_program_is_the_optimum_of_each_row(self):
        M, _ = problem(0)
        Y = np.stack([problem(seed)[1] for seed in range(8)])
        U, failed = LinearProgram().solve_rows(M, Y, np.zeros((8, 4)))
        assert failed == []
        for u, y in zip(U, Y, strict=True):
            assert np.abs(y - M @ u).sum() == pytest.approx(exact(M, y), rel=1e-9)

    def test_processes_share_the_rows(self):
        M, _ = problem(0)
        Y = np.stack([problem(seed)[1] for seed in range(5)])
        alone, together = (
            LinearProgram(jobs).solve_rows(M, Y, np.zeros((5, 4)))[0] for jobs in (1, 2)
        )
        assert np.array_equal(alone, together)

    @pytest.mark.parametrize("size", [1e-12, 1e12])
    def test_linear_program_in_any_units(self, size):
        M, y = problem(1)
        u = LinearProgram().solve_rows(M, size * y[None], np.zeros((1, 4)))[0][0]
        assert np.abs(size * y - M @ u).sum() == pytest.approx(size * exact(M, y), rel=1e-9)

    def test_dead_columns_and_zero_rows(self):
        M, y = problem(2)
        M[:, 1] = 0
        for update in (LinearProgram(), WeightedMedian()):
            U, _ = update.solve_rows(M, np.stack([y, 0 * y]), np.zeros((2, 4)))
            assert np.isfinite(U).all()
            assert np.all(U[1] == 0)

    @given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10_000), st.booleans())
    def test_weighted_median_is_the_optimum(self, count, rows, seed, ties):
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((rows, count))
        if ties:
            values = values.round()
        weights = rng.random(count) + 1e-3
        found = baselines._weighted_medians(values, weights)

        def cost(u):
            return (weights * np.abs(values[:, None, :] - u[..., None])).sum(axis=-1)

        best = cost(values).min(axis=1)  # the optimum is at one of the values
        np.testing.assert_allclose(cost(found[:, None])[:, 0], best, rtol=1e-12)

    def test_no_coordinate_can_be_improved_when_its_turn_is_over(self):
        M, y = problem(3)
        before = np.zeros((1, 4))
        after = WeightedMedian().solve_rows(M, y[None], before)[0][0]
        last = np.linspace(-1, 1, 2001) + after[3]
        moved = np.abs(y[:, None] - (M[:, :3] @ after[:3])[:, None] - M[:, 3:] * last)
        assert np.abs(y - M @ after).sum() <= moved.sum(axis=0).min() + 1e-9


@each_method
class TestFits:
    def test_plain_l1_objective_never_rises(self, method):
        for seed in range(3):
            sim = simulate((9, 8, 7), 2, eta=0.2, gamma=2.0, rng=seed)
            fit = method(sim.data, 2, max_sweeps=8, tol=0)
            assert np.all(np.diff(fit.trace) <= 1e-12 * fit.trace[0])
            plain = np.abs(fit.residuals(sim.data)).sum()
            assert fit.objective == pytest.approx(plain, rel=1e-9)

    @pytest.mark.parametrize("shape", [(15, 12), (6, 5, 4, 3)], ids=str)
    def test_any_order(self, method, shape):
        sim = simulate(shape, 1, eta=0.1, gamma=1.0, noise=0.01, rng=0)
        assert robustcp.factor_match_score(method(sim.data, 1), sim.truth) > 0.9

    def test_fortran_order_and_other_libraries(self, method, xp):
        X = simulate((7, 6, 5), 2, eta=0.1, gamma=1.0, rng=0).data
        plain = method(X, 2, max_sweeps=3)
        assert method(np.asfortranarray(X), 2, max_sweeps=3).objective == pytest.approx(
            plain.objective
        )
        fit = method(xp.asarray(X), 2, max_sweeps=3)
        assert type(fit.weights) is type(xp.asarray(X))
        assert fit.objective == pytest.approx(plain.objective)

    def test_zeros(self, method):
        assert np.all(method(np.zeros((3, 4, 5)), 2).full() == 0)


def test_rows_that_highs_gives_up_on_keep_their_value_and_are_reported(monkeypatch):
    solve = baselines._least_absolute
    calls = []

    def unreliable(M, y):
        calls.append(1)
        return None if len(calls) % 9 == 2 else solve(M, y)

    monkeypatch.setattr(baselines, "_least_absolute", unreliable)
    sim = simulate((9, 8, 7), 1, eta=0.1, gamma=1.0, rng=0)
    fit = baselines.linear_program(sim.data, 1, max_sweeps=1)
    assert "1 rows of mode 0 could not be solved and kept their value (1)" in fit.status
    assert np.isfinite(fit.full()).all()


@pytest.mark.recovery
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 10))]
)
def test_cpal1_ends_as_low_as_linear_programming(seed):
    sim = simulate((20, 20, 20), 3, eta=0.1, gamma=1.0, rng=seed)
    start = [robustcp.nvecs(sim.data, mode, 3) for mode in range(3)]
    exactly = baselines.linear_program(sim.data, 3, init=start, max_sweeps=400)
    assert exactly.converged
    ours = cpal1(sim.data, 3, init=start)
    assert np.abs(ours.residuals(sim.data)).sum() <= 1.001 * exactly.objective


def test_bad_input():
    with pytest.raises(ValueError, match=r"^jobs: .*got 0"):
        baselines.linear_program(np.ones((3, 3)), 1, jobs=0)
