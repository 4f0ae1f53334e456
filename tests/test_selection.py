"""What is read of a file: names of modes, parts of modes, values that stand for missing entries."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pandas
import pytest
import xarray
from scipy.io import savemat

from robustcp import FileError, Observed, read
from robustcp.engines import LabelledTensor
from robustcp.io.selection import select, without_values

X = np.arange(1.0, 121.0).reshape(4, 5, 6)


@pytest.fixture
def landscape(tmp_path):
    """A file with labels: text, numbers, dates."""
    days = pandas.date_range("2024-03-15 06:00", periods=6, freq="12h")
    coords = {"sample": list("abcd"), "nm": [250.0, 300.0, 350.0, 400.0, 450.0], "day": days}
    xarray.DataArray(X, coords, ("sample", "nm", "day"), name="x").to_netcdf(tmp_path / "x.nc")
    return tmp_path / "x.nc"


@pytest.mark.parametrize(
    ("mode", "text", "part"),
    [
        ("nm", "300:400", (slice(None), slice(1, 4))),
        ("nm", "290:410", (slice(None), slice(1, 4))),
        ("nm", ":300", (slice(None), slice(0, 2))),
        (1, "400:", (slice(None), slice(3, 5))),
        ("nm", "250,350", (slice(None), [0, 2])),
        ("sample", "b:c", (slice(1, 3),)),
        ("sample", "d,a", ([3, 0],)),
        ("sample", "c", (slice(2, 3),)),
        ("day", "2024-03-16:2024-03-16", (..., slice(2, 4))),
        ("day", "2024-03-16T06:00:2024-03-17T06:00", (..., slice(2, 5))),
        ("day", ":2024-03-15", (..., slice(0, 2))),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_part_is_selected_by_labels(landscape, mode, text, part, lazy):
    loaded = read(landscape, select={mode: text}, lazy=lazy)
    np.testing.assert_array_equal(np.asarray(loaded.data), X[part])
    whole, n = read(landscape), loaded.modes.index(mode) if isinstance(mode, str) else mode
    kept = np.arange(X.shape[n])[part[n] if part[0] is not ... else part[1]]
    assert loaded.labels[n] == [whole.labels[n][k] for k in kept]


def test_a_part_is_selected_by_positions_where_there_are_no_labels(tmp_path):
    np.save(tmp_path / "x.npy", X)
    loaded = read(tmp_path / "x.npy", modes=["sample", "nm", "day"], select={"nm": "1:3", 0: "2"})
    assert loaded.modes == ("sample", "nm", "day")
    np.testing.assert_array_equal(loaded.data, X[2:3, 1:3])


def test_dates_with_a_time_zone():
    labels = [datetime(2024, 3, 15 + k, tzinfo=UTC) for k in range(6)]
    tensor = LabelledTensor(X, ("a", "b", "day"), (None, None, labels))
    np.testing.assert_array_equal(
        select(tensor, {"day": "2024-03-16:2024-03-18"}).data, X[..., 1:4]
    )


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"nm": "500:600"}, "select nm=500:600 selects nothing; nm has 250.0 to 450.0"),
        ({"nm": "x:y"}, "select nm=x:y: must be LOW:HIGH; nm has 250.0 to 450.0"),
        ({"nm": "270"}, "select nm has no '270'; it has 250.0 to 450.0"),
        ({"wave": "1:2"}, "select must be .*'wave'"),
        ({"sample": "a:z"}, "select sample=a:z: must be LOW:HIGH; sample has 'a', 'b', 'c', 'd'"),
    ],
)
def test_what_cannot_be_selected(landscape, ranges, message):
    with pytest.raises(FileError, match=message):
        read(landscape, select=ranges)


def test_lists_are_selected_and_keep_their_order():
    indices = np.argwhere(X % 7 > 0)[::-1]
    listed = LabelledTensor(
        Observed(indices, X[tuple(indices.T)], X.shape), ("a", "b", "c"), (None, None, None)
    )
    part = select(listed, {"a": "1:3", "c": "5,0"}).data
    dense = np.full(part.shape, np.nan)
    dense[tuple(part.indices.T)] = part.values
    expected = np.where(X % 7 > 0, X, np.nan)[1:3][..., [5, 0]]
    np.testing.assert_array_equal(dense, expected)


def test_values_that_stand_for_missing_entries(tmp_path):
    Y = X.astype(np.int32)
    Y[0, 0, 0], Y[1, 2, 3] = 0, -999
    np.save(tmp_path / "x.npy", Y)
    found = read(tmp_path / "x.npy", missing=[0, -999]).data
    np.testing.assert_array_equal(found, np.where(Y > 0, Y, np.nan))
    assert read(tmp_path / "x.npy", missing=[-1]).data.dtype == np.int32
    savemat(tmp_path / "y.mat", {"y": np.where(Y == -999, np.float32(-999.9), Y).astype("f4")})
    found = read(tmp_path / "y.mat", missing=[-999.9], modes=["a", "b", "c"])
    assert np.isnan(found.data[1, 2, 3])
    assert found.data.dtype == np.float32
    assert found.modes == ("a", "b", "c")


def test_values_of_lists_and_of_data_in_chunks():
    dask = pytest.importorskip("dask.array")
    names = ("a", "b", "c"), (None,) * 3
    listed = LabelledTensor(Observed(np.argwhere(X), X.ravel(), X.shape), *names)
    kept = without_values(listed, [3, 5]).data
    assert set(np.unique(X)) - set(kept.values) == {3, 5}
    lazy = without_values(LabelledTensor(dask.from_array(X, chunks=2), *names), [3, 5]).data
    assert isinstance(lazy, dask.Array)
    np.testing.assert_array_equal(lazy.compute(), np.where(np.isin(X, [3, 5]), np.nan, X))


def test_without_dask_data_in_chunks_is_read(landscape, monkeypatch):
    monkeypatch.setattr("robustcp.engines.blocks.chunks.find_spec", lambda name: None)
    loaded = read(landscape, select={"nm": "300:400"}, missing=[7.0], lazy=True)
    assert isinstance(loaded.data, np.ndarray)
    np.testing.assert_array_equal(loaded.data, np.where(X == 7, np.nan, X)[:, 1:4])


def test_files_of_r(tmp_path):
    rdata = pytest.importorskip("rdata")
    rdata.write_rds(tmp_path / "x.rds", X)
    np.testing.assert_array_equal(read(tmp_path / "x.rds").data, X)
    rdata.write_rda(tmp_path / "y.RData", {"fit": {"X": X, "n": 3}, "other": X[0]})
    loaded = read(tmp_path / "y.RData", key="fit.X", modes=["a", "b", "c"])
    np.testing.assert_array_equal(loaded.data, X)
    assert loaded.modes == ("a", "b", "c")
    with pytest.raises(
        FileError, match=r"key must name one of several arrays: fit.X \(4x5x6\), other"
    ):
        read(tmp_path / "y.RData")
    (tmp_path / "z.rds").write_bytes(b"no")
    with pytest.raises(FileError, match=r"z\.rds: cannot be read as R"):
        read(tmp_path / "z.rds")


def test_dimnames_and_data_frames_of_r(tmp_path, monkeypatch):
    rdata = pytest.importorskip("rdata")
    (tmp_path / "x.rda").write_bytes(b"RDX3")
    table = pandas.DataFrame(
        [(f"s{i}", j, X[i, j, 0]) for i in range(4) for j in range(5)], columns=["who", "when", "x"]
    )
    table["who"] = table["who"].astype("category")
    array = xarray.DataArray(X, {"dim_0": list("abcd")}, ("dim_0", "dim_1", "dim_2"))
    monkeypatch.setattr(rdata, "read_rda", lambda path: {"elind": array, "long": table})
    loaded = read(tmp_path / "x.rda")
    np.testing.assert_array_equal(loaded.data, X)
    assert loaded.labels[0] == list("abcd")
    long = read(tmp_path / "x.rda", key="long")
    assert long.modes == ("who", "when")
    np.testing.assert_array_equal(long.data, X[..., 0])


def test_without_rdata_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rdata", None)
    (tmp_path / "x.rda").write_bytes(b"RDX3")
    with pytest.raises(FileError, match=r"reading it needs rdata; .*'robustcp\[r\]'"):
        read(tmp_path / "x.rda")
