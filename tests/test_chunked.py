"""Data in chunks, beside the same data in memory, whoever works on it and whatever dies."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robustcp
from robustcp import Checkpoint, Observed, as_engine
from robustcp._util.checks import ArgumentError
from robustcp.engines import (
    ChunkedEngine,
    ChunkError,
    DenseEngine,
    EntryField,
    Scales,
    SchedulerError,
    connect,
    host_data,
    subsets,
)
from robustcp.engines.blocks.chunks import Grid, chunked_source
from robustcp.io.reading import FileError, read
from robustcp.losses import L1, LeastSquares

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
h5py = pytest.importorskip("h5py")
pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
xarray = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")

SHAPE = (12, 11, 9)
CHUNKS = (5, 4, 6)
LOSS = L1(1e-3)


def data(gaps=0.0, seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape)
    X[rng.random(shape) < gaps] = np.nan
    return X


def factors(shape=SHAPE, rank=2, seed=1):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((size, rank)) for size in shape)


def in_small_groups(array, most=150, **given):
    return ChunkedEngine(chunked_source(array), group=most, **given)


def in_zarr(folder, X, chunks=CHUNKS):
    array = zarr.create_array(
        folder / "x.zarr", shape=X.shape, chunks=chunks, dtype=X.dtype, overwrite=True
    )
    array[...] = X
    return array


def in_hdf5(folder, X):
    return h5py.File(folder / "x.h5", "w").create_dataset("x", data=X, chunks=CHUNKS)


def in_netcdf(folder, X):
    xarray.DataArray(X, dims=("a", "b", "c"), name="x").to_netcdf(folder / "x.nc")
    return xarray.open_dataset(folder / "x.nc", cache=False)["x"]


def centred(X):
    """Chunks that all need what was computed of all."""
    array = da.from_array(X, chunks=CHUNKS)
    return array + 0 * da.nanmean(array, axis=0)


KINDS = {
    "Dask": lambda folder, X: da.from_array(X, chunks=CHUNKS),
    "Dask, of Zarr": lambda folder, X: da.from_zarr(in_zarr(folder, X)),
    "Dask, shared work": lambda folder, X: centred(X),
    "Zarr": in_zarr,
    "HDF5": in_hdf5,
    "HDF5, one piece": lambda folder, X: h5py.File(folder / "x.h5", "w").create_dataset(
        "x", data=X
    ),
    "xarray, of Dask": lambda folder, X: xarray.DataArray(
        da.from_array(X, chunks=CHUNKS), dims=("a", "b", "c")
    ),
    "xarray, not in memory": in_netcdf,
}


# Passes


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_engine_of_the_whole(kind, tmp_path):
    X = data(gaps=0.2)
    ours, whole, F = in_small_groups(KINDS[kind](tmp_path, X)), as_engine(X), factors()
    assert ours.max_abs == whole.max_abs
    assert ours.count == whole.count
    for loss in (LOSS, LeastSquares()):
        assert ours.value(F, loss) == pytest.approx(whole.value(F, loss), rel=1e-12)
        for mode in range(3):
            for rows in (None, slice(2, 8)):
                a, b = (e.normal_equations(F, mode, loss, rows) for e in (ours, whole))
                np.testing.assert_allclose(a.gram, b.gram, rtol=1e-10, atol=1e-12)
                np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(ours.sample().values, whole.sample().values)
    np.testing.assert_array_equal(ours.sample(F).indices, whole.sample(F).indices)
    for mode in range(3):
        np.testing.assert_allclose(ours.gram(mode), whole.gram(mode), rtol=1e-10, atol=1e-12)
    part = [np.array([1, 4, 7]), None, np.array([0, 5])]
    np.testing.assert_array_equal(
        ours.subtensor(part).array, X[np.ix_([1, 4, 7], range(11), [0, 5])]
    )
    each = ours.map_residuals(lambda r: np.abs(r) > 1, F)
    assert isinstance(each, da.Array)
    np.testing.assert_array_equal(each.compute(), whole.map_residuals(lambda r: np.abs(r) > 1, F))


@pytest.mark.cluster
@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    cuts=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    most=st.integers(1, 400),
    gaps=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 9),
)
def test_chunks_may_be_of_any_size(shape, cuts, most, gaps, seed):
    X = data(gaps, seed, tuple(shape))
    X.flat[0] = 1.5
    ours = in_small_groups(da.from_array(X, chunks=tuple(cuts[: X.ndim])), most)
    whole, F = as_engine(X), factors(X.shape)
    for mode in range(X.ndim):
        a, b = (e.normal_equations(F, mode, LOSS) for e in (ours, whole))
        np.testing.assert_allclose(a.gram, b.gram, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-9, atol=1e-9)
        assert a.value == pytest.approx(b.value, rel=1e-10)


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_and_scales_are_cut_with_the_data(lazy):
    X, F = data(), factors()
    rng = np.random.default_rng(2)
    w, u = rng.integers(0, 3, SHAPE), 0.5 + rng.random((12, 1, 9))
    given = [da.from_array(w, chunks=4), da.from_array(u, chunks=7)] if lazy else [w, u]
    none = (None,) * 3
    ours, whole = (
        e.weighted(a).standardized(Scales(EntryField(SHAPE, none, b)))
        for e, a, b in (
            (in_small_groups(da.from_array(X, chunks=CHUNKS)), *given),
            (as_engine(X), w, u),
        )
    )
    a, b = (e.normal_equations(F, 1, LOSS) for e in (ours, whole))
    np.testing.assert_allclose(a.gram, b.gram, rtol=1e-10)
    np.testing.assert_allclose(ours.sample(F).values, whole.sample(F).values, rtol=1e-12)
    np.testing.assert_allclose(
        ours.subtensor([np.arange(4), None, None])
        .normal_equations((F[0][:4], *F[1:]), 1, LOSS)
        .gradient,
        whole.subtensor([np.arange(4), None, None])
        .normal_equations((F[0][:4], *F[1:]), 1, LOSS)
        .gradient,
        rtol=1e-10,
    )


def test_large_parts_stay_in_chunks(monkeypatch):
    monkeypatch.setattr("robustcp.engines.blocks.chunked.MAX_CACHED_ENTRIES", 100)
    X, F = data(gaps=0.1), factors()
    at = [np.array([0, 1, 6, 7, 11]), None, np.array([2, 3, 8])]
    rows = tuple(A if k is None else A[k] for A, k in zip(F, at, strict=True))
    part = in_small_groups(da.from_array(X, chunks=CHUNKS)).subtensor(at)
    assert isinstance(part, ChunkedEngine)
    whole = as_engine(X).subtensor(at)
    for mode in range(3):
        a, b = (e.normal_equations(rows, mode, LOSS) for e in (part, whole))
        np.testing.assert_allclose(a.gram, b.gram, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(part.sample().values, whole.sample().values)


def test_a_part_is_read_as_a_part(tmp_path):
    array = in_zarr(tmp_path, data())
    engine = in_small_groups(array, 1)
    for number in np.ndindex(3, 3, 2):
        if number != (1, 2, 0):
            (tmp_path / "x.zarr" / "c" / "/".join(map(str, number))).write_bytes(b"no data")
    part = engine.subtensor([np.array([6, 7]), np.array([9]), np.array([1, 5])])
    np.testing.assert_array_equal(part.array, data()[6:8, 9:10, [1, 5]])


def test_groups_are_neighbours_of_about_eight_million_entries():
    assert Grid.regular((400,) * 3, (100,) * 3).coarsen(1 << 23).counts == (2, 2, 2)
    assert Grid.regular((400,) * 3, (200,) * 3).coarsen(1 << 23).counts == (2, 2, 2)
    assert Grid.regular((10**4,) * 3, (200,) * 3).coarsen(1 << 23).counts == (50, 50, 50)


# Estimators


@pytest.fixture(scope="module")
def sim():
    return robustcp.simulate((24, 20, 18), 2, eta=0.1, gamma=1.0, rng=0)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"noise": "slabs"},
        {"cases": 0},
        {"nonnegative": True},
        {"constraints": {1: robustcp.Smooth(1.0)}},
        {"entry_weights": [None, np.linspace(0.1, 2, 20), None]},
    ],
    ids=str,
)
def test_fits_are_those_of_the_array_in_memory(sim, how):
    fit = robustcp.cp(da.from_array(sim.data, chunks=9), 2, **how)
    expected = robustcp.cp(sim.data, 2, **how)
    assert fit.objective == pytest.approx(expected.objective, rel=1e-9)
    assert robustcp.factor_match_score(fit, expected) > 1 - 1e-6


@pytest.mark.parametrize("method", [robustcp.cpal1, robustcp.cpals])
def test_the_other_estimators_too(sim, method, tmp_path):
    array = in_zarr(tmp_path, sim.data, (9, 9, 9))
    fit, expected = method(array, 2), method(sim.data, 2)
    assert fit.objective == pytest.approx(expected.objective, rel=1e-9)


def test_outliers_stay_lazy_and_scores_are_projected(sim):
    array = da.from_array(sim.data, chunks=9)
    fit = robustcp.cp(sim.data, 2)
    found, expected = fit.outliers(array), fit.outliers(sim.data)
    for ours, whole in ((found.mask, expected.mask), (found.scores, expected.scores)):
        assert isinstance(ours, da.Array)
        assert ours.chunks == array.chunks
        np.testing.assert_allclose(ours.compute(), whole, rtol=1e-9)
    np.testing.assert_allclose(fit.project(array[:7]), fit.project(sim.data[:7]), rtol=1e-6)
    np.testing.assert_allclose(fit.sigma(array).compute(), fit.sigma(sim.data), rtol=1e-9)


def test_names_and_labels_of_a_lazy_array_are_kept(sim):
    array = xarray.DataArray(
        da.from_array(sim.data, chunks=9), dims=("s", "t", "u"), coords={"t": range(20)}
    )
    fit = robustcp.cpal1(array, 2, max_sweeps=5)
    assert fit.modes == ("s", "t", "u")
    assert fit.labels[1] == list(range(20))


def test_ranks_are_looked_for_in_a_part(sim, monkeypatch):
    array = da.from_array(sim.data, chunks=9)
    profile = robustcp.rank_profile(array, [1, 2], rng=0, jobs=1, starts=1, folds=2)
    assert (
        profile.rank
        == robustcp.rank_profile(sim.data, [1, 2], rng=0, jobs=1, starts=1, folds=2).rank
    )
    monkeypatch.setattr(subsets, "MAX_LOADED_ENTRIES", 1000)
    whole = host_data(array)
    with pytest.raises(ValueError, match="too large"):
        _ = whole.entries
    part = whole.take(0, np.arange(5)).take(1, np.arange(3, 9)).take(2, np.array([2, 17]))
    np.testing.assert_array_equal(part.data, sim.data[:5, 3:9][:, :, [2, 17]])


def test_fibres_of_data_beyond_memory_are_told_of():
    sim = robustcp.simulate((30, 24, 20), 2, eta=0.1, gamma=0.0, rng=0)
    X = sim.data.copy()
    X[3, 5] = 4.0
    X[9, :, 7] = -2.5
    array = da.from_array(X, chunks=12)
    assert robustcp.cp(array, 2).notes == robustcp.cp(X, 2).notes
    small = in_small_groups(array, memory="400kB")
    assert not small.entries_fit_in_memory
    with pytest.warns(UserWarning, match="would take all entries in memory"):
        robustcp.noise.outlying_fibres.find_outlying_fibres(
            small, *_model_and_noise(small, sim.truth)
        )
    with pytest.raises(MemoryError, match="30x24x20"):
        small.entries()


def _model_and_noise(engine, truth):
    from robustcp.noise import COMMON, estimate_model_noise
    from robustcp.noise.resolution import Resolution
    from robustcp.optimize.units import Units

    model = tuple(truth.absorbed())
    return model, estimate_model_noise(
        engine, model, Resolution.of(engine), Units(3, 0), COMMON, None
    )


# Schedulers


@pytest.fixture(scope="module")
def cluster():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as found:
            yield found


def bits(fit):
    return [A.tobytes() for A in fit.factors], fit.objective


def ten_sweeps(array, most=2000, **given):
    X = robustcp.simulate((24, 20, 18), 2, eta=0.1, gamma=1.0, rng=0)
    init = [np.random.default_rng(3).standard_normal((size, 2)) for size in X.data.shape]
    engine = in_small_groups(array, most)
    return robustcp.cpal1(engine, 2, init=init, tol=0, max_sweeps=10, **given)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
def test_bits_do_not_depend_on_who_works(sim, cluster, tmp_path):
    stored = da.from_zarr(in_zarr(tmp_path, sim.data, (9, 9, 9)))
    expected = bits(ten_sweeps(stored))
    for scheduler in ("threads", "synchronous"):
        with dask.config.set(scheduler=scheduler):
            assert bits(ten_sweeps(stored)) == expected
    with distributed.Client(cluster) as client:
        held = stored.persist()
        for array in (stored, held, in_zarr(tmp_path, sim.data, (9, 9, 9))):
            found = bits(ten_sweeps(array))
            assert found == expected or not isinstance(array, da.Array)
        workers = list(client.scheduler_info()["workers"])
        one = client.persist(stored, workers=workers[:1])
        assert bits(ten_sweeps(one)) == expected
        moved = held + 0.0  # not held itself: computed from what is
        assert bits(ten_sweeps(moved)) == expected


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("persisted", [False, True])
def test_a_worker_that_is_killed_costs_its_tasks(sim, persisted, tmp_path):
    stored = da.from_zarr(in_zarr(tmp_path, sim.data, (9, 9, 9)))
    expected = bits(ten_sweeps(stored))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0,
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        array = stored.persist() if persisted else stored
        pid = next(iter(client.run(os.getpid).values()))

        def kill(state):
            if state.sweep == 3:
                threading.Timer(0.01, os.kill, (pid, signal.SIGKILL)).start()

        assert bits(ten_sweeps(array, callback=kill)) == expected


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
def test_a_scheduler_that_goes_away_leaves_the_checkpoint(sim, tmp_path):
    code = (
        "from distributed import LocalCluster; import sys\n"
        "if __name__ == '__main__':\n"
        "    c = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)\n"
        "    print(c.scheduler_address, flush=True); sys.stdin.read()\n"
    )
    script = tmp_path / "scheduler.py"
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = process.stdout.readline().strip()
        stored = da.from_zarr(in_zarr(tmp_path, sim.data, (9, 9, 9)))
        expected = bits(ten_sweeps(stored))
        saved = Checkpoint(tmp_path / "fit.ckpt", every=0)

        def kill(state):
            if state.sweep == 4:
                process.kill()
                process.wait()

        client = connect(address, timeout=3)
        with pytest.raises(SchedulerError, match="gone away"):
            ten_sweeps(stored, checkpoint=saved, callback=kill)
        client.close(timeout=1)
        seen = []
        fit = ten_sweeps(stored, checkpoint=saved, callback=lambda s: seen.append(s.sweep))
        assert seen[0] == 5
        assert bits(fit) == expected
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


# What cannot be done


def test_chunks_that_cannot_be_read_are_named(tmp_path):
    array = in_zarr(tmp_path, data())
    (tmp_path / "x.zarr" / "c" / "2" / "0" / "1").unlink()
    with pytest.raises(ChunkError, match=r"chunk \(2, 0, 1\) at \[10:12, 0:4, 6:9\] is not in"):
        robustcp.cp(array, 2)
    array = in_zarr(tmp_path, data())
    (tmp_path / "x.zarr" / "c" / "0" / "1" / "0").write_bytes(b"nothing that Zarr wrote")
    for either in (array, da.from_zarr(array)):
        with pytest.raises(ChunkError, match=r"\[0:5, 4:8, 0:6\] cannot be read"):
            robustcp.cp(either, 2)


def test_chunks_that_are_missing_by_design_are_missing_entries(tmp_path):
    X = data()
    X[:5, :4, :6] = np.nan
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=SHAPE, chunks=CHUNKS, dtype="f8", fill_value=np.nan
    )
    array[...] = X
    assert not (tmp_path / "x.zarr" / "c" / "0" / "0" / "0").exists()
    assert as_engine(array).count == as_engine(X).count


def test_bad_input_is_refused():
    X = da.from_array(data(), chunks=CHUNKS)
    with pytest.raises(ValueError, match="chunks of unknown size"):
        robustcp.cp(X[X[:, 0, 0] > 0], 2)
    with pytest.raises(TypeError, match="dtype object"):
        robustcp.cp(X.astype(object), 2)
    with pytest.raises(ValueError, match="at least 2 modes"):
        robustcp.cp(X[0, 0], 2)
    with pytest.raises(ValueError, match="empty mode"):
        robustcp.cp(X[:0], 2)
    with pytest.raises(ValueError, match="all entries are missing"):
        robustcp.cp(X * np.nan, 2)
    with pytest.raises(ValueError, match=r"infinite entries, the first in the chunk at \[5:10"):
        robustcp.cp(da.where(X[6, 0, 0] == X, np.inf, X), 2)
    with pytest.raises(ValueError, match="entry_weights: must not be negative"):
        robustcp.cp(X, 2, entry_weights=-da.ones(SHAPE))
    with pytest.raises(ArgumentError, match="device: "):
        as_engine(X, device="cpu")


def test_chunks_must_fit_into_the_memory_given():
    array = zarr.create_array({}, shape=(400, 400, 400), chunks=(400, 400, 100), dtype="f8")
    with pytest.raises(ArgumentError, match="200 MB is too little for chunks of 128 MB"):
        as_engine(array, memory="200MB")
    assert as_engine(array, memory="2GB").executor.threads >= 1


def test_nobody_at_an_address():
    with pytest.raises(ArgumentError, match="scheduler: nobody answers at"):
        connect("tcp://127.0.0.1:1", timeout=1)
    with pytest.raises(ArgumentError, match="nobody answers at 'nowhere'"):
        connect("nowhere")
    with pytest.raises(ValueError, match="No clients found"):  # nothing stays behind
        distributed.default_client()


def test_without_dask_stores_are_read_in_this_process(tmp_path, monkeypatch):
    X, F = data(), factors()
    array = in_zarr(tmp_path, X)
    find = importlib.util.find_spec
    for module in ("chunks", "schedulers"):
        monkeypatch.setattr(
            f"robustcp.engines.blocks.{module}.find_spec",
            lambda name: None if name == "dask" else find(name),
        )
    engine = in_small_groups(array)
    assert engine.value(F, LOSS) == pytest.approx(as_engine(X).value(F, LOSS), rel=1e-12)
    np.testing.assert_array_equal(
        engine.map_residuals(lambda r: r, F), DenseEngine(X).map_residuals(lambda r: r, F)
    )


# Files


def test_files_are_read_lazily(tmp_path):
    X = data()
    in_zarr(tmp_path, X)
    in_hdf5(tmp_path, X).file.close()
    in_netcdf(tmp_path, X).close()
    for name in ("x.zarr", "x.h5", "x.nc"):
        lazy = read(tmp_path / name, lazy=True)
        assert isinstance(as_engine(lazy), ChunkedEngine)
        np.testing.assert_array_equal(as_engine(lazy).unfolding(0, slice(0, 12)).reshape(SHAPE), X)
        np.testing.assert_array_equal(read(tmp_path / name).data, X)
    assert read(tmp_path / "x.nc", lazy=True).modes == ("a", "b", "c")


# Long tables


def listed(count=900, shape=SHAPE, seed=0):
    rng = np.random.default_rng(seed)
    at = np.stack(np.unravel_index(rng.permutation(np.prod(shape))[:count], shape), axis=1)
    model = np.prod([A[k] for A, k in zip(factors(shape), at.T, strict=True)], axis=0).sum(1)
    return at, model + 0.1 * rng.standard_normal(count)


def in_parquet(folder, at, values, files=4, names=False):
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    for k, rows in enumerate(np.array_split(np.arange(len(values)), files)):
        second = [f"n{j:02}" for j in at[rows, 1]] if names else at[rows, 1]
        columns = {"a": at[rows, 0], "b": second, "c": at[rows, 2], "x": values[rows]}
        parquet.write_table(pyarrow.table(columns), folder / f"{k}.parquet", row_group_size=100)
    return folder


@pytest.mark.parametrize("kind", ["Parquet", "Parquet, with names", "Dask"])
def test_tables_in_parts_are_the_table(kind, tmp_path):
    at, values = listed()
    if kind == "Dask":
        frame = pandas.DataFrame({"a": at[:, 0], "b": at[:, 1], "c": at[:, 2], "x": values})
        table = Observed.from_dask(
            pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)
        )
    else:
        folder = in_parquet(tmp_path / "t", at, values, names=kind != "Parquet")
        table = Observed.from_parquet(folder)
    ours, whole, F = as_engine(table), as_engine(Observed(at, values, SHAPE)), factors()
    assert table.shape == SHAPE
    assert (ours.count, ours.max_abs) == (whole.count, whole.max_abs)
    for look in (
        lambda e: e,
        lambda e: e.weighted([np.arange(12) % 3, None, None]),
        lambda e: e.scaled(1).clipped(0.5),
        lambda e: e.without_slabs(2, np.array([1, 4])),
    ):
        a, b = look(ours), look(whole)
        for mode in range(3):
            left, right = (e.normal_equations(F, mode, LOSS) for e in (a, b))
            np.testing.assert_allclose(left.gram, right.gram, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(left.gradient, right.gradient, rtol=1e-10, atol=1e-12)
        for left, right in zip(
            a.count_large_residuals(F, 0.5), b.count_large_residuals(F, 0.5), strict=True
        ):
            np.testing.assert_array_equal(left, right)
    np.testing.assert_allclose(
        ours.map_residuals(lambda r: r, F), whole.map_residuals(lambda r: r, F)
    )
    at_some = [np.arange(5), None, None]
    rows = (F[0][:5], *F[1:])
    assert ours.subtensor(at_some).value(rows, LOSS) == pytest.approx(
        whole.subtensor(at_some).value(rows, LOSS)
    )


def test_fits_of_tables_in_parts(tmp_path):
    at, values = listed()
    fit = robustcp.cp(Observed.from_parquet(in_parquet(tmp_path / "t", at, values)), 2, rng=0)
    expected = robustcp.cp(Observed(at, values, SHAPE), 2, rng=0)
    assert robustcp.factor_match_score(fit, expected) > 1 - 1e-6


def test_bits_of_tables_do_not_depend_on_threads(tmp_path):
    at, values = listed()
    table = Observed.from_parquet(in_parquet(tmp_path / "t", at, values, files=7))
    one, two = (as_engine(table, threads=k).normal_equations(factors(), 1, LOSS) for k in (1, 2))
    np.testing.assert_array_equal(one.gram, two.gram)


def test_bad_tables_are_refused(tmp_path):
    at, values = listed(60)
    folder = in_parquet(tmp_path / "t", at, values)
    with pytest.raises(ValueError, match="has no 'y'"):
        Observed.from_parquet(folder, columns=["a", "b", "y"])
    with pytest.raises(ValueError, match="outside of"):
        Observed.from_parquet(folder, (3, 11, 9))
    with pytest.raises(FileNotFoundError):
        Observed.from_parquet(tmp_path / "none")
    with pytest.raises(ArgumentError, match="memory: "):
        as_engine(Observed.from_parquet(folder), memory="1kB")
    with pytest.raises(FileError, match="missing"):
        read(folder)
    assert read(folder, absent="missing").modes == ("a", "b", "c")
    twice = in_parquet(tmp_path / "two", np.concatenate([at, at[:1]]), np.append(values, 1.0))
    with pytest.raises(ValueError, match="more than once"):
        Observed.from_parquet(twice)
    (folder / "1.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(ChunkError, match=r"1\.parquet cannot be read"):
        Observed.from_parquet(folder)


# Studies


@pytest.mark.slow
def test_a_store_of_400_cubed(tmp_path):
    sim = robustcp.simulate((400,) * 3, 5, eta=0.1, gamma=1.0, rng=0)
    array = in_zarr(tmp_path, sim.data, (100,) * 3)
    init = [np.random.default_rng(1).standard_normal((400, 5)) for _ in range(3)]
    how = {"init": init, "tol": 0, "max_sweeps": 10}
    ours, memory = (robustcp.cpal1(X, 5, **how) for X in (array, sim.data))
    for A, B in zip(ours.factors, memory.factors, strict=True):
        np.testing.assert_allclose(A, B, rtol=0, atol=1e-10)
    ours, memory = (robustcp.cp(X, 5, rng=0) for X in (array, sim.data))
    assert ours.objective == pytest.approx(memory.objective, rel=1e-9)
    assert robustcp.factor_match_score(ours, memory) > 1 - 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
def test_workers_killed_at_random_moments(tmp_path):
    sim = robustcp.simulate((120,) * 3, 4, eta=0.1, gamma=1.0, rng=0)
    stored = da.from_zarr(in_zarr(tmp_path, sim.data, (60,) * 3))
    init = [np.random.default_rng(1).standard_normal((120, 4)) for _ in range(3)]

    def fit(array):
        engine = in_small_groups(array, 60**3)
        return bits(robustcp.cpal1(engine, 4, init=init, tol=0, max_sweeps=25))

    expected, rng = fit(stored), np.random.default_rng(0)
    for k in range(10):
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            array = stored.persist() if k % 2 else stored
            pid = list(client.run(os.getpid).values())[k % 2]
            timer = threading.Timer(rng.uniform(0.3, 3.0), os.kill, (pid, signal.SIGKILL))
            timer.start()
            assert fit(array) == expected
            timer.join()
