"""Imputation: what is filled, what stays, in data of every kind; standard errors of the model."""

from __future__ import annotations

import itertools

import numpy as np
import pandas
import pytest
import xarray

import robustcp
from robustcp.engines import all_entries, as_engine
from robustcp.inference.covariance import WeightedEntries, entry_variances
from robustcp.inference.uncertainty import FitBasis
from robustcp.results.view import FittedView

SHAPE = (9, 8, 7)


def gappy(seed=0, dtype=np.float64, missing=0.15):
    """Data with missing entries, the complete data, and where entries are missing."""
    rng = np.random.default_rng(seed)
    model = robustcp.simulate(SHAPE, 2, eta=0, gamma=0, noise=0, rng=rng).truth.full()
    X = (model + 0.05 * rng.standard_normal(SHAPE)).astype(dtype)
    gaps = rng.random(SHAPE) < missing
    return np.where(gaps, np.array(np.nan, dtype), X), X, gaps


@pytest.fixture(scope="module")
def fit():
    return robustcp.cp(gappy()[0], 2, rng=0)


def expected(fit, X):
    """What filling means, written out."""
    filled = np.array(X)
    for index in np.ndindex(*SHAPE):
        if np.isnan(X[index]):
            filled[index] = fit.at(np.array([index]))[0]
    return filled


def test_gaps_are_filled_and_all_else_stays(fit):
    X, complete, gaps = gappy()
    before = X.copy()
    filled = fit.impute(X)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(filled[~gaps], X[~gaps])
    np.testing.assert_allclose(filled, expected(fit, X), rtol=1e-13)
    assert np.sqrt(np.mean((filled - complete)[gaps] ** 2)) < 0.1


def test_complete_data_of_integers_stays_as_it_is():
    X = np.arange(60).reshape(3, 4, 5)
    filled = robustcp.cpals(X, 1, rng=0).impute(X)
    assert filled.dtype == X.dtype
    assert filled is not X
    np.testing.assert_array_equal(filled, X)


def test_single_precision_stays(fit):
    X = gappy(dtype=np.float32)[0]
    filled = fit.impute(X)
    assert filled.dtype == np.float32
    np.testing.assert_allclose(filled, expected(fit, X), rtol=1e-5)


def test_flagged_entries_are_replaced_on_request(fit):
    X = gappy()[0]
    X[2, 3, 4] = 25.0
    kept, replaced = fit.impute(X), fit.impute(X, flagged=True)
    flags = fit.outliers(X).mask
    assert flags[2, 3, 4]
    assert kept[2, 3, 4] == 25.0
    np.testing.assert_array_equal(replaced != kept, flags)
    np.testing.assert_allclose(replaced[flags], fit.full()[flags])


def test_flagged_integers_become_floats():
    counts = np.rint(100 * robustcp.simulate(SHAPE, 1, eta=0, gamma=0, rng=0).truth.full())
    X = counts.astype(np.int64)
    X[1, 2, 3] += 10_000
    fit = robustcp.cp(X, 1, rng=0)
    filled = fit.impute(X, flagged=True)
    assert filled.dtype == np.float64
    assert filled[1, 2, 3] == pytest.approx(counts[1, 2, 3], abs=20)


def test_masked_arrays(fit):
    X, _, gaps = gappy()
    masked = np.ma.MaskedArray(np.where(gaps, -999.0, X), gaps, fill_value=-999.0)
    filled = fit.impute(masked)
    assert isinstance(filled, np.ma.MaskedArray)
    assert filled.fill_value == -999.0
    assert not filled.mask.any()
    np.testing.assert_array_equal(filled.data, fit.impute(X))


def test_lists_are_completed_in_their_order(fit):
    X, _, gaps = gappy()
    indices = np.random.default_rng(1).permutation(np.argwhere(~gaps))
    listed = robustcp.Observed(indices, X[tuple(indices.T)], SHAPE)
    filled = fit.impute(listed)
    assert isinstance(filled, robustcp.Observed)
    assert len(filled.values) == X.size
    np.testing.assert_array_equal(filled.indices[: len(indices)], indices)
    np.testing.assert_array_equal(filled.values[: len(indices)], listed.values)
    np.testing.assert_allclose(filled.values, fit.impute(X)[tuple(filled.indices.T)])
    replaced = fit.impute(listed, flagged=True)
    flags = fit.outliers(listed).mask
    np.testing.assert_array_equal((replaced.values != filled.values)[: len(indices)], flags)


def test_lists_that_no_memory_could_hold_are_refused():
    shape, rng = (10**5,) * 3, np.random.default_rng(0)
    listed = robustcp.Observed(rng.integers(0, 10**5, (500, 3)), rng.random(500), shape)
    with pytest.raises(ValueError, match=r"X: has 1e\+15 entries, too many to list; fit.at"):
        all_entries(listed)


def test_names_labels_and_attributes_stay(fit):
    X = gappy()[0]
    coords = {"sample": list("abcdefghi"), "nm": np.arange(8) * 2.0}
    array = xarray.DataArray(
        X, coords, ("sample", "nm", "day"), name="signal", attrs={"units": "V"}
    )
    filled = fit.impute(array)
    xarray.testing.assert_identical(filled, array.copy(data=fit.impute(X)))
    named = robustcp.cp(array, 2, rng=0)
    turned = array.transpose("day", "sample", "nm").isel(sample=slice(None, None, -1))
    xarray.testing.assert_allclose(
        named.impute(turned).transpose(*array.dims).sel(sample=array.sample), named.impute(array)
    )
    dataset = fit.impute(array.to_dataset())
    xarray.testing.assert_identical(dataset["signal"], filled)


def test_tables_keep_their_rows_and_get_those_that_they_lack():
    X = gappy()[0]
    names = ["sensor", "day", "hour"]
    levels = [list("abcdefghi"), pandas.date_range("2024-03-17", periods=8), range(7)]
    full = pandas.Series(X.ravel(), pandas.MultiIndex.from_product(levels, names=names), name="v")
    shuffled = full.sample(frac=1, random_state=0)
    listed = pandas.concat([shuffled.dropna(), shuffled[shuffled.isna()][:10]])
    fit = robustcp.cp(listed, 2, rng=0)
    filled = fit.impute(listed)
    assert filled.name == "v"
    assert filled.index.names == names
    assert len(filled) == X.size
    pandas.testing.assert_index_equal(filled.index[: len(listed)], listed.index)
    values = filled.reindex(full.index).to_numpy().reshape(SHAPE)
    np.testing.assert_allclose(values, fit.impute(X))
    long = listed.reset_index()
    table = robustcp.cp(long, 2, rng=0).impute(long)
    assert list(table.columns) == [*names, "v"]
    pandas.testing.assert_series_equal(table.dtypes, long.dtypes)
    pandas.testing.assert_series_equal(table.set_index(names)["v"], filled)
    errors = fit.impute(listed, uncertainty=True).model_errors
    np.testing.assert_array_equal(errors.notna().to_numpy()[: len(listed)], listed.isna())


def test_matrices_of_pandas():
    rng = np.random.default_rng(0)
    X = np.outer(rng.random(12) + 1, rng.random(9) + 1)
    gaps = rng.random(X.shape) < 0.1
    frame = pandas.DataFrame(np.where(gaps, np.nan, X), index=[f"r{k}" for k in range(12)])
    filled = robustcp.cpals(frame, 1, rng=0).impute(frame)
    pandas.testing.assert_index_equal(filled.index, frame.index)
    np.testing.assert_allclose(filled.to_numpy(), X, rtol=1e-3)


def test_files_as_they_are_read(fit, tmp_path):
    X = gappy()[0]
    np.save(tmp_path / "x.npy", X)
    loaded = robustcp.read(tmp_path / "x.npy")
    filled = fit.impute(loaded)
    assert type(filled) is type(loaded)
    assert filled.modes == loaded.modes
    np.testing.assert_array_equal(filled.data, fit.impute(X))


def test_entries_of_weight_0_are_missing(fit):
    X, complete, gaps = gappy()
    weights = np.where(gaps, 0.0, 2.0)
    filled = fit.impute(as_engine(complete).weighted(weights))
    np.testing.assert_allclose(filled, fit.impute(X))
    listed = robustcp.Observed(np.argwhere(np.ones(SHAPE)), complete.ravel(), SHAPE)
    filled = fit.impute(as_engine(listed).weighted(weights))
    np.testing.assert_allclose(filled, fit.impute(X))


def test_slabs_without_entries_stay_missing():
    X = gappy()[0]
    X[4] = np.nan
    filled = robustcp.cp(X, 2, rng=0).impute(X)
    assert np.isnan(filled[4]).all()
    assert not np.isnan(np.delete(filled, 4, axis=0)).any()


def test_data_in_chunks_is_filled_when_it_is_computed(fit):
    dask = pytest.importorskip("dask.array")
    X = gappy()[0]
    X[2, 3, 4] = 25.0
    computed = []

    def note(block):
        computed.append(block.shape)
        return block

    lazy = dask.from_array(X, chunks=(4, 8, 3)).map_blocks(note, dtype=X.dtype, meta=X[:0, :0, :0])
    filled = fit.impute(lazy)
    assert isinstance(filled, dask.Array)
    assert filled.chunks == lazy.chunks
    assert not computed
    np.testing.assert_allclose(filled.compute(), fit.impute(X), rtol=1e-13)
    sure, at_once = (fit.impute(Y, flagged=True, uncertainty=True) for Y in (lazy, X))
    for name in ("values", "model_errors", "prediction_errors"):
        np.testing.assert_allclose(
            getattr(sure, name).compute(), getattr(at_once, name), rtol=1e-6, err_msg=name
        )


def test_zarr_is_filled_as_dask(fit, tmp_path):
    zarr, dask = pytest.importorskip("zarr"), pytest.importorskip("dask.array")
    X = gappy()[0]
    store = zarr.create_array(tmp_path / "x.zarr", shape=SHAPE, chunks=(4, 4, 4), dtype="f8")
    store[:] = X
    filled = fit.impute(store)
    assert isinstance(filled, dask.Array)
    np.testing.assert_allclose(filled.compute(), fit.impute(X), rtol=1e-13)


def test_torch_tensors(fit):
    torch = pytest.importorskip("torch")
    X = gappy()[0]
    filled = fit.impute(torch.from_numpy(X))
    assert isinstance(filled, torch.Tensor)
    np.testing.assert_allclose(filled.numpy(), fit.impute(X), rtol=1e-13)


# Standard errors


def jacobian(factors, indices):
    """The derivatives of entries of a model in all entries of its factors."""
    order, rank = len(factors), factors[0].shape[1]
    offsets = np.cumsum([0, *(A.size for A in factors)])
    J = np.zeros((len(indices[0]), offsets[-1]))
    for k, index in enumerate(zip(*indices, strict=True)):
        for n, r in itertools.product(range(order), range(rank)):
            others = [factors[m][index[m], r] for m in range(order) if m != n]
            J[k, offsets[n] + rank * index[n] + r] = np.prod(others)
    return J


@pytest.mark.parametrize("method", ["cp", "cpals"])
@pytest.mark.parametrize("shape", [(6, 5, 4), (4, 7, 5), (3, 4, 3, 5)])
def test_variances_of_entries_are_those_of_the_joint_covariance(method, shape):
    rng = np.random.default_rng(len(shape))
    X = robustcp.simulate(shape, 2, eta=0, gamma=0, rng=rng).data
    X[rng.random(shape) < 0.1] = np.nan
    view = FittedView.of(getattr(robustcp, method)(X, 2, rng=0), X)
    basis = FitBasis.of(view.fit, view.problem)
    arguments = basis.engine, basis.factors, basis.loss, basis.row_posterior, basis.unit
    everywhere = tuple(index.ravel() for index in np.indices(shape))
    found = entry_variances(*arguments).at(everywhere)
    weighted = WeightedEntries.of(*arguments[:-1])
    H, M = 0.0, 0.0
    for rows, entries, weights in weighted.batches(0):
        J = jacobian(basis.factors, (entries.indices[0] + rows.start, *entries.indices[1:]))
        H, M = H + J.T @ (weights[0, :, None] * J), M + J.T @ (weights[1, :, None] * J)
    prior = np.concatenate([np.ravel(p) for p in weighted.prior(basis.unit)])
    H, M = H + np.diag(prior), M + basis.unit * np.diag(prior)
    G, J = np.linalg.pinv(H, rcond=1e-9), jacobian(basis.factors, everywhere)
    np.testing.assert_allclose(found, np.sum(J @ G @ M @ G * J, axis=1), rtol=1e-3)


def test_errors_are_as_large_as_they_say():
    z, predicted = [], []
    for seed in range(25):
        X, complete, gaps = gappy(seed)
        rng = np.random.default_rng(seed)
        truth = robustcp.simulate(SHAPE, 2, eta=0, gamma=0, noise=0, rng=rng).truth.full()
        sure = robustcp.cpals(X, 2, rng=0).impute(X, uncertainty=True)
        z.append(((sure.values - truth) / sure.model_errors)[gaps])
        predicted.append(((sure.values - complete) / sure.prediction_errors)[gaps])
        assert np.isnan(sure.model_errors[~gaps]).all()
    for values in (z, predicted):
        assert 0.9 < np.mean(np.abs(np.concatenate(values)) < 1.96) < 0.99


def test_errors_include_the_noise_of_the_entry():
    rng = np.random.default_rng(0)
    model = robustcp.simulate((30, 12, 10), 2, eta=0, gamma=0, noise=0, rng=0).truth.full()
    sigma = np.where(np.arange(30) % 2, 0.2, 0.02)[:, None, None]
    X = model + sigma * rng.standard_normal(model.shape)
    X[rng.random(X.shape) < 0.1] = np.nan
    sure = robustcp.cp(X, 2, noise=[0], rng=0).impute(X, uncertainty=True)
    noise = np.sqrt(sure.prediction_errors**2 - sure.model_errors**2)
    medians = [np.nanmedian(noise[first::2]) for first in range(2)]
    np.testing.assert_allclose(medians, [0.02, 0.2], rtol=0.15)


def test_too_many_unknowns_are_noted(fit, monkeypatch):
    monkeypatch.setattr("robustcp.inference.covariance.MAX_JOINT_UNKNOWNS", 5)
    X = gappy()[0]
    sure = fit.impute(X, uncertainty=True)
    assert "each row as if others were known" in sure.notes[0]
    assert np.isfinite(sure.model_errors[np.isnan(X)]).all()
