"""The driver of all estimators: engine, plan, starts, solver, and the fit with its warnings."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.interrupts import interrupts, stop_requested
from robustcp._util.progress import ConvergenceTrend, ProgressReport, Throughput
from robustcp._util.typing import Array
from robustcp.constraints import Constraints
from robustcp.engines import (
    Axes,
    Center,
    Engine,
    Fibres,
    Preprocessing,
    align_to_axes,
    as_engine,
    single_blas_thread,
    to_host,
)
from robustcp.estimators.spec import FitSpec, plan
from robustcp.losses import L1, LeastSquares, Loss
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import factor_match_score
from robustcp.noise import COMMON, Noise, estimate_model_noise, measure_structure, parse_limits
from robustcp.optimize.outcome import CONVERGED, STOPPED, Outcome
from robustcp.optimize.posterior_means import move_to_posterior_means
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import PriorDominatedRows, RowPrior
from robustcp.optimize.solver import Solver, State
from robustcp.persist.checkpoint import CheckpointRequest, FitRecord, SavedRun
from robustcp.preprocess import fit_preprocessing, unit_warnings
from robustcp.results import diagnostics
from robustcp.results.diagnostics import FitWarning
from robustcp.results.fit import Fit
from robustcp.starts.candidates import Starts
from robustcp.starts.cases import (
    CaseDiagnostics,
    cost_of_most_samples,
    diagnose_cases,
    estimate_bad_scores,
    exclude_cases,
    readmit_cases,
)
from robustcp.starts.criterion import Criterion, fibres_of_blocks, has_split_component
from robustcp.starts.fit_plan import Plan
from robustcp.starts.initial_factors import unobserved_rows, zero_unobserved_rows
from robustcp.starts.settings import CASE_SETTINGS
from robustcp.starts.start import Start, StartingPoint

LOG = logging.getLogger(__name__)

#: A component that is this many times larger than the largest entry has diverged.
DIVERGENCE_RATIO = 100.0
#: Costs per entry that differ by less are taken as equal.
SAME_COST_TOL = 1e-3
#: The standard error of costs per entry, which are estimated from a sample of the entries: models
#: whose costs differ by less fit equally well.
COST_STANDARD_ERROR = 5e-3
#: Two models differ if their factor match score is below this.
DIFFERENT_MODEL_SCORE = 0.9
#: The same with `cases`, where several models are fitted to the end only if there is doubt.
DIFFERENT_MODEL_OF_SAMPLES_SCORE = 0.99
#: With at least this many starts there is a warning if only one reached the best model; with fewer
#: only if the search did not find it reliable.
MIN_STARTS_TO_WARN = 6

Callback = Callable[[State], bool | None]
Seed = int | np.random.Generator | None


@dataclass(frozen=True)
class _Run:
    """The result of one start."""

    solver: Solver
    state: State
    outcome: Outcome
    starting_point: StartingPoint
    case_diagnostics: CaseDiagnostics | None = None
    #: With `cases`, how many random subsets of samples must be drawn for at least one without bad
    #: samples, with probability 0.999 (see `Cases.subsets`).
    subsets_needed: int = 0
    #: With `cases`, the data with all samples.
    data: Problem | None = None
    #: The cost by which the run is compared with others, if not on its own data.
    common_cost: float | None = None

    @property
    def axes(self) -> Axes:
        """The names and labels of the data's modes."""
        return self.solver.problem.engine.view.axes

    @cached_property
    def diverged(self) -> bool:
        """Whether the model is far larger than the data, as it may be at missing entries."""
        engine = self.solver.problem.engine
        if engine.complete and engine.view.limits is None:
            return False
        sizes = math.prod(engine.xp.max(engine.xp.abs(A), axis=0) for A in self.state.factors)
        return float(engine.xp.max(sizes)) > DIVERGENCE_RATIO * engine.max_abs

    @cached_property
    def criterion(self) -> Criterion:
        """The criterion by which starts are compared."""
        return Criterion(self.solver.problem, self.solver.constraints)

    @cached_property
    def cost(self) -> float:
        """The cost by which starts are compared, in the units of the data."""
        return self.cost_without(None)

    def cost_without(self, fibres: Fibres | None) -> float:
        """The cost on the data without some fibres."""
        problem, state, criterion = self.solver.problem, self.state, self.criterion
        if self.common_cost is not None:
            return self.common_cost + math.log(problem.units.factor)
        if fibres is not None:
            part = problem.with_engine(problem.engine.without_fibres(fibres))
            criterion = replace(criterion, problem=part)
        return criterion.cost(state.factors, state.noise) + math.log(problem.units.factor)


def estimate(
    X: Any,
    spec: FitSpec,
    *,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointRequest | None = None,
) -> Fit:
    """Follow each start of a plan through its stages and keep the best model."""
    rank, max_sweeps, generator = spec.rank, spec.max_sweeps, checks.generator(rng)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: must be a function of a State, got {callback!r}")
    with single_blas_thread:  # for the products outside of the engine: the same bits everywhere
        engine = as_engine(X)
        LOG.info("fit of %s, rank %d", "x".join(map(str, engine.shape)), rank)
        if checkpoint is not None:
            checkpoint.check(rank, engine)
        if spec.entry_weights is not None:
            engine = engine.weighted(align_to_axes(engine.view.axes, spec.entry_weights))
        limits, limit_notes = parse_limits(spec.limits, engine)
        engine = engine.censored(limits)
        preprocessing, engine, preprocess_notes = fit_preprocessing(spec.preprocess, engine)
        scaled = preprocessing is not None and preprocessing.scales
        unit_findings = [] if scaled else unit_warnings(engine)
        axes = engine.view.axes
        if checkpoint is not None and preprocessing is not None:
            options = checkpoint.options | {"preprocess": preprocessing.describe(axes.modes)}
            checkpoint = replace(checkpoint, options=options)
        fit_engine = engine.off_device
        fit_engine.check_memory()
        fit_plan = plan(spec, fit_engine)
        check_centred_signs(preprocessing, fit_plan.mode_constraints)
        constraints = fit_plan.mode_constraints
        bound = bind_constraints(constraints, engine.shape, axes.labels)
        fit_plan = replace(fit_plan, constraints=bound)
        if fit_engine is not engine:
            callback = _transfer_callback(callback, engine)
        with FitRecord.of(checkpoint, fit_plan, rank, max_sweeps, generator) as record:
            driver = _FitDriver(fit_plan, generator, max_sweeps, callback, record)
            fit = record.fit or driver.fit(rank)
    if fit_engine is not engine:
        weights, *factors = _transfer_arrays((fit.model.weights, *fit.model.factors), engine)
        fit = replace(fit, model=KruskalTensor(weights, tuple(factors)))
    fit = replace(
        fit,
        constraints=constraints,
        limits=limits,
        preprocessing=preprocessing,
        warnings=(*fit.warnings, *unit_findings),
        notes=(*fit.notes, *limit_notes, *preprocess_notes),
    )
    for warning in fit.warnings:
        LOG.warning("%s", warning, extra={"of_fit": True})
    return _label_fit(fit, axes)


def check_centred_signs(preprocessing: Preprocessing | None, constraints: Constraints) -> None:
    """Refuse models without negative entries of data that is centred, of which half is negative."""
    centred = preprocessing is not None and any(
        isinstance(step, Center) for step in preprocessing.steps
    )
    if centred and not any(constraint.signed for constraint in constraints):
        raise checks.ArgumentError(
            "nonnegative",
            "in all modes cannot describe centred data, which has negative entries; leave a mode "
            "free, such as that across which it is centred, or scale without centring",
        )


def _label_fit(fit: Fit, axes: Axes) -> Fit:
    """A fit with the names, labels and notes of its data."""
    notes = (*fit.notes, *(note for note in axes.notes if note not in fit.notes))
    if not axes.modes:
        return replace(fit, notes=notes)
    return replace(fit, modes=axes.modes, labels=axes.labels, units=axes.units, notes=notes)


def _transfer_callback(callback: Callback | None, engine: Engine) -> Callback | None:
    """A callback whose state holds arrays in the library and on the device of X."""
    if callback is None:
        return None
    return lambda state: callback(
        replace(
            state,
            factors=_transfer_arrays(state.factors, engine),
            swept_factors=_transfer_arrays(state.swept_factors, engine),
        )
    )


def _transfer_arrays(arrays: Iterable[Array], engine: Engine) -> tuple[Array, ...]:
    return tuple(engine.asarray(to_host(A)) for A in arrays)


def bind_constraints(
    constraints: Constraints, shape: Sequence[int], labels: Sequence[Sequence[Any] | None]
) -> Constraints:
    """Constraints that are bound to the sizes and labels of their modes."""
    modes = zip(constraints, shape, labels or (None,) * len(shape), strict=True)
    return tuple(constraint.bound(size, names) for constraint, size, names in modes)


@dataclass(frozen=True, eq=False)
class _FitDriver:
    """Runs the starts of a plan through its stages."""

    plan: Plan
    generator: np.random.Generator
    max_sweeps: int
    callback: Callback | None
    record: FitRecord
    #: How many runs are still to come, as far as known.
    runs_left: int = 0

    def fit(self, rank: int) -> Fit:
        """Run all starts, or go on with them from a checkpoint, and return the best as a fit."""
        plan, runs = self.plan, list[_Run]()
        starts, restarts = list(plan.starts), list(plan.restarts)
        while starts:
            start = starts.pop(0)
            starting_point = self.find_starting_point(start, len(runs), rank)
            record = self.record
            if stop_requested():  # record no run: the same call resumes the search
                record = FitRecord()
            else:
                record.clear_search()
            starting_points = (starting_point, *starting_point.alternatives)
            for number, point in enumerate(starting_points, 1):
                runs_left = len(starting_points) - number + len(starts)
                driver = replace(self, record=record, runs_left=runs_left)
                run = driver.run_start if plan.cases is None else driver.run_start_with_cases
                runs.append(run(len(runs), point))
                if runs[-1].outcome == STOPPED:
                    break
            if runs[-1].outcome == STOPPED:
                break
            if restarts and runs[-1].diverged:
                starts.insert(0, restarts.pop())
        bounded_runs = [run for run in runs if not run.diverged] if plan.restarts else []
        fit = _make_fit(bounded_runs or runs)
        self.record.finish(None if runs[-1].outcome == STOPPED else fit)
        return fit

    def find_starting_point(self, start: Start, number: int, rank: int) -> StartingPoint:
        """The starting point of a start, from the checkpoint or by a search."""
        plan, saved = self.plan, self.record.saved_run(number)
        if saved:
            return saved.starting_point
        LOG.info("search for start %d", number + 1)
        search_log = self.record.search_log(number)
        return start(plan.problem, rank, self.generator, plan.mode_constraints, search_log)

    def run_start(self, number: int, starting_point: StartingPoint, case_round: int = 0) -> _Run:
        """Run one start through all stages."""
        plan, record, generator = self.plan, self.record, self.generator
        saved, solver = record.saved_run(number), plan.solver(starting_point)
        if saved and saved.case_round != case_round:
            saved = None
        if saved and saved.outcome and saved.is_finished(self.max_sweeps):
            generator.bit_generator.state = saved.state.generator
            return _Run(solver, saved.state, saved.outcome, starting_point)
        factors = zero_unobserved_rows(
            plan.problem, starting_point.factors, solver.modes, solver.constraints
        )
        if saved:
            generator.bit_generator.state = saved.state.generator
            state = solver.resume(saved.state)
        else:
            generator_state = dict(generator.bit_generator.state)
            state = solver.start(
                factors,
                number + starting_point.start_number,
                generator_state,
                starting_point.fibres,
            )
            record.save_run(number, SavedRun(starting_point, state, case_round=case_round))
        progress_log = _ProgressLog(solver, number, self.max_sweeps, self.runs_left, state)

        def after_sweep(state: State) -> bool:
            record.save_run(number, SavedRun(starting_point, state, case_round=case_round))
            progress_log.after_sweep(state)
            interrupts.answer()
            answer: Any = False
            if self.callback is not None:
                shown_state = solver.state_in_data_units(state)
                answer = interrupts.call_interruptibly(self.callback, shown_state)
            return (isinstance(answer, bool | np.bool_) and bool(answer)) or stop_requested()

        every_sweep = self.callback is not None or LOG.isEnabledFor(logging.DEBUG)
        state, outcome = solver.run(state, self.max_sweeps, after_sweep, every_sweep=every_sweep)
        if outcome == CONVERGED:
            state = move_to_posterior_means(solver, state)
        record.save_run(number, SavedRun(starting_point, state, outcome, case_round))
        LOG.info("start %d: %s, after %d sweeps", number + 1, outcome, state.sweep)
        return _Run(solver, state, outcome, starting_point)

    def run_start_with_cases(self, number: int, starting_point: StartingPoint) -> _Run:
        """Run one start without the bad samples, and again until the bad samples stay the same."""
        plan, saved = self.plan, self.record.saved_run(number)
        assert plan.cases is not None
        mode, problem = int(plan.cases.mode), plan.problem
        bad = starting_point.bad_samples
        if bad is None:
            bad = diagnose_cases(problem, starting_point.factors, None, mode).flagged
        for case_round in range(saved.case_round if saved else 0, CASE_SETTINGS.max_rounds):
            starting_point = replace(starting_point, bad_samples=bad)
            driver = replace(
                self,
                plan=plan.without_samples(bad),
                runs_left=self.runs_left + CASE_SETTINGS.max_rounds - 1 - case_round,
            )
            run = driver.run_start(number, starting_point, case_round)
            stopped = run.outcome == STOPPED
            factors, noise = run.state.factors, None if stopped else run.state.noise
            search_log = self.record.search_log(number).section(f"scores {case_round + 1}")
            factors = estimate_bad_scores(
                problem, factors, noise, mode, bad, plan.mode_constraints, 1e-4, search_log
            )
            diagnostics = diagnose_cases(problem, factors, noise, mode)
            flagged = diagnostics.flagged
            if case_round == 0 and not stopped:
                flagged = (flagged & ~bad) | readmit_cases(
                    problem, factors, noise, mode, flagged & bad, plan.mode_constraints, search_log
                )
            elif case_round > 1:  # so that samples cannot change sides again and again
                flagged = flagged | bad
            if (
                stopped
                or np.array_equal(flagged, bad)
                or case_round + 1 == CASE_SETTINGS.max_rounds
            ):
                break
            bad, starting_point = flagged, replace(starting_point, factors=factors)
        return replace(
            run,
            state=replace(run.state, factors=factors),
            case_diagnostics=diagnostics.consistent_with(bad),
            subsets_needed=plan.cases.subsets(factors[0].shape[1]),
            data=problem,
        )


@dataclass(eq=False)
class _ProgressLog:
    """Logs the progress of a run.

    Attributes
    ----------
    last_state : State
        The state that was logged last, or the first one.
    """

    solver: Solver
    number: int
    max_sweeps: int
    runs_left: int
    last_state: State
    throughput: Throughput = field(default_factory=Throughput)
    convergence: ConvergenceTrend = field(default_factory=ConvergenceTrend)

    def after_sweep(self, state: State) -> None:
        """Log the progress, at times."""
        sweeps = state.sweep - self.last_state.sweep
        is_new_level, self.last_state = state.level_sweep == sweeps, state
        self.throughput.count_steps(sweeps)
        self.convergence.add(state.decrease, is_new_level)
        self.throughput.report(LOG, lambda: self.progress(state), now=is_new_level)

    def progress(self, state: State) -> ProgressReport:
        """The progress: the expected time left in this level, and an upper limit for the whole fit.

        The limit is for the runs known so far, at their current speed.
        """
        tol, max_level_sweeps = self.solver.level_limits(state)
        seconds_per_sweep = self.throughput.seconds_per_step
        sweeps_left = self.max_sweeps - state.sweep
        expected = min(
            self.convergence.sweeps_left(tol), max_level_sweeps - state.level_sweep, sweeps_left
        )
        sweeps_left += self.runs_left * self.max_sweeps
        return ProgressReport(
            f"start {self.number + 1}, stage {state.name!r} ({state.stage + 1} of "
            f"{len(self.solver.stages)}), level {state.level + 1}",
            f"sweep {state.sweep}",
            state.trace[-1],
            state.sweep / self.max_sweeps,
            seconds_per_sweep * expected,
            " for this level",
            seconds_per_sweep * sweeps_left,
            f" for {sweeps_left} sweeps",
        )


def _make_fit(runs: Sequence[_Run]) -> Fit:
    """The best run as a Fit, in the units of the data."""
    best, starts, start_warnings = _compare_runs(runs)
    solver, state = best.solver, best.state
    problem, units = solver.problem, solver.problem.units
    engine = problem.clipped_for(state.loss)
    if state.fibres is not None:
        engine = engine.without_fibres(state.fibres)
    model = _canonical_model(solver, state)
    loss = units.loss_of_data(state.loss)
    # Without refinement the kind of noise was not selected: it is taken as common.
    kind = COMMON if state.noise is None else state.noise.kind
    noise = estimate_model_noise(
        engine, state.factors, problem.resolution, units, kind, state.noise
    )
    data_is_zero = engine.max_abs == 0 and not noise.known  # then noise has no natural size
    return Fit(
        model=KruskalTensor(model.weights * 2.0**units.exponent, model.factors),
        trace=np.array(state.trace),
        result=_located_outcome(best, loss),
        warnings=(
            *_warnings(best, model, noise, runs[0].starting_point.sufficient_rank),
            *start_warnings,
        ),
        notes=tuple(_notes(best)),
        loss=loss.original,
        stages=tuple((name, sweeps) for name, sweeps in state.stages if sweeps),
        explained=_explained_share(problem, state),
        starts=starts,
        noise=replace(
            noise.scaled(0.0 if data_is_zero else units.factor),
            kind_determined=state.noise is not None,
        ),
        cases=best.case_diagnostics,
        unobserved=_unobserved_slabs(solver),
    )


def _compare_runs(runs: Sequence[_Run]) -> tuple[_Run, Starts, list[FitWarning]]:
    """The best run, what became of all starts, and warnings that follow from comparing them."""
    search = runs[0].starting_point.starts
    if search is not None:
        runs = _compare_without_bad_samples(runs)
        best, starts = _select_best_run(runs)
        warnings = _start_warnings(runs, best, starts)
        if best.case_diagnostics is not None and not best.starting_point.reliable:
            warnings += diagnostics.subset_count_warnings(len(starts), best.subsets_needed)
        return best, starts, warnings + _bad_sample_warnings(best)
    # Runs that were cut short may end with different losses; compare them under the last one.
    last_level = max((run.state for run in runs), key=lambda s: (s.stage, s.level)).level_spec
    objectives = [
        run.state.objective
        if run.state.level_spec == last_level
        else run.solver.value(run.state, last_level)
        for run in runs
    ]
    best, solver = runs[int(np.argmin(objectives))], runs[0].solver
    starts = Starts(solver.reported_objective(value, last_level.loss) for value in objectives)
    return best, starts, _bad_sample_warnings(best)


def _compare_without_bad_samples(runs: Sequence[_Run]) -> Sequence[_Run]:
    """The runs with their costs on the samples that are good in each of them.

    If these are too few, the costs are those of the samples that are closest to each model.
    """
    cases, whole = [run.case_diagnostics for run in runs if run.case_diagnostics], runs[0].data
    if whole is None or len(runs) == 1 or len(cases) < len(runs):
        return runs
    mode, bad = cases[0].mode, reduce(or_, (found.flagged for found in cases))
    part = exclude_cases(whole, mode, bad)
    if bad.mean() <= 1 - CASE_SETTINGS.good_share:
        costs = [replace(run.criterion, problem=part).cost(run.state.factors) for run in runs]
    else:
        costs = [cost_of_most_samples(whole.engine, run.state.factors, mode) for run in runs]
    return [replace(run, common_cost=cost) for run, cost in zip(runs, costs, strict=True)]


def _bad_sample_warnings(run: _Run) -> list[FitWarning]:
    """A warning if too many samples are bad."""
    if run.case_diagnostics is None:
        return []
    flagged, max_bad_share = run.case_diagnostics.flagged, 1 - CASE_SETTINGS.good_share
    return diagnostics.bad_sample_warnings(int(flagged.sum()), flagged.size, max_bad_share)


def _unobserved_slabs(solver: Solver) -> tuple[tuple[int, ...], ...]:
    """For each mode the slabs without observed entries, but for those left out on purpose."""
    problem = solver.problem
    rows = unobserved_rows(problem.engine, solver.modes, solver.constraints)
    return tuple(
        tuple(np.setdiff1d(indices, problem.excluded_slabs.get(mode, ())).tolist())
        for mode, indices in enumerate(rows)
    )


def _warnings(
    run: _Run, model: KruskalTensor, noise: Noise, sufficient_rank: int | None
) -> list[FitWarning]:
    """Warnings from one run; see `_start_warnings` for those from comparing runs."""
    state, level_data, rank = run.state, run.solver.objective_of(run.state).engine, model.rank
    cases = None if run.case_diagnostics is None else run.case_diagnostics.mode
    axes = run.axes
    warnings = [
        *diagnostics.unobserved_slab_warnings(_unobserved_slabs(run.solver), axes),
        *(_unsolved_warning(mode, rows, axes) for mode, rows in state.unsolved_rows),
        *diagnostics.component_warnings(model),
        *_uniqueness_warnings(run, model),
    ]
    if state.noise is not None:
        warnings += diagnostics.localisation_warnings(model.factors, axes, cases)
        if not run.starting_point.reliable:
            criterion = Criterion(run.solver.problem, run.solver.constraints)
            factors = model.absorbed()
            entropy = criterion.entropy(factors)
            warnings += diagnostics.redundancy_warnings(
                criterion.redundant_components(factors, entropy), sufficient_rank, rank
            )
            if not criterion.explains_its_entries(factors, noise.sigma):
                warnings += diagnostics.weak_model_warnings(criterion.null_entropy - entropy)
        warnings += diagnostics.structure_warnings(
            measure_structure(level_data, state.factors, noise.sigma), rank, axes, cases
        )
        warnings += diagnostics.rejection_warnings(noise.clean)
    warnings += diagnostics.prior_warnings(_prior_decided_rows(level_data, state), axes)
    warnings += diagnostics.noisy_slab_warnings(noise.outlying_slabs(), axes, cases)
    return warnings + diagnostics.skipped_stage_warnings(state.skipped)


def _uniqueness_warnings(run: _Run, model: KruskalTensor) -> list[FitWarning]:
    return diagnostics.uniqueness_warnings(model, run.solver.modes, run.solver.constraints)


def _notes(run: _Run) -> list[str]:
    """Notes for users that are not warnings."""
    state, solver = run.state, run.solver
    notes = [*solver.problem.notes, *state.notes]
    notes += _rejected_row_notes(solver.objective_of(state).engine, state, run.axes)
    if state.fibres:
        notes.append(f"{state.fibres.describe(run.axes)} left out, as outlying as a whole")
    if run.case_diagnostics is not None and run.case_diagnostics.flagged.any():
        bad_samples = run.case_diagnostics.describe(run.axes)
        notes.append(f"{bad_samples} left out, as bad as a whole")
    return notes


def _select_best_run(runs: Sequence[_Run]) -> tuple[_Run, Starts]:
    """The run of lowest cost, and what became of all starts.

    Runs are compared without the fibres that any of them leaves out first, so that a component
    fitted to outlying fibres does not lower the cost. But if a model explains such fibres and is as
    good elsewhere, they are not outlying: runs that differ by less than a component, or a standard
    error, are compared with all fibres. Ties go to runs in which no component is split, then to the
    one that most starts agree with.
    """
    starts = runs[0].starting_point.starts
    assert starts is not None
    for run in runs:
        factors = run.solver.problem.units.factors_of_data(run.state.factors)
        model = KruskalTensor.from_factors(factors).normalized()
        starts = starts.with_final(run.starting_point.start_number, run.cost, model)
    close_runs = list(runs)
    fibres = [run.state.fibres for run in runs if run.state.fibres is not None]
    if any(run.starting_point.fibres is not None for run in runs):
        # The fibres in which a component is that a run lacks, and found outlying, must count, if
        # in its place it has a component that is constant on a block.
        blocks = fibres_of_blocks(min(runs, key=lambda run: run.cost).state.factors)
        fibres = fibres if blocks is None else [blocks]
    if fibres and runs[0].common_cost is None:
        costs = [run.cost_without(reduce(or_, fibres)) for run in runs]
        limit = min(costs) + max(COST_STANDARD_ERROR, runs[0].criterion.component_cost)
        close_runs = [run for run, cost in zip(runs, costs, strict=True) if cost <= limit]
    lowest_cost = min(run.cost for run in close_runs)
    equal_runs = [
        (_count_reached(starts, run), run)
        for run in close_runs
        if run.cost <= lowest_cost + SAME_COST_TOL
    ]
    starts, best = max(
        equal_runs,
        key=lambda item: (
            not has_split_component(item[1].state.factors),
            item[0].reached,
            -item[1].cost,
        ),
    )
    return best, starts


def _count_reached(starts: Starts, run: _Run) -> Starts:
    """The starts, with the number of those that reached the model of a run."""
    own = run.starting_point.starts
    if run.case_diagnostics is not None and own is not None:  # starts of samples have no models
        return starts.with_reached(own.reached)
    return starts.recount_reached(run.starting_point.start_number)


def _max_reached_by_chance(run: _Run) -> int:
    """So few starts that reached the model of a run are no evidence for it."""
    if run.case_diagnostics is None or run.starting_point.reliable:
        return 1
    return CASE_SETTINGS.sufficient_same_starts - 1


def _start_warnings(runs: Sequence[_Run], best: _Run, starts: Starts) -> list[FitWarning]:
    """Warnings if few starts reached the model, or another model fits as well."""
    best_model = KruskalTensor.from_factors(best.state.factors)
    warnings = list[FitWarning]()
    if runs[0].starting_point.search_limited:
        warnings += diagnostics.search_limit_warnings(starts.reached, len(starts))
    elif starts.reached <= _max_reached_by_chance(best) and len(starts) >= (
        MIN_STARTS_TO_WARN if runs[0].starting_point.reliable else 2
    ):
        warnings += diagnostics.single_start_warnings(starts.reached, len(starts))
    if _uniqueness_warnings(best, best_model):
        return warnings
    tol, different = COST_STANDARD_ERROR, DIFFERENT_MODEL_SCORE
    if best.common_cost is not None:
        tol = max(tol, best.criterion.component_cost / 2)
        different = DIFFERENT_MODEL_OF_SAMPLES_SCORE
    for run in runs:
        if run is best or run.cost > best.cost + tol:
            continue
        other = KruskalTensor.from_factors(run.state.factors)
        score = factor_match_score(other, best_model, weights=False)
        if score < different:
            warnings += diagnostics.ambiguity_warnings(score)
            break
    return warnings


def _canonical_model(solver: Solver, state: State) -> KruskalTensor:
    """The model in canonical form; columns keep their sign where constraints need it."""
    modes = range(len(state.factors))
    flippable = [mode for mode in modes if solver.constraints[mode].symmetric]
    oriented = set(modes) - set(flippable)
    model = KruskalTensor.from_factors(state.factors)
    return model.normalized(flippable[-1] if flippable else -1, oriented)


def _located_outcome(run: _Run, loss: Loss) -> Outcome:
    """The outcome of a run, with the level at which it ended unless that was the last."""
    if run.outcome == CONVERGED or run.solver.is_last_level(run.state):
        return run.outcome
    position = f" in stage {run.state.name!r} at {loss}, before the last level"
    return replace(run.outcome, sentence=run.outcome.sentence + position)


def _explained_share(problem: Problem, state: State) -> float:
    """The share of the data that the model explains, by sums of |residuals|.

    For least squares, and for small counts, by sums of squares: for small counts |x - mean| can add
    up to more than |x|, which would make the share negative.
    """
    tiny = L1(max((1e-6 * problem.scale) ** 2, 1e-300))
    squares = state.loss.quadratic or problem.resolution.small_counts
    measure = LeastSquares() if squares else tiny
    engine = problem.clipped_for(measure).standardized(None)
    null_loss = engine.value(tuple(0.0 * A for A in state.factors), measure)
    residual_loss = engine.value(state.factors, measure)
    total_loss = null_loss + problem.excess(measure)
    return (null_loss - residual_loss) / total_loss if total_loss > 0 else 0.0


def _rejected_row_notes(engine: Engine, state: State, axes: Axes) -> list[str]:
    """Notes on rows with all entries rejected: they keep their previous values."""
    if not np.isfinite(state.loss.rejects):
        return []
    notes = []
    rank = state.factors[0].shape[1]  # a row may fit that many entries by chance
    for mode, hits in enumerate(engine.count_large_residuals(state.factors, state.loss.rejects)):
        rows = np.flatnonzero((engine.slab_counts(mode) - hits <= rank) & (hits > 0))
        if rows.size:
            notes.append(
                f"{rows.size} rows of {axes.mode_name(mode)} have no entry that fits and keep the "
                f"values of the stage before ({axes.list_indices(mode, rows)})"
            )
    return notes


def _prior_decided_rows(engine: Engine, state: State) -> list[PriorDominatedRows]:
    """Rows that a prior dominates."""
    if state.prior is None or state.noise is None:
        return []
    modes = tuple(n for n, ridge in enumerate(state.prior.ridges) if ridge is not None)
    unit = state.noise.sigma**2
    posterior = RowPrior(modes).row_posterior(engine, state.factors, state.loss, unit, state.prior)
    counts = [engine.slab_counts(mode) for mode in range(engine.order)]
    return posterior.prior_dominated_rows(counts)


def _unsolved_warning(mode: int, rows: tuple[int, ...], axes: Axes) -> FitWarning:
    sentence = (
        f"{len(rows)} rows of {axes.mode_name(mode)} could not be solved and kept their value "
        f"({axes.list_indices(mode, rows)}): try a lower rank"
    )
    return FitWarning("unsolved", sentence, {"mode": mode, "rows": list(rows)})
