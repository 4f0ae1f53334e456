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

from robustcp import _checks, losses
from robustcp._typing import Array, Factors
from robustcp.cases import Judged
from robustcp.doubts import FitWarning
from robustcp.engines import Engine, Fibres, to_host
from robustcp.engines.installed import compiled_code
from robustcp.files.errors import FileError, OutputError, WriteError, reason
from robustcp.files.records import UnknownError, Vocabulary, read_record, write_record
from robustcp.files.writing import Outputs, whole
from robustcp.fitted import Fit
from robustcp.init import given
from robustcp.journal import Journal, Noted, Notes
from robustcp.kruskal import KruskalTensor
from robustcp.noise import Noise
from robustcp.outcome import CONVERGED, STOPPED, Outcome
from robustcp.plans import Plan
from robustcp.priors import Prior
from robustcp.search import Begun, Given, Starts
from robustcp.solver import State

LOG = logging.getLogger(__name__)

TITLE = "robustcp checkpoint 2"
#: Objectives this close, relatively, are of the same data; in single precision, as close as that.
SAME = 1e-9
#: Writing may take this share of the time.
SHARE = 0.01
KINDS = (
    losses.L1, losses.Cauchy, losses.Contaminated, losses.Huber, losses.LeastSquares,
    losses.Quantile, losses.Tukey, losses.Welsch, losses.OtherUnits, losses.Wrapped, Outcome,
    Noise, Prior, Fibres, FitWarning,
)  # fmt: skip
#: What of a state is not plain values; `ahead` follows from the rest.
APART = ("factors", "swept", "trace", "before", "ahead", "noise")


class CheckpointError(FileError):
    """Why a checkpoint is refused, in one line."""

    def told(self, name: Any = str) -> str:
        return f"{name('checkpoint')}: {self.path}: {self.problem}"


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
        _checks.real_number("every", self.every, 0.0)


@dataclass(frozen=True)
class Asked:
    """A checkpoint, the options of the call that it is for, and what the file holds."""

    checkpoint: Checkpoint
    options: dict[str, Any]
    content: Content | None = None

    def check(self, rank: int, engine: Engine) -> None:
        """Refuse what can be seen to be of another fit without a look at the data."""
        if self.content is None:
            return
        with unusable(self.path):
            now = named(Vocabulary(), self.plain(rank, engine))
            before = self.content.options
            compare(self.path, {name: before[name] for name in now}, now)

    def plain(self, rank: int, engine: Engine) -> dict[str, Any]:
        """What does not depend on the entries."""
        return {
            "method": self.options["method"], "rank": rank, "shape": engine.shape,
            "dtype": str(engine.dtype), "kind of data": type(engine).__qualname__,
        }  # fmt: skip

    @property
    def path(self) -> Path:
        return Path(self.checkpoint.path)


@dataclass(frozen=True, eq=False)
class Content:
    """What a file holds, which is a checkpoint by all that can be seen."""

    about: dict[str, Any]
    arrays: list[np.ndarray]

    @classmethod
    def of(cls, path: Path, title: str = TITLE) -> Content | None:
        """That of a file, if there is one."""
        if not path.exists():
            return None
        with unusable(path):
            found = cls(*read_record(path, title))
            assert all((found.options, found.written, found.outputs is not None))
            return found

    @property
    def options(self) -> dict[str, Any]:
        """What the fit was asked with."""
        return dict(self.about["options"])

    @property
    def outputs(self) -> list[str]:
        """What the caller was to make of it."""
        return [str(name) for name in self.about["outputs"]]

    @property
    def written(self) -> str:
        """When."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(self.about["written"])))


@contextmanager
def unusable(path: Path) -> Iterator[None]:
    """Refuse a file, whatever is wrong in it."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file leads to
        problem = f"is not a checkpoint that can be used ({reason(error)})"
        raise CheckpointError(path, problem) from None


#: What estimators take as their checkpoint.
Kept = str | os.PathLike[str] | Checkpoint | None


def asked(checkpoint: Kept, method: str, title: str = TITLE, **options: Any) -> Asked | None:
    """The checkpoint of a call, if it has one: refused if it cannot be written or read."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    try:
        Outputs().add("checkpoint", Path(checkpoint.path), replaced=True)
    except OutputError as error:
        raise CheckpointError(error.path, error.problem) from None
    content = Content.of(Path(checkpoint.path), title)
    return Asked(checkpoint, {"method": method, **options}, content)


@dataclass(frozen=True, eq=False)
class Saved:
    """What is known of one start: where it began, how far it is, and how it ended, if it did."""

    begun: Begun
    state: State
    outcome: Outcome | None = None
    #: Where samples may be bad as a whole: how often they were found anew.
    again: int = 0

    def ended(self, most: int) -> bool:
        """Whether nothing is left to do, with at most so many sweeps."""
        converged = self.outcome is not None and self.outcome.name == CONVERGED.name
        return converged or (self.outcome is not None and self.state.sweep >= most)


class Record:
    """The starts of a fit so far, and the file that they are kept in.

    It is entered for the time of the fit: whatever ends that early, the last state is written.
    """

    def __init__(self, file: _File | None = None) -> None:
        self._file = file
        self._news, self._writing = False, threading.Lock()
        self.runs: list[Saved] = []
        self.fit: Fit | None = None
        self.notes = Notes(None if file is None else {}, self._noted)

    @classmethod
    def of(
        cls, asked: Asked | None, plan: Plan, rank: int, most: int, rng: np.random.Generator
    ) -> Record:
        """The record of a fit that begins, or of one that goes on."""
        if asked is None:
            return cls()
        file = _File(asked, plan, rank, most, rng)
        record = cls(file)
        if asked.content is not None:
            record.runs, record.fit, record.notes.known = file.read(asked.content)
            LOG.info("%s", record._begins(asked.content), extra={"begins": True})
        return record

    def _begins(self, content: Content) -> str:
        """From where it goes on."""
        assert self._file is not None
        written = f"{self._file.path}, written {content.written}"
        if self.fit is not None:
            return f"the fit is finished: it is in {written}"
        if not self.runs:
            ended = [noted for noted in (self.notes.known or {}).values() if noted.state is None]
            return (
                f"goes on from {written}: in the search for starts, after {len(ended)} runs of it"
            )
        state, where = self.runs[-1].state, f"start {len(self.runs)}"
        if self.runs[-1].outcome is not None:
            return f"goes on from {written}: after {where} of the fit"
        return (
            f"goes on from {written}: {where}, stage {state.name!r}, level {state.level + 1}, "
            f"after sweep {state.sweep}"
        )

    def journal(self, number: int) -> Journal:
        """That of the search for a start."""
        return Journal(self.notes, f"search {number + 1}" if number else "search")

    def searched(self) -> None:
        """A search is done, and what it did need not be known any longer."""
        if self.notes.known:
            self.notes.known.clear()

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None:
            self._write()

    def run(self, number: int) -> Saved | None:
        """What is known of a start."""
        return self.runs[number] if number < len(self.runs) else None

    def keep(self, number: int, saved: Saved) -> None:
        """Remember where a start is; write it if it is time."""
        if saved.outcome == STOPPED:  # it may go on
            saved = replace(saved, outcome=None)
        self.runs[number : number + 1] = [saved]
        self._noted()

    def _noted(self) -> None:
        self._news = True
        if self._file is not None and self._file.due():
            self._write()

    def finish(self, fit: Fit | None = None) -> None:
        """The fit is done, or else stopped by the callback."""
        self.fit, self._news = fit, True
        self._write()

    def _write(self) -> None:
        known = dict(self.notes.known or {})
        if self._file is None or not self._news or not (self.runs or known):
            return
        if self._writing.acquire(blocking=False):  # else another thread is at it
            try:
                self._news = False
                self._file.write(self.runs, self.fit, known)
            finally:
                self._writing.release()


class _File:
    """A file with the runs of a fit, and what it must be asked with to be used."""

    def __init__(
        self, asked: Asked, plan: Plan, rank: int, most: int, rng: np.random.Generator
    ) -> None:
        self.path, self._every = asked.path, asked.checkpoint.every
        self._outputs = list(asked.checkpoint.outputs)
        self._plan, self._most, self._engine = plan, most, plan.problem.engine
        self._known = Vocabulary(KINDS)
        self._last, self._cost = time.monotonic(), 0.0
        self._warned = False
        try:
            self._known.learn([*plan.stages, *plan.constrained, *asked.options.values()])
            self._options = named(self._known, _options(asked, plan, rank, rng))
            self._stages = named(self._known, {"stages": list(plan.stages)})
            for stage in plan.stages:
                if self._known.restored(self._known.described(stage)) != stage:
                    raise UnknownError(f"stage {stage.name!r} does not come back equal from a file")
        except UnknownError as error:
            raise CheckpointError(self.path, f"cannot be used: {error}") from None

    # Writing

    def due(self) -> bool:
        """Whether it is time to write."""
        wait = max(self._every, self._cost / SHARE) if self._every else 0.0
        return time.monotonic() - self._last >= wait

    def write(self, runs: Sequence[Saved], fit: Fit | None, notes: dict[str, Noted]) -> None:
        """Write all; if that fails the fit goes on, with a warning."""
        begin = time.monotonic()
        try:
            arrays = _Arrays()
            about = {
                "written": time.time(),
                "outputs": self._outputs,
                "versions": versions(),
                "options": self._options,
                "stages": self._stages,
                "max_sweeps": self._most,
                "largest": float(self._engine.largest),
                "size": None if runs else self._size,
                "runs": [self._of_run(run, arrays) for run in runs],
                "search": {name: self._of_noted(one, arrays) for name, one in notes.items()},
                "fit": None if fit is None else self._of_fit(fit, arrays),
            }
            with whole(self.path) as file:
                write_record(file, TITLE, about, arrays.held)
            LOG.debug("%s is written", self.path)
        except (WriteError, UnknownError) as error:
            if not self._warned:
                warn_of(self.path, error)
            self._warned = True
        self._last = time.monotonic()
        self._cost = self._last - begin

    def _of_run(self, run: Saved, arrays: _Arrays) -> dict[str, Any]:
        begun, state, tell = run.begun, run.state, self._known.described
        if run.outcome == CONVERGED:  # nobody goes on from there
            state = replace(state, swept=(), before=None)
        return {
            "begun": self._of_begun(begun, arrays),
            "state": self._of_state(state, arrays),
            "outcome": tell(run.outcome),
            "again": run.again,
        }

    def _of_noted(self, noted: Noted, arrays: _Arrays) -> dict[str, Any]:
        if noted.state is not None:
            return {"state": self._of_state(noted.state, arrays)}
        return {"factors": arrays.add(noted.factors)}

    @cached_property
    def _size(self) -> float:
        """The size of all entries, by which the data is recognised before there is a model."""
        engine = self._engine
        zero = tuple(engine.asarray(np.zeros((n, 1))) for n in engine.shape)
        return float(engine.value(zero, losses.L1(self._plan.problem.least_epsilon)))

    def _of_begun(self, begun: Begun, arrays: _Arrays) -> dict[str, Any]:
        return {
            "factors": arrays.add(begun.factors),
            "good": begun.good,
            "tried": None if begun.tried is None else self._of_starts(begun.tried, arrays),
            "best": begun.best,
            "fibres": self._known.described(begun.fibres),
            "enough": begun.enough,
            "sound": begun.sound,
            "bad": None if begun.bad is None else arrays.add([begun.bad]),
            "others": [self._of_begun(other, arrays) for other in begun.others],
        }

    def _of_state(self, state: State, arrays: _Arrays) -> dict[str, Any]:
        plain = {part.name: getattr(state, part.name)
                 for part in fields(State) if part.name not in APART}  # fmt: skip
        return {
            "plain": self._known.described(plain),
            "factors": arrays.add(state.factors),
            "swept": arrays.add(state.swept),
            "trace": arrays.add([np.array(state.trace)]),
            "noise": None if state.noise is None else self._of_noise(state.noise, arrays),
            "before": None if state.before is None else self._of_state(state.before, arrays),
        }

    def _of_starts(self, starts: Starts, arrays: _Arrays) -> dict[str, Any]:
        return {
            "values": self._known.described(tuple(starts)),
            "reached": starts.reached,
            "final": self._known.described(starts.final),
            "models": [arrays.add([model.weights, *model.factors]) for model in starts.models],
        }

    def _starts(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Starts:
        models = []
        for at in told["models"]:
            weights, *factors = self._factors(at, arrays)
            models.append(KruskalTensor(weights, tuple(factors)))
        values, final = (self._known.restored(told[name]) for name in ("values", "final"))
        return Starts(values, int(told["reached"]), final, models)

    def _of_noise(self, noise: Noise, arrays: _Arrays) -> dict[str, Any]:
        """But for what was given, which is the data's."""
        plain = replace(noise, held=(), given=None)
        return {"plain": self._known.described(plain), "held": arrays.add(noise.held)}

    def _of_fit(self, fit: Fit, arrays: _Arrays) -> dict[str, Any]:
        names = ("result", "warnings", "notes", "loss", "stages", "explained")
        return {
            "plain": self._known.described({name: getattr(fit, name) for name in names}),
            "starts": self._of_starts(fit.starts, arrays),
            "noise": self._of_noise(fit.noise, arrays),
            "model": arrays.add([fit.weights, *fit.factors]),
            "trace": arrays.add([fit.trace]),
            "cases": None if fit.cases is None else self._of_cases(fit.cases, arrays),
        }

    def _of_cases(self, judged: Judged, arrays: _Arrays) -> dict[str, Any]:
        each = [judged.weights, judged.distances, judged.cutoffs]
        return {"mode": judged.mode, "arrays": arrays.add(each)}

    # Reading

    def read(self, content: Content) -> tuple[list[Saved], Fit | None, dict[str, Noted]]:
        """The runs, the fit if it is done, and what the search did; refused if of another call."""
        about, arrays = content.about, content.arrays
        with unusable(self.path):
            compare(self.path, content.options, self._options)
            runs = [self._run(run, arrays) for run in about["runs"]]
            fit = None if about["fit"] is None else self._fit(about["fit"], arrays)
            stages, most, made_by = about["stages"], int(about["max_sweeps"]), about["versions"]
            largest, size = float(about["largest"]), about["size"]
            notes = {name: self._noted(told, arrays) for name, told in about["search"].items()}
        if most > self._most or (most < self._most and self._plan.cases is not None):
            _refuse(self.path, "max_sweeps", str(most), str(self._most))
        self._same("largest entry", largest, float(self._engine.largest), exactly=True)
        if runs:
            exact = self._recognise(runs[-1])
        else:
            self._same("size", float(size), self._size)
            exact = float(size) == self._size
        compare(self.path, stages, self._stages)
        if fit is not None and (most == self._most or all(r.ended(self._most) for r in runs)):
            return runs, fit, notes
        if exact and made_by == versions():
            return runs, None, notes
        if notes:
            LOG.warning("%s is of other versions: what it has of the search is not used", self.path)
        return [_continued(run, made_by, self._most) for run in runs], None, {}

    def _recognise(self, run: Saved) -> bool:
        """Refuse other data; and whether the objective is the same to the last bit."""
        state = run.state
        value = self._plan.without(run.begun.bad).solver(run.begun).value(state, state.cost)
        self._same("objective", state.objective, value)
        return value == state.objective

    def _same(self, name: str, before: float, now: float, *, exactly: bool = False) -> None:
        close = 0.0 if exactly else max(SAME, self._engine.precision)
        if not math.isclose(before, now, rel_tol=close):
            problem = f"is of a fit to other data (the {name} is {now:.12g}, and was {before:.12g})"
            raise CheckpointError(self.path, problem)

    def _factors(self, at: list[int], arrays: list[np.ndarray]) -> Factors:
        return tuple(self._engine.asarray(arrays[k]) for k in at)

    def _run(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Saved:
        begun = self._begun(told["begun"], arrays)
        outcome = self._known.restored(told["outcome"])
        return Saved(begun, self._state(told["state"], arrays), outcome, int(told["again"]))

    def _noted(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Noted:
        """As it is in the file: which engine it is of, the search knows."""
        if "factors" in told:
            return Noted(tuple(arrays[k] for k in told["factors"]))
        state = self._state(told["state"], arrays, as_they_are=True)
        return Noted(state.factors, state)

    def _begun(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Begun:
        tried = told["tried"]
        return Begun(
            factors=self._factors(told["factors"], arrays),
            good=bool(told["good"]),
            tried=None if tried is None else self._starts(tried, arrays),
            best=int(told["best"]),
            fibres=self._known.restored(told["fibres"]),
            others=tuple(self._begun(other, arrays) for other in told["others"]),
            enough=None if told["enough"] is None else int(told["enough"]),
            sound=bool(told["sound"]),
            bad=None if told["bad"] is None else arrays[told["bad"][0]],
        )

    def _state(
        self, told: dict[str, Any], arrays: list[np.ndarray], as_they_are: bool = False
    ) -> State:
        def factors(at: list[int]) -> Factors:
            return tuple(arrays[k] for k in at) if as_they_are else self._factors(at, arrays)

        before = told["before"]
        return State(
            **self._known.restored(told["plain"]),
            factors=factors(told["factors"]),
            swept=factors(told["swept"]),
            trace=tuple(arrays[told["trace"][0]].tolist()),
            noise=None if told["noise"] is None else self._noise(told["noise"], arrays),
            before=None if before is None else self._state(before, arrays, as_they_are),
        )

    def _noise(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Noise:
        found: Noise = self._known.restored(told["plain"])
        return replace(found, held=tuple(arrays[k] for k in told["held"]))

    def _fit(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Fit:
        weights, *factors = self._factors(told["model"], arrays)
        known = self._engine.view.scales
        given = None if known is None else known.slabs
        return Fit(
            **self._known.restored(told["plain"]),
            model=KruskalTensor(weights, tuple(factors)),
            starts=self._starts(told["starts"], arrays),
            noise=replace(self._noise(told["noise"], arrays), given=given),
            trace=arrays[told["trace"][0]],
            cases=None if told["cases"] is None else self._cases(told["cases"], arrays),
        )

    def _cases(self, told: dict[str, Any], arrays: list[np.ndarray]) -> Judged:
        return Judged(int(told["mode"]), *(arrays[k] for k in told["arrays"]))


def warn_of(path: Path, error: Exception) -> None:
    """Say that a checkpoint cannot be written, which does not end the work."""
    problem = error.problem if isinstance(error, WriteError) else str(error)
    _checks.warn(f"checkpoint: {path}: {problem}; the fit goes on")


def named(known: Vocabulary, options: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Options as they are shown, and as they are compared."""
    return {
        name: (repr(value), json.loads(json.dumps(known.described(value))))
        for name, value in options.items()
    }


def compare(path: Path, before: dict[str, Any], now: dict[str, tuple[str, Any]]) -> None:
    """Refuse other options, the first of them."""
    for name in sorted(now.keys() | before.keys(), key=[*now, *before].index):
        shown, value = before.get(name, ("not given", None))
        shown_now, value_now = now.get(name, ("not given", None))
        if value != value_now:
            _refuse(path, name, shown, shown_now)


def _refuse(path: Path, name: str, before: str, now: str) -> None:
    if max(len(before), len(now)) > 60 or before == now:
        raise CheckpointError(path, f"is of a fit with other {name}")
    raise CheckpointError(path, f"is of a fit with {name} {before}, not {now}")


class _Arrays:
    """Arrays to be written, each of them once."""

    def __init__(self) -> None:
        self.held: list[np.ndarray] = []
        self._seen: dict[int, tuple[int, Array]] = {}

    def add(self, arrays: Sequence[Array]) -> list[int]:
        """Where they are."""
        for array in arrays:
            if id(array) not in self._seen:
                self._seen[id(array)] = len(self.held), array
                self.held.append(np.asarray(to_host(array)))
        return [self._seen[id(array)][0] for array in arrays]


def _options(asked: Asked, plan: Plan, rank: int, rng: np.random.Generator) -> dict[str, Any]:
    """What a fit depends on, besides its data and what follows from that."""
    engine, starts, init = plan.problem.engine, [], None
    for start in plan.starts:
        if isinstance(start, Given):
            init = _digest(given(engine, rank, start.init))
            starts.append("given")
        else:
            starts.append(repr(start))
    return {
        **asked.plain(rank, engine),
        **asked.options,
        "cases": repr(plan.cases),
        "modes to solve for": plan.modes,
        "constraints": plan.constrained,
        "init": init,
        "starts": starts,
        "rng": dict(rng.bit_generator.state),
    }


def _digest(factors: Factors) -> str:
    digest = hashlib.sha256()
    for A in factors:
        digest.update(np.ascontiguousarray(to_host(A)).tobytes())
    return digest.hexdigest()


def _continued(run: Saved, made_by: dict[str, str], most: int) -> Saved:
    """A run that goes on elsewhere, with a note that says so."""
    now = versions()
    other = [f"{name} {version}" for name, version in made_by.items() if now.get(name) != version]
    note = "continued from a checkpoint of " + (", ".join(other) or "another machine")
    if run.ended(most) or note in run.state.notes:
        return run
    return replace(run, state=replace(run.state, notes=(*run.state.notes, note)))


@cache
def versions() -> dict[str, str]:
    """What the bits of a fit depend on."""
    names = ["robustcp", "numpy", "scipy", *(["numba"] if compiled_code() else [])]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that was not installed
            found[name] = "unknown"
    return {"numba": "none"} | found
