"""Checkpoints: a fit on disk while it runs, from which the same call goes on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from robustcp import _checks, losses
from robustcp._typing import Array, Factors
from robustcp.doubts import FitWarning
from robustcp.engines import Fibres, to_host
from robustcp.engines.installed import compiled_code
from robustcp.files.errors import FileError, OutputError, WriteError, reason
from robustcp.files.records import UnknownError, Vocabulary, read_record, write_record
from robustcp.files.writing import Outputs, whole
from robustcp.fitted import Fit
from robustcp.init import given
from robustcp.kruskal import KruskalTensor
from robustcp.noise import Noise
from robustcp.outcome import CONVERGED, STOPPED, Outcome
from robustcp.plans import Plan
from robustcp.priors import Prior
from robustcp.search import Begun, Given, Starts
from robustcp.solver import State

TITLE = "robustcp checkpoint 1"
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

    It is written at the end of a sweep, whole or not at all, and holds no pickle. The same call
    with the same data goes on from it and ends at the same bits as if it had never been
    interrupted, on the same machine with the same versions; with others the fit has a note.
    Other data or options are refused, but `max_sweeps` may be larger than it was. When the fit is
    finished the file stays, and the call returns its fit at once.

    Parameters
    ----------
    path : str or path
    every : float
        Seconds between writes, at least; more where writing would take over 1% of the time.
        0 writes after each sweep.

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

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise ValueError(f"checkpoint: must be a path or a Checkpoint, got {self.path!r}")
        _checks.real_number("every", self.every, 0.0)


@dataclass(frozen=True)
class Asked:
    """A checkpoint, and the options of the call that it is for."""

    checkpoint: Checkpoint
    options: dict[str, Any]


#: What estimators take as their checkpoint.
Kept = str | os.PathLike[str] | Checkpoint | None


def asked(checkpoint: Kept, method: str, **options: Any) -> Asked | None:
    """The checkpoint of a call, if it has one: refused if it cannot be written."""
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    try:
        Outputs().add("checkpoint", Path(checkpoint.path), replaced=True)
    except OutputError as error:
        raise CheckpointError(error.path, error.problem) from None
    return Asked(checkpoint, {"method": method, **options})


@dataclass(frozen=True, eq=False)
class Saved:
    """What is known of one start: where it began, how far it is, and how it ended, if it did."""

    begun: Begun
    state: State
    outcome: Outcome | None = None

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
        self._news = False
        self.runs: list[Saved] = []
        self.fit: Fit | None = None

    @classmethod
    def of(
        cls, asked: Asked | None, plan: Plan, rank: int, most: int, rng: np.random.Generator
    ) -> Record:
        """The record of a fit that begins, or of one that goes on."""
        if asked is None:
            return cls()
        file = _File(asked, plan, rank, most, rng)
        record = cls(file)
        if file.path.exists():
            record.runs, record.fit = file.read()
        return record

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
        self._news = True
        if self._file is not None and self._file.due():
            self._write()

    def finish(self, fit: Fit | None = None) -> None:
        """The fit is done, or else stopped by the callback."""
        self.fit, self._news = fit, True
        self._write()

    def _write(self) -> None:
        if self._file is not None and self._news and self.runs:
            self._file.write(self.runs, self.fit)
            self._news = False


class _File:
    """A file with the runs of a fit, and what it must be asked with to be used."""

    def __init__(
        self, asked: Asked, plan: Plan, rank: int, most: int, rng: np.random.Generator
    ) -> None:
        self.path, self._every = Path(asked.checkpoint.path), asked.checkpoint.every
        self._plan, self._most, self._engine = plan, most, plan.problem.engine
        self._known = Vocabulary(KINDS)
        self._last, self._cost = time.monotonic(), 0.0
        self._warned = False
        try:
            self._known.learn([*plan.stages, *plan.constrained, *asked.options.values()])
            self._options = self._named(_options(asked, plan, rank, rng))
            self._stages = self._named({"stages": list(plan.stages)})
            for stage in plan.stages:
                if self._known.restored(self._known.described(stage)) != stage:
                    raise UnknownError(f"stage {stage.name!r} does not come back equal from a file")
        except UnknownError as error:
            raise CheckpointError(self.path, f"cannot be used: {error}") from None

    def _named(self, options: dict[str, Any]) -> dict[str, tuple[str, Any]]:
        """Options as they are shown, and as they are compared."""
        return {
            name: (repr(value), json.loads(json.dumps(self._known.described(value))))
            for name, value in options.items()
        }

    # Writing

    def due(self) -> bool:
        """Whether it is time to write."""
        wait = max(self._every, self._cost / SHARE) if self._every else 0.0
        return time.monotonic() - self._last >= wait

    def write(self, runs: Sequence[Saved], fit: Fit | None) -> None:
        """Write all; if that fails the fit goes on, with a warning."""
        begin = time.monotonic()
        try:
            arrays = _Arrays()
            about = {
                "versions": _versions(),
                "options": self._options,
                "stages": self._stages,
                "max_sweeps": self._most,
                "largest": float(self._engine.largest),
                "runs": [self._of_run(run, arrays) for run in runs],
                "fit": None if fit is None else self._of_fit(fit, arrays),
            }
            with whole(self.path) as file:
                write_record(file, TITLE, about, arrays.held)
        except (WriteError, UnknownError) as error:
            if not self._warned:
                problem = error.problem if isinstance(error, WriteError) else str(error)
                _checks.warn(f"checkpoint: {self.path}: {problem}; the fit goes on")
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
        }

    def _of_begun(self, begun: Begun, arrays: _Arrays) -> dict[str, Any]:
        return {
            "factors": arrays.add(begun.factors),
            "good": begun.good,
            "tried": None if begun.tried is None else self._of_starts(begun.tried, arrays),
            "best": begun.best,
            "fibres": self._known.described(begun.fibres),
            "enough": begun.enough,
            "sound": begun.sound,
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
        }

    # Reading

    def read(self) -> tuple[list[Saved], Fit | None]:
        """The runs, and the fit if it is done; refused if they are of another call."""
        try:
            about, arrays = read_record(self.path, TITLE)
            self._compare(about["options"], self._options)
            runs = [self._run(run, arrays) for run in about["runs"]]
            fit = None if about["fit"] is None else self._fit(about["fit"], arrays)
            stages, most, versions = about["stages"], int(about["max_sweeps"]), about["versions"]
            largest = float(about["largest"])
        except CheckpointError:
            raise
        except Exception as error:  # whatever a damaged file leads to
            problem = f"is not a checkpoint that can be used ({reason(error)})"
            raise CheckpointError(self.path, problem) from None
        if most > self._most:
            self._refuse("max_sweeps", str(most), str(self._most))
        self._same("largest entry", largest, float(self._engine.largest), exactly=True)
        exact = self._recognise(runs[-1])
        self._compare(stages, self._stages)
        if fit is not None and (most == self._most or all(r.ended(self._most) for r in runs)):
            return runs, fit
        if exact and versions == _versions():
            return runs, None
        return [_noted(run, versions, self._most) for run in runs], None

    def _compare(self, before: dict[str, Any], now: dict[str, tuple[str, Any]]) -> None:
        for name in sorted(now.keys() | before.keys(), key=[*now, *before].index):
            shown, value = before.get(name, ("not given", None))
            shown_now, value_now = now.get(name, ("not given", None))
            if value != value_now:
                self._refuse(name, shown, shown_now)

    def _refuse(self, name: str, before: str, now: str) -> None:
        if max(len(before), len(now)) > 60 or before == now:
            raise CheckpointError(self.path, f"is of a fit with other {name}")
        raise CheckpointError(self.path, f"is of a fit with {name} {before}, not {now}")

    def _recognise(self, run: Saved) -> bool:
        """Refuse other data; and whether the objective is the same to the last bit."""
        state = run.state
        value = self._plan.solver(run.begun).value(state, state.cost)
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
        return Saved(begun, self._state(told["state"], arrays), outcome)

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
        )

    def _state(self, told: dict[str, Any], arrays: list[np.ndarray]) -> State:
        return State(
            **self._known.restored(told["plain"]),
            factors=self._factors(told["factors"], arrays),
            swept=self._factors(told["swept"], arrays),
            trace=tuple(arrays[told["trace"][0]].tolist()),
            noise=None if told["noise"] is None else self._noise(told["noise"], arrays),
            before=None if told["before"] is None else self._state(told["before"], arrays),
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
        )


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
        **{name: value for name, value in asked.options.items() if name == "method"},
        "rank": rank,
        "shape": engine.shape,
        "dtype": str(engine.dtype),
        "kind of data": type(engine).__qualname__,
        **asked.options,
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


def _noted(run: Saved, versions: dict[str, str], most: int) -> Saved:
    """A run that goes on elsewhere, with a note that says so."""
    now = _versions()
    other = [f"{name} {version}" for name, version in versions.items() if now.get(name) != version]
    note = "continued from a checkpoint of " + (", ".join(other) or "another machine")
    if run.ended(most) or note in run.state.notes:
        return run
    return replace(run, state=replace(run.state, notes=(*run.state.notes, note)))


@cache
def _versions() -> dict[str, str]:
    """What the bits of a fit depend on."""
    names = ["robustcp", "numpy", "scipy", *(["numba"] if compiled_code() else [])]
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that was not installed
            found[name] = "unknown"
    return {"numba": "none"} | found
