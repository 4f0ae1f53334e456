"""The commands, as they are used: files in, a summary and a fit out, one line when input is bad."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import robustcp
from robustcp.cli import app
from support.formats import FORMATS, OPTIONS

pytest.importorskip("xarray")


def run(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


def process(*arguments, **options):
    command = [sys.executable, "-m", "robustcp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def tensor():
    return robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data


@pytest.fixture
def file(tmp_path, tensor):
    np.save(tmp_path / "x.npy", tensor)
    return tmp_path / "x.npy"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A folder with data whose samples differ in noise, one of them far noisier than the rest."""
    import xarray

    folder, rng = tmp_path_factory.mktemp("uneven"), np.random.default_rng(0)
    truth = robustcp.simulate((14, 12, 11), 2, eta=0.0, gamma=0.0, rng=0).truth.full()
    spread = np.geomspace(0.05, 0.2, 14)[:, None, None]
    spread[4] = 4.0
    X = truth + spread * rng.standard_normal(truth.shape)
    names = [f"s{k}" for k in range(14)]
    labelled = xarray.DataArray(X, dims=("sample", "time", "pixel"), coords={"sample": names})
    labelled.to_netcdf(folder / "x.nc", engine="h5netcdf")
    np.save(folder / "sd.npy", spread)
    FORMATS["x.csv"](folder / "sd.csv", np.broadcast_to(spread, X.shape))
    return folder


class TestFit:
    @pytest.mark.parametrize("name", FORMATS)
    def test_every_format_gives_the_same_fit(self, tmp_path, tensor, name):
        path = tmp_path / name
        FORMATS[name](path, tensor)
        said = [f"--{option}" for option in OPTIONS.get(name, {})]
        done = run("fit", path, "--rank", 2, "--out", tmp_path / "fit.npz", "--quiet", *said)
        assert done.exit_code == 0, done.output
        fit, expected = robustcp.load(tmp_path / "fit.npz"), robustcp.cp(tensor, 2, rng=0)
        assert robustcp.factor_match_score(fit, expected) > 1 - 1e-9

    @pytest.mark.parametrize("method", ["cp", "cpal1", "cpals"])
    def test_summary(self, file, tmp_path, method):
        out = tmp_path / "fit.npz"
        done = run("fit", file, "--rank", 2, "--method", method, "--out", out)
        assert done.exit_code == 0, done.output
        for part in (
            "12x11x10, rank 2: converged",
            "component 1:",
            "noise: standard deviation ",
            "outliers: ",
            "most flagged of mode 2",
        ):
            assert part in done.stdout
        assert "\x1b[" not in done.stdout

    def test_json(self, file, tmp_path):
        done = run("fit", file, "--rank", 2, "--out", tmp_path / "fit.npz", "--json")
        found = json.loads(done.stdout)
        assert found["converged"]
        assert found["rank"] == len(found["components"]) == 2
        assert found["outlier_share"] == pytest.approx(0.1, abs=0.05)

    @pytest.mark.parametrize(
        ("option", "modes", "signal"),
        [
            ("auto", ["sample"], False),
            ("common", [], False),
            ("slabs", ["sample", "time", "pixel"], False),
            ("signal*slabs", ["sample", "time", "pixel"], True),
            ("sample", ["sample"], False),
            ("pixel, 1", ["time", "pixel"], False),
            ("0", ["sample"], False),
        ],
    )
    def test_noise(self, uneven, option, modes, signal):
        out = uneven / "fit.npz"
        done = run("fit", uneven / "x.nc", "--rank", 2, "--noise", option, "--out", out,
                   "--force", "--json")  # fmt: skip
        assert done.exit_code == 0, done.output
        noise, fit = json.loads(done.stdout)["noise"], robustcp.load(out)
        assert noise["modes"] == list(noise["slabs"]) == modes
        assert noise["signal"] in (signal, fit.noise.kind.signal)
        assert not noise["known"]
        assert noise["words"] == fit.noise.words(fit.modes)
        assert noise["sigma"] == pytest.approx(fit.noise.sigma)
        variance = fit.noise.variance[0] * fit.noise.sigma**2
        assert noise["variance"]["a"] == pytest.approx(variance)
        if "sample" in modes:
            assert noise["slabs"]["sample"]["min"] == pytest.approx(fit.noise.slabs[0].min())
            assert noise["slabs"]["sample"]["max"] == pytest.approx(fit.noise.slabs[0].max())
            assert noise["outlying_slabs"] == {"sample": ["s4"]}
        else:
            assert noise["outlying_slabs"] == {}

    def test_cases(self, tmp_path):
        rng = np.random.default_rng(0)
        A, B, C = (rng.standard_normal((n, 2)) for n in (20, 9, 8))
        X = np.einsum("ar,br,cr->abc", A, B, C) + 0.05 * rng.standard_normal((20, 9, 8))
        X[[3, 7, 11]] += 4.0
        np.save(tmp_path / "x.npy", X)
        file, out = tmp_path / "x.npy", tmp_path / "fit.npz"
        done = run("fit", file, "--rank", 2, "--cases", "0=0.3", "--out", out)
        assert done.exit_code == 0, done.output
        assert "bad as a whole, of mode 0: 3, 7, 11\n" in done.stdout
        done = run("fit", file, "--rank", 2, "--cases", 0, "--out", out, "--force", "--json")
        assert json.loads(done.stdout)["cases"]["bad"] == [3, 7, 11]
        for given in ("x", "0=0.9", "0=a", "7"):
            failed = run("fit", file, "--rank", 2, "--cases", given, "--out", out, "--force")
            assert failed.exit_code == 2
            assert "--cases" in failed.output

    def test_warnings(self, tmp_path):
        sim = robustcp.simulate((20, 20, 20), 3, eta=0.1, gamma=2.0, rng=0)
        np.save(tmp_path / "x.npy", sim.data)
        file, out = tmp_path / "x.npy", tmp_path / "fit.npz"
        done = run("fit", file, "--rank", 2, "--out", out)
        assert "20x20x20, rank 2: converged\n" in done.stdout
        assert "\nwarning: residuals are structured:" in done.stdout
        told = json.loads(run("fit", file, "--rank", 2, "--out", out, "--force", "--json").stdout)
        assert told["warnings"][0]["code"] == "structured"
        done = run("fit", file, "--rank", 3, "--out", out, "--force")
        assert "warning:" not in done.stdout

    def test_noise_in_words(self, uneven):
        out = uneven / "fit.npz"
        done = run("fit", uneven / "x.nc", "--rank", 2, "--out", out, "--force")
        again = run("outliers", uneven / "x.nc", out)
        for text in (done.stdout, again.stdout):
            assert "noise: standard deviation" in text
            assert "differs between the slabs of sample; sample:" in text
            assert "far more noise than the others of sample: s4\n" in text
        assert "beyond 3.29 standard deviations of their noise" in again.stdout
        assert "sigma" not in done.stdout + again.stdout
        found = json.loads(run("outliers", uneven / "x.nc", out, "--json").stdout)["noise"]
        assert found["modes"] == ["sample"]
        assert found["outlying_slabs"] == {"sample": ["s4"]}

    def test_noise_where_it_was_not_asked_for_is_that_of_the_outliers(self, uneven):
        out = uneven / "fit.npz"
        file = uneven / "x.nc"
        done = run("fit", file, "--rank", 2, "--method", "cpal1", "--out", out,
                   "--force", "--json")  # fmt: skip
        noise = json.loads(done.stdout)["noise"]
        assert "sample" in noise["modes"]
        assert noise == json.loads(run("outliers", file, out, "--json").stdout)["noise"]

    @pytest.mark.parametrize("name", ["sd.npy", "sd.csv", "0.1"])
    def test_known_standard_deviations(self, uneven, name):
        out, known = uneven / "fit.npz", uneven / name if "sd" in name else name
        done = run("fit", uneven / "x.nc", "--rank", 2, "--noise", known, "--out", out,
                   "--force", "--json")  # fmt: skip
        assert done.exit_code == 0, done.output
        noise = json.loads(done.stdout)["noise"]
        assert noise["known"]
        assert noise["words"].endswith(", known")
        X = robustcp.read(uneven / "x.nc").data
        expected = np.load(uneven / "sd.npy") if "sd" in name else 0.1
        sigma = robustcp.load(out).sigma(X)
        np.testing.assert_allclose(sigma, np.broadcast_to(expected, X.shape))

    @pytest.mark.parametrize("share", [0.45, 0.7])
    def test_known_standard_deviations_of_listed_entries(self, tmp_path, tensor, share):
        seen = np.random.default_rng(0).random(tensor.shape) < share
        spread = 0.05 + 0.1 * np.random.default_rng(1).random(tensor.shape)
        for name, values in (("x.tns", tensor), ("sd.tns", spread)):
            rows = [(*(at + 1), values[tuple(at)]) for at in np.argwhere(seen)]
            lines = (" ".join(map(repr, map(float, row))) for row in rows)
            (tmp_path / name).write_text("\n".join(line.replace(".0 ", " ") for line in lines))
        done = run("fit", tmp_path / "x.tns", "--rank", 2, "--absent", "missing",
                   "--noise", tmp_path / "sd.tns", "--out", tmp_path / "fit.npz")  # fmt: skip
        assert done.exit_code == 0, done.output
        assert "known" in done.stdout
        X = robustcp.read(tmp_path / "x.tns", absent="missing").data
        usual = np.where(seen, spread, np.median(spread[seen]))
        known = spread[tuple(X.indices.T)] if share < 0.5 else usual
        expected = robustcp.cp(X, 2, noise=known, rng=0)
        fit = robustcp.load(tmp_path / "fit.npz")
        assert fit.explained == pytest.approx(expected.explained)
        assert robustcp.factor_match_score(fit, expected) > 1 - 1e-9

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (np.ones((4, 3)), "--noise: standard deviations of shape (4, 3) do not broadcast"),
            (np.eye(11, 10), "--noise: standard deviations must be positive and finite, got 0"),
            (-np.ones((11, 10)), "--noise: standard deviations must not be negative, got -1"),
            (np.full((11, 10), np.nan), "--noise: standard deviations must not be NaN"),
        ],
    )
    def test_bad_standard_deviations(self, file, tmp_path, values, message):
        np.save(tmp_path / "sd.npy", values)
        out = tmp_path / "fit.npz"
        done = run("fit", file, "--rank", 2, "--noise", tmp_path / "sd.npy", "--out", out)
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert not out.exists()

    def test_standard_deviations_are_an_input(self, file, tmp_path):
        sd = tmp_path / "sd.npz"
        np.savez(sd, sd=np.ones((12, 1, 1)))
        done = run("fit", file, "--rank", 2, "--noise", sd, "--out", sd, "--force")
        assert done.exit_code == 2
        assert "is an input, which would be lost" in done.stderr

    def test_not_converged_is_written_and_exits_with_1(self, file, tmp_path):
        out = tmp_path / "fit.npz"
        done = run("fit", file, "--rank", 2, "--max-sweeps", 2, "--out", out, "--method", "cpal1")
        assert done.exit_code == 1
        assert not robustcp.load(out).converged

    def test_constraints(self, file, tmp_path, tensor):
        out = tmp_path / "fit.npz"
        options = ("--smooth", "0=0.5", "--smooth", "mode 1=2", "--unimodal", "2", "--nonnegative")
        done = run("fit", file, "--rank", 2, "--out", out, *options)
        assert done.exit_code == 0, done.output
        kinds = (robustcp.Smooth(0.5, True), robustcp.Smooth(2.0, True), robustcp.Unimodal())
        assert robustcp.load(out).constraints == kinds
        done = run("fit", file, "--rank", 2, "--out", out, "--force", "--method", "cpals",
                   "--smooth", "mode 1=2")  # fmt: skip
        expected = robustcp.cpals(tensor, 2, constraints={1: robustcp.Smooth(2.0)}, rng=0)
        np.testing.assert_allclose(robustcp.load(out).weights, expected.weights)

    def test_labels_reach_the_summary(self, tmp_path, tensor):
        FORMATS["x.csv"](tmp_path / "x.csv", tensor)
        done = run("fit", tmp_path / "x.csv", "--rank", 2, "--out", tmp_path / "fit.nc")
        assert "most flagged of mode_0: a0" in done.stdout
        assert robustcp.load(tmp_path / "fit.nc").labels[0][0] == "a000"

    def test_weights(self, file, tmp_path, tensor):
        w = np.ones((1, 11, 1))
        w[0, 3] = 5.0
        np.save(tmp_path / "w.npy", w)
        out = tmp_path / "fit.npz"
        done = run(
            "fit", file, "--rank", 2, "--method", "cpals", "--weights", tmp_path / "w.npy",
            "--out", out,
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        expected = robustcp.cpals(tensor, 2, entry_weights=w, rng=0)
        assert robustcp.load(out).objective == pytest.approx(expected.objective)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (np.ones((4, 3)), "w.npy: weights of shape (4, 3) do not broadcast"),
            (-np.ones((11, 10)), "w.npy: weights must not be negative, got -1 at (0, 0)"),
        ],
    )
    def test_bad_weights(self, file, tmp_path, weights, message):
        np.save(tmp_path / "w.npy", weights)
        out = tmp_path / "fit.npz"
        done = run("fit", file, "--rank", 2, "--weights", tmp_path / "w.npy", "--out", out)
        assert done.exit_code == 2
        assert message in done.stderr
        assert not out.exists()

    def test_pictures(self, file, tmp_path):
        done = run("fit", file, "--rank", 2, "--out", tmp_path / "f.npz", "--plot", tmp_path / "p")
        assert done.exit_code == 0, done.output
        names = {path.name for path in (tmp_path / "p").iterdir()}
        assert {"components.png", "convergence.png", "outliers_0.png"} <= names

    @pytest.mark.process
    @pytest.mark.skipif(sys.platform == "win32", reason="signals")
    def test_control_c_writes_what_there_is(self, tmp_path):
        X = robustcp.simulate((60, 60, 60), 4, eta=0.2, gamma=1.0, rng=0).data
        np.save(tmp_path / "x.npy", X)
        out = tmp_path / "fit.npz"
        command = [sys.executable, "-m", "robustcp", "fit", str(tmp_path / "x.npy"), "--rank", "6",
                   "--method", "cpals", "--max-sweeps", "1000000", "--out", str(out)]  # fmt: skip
        program = f"""
import os, signal, sys
import robustcp as m

def interrupted(X, rank, **options):
    def after_sweep(state):
        if state.sweep == 20:
            os.kill(os.getpid(), signal.SIGINT)

    return cpals(X, rank, callback=after_sweep, tol=0.0, **options)

cpals, m.cpals, sys.argv = m.cpals, interrupted, {command[2:]!r}
from robustcp.cli import main
main()
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        found = robustcp.load(out)
        assert found.status.startswith("stopped by Ctrl-C before it converged")
        assert found.sweeps == 20


class TestImages:
    nibabel = pytest.importorskip("nibabel")

    @pytest.fixture
    def scan(self, tmp_path):
        X = robustcp.simulate((6, 7, 5, 9), 2, eta=0.0, gamma=0.0, rng=0).data
        affine = np.diag([2.0, 2.0, 3.0, 1.0])
        self.nibabel.save(self.nibabel.Nifti1Image(X, affine), tmp_path / "scan.nii.gz")
        mask = np.ones(X.shape[:3], np.uint8)
        mask[0] = 0
        self.nibabel.save(self.nibabel.Nifti1Image(mask, affine), tmp_path / "mask.nii")
        return tmp_path

    @pytest.mark.parametrize("flatten", [False, True])
    def test_masks_and_maps(self, scan, flatten):
        maps = scan / "maps.nii.gz"
        more = ["--flatten"] if flatten else []
        done = run("fit", scan / "scan.nii.gz", "--rank", 2, "--mask-file", scan / "mask.nii",
                   "--out", scan / "fit.npz", "--maps", maps, *more)  # fmt: skip
        assert done.exit_code == 0, done.output
        image = self.nibabel.load(maps)
        assert image.shape == (6, 7, 5, 2)
        np.testing.assert_array_equal(image.affine, np.diag([2.0, 2.0, 3.0, 1.0]))
        assert robustcp.load(scan / "fit.npz").shape == (
            (175 + 35 - 35, 9) if flatten else (6, 7, 5, 9)
        )

    @pytest.mark.pictures
    @pytest.mark.parametrize("shape", [(6, 7, 5, 1), (1, 1, 1, 9), (6, 7, 5, 2), (175, 1)])
    def test_weights_of_a_flattened_image(self, scan, shape):
        np.save(scan / "w.npy", np.arange(1.0, 1 + np.prod(shape)).reshape(shape))
        done = run("fit", scan / "scan.nii.gz", "--rank", 2, "--mask-file", scan / "mask.nii",
                   "--flatten", "--weights", scan / "w.npy", "--out", scan / "fit.npz")  # fmt: skip
        assert done.exit_code == (2 if shape[-1] == 2 else 0), done.output
        if shape[-1] == 2:
            assert "w.npy: weights of shape (6, 7, 5, 2) do not fit the image" in done.stderr

    def test_a_mask_of_another_shape(self, scan):
        wrong = self.nibabel.Nifti1Image(np.ones((2, 2, 2)), np.eye(4))
        self.nibabel.save(wrong, scan / "wrong.nii")
        done = run("fit", scan / "scan.nii.gz", "--rank", 2, "--mask-file", scan / "wrong.nii")
        assert done.exit_code == 2
        assert "has shape (2, 2, 2), the image has (6, 7, 5)" in done.stderr


class TestOthers:
    @pytest.mark.recovery
    def test_rank(self, file):
        found = json.loads(run("rank", file, "--most", 3, "--json").stdout)
        assert found["rank"] == 2
        assert len(found["ranks"]) == 3

    def test_simulate_fit_outliers_compare(self, tmp_path):
        sim, out = tmp_path / "t.npz", tmp_path / "fit.npz"
        assert run("simulate", "--shape", "15x14x13", "--rank", 2, "--out", sim).exit_code == 0
        assert run("fit", sim, "--key", "data", "--rank", 2, "--out", out, "-q").exit_code == 0
        score = json.loads(run("compare", out, sim, "--json").stdout)
        assert score["factor_match_score"] > 0.95
        flags = tmp_path / "flags.npy"
        done = run("outliers", sim, out, "--key", "data", "--out", flags, "--json")
        assert json.loads(done.stdout)["share"] == pytest.approx(0.2, abs=0.03)
        truth = np.load(sim)["artifacts"]
        assert np.load(flags)[truth].mean() > 0.99

    @pytest.mark.process
    def test_help_has_an_example_and_is_quick(self):
        for command in (
            "fit",
            "rank",
            "outliers",
            "distances",
            "compare",
            "simulate",
            "video",
            "reproduce",
            "trials",
            "demo",
        ):
            assert "Example: robustcp" in " ".join(run(command, "--help").stdout.split())
        assert process("--help").returncode == 0
        code = (
            "import sys; sys.argv = ['robustcp', '--help']\nfrom robustcp.cli import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "heavy = {'numba', 'matplotlib', 'pandas', 'xarray', 'scipy.optimize'}\n"
            "print(sorted(heavy & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip().endswith("[]"), done.stdout[-200:]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nowhere.npy", "--rank", "2"], "nowhere.npy: there is no such file"),
            (["no.npz", "--rank", "2", "--out", "no.npz"], "no.npz: there is no such file"),
            (["{file}", "--rank", "0"], "--rank 0: must be at least 1"),
            (
                ["{file}", "--rank", "1000"],
                "--rank 1000: a tensor of 12x11x10 has at most rank 110",
            ),
            (["{file}", "--rank", "2", "--method", "svd"], "--method svd: must be"),
            (["{file}", "--rank", "2", "--out", "fit.txt"], "fit.txt: a fit is written as"),
            (["{file}", "--rank", "2", "--out", "/no/such/fit.npz"], "there is no folder"),
            (["{file}", "--rank", "2", "--absent", "maybe"], "--absent maybe: must be"),
            (["{file}", "--rank", "2", "--flatten"], "--flatten is for 4-D NIfTI images"),
            (["{file}", "--rank", "2", "--maps", "m.txt"], "m.txt: maps are written as"),
            (["{file}", "--rank", "2", "--starts", "0"], "starts: must be"),
            (
                ["{file}", "--rank", "2", "--noise", "auto", "--method", "cpal1"],
                "--noise: is for --method cp, not cpal1",
            ),
            (
                ["{file}", "--rank", "2", "--noise", "loud"],
                "--noise loud: must be one of auto, common, slabs, signal, signal*slabs, mode 0, ",
            ),
            (["{file}", "--rank", "2", "--noise", "0,3"], "--noise: must be an integer from 0 to"),
            (["{file}", "--rank", "2", "--noise", "sd.npy"], "sd.npy: there is no such file"),
            (["{file}", "--rank", "2", "--smooth", "1"], "--smooth 1: must be MODE=STRENGTH"),
            (["{file}", "--rank", "2", "--smooth", "1=0"], "--smooth 1=0: strength: must be"),
            (["{file}", "--rank", "2", "--smooth", "7=1"], "constraints: a mode: must be"),
            (["{file}", "--rank", "2", "--unimodal", "time"], "no mode is named 'time'"),
            (
                ["{file}", "--rank", "2", "--unimodal", "1", "--smooth", "1=1"],
                "--unimodal 1: the mode has another constraint already",
            ),
            (["{file}", "--rank", "2", "--maps", "m.nii"], "--maps is for 4-D NIfTI images"),
            (["{file}", "--rank", "2", "--mask-file", "m.nii"], "--mask-file is for 4-D NIfTI"),
            (
                ["{file}", "--rank", "2", "--plot", "{file}/p"],
                "cannot be written (Not a directory)",
            ),
        ],
    )
    def test_one_line_and_exit_code_2(self, file, monkeypatch, arguments, message):
        monkeypatch.chdir(file.parent)
        done = run("fit", *(part.replace("{file}", str(file)) for part in arguments))
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("robustcp: ")
        assert sorted(path.name for path in file.parent.iterdir()) == ["x.npy"]

    def test_arguments_of_the_library_are_options_here(self, tmp_path, tensor):
        np.savez(tmp_path / "x.npz", a=tensor, b=tensor)
        done = run("fit", tmp_path / "x.npz", "--rank", 2, "--out", tmp_path / "fit.npz")
        assert "x.npz: --key must name one of several arrays: a (12x11x10), b" in done.stderr
        (tmp_path / "x.tns").write_text("1 1 2 0.5\n2 3 1 1.0\n")
        done = run("fit", tmp_path / "x.tns", "--rank", 2, "--out", tmp_path / "fit.npz")
        assert "x.tns: --absent must say what" in done.stderr

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_an_out_that_cannot_be_written(self, file):
        file.parent.chmod(0o500)
        try:
            done = run("fit", file, "--rank", 2, "--out", file.parent / "fit.npz")
        finally:
            file.parent.chmod(0o700)
        assert done.exit_code == 2
        assert "cannot be written" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's peak memory")
def test_a_gigabyte_takes_little_more_than_itself(tmp_path):
    X = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (500, 500, 500))
    rng = np.random.default_rng(0)
    A, B, C = (rng.standard_normal((500, 3)) for _ in range(3))
    for i in range(500):
        X[i] = (A[i] * B) @ C.T + 0.1 * rng.standard_normal((500, 500))
    del X
    arguments = ["fit", str(tmp_path / "x.npy"), "--rank", "3", "--out", str(tmp_path / "f.npz")]
    code = (
        f"import sys; sys.argv = ['robustcp', *{arguments!r}]\nfrom robustcp.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "print(next(int(s.split()[1]) * 1024 for s in lines if s.startswith('VmHWM')))"
    )
    for _ in range(2):  # the first may compile
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert int(done.stdout.split()[-1]) <= 1.3e9


class TestOptions:
    @pytest.mark.parametrize(
        ("said", "modes"),
        [
            (["--nonnegative"], [0, 1, 2]),
            (["--nonnegative", "0,2"], [0, 2]),
            (["--nonnegative=1"], [1]),
            (["--constraint", "2=nonnegative", "--constraint", "0=unimodal"], [0, 2]),
            (["--constraint", "2=simplex", "--nonnegative=0", "--constraint=0=increasing"], [0, 2]),
            (["--nonnegative", "1", "--method", "cpals"], [1]),
        ],
    )
    def test_constraints(self, file, tmp_path, said, modes):
        np.save(file, np.abs(np.load(file)))
        done = run("fit", *said, file, "--rank", 1, "--out", tmp_path / "fit.npz", "-q")
        assert done.exit_code == 0, done.output
        constrained = robustcp.load(tmp_path / "fit.npz").constraints
        assert [n for n, one in enumerate(constrained) if not one.signed] == modes

    def test_kinds_of_constraints(self, file, tmp_path):
        known = np.r_[np.arange(10.0), np.nan]
        np.save(tmp_path / "known.npy", known)
        np.savetxt(tmp_path / "known.csv", np.stack([known, known**2], axis=1), delimiter=",")
        out, constraints = tmp_path / "fit.npz", []
        for kinds in (["orthogonal", f"fixed:{tmp_path / 'known.npy'}", "decreasing"],
                      ["l1:0.1", f"fixed:{tmp_path / 'known.csv'}", "cardinality:3"]):  # fmt: skip
            options = [f"--constraint={mode}={kind}" for mode, kind in enumerate(kinds)]
            done = run("fit", file, "--rank", 2, "--method", "cpal1", "--out", out, "--force",
                       "--max-sweeps", 3, "-q", *options)  # fmt: skip
            assert done.exit_code == 1, done.output
            constraints += robustcp.load(out).constraints
        assert constraints == [
            robustcp.Orthogonal(), robustcp.Fixed(known),
            robustcp.Monotone(increasing=False), robustcp.Sparse(l1=0.1),
            robustcp.Fixed(np.stack([known, known**2], axis=1)), robustcp.Sparse(cardinality=3),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            (["--rank", "two"], "'--rank'"),
            (["--rank", "2", "--colour", "red"], "No such option: --colour"),
            (["--rank", "2", "--fixed", "1"], "needs the fit whose factors are kept, --init FILE"),
            (["--rank", "2", "--init", "none.npz"], "none.npz: there is no such file"),
            (["--rank", "2", "--constraint", "1"], "--constraint 1: must be MODE=KIND"),
            (["--rank", "2", "--constraint", "1=rough"], "must be MODE=nonnegative, MODE=unimodal"),
            (["--rank", "2", "--constraint", "1=smooth:x"], "strength: must be"),
            (["--rank", "2", "--constraint", "1=cardinality:.5"], "cardinality: must be"),
            (["--rank", "2", "--constraint", "1=simplex:1"], "must be MODE=nonnegative"),
            (["--rank", "2", "--constraint", "1=fixed:none.npy"], "none.npy: there is no"),
            (["--rank", "2", "--constraint", "1=fixed:x.npy"], "values: must be columns"),
            (["--rank", "2", "--plot", "p", "--format", "gif"], "--format gif: must be png, svg"),
            (["--rank", "2", "--out", "fit.csv"], "robustcp export FIT --to fit.csv"),
            (["--rank", "2", "--stack"], "--stack is for tables, not for NumPy"),
            (["--rank", "2", "--init", "x.npy", "--fixed", "0,1,2"], "x.npy: "),
        ],
    )
    def test_one_line(self, file, monkeypatch, said, message):
        monkeypatch.chdir(file.parent)
        done = run("fit", file, *said)
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1

    def test_help_and_completion(self):
        for flag in ("-h", "--help"):
            assert "--nonnegative" in run("fit", flag).stdout
        assert "--install-completion" in run("-h").stdout


@pytest.mark.process
def test_a_fit_shows_what_it_took_to_compile(file, tmp_path):
    pytest.importorskip("numba")
    done = process("fit", file, "--rank", 1, "--out", tmp_path / "fit.npz",
                   env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")})  # fmt: skip
    assert "of them to compile code, which is kept" in done.stdout
