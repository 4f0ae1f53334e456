"""Whole sweeps of small data: the same as the updates of one factor after the other."""

from __future__ import annotations

import numpy as np
import pytest

from robustcp import Nonnegative, cp, cpal1, cpals, simulate
from robustcp.constraints import Free
from robustcp.engines import DenseEngine, as_engine
from robustcp.losses import L1, Cauchy, Contaminated, Huber, LeastSquares, UserLoss
from robustcp.noise import Noise
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem

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


def test_constraints_are_heeded():
    problem = Problem.of(as_engine(np.random.default_rng(0).standard_normal((9, 8, 7))))
    free, bounded = (Free(),) * 3, (Free(), Nonnegative(), Free())
    assert Objective.of(problem, L1(0.1), free, (0, 1, 2)).whole_sweep is not None
    assert Objective.of(problem, L1(0.1), bounded, (0, 1, 2)).whole_sweep is None
    assert Objective.of(problem, L1(0.1), bounded, (0, 2)).whole_sweep is not None


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
