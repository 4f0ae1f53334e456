"""Scales of entries: residuals in units of the noise, whatever the loss, storage and library."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcp.engines import (
    DenseEngine,
    EntryField,
    ListedField,
    Observed,
    Scales,
    Tiling,
    VarianceFunction,
    as_engine,
    as_weights,
    scales,
)
from robustcp.losses import L1, Cauchy, Contaminated, Huber, LeastSquares
from support.oracles import brute_force, host
from test_engines import ENTRY_SCALES, HELD, SCALES, InUnits, Masked, assert_equal, problem
from test_weights import outer

LOSS = L1(1e-2)
UNEVEN = Contaminated(0.7, above=0.2, below=0.01)


def signal_of(factors, constant, linear, quadratic):
    """The standard deviation of each entry, by loops over the components."""
    m = 0.0
    for columns in zip(*(A.T for A in factors), strict=True):
        m = m + outer(columns, [len(A) for A in factors])
    return np.sqrt(constant + linear * np.abs(m) + quadratic * m * m)


@st.composite
def scaled(draw):
    """Data in some storage order, factors, scales as given and as an array of all."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=5)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    X, factors = problem(shape, draw(st.integers(1, 3)))
    order = draw(st.permutations(range(X.ndim)))
    X = np.ascontiguousarray(X.transpose(order)).transpose(np.argsort(order))
    form = draw(st.sampled_from(["none", "vectors", "array"]))
    slabs, u = None, np.ones(shape)
    if form == "vectors":
        vectors = [rng.uniform(0.2, 4, n) if draw(st.booleans()) else None for n in shape]
        slabs, u = EntryField(shape, tuple(vectors)), outer(vectors, shape)
    elif form == "array":
        sizes = tuple(size if draw(st.booleans()) else 1 for size in shape)
        array = rng.uniform(0.2, 4, sizes)
        array = np.asfortranarray(array) if draw(st.booleans()) else array
        slabs, u = as_weights(array, shape), np.broadcast_to(array, shape)
    signal = None
    if draw(st.booleans()):
        held = problem(shape, draw(st.integers(1, 4)), seed=7)[1]
        parts = draw(st.sampled_from([(1.0, 0.0, 0.0), (0.2, 1.0, 0.0), (0.1, 0.2, 0.5)]))
        signal, u = VarianceFunction(held, *parts), u * signal_of(held, *parts)
    least = draw(st.sampled_from([0.0, 0.7]))
    return X, factors, Scales(slabs, signal, least), (u**4 + least**4) ** 0.25


@given(
    scaled(), st.integers(1, 100), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([np.float64, np.float32]),
)  # fmt: skip
def test_passes_equal_einsum_for_any_scales(data, tile, use_numba, kept, gaps, weighed, dtype):
    X, factors, given, u = data
    X, factors = X.astype(dtype), tuple(A.astype(dtype) for A in factors)
    w = np.ones(X.shape)
    if gaps and X.size > 2:
        X[(0,) * X.ndim] = np.nan
    if weighed:
        w.flat[:] = np.arange(X.size) % 3
        w.flat[-1] = 2
    tiling = Tiling(
        entries=tile, min_entries=tile, rows=2, compiled_entries=tile, max_columns=1 + tile // 7,
        block_entries=1 + tile // 3,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scales, "MAX_CACHED_ENTRIES", 10**6 if kept else 0)
        engine = DenseEngine(X, compiled=use_numba, tiling=tiling).standardized(given)
        engine = engine.weighted(w) if weighed else engine
        w = np.where(np.isnan(X), 0.0, w)
        whole = np.nan_to_num(X).astype(np.float64)
        tol = 1e-9 if dtype == np.float64 else 3e-4
        for loss in (LOSS, UNEVEN, LeastSquares()):
            for mode in range(X.ndim):
                expected = brute_force(whole, factors, mode, Masked(InUnits(loss, u), w))
                size = 1 + max(np.abs(part).max() for part in expected[:2])
                assert_equal(engine.normal_equations(factors, mode, loss), expected, tol * size)
                rows = slice(X.shape[mode] // 2, X.shape[mode])
                part = engine.normal_equations(factors, mode, loss, rows)
                np.testing.assert_allclose(part.gradient, expected[1][rows], atol=tol * size)
            assert engine.value(factors, loss) == pytest.approx(expected[2], rel=tol)


@pytest.mark.parametrize("form", SCALES)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("loss", [LOSS, UNEVEN], ids=lambda loss: loss.name)
def test_compiled_passes_equal_plain_ones(form, kept, loss, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(scales, "MAX_CACHED_ENTRIES", 10**6 if kept else 0)
    X, factors = problem((6, 5, 4))
    plain, compiled = (
        as_engine(X, compiled=how).standardized(SCALES[form]) for how in (False, True)
    )
    for mode in range(3):
        a, b = (
            plain.normal_equations(factors, mode, loss),
            compiled.normal_equations(factors, mode, loss),
        )
        for x, y in ((a.gram, b.gram), (a.gradient, b.gradient)):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12 * np.abs(x).max())
        assert a.value == pytest.approx(b.value, rel=1e-13)


@pytest.mark.parametrize("loss", [LOSS, UNEVEN, Huber(0.5), Cauchy(0.7)], ids=lambda x: x.name)
@pytest.mark.parametrize("form", SCALES)
def test_gradients_are_those_of_the_value(form, loss, compiled):
    X, factors = problem((6, 5, 4))
    engine = as_engine(X, compiled=compiled).standardized(SCALES[form])
    rng, step = np.random.default_rng(1), 1e-6
    for mode in range(3):
        along = rng.standard_normal(factors[mode].shape)

        def value(t, mode=mode, along=along):
            moved = [A + t * along if m == mode else A for m, A in enumerate(factors)]
            return engine.value(tuple(moved), loss)

        slope = -(engine.normal_equations(factors, mode, loss).gradient * along).sum()
        assert (value(step) - value(-step)) / (2 * step) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("form", SCALES)
def test_the_majorizer_lies_above_the_value(form, compiled):
    X, factors = problem((6, 5, 4))
    engine = as_engine(X, compiled=compiled).standardized(SCALES[form])
    i, j = np.triu_indices(3)
    rng = np.random.default_rng(1)
    for mode in range(3):
        equations = engine.normal_equations(factors, mode, LOSS)
        gram = np.zeros((X.shape[mode], 3, 3))
        gram[:, i, j] = gram[:, j, i] = equations.gram
        for size in (1e-3, 0.1, 1.0, 10.0):
            d = size * rng.standard_normal(factors[mode].shape)
            above = equations.value - (equations.gradient * d).sum()
            above += 0.5 * np.einsum("ir,irs,is->", d, gram, d)
            moved = tuple(A + d if m == mode else A for m, A in enumerate(factors))
            assert engine.value(moved, LOSS) <= above * (1 + 1e-12)


@pytest.mark.parametrize("form", SCALES)
@pytest.mark.parametrize("kept", [True, False])
def test_same_bits_for_any_number_of_threads(form, kept, compiled, monkeypatch):
    monkeypatch.setattr(scales, "MAX_CACHED_ENTRIES", 10**6 if kept else 0)
    X, factors = problem((60, 70, 80), 4)
    rng = np.random.default_rng(1)
    slabs = [rng.uniform(1, 2, 60), None, rng.uniform(1, 2, 80)]
    slabs = rng.uniform(1, 2, X.shape) if form == "array" else slabs
    signal = VarianceFunction(problem(X.shape, 2, seed=5)[1], 1.0, 0.5, 0.2)
    given = Scales(
        None if form == "signal" else as_weights(slabs, X.shape),
        signal if form in ("signal", "all") else None,
    )
    one, two = (as_engine(X, threads=n, compiled=compiled).standardized(given) for n in (1, 2))
    for mode in range(3):
        a, b = (
            one.normal_equations(factors, mode, UNEVEN),
            two.normal_equations(factors, mode, UNEVEN),
        )
        assert a.value == b.value
        assert np.array_equal(a.gram, b.gram)
        assert np.array_equal(a.gradient, b.gradient)
    assert one.value(factors, UNEVEN) == two.value(factors, UNEVEN)


@pytest.mark.parametrize(
    "ones",
    [
        Scales(),
        Scales(EntryField((6, 5, 4), (np.ones(6), None, np.ones(4)))),
        Scales(EntryField((6, 5, 4), (None,) * 3, np.ones((6, 1, 4)))),
        Scales(None, VarianceFunction(HELD, 1.0, 0.0, 0.0)),
    ],
    ids=["nothing", "vectors", "array", "signal"],
)
def test_scales_of_one_change_nothing(ones, compiled):
    X, factors = problem((6, 5, 4))
    plain = as_engine(X, compiled=compiled)
    engine = plain.standardized(ones)
    for loss in (LOSS, UNEVEN, LeastSquares()):
        for mode in range(3):
            a, b = (
                plain.normal_equations(factors, mode, loss),
                engine.normal_equations(factors, mode, loss),
            )
            np.testing.assert_allclose(b.gradient, a.gradient, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(
                b.gram, np.broadcast_to(a.gram, b.gram.shape), rtol=1e-12, atol=1e-12
            )
            assert b.value == pytest.approx(a.value, rel=1e-13)
    assert np.array_equal(engine.sample(factors).values, plain.sample(factors).values)


def test_one_scale_for_all_is_another_unit_of_the_loss():
    X, factors = problem((6, 5, 4))
    engine = as_engine(X).standardized(Scales(unit=4.0))
    smaller = (factors[0] / 4, *factors[1:])  # so that the model is in the units of X / 4
    a, b = (
        engine.normal_equations(factors, 0, LOSS),
        as_engine(X / 4).normal_equations(smaller, 0, LOSS),
    )
    assert a.value == pytest.approx(b.value, rel=1e-13)
    np.testing.assert_allclose(4 * a.gradient, b.gradient, atol=1e-12)
    np.testing.assert_allclose(16 * a.gram, b.gram, atol=1e-12)


@pytest.mark.parametrize("form", SCALES)
def test_all_of_a_view_together(form, xp, compiled):
    X, factors = problem((6, 5, 4))
    X[0, 1, 2], X[3, 3, 3], X[1, 1, 1] = np.nan, 50.0, 3.0
    w = np.random.default_rng(3).integers(0, 4, size=X.shape)
    engine = as_engine(xp.asarray(2.0**300 * X), compiled=compiled).weighted(w)
    engine = engine.scaled(300).masked_above(20.0).clipped(1.5).standardized(SCALES[form])
    seen = np.where(np.abs(X) > 20, np.nan, X).clip(-1.5, 1.5)
    loss = Masked(InUnits(UNEVEN, ENTRY_SCALES[form]), np.where(np.isnan(seen), 0, w))
    ours = tuple(engine.asarray(A) for A in factors)
    for mode in range(3):
        expected = brute_force(np.nan_to_num(seen), factors, mode, loss)
        assert_equal(engine.normal_equations(ours, mode, UNEVEN), expected)
    assert engine.value(ours, UNEVEN) == pytest.approx(expected[2], rel=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, ">f8"])
def test_data_of_other_types(dtype, compiled):
    X, factors = problem((6, 5, 4))
    X = (20 * X + 100).clip(0, 255).astype(dtype)
    engine = as_engine(X, compiled=compiled).standardized(SCALES["all"])
    ours = tuple(engine.asarray(A) for A in factors)
    expected = brute_force(X.astype(float), factors, 1, InUnits(LOSS, ENTRY_SCALES["all"]))
    assert_equal(
        engine.normal_equations(ours, 1, LOSS), expected, 1e-10 if dtype != np.float16 else 1e-3
    )


def test_large_signals_do_not_overflow_in_float32(compiled):
    X = np.full((4, 4, 4), 1e30, np.float32)
    held = (np.full((4, 1), 1e30), np.ones((4, 1)), np.ones((4, 1)))
    scales = Scales(None, VarianceFunction(held, 0, 0, 4), 1)
    engine = as_engine(X, compiled=compiled).standardized(scales)
    zeros = tuple(np.zeros((4, 1), np.float32) for _ in range(3))
    assert engine.value(zeros, LeastSquares()) == pytest.approx(64 / 8, rel=1e-5)
    assert engine.value(zeros, L1(1e-6)) == pytest.approx(64 / 2, rel=1e-5)


def test_a_sample_of_a_large_tensor(compiled):
    X, factors = problem((40, 50, 60))
    signal = VarianceFunction(problem(X.shape, 2, seed=5)[1], 0.5, 0.5, 0.2)
    given = Scales(EntryField(X.shape, (None, np.linspace(1, 3, 50), None)), signal)
    stored = np.asfortranarray(X)
    engine = DenseEngine(
        stored, compiled=compiled, tiling=Tiling(sample_entries=5000)
    ).standardized(given)
    sample = engine.sample(factors)
    r = (X - np.einsum("ir,jr,kr->ijk", *factors))[sample.indices]
    assert sample.values.size == 5000
    np.testing.assert_allclose(
        sample.values, r / given.values_at(sample.indices), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(
        engine.entry_scales()[sample.indices], given.values_at(sample.indices)
    )


@pytest.mark.process
def test_no_array_of_the_size_of_the_data_is_made(compiled):
    X = np.random.default_rng(0).random((300, 300, 300), dtype=np.float32)
    factors = tuple(np.ones((300, 2), np.float32) for _ in range(3))
    slabs = EntryField(X.shape, (np.linspace(1, 2, 300), None, np.linspace(1, 2, 300)))
    given = Scales(slabs, VarianceFunction(factors, 0.5, 0.5, 0.2), least=1e-3)
    loss = LOSS if compiled else Huber(1.0)
    tracemalloc.start()
    engine = as_engine(X, threads=1, compiled=compiled).standardized(given)
    engine.normal_equations(factors, 0, loss)
    engine.value(factors, loss)
    engine.sample(factors)
    engine.count_large_residuals(factors, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.4 * X.nbytes


def test_scales_are_kept_for_views_that_share_them():
    X, factors = problem((6, 5, 4))
    engine = as_engine(X).standardized(SCALES["all"])
    engine.normal_equations(factors, 0, LOSS)
    other = engine.clipped(1.0)
    other.normal_equations(factors, 0, LOSS)
    assert other._storage.scales is engine._storage.scales
    assert engine.standardized(None).standardized(SCALES["array"])._storage.scales is not (
        engine._storage.scales
    )


def test_inputs_are_not_changed():
    X, factors = problem((6, 5, 4))
    array = np.random.default_rng(1).uniform(1, 2, X.shape)
    before = array.copy()
    for kept in (array, np.asfortranarray(array)):
        engine = as_engine(X).standardized(Scales(as_weights(kept, X.shape), least=1.5))
        engine.normal_equations(factors, 0, LOSS)
        engine.entry_scales()[:] = 0
        assert np.array_equal(kept, before)


# Observed entries


class TestListed:
    X, factors = problem((6, 5, 4))
    at = np.random.default_rng(2).permutation(np.argwhere(X > -1))
    place = tuple(at.T)
    u = np.random.default_rng(3).uniform(0.3, 3, X.shape)
    data = Observed(at, X[place], X.shape)

    def check(self, engine, u, w=None):
        w = self.X > -1 if w is None else w
        loss = Masked(InUnits(LOSS, u), w)
        for mode in range(3):
            expected = brute_force(self.X, self.factors, mode, loss)
            assert_equal(engine.normal_equations(self.factors, mode, LOSS), expected)
        assert engine.value(self.factors, LOSS) == pytest.approx(expected[2], rel=1e-12)

    def test_in_the_order_given(self):
        engine = as_engine(self.data).standardized(Scales(ListedField(self.u[self.place])))
        self.check(engine, self.u)
        assert np.array_equal(engine.entry_scales(), self.u[self.place])

    def test_times_a_signal(self):
        given = Scales(ListedField(self.u[self.place]), VarianceFunction(HELD, 0.1, 0.5, 0.2), 0.5)
        u = (0.5**4 + (self.u * ENTRY_SCALES["signal"]) ** 4) ** 0.25
        engine = as_engine(self.data).standardized(given)
        self.check(engine, u)
        np.testing.assert_allclose(engine.entry_scales(), u[self.place], rtol=1e-13)

    def test_with_weights_and_wild_entries(self):
        w = np.random.default_rng(4).integers(0, 3, self.X.shape)
        engine = as_engine(self.data).standardized(Scales(ListedField(self.u[self.place])))
        engine = engine.weighted(w[self.place]).masked_above(1.2)
        self.check(engine, self.u, np.where((self.X > -1) & (np.abs(self.X) <= 1.2), w, 0))
        assert np.array_equal(engine.entry_scales(), self.u[self.place])

    def test_parts(self):
        given = Scales(ListedField(self.u[self.place]), VarianceFunction(HELD, 0.1, 0.5, 0.2))
        w = np.random.default_rng(4).integers(0, 3, self.X.shape)
        engine = as_engine(self.data).standardized(given).weighted(w)
        chosen = [np.array([5, 0, 3]), None, np.array([1, 2])]
        part = engine.subtensor(chosen)
        here = np.ix_(chosen[0], np.arange(5), chosen[2])
        few = [A if at is None else A[at] for A, at in zip(self.factors, chosen, strict=True)]
        u = (self.u * ENTRY_SCALES["signal"])[here]
        loss = Masked(InUnits(LOSS, u), np.where(self.X > -1, w, 0)[here])
        assert_equal(
            part.normal_equations(tuple(few), 0, LOSS), brute_force(self.X[here], few, 0, loss)
        )

    def test_of_other_engines_are_not_known(self):
        given = Scales(ListedField(self.u[self.place]))
        with pytest.raises(ValueError, match="scales: are of shape"):
            as_engine(self.X).standardized(given)
        with pytest.raises(TypeError, match="not known by indices"):
            given.values_at(self.place)


def test_scales_of_some_entries():
    where = tuple(np.random.default_rng(1).integers(0, 4, (3, 20)))
    for form, of_entries in SCALES.items():
        np.testing.assert_allclose(
            of_entries.values_at(where), ENTRY_SCALES[form][where], rtol=1e-12
        )
        chosen = [None, np.array([4, 1]), np.array([2])]
        part = of_entries.subset(chosen).values_at(np.indices((6, 2, 1)).reshape(3, -1))
        expected = ENTRY_SCALES[form][:, chosen[1]][:, :, chosen[2]]
        np.testing.assert_allclose(part, expected.ravel(), rtol=1e-12)


def test_arrays_of_any_library(xp):
    X, factors = problem((6, 5, 4))
    u = np.random.default_rng(6).uniform(0.1, 3, (5, 4))
    given = Scales(as_weights(xp.asarray(u), X.shape))
    expected = as_engine(X).standardized(SCALES["array"]).normal_equations(factors, 0, LOSS)
    got = as_engine(X).standardized(given).normal_equations(factors, 0, LOSS)
    assert np.array_equal(host(got.gram), host(expected.gram))


# What may be given


def vector(value):
    return EntryField((6, 5, 4), (np.array([1.0, value, 2, 3, 4, 5]), None, None))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Scales(vector(0.0)), "must be positive and finite, got 0"),
        (lambda: Scales(vector(-1.0)), "must be positive and finite, got -1"),
        (lambda: Scales(vector(math.nan)), "must be positive and finite, got nan"),
        (
            lambda: Scales(ListedField(np.array([1.0, math.inf]))),
            "positive and finite, got inf",
        ),
        (lambda: Scales(least=-1.0), "least: must be a number >= 0"),
        (lambda: Scales(None, VarianceFunction(HELD, 0.0, 1.0, 0.0)), "least must be > 0"),
        (lambda: VarianceFunction(HELD, 0.0, 0.0, 0.0), "without any variance"),
        (lambda: VarianceFunction(HELD, 1.0, -1.0, 0.0), "linear: must be a number >= 0"),
        (
            lambda: VarianceFunction((HELD[0], HELD[1][:, :1]), 1.0, 0.0, 0.0),
            r"must be \(I_n, R\), got",
        ),
        (
            lambda: VarianceFunction((HELD[0] * math.nan, *HELD[1:]), 1.0, 0.0, 0.0),
            "must be finite",
        ),
    ],
)
def test_bad_scales_are_named(build, message):
    with pytest.raises(ValueError, match="^scales: .*" + message):
        build()


@pytest.mark.parametrize("form", SCALES)
def test_scales_of_another_shape_do_not_fit(form):
    X, _ = problem((6, 5, 4))
    at = np.argwhere(X[:3] > -1)
    for engine in (as_engine(X[:3]), as_engine(Observed(at, X[tuple(at.T)], (3, 5, 4)))):
        with pytest.raises(ValueError, match="scales: are of shape"):
            engine.standardized(SCALES[form])
        with pytest.raises(ValueError, match="scales: are of shape"):
            engine.with_view(replace(engine.view, scales=SCALES[form]))
