"""Checkpoints: a fit on disk while it runs, from which the same call goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from robustcp import losses
from robustcp._util import checks
from robustcp._util.typing import Array, Factors
from robustcp.engines import Engine, Fibres, to_host
from robustcp.engines.installed import numba_kernels
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import Noise
from robustcp.optimize.outcome import CONVERGED, STOPPED, Outcome
from robustcp.optimize.row_prior import Prior
from robustcp.optimize.solver import State
from robustcp.persist.codec import (
    Codec,
    UnsupportedValueError,
    has_title,
    read_record,
    write_record,
)
from robustcp.persist.earlier_names import translate_header
from robustcp.persist.errors import FileError, OutputError, WriteError, reason
from robustcp.persist.writing import Outputs, open_atomic
from robustcp.results.diagnostics import FitWarning
from robustcp.results.fit import Fit
from robustcp.starts.candidates import Starts
from robustcp.starts.cases import CaseDiagnostics
from robustcp.starts.initial_factors import GivenStart, factors_from_init
from robustcp.starts.plan import Plan
from robustcp.starts.search_log import LoggedRun, SearchLog, SearchRuns
from robustcp.starts.start import StartingPoint

LOG = logging.getLogger(__name__)

CHECKPOINT_TITLE, EARLIER_TITLE = "robustcp checkpoint 3", "robustcp checkpoint 2"
#: Objectives this close, relatively, are of the same data; in single precision, as close as that.
OBJECTIVE_RTOL = 1e-9
#: Writing may take this share of the time.
MAX_WRITE_SHARE = 0.01
SAVED_CLASSES = (
    *losses.loss_types().values(), losses.RescaledLoss, losses.UserLoss, Outcome, Noise, Prior,
    Fibres, FitWarning,
)  # fmt: skip
#: The fields of a state that are not plain values; `cached_equations` follows from the rest.
NON_PLAIN_STATE_FIELDS = (
    "factors", "swept_factors", "trace", "before_stage", "cached_equations", "noise",
)  # fmt: skip


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


@dataclass(frozen=True)
class CheckpointRequest:
    """A checkpoint, the options of the call that it is for, and what the file holds."""

    checkpoint: Checkpoint
    options: dict[str, Any]
    content: CheckpointContent | None = None

    def check(self, rank: int, engine: Engine) -> None:
        """Refuse what can be seen to be of another fit without a look at the data."""
        if self.content is None:
            return
        with refuse_unusable(self.path):
            current = describe_options(Codec(), self.basic_options(rank, engine))
            saved = self.content.options
            refuse_other_options(self.path, {name: saved[name] for name in current}, current)

    def basic_options(self, rank: int, engine: Engine) -> dict[str, Any]:
        """What does not depend on the entries."""
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


@dataclass(frozen=True, eq=False)
class CheckpointContent:
    """What a file holds, which is a checkpoint by all that can be seen."""

    header: dict[str, Any]
    arrays: list[np.ndarray]

    @classmethod
    def read(cls, path: Path, title: str = CHECKPOINT_TITLE) -> CheckpointContent | None:
        """That of a file, if there is one."""
        if not path.exists():
            return None
        with refuse_unusable(path):
            earlier = title == CHECKPOINT_TITLE and has_title(path, EARLIER_TITLE)
            header, arrays = read_record(path, EARLIER_TITLE if earlier else title)
            content = cls(translate_header(header) if earlier else header, arrays)
            assert all((content.options, content.time_written, content.outputs is not None))
            return content

    @property
    def options(self) -> dict[str, Any]:
        """What the fit was asked with."""
        return dict(self.header["options"])

    @property
    def outputs(self) -> list[str]:
        """What the caller was to make of it."""
        return [str(name) for name in self.header["outputs"]]

    @property
    def time_written(self) -> str:
        """When."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(self.header["written"])))


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
    checkpoint: CheckpointArgument, method: str, title: str = CHECKPOINT_TITLE, **options: Any
) -> CheckpointRequest | None:
    """The checkpoint of a call, if it has one: refused if it cannot be written or read."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    try:
        Outputs().add("checkpoint", Path(checkpoint.path), may_exist=True)
    except OutputError as error:
        raise CheckpointError(error.path, error.problem) from None
    content = CheckpointContent.read(Path(checkpoint.path), title)
    return CheckpointRequest(checkpoint, {"method": method, **options}, content)


@dataclass(frozen=True, eq=False)
class SavedRun:
    """What is known of one start: where it began, how far it is, and how it ended, if it did."""

    starting_point: StartingPoint
    state: State
    outcome: Outcome | None = None
    #: Where samples may be bad as a whole: how often they were found anew.
    case_round: int = 0

    def is_finished(self, max_sweeps: int) -> bool:
        """Whether nothing is left to do, with at most so many sweeps."""
        converged = self.outcome is not None and self.outcome.name == CONVERGED.name
        return converged or (self.outcome is not None and self.state.sweep >= max_sweeps)


class FitRecord:
    """The starts of a fit so far, and the file that they are kept in.

    It is entered for the time of the fit: whatever ends that early, the last state is written.
    """

    def __init__(self, file: _CheckpointFile | None = None) -> None:
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
        file = _CheckpointFile(request, plan, rank, max_sweeps, rng)
        record = cls(file)
        if request.content is not None:
            record.runs, record.fit, record.search_runs.runs = file.read(request.content)
            LOG.info("%s", record._describe_resumption(request.content), extra={"begins": True})
        return record

    def _describe_resumption(self, content: CheckpointContent) -> str:
        """From where it goes on."""
        assert self._file is not None
        origin = f"{self._file.path}, written {content.time_written}"
        if self.fit is not None:
            return f"the fit is finished: it is in {origin}"
        if not self.runs:
            finished_runs = [
                search_run
                for search_run in (self.search_runs.runs or {}).values()
                if search_run.state is None
            ]
            return (
                f"goes on from {origin}: in the search for starts, "
                f"after {len(finished_runs)} runs of it"
            )
        state, start_name = self.runs[-1].state, f"start {len(self.runs)}"
        if self.runs[-1].outcome is not None:
            return f"goes on from {origin}: after {start_name} of the fit"
        return (
            f"goes on from {origin}: {start_name}, stage {state.name!r}, level {state.level + 1}, "
            f"after sweep {state.sweep}"
        )

    def search_log(self, number: int) -> SearchLog:
        """That of the search for a start."""
        return SearchLog(self.search_runs, f"search {number + 1}" if number else "search")

    def clear_search(self) -> None:
        """A search is done, and what it did need not be known any longer."""
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
        """Remember where a start is; write it if it is time."""
        if run.outcome == STOPPED:  # it may go on
            run = replace(run, outcome=None)
        self.runs[number : number + 1] = [run]
        self._mark_changed()

    def _mark_changed(self) -> None:
        self._changed = True
        if self._file is not None and self._file.is_due():
            self._write()

    def finish(self, fit: Fit | None = None) -> None:
        """The fit is done, or else stopped by the callback."""
        self.fit, self._changed = fit, True
        self._write()

    def _write(self) -> None:
        search_runs = dict(self.search_runs.runs or {})
        if self._file is None or not self._changed or not (self.runs or search_runs):
            return
        if self._write_lock.acquire(blocking=False):  # else another thread is at it
            try:
                self._changed = False
                self._file.write(self.runs, self.fit, search_runs)
            finally:
                self._write_lock.release()


class _CheckpointFile:
    """A file with the runs of a fit, and what it must be asked with to be used."""

    def __init__(
        self,
        request: CheckpointRequest,
        plan: Plan,
        rank: int,
        max_sweeps: int,
        rng: np.random.Generator,
    ) -> None:
        self.path, self._interval = request.path, request.checkpoint.every
        self._outputs = list(request.checkpoint.outputs)
        self._plan, self._max_sweeps, self._engine = plan, max_sweeps, plan.problem.engine
        self._codec = Codec(SAVED_CLASSES)
        self._last_write, self._write_seconds = time.monotonic(), 0.0
        self._warned = False
        try:
            self._codec.register([*plan.stages, *plan.mode_constraints, *request.options.values()])
            self._options = describe_options(self._codec, _fit_options(request, plan, rank, rng))
            self._stages = describe_options(self._codec, {"stages": list(plan.stages)})
            for stage in plan.stages:
                if self._codec.decode(self._codec.encode(stage)) != stage:
                    raise UnsupportedValueError(
                        f"stage {stage.name!r} does not come back equal from a file"
                    )
        except UnsupportedValueError as error:
            raise CheckpointError(self.path, f"cannot be used: {error}") from None

    # Writing

    def is_due(self) -> bool:
        """Whether it is time to write."""
        interval = (
            max(self._interval, self._write_seconds / MAX_WRITE_SHARE) if self._interval else 0.0
        )
        return time.monotonic() - self._last_write >= interval

    def write(
        self, runs: Sequence[SavedRun], fit: Fit | None, search_runs: dict[str, LoggedRun]
    ) -> None:
        """Write all; if that fails the fit goes on, with a warning."""
        start_time = time.monotonic()
        try:
            arrays = _ArrayStore()
            header = {
                "written": time.time(),
                "outputs": self._outputs,
                "versions": versions(),
                "options": self._options,
                "stages": self._stages,
                "max_sweeps": self._max_sweeps,
                "largest": float(self._engine.max_abs),
                "size": None if runs else self._l1_norm,
                "runs": [self._encode_run(run, arrays) for run in runs],
                "search": {
                    name: self._encode_search_run(search_run, arrays)
                    for name, search_run in search_runs.items()
                },
                "fit": None if fit is None else self._encode_fit(fit, arrays),
            }
            with open_atomic(self.path) as file:
                write_record(file, CHECKPOINT_TITLE, header, arrays.arrays)
            LOG.debug("%s is written", self.path)
        except (WriteError, UnsupportedValueError) as error:
            if not self._warned:
                warn_unwritable(self.path, error)
            self._warned = True
        self._last_write = time.monotonic()
        self._write_seconds = self._last_write - start_time

    def _encode_run(self, run: SavedRun, arrays: _ArrayStore) -> dict[str, Any]:
        starting_point, state, encode = run.starting_point, run.state, self._codec.encode
        if run.outcome == CONVERGED:  # nobody goes on from there
            state = replace(state, swept_factors=(), before_stage=None)
        return {
            "begun": self._encode_starting_point(starting_point, arrays),
            "state": self._encode_state(state, arrays),
            "outcome": encode(run.outcome),
            "again": run.case_round,
        }

    def _encode_search_run(self, search_run: LoggedRun, arrays: _ArrayStore) -> dict[str, Any]:
        if search_run.state is not None:
            return {"state": self._encode_state(search_run.state, arrays)}
        return {"factors": arrays.add(search_run.factors)}

    @cached_property
    def _l1_norm(self) -> float:
        """The size of all entries, by which the data is recognised before there is a model."""
        engine = self._engine
        zeros = tuple(engine.asarray(np.zeros((n, 1))) for n in engine.shape)
        return float(engine.value(zeros, losses.L1(self._plan.problem.min_epsilon)))

    def _encode_starting_point(
        self, starting_point: StartingPoint, arrays: _ArrayStore
    ) -> dict[str, Any]:
        return {
            "factors": arrays.add(starting_point.factors),
            "good": starting_point.warm_start,
            "tried": None
            if starting_point.starts is None
            else self._encode_starts(starting_point.starts, arrays),
            "best": starting_point.start_number,
            "fibres": self._codec.encode(starting_point.fibres),
            "enough": starting_point.sufficient_rank,
            "sound": starting_point.reliable,
            "bad": None
            if starting_point.bad_samples is None
            else arrays.add([starting_point.bad_samples]),
            "others": [
                self._encode_starting_point(other, arrays) for other in starting_point.alternatives
            ],
        }

    def _encode_state(self, state: State, arrays: _ArrayStore) -> dict[str, Any]:
        plain_fields = {
            field.name: getattr(state, field.name)
            for field in fields(State)
            if field.name not in NON_PLAIN_STATE_FIELDS
        }
        return {
            "plain": self._codec.encode(plain_fields),
            "factors": arrays.add(state.factors),
            "swept": arrays.add(state.swept_factors),
            "trace": arrays.add([np.array(state.trace)]),
            "noise": None if state.noise is None else self._encode_noise(state.noise, arrays),
            "before": None
            if state.before_stage is None
            else self._encode_state(state.before_stage, arrays),
        }

    def _encode_starts(self, starts: Starts, arrays: _ArrayStore) -> dict[str, Any]:
        return {
            "values": self._codec.encode(tuple(starts)),
            "reached": starts.reached,
            "final": self._codec.encode(starts.final),
            "models": [arrays.add([model.weights, *model.factors]) for model in starts.models],
        }

    def _decode_starts(self, encoded: dict[str, Any], arrays: list[np.ndarray]) -> Starts:
        models = []
        for indices in encoded["models"]:
            weights, *factors = self._decode_factors(indices, arrays)
            models.append(KruskalTensor(weights, tuple(factors)))
        values, final = (self._codec.decode(encoded[name]) for name in ("values", "final"))
        return Starts(values, int(encoded["reached"]), final, models)

    def _encode_noise(self, noise: Noise, arrays: _ArrayStore) -> dict[str, Any]:
        """But for what was given, which is the data's."""
        plain = replace(noise, signal_factors=(), known_sigmas=None)
        return {"plain": self._codec.encode(plain), "held": arrays.add(noise.signal_factors)}

    def _encode_fit(self, fit: Fit, arrays: _ArrayStore) -> dict[str, Any]:
        names = ("result", "warnings", "notes", "loss", "stages", "explained")
        return {
            "plain": self._codec.encode({name: getattr(fit, name) for name in names}),
            "starts": self._encode_starts(fit.starts, arrays),
            "noise": self._encode_noise(fit.noise, arrays),
            "model": arrays.add([fit.weights, *fit.factors]),
            "trace": arrays.add([fit.trace]),
            "cases": None if fit.cases is None else self._encode_cases(fit.cases, arrays),
        }

    def _encode_cases(self, cases: CaseDiagnostics, arrays: _ArrayStore) -> dict[str, Any]:
        case_arrays = [cases.weights, cases.distances, cases.cutoffs]
        return {"mode": cases.mode, "arrays": arrays.add(case_arrays)}

    # Reading

    def read(
        self, content: CheckpointContent
    ) -> tuple[list[SavedRun], Fit | None, dict[str, LoggedRun]]:
        """The runs, the fit if it is done, and what the search did; refused if of another call."""
        header, arrays = content.header, content.arrays
        with refuse_unusable(self.path):
            refuse_other_options(self.path, content.options, self._options)
            runs = [self._decode_run(run, arrays) for run in header["runs"]]
            fit = None if header["fit"] is None else self._decode_fit(header["fit"], arrays)
            stages, max_sweeps, saved_versions = (
                header["stages"],
                int(header["max_sweeps"]),
                header["versions"],
            )
            largest, l1_norm = float(header["largest"]), header["size"]
            search_runs = {
                name: self._decode_search_run(encoded, arrays)
                for name, encoded in header["search"].items()
            }
        if max_sweeps > self._max_sweeps or (
            max_sweeps < self._max_sweeps and self._plan.cases is not None
        ):
            _refuse(self.path, "max_sweeps", str(max_sweeps), str(self._max_sweeps))
        self._check_equal("largest entry", largest, float(self._engine.max_abs), exactly=True)
        if runs:
            same_bits = self._check_objective(runs[-1])
        else:
            self._check_equal("size", float(l1_norm), self._l1_norm)
            same_bits = float(l1_norm) == self._l1_norm
        refuse_other_options(self.path, stages, self._stages)
        if fit is not None and (
            max_sweeps == self._max_sweeps
            or all(saved_run.is_finished(self._max_sweeps) for saved_run in runs)
        ):
            return runs, fit, search_runs
        if same_bits and saved_versions == versions():
            return runs, None, search_runs
        if search_runs:
            LOG.warning("%s is of other versions: what it has of the search is not used", self.path)
        return (
            [_add_continuation_note(run, saved_versions, self._max_sweeps) for run in runs],
            None,
            {},
        )

    def _check_objective(self, run: SavedRun) -> bool:
        """Refuse other data; and whether the objective is the same to the last bit."""
        state = run.state
        value = (
            self._plan.without_samples(run.starting_point.bad_samples)
            .solver(run.starting_point)
            .value(state, state.level_spec)
        )
        self._check_equal("objective", state.objective, value)
        return value == state.objective

    def _check_equal(
        self, name: str, saved: float, current: float, *, exactly: bool = False
    ) -> None:
        rtol = 0.0 if exactly else max(OBJECTIVE_RTOL, self._engine.machine_epsilon)
        if not math.isclose(saved, current, rel_tol=rtol):
            problem = (
                f"is of a fit to other data (the {name} is {current:.12g}, and was {saved:.12g})"
            )
            raise CheckpointError(self.path, problem)

    def _decode_factors(self, indices: list[int], arrays: list[np.ndarray]) -> Factors:
        return tuple(self._engine.asarray(arrays[k]) for k in indices)

    def _decode_run(self, encoded: dict[str, Any], arrays: list[np.ndarray]) -> SavedRun:
        starting_point = self._decode_starting_point(encoded["begun"], arrays)
        outcome = self._codec.decode(encoded["outcome"])
        return SavedRun(
            starting_point,
            self._decode_state(encoded["state"], arrays),
            outcome,
            int(encoded["again"]),
        )

    def _decode_search_run(self, encoded: dict[str, Any], arrays: list[np.ndarray]) -> LoggedRun:
        """As it is in the file: which engine it is of, the search knows."""
        if "factors" in encoded:
            return LoggedRun(tuple(arrays[k] for k in encoded["factors"]))
        state = self._decode_state(encoded["state"], arrays, raw_arrays=True)
        return LoggedRun(state.factors, state)

    def _decode_starting_point(
        self, encoded: dict[str, Any], arrays: list[np.ndarray]
    ) -> StartingPoint:
        encoded_starts = encoded["tried"]
        return StartingPoint(
            factors=self._decode_factors(encoded["factors"], arrays),
            warm_start=bool(encoded["good"]),
            starts=None if encoded_starts is None else self._decode_starts(encoded_starts, arrays),
            start_number=int(encoded["best"]),
            fibres=self._codec.decode(encoded["fibres"]),
            alternatives=tuple(
                self._decode_starting_point(other, arrays) for other in encoded["others"]
            ),
            sufficient_rank=None if encoded["enough"] is None else int(encoded["enough"]),
            reliable=bool(encoded["sound"]),
            bad_samples=None if encoded["bad"] is None else arrays[encoded["bad"][0]],
        )

    def _decode_state(
        self, encoded: dict[str, Any], arrays: list[np.ndarray], raw_arrays: bool = False
    ) -> State:
        def decode_factors(indices: list[int]) -> Factors:
            return (
                tuple(arrays[k] for k in indices)
                if raw_arrays
                else self._decode_factors(indices, arrays)
            )

        previous = encoded["before"]
        return State(
            **self._codec.decode(encoded["plain"]),
            factors=decode_factors(encoded["factors"]),
            swept_factors=decode_factors(encoded["swept"]),
            trace=tuple(arrays[encoded["trace"][0]].tolist()),
            noise=None
            if encoded["noise"] is None
            else self._decode_noise(encoded["noise"], arrays),
            before_stage=None
            if previous is None
            else self._decode_state(previous, arrays, raw_arrays),
        )

    def _decode_noise(self, encoded: dict[str, Any], arrays: list[np.ndarray]) -> Noise:
        noise: Noise = self._codec.decode(encoded["plain"])
        return replace(noise, signal_factors=tuple(arrays[k] for k in encoded["held"]))

    def _decode_fit(self, encoded: dict[str, Any], arrays: list[np.ndarray]) -> Fit:
        weights, *factors = self._decode_factors(encoded["model"], arrays)
        scales = self._engine.view.scales
        given = None if scales is None else scales.slabs
        return Fit(
            **self._codec.decode(encoded["plain"]),
            model=KruskalTensor(weights, tuple(factors)),
            starts=self._decode_starts(encoded["starts"], arrays),
            noise=replace(self._decode_noise(encoded["noise"], arrays), known_sigmas=given),
            trace=arrays[encoded["trace"][0]],
            cases=None
            if encoded["cases"] is None
            else self._decode_cases(encoded["cases"], arrays),
        )

    def _decode_cases(self, encoded: dict[str, Any], arrays: list[np.ndarray]) -> CaseDiagnostics:
        return CaseDiagnostics(int(encoded["mode"]), *(arrays[k] for k in encoded["arrays"]))


def warn_unwritable(path: Path, error: Exception) -> None:
    """Say that a checkpoint cannot be written, which does not end the work."""
    problem = error.problem if isinstance(error, WriteError) else str(error)
    checks.warn(f"checkpoint: {path}: {problem}; the fit goes on")


def describe_options(codec: Codec, options: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Options as they are shown, and as they are compared."""
    return {
        name: (repr(value), json.loads(json.dumps(codec.encode(value))))
        for name, value in options.items()
    }


def refuse_other_options(
    path: Path, saved: dict[str, Any], current: dict[str, tuple[str, Any]]
) -> None:
    """Refuse other options, the first of them."""
    for name in sorted(current.keys() | saved.keys(), key=[*current, *saved].index):
        saved_text, saved_value = saved.get(name, ("not given", None))
        current_text, current_value = current.get(name, ("not given", None))
        if saved_value != current_value:
            _refuse(path, name, saved_text, current_text)


def _refuse(path: Path, name: str, saved: str, current: str) -> None:
    if max(len(saved), len(current)) > 60 or saved == current:
        raise CheckpointError(path, f"is of a fit with other {name}")
    raise CheckpointError(path, f"is of a fit with {name} {saved}, not {current}")


class _ArrayStore:
    """Arrays to be written, each of them once."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._positions: dict[int, tuple[int, Array]] = {}

    def add(self, arrays: Sequence[Array]) -> list[int]:
        """Where they are."""
        for array in arrays:
            if id(array) not in self._positions:
                self._positions[id(array)] = len(self.arrays), array
                self.arrays.append(np.asarray(to_host(array)))
        return [self._positions[id(array)][0] for array in arrays]


def _fit_options(
    request: CheckpointRequest, plan: Plan, rank: int, rng: np.random.Generator
) -> dict[str, Any]:
    """What a fit depends on, besides its data and what follows from that."""
    engine, starts, init = plan.problem.engine, [], None
    for start in plan.starts:
        if isinstance(start, GivenStart):
            init = _factor_digest(factors_from_init(engine, rank, start.init))
            starts.append("given")
        else:
            starts.append(repr(start))
    return {
        **request.basic_options(rank, engine),
        **request.options,
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


def _add_continuation_note(
    run: SavedRun, saved_versions: dict[str, str], max_sweeps: int
) -> SavedRun:
    """A run that goes on elsewhere, with a note that says so."""
    current_versions = versions()
    differing_versions = [
        f"{name} {version}"
        for name, version in saved_versions.items()
        if current_versions.get(name) != version
    ]
    note = "continued from a checkpoint of " + (", ".join(differing_versions) or "another machine")
    if run.is_finished(max_sweeps) or note in run.state.notes:
        return run
    return replace(run, state=replace(run.state, notes=(*run.state.notes, note)))


@cache
def versions() -> dict[str, str]:
    """What the bits of a fit depend on."""
    names = ["robustcp", "numpy", "scipy", *(["numba"] if numba_kernels() else [])]
    installed = {"python": platform.python_version()}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that was not installed
            installed[name] = "unknown"
    return {"numba": "none"} | installed
