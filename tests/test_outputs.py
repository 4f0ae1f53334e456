"""What commands write: never over what they read, whole or not at all, and one line if it fails."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import robustcp
from robustcp.cli import app
from robustcp.persist.errors import OutputError, WriteError
from robustcp.persist.writing import (
    Outputs,
    make_folder,
    open_atomic,
    open_atomic_together,
    write_bytes,
)
from robustcp.studies import demo, paper, trials
from robustcp.studies.results_file import ResultsFile, Task, run_tasks
from support.formats import FORMATS

nibabel = pytest.importorskip("nibabel")
pytest.importorskip("xarray")
av = pytest.importorskip("av")

POSIX = pytest.mark.skipif(os.name != "posix", reason="links and permissions of POSIX")


def run(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


# The table: every command that writes


@dataclass(frozen=True)
class Writing:
    """A command, one of the files that it writes, and what it reads."""

    arguments: Callable[[dict[str, Path], Path], list]
    output: str
    reads: tuple[str, ...] = ()
    folder: bool = False
    always_forced: bool = False

    def command(self, sources, output, *more):
        """The arguments, for a file to write; commands with a folder are given that."""
        forced = [] if self.always_forced else list(more)
        return [*self.arguments(sources, output.parent if self.folder else output), *forced]


FIT = ["--rank", 2, "--method", "cpals", "--max-sweeps", 200, "-q"]


def fitted(suffix):
    return Writing(lambda read, out: ["fit", read["x"], *FIT, "--out", out], f"o{suffix}", ("x",))


def mapped(*more):
    return lambda read, out: [
        "fit", read["scan.nii"], *FIT, "--mask-file", read["mask.nii"], "--maps", out, *more,
        "--out", read["free"] / "fit.npz",
    ]  # fmt: skip


def plotted(name):
    return Writing(
        lambda read, out: ["fit", read["x"], *FIT, "--out", read["free"] / "f.npz", "--plot", out],
        name, ("x",), folder=True,
    )  # fmt: skip


def separated(name):
    return Writing(
        lambda read, out: ["video", read["clip"], "--rank", 1, "--out", out, "-q"],
        name, ("clip",), folder=True,
    )  # fmt: skip


def studied(suffix):
    return Writing(
        lambda read, out: ["reproduce", "tiny", "--out", out], f"tiny{suffix}",
        folder=True, always_forced=True,
    )  # fmt: skip


def tried(suffix):
    return Writing(
        lambda read, out: ["trials", "counts", "--methods", "cp", "--seeds", 1, "--out", out],
        f"trials{suffix}", folder=True, always_forced=True,
    )  # fmt: skip


WRITING = {
    "fit .npz": fitted(".npz"),
    "fit .nc": fitted(".nc"),
    "fit --maps": Writing(mapped(), "m.nii", ("scan.nii", "mask.nii")),
    "fit --maps, flat": Writing(mapped("--flatten"), "m.nii.gz"),
    "fit --weights": Writing(
        lambda read, out: ["fit", read["x"], *FIT, "--weights", read["w"], "--out", out],
        "o.npz", ("x", "w"),
    ),
    "fit --plot, components": plotted("components.png"),
    "fit --plot, last mode": plotted("outliers_2.png"),
    "rank --plot": Writing(
        lambda read, out: ["rank", read["x"], "--most", 1, "--plot", out], "rank.png", ("x",),
        folder=True,
    ),
    "outliers": Writing(
        lambda read, out: ["outliers", read["x"], read["fit"], "--out", out], "o.npy", ("x", "fit")
    ),
    "simulate": Writing(
        lambda read, out: ["simulate", "--shape", "4x4x4", "--rank", 1, "--out", out], "o.npz"
    ),
    "video, picture": separated("background.png"),
    "video, mask": separated("foreground.mp4"),
    "video, all": separated("side_by_side.mp4"),
    "demo": Writing(
        lambda read, out: ["demo", "--out", out], "factor.png", folder=True, always_forced=True
    ),
    "reproduce, table": studied(".csv"),
    "reproduce, picture": studied(".png"),
    "reproduce, summary": studied(".md"),
    "trials, table": tried(".csv"),
    "trials, summary": tried(".md"),
}  # fmt: skip
READING = [(name, role) for name, case in WRITING.items() for role in case.reads]

every_command = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.pictures] if "--plot" in name else [])
        for name, case in WRITING.items()
    ],
)
every_input = pytest.mark.parametrize(
    ("case", "role"),
    [(WRITING[name], role) for name, role in READING],
    ids=[f"{name}: {role}" for name, role in READING],
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """What the commands read, made once."""
    folder = tmp_path_factory.mktemp("originals")
    X = robustcp.simulate((8, 7, 6), 2, eta=0.1, gamma=1.0, rng=0).data
    np.save(folder / "x.npy", X)
    np.save(folder / "w.npy", np.ones((7, 6)))
    robustcp.save(robustcp.cpals(X, 2), folder / "fit.npz")
    scan = robustcp.simulate((4, 4, 4, 6), 2, eta=0.0, gamma=0.0, rng=0).data
    nibabel.save(nibabel.Nifti1Image(scan, np.eye(4)), folder / "scan.nii")
    nibabel.save(nibabel.Nifti1Image(np.ones((4, 4, 4), np.uint8), np.eye(4)), folder / "mask.nii")
    rng = np.random.default_rng(0)
    with av.open(str(folder / "clip.avi"), "w") as container:
        stream = container.add_stream("mpeg4", 10)
        stream.height, stream.width, stream.pix_fmt = 16, 16, "yuv420p"
        for _ in range(6):
            picture = rng.integers(0, 255, (16, 16, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return {path.stem if path.suffix != ".nii" else path.name: path for path in folder.iterdir()}


@pytest.fixture
def sources(originals, tmp_path):
    """What the commands read, each in a folder of its own, and a folder that is free."""
    found = {}
    for role, path in originals.items():
        (tmp_path / "in" / role).mkdir(parents=True)
        found[role] = tmp_path / "in" / role / path.name
        found[role].write_bytes(path.read_bytes())
    (tmp_path / "free").mkdir()
    return found | {"free": tmp_path / "free"}


@pytest.fixture(autouse=True)
def small_studies(monkeypatch, originals):
    """The demo on a small tensor, and a study that takes no time."""
    run_demo = demo.run

    def small_demo(seed):
        with monkeypatch.context() as patch:
            patch.setattr(demo, "METHODS", dict.fromkeys(("CPALS", "CPAL1"), demo.cpals))
            patch.setattr(
                demo, "simulate", lambda *_, **__: robustcp.simulate((8, 8, 8), 5, eta=0.1, gamma=1)
            )
            return run_demo(seed)

    def draw(rows):
        from matplotlib.figure import Figure

        return Figure()

    tiny = paper.Study(
        "tiny", "A tiny study", "Nothing.", lambda scale: [paper.Task("tiny", 0, "a=1", "cp")],
        a_row, draw, lambda rows: "one row\n", is_timed=True,
    )  # fmt: skip
    monkeypatch.setattr(demo, "run", small_demo)
    monkeypatch.setitem(paper.STUDIES, "tiny", tiny)
    quick = replace(
        trials.STUDY,
        run_task=lambda task: dict.fromkeys(trials.TRIAL_COLUMNS, "1.0") | a_row(task),
        draw=draw,
        is_timed=True,
    )
    monkeypatch.setattr(trials, "STUDY", quick)


def a_row(task):
    """What a study could write for a task."""
    numbers = dict.fromkeys(("fms", "fms_unweighted", "l1", "seconds", "objective"), "1.0")
    return {"study": task.study, "seed": str(task.seed), "settings": task.settings,
            "method": task.method, "sweeps": "1", "converged": "True", "status": "converged",
            **numbers}  # fmt: skip


def content(folder):
    """Every file and link under a folder."""
    return {
        path.relative_to(folder): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def refused(done, text):
    assert done.exit_code == 2, done.output
    assert text in done.stderr
    assert_one_line(done)


def assert_one_line(done):
    assert done.stderr.startswith("robustcp: ")
    assert done.stderr.count("\n") == 1


# Inputs are never lost


@POSIX
@every_input
@pytest.mark.parametrize("way", ["itself", "symbolic link", "hard link", "chain of links",
                                 "link to the folder", "other spelling", "relative"])  # fmt: skip
def test_an_output_that_is_an_input(case, role, way, sources, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    output = out / case.output
    if way in ("itself", "other spelling", "relative", "link to the folder"):
        sources[role] = sources[role].rename(output)
    elif way == "hard link":
        os.link(sources[role], output)
    elif way == "symbolic link":
        output.symlink_to(sources[role])
    else:
        (tmp_path / "between").symlink_to(sources[role])
        output.symlink_to("../between")
    if way == "other spelling":
        output = out / ".." / "out" / case.output
    elif way == "link to the folder":
        (tmp_path / "other").symlink_to(out)
        output = tmp_path / "other" / case.output
    elif way == "relative":
        monkeypatch.chdir(out)
        output = Path(case.output)
    before = content(tmp_path)
    refused(run(*case.command(sources, output, "--force")), "is an input, which would be lost")
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("in.npz", ["fit", "in.npz", *FIT, "--out", "in.npz"]),
        ("in.nc", ["fit", "in.nc", *FIT, "--out", "in.nc"]),
        ("in.nii", ["fit", "in.nii", *FIT, "--maps", "in.nii"]),
        ("in.zarr", ["fit", "in.zarr", *FIT, "--out", "in.zarr/fit.npz"]),
        ("in.zarr", ["fit", "in.zarr", *FIT, "--plot", "in.zarr"]),
        ("in.zarr", ["fit", "in.zarr", *FIT, "--plot", "in.zarr/new/pictures"]),
        ("in.zarr", ["rank", "in.zarr", "--most", 1, "--plot", "./in.zarr/X"]),
    ],
)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_real_formats(name, arguments, force, tmp_path, monkeypatch):
    writer = name.replace("in.", "x.")
    monkeypatch.chdir(tmp_path)
    X = robustcp.simulate((4, 4, 4, 6), 2, eta=0.0, gamma=0.0, rng=0).data
    FORMATS[writer](tmp_path / name, X[0] if "nii" not in name else X)
    before = content(tmp_path)
    refused(run(*arguments, *force), "is an input, which would be lost")
    assert content(tmp_path) == before


@POSIX
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_that_a_folder_of_inputs_links_to(link, tmp_path):
    FORMATS["x.zarr"](tmp_path / "x.zarr", np.ones((3, 3, 3)))
    chunk = next(path for path in (tmp_path / "x.zarr" / "X").rglob("*") if path.is_file())
    output = tmp_path / "o.npz"
    if link is os.link:
        os.link(chunk, output)
    else:
        chunk.rename(output)
        chunk.symlink_to(output)
    before = content(tmp_path)
    done = run("fit", tmp_path / "x.zarr", *FIT, "--out", output, "--force")
    refused(done, "is an input, which would be lost")
    assert content(tmp_path) == before


@POSIX
@pytest.mark.parametrize("exists", [False, True])
def test_two_outputs_that_are_one_file(exists, sources, tmp_path):
    target = tmp_path / "target"
    for name in ("o.npz", "m.nii"):
        (tmp_path / name).symlink_to(target)
    if exists:
        target.write_text("before")
    before = content(tmp_path)
    done = run("fit", sources["scan.nii"], *FIT, "--out", tmp_path / "o.npz",
               "--maps", tmp_path / "m.nii", "--force")  # fmt: skip
    refused(done, "is the same file as ")
    assert content(tmp_path) == before


@POSIX
def test_the_library_does_not_overwrite_the_clip_either(sources, tmp_path):
    from robustcp.apps.video import separate

    (tmp_path / "foreground.mp4").symlink_to(sources["clip"])
    before = sources["clip"].read_bytes()
    with pytest.raises(OutputError, match=r"^out .*foreground\.mp4: is an input"):
        separate(sources["clip"], tmp_path)
    assert sources["clip"].read_bytes() == before


# Existing files


@every_command
def test_an_output_that_exists(case, sources, tmp_path):
    output = tmp_path / "out" / case.output
    output.parent.mkdir()
    output.write_text("before")
    before = content(tmp_path)
    done = run(*case.command(sources, output))
    if case.always_forced:
        assert done.exit_code == 0, done.output
        assert output.read_bytes() != b"before"
    else:
        refused(done, f"{output}: exists; --force replaces it")
        assert content(tmp_path) == before


@every_command
def test_force_replaces_it_and_keeps_its_permissions(case, sources, tmp_path):
    output = tmp_path / "out" / case.output
    output.parent.mkdir()
    output.write_text("before")
    output.chmod(0o664)  # which no usual umask gives
    done = run(*case.command(sources, output, "--force"))
    assert done.exit_code == 0, done.output
    assert output.stat().st_size > len("before")
    assert stat.S_IMODE(output.stat().st_mode) == 0o664


@POSIX
@every_command
@pytest.mark.parametrize("dangling", [True, False])
def test_a_link_is_followed_and_stays(case, dangling, sources, tmp_path):
    output, target = tmp_path / "out" / case.output, tmp_path / "elsewhere" / "target"
    output.parent.mkdir()
    target.parent.mkdir()
    output.symlink_to("../elsewhere/target")
    if not dangling:
        target.write_text("before")
    done = run(*case.command(sources, output, *([] if dangling else ["--force"])))
    assert done.exit_code == 0, done.output
    assert os.readlink(output) == "../elsewhere/target"
    assert target.stat().st_size > len("before")
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@every_command
def test_folders_are_made_only_for_what_is_written(case, sources, tmp_path):
    output = tmp_path / "new" / "folder" / case.output
    done = run(*case.command(sources, output))
    if case.folder:
        assert done.exit_code == 0, done.output
        assert output.stat().st_size > 0
    else:
        refused(done, f"{output}: there is no folder")
        assert not (tmp_path / "new").exists()


@every_command
@pytest.mark.parametrize("kind", ["folder", "circle", "pipe", "long"])
@POSIX
def test_what_can_be_no_output(case, kind, sources, tmp_path):
    output = tmp_path / "out" / case.output
    output.parent.mkdir()
    if kind == "folder":
        output.mkdir()
    elif kind == "circle":
        output.symlink_to(output)
    elif kind == "pipe":
        os.mkfifo(output)
    else:
        output.parent.rmdir()
        output = tmp_path / ("a" * 300) / case.output
    text = {"folder": "is a folder", "circle": "cannot be written (", "long": "cannot be written (",
            "pipe": "is not a regular file"}[kind]  # fmt: skip
    refused(run(*case.command(sources, output, "--force")), text)


# Machines that refuse


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """A folder whose disk is found to be full when files are synced to it."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to tell files apart")
    folder, sync = tmp_path / "disk", os.fsync
    folder.mkdir()

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    return folder


@pytest.fixture
def read_only_disk(tmp_path):
    """A folder that nobody may write to; permissions do not bind root, /proc does."""
    if os.geteuid() == 0:
        yield Path("/proc/self")
    else:
        folder = tmp_path / "disk"
        folder.mkdir(mode=0o500)
        yield folder
        folder.chmod(0o700)


def not_written(done):
    assert done.exit_code == 3, done.output
    assert "cannot be written (No space left on device)" in done.stderr
    assert_one_line(done)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where fits are kept that cannot be written."""
    folder = tmp_path / "kept"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@every_command
def test_a_full_disk(case, sources, full_disk, kept):
    not_written(run(*case.command(sources, full_disk / case.output)))
    if not case.output.endswith(".csv"):  # rows are appended to it
        assert not [path for path in full_disk.iterdir() if path.is_file()]
    # the other results of the same command
    assert not [path for path in sources["free"].iterdir() if path.name.startswith(".")]


@every_command
def test_a_full_disk_leaves_the_file_before(case, sources, tmp_path, full_disk, kept):
    output = full_disk / case.output
    output.write_text("before")
    not_written(run(*case.command(sources, output, "--force")))
    if not case.output.endswith(".csv"):  # rows are appended to it
        assert output.read_text() == "before"
    assert not list(tmp_path.rglob(".writing-*"))


@POSIX
@every_command
def test_a_read_only_disk_is_refused_before_any_work(case, sources, read_only_disk, monkeypatch):
    monkeypatch.setattr("robustcp.io.reading.read", None)
    refused(run(*case.command(sources, read_only_disk / case.output)), "cannot be written (")


class TestAFitThatCannotBeWritten:
    """It is kept in the temporary folder, whatever the reason."""

    def kept_fit(self, done, out, kept, reason):
        assert done.exit_code == 3, done.output
        assert_one_line(done)
        (path,) = kept.iterdir()
        expected = f"{out}: cannot be written ({reason}); the fit is kept in {path}"
        assert expected in done.stderr
        assert robustcp.load(path).rank == 2

    @pytest.mark.parametrize("suffix", [".npz", ".nc"])
    def test_a_full_disk(self, suffix, sources, full_disk, kept):
        out = full_disk / f"o{suffix}"
        done = run("fit", sources["x"], *FIT, "--out", out)
        self.kept_fit(done, out, kept, "No space left on device")

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES,
                                      errno.EIO])  # fmt: skip
    @pytest.mark.parametrize("suffix", [".npz", ".nc"])
    def test_whatever_the_system_says(self, code, suffix, sources, tmp_path, kept, monkeypatch):
        out, replaces = tmp_path / f"o{suffix}", os.replace

        def refuse(source, target):
            if Path(target) == out:
                raise OSError(code, os.strerror(code))
            replaces(source, target)

        monkeypatch.setattr(os, "replace", refuse)
        done = run("fit", sources["x"], *FIT, "--out", out)
        self.kept_fit(done, out, kept, os.strerror(code))
        assert not list(tmp_path.glob(".writing-*"))

    def test_a_folder_that_vanished(self, sources, tmp_path, kept, monkeypatch):
        out = tmp_path / "out" / "fit.npz"
        out.parent.mkdir()
        cpals = robustcp.cpals

        def vanishing(*arguments, **options):
            out.parent.rmdir()
            return cpals(*arguments, **options)

        monkeypatch.setattr("robustcp.cpals", vanishing)
        done = run("fit", sources["x"], *FIT, "--out", out)
        self.kept_fit(done, out, kept, "No such file or directory")

    def test_no_memory_for_the_file(self, sources, tmp_path, kept, monkeypatch):
        def exhausted(fit):
            raise MemoryError

        monkeypatch.setattr("robustcp.persist.formats.netcdf.netcdf_bytes", exhausted)
        done = run("fit", sources["x"], *FIT, "--out", tmp_path / "fit.nc")
        self.kept_fit(done, tmp_path / "fit.nc", kept, "MemoryError")

    def test_nowhere_to_keep_it(self, sources, full_disk, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(full_disk))
        done = run("fit", sources["x"], *FIT, "--out", full_disk / "fit.npz")
        not_written(done)
        assert "the fit is lost: it cannot be kept elsewhere either (" in done.stderr
        assert list(full_disk.iterdir()) == []

    def test_pictures_that_cannot_be_written_leave_the_fit(self, sources, full_disk):
        out = sources["free"] / "f.npz"
        done = run("fit", sources["x"], *FIT, "--out", out, "--plot", full_disk)
        not_written(done)
        assert f"; the fit is in {out}" in done.stderr
        assert robustcp.load(out).rank == 2


def test_stopped_while_pictures_are_drawn(sources, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("robustcp.plot.components", interrupted)
    out = sources["free"] / "f.npz"
    done = run("fit", sources["x"], *FIT, "--out", out, "--plot", sources["free"])
    assert done.exit_code == 130
    assert done.stderr == f"robustcp: stopped; the fit is in {out}\n"
    assert robustcp.load(out).rank == 2


def test_not_enough_memory(sources, tmp_path, monkeypatch):
    def exhausted(*arguments, **options):
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr("robustcp.cpals", exhausted)
    done = run("fit", sources["x"], *FIT, "--out", tmp_path / "fit.npz")
    assert done.exit_code == 4
    assert done.stderr == "robustcp: not enough memory (Unable to allocate 8.00 TiB)\n"
    assert not (tmp_path / "fit.npz").exists()


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_results_that_cannot_be_printed(sources):
    command = [sys.executable, "-m", "robustcp", "fit", sources["x"], "--rank", "2", "--json",
               "--max-sweeps", "1", "--out", sources["free"] / "fit.npz"]  # fmt: skip
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            list(map(str, command)), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env=buffered,
        )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr == "robustcp: the results cannot be printed (No space left on device)\n"
    assert robustcp.load(sources["free"] / "fit.npz").rank == 2


@pytest.mark.process
@POSIX
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_no_half_written_files(name, sources, tmp_path):
    program = f"""
import os, signal, sys
from robustcp.apps import video

video._write_image = lambda *_: os.kill(os.getpid(), signal.{name})
sys.argv = ["robustcp", "video", {str(sources["clip"])!r}, "--rank", "1", "--force",
            "--out", {str(tmp_path / "out")!r}]
from robustcp.cli import main
main()
"""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "foreground.mp4").write_text("before")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert "Traceback" not in done.stderr
    assert content(tmp_path / "out") == {Path("foreground.mp4"): b"before"}


class TestLedger:
    TASKS = tuple(Task("study", seed, "eta=0.1", "CPALS") for seed in range(3))

    def test_a_row_that_has_room_for_a_part_only(self, tmp_path):
        resource = pytest.importorskip("resource", reason="limits of POSIX")
        ledger = ResultsFile(tmp_path / "x.csv")
        ledger.append(a_row(self.TASKS[0]))
        long = a_row(self.TASKS[1]) | {"status": "s" * 5000}
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(WriteError, match=r"x\.csv: cannot be written \(File too large"):
                ledger.append(long)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert ledger.path.stat().st_size == 4096  # as much of it as there is room for
        (tmp_path / "y.csv").write_bytes(ledger.path.read_bytes())
        assert list(ResultsFile(tmp_path / "y.csv").load()) == [self.TASKS[0].key]

    @pytest.mark.process
    def test_a_process_that_is_killed(self, tmp_path):
        with pytest.raises(MemoryError, match="a process was killed"):
            run_tasks(self.TASKS, killed, ResultsFile(tmp_path / "x.csv"), 1, lambda: None)


def killed(task):
    """What happens to a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


# The writer itself


class TestWhole:
    @POSIX
    def test_a_new_file_has_the_permissions_of_the_umask(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_bytes(tmp_path / "x", b"new")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640

    @POSIX
    def test_what_others_may_not_read_is_never_open_to_them(self, tmp_path):
        (tmp_path / "x").touch(mode=0o600)
        with open_atomic(tmp_path / "x") as file:
            file.write(b"new")
            (temporary,) = tmp_path.glob(".writing-*")
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may")
    def test_the_owner_stays(self, tmp_path):
        (tmp_path / "x").touch()
        os.chown(tmp_path / "x", 12, 34)
        write_bytes(tmp_path / "x", b"new")
        found = (tmp_path / "x").stat()
        assert (found.st_uid, found.st_gid, found.st_size) == (12, 34, 3)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
    def test_what_breaks_leaves_the_file_of_before(self, error, tmp_path):
        (tmp_path / "x").write_text("before")

        def breaking():
            with open_atomic(tmp_path / "x") as file:
                file.write(b"half")
                raise error

        with pytest.raises(error):
            breaking()
        assert content(tmp_path) == {Path("x"): b"before"}

    def test_several_files_get_their_names_together(self, tmp_path):
        with open_atomic_together(tmp_path / "a", tmp_path / "b") as (a, b):
            a.write(b"1")
            b.write(b"2")
            assert not (tmp_path / "a").exists()
        assert content(tmp_path) == {Path("a"): b"1", Path("b"): b"2"}

    def test_one_that_fails_takes_the_others_with_it(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_text("before")
        calls = []

        def second_fails(descriptor):
            calls.append(descriptor)
            if len(calls) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", second_fails)

        def write():
            with open_atomic_together(tmp_path / "a", tmp_path / "b") as (a, b):
                a.write(b"1")
                b.write(b"2")

        with pytest.raises(WriteError, match=r"b: cannot be written"):
            write()
        assert content(tmp_path) == {Path("a"): b"before"}

    @POSIX
    def test_a_folder_behind_a_dangling_link(self, tmp_path):
        (tmp_path / "link").symlink_to("target")
        assert make_folder(tmp_path / "link").is_dir()
        assert (tmp_path / "target").is_dir()

    def test_outputs_that_do_not_meet(self, tmp_path):
        (tmp_path / "x").touch()
        outputs = Outputs(tmp_path / "x", None)
        outputs.add("out", tmp_path / "y")
        outputs.add_folder("plot", tmp_path / "p" / "q", ["a", "b"])
        assert content(tmp_path) == {Path("x"): b""}
        with pytest.raises(
            OutputError, match=r"^out .*y: is the same file as .*, which is also written"
        ):
            outputs.add("out", tmp_path / "p" / ".." / "y")
