"""Whole sweeps of small data: the same as the updates of one factor after the other."""

from __future__ import annotations

import numpy as np
import pytest

from robustcp import Nonnegative, Smooth, cp, cpal1, cpals, simulate
from robustcp.constraints import Free
from robustcp.engines import DenseEngine, as_engine
from robustcp.losses import L1, Cauchy, Contaminated, Huber, LeastSquares, UserLoss
from robustcp.noise import Noise
from robustcp.optimize.acceleration import Momentum, NoAcceleration
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import Prior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Solver, Stage

pytest.importorskip("numba")

LOSSES = [L1(0.1), Cauchy(0.5), Contaminated(0.3, 0.1, 0.05), LeastSquares()]
SHAPES = [(20, 19, 18), (7, 30, 5, 9), (40, 50), (3, 4, 5, 6, 7), (1, 8, 9)]


def one_by_one(engine, factors, modes, loss, mu, ahead=None):
    for mode in modes:
        equations = ahead or engine.normal_equations(factors, mode, loss)
        new = engine.algebra.solve_rows(equations, factors[mode], mu)
        factors, ahead = (*factors[:mode], new, *factors[mode + 1 :]), None
    return factors


def agree(engine, loss, modes, rank=3, mu=1e-3, ahead=False):
    rng = np.random.default_rng(1)
    factors = tuple(rng.standard_normal((n, rank)).astype(engine.dtype) for n in engine.shape)
    before = [A.copy() for A in factors]
    known = engine.normal_equations(factors, modes[0], loss) if ahead else None
    found = engine.whole_sweep(loss).update_factors(factors, modes, mu, known)
    expected = one_by_one(engine, factors, modes, loss, mu, known)
    tolerance = 1e-9 if engine.dtype == np.float64 else 1e-3
    for A, B in zip(found, expected, strict=True):
        assert A.dtype == engine.dtype
        np.testing.assert_allclose(A, B, rtol=tolerance, atol=tolerance * np.abs(B).max())
    for A, B in zip(factors, before, strict=True):
        np.testing.assert_array_equal(A, B)
    for mode in range(len(factors)):
        one, other = (
            engine.whole_sweep(loss).normal_equations(factors, mode),
            engine.normal_equations(factors, mode, loss),
        )
        assert one.value == pytest.approx(other.value, rel=tolerance)
        for name in ("gram", "gradient"):
            a, b = getattr(one, name), getattr(other, name)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sweep_is_the_updates_of_its_modes_in_turn(shape, loss):
    X = np.random.default_rng(0).standard_normal(shape)
    every = tuple(range(len(shape)))
    agree(as_engine(X), loss, every)
    agree(as_engine(np.asfortranarray(X)), loss, every[::-1], ahead=True)
    agree(as_engine(X), loss, every[1:], rank=1, mu=0.0)


@pytest.mark.parametrize("loss", LOSSES[:3], ids=lambda loss: type(loss).__name__)
def test_missing_entries_weights_scales_other_types_and_views(loss):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9, 8, 7))
    holes = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    slabs = (rng.uniform(0.5, 2, 9), None, rng.uniform(0.5, 2, 7))
    noise = Noise(0.1, (1.0, 0.0, 0.0), slabs, 0.0)
    weights = rng.random(X.shape) * (rng.random(X.shape) < 0.9)
    engines = [
        as_engine(holes),
        as_engine(X.astype(np.float32)),
        as_engine((10 * X).astype(np.int16)),
        as_engine(X).weighted(weights),
        as_engine(X).weighted([rng.random(9), None, None]),
        as_engine(X).standardized(noise.scales(X.shape)),
        as_engine(X).scaled(3).clipped(0.1),
    ]
    for engine in engines:
        agree(engine, loss, (0, 1, 2))


def test_there_are_none_for_large_data_other_losses_or_without_compiled_code():
    small = np.random.default_rng(0).standard_normal((9, 8, 7))
    assert as_engine(np.ones((60, 60, 60))).whole_sweep(L1(0.1)) is None
    assert as_engine(np.ones((60, 60, 60))).whole_sweep(LeastSquares()) is not None
    assert as_engine(np.ones((70, 70, 70))).whole_sweep(LeastSquares()) is None
    assert as_engine(small).whole_sweep(UserLoss(Huber(0.1))) is None
    assert DenseEngine(small, compiled=False).whole_sweep(L1(0.1)) is None
    assert as_engine(small).weighted([np.ones(9), None, None]).whole_sweep(LeastSquares()) is None


class Doubled(Nonnegative):
    """It has the row solver of its base, but another projection."""

    def project(self, factor):
        return 2 * super().project(factor)


def test_constraints_are_heeded():
    problem = Problem.of(as_engine(np.random.default_rng(0).standard_normal((9, 8, 7))))
    free, smooth = (Free(),) * 3, (Free(), Smooth(1.0), Free())
    assert Objective.of(problem, L1(0.1), free, (0, 1, 2)).whole_sweep is not None
    assert Objective.of(problem, L1(0.1), smooth, (0, 1, 2)).whole_sweep is None
    assert Objective.of(problem, L1(0.1), smooth, (0, 2)).whole_sweep is not None
    assert Objective.of(problem, L1(0.1), (Doubled(),) * 3, (0, 1, 2)).whole_sweep is None


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("acceleration", [Momentum(), NoAcceleration()])
@pytest.mark.parametrize(
    "constraints",
    [(Free(),) * 3, (Nonnegative(),) * 3, (Free(), Nonnegative(), Free())],
    ids=["free", "nonnegative", "mixed"],
)
@pytest.mark.parametrize(
    "ridges",
    [None, ([1.0, 2.0], [0.5, 0.1], [3.0, 1.0]), ([0.5, 1.0], None, [1.0, 2.0])],
    ids=["no prior", "prior", "prior of two modes"],
)
def test_runs_of_sweeps_are_the_sweeps_of_the_solver(
    ridges, constraints, acceleration, order, loss
):
    """In compiled code, one at a time or many, and by the loop for data of any size."""
    sim = simulate((9, 8, 7), 2, eta=0.1, gamma=1.0, rng=1)
    X = np.asarray(np.abs(sim.data), order=order)
    prior = ridges and Prior(tuple(None if ridge is None else np.array(ridge) for ridge in ridges))
    stages = [Stage("sweeps", Single(loss, prior), 1e-5, 1e-4, 25, acceleration)]
    initial = tuple(np.random.default_rng(2).random((size, 2)) for size in X.shape)

    def run(compiled, every_sweep):
        engine = DenseEngine(X, compiled=compiled)
        solver = Solver(Problem.of(engine), stages, constraints=constraints)
        start, states = solver.start(initial), []

        def keep(state):
            states.append(state)
            return False

        solver.run(start, 25, keep, every_sweep=every_sweep)
        return states

    many, single, plain = run(True, False), run(True, True), run(False, True)
    if prior is None or not loss.quadratic:
        assert len(many) < len(single) == many[-1].sweep > 5
    assert many[-1].trace == single[-1].trace
    for A, B in zip(many[-1].factors, single[-1].factors, strict=True):
        np.testing.assert_array_equal(A, B)
    for state, other in zip(single, plain, strict=False):
        assert state.sweep == other.sweep == state.level_sweep
        assert state.momentum == other.momentum or acceleration == NoAcceleration()
        assert state.objective == pytest.approx(other.objective, rel=1e-6)
        if state.objective > 1e-3:
            assert state.decrease == pytest.approx(other.decrease, rel=1e-2, abs=1e-7)
        for A, B in zip(state.factors, other.factors, strict=True):
            np.testing.assert_allclose(A, B, rtol=1e-5, atol=1e-6)


def test_a_component_of_zeros_stays_and_rounding_ends_a_run():
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 2)) for size in (6, 5, 4)]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    factors[1][:, 1] = 0.0
    solver = Solver(Problem.of(as_engine(X)), [Stage("sweeps", Single(Huber(0.1)), 0.0)])
    state, _ = solver.run(solver.start(tuple(factors)), 200)
    assert state.sweep == 200
    assert all(np.isfinite(A).all() for A in state.factors)
    assert all(a >= b for a, b in zip(state.trace, state.trace[1:], strict=False))


def test_exact_least_squares_goes_on_without_compiled_runs():
    """Where digits cancel, the objective is computed from residuals."""
    rng = np.random.default_rng(3)
    X = np.einsum("ir,jr,kr->ijk", *(rng.random((size, 2)) for size in (9, 8, 7)))
    fit = cpals(X, 2, tol=0, max_sweeps=300, rng=0)
    assert fit.objective < 1e-12 * (X**2).sum()
    np.testing.assert_allclose(fit.full(), X, atol=1e-6)


@pytest.mark.parametrize("method", [cp, cpal1, cpals])
def test_fits_are_those_without_compiled_code(method):
    sim = simulate((11, 10, 9), 2, eta=0.1, gamma=1.0, rng=0)
    fast, slow = method(sim.data, 2), method(DenseEngine(sim.data, compiled=False), 2)
    if method is not cp:  # whose last objective is of a noise that is estimated, to half a percent
        assert fast.trace[-1] == pytest.approx(slow.trace[-1], rel=1e-4)
    assert fast.scale == pytest.approx(slow.scale, rel=0.01)
    for A, B in zip(fast.factors, slow.factors, strict=True):
        np.testing.assert_allclose(A, B, atol=1e-2)


@pytest.mark.parametrize("shape", [(9, 8, 7), (4, 30, 5), (3, 4, 5, 6)])
@pytest.mark.parametrize("evaluated", [0, 1, 2])
def test_a_contraction_serves_the_next_sweep_only_where_it_holds(shape, evaluated):
    """Least squares keeps the last contraction; sweeps have the bits of those that have none."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    old, new = (tuple(rng.standard_normal((n, 3)) for n in shape) for _ in range(2))
    modes = tuple(range(len(shape)))
    for changed in modes:  # the factors that differ from those of the contraction
        factors = (*old[:changed], new[changed], *old[changed + 1 :])
        sweep = as_engine(X).whole_sweep(LeastSquares())
        sweep.normal_equations(old, evaluated)
        after = sweep.update_factors(factors, modes, 1e-8, None)
        fresh = as_engine(X).whole_sweep(LeastSquares()).update_factors(factors, modes, 1e-8, None)
        for one, other in zip(after, fresh, strict=True):
            assert np.array_equal(one, other)
