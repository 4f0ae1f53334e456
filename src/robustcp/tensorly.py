"""A drop-in for TensorLy's CP decompositions: change the import, and bad entries do no harm.

All functions and classes make a robust fit, as `robustcp.cp` does, unless they are given
``robust=False``: then they minimise the sum of squares, as `robustcp.cpals` and TensorLy do.
They are for ``from robustcp.tensorly import parafac`` in place of
``from tensorly.decomposition import parafac``: names, order and defaults of arguments are those of
TensorLy 0.10.

What they return is TensorLy's `CPTensor`, with the `Fit` as its attribute `fit`; without TensorLy
it is a plain pair ``weights, factors``. Arrays are of the library of the data.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from robustcp._util import checks
from robustcp._util.checks import ArgumentError
from robustcp._util.optional import import_optional
from robustcp._util.typing import Array, Factors
from robustcp.constraints import Free, Nonnegative
from robustcp.engines import Engine, as_array, as_engine, to_host
from robustcp.estimators.cp import RefinedL1
from robustcp.estimators.cpals import AlternatingLeastSquares
from robustcp.estimators.driver import estimate
from robustcp.estimators.spec import FitSpec, Method
from robustcp.losses import LeastSquares
from robustcp.model.kruskal import KruskalTensor, host_factors
from robustcp.optimize.regression import project
from robustcp.optimize.solver import State
from robustcp.results.fit import Fit

__all__ = [
    "CP",
    "CP_NN",
    "CP_NN_HALS",
    "non_negative_parafac",
    "non_negative_parafac_hals",
    "parafac",
]

LOG = logging.getLogger(__name__)

#: The largest and the smallest relative decrease in a sweep below which a level of a robust fit
#: ends; in between it is `TOL_RATIO` times TensorLy's tolerance, so that its default is `cp`'s.
LARGEST_TOL, SMALLEST_TOL = 1e-5, 1e-8
TOL_RATIO = 1e3
#: A robust fit minimises several objectives, one after the other, and may take this many sweeps
#: for each of `n_iter_max`.
SWEEPS_PER_ITERATION = 10
#: What TensorLy accepts as `svd`.
SVD_NAMES = ("truncated_svd", "symeig_svd", "randomized_svd")
#: What a start of TensorLy is called here, in robust fits and by least squares.
INIT_NAMES = {"svd": ("auto", "nvecs"), "random": ("random", "random")}


def parafac(
    tensor: Any,
    rank: Any,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: Any = "truncated_svd",
    normalize_factors: bool = False,
    orthogonalise: bool | int = False,
    tol: float | None = 1e-8,
    random_state: Any = None,
    verbose: int = 0,
    return_errors: bool = False,
    sparsity: float | None = None,
    l2_reg: float = 0,
    mask: Any = None,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: Sequence[int] | None = None,
    svd_mask_repeats: int = 5,
    linesearch: bool = False,
    callback: Callable[..., Any] | None = None,
    *,
    robust: bool = True,
) -> Any:
    """TensorLy's `parafac` as a robust fit; with ``robust=False`` by least squares.

    A robust fit is that of `robustcp.cp`: it tries several starts, and entries that are grossly
    wrong have no influence. A least-squares fit is that of `robustcp.cpals`, from one start, with
    TensorLy's rule for when to end.

    Parameters
    ----------
    tensor : array, or whatever `cp` takes
        NaN is missing.
    rank : int, float or "same"
        Not an integer: the share of the number of entries that the factors may have as theirs.
    n_iter_max : int
        The most sweeps; of a robust fit, which minimises several objectives one after the other,
        a tenth of them. A robust fit that ends there warns. 0 returns TensorLy's initial factors.
    init : {"svd", "random"}, CPTensor, or any pair (weights, factors)
    svd : str
        Without effect but for ``n_iter_max=0``: all give the same vectors.
    normalize_factors : bool
        Whether columns have norm 1 and weights their sizes. Otherwise weights are 1 and the sizes
        spread evenly over the modes that are not fixed.
    orthogonalise : bool or int
        Without effect, with a warning.
    tol : float, optional
        Least squares ends when the relative error changes by less. A level of a robust fit ends
        when a sweep lowers its objective, relatively, by less than a thousand times this, but not
        more than 1e-5. 0 or None: least squares does all sweeps.
    random_state : int, RandomState or Generator, optional
        None is a fixed seed; for ``init="random"`` NumPy's global state, as in TensorLy.
    verbose : int
        If not 0, the logger "robustcp.tensorly" has the error of each sweep, at level INFO.
    return_errors : bool
        Whether to return also the relative error after each sweep, the norm of the residuals
        divided by that of the data, in which missing entries are the model's, as in TensorLy. It
        includes bad entries, so that it may rise in a robust fit.
    sparsity : float or int, optional
        Return ``(CPTensor, sparse component)``: the residuals of largest magnitude, as many as
        this share of the entries, or this number; others are 0. Errors are without them.
    l2_reg : float
        The weight of the squared norms of the factors. For least squares only.
    mask : array, optional
        1 or True where an entry is observed, 0 where it is missing.
    cvg_criterion : {"abs_rec_error", "rec_error"}
        Whether least squares ends by the magnitude of the change of the error, or the decrease.
    fixed_modes : sequence of int, optional
        Modes whose factors stay as in `init`, which must be given. Unlike in TensorLy, the last
        mode can be fixed.
    svd_mask_repeats : int
        Without effect but for ``n_iter_max=0``.
    linesearch : bool
        Without effect: sweeps are always extrapolated.
    callback : function of (CPTensor, error), optional
        Called after each sweep; a fit ends if it returns True. With `sparsity` it is given the
        pair in place of the CPTensor. Unlike TensorLy's it is not called before the first sweep.
    robust : bool
        Whether to make a robust fit.

    Returns
    -------
    CPTensor, or (CPTensor, errors)
        Components have descending sizes. `CPTensor.fit` is the `Fit`, for
        ``model.fit.outliers(tensor)``, ``model.fit.report(tensor, path)`` and others. Its
        warnings are given as Python's.

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.tensorly import parafac
    >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
    >>> weights, factors = parafac(sim.data, 2)
    >>> robustcp.factor_match_score((weights, factors), sim.truth) > 0.98
    True
    >>> model, errors = parafac(sim.data, 2, return_errors=True, robust=False)
    >>> robustcp.factor_match_score(model, sim.truth) < 0.9, len(errors) <= 100
    (True, True)
    """
    if orthogonalise:
        checks.warn("orthogonalise: has no effect; in TensorLy it is about the first sweeps only")
    ridge = checks.real_number("l2_reg", l2_reg, 0.0)
    if ridge and robust:
        raise ArgumentError("l2_reg", f"is for least squares, robust=False; got {l2_reg!r}")
    return _decompose(
        tensor,
        rank,
        n_iter_max=n_iter_max,
        init=init,
        svd=svd,
        tol=tol,
        random_state=random_state,
        verbose=verbose,
        normalize_factors=normalize_factors,
        return_errors=return_errors,
        mask=mask,
        cvg_criterion=cvg_criterion,
        fixed_modes=fixed_modes,
        svd_mask_repeats=svd_mask_repeats,
        sparsity=sparsity,
        ridge=ridge,
        callback=callback,
        robust=robust,
    )


def non_negative_parafac(
    tensor: Any,
    rank: Any,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: Any = "truncated_svd",
    tol: float | None = 10e-7,
    random_state: Any = None,
    verbose: int = 0,
    normalize_factors: bool = False,
    return_errors: bool = False,
    mask: Any = None,
    cvg_criterion: str = "abs_rec_error",
    fixed_modes: Sequence[int] | None = None,
    *,
    robust: bool = True,
) -> Any:
    """TensorLy's `non_negative_parafac` as a robust fit; with ``robust=False`` by least squares.

    Factors are those of `robustcp.cp` with ``nonnegative=True``. Rows of factors are solved for
    exactly, not by multiplicative updates. Parameters and what is returned: see `parafac`.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> from robustcp.tensorly import non_negative_parafac
    >>> X = abs(robustcp.simulate((12, 11, 10), 1, eta=0.1, gamma=1.0, rng=0).data)
    >>> weights, factors = non_negative_parafac(X, 1)
    >>> [bool(np.all(A >= 0)) for A in factors]
    [True, True, True]
    """
    return _decompose(
        tensor,
        rank,
        n_iter_max=n_iter_max,
        init=init,
        svd=svd,
        tol=tol,
        random_state=random_state,
        verbose=verbose,
        normalize_factors=normalize_factors,
        return_errors=return_errors,
        mask=mask,
        cvg_criterion=cvg_criterion,
        fixed_modes=fixed_modes,
        nonnegative="all",
        robust=robust,
    )


def non_negative_parafac_hals(
    tensor: Any,
    rank: Any,
    n_iter_max: int = 100,
    init: Any = "svd",
    svd: Any = "truncated_svd",
    tol: float | None = 10e-8,
    random_state: Any = None,
    sparsity_coefficients: Any = None,
    fixed_modes: Sequence[int] | None = None,
    nn_modes: Any = "all",
    exact: bool = False,
    normalize_factors: bool = False,
    verbose: bool = False,
    return_errors: bool = False,
    cvg_criterion: str = "abs_rec_error",
    *,
    robust: bool = True,
) -> Any:
    """TensorLy's `non_negative_parafac_hals` as a robust fit; ``robust=False``: least squares.

    `nn_modes` are the modes of nonnegative factors, "all" or None. `exact` has no effect: rows are
    always solved for exactly. `sparsity_coefficients` must be None. Other parameters and what is
    returned: see `parafac`.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> from robustcp.tensorly import non_negative_parafac_hals
    >>> X = -robustcp.simulate((12, 11, 10), 1, eta=0.1, gamma=1.0, rng=0).data
    >>> weights, factors = non_negative_parafac_hals(X, 1, nn_modes={0, 2})
    >>> [bool(np.all(A >= 0)) for A in factors]
    [True, False, True]
    """
    coefficients = np.atleast_1d(np.asarray(sparsity_coefficients, dtype=object))
    if any(coefficient for coefficient in coefficients):
        raise ArgumentError(
            "sparsity_coefficients",
            f"must be None: there is no such penalty here, got {coefficients}",
        )
    return _decompose(
        tensor,
        rank,
        n_iter_max=n_iter_max,
        init=init,
        svd=svd,
        tol=tol,
        random_state=random_state,
        verbose=verbose,
        normalize_factors=normalize_factors,
        return_errors=return_errors,
        cvg_criterion=cvg_criterion,
        fixed_modes=fixed_modes,
        nonnegative=() if nn_modes is None else nn_modes,
        robust=robust,
    )


class _Decomposition:
    """What TensorLy's classes share: arguments as attributes, `fit` and `fit_transform`."""

    def fit(self, tensor: Any) -> Any:
        """Decompose a tensor, and return the object itself."""
        self.fit_transform(tensor)
        return self

    def fit_transform(self, tensor: Any) -> Any:
        """The CPTensor of a tensor, which is also `decomposition_`; errors are `errors_`."""
        options = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        self.decomposition_, self.errors_ = self._decompose(tensor, options)
        return self.decomposition_

    def _decompose(self, tensor: Any, options: dict[str, Any]) -> Any:
        raise NotImplementedError


@dataclass(repr=False, eq=False)
class CP(_Decomposition):
    """TensorLy's class `CP` as a robust fit; with ``robust=False`` by least squares.

    Parameters are those of `parafac`.

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.tensorly import CP
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> weights, factors = CP(rank=2).fit_transform(X)
    >>> [A.shape for A in factors]
    [(12, 2), (11, 2), (10, 2)]
    """

    rank: Any
    n_iter_max: int = 100
    init: Any = "svd"
    svd: Any = "truncated_svd"
    normalize_factors: bool = False
    orthogonalise: bool | int = False
    tol: float | None = 1e-8
    random_state: Any = None
    verbose: int = 0
    sparsity: float | None = None
    l2_reg: float = 0
    mask: Any = None
    cvg_criterion: str = "abs_rec_error"
    fixed_modes: Sequence[int] | None = None
    svd_mask_repeats: int = 5
    linesearch: bool = False
    callback: Callable[..., Any] | None = None
    robust: bool = field(default=True, kw_only=True)

    def _decompose(self, tensor: Any, options: dict[str, Any]) -> Any:
        return parafac(tensor, **options, return_errors=True)

    def __repr__(self) -> str:
        return f"Rank-{self.rank} CP decomposition."


@dataclass(repr=False, eq=False)
class CP_NN(_Decomposition):  # noqa: N801 - TensorLy's name
    """TensorLy's class `CP_NN` as a robust fit; with ``robust=False`` by least squares.

    Parameters are those of `non_negative_parafac`.

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.tensorly import CP_NN
    >>> X = abs(robustcp.simulate((12, 11, 10), 1, eta=0.1, gamma=1.0, rng=0).data)
    >>> CP_NN(1).fit(X).decomposition_[1][0].shape
    (12, 1)
    """

    rank: Any
    n_iter_max: int = 100
    init: Any = "svd"
    svd: Any = "truncated_svd"
    tol: float | None = 10e-7
    random_state: Any = None
    verbose: int = 0
    normalize_factors: bool = False
    mask: Any = None
    cvg_criterion: str = "abs_rec_error"
    fixed_modes: Sequence[int] | None = None
    robust: bool = field(default=True, kw_only=True)

    def _decompose(self, tensor: Any, options: dict[str, Any]) -> Any:
        return non_negative_parafac(tensor, **options, return_errors=True)

    def __repr__(self) -> str:
        return f"Rank-{self.rank} Non-Negative CP decomposition."


@dataclass(repr=False, eq=False)
class CP_NN_HALS(_Decomposition):  # noqa: N801 - TensorLy's name
    """TensorLy's class `CP_NN_HALS` as a robust fit; with ``robust=False`` by least squares.

    Parameters are those of `non_negative_parafac_hals`.

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.tensorly import CP_NN_HALS
    >>> X = abs(robustcp.simulate((12, 11, 10), 1, eta=0.1, gamma=1.0, rng=0).data)
    >>> CP_NN_HALS(1, nn_modes=[0]).fit(X).decomposition_[1][0].shape
    (12, 1)
    """

    rank: Any
    n_iter_max: int = 100
    init: Any = "svd"
    svd: Any = "truncated_svd"
    tol: float | None = 10e-8
    sparsity_coefficients: Any = None
    fixed_modes: Sequence[int] | None = None
    nn_modes: Any = "all"
    exact: bool = False
    verbose: bool = False
    normalize_factors: bool = False
    cvg_criterion: str = "abs_rec_error"
    random_state: Any = None
    robust: bool = field(default=True, kw_only=True)

    def _decompose(self, tensor: Any, options: dict[str, Any]) -> Any:
        return non_negative_parafac_hals(tensor, **options, return_errors=True)

    def __repr__(self) -> str:
        return f"Rank-{self.rank} Non-Negative CP decomposition."


def _decompose(
    tensor: Any,
    rank: Any,
    *,
    n_iter_max: int,
    init: Any,
    svd: Any,
    tol: float | None,
    random_state: Any,
    verbose: int,
    normalize_factors: bool,
    return_errors: bool,
    cvg_criterion: str,
    fixed_modes: Sequence[int] | None,
    mask: Any = None,
    svd_mask_repeats: int = 5,
    nonnegative: Any = (),
    sparsity: float | None = None,
    ridge: float = 0.0,
    callback: Callable[..., Any] | None = None,
    robust: bool,
) -> Any:
    """What all functions do."""
    sweeps = checks.whole_number("n_iter_max", n_iter_max, 0)
    change = checks.real_number("tol", tol or 0.0, 0.0)
    if not callable(svd):
        checks.choice("svd", svd, SVD_NAMES)
    if cvg_criterion not in ("abs_rec_error", "rec_error"):
        raise TypeError(
            f"cvg_criterion: must be 'abs_rec_error' or 'rec_error', got {cvg_criterion!r}"
        )
    if isinstance(init, str):
        checks.choice("init", init, tuple(INIT_NAMES))
    engine = as_engine(tensor)
    data = engine if mask is None else engine.weighted(mask)
    rank = _number_of_components(rank, engine.shape)
    order = engine.order
    fixed = _modes("fixed_modes", fixed_modes or (), order)
    flagged = tuple(range(order)) if isinstance(nonnegative, str) else nonnegative
    if isinstance(nonnegative, str):
        checks.choice("nn_modes", nonnegative, ("all",))
    flagged = _modes("nn_modes", flagged, order)
    initial = None
    if not isinstance(init, str):
        initial = _initial_factors(init, data, fixed, flagged)
    elif fixed:
        raise ArgumentError("fixed_modes", f"needs the factors to keep in init, got init={init!r}")

    convert = _Conversion(normalize_factors, fixed if len(fixed) < order else (), initial or ())
    if len(fixed) == order:
        model = convert(KruskalTensor.from_factors(initial or ()))
        return (model, []) if return_errors else model
    if sweeps == 0:
        model = _tensorly_start(
            tensor,
            rank,
            init,
            svd=svd,
            non_negative=bool(flagged),
            random_state=random_state,
            normalize_factors=normalize_factors,
            mask=mask,
            svd_mask_repeats=svd_mask_repeats,
        )
        return (model, []) if return_errors else model

    method: Method = RefinedL1(min(max(TOL_RATIO * change, SMALLEST_TOL), LARGEST_TOL))
    if not robust:
        method = AlternatingLeastSquares(ridge, 0.0)
    size = _sparse_count(sparsity, math.prod(engine.shape))
    log = _SweepLog(
        data,
        convert,
        size,
        callback,
        verbose,
        stop_below=None if robust or not change else change,
        absolute=cvg_criterion == "abs_rec_error",
        objective_is_error=not robust and ridge == 0 and size == 0,
        mask=mask,
    )
    spec = FitSpec(
        method,
        rank,
        init=(INIT_NAMES[init][0 if robust else 1]) if initial is None else list(initial),
        starts=None if robust else 1,
        max_sweeps=sweeps * (SWEEPS_PER_ITERATION if robust else 1),
        limits="auto" if robust else None,
        entry_weights=mask,
        nonnegative=sorted(flagged) or False,
        fixed=fixed,
    )
    wants_log = callback is not None or return_errors or verbose or not robust
    fit = estimate(engine, spec, rng=_seed(random_state, init), callback=log if wants_log else None)
    for warning in fit.warnings:
        checks.warn(str(warning))
    if robust and fit.result.name == "max_sweeps":
        checks.warn(f"n_iter_max: {fit.result.sentence}; got n_iter_max={n_iter_max}")
    model = convert(fit.model, fit)
    result = (model, log.sparse_component(fit.model.absorbed())) if size else model
    return (result, log.errors_of(fit)) if return_errors else result


@dataclass(frozen=True, eq=False)
class _Conversion:
    """From models to TensorLy's CPTensor, with the sizes of columns where they are wanted."""

    normalize_factors: bool
    fixed: tuple[int, ...]
    initial: Factors

    def __call__(self, model: KruskalTensor, fit: Fit | None = None) -> Any:
        """The CPTensor of a model."""
        if self.normalize_factors:
            model = model.normalized()
        elif self.fixed:
            model = self._with_fixed(model)
        else:
            model = KruskalTensor.from_factors(model.absorbed())
        if find_spec("tensorly") is None:
            return model.to_tensorly()
        result = import_optional("tensorly", "CPTensor").cp_tensor.CPTensor(model.to_tensorly())
        result.fit = fit
        return result

    def _with_fixed(self, model: KruskalTensor) -> KruskalTensor:
        """The same model with fixed factors as they were given, in the order of their columns.

        Columns are paired by the product of their cosines over the fixed modes. The others take
        their sizes and signs.
        """
        given = host_factors([self.initial[mode] for mode in self.fixed])
        fitted = host_factors([model.factors[mode] for mode in self.fixed])
        pairs = zip(given, fitted, strict=True)
        cosines = math.prod(np.abs(_unit_columns(A).T @ _unit_columns(B)) for A, B in pairs)
        order = linear_sum_assignment(cosines, maximize=True)[1]
        weights = np.asarray(to_host(model.weights), dtype=np.float64)[order]
        for A, B in zip(given, fitted, strict=True):
            weights = weights * np.sum(A * B[:, order], axis=0) / np.sum(A * A, axis=0)
        free = [mode for mode in range(len(model.factors)) if mode not in self.fixed]
        sizes = np.abs(weights) ** (1 / len(free))
        scales = dict.fromkeys(free, sizes) | {free[0]: sizes * np.sign(weights)}
        like = as_engine(model.factors[0])
        return KruskalTensor.from_factors(
            [
                like.asarray(host_factors([A])[0][:, order] * scales[mode])
                if mode in scales
                else self.initial[mode]
                for mode, A in enumerate(model.factors)
            ]
        )


@dataclass(eq=False)
class _SweepLog:
    """The relative error after each sweep of each run, the user's callback, and when to stop."""

    data: Engine
    convert: _Conversion
    sparse_count: int
    callback: Callable[..., Any] | None
    verbose: int
    stop_below: float | None
    absolute: bool
    objective_is_error: bool
    mask: Any = None
    errors: dict[int, list[Any]] = field(default_factory=dict)
    traces: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        zero = [self.data.asarray(np.zeros((size, 1))) for size in self.data.shape]
        self.data_squares = self._squares(zero)
        self.has_missing = not self.data.complete or self.mask is not None

    def __call__(self, state: State) -> bool:
        """Note the error after a sweep; whether the fit is to end."""
        squares = 2 * state.objective if self.objective_is_error and not self.has_missing else None
        error = self.relative_error(state.factors, squares)
        errors = self.errors.setdefault(state.start, [])
        errors[state.sweep - 1 :] = [error]
        self.traces[state.start] = state.trace
        if self.verbose:
            LOG.info("sweep %d: relative error %.6g", state.sweep, error)
        if self.callback is not None:
            model = self.convert(KruskalTensor.from_factors(state.factors))
            if self.sparse_count:
                model = (model, self.sparse_component(state.factors))
            if self.callback(model, error) is True:
                return True
        if self.stop_below is None or len(errors) < 2:
            return False
        decrease = errors[-2] - errors[-1]
        return bool((abs(decrease) if self.absolute else decrease) < self.stop_below)

    def errors_of(self, fit: Fit) -> list[Any]:
        """The errors of the run that became the fit; the last is that of the fit."""
        for start, trace in self.traces.items():
            count = min(len(trace), len(fit.trace))
            if tuple(fit.trace[:count]) == trace[:count]:
                errors = self.errors[start][:count]
                if len(fit.trace) > count or fit.trace.size < len(trace):
                    errors.append(self.relative_error(fit.model.absorbed()))
                return errors
        return [self.relative_error(fit.model.absorbed())]

    def relative_error(self, factors: Factors, squares: float | None = None) -> Any:
        """The norm of the residuals over that of the data, with missing entries by the model."""
        squares = self._squares(factors) if squares is None else squares
        norm = self.data_squares
        if self.has_missing:
            # |x - m|^2 + |x + m|^2 = 2 |x|^2 + 2 |m|^2, of observed entries
            mirrored = self._squares([-factors[0], *factors[1:]])
            observed = 0.5 * (squares + mirrored) - self.data_squares
            norm += max(_squared_norm(factors) - observed, 0.0)
        if self.sparse_count:
            squares -= float(np.sum(np.asarray(to_host(self.sparse_component(factors))) ** 2))
        return np.float64(math.sqrt(max(squares, 0.0) / norm) if norm > 0 else 0.0)

    def sparse_component(self, factors: Factors) -> Array:
        """The residuals of largest magnitude, zero elsewhere."""
        xp, shape = self.data.xp, self.data.shape

        def without_missing(r: Array) -> Array:
            return xp.where(xp.isnan(r), xp.zeros_like(r), r)

        residuals = self.data.map_residuals(without_missing, tuple(factors))
        if self.mask is not None:
            observed = self.data.asarray(to_host(as_array(self.mask)))
            residuals = xp.where(observed != 0, residuals, xp.zeros_like(residuals))
        sizes = xp.abs(residuals)
        bound = xp.sort(xp.reshape(sizes, (-1,)))[math.prod(shape) - self.sparse_count]
        return xp.where(sizes < bound, xp.zeros_like(residuals), residuals)

    def _squares(self, factors: Sequence[Array]) -> float:
        return 2.0 * self.data.value(tuple(factors), LeastSquares())


def _initial_factors(
    init: Any, data: Engine, fixed: tuple[int, ...], nonnegative: tuple[int, ...]
) -> Factors:
    """Factors of an initial CP tensor, with its weights in the last mode that is not fixed.

    The factor of one mode that is not fixed may be for other data, with another number of rows.
    """
    try:
        weights, factors = init
        factors = [data.asarray(to_host(as_array(A))) for A in factors]
        if weights is not None:
            weights = data.asarray(to_host(as_array(weights)))
    except (TypeError, ValueError) as error:
        raise ArgumentError("init", f"must be 'svd', 'random' or a CPTensor ({error})") from None
    if len(factors) != data.order:
        raise ArgumentError("init", f"has {len(factors)} modes, the data has {data.order}")
    free = [mode for mode in range(data.order) if mode not in fixed]
    for mode in fixed:
        if factors[mode].shape[0] != data.shape[mode]:
            raise ArgumentError(
                "init",
                f"the factor of the fixed mode {mode} has {factors[mode].shape[0]} rows, "
                f"the data has {data.shape[mode]}",
            )
    other = [mode for mode in free if factors[mode].shape[0] != data.shape[mode]]
    if len(other) == 1:
        constraint = Nonnegative() if other[0] in nonnegative else Free()
        factors[other[0]] = project(KruskalTensor.from_factors(factors), data, other[0], constraint)
    elif weights is not None:
        last = free[-1] if free else -1
        factors[last] = factors[last] * weights[None, :]
    return tuple(factors)


def _tensorly_start(tensor: Any, rank: int, init: Any, **options: Any) -> Any:
    """The CP tensor that TensorLy begins with."""
    purpose = "n_iter_max=0, TensorLy's initial factors,"
    return import_optional("tensorly.decomposition._cp", purpose).initialize_cp(
        tensor, rank, init=init, **options
    )


def _number_of_components(rank: Any, shape: Sequence[int]) -> int:
    """The rank; a share, or "same", is of that with as many parameters as the data has entries."""
    share = 1.0 if isinstance(rank, str) and rank == "same" else rank
    if isinstance(share, float):
        rank = round(math.prod(shape) * share / sum(shape))
    return checks.whole_number("rank", rank, 1)


def _modes(name: str, modes: Any, order: int) -> tuple[int, ...]:
    """Modes by number, in order; those that count from the end as others."""
    return tuple(
        sorted(
            {checks.whole_number(name, mode, -order, maximum=order - 1) % order for mode in modes}
        )
    )


def _sparse_count(sparsity: float | None, entries: int) -> int:
    """The number of entries of the sparse component."""
    if not sparsity:
        return 0
    count = sparsity * entries if isinstance(sparsity, float) else sparsity
    return int(checks.real_number("sparsity", count, 0.0, maximum=entries))


def _seed(random_state: Any, init: Any) -> Any:
    """The seed of a fit; without one, NumPy's global state for random starts, as in TensorLy."""
    if random_state is None and isinstance(init, str) and init == "random":
        return int(np.random.randint(2**31))  # noqa: NPY002 - the state that TensorLy uses
    return checks.seed("random_state", random_state)


def _unit_columns(A: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(A, axis=0)
    return np.asarray(A / np.where(norms > 0, norms, 1.0))


def _squared_norm(factors: Factors) -> float:
    """The sum of squares of a model's entries."""
    return float(np.sum(math.prod(A.T @ A for A in host_factors(factors))))
