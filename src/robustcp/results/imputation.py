"""Missing entries filled with a model, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from robustcp._util.typing import Array
from robustcp.engines import (
    IndexFunction,
    Indices,
    Scales,
    all_entries,
    is_chunked,
    locate_entries,
    model_at,
    same_kind,
    spread_over,
    to_host,
    values_where,
)
from robustcp.inference.covariance import EntryVariances, entry_variances
from robustcp.inference.uncertainty import ROWS_ALONE_NOTE, FitBasis

if TYPE_CHECKING:
    from robustcp.results.fit import Fit
    from robustcp.results.view import FittedView


@dataclass(frozen=True, eq=False)
class Imputation:
    """Data with its missing entries filled, and standard errors of the filled entries.

    Attributes
    ----------
    values : data of the kind that was given
    model_errors : data of the same kind
        The standard errors of the model's entries, as estimates of the entries without noise;
        missing where nothing was filled, infinite where the data does not determine the entry.
    prediction_errors : data of the same kind
        The standard deviations of the differences to the entries as they would be measured: the
        model's standard errors and the noise together.
    notes : tuple of str
        Limits of the errors.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0, gamma=0, rng=0).data.copy()
    >>> truth = X[3, 4, 5]
    >>> X[3, 4, 5] = np.nan
    >>> filled = robustcp.cp(X, 2).impute(X, uncertainty=True)
    >>> bool(abs(filled.values[3, 4, 5] - truth) < 4 * filled.prediction_errors[3, 4, 5])
    True
    """

    values: Any = field(repr=False)
    model_errors: Any = field(repr=False)
    prediction_errors: Any = field(repr=False)
    notes: tuple[str, ...] = ()


def impute(view: FittedView, X: Any, *, flagged: bool, uncertainty: bool) -> Any:
    """Data with its missing entries filled; see `Fit.impute`."""
    entries = all_entries(X)
    xp = array_namespace(entries)
    if xp.isdtype(entries.dtype, "real floating"):
        replaced = xp.isnan(entries)
    else:
        replaced = xp.zeros_like(entries, dtype=xp.bool)
        entries = xp.astype(entries, xp.float64) if flagged else entries
    if flagged:
        replaced = replaced | spread_over(X, view.outliers.mask, False)
    model = values_where(replaced, _model_function(view.fit, entries))
    replaced = replaced & ~xp.isnan(model)
    model = xp.where(replaced, model, xp.zeros_like(model))
    filled = xp.where(replaced, xp.astype(model, entries.dtype), entries)
    if not uncertainty:
        return same_kind(X, filled)[0]
    errors = _EntryErrors.of(view)
    model_errors, prediction_errors = (
        values_where(replaced, function) for function in (errors.of_model, errors.of_prediction)
    )
    parts = same_kind(X, filled, model_errors, prediction_errors)
    return Imputation(parts[0], parts[1], parts[2], errors.notes)


def _model_function(fit: Fit, entries: Array) -> IndexFunction:
    """The function that has the model's entries at some indices; for large data, entry by entry."""
    if is_chunked(entries):
        return partial(_model_at, fit)
    whole = to_host(fit.full())
    return lambda indices: whole[indices]


def _model_at(fit: Fit, indices: Indices) -> np.ndarray:
    return to_host(fit.at(np.stack(indices, axis=1)))


@dataclass(frozen=True, eq=False)
class _EntryErrors:
    """Standard errors of a model's entries, in the units of the data.

    Attributes
    ----------
    variances : EntryVariances
    unit : float
    sigma : float
    scales : Scales, optional
        The standard deviations of the noise of the entries, divided by `sigma`.
    notes : tuple of str
    fit : Fit
        In the order of the data.
    """

    variances: EntryVariances
    unit: float
    sigma: float
    scales: Scales | None
    notes: tuple[str, ...]
    fit: Fit

    @classmethod
    def of(cls, view: FittedView) -> _EntryErrors:
        basis, noise = FitBasis.of(view.fit, view.problem), view.noise
        variances = entry_variances(
            basis.engine, basis.factors, basis.loss, basis.row_posterior, basis.unit
        )
        factors = tuple(to_host(A) for A in view.factors)
        scales = noise.scales(view.engine.shape, factors)
        notes = () if variances.joint else (ROWS_ALONE_NOTE,)
        unit = view.problem.units.factor
        return cls(variances, unit, noise.sigma, scales, notes, view.fit)

    def of_model(self, indices: Indices) -> np.ndarray:
        return self._in_data_units(self._model_errors(indices), indices)

    def of_prediction(self, indices: Indices) -> np.ndarray:
        scales = 1.0 if self.scales is None else self.scales.values_at(indices)
        errors = np.hypot(self._model_errors(indices), self.unit * self.sigma * scales)
        return self._in_data_units(errors, indices)

    def _model_errors(self, indices: Indices) -> np.ndarray:
        """The errors in the units of the fit, which are those of preprocessed data."""
        return np.asarray(self.unit * np.sqrt(self.variances.at(indices)))

    def _in_data_units(self, errors: np.ndarray, indices: Indices) -> np.ndarray:
        if self.fit.preprocessing is None:
            return errors
        factors = [np.asarray(to_host(A)) for A in self.fit.model.absorbed()]
        return np.asarray(
            self.fit.preprocessing.undo_errors(
                errors, lambda: model_at(factors, indices), locate_entries(indices)
            )
        )
