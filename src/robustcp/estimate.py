"""What the estimators share: from a plan and its starts to a fit."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np

from robustcp import _checks, doubts
from robustcp._typing import Array
from robustcp.cases import AGAIN, GOOD, Judged, judged, scored
from robustcp.checkpoints import Asked, Record, Saved
from robustcp.constraints import Constraints
from robustcp.doubts import FitWarning
from robustcp.engines import (
    Axes,
    Engine,
    Fibres,
    as_engine,
    in_modes_of,
    single_blas_thread,
    to_host,
)
from robustcp.fitted import Fit
from robustcp.kruskal import KruskalTensor
from robustcp.losses import L1, LeastSquares, Loss
from robustcp.metrics import factor_match_score
from robustcp.noise import COMMON, Noise, noise_of, structure_of
from robustcp.outcome import CONVERGED, STOPPED, Outcome
from robustcp.plans import Plan as Plan
from robustcp.priors import Decided, RowPrior
from robustcp.search import Begun, Start, Starts, Trial, cleared, cost_of
from robustcp.sizes import Problem
from robustcp.solver import Solver, State
from robustcp.telling import Pace, Step, Trend

LOG = logging.getLogger(__name__)

#: A component that is so many times larger than any entry of the data has run off.
FAR = 100.0
#: Costs per entry that differ by less are the same.
SAME = 1e-3
#: Models fit equally well if their costs per entry differ by less than this, and are others if they
#: score less than that. One of so many starts is few.
EQUALLY, OTHER, MANY = 3e-3, 0.9, 6

Callback = Callable[[State], bool | None]
Seed = int | np.random.Generator | None


@dataclass(frozen=True)
class _Run:
    """What came of one start."""

    solver: Solver
    state: State
    outcome: Outcome
    begun: Begun
    judged: Judged | None = None
    #: How many subsets of samples it would take.
    subsets: int = 0

    @cached_property
    def ran_off(self) -> bool:
        """Whether the model is far larger than the data, as it may be at missing entries."""
        engine = self.solver.problem.engine
        if engine.complete:
            return False
        sizes = math.prod(engine.xp.max(engine.xp.abs(A), axis=0) for A in self.state.factors)
        return float(engine.xp.max(sizes)) > FAR * engine.largest

    @cached_property
    def cost(self) -> float:
        """What the model costs, on the scale on which starts are compared, in the data's units."""
        return self.cost_without(None)

    def cost_without(self, fibres: Fibres | None) -> float:
        """The same of data without some fibres."""
        problem, state = self.solver.problem, self.state
        rest = problem if fibres is None else problem.on(problem.engine.leaving_out(fibres))
        cost = cost_of(rest, self.solver.constraints, state.factors, state.noise)
        return cost + math.log(problem.units.factor)


def estimate(
    X: Any,
    rank: int,
    plan: Callable[[Engine], Plan],
    init: Any,
    max_sweeps: int,
    rng: Seed,
    callback: Callback | None,
    *,
    entry_weights: Any = None,
    checkpoint: Asked | None = None,
) -> Fit:
    """Follow each start of a plan through its stages and keep the lowest objective."""
    rank = _checks.whole_number("rank", rank, 1)
    max_sweeps = _checks.whole_number("max_sweeps", max_sweeps, 1)
    generator = _checks.generator(rng)
    if isinstance(init, str):
        _checks.choice("init", init, ("auto", "nvecs", "random"))
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: must be a function of a State, got {callback!r}")
    with single_blas_thread:  # for the products outside of the engine: the same bits everywhere
        engine = as_engine(X)
        LOG.info("fit of %s, rank %d", "x".join(map(str, engine.shape)), rank)
        if checkpoint is not None:
            checkpoint.check(rank, engine)
        if entry_weights is not None:
            engine = engine.weighted(in_modes_of(engine.view.axes, entry_weights))
        axes = engine.view.axes
        near = engine.off_device
        near.check_memory()
        how = plan(near)
        given = how.constrained
        how = replace(how, constraints=bound(given, engine.shape, axes.labels))
        with Record.of(checkpoint, how, rank, max_sweeps, generator) as record:
            told = callback if near is engine else _told_there(callback, engine)
            fit = record.fit or _Way(how, generator, max_sweeps, told, record).fit(rank)
    if near is not engine:
        weights, *factors = _there((fit.model.weights, *fit.model.factors), engine)
        fit = replace(fit, model=KruskalTensor(weights, tuple(factors)))
    for warning in fit.warnings:
        LOG.warning("%s", warning, extra={"of_fit": True})
    return _called(replace(fit, constraints=given), axes)


def _called(fit: Fit, axes: Axes) -> Fit:
    """A fit with the names, labels and notes of its data."""
    notes = (*fit.notes, *(note for note in axes.notes if note not in fit.notes))
    if not axes.modes:
        return replace(fit, notes=notes)
    told = tuple(replace(one, sentence=axes.told(one.sentence)) for one in fit.warnings)
    return replace(
        fit, modes=axes.modes, labels=axes.labels, units=axes.units, warnings=told,
        notes=tuple(map(axes.told, notes)),
    )  # fmt: skip


def _told_there(callback: Callback | None, engine: Engine) -> Callback | None:
    """A callback that is told of arrays where the data was given."""
    if callback is None:
        return None
    return lambda state: callback(
        replace(state, factors=_there(state.factors, engine), swept=_there(state.swept, engine))
    )


def _there(arrays: Iterable[Array], engine: Engine) -> tuple[Array, ...]:
    return tuple(engine.asarray(to_host(A)) for A in arrays)


def bound(
    constraints: Constraints, shape: Sequence[int], labels: Sequence[Sequence[Any] | None]
) -> Constraints:
    """Constraints that know the sizes and labels of their modes."""
    each = zip(constraints, shape, labels or (None,) * len(shape), strict=True)
    return tuple(constraint.bound(size, names) for constraint, size, names in each)


@dataclass(frozen=True, eq=False)
class _Way:
    """How the starts of a plan are followed."""

    how: Plan
    generator: np.random.Generator
    max_sweeps: int
    callback: Callback | None
    record: Record
    #: How many runs are known to follow.
    to_come: int = 0

    def fit(self, rank: int) -> Fit:
        """Follow the starts, from where they are."""
        how, runs = self.how, list[_Run]()
        starts, spare = list(how.starts), list(how.spare)
        while starts:
            start = starts.pop(0)
            begun = self.begun(start, len(runs), rank)
            each = (begun, *begun.others)
            for number, one in enumerate(each, 1):
                way = replace(self, to_come=len(each) - number + len(starts))
                run = way.run if how.cases is None else way.run_of_cases
                runs.append(run(len(runs), one))
                if runs[-1].outcome == STOPPED:
                    break
            if runs[-1].outcome == STOPPED:
                break
            if spare and runs[-1].ran_off:
                starts.insert(0, spare.pop())
        sound = [run for run in runs if not run.ran_off] if how.spare else []
        fit = _fit(sound or runs)
        self.record.finish(None if runs[-1].outcome == STOPPED else fit)
        return fit

    def begun(self, start: Start, number: int, rank: int) -> Begun:
        """Where a start begins, by a search or from what is known of it."""
        how, saved = self.how, self.record.run(number)
        if saved:
            return saved.begun
        LOG.info("search for start %d", number + 1)
        journal = self.record.journal(number)
        found = start(how.problem, rank, self.generator, how.constrained, journal)
        self.record.searched()
        return found

    def run(self, number: int, begun: Begun, again: int = 0) -> _Run:
        """Follow one start."""
        how, record, generator = self.how, self.record, self.generator
        saved, solver = record.run(number), how.solver(begun)
        if saved and saved.again != again:
            saved = None
        if saved and saved.outcome and saved.ended(self.max_sweeps):
            generator.bit_generator.state = saved.state.generator
            return _Run(solver, saved.state, saved.outcome, begun)
        factors = cleared(how.problem, begun.factors, solver.modes, solver.constraints)
        if saved:
            generator.bit_generator.state = saved.state.generator
            state = solver.resumed(saved.state)
        else:
            drawn = dict(generator.bit_generator.state)
            state = solver.start(factors, number + begun.best, drawn, begun.fibres)
            record.keep(number, Saved(begun, state, again=again))
        told = _Told(solver, number, self.max_sweeps, self.to_come)

        def after_sweep(state: State) -> bool:
            record.keep(number, Saved(begun, state, again=again))
            told.after_sweep(state)
            answer = self.callback(solver.in_data(state)) if self.callback else False
            return isinstance(answer, bool | np.bool_) and bool(answer)

        state, outcome = solver.run(state, self.max_sweeps, after_sweep)
        if outcome == CONVERGED:
            state = solver.averaged(state)
        record.keep(number, Saved(begun, state, outcome, again))
        LOG.info("start %d: %s, after %d sweeps", number + 1, outcome, state.sweep)
        return _Run(solver, state, outcome, begun)

    def run_of_cases(self, number: int, begun: Begun) -> _Run:
        """Follow one start without the samples that are bad, until they stay the same ones."""
        how, saved = self.how, self.record.run(number)
        assert how.cases is not None
        mode, problem = int(how.cases.mode), how.problem
        bad = begun.bad
        if bad is None:
            bad = judged(problem, begun.factors, None, mode).flagged
        for again in range(saved.again if saved else 0, AGAIN):
            begun = replace(begun, bad=bad)
            way = replace(self, how=how.without(bad), to_come=self.to_come + AGAIN - 1 - again)
            run = way.run(number, begun, again)
            stopped = run.outcome == STOPPED
            factors, noise = run.state.factors, None if stopped else run.state.noise
            journal = self.record.journal(number).within(f"scores {again + 1}")
            factors = scored(problem, factors, noise, mode, bad, how.constrained, 1e-4, journal)
            found = judged(problem, factors, noise, mode)
            if stopped or np.array_equal(found.flagged, bad) or again + 1 == AGAIN:
                break
            bad, begun = found.flagged, replace(begun, factors=factors)
        found = replace(found, weights=np.where(bad, 0.0, 1.0))
        state, subsets = replace(run.state, factors=factors), how.cases.subsets(factors[0].shape[1])
        return replace(run, state=state, judged=found, subsets=subsets)


class _Told:
    """What the log says of a run."""

    def __init__(self, solver: Solver, number: int, most: int, to_come: int) -> None:
        self._solver, self._number, self._most, self._to_come = solver, number, most, to_come
        self._pace, self._trend = Pace(), Trend()

    def after_sweep(self, state: State) -> None:
        """Say where the run is."""
        self._pace.step()
        self._trend.add(state.fall, state.level_sweep == 1)
        self._pace.tell(LOG, lambda: self.step(state), now=state.level_sweep == 1)

    def step(self, state: State) -> Step:
        """Where it is: the sweeps that are left are those allowed, and a guess for the level."""
        tol, most = self._solver.end_of_level(state)
        each, left = self._pace.seconds, self._most - state.sweep
        expected = min(self._trend.sweeps(tol), most - state.level_sweep, left)
        left += self._to_come * self._most
        return Step(
            f"start {self._number + 1}, stage {state.name!r} ({state.stage + 1} of "
            f"{len(self._solver.stages)}), level {state.level + 1}",
            f"sweep {state.sweep}", state.trace[-1], state.sweep / self._most, each * expected,
            " for this level", each * left, f" for {left} sweeps",
        )  # fmt: skip


def _fit(runs: Sequence[_Run]) -> Fit:
    """The best run as a Fit, in the units of the data."""
    # Runs that were cut short may stand at different losses; compare them under the last one.
    furthest = max((run.state for run in runs), key=lambda s: (s.stage, s.level)).cost
    objectives = [
        run.state.objective if run.state.cost == furthest else run.solver.value(run.state, furthest)
        for run in runs
    ]
    starts = Starts(runs[0].solver.reported(value, furthest.loss) for value in objectives)
    best, doubted = runs[int(np.argmin(objectives))], []
    if best.judged is not None:
        starts = best.begun.tried or starts
        doubted = doubts.of_subsets(len(starts), best.subsets) if best.begun.tried else []
        flagged = best.judged.flagged
        doubted += doubts.of_cases(int(flagged.sum()), flagged.size, 1 - GOOD)
    elif runs[0].begun.tried is not None:
        best, starts = _best_of_tried(runs)
        doubted = _doubted(runs, best, starts)
    solver, state = best.solver, best.state
    problem, units = solver.problem, solver.problem.units
    engine = problem.seen_by(state.loss)
    if state.fibres is not None:
        engine = engine.leaving_out(state.fibres)
    model = _canonical(solver, state)
    loss = units.loss_of_data(state.loss)
    # Where there was no refinement nobody has asked yet what the noise depends on.
    looked = state.noise is not None
    kind = state.noise.kind if state.noise is not None else COMMON
    noise = noise_of(engine, state.factors, problem.resolution, units, kind, state.noise)
    nothing = engine.largest == 0 and not noise.known  # there is no size that noise could have
    return Fit(
        model=KruskalTensor(model.weights * 2.0**units.exponent, model.factors),
        trace=np.array(state.trace),
        result=_where(best, loss),
        warnings=(*_warnings(best, model, noise, runs[0].begun.enough), *doubted),
        notes=tuple(_notes(best)),
        loss=loss.original,
        stages=tuple((name, sweeps) for name, sweeps in state.stages if sweeps),
        explained=_explained(problem, state),
        starts=starts,
        noise=replace(noise.scaled(0.0 if nothing else units.factor), looked=looked),
        cases=best.judged,
    )


def _warnings(
    run: _Run, model: KruskalTensor, noise: Noise, enough: int | None
) -> list[FitWarning]:
    """Reasons to doubt the model of a run, but for those that other runs give."""
    state, seen, rank = run.state, run.solver.objective_of(run.state).engine, model.rank
    cases = None if run.judged is None else run.judged.mode
    found = [*map(_unsolved, state.kept), *doubts.of_components(model)]
    if state.noise is not None:
        found += doubts.of_narrow(model.factors, cases)
        if not run.begun.sound:
            trial, factors = Trial(run.solver.problem, run.solver.constraints), model.absorbed()
            entropy = trial.entropy(factors)
            found += doubts.of_idle(trial.idle(factors, entropy), enough, rank)
            found += doubts.of_little(trial.nothing - entropy)
        found += doubts.of_structure(structure_of(seen, state.factors, noise.sigma), rank)
        found += doubts.of_rejected(noise.clean)
    found += doubts.of_priors(_of_priors(seen, state))
    found += doubts.of_slabs(noise.outlying_slabs(), cases)
    return found + doubts.of_skipped(state.skipped)


def _notes(run: _Run) -> list[str]:
    """What else users should know."""
    state, solver = run.state, run.solver
    notes = [*solver.problem.notes, *state.notes]
    notes += _rejected(solver.objective_of(state).engine, state)
    if state.fibres:
        notes.append(f"{state.fibres.words} left out, as outlying as a whole")
    if run.judged is not None and run.judged.flagged.any():
        notes.append(f"{run.judged.words} left out, as bad as a whole")
    return notes


def _best_of_tried(runs: Sequence[_Run]) -> tuple[_Run, Starts]:
    """The run that costs least in the end, and what is known of all starts.

    They are compared without the fibres that any of them leaves out: no model can buy itself a
    low cost by a component for those. Of those that cost the same, it is the one that most starts
    agree with.
    """
    starts = runs[0].begun.tried
    assert starts is not None
    costs = _costs(runs)
    for run in runs:
        factors = run.solver.problem.units.factors_of_data(run.state.factors)
        model = KruskalTensor.from_factors(factors).normalized()
        starts = starts.ended(run.begun.best, run.cost, model)
    each = [
        (starts.agreeing_with(run.begun.best), run, cost)
        for run, cost in zip(runs, costs, strict=True)
        if cost <= min(costs) + SAME
    ]
    starts, best, _ = max(each, key=lambda one: (one[0].reached, -one[2]))
    return best, starts


def _costs(runs: Sequence[_Run]) -> list[float]:
    """What the models cost, without the fibres that any of them leaves out."""
    left_out = [run.state.fibres for run in runs if run.state.fibres is not None]
    if not left_out:
        return [run.cost for run in runs]
    return [run.cost_without(reduce(or_, left_out)) for run in runs]


def _doubted(runs: Sequence[_Run], best: _Run, starts: Starts) -> list[FitWarning]:
    """Whether the model is one that others would find too."""
    found = []
    if starts.reached == 1 and len(starts) >= MANY:
        found += doubts.of_starts(starts.reached, len(starts))
    mine, costs = KruskalTensor.from_factors(best.state.factors), _costs(runs)
    least = costs[list(runs).index(best)]
    for run, cost in zip(runs, costs, strict=True):
        if cost > least + EQUALLY or run is best or best.solver.problem.units.order == 2:
            continue
        other = KruskalTensor.from_factors(run.state.factors)
        score = factor_match_score(other, mine, weights=False)
        if score < OTHER:
            found += doubts.of_another(score)
            break
    return found


def _canonical(solver: Solver, state: State) -> KruskalTensor:
    """The model in canonical form; columns are not turned around where that is not allowed."""
    modes = range(len(state.factors))
    turned = [mode for mode in modes if solver.constraints[mode].symmetric]
    oriented = set(modes) - set(turned)
    model = KruskalTensor.from_factors(state.factors)
    return model.normalized(turned[-1] if turned else -1, oriented)


def _where(run: _Run, loss: Loss) -> Outcome:
    """How a run ended, and where, if that was before its last level."""
    if run.outcome == CONVERGED or run.solver.last_level(run.state):
        return run.outcome
    where = f" in stage {run.state.name!r} at {loss}, before the last level"
    return replace(run.outcome, sentence=run.outcome.sentence + where)


def _explained(problem: Problem, state: State) -> float:
    """The share of the data that the model explains: of squares for least squares, else of |x|.

    Of small counts also that of squares: their means are no medians, and may leave more of |x|
    than zeros do.
    """
    tiny = L1(max((1e-6 * problem.scale) ** 2, 1e-300))
    squares = state.loss.quadratic or problem.resolution.small
    measure = LeastSquares() if squares else tiny
    engine = problem.seen_by(measure).standardized(None)
    nothing = engine.value(tuple(0.0 * A for A in state.factors), measure)
    left = engine.value(state.factors, measure)
    whole = nothing + problem.excess(measure)
    return (nothing - left) / whole if whole > 0 else 0.0


def _rejected(engine: Engine, state: State) -> list[str]:
    """Rows that a loss which rejects outliers leaves where the stage before it put them."""
    if not np.isfinite(state.loss.rejects):
        return []
    notes = []
    rank = state.factors[0].shape[1]  # so many entries of a row can be met by chance
    for mode, hits in enumerate(engine.flagged(state.factors, state.loss.rejects)):
        rows = np.flatnonzero((engine.counts(mode) - hits <= rank) & (hits > 0))
        if rows.size:
            notes.append(
                f"{rows.size} rows of mode {mode} have no entry that fits and keep the values "
                f"of the stage before ({doubts.some(rows)})"
            )
    return notes


def _of_priors(engine: Engine, state: State) -> list[Decided]:
    """Rows that a prior decides."""
    if state.prior is None or state.noise is None:
        return []
    modes = tuple(n for n, ridge in enumerate(state.prior.ridges) if ridge is not None)
    unit = state.noise.sigma**2
    known = RowPrior(modes).known(engine, state.factors, state.loss, unit, state.prior)
    counts = [engine.counts(mode) for mode in range(engine.order)]
    return known.decided(counts)


def _unsolved(rows_of_mode: tuple[int, tuple[int, ...]]) -> FitWarning:
    mode, rows = rows_of_mode
    sentence = (
        f"{len(rows)} rows of mode {mode} could not be solved and kept their value "
        f"({doubts.some(rows)}): try a lower rank"
    )
    return FitWarning("unsolved", sentence, {"mode": mode, "rows": list(rows)})
