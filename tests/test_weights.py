"""EntryField of entries: 2 counts an entry twice, 0 means that it is missing."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp import Observed, cp, cpal1, cpals
from robustcp.engines import DenseEngine, Engine, Tiling, as_engine
from robustcp.losses import L1, Contaminated, LeastSquares
from robustcp.optimize.acceleration import NoAcceleration
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from support.halves import Halves
from support.oracles import brute_force, host
from test_engines import ENGINES, Masked, assert_equal, observed, problem

SMOOTHED = L1(1e-2)


def least_squares(X, rank, **options):
    return cpals(X, rank, mu=0.0, tol=0.0, max_sweeps=10, **options)


def one_norm(X, rank, **options):
    options = {"mu": 0.0, "tol": 0.0, "max_sweeps": 10, "epsilon": 1e-2} | options
    return cpal1(X, rank, smoothing="fixed", **options)


def plain_sweeps(X, rank, **options):
    """Least squares without acceleration, which depends on the columns' norms."""
    stage = Stage("least squares", Single(LeastSquares()), 0.0, acceleration=NoAcceleration())
    return cp(X, rank, loss=[stage], max_sweeps=10, **options)


METHODS = [least_squares, one_norm]


def model(fit):
    return host(fit.full())


def outer(vectors, shape):
    """What vectors stand for."""
    w = np.ones(shape)
    for mode, vector in enumerate(vectors):
        if vector is not None:
            w = w * np.reshape(vector, [-1 if m == mode else 1 for m in range(len(shape))])
    return w


def assert_same_fit(a, b, tol=1e-10):
    np.testing.assert_allclose(a.trace, b.trace, rtol=tol)
    np.testing.assert_allclose(host(a.weights), host(b.weights), rtol=100 * tol)
    for A, B in zip(a.factors, b.factors, strict=True):
        np.testing.assert_allclose(host(A), host(B), atol=100 * tol)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.cluster] if "in chunks" in kind else [])
        for kind in ENGINES
    ],
)
@pytest.mark.parametrize("method", METHODS)
class TestMeaning:
    """What weights mean, over every engine."""

    def test_two_is_twice(self, kind, method):
        method = plain_sweeps if method is least_squares else method
        X, factors = problem((6, 5, 4))
        twice = np.concatenate([X, X[1:2]])
        begin = (np.concatenate([factors[0], factors[0][1:2]]), *factors[1:])
        w = np.ones(6)
        w[1] = 2.0
        expected = method(ENGINES[kind](twice), 3, init=begin)
        for weights in (w[:, None, None], [w, None, None], outer([w, None, None], X.shape)):
            fit = method(ENGINES[kind](X), 3, init=factors, entry_weights=weights)
            np.testing.assert_allclose(fit.trace, expected.trace, rtol=1e-10)
            np.testing.assert_allclose(model(fit), model(expected)[:6], atol=1e-8)
            for mode in (1, 2):
                A, B = host(fit.factors[mode]), host(expected.factors[mode])
                best = np.abs(A.T @ B).max(axis=1)  # components may be in another order
                np.testing.assert_allclose(best, 1.0, atol=1e-10)

    def test_zero_is_missing(self, kind, method):
        X, factors = problem((6, 5, 4))
        w = np.random.default_rng(1).random(X.shape) < 0.7
        wild = np.where(w, X, 1e6)
        fit = method(ENGINES[kind](wild), 3, init=factors, entry_weights=w)
        assert_same_fit(fit, method(ENGINES[kind](np.where(w, X, np.nan)), 3, init=factors))

    def test_vectors_are_their_outer_product(self, kind, method):
        X, factors = problem((6, 5, 4))
        rng = np.random.default_rng(1)
        vectors = [rng.random(6), None, rng.random(4)]
        a = method(ENGINES[kind](X), 3, init=factors, entry_weights=vectors)
        b = method(ENGINES[kind](X), 3, init=factors, entry_weights=outer(vectors, X.shape))
        assert_same_fit(a, b)

    def test_a_factor_of_all_weights_is_one_of_the_objective(self, kind, method):
        X, factors = problem((6, 5, 4))
        w = np.random.default_rng(1).random(X.shape)
        a = method(ENGINES[kind](X), 3, init=factors, entry_weights=w)
        b = method(ENGINES[kind](X), 3, init=factors, entry_weights=8 * w)
        np.testing.assert_allclose(b.trace, 8 * a.trace, rtol=1e-10)
        for A, B in zip(a.factors, b.factors, strict=True):
            np.testing.assert_allclose(host(A), host(B), atol=1e-10)


def test_two_is_twice_in_least_squares():
    X, factors = problem((6, 5, 4))
    w = np.ones(6)
    w[1] = 2.0
    begin = (np.concatenate([factors[0], factors[0][1:2]]), *factors[1:])
    doubled, weights = np.concatenate([X, X[1:2]]), [w, None, None]
    twice = plain_sweeps(doubled, 3, init=begin)
    fit = plain_sweeps(X, 3, init=factors, entry_weights=weights)
    np.testing.assert_allclose(fit.trace, twice.trace, rtol=1e-10)


def test_two_is_twice_in_cpals():
    sim = robustcp.simulate((8, 7, 6), 2, eta=0.0, gamma=0.0, rng=0)
    X, w = sim.data, np.ones(8)
    w[1] = 2.0
    factors = sim.truth.absorbed()
    begin = (np.concatenate([factors[0], factors[0][1:2]]), *factors[1:])
    twice = cpals(np.concatenate([X, X[1:2]]), 2, init=begin, tol=1e-14)
    fit = cpals(X, 2, init=factors, entry_weights=[w, None, None], tol=1e-14)
    assert fit.objective == pytest.approx(twice.objective, rel=1e-8)


# Any shape, storage and kind of weights


@st.composite
def weighed(draw):
    """Data in some storage order, factors, weights as given and as an array of all."""
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=2, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    X, factors = problem(shape, draw(st.integers(1, 3)))
    order = draw(st.permutations(range(X.ndim)))
    X = np.ascontiguousarray(X.transpose(order)).transpose(np.argsort(order))
    if draw(st.booleans()):
        given = [rng.integers(0, 3, size) if draw(st.booleans()) else None for size in shape]
        for vector in given:
            if vector is not None:
                vector[-1] = 2
        return X, factors, given, outer(given, shape)
    sizes = tuple(size if draw(st.booleans()) else 1 for size in shape)
    w = rng.integers(0, 3, sizes)
    w.flat[-1] = 2
    if draw(st.booleans()):
        w = np.asfortranarray(w)
    return X, factors, w, np.broadcast_to(w, shape)


@given(
    weighed(), st.integers(1, 100), st.booleans(), st.booleans(),
    st.sampled_from([np.float64, np.float32]),
)  # fmt: skip
def test_passes_equal_einsum_for_any_weights(data, tile, use_numba, gaps, dtype):
    X, factors, given, w = data
    X, factors = X.astype(dtype), tuple(A.astype(dtype) for A in factors)
    if gaps:
        X[(0,) * X.ndim] = np.nan
    tiling = Tiling(
        entries=tile, min_entries=tile, rows=2, compiled_entries=tile, max_columns=1 + tile // 7,
        block_entries=1 + tile // 3,
    )  # fmt: skip
    engine = DenseEngine(X, compiled=use_numba, tiling=tiling).weighted(given)
    w = np.where(np.isnan(X), 0.0, w)
    tol = 1e-10 if dtype == np.float64 else 1e-4
    for loss in (SMOOTHED, Contaminated(0.7, above=0.2, below=0.01), LeastSquares()):
        for mode in range(X.ndim):
            whole = np.nan_to_num(X).astype(np.float64)
            expected = brute_force(whole, factors, mode, Masked(loss, w))
            assert_equal(engine.normal_equations(factors, mode, loss), expected, tol)
            rows = slice(1, X.shape[mode])
            part = engine.normal_equations(factors, mode, loss, rows)
            np.testing.assert_allclose(part.gradient, expected[1][rows], rtol=tol, atol=tol)
        assert engine.value(factors, loss) == pytest.approx(expected[2], rel=tol)


@given(weighed(), st.sampled_from(METHODS))
@pytest.mark.filterwarnings("ignore:X. .* slabs of mode")
def test_fits_are_those_of_the_full_array_and_of_missing_entries(data, method):
    X, factors, given, w = data
    rank = factors[0].shape[1]
    fit = method(X, rank, init=factors, entry_weights=given)
    full = method(X, rank, init=factors, entry_weights=np.array(w))
    np.testing.assert_allclose(fit.trace, full.trace, rtol=1e-7, atol=1e-10)
    known = np.where(w > 0, X, np.nan)
    ones, nan = (
        method(Y, rank, init=factors, entry_weights=v) for Y, v in ((X, w > 0), (known, None))
    )
    np.testing.assert_allclose(ones.trace, nan.trace, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("method", [plain_sweeps, one_norm])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(9, 8), (6, 5, 4), (5, 4, 3, 4)], ids=str)
def test_fits_of_any_order(shape, order, method, compiled):
    X, factors = problem(shape, 2)
    rng = np.random.default_rng(1)

    def fit(X, weights=None, threads=1, begin=factors):
        stored = np.asarray(X, order=order)
        engine = as_engine(stored, threads=threads, compiled=compiled)
        return method(engine, 2, init=begin, entry_weights=weights)

    vectors = [rng.random(size) for size in shape]
    assert_same_fit(fit(X, vectors), fit(X, outer(vectors, shape)))
    known = rng.random(shape) < 0.9
    assert_same_fit(fit(X, known), fit(np.where(known, X, np.nan)))
    twice = np.concatenate([X, X[:1]])
    more = outer(vectors, shape)
    begin = (np.concatenate([factors[0], factors[0][:1]]), *factors[1:])
    a = fit(twice, np.concatenate([more, more[:1]]), begin=begin)
    more[0] *= 2
    b = fit(X, more)
    np.testing.assert_allclose(a.trace, b.trace, rtol=1e-10)
    np.testing.assert_allclose(model(a)[:-1], model(b), atol=1e-8)
    one, two = (fit(X, vectors, threads=n) for n in (1, 2))
    assert np.array_equal(one.trace, two.trace)
    assert all(map(np.array_equal, one.factors, two.factors))


def test_long_modes_with_weights_are_cut_into_row_blocks():
    X, factors = problem((40_000, 3, 2), 8)
    w = np.random.default_rng(1).random(40_000)
    engine = as_engine(X).weighted([w, None, None])
    blocks = engine.row_blocks(0, 8, LeastSquares())
    assert len(blocks) > 1
    assert len(engine.row_blocks(1, 8, LeastSquares())) == 1
    parts = [engine.normal_equations(factors, 0, LeastSquares(), rows) for rows in blocks]
    whole = engine.normal_equations(factors, 0, LeastSquares())
    np.testing.assert_allclose(np.concatenate([p.gram for p in parts]), whole.gram, atol=1e-10)
    gradient = np.concatenate([p.gradient for p in parts])
    np.testing.assert_allclose(gradient, whole.gradient, atol=1e-8)


@pytest.mark.parametrize("form", ["vectors", "array"])
@pytest.mark.parametrize("loss", [SMOOTHED, LeastSquares()], ids=lambda loss: loss.name)
def test_same_bits_for_any_number_of_threads(form, loss, compiled):
    X, factors = problem((60, 70, 80), 4)
    rng = np.random.default_rng(1)
    w = [rng.random(60), None, rng.random(80)] if form == "vectors" else rng.random(X.shape)
    one, two = (as_engine(X, threads=n, compiled=compiled).weighted(w) for n in (1, 2))
    for mode in range(3):
        a, b = one.normal_equations(factors, mode, loss), two.normal_equations(factors, mode, loss)
        assert a.value == b.value
        assert np.array_equal(a.gram, b.gram)
        assert np.array_equal(a.gradient, b.gradient)


# What is made of them


def test_weight_zero_on_the_artifacts_is_as_good_as_an_oracle():
    sim = robustcp.simulate((30, 30, 30), 3, eta=0.2, gamma=2.0, rng=1)
    fit = cp(sim.data, 3, entry_weights=~sim.artifacts)
    oracle = cpals(np.where(sim.artifacts, np.nan, sim.data), 3)
    score, best = (robustcp.factor_match_score(f, sim.truth) for f in (fit, oracle))
    assert score > best - 0.001


def test_vectors_keep_the_shared_gram_of_least_squares():
    X, factors = problem((6, 5, 4))
    engine = as_engine(X).weighted([np.arange(6.0), None, None])
    assert engine.normal_equations(factors, 1, LeastSquares()).gram.shape[0] == 1
    assert not engine.complete
    rows = engine.normal_equations(factors, 0, LeastSquares())
    assert not rows.gram[0].any()
    assert not rows.gradient[0].any()


@pytest.mark.parametrize("wild", [1e200, np.inf, np.nan])
@pytest.mark.parametrize("method", [cp, cpal1, cpals])
def test_what_has_weight_zero_does_not_matter(method, wild, compiled):
    X, factors = problem((8, 7, 6), 2)
    w = [np.array([1.0, 1, 0, 1, 1, 1, 1, 1]), None, None]
    bad, missing = X.copy(), X.copy()
    bad[2], missing[2] = wild, np.nan
    expected = method(as_engine(missing, compiled=compiled), 2, init=factors, max_sweeps=20)
    fit = method(as_engine(bad, compiled=compiled), 2, init=factors, max_sweeps=20, entry_weights=w)
    for each in (expected, fit):
        assert each.unobserved[0] == (2,)
        assert "unobserved" in [warning.code for warning in each.warnings]
    assert fit.objective == pytest.approx(expected.objective, rel=1e-8)
    np.testing.assert_allclose(model(fit), model(expected), atol=1e-5)


def test_wild_entries_that_are_cut_cost_their_weight():
    X, factors = problem((8, 7, 6), 2)
    X[0, 0, 0] = 1e12
    w = np.ones(X.shape)
    w[0, 0, 0] = 3.0
    options = {"smoothing": "fixed", "mu": 0.0, "max_sweeps": 3}
    fit = cpal1(X, 2, init=factors, entry_weights=w, **options)
    r = X - model(fit)
    expected = (w * np.sqrt(r * r + fit.loss.epsilon)).sum()
    assert fit.objective == pytest.approx(expected, rel=1e-9)


@pytest.mark.process
def test_vectors_add_no_array_of_the_size_of_the_data():
    X = np.random.default_rng(0).random((300, 300, 300), dtype=np.float32)
    factors = tuple(np.ones((300, 2), np.float32) for _ in range(3))
    vectors = [np.linspace(0, 1, 300), None, np.linspace(1, 2, 300)]
    for weights in (vectors, np.ones((300, 1, 300))):
        tracemalloc.start()
        engine = as_engine(X, threads=1).weighted(weights)
        for loss in (SMOOTHED, LeastSquares()):
            engine.normal_equations(factors, 0, loss)
        engine.sample()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.4 * X.nbytes


# What may be given


def test_weights_of_any_library(xp):
    X, factors = problem((6, 5, 4))
    w = np.random.default_rng(1).random((5, 4))
    expected = one_norm(X, 3, init=factors, entry_weights=w)
    fit = one_norm(X, 3, init=factors, entry_weights=xp.asarray(w))
    assert np.array_equal(fit.trace, expected.trace)
    ours = tuple(xp.asarray(A) for A in factors)
    there = one_norm(xp.asarray(X), 3, init=ours, entry_weights=w)
    np.testing.assert_allclose(there.trace, expected.trace, rtol=1e-12)


def test_dimensions_of_xarray_are_matched_by_name():
    xarray = pytest.importorskip("xarray")
    X, factors = problem((6, 5, 4))
    data = xarray.DataArray(X, dims=("a", "b", "c"), coords={"a": list("uvwxyz")})
    w = np.random.default_rng(1).random((4, 6))
    named = xarray.DataArray(w, dims=("c", "a"), coords={"a": list("uvwxyz")})
    fit = one_norm(data, 3, init=factors, entry_weights=named)
    expected = one_norm(X, 3, init=factors, entry_weights=w.T[:, None, :])
    assert np.array_equal(fit.trace, expected.trace)
    with pytest.raises(ValueError, match="entry_weights: X has no dimension 'd'"):
        one_norm(data, 3, entry_weights=named.rename(c="d"))
    with pytest.raises(ValueError, match="entry_weights: other labels than X in dimension 'a'"):
        one_norm(data, 3, entry_weights=named.assign_coords(a=list("abcdef")))


def test_observed_entries_may_have_one_each_in_the_order_given():
    X, factors = problem((6, 5, 4))
    w = np.random.default_rng(1).integers(0, 3, X.shape)
    at = np.random.default_rng(2).permutation(np.argwhere(X > -1))
    data = Observed(at, X[tuple(at.T)], X.shape)
    fit = one_norm(data, 3, init=factors, entry_weights=w[tuple(at.T)])
    assert np.array_equal(one_norm(data, 3, init=factors, entry_weights=w).trace, fit.trace)
    with pytest.raises(ValueError, match="entry_weights: all observed entries have weight 0"):
        one_norm(data, 3, entry_weights=X <= -1)


def test_repeated_memory_is_a_vector():
    X, factors = problem((6, 5, 4))
    w = np.broadcast_to(np.arange(1.0, 6.0)[:, None], X.shape)
    engine = as_engine(X).weighted(w)
    assert engine.normal_equations(factors, 0, LeastSquares()).gram.shape[0] == 1


def test_nothing_given_is_no_weights():
    X, factors = problem((6, 5, 4))
    expected = one_norm(X, 3, init=factors)
    for weights in (None, [None, None, None]):
        fit = one_norm(X, 3, init=factors, entry_weights=weights)
        assert np.array_equal(fit.trace, expected.trace)


def test_inputs_are_not_changed():
    X, _ = problem((6, 5, 4))
    w = np.random.default_rng(1).integers(0, 3, X.shape).astype(float)
    vectors = [np.arange(1.0, 7.0), None, np.ones(4)]
    for weights in (w, vectors):
        before = [X.copy(), w.copy(), vectors[0].copy()]
        cp(X, 2, entry_weights=weights, max_sweeps=5, starts=2)
        assert all(map(np.array_equal, before, [X, w, vectors[0]]))


def changed(value):
    w = np.ones((6, 5, 4))
    w[1, 2, 3] = value
    return w


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (changed(-2.0), r"must not be negative, got -2 at \(1, 2, 3\)"),
        (changed(np.nan), r"must not be NaN at \(1, 2, 3\)"),
        (changed(np.inf), r"must be finite, got inf at \(1, 2, 3\)"),
        (np.zeros((6, 5, 4)), "are all 0"),
        (np.zeros((6, 5, 4), bool), "are all 0"),
        (np.ones((6, 5, 3)), r"of shape \(6, 5, 3\) do not broadcast to that of X, \(6, 5, 4\)"),
        (np.ones((1, 6, 5, 4)), r"of shape \(1, 6, 5, 4\) do not broadcast"),
        (np.ones((0, 4)), "are empty"),
        ([np.ones(6), None], "for each of 3 modes, got 2"),
        ([np.ones(6), np.ones(4), None], r"of mode 1 must have shape \(5,\), got \(4,\)"),
        ([None, -np.ones(5), None], r"must not be negative, got -1 in mode 1 at \(0,\)"),
        ([None, np.zeros(5), None], "are all 0 in mode 1"),
        ([np.full(6, 1e200), np.full(5, 1e200), None], "products of the vectors are infinite"),
    ],
)
@pytest.mark.parametrize("method", [cp, cpal1, cpals])
def test_bad_weights_are_named_before_any_work(method, weights, message):
    def stop(_):
        raise AssertionError

    with pytest.raises(ValueError, match="^entry_weights: .*" + message):
        method(np.ones((6, 5, 4)), 2, entry_weights=weights, callback=stop)


@pytest.mark.parametrize("weights", [np.ones((6, 5, 4), complex), "heavy"])
def test_weights_that_are_no_numbers(weights):
    with pytest.raises(TypeError, match=r"^entry_weights: dtype"):
        cp(np.ones((6, 5, 4)), 2, entry_weights=weights)


def test_an_engine_that_takes_no_weights_says_so():
    class Without(Halves):
        takes_weights = False

    with pytest.raises(TypeError, match=r"^entry_weights: Without does not take any"):
        cp(Without(np.ones((6, 5, 4))), 2, entry_weights=np.ones(4))


def test_weights_of_another_shape_do_not_fit_a_view():
    X, _ = problem((6, 5, 4))
    view = as_engine(X).weighted(np.ones((6, 5, 4))).view
    assert isinstance(as_engine(X).with_view(view), Engine)
    for engine in (as_engine(X[:3]), observed(X[:3])):
        with pytest.raises(ValueError, match="entry_weights: are of shape"):
            engine.with_view(view)
