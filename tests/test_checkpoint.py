"""Checkpoints: fits that are interrupted in any way go on, and end at the same bits."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import robustcp
from robustcp import L1, Checkpoint, Huber, Loss, Welsch, cp, cpal1, cpals
from robustcp.cli import app
from robustcp.engines import DenseEngine
from robustcp.inference import rank_checkpoint
from robustcp.optimize.schedules import L1Finish, Level, Schedule, Single, Skip
from robustcp.optimize.solver import Solver, Stage
from robustcp.persist import checkpoint
from support.kill_and_resume import CASES, bits

POSIX = pytest.mark.skipif(os.name != "posix", reason="processes that are forked and killed")
SIM = robustcp.simulate((12, 11, 10), 2, eta=0.2, gamma=1.0, rng=0)
X = SIM.data


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


class Interrupted(Exception):  # noqa: N818
    pass


def interrupted(fit, at, error=Interrupted):
    """Begin a fit, a function of a callback, and end it in the n-th sweep."""
    seen = []

    def callback(state):
        seen.append((state.start, state.sweep))
        if len(seen) == at:
            raise error

    with pytest.raises(error):
        fit(callback)
    return seen


def seen_by(fit):
    """A fit, and the sweeps that its callback has seen."""
    seen = []

    def callback(state):
        assert len(state.trace) == state.sweep
        seen.append((state.start, state.sweep))

    return fit(callback), seen


# Killed


def killed(folder, kind, points, cases):
    """What came of fits that were killed at so many points each; see support/kill_and_resume.py."""
    if importlib.util.find_spec("torch") is None:
        cases = [case for case in cases if "torch" not in case]
    program = Path(__file__).with_name("support") / "kill_and_resume.py"
    command = [sys.executable, "-W", "ignore", program, folder, kind, points, *cases]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == points * len(cases)
    return lines


def sweeps_before(line):
    """How many sweeps were not done again; and that nothing tells that it was killed."""
    straight, resumed, again = line["straight"], line["resumed"], line["again"]
    assert resumed["bits"] == straight["bits"], line["case"]
    assert again == {"bits": straight["bits"], "seen": [], "searched": []}, line["case"]
    before = len(straight["seen"]) - len(resumed["seen"])
    assert resumed["seen"] == straight["seen"][before:], line["case"]
    assert before == 0 or set(resumed["searched"]) <= scores(straight), line["case"]
    return before


def searches_before(line):
    """How many sweeps of the search were not done again."""
    straight, resumed = line["straight"]["searched"], line["resumed"]["searched"]
    assert set(resumed) <= set(straight), line["case"]
    return len(straight) - len(resumed)


def scores(done):
    """The sweeps in which bad samples were scored, which come after a fit's."""
    return {sweep for sweep in done["searched"] if "scores" in sweep}


SEARCHING = [case for case in CASES if CASES[case][1] is cp]
SLOW = pytest.mark.slow


@pytest.mark.process
@POSIX
@pytest.mark.parametrize("points", [1, pytest.param(20, marks=SLOW)])
def test_killed_at_any_sweep(points, tmp_path):
    for line in killed(tmp_path, "sweep", points, CASES):
        assert sweeps_before(line) == line["point"]


@pytest.mark.process
@POSIX
@pytest.mark.parametrize(("points", "cases"), [(3, ["cp"]), pytest.param(20, CASES, marks=SLOW)])
def test_killed_while_writing(points, cases, tmp_path):
    begun = []
    for line in killed(tmp_path, "writing", points, cases):
        sweeps_before(line)
        begun.append(searches_before(line) > 0 or not line["straight"]["searched"])
    assert any(begun)
    # what was being written is left behind under its other name, and not in the way
    assert {path.suffix for path in tmp_path.iterdir()} <= {".ckpt", ""}


@pytest.mark.process
@POSIX
@pytest.mark.parametrize(
    ("points", "cases"),
    [(2, ["cp", "cp, 2 threads", "cp, cases"]), pytest.param(20, SEARCHING, marks=SLOW)],
)
def test_killed_in_the_search(points, cases, tmp_path):
    begun = dict.fromkeys(cases, 0)
    for line in killed(tmp_path, "search", points, cases):
        sweeps_before(line)
        found = searches_before(line)
        begun[line["case"]] += found
        if not {"cases", "threads"} & set(line["case"].split()):  # else others go on meanwhile
            assert found == line["point"], line["case"]
    assert all(begun.values()), begun


# What is kept


@dataclass(frozen=True)
class Own(Loss):
    """A user's loss: twice Huber's."""

    degree = 2
    delta: float = 0.5

    def value(self, r):
        return 2 * Huber(self.delta).value(r)

    def slope(self, r):
        return 2 * Huber(self.delta).slope(r)

    def curvature(self, r):
        return 2 * Huber(self.delta).curvature(r)


@dataclass(frozen=True)
class Bare:
    """An object with the three methods."""

    delta: float = 0.5

    def __getattr__(self, name):
        if name in ("value", "slope", "curvature"):
            return getattr(Huber(self.delta), name)
        raise AttributeError(name)


@dataclass(frozen=True)
class Undone(Schedule):
    """Two levels, after which the stage turns out not to be for this data."""

    def __call__(self, level, engine, factors, before):
        if level == 2:
            raise Skip("not for this data")
        return Level(Welsch(1.0 - 0.1 * level))


UNDONE = [
    Huber(0.3),
    Stage("undone", Undone(), 1e-4, fallback=Stage("instead", L1Finish(1e-6), 1e-4)),
    Stage("undone at last", Undone(), 1e-4),
]


@pytest.mark.parametrize(
    "options",
    [
        {"loss": Own(0.3)},
        {"loss": [L1(1e-4), Bare(0.3)]},
        {"loss": Huber(np.float64(0.3)), "nonnegative": True},
        {"loss": UNDONE},
        {"init": [A[:, :2] for A in SIM.truth.factors], "fixed": (1,)},
        {"rng": 7, "starts": 2},
    ],
    ids=["own", "bare", "numpy number", "undone", "fixed", "seed"],
)
@pytest.mark.parametrize("scale", [1.0, 1e-100])
def test_interrupted_at_every_sweep(options, scale, path):
    data = X if scale == 1.0 else (X * scale)
    if "init" in options:
        options = options | {"init": [A * scale ** (1 / 3) for A in options["init"]]}
    if "loss" in options and scale != 1.0 and options["loss"] is UNDONE:
        pytest.skip("its losses are in the units of the data")

    def fit(callback=None, checkpoint=None):
        return cp(data, 2, max_sweeps=60, callback=callback, checkpoint=checkpoint, **options)

    straight, all_sweeps = seen_by(fit)
    seen = []
    while len(seen) < len(all_sweeps):
        seen += interrupted(lambda callback: fit(callback, path), 1)
    assert seen == all_sweeps
    assert bits(fit(checkpoint=path)) == bits(straight)
    if options.get("loss") is UNDONE:
        assert straight.notes[:2] == ("not for this data", "not for this data")
        assert [name for name, _ in straight.stages] == ["Huber", "instead"]


def test_other_random_generators(path):
    def fit(callback=None, checkpoint=None):
        rng = np.random.Generator(np.random.MT19937(3))
        return cpal1(X, 2, starts=3, rng=rng, callback=callback, checkpoint=checkpoint)

    interrupted(lambda callback: fit(callback, path), 5)
    assert bits(fit(checkpoint=path)) == bits(fit())


def test_a_user_s_engine(path):
    from support.halves import Halves

    def fit(callback=None, checkpoint=None):
        return cp(Halves(X), 2, callback=callback, checkpoint=checkpoint)

    interrupted(lambda callback: fit(callback, path), 5)
    assert bits(fit(checkpoint=path)) == bits(fit())


class Closure:
    """A loss of which nobody can tell what it is made of."""

    def __init__(self):
        self.value, self.slope, self.curvature = Huber().value, Huber().slope, Huber().curvature


@dataclass(frozen=True, eq=False)
class Unequal(Loss):
    """A loss of which nobody can tell whether two are the same."""

    delta: float = 0.5


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (Closure(), "cannot be kept in a file: it is no dataclass"),
        ([L1(1e-3), Closure()], "cannot be kept in a file: it is no dataclass"),
        (Own(np.sin), "cannot be kept in a file"),
        (Unequal(0.3), "does not come back equal"),
    ],
)
def test_a_loss_that_cannot_be_kept_is_refused_before_the_fit(loss, why, path):
    with pytest.raises(ValueError, match=rf"^checkpoint: .*{why}"):
        cp(X, 2, loss=loss, checkpoint=path)
    assert not path.exists()


# When it is written


def test_an_interrupt_writes_the_last_sweep(path):
    kept = Checkpoint(path, every=1e6)

    def fit(callback=None):
        return cpals(X, 2, callback=callback, checkpoint=kept)

    straight, all_sweeps = seen_by(lambda callback: cpals(X, 2, callback=callback))
    seen = interrupted(fit, 4, KeyboardInterrupt)
    found, rest = seen_by(fit)
    assert seen + rest == all_sweeps
    assert bits(found) == bits(straight)


def test_an_interrupt_before_the_first_sweep_leaves_no_file(path, monkeypatch):
    def begin(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(robustcp.starts.initial_factors.Initialization, "__call__", begin)
    with pytest.raises(KeyboardInterrupt):
        cpals(X, 2, checkpoint=Checkpoint(path, every=0))
    assert not path.exists()


def test_stopped_by_the_callback_it_can_go_on(path):
    stopped = cpals(X, 2, callback=lambda state: state.sweep == 5, checkpoint=path)
    assert stopped.sweeps == 5
    found, seen = seen_by(lambda callback: cpals(X, 2, callback=callback, checkpoint=path))
    assert seen[0] == (0, 6)
    assert bits(found) == bits(cpals(X, 2))


def test_a_finished_fit_comes_back_at_once(path, monkeypatch):
    xarray = pytest.importorskip("xarray")
    data = xarray.DataArray(X, dims=("a", "b", "c"), coords={"a": list("abcdefghijkl")})
    fit = cp(data, 2, checkpoint=path)
    before = path.read_bytes()
    passes = []
    for name in ("normal_equations", "value", "slab_sums", "count_large_residuals"):
        real = getattr(DenseEngine, name)

        def counted(*arguments, real=real, **more):
            passes.append(real)
            return real(*arguments, **more)

        monkeypatch.setattr(DenseEngine, name, counted)
    monkeypatch.setattr(Solver, "advance", None)
    again, seen = seen_by(lambda callback: cp(data, 2, callback=callback, checkpoint=path))
    assert seen == []
    assert len(passes) <= 1
    assert bits(again) == bits(fit)
    assert (again.modes, again.labels) == (fit.modes, fit.labels)
    assert path.read_bytes() == before


@pytest.mark.parametrize("method", [cpal1, cpals])
@pytest.mark.parametrize("first", [1, 4, 9])
def test_more_sweeps_than_before(method, first, path):
    short = method(X, 2, starts=3, max_sweeps=first, checkpoint=path)
    assert bits(short) == bits(method(X, 2, starts=3, max_sweeps=first))
    found, seen = seen_by(
        lambda callback: method(X, 2, starts=3, callback=callback, checkpoint=path)
    )
    assert bits(found) == bits(method(X, 2, starts=3))
    assert (0, first + 1) in seen
    assert (0, first) not in seen
    assert bits(method(X, 2, starts=3, max_sweeps=2000, checkpoint=path)) == bits(found)


def test_writes_are_no_more_frequent_than_asked_for(path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    written = []
    monkeypatch.setattr(checkpoint, "write_record", lambda *_: written.append(now[0]))

    def later(state):
        now[0] += 7.0

    cpals(X, 2, max_sweeps=9, tol=0.0, callback=later, checkpoint=path)
    assert written == [35.0, 63.0]  # at the end of a sweep, and when it is done


def test_a_disk_that_is_full_does_not_end_the_fit(path, monkeypatch):
    cpals(X, 2, max_sweeps=3, checkpoint=path)
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="checkpoint: .*No space left") as caught:
        found = cpals(X, 2, checkpoint=Checkpoint(path, every=0))
    assert len(caught) == 1
    assert bits(found) == bits(cpals(X, 2))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


# What is refused


FIRST = {"method": cpal1, "X": X, "rank": 2, "max_sweeps": 6}
OTHER = np.random.default_rng(0).standard_normal(X.shape)
SLIGHTLY = X.copy()
SLIGHTLY[0, 0, 0] += 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": cpals}, "method 'cpal1', not 'cpals'"),
        ({"rank": 3}, "rank 2, not 3"),
        ({"X": X[:-1]}, r"shape \(12, 11, 10\), not \(11, 11, 10\)"),
        ({"X": X.astype(np.float32)}, "dtype"),
        ({"X": OTHER}, "other data"),
        ({"X": SLIGHTLY}, "other data"),
        ({"X": 2 * X}, "other data"),
        ({"X": np.where(X[1, 1, 1] == X, np.nan, X)}, "other data"),
        ({"tol": 1e-4}, "tol 1e-05, not 0.0001"),
        ({"epsilon": 1e-6}, "epsilon 1e-10, not 1e-06"),
        ({"mu": 1e-4}, "mu 1e-08, not 0.0001"),
        ({"smoothing": "fixed"}, "smoothing 'continuation', not 'fixed'"),
        ({"inner": 2}, "inner 1, not 2"),
        ({"starts": 2}, "starts"),
        ({"init": "random"}, "starts"),
        ({"init": SIM.truth}, "other init"),
        ({"rng": 1}, "other rng"),
        ({"max_sweeps": 5}, "max_sweeps 6, not 5"),
    ],
)
def test_another_fit_is_refused(changes, message, path):
    def fit(method, X, rank, **options):
        return method(X, rank, checkpoint=path, **options)

    fit(**FIRST)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^checkpoint: .*{message}") as refusal:
        fit(**FIRST | changes)
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nonnegative": True}, "constraints"),
        ({"fixed": (0,)}, "modes to solve for"),
        ({"loss": Huber(0.2)}, r"loss Huber\(delta=0.3\), not Huber\(delta=0.2\)"),
        ({"loss": None}, "loss"),
        ({"loss": [Huber(0.3), Welsch(1.0)]}, "loss"),
        ({"loss": [Stage("Huber", Single(Huber(0.3)), 1e-5, mu=1.0)]}, "other loss"),
        ({"init": "auto"}, "other init"),
        ({"init": [2 * A for A in SIM.truth.factors]}, "other init"),
    ],
)
def test_another_fit_by_cp_is_refused(changes, message, path):
    first = {"loss": Huber(0.3), "init": list(SIM.truth.factors), "max_sweeps": 3}
    cp(X, 2, checkpoint=path, **first)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^checkpoint: .*{message}"):
        cp(X, 2, checkpoint=path, **first | changes)
    assert path.read_bytes() == before


def test_a_torn_file_is_never_taken_for_a_whole_one(path):
    cpals(X, 2, max_sweeps=5, checkpoint=path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    torn = [whole[: len(whole) * percent // 100] for percent in range(0, 100, 10)]
    torn += [whole[:-1], whole + b"\0", b""]
    for at in [*range(100), *rng.integers(len(whole), size=100)]:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << rng.integers(8)
        torn.append(bytes(flipped))
    for content in torn:
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"^checkpoint: .*is not a checkpoint that can be used"
        ):
            cpals(X, 2, checkpoint=path)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    assert bits(cpals(X, 2, checkpoint=path)) == bits(cpals(X, 2))


def sealed(*arrays):
    """A file with a valid digest, of any arrays."""
    body = io.BytesIO()
    for array in arrays:
        np.lib.format.write_array(body, array, allow_pickle=True)
    digest = hashlib.sha256(body.getvalue()).hexdigest()
    return f"{checkpoint.CHECKPOINT_TITLE}\n{digest}\n".encode() + body.getvalue()


class Trap:
    def __reduce__(self):
        return (warnings.warn, ("a pickle was opened",))


@pytest.mark.parametrize(
    "arrays",
    [
        [np.array([Trap()], dtype=object)],
        [np.frombuffer(b'[1, {"options": {}}]', np.uint8), np.array([Trap()], dtype=object)],
        [np.frombuffer(b"[0, {}]", np.uint8)],
        [np.frombuffer(b"not JSON", np.uint8)],
        [],
    ],
    ids=["pickle", "pickle after", "empty", "not JSON", "nothing"],
)
def test_a_sealed_file_of_something_else(arrays, path):
    content = sealed(*arrays)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^checkpoint: .*is not a checkpoint that can be used"):
        cpals(X, 2, checkpoint=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["fit", "npy", "text"])
def test_other_files_are_not_overwritten(kind, tmp_path):
    path = tmp_path / {"fit": "fit.npz", "npy": "x.npy", "text": "x.txt"}[kind]
    if kind == "fit":
        robustcp.save(cpals(X, 2), path)
    elif kind == "npy":
        np.save(path, X)
    else:
        path.write_text("something")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is not a checkpoint that can be used"):
        cpals(X, 2, checkpoint=path)
    assert path.read_bytes() == before


def test_a_path_that_cannot_be_written_is_refused_before_the_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(Solver, "start", None)
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, message in [
        (folder, "is a folder"),
        (tmp_path / "none" / "x", "there is no folder"),
        (Path(os.devnull), "is not a regular file"),
    ]:
        with pytest.raises(ValueError, match=f"^checkpoint: .*{message}"):
            cpals(X, 2, checkpoint=path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"^checkpoint: .*Permission denied"):
        cpals(X, 2, checkpoint=tmp_path / "x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cpals(X, 2, checkpoint=3), "checkpoint: must be a path or a Checkpoint, got 3"),
        (lambda: Checkpoint("x", every=-1), "every: must be a number >= 0"),
        (lambda: Checkpoint("x", every="often"), "every: must be a number >= 0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_other_versions_go_on_with_a_note(path, monkeypatch):
    cpals(X, 2, max_sweeps=5, checkpoint=path)
    now = checkpoint.versions()
    monkeypatch.setattr(checkpoint, "versions", lambda: now | {"numpy": "99.0"})
    found = cpals(X, 2, checkpoint=path)
    assert found.notes[0] == f"continued from a checkpoint of numpy {np.__version__}"
    assert bits(replace(found, notes=found.notes[1:])) == bits(cpals(X, 2))


# The command line


@pytest.fixture
def file(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def run(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


def one_line(done, message, code=2):
    assert done.exit_code == code, done.output
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def signalled(name, arguments):
    """The command, which gets a signal in its tenth sweep."""
    program = f"""
import os, signal, sys
import robustcp as m

def signalled(X, rank, **options):
    def after_sweep(state):
        if state.sweep == 10:
            os.kill(os.getpid(), signal.{name})

    return cp(X, rank, callback=after_sweep, **options)

cp, m.cp, sys.argv = m.cp, signalled, {["robustcp", *map(str, arguments)]!r}
from robustcp.cli import main
main()
"""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class TestCommand:
    @pytest.mark.process
    @POSIX
    @pytest.mark.parametrize(
        ("name", "code"), [("SIGINT", 1), ("SIGTERM", 128 + signal.SIGTERM), ("SIGHUP", 129)]
    )
    def test_a_signal_and_then_on(self, name, code, file, path, tmp_path):
        out = tmp_path / "fit.npz"
        arguments = ["fit", file, "--rank", 2, "--out", out, "--checkpoint", path, "-q"]
        done = signalled(name, arguments)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == 1
        assert f"goes on from {path}" in done.stderr
        assert out.exists() == (name == "SIGINT")
        again = run(*arguments, "--force")
        assert again.exit_code == 0, again.output
        assert bits(robustcp.load(out)) == bits(cp(X, 2, rng=0))
        before = out.read_bytes()
        assert run(*arguments, "--force").exit_code == 0
        assert bits(robustcp.load(out)) == bits(cp(X, 2, rng=0))
        assert len(before) == len(out.read_bytes())

    def test_inputs_and_outputs_are_no_checkpoints(self, file, path, tmp_path):
        fit, out = ["fit", file, "--rank", 2, "--force"], tmp_path / "f.npz"
        before = file.read_bytes()
        one_line(run(*fit, "--out", out, "--checkpoint", file), "is an input")
        one_line(run(*fit, "--out", out, "--checkpoint", out), "is the same file as")
        one_line(run(*fit, "--out", out, "--checkpoint", tmp_path), "is a folder")
        path.write_text("something")
        refusal = f"--checkpoint: {path}: is not a checkpoint"
        one_line(run(*fit, "--out", out, "--checkpoint", path), refusal)
        assert path.read_text() == "something"
        assert file.read_bytes() == before
        assert not out.exists()

    def test_another_fit(self, file, path, tmp_path):
        fit = ["fit", file, "--out", tmp_path / "f.npz", "--force", "--checkpoint", path, "-q"]
        assert run(*fit, "--rank", 2).exit_code == 0
        one_line(run(*fit, "--rank", 3), f"--checkpoint: {path}: is of a fit with rank 2, not 3")


# Files of earlier versions


EARLIER = Path(__file__).with_name("files")
SMALL = np.round(robustcp.simulate((6, 5, 4), 2, eta=0.2, gamma=1.0, rng=0).data, 6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "search_2.ckpt",
            "in the search for starts, after",
        ),  # runs only if sums have the same bits
        ("sweeps_2.ckpt", "start 1, stage 'refinement', level 1, after sweep 20"),
    ],
)
def test_a_fit_of_version_2_goes_on(name, message, path, caplog):
    path.write_bytes((EARLIER / name).read_bytes())
    with caplog.at_level("INFO", "robustcp.persist.checkpoint"):
        fit = cp(SMALL, 2, checkpoint=path)
    assert message in caplog.text
    straight = cp(SMALL, 2)
    assert robustcp.factor_match_score(fit, straight) > 1 - 1e-6
    assert fit.noise.sigma == pytest.approx(straight.noise.sigma, rel=1e-6)
    assert cp(SMALL, 2, checkpoint=path).objective == fit.objective


def test_a_finished_fit_of_version_2_comes_back(path):
    path.write_bytes((EARLIER / "finished_2.ckpt").read_bytes())
    fit = cpals(SMALL, 1, max_sweeps=4, checkpoint=path)
    assert path.read_bytes() == (EARLIER / "finished_2.ckpt").read_bytes()
    assert (fit.sweeps, fit.starts.reached, len(fit.trace)) == (4, 1, 4)
    assert fit.objective == pytest.approx(cpals(SMALL, 1, max_sweeps=4).objective, rel=1e-9)


def test_a_rank_profile_of_version_1_goes_on(path, monkeypatch, caplog):
    path.write_bytes((EARLIER / "rank_1.ckpt").read_bytes())
    saved = checkpoint.CheckpointContent.read(path)
    monkeypatch.setattr(rank_checkpoint, "versions", lambda: saved.versions)
    with caplog.at_level("INFO", "robustcp.inference.rank_checkpoint"):
        found = robustcp.rank_profile(SMALL, [1, 2], jobs=1, folds=3, checkpoint=path)
    assert "1 of 4 climbs are done" in caplog.text
    assert found.rank == robustcp.rank_profile(SMALL, [1, 2], jobs=1, folds=3).rank
