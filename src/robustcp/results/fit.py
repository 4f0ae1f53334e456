"""What a fit gives back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._util import checks
from robustcp._util.optional import import_optional
from robustcp._util.typing import Array, Factors
from robustcp.constraints import Constraints, Free, Nonnegative
from robustcp.engines import Axes, Engine, as_array, as_engine, as_labelled, axes_of, to_host
from robustcp.inference.parallel import Progress
from robustcp.inference.uncertainty import Uncertainty, uncertainty
from robustcp.losses import Loss
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import Noise, NoiseSpec, estimate_model_noise
from robustcp.noise.resolution import Resolution
from robustcp.optimize.outcome import CONVERGED, Outcome
from robustcp.optimize.problem import Problem
from robustcp.optimize.regression import project
from robustcp.optimize.units import Units
from robustcp.persist.formats import save
from robustcp.persist.writing import write_bytes
from robustcp.results.diagnostics import FitWarning
from robustcp.results.distances import Distances, compute_distances
from robustcp.results.outliers import Outliers
from robustcp.results.summary import Summary
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
        In canonical form: unit columns, descending weights, fixed signs.
    trace : float64 array
        The objective after each sweep, in the data's units.
    result : Outcome
        How the fit ended: `result.name` is "converged", "max_sweeps" or "stopped".
    warnings : tuple of FitWarning
        Reasons to doubt the model: each has a code, numbers, and a sentence that says what to
        try. Empty when all is well.
    notes : tuple of str
        What else users should know, such as what was left out of the data.
    loss : Loss
        The loss of the last level.
    stages : tuple of (name, sweeps)
    explained : float
        The share of the data that the model explains: of the sum of magnitudes; for least squares
        and small counts, of squares.
    starts : Starts
        The objective that each start ended at; `starts.reached` says how many reached the best.
    noise : Noise
        What the noise of each entry was found to be; see also `sigma`.
    cases : Judged, optional
        What is known of the samples, where `cp` was asked for `cases`: the weight, residual
        distance and flag of each.
    modes : tuple of str
        Names of the modes: those of the data's dimensions, if it was an xarray.DataArray.
    labels : tuple of (list or None)
        Labels of each mode's indices: the data's coordinates, where it had any.
    units : tuple of str
        What the labels of each mode are measured in: the `units` among the attributes of the
        data's coordinates. "" where that is not known.
    constraints : tuple of Constraint
        What each mode's factor was asked to be like.

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

    def __post_init__(self) -> None:
        order = len(self.model.shape)
        if not self.modes:
            object.__setattr__(self, "modes", tuple(f"mode {n}" for n in range(order)))
        if not self.labels:
            object.__setattr__(self, "labels", (None,) * order)
        if not self.units:
            object.__setattr__(self, "units", ("",) * order)
        if not self.constraints:
            object.__setattr__(self, "constraints", (Free(),) * order)

    @property
    def status(self) -> str:
        """How the fit ended, its warnings and its notes, in words."""
        sentences = [warning.sentence for warning in self.warnings]
        text = self.result.sentence
        if sentences:
            text += f", with {'a warning' if len(sentences) == 1 else 'warnings'}"
            return f"{text}: " + "; ".join((*sentences, *self.notes))
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
        """As of TensorLy's pair: 0 for the weights, 1 for the list of factors."""
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
        """What there is to say about the fit: prints as text, shows as a table in notebooks.

        Shape, rank and how the fit ended; warnings with their codes; what each component
        explains and where it is largest; the noise; the starts; bad samples, if `cases` were
        asked for. `summary.as_dict()` has the same for programs.

        Parameters
        ----------
        X : array or Observed, optional
            The data: the share of flagged entries is added, and the slabs with most of them.

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
        return Summary.of(self, None if X is None else self.outliers(X))

    def aligned_to(self, X: Any, *, free: Collection[int] = ()) -> Fit:
        """The same fit, with modes and indices in the order of some data's.

        Modes go by name, indices by label, where both have them. All methods that take data do
        this first, so that what they find is in the order of the data.

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
        xp = array_namespace(self.weights)
        factors = tuple(
            A if rows is None else xp.take(A, xp.asarray(rows, device=device(A)), axis=0)
            for A, rows in zip(arrangement.reorder(self.factors), arrangement.rows, strict=True)
        )
        labels = tuple(
            mode_labels if mode_labels is None or rows is None else [mode_labels[k] for k in rows]
            for mode_labels, rows in zip(
                arrangement.reorder(self.labels), arrangement.rows, strict=True
            )
        )
        return replace(
            self,
            model=KruskalTensor(self.weights, factors),
            modes=arrangement.reorder(self.modes),
            labels=labels,
            units=arrangement.reorder(self.units),
            constraints=arrangement.reorder(self.constraints),
            noise=self.noise.arranged(arrangement),
            cases=None if self.cases is None else self.cases.reorder(arrangement),
            starts=Starts(self.starts, self.starts.reached, self.starts.final),
        )

    def save(self, path: str | Path) -> None:
        """Write the fit to a .npz, .nc, .json, .mat, .xlsx or .csv file; see `robustcp.save`.

        `robustcp.load` brings it back from all but .csv, which holds weights, factors and labels.
        """
        save(self, path)

    def to_frames(self) -> dict[str, pandas.DataFrame]:
        """For each mode, by its name, its factor as a pandas.DataFrame.

        Rows have the labels of the mode, columns the numbers of the components. Columns have
        unit norm; `weights` has the sizes of the components.

        Examples
        --------
        >>> import robustcp
        >>> X = robustcp.simulate((4, 5, 6), 2, eta=0.1, gamma=1.0, rng=0).data
        >>> robustcp.cp(X, 2).to_frames()["mode 1"].shape
        (5, 2)
        """
        pandas = import_optional("pandas", "to_frames")
        frames = {}
        components = pandas.RangeIndex(self.rank, name="component")
        for name, labels, A in zip(self.modes, self.labels, self.factors, strict=True):
            rows = range(A.shape[0]) if labels is None else labels
            index = pandas.Index(rows, name=name, tupleize_cols=False)
            frames[name] = pandas.DataFrame(np.asarray(to_host(A)), index=index, columns=components)
        return frames

    def to_xarray(self) -> xarray.Dataset:
        """The weights and factors as an xarray.Dataset, with names, labels and units of the modes.

        Variables are `weights` and, for each mode, `factor_n`, of dimensions (mode, component).
        """
        xarray = import_optional("xarray", "to_xarray")

        def coordinates(n: int) -> dict[str, Any]:
            labels = self.labels[n]
            if labels is None:
                return {}
            units = {"units": self.units[n]} if self.units[n] else {}
            return {self.modes[n]: (self.modes[n], labels, units)}

        data: dict[str, Any] = {"weights": ("component", np.asarray(to_host(self.weights)))}
        coords: dict[str, Any] = {}
        for n, A in enumerate(self.factors):
            coords |= coordinates(n)
            data[f"factor_{n}"] = ((self.modes[n], "component"), np.asarray(to_host(A)))
        return xarray.Dataset(data, coords=coords)

    def full(self) -> Array:
        """The model as a whole tensor."""
        return self.model.full()

    def at(self, indices: Array | Sequence[Sequence[Any]]) -> Array:
        """The model's entries at some indices, integers of shape (count, N).

        A list of tuples may have labels in place of integers, which are positions.
        """
        if isinstance(indices, list | tuple):
            indices = [self._index_positions(row) for row in indices]
        positions = np.asarray(to_host(as_array(indices)))
        if (
            positions.ndim != 2
            or positions.shape[1] != len(self.shape)
            or positions.dtype.kind not in "iu"
        ):
            raise ValueError(
                f"indices: must be integers of shape (count, {len(self.shape)}), "
                f"got {positions.dtype} of shape {positions.shape}"
            )
        outside = ((positions < 0) | (positions >= np.array(self.shape))).any(axis=1)
        if outside.any():
            examples = ", ".join(str(tuple(row)) for row in positions[outside][:3].tolist())
            raise ValueError(f"indices: outside of {self.shape}: {examples}")
        xp = array_namespace(self.weights)
        return self.model.at(xp.asarray(positions.astype(np.int64), device=device(self.weights)))

    def _index_positions(self, row: Any) -> Any:
        if not isinstance(row, list | tuple) or len(row) != len(self.shape):
            return row
        sizes = enumerate(zip(row, self.shape, strict=True))
        return [
            k
            if isinstance(k, int | np.integer)
            else self.axes.index_position("indices", n, k, size)
            for n, (k, size) in sizes
        ]

    def residuals(self, X: Any) -> Array:
        """X minus the model, as an array of X's library; for Observed, one for each entry."""
        fit, engine = self._align_to_data(X)
        return engine.map_residuals(lambda r: r, fit._factors_for(engine))

    def _align_to_data(self, X: Any) -> tuple[Fit, Engine]:
        """The fit in the order of some data, and the data."""
        engine = as_engine(X)
        fit = self.aligned_to(engine)
        if engine.shape != fit.shape:
            raise ValueError(f"X: has shape {engine.shape}, the model has shape {fit.shape}")
        return fit, engine

    def _factors_for(self, engine: Engine) -> Factors:
        """The model's factors, weights and all, in the library and precision of an engine."""
        return tuple(engine.asarray(to_host(A)) for A in self.model.absorbed())

    def outliers(self, X: Any, *, rate: float = 1e-3, control: str = "each") -> Outliers:
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
        rate = checks.real_number("rate", rate, 0.0, strict=True, below=1.0)
        checks.choice("control", control, ("each", "fdr"))
        X = as_labelled(X)
        fit, engine, units = self._align_and_scale(X)
        factors = units.factors_of_fit(fit._factors_for(engine))
        estimated_noise = fit._estimate_noise(engine, factors, units)
        noise = estimated_noise.without_outlying_scales()
        standardized = _standardize(engine, noise, factors)
        outlying_slabs = estimated_noise.outlying_slabs()
        return Outliers(
            fit, X, standardized, factors, noise, units.factor, rate, control, outlying_slabs
        )

    def distances(self, X: Any, mode: int | str) -> Distances:
        """How far each slab of a mode, such as a sample, is from the model, and within it.

        Residual distances say how much of a sample the model does not describe, score distances
        how far its scores are from those of the others; both with the data as they are, and
        without single bad entries. Slabs of the mode have no noise of their own here, so that a
        bad sample does not hide behind its own spread.

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
        fit, engine = self._align_to_data(X)
        mode = fit.axes.mode_number("mode", mode)
        problem = Problem.of(engine)
        engine, units = problem.engine, problem.units
        factors = units.factors_of_fit(fit._factors_for(engine))
        noise = fit._estimate_noise(engine, factors, units).without_slab_scales(mode)
        standardized = _standardize(problem.clipped, noise, factors)
        constraint = fit.constraints[mode].of_rows
        name, labels = fit.modes[mode], fit.labels[mode]
        return compute_distances(
            standardized, factors, noise.sigma or 1.0, mode, constraint, name, labels
        )

    def sigma(self, X: Any) -> Array:
        """The standard deviation of the noise of each entry of X.

        It is of the kind that `noise` tells, estimated from X, which may be other data than the
        fit's; for Observed one for each entry.

        Examples
        --------
        >>> import robustcp
        >>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=2.0, rng=0)
        >>> fit = robustcp.cp(sim.data, 2)
        >>> bool(abs(fit.sigma(sim.data)[0, 0, 0] / fit.scale - 1) < 1e-6)
        True
        """
        fit, engine, units = self._align_and_scale(X)
        factors = units.factors_of_fit(fit._factors_for(engine))
        noise = fit._estimate_noise(engine, factors, units)
        sigma = noise.sigma * units.factor
        return sigma * _standardize(engine, noise, factors).entry_scales()

    def _align_and_scale(self, X: Any) -> tuple[Fit, Engine, Units]:
        """The fit in the order of data, and the data in units in which squares can be made."""
        fit, engine = self._align_to_data(X)
        problem = Problem.of(engine)
        return fit, problem.engine, problem.units

    def _estimate_noise(self, engine: Engine, factors: Factors, units: Units) -> Noise:
        """The noise of data in some units, of the kind that the fit found or was told."""
        if self.noise.known:
            return self.noise.scaled(1 / units.factor)
        kind = self.noise.kind if self.noise.kind_determined else None
        return estimate_model_noise(engine, factors, Resolution.of(engine), units, kind)

    def project(self, X: Any, mode: int | str = 0, *, nonnegative: bool | None = None) -> Array:
        """Robust scores of new data: its factor in one mode, the other modes' factors held.

        The noise is of the kind that the fit found, with its scales for the slabs of the other
        modes.

        Parameters
        ----------
        X : array
            New data: any number of slabs along `mode`, the same sizes in the others; where both
            have labels, the same labels, in any order.
        mode : int or str
            The mode that is new, such as that of the samples, by number or name.
        nonnegative : bool, optional
            Whether the scores must not be negative. By default they obey what the fit's
            constraint on the mode says about single rows.

        Returns
        -------
        array (X.shape[mode], rank)
            In the units of `weights` times unit columns: the rows of the data that the model
            was fitted to get ``factors[mode] * weights``.

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
        return project(
            fit.model,
            engine,
            mode_index,
            constraint,
            NoiseSpec.for_new_slabs(fit.noise, mode_index),
        )

    def _matching_modes(self, engine: Engine, mode: int | str) -> tuple[int, ...]:
        """The number in the fit of a mode of some data."""
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
            "normal": by asymptotic normality of the estimate, jointly over all modes; takes as
            long as a few sweeps. "bootstrap": by fits to the model plus residuals that are drawn
            anew, outlying entries left where they are; if a mode is given, to slabs of that mode
            drawn with replacement. "jackknife": by fits without each slab of a mode in turn.
        mode : int or str, optional
            Whose slabs are resampled, such as that of the samples: intervals then also allow for
            how much samples differ, and are those of the other modes. 0 for the jackknife.
        n : int
            How many resamples; of the jackknife the most, and of more slabs so many groups.
        level : float
            The share of intervals that should hold the true entry, one by one.
        rng : None, seed or Generator
            None is a fixed seed. Results do not depend on `jobs`.
        jobs : int, optional
            How many resamples are fitted at once; by default as many as there are cores, or one
            if it does not take long.
        progress : function of (done, total), optional

        Returns
        -------
        Uncertainty

        Notes
        -----
        Resamples are fitted from where the fit is, under its loss with its noise held, not by a
        new search, and their components are paired with the fit's. Intervals of resamples are the
        fit plus and minus so many standard errors: percentiles of the resamples covered less in
        most trials, as they double what bias there is.

        What the search or the rank may have missed is not in the intervals. Factors that were
        fixed are taken as if they had been estimated. Factors that must not be negative are taken
        as if they were free, and their intervals end at 0. Rows with few entries, for which `cp`
        uses a prior, have the spread of their posterior by "normal"; by "bootstrap" only that of
        the estimate, which is smaller.

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
        mode_index = None if mode is None else self.axes.mode_number("mode", mode)
        fit, engine = self._align_to_data(X)
        if fit is not self:
            raise ValueError(
                "X: its modes or labels are in another order than the fit's; "
                "ask fit.aligned_to(X).uncertainty(X)"
            )
        return uncertainty(self, engine, method, mode_index, n, level, rng, jobs, progress)

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
        """Write all that there is to say about the fit as one file of HTML, to be passed on.

        Summary, warnings and what they mean, components, odd samples, flagged entries, the worst
        slabs with slices of data, model and residual, noise, what was left out, sweeps and
        starts, and what it takes to repeat the fit. The file needs no other and no network; it
        can be read without JavaScript, which adds values at the pointer, zoom and a choice of
        slices, and it can be printed.

        Parameters
        ----------
        X : array or Observed
            The data of the fit. Of data in chunks only what is shown is read, after some passes.
        path : str or Path
            An .html file, which is replaced if it exists.
        mode : int or str, optional
            The mode that holds samples, by number or name; by default that of `cases`, or the
            first.
        rank : RankProfile, optional
            What speaks for each rank; see `robustcp.rank_profile`.
        uncertainty : Uncertainty, optional
            Intervals of the factors; see `uncertainty`.
        title : str, optional
            By default the name of the file.
        command : str
            The call or the command that made the fit, to be told.

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
        from robustcp.report import ReportData, page

        outliers = self.outliers(X)
        fit, engine = self._align_to_data(X)
        if mode is None:
            mode = 0 if fit.cases is None else fit.cases.mode
        material = ReportData(
            fit,
            engine,
            outliers,
            fit.distances(X, mode),
            rank,
            uncertainty,
            title=Path(path).stem if title is None else title,
            command=command,
        )
        write_bytes(path, page(material).encode())

    def to_tensorly(self) -> tuple[Array, list[Array]]:
        """The plain pair (weights, factors) that TensorLy's functions take."""
        return self.model.to_tensorly()


def _standardize(engine: Engine, noise: Noise, factors: Factors) -> Engine:
    """Data with residuals in units of the noise, where that differs between entries."""
    if noise.homoscedastic:
        return engine
    host_factors = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
    return engine.standardized(noise.scales(engine.shape, host_factors))
