"""`cp`: the recommended robust estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from robustcp._util import checks
from robustcp.constraints import Constraint
from robustcp.engines import Engine
from robustcp.estimators.driver import Callback, Seed, estimate
from robustcp.estimators.spec import FitSpec, Method
from robustcp.losses import Loss, as_loss
from robustcp.noise import is_kind, parse_noise
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from robustcp.optimize.stages import cp_stages
from robustcp.persist.checkpoint import CheckpointArgument, request_checkpoint
from robustcp.results.fit import Fit
from robustcp.starts.cases import Cases, SubsetStart
from robustcp.starts.initial_factors import GivenStart
from robustcp.starts.multistart import Multistart
from robustcp.starts.start import Start


def cp(
    X: Any,
    rank: int,
    *,
    loss: Loss | Sequence[Loss | Stage] | None = None,
    noise: Any = "auto",
    cases: Cases | int | str | None = None,
    entry_weights: Any = None,
    limits: Any = "auto",
    preprocess: Any = None,
    nonnegative: bool | Sequence[bool] = False,
    constraints: Mapping[int | str, Constraint] | None = None,
    fixed: Sequence[int | str] = (),
    init: Any = "auto",
    starts: int | str = "auto",
    tol: float = 1e-5,
    max_sweeps: int = 1000,
    rng: Seed = None,
    callback: Callback | None = None,
    checkpoint: CheckpointArgument = None,
) -> Fit:
    """Robust CP: fit the components in spite of gross errors, and find out which entries are bad.

    The recommended estimator. Several starting points are screened cheaply and ranked by the
    entropy of their residuals, which a few huge residuals cannot dominate. The best are fitted by
    the 1-norm, which resists outliers but is biased by one-sided ones, and then refined under
    Gaussian noise with a floor for outliers (`Contaminated`); the scale of the noise and the
    height of the floor are estimated anew from the residuals after each round. The fit with the
    lowest objective is returned.

    Fibres that are outlying as a whole, or constant, are left out. Rows with few observed entries
    get a Gaussian prior and are given by their posterior means. `fit.status` says so. Up to 60% of
    the entries may be outliers, if the others follow the model. `fit.warnings` lists the reasons
    to doubt the result, if there are any.

    Parameters
    ----------
    X : array, masked array, Observed, what `read` returns, or of xarray or pandas
        NaN and masked entries are missing. Arrays may be of any array API library. A DataArray,
        a Series with a level of its index for each mode, and a long DataFrame (the values in
        its last column) give their names and labels to the fit.
    rank : int
        The number of components.
    loss : Loss, or sequence of losses and stages, optional
        Minimise this loss instead, in the units of the data, from the best start. Several losses
        are minimised one after the other.
    noise : str, modes, or standard deviations
        What the standard deviation of the noise depends on. "common": the same for all entries;
        "slabs": a scale for each slab of every mode, or of the modes whose numbers or names are
        given; "signal": a variance that grows with the model's entries, as in spectra and counts;
        "signal*slabs": both; "auto", the default: whatever the data shows. Known standard
        deviations are given as a number, as an array that broadcasts to X, or as a list with one
        vector (or None) per mode, whose outer product is used. `fit.noise` tells what was found.
    cases : int, str or Cases, optional
        The mode, by number or name, that holds samples, some of which may be bad as a whole. They
        may even agree with each other, by sharing a shift or a component that the others do not
        have. The search then fits small subsets of samples and follows those that describe most
        samples best; samples far from the model have no influence on the other factors, but keep
        their scores. Up to a quarter of the samples may be bad; ``Cases(mode, share=0.4)`` allows
        for more. `fit.cases` has the weight, residual distance and flag of each sample.
    entry_weights : array, or a list with one vector (or None) for each mode, optional
        What the loss of each entry is multiplied by: 2 counts an entry twice, 0 makes it missing.
        An array that broadcasts to X (matched by dimension if both are from xarray; for Observed
        also one weight for each entry, in the order given), or vectors whose outer product is
        used. The sizes of the data and of the noise are estimated from entries with a weight
        other than 0.
    limits : "auto", None, or a pair (low, high)
        Limits of measurement: each a number, an array that broadcasts to X (such as a ceiling for
        each sensor), or None. Entries at or beyond a limit are censored: they cost nothing where
        the model is beyond the limit, and as usual otherwise. "auto" finds ceilings, of all entries
        or of the slabs of a mode: many entries at exactly the largest value. A note in `fit.notes`
        says so; `fit.limits` has them. Floors, such as limits of detection, must be given.
    preprocess : list of steps, optional
        Centring, scaling and functions of entries (`robustcp.preprocess`), in their order, such as
        ``[Center("sample"), Scale("variable")]``. Centres and sizes are robust, and kept as
        `fit.preprocessing`. Factors, weights, noise and objective are then in preprocessed units;
        `fit.full`, `fit.at`, `fit.residuals` and `fit.sigma` in those of the data. Data in memory
        is copied.
    nonnegative : bool, or one for each mode, or modes by number or name
        Which factors must not have negative entries.
    constraints : dict of constraints, optional
        For some modes, by number or by name, what their factors must be like:
        ``{1: Smooth(0.1), "sample": Nonnegative()}``. There are `Nonnegative`, `Smooth`,
        `Unimodal`, `Monotone`, `Sparse`, `Simplex`, `Orthogonal` and `Fixed`, and a `Constraint`
        of your own. Together with `nonnegative` both hold. A mode's constraint does nothing while
        the mode is fixed.
    fixed : sequence of int or str
        Modes, by number or name, whose factors stay as they are in `init`, which must be given.
    init : {"auto", "nvecs", "random"}, KruskalTensor, Fit, or list of factors
        A Fit is turned so that the names of its modes and its labels agree with the data's.
        "auto" begins with singular vectors of the data, cut at the size of ordinary entries and
        not, and goes on with random factors.
    starts : int or "auto"
        How many starts to try. "auto" tries a few at a time, until two agree with the best and its
        residuals are noise, or until three agree; where they do not, also starts for data in which
        most entries are outliers, exchanges of components, and more starts. It ends at ten times
        the price of a fit, with the warning "search_limit"; the logger "robustcp.search" says why
        it goes on, at level INFO. `fit.starts.table()` has them all.
    tol, max_sweeps, rng, callback, checkpoint
        As in `cpal1`.

    Returns
    -------
    Fit

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
    >>> fit = robustcp.cp(sim.data, 2)
    >>> robustcp.factor_match_score(fit, sim.truth) > 0.98
    True

    With the last slab of the second mode counted three times:

    >>> last = [1.0] * 19 + [3.0]
    >>> robustcp.cp(sim.data, 2, entry_weights=[None, last, None]).shape
    (20, 20, 20)

    A detector that shows at most 1:

    >>> clean = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=0.0, rng=0)
    >>> fit = robustcp.cp(clean.data.clip(max=1.0), 2)
    >>> score = robustcp.factor_match_score(fit, clean.truth, weights=False)
    >>> fit.limits.describe(), score > 0.99
    ('at least 1', True)
    """
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    user_stages = _stages_from_loss(loss, tol)
    if user_stages and not (isinstance(noise, str) and noise == "auto"):
        raise ValueError("noise: applies to the default loss only, but loss is given")
    if cases is not None and (user_stages or fixed):
        raise ValueError("cases: cannot be asked for together with loss or fixed")
    spec = FitSpec(
        GivenStages(tuple(user_stages)) if user_stages else RefinedL1(tol, noise),
        rank,
        init=init,
        starts=None if starts == "auto" else starts,
        max_sweeps=max_sweeps,
        entry_weights=entry_weights,
        limits=limits,
        preprocess=preprocess,
        constraints=constraints,
        nonnegative=nonnegative,
        fixed=fixed,
        cases=cases,
    )
    request = request_checkpoint(checkpoint, "cp", loss=loss, tol=tol, noise=_describe_noise(noise))
    return estimate(X, spec, rng=rng, callback=callback, checkpoint=request)


@dataclass(frozen=True)
class _ScreenedStarts(Method):
    """A method whose starts are screened, or drawn from subsets of the samples."""

    searches: ClassVar[bool] = True

    def starts(self, init: Any, count: int | None, cases: Cases | None) -> list[Start]:
        if not isinstance(init, str):
            return [GivenStart(init)]
        return [Multistart(init, count) if cases is None else SubsetStart(cases, count)]


@dataclass(frozen=True, eq=False)
class RefinedL1(_ScreenedStarts):
    """The 1-norm down to the noise level, then the contaminated normal likelihood."""

    tol: float
    noise: Any = "auto"

    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        noise, engine = parse_noise(self.noise, engine)
        problem = Problem.of(engine).without_gross_outliers.without_constant_fibres
        return problem, cp_stages(problem, self.tol, noise.in_units(problem.units), row_prior)


@dataclass(frozen=True, eq=False)
class GivenStages(_ScreenedStarts):
    """Stages that the user gave, in the units of the data."""

    given: tuple[Stage, ...]

    def stages(self, engine: Engine, row_prior: RowPrior) -> tuple[Problem, list[Stage]]:
        problem = Problem.of(engine)
        return problem, [stage.in_units(problem.units) for stage in self.given]


def _describe_noise(noise: Any) -> Any:
    """The noise argument as text, by which checkpoints are compared; "given" for known values."""
    if not is_kind(noise):
        return "given"
    items = noise if isinstance(noise, list | tuple) else [noise]
    return ", ".join(map(str, items))


def _stages_from_loss(loss: Any, tol: float) -> list[Stage]:
    """Stages from what `cp` takes as its loss, in the units of the data; none for the default."""
    items = loss if isinstance(loss, list | tuple) else [] if loss is None else [loss]
    if not items and loss is not None:
        raise ValueError("loss: an empty list of stages")
    stages = []
    for item in items:
        if not isinstance(item, Stage):
            wrapped = as_loss(item)
            item = Stage(wrapped.name, Single(wrapped), tol)
        stages.append(item)
    return stages
