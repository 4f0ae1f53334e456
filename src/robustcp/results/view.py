"""A fit compared with data: noise, outliers, distances, and what they share, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines import Engine, as_engine, to_host
from robustcp.inference.uncertainty import Uncertainty, uncertainty
from robustcp.noise import Noise, estimate_model_noise
from robustcp.optimize.problem import Problem
from robustcp.persist.writing import write_bytes
from robustcp.results.distances import Distances, compute_distances
from robustcp.results.imputation import impute
from robustcp.results.outliers import FLAG_RATE, Outliers
from robustcp.results.summary import Summary

if TYPE_CHECKING:
    from robustcp.results.fit import Fit


@dataclass(frozen=True, eq=False)
class FittedView:
    """A fit and some data of the same shape, for everything that depends on both.

    Each method of `Fit` that takes data makes a view and drops it. Keep one to ask for several
    things: the noise and the outliers are then estimated once. A view refers to the data. After a
    change of the data in place, make a new view.

    Attributes
    ----------
    fit : Fit
        With modes and indices in the order of the data.
    engine : Engine
        The data, after the preprocessing of the fit.
    data : Engine
        The data in its own units.

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.results.view import FittedView
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> view = FittedView.of(robustcp.cp(X, 2), X)
    >>> view.outliers is view.outliers, view.distances(0).kinds.shape
    (True, (12,))
    """

    fit: Fit
    engine: Engine = field(repr=False)
    data: Engine = field(repr=False)

    @classmethod
    def of(cls, fit: Fit, X: Any) -> FittedView:
        """The view of a fit on data, with the fit in the order of the data."""
        engine = as_engine(X)
        aligned = fit.aligned_to(engine)
        if engine.shape != aligned.shape:
            raise ValueError(f"X: has shape {engine.shape}, the model has shape {aligned.shape}")
        if aligned.limits is not None:
            engine = engine.censored(aligned.limits)
        if aligned.preprocessing is None:
            return cls(aligned, engine, engine)
        return cls(aligned, engine.preprocessed(aligned.preprocessing), engine)

    @cached_property
    def problem(self) -> Problem:
        """The data in units in which squares neither overflow nor vanish."""
        return Problem.of(self.engine)

    @cached_property
    def data_factors(self) -> Factors:
        """The factors with the weights multiplied in, in the library and precision of the data."""
        return tuple(self.engine.asarray(to_host(A)) for A in self.fit.model.absorbed())

    @cached_property
    def factors(self) -> Factors:
        """`data_factors` in the units of `problem`."""
        return self.problem.units.factors_of_fit(self.data_factors)

    @cached_property
    def noise(self) -> Noise:
        """The noise of the data in the units of `problem`: of the fit's kind, or as given."""
        noise, problem = self.fit.noise, self.problem
        if noise.known:
            return noise.scaled(1 / problem.units.factor)
        kind = noise.kind if noise.kind_determined else None
        initial = noise.scaled(1 / problem.units.factor) if noise.kind_determined else None
        return estimate_model_noise(
            problem.engine, self.factors, problem.resolution, problem.units, kind, initial
        )

    def residuals(self) -> Array:
        """The data minus the model; see `Fit.residuals`."""
        factors = self.fit.known_model.absorbed()
        known_factors = tuple(self.engine.asarray(to_host(A)) for A in factors)
        r = self.engine.map_residuals(lambda r: r, known_factors)
        preprocessing = self.fit.preprocessing
        if preprocessing is None:
            return r
        if preprocessing.affine:
            return preprocessing.undo_difference(r, self.engine.locate)
        xp, x = self.engine.xp, self.data.values()
        model = preprocessing.undo(self.engine.values() - r, self.engine.locate)
        if self.data.view.limits is None:
            return x - model
        return xp.where(r == 0, xp.zeros_like(x), x - model)  # censored, with the model beyond

    def sigma(self) -> Array:
        """The standard deviation of the noise of each entry; see `Fit.sigma`."""
        scales = self._standardize(self.problem.engine, self.noise).entry_scales()
        sigma = self.noise.sigma * self.problem.units.factor * scales
        if self.fit.preprocessing is None:
            return sigma
        return self.fit.preprocessing.undo_errors(
            sigma,
            lambda: (
                self.engine.values() - self.engine.map_residuals(lambda r: r, self.data_factors)
            ),
            self.engine.locate,
        )

    @cached_property
    def outliers(self) -> Outliers:
        """The entries that the model does not account for, at the usual rate."""
        return self.outliers_at()

    def outliers_at(self, rate: float = FLAG_RATE, control: str = "each") -> Outliers:
        """The entries that the model does not account for; see `Fit.outliers`."""
        rate = checks.real_number("rate", rate, 0.0, strict=True, below=1.0)
        checks.choice("control", control, ("each", "fdr"))
        noise = self.noise.without_outlying_scales()
        engine = self._standardize(self.problem.engine, noise)
        unit, outlying_slabs = self.problem.units.factor, self.noise.outlying_slabs()
        return Outliers(self.fit, engine, self.factors, noise, unit, rate, control, outlying_slabs)

    def distances(self, mode: int | str) -> Distances:
        """How far each slab of a mode is from the model, and within it; see `Fit.distances`."""
        fit = self.fit
        mode = fit.axes.mode_number("mode", mode)
        noise = self.noise.without_slab_scales(mode)
        return compute_distances(
            self._standardize(self.problem.clipped, noise),
            self.factors,
            noise.sigma or 1.0,
            mode,
            fit.constraints[mode].of_rows,
            fit.modes[mode],
            fit.labels[mode],
            fit.cases if fit.cases is not None and fit.cases.mode == mode else None,
        )

    def _standardize(self, engine: Engine, noise: Noise) -> Engine:
        """Data with residuals in units of the noise, where that differs between entries."""
        if noise.homoscedastic:
            return engine
        factors = tuple(np.asarray(to_host(A), dtype=np.float64) for A in self.factors)
        return engine.standardized(noise.scales(engine.shape, factors))

    def summary(self) -> Summary:
        """The summary of the fit and of the outliers; see `Fit.summary`."""
        return Summary.of(self.fit, self.outliers)

    def uncertainty(
        self, method: str = "normal", *, mode: int | str | None = None, **options: Any
    ) -> Uncertainty:
        """Intervals for the entries of the factors; options are those of `Fit.uncertainty`."""
        mode = None if mode is None else self.fit.axes.mode_number("mode", mode)
        return uncertainty(self.fit, self.problem, method, mode, **options)

    def impute(self, X: Any, *, flagged: bool = False, uncertainty: bool = False) -> Any:
        """The data, of which the view was made, with missing entries filled; see `Fit.impute`."""
        return impute(self, X, flagged=flagged, uncertainty=uncertainty)

    def report(
        self,
        path: str | Path,
        *,
        mode: int | str | None = None,
        title: str | None = None,
        **options: Any,
    ) -> None:
        """Write the report of the fit; options are those of `Fit.report`."""
        from robustcp.report import ReportData, page

        if mode is None:
            mode = 0 if self.fit.cases is None else self.fit.cases.mode
        title = Path(path).stem if title is None else title
        distances = self.distances(mode)
        data = ReportData(self.fit, self.engine, self.outliers, distances, title=title, **options)
        write_bytes(path, page(data).encode())
