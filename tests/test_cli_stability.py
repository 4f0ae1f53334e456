import json

import numpy as np
import pytest
from typer.testing import CliRunner

from robustcp.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("trust")
    run("simulate", "--shape", "20x12x9", "--rank", "2", "--eta", "0.1", "--out", where / "t.npz")
    run("fit", where / "t.npz", "--key", "data", "--rank", "2", "--out", where / "f.npz")
    return where


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result.output


def data(folder):
    return folder / "t.npz", "--key", "data"


@pytest.mark.recovery
def test_rank(folder):
    picture = folder / "rank"
    text = run("rank", *data(folder), "--most", 3, "--jobs", 1, "--plot", picture)
    assert "recommended: 2 (" in text
    assert "runner-up: 3" in text
    assert (picture / "rank.png").stat().st_size > 1000
    found = json.loads(run("rank", *data(folder), "--most", 3, "--jobs", 1, "--json"))
    assert found["rank"] == 2
    assert found["runner_up"] == 3
    assert found["ranks"][1]["consistency"] > 90
    assert "--mode" in run("rank", *data(folder), "--mode", "x", code=2)


@pytest.mark.recovery
def test_replicability(folder):
    how = ("replicability", *data(folder), "--rank", 2, "--jobs", 1)
    text = run(*how, "--split-half", "--plot", folder / "half")
    assert "AB and CD: 0.9" in text
    assert (folder / "half" / "replicability.png").exists()
    found = json.loads(run(*how, "--folds", 3, "--json"))
    assert len(found["scores"]) == 3
    assert found["score"] > 0.95
    assert "--folds" in run(*how, "--folds", 50, code=2)


@pytest.mark.recovery
def test_ensemble_goes_on(folder):
    how = ("ensemble", *data(folder), "--most", 2, "--starts", 2, "--jobs", 1)
    text = run(*how, "--keep", folder / "fits", "--plot", folder / "ensemble")
    assert len(list((folder / "fits").iterdir())) == 4
    assert run(*how, "--keep", folder / "fits") == text
    assert (folder / "ensemble" / "ensemble.png").exists()
    found = json.loads(run(*how, "--keep", folder / "fits", "--json"))
    assert found["2"]["similarities"][0] == pytest.approx(1)


@pytest.mark.recovery
def test_uncertainty(folder):
    how = ("uncertainty", folder / "t.npz", folder / "f.npz", "--key", "data")
    text = run(*how, "--out", folder / "i.npz", "--plot", folder / "bands")
    assert "mode 2: " in text
    with np.load(folder / "i.npz") as held:
        assert held["low_0"].shape == (20, 2)
        assert (held["low_1"] <= held["high_1"]).all()
    found = json.loads(run(*how, "--method", "jackknife", "--mode", 0, "--jobs", 1, "--json"))
    assert found["median_errors"]["mode 0"] is None
    assert len(found["median_errors"]["mode 1"]) == 2
    assert "--method" in run(*how, "--method", "guess", code=2)


def test_distances(folder):
    how = ("distances", folder / "t.npz", folder / "f.npz", "--key", "data", "--mode", 0)
    assert "cut-offs: score 2.72" in run(*how, "--plot", folder / "map")
    assert (folder / "map" / "distances.png").exists()
    assert len(json.loads(run(*how, "--json"))["samples"]) == 20
