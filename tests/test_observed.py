"""Passes over listed entries: against the whole tensor, however entries lie and threads share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcp import Observed
from robustcp.engines import Scales, as_engine, as_weights, coordinates, values_at_entries
from robustcp.engines.coordinates import (
    CompiledCoordinatePass,
    CoordinateList,
    PlainCoordinatePass,
    lexicographic_order,
    stable_order,
)
from robustcp.losses import (
    L1,
    Cauchy,
    Contaminated,
    Huber,
    LeastSquares,
    Quantile,
    UserLoss,
    Welsch,
)
from support.oracles import brute_force
from test_engines import SHAPES, InUnits, Masked, assert_equal, problem

LOSSES = [
    L1(1e-2),
    Contaminated(0.7, above=0.2, below=0.01),
    Cauchy(0.8),
    Welsch(1.1),
    Quantile(0.8, 1e-2),
    LeastSquares(),
    Huber(0.5),
]


def scattered(shape, rng, count):
    """Places of some entries, in no order."""
    flat = rng.permutation(np.prod(shape))[:count]
    return np.stack(np.unravel_index(flat, shape), axis=1)


def skewed(rng):
    """Places in a tensor of shape (9, 20, 15): most in one slab of each mode, some slabs empty."""
    known = rng.random((9, 20, 15)) < 0.02
    known[4] |= rng.random((20, 15)) < 0.9
    known[:, 7] |= rng.random((9, 15)) < 0.8
    known[:, :, 3] |= rng.random((9, 20)) < 0.8
    known[[0, 8]] = known[:, [0, 1, 19]] = known[:, :, [14]] = False
    return rng.permutation(np.argwhere(known))


def known_at(at, X):
    """Where there are entries."""
    known = np.zeros(X.shape, dtype=bool)
    known[tuple(at.T)] = True
    return known


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles end within rows, and at their ends, also of small data."""
    monkeypatch.setattr(CompiledCoordinatePass, "tile_entries", 7)
    monkeypatch.setattr(PlainCoordinatePass, "tile_entries", 5)


def check(engine, X, factors, loss, known, u=None, tol=1e-10):
    """Against an einsum over the whole tensor; `known` are weights, 0 where nothing is."""
    whole = loss if u is None else InUnits(loss, u)
    for mode in range(X.ndim):
        expected = brute_force(X, factors, mode, Masked(whole, known))
        assert_equal(engine.normal_equations(factors, mode, loss), expected, tol)
        rows = slice(1, X.shape[mode] - 1)
        part = engine.normal_equations(factors, mode, loss, rows)
        np.testing.assert_allclose(part.gram, expected[0][rows], rtol=tol, atol=tol)
        np.testing.assert_allclose(part.gradient, expected[1][rows], rtol=tol, atol=tol)
    assert engine.value(factors, loss) == pytest.approx(expected[2], rel=tol)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
class TestAgainstTheWhole:
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_two_to_five_modes(self, shape, loss, compiled, rng):
        X, factors = problem(shape)
        at = scattered(shape, rng, 2 * X.size // 3)
        engine = as_engine(Observed(at, X[tuple(at.T)], shape), compiled=compiled)
        check(engine, X, factors, loss, known_at(at, X))

    def test_empty_rows_and_one_with_most_entries(self, loss, compiled, rng):
        at = skewed(rng)
        X, factors = problem((9, 20, 15), rank=2)
        engine = as_engine(Observed(at, X[tuple(at.T)], X.shape), compiled=compiled)
        check(engine, X, factors, loss, known_at(at, X))
        empty = engine.normal_equations(factors, 1, loss)
        assert not empty.gram[[0, 1, 19]].any()
        assert not empty.gradient[[0, 1, 19]].any()

    def test_weights_and_scales(self, loss, compiled, rng):
        at = skewed(rng)
        X, factors = problem((9, 20, 15))
        w, u = rng.integers(0, 3, X.shape), rng.uniform(0.3, 3, X.shape)
        known = np.where(known_at(at, X), w, 0)
        engine = as_engine(Observed(at, X[tuple(at.T)], X.shape), compiled=compiled)
        scales = Scales(as_weights(u, X.shape))
        check(engine.weighted(w), X, factors, loss, known)
        check(engine.standardized(scales), X, factors, loss, known_at(at, X), u)
        check(engine.weighted(w).standardized(scales), X, factors, loss, known, u)

    def test_float32(self, loss, compiled, rng):
        at = skewed(rng)
        X, factors = problem((9, 20, 15), dtype=np.float32)
        w, u = rng.integers(0, 3, X.shape), rng.uniform(0.3, 3, X.shape)
        known = np.where(known_at(at, X), w, 0)
        engine = as_engine(Observed(at, X[tuple(at.T)], X.shape), compiled=compiled)
        engine = engine.weighted(w).standardized(Scales(as_weights(u, X.shape)))
        equations = engine.normal_equations(factors, 0, loss)
        assert equations.gram.dtype == equations.gradient.dtype == np.float32
        exact = tuple(A.astype(np.float64) for A in factors)
        for mode in range(3):
            expected = brute_force(
                X.astype(np.float64), exact, mode, Masked(InUnits(loss, u), known)
            )
            assert_equal(engine.normal_equations(factors, mode, loss), expected, 2e-3)
        assert engine.value(factors, loss) == pytest.approx(expected[2], rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("count", [300, 100_000])
def test_threads_change_no_bit(loss, count, compiled, rng, monkeypatch):
    monkeypatch.setattr(CompiledCoordinatePass, "tile_entries", max(13, count // 9))
    monkeypatch.setattr(PlainCoordinatePass, "tile_entries", max(13, count // 9))
    shape = (30, 80, 60)
    at = scattered(shape, rng, count)
    at = at[(at[:, 0] == 5) | (rng.random(len(at)) < 0.5)]
    _, factors = problem(shape, rank=4)
    data = Observed(at, rng.standard_normal(len(at)), shape)
    one, two = (as_engine(data, threads=n, compiled=compiled) for n in (1, 2))
    for mode in range(3):
        a, b = one.normal_equations(factors, mode, loss), two.normal_equations(factors, mode, loss)
        assert np.array_equal(a.gram, b.gram)
        assert np.array_equal(a.gradient, b.gradient)
        assert a.value == b.value
    assert one.value(factors, loss) == two.value(factors, loss)
    assert np.array_equal(one.entries(factors).values, two.entries(factors).values)


def test_most_of_the_entries_in_one_row_are_shared_by_threads(compiled, rng, monkeypatch):
    monkeypatch.setattr(CompiledCoordinatePass, "tile_entries", 5000)
    monkeypatch.setattr(PlainCoordinatePass, "tile_entries", 5000)
    at = scattered((3, 400, 300), rng, 60_000)
    at[:, 0] = np.where(rng.random(len(at)) < 0.9, 1, at[:, 0])
    at = np.unique(at, axis=0)
    _, factors = problem((3, 400, 300), rank=2)
    engine = as_engine(Observed(at, rng.standard_normal(len(at)), (3, 400, 300)), compiled=compiled)
    taken = []
    mapped = engine.executor.map
    engine.executor.map = lambda work, tiles: mapped(work, taken.append(len(tiles)) or tiles)
    engine.normal_equations(factors, 0, L1(1e-2))
    assert taken[0] > 3  # than rows


def test_which_losses_are_compiled(rng):
    pytest.importorskip("numba")
    at = scattered((4, 5, 6), rng, 50)
    for dtype in (np.float32, np.float64):
        passes = as_engine(Observed(at, rng.random(50).astype(dtype), (4, 5, 6)))._passes
        for loss in LOSSES:
            assert isinstance(passes.for_loss(loss), CompiledCoordinatePass)
        assert isinstance(passes.for_loss(UserLoss(Huber())), PlainCoordinatePass)
    small = as_engine(Observed(at, rng.random(50).astype(np.float32), (4, 5, 6)))._passes
    assert isinstance(small.for_loss(L1(1e-60)), PlainCoordinatePass)  # it would be 0 there


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60),
    st.sampled_from([1, 2**8, 2**16, 2**17, 2**32]),
)
def test_stable_order(values, size):
    index = np.array([value % size for value in values], dtype=np.uint32)
    assert np.array_equal(stable_order(index, size), np.argsort(index, kind="stable"))
    assert np.array_equal(
        stable_order(index.astype(np.int64) << 20, size << 20),
        np.argsort(index, kind="stable"),
    )


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=60))
def test_lexicographic_order(rows):
    at = np.array(rows, dtype=np.uint32).T.copy()
    assert np.array_equal(lexicographic_order(at, (4, 4, 4)), np.lexsort(at[::-1]))


def test_orders_list_each_entry_once(rng):
    at = scattered((5, 70_000, 4), rng, 400)
    at = at[np.lexsort(at.T[::-1])].T.astype(np.uint32)
    found = CoordinateList(np.ascontiguousarray(at), (5, 70_000, 4))
    for mode in range(3):
        order = found.row_order(mode)
        places = np.arange(400) if order.permutation is None else order.permutation
        rows = np.repeat(np.arange(found.shape[mode]), np.diff(order.row_starts))
        assert np.array_equal(rows, at[mode][places])
        assert np.array_equal(order.other_indices, np.delete(at, mode, axis=0)[:, places])
        assert np.array_equal(np.sort(places), np.arange(400))


class TestViews:
    def data(self, rng):
        at = scattered((30, 20, 10), rng, 900)
        return as_engine(Observed(at, rng.standard_normal(900), (30, 20, 10)))

    def test_sort_entries_once(self, rng, monkeypatch):
        engine = self.data(rng)
        factors = problem(engine.shape)[1]
        for mode in range(3):
            engine.normal_equations(factors, mode, LOSSES[0])
        monkeypatch.setattr(coordinates, "stable_order", None)
        u = Scales(as_weights([np.linspace(1, 2, 30), None, None], engine.shape))
        for seen in (engine.scaled(2), engine.clipped(0.5), engine.standardized(u)):
            for mode in range(3):
                seen.normal_equations(factors, mode, LOSSES[0])
        assert engine.standardized(u).clipped(0.5)._unmasked is engine._unmasked

    def test_that_leave_out_entries_do_not_share_them(self, rng):
        engine = self.data(rng)
        wild = engine.masked_above(1.0)
        assert wild.count < engine.count
        assert wild.masked_above(np.inf).count == wild.count
        w = np.ones(900)
        w[::2] = 0
        assert engine.weighted(w).count == 450
        assert engine.weighted(w).weighted(np.ones(900)).count == 900
        assert wild.scaled(1).count == wild.count

    def test_a_scale_of_powers_of_two_that_float32_has_no_room_for(self, rng):
        at = scattered((4, 5, 6), rng, 100)
        x = np.ldexp(rng.standard_normal(100).astype(np.float32), -135)
        factors = problem((4, 5, 6), dtype=np.float32)[1]
        tiny = as_engine(Observed(at, x, (4, 5, 6))).scaled(-135)
        exact = as_engine(Observed(at, np.ldexp(x, 135), (4, 5, 6)))
        a, b = (engine.normal_equations(factors, 1, L1(1e-2)) for engine in (tiny, exact))
        assert np.array_equal(a.gram, b.gram)


def test_a_sample_of_many(rng, monkeypatch):
    from robustcp.engines import observed

    monkeypatch.setattr(observed, "sample_size", lambda shape: 200)
    at = scattered((30, 20, 10), rng, 5000)
    x = rng.standard_normal(5000)
    factors = problem((30, 20, 10))[1]
    X = np.full((30, 20, 10), np.nan)
    X[tuple(at.T)] = x
    u = rng.uniform(0.5, 2, X.shape)
    engine = as_engine(Observed(at, x, X.shape)).standardized(Scales(as_weights(u, X.shape)))
    r = (X - np.einsum("ir,jr,kr->ijk", *factors)) / u
    for sample, whole in ((engine.sample(), X), (engine.sample(factors), r)):
        assert sample.values.size == 200
        assert sample.indices[0].dtype == np.int64
        np.testing.assert_allclose(sample.values, whole[sample.indices], atol=1e-12)


class TestChecks:
    def test_indices_of_any_integer_type(self, rng):
        at = scattered((4, 5, 6), rng, 30)
        x = rng.random(30)
        given = [Observed(at.astype(kind), x, (4, 5, 6)) for kind in (np.int8, np.uint16, np.int64)]
        for data in given:
            assert np.array_equal(data.sorted_indices, given[0].sorted_indices)
            assert data.indices.dtype == np.int64

    def test_outside_or_twice(self):
        with pytest.raises(ValueError, match=r"indices: outside of \(2, 300\): \(0, 300\)"):
            Observed([[1, 2], [0, 300]], [1.0, 2.0], (2, 300))
        with pytest.raises(ValueError, match=r"indices: outside of \(2, 300\): \(-1, 3\)"):
            Observed([[1, 2], [-1, 3]], [1.0, 2.0], (2, 300))
        with pytest.raises(ValueError, match=r"indices: given more than once: \(1, 299\)"):
            Observed([[1, 299], [0, 2], [1, 299]], [1.0, 2.0, 3.0], (2, 300))


def test_parts_in_another_order(rng):
    at = scattered((6, 5, 4), rng, 80)
    x = rng.standard_normal(80)
    X = np.full((6, 5, 4), np.nan)
    X[tuple(at.T)] = x
    factors = problem((6, 5, 4))[1]
    engine = as_engine(Observed(at, x, X.shape))
    for rows in (np.array([5, 0, 3]), np.array([0, 3, 5])):
        part = engine.subtensor([rows, None, None])
        few, known = np.nan_to_num(X[rows]), ~np.isnan(X[rows])
        here = (factors[0][rows], *factors[1:])
        assert_equal(
            part.normal_equations(here, 1, L1(1e-2)),
            brute_force(few, here, 1, Masked(L1(1e-2), known)),
        )
        assert part.slab_counts(0).tolist() == known.sum(axis=(1, 2)).tolist()


@pytest.mark.parametrize("alone", [True, False])
def test_products_of_an_unfolding_in_which_columns_hold_one_entry_or_more(alone, rng):
    at = scattered((7, 6, 5), rng, 60)
    if alone:
        at = at[np.unique(at[:, 1:], axis=0, return_index=True)[1]]
    X = np.zeros((7, 6, 5))
    X[tuple(at.T)] = rng.standard_normal(len(at))
    engine = as_engine(Observed(at, X[tuple(at.T)], X.shape))
    for mode in range(3):
        U = np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1)
        V = rng.standard_normal((X.shape[mode], 2))
        np.testing.assert_allclose(engine.gram(mode), U @ U.T, atol=1e-12)
        np.testing.assert_allclose(engine.gram(mode, V), U @ (U.T @ V), atol=1e-12)
        held = U[:, np.any(U != 0, axis=0)]
        np.testing.assert_allclose(engine.cogram(mode), held.T @ held, atol=1e-12)


def test_values_of_missing_entries_alone_have_no_usual_one():
    data, zeros = np.array([[1.0, np.nan]]), np.zeros((1, 2))
    assert np.array_equal(values_at_entries(data, zeros), zeros)
    assert np.array_equal(values_at_entries(data, np.array([[3.0, 0.0]])), [[3.0, 3.0]])
