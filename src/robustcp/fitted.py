"""What a fit gives back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device

from robustcp import _checks
from robustcp._typing import Array, Factors
from robustcp.cases import Judged
from robustcp.constraints import Constraints, Free, Nonnegative
from robustcp.distances import Distances, distances_of
from robustcp.doubts import FitWarning
from robustcp.engines import Axes, Engine, as_array, as_engine, axes_of, labelled, to_host
from robustcp.files.optional import library
from robustcp.files.writing import write_bytes
from robustcp.kruskal import KruskalTensor
from robustcp.losses import Loss
from robustcp.noise import Asked, Noise, noise_of
from robustcp.outcome import CONVERGED, Outcome
from robustcp.outlying import Outliers
from robustcp.parallel import Progress
from robustcp.regression import project
from robustcp.report import Material, page
from robustcp.saving import save
from robustcp.search import Starts
from robustcp.sizes import Problem, Resolution
from robustcp.summaries import Summary
from robustcp.uncertainty import Uncertainty, uncertainty
from robustcp.units import Units

if TYPE_CHECKING:
    import pandas
    import xarray

    from robustcp.ranks import RankProfile


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
    cases: Judged | None = None
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
        doubts = [warning.sentence for warning in self.warnings]
        ended = self.result.sentence
        if doubts:
            ended += f", with {'a warning' if len(doubts) == 1 else 'warnings'}"
            return f"{ended}: " + "; ".join((*doubts, *self.notes))
        return "; ".join((ended, *self.notes))

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
        part = w * (overlap @ w)
        total = part.sum()
        return self.explained * part / total if total > 0 else np.zeros(self.rank)

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
        elif not self.noise.even:
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
        how = self.axes.arranged(axes_of(X), free)
        if how is None:
            return self
        xp = array_namespace(self.weights)
        factors = tuple(
            A if at is None else xp.take(A, xp.asarray(at, device=device(A)), axis=0)
            for A, at in zip(how.of(self.factors), how.rows, strict=True)
        )
        labels = tuple(
            each if each is None or at is None else [each[k] for k in at]
            for each, at in zip(how.of(self.labels), how.rows, strict=True)
        )
        return replace(
            self, model=KruskalTensor(self.weights, factors), modes=how.of(self.modes),
            labels=labels, units=how.of(self.units), constraints=how.of(self.constraints),
            noise=self.noise.arranged(how),
            cases=None if self.cases is None else self.cases.arranged(how),
            starts=Starts(self.starts, self.starts.reached, self.starts.final),
        )  # fmt: skip

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
        pandas = library("pandas", "to_frames")
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
        xarray = library("xarray", "to_xarray")

        def coordinates(n: int) -> dict[str, Any]:
            labels = self.labels[n]
            if labels is None:
                return {}
            units = {"units": self.units[n]} if self.units[n] else {}
            return {self.modes[n]: (self.modes[n], labels, units)}

        data: dict[str, Any] = {"weights": ("component", np.asarray(to_host(self.weights)))}
        held: dict[str, Any] = {}
        for n, A in enumerate(self.factors):
            held |= coordinates(n)
            data[f"factor_{n}"] = ((self.modes[n], "component"), np.asarray(to_host(A)))
        return xarray.Dataset(data, coords=held)

    def full(self) -> Array:
        """The model as a whole tensor."""
        return self.model.full()

    def at(self, indices: Array | Sequence[Sequence[Any]]) -> Array:
        """The model's entries at some indices, integers of shape (count, N).

        A list of tuples may have labels in place of integers, which are positions.
        """
        if isinstance(indices, list | tuple):
            indices = [self._positions(row) for row in indices]
        at = np.asarray(to_host(as_array(indices)))
        if at.ndim != 2 or at.shape[1] != len(self.shape) or at.dtype.kind not in "iu":
            raise ValueError(
                f"indices: must be integers of shape (count, {len(self.shape)}), "
                f"got {at.dtype} of shape {at.shape}"
            )
        outside = ((at < 0) | (at >= np.array(self.shape))).any(axis=1)
        if outside.any():
            some = ", ".join(str(tuple(row)) for row in at[outside][:3].tolist())
            raise ValueError(f"indices: outside of {self.shape}: {some}")
        xp = array_namespace(self.weights)
        return self.model.at(xp.asarray(at.astype(np.int64), device=device(self.weights)))

    def _positions(self, row: Any) -> Any:
        if not isinstance(row, list | tuple) or len(row) != len(self.shape):
            return row
        sizes = enumerate(zip(row, self.shape, strict=True))
        return [
            k if isinstance(k, int | np.integer) else self.axes.index("indices", n, k, size)
            for n, (k, size) in sizes
        ]

    def residuals(self, X: Any) -> Array:
        """X minus the model, as an array of X's library; for Observed, one for each entry."""
        fit, engine = self._beside(X)
        return engine.entrywise(lambda r: r, fit._factors_for(engine))

    def _beside(self, X: Any) -> tuple[Fit, Engine]:
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
        rate = _checks.real_number("rate", rate, 0.0, above=True, below=1.0)
        _checks.choice("control", control, ("each", "fdr"))
        X = labelled(X)
        fit, engine, units = self._in_units(X)
        factors = units.factors_of_fit(fit._factors_for(engine))
        found = fit._noise_of(engine, factors, units)
        noise = found.without_outlying_slabs()
        seen = _standardized(engine, noise, factors)
        outlying = found.outlying_slabs()
        return Outliers(fit, X, seen, factors, noise, units.factor, rate, control, outlying)

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
        fit, engine = self._beside(X)
        mode = fit.axes.mode("mode", mode)
        problem = Problem.of(engine)
        engine, units = problem.engine, problem.units
        factors = units.factors_of_fit(fit._factors_for(engine))
        noise = fit._noise_of(engine, factors, units).without_slabs(mode)
        seen = _standardized(problem.tame, noise, factors)
        constraint = fit.constraints[mode].of_rows
        name, labels = fit.modes[mode], fit.labels[mode]
        return distances_of(seen, factors, noise.sigma or 1.0, mode, constraint, name, labels)

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
        fit, engine, units = self._in_units(X)
        factors = units.factors_of_fit(fit._factors_for(engine))
        noise = fit._noise_of(engine, factors, units)
        sigma = noise.sigma * units.factor
        return sigma * _standardized(engine, noise, factors).entry_scales()

    def _in_units(self, X: Any) -> tuple[Fit, Engine, Units]:
        """The fit in the order of data, and the data in units in which squares can be made."""
        fit, engine = self._beside(X)
        problem = Problem.of(engine)
        return fit, problem.engine, problem.units

    def _noise_of(self, engine: Engine, factors: Factors, units: Units) -> Noise:
        """The noise of data in some units, of the kind that the fit found or was told."""
        if self.noise.known:
            return self.noise.scaled(1 / units.factor)
        kind = self.noise.kind if self.noise.looked else None
        return noise_of(engine, factors, Resolution.of(engine), units, kind)

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
        fit = self.aligned_to(engine, free=self._modes_of(engine, mode))
        at = fit.axes.mode("mode", mode)
        if nonnegative is None:
            constraint = fit.constraints[at].of_rows
        else:
            constraint = Nonnegative() if nonnegative else Free()
        return project(fit.model, engine, at, constraint, Asked.as_of(fit.noise, at))

    def _modes_of(self, engine: Engine, mode: int | str) -> tuple[int, ...]:
        """The number in the fit of a mode of some data."""
        names = engine.view.axes
        at = self.axes.mode("mode", mode)
        if isinstance(mode, str) or not (self.axes.named and names.named):
            return (at,)
        called = names.modes[at] if at < len(names.modes) else None
        return (self.modes.index(called),) if called in self.modes else ()

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
        at = None if mode is None else self.axes.mode("mode", mode)
        fit, engine = self._beside(X)
        if fit is not self:
            raise ValueError(
                "X: its modes or labels are in another order than the fit's; "
                "ask fit.aligned_to(X).uncertainty(X)"
            )
        return uncertainty(self, engine, method, at, n, level, rng, jobs, progress)

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
        found = self.outliers(X)
        fit, engine = self._beside(X)
        if mode is None:
            mode = 0 if fit.cases is None else fit.cases.mode
        material = Material(
            fit, engine, found, fit.distances(X, mode), rank, uncertainty,
            title=Path(path).stem if title is None else title, command=command,
        )  # fmt: skip
        write_bytes(path, page(material).encode())

    def to_tensorly(self) -> tuple[Array, list[Array]]:
        """The plain pair (weights, factors) that TensorLy's functions take."""
        return self.model.to_tensorly()


def _standardized(engine: Engine, noise: Noise, factors: Factors) -> Engine:
    """Data with residuals in units of the noise, where that differs between entries."""
    if noise.even:
        return engine
    held = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
    return engine.standardized(noise.scales(engine.shape, held))
