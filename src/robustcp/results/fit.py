"""The result of a fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._util.optional import import_optional
from robustcp._util.typing import Array, Factors
from robustcp.constraints import Constraints, Free, Nonnegative
from robustcp.engines import (
    Axes,
    Engine,
    Limits,
    Preprocessing,
    as_array,
    as_engine,
    axes_of,
    locate_entries,
    to_host,
)
from robustcp.inference.parallel import Progress
from robustcp.inference.uncertainty import Uncertainty
from robustcp.losses import Loss
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import Noise, NoiseSpec
from robustcp.optimize.outcome import CONVERGED, Outcome
from robustcp.optimize.regression import project
from robustcp.persist.formats import save
from robustcp.preprocess import complete
from robustcp.results.diagnostics import FitWarning
from robustcp.results.distances import Distances
from robustcp.results.outliers import FLAG_RATE, Outliers
from robustcp.results.summary import Summary
from robustcp.results.view import FittedView
from robustcp.starts.candidates import Starts
from robustcp.starts.cases import CaseDiagnostics

if TYPE_CHECKING:
    import pandas
    import xarray

    from robustcp.inference.rank_profile import RankProfile


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted CP model and how it came about. Unpacks as ``weights, factors``.

    Attributes
    ----------
    model : KruskalTensor
        The model in canonical form: unit columns, descending weights, fixed signs.
    trace : float64 array
        The objective after each sweep, in the data's units.
    result : Outcome
        How the fit ended: `result.name` is "converged", "max_sweeps" or "stopped".
    warnings : tuple of FitWarning
        Reasons to doubt the model: each has a code, numbers, and a sentence that says what to
        try. Empty when all is well.
    notes : tuple of str
        Other remarks, such as what was left out of the data.
    loss : Loss
        The loss of the last level.
    stages : tuple of (name, sweeps)
    explained : float
        The share of the data that the model explains: of the sum of magnitudes; for least squares
        and small counts, of squares.
    starts : Starts
        The objective that each start ended at; `starts.reached` says how many reached the best.
    noise : Noise
        The standard deviation of each entry's noise; see also `sigma`.
    cases : CaseDiagnostics, optional
        The weight, residual distance and flag of each sample, for a fit with `cases`.
    modes : tuple of str
        Names of the modes: the dimensions of the data, if it was an xarray.DataArray.
    labels : tuple of (list or None)
        Labels of each mode's indices: the data's coordinates, where it had any.
    units : tuple of str
        The unit of the labels of each mode: the `units` among the attributes of the data's
        coordinates; "" where that is not known.
    constraints : tuple of Constraint
        The constraint on the factor of each mode.
    limits : Limits, optional
        The limits beyond which entries are censored, as given or found. Methods that take the data
        apply them.
    unobserved : tuple of tuples of int, one for each mode
        Slabs without any observed entry, of which the model says nothing: their rows of the factor
        are 0, and `full`, `at` and `residuals` are NaN there.
    preprocessing : Preprocessing, optional
        The steps of `preprocess` with the centres and sizes found. Weights, factors, objective,
        noise and cases are then in preprocessed units; the model as `full` and `at` give it,
        residuals and `sigma` are in those of the data, and methods that take the data preprocess
        it.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    >>> fit = robustcp.cp(X, 2)
    >>> weights, factors = fit
    >>> [A.shape for A in factors]
    [(12, 2), (11, 2), (10, 2)]
    >>> fit.converged, fit.warnings
    (True, ())
    >>> fit.outliers(X).mask.shape
    (12, 11, 10)
    """

    model: KruskalTensor
    trace: np.ndarray = field(repr=False)
    result: Outcome
    notes: tuple[str, ...]
    loss: Loss
    stages: tuple[tuple[str, int], ...]
    explained: float
    starts: Starts
    noise: Noise
    warnings: tuple[FitWarning, ...] = ()
    cases: CaseDiagnostics | None = None
    modes: tuple[str, ...] = ()
    labels: tuple[list[Any] | None, ...] = ()
    units: tuple[str, ...] = ()
    constraints: Constraints = field(repr=False, default=())
    limits: Limits | None = field(repr=False, default=None)
    preprocessing: Preprocessing | None = field(repr=False, default=None)
    unobserved: tuple[tuple[int, ...], ...] = field(repr=False, default=())

    def __post_init__(self) -> None:
        order = len(self.model.shape)
        defaults = {
            "modes": tuple(f"mode {n}" for n in range(order)),
            "labels": (None,) * order,
            "units": ("",) * order,
            "constraints": (Free(),) * order,
            "unobserved": ((),) * order,
        }
        for name, default in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or default)

    @property
    def status(self) -> str:
        """How the fit ended, its warnings and its notes, in words."""
        text = self.result.sentence
        if self.warnings:
            plural = "a warning" if len(self.warnings) == 1 else "warnings"
            text += f", with {plural}: {'; '.join(map(str, self.warnings))}"
        return "; ".join((text, *self.notes))

    @property
    def scale(self) -> float:
        """The typical standard deviation of the noise, outliers left out."""
        return self.noise.sigma

    @property
    def converged(self) -> bool:
        return self.result.name == CONVERGED.name

    @property
    def weights(self) -> Array:
        """The components' norms, descending."""
        return self.model.weights

    @property
    def factors(self) -> Factors:
        """One matrix per mode, with unit columns."""
        return self.model.factors

    @property
    def objective(self) -> float:
        return float(self.trace[-1])

    @property
    def sweeps(self) -> int:
        return len(self.trace)

    @property
    def rank(self) -> int:
        return self.model.rank

    @property
    def shape(self) -> tuple[int, ...]:
        return self.model.shape

    @property
    def shares(self) -> np.ndarray:
        """The share of the data that each component explains; they add up to `explained`.

        `explained` is split in proportion to each component's inner product with the model,
        w_r <component r, model>. Components that cancel each other can have negative shares.
        """
        w = np.asarray(to_host(self.weights), dtype=np.float64)
        overlap = np.ones((self.rank, self.rank))
        for A in self.factors:
            B = np.asarray(to_host(A), dtype=np.float64)
            overlap *= B.T @ B
        w = w / max(w.max(initial=0.0), np.finfo(float).tiny)
        contributions = w * (overlap @ w)
        total = contributions.sum()
        return self.explained * contributions / total if total > 0 else np.zeros(self.rank)

    @property
    def axes(self) -> Axes:
        """Names of the modes, labels of their indices, and their units."""
        return Axes(self.modes, self.labels, units=self.units)

    def __iter__(self) -> Iterator[Any]:
        yield from self.model

    def __len__(self) -> int:
        return 2

    def __getitem__(self, part: int) -> Any:
        """The weights for 0, the list of factors for 1, as in TensorLy's pair."""
        return self.to_tensorly()[part]

    def __repr__(self) -> str:
        size, noise = "x".join(map(str, self.shape)), ""
        if self.noise.known:
            noise = "known noise, "
        elif not self.noise.homoscedastic:
            noise = f"noise {self.noise.kind.words(self.modes)}, "
        return (
            f"Fit({size}, rank {self.rank}, {type(self.loss).__name__} objective "
            f"{self.objective:.6g}, {self.explained:.1%} explained, {noise}{self.sweeps} sweeps, "
            f"{self.status})"
        )

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def summary(self, X: Any = None) -> Summary:
        """The fit in short: prints as text, shows as a table in notebooks.

        Shape, rank and how the fit ended; warnings with their codes; what each component
        explains and where it is largest; the noise; the starts; bad samples, for a fit with
        `cases`. `summary.as_dict()` has the same content for programs.

        Parameters
        ----------
        X : array or Observed, optional
            The data: adds the share of flagged entries, and the slabs with most of them.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=2.0, rng=0).data
        >>> print(robustcp.cp(X, 2).summary(X))  # doctest: +ELLIPSIS
        20x20x20, rank 2: converged
        loss: Contaminated
        sweeps: ...
        starts: ... reached this model
        explained: ... of the data
          component 1: ..., weight ..., largest at mode 0 [...], mode 1 [...], mode 2 [...]
          component 2: ..., weight ..., largest at mode 0 [...], mode 1 [...], mode 2 [...]
        noise: standard deviation ..., common to all entries
        outliers: ... of the entries
          most flagged of mode 0: ...
          most flagged of mode 1: ...
          most flagged of mode 2: ...
        robustcp ...
        """
        return Summary.of(self, None if X is None else FittedView.of(self, X).outliers)

    def aligned_to(self, X: Any, *, free: Collection[int] = ()) -> Fit:
        """The same fit, with modes and indices in the order of some data.

        Modes are matched by name and indices by label, where both have them. All methods that take
        data align the fit first, so that their results are in the order of the data.

        Parameters
        ----------
        X : DataArray, Labelled, Series, or anything else that a fit can be made of
            Without names and labels the fit stays as it is.
        free : collection of int
            Modes of the fit that may have other labels than the data.

        Raises
        ------
        ValueError
            If the data has other names of modes, or other labels.

        Examples
        --------
        >>> import robustcp, xarray
        >>> sim = robustcp.simulate((4, 5, 6), 1, eta=0.1, gamma=1.0, rng=0)
        >>> X = xarray.DataArray(sim.data, dims=("sample", "emission", "excitation"))
        >>> fit = robustcp.cp(X, 1)
        >>> fit.aligned_to(X.transpose("emission", "sample", "excitation")).shape
        (5, 4, 6)
        """
        arrangement = self.axes.arrangement_for(axes_of(X), free)
        if arrangement is None:
            return self
        axes = Axes(arrangement.reorder(self.modes), arrangement.reorder(self.labels))
        xp = array_namespace(self.weights)
        factors = tuple(
            A if rows is None else xp.take(A, xp.asarray(rows, device=device(A)), axis=0)
            for A, rows in zip(arrangement.reorder(self.factors), arrangement.rows, strict=True)
        )
        return replace(
            self,
            model=KruskalTensor(self.weights, factors),
            modes=axes.modes,
            labels=axes.subset(arrangement.rows).labels,
            units=arrangement.reorder(self.units),
            constraints=arrangement.reorder(self.constraints),
            noise=self.noise.reorder(arrangement),
            cases=None if self.cases is None else self.cases.reorder(arrangement),
            starts=self.starts.without_models(),
            limits=self.limits and self.limits.reorder(arrangement),
            preprocessing=self.preprocessing and self.preprocessing.reorder(arrangement),
            unobserved=tuple(
                slabs if rows is None else tuple(np.flatnonzero(np.isin(rows, slabs)).tolist())
                for slabs, rows in zip(
                    arrangement.reorder(self.unobserved), arrangement.rows, strict=True
                )
            ),
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fit to a .npz, .nc, .json, .mat, .xlsx or .csv file; see `robustcp.save`.

        A file that exists is replaced only with `overwrite=True`.
        `robustcp.load` brings it back from all but .csv, which holds weights, factors and labels.
        """
        save(self, path, overwrite=overwrite)

    def to_frames(self) -> dict[str, pandas.DataFrame]:
        """For each mode, by its name, its factor as a pandas.DataFrame.

        Rows have the labels of the mode, columns the numbers of the components, from 1 as in the
        summary. Columns have unit norm; `weights` has the sizes of the components. `attrs` of the
        frames say what preprocessing the factors are of.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((4, 5, 6), 2, eta=0.1, gamma=1.0, rng=0).data
        >>> robustcp.cp(X, 2).to_frames()["mode 1"].shape
        (5, 2)
        """
        pandas = import_optional("pandas", "to_frames")
        components = pandas.RangeIndex(1, self.rank + 1, name="component")
        frames = {}
        for name, labels, A in zip(self.modes, self.labels, self.factors, strict=True):
            rows = range(A.shape[0]) if labels is None else labels
            index = pandas.Index(rows, name=name, tupleize_cols=False)
            frames[name] = pandas.DataFrame(np.asarray(to_host(A)), index=index, columns=components)
            if self.preprocessing is not None:
                frames[name].attrs["preprocessing"] = self.preprocessing.describe(self.modes)
        return frames

    def to_xarray(self) -> xarray.Dataset:
        """The weights and factors as an xarray.Dataset, with names, labels and units of the modes.

        Variables are `weights` and, for each mode, `factor_n`, of dimensions (mode, component);
        components are numbered from 1.
        """
        xarray = import_optional("xarray", "to_xarray")
        data: dict[str, Any] = {"weights": ("component", np.asarray(to_host(self.weights)))}
        coords: dict[str, Any] = {"component": np.arange(1, self.rank + 1)}
        rows = zip(self.modes, self.labels, self.units, self.factors, strict=True)
        for n, (name, labels, unit, A) in enumerate(rows):
            data[f"factor_{n}"] = ((name, "component"), np.asarray(to_host(A)))
            if labels is not None:
                coords[name] = (name, labels, {"units": unit} if unit else {})
        attributes = {}
        if self.preprocessing is not None:
            attributes["preprocessing"] = self.preprocessing.describe(self.modes)
        return xarray.Dataset(data, coords=coords, attrs=attributes)

    @property
    def known_model(self) -> KruskalTensor:
        """The model with NaN in the rows of slabs without any observed entry."""
        if not any(self.unobserved):
            return self.model
        xp, factors = array_namespace(self.weights), []
        for A, slabs in zip(self.factors, self.unobserved, strict=True):
            row_is_unobserved = np.isin(np.arange(A.shape[0]), slabs)[:, None]
            mask = xp.asarray(row_is_unobserved, device=device(A))
            factors.append(xp.where(mask, xp.full_like(A, xp.nan), A))
        return KruskalTensor(self.weights, tuple(factors))

    def full(self) -> Array:
        """The model as a whole tensor, in the units of the data.

        NaN in slabs without any observed entry (`unobserved`).
        """
        full = self.known_model.full()
        return full if self.preprocessing is None else self.preprocessing.undo(full)

    def at(self, indices: Array | Sequence[Sequence[Any]]) -> Array:
        """The model's entries at some indices, integers of shape (count, N), in the data's units.

        NaN in slabs without any observed entry. A list of tuples may have labels in place of
        integers, which are positions.
        """
        if isinstance(indices, list | tuple):
            indices = [self._positions_of_row(row) for row in indices]
        positions = np.asarray(to_host(as_array(indices)))
        order = len(self.shape)
        if positions.shape[1:] != (order,) or positions.dtype.kind not in "iu":
            raise ValueError(
                f"indices: must be integers of shape (count, {order}), "
                f"got {positions.dtype} of shape {positions.shape}"
            )
        outside = ((positions < 0) | (positions >= np.array(self.shape))).any(axis=1)
        if outside.any():
            examples = ", ".join(str(tuple(row)) for row in positions[outside][:3].tolist())
            raise ValueError(f"indices: outside of {self.shape}: {examples}")
        xp = array_namespace(self.weights)
        entries = self.known_model.at(
            xp.asarray(positions.astype(np.int64), device=device(self.weights))
        )
        if self.preprocessing is None:
            return entries
        return self.preprocessing.undo(entries, locate_entries(positions.T))

    def _positions_of_row(self, row: Any) -> Any:
        """The row with positions in place of labels; other things than rows as they are."""
        if not isinstance(row, list | tuple) or len(row) != len(self.shape):
            return row
        return [
            k if isinstance(k, int | np.integer) else self.axes.index_position("indices", n, k)
            for n, k in enumerate(row)
        ]

    def residuals(self, X: Any) -> Array:
        """X minus the model, as an array of X's library; for Observed, one for each entry.

        NaN where X is missing, and in slabs of which the model says nothing (`unobserved`).
        """
        return FittedView.of(self, X).residuals()

    def outliers(self, X: Any, *, rate: float = FLAG_RATE, control: str = "each") -> Outliers:
        """Which entries of X the model does not account for.

        Parameters
        ----------
        X : array or Observed
            The data, or other data of the same shape.
        rate : float
            With control "each": the share of clean entries, with Gaussian noise, that may be
            flagged by chance. With "fdr": the share of the flagged entries that may be clean
            (Benjamini and Hochberg's control for many tests).
        control : {"each", "fdr"}

        Examples
        --------
        >>> import robustcp
        >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=2.0, rng=0)
        >>> found = robustcp.cp(sim.data, 2).outliers(sim.data)
        >>> bool(found.mask[sim.artifacts].mean() > 0.9)
        True
        """
        return FittedView.of(self, X).outliers_at(rate, control)

    def distances(self, X: Any, mode: int | str) -> Distances:
        """How far each slab of a mode, such as a sample, is from the model, and within it.

        The residual distance is the size of the part of a sample that the model does not describe,
        the score distance is how far its scores are from the scores of the others; both with all
        entries and without single bad ones. The noise does not differ between slabs of the mode
        here, so that a bad sample does not hide behind its own spread.

        Parameters
        ----------
        X : array or Observed
            The data that the model was fitted to, or other data of the same shape.
        mode : int or str
            The mode of the samples, by number or name.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=0.0, rng=0).data
        >>> X[3] += 2.0
        >>> X[7, 5, :] += 9.0
        >>> found = robustcp.cp(X, 2).distances(X, 0)
        >>> found.bad.nonzero()[0], bool(found.only_cells[7])
        (array([3]), True)
        """
        return FittedView.of(self, X).distances(mode)

    def sigma(self, X: Any) -> Array:
        """The standard deviation of the noise of each entry of X.

        It is estimated from X, which may be other data than the fit's, under the same kind of noise
        as `noise`. For Observed, one for each entry. After preprocessing by logarithms or roots,
        half the distance in the units of the data between the model plus and minus one standard
        deviation; NaN where an entry is missing.

        Examples
        --------
        >>> import robustcp
        >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=2.0, rng=0)
        >>> fit = robustcp.cp(sim.data, 2)
        >>> bool(abs(fit.sigma(sim.data)[0, 0, 0] / fit.scale - 1) < 1e-6)
        True
        """
        return FittedView.of(self, X).sigma()

    def project(self, X: Any, mode: int | str = 0, *, nonnegative: bool | None = None) -> Array:
        """Robust scores of new data: its factor in one mode, with the other factors held.

        The noise is of the same kind as that of the fit, with its scales for the slabs of the other
        modes.

        Parameters
        ----------
        X : array
            New data with any number of slabs along `mode` and the sizes of the fit in the other
            modes; where both have labels, with the same labels, in any order.
        mode : int or str
            The mode of the new slabs, such as the samples, by number or name.
        nonnegative : bool, optional
            Whether the scores must not be negative. By default the fit's constraint on single rows
            of the mode holds.

        Returns
        -------
        array (X.shape[mode], rank)
            Scores in the units of weights times unit columns: for the data of the fit they are
            ``factors[mode] * weights``. With `preprocess`, the new slabs are preprocessed with the
            centres and sizes of the fit; those that are of a slab itself are estimated from it.

        Examples
        --------
        >>> import robustcp
        >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=1.0, rng=0)
        >>> fit = robustcp.cp(sim.data[:15], 2)
        >>> fit.project(sim.data[15:]).shape
        (5, 2)
        """
        engine = as_engine(X)
        fit = self.aligned_to(engine, free=self._matching_modes(engine, mode))
        mode_index = fit.axes.mode_number("mode", mode)
        if nonnegative is None:
            constraint = fit.constraints[mode_index].of_rows
        else:
            constraint = Nonnegative() if nonnegative else Free()
        if fit.limits is not None:
            engine = engine.censored(fit.limits.for_new_slabs(mode_index, engine.shape[mode_index]))
        engine = fit.preprocess_new(engine, mode_index)
        return project(
            fit.model,
            engine,
            mode_index,
            constraint,
            NoiseSpec.for_new_slabs(fit.noise, mode_index),
        )

    def preprocess_new(self, engine: Engine, mode: int) -> Engine:
        """New slabs of a mode with the preprocessing of the fit; see `project`."""
        if self.preprocessing is None:
            return engine
        of_slabs = self.preprocessing.for_new_slabs(mode, engine.shape[mode])
        return engine.preprocessed(complete(of_slabs, engine)[0])

    def _matching_modes(self, engine: Engine, mode: int | str) -> tuple[int, ...]:
        """The number in the fit of a mode of some data; empty if the fit has no such mode."""
        axes = engine.view.axes
        mode_index = self.axes.mode_number("mode", mode)
        if isinstance(mode, str) or not (self.axes.has_names and axes.has_names):
            return (mode_index,)
        name = axes.modes[mode_index] if mode_index < len(axes.modes) else None
        return (self.modes.index(name),) if name in self.modes else ()

    def uncertainty(
        self,
        X: Any,
        method: str = "normal",
        *,
        mode: int | str | None = None,
        n: int = 200,
        level: float = 0.95,
        rng: int | np.random.Generator | None = None,
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Uncertainty:
        """Intervals for the entries of the unit columns of the factors.

        Parameters
        ----------
        X : array or Observed
            The data of the fit; with entry weights, ``as_engine(X).weighted(weights)``.
        method : {"normal", "bootstrap", "jackknife"}
            "normal": asymptotic normality of the estimate, jointly over all modes; takes as long as
            a few sweeps. "bootstrap": fits to the model plus residuals drawn with replacement,
            with outlying entries unchanged; with a mode, fits to slabs of it drawn with
            replacement. "jackknife": fits without each slab of a mode in turn.
        mode : int or str, optional
            The mode whose slabs are resampled, such as the samples. Intervals are then for the
            other modes, and include the differences between slabs. 0 for the jackknife.
        n : int
            The number of resamples; for the jackknife the most: more slabs are left out in groups.
        level : float
            The share of intervals that should contain the true entry, one by one.
        rng : None, seed or Generator
            None is a fixed seed. Results do not depend on `jobs`.
        jobs : int, optional
            The number of resamples that are fitted at once; by default the number of cores, or one
            for small data.
        progress : function of (done, total), optional

        Returns
        -------
        Uncertainty

        Notes
        -----
        Fits to resamples begin at the fit, with its loss and noise held, without a new search, and
        their components are paired with the fit's. Intervals of resamples are the fit plus and
        minus a multiple of the standard errors: percentiles of the resamples covered less in most
        trials, as they double any bias.

        Intervals do not include errors of the search or of the rank. Factors that were fixed are
        treated as estimated. Nonnegative factors are treated as free, and their intervals end at 0.
        For rows with few entries, for which `cp` uses a prior, "normal" gives the spread of the
        posterior, "bootstrap" the spread of the estimate, which is smaller.

        Examples
        --------
        >>> import robustcp
        >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=1.0, rng=0)
        >>> fit = robustcp.cp(sim.data, 2)
        >>> found = fit.uncertainty(sim.data)
        >>> A = sim.truth.factors[0]
        >>> bool(((found.low[0] <= A) & (A <= found.high[0])).mean() > 0.9)
        True
        """
        view = FittedView.of(self, X)
        if view.fit is not self:
            raise ValueError(
                "X: its modes or labels are in another order than the fit's; "
                "ask fit.aligned_to(X).uncertainty(X)"
            )
        return view.uncertainty(
            method, mode=mode, n=n, level=level, rng=rng, jobs=jobs, progress=progress
        )

    def impute(self, X: Any, *, flagged: bool = False, uncertainty: bool = False) -> Any:
        """X with the model's entries in place of missing ones; all others stay as they are.

        Slabs without any observed entry, of which the model says nothing, stay missing.

        Parameters
        ----------
        X : array, masked array, Observed, what `read` returns, or of xarray or pandas
            The data, or other data of the same shape.
        flagged : bool
            Whether entries that ``fit.outliers(X)`` flags are replaced too.
        uncertainty : bool
            Whether standard errors of the filled entries are returned with them.

        Returns
        -------
        data of the kind of X, or Imputation
            With the names, labels and type of X; floats where X has integers and entries are
            replaced. Lists and tables keep their order, with what they did not list appended.
            Data in chunks gives an array of Dask, which is computed when it is asked for.
            With `uncertainty` an `Imputation` of `values`, `model_errors` (standard errors of the
            model's entries) and `prediction_errors` (these and the noise of a measurement
            together), all of the kind of X.

        Examples
        --------
        >>> import numpy as np, robustcp
        >>> X = robustcp.simulate((12, 11, 10), 2, eta=0, gamma=0, rng=0).data.copy()
        >>> truth = X[3, 4, 5]
        >>> X[3, 4, 5] = np.nan
        >>> filled = robustcp.cp(X, 2).impute(X)
        >>> bool(abs(filled[3, 4, 5] - truth) < 0.2)
        True
        """
        return FittedView.of(self, X).impute(X, flagged=flagged, uncertainty=uncertainty)

    def report(
        self,
        X: Any,
        path: str | Path,
        *,
        mode: int | str | None = None,
        rank: RankProfile | None = None,
        uncertainty: Uncertainty | None = None,
        title: str | None = None,
        command: str = "",
    ) -> None:
        """Write a report of the fit as one file of HTML.

        It has the summary, the warnings and their meaning, components, odd samples, flagged
        entries, the worst slabs with slices of data, model and residual, the noise, what was left
        out, sweeps and starts, and how to repeat the fit. It needs no other file and no network,
        can be printed, and can be read without JavaScript, which adds values at the pointer, zoom
        and a choice of slices.

        Parameters
        ----------
        X : array or Observed
            The data of the fit. After some passes over data in chunks, only the slices are read.
        path : str or Path
            An .html file, which is replaced if it exists.
        mode : int or str, optional
            The mode that holds samples, by number or name; by default the mode of `cases`, or 0.
        rank : RankProfile, optional
            The evidence for each rank; see `robustcp.rank_profile`.
        uncertainty : Uncertainty, optional
            Intervals of the factors; see `uncertainty`.
        title : str, optional
            By default the name of the file.
        command : str
            The call or the command that made the fit, which the report quotes.

        Examples
        --------
        >>> import pathlib, tempfile, robustcp
        >>> X = robustcp.simulate((12, 10, 8), 2, eta=0.1, gamma=1.0, rng=0).data
        >>> fit = robustcp.cp(X, 2, rng=0)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
        >>> fit.report(X, path, command="robustcp.cp(X, 2, rng=0)")
        >>> path.read_text(encoding="utf-8")[:15]
        '<!DOCTYPE html>'
        """
        FittedView.of(self, X).report(
            path, mode=mode, rank=rank, uncertainty=uncertainty, title=title, command=command
        )

    def to_tensorly(self) -> tuple[Array, list[Array]]:
        """The pair (weights, factors) that TensorLy's functions take."""
        return self.model.to_tensorly()
