"""The commands of engineers: info, impute, runs of outliers, and what is read of a file."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import xarray
from scipy.io import loadmat

import robustcp
from robustcp.results.runs import find_runs
from test_cli import run

DAYS = np.arange("2024-03-10", "2024-04-09", dtype="datetime64[D]").astype("datetime64[ns]")
SHAPE = (12, 3, len(DAYS))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log with a sensor that reads too high for two weeks, with a gap; and its fit."""
    folder = tmp_path_factory.mktemp("log")
    X = robustcp.simulate(SHAPE, 2, eta=0, gamma=0, rng=0).truth.full()
    X += 0.02 * np.random.default_rng(0).standard_normal(SHAPE)
    X[4, 0, 7:24] += 3.0
    X[4, 0, 12] = np.nan
    X[7, 2, 3] -= 4.0
    coords = {
        "mote": np.arange(12) * 5,
        "quantity": ["temperature", "humidity", "light"],
        "time": DAYS,
    }
    array = xarray.DataArray(X, coords, tuple(coords), name="x")
    array.to_netcdf(folder / "log.nc", engine="h5netcdf")
    np.save(folder / "plain.npy", X)
    assert run("fit", folder / "log.nc", "--rank", 2, "--out", folder / "fit.npz").exit_code == 0
    return folder


class TestRuns:
    def test_rows_of_the_table(self, log, tmp_path):
        done = run("outliers", log / "log.nc", log / "fit.npz", "--csv", tmp_path / "runs.csv")
        assert done.exit_code == 0
        assert (
            "  mote 20, temperature, from 17 March 2024 to 2 April 2024, too high (16 entries, z up"
        ) in done.stdout
        rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
        assert {k: rows[0][k] for k in ("mote", "quantity", "along", "side", "entries")} == {
            "mote": "20", "quantity": "temperature", "along": "time", "side": "too high",
            "entries": "16",
        }  # fmt: skip
        assert [rows[0][k][:10] for k in ("from", "to")] == ["2024-03-17", "2024-04-02"]
        low = next(row for row in rows if row["mote"] == "35" and row["quantity"] == "light")
        assert low["side"] == "too low"
        assert float(low["largest z"]) < -10
        assert low["from"] == low["to"]

    def test_runs_hold_each_flagged_entry_once(self, log):
        X = robustcp.read(log / "log.nc")
        found = robustcp.load(log / "fit.npz").outliers(X)
        for along in range(3):
            runs = found.runs(along)
            assert sum(r.count for r in runs) == np.count_nonzero(found.mask)
            assert [r.count for r in runs] == sorted((r.count for r in runs), reverse=True)
        assert found.runs() == found.runs("time")

    def test_runs_by_a_loop(self):
        rng = np.random.default_rng(1)
        z = np.where(rng.random((4, 5, 9)) < 0.3, 5.0, 0.0) * rng.choice([-1, 1], (4, 5, 9))
        z[rng.random(z.shape) < 0.2] = np.nan
        scores = robustcp.as_engine(np.where(np.isnan(z), np.nan, z)).entries()
        axes = robustcp.engines.Axes(("a", "b", "c"), (None,) * 3)
        expected = []
        for i, j in np.ndindex(4, 5):
            last = 0.0
            for k in range(9):
                if np.isnan(z[i, j, k]):
                    continue
                side = np.sign(z[i, j, k])
                if side and side == last:
                    expected[-1][3:] = [k, expected[-1][4] + 1]
                elif side:
                    expected.append([i, j, k, k, 1])
                last = side
        runs = find_runs(scores, 3.0, 2, axes)
        found = [[r.fixed["a"], r.fixed["b"], r.start, r.end, r.count] for r in runs]
        assert sorted(found) == sorted(expected)

    def test_the_mode_of_runs_can_be_said(self, log):
        done = run("outliers", log / "log.nc", log / "fit.npz", "--along", "mote", "--json")
        assert {r["along"] for r in json.loads(done.stdout)["runs"]} == {"mote"}
        done = run("outliers", log / "log.nc", log / "fit.npz", "--csv", "runs.txt")
        assert done.exit_code == 2
        assert done.stderr == "robustcp: runs.txt: runs are written as .csv\n"


class TestImpute:
    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".mat", ".nc", ".csv"])
    def test_what_is_written_can_be_read(self, log, tmp_path, suffix):
        out = tmp_path / f"filled{suffix}"
        done = run("impute", log / "log.nc", "--fit", log / "fit.npz", "--out", out)
        assert done.exit_code == 0, done.stderr
        assert "filled: 1 entry" in done.stdout
        X = robustcp.read(log / "log.nc")
        filled = robustcp.read(out)
        expected = robustcp.load(log / "fit.npz").impute(X).data
        order = range(3)
        if suffix == ".csv":  # labels are in the order of the alphabet
            order = [sorted(X.labels[1]).index(label) for label in X.labels[1]]
        np.testing.assert_allclose(filled.data[:, list(order)], expected, rtol=1e-12)
        if suffix in (".nc", ".csv"):
            assert filled.modes == X.modes
        if suffix in (".nc", ".mat", ".csv"):
            assert [filled.labels[1][k] for k in order] == X.labels[1]

    def test_fits_where_no_fit_is_given(self, log, tmp_path):
        out = tmp_path / "filled.npy"
        done = run("impute", log / "plain.npy", "--rank", 2, "--out", out, "--flagged", "--json")
        said = json.loads(done.stdout)
        assert said["filled"] == 1
        assert said["replaced"] >= 17
        X = np.load(log / "plain.npy")
        fit = robustcp.cp(X, 2, rng=0)
        np.testing.assert_allclose(np.load(out), fit.impute(X, flagged=True), rtol=1e-9)

    def test_a_fit_that_does_not_converge(self, log, tmp_path, monkeypatch):
        from functools import partial

        monkeypatch.setattr(robustcp, "cpals", partial(robustcp.cpals, max_sweeps=1))
        options = ("--rank", 2, "--method", "cpals", "--out", tmp_path / "x.npy")
        done = run("impute", log / "plain.npy", *options)
        assert done.exit_code == 1
        assert "the fit did not converge" in done.stderr
        assert not np.isnan(np.load(tmp_path / "x.npy")).any()

    def test_standard_errors(self, log, tmp_path):
        out = tmp_path / "filled.npz"
        options = ("--fit", log / "fit.npz", "--out", out, "--uncertainty")
        assert run("impute", log / "log.nc", *options).exit_code == 0
        with np.load(out) as content:
            assert set(content) == {"data", "model_errors", "prediction_errors"}
            filled = ~np.isnan(content["model_errors"])
            assert np.argwhere(filled).tolist() == [[4, 0, 12]]
            assert content["prediction_errors"][filled] > content["model_errors"][filled]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "give one of --fit FIT, a fit of the file, and --rank, to fit it first"),
            (["--rank", 0], "--rank 0: must be at least 1"),
            (["--rank", 2, "--fit", "fit.npz"], "give one of --fit FIT"),
            (["--rank", 2, "--out", "x.xlsx"], "x.xlsx: a tensor is written as .npy, .npz, .mat"),
            (["--rank", 2, "--out", "x.npy", "--uncertainty"], "with its standard errors is"),
        ],
    )
    def test_one_line(self, log, tmp_path, options, message):
        done = run("impute", log / "plain.npy", "--out", tmp_path / "filled.npy", *options)
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


class TestInfo:
    def topics(self, *arguments):
        done = run("info", *arguments, "--json")
        assert done.exit_code == 0, done.stderr
        found = {}
        for finding in json.loads(done.stdout)["findings"]:
            found.setdefault(finding["topic"], []).append(finding)
        return found

    def test_shape_names_and_labels(self, log):
        done = run("info", log / "log.nc")
        assert "12x3x30, float64, 1080 entries" in done.stdout
        assert "temperature to light" in done.stdout
        assert done.stdout.rstrip().endswith(f"next: robustcp rank {log / 'log.nc'}")
        assert "names" not in self.topics(log / "log.nc")
        assert "name them: --modes" in self.topics(log / "plain.npy")["names"][0]["suggestion"]

    def test_missing_entries_zeros_and_fill_values(self, tmp_path):
        X = robustcp.simulate((10, 9, 8), 2, eta=0, gamma=0, rng=0).data.copy()
        X[2], X[0, :3, 0], X[5, 5] = np.nan, 0.0, -9999.0
        np.save(tmp_path / "x.npy", X)
        found = self.topics(tmp_path / "x.npy")
        assert found["missing"][0]["text"].startswith("72 (10.00%)")
        assert "1 of mode 0 have no observed entry (2)" in found["empty"][0]["text"]
        assert found["zeros"][0]["text"].startswith("3 (0.46%)")
        assert found["fill"][0]["suggestion"] == "--missing -9999"
        options = ("--missing", 0, "--missing", -9999)
        assert not {"zeros", "fill"} & set(self.topics(tmp_path / "x.npy", *options))

    @pytest.mark.parametrize("seed", range(5))
    def test_ordinary_data_has_nothing_to_look_out_for(self, tmp_path, seed):
        X = robustcp.simulate((20, 15, 12), 3, eta=0, gamma=0, rng=seed).data
        np.save(tmp_path / "x.npy", X)
        assert set(self.topics(tmp_path / "x.npy")) == {"names", "missing", "values"}

    def test_units_constant_fibres_gross_outliers_and_ceilings(self, tmp_path):
        rng = np.random.default_rng(0)
        X = robustcp.simulate((20, 4, 30), 2, eta=0, gamma=0, rng=0).data + 3
        units = X * np.array([1.0, 50.0, 1e3, 2.0])[None, :, None]
        units[3, 1, 5] = -4e5
        np.save(tmp_path / "units.npy", units)
        found = self.topics(tmp_path / "units.npy")
        assert "slabs of mode 1 differ" in found["units"][0]["text"]
        assert found["far values"][0]["text"].startswith("mode 1 1: 1 entry is far")
        stuck = X.copy()
        stuck[7, 2], stuck[3, 3, 3] = 5.5, 1e9
        np.save(tmp_path / "stuck.npy", stuck)
        found = self.topics(tmp_path / "stuck.npy")
        assert "the first: mode 0 7, mode 1 2" in found["constant"][0]["text"]
        assert found["gross outliers"][0]["text"].startswith("1 entry beyond")
        full = robustcp.simulate((30, 30, 30), 3, eta=0, gamma=0, rng=rng).truth.full()
        clipped = np.minimum(full, np.quantile(full, 0.85))
        np.save(tmp_path / "clipped.npy", clipped)
        assert (
            "entries are at a ceiling of"
            in self.topics(tmp_path / "clipped.npy")["ceiling"][0]["text"]
        )


class TestReading:
    def test_all_commands_take_parts_of_files(self, log, tmp_path):
        part = ("--select", "quantity=temperature,light", "--select", "mote=0:40")
        fit = tmp_path / "fit.npz"
        assert run("fit", log / "log.nc", "--rank", 1, "--out", fit, *part).exit_code in (0, 1)
        assert robustcp.load(fit).shape == (9, 2, 30)
        done = run("outliers", log / "log.nc", fit, *part)
        assert done.exit_code == 0, done.stderr
        done = run(
            "info", log / "plain.npy", "--modes", "mote,quantity,time", "--select", "mote=:5"
        )
        assert "5x3x30" in done.stdout

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--select", "mote"], "--select mote: must be MODE=LOW:HIGH, as in emission=250:450"),
            (
                ["--select", "mote=1:2"],
                "log.nc: --select mote=1:2 selects nothing; mote has 0 to 55",
            ),
            (["--select", "nm=1:2"], "--select must be"),
            (["--select", "mote=0:5", "--select", "mote=5:9"], "mote is given twice"),
            (["--modes", "a,b"], "log.nc: --modes must be 3 names, got 2"),
            (["--missing", "none"], "'--missing'"),
        ],
    )
    def test_one_line(self, log, options, message):
        done = run("info", log / "log.nc", *options)
        assert done.exit_code == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_labels_of_matlab_files(log, tmp_path):
    out = tmp_path / "filled.mat"
    run("impute", log / "log.nc", "--fit", log / "fit.npz", "--out", out)
    content = loadmat(out, squeeze_me=True)
    assert content["mote"].tolist() == list(range(0, 60, 5))
    assert content["quantity"].tolist() == ["temperature", "humidity", "light"]
