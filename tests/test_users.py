"""Sixty steps as three users would take them: a chemist, a neuroscientist and an engineer.

Each goes through the public API and the command line only, on small data. Steps that go wrong, as
they do in practice, must end in one line that says what to do.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from typer.testing import CliRunner

import robustcp
from robustcp.cli import app

pandas = pytest.importorskip("pandas")
xarray = pytest.importorskip("xarray")
mpl.use("Agg")


class Desk:
    """A user's folder, and what can be done there."""

    def __init__(self, folder):
        self.folder = folder

    def __truediv__(self, name):
        return self.folder / name

    def did(self, holds):
        """A step in Python, which holds."""
        assert holds
        return holds

    def run(self, line, *, code=0, says=""):
        """A command, with names of files in this folder; what it must say, and its exit code."""
        parts = [str(self.folder / part[1:]) if part[:1] == "@" else part for part in line.split()]
        done = CliRunner().invoke(app, parts)
        assert done.exit_code == code, (line, done.output)
        if code >= 2:
            assert done.stderr.startswith("robustcp: ")
            assert done.stderr.count("\n") == 1, done.stderr
            assert not done.stdout
        assert says in done.output, (line, done.output)
        return done.stdout

    def refused(self, call, *words):
        """A step in Python that is refused in one line, which has these words."""
        with pytest.raises((ValueError, TypeError, ImportError)) as caught:
            call()
        text = str(caught.value)
        assert "\n" not in text
        for word in words:
            assert word in text, text


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


def landscapes(folder, rng):
    """Twelve samples of two fluorophores, one file each, with spikes in sample S05."""
    emission, excitation = np.arange(300, 360, 4), np.arange(240, 290, 5)
    A = rng.uniform(0.5, 2.0, (12, 2))
    B = np.exp(-0.5 * ((emission[:, None] - [318, 340]) / [9, 11]) ** 2)
    C = np.exp(-0.5 * ((excitation[:, None] - [255, 275]) / [8, 7]) ** 2)
    X = 100 * np.einsum("ir,jr,kr->ijk", A, B, C)
    X += rng.standard_normal(X.shape)
    X[5] += np.where(rng.random(X[5].shape) < 0.2, 300, 0)
    folder.mkdir()
    for k, matrix in enumerate(X):
        table = pandas.DataFrame(matrix, pandas.Index(emission, name="Em/Ex"), excitation)
        table.to_csv(folder / f"S{k:02}.csv")
    return X, A


@pytest.mark.docs
def test_a_chemist_with_landscapes(desk):
    X, A = landscapes(desk / "eem", np.random.default_rng(0))
    names = "sample,emission,excitation"
    # 1-6: the folder is a tensor, and the fit knows wavelengths and samples
    data = robustcp.read(desk / "eem", modes=names.split(","))
    desk.did("\n" not in repr(data) and "emission (15)" in repr(data))
    fit = robustcp.cp(data, 2, nonnegative=True)
    desk.did(fit.labels[0][5] == "S05" and fit.labels[1][0] == 300)
    desk.did(fit.outliers(data).worst("sample")[0].label == "S05")
    desk.did(fit.outliers(data).scores_of({"sample": "S05"}).shape == (15, 10))
    concentrations = fit.to_frames()["sample"]
    desk.did(abs(np.corrcoef(concentrations.to_numpy().T, A.T)[0, 2:]).max() > 0.99)
    desk.did(len(robustcp.plot.slices(fit, data, "S05", mode="sample")) == 3)
    # 7-12: the same at the command line
    said = desk.run(f"fit @eem --modes {names} --rank 2 --nonnegative --out @fit.npz")
    assert "S05" in said
    desk.run("show @fit.npz", says="modes: sample (12), emission (15), excitation (10)")
    desk.run("export @fit.npz --to @fit.xlsx", says="written: ")
    sheet = pandas.read_excel(desk / "fit.xlsx", sheet_name="emission", index_col=0)
    desk.did(list(sheet.index) == list(range(300, 360, 4)))
    found = json.loads(desk.run(f"outliers @eem @fit.npz --modes {names} --json"))
    desk.did(next(row["label"] for row in found["worst"] if row["mode"] == "sample") == "S05")
    # 13-17: new samples, on the same wavelengths and on others
    new = xarray.DataArray(
        X[:2], dims=names.split(","), coords={"sample": ["N1", "N2"], "emission": fit.labels[1],
                                              "excitation": fit.labels[2]})  # fmt: skip
    new.to_netcdf(desk / "new.nc", engine="h5netcdf")
    scores = fit.project(new.transpose("excitation", "sample", "emission"), "sample")
    desk.did(np.allclose(scores, (fit.factors[0] * fit.weights)[:2], rtol=0.1))
    desk.run("project @fit.npz @new.nc --mode sample --out @scores.csv", says="N1")
    desk.did(list(pandas.read_csv(desk / "scores.csv")["sample"]) == ["N1", "N2"])
    other = new.assign_coords(emission=new.emission + 2)
    desk.refused(lambda: fit.project(other, "sample"), "emission has 302", "same labels")
    other.to_netcdf(desk / "other.nc", engine="h5netcdf")
    desk.run("project @fit.npz @other.nc --mode sample", code=2, says="the same labels")
    # 18-21: what goes wrong on the way
    desk.run("fit @eem --rank 2 --out @fit.npz", code=2, says="--force replaces it")
    desk.run(
        "fit @eem --rank 2 --nonnegative colour --out @x.npz", code=2, says="file, row, column"
    )
    table = pandas.read_csv(desk / "eem/S03.csv", index_col=0)
    table.index = table.index + 1
    table.to_csv(desk / "eem/S03.csv")
    desk.run("fit @eem --rank 2 --out @x.npz", code=2, says="S03 has other rows than S00")
    table.index = table.index - 1
    table = table.astype(object)
    table.iloc[2, 3] = "over"
    table.to_csv(desk / "eem/S03.csv")
    desk.run("fit @eem --rank 2 --out @x.npz", code=2, says="has 'over' in row 2, column 3")


def recording(rng):
    """Trials x neurons x time with two assemblies, labelled, and a trial full of artifacts."""
    time = np.round(np.arange(-0.2, 0.8, 0.05), 2)
    A = np.stack([np.linspace(1, 2, 18), np.tile([0.5, 1.5], 9)], axis=1)
    B = rng.gamma(2, 1, (14, 2))
    C = np.exp(-0.5 * ((time[:, None] - [0.1, 0.45]) / 0.1) ** 2)
    X = np.einsum("ir,jr,kr->ijk", A, B, C) + 0.05 * rng.standard_normal((18, 14, 20))
    X[7] += np.where(rng.random((14, 20)) < 0.3, 20.0, 0.0)
    X[2, 3, 4] = np.nan
    names = [f"u{k:02}" for k in range(14)]
    return X, time, names


@pytest.mark.docs
def test_a_neuroscientist_with_trials(desk):
    h5py = pytest.importorskip("h5py")
    X, time, names = recording(np.random.default_rng(1))
    with h5py.File(desk / "rec.h5", "w") as file:
        file["session/rates"], file["session/neuron"], file["session/time"] = X, names, time
        file["session/empty"] = h5py.Empty("f8")
    # 1-6: axes beside the array are its labels
    data = robustcp.read(desk / "rec.h5")
    desk.did(data.modes == ("mode 0", "neuron", "time"))
    desk.did(data.labels[1] == names and data.labels[2][0] == -0.2)
    da = xarray.DataArray(
        X, dims=("trial", "neuron", "time"), coords={"neuron": names, "time": time}
    )
    fit = robustcp.cp(da, 2, nonnegative=["neuron"], constraints={"time": robustcp.Smooth(0.01)})
    desk.did(fit.factors[1].min() >= 0)
    desk.did(fit.outliers(da).worst("trial")[0][0] == 7)
    desk.did(fit.to_xarray()["factor_2"].sel(time=0.1).shape == (2,))
    desk.did(fit.at([(3, "u05", 0.1)]).shape == (1,))
    # 7-10: data in another order is the same data
    turned = da.transpose("time", "trial", "neuron")
    desk.did(fit.outliers(turned).worst("trial")[0][0] == 7)
    desk.did(fit.outliers(turned).mask.shape == (20, 18, 14))
    mixed = da.isel(neuron=np.random.default_rng(0).permutation(14))
    at = [names.index(name) for name in mixed.neuron.values]
    desk.did(np.array_equal(fit.outliers(mixed).mask, fit.outliers(da).mask[:, at]))
    desk.refused(lambda: fit.outliers(da.rename(neuron="cell")), "trial, cell, time", "rename")
    # 11-13: the peers' tools take the fit
    tensorly = pytest.importorskip("tensorly")
    tlviz = pytest.importorskip("tlviz")
    full = np.nan_to_num(X)
    desk.did(np.allclose(tensorly.cp_to_tensor(fit), fit.full()))
    desk.did(tlviz.model_evaluation.core_consistency(fit, full) <= 100)
    score, order = robustcp.factor_match_score(
        robustcp.cp(da, 2), fit, skip_mode="trial", return_permutation=True
    )
    desk.did(score > 0.8 and sorted(order) == [0, 1])
    # 14-20: the command line, files out and back
    desk.run("fit @rec.h5 --rank 2 --nonnegative neuron --constraint time=smooth:0.01 --out @f.nc "
             "--plot @pictures --format svg")  # fmt: skip
    desk.did((desk / "pictures/components.svg").read_text().lstrip().startswith("<?xml"))
    desk.run("export @f.nc --to @f.mat", says="f.mat")
    from scipy.io import loadmat

    desk.did(loadmat(desk / "f.mat", simplify_cells=True)["labels"][1].tolist() == names)
    desk.run("compare @f.nc @f.mat", says="factor match score: 1.000000")
    desk.run("fit @rec.h5 --rank 2 --init @f.mat --fixed neuron,time --out @g.json")
    kept = json.loads((desk / "g.json").read_text())
    desk.did(kept["modes"][1]["labels"] == names)
    # 21-24: what goes wrong on the way
    desk.run("fit @rec.h5", code=2, says="Missing option '--rank'")
    desk.run("fti @rec.h5", code=2, says="No such command 'fti'")
    desk.run("fit @rec.h5 --key session.empty --rank 2 --out @x.npz", code=2, says="there are: ")
    desk.refused(
        lambda: fit.outliers(da).scores_of({"neuron": "u99"}), "a label of neuron", "'u00'"
    )


def log(rng):
    """A log of sensors: every hour of two weeks, a tenth lost, one sensor dead, one with spikes."""
    hours, days = np.arange(24), pandas.date_range("2026-01-01", periods=14).strftime("%Y-%m-%d")
    sun = np.clip(np.sin(np.pi * (hours - 6) / 12), 0, None)
    X = 15 + np.einsum("i,j,k->ijk", rng.uniform(2, 5, 9), rng.uniform(0.5, 1, 14), sun)
    X += 0.1 * rng.standard_normal(X.shape)
    X[4] += np.where(rng.random(X[4].shape) < 0.2, 30, 0)
    X[6] = 0.0
    sensors = ["NA", *(f"T{k}" for k in range(1, 9))]
    index = pandas.MultiIndex.from_product([sensors, days, hours], names=["sensor", "day", "hour"])
    rows = pandas.DataFrame({"value": X.ravel(), "unit": "C"}, index=index).reset_index()
    return rows.sample(frac=0.9, random_state=0)[["hour", "unit", "sensor", "day", "value"]]


@pytest.mark.docs
def test_an_engineer_with_a_log(desk):
    rows = log(np.random.default_rng(2))
    rows.to_csv(desk / "log.csv", index=False)
    choice = "--modes sensor,day,hour --value value"
    # 1-6: columns are chosen, and what is not there must be said
    desk.run(f"fit @log.csv {choice} --rank 2 --out @fit.npz", code=2, says="--absent must say")
    said = desk.run(f"fit @log.csv {choice} --absent missing --rank 2 --out @fit.npz")
    desk.did("sensor 'T6' never varies" in said)
    desk.did("T4" in said)
    data = robustcp.read(desk / "log.csv", modes=["sensor", "day", "hour"], value="value",
                         absent="missing")  # fmt: skip
    desk.did(data.labels[0][0] == "NA" and data.shape == (9, 14, 24))
    desk.run("fit @log.csv --modes sensor,tag --rank 2 --out @x.npz", code=2, says="'hour', 'unit'")
    # 7-11: the same from pandas
    table = rows[["sensor", "day", "hour", "value"]]
    fit = robustcp.cp(table, 2)
    desk.did(fit.modes == ("sensor", "day", "hour"))
    series = table.set_index(["sensor", "day", "hour"])["value"]
    desk.did(np.array_equal(robustcp.cp(series, 2).factors[0], fit.factors[0]))
    desk.did(fit.outliers(series).worst("sensor")[0].label == "T4")
    desk.did(fit.to_frames()["sensor"].index[0] == "NA")
    desk.refused(lambda: robustcp.cp(table.assign(hour=table["hour"].mask(table.index == 3)), 2),
                 "'hour' has a gap in row")  # fmt: skip
    # 12-17: tables as they come
    text = (desk / "log.csv").read_text().splitlines()
    (desk / "bare.csv").write_text("\n".join(text[1:]))
    bare = robustcp.read(desk / "bare.csv", modes=[2, 3, 0], value=4, absent="missing")
    desk.did(np.array_equal(np.isnan(bare.data), np.isnan(data.data)))
    (desk / "mixed.csv").write_text("\n".join([*text[:9], text[9].replace(",", ";"), *text[10:]]))
    desk.run(f"fit @mixed.csv {choice} --rank 2 --out @x.npz", code=2, says="line 10 has 1 fields")
    (desk / "gap.csv").write_text("\n".join([*text[:4], "3,C,,2026-01-01,1.0", *text[4:]]))
    desk.run(f"fit @gap.csv {choice} --absent missing --rank 2 --out @x.npz", code=2,
             says="'sensor', has a gap in row 3 (line 5)")  # fmt: skip
    rows[["sensor", "hour", "value", "day"]].to_csv(desk / "last.csv", index=False)
    desk.run("fit @last.csv --absent missing --rank 2 --out @x.npz", code=2,
             says="--value must name the column of values; the last one, 'day'")  # fmt: skip
    rows.to_parquet(desk / "log.parquet")
    again = desk.run(f"fit @log.parquet {choice} --absent missing --rank 2 --out @p.npz --json")
    desk.did(json.loads(again)["modes"] == ["sensor", "day", "hour"])
    # 18-22: results out
    desk.run("export @fit.npz --to @fit.csv", says="fit.csv")
    exported = pandas.read_csv(desk / "fit.csv", keep_default_na=False)
    desk.did(list(exported.loc[exported["mode"] == "sensor", "label"])[:2] == ["NA", "T1"])
    desk.run("export @fit.npz --to @fit.pkl", code=2, says="a fit is written as .npz")
    desk.run(f"distances @log.csv @fit.npz {choice} --absent missing --mode sensor", says="T4")
    fit.save(desk / "fit.json")
    desk.did(robustcp.load(desk / "fit.json").labels == fit.labels)
    desk.did(not [path for path in Path(desk.folder).iterdir() if path.name.startswith("x.")])
