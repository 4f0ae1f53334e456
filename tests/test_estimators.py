"""The estimators: what they recover, and what holds for every fit."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import pyttb
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import robustcp
from robustcp import KruskalTensor, cp, cpal1, cpals, factor_match_score, simulate
from robustcp.constraints import Free, Nonnegative
from robustcp.engines import LabelledTensor, as_engine
from robustcp.estimators.cp import RefinedL1
from robustcp.estimators.cpals import AlternatingLeastSquares
from robustcp.estimators.spec import FitSpec, plan
from support.oracles import host


def published(X, rank, **options):
    return cpal1(X, rank, smoothing="fixed", **options)


def steady(method):
    """Options under which a method does not magnify roundings.

    A fixed tiny epsilon pins rows to single entries; after many sweeps roundings decide which.
    Of the starts of `cp` only the first is not random.
    """
    if method is cp:
        return {"init": "nvecs", "starts": 1}
    return {"max_sweeps": 4} if method is published else {}


METHODS = [cpal1, published, cpals, cp]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)


def small(seed=0, shape=(12, 11, 10), rank=2):
    return simulate(shape, rank, eta=0.1, gamma=1.0, rng=seed)


def assert_same_model(a, b, tol=1e-6):
    np.testing.assert_allclose(host(a.weights), host(b.weights), rtol=tol)
    for A, B in zip(a.factors, b.factors, strict=True):
        np.testing.assert_allclose(host(A), host(B), atol=tol)


@pytest.mark.recovery
class TestRecovery:
    def test_cpal1_recovers_what_cpals_loses(self, paper):
        robust = [factor_match_score(cpal1(sim.data, 5), sim.truth) for sim in paper]
        least_squares = [factor_match_score(cpals(sim.data, 5), sim.truth) for sim in paper]
        assert np.median(robust) >= 0.97
        assert 0.55 <= np.median(least_squares) <= 0.75

    def test_continuation_ends_lower_than_a_fixed_epsilon(self, paper):
        for sim in paper[:3]:
            s = np.median(np.abs(sim.data))
            ours = cpal1(sim.data, 5)
            fixed = published(sim.data, 5, epsilon=1e-10 * s * s, max_sweeps=200)
            assert ours.sweeps < fixed.sweeps
            assert ours.objective < fixed.objective
            assert ours.loss.epsilon == pytest.approx(1e-10 * s * s)

    def test_gaussian_noise_alone(self):
        sim = simulate((30, 30, 30), 3, eta=0.0, gamma=0.0, rng=0)
        for method in (cpal1, cpals):
            assert factor_match_score(method(sim.data, 3), sim.truth) > 0.99

    @pytest.mark.parametrize("shape", [(40, 30), (12, 10, 9, 8), (6, 5, 6, 5, 6)], ids=str)
    def test_other_orders(self, shape):
        rank = 1 if len(shape) == 2 else 2  # a matrix has no unique factors beyond rank 1
        sim = simulate(shape, rank, eta=0.1, gamma=2.0, noise=0.01, rng=1)
        assert factor_match_score(cpal1(sim.data, rank), sim.truth) > 0.97

    def test_cpals_is_no_worse_than_pyttb_from_the_same_start(self):
        for seed in range(3):
            sim = simulate((20, 18, 16), 3, eta=0.1, gamma=1.0, rng=seed)
            rng = np.random.default_rng(seed)
            start = [rng.standard_normal((size, 3)) for size in sim.data.shape]
            theirs, _, _ = pyttb.cp_als(
                pyttb.tensor(sim.data), 3, init=pyttb.ktensor(start), stoptol=1e-8,
                maxiters=1000, printitn=0,
            )  # fmt: skip
            residual = sim.data - theirs.full().data
            fit = cpals(sim.data, 3, init=start)
            assert fit.objective <= 0.5 * np.sum(residual**2) * (1 + 1e-5)
            assert fit.objective == pytest.approx(0.5 * np.sum(fit.residuals(sim.data) ** 2))

    def test_starts_that_are_cut_short_are_compared_under_one_loss(self):
        sim = simulate((20, 20, 20), 3, eta=0.2, gamma=2.0, rng=0)
        fit = cpal1(sim.data, 3, starts=4, max_sweeps=10, rng=3)
        assert max(fit.starts) < 2 * min(fit.starts)
        assert "before the last level" in fit.status

    def test_a_good_start_is_kept(self):
        sim = simulate((30, 30, 30), 3, eta=0.2, gamma=2.0, rng=0)
        fit = cpal1(sim.data, 3, tol=1e-8)
        again = cpal1(sim.data, 3, init=fit, tol=1e-8)
        assert again.objective <= fit.objective * (1 + 1e-6)
        assert again.sweeps < fit.sweeps

    def test_several_starts_keep_the_lowest(self):
        sim = simulate((15, 15, 15), 4, eta=0.2, gamma=2.0, density=0.3, rng=5)
        one = cpal1(sim.data, 4, init="random", rng=0)
        many = cpal1(sim.data, 4, init="random", starts=5, rng=0)
        assert len(many.starts) == 5
        assert many.objective == min(many.starts)
        assert many.starts[0] == one.objective


@each_method
class TestEveryFit:
    @settings(max_examples=12)
    @given(
        shape=st.lists(st.integers(1, 7), min_size=2, max_size=5),
        rank=st.integers(1, 4),
        seed=st.integers(0, 10_000),
    )
    def test_objective_never_rises_and_factors_are_finite(self, method, shape, rank, seed):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.2, 30.0, 1.0)
        seen = []
        fit = method(
            X, rank, max_sweeps=40, init="random", starts=2, rng=seed, callback=seen.append
        )
        for a, b in itertools.pairwise(seen):
            if (a.start, a.stage, a.level, a.name) == (b.start, b.stage, b.level, b.name):
                assert b.objective <= a.objective + 1e-12 * np.sum(X * X)
        if method is not cp:  # its noise is estimated anew from level to level
            assert np.all(np.diff(fit.trace) <= 1e-12 * np.sum(X * X))
        assert fit.objective == fit.trace[-1]
        assert np.isfinite(fit.weights).all()
        assert all(np.isfinite(A).all() for A in fit.factors)

    def test_trace_ends_at_the_objective_of_the_model(self, method):
        sim = small()
        fit = method(sim.data, 2)
        value = float(fit.loss.value(fit.residuals(sim.data)).sum())
        assert fit.objective == pytest.approx(value, rel=1e-6)

    @pytest.mark.parametrize("c", [1e-6, 1e6])
    def test_scale(self, method, c):
        if method is published:
            pytest.skip("as published, epsilon and mu are in the data's raw units")
        sim = small()
        one, other = method(sim.data, 2), method(c * sim.data, 2)
        assert_same_model(one, KruskalTensor(other.weights / c, other.factors))
        assert other.objective == pytest.approx(c**one.loss.degree * one.objective, rel=1e-9)

    def test_permuting_a_mode_permutes_its_factor(self, method):
        sim = small()
        order = np.random.default_rng(0).permutation(sim.data.shape[1])
        options = steady(method)
        one, other = method(sim.data, 2, **options), method(sim.data[:, order], 2, **options)
        turned = KruskalTensor(one.weights, (one.factors[0], one.factors[1][order], one.factors[2]))
        assert_same_model(turned, other)

    def test_transposing_transposes(self, method):
        if method is published:
            pytest.skip("the order of the modes decides where a fixed epsilon jams")
        sim = small()
        one = method(sim.data, 2, tol=1e-10, max_sweeps=5000)
        other = method(sim.data.transpose(2, 0, 1), 2, tol=1e-10, max_sweeps=5000)
        turned = KruskalTensor(other.weights, tuple(other.factors[m] for m in (1, 2, 0)))
        assert factor_match_score(one, turned) > 1 - 1e-3

    def test_storage_order_does_not_matter(self, method):
        sim = small()
        one = method(sim.data, 2, **steady(method))
        assert_same_model(one, method(np.asfortranarray(sim.data), 2, **steady(method)))

    def test_same_bits_with_any_threads_and_inputs_unchanged(self, method):
        X = simulate((60, 50, 55), 3, eta=0.2, gamma=2.0, rng=0).data
        before = X.copy()
        fits = []
        for threads in (1, 2):
            with threadpool_limits(threads, user_api="blas"):
                fits.append(method(X, 3, max_sweeps=8, init="random", rng=7))
        one, two = fits
        assert np.array_equal(one.trace, two.trace)
        assert np.array_equal(one.weights, two.weights)
        assert all(np.array_equal(A, B) for A, B in zip(one.factors, two.factors, strict=True))
        assert np.array_equal(X, before)

    def test_concurrent_fits_do_not_disturb_each_other(self, method):
        data = [simulate((40, 40, 45), 2, eta=0.2, gamma=2.0, rng=k).data for k in range(4)]
        alone = [method(X, 2, max_sweeps=6) for X in data]
        together = [None] * 4

        def work(k):
            together[k] = method(data[k], 2, max_sweeps=6)

        workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for a, b in zip(alone, together, strict=True):
            assert np.array_equal(a.trace, b.trace)

    def test_array_library_is_kept(self, method, xp):
        sim = small()
        data = xp.asarray(sim.data)
        fit = method(data, 2, **steady(method))
        assert type(fit.weights) is type(data)
        assert all(type(A) is type(data) for A in fit.factors)
        assert_same_model(fit, method(sim.data, 2, **steady(method)), tol=1e-4)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_floats_are_kept(self, method, dtype):
        sim = small()
        fit = method(sim.data.astype(dtype), 2)
        assert fit.weights.dtype == dtype
        assert all(A.dtype == dtype for A in fit.factors)
        if method is not published:  # there roundings decide which entries pin a row
            assert factor_match_score(fit, method(sim.data, 2)) > 0.999

    def test_integers_give_float64(self, method):
        X = np.round(20 * small().data).clip(0, 255).astype(np.uint8)
        fit = method(X, 2)
        assert fit.weights.dtype == np.float64
        assert_same_model(fit, method(X.astype(float), 2))

    @pytest.mark.process
    def test_same_bits_in_processes_with_one_and_two_threads(self, method):
        if method is published:
            pytest.skip("starts like cpal1")
        code = (
            "import numpy as np, robustcp, hashlib;"
            "X = np.random.default_rng(0).random((900, 40, 30));"
            f"fit = robustcp.{method.__name__}(X, 5, max_sweeps=3);"
            "bits = b''.join(A.tobytes() for A in (fit.trace, *fit.factors));"
            "print(hashlib.sha256(bits).hexdigest())"
        )
        outputs = {
            subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(k), "OPENBLAS_NUM_THREADS": str(k)},
            ).stdout
            for k in (1, 2)
        }  # fmt: skip
        assert len(outputs) == 1

    def test_wild_starts(self, method):
        sim = small()
        A, B, C = (np.array(F) for F in sim.truth.absorbed())
        options = {**steady(method), "starts": 1}
        plain = method(sim.data, 2, **{**options, "init": [A, B, C]})
        moved = method(sim.data, 2, **{**options, "init": [A * 1e100, B, C / 1e100]})
        assert_same_model(plain, moved, tol=1e-4)
        if method is not published:
            large = method(sim.data, 2, init=[A * 1e30, B, C])
            assert factor_match_score(large, plain) > 0.95

    def test_seed(self, method):
        X = small().data
        a, b = (method(X, 2, init="random", rng=3, max_sweeps=5) for _ in range(2))
        assert np.array_equal(a.trace, b.trace)
        c = method(X, 2, init="random", rng=4, max_sweeps=5)
        assert not np.array_equal(a.trace, c.trace)

    def test_callback_sees_every_sweep_and_can_stop(self, method):
        seen = []

        def callback(state):
            seen.append((state.sweep, state.objective))
            return np.bool_(state.sweep == 4)

        X = small().data
        fit = method(X, 2, callback=callback, tol=0)
        assert [sweep for sweep, _ in seen] == [1, 2, 3, 4]
        assert np.array_equal([objective for _, objective in seen], fit.trace)
        assert fit.status.startswith("stopped by the callback")
        assert not fit.converged

    def test_max_sweeps_and_tol_zero(self, method):
        fit = method(small().data, 2, tol=0, max_sweeps=50)
        assert fit.sweeps == 50
        assert not fit.converged
        assert fit.status.startswith("stopped after 50 sweeps")

    def test_a_fit_can_be_the_next_start(self, method):
        X = small().data
        fit = method(X, 2)
        for init in (fit, fit.model, list(fit.model.absorbed()), fit.to_tensorly()):
            again = method(X, 2, init=init)
            assert again.objective <= fit.objective * (1 + 1e-4)
            assert factor_match_score(again, fit) > 0.99


class TestWildEntries:
    """A few entries beyond all measure must not cost the others their digits."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("size", [1e6, 1e20, 9.97e36])
    @pytest.mark.parametrize("share", [0.0005, 0.05])
    def test_fill_values(self, dtype, size, share):
        sim = simulate((20, 20, 20), 3, eta=0.0, gamma=0.0, noise=0.05, rng=0)
        X = sim.data.astype(dtype)
        hit = np.random.default_rng(1).random(X.shape) < share
        X[hit] = size
        fit = cpal1(X, 3, init="random", starts=3)
        assert factor_match_score(fit, sim.truth) > 0.98
        assert f"{hit.sum()} entries are left out" in fit.status
        kept = np.abs(X - fit.full())[~hit].sum(dtype=np.float64)
        assert fit.objective == pytest.approx(kept, rel=1e-4)
        raw = cpal1(X, 3, init=sim.truth, smoothing="fixed", max_sweeps=3)  # as published
        plain = np.abs(X - raw.full()).sum(dtype=np.float64)
        assert raw.objective == pytest.approx(plain, rel=1e-4)
        near = cpal1(X, 3, init=sim.truth)
        assert factor_match_score(near, sim.truth) > 0.98

    def test_far_beyond(self):
        sim = simulate((20, 20, 20), 3, eta=0.0, gamma=0.0, noise=0.05, rng=0)
        X = sim.data.copy()
        X[1, 2, 3] = 1e300
        assert factor_match_score(cpal1(X, 3, init=sim.truth), sim.truth) > 0.98
        assert np.isfinite(cpals(X, 3).weights).all()


class TestOddInput:
    @each_method
    @pytest.mark.parametrize("shape", [(5, 6), (4, 5, 6), (2, 3, 4, 5)], ids=str)
    def test_zeros_give_a_zero_model(self, method, shape):
        fit = method(np.zeros(shape), 2)
        assert np.all(fit.full() == 0)
        assert "empty" in fit.status
        assert np.isfinite(fit.trace).all()
        assert fit.explained == 0

    @each_method
    @pytest.mark.parametrize("rank", [1, 3])
    @pytest.mark.parametrize("constant", [-3.0, 1e-9, 7.0])
    def test_constants(self, method, rank, constant):
        if method is published and constant == 1e-9:
            pytest.skip("beside a raw mu of 1e-8 such data is nothing")
        fit = method(np.full((4, 5, 6), constant), rank, starts=2)
        np.testing.assert_allclose(fit.full(), constant, rtol=1e-3)

    @each_method
    def test_modes_of_size_one_and_rank_above_every_size(self, method):
        X = np.random.default_rng(0).standard_normal((1, 4, 3))
        fit = method(X, 6)
        assert [A.shape for A in fit.factors] == [(1, 6), (4, 6), (3, 6)]
        np.testing.assert_allclose(fit.full(), X, atol=1e-2)

    @each_method
    def test_rank_above_what_the_data_supports_is_said(self, method):
        sim = simulate((10, 9, 8), 1, eta=0.0, gamma=0.0, noise=0.0, rng=0)
        fit = method(sim.data, 3, init="random", rng=0)
        assert all(np.isfinite(A).all() for A in fit.factors)
        assert "collinear" in fit.status or "empty" in fit.status
        np.testing.assert_allclose(fit.full(), sim.data, atol=0.05 * np.abs(sim.data).max())

    @pytest.mark.parametrize("method", [cpal1, cpals], ids=lambda m: m.__name__)
    @pytest.mark.parametrize("size", [1e-300, 1e300])
    def test_extreme_values(self, method, size):
        sim = small()
        fit = method(size * sim.data, 2)
        plain = method(sim.data, 2)
        assert_same_model(plain, KruskalTensor(fit.weights / size, fit.factors))
        assert fit.explained == pytest.approx(plain.explained)

    @pytest.mark.parametrize("size", [1e-30, 1e30])
    def test_extreme_float32(self, size):
        sim = small()
        fit = cpal1((size * sim.data).astype(np.float32), 2)
        assert factor_match_score(fit, (size * sim.truth.weights, sim.truth.factors)) > 0.95

    @pytest.mark.parametrize("size", [1e-300, 1e300])
    def test_extreme_values_as_published(self, size):
        fit = published(size * small().data, 2)
        assert np.isfinite(fit.trace).all()
        assert np.isfinite(fit.weights).all()

    def test_extreme_values_in_a_callback_and_a_start(self):
        X = 1e300 * small().data
        seen = []
        fit = cpal1(X, 2, callback=lambda state: seen.append(state))
        np.testing.assert_allclose([s.objective for s in seen], fit.trace)
        model = KruskalTensor.from_factors(seen[-1].factors)
        np.testing.assert_allclose(model.full(), fit.full(), rtol=1e-6)
        assert cpal1(X, 2, init=fit).objective <= fit.objective * (1 + 1e-4)

    def test_memory_mapped_read_only_and_strided(self, tmp_path):
        X = small().data
        np.save(tmp_path / "x.npy", X)
        plain = cpal1(X, 2)
        assert_same_model(plain, cpal1(np.load(tmp_path / "x.npy", mmap_mode="r"), 2))
        wide = np.zeros((24, 11, 10))
        wide[::2] = X
        view = wide[::2]
        view.setflags(write=False)
        assert_same_model(plain, cpal1(view, 2))


X3 = np.ones((3, 4, 5))
BAD_DATA = [
    (np.float64(3.0), "X: must have at least 2 modes"),
    (np.ones(3), "X: must have at least 2 modes"),
    (np.ones((3, 0, 2)), "X: has an empty mode"),
    (np.where(np.arange(60).reshape(3, 4, 5) == 33, np.inf, 1.0), r"X: has infinite.*\(1, 2, 3\)"),
    (np.full((3, 4), np.nan), "X: all entries are missing"),
    (np.ma.masked_greater(np.arange(6.0).reshape(2, 3), -1), "X: all entries are missing"),
    (np.ones((3, 4), dtype=complex), "X: dtype complex128"),
    (np.full((3, 4), "a"), "X: dtype <U1"),
    ([[1.0, 2.0], [3.0]], "X: is not an array"),
    (np.full((3, 4), None), "X: dtype object"),
    (np.zeros((3, 4), dtype="datetime64[s]"), "X: dtype datetime64"),
]
BAD_ARGUMENTS = [
    ({"rank": 0}, "rank: .*got 0"),
    ({"rank": -2}, "rank: .*got -2"),
    ({"rank": 2.0}, "rank: .*got 2.0"),
    ({"rank": True}, "rank: .*got True"),
    ({"rank": "5"}, "rank: .*got '5'"),
    ({"mu": -1e-3}, "mu: .*got -0.001"),
    ({"tol": -1}, "tol: .*got -1"),
    ({"tol": 1.0}, "tol: .*got 1.0"),
    ({"callback": 3}, "callback: .*got 3"),
    ({"init": [np.ones((n, 2)) * 1j for n in (3, 4, 5)]}, "init: .*complex128"),
    ({"tol": float("nan")}, "tol: .*got nan"),
    ({"max_sweeps": 0}, "max_sweeps: .*got 0"),
    ({"max_sweeps": 1.5}, "max_sweeps: .*got 1.5"),
    ({"starts": 0}, "starts: .*got 0"),
    ({"rng": "seed"}, "rng: .*got 'seed'"),
    ({"init": "zeros"}, "init: .*got 'zeros'"),
    ({"init": 5}, "init: .*got int"),
    ({"init": [np.ones((3, 2))] * 3}, r"init: has shape \(3, 3, 3\)"),
    ({"init": [np.ones((n, 3)) for n in (3, 4, 5)]}, "init: .*rank 3"),
    ({"init": [np.full((n, 2), np.nan) for n in (3, 4, 5)]}, "init: .*mode 0 .*not finite"),
    ({"init": [np.eye(n, 2) * [1, 0] for n in (3, 4, 5)]}, "init: column 1 .*mode 0 is zero"),
]
BAD_FOR_CPAL1 = [
    ({"epsilon": 0}, "epsilon: .*got 0"),
    ({"epsilon": -1.0}, "epsilon: .*got -1.0"),
    ({"smoothing": "none"}, "smoothing: .*got 'none'"),
    ({"inner": 0}, "inner: .*got 0"),
    ({"inner_tol": -1}, "inner_tol: .*got -1"),
]


class TestBadInput:
    @each_method
    @pytest.mark.parametrize(("data", "message"), BAD_DATA, ids=[m for _, m in BAD_DATA])
    def test_data(self, method, data, message):
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            method(data, 2)

    @each_method
    @pytest.mark.parametrize(("bad", "message"), BAD_ARGUMENTS, ids=[m for _, m in BAD_ARGUMENTS])
    def test_arguments(self, method, bad, message):
        if method is cp and "mu" in bad:
            pytest.skip("it has no mu")
        with pytest.raises(ValueError, match=f"^{message}"):
            method(X3, **{"rank": 2, **bad})

    @pytest.mark.parametrize(("bad", "message"), BAD_FOR_CPAL1, ids=[m for _, m in BAD_FOR_CPAL1])
    def test_arguments_of_cpal1(self, bad, message):
        with pytest.raises(ValueError, match=f"^{message}"):
            cpal1(X3, 2, **bad)

    def test_other_kinds_of_data(self):
        import scipy.sparse

        with pytest.raises(TypeError, match=r"^X: csr_array is not supported yet"):
            cpal1(scipy.sparse.csr_array(np.eye(3)), 1)

    def test_threads(self):
        with pytest.raises(ValueError, match=r"^threads: .*got 0"):
            robustcp.as_engine(X3, threads=0)


class TestSpecification:
    """A call is a frozen value, and the plan a function of it and the data."""

    def test_the_same_specification_gives_the_same_plan(self):
        X = np.random.default_rng(0).standard_normal((6, 5, 4))
        spec = FitSpec(AlternatingLeastSquares(0.0, 1e-7), 2, init="nvecs", starts=3, max_sweeps=9)
        one, other = (plan(spec, as_engine(X)) for _ in range(2))
        assert one.stages == other.stages
        assert one.starts == other.starts
        assert len(one.starts) == 3
        assert one.modes == (0, 1, 2)
        with pytest.raises(FrozenInstanceError):
            spec.rank = 3

    @pytest.mark.parametrize("wrong", [{"rank": 0}, {"starts": 0}, {"max_sweeps": 1.5}], ids=str)
    def test_wrong_numbers_are_refused(self, wrong):
        right = {"rank": 2, "init": "nvecs", "starts": 1, "max_sweeps": 9}
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FitSpec(AlternatingLeastSquares(0.0, 1e-7), **(right | wrong))

    def test_modes_have_names_in_the_plan(self):
        X = LabelledTensor(np.ones((6, 5, 4)), ("a", "b", "c"), (None,) * 3)
        spec = FitSpec(
            RefinedL1(1e-5), 2, init=[np.ones((n, 2)) for n in X.shape], starts=None, max_sweeps=9,
            nonnegative=["b"], fixed=("c",),
        )  # fmt: skip
        result = plan(spec, as_engine(X))
        assert result.modes == (0, 1)
        assert result.constraints == (Free(), Nonnegative(), Free())
