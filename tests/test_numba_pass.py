"""Compiled passes and solves do what those of the array library do, and threads share work."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp.cli import warm_command
from robustcp.constraints import Free
from robustcp.engines import DenseEngine, as_engine
from robustcp.engines.algebra import ROWS_PER_RANGE, CompiledAlgebra, algebra_for
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.storage import Storage
from robustcp.engines.threads import TileExecutor
from robustcp.losses import L1, Contaminated, Huber, LeastSquares
from robustcp.noise import Noise, Residuals, contaminated_normal, noise_of_model, quick_slab_scales
from robustcp.noise.resolution import Resolution
from robustcp.optimize.schedules import Refinement, Skip
from support.log_cosh import LogCosh, for_numba
from support.oracles import KERNEL_LOSSES, brute_force

pytest.importorskip("numba")

from robustcp.engines.passes import numba as numba_kernels
from robustcp.engines.passes.numba_pass import CompiledPass


def residual_pass(loss, r):
    """Value, slopes and curvatures of a matrix of residuals, read off the normal equations.

    With a rank of 1, a model of 0 and ones elsewhere, row i of a single column is entry i.
    """
    engine = as_engine(r[:, None])
    factors = (np.zeros((len(r), 1), r.dtype), np.ones((1, 1), r.dtype))
    equations = engine.normal_equations(factors, 0, loss)
    return equations.value, equations.gradient[:, 0], equations.gram[:, 0]


@given(
    sigma=st.floats(1e-3, 1e3),
    above=st.floats(1e-6, 10),
    below=st.floats(1e-6, 10),
    values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40),
)
def test_contaminated_equals_its_formula(sigma, above, below, values):
    loss, r = Contaminated(sigma, above, below), np.array(values)
    assert is_compiled(loss, r.dtype)
    value, slope, curvature = residual_pass(loss, r)
    expected = loss.majorize(r.copy())
    scale = sigma * sigma
    assert value == pytest.approx(expected[0].sum(), rel=1e-12, abs=1e-13 * scale)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-11, atol=1e-290)
    np.testing.assert_allclose(curvature, expected[2], rtol=1e-11, atol=1e-290)


@given(
    sigma=st.floats(1e-3, 1e3),
    floor=st.floats(1e-6, 10),
    shifted=st.floats(1e-3, 1),
    shift=st.floats(-8, 8),
    values=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40),
)
def test_two_peaks_equal_their_formula(sigma, floor, shifted, shift, values):
    loss, r = Contaminated(sigma, floor, floor, shifted, shift * sigma), np.array(values)
    assert is_compiled(loss, r.dtype)
    value, slope, curvature = residual_pass(loss, r)
    expected = loss.majorize(r.copy())
    scale = sigma * sigma
    assert value == pytest.approx(expected[0].sum(), rel=1e-12, abs=1e-12 * scale)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-10, atol=1e-12 * sigma)
    np.testing.assert_allclose(curvature, expected[2], rtol=1e-11, atol=1e-290)


@given(epsilon=st.floats(1e-30, 1e10), values=st.lists(st.floats(-1e8, 1e8), min_size=1))
def test_l1_equals_its_formula(epsilon, values):
    loss, r = L1(epsilon), np.array(values)
    value, slope, curvature = residual_pass(loss, r)
    expected = loss.majorize(r.copy())
    assert value == pytest.approx(expected[0].sum(), rel=1e-13)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(curvature, expected[2], rtol=1e-13)


def test_float32_sums_in_float64():
    r = np.ones(100_000, np.float32)
    r[0] = 1e9
    value, slope, _ = residual_pass(L1(1e-4), r)
    assert value == pytest.approx(1e9 + 99_999 * np.sqrt(1.0001), rel=1e-9)
    assert slope.dtype == np.float32


def is_compiled(loss, dtype):
    """Whether a loss gets a compiled pass over data of some type."""
    engine = DenseEngine(np.ones((3, 3), dtype))
    return isinstance(engine._passes.for_loss(loss), CompiledPass)


@pytest.mark.parametrize("loss", KERNEL_LOSSES, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_loss_is_compiled(loss, dtype):
    assert is_compiled(loss, dtype) or loss.quadratic
    rng = np.random.default_rng(0)
    r = np.concatenate([rng.standard_normal(60), 30 * rng.standard_normal(20), [0.0]]).astype(dtype)
    tolerance = 1e-12 if dtype == np.float64 else 2e-5
    engine = as_engine(r[:, None]).weighted(np.full((len(r), 1), 2.0))
    got = engine.normal_equations((np.zeros((len(r), 1), dtype), np.ones((1, 1), dtype)), 0, loss)
    assert isinstance(engine._passes.for_loss(loss, whole_mode=False), CompiledPass)
    value, slope, curvature = loss.majorize(r.astype(float))
    assert got.value == pytest.approx(2 * value.sum(), rel=tolerance)
    np.testing.assert_allclose(got.gradient[:, 0], 2 * slope, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(got.gram[:, 0], 2 * curvature, rtol=tolerance, atol=tolerance)


def test_a_loss_that_costs_something_else_is_not_compiled():
    class Mine(L1):
        def value(self, r):
            return 2 * super().value(r)

    assert is_compiled(L1(1.0), np.float64)
    assert not is_compiled(Mine(1.0), np.float64)
    assert not is_compiled(L1(1e-60), np.float32)  # it would be 0 there


class TestOneFile:
    """A loss that is added in one file (support/log_cosh.py) is one like any other."""

    def test_dense_passes(self):
        loss, rng = LogCosh(0.7), np.random.default_rng(0)
        assert is_compiled(loss, np.float64)
        X = rng.standard_normal((6, 7, 8))
        factors = tuple(rng.standard_normal((size, 2)) for size in X.shape)
        for mode in range(3):
            gram, gradient, value = brute_force(X, factors, mode, loss)
            for engine, c in ((as_engine(X), 1), (as_engine(X).weighted(np.array(3.0)), 3)):
                got = engine.normal_equations(factors, mode, loss)
                np.testing.assert_allclose(got.gram, c * gram, rtol=1e-10)
                np.testing.assert_allclose(got.gradient, c * gradient, rtol=1e-8, atol=1e-10)
                assert got.value == pytest.approx(c * value)

    def test_listed_entries(self):
        loss, rng = LogCosh(0.7), np.random.default_rng(0)
        X = rng.standard_normal((6, 7, 8))
        factors = tuple(rng.standard_normal((size, 2)) for size in X.shape)
        indices = np.argwhere(np.ones(X.shape, bool))
        engine = as_engine(robustcp.Observed(indices, X.ravel(), X.shape))
        got, (gram, gradient, value) = (
            engine.normal_equations(factors, 1, loss), brute_force(X, factors, 1, loss),
        )  # fmt: skip
        np.testing.assert_allclose(got.gram, gram, rtol=1e-10)
        np.testing.assert_allclose(got.gradient, gradient, rtol=1e-8, atol=1e-10)
        assert got.value == pytest.approx(value)

    def test_files_and_checkpoints(self, tmp_path):
        sim = robustcp.simulate((8, 7, 6), 2, eta=0.1, gamma=1.0, rng=0)
        options = {"loss": LogCosh(0.3), "rng": 0, "checkpoint": tmp_path / "run.ckpt"}
        robustcp.cp(sim.data, 2, max_sweeps=5, **options)
        fit = robustcp.cp(sim.data, 2, **options)
        assert isinstance(fit.loss, LogCosh)
        fit.save(tmp_path / "fit.npz")
        assert robustcp.load(tmp_path / "fit.npz").loss == fit.loss

    def test_ahead_of_time(self, monkeypatch):
        functions = []
        monkeypatch.setattr(
            numba_kernels, "formula_line", lambda function, *_: functions.append(function)
        )
        warm_command._compile_losses(numba_kernels, np.dtype(float))
        assert for_numba in functions
        assert Huber().numba_formula.function in functions


def objective_with_cache(folder):
    """The objective of a small fit in a process of its own, with compiled code in a folder."""
    code = (
        "import numpy as np, robustcp;"
        "X = np.random.default_rng(0).random((6, 5));"
        "print(robustcp.cpal1(X, 2, max_sweeps=3, init='random').objective)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_a_damaged_cache_is_written_anew(tmp_path):
    first = objective_with_cache(tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.suffix in (".nbi", ".nbc"))
    assert any(".formula_sweep" in path.name for path in files)
    assert any("_formula_line_l1" in path.name for path in files)
    for k, path in enumerate(files):  # emptied, cut, and overwritten
        content = path.read_bytes()
        damaged = (b"", content[: len(content) // 2], b"\x80\x04" + b"?" * 99)[k % 3]
        path.write_bytes(damaged)
    assert objective_with_cache(tmp_path) == first
    for path in files:
        if path.suffix == ".nbi":
            with path.open("rb") as file:
                assert pickle.load(file)  # the version, readable again
                assert file.read()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "float16", ">f8", ">i4"])
def test_types_that_are_converted_on_the_way(dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (6, 7, 8)).astype(dtype)
    factors = tuple(rng.standard_normal((size, 2)) for size in X.shape)
    if dtype == "float16":
        factors = tuple(A.astype(np.float32) for A in factors)
    for loss in (L1(0.01), LeastSquares()):
        expected = brute_force(X.astype(float), factors, 1, loss)
        got = as_engine(X).normal_equations(factors, 1, loss)
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
        compiled, plain = (
            Free().solve(equations, rows, mu, algebra_for(np, how)) for how in (True, False)
        )
        assert isinstance(algebra_for(np), CompiledAlgebra)
        np.testing.assert_allclose(compiled, plain, rtol=1e-6, atol=1e-8)

    def test_rows_without_data_stay(self, compiled):
        gram = np.array([[2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
        equations = NormalEquations(gram, np.array([[2.0, 4.0], [0.0, 0.0]]), 0.0)
        new = Free().solve(equations, np.ones((2, 2)), 1e-6, algebra_for(np, compiled))
        np.testing.assert_allclose(new, [[2.0, 3.0], [1.0, 1.0]], rtol=1e-5)

    def test_coinciding_components_give_finite_rows(self, compiled):
        gram = np.ones((3, 3))
        equations = NormalEquations(gram, np.ones((3, 2)), 0.0)
        rows = Free().solve(equations, np.zeros((3, 2)), 0.0, algebra_for(np, compiled))
        np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-6)

    def test_norms_of_very_small_columns(self, compiled):
        A = np.full((6, 2), 1e-310)
        A[0, 0] = 0.0
        norms = algebra_for(np, compiled).column_norms(A)
        np.testing.assert_allclose(norms, np.sqrt([5, 6]) * 1e-310, rtol=1e-6)

    @pytest.mark.parametrize("size", [1.0, 1e160, 1e-160])
    def test_balanced_factors_have_equal_norms_and_the_same_model(self, compiled, size):
        rng = np.random.default_rng(0)
        A, B, C = (rng.standard_normal((n, 4)) for n in (5, 7, 6))
        A, B = A * [1.0, size, 1.0, 1e3], B * [1.0, 1 / size, 1.0, 1.0]
        C[:, 2] = 0.0
        new = algebra_for(np, compiled).balance_norms([A, B, C])
        norms = np.array([np.linalg.norm(D, axis=0) for D in new])
        np.testing.assert_allclose(norms[:, [0, 1, 3]], norms[[0, 0, 0]][:, [0, 1, 3]], rtol=1e-9)
        old, same = (
            np.einsum("ir,jr->ijr", *some[:2])[:, :, None] * some[2] for some in ((A, B, C), new)
        )
        np.testing.assert_allclose(same, old, rtol=1e-9)
        np.testing.assert_array_equal(new[0][:, 2], A[:, 2])  # its component is 0 elsewhere


class TestLongModes:
    """More rows than are worked on at once."""

    count, rank = 2 * ROWS_PER_RANGE + 77, 3

    def equations(self, shared):
        rng = np.random.default_rng(0)
        A = rng.standard_normal((1 if shared else self.count, self.rank + 3, self.rank))
        i, j = np.triu_indices(self.rank)
        gram = np.einsum("nia,nib->nab", A, A)[:, i, j]
        if not shared:
            gram[5::1000] = 0
        gradient = rng.standard_normal((self.count, self.rank))
        if not shared:
            gradient[5::1000] = 0
        return NormalEquations(gram, gradient, 0.0), rng.standard_normal((self.count, self.rank))

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("name", ["solve_rows", "solve_nonnegative_rows"])
    def test_rows(self, name, shared):
        equations, rows = self.equations(shared)
        one, two, three = (
            getattr(algebra_for(np, True, threads), name)(equations, rows, 0.1)
            for threads in (1, 2, 3)
        )
        assert np.array_equal(one, two)
        assert np.array_equal(one, three)
        expected = getattr(algebra_for(np, False), name)(equations, rows, 0.1)
        np.testing.assert_allclose(one, expected, rtol=1e-7, atol=1e-9)

    def test_nonnegative_rows_are_those_of_scipy(self):
        from scipy.optimize import nnls

        equations, rows = self.equations(shared=False)
        i, j = np.triu_indices(self.rank)
        found = algebra_for(np).solve_nonnegative_rows(equations, np.abs(rows), 0.1)
        for n in range(0, self.count, 997):
            G = np.zeros((self.rank, self.rank))
            G[i, j] = G[j, i] = equations.gram[n]
            if not G.any():
                assert np.array_equal(found[n], np.abs(rows[n]))
                continue
            b = equations.gradient[n] + G @ np.abs(rows[n])
            L = np.linalg.cholesky(G + 0.1 * np.eye(self.rank))
            expected, _ = nnls(L.T, np.linalg.solve(L, b))
            np.testing.assert_allclose(found[n], expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("size", [1.0, 1e-300, 1e300])
    def test_norms_and_products_of_columns(self, size):
        A = size * self.equations(shared=False)[1]
        norms = [algebra_for(np, True, threads).column_norms(A) for threads in (1, 2)]
        assert np.array_equal(*norms)
        np.testing.assert_allclose(norms[0], size * np.linalg.norm(A / size, axis=0), rtol=1e-12)
        found = algebra_for(np, True, 2).scale_columns(A, np.array([1.0, 2.0, 0.5]))
        assert np.array_equal(found, A * [1.0, 2.0, 0.5])

    def test_fits_have_the_same_bits_for_any_number_of_threads(self):
        rng = np.random.default_rng(0)
        factors = [rng.random((size, 2)) for size in (ROWS_PER_RANGE + 500, 3, 4)]
        X = np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * rng.standard_normal(
            (ROWS_PER_RANGE + 500, 3, 4)
        )
        one, two = (
            robustcp.cp(
                as_engine(X, threads=threads), 2, init=factors, max_sweeps=4, nonnegative=True
            )
            for threads in (1, 2)
        )
        assert all(np.array_equal(a, b) for a, b in zip(one.factors, two.factors, strict=True))


class TestLeastSquares:
    def test_factors_that_change_in_place_are_seen(self):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((5, 6, 7))
        factors = tuple(rng.standard_normal((size, 2)) for size in X.shape)
        engine = as_engine(X)
        engine.normal_equations(factors, 0, LeastSquares())
        factors[2][:] += 1.0
        expected = brute_force(X, factors, 1, LeastSquares())
        np.testing.assert_allclose(
            engine.normal_equations(factors, 1, LeastSquares()).gradient, expected[1], atol=1e-10
        )

    def test_a_side_is_contracted_once_for_all_its_modes(self, monkeypatch, compiled):
        rng = np.random.default_rng(0)
        engine = as_engine(rng.standard_normal((5, 6, 7)), compiled=compiled)
        factors = tuple(rng.standard_normal((size, 2)) for size in engine.shape)
        passes = []
        original = Storage.map
        monkeypatch.setattr(
            Storage, "map", lambda self, *given: passes.append(1) or original(self, *given)
        )
        for mode in range(3):
            engine.normal_equations(factors, mode, LeastSquares())
        assert len(passes) == 3  # two contractions, and the sum of squares


def threads_at_once(tiles):
    """How many threads are needed for tiles that wait for each other."""
    meeting = threading.Barrier(2, timeout=20)

    def work(_):
        meeting.wait()
        return threading.get_ident()

    return len(set(tiles.map(work, range(2))))


class TestThreads:
    def test_results_come_in_order_and_each_tile_is_done_once(self):
        done = []

        def work(k):
            done.append(k)
            return k * k

        assert list(TileExecutor(3).map(work, range(200))) == [k * k for k in range(200)]
        assert sorted(done) == list(range(200))

    def test_an_error_comes_out(self):
        def work(k):
            if k == 7:
                raise ValueError("seven")
            return k

        with pytest.raises(ValueError, match="seven"):
            list(TileExecutor(2).map(work, range(20)))

    def test_pieces_side_by_side_map_their_tiles_alone(self):
        tiles = TileExecutor(2)

        def piece(k):
            owners = set(tiles.map(lambda _: threading.get_ident(), range(10)))
            assert owners == {threading.get_ident()}
            return k

        assert tiles.map_tasks(piece, range(6)) == list(range(6))
        assert list(tiles.map(lambda k: k, range(3))) == [0, 1, 2]
        assert threads_at_once(tiles) == 2  # no longer alone

    def test_starts_side_by_side_end_where_they_do_in_turn(self):
        sim = robustcp.simulate((40, 40, 40), 3, eta=0.2, gamma=1.0, rng=0)
        one, two = (
            robustcp.cp(as_engine(sim.data, threads=threads), 3, rng=1) for threads in (1, 2)
        )
        assert one.starts == two.starts
        assert all(
            np.array_equal(a, b) for a, b in zip(one.model.factors, two.model.factors, strict=True)
        )


def test_the_same_fit_without_numba():
    sim = robustcp.simulate((30, 30, 30), 3, eta=0.2, gamma=2.0, rng=0)
    ours, plain = (
        robustcp.cp(as_engine(sim.data, compiled=compiled), 3, rng=0) for compiled in (True, False)
    )
    assert not np.array_equal(ours.trace, plain.trace)  # they do not round alike
    assert robustcp.factor_match_score(ours, plain) > 0.9999


def test_a_large_tensor_is_begun_on_a_part():
    sim = robustcp.simulate((120, 110, 100), 4, eta=0.2, gamma=2.0, rng=0)
    assert sim.data.size > 1 << 20
    fit = robustcp.cpal1(sim.data, 4)
    assert fit.converged
    assert fit.sweeps < 30
    assert robustcp.factor_match_score(fit, sim.truth) > 0.975


class TestEdges:
    def test_a_model_that_is_not_a_number_is_not_a_gap(self, compiled):
        factors = (np.full((3, 1), np.nan), np.ones((3, 1)), np.ones((3, 1)))
        engine = as_engine(np.ones((3, 3, 3)), compiled=compiled)
        assert np.isnan(engine.value(factors, L1(1.0)))

    def test_a_sample_that_meets_no_observed_entry(self):
        X = np.full((60, 60, 60), np.nan)
        sampled = np.unique(np.random.default_rng(0).integers(60**3, size=1 << 16))
        X.reshape(-1)[np.setdiff1d(np.arange(60**3), sampled)[:3]] = [1.0, 2.0, 3.0]
        assert robustcp.cp(X, 1, rng=0).converged

    def test_mostly_zero_data(self):
        X = np.zeros((10, 10, 10))
        X[:2, :2, :2] = 1
        assert robustcp.cp(X, 4, rng=0).explained > 0.999


def half_spoilt(seed, share=0.45):
    """Data of which about half is outliers, so that the noise cannot be told from them."""
    rng = np.random.default_rng(seed)
    shape = (12, 12, 12)
    X = np.einsum("ir,jr,kr->ijk", *[rng.normal(size=(n, 2)) for n in shape])
    X += 0.05 * rng.normal(size=shape)
    hit = rng.random(shape) < share
    X[hit] += 5 * rng.normal(size=hit.sum())
    return X


def test_a_stage_that_was_undone_leaves_no_trace(monkeypatch):
    begun = Refinement.__call__

    def undone(self, level, *arguments):
        if level == 1:
            raise Skip("refinement is not for this data")
        return begun(self, level, *arguments)

    monkeypatch.setattr(Refinement, "__call__", undone)
    seen = []
    X = half_spoilt(0, 0.3)
    fit = robustcp.cp(X, 2, callback=lambda state: seen.append(state.objective))
    assert [name for name, _ in fit.stages] == ["L1", "L1, finished"]
    assert any("refinement" in note for note in fit.notes)
    assert fit.sweeps == len(fit.trace) < len(seen)
    assert fit.objective == seen[-1]


def test_the_1_norm_is_finished_where_refinement_is_not_for_the_data(monkeypatch):
    def left_out(self, level, *arguments):
        raise Skip("refinement is not for this data")

    monkeypatch.setattr(Refinement, "__call__", left_out)
    X = half_spoilt(0, 0.3)
    fit = robustcp.cp(X, 2)
    assert [name for name, _ in fit.stages] == ["L1", "L1, finished"]
    further = robustcp.cpal1(X, 2, init=fit)
    assert np.abs(fit.residuals(X)).sum() <= 1.0005 * np.abs(further.residuals(X)).sum()


@pytest.mark.parametrize(("beyond", "floor"), [(0.8, 0.01), (0.6, 0.7)])
def test_refinement_is_left_out_if_there_is_no_telling_what_the_noise_is(beyond, floor):
    noise = Noise.common(1.0, 3, above=floor, rejected_share=beyond)
    with pytest.raises(Skip, match=f"would reject {beyond:.0%}"):
        Refinement(Resolution(1e-9, 1e-9))._check_noise(noise, None)
    Refinement(Resolution(1e-9, 1e-9))._check_noise(replace(noise, rejected_share=0.4), None)


class TestFirstLooks:
    """Compiled parts of a first look at the noise, beside those of NumPy."""

    @pytest.mark.parametrize("shape", [(20, 20, 20), (7, 30, 11), (4, 60, 9, 5)])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    @pytest.mark.parametrize("least", [1e-9, 0.5])
    def test_main_effects_and_cores(self, shape, missing, least):
        rng = np.random.default_rng(len(shape))
        scale = np.exp(0.5 * rng.standard_normal(shape[0]))
        X = rng.standard_normal(shape) * scale.reshape(-1, *[1] * (len(shape) - 1))
        X[rng.random(shape) < 0.2] *= 8
        X[rng.random(shape) < missing] = np.nan
        if missing:
            X[2] = np.nan  # a slab without any
        zero = tuple(np.zeros((n, 1)) for n in shape)
        found = Residuals.of(as_engine(X), zero, Resolution(min_entry_sigma=least, min_sigma=least))
        plain, compiled = (
            how(found, found.scalable_modes, 1e-3)
            for how in (
                quick_slab_scales._main_effects,
                quick_slab_scales._compiled_main_effects,
            )
        )
        assert missing or plain[0][0] is not None
        for one, other in zip(plain[0], compiled[0], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(other, one, rtol=1e-10)
        np.testing.assert_allclose(compiled[1], plain[1], rtol=1e-10)
        some = contaminated_normal._SortedResiduals.of(plain[1], least, 1 << 16)
        for rounds in ((False, True), (True,)):
            np.testing.assert_allclose(
                some._iterate_compiled(1.3, rounds), some._iterate(1.3, rounds), rtol=1e-9
            )
        noise, z = noise_of_model.standardize_by_main_effects(found, found.scalable_modes)
        s = found.sigmas_of(noise)
        np.testing.assert_allclose(z, found.values / s, rtol=1e-6)
        assert noise.sigma == pytest.approx(np.exp(np.mean(np.log(s))), rel=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_nonnegative_rows_without_data_stay_finite(compiled):
    equations = NormalEquations(np.zeros((2, 3)), np.zeros((2, 2)), 0.0)
    rows = np.array([[1.0, 2.0], [0.0, 3.0]])
    found = algebra_for(np, compiled).solve_nonnegative_rows(equations, rows, 0.0)
    assert np.array_equal(found, rows)
