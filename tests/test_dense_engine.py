"""A pass over the data equals an einsum over the whole tensor, however it is stored or cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from array_api_compat import array_namespace
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import robustcp.engines.dense as dense
from conftest import brute_force, host
from robustcp.engines import Engine, as_engine, fused
from robustcp.engines.threads import available_threads, single_blas_thread
from robustcp.losses import L1, Contaminated, LeastSquares

SHAPES = [(7, 5), (4, 5, 6), (3, 4, 2, 5), (3, 2, 4, 2, 3)]
LOSS = L1(1e-2)
UNEVEN = Contaminated(0.7, above=0.2, below=0.01)


class Plain:
    """A loss with nothing but the three methods."""

    def value(self, r):
        return r * r / 2

    def slope(self, r):
        return 1.0 * r

    def curvature(self, r):
        return 0.0 * r + 1.0


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


@pytest.mark.parametrize(
    "loss", [LOSS, LeastSquares(), Plain(), UNEVEN], ids=lambda loss: type(loss).__name__
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("tile", [1, 8, 10**6])
def test_pass_equals_einsum(monkeypatch, engine_library, shape, order, loss, tile):
    xp = engine_library
    for name in ("TILE_ENTRIES", "SMALLEST_TILE_ENTRIES"):
        monkeypatch.setattr(dense, name, tile)
        monkeypatch.setattr(fused, name, tile)
    monkeypatch.setattr(dense, "TILE_ROWS", 2)
    monkeypatch.setattr(fused, "TILE_COLUMNS", 1 + tile // 4)
    monkeypatch.setattr(fused, "BLOCK_ENTRIES", 1 + tile // 2)
    X, factors = problem(shape)
    if order == "F":  # stored in reverse, viewed in order
        stored = xp.asarray(np.ascontiguousarray(X.T))
        data = array_namespace(stored).permute_dims(stored, tuple(range(X.ndim))[::-1])
    else:
        data = xp.asarray(X)
    engine = as_engine(data)
    assert isinstance(engine, Engine)
    ours = tuple(xp.asarray(A) for A in factors)
    for mode in range(X.ndim):
        expected = brute_force(X, factors, mode, loss)
        assert_equal(engine.normal(ours, mode, loss), expected)
        rows = slice(1, X.shape[mode])
        part = engine.normal(ours, mode, loss, rows)
        np.testing.assert_allclose(host(part.gradient), expected[1][rows], atol=1e-10)
        if loss == LOSS:
            np.testing.assert_allclose(host(part.gram), expected[0][rows], atol=1e-10)
    assert engine.value(ours, loss) == pytest.approx(expected[2], rel=1e-12)
    assert type(engine.normal(ours, 0, loss).gradient) is type(data)


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
    sizes = {"TILE_ENTRIES": tile, "SMALLEST_TILE_ENTRIES": tile, "TILE_COLUMNS": 1 + tile // 7,
             "BLOCK_ENTRIES": 1 + tile // 3, "ENABLED": use_numba}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(fused, name, value)
        engine = as_engine(stored, threads=threads)
        engine._tile_entries = tile
        for mode in range(X.ndim):
            rows = slice(shape[mode] // 3, shape[mode] - shape[mode] // 4)
            for loss in (LOSS, UNEVEN):
                expected = brute_force(X, factors, mode, loss)
                assert_equal(engine.normal(factors, mode, loss), expected)
                part = engine.normal(factors, mode, loss, rows)
                np.testing.assert_allclose(part.gradient, expected[1][rows], atol=1e-10)
                np.testing.assert_allclose(part.gram, expected[0][rows], atol=1e-10)
        if gaps and X.size > 2:
            stored[(0,) * X.ndim] = np.nan
            known = np.where(np.isnan(stored), 0.0, 1.0)
            holed = as_engine(stored, threads=threads)
            for mode in range(X.ndim):
                expected = brute_force(np.nan_to_num(stored), factors, mode, Weighted(LOSS, known))
                assert_equal(holed.normal(factors, mode, LOSS), expected)


class Weighted:
    """A loss times a weight for each entry of the whole tensor."""

    def __init__(self, loss, weights):
        self.loss, self.weights = loss, weights

    def value(self, r):
        return self.weights * self.loss.value(r)

    def slope(self, r):
        return self.weights * self.loss.slope(r)

    def curvature(self, r):
        return self.weights * self.loss.curvature(r)


def test_sums_over_parts_of_the_data_add_up():
    X, factors = problem((6, 5, 4))
    halves = [
        as_engine(X[:, part]).normal((factors[0], factors[1][part], factors[2]), 0, LOSS)
        for part in (slice(0, 2), slice(2, 5))
    ]
    assert_equal(halves[0] + halves[1], brute_force(X, factors, 0, LOSS))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.usefixtures("passes")
def test_same_bits_for_any_number_of_threads(threads, dtype):
    X, factors = problem((60, 70, 80), 5, dtype=dtype)
    one = as_engine(X, threads=1)
    many = as_engine(X, threads=threads)
    for mode in range(3):
        a, b = one.normal(factors, mode, LOSS), many.normal(factors, mode, LOSS)
        assert a.value == b.value
        assert np.array_equal(a.gram, b.gram)
        assert np.array_equal(a.gradient, b.gradient)


class TestStorage:
    X, factors = problem((6, 5, 4))
    expected = brute_force(X, factors, 1, LOSS)

    def check(self, data):
        engine = as_engine(data)
        assert_equal(engine.normal(self.factors, 1, LOSS), self.expected)

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
        assert_equal(engine.normal(self.factors, 1, LOSS), brute_force(X, self.factors, 1, LOSS))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, bool, np.longdouble])
def test_other_numbers_are_converted_to_float64(dtype):
    X, factors = problem((6, 5, 4))
    X = (X * 20 + 100).clip(0, 255).astype(dtype)
    engine = as_engine(X)
    assert engine.dtype == np.float64
    assert_equal(engine.normal(factors, 0, LOSS), brute_force(X.astype(float), factors, 0, LOSS))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_short_floats_are_passed_over_in_float32(dtype):
    X, factors = problem((6, 5, 4), dtype=np.float32)
    X = X.astype(dtype)
    engine = as_engine(X)
    equations = engine.normal(factors, 0, LOSS)
    assert equations.gram.dtype == equations.gradient.dtype == np.float32
    assert_equal(equations, brute_force(X.astype(float), factors, 0, LOSS), tol=1e-4)


def test_only_tiles_are_converted(monkeypatch):
    sizes = []
    original = dense.DenseEngine._convert

    def watch(self, x, dtype):
        sizes.append(x.size)
        return original(self, x, dtype)

    monkeypatch.setattr(dense.DenseEngine, "_convert", watch)
    monkeypatch.setattr(dense, "SAMPLE_ENTRIES", 1000)
    X = np.ones((80, 90, 100), dtype=np.uint8)
    factors = tuple(np.ones((size, 2)) for size in X.shape)
    engine = as_engine(X)
    for mode in range(3):
        engine.normal(factors, mode, LOSS)
        engine.normal(factors, mode, LeastSquares())
        engine.gram(mode)
    engine.value(factors, LOSS)
    engine.sample(factors)
    assert engine.largest == 1
    assert max(sizes) <= dense.TILE_ENTRIES


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
    a, b = engine.normal(factors, 2, LOSS), plain.normal(factors, 2, LOSS)
    assert np.array_equal(a.gram, b.gram)
    assert a.value == b.value


def test_saturation_cuts_and_counts(xp):
    X, factors = problem((6, 5, 4))
    engine = as_engine(xp.asarray(X))
    assert engine.excess(1.0) == pytest.approx(np.maximum(np.abs(X) - 1, 0).sum())
    ours = tuple(xp.asarray(A) for A in factors)
    cut = brute_force(X.clip(-1, 1), factors, 1, LOSS)
    assert_equal(engine.saturated(1.0).normal(ours, 1, LOSS), cut)


def test_gaps_weigh_nothing(xp):
    X, factors = problem((6, 5, 4))
    holes = np.random.default_rng(1).random(X.shape) < 0.3
    engine = as_engine(xp.asarray(np.where(holes, np.nan, X)))
    ours = tuple(xp.asarray(A) for A in factors)

    class Masked:
        def __init__(self, loss):
            self.parts = {k: getattr(loss, k) for k in ("value", "slope", "curvature")}

        def __getattr__(self, name):
            return lambda r: np.where(holes, 0.0, self.parts[name](r))

    for loss in (LOSS, LeastSquares()):
        for mode in range(3):
            expected = brute_force(X, factors, mode, Masked(loss))
            assert_equal(engine.normal(ours, mode, loss), expected)
        assert engine.value(ours, loss) == pytest.approx(expected[2])


def test_least_squares_value_keeps_its_digits():
    rng = np.random.default_rng(0)
    factors = tuple(1e3 * np.ones((size, 1)) for size in (6, 5, 4))
    noise = rng.standard_normal((6, 5, 4))
    engine = as_engine(1e9 + noise)
    assert engine.normal(factors, 0, LeastSquares()).value == pytest.approx(
        0.5 * np.sum(noise**2), rel=1e-5
    )


def test_sample_of_data_and_residuals(xp):
    X, factors = problem((6, 5, 4))
    engine = as_engine(xp.asarray(X))
    np.testing.assert_allclose(np.sort(engine.sample()), np.sort(X.ravel()))
    ours = tuple(xp.asarray(A) for A in factors)
    r = X - np.einsum("ir,jr,kr->ijk", *factors)
    np.testing.assert_allclose(np.sort(engine.sample(ours)), np.sort(r.ravel()))


def test_sample_of_a_large_tensor_is_bounded(monkeypatch):
    monkeypatch.setattr(dense, "SAMPLE_ENTRIES", 5000)
    X = np.random.default_rng(0).standard_normal((40, 50, 60))
    sample = as_engine(X).sample()
    assert sample.size == 5000
    assert sample.std() == pytest.approx(1.0, rel=0.05)


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
        class Broken(Plain):
            def value(self, r):
                raise ZeroDivisionError

        before = single_blas_thread._threads_now()
        X, factors = problem((60, 70, 80))
        with pytest.raises(ZeroDivisionError):
            as_engine(X, threads=2).value(factors, Broken())
        assert single_blas_thread._threads_now() == before
