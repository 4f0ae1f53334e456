"""A transformer for scikit-learn, which the extra `sklearn` installs: samples first."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from robustcp._util import checks
from robustcp.constraints import Constraint
from robustcp.engines import LabelledTensor, as_array, as_engine, axes_of, khatri_rao, to_host
from robustcp.estimators.cp import cp
from robustcp.losses import Loss
from robustcp.results.fit import Fit
from robustcp.starts.cases import Cases

#: Degrees of freedom of the t distribution by which held-out entries are scored.
DEGREES_OF_FREEDOM = 3.0
#: Parameters that `cp` takes as they are.
CP_OPTIONS = (
    "loss",
    "noise",
    "nonnegative",
    "constraints",
    "limits",
    "preprocess",
    "starts",
    "tol",
    "max_sweeps",
)
#: The least scale of residuals, relative to the median magnitude of the entries that are not 0.
MIN_RELATIVE_SCALE = 1e-3


class RobustCP(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Robust CP as a transformer of scikit-learn, from samples (matrices or tensors) to scores.

    The first mode of X holds samples. `fit` calls `robustcp.cp`; `transform` returns the scores of
    the same or new samples, by robust regression on the components. Missing entries are NaN.

    Parameters
    ----------
    n_components : int
        The rank.
    loss, noise, limits, preprocess, nonnegative, constraints, starts, tol, max_sweeps
        As in `robustcp.cp`; the mode of the samples is mode 0. New samples are preprocessed with
        the centres and sizes of the samples of `fit`.
    cases : bool or float
        Whether samples may be bad as a whole, or the largest share of samples that may be.
    random_state : None, int, RandomState or Generator
        None is a fixed seed.

    Attributes
    ----------
    fit_ : Fit
        The fitted model, with `fit_.warnings`, `fit_.outliers(X)` and so on.
    components_ : array (n_components, ...)
        The sample with a score of 1 in one component: the outer product of its unit columns. In
        preprocessed units, as scores are.
    sample_shape_ : tuple of int
        The shape of one sample.
    n_features_in_ : int
        The number of entries of a sample.
    feature_names_in_ : array of str
        The names of the columns, if X was a data frame.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((20, 15, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> model = robustcp.RobustCP(n_components=2).fit(X[:15])
    >>> scores = model.transform(X[15:])
    >>> scores.shape, model.inverse_transform(scores).shape
    ((5, 2), (5, 15, 10))
    >>> model.get_feature_names_out()
    array(['robustcp0', 'robustcp1'], dtype=object)
    """

    def __init__(
        self,
        n_components: int = 3,
        *,
        loss: Loss | None = None,
        noise: Any = "auto",
        cases: bool | float = False,
        limits: Any = "auto",
        preprocess: Any = None,
        nonnegative: bool | tuple[bool, ...] = False,
        constraints: Mapping[int | str, Constraint] | None = None,
        starts: int | str = "auto",
        tol: float = 1e-6,
        max_sweeps: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.loss = loss
        self.noise = noise
        self.cases = cases
        self.nonnegative = nonnegative
        self.constraints = constraints
        self.limits = limits
        self.preprocess = preprocess
        self.starts = starts
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> RobustCP:
        """Fit the model to samples.

        Parameters
        ----------
        X : array (samples, ...)
            Of any order from 2; an array, masked array or xarray.DataArray, NaN where an entry is
            missing.
        y : ignored
        """
        rank = checks.whole_number("n_components", self.n_components, 1)
        data: Any = self._check_samples(X, reset=True)
        axes = axes_of(_frame_to_array(X))
        if axes.modes:
            data = LabelledTensor(data, axes.modes, axes.labels, units=axes.units)
        options = {name: getattr(self, name) for name in CP_OPTIONS}
        fit = cp(data, rank, cases=self._as_cases(), rng=self._seed(), **options)
        if not fit.converged:
            warnings.warn(f"RobustCP: {fit.result.sentence}", ConvergenceWarning, stacklevel=2)
        self.fit_: Fit = fit
        return self

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> np.ndarray:
        """Fit the model and return the scores of the same samples."""
        return self.fit(X).transform(X)

    def transform(self, X: Any) -> np.ndarray:
        """The scores of samples: array (samples, n_components)."""
        check_is_fitted(self)
        return self._scores(self._check_samples(X, reset=False))

    def inverse_transform(self, X: Any) -> np.ndarray:
        """The samples that have some scores, by the model, in the units of the data.

        Array (samples, ...).
        """
        check_is_fitted(self)
        scores = check_array(X, input_name="X")
        if scores.shape[1] != self.fit_.rank:
            raise ValueError(
                f"X: must have a score for each of {self.fit_.rank} components, got {scores.shape}"
            )
        samples = np.tensordot(scores, self.components_, axes=1)
        if self.fit_.preprocessing is None:
            return samples
        preprocessing = self.fit_.preprocessing.for_new_slabs(0, len(samples))
        if not preprocessing.complete:
            raise ValueError(
                f"inverse_transform: after {preprocessing.describe(self.fit_.modes)} each sample "
                "has a centre or size of its own, which its scores do not tell"
            )
        return np.asarray(preprocessing.undo(samples))

    def score(self, X: Any, y: Any = None) -> float:
        """How well entries of samples are predicted from other entries of the same samples.

        The entries of each sample are assigned to two halves at random. Each half is predicted
        with the scores of the other half. So a spurious component lowers the score, whereas the
        residuals of whole samples always shrink with one component more.

        Returns
        -------
        float
            The gain in log density of the held-out entries over a model of zeros, in nats per
            entry; larger is better. Residuals have Student's t distribution with 3 degrees of
            freedom, which limits the influence of outliers, with the scale of largest likelihood.
        """
        check_is_fitted(self)
        data = self._check_samples(X, reset=False)
        data = np.asarray(data, dtype=np.result_type(data, np.float32))
        preprocessed = self._preprocess(data)
        observed = ~np.isnan(preprocessed)
        if not observed.any():
            raise ValueError("X: has no entries to predict")
        first_half = checks.generator(self._seed()).random(data.shape) < 0.5
        residuals = np.full(data.shape, np.nan)
        for half in (first_half, ~first_half):
            has_entries = (observed & half).reshape(len(data), -1).any(axis=1)
            scores = np.zeros((len(data), self.fit_.rank))
            if has_entries.any():
                scores[has_entries] = self._scores(np.where(half, data, np.nan)[has_entries])
            predicted = np.tensordot(scores, self.components_, axes=1)
            residuals = np.where(half, residuals, preprocessed - predicted)
        limits = self.fit_.limits and self.fit_.limits.for_new_slabs(0, len(data))
        if limits is not None:  # what is beyond the limits cannot be predicted
            observed[observed] = limits.sides_at(data[observed], np.nonzero(observed)) == 0
        values = preprocessed[observed]
        return _mean_log_density(residuals[observed], values) - _mean_log_density(values, values)

    @property
    def components_(self) -> np.ndarray:
        """The sample with a score of 1 in one component, for each component."""
        check_is_fitted(self)
        others = [np.asarray(to_host(A)) for A in self.fit_.factors[1:]]
        return np.asarray(khatri_rao(others).T.reshape(-1, *self.sample_shape_))

    @property
    def _n_features_out(self) -> int:
        return self.fit_.rank

    def _preprocess(self, data: np.ndarray) -> np.ndarray:
        """Samples with the preprocessing of the fit."""
        if self.fit_.preprocessing is None:
            return data
        return np.asarray(as_array(self.fit_.preprocess_new(as_engine(data), 0)))

    def _scores(self, data: np.ndarray) -> np.ndarray:
        return np.asarray(self.fit_.project(data, 0))

    def _check_samples(self, X: Any, *, reset: bool) -> np.ndarray:
        """Samples on the host, of the shape that the model was fitted to."""
        _check_feature_names(self, X, reset=reset)
        data = check_array(
            to_host(as_array(_frame_to_array(X))),
            allow_nd=True,
            ensure_all_finite="allow-nan",
            input_name="X",
            ensure_min_samples=2 if reset else 1,
            estimator=self,
        )
        shape = data.shape[1:]
        if reset:
            self.sample_shape_ = shape
            self.n_features_in_ = math.prod(shape)
        elif shape != self.sample_shape_:
            if len(shape) == len(self.sample_shape_) == 1:  # the message that scikit-learn tests
                raise ValueError(
                    f"X has {shape[0]} features, but {type(self).__name__} is expecting "
                    f"{self.n_features_in_} features as input"
                )
            raise ValueError(
                f"X: has samples of shape {shape}, the model was fitted to {self.sample_shape_}"
            )
        return np.asarray(data)

    def _as_cases(self) -> Any:
        if isinstance(self.cases, bool | np.bool_):
            return 0 if self.cases else None
        return Cases(0, share=self.cases)

    def _seed(self) -> Any:
        """The seed for `cp`: the next number of a RandomState, or else `random_state` itself."""
        return checks.seed("random_state", self.random_state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _frame_to_array(X: Any) -> Any:
    """A data frame as an array (samples, features), never as a long table; others as they are."""
    return X.to_numpy() if hasattr(X, "iloc") else X


def _mean_log_density(residuals: np.ndarray, data: np.ndarray) -> float:
    """The mean log density of residuals under Student's t with the scale of largest likelihood."""
    sizes = np.abs(data[data != 0])
    typical_size = float(np.median(sizes)) if sizes.size else 1.0
    z = np.abs(residuals / typical_size)
    upper = max(float(z.max()), 2 * MIN_RELATIVE_SCALE)

    def cost(log_scale: float) -> float:
        squares = (z * math.exp(-log_scale)) ** 2
        log_terms = float(np.mean(np.log1p(squares / DEGREES_OF_FREEDOM)))
        return log_scale + 0.5 * (DEGREES_OF_FREEDOM + 1) * log_terms

    least = math.log(MIN_RELATIVE_SCALE)
    optimum = minimize_scalar(cost, bounds=(least, math.log(upper)), method="bounded")
    return -min(float(optimum.fun), cost(least))
