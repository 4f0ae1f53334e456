"""The loop: levels and stages in their order, monotone, and undone where a stage is not for it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import robustcp
from robustcp.constraints import Free, Nonnegative
from robustcp.engines import as_engine
from robustcp.losses import L1, Huber, LeastSquares, Loss
from robustcp.optimize.acceleration import NoAcceleration
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Continuation, L1Finish, Level, Schedule, Single, Skip
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.stages import l1_continuation
from robustcp.optimize.updates import FactorUpdate, MajorizeMinimize, Update

SIM = robustcp.simulate((9, 8, 7), 2, eta=0.1, gamma=1.0, rng=0)


def problem(X=SIM.data):
    return Problem.of(as_engine(X))


def factors(rank=2, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.random((size, rank)) for size in SIM.data.shape)


def states_of(solver, begin=None, most=200):
    states = [solver.start(begin or factors())]
    state, outcome = solver.run(states[0], most, lambda s: bool(states.append(s)))
    return states, state, outcome


class TestLevels:
    def test_each_level_begins_where_the_last_one_ended(self):
        solver = Solver(problem(), [Stage("L1", Continuation(0.9, 1e-3), 1e-4)])
        states, last, outcome = states_of(solver)
        assert outcome.name == "converged"
        levels = [s.level for s in states]
        assert levels == sorted(levels)
        assert set(levels) == {0, 1, 2, 3}
        assert next(round(s.loss.epsilon, 12) for s in states if s.level == 3) == 1e-3
        assert last.sweep == len(states) - 1 == len(last.trace)

    def test_a_level_ends_at_its_tolerance_or_after_its_share_of_sweeps(self):
        stage = Stage("L1", Continuation(0.9, 1e-2), 0.0, level_sweeps=4)
        states, _, outcome = states_of(Solver(problem(), [stage]), most=30)
        counts = [sum(s.level == k and s.sweep > 0 for s in states) for k in range(3)]
        assert counts[:2] == [4, 4]  # of those before the last
        assert counts[2] == 22  # the last one goes on to max_sweeps
        assert outcome.name == "max_sweeps"
        assert "30 sweeps" in outcome.sentence
        loose = Solver(problem(), [replace(stage, tol=0.5)])
        assert len(states_of(loose)[0]) < 12

    def test_enough_ends_a_continuation_early(self):
        down = Continuation(1.0, 1e-12)
        whole = states_of(Solver(problem(), [Stage("L1", down, 1e-3)]))[1]
        short = states_of(Solver(problem(), [Stage("L1", replace(down, stop_share=0.1), 1e-3)]))[1]
        size = np.median(np.abs(as_engine(SIM.data).sample(short.factors).values))
        assert short.level < whole.level
        assert short.loss.epsilon <= 0.1 * size**2 <= 10 * short.loss.epsilon

    def test_near_begins_at_the_size_of_the_residuals(self):
        engine, truth = as_engine(SIM.data), SIM.truth.absorbed()
        near = Continuation(1e6, 1e-9).for_warm_start(engine, truth)
        size = np.median(np.abs(SIM.data - SIM.truth.full()))
        assert near.first == pytest.approx(size**2)
        assert Continuation(1e-6, 1e-9).for_warm_start(engine, truth).first == 1e-6  # never larger

    def test_finish_goes_to_the_end_from_wherever_it_stands(self):
        stages = [Stage("other", Single(Huber(1.0)), 1e-3), Stage("L1", L1Finish(1e-8), 1e-3)]
        _, last, outcome = states_of(Solver(problem(), stages))
        assert outcome.name == "converged"
        assert last.loss == L1(1e-8)
        assert [name for name, _ in last.stages] == ["other", "L1"]


@dataclass(frozen=True)
class NotForThis(Schedule):
    """Finds out at some level that it is not for this data."""

    at: int

    def __call__(self, level, engine, factors, before):
        if level == self.at:
            raise Skip("not for this data")
        return Level(Huber(1.0 + level))


class TestSkipped:
    first = Stage("first", Single(L1(1e-2)), 1e-3)
    last = Stage("last", Single(L1(1e-3)), 1e-3)

    @pytest.mark.parametrize("level", [0, 2])
    def test_a_stage_is_undone_and_the_next_goes_on_from_before_it(self, level):
        alone = states_of(Solver(problem(), [self.first]))[1]
        stages = [self.first, Stage("no", NotForThis(level), 1e-3), self.last]
        states, end, outcome = states_of(Solver(problem(), stages))
        assert any(s.name == "no" for s in states) == (level > 0)
        assert outcome.name == "converged"
        assert [name for name, _ in end.stages] == ["first", "last"]
        assert end.notes == ("not for this data",)
        assert end.trace[: alone.sweep] == alone.trace
        assert len(end.trace) == end.sweep == sum(count for _, count in end.stages)

    @pytest.mark.parametrize("level", [0, 1])
    def test_otherwise_is_done_in_its_place(self, level):
        instead = Stage("instead", Single(L1(1e-4)), 1e-3)
        stages = [self.first, Stage("no", NotForThis(level), 1e-3, fallback=instead), self.last]
        _, end, _ = states_of(Solver(problem(), stages))
        assert [name for name, _ in end.stages] == ["first", "instead", "last"]
        assert end.skipped == (1,)

    def test_otherwise_may_be_skipped_in_its_turn(self):
        third = Stage("third", Single(L1(1e-4)), 1e-3)
        second = Stage("second", NotForThis(1), 1e-3, fallback=third)
        stages = [self.first, Stage("no", NotForThis(0), 1e-3, fallback=second), self.last]
        _, end, _ = states_of(Solver(problem(), stages))
        assert [name for name, _ in end.stages] == ["first", "third", "last"]
        assert end.skipped == (1, 1)

    def test_the_first_stage_may_be_skipped(self):
        stages = [Stage("no", NotForThis(0), 1e-3, fallback=self.first), self.last]
        _, end, _ = states_of(Solver(problem(), stages))
        assert [name for name, _ in end.stages] == ["first", "last"]
        with pytest.raises(ValueError, match=r"^loss: no stage .*not for this data"):
            Solver(problem(), [Stage("no", NotForThis(0), 1e-3)]).start(factors())

    def test_a_stage_is_converted_to_the_units_of_the_fit_with_what_follows(self):
        c = 2.0**300
        other = Stage("other", Single(Huber(0.1 * c)), 1e-3, mu=1e-3)
        stages = [Single(L1(1e-4 * c * c)), NotForThis(0)]
        given = [Stage("a", stages[0], 1e-3), Stage("b", stages[1], 1e-3, fallback=other)]
        fit = robustcp.cp(c * SIM.data, 2, loss=given, init=SIM.truth)
        assert fit.loss == Huber(0.1 * c)
        assert np.isfinite(fit.weights).all()

    def test_otherwise_is_not_done_where_the_stage_is(self):
        instead = Stage("instead", Single(L1(1e-4)), 1e-3)
        stages = [self.first, Stage("yes", Single(Huber(1.0)), 1e-3, fallback=instead)]
        _, end, _ = states_of(Solver(problem(), stages))
        assert [name for name, _ in end.stages] == ["first", "yes"]

    def test_the_last_stage_undone_ends_the_fit_at_the_one_before(self):
        alone = states_of(Solver(problem(), [self.first]))[1]
        _, end, outcome = states_of(
            Solver(problem(), [self.first, Stage("no", NotForThis(1), 0.1)])
        )
        assert outcome.name == "converged"
        assert end.trace == alone.trace
        assert all(np.array_equal(A, B) for A, B in zip(end.factors, alone.factors, strict=True))


@dataclass(frozen=True)
class Watched(Update):
    """Steps that are noted, and may be made to overshoot."""

    inner: MajorizeMinimize = MajorizeMinimize()  # noqa: RUF009 - it is frozen

    def evaluate(self, objective, factors):
        return self.inner.evaluate(objective, factors)

    def update_factor(self, objective, factors, mode, ahead=None):
        return self.inner.update_factor(objective, factors, mode, ahead)


@dataclass(frozen=True)
class Worse(Watched):
    """Makes every factor worse."""

    def update_factor(self, objective, factors, mode, ahead=None):
        return FactorUpdate(factors[mode] + 1e3)


class TestSteps:
    def test_objective_never_rises_within_a_level(self):
        stage = Stage("L1", Continuation(1.0, 1e-8), 1e-6)
        states, _, _ = states_of(Solver(problem(), [stage]))
        for a, b in itertools.pairwise(states):
            if a.level == b.level:
                assert b.objective <= a.objective

    def test_extrapolation_is_taken_only_where_it_lowers_the_objective(self):
        stage = Stage("L1", Single(L1(1e-2)), 0.0)
        states, _, _ = states_of(Solver(problem(), [stage]), most=60)
        momenta = [s.momentum for s in states]
        assert max(momenta) > 3
        fell_back = [b for a, b in itertools.pairwise(momenta) if b <= a]
        assert 1 in fell_back  # after a leap that would rise, the plain sweep is taken
        plain = states_of(
            Solver(problem(), [replace(stage, acceleration=NoAcceleration())]), most=60
        )[0]
        assert {s.momentum for s in plain[1:]} == {1}
        assert states[-1].objective < plain[-1].objective

    def test_a_sweep_that_rises_is_not_taken(self):
        stage = Stage("worse", Single(LeastSquares()), 1e-3, update=Worse())
        solver = Solver(problem(), [stage])
        state = solver.start(factors())
        after = solver.advance(state)
        assert after.decrease == 0
        assert after.objective == state.objective
        assert after.sweep == 1
        assert all(np.array_equal(A, B) for A, B in zip(after.factors, state.factors, strict=True))

    def test_column_norms_are_balanced_over_the_modes_that_are_solved_for(self):
        A, B, C = factors()
        solver = Solver(problem(), [Stage("L1", Single(L1(1.0)), 0.1)], modes=(0, 1))
        state = solver.start((A * 100, B, C))
        norms = [np.linalg.norm(F, axis=0) for F in state.factors]
        np.testing.assert_allclose(norms[0], norms[1])
        assert np.array_equal(state.factors[2], C)
        model = np.einsum("ir,jr,kr->ijk", *state.factors)
        np.testing.assert_allclose(model, 100 * np.einsum("ir,jr,kr->ijk", A, B, C))

    def test_starts_are_made_feasible(self):
        A, B, C = factors()
        bounds = (Nonnegative(), Free(), Free())
        solver = Solver(problem(), [Stage("L1", Single(L1(1.0)), 0.1)], constraints=bounds)
        state = solver.start((A - 0.5, B - 0.5, C))
        assert state.factors[0].min() == 0
        assert state.factors[1].min() < 0

    def test_a_start_whose_objective_is_not_finite_is_refused(self):
        solver = Solver(problem(), [Stage("L1", Single(L1(1.0)), 0.1)])
        with pytest.raises(ValueError, match=r"^init: the objective is "):
            solver.start(tuple(A * np.inf for A in factors()))


class Likelihood(Loss):
    """Minus the log likelihood of Gaussian noise of a known sigma: it may well be negative."""

    likelihood = True

    def value(self, r):
        return 0.5 * (r / 0.01) ** 2 + math.log(0.01)

    def slope(self, r):
        return r / 0.01**2

    def curvature(self, r):
        return 0 * r + 1 / 0.01**2


class TestProgress:
    def test_is_relative(self):
        objective = Objective.of(problem(), LeastSquares(), (Free(),) * 3, (0, 1, 2))
        assert objective.relative_decrease(100.0, 99.0) == pytest.approx(0.01)
        assert objective.relative_decrease(0.0, 0.0) == 0.0

    def test_leaves_out_what_no_model_can_lower(self):
        X = SIM.data.copy()
        X[0, 0, 0] = 1e6
        for loss in (L1(1e-4), Huber(0.1)):
            plain, wild = (
                Objective.of(problem(data), loss, (Free(),) * 3, (0, 1, 2))
                for data in (SIM.data, X)
            )
            begin = factors()
            falls = [
                o.relative_decrease(o.value(begin), o.value(begin) - 1.0) for o in (plain, wild)
            ]
            assert falls[1] == pytest.approx(falls[0], rel=0.1)

    def test_of_a_likelihood_is_per_entry(self):
        objective = Objective.of(problem(), Likelihood(), (Free(),) * 3, (0, 1, 2))
        assert objective.relative_decrease(-500.0, -500.0 - SIM.data.size) == pytest.approx(1.0)

    def test_a_likelihood_converges(self):
        clean = robustcp.simulate((9, 8, 7), 2, eta=0, gamma=0, noise=0.01, rng=0)
        fit = robustcp.cp(clean.data, 2, loss=Likelihood(), tol=1e-6)
        assert fit.converged
        assert fit.sweeps > 1
        assert robustcp.factor_match_score(fit, clean.truth) > 0.99


class TestState:
    def test_says_which_start_it_is_and_what_comes_next(self):
        seen = []
        robustcp.cpal1(
            SIM.data, 2, init="random", starts=3, max_sweeps=4, rng=1,
            callback=lambda s: bool(seen.append(s)),
        )  # fmt: skip
        assert [(s.start, s.sweep) for s in seen] == [
            (k, n) for k in range(3) for n in (1, 2, 3, 4)
        ]
        generators = [s.generator for s in seen if s.sweep == 1]
        assert generators[0] != generators[1]
        rng = np.random.default_rng()
        rng.bit_generator.state = generators[0]
        scale = Problem.of(as_engine(SIM.data)).scale ** (1 / 3)
        second = [scale * rng.standard_normal((size, 2)) for size in SIM.data.shape]
        stage = Stage("L1", l1_continuation(problem(), 1e-10), 1e-5, problem().relative_mu(1e-8))
        solver = Solver(problem(), [stage])
        begun = solver.advance(solver.start(tuple(second)))
        assert begun.trace[0] == next(s for s in seen if s.start == 1).objective

    def test_holds_the_trace_in_the_units_of_the_data(self):
        seen = []
        fit = robustcp.cpal1(1e250 * SIM.data, 2, callback=lambda s: bool(seen.append(s)))
        assert seen[-1].trace == tuple(fit.trace)
        assert [s.objective for s in seen] == list(fit.trace)
        assert [len(s.trace) for s in seen] == list(range(1, fit.sweeps + 1))
        assert seen[-1].stages == fit.stages

    def test_of_the_screened_start(self):
        seen = []
        fit = robustcp.cp(SIM.data, 2, callback=lambda s: bool(seen.append(s)))
        assert {s.start for s in seen} == {int(np.argmin(fit.starts))}


class TestOutcome:
    def test_is_a_name_and_a_sentence(self):
        fit = robustcp.cpal1(SIM.data, 2)
        assert (fit.result.name, str(fit.result)) == ("converged", "converged")
        short = robustcp.cpal1(SIM.data, 2, max_sweeps=3)
        assert short.result.name == "max_sweeps"
        assert "before the last level" in short.result.sentence
        stopped = robustcp.cpal1(SIM.data, 2, callback=lambda s: True)
        assert stopped.result.name == "stopped"
        assert stopped.sweeps == 1
        assert stopped.status.startswith(stopped.result.sentence)
