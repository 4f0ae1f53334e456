"""Sweeps that are carried on: joint steps against dense algebra, and what they save."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp import cpals
from robustcp.constraints import Free, Nonnegative, Smooth
from robustcp.engines import as_engine, joint_step
from robustcp.engines.algebra import algebra_for
from robustcp.engines.joint_step import JointSystem
from robustcp.losses import L1, Cauchy, LeastSquares
from robustcp.optimize.acceleration import JointStep, NoAcceleration, ProposedStep, SweepStep
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.updates import MajorizeMinimize
from support.oracles import host

CASES = [((5, 4, 6), 3, (0, 1, 2)), ((4, 3, 5, 3), 2, (2, 0, 3)), ((6, 7), 2, (0, 1))]


def factors_of(shape, rank, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((size, rank)) for size in shape)


def jacobian(factors, mode):
    """Derivatives of the model by the entries of a factor, by einsum."""
    letters = "abcdefgh"[: len(factors)]
    size, rank = factors[mode].shape
    columns = []
    for i, r in itertools.product(range(size), range(rank)):
        unit = np.zeros((size, rank))
        unit[i, r] = 1
        changed = [unit if m == mode else A for m, A in enumerate(factors)]
        terms = ",".join(f"{c}r" for c in letters)
        columns.append(np.einsum(f"{terms}->{letters}", *changed).ravel())
    return np.stack(columns, axis=1)


def dense(factors, modes):
    """J_n' J_m for the modes, in a table."""
    J = [jacobian(factors, n) for n in modes]
    return [[a.T @ b for b in J] for a in J]


def products(As, Bs):
    return np.stack([A.T @ B for A, B in zip(As, Bs, strict=True)])


class TestSystem:
    @pytest.mark.parametrize(("shape", "rank", "modes"), CASES)
    def test_is_the_one_of_least_squares(self, shape, rank, modes):
        factors, H = factors_of(shape, rank), dense(factors_of(shape, rank), modes)
        system = JointSystem.from_grams(products(factors, factors), modes)
        E = np.random.default_rng(1).standard_normal((len(modes), rank, rank))
        found, damping = system.multiply(E, 0.3), 0.3
        for i, n in enumerate(modes):
            step = [(factors[m] @ E[j]).ravel() for j, m in enumerate(modes)]
            expected = sum(H[i][j] @ step[j] for j in range(len(modes)))
            expected = expected + damping * H[i][i] @ step[i]
            np.testing.assert_allclose((factors[n] @ found[i]).ravel(), expected, rtol=1e-10)

    @pytest.mark.parametrize(("shape", "rank", "modes"), CASES)
    def test_slips_and_falls_are_those_of_steps(self, shape, rank, modes):
        factors, H = factors_of(shape, rank), dense(factors_of(shape, rank), modes)
        steps = [factors_of(shape, rank, seed=2)[n] for n in modes]
        system = JointSystem.from_grams(products(factors, factors), modes)
        slips = system.coupled_gradients(products(steps, [factors[n] for n in modes]))
        for i, n in enumerate(modes):
            later = range(i + 1, len(modes))
            expected = -sum((H[i][j] @ steps[j].ravel() for j in later), np.zeros(H[i][i].shape[0]))
            np.testing.assert_allclose((factors[n] @ slips[i]).ravel(), expected, atol=1e-9)
        own = [0.5 * s.ravel() @ H[i][i] @ s.ravel() for i, s in enumerate(steps)]
        np.testing.assert_allclose(system.own_decreases(products(steps, steps)), own)

    @pytest.mark.parametrize(("shape", "rank", "modes"), CASES)
    def test_is_solved(self, shape, rank, modes, compiled, monkeypatch):
        monkeypatch.setattr(joint_step, "CG_TOLERANCE", 1e-12)
        monkeypatch.setattr("robustcp.engines.algebra.CG_TOLERANCE", 1e-12)
        factors, damping = factors_of(shape, rank), 0.1
        system = JointSystem.from_grams(products(factors, factors), modes)
        right = np.random.default_rng(3).standard_normal((len(modes), rank, rank))
        E, fall = algebra_for(np, compiled).joint_step(system, right, damping)
        H = dense(factors, modes)
        for i in range(len(modes)):
            H[i][i] = (1 + damping) * H[i][i]
        b = np.concatenate([(factors[n] @ B).ravel() for n, B in zip(modes, right, strict=True)])
        e = np.linalg.solve(np.block(H), b)
        found = [(factors[n] @ B).ravel() for n, B in zip(modes, E, strict=True)]
        np.testing.assert_allclose(np.concatenate(found), e, atol=1e-8)
        assert fall == pytest.approx(0.5 * b @ e)
        assert system.diagonal_quadratic_form(E) == pytest.approx(
            sum(x @ H[i][i] @ x for i, x in enumerate(found)) / (1 + damping)
        )

    def test_is_solved_as_far_as_it_pays(self, compiled):
        factors = factors_of((8, 8, 8), 4)
        system = JointSystem.from_grams(products(factors, factors), (0, 1, 2))
        right = np.random.default_rng(3).standard_normal((3, 4, 4))

        def size(B):
            return sum(
                np.trace(B[n].T @ system.grams[n] @ B[n] @ np.linalg.inv(system.diagonal[n]))
                for n in range(3)
            )

        E, _ = algebra_for(np, compiled).joint_step(system, right, 0.01)
        assert size(right - system.multiply(E, 0.01)) <= 1.01 * joint_step.CG_TOLERANCE**2 * size(
            right
        )

    def test_dead_components_stay_dead(self, compiled):
        factors = tuple(A * [1.0, 0.0, 1.0] for A in factors_of((5, 4, 6), 3))
        system = JointSystem.from_grams(products(factors, factors), (0, 1, 2))
        slips = system.coupled_gradients(products(factors, factors))
        E, fall = algebra_for(np, compiled).joint_step(system, slips, 0.1)
        assert np.isfinite(E).all()
        assert fall > 0
        assert not any((A @ B)[:, 1].any() for A, B in zip(factors, E, strict=True))


def squares_sweep(X, factors):
    """One sweep of alternating least squares, by NumPy."""
    for mode in range(X.ndim):
        others = [A for m, A in enumerate(factors) if m != mode]
        K = np.einsum("jr,kr->jkr", *others).reshape(-1, others[0].shape[1])
        unfolded = np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1)
        new = np.linalg.lstsq(K, unfolded.T, rcond=None)[0].T
        factors = (*factors[:mode], new, *factors[mode + 1 :])
    return factors


class TestAim:
    def test_is_nearer_by_an_order(self, monkeypatch):
        """Of data that has a model, with as little damping, the distance is of second order."""
        for where in (
            "robustcp.engines.joint_step.CG_TOLERANCE",
            "robustcp.engines.algebra.CG_TOLERANCE",
        ):
            monkeypatch.setattr(where, 1e-10)
        truth = factors_of((7, 6, 5), 2)
        X = np.einsum("ir,jr,kr->ijk", *truth)

        def distances(size):
            old = tuple(A + size * B for A, B in zip(truth, factors_of(X.shape, 2, 1), strict=True))
            swept = squares_sweep(X, old)
            aim = JointStep().propose(SweepStep(old, swept, (0, 1, 2)), size, algebra_for(np))
            return [
                np.linalg.norm(X - np.einsum("ir,jr,kr->ijk", *F)) for F in (swept, aim.factors)
            ]

        plain, ahead = (a / b for a, b in zip(distances(1e-3), distances(1e-4), strict=True))
        assert plain == pytest.approx(10, rel=0.1)
        assert ahead == pytest.approx(100, rel=0.2)

    def test_foretells_the_fall(self):
        truth = factors_of((7, 6, 5), 2)
        X = np.einsum("ir,jr,kr->ijk", *truth)
        old = tuple(A + 1e-3 * B for A, B in zip(truth, factors_of(X.shape, 2, 1), strict=True))
        swept = squares_sweep(X, old)

        def value(factors):
            return 0.5 * np.sum((X - np.einsum("ir,jr,kr->ijk", *factors)) ** 2)

        first = value(old) - value((swept[0], *old[1:]))
        aim = JointStep().propose(SweepStep(old, swept, (0, 1, 2), first), 0.01, algebra_for(np))
        assert value(old) - value(aim.factors) == pytest.approx(aim.predicted_decrease, rel=0.02)

    def test_of_one_mode_or_of_no_step_is_the_end_of_the_sweep(self):
        old, swept = factors_of((5, 4, 3), 2), factors_of((5, 4, 3), 2, 1)
        for modes, end in (((1,), swept), ((0, 1, 2), old)):
            aim = JointStep().propose(SweepStep(old, end, modes), 1.0, algebra_for(np))
            assert aim.factors is end
            assert aim.relative_gain == 0

    def test_of_factors_that_have_run_off_is_the_end_of_the_sweep(self):
        old, swept = factors_of((5, 4, 3), 2), tuple(1e200 * A for A in factors_of((5, 4, 3), 2, 1))
        assert (
            JointStep().propose(SweepStep(old, swept, (0, 1, 2)), 1.0, algebra_for(np)).factors
            is swept
        )

    def test_is_of_the_library_of_the_factors(self, xp):
        old, swept = factors_of((5, 4, 3), 2), factors_of((5, 4, 3), 2, 1)
        expected = JointStep().propose(SweepStep(old, swept, (0, 2), 1.0), 0.1, algebra_for(np))
        there = [tuple(xp.asarray(A, dtype=xp.float32) for A in F) for F in (old, swept)]
        aim = JointStep().propose(SweepStep(*there, (0, 2), 1.0), 0.1, algebra_for(xp))
        assert aim.predicted_decrease == pytest.approx(expected.predicted_decrease, rel=1e-4)
        for A, B in zip(aim.factors, expected.factors, strict=True):
            assert A.dtype == xp.float32
            np.testing.assert_allclose(host(A), B, rtol=1e-3, atol=1e-4)

    def test_damping_follows_what_falls(self):
        way, aim = JointStep(), ProposedStep((), damping_gain=0.5)
        assert way.next_damping(1.0, aim, -np.inf) == 4.0
        assert way.next_damping(1.0, aim, 0.3) == 2.0
        assert way.next_damping(1.0, aim, 0.7) == 1.0
        assert way.next_damping(1.0, aim, 1.0) == way.next_damping(1.0, aim, np.nan) == 0.5
        assert way.next_damping(1.0, ProposedStep((), damping_gain=0.01), 1.0) == 1.0
        assert way.next_damping(way.min_damping, aim, 1.0) == way.min_damping
        assert way.next_damping(way.max_damping, aim, -np.inf) == way.max_damping

    def test_momentum_makes_way_for_joint_steps(self):
        assert JointStep().momentum(ProposedStep(()), 0) == 0
        assert JointStep().momentum(ProposedStep(()), 3) == 0.5
        assert JointStep().momentum(ProposedStep((), relative_gain=9.0), 3) == pytest.approx(0.05)


def alike(size, rank, congruence, seed, artifacts=0.0, noise=1e-3):
    """Components that are alike: cosines of exactly so much, in every mode."""
    rng = np.random.default_rng(seed)
    cosines = np.linalg.cholesky((1 - congruence) * np.eye(rank) + congruence)
    factors = [np.linalg.qr(rng.standard_normal((size, rank)))[0] @ cosines.T for _ in range(3)]
    X = np.einsum("ir,jr,kr->ijk", *factors)
    X = X + noise * np.linalg.norm(X) / size**1.5 * rng.standard_normal(X.shape)
    bad = rng.random(X.shape) < artifacts
    X[bad] += np.linalg.norm(X) / max(np.sqrt(bad.sum()), 1)
    begin = tuple(rng.random((size, rank)) for _ in range(3))
    return X, robustcp.KruskalTensor.from_factors(factors), begin


def sweeps_until(X, begin, stage, truth, score=0.99, most=4000):
    solver = Solver(Problem.of(as_engine(X)), [stage])

    def found(state):
        model = robustcp.KruskalTensor.from_factors(state.factors)
        return bool(robustcp.factor_match_score(model, truth) >= score)

    state, outcome = solver.run(solver.start(begin), most, found)
    assert outcome.name == "stopped", outcome
    return state.sweep


class TestSwamps:
    @pytest.mark.parametrize("seed", range(3))
    def test_of_least_squares_take_a_tenth_of_the_sweeps(self, seed):
        X, truth, begin = alike(20, 3, 0.9, seed)
        stage = Stage("squares", Single(LeastSquares()), 0.0)
        ours = sweeps_until(X, begin, stage, truth)
        plain = sweeps_until(X, begin, replace(stage, acceleration=NoAcceleration()), truth)
        assert 10 * ours < plain

    @pytest.mark.parametrize("seed", range(2))
    def test_with_artifacts_take_a_third(self, seed):
        X, truth, begin = alike(20, 3, 0.9, seed, artifacts=0.1)
        stage = Stage("L1", Single(L1(1e-6)), 0.0)
        ours = sweeps_until(X, begin, stage, truth, 0.98)
        plain = sweeps_until(X, begin, replace(stage, acceleration=NoAcceleration()), truth, 0.98)
        assert 3 * ours < plain

    def test_resumed_at_the_same_bits(self, tmp_path):
        X, _, begin = alike(12, 3, 0.9, 0)
        whole = cpals(X, 3, init=begin)
        path = tmp_path / "run.ckpt"
        for most in (1, 4, 9, 1000):
            fit = cpals(X, 3, init=begin, max_sweeps=most, checkpoint=path)
        assert fit.sweeps == whole.sweeps > 9
        assert np.array_equal(fit.trace, whole.trace)
        for A, B in zip(fit.factors, whole.factors, strict=True):
            assert np.array_equal(A, B)


class TestModels:
    @pytest.mark.parametrize("loss", [LeastSquares(), Cauchy(0.3)])
    def test_updates_foretell_the_fall_of_the_first_factor(self, loss):
        """Whether equations are known ahead, rows come in blocks, or sweeps are compiled whole."""
        sim = robustcp.simulate((9, 8, 7), 2, eta=0.1, gamma=1.0, rng=0)
        begin = factors_of(sim.data.shape, 2)
        objective = Objective.of(Problem.of(as_engine(sim.data)), loss, (Free(),) * 3, (1, 0, 2))
        update, ahead = MajorizeMinimize(), objective.equations(begin, 1)
        known = update.sweep(objective, begin, ahead).predicted_decrease
        block = update.update_factor(objective, begin, 1)
        step = block.factor - begin[1]
        assert known == pytest.approx(0.5 * np.sum(ahead.gradient * step), rel=1e-9)
        assert block.predicted_decrease == pytest.approx(known, rel=1e-9)
        after = objective.value((begin[0], block.factor, begin[2]))
        assert ahead.value - after >= known * (1 - 1e-9)  # the majorizer is above

    def test_are_the_same_as_without(self):
        sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
        for loss in (LeastSquares(), Cauchy(0.3), L1(0.1)):
            stage = Stage("some", Single(loss), 1e-13)
            ours, plain = (
                robustcp.cp(sim.data, 2, loss=[one], init=sim.truth, max_sweeps=3000)
                for one in (stage, replace(stage, acceleration=NoAcceleration()))
            )
            assert ours.sweeps < plain.sweeps
            np.testing.assert_allclose(ours.full(), plain.full(), atol=1e-4 * ours.full().max())

    @given(
        st.integers(0, 10**6),
        st.sampled_from([LeastSquares(), L1(1e-4), Cauchy(0.1)]),
        st.sampled_from([(0, 1, 2), (2, 0), (1,)]),
        st.sampled_from([Free(), Nonnegative(), Smooth(0.1)]),
        st.integers(1, 4),
        st.booleans(),
    )
    def test_never_rise(self, seed, loss, modes, constraint, rank, alone):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((5, 6, 4)) ** 3
        if not alone:
            X[rng.random(X.shape) < 0.3] = np.nan
        begin = tuple(rng.standard_normal((n, rank)) for n in X.shape)
        constraints = (constraint.bound(5, None), Free(), Free())
        problem = Problem.of(as_engine(X))
        solver = Solver(problem, [Stage("some", Single(loss), 0.0, 1e-6)], modes, constraints)
        states = [solver.start(begin)]
        solver.run(states[0], 25, lambda state: bool(states.append(state)))
        values = [state.objective for state in states]
        assert all(b <= a for a, b in itertools.pairwise(values))
        for state in states:
            for mode in {0, 1, 2} - set(modes):
                assert np.array_equal(state.factors[mode], states[0].factors[mode])
            if constraint == Nonnegative() and 0 in modes:
                assert state.factors[0].min() >= 0
