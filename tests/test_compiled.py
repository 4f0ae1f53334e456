"""Compiled passes and solves do what those of the array library do, and threads share work."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from conftest import brute_force
from robustcp import constraints as blocks
from robustcp.engines import as_engine, fused
from robustcp.engines.threads import Tiles
from robustcp.losses import L1, Contaminated, Huber, LeastSquares, majorize
from robustcp.normal import NormalEquations

pytest.importorskip("numba")


def residual_pass(loss, r):
    """Value, slopes and curvatures of a matrix of residuals, read off the normal equations.

    With a rank of 1, a model of 0 and ones elsewhere, row i of a single column is entry i.
    """
    engine = as_engine(r[:, None])
    factors = (np.zeros((len(r), 1), r.dtype), np.ones((1, 1), r.dtype))
    equations = engine.normal(factors, 0, loss)
    return equations.value, equations.gradient[:, 0], equations.gram[:, 0]


@given(
    sigma=st.floats(1e-3, 1e3),
    above=st.floats(1e-6, 10),
    below=st.floats(1e-6, 10),
    values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40),
)
def test_contaminated_equals_its_formula(sigma, above, below, values):
    loss, r = Contaminated(sigma, above, below), np.array(values)
    assert fused.compiled(loss, r.dtype) is not None
    value, slope, curvature = residual_pass(loss, r)
    expected = majorize(loss, r.copy())
    scale = sigma * sigma
    assert value == pytest.approx(expected[0].sum(), rel=1e-12, abs=1e-13 * scale)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-11, atol=1e-290)
    np.testing.assert_allclose(curvature, expected[2], rtol=1e-11, atol=1e-290)


@given(epsilon=st.floats(1e-30, 1e10), values=st.lists(st.floats(-1e8, 1e8), min_size=1))
def test_l1_equals_its_formula(epsilon, values):
    loss, r = L1(epsilon), np.array(values)
    value, slope, curvature = residual_pass(loss, r)
    expected = majorize(loss, r.copy())
    assert value == pytest.approx(expected[0].sum(), rel=1e-13)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(curvature, expected[2], rtol=1e-13)


def test_float32_sums_in_float64():
    r = np.ones(100_000, np.float32)
    r[0] = 1e9
    value, slope, _ = residual_pass(L1(1e-4), r)
    assert value == pytest.approx(1e9 + 99_999 * np.sqrt(1.0001), rel=1e-9)
    assert slope.dtype == np.float32


def test_only_losses_that_it_knows():
    class Mine(L1):
        def value(self, r):
            return 2 * super().value(r)

    assert fused.compiled(Huber(1.0), np.float64) is None
    assert fused.compiled(Mine(1.0), np.float64) is None
    assert fused.compiled(L1(1e-60), np.float32) is None  # it would be 0 there


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "float16", ">f8", ">i4"])
def test_types_that_are_converted_on_the_way(dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (6, 7, 8)).astype(dtype)
    factors = tuple(rng.standard_normal((size, 2)) for size in X.shape)
    if dtype == "float16":
        factors = tuple(A.astype(np.float32) for A in factors)
    for loss in (L1(0.01), LeastSquares()):
        expected = brute_force(X.astype(float), factors, 1, loss)
        got = as_engine(X).normal(factors, 1, loss)
        np.testing.assert_allclose(got.gradient, expected[1], rtol=1e-4, atol=1e-4)


class TestSolve:
    @given(st.integers(1, 8), st.integers(1, 30), st.floats(0, 1))
    def test_equals_the_array_library(self, rank, count, mu):
        rng = np.random.default_rng(rank * count)
        A = rng.standard_normal((count, rank + 3, rank))
        i, j = np.triu_indices(rank)
        gram = np.einsum("nia,nib->nab", A, A)[:, i, j]
        equations = NormalEquations(gram, rng.standard_normal((count, rank)), 0.0)
        rows = rng.standard_normal((count, rank))
        ours = blocks.free(equations, rows, mu)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused, "ENABLED", False)
            np.testing.assert_allclose(ours, blocks.free(equations, rows, mu), rtol=1e-6, atol=1e-8)

    def test_rows_without_data_stay(self):
        gram = np.array([[2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
        equations = NormalEquations(gram, np.array([[2.0, 4.0], [0.0, 0.0]]), 0.0)
        new = blocks.free(equations, np.ones((2, 2)), 1e-6)
        np.testing.assert_allclose(new, [[2.0, 3.0], [1.0, 1.0]], rtol=1e-5)

    def test_coinciding_components_give_finite_rows(self):
        gram = np.ones((3, 3))
        equations = NormalEquations(gram, np.ones((3, 2)), 0.0)
        assert np.all(np.isfinite(blocks.free(equations, np.zeros((3, 2)), 0.0)))


class TestLeastSquares:
    def test_factors_that_change_in_place_are_seen(self):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((5, 6, 7))
        factors = tuple(rng.standard_normal((size, 2)) for size in X.shape)
        engine = as_engine(X)
        engine.normal(factors, 0, LeastSquares())
        factors[2][:] += 1.0
        expected = brute_force(X, factors, 1, LeastSquares())
        np.testing.assert_allclose(
            engine.normal(factors, 1, LeastSquares()).gradient, expected[1], atol=1e-10
        )

    @pytest.mark.usefixtures("passes")
    def test_a_side_is_contracted_once_for_all_its_modes(self, monkeypatch):
        rng = np.random.default_rng(0)
        engine = as_engine(rng.standard_normal((5, 6, 7)))
        factors = tuple(rng.standard_normal((size, 2)) for size in engine.shape)
        passes = []
        original = type(engine)._map
        monkeypatch.setattr(
            type(engine), "_map", lambda self, *given: passes.append(1) or original(self, *given)
        )
        for mode in range(3):
            engine.normal(factors, mode, LeastSquares())
        assert len(passes) <= 3  # two contractions, and the sum of squares


class TestThreads:
    def test_results_come_in_order_and_each_tile_is_done_once(self):
        done = []

        def work(k):
            done.append(k)
            return k * k

        assert list(Tiles(3).map(work, range(200))) == [k * k for k in range(200)]
        assert sorted(done) == list(range(200))

    def test_an_error_comes_out(self):
        def work(k):
            if k == 7:
                raise ValueError("seven")
            return k

        with pytest.raises(ValueError, match="seven"):
            list(Tiles(2).map(work, range(20)))

    def test_pieces_side_by_side_map_their_tiles_alone(self):
        tiles = Tiles(2)

        def piece(k):
            owners = set(tiles.map(lambda _: threading.get_ident(), range(10)))
            assert owners == {threading.get_ident()}
            return k

        assert tiles.side_by_side(piece, range(6)) == list(range(6))
        assert not getattr(threading.local(), "alone", False)
        assert list(tiles.map(lambda k: k, range(3))) == [0, 1, 2]

    def test_starts_side_by_side_end_where_they_do_in_turn(self):
        sim = robustcp.simulate((40, 40, 40), 3, eta=0.2, gamma=1.0, rng=0)
        one, two = (
            robustcp.cp(as_engine(sim.data, threads=threads), 3, rng=1) for threads in (1, 2)
        )
        assert one.starts == two.starts
        assert all(
            np.array_equal(a, b) for a, b in zip(one.model.factors, two.model.factors, strict=True)
        )


def test_the_same_fit_without_numba(monkeypatch):
    sim = robustcp.simulate((30, 30, 30), 3, eta=0.2, gamma=2.0, rng=0)
    ours = robustcp.cp(sim.data, 3, rng=0)
    monkeypatch.setattr(fused, "ENABLED", False)
    plain = robustcp.cp(sim.data, 3, rng=0)
    assert robustcp.factor_match_score(ours, plain) > 0.9999


def test_a_large_tensor_is_begun_on_a_part():
    sim = robustcp.simulate((120, 110, 100), 4, eta=0.2, gamma=2.0, rng=0)
    assert sim.data.size > 1 << 20
    fit = robustcp.cpal1(sim.data, 4)
    assert fit.converged
    assert fit.sweeps < 30
    assert robustcp.factor_match_score(fit, sim.truth) > 0.975


class TestEdges:
    def test_norms_of_very_small_columns(self):
        A = np.full((6, 2), 1e-310)
        A[0, 0] = 0.0
        np.testing.assert_allclose(fused.column_norms(A), np.sqrt([5, 6]) * 1e-310, rtol=1e-6)

    @pytest.mark.usefixtures("passes")
    def test_a_model_that_is_not_a_number_is_not_a_gap(self):
        factors = (np.full((3, 1), np.nan), np.ones((3, 1)), np.ones((3, 1)))
        assert np.isnan(as_engine(np.ones((3, 3, 3))).value(factors, L1(1.0)))

    def test_a_sample_that_meets_no_observed_entry(self):
        X = np.full((60, 60, 60), np.nan)
        sampled = np.unique(np.random.default_rng(0).integers(60**3, size=1 << 16))
        X.reshape(-1)[np.setdiff1d(np.arange(60**3), sampled)[:3]] = [1.0, 2.0, 3.0]
        with pytest.warns(UserWarning, match="no observed entry"):
            assert robustcp.cp(X, 1, rng=0).converged

    def test_mostly_zero_data(self):
        X = np.zeros((10, 10, 10))
        X[:2, :2, :2] = 1
        assert robustcp.cp(X, 4, rng=0).explained > 0.999


def half_spoilt(seed):
    """Data of which about half is outliers, so that the noise cannot be told from them."""
    rng = np.random.default_rng(seed)
    shape = (12, 12, 12)
    X = np.einsum("ir,jr,kr->ijk", *[rng.normal(size=(n, 2)) for n in shape])
    X += 0.05 * rng.normal(size=shape)
    hit = rng.random(shape) < 0.45
    X[hit] += 5 * rng.normal(size=hit.sum())
    return X


def test_a_stage_that_was_undone_leaves_no_trace():
    seen = []
    fit = robustcp.cp(
        half_spoilt(10), 2, rng=10, callback=lambda state: seen.append(state.objective)
    )
    assert "refinement" in fit.status
    assert [name for name, _ in fit.stages] == ["L1"]
    assert fit.sweeps == len(fit.trace) < len(seen)
    assert fit.objective == seen[-1]


def test_the_1_norm_is_finished_where_refinement_is_not_for_the_data():
    for seed in (2, 10, 19):
        X = half_spoilt(seed)
        fit = robustcp.cp(X, 2, rng=seed)
        further = robustcp.cpal1(X, 2, init=fit)
        if "refinement" in fit.status:
            l1 = np.abs(fit.residuals(X)).sum()
            assert l1 <= 1.0005 * np.abs(further.residuals(X)).sum()
