"""Checkpoints: a long call on disk while it runs, from which the same call goes on."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from robustcp import losses
from robustcp._util import checks
from robustcp._util.typing import Factors
from robustcp.constraints import Free
from robustcp.engines import Engine, Fibres, to_host
from robustcp.engines.installed import numba_kernels
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import Noise
from robustcp.optimize.outcome import CONVERGED, STOPPED, Outcome
from robustcp.optimize.row_prior import Prior
from robustcp.optimize.solver import State
from robustcp.persist.codec import (
    ArrayStore,
    Codec,
    UnsupportedValueError,
    read_record,
    write_record,
)
from robustcp.persist.earlier_checkpoints import EARLIER_TITLES, translate_checkpoint
from robustcp.persist.errors import FileError, OutputError, WriteError, reason
from robustcp.persist.writing import Outputs, open_atomic
from robustcp.results.diagnostics import FitWarning
from robustcp.results.fit import Fit
from robustcp.starts.candidates import Starts
from robustcp.starts.cases import CaseDiagnostics
from robustcp.starts.fit_plan import Plan
from robustcp.starts.initial_factors import GivenStart, factors_from_init
from robustcp.starts.search_log import LoggedRun, SearchLog, SearchRuns
from robustcp.starts.start import StartingPoint

LOG = logging.getLogger(__name__)

CHECKPOINT_TITLE = "robustcp checkpoint 4"
#: Objectives within this relative distance are of the same data; in single precision, its epsilon.
OBJECTIVE_RTOL = 1e-9
#: The largest share of the time that writing may take.
MAX_WRITE_SHARE = 0.01


class CheckpointError(FileError):
    """Why a checkpoint is refused, in one line."""

    def message(self, name_argument: Any = str) -> str:
        return f"{name_argument('checkpoint')}: {self.path}: {self.problem}"


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds a fit while it runs, so that the same call goes on after a crash.

    It is written at the end of a sweep, also of one of the search for starts, whole or not at
    all, and holds no pickle. The same call with the same data goes on from it and ends at the same
    bits as if it had never been interrupted, on the same machine with the same versions; with
    others the fit has a note, and the search for starts begins anew. Other data or options are
    refused, but `max_sweeps` may be larger than it was, without `cases`. When the fit is finished
    the file stays, and the call returns its fit at once.

    Parameters
    ----------
    path : str or path
    every : float
        Seconds between writes, at least; more where writing would take over 1% of the time.
        0 writes after each sweep.
    outputs : sequence of str
        Files that the caller makes of the fit. They are kept with it, and say nothing of it.

    Examples
    --------
    >>> import pathlib, robustcp, tempfile
    >>> sim = robustcp.simulate((8, 8, 8), 2, eta=0.1, gamma=1.0, rng=0)
    >>> kept = robustcp.Checkpoint(pathlib.Path(tempfile.mkdtemp()) / "run.ckpt", every=60)
    >>> robustcp.cpals(sim.data, 2, max_sweeps=5, checkpoint=kept).sweeps
    5
    >>> fit = robustcp.cpals(sim.data, 2, checkpoint=kept)  # goes on with sweep 6
    >>> fit.converged
    True
    """

    path: str | os.PathLike[str]
    every: float = 30.0
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise ValueError(f"checkpoint: must be a path or a Checkpoint, got {self.path!r}")
        checks.real_number("every", self.every, 0.0)


@dataclass(frozen=True, eq=False)
class CheckpointContent:
    """What the file of a checkpoint holds.

    Attributes
    ----------
    options : dict
        The options of the call that wrote it, as `describe_options` returns them.
    outputs : tuple of str
        The files that the caller was to make of the result.
    versions : dict
        The versions that it ran on.
    written : float
        When, in seconds since the epoch.
    progress : JSON
        What the call had done, as the codec encodes it.
    arrays : list of array
        What `progress` refers to.
    """

    options: dict[str, Any]
    outputs: tuple[str, ...]
    versions: dict[str, str]
    written: float
    progress: Any
    arrays: list[np.ndarray]

    @classmethod
    def read(cls, path: Path) -> CheckpointContent | None:
        """Read a file; None if there is none."""
        if not path.exists():
            return None
        with refuse_unusable(path):
            title, header, arrays = read_record(path, CHECKPOINT_TITLE, *EARLIER_TITLES)
            if title in EARLIER_TITLES:
                header = translate_checkpoint(title, header, arrays)
            return cls(
                options=dict(header["options"]),
                outputs=tuple(map(str, header["outputs"])),
                versions=dict(header["versions"]),
                written=float(header["written"]),
                progress=header["progress"],
                arrays=arrays,
            )

    @property
    def time_written(self) -> str:
        """When it was written, in local time."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.written))


@dataclass(frozen=True)
class CheckpointRequest:
    """A checkpoint, the options of the call that it is for, and what the file holds."""

    checkpoint: Checkpoint
    options: dict[str, Any]
    content: CheckpointContent | None = None

    def check(self, rank: int, engine: Engine) -> None:
        """Refuse a file that is seen to be of another fit without a pass over the data."""
        if self.content is None:
            return
        with refuse_unusable(self.path):
            current = describe_options(Codec(), self.basic_options(rank, engine))
            saved = self.content.options
            refuse_other_options(
                self.path, {name: saved[name] for name in current if name in saved}, current
            )

    def basic_options(self, rank: int, engine: Engine) -> dict[str, Any]:
        """The options that do not depend on the entries of the data."""
        return {
            "method": self.options["method"],
            "rank": rank,
            "shape": engine.shape,
            "dtype": str(engine.dtype),
            "kind of data": type(engine).__qualname__,
        }

    @property
    def path(self) -> Path:
        return Path(self.checkpoint.path)


@contextmanager
def refuse_unusable(path: Path) -> Iterator[None]:
    """Refuse a file, whatever is wrong in it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        problem = f"is not a checkpoint that can be used ({reason(error)})"
        raise CheckpointError(path, problem) from None


#: What estimators take as their checkpoint.
CheckpointArgument = str | os.PathLike[str] | Checkpoint | None


def request_checkpoint(
    checkpoint: CheckpointArgument, method: str, **options: Any
) -> CheckpointRequest | None:
    """The checkpoint of a call, if it has one; refused if it cannot be written or read."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    try:
        Outputs().add("checkpoint", Path(checkpoint.path), may_exist=True)
    except OutputError as error:
        raise CheckpointError(error.path, error.problem) from None
    content = CheckpointContent.read(Path(checkpoint.path))
    return CheckpointRequest(checkpoint, {"method": method, **options}, content)


class CheckpointFile:
    """The file in which a call keeps what it has done.

    Parameters
    ----------
    request : CheckpointRequest
    options : dict
        What the result depends on; the file of a call with other options is refused.
    codec : Codec
        It knows the classes that the call writes.
    """

    def __init__(self, request: CheckpointRequest, options: dict[str, Any], codec: Codec) -> None:
        self.path, self.content = request.path, request.content
        self._checkpoint, self._codec = request.checkpoint, codec
        self._options = describe_options(codec, options)
        self._last_write, self._write_seconds = time.monotonic(), 0.0
        self._warned = False

    def is_due(self) -> bool:
        """Whether it is time to write."""
        interval = self._checkpoint.every
        if interval:
            interval = max(interval, self._write_seconds / MAX_WRITE_SHARE)
        return time.monotonic() - self._last_write >= interval

    def write(self, progress: dict[str, Any]) -> None:
        """Write what the call has done; if that fails the call goes on, with a warning."""
        start_time = time.monotonic()
        try:
            store = ArrayStore()
            header = {
                "written": time.time(),
                "outputs": list(self._checkpoint.outputs),
                "versions": versions(),
                "options": self._options,
                "progress": self._codec.encode(progress, store),
            }
            with open_atomic(self.path) as file:
                write_record(file, CHECKPOINT_TITLE, header, store.arrays)
            LOG.debug("%s is written", self.path)
        except (WriteError, UnsupportedValueError) as error:
            if not self._warned:
                problem = error.problem if isinstance(error, WriteError) else str(error)
                checks.warn(f"checkpoint: {self.path}: {problem}; the fit goes on")
            self._warned = True
        self._last_write = time.monotonic()
        self._write_seconds = self._last_write - start_time

    def read(self, engine: Engine | None = None) -> dict[str, Any] | None:
        """What an earlier run of the call has done, if there was one; refused if of another call.

        Arrays of other libraries than NumPy become arrays of the engine.
        """
        content = self.content
        if content is None:
            return None
        with refuse_unusable(self.path):
            refuse_other_options(self.path, content.options, self._options)
            store = ArrayStore(content.arrays, np.asarray if engine is None else engine.asarray)
            return dict(self._codec.decode(content.progress, store))


def describe_options(codec: Codec, options: dict[str, Any]) -> dict[str, list[Any]]:
    """Each option as text for messages, and as JSON for comparisons."""
    return {name: [repr(value), codec.encode(value)] for name, value in options.items()}


def refuse_other_options(
    path: Path, saved: dict[str, list[Any]], current: dict[str, list[Any]]
) -> None:
    """Refuse a file if an option differs, and name the first one."""
    for name in sorted(current.keys() | saved.keys(), key=[*current, *saved].index):
        saved_text, saved_value = saved.get(name, ("not given", None))
        current_text, current_value = current.get(name, ("not given", None))
        if saved_value != current_value:
            _refuse_option(path, name, saved_text, current_text)


def _refuse_option(path: Path, name: str, saved: str, current: str) -> None:
    if max(len(saved), len(current)) > 60 or saved == current:
        raise CheckpointError(path, f"is of a fit with other {name}")
    raise CheckpointError(path, f"is of a fit with {name} {saved}, not {current}")


@cache
def versions() -> dict[str, str]:
    """The versions that the bits of a fit depend on."""
    names = ["robustcp", "numpy", "scipy", *(["numba"] if numba_kernels() else [])]
    installed = {"numba": "none", "python": platform.python_version()}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that was not installed
            installed[name] = "unknown"
    return installed


# Checkpoints of fits


@dataclass(frozen=True, eq=False)
class SavedRun:
    """What is known of one start: its starting point, its last state, and how it ended, if so."""

    starting_point: StartingPoint
    state: State
    outcome: Outcome | None = None
    #: With `cases`: how often bad samples have been identified again before this run.
    case_round: int = 0

    def is_finished(self, max_sweeps: int) -> bool:
        """Whether no sweep is left to do, of at most `max_sweeps`."""
        converged = self.outcome is not None and self.outcome.name == CONVERGED.name
        return converged or (self.outcome is not None and self.state.sweep >= max_sweeps)


#: The classes that a fit in progress is made of, besides those of its stages and constraints.
SAVED_CLASSES = (
    *losses.loss_types().values(), losses.RescaledLoss, losses.UserLoss, CaseDiagnostics, Fibres,
    Fit, FitWarning, Free, KruskalTensor, LoggedRun, Noise, Outcome, Prior, SavedRun,
    StartingPoint, Starts, State,
)  # fmt: skip


class FitRecord:
    """What a fit has done so far, and the file that it is written to, if there is one.

    As a context manager it writes the last state if the fit ends early, for whatever reason.
    """

    def __init__(self, file: _FitFile | None = None) -> None:
        self._file = file
        self._changed, self._write_lock = False, threading.Lock()
        self.runs: list[SavedRun] = []
        self.fit: Fit | None = None
        self.search_runs = SearchRuns(None if file is None else {}, self._mark_changed)

    @classmethod
    def of(
        cls,
        request: CheckpointRequest | None,
        plan: Plan,
        rank: int,
        max_sweeps: int,
        rng: np.random.Generator,
    ) -> FitRecord:
        """The record of a fit that begins, or of one that goes on."""
        if request is None:
            return cls()
        record = cls(_FitFile(request, plan, rank, max_sweeps, rng))
        if request.content is not None:
            record._resume(request.content)
        return record

    def _resume(self, content: CheckpointContent) -> None:
        """Take what the file holds, and log from where the fit goes on."""
        assert self._file is not None
        self.runs, self.fit, search_runs = self._file.read_fit()
        self.search_runs.runs = search_runs
        origin = f"{self._file.path}, written {content.time_written}"
        message = f"goes on from {origin}: "
        if self.fit is not None:
            message = f"the fit is finished: it is in {origin}"
        elif not self.runs:
            finished_count = sum(run.state is None for run in search_runs.values())
            message += f"in the search for starts, after {finished_count} runs of it"
        elif self.runs[-1].outcome is not None:
            message += f"after start {len(self.runs)} of the fit"
        else:
            state = self.runs[-1].state
            message += (
                f"start {len(self.runs)}, stage {state.name!r}, level {state.level + 1}, "
                f"after sweep {state.sweep}"
            )
        LOG.info("%s", message, extra={"begins": True})

    def search_log(self, number: int) -> SearchLog:
        """The log of the search for a start."""
        return SearchLog(self.search_runs, f"search {number + 1}" if number else "search")

    def clear_search(self) -> None:
        """Forget the runs of a search that is finished."""
        if self.search_runs.runs:
            self.search_runs.runs.clear()

    def __enter__(self) -> FitRecord:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            self._write()

    def saved_run(self, number: int) -> SavedRun | None:
        """What is known of a start."""
        return self.runs[number] if number < len(self.runs) else None

    def save_run(self, number: int, run: SavedRun) -> None:
        """Remember where a start is, and write it if it is time."""
        if run.outcome == STOPPED:  # it may go on
            run = replace(run, outcome=None)
        self.runs[number : number + 1] = [run]
        self._mark_changed()

    def _mark_changed(self) -> None:
        self._changed = True
        if self._file is not None and self._file.is_due():
            self._write()

    def finish(self, fit: Fit | None = None) -> None:
        """Write the fit, or, if the callback has stopped it, where it is."""
        self.fit, self._changed = fit, True
        self._write()

    def _write(self) -> None:
        search_runs = dict(self.search_runs.runs or {})
        if self._file is None or not self._changed or not (self.runs or search_runs):
            return
        if self._write_lock.acquire(blocking=False):  # else another thread is writing
            try:
                self._changed = False
                self._file.write_fit(self.runs, self.fit, search_runs)
            finally:
                self._write_lock.release()


class _FitFile(CheckpointFile):
    """The checkpoint of a fit: it is used only with the same data, stages and versions."""

    def __init__(
        self,
        request: CheckpointRequest,
        plan: Plan,
        rank: int,
        max_sweeps: int,
        rng: np.random.Generator,
    ) -> None:
        self._plan, self._max_sweeps, self._engine = plan, max_sweeps, plan.problem.engine
        omitted = {
            State: {"cached_equations"},
            Noise: {"known_sigmas"},
            Fit: {"limits", "preprocessing"},
        }
        codec = Codec(SAVED_CLASSES, omitted)
        try:
            codec.register([*plan.stages, *plan.mode_constraints, *request.options.values()])
            super().__init__(request, _fit_options(request, plan, rank, rng), codec)
            self._stages = describe_options(codec, {"stages": list(plan.stages)})
            for stage in plan.stages:
                if codec.decode(codec.encode(stage)) != stage:
                    raise UnsupportedValueError(
                        f"stage {stage.name!r} does not come back equal from a file"
                    )
        except UnsupportedValueError as error:
            raise CheckpointError(request.path, f"cannot be used: {error}") from None

    @cached_property
    def _l1_norm(self) -> float:
        """The sum of the magnitudes of all entries, to recognise the data without a model."""
        engine = self._engine
        zeros = tuple(engine.asarray(np.zeros((n, 1))) for n in engine.shape)
        return float(engine.value(zeros, losses.L1(self._plan.problem.min_epsilon)))

    def write_fit(
        self, runs: list[SavedRun], fit: Fit | None, search_runs: dict[str, LoggedRun]
    ) -> None:
        """Write the runs so far, the fit if it is finished, and the runs of the search."""
        self.write(
            {
                "stages": self._stages,
                "max_sweeps": self._max_sweeps,
                "max_abs": float(self._engine.max_abs),
                "l1_norm": None if runs else self._l1_norm,
                "runs": [_without_unneeded(run) for run in runs],
                "search": search_runs,
                "fit": fit,
            }
        )

    def read_fit(self) -> tuple[list[SavedRun], Fit | None, dict[str, LoggedRun]]:
        """The runs, the fit if it is finished, and the runs of the search; refused if of others."""
        saved = self.read(self._engine)
        assert saved is not None
        assert self.content is not None
        runs, fit, max_sweeps = saved["runs"], saved["fit"], saved["max_sweeps"]
        if max_sweeps > self._max_sweeps or (
            max_sweeps < self._max_sweeps and self._plan.cases is not None
        ):
            _refuse_option(self.path, "max_sweeps", str(max_sweeps), str(self._max_sweeps))
        max_abs = float(self._engine.max_abs)
        self._check_same("largest entry", saved["max_abs"], max_abs, exactly=True)
        if runs:
            run, state = runs[-1], runs[-1].state
            solver = self._plan.without_samples(run.starting_point.bad_samples).solver(
                run.starting_point
            )
            objective = solver.value(state, state.level_spec)
            same_bits = self._check_same("objective", state.objective, objective)
        else:
            same_bits = self._check_same("size", saved["l1_norm"], self._l1_norm)
        refuse_other_options(self.path, saved["stages"], self._stages)
        if fit is not None and (
            max_sweeps == self._max_sweeps or all(run.is_finished(self._max_sweeps) for run in runs)
        ):
            scales = self._engine.view.scales
            known_sigmas = None if scales is None else scales.field
            fit = replace(fit, noise=replace(fit.noise, known_sigmas=known_sigmas))
            return runs, fit, saved["search"]
        if same_bits and self.content.versions == versions():
            return runs, None, saved["search"]
        if saved["search"]:
            LOG.warning("%s is of other versions: what it has of the search is not used", self.path)
        return [self._with_continuation_note(run) for run in runs], None, {}

    def _check_same(
        self, name: str, saved: float, current: float, *, exactly: bool = False
    ) -> bool:
        """Refuse other data; return whether a number is the same to the last bit."""
        rtol = 0.0 if exactly else max(OBJECTIVE_RTOL, self._engine.machine_epsilon)
        if not math.isclose(saved, current, rel_tol=rtol):
            problem = (
                f"is of a fit to other data (the {name} is {current:.12g}, and was {saved:.12g})"
            )
            raise CheckpointError(self.path, problem)
        return saved == current

    def _with_continuation_note(self, run: SavedRun) -> SavedRun:
        """A run that goes on with other versions, with a note that says so."""
        assert self.content is not None
        current_versions = versions()
        differing_versions = [
            f"{name} {version}"
            for name, version in self.content.versions.items()
            if current_versions.get(name) != version
        ]
        origin = ", ".join(differing_versions) or "another machine"
        note = f"continued from a checkpoint of {origin}"
        if run.is_finished(self._max_sweeps) or note in run.state.notes:
            return run
        return replace(run, state=replace(run.state, notes=(*run.state.notes, note)))


def _without_unneeded(run: SavedRun) -> SavedRun:
    """A run without what is only needed to go on from it, if it has converged."""
    if run.outcome != CONVERGED:
        return run
    return replace(run, state=replace(run.state, swept_factors=(), before_stage=None))


def _fit_options(
    request: CheckpointRequest, plan: Plan, rank: int, rng: np.random.Generator
) -> dict[str, Any]:
    """What a fit depends on, besides its data and what follows from the data."""
    engine, starts, init = plan.problem.engine, [], None
    for start in plan.starts:
        if isinstance(start, GivenStart):
            init = _factor_digest(factors_from_init(engine, rank, start.init))
            starts.append("given")
        else:
            starts.append(repr(start))
    limits = engine.view.limits
    return {
        **request.basic_options(rank, engine),
        **request.options,
        **({} if limits is None else {"limits": limits.describe()}),
        "cases": repr(plan.cases),
        "modes to solve for": plan.modes,
        "constraints": plan.mode_constraints,
        "init": init,
        "starts": starts,
        "rng": dict(rng.bit_generator.state),
    }


def _factor_digest(factors: Factors) -> str:
    digest = hashlib.sha256()
    for A in factors:
        digest.update(np.ascontiguousarray(to_host(A)).tobytes())
    return digest.hexdigest()
