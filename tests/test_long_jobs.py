"""Long jobs at the command line: killed at any moment they go on, and they say how far they are."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import robustcp
from robustcp._util import progress
from robustcp.cli import app
from robustcp.inference import rank_profile
from robustcp.persist.checkpoint import CheckpointContent
from support.kill_and_resume import bits

SLOW = pytest.mark.slow
SIM = robustcp.simulate((40, 30, 25), 3, eta=0.2, gamma=1.0, rng=0)


def command(*arguments):
    return [sys.executable, "-m", "robustcp", *map(str, arguments)]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "x.npy"
    np.save(path, SIM.data)
    return path


def killed(arguments, kept, seconds):
    """Begin a command and kill it some time after its first checkpoint, if it still runs."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not kept.exists():
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    process.wait()


def where(path):
    """Where a checkpoint says that the fit is, read from the file by itself."""
    done = dict(CheckpointContent.read(path).progress["dict"])
    if done["fit"] is not None:
        return "the fit is finished"
    if done["runs"]:
        return f"after sweep {done['runs'][-1]['with']['state']['with']['sweep']}$"
    ended = sum(run["with"]["state"] is None for _, run in done["search"]["dict"])
    return f"in the search for starts, after {ended} runs"


@pytest.mark.slow  # it depends on when the command is killed
@pytest.mark.parametrize("kills", [3, 30])
def test_killed_at_random_moments_the_same_command_ends_at_the_same_bits(kills, file, tmp_path):
    def arguments(number):
        out, kept = tmp_path / f"{number}.npz", tmp_path / f"{number}.ckpt"
        return ["fit", file, "--rank", 3, "--out", out, "--checkpoint", kept,
                "--checkpoint-every", 0, "--log-every", 0]  # fmt: skip

    process = subprocess.Popen(command(*arguments("straight")), stdout=subprocess.DEVNULL)
    begin = time.perf_counter()
    while process.poll() is None:
        if not (tmp_path / "straight.ckpt").exists():
            begin = time.perf_counter()
        time.sleep(0.002)
    whole = time.perf_counter() - begin
    assert process.returncode == 0
    straight = bits(robustcp.load(tmp_path / "straight.npz"))
    rng = np.random.default_rng(kills)
    for number in range(kills):
        kept = tmp_path / f"{number}.ckpt"
        killed(arguments(number), kept, whole * rng.random())
        expected = where(kept)
        done = subprocess.run(
            command(*arguments(number)), check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert bits(robustcp.load(tmp_path / f"{number}.npz")) == straight
        told = [line for line in done.stderr.splitlines() if str(kept) in line]
        assert len(told) == 1, done.stderr
        assert re.search(expected, told[0]), (expected, told)


@pytest.mark.recovery
def test_a_profile_of_ranks_that_is_interrupted_goes_on(tmp_path, monkeypatch, caplog):
    data, kept = SIM.data[:14, :12, :10], tmp_path / "rank.ckpt"
    straight, done = robustcp.rank_profile(data, range(1, 4), jobs=1), []

    class Interrupted(Exception):  # noqa: N818
        pass

    def interrupt(count, total):
        if count == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        robustcp.rank_profile(data, range(1, 4), jobs=1, checkpoint=kept, progress=interrupt)
    real = rank_profile.RankPathTask.run
    monkeypatch.setattr(
        rank_profile.RankPathTask, "run", lambda task: done.append(task) or real(task)
    )
    with caplog.at_level("INFO", "robustcp.inference.rank_checkpoint"):
        told = []
        found = robustcp.rank_profile(
            data, range(1, 4), jobs=1, checkpoint=kept, progress=lambda *one: told.append(one)
        )
    assert len(done) == 4
    assert told == [(k, 6) for k in range(3, 7)]
    assert found == straight
    assert "2 of 6 climbs are done" in caplog.text
    with pytest.raises(ValueError, match=r"^checkpoint: .*with other data"):
        robustcp.rank_profile(data + 1, range(1, 4), jobs=1, checkpoint=kept)
    with pytest.raises(ValueError, match=r"^checkpoint: .*with folds 5, not 3"):
        robustcp.rank_profile(data, range(1, 4), jobs=1, checkpoint=kept, folds=3)
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"^checkpoint: .*is not a checkpoint that can be used"):
        robustcp.rank_profile(data, range(1, 4), jobs=1, checkpoint=kept)


# What is said


def test_the_library_logs_where_a_fit_is_and_prints_nothing(caplog, capfd):
    with caplog.at_level("DEBUG", "robustcp"):
        fit = robustcp.cp(SIM.data, 3)
    names = {record.name for record in caplog.records}
    assert {"robustcp.estimators.driver", "robustcp.starts.search_log"} <= names
    sweeps = [r for r in caplog.records if hasattr(r, "step") and r.name.endswith(".driver")]
    assert len(sweeps) == fit.sweeps
    for record, objective in zip(sweeps, fit.trace, strict=True):
        assert record.step.objective == objective
        # a bound that is none would be nonsense: the sweeps that are left, and no others
        assert record.step.bound_reason == f" for {1000 - sweeps.index(record) - 1} sweeps"
    told = [r.getMessage() for r in sweeps if r.levelname == "INFO"]
    assert len(told) == sum(f", level {k}," in line for k in range(1, 20) for line in told)
    assert any("stage 'refinement' (2 of 2), level 1" in line for line in told)
    assert capfd.readouterr() == ("", "")


@pytest.mark.recovery
def test_reasons_to_doubt_a_fit_are_logged(caplog):
    X = np.random.default_rng(0).standard_normal((12, 11, 10))
    fit = robustcp.cp(X, 2)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert fit.warnings
    assert told == [str(warning) for warning in fit.warnings]


def test_the_log_numbers_starts_from_1(caplog):
    with caplog.at_level("INFO", "robustcp.estimators.driver"):
        robustcp.cpals(SIM.data, 1, starts=2)
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if line.startswith("search for")] == [
        "search for start 1", "search for start 2",
    ]  # fmt: skip
    assert [line.split(":")[0] for line in told if "after" in line] == ["start 1", "start 2"]


@pytest.mark.parametrize(
    ("falls", "expected"),
    [([1e-2, 1e-3], 2.0), ([1e-2, 5e-3, 2.5e-3], np.log2(250)), ([1e-3], None),
     ([1e-3, 2e-3], None), ([1e-3, 0.0], None), ([np.inf, 1e-3], None)],
)  # fmt: skip
def test_when_a_level_ends_if_progress_slows_down_as_it_does(falls, expected):
    trend = progress.ConvergenceTrend()
    for k, fall in enumerate([0.5, *falls]):
        trend.add(fall, first=k < 2)
    assert trend.sweeps_left(1e-5) == (
        pytest.approx(expected) if expected else pytest.approx(np.nan, nan_ok=True)
    )


def test_an_estimate_that_is_exceeded_is_none():
    step = progress.ProgressReport("L1", seconds_left=5.0, max_seconds_left=60.0)
    assert step.after(2.0).time_left == "about 3 s, at most 58 s"
    assert step.after(7.0).time_left == "at most 53 s"
    assert step.after(70.0).time_left == "at most 1 s"
    assert progress.ProgressReport("search").after(3.0).time_left == "not known yet"


@pytest.mark.process
def test_lines_without_a_terminal(file, tmp_path):
    out = tmp_path / "fit.npz"
    arguments = ["fit", file, "--rank", 3, "--out", out, "--log-every", 0.05]
    done = subprocess.run(command(*arguments), check=True, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert len(lines) > 1
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d robustcp: .*; time left: .*so far$", line)
    for more in (["--quiet"], ["--log-every", 0]):
        done = subprocess.run(
            command(*arguments, "--force", *more), check=True, capture_output=True, text=True
        )
        assert done.stderr == ""


def at_a_terminal(arguments):
    """What a command writes to a terminal on standard error."""
    import pty

    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # nobody writes to it any more
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
@pytest.mark.parametrize(
    ("arguments", "size", "doing"),
    [(["fit", "--rank", 6], 90, "stage 'L1'"), (["rank", "--most", 2], 20, "of 6 done")],
)
def test_a_bar_at_a_terminal(arguments, size, doing, tmp_path):
    name, *more = arguments
    out = ["--out", tmp_path / "fit.npz"] if name == "fit" else []
    # large enough for the bar, which looks ten times a second, to see a stage
    np.save(tmp_path / "x.npy", robustcp.simulate((size,) * 3, 6, eta=0.2, gamma=2.0, rng=0).data)
    said = at_a_terminal([name, tmp_path / "x.npy", *more, *out])
    assert doing in said
    assert "left: " in said
    assert "\x1b[" in said


# Data in chunks


def refused(arguments, message):
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr


@pytest.fixture(scope="module")
def chunks(file):
    zarr = pytest.importorskip("zarr")
    path = file.with_name("x.zarr")
    stored = zarr.create_array(str(path), shape=SIM.data.shape, chunks=(20, 15, 25), dtype="f8")
    stored[:] = SIM.data
    return path


@pytest.mark.process
def test_where_passes_are_done_is_refused_if_it_makes_no_sense(file, chunks, tmp_path):
    pytest.importorskip("distributed")
    out = ["--rank", 3, "--out", tmp_path / "fit.npz"]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes calls and says nothing
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        refused(["fit", chunks, *out, "--scheduler", address], f"nobody answers at '{address}'")
    refused(["fit", chunks, *out, "--scheduler", address], f"nobody answers at '{address}'")
    refused(["fit", chunks, *out, "--scheduler", "somewhere"], "nobody answers at 'somewhere'")
    both = ["--scheduler", address, "--workers", 2]
    refused(["fit", chunks, *out, *both], "give one of them")
    refused(["fit", chunks, *out, "--memory", "2 pounds"], "--memory: must be a size")
    refused(["fit", chunks, *out, "--memory", "100kB"], "--memory: 100 KB is too little")
    for option in (["--memory", "2GB"], ["--workers", 2], ["--scheduler", address]):
        refused(["fit", file, *out, *option], f"{option[0]}: is for data in chunks")
    assert not list(tmp_path.iterdir())


@pytest.mark.cluster
def test_workers_give_the_bits_that_threads_give(chunks, tmp_path):
    pytest.importorskip("distributed")
    found = []
    for more in (["--memory", "2GB"], ["--workers", 2]):
        out = tmp_path / f"{len(found)}.npz"
        arguments = ["fit", chunks, "--rank", 3, "--out", out, "--quiet", *more]
        done = subprocess.run(command(*arguments), check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        found.append(robustcp.load(out))
    assert bits(found[0]) == bits(found[1])
    assert robustcp.factor_match_score(found[0], robustcp.cp(SIM.data, 3, rng=0)) > 1 - 1e-6
