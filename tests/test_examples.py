"""Each example runs, leaves a picture, and shows what it says it shows."""

import importlib.util
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

pytestmark = pytest.mark.docs

mpl.use("Agg")

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    """Import an example by its name."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    height, width, _ = imread(path).shape
    assert width >= 1000
    assert 400 <= height <= 1200
    assert 20_000 < path.stat().st_size < 400_000


def test_fluorescence_spectra_survive_scatter(tmp_path):
    numbers = example("fluorescence").main(str(tmp_path / "picture.png"), small=True)
    for name in ("picture", "picture_sample", "picture_halves"):
        assert_picture(tmp_path / f"{name}.png")
    least_squares, robust = numbers["scores"]
    assert robust > 0.9
    assert least_squares < 0.8
    spoilt, left_in, cut = numbers["errors"]
    assert spoilt > 0.2
    assert max(left_in, cut) < 0.05
    assert numbers["halves"].score > 0.95
    for name in ("emission", "excitation"):
        ours, read = (getattr(numbers[key], f"{name}_loadings") for key in ("written", "read"))
        np.testing.assert_allclose(read, ours, atol=1e-9)


@pytest.mark.slow
def test_fluorescence_of_the_kinetic_data(tmp_path):
    """Twenty seconds; nothing there is scatter, so least squares does as well."""
    pytest.importorskip("tensorly")
    pytest.importorskip("xarray")
    out = str(tmp_path / "picture.png")
    numbers = example("fluorescence").main(out, data="kinetic", small=True)
    for name in ("picture", "picture_sample", "picture_halves"):
        assert_picture(tmp_path / f"{name}.png")
    assert max(numbers["errors"]) < 0.2


def test_fmri_flags_the_moved_volumes_and_keeps_the_time_course(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    module = example("fmri")
    out = tmp_path / "picture.png"
    numbers = module.main(str(out))
    assert_picture(out)
    *moved, (_, next_share) = numbers["flagged"]
    assert {volume for volume, _ in moved} == set(module.MOVED)
    assert moved[-1][1] > 0.3
    assert next_share < 0.05
    correlation, error, off = numbers["cp"]
    assert correlation > 0.8
    assert numbers["least squares"][0] < 0.5
    assert error < 0.15
    assert numbers["least squares"][1] > 2
    assert off < 0.5 * numbers["least squares"][2]
    scan = nibabel.load(module.SCAN)
    spatial = nibabel.load(tmp_path / "picture_map.nii")
    assert spatial.shape == scan.shape[:3]
    np.testing.assert_allclose(spatial.affine, scan.affine, atol=1e-5)
    median = np.median(scan.get_fdata(), axis=3)
    assert np.median(np.abs(spatial.get_fdata() / median - 1)) < 0.01


def test_sensors_names_the_broken_ones(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    module = example("sensors")
    out = tmp_path / "picture.png"
    numbers = module.main(str(out), small=True)
    assert_picture(out)
    *broken, (_, next_share) = numbers["worst"]
    assert {name for name, _ in broken} == {f"S{s:02}" for s in (*module.SPIKY, module.STUCK)}
    assert broken[-1][1] > 0.1
    assert next_share < 0.01
    least_squares, robust = numbers["scores"]
    assert robust > 0.99
    assert least_squares < 0.8


def test_neuroscience_finds_assemblies_and_artifact_trials(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    numbers = example("neuroscience").main(str(tmp_path / "picture.png"), small=True)
    for name in ("picture", "picture_ranks", "picture_trials"):
        assert_picture(tmp_path / f"{name}.png")
    assert numbers["bad"] == numbers["artifacts"]
    assert len(numbers["bad"]) == 6
    least_squares, robust = numbers["scores"]
    assert robust > 0.95
    assert least_squares < 0.8
    three, four, five = (numbers["errors"][rank][0] for rank in (3, 4, 5))
    assert three - four > 10 * (four - five)


def test_spikes_are_counted_in_their_bins():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    module = example("neuroscience")
    trials = pandas.DataFrame({"end": [2.0, 1.02]}, index=[7, 9])
    spikes = pandas.DataFrame(
        [(7, 0, 0.0), (7, 0, 0.049), (7, 4, 1.99), (9, 4, 0.5), (9, 0, 1.01)],
        columns=["trial", "neuron", "time"],
    )
    X = module.binned(spikes, trials)
    assert X.shape == (2, 40, 2)
    assert X.sel(neuron="n1", trial=7)[0] == 2
    assert X.sel(neuron="n5", trial=7)[39] == 1
    assert X.sel(neuron="n5", trial=9)[10] == 1
    assert X.sum() == 4  # the bin at 1.0 was not over when trial 9 ended
    assert X.sel(trial=9).isnull().sum() == 2 * 20
    assert not X.sel(trial=7).isnull().any()


def test_video_separates_the_square_from_the_wall(tmp_path, monkeypatch, capsys):
    pytest.importorskip("av")
    monkeypatch.setattr("sys.argv", ["video.py", "--scale", "0.5", "--out", str(tmp_path)])
    example("video").main()
    names = {path.name for path in tmp_path.iterdir()}
    assert {"background.png", "foreground.mp4", "side_by_side.mp4", "middle.png"} <= names
    background = imread(tmp_path / "background.png")[..., :3]
    assert background.max() < 0.85  # the square is at 0.94
    assert "foreground" in capsys.readouterr().out
