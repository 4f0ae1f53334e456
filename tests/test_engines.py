"""Every engine does what an einsum over the whole tensor does, however data is stored or cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from array_api_compat import array_namespace
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import robustcp
from robustcp.engines import (
    ChunkedEngine,
    DenseEngine,
    Engine,
    Observed,
    Scales,
    Tiling,
    VarianceFunction,
    View,
    as_engine,
    as_weights,
    storage,
)
from robustcp.engines.blocks.chunks import chunked_source
from robustcp.engines.threads import available_threads, single_blas_thread
from robustcp.losses import L1, Contaminated, Huber, LeastSquares, Loss, Tail, as_loss
from support.halves import Halves
from support.oracles import brute_force, host

SHAPES = [(7, 5), (4, 5, 6), (3, 4, 2, 5), (3, 2, 4, 2, 3)]
LOSS = L1(1e-2)
UNEVEN = Contaminated(0.7, above=0.2, below=0.01)


class Three:
    """A loss with nothing but the three methods."""

    def value(self, r):
        return r * r / 2

    def slope(self, r):
        return 1.0 * r

    def curvature(self, r):
        return 0.0 * r + 1.0


PLAIN = as_loss(Three())
LOSSES = [LOSS, UNEVEN, Huber(0.5), LeastSquares(), PLAIN]


def problem(shape, rank=3, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape).astype(dtype)
    return X, tuple(rng.standard_normal((size, rank)).astype(dtype) for size in shape)


def assert_equal(equations, expected, tol=1e-10):
    gram, gradient, value = expected
    got = np.broadcast_to(host(equations.gram), gram.shape)
    np.testing.assert_allclose(got, gram, rtol=tol, atol=tol)
    np.testing.assert_allclose(host(equations.gradient), gradient, rtol=tol, atol=tol)
    assert equations.value == pytest.approx(value, rel=tol)


class Masked(Loss):
    """A loss that counts only where a tensor is known, or by weights."""

    def __init__(self, loss, known):
        self.loss, self.known = loss, known

    def value(self, r):
        return np.where(self.known, self.known * self.loss.value(r), 0.0)

    def slope(self, r):
        return np.where(self.known, self.known * self.loss.slope(r), 0.0)

    def curvature(self, r):
        return np.where(self.known, self.known * self.loss.curvature(r), 0.0)


def observed(X):
    at = np.argwhere(~np.isnan(X))
    return as_engine(Observed(at, X[tuple(at.T)], X.shape))


def of_library(name):
    return lambda X: as_engine(pytest.importorskip(name).asarray(X))


def in_dask(X):
    array = pytest.importorskip("dask.array").from_array(X, chunks=2)
    return ChunkedEngine(chunked_source(array), group=30)


def in_zarr(X):
    array = pytest.importorskip("zarr").array(X, chunks=(2,) * X.ndim)
    return ChunkedEngine(chunked_source(array), group=30, threads=2)


def compiled(X):
    pytest.importorskip("numba")
    return as_engine(X, compiled=True)


#: Every kind of engine, from a NumPy array with NaN where an entry is missing.
ENGINES = {
    "numpy": lambda X: as_engine(X, compiled=False),
    "numpy, compiled": compiled,
    "array_api_strict": of_library("array_api_strict"),
    "torch": of_library("torch"),
    "Observed": observed,
    "in chunks, Dask": in_dask,
    "in chunks, Zarr": in_zarr,
    "of the test": Halves,
}


#: Weights of entries of a tensor of shape (6, 5, 4), some of them 0.
WEIGHTS = {
    "none": np.ones(()),
    "vectors": [np.arange(1.0, 7.0), np.array([1, 0, 2, 0.5, 3]), np.ones(4)],
    "array": np.random.default_rng(3).integers(0, 4, size=(6, 5, 4)),
    "matrix": np.random.default_rng(4).integers(0, 3, size=(5, 4)) / 2,
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize("weights", WEIGHTS)
class TestContract:
    """What every engine must do, each part against the whole tensor."""

    shape = (6, 5, 4)

    def data(self, kind, gaps, weights, scale=1.0):
        X, factors = problem(self.shape)
        if gaps:
            X = np.where(np.random.default_rng(1).random(X.shape) < 0.3, np.nan, X)
        engine = ENGINES[kind](scale * X)
        if weights != "none":
            engine = engine.weighted(WEIGHTS[weights])
        return X, factors, engine, tuple(engine.asarray(A) for A in factors)

    def weights_of(self, weights, X):
        """Those of the entries, 0 where one is missing."""
        w = WEIGHTS[weights]
        w = np.einsum("i,j,k->ijk", *w) if isinstance(w, list) else np.broadcast_to(w, X.shape)
        return np.where(np.isnan(X), 0.0, w)

    @pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
    def test_normal_equations_and_value(self, kind, gaps, weights, loss):
        X, factors, engine, ours = self.data(kind, gaps, weights)
        whole, w = np.nan_to_num(X), self.weights_of(weights, X)
        for mode in range(X.ndim):
            expected = brute_force(whole, factors, mode, Masked(loss, w))
            assert_equal(engine.normal_equations(ours, mode, loss), expected)
            rows = slice(1, X.shape[mode])
            part = engine.normal_equations(ours, mode, loss, rows)
            np.testing.assert_allclose(host(part.gradient), expected[1][rows], atol=1e-10)
            got = np.broadcast_to(host(part.gram), expected[0][rows].shape)
            np.testing.assert_allclose(got, expected[0][rows], atol=1e-10)
        assert engine.value(ours, loss) == pytest.approx(expected[2], rel=1e-12)

    def test_what_the_data_is(self, kind, gaps, weights):
        X, _, engine, _ = self.data(kind, gaps, weights)
        assert isinstance(engine, Engine)
        assert as_engine(engine) is engine
        assert engine.shape == X.shape
        assert engine.order == 3
        w = self.weights_of(weights, X)
        assert engine.max_abs == np.abs(X[w > 0]).max()
        assert engine.complete == (w.min() > 0 and kind != "Observed")
        assert engine.count == (w > 0).sum()
        assert engine.total_weight == w.sum()
        for mode in range(3):
            others = tuple(m for m in range(3) if m != mode)
            assert np.array_equal(engine.slab_counts(mode), (w > 0).sum(axis=others))

    def test_a_sample_knows_where_it_was(self, kind, gaps, weights):
        X, factors, engine, ours = self.data(kind, gaps, weights)
        r = X - np.einsum("ir,jr,kr->ijk", *factors)
        for sample, whole in ((engine.sample(), X), (engine.sample(ours), r)):
            w = self.weights_of(weights, X)
            assert sample.values.size == (w > 0).sum()
            assert np.all(w[sample.indices] > 0)
            np.testing.assert_allclose(sample.values, whole[sample.indices], atol=1e-12)

    def test_views(self, kind, gaps, weights):
        X, factors, engine, ours = self.data(kind, gaps, weights, scale=2.0**700)
        seen = engine.scaled(700).clipped(1.0)
        assert seen.view == View(700, 1.0, engine.view.weights)
        assert seen.max_abs == 1.0
        w, cut = self.weights_of(weights, X), np.nan_to_num(X).clip(-1, 1)
        expected = brute_force(cut, factors, 1, Masked(LOSS, w))
        assert_equal(seen.normal_equations(ours, 1, LOSS), expected)
        assert engine.max_abs == np.abs(X[w > 0]).max() * 2.0**700

    @pytest.mark.parametrize("tail", [Tail(1, 1), Tail(0.2, 0.8), Tail(log=2.0), Tail()], ids=str)
    def test_excess(self, kind, gaps, weights, tail):
        X, _, engine, _ = self.data(kind, gaps, weights)
        over = np.maximum(np.abs(X) - 1, 0)
        slope = np.where(X < 0, tail.below, tail.above)
        expected = slope * over + tail.log * np.log(np.maximum(np.abs(X), 1))
        expected = np.nansum(expected * self.weights_of(weights, X))
        assert engine.excess(1.0, tail) == pytest.approx(expected)

    def test_slabs_and_entries(self, kind, gaps, weights):
        X, factors, engine, ours = self.data(kind, gaps, weights)
        r = X - np.einsum("ir,jr,kr->ijk", *factors)
        xp = engine.xp
        w = self.weights_of(weights, X)

        def squares(e):
            return xp.where(xp.isnan(e), xp.zeros_like(e), e * e)

        sums, hits = engine.slab_sums(squares, ours), engine.count_large_residuals(ours, 1.5)
        for mode in range(3):
            others = tuple(m for m in range(3) if m != mode)
            np.testing.assert_allclose(sums[mode], np.nansum((w > 0) * r * r, axis=others))
            assert np.array_equal(hits[mode], ((w > 0) & (np.abs(r) > 1.5)).sum(axis=others))
            if weights != "none":
                weighed = engine.slab_sums(squares, ours, weighted=True)
                np.testing.assert_allclose(weighed[mode], np.nansum(w * r * r, axis=others))
        counts, fibre_squares = engine.fibre_sums((lambda e: ~xp.isnan(e), squares), ours)
        for mode in range(3):
            seen = (w > 0) & ~np.isnan(r)
            assert np.array_equal(counts[mode], seen.sum(axis=mode, keepdims=True))
            np.testing.assert_allclose(
                fibre_squares[mode], np.nansum((w > 0) * r * r, axis=mode, keepdims=True)
            )
        each = host(engine.map_residuals(lambda e: 2 * e, ours))
        flags = host(engine.map_residuals(lambda e: xp.abs(e) > 1.5, ours))
        expected = r[~np.isnan(r)] if kind == "Observed" else r
        np.testing.assert_allclose(each, 2 * expected, atol=1e-12)
        assert flags.dtype == bool
        assert np.array_equal(flags, np.abs(expected) > 1.5)

    def test_residuals_of_slices(self, kind, gaps, weights):
        X, factors, engine, ours = self.data(kind, gaps, weights)
        r = X - np.einsum("ir,jr,kr->ijk", *factors)
        places = [({1: 3}, np.s_[:, 3]), ({2: 1, 1: 4}, np.s_[:, 4, 1]), ({0: 5}, np.s_[5])]
        # That of the test needs something in both of its halves.
        for fixed, at in places[:2] if kind == "of the test" else places:
            found = engine.residual_slice(ours, fixed)
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, r[at], atol=1e-12)

    def test_subtensor(self, kind, gaps, weights):
        X, factors, engine, _ = self.data(kind, gaps, weights)
        chosen = [np.array([0, 2, 3, 5]), None, np.array([1, 2])]
        part = engine.subtensor(chosen)
        part_of_all = np.ix_(chosen[0], np.arange(5), chosen[2])
        small, w = X[part_of_all], self.weights_of(weights, X)[part_of_all]
        assert part.shape == small.shape
        few = [A if at is None else A[at] for A, at in zip(factors, chosen, strict=True)]
        expected = brute_force(np.nan_to_num(small), few, 0, Masked(LOSS, w))
        assert_equal(part.normal_equations(tuple(map(part.asarray, few)), 0, LOSS), expected)

    def test_products_of_unfoldings(self, kind, gaps, weights):
        X, _, engine, _ = self.data(kind, gaps, weights)
        rng = np.random.default_rng(2)
        X = np.where(self.weights_of(weights, X) > 0, X, 0.0)
        for mode in range(3):
            U = np.nan_to_num(np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1))
            V = rng.standard_normal((X.shape[mode], 2))
            np.testing.assert_allclose(engine.gram(mode), U @ U.T, atol=1e-12)
            np.testing.assert_allclose(engine.gram(mode, V), U @ (U.T @ V), atol=1e-12)
            if kind == "Observed":  # it leaves out columns without entries
                continue
            np.testing.assert_allclose(engine.cogram(mode), U.T @ U, atol=1e-12)
            W = rng.standard_normal((U.shape[1], 2))
            np.testing.assert_allclose(engine.project(mode, W), U @ W, atol=1e-12)
            rows = engine.unfolding(mode, slice(1, 3))
            np.testing.assert_allclose(np.nan_to_num(rows), U[1:3], atol=1e-12)

    def test_arrays_are_of_its_library(self, kind, gaps, weights):
        _, _, engine, ours = self.data(kind, gaps, weights)
        equations = engine.normal_equations(ours, 0, LOSS)
        assert type(equations.gradient) is type(ours[0])
        assert equations.gram.dtype == equations.gradient.dtype == engine.dtype


class InUnits(Loss):
    """A loss of residuals that are divided by scales."""

    def __init__(self, loss, u):
        self.loss, self.u = loss, u

    def value(self, r):
        return self.loss.value(r / self.u)

    def slope(self, r):
        return self.loss.slope(r / self.u) / self.u

    def curvature(self, r):
        return self.loss.curvature(r / self.u) / self.u**2


HELD = problem((6, 5, 4), 2, seed=5)[1]
SLABS = [np.linspace(0.5, 2, 6), None, np.linspace(3, 0.1, 4)]
#: Scales of a tensor of shape (6, 5, 4), and the same for each entry.
SCALES = {
    "vectors": Scales(as_weights(SLABS, (6, 5, 4))),
    "array": Scales(as_weights(np.random.default_rng(6).uniform(0.1, 3, (5, 4)), (6, 5, 4))),
    "signal": Scales(None, VarianceFunction(HELD, 0.1, 0.5, 0.2)),
    "all": Scales(as_weights(SLABS, (6, 5, 4)), VarianceFunction(HELD, 0.0, 1.0, 0.3), least=0.4),
}
ENTRY_SCALES = {
    "vectors": np.einsum("i,j,k->ijk", SLABS[0], np.ones(5), SLABS[2]),
    "array": np.broadcast_to(np.random.default_rng(6).uniform(0.1, 3, (5, 4)), (6, 5, 4)),
}
_held = np.einsum("ir,jr,kr->ijk", *HELD)
ENTRY_SCALES["signal"] = (0.1 + 0.5 * np.abs(_held) + 0.2 * _held**2) ** 0.5
ENTRY_SCALES["all"] = (
    0.4**4 + ENTRY_SCALES["vectors"] ** 4 * (np.abs(_held) + 0.3 * _held**2) ** 2
) ** 0.25


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if kind != "of the test"])
@pytest.mark.parametrize(("gaps", "weights"), [(False, "none"), (True, "array")])
@pytest.mark.parametrize("scales", SCALES)
class TestContractOfScales:
    """What every engine that takes scales must do."""

    shape = (6, 5, 4)
    weights_of = TestContract.weights_of

    def data(self, kind, gaps, weights, scales):
        X, factors, engine, ours = TestContract.data(self, kind, gaps, weights)
        return X, factors, engine.standardized(SCALES[scales]), ours, ENTRY_SCALES[scales]

    @pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
    def test_normal_equations_and_value(self, kind, gaps, weights, scales, loss):
        X, factors, engine, ours, u = self.data(kind, gaps, weights, scales)
        standardized = Masked(InUnits(loss, u), self.weights_of(weights, X))
        for mode in range(X.ndim):
            expected = brute_force(np.nan_to_num(X), factors, mode, standardized)
            assert_equal(engine.normal_equations(ours, mode, loss), expected)
            rows = slice(1, X.shape[mode])
            part = engine.normal_equations(ours, mode, loss, rows)
            np.testing.assert_allclose(host(part.gradient), expected[1][rows], atol=1e-10)
            np.testing.assert_allclose(host(part.gram), expected[0][rows], atol=1e-10)
        assert engine.value(ours, loss) == pytest.approx(expected[2], rel=1e-12)

    def test_what_is_asked_with_factors_is_standardized(self, kind, gaps, weights, scales):
        X, factors, engine, ours, u = self.data(kind, gaps, weights, scales)
        r = (X - np.einsum("ir,jr,kr->ijk", *factors)) / u
        w, xp = self.weights_of(weights, X), engine.xp
        sample = engine.sample(ours)
        np.testing.assert_allclose(sample.values, r[sample.indices], rtol=1e-10)
        sums = engine.slab_sums(lambda e: xp.where(xp.isnan(e), xp.zeros_like(e), e * e), ours)
        hits = engine.count_large_residuals(ours, 1.5)
        for mode in range(3):
            others = tuple(m for m in range(3) if m != mode)
            np.testing.assert_allclose(sums[mode], np.nansum((w > 0) * r * r, axis=others))
            assert np.array_equal(hits[mode], ((w > 0) & (np.abs(r) > 1.5)).sum(axis=others))
        known = ~np.isnan(X) if kind == "Observed" else ...
        each = host(engine.map_residuals(lambda e: 2 * e, ours))
        np.testing.assert_allclose(each, 2 * r[known].reshape(each.shape), rtol=1e-10)
        np.testing.assert_allclose(engine.residual_slice(ours, {1: 3}), r[:, 3], rtol=1e-10)
        found = engine.entry_scales()
        assert type(found) is type(engine.map_residuals(lambda e: e, ours))
        np.testing.assert_allclose(host(found), u[known].reshape(each.shape), rtol=1e-12)

    def test_what_is_asked_without_is_the_data(self, kind, gaps, weights, scales):
        _, _, engine, ours, _ = self.data(kind, gaps, weights, scales)
        plain = engine.standardized(None)
        assert plain.view.scales is None
        assert engine.max_abs == plain.max_abs
        assert engine.excess(1.0, Tail(1, 1)) == plain.excess(1.0, Tail(1, 1))
        assert np.array_equal(engine.sample().values, plain.sample().values)
        xp = engine.xp
        for mode in range(3):
            assert np.array_equal(engine.slab_counts(mode), plain.slab_counts(mode))
            assert np.array_equal(engine.gram(mode), plain.gram(mode))
            a, b = (e.slab_sums(lambda x: xp.abs(x) > 1)[mode] for e in (engine, plain))
            assert np.array_equal(a, b)
        assert np.all(host(plain.entry_scales()) == 1)
        assert (
            plain.normal_equations(ours, 0, LOSS).value
            != engine.normal_equations(ours, 0, LOSS).value
        )

    def test_views_and_parts(self, kind, gaps, weights, scales):
        X, factors, engine, _, u = self.data(kind, gaps, weights, scales)
        chosen = [np.array([5, 0, 3]), None, np.array([1, 2])]
        part = engine.clipped(1.0).subtensor(chosen)
        here = np.ix_(chosen[0], np.arange(5), chosen[2])
        few = [A if at is None else A[at] for A, at in zip(factors, chosen, strict=True)]
        loss = Masked(InUnits(LOSS, u[here]), self.weights_of(weights, X)[here])
        expected = brute_force(np.nan_to_num(X[here]).clip(-1, 1), few, 2, loss)
        assert_equal(part.normal_equations(tuple(map(part.asarray, few)), 2, LOSS), expected)
        if SCALES[scales].variance is not None:
            with pytest.raises(ValueError, match="scale the data first"):
                engine.scaled(2)
        else:
            nothing = tuple(engine.asarray(np.zeros((size, 1))) for size in engine.shape)
            r = engine.scaled(2).sample(nothing).values
            np.testing.assert_allclose(4 * r, engine.sample(nothing).values)


def test_an_engine_that_takes_no_scales_says_so():
    engine = Halves(problem((6, 5, 4))[0])
    with pytest.raises(TypeError, match=r"^scales: Halves does not take any"):
        engine.standardized(SCALES["vectors"])
    assert np.array_equal(engine.standardized(None).entry_scales(), np.ones((6, 5, 4)))


@pytest.mark.parametrize("loss", [LOSS, LeastSquares(), PLAIN, UNEVEN], ids=lambda loss: loss.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("tile", [1, 8, 10**6])
@pytest.mark.parametrize("library", ["numpy, compiled", "numpy", "array_api_strict", "torch"])
def test_pass_equals_einsum(library, shape, order, loss, tile):
    name, *how = library.split(", ")
    xp = pytest.importorskip(name)
    if how:
        pytest.importorskip("numba")
    X, factors = problem(shape)
    if order == "F":  # stored in reverse, viewed in order
        stored = xp.asarray(np.ascontiguousarray(X.T))
        data = array_namespace(stored).permute_dims(stored, tuple(range(X.ndim))[::-1])
    else:
        data = xp.asarray(X)
    tiling = Tiling(
        entries=tile, min_entries=tile, rows=2, compiled_entries=tile, max_columns=1 + tile // 4,
        block_entries=1 + tile // 2,
    )  # fmt: skip
    engine = DenseEngine(data, compiled=bool(how), tiling=tiling)
    ours = tuple(xp.asarray(A) for A in factors)
    for mode in range(X.ndim):
        expected = brute_force(X, factors, mode, loss)
        assert_equal(engine.normal_equations(ours, mode, loss), expected)
        rows = slice(1, X.shape[mode])
        part = engine.normal_equations(ours, mode, loss, rows)
        np.testing.assert_allclose(host(part.gradient), expected[1][rows], atol=1e-10)
        if loss == LOSS:
            np.testing.assert_allclose(host(part.gram), expected[0][rows], atol=1e-10)
    assert engine.value(ours, loss) == pytest.approx(expected[2], rel=1e-12)
    assert type(engine.normal_equations(ours, 0, loss).gradient) is type(data)


@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    rank=st.integers(1, 4),
    tile=st.integers(1, 200),
    axes=st.randoms(use_true_random=False),
    threads=st.integers(1, 3),
    use_numba=st.booleans(),
    gaps=st.booleans(),
)
def test_pass_equals_einsum_for_any_shape_cut_and_storage(
    shape, rank, tile, axes, threads, use_numba, gaps
):
    X, factors = problem(shape, rank)
    order = list(range(X.ndim))
    axes.shuffle(order)
    stored = np.ascontiguousarray(X.transpose(order)).transpose(np.argsort(order))
    tiling = Tiling(
        entries=tile, min_entries=tile, compiled_entries=tile, max_columns=1 + tile // 7,
        block_entries=1 + tile // 3,
    )  # fmt: skip
    options = {"threads": threads, "compiled": use_numba, "tiling": tiling}
    engine = DenseEngine(stored, **options)
    for mode in range(X.ndim):
        rows = slice(shape[mode] // 3, shape[mode] - shape[mode] // 4)
        for loss in (LOSS, UNEVEN):
            expected = brute_force(X, factors, mode, loss)
            assert_equal(engine.normal_equations(factors, mode, loss), expected)
            part = engine.normal_equations(factors, mode, loss, rows)
            np.testing.assert_allclose(part.gradient, expected[1][rows], atol=1e-10)
            np.testing.assert_allclose(part.gram, expected[0][rows], atol=1e-10)
    if gaps and X.size > 2:
        stored[(0,) * X.ndim] = np.nan
        known = ~np.isnan(stored)
        holed = DenseEngine(stored, **options)
        for mode in range(X.ndim):
            expected = brute_force(np.nan_to_num(stored), factors, mode, Masked(LOSS, known))
            assert_equal(holed.normal_equations(factors, mode, LOSS), expected)


def test_sums_over_parts_of_the_data_add_up():
    X, factors = problem((6, 5, 4))
    halves = [
        as_engine(X[:, part]).normal_equations((factors[0], factors[1][part], factors[2]), 0, LOSS)
        for part in (slice(0, 2), slice(2, 5))
    ]
    assert_equal(halves[0] + halves[1], brute_force(X, factors, 0, LOSS))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_for_any_number_of_threads(threads, dtype, compiled):
    X, factors = problem((60, 70, 80), 5, dtype=dtype)
    one = as_engine(X, threads=1, compiled=compiled)
    many = as_engine(X, threads=threads, compiled=compiled)
    for mode in range(3):
        a, b = one.normal_equations(factors, mode, LOSS), many.normal_equations(factors, mode, LOSS)
        assert a.value == b.value
        assert np.array_equal(a.gram, b.gram)
        assert np.array_equal(a.gradient, b.gradient)


class TestStorage:
    X, factors = problem((6, 5, 4))
    expected = brute_force(X, factors, 1, LOSS)

    def check(self, data):
        engine = as_engine(data)
        assert_equal(engine.normal_equations(self.factors, 1, LOSS), self.expected)

    def test_strided(self):
        wide = np.zeros((12, 5, 8))
        wide[::2, :, ::2] = self.X
        self.check(wide[::2, :, ::2])

    def test_negative_strides(self):
        self.check(np.ascontiguousarray(self.X[::-1, :, ::-1])[::-1, :, ::-1])

    def test_read_only(self):
        X = self.X.copy()
        X.setflags(write=False)
        self.check(X)

    def test_big_endian(self):
        self.check(self.X.astype(">f8"))

    def test_memory_mapped(self, tmp_path):
        np.save(tmp_path / "x.npy", self.X)
        self.check(np.load(tmp_path / "x.npy", mmap_mode="r"))

    def test_nested_lists(self):
        self.check(self.X.tolist())

    def test_masked_array_without_masked_entries(self):
        self.check(np.ma.MaskedArray(self.X))

    def test_broadcast(self):
        X = np.broadcast_to(self.X[:, :1], self.X.shape)
        engine = as_engine(X)
        assert_equal(
            engine.normal_equations(self.factors, 1, LOSS), brute_force(X, self.factors, 1, LOSS)
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, bool, np.longdouble])
def test_other_numbers_are_converted_to_float64(dtype):
    X, factors = problem((6, 5, 4))
    X = (X * 20 + 100).clip(0, 255).astype(dtype)
    engine = as_engine(X)
    assert engine.dtype == np.float64
    assert_equal(
        engine.normal_equations(factors, 0, LOSS), brute_force(X.astype(float), factors, 0, LOSS)
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_short_floats_are_passed_over_in_float32(dtype):
    X, factors = problem((6, 5, 4), dtype=np.float32)
    X = X.astype(dtype)
    engine = as_engine(X)
    equations = engine.normal_equations(factors, 0, LOSS)
    assert equations.gram.dtype == equations.gradient.dtype == np.float32
    assert_equal(equations, brute_force(X.astype(float), factors, 0, LOSS), tol=1e-4)


def test_only_tiles_are_converted(monkeypatch):
    sizes = []
    original = storage.Storage.convert

    def watch(self, x, dtype):
        sizes.append(x.size)
        return original(self, x, dtype)

    monkeypatch.setattr(storage.Storage, "convert", watch)
    X = np.ones((80, 90, 100), dtype=np.uint8)
    factors = tuple(np.ones((size, 2)) for size in X.shape)
    engine = DenseEngine(X, tiling=Tiling(sample_entries=1000))
    for mode in range(3):
        engine.normal_equations(factors, mode, LOSS)
        engine.normal_equations(factors, mode, LeastSquares())
        engine.gram(mode)
    engine.value(factors, LOSS)
    engine.sample(factors)
    engine.count_large_residuals(factors, 1.0)
    engine.map_residuals(lambda r: r > 1, factors)
    assert engine.max_abs == 1
    assert 1000 // 4 <= max(sizes) <= Tiling().entries


def test_long_mode_is_cut_into_row_blocks():
    engine = as_engine(np.zeros((100_000, 3, 2)))
    blocks = engine.row_blocks(0, 20, LOSS)
    assert len(blocks) > 1
    assert blocks[0].start == 0
    assert blocks[-1].stop == 100_000
    assert all(a.stop == b.start for a, b in itertools.pairwise(blocks))
    assert len(engine.row_blocks(0, 20, LeastSquares())) == 1


def test_power_of_two_changes_no_digit():
    X, factors = problem((6, 5, 4))
    engine = as_engine(np.ldexp(X, 1000)).scaled(1000)
    plain = as_engine(X)
    a, b = engine.normal_equations(factors, 2, LOSS), plain.normal_equations(factors, 2, LOSS)
    assert np.array_equal(a.gram, b.gram)
    assert a.value == b.value


def test_least_squares_value_keeps_its_digits():
    rng = np.random.default_rng(0)
    factors = tuple(1e3 * np.ones((size, 1)) for size in (6, 5, 4))
    noise = rng.standard_normal((6, 5, 4))
    engine = as_engine(1e9 + noise)
    assert engine.normal_equations(factors, 0, LeastSquares()).value == pytest.approx(
        0.5 * np.sum(noise**2), rel=1e-5
    )


def test_sample_of_a_large_tensor_is_bounded():
    X = np.random.default_rng(0).standard_normal((40, 50, 60))
    sample = DenseEngine(X, tiling=Tiling(sample_entries=5000)).sample()
    assert sample.values.size == 5000
    assert sample.values.std() == pytest.approx(1.0, rel=0.05)
    assert np.array_equal(sample.values, X[sample.indices])


def test_views_share_what_is_known_of_the_data(monkeypatch):
    engine = as_engine(np.ones((30, 30, 30)))
    assert engine.max_abs == 1
    monkeypatch.setattr(storage, "split_boxes", None)  # another look at all entries would need it
    assert engine.scaled(3).clipped(0.1).max_abs == 0.1
    assert engine.scaled(3).complete


class TestThreads:
    def test_blas_limits_are_honoured(self):
        with threadpool_limits(1, user_api="blas"):
            assert available_threads() == 1

    def test_nested_passes_restore_the_limit_they_found(self):
        before = single_blas_thread._threads_now()
        with single_blas_thread:
            with single_blas_thread:
                assert single_blas_thread._threads_now() == 1
            assert single_blas_thread._threads_now() == 1
            assert single_blas_thread.threads_outside() == before
        assert single_blas_thread._threads_now() == before

    def test_an_error_in_a_tile_comes_out_and_the_limit_is_restored(self):
        class Broken(Three):
            def value(self, r):
                raise ZeroDivisionError

        before = single_blas_thread._threads_now()
        X, factors = problem((60, 70, 80))
        with pytest.raises(ZeroDivisionError):
            as_engine(X, threads=2).value(factors, as_loss(Broken()))
        assert single_blas_thread._threads_now() == before


class TestTensorsOfPyTorch:
    """What PyTorch calls a tensor, and is not simply an array."""

    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.torch
    def test_views_and_types(self, torch):
        X = torch.rand(5, 6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        fit = robustcp.cpals(X, 1)
        negated = torch.complex(X, -X).conj().imag
        assert negated.is_neg()
        for same in (negated, torch.complex(X, X).conj().real, X.clone().requires_grad_()):
            again = robustcp.cpals(same, 1)
            torch.testing.assert_close(again.factors[0], fit.factors[0], rtol=1e-10, atol=1e-10)
        assert robustcp.cp(X > 0.5, 1).factors[0].dtype == torch.float64

    @pytest.mark.torch
    def test_what_has_no_entries_in_a_row_is_refused_in_one_line(self, torch):
        X = torch.rand(4, 5)
        for data, said in [
            (X.to_sparse(), r"is a sparse_coo tensor; pass X\.to_dense\(\), or robustcp\.Observed"),
            (torch.empty(4, 5, device="meta"), "is a meta tensor, which has a shape"),
            (torch.complex(X, X), "dtype torch.complex64 is not one of real numbers"),
        ]:
            for call in (robustcp.cp, robustcp.cpals, robustcp.rank_profile):
                arguments = () if call is robustcp.rank_profile else (1,)
                with pytest.raises(TypeError, match=f"X: {said}") as caught:
                    call(data, *arguments)
                assert "\n" not in str(caught.value)
