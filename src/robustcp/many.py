"""Many fits side by side: one for each of many tensors, whatever becomes of the others."""

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

from robustcp import _checks
from robustcp.engines import axes_of, host_data, on_host, to_host
from robustcp.files.errors import FileError
from robustcp.files.writing import make_folder
from robustcp.fitted import Fit
from robustcp.io.fits import load, save
from robustcp.methods import cp
from robustcp.parallel import Guarded, Progress, side_by_side

#: Tensors of more bytes are fitted one after the other, by all threads: their passes leave no
#: core idle, and copies for several processes would take memory.
LARGE = 1 << 25
#: How tensors are fitted side by side.
BACKENDS = ("auto", "processes", "threads")


class Fits(tuple[Fit | None, ...]):
    """The fits of many tensors, in their order; None for those that could not be fitted.

    Attributes
    ----------
    failures : dict from int to Exception
        What was wrong with those.

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
        listed = list(found)
        fits = super().__new__(cls, (None if isinstance(x, Exception) else x for x in listed))
        fits.failures = {k: x for k, x in enumerate(listed) if isinstance(x, Exception)}
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

    Each fit is what `cp` would give alone, to the last bits. A tensor that cannot be fitted does
    not end the others: its place holds None, `failures` says why, and a warning counts them. Where
    none can be fitted, the first error is raised.

    Parameters
    ----------
    tensors : iterable of arrays, masked arrays or Observed
        They may differ in shape. A generator is drawn from while fits run.
    rank : int
    warm : bool
        Whether to fit only the first by search and begin the others at its model: for tensors of
        one shape that have about the same components, as in bootstraps and sliding windows. One
        that then has warnings which the first does not have is fitted again by search.
    jobs : int, optional
        How many run at once; by default as many as there are cores for this process.
    backend : {"auto", "processes", "threads"}
        "auto" takes processes for data on the host; for large tensors, and those on a device, it
        fits one after the other.
    progress : function of (done, total), optional
        `total` is None while it is not known.
    folder : path, optional
        Each fit is saved there when it is done, and the same call goes on from what is there.
    **options
        As in `cp`. Without `init` or `warm` all begin with the same `rng`, as calls of `cp` would.

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
    _checks.whole_number("rank", rank, 1)
    _checks.choice("backend", backend, BACKENDS)
    refuse_single(options)
    if not isinstance(tensors, Iterable):
        raise _checks.ArgumentError(
            "tensors", f"must be several, such as a list of arrays, got {type(tensors).__name__}"
        )
    if isinstance(rng := options.get("rng"), np.random.Generator):
        options["rng"] = int(rng.integers(2**63))  # the same one for all
    total = len(tensors) if isinstance(tensors, Sized) else None
    waiting = iter(tensors)
    head = list(islice(waiting, 1))
    if backend == "auto" and not all(map(movable, head)):
        jobs, backend = 1, "threads"
    tasks = (Task.of(X, rank, options, folder) for X in chain(head, waiting))
    tell = progress or (lambda *_: None)
    found: list[Fit | Exception] = []
    if warm:
        for task in tasks:  # the first that can be fitted
            found.append(_outcome(task))
            tell(len(found), total)
            if isinstance(first := found[-1], Fit):
                tasks = (replace(task, near=first) for task in tasks)
                break
    done = len(found)
    found += side_by_side(
        Task.__call__, tasks, jobs=jobs, threads=backend == "threads",
        progress=lambda n, _: tell(done + n, total),
    )  # fmt: skip
    fits = Fits(found)
    if fits and len(fits.failures) == len(fits):
        raise fits.failures[0]
    if fits.failures:
        _warn_of(fits)
    return fits


def refuse_single(options: Mapping[str, Any]) -> None:
    """Complain of options that only one fit can have."""
    for name in ("callback", "checkpoint"):
        if options.get(name) is not None:
            raise _checks.ArgumentError(name, "is for one fit; of many, use progress and folder")


def _warn_of(fits: Fits) -> None:
    some = "; ".join(f"{k}: {error}" for k, error in list(fits.failures.items())[:3])
    more = "; ..." if len(fits.failures) > 3 else ""
    _checks.warn(f"{len(fits.failures)} of {len(fits)} tensors could not be fitted ({some}{more})")


@dataclass(frozen=True, eq=False)
class Task:
    """One of many fits.

    Attributes
    ----------
    data : array or Observed
    rank : int
    options : dict
        Those of `cp`.
    folder : Path, optional
        Where the fit is kept.
    near : Fit, optional
        Where it begins, unless that leads to doubts.
    """

    data: Any
    rank: int
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    near: Fit | None = None

    @classmethod
    def of(cls, X: Any, rank: int, options: Mapping[str, Any], folder: str | Path | None) -> Task:
        """With a folder that is made if it is not there; other processes may be elsewhere."""
        there = None if folder is None else make_folder(Path(folder).absolute())
        return cls(X, rank, options, there)

    def __call__(self) -> Fit:
        """The fit: the one that is kept, or a new one."""
        if self.folder is None:
            return self._fit()
        path = self.folder / f"{self._name()}.npz"
        with suppress(FileError, FileNotFoundError):
            return load(path)
        fit = self._fit()
        save(fit, path)
        return fit

    def _fit(self) -> Fit:
        if self.near is None:
            return cp(self.data, self.rank, **self.options)
        fit = cp(self.data, self.rank, **{**self.options, "init": self.near})
        if {w.code for w in fit.warnings} <= {w.code for w in self.near.warnings}:
            return fit
        cold = cp(self.data, self.rank, **self.options)
        return min(fit, cold, key=lambda one: (len(one.warnings), one.scale))

    def _name(self) -> str:
        """A name that only the same call on the same data has."""
        near = None if self.near is None else [np.asarray(to_host(A)) for A in self.near.factors]
        asked = sorted(self.options.items(), key=lambda item: item[0])
        axes = axes_of(self.data)
        held = (host_data(self.data).digest, (axes.modes, axes.labels))
        key = _pickled((held, self.rank, asked, near))
        return f"rank{self.rank}-{hashlib.sha256(key).hexdigest()[:20]}"


def _pickled(value: Any) -> bytes:
    """What tells a value from others: the same in all processes, however arrays came there."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5)
    pickler.fast = True  # equal values that are one object are written as others are
    pickler.dispatch_table = {np.ndarray: _content}
    pickler.dump(value)
    return stream.getvalue()


def _content(array: np.ndarray) -> tuple[Any, ...]:
    return np.ndarray, (array.shape, array.dtype.str, array.tobytes())


_outcome = Guarded(Task.__call__)


def movable(X: Any) -> bool:
    """Whether data can go to another process at little cost; what is not data fails there."""
    try:
        return on_host(X) and host_data(X).bytes <= LARGE
    except (TypeError, ValueError):
        return True
