"""Fits of many tensors, several at a time; one that fails does not end the others."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.engines import axes_of, host_data, is_on_host, to_host
from robustcp.estimators.cp import cp
from robustcp.inference.parallel import Progress, result_or_error, run_parallel
from robustcp.persist.errors import FileError
from robustcp.persist.fits import load, save
from robustcp.persist.writing import make_folder
from robustcp.results.fit import Fit

#: Larger tensors, in bytes, are fitted one after the other: each fit keeps all cores busy, and
#: copies for several processes would take memory.
MAX_PROCESS_BYTES = 1 << 25
#: Whether tensors are fitted in processes or in threads.
BACKENDS = ("auto", "processes", "threads")


class Fits(tuple[Fit | None, ...]):
    """The fits of many tensors, in their order; None for those that could not be fitted.

    Attributes
    ----------
    failures : dict from int to Exception
        The errors of those that could not be fitted, by their positions.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((8, 7, 6), 1, eta=0.1, gamma=1.0, rng=0).data
    >>> fits = robustcp.cp_many([X, 2 * X], 1, jobs=1)
    >>> len(fits), fits[1].rank, fits.failures
    (2, 1, {})
    """

    failures: dict[int, Exception]

    def __new__(cls, found: Iterable[Fit | Exception]) -> Fits:
        outcomes = list(found)
        fits = super().__new__(cls, (None if isinstance(x, Exception) else x for x in outcomes))
        fits.failures = {k: x for k, x in enumerate(outcomes) if isinstance(x, Exception)}
        return fits

    def __reduce__(self) -> tuple[Any, ...]:
        return Fits, ([self.failures.get(k, fit) for k, fit in enumerate(self)],)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"Fits({len(self)} tensors{failed})"


def cp_many(
    tensors: Iterable[Any],
    rank: int,
    *,
    warm: bool = False,
    jobs: int | None = None,
    backend: str = "auto",
    progress: Progress | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> Fits:
    """Fit each of many tensors by `cp`, several at a time.

    Each fit has the same bits as one of `cp` alone. For a tensor that cannot be fitted the result
    holds None and `failures` the error, and a warning counts them. If none can be fitted, the
    first error is raised.

    Parameters
    ----------
    tensors : iterable of arrays, masked arrays or Observed
        They may differ in shape. A generator is drawn from while fits run.
    rank : int
    warm : bool
        Whether to fit only the first by search and begin the others at its model: for tensors of
        one shape that have about the same components, as in bootstraps and sliding windows. A
        fit with warnings that the first does not have is repeated by search.
    jobs : int, optional
        How many run at once; by default as many as there are cores for this process.
    backend : {"auto", "processes", "threads"}
        "auto" takes processes for data on the host; for large tensors, and those on a device, it
        fits one after the other.
    progress : function of (done, total), optional
        `total` is None for a generator.
    folder : path, optional
        Each fit is saved there when it is done; the same call loads it instead of repeating it.
    **options
        As in `cp`. All fits begin with the same `rng`, as separate calls of `cp` would.

    Returns
    -------
    Fits

    Examples
    --------
    >>> import robustcp
    >>> sims = [robustcp.simulate((10, 9, 8), 2, eta=0.1, gamma=1.0, rng=k) for k in range(3)]
    >>> fits = robustcp.cp_many([sim.data for sim in sims], 2, jobs=1)
    >>> [fit.shape for fit in fits]
    [(10, 9, 8), (10, 9, 8), (10, 9, 8)]
    """
    checks.whole_number("rank", rank, 1)
    checks.choice("backend", backend, BACKENDS)
    refuse_single_fit_options(options)
    if not isinstance(tensors, Iterable):
        raise checks.ArgumentError(
            "tensors", f"must be several, such as a list of arrays, got {type(tensors).__name__}"
        )
    if isinstance(rng := options.get("rng"), np.random.Generator):
        options["rng"] = int(rng.integers(2**63))  # the same one for all
    total = len(tensors) if isinstance(tensors, Sized) else None
    remaining = iter(tensors)
    first_tensors = list(islice(remaining, 1))
    if backend == "auto" and not all(map(can_move_to_process, first_tensors)):
        jobs, backend = 1, "threads"
    tasks = (FitTask.of(X, rank, options, folder) for X in chain(first_tensors, remaining))
    report_progress = progress or (lambda *_: None)
    results: list[Fit | Exception] = []
    if warm:
        for task in tasks:
            results.append(first := result_or_error(FitTask.run, task))
            report_progress(len(results), total)
            if isinstance(first, Fit):  # the first that can be fitted
                tasks = (replace(task, warm_start=first) for task in tasks)
                break
    fitted_count = len(results)
    results += run_parallel(
        FitTask.run,
        tasks,
        jobs=jobs,
        threads=backend == "threads",
        progress=lambda n, _: report_progress(fitted_count + n, total),
    )
    fits = Fits(results)
    if fits.failures:
        if len(fits.failures) == len(fits):
            raise fits.failures[0]
        examples = [f"{k}: {error}" for k, error in islice(fits.failures.items(), 3)]
        more = "; ..." if len(fits.failures) > 3 else ""
        checks.warn(
            f"{len(fits.failures)} of {len(fits)} tensors could not be fitted "
            f"({'; '.join(examples)}{more})"
        )
    return fits


def refuse_single_fit_options(options: Mapping[str, Any]) -> None:
    """Raise an error for options that only a single fit can have."""
    for name in ("callback", "checkpoint"):
        if options.get(name) is not None:
            raise checks.ArgumentError(name, "is for one fit; of many, use progress and folder")


@dataclass(frozen=True, eq=False)
class FitTask:
    """A call of `cp`, which `run` makes, perhaps in another process.

    Attributes
    ----------
    data : array or Observed
    rank : int
    options : dict
        The options of `cp`.
    folder : Path, optional
        The folder in which the fit is saved.
    warm_start : Fit, optional
        The model to begin at; the search follows only if that gives new warnings.
    """

    data: Any
    rank: int
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    warm_start: Fit | None = None

    @classmethod
    def of(
        cls, X: Any, rank: int, options: Mapping[str, Any], folder: str | Path | None
    ) -> FitTask:
        """A task with an absolute folder, as processes may work elsewhere; makes the folder."""
        folder_path = None if folder is None else make_folder(Path(folder).absolute())
        return cls(X, rank, options, folder_path)

    def run(self) -> Fit:
        """The fit: the saved one, or a new one."""
        if self.folder is None:
            return self._fit()
        path = self.folder / f"{self._file_stem()}.npz"
        with suppress(FileError, FileNotFoundError):
            return load(path)
        fit = self._fit()
        save(fit, path, overwrite=True)
        return fit

    def _fit(self) -> Fit:
        if self.warm_start is None:
            return cp(self.data, self.rank, **self.options)
        fit = cp(self.data, self.rank, **{**self.options, "init": self.warm_start})
        if {w.code for w in fit.warnings} <= {w.code for w in self.warm_start.warnings}:
            return fit
        searched = cp(self.data, self.rank, **self.options)
        return min(fit, searched, key=lambda one: (len(one.warnings), one.scale))

    def _file_stem(self) -> str:
        """A file name that identifies the data and the call."""
        start = None
        if self.warm_start is not None:
            start = [np.asarray(to_host(A)) for A in self.warm_start.factors]
        options = sorted(self.options.items(), key=lambda item: item[0])
        axes = axes_of(self.data)
        content = (host_data(self.data).digest, (axes.modes, axes.labels))
        key = _fingerprint((content, self.rank, options, start))
        return f"rank{self.rank}-{hashlib.sha256(key).hexdigest()[:20]}"


def _fingerprint(value: Any) -> bytes:
    """Bytes that identify a value, the same in all processes and for any layout of arrays."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5)
    pickler.fast = True  # no references to equal objects that happen to be one
    pickler.dispatch_table = {np.ndarray: _array_content}
    pickler.dump(value)
    return stream.getvalue()


def _array_content(array: np.ndarray) -> tuple[Any, ...]:
    return np.ndarray, (array.shape, array.dtype.str, array.tobytes())


def can_move_to_process(X: Any) -> bool:
    """Whether a copy of data for another process is cheap; True for what is no data at all."""
    try:
        return is_on_host(X) and host_data(X).nbytes <= MAX_PROCESS_BYTES
    except (TypeError, ValueError):
        return True
