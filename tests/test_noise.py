"""What the noise depends on: found by the data, told by the user, and used everywhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import robustcp
from robustcp import L1, Nonnegative, Observed, Smooth, Unimodal, cp, cpal1, cpals, simulate
from robustcp.engines import Axes, Entries, as_engine
from robustcp.noise import (
    COMMON,
    Kind,
    Noise,
    NoiseSpec,
    Residuals,
    fit_contaminated_normal,
    measure_structure,
)
from robustcp.noise.entropy import model_entropy
from robustcp.noise.kind_selection import select_kind
from robustcp.noise.noise_of_model import estimate_noise
from robustcp.noise.resolution import Resolution
from robustcp.noise.second_peak import fit_two_peaks
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Level, Refinement, Skip
from support.halves import Halves
from support.kill_and_resume import bits
from support.oracles import host

ENDS = (".npz", ".nc")
BY_SIGNAL = Kind(signal=True)


def model(shape, rank=2, seed=0, *, positive=False):
    """The entries of a random model, of mean square 1; and its factors."""
    rng = np.random.default_rng(seed)
    draw = (lambda size: rng.gamma(2.0, size=size)) if positive else rng.standard_normal
    factors = [draw((size, rank)) for size in shape]
    letters = "abcde"[: len(shape)]
    M = np.einsum(",".join(f"{c}r" for c in letters) + f"->{letters}", *factors)
    size = math.sqrt(np.mean(M * M))
    return M / size, [A / size ** (1 / len(shape)) for A in factors]


def along(mode, values, order=3):
    """A vector as an array that broadcasts along one mode."""
    return np.reshape(values, [-1 if n == mode else 1 for n in range(order)])


def spread(size, ratio=30.0):
    """Scales of slabs between which the noise differs by some ratio, in no order."""
    logs = np.linspace(-0.5, 0.5, size) * math.log(ratio)
    return np.exp(np.random.default_rng(size).permutation(logs))


def seen(M, r):
    """Residuals of the entries of a model, as the noise is estimated from them."""
    X = M + r
    sample = Entries(M.shape, r.ravel(), lambda: tuple(np.indices(M.shape).reshape(M.ndim, -1)))
    return Residuals(sample, X.ravel, M.shape, Resolution.of(as_engine(X)), X.size)


def with_artifacts(X, share, rng, *, size=8.0):
    """One-sided artifacts in a share of the entries."""
    bad = rng.random(X.shape) < share
    return np.where(bad, X + size * rng.random(X.shape), X), bad


def noise_of_kind(name, M, rng, sigma=0.1):
    """Noise of the kinds that are told apart, of typical size sigma."""
    z = rng.standard_normal(M.shape)
    if name == "even":
        return sigma * z
    if name == "laplace":
        return sigma * rng.laplace(size=M.shape)
    if name == "uniform":
        return sigma * rng.uniform(-2, 2, size=M.shape)
    if name == "slabs":
        return sigma * z * along(0, spread(M.shape[0]))
    if name == "two modes":
        return sigma * z * along(0, spread(M.shape[0], 8)) * along(2, spread(M.shape[2], 8))
    assert name == "signal"
    return z * (0.02 + 0.2 * np.abs(M))


#: Names of noises, and the kinds that they are.
KINDS = {
    "even": COMMON, "laplace": COMMON, "uniform": COMMON, "slabs": Kind((0,)),
    "two modes": Kind((0, 2)), "signal": BY_SIGNAL,
}  # fmt: skip


@pytest.fixture(scope="module")
def noisy():
    """Data of rank 2 with noise of some kinds."""
    made = {}
    for name in KINDS:
        M, _ = model((20, 18, 16))
        made[name] = M + noise_of_kind(name, M, np.random.default_rng(1))
    return made


@pytest.fixture(scope="module")
def fits(noisy):
    return {name: cp(X, 2) for name, X in noisy.items()}


# The core


class TestCore:
    @given(
        st.integers(0, 99), st.sampled_from([0.0, 0.1, 0.3]), st.floats(-150, 150),
        st.booleans(),
    )  # fmt: skip
    def test_among_outliers_in_any_units(self, seed, share, exponent, one_sided):
        rng = np.random.default_rng(seed)
        r = rng.standard_normal(20_000)
        bad = rng.random(r.size) < share
        wild = rng.uniform(0 if one_sided else -20, 20, r.size)
        unit = 10.0**exponent
        found = fit_contaminated_normal(unit * np.where(bad, r + wild, r))
        assert found.sigma == pytest.approx(unit, rel=0.07)
        assert found.clean == pytest.approx(1 - share, abs=0.06)
        assert 0 <= found.rejected_share <= 0.01 + share

    @given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.sampled_from([0.0, 1e-3, 10.0]))
    def test_of_any_numbers_is_finite(self, values, least):
        found = fit_contaminated_normal(np.array(values), least)
        assert all(map(math.isfinite, vars(found).values()))
        assert found.sigma > 0
        assert found.sigma >= least * (1 - 1e-12)
        assert 0 < found.clean <= 1

    @given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50))
    def test_sides_are_alike(self, values):
        r = np.array(values)
        one, other = fit_contaminated_normal(r), fit_contaminated_normal(-r)
        assert one.sigma == other.sigma
        assert (one.above, one.below) == (other.below, other.above)


# Estimates


class TestEstimates:
    def test_thirtyfold_slabs(self):
        M, _ = model((30, 25, 20))
        v = spread(30)
        r = 0.1 * along(0, v) * np.random.default_rng(0).standard_normal(M.shape)
        noise = estimate_noise(seen(M, r), Kind((0,)))
        np.testing.assert_allclose(noise.slabs[0], v, rtol=0.12)
        assert noise.sigma == pytest.approx(0.1, rel=0.03)
        assert noise.slabs[1] is noise.slabs[2] is None

    def test_scales_of_two_modes_multiply(self):
        M, _ = model((25, 20, 22))
        v, w = spread(25, 10), spread(22, 6)
        r = 0.1 * along(0, v) * along(2, w) * np.random.default_rng(0).standard_normal(M.shape)
        noise = estimate_noise(seen(M, r), Kind((0, 2)))
        np.testing.assert_allclose(noise.slabs[0], v, rtol=0.15)
        np.testing.assert_allclose(noise.slabs[2], w, rtol=0.15)
        expected = 0.1 * np.broadcast_to(along(0, v) * along(2, w), M.shape)
        np.testing.assert_allclose(seen(M, r).sigmas_of(noise), expected.ravel(), rtol=0.25)

    def test_slabs_of_few_entries_shrink_to_the_mean(self):
        # by the mean square of 8 entries each, log scales would have a deviation of .25
        rng = np.random.default_rng(0)
        M = np.ones((200, 8))
        noise = estimate_noise(seen(M, 0.1 * rng.standard_normal(M.shape)), Kind((0,)))
        assert np.std(np.log(noise.slabs[0])) < 0.12
        wide = estimate_noise(
            seen(M, 0.1 * along(0, spread(200, 100), 2) * rng.standard_normal(M.shape)), Kind((0,))
        )
        assert np.corrcoef(np.log(wide.slabs[0]), np.log(spread(200, 100)))[0, 1] > 0.9

    @pytest.mark.parametrize(
        "numbers", [(0.01, 0.0, 0.04), (0.0, 0.05, 0.0), (0.01, 0.02, 0.0), (0.0025, 0.01, 0.01)]
    )
    @pytest.mark.parametrize("share", [0.0, 0.1])
    def test_variance_function(self, numbers, share):
        rng = np.random.default_rng(0)
        M, _ = model((40, 40, 30), positive=True)
        v = sum(part * M**power for power, part in enumerate(numbers))
        r = np.sqrt(v) * rng.standard_normal(M.shape)
        noise = estimate_noise(seen(M, with_artifacts(r, share, rng)[0]), BY_SIGNAL)
        found = seen(M, r).sigmas_of(noise).reshape(M.shape)
        ratio = found / np.sqrt(v)
        middle = (np.quantile(M, 0.1) < M) & (np.quantile(M, 0.95) > M)
        assert np.abs(np.log(ratio[middle])).max() < (0.1 if share == 0 else 0.2)

    @pytest.mark.parametrize("mean", [2.0, 10.0])
    def test_counts_have_the_variance_of_their_mean(self, mean):
        M = mean * model((30, 30, 20), positive=True)[0]
        X = np.random.default_rng(0).poisson(M)
        noise = estimate_noise(seen(M, X - M), BY_SIGNAL)
        a, b, c = noise.variance
        at = np.quantile(M, [0.25, 0.5, 0.75])
        variance = a * noise.sigma**2 + b * noise.sigma * at + c * at**2
        np.testing.assert_allclose(variance, at, rtol=0.1)

    @given(st.integers(0, 50), st.booleans(), st.booleans(), st.floats(-60, 60))
    @settings(max_examples=15)
    def test_deviations_are_those_of_a_plain_formula_in_any_units(self, seed, slabs, signal, power):
        rng = np.random.default_rng(seed)
        M, _ = model((12, 11, 10), seed=seed)
        unit = 10.0**power
        r = rng.standard_normal(M.shape) * (0.05 + 0.1 * np.abs(M)) * along(1, spread(11, 4))
        residuals = seen(unit * M, unit * r)
        noise = estimate_noise(residuals, Kind((1,) if slabs else (), signal))
        assert noise.kind == Kind((1,) if slabs else (), signal)
        a, b, c = noise.variance
        v = a * noise.sigma**2 + b * noise.sigma * np.abs(unit * M) + c * (unit * M) ** 2
        if slabs:
            v = v * along(1, noise.slabs[1]) ** 2
            assert np.mean(np.log(noise.slabs[1])) == pytest.approx(0, abs=1e-12)
        s = (v**2 + noise.least**4) ** 0.25 if slabs or signal else np.sqrt(v)
        np.testing.assert_allclose(residuals.sigmas_of(noise), s.ravel(), rtol=1e-9)
        assert noise.sigma == pytest.approx(np.exp(np.mean(np.log(s))), rel=1e-9)
        same = estimate_noise(seen(M, r), noise.kind)
        assert noise.sigma / unit == pytest.approx(same.sigma, rel=1e-6)

    @given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 20))
    @settings(max_examples=30)
    def test_any_kind_of_few_or_exact_residuals_is_finite(self, shape, seed):
        rng = np.random.default_rng(seed)
        M = rng.integers(0, 3, shape).astype(float)
        for r in (np.zeros(shape), np.where(rng.random(shape) < 0.2, 1.0, 0.0), 1e-90 * M):
            for kind in (None, BY_SIGNAL, Kind((0,)), Kind(tuple(range(M.ndim)), True)):
                residuals = seen(M, r)
                noise = estimate_noise(residuals, kind)
                s = residuals.sigmas_of(noise)
                assert np.isfinite(s).all()
                assert (s > 0).all()
                assert noise.sigma > 0


class TestChoice:
    @pytest.mark.parametrize("name", KINDS)
    @pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
    def test_the_kind_is_that_of_the_noise(self, name, share):
        for seed in range(4):
            rng = np.random.default_rng(seed)
            M, _ = model((20, 18, 16), seed=seed)
            r, _ = with_artifacts(noise_of_kind(name, M, rng), share, rng)
            assert select_kind(seen(M, r)).kind == KINDS[name], seed

    def test_counts_are_by_signal(self):
        for seed in range(4):
            M = 3 * model((20, 18, 16), seed=seed, positive=True)[0]
            X = np.random.default_rng(seed).poisson(M)
            assert select_kind(seen(M, X - M)).kind == BY_SIGNAL

    def test_the_paper_s_artifacts(self):
        for seed in range(3):
            for eta, gamma in ((0.1, 0.5), (0.2, 2.0)):
                sim = robustcp.simulate((25, 25, 25), 3, eta=eta, gamma=gamma, rng=seed)
                assert cp(sim.data, 3).noise.kind == COMMON

    def test_of_a_fit(self, fits):
        assert {name: fit.noise.kind for name, fit in fits.items()} == KINDS

    def test_few_residuals_say_nothing(self):
        rng = np.random.default_rng(0)
        M = np.ones((10, 10))
        r = rng.standard_normal(M.shape) * along(0, spread(10, 1000), 2)
        assert select_kind(seen(M, r)).kind == COMMON


# Fits


SKEWED = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "uniform": lambda rng, n: rng.uniform(-1.7, 1.7, n),
    "exponential": lambda rng, n: rng.gamma(1.0, size=n) - 0.7,
    "gamma": lambda rng, n: rng.gamma(5.0, size=n) - 4.7,
    "log-normal": lambda rng, n: np.exp(rng.standard_normal(n)) - 0.8,
    "Student": lambda rng, n: rng.standard_t(3, n),
    "rounded counts": lambda rng, n: (rng.poisson(5, n) - 5 + rng.uniform(-0.5, 0.5, n)) / 2.2,
    "scales that differ": lambda rng, n: rng.standard_normal(n) * np.exp(rng.uniform(-1.5, 1.5, n)),
    "outliers": lambda rng, n: (
        rng.standard_normal(n) + (rng.random(n) < 0.15) * 10 * rng.gamma(4, 0.25, n)
    ),
    "outliers of one size": lambda rng, n: rng.standard_normal(n) + 15 * (rng.random(n) < 0.15),
}


class TestSecondPeak:
    @pytest.mark.parametrize("name", SKEWED)
    def test_noise_of_one_peak_has_none(self, name):
        for seed, count in enumerate((1500, 5000, 20_000, 50_000)):
            z = SKEWED[name](np.random.default_rng(seed), count)
            assert fit_two_peaks(z / fit_contaminated_normal(z).sigma) is None

    @pytest.mark.parametrize(("share", "shift"), [(0.1, 4.0), (0.2, 3.0), (0.3, -3.0), (0.2, -5.0)])
    def test_of_shifted_entries(self, share, shift):
        rng = np.random.default_rng(0)
        z = rng.standard_normal(20_000) + shift * (rng.random(20_000) < share)
        z /= fit_contaminated_normal(z).sigma
        sigma, height, distance, floor, clean = fit_two_peaks(z)
        assert distance / sigma == pytest.approx(shift, rel=0.03)
        assert height / (1 + height) == pytest.approx(share, rel=0.06)
        assert clean == pytest.approx(1 - share, abs=0.01)
        assert floor < 1e-3

    def test_in_a_fit(self):
        M, factors = model((20, 20, 20), positive=True)
        rng = np.random.default_rng(0)
        X = M + 0.3 * rng.standard_normal(M.shape) + 0.9 * (rng.random(M.shape) < 0.2)
        fit, plain = cp(X, 2, rng=0), cpals(X, 2, rng=0)
        truth = robustcp.KruskalTensor.from_factors(factors)
        assert fit.noise.shift == pytest.approx(3.0, rel=0.06)
        assert fit.noise.sigma == pytest.approx(0.3, rel=0.03)
        assert "20% shifted by 3" in fit.noise.words()
        errors = [1 - robustcp.factor_match_score(f, truth, weights=False) for f in (fit, plain)]
        assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_slab_with_leverage_gets_no_tiny_scale(seed):
    """The row of least noise has the largest weight, is fitted best, and so on (Heywood)."""
    rng, v = np.random.default_rng(seed), spread(40, 5)
    X = model((40, 30), 2)[0] + 0.3 * along(0, v, 2) * rng.standard_normal((40, 30))
    fit = cp(X, 2, rng=0)
    assert 0 in fit.noise.kind.modes
    ratio = fit.noise.slabs[0] / v
    assert ratio.min() > 0.5 * np.median(ratio)


class TestFits:
    def test_sigma_is_that_of_a_plain_formula(self, noisy, fits):
        for name, fit in fits.items():
            X, noise = noisy[name], fit.noise
            a, b, c = noise.variance
            m = np.abs(fit.full())
            v = a * noise.sigma**2 + b * noise.sigma * m + c * m**2
            for mode, scales in enumerate(noise.slabs):
                v = v if scales is None else v * along(mode, scales) ** 2
            s = np.sqrt(v) if noise.kind == COMMON else (v**2 + noise.least**4) ** 0.25
            # that of the fit goes on from the noise of the last level: near, not the same
            np.testing.assert_allclose(fit.sigma(X), np.broadcast_to(s, X.shape), rtol=0.03)
            scores = fit.outliers(X).scores
            np.testing.assert_allclose(scores, (X - fit.full()) / fit.sigma(X), rtol=1e-9)

    def test_sigma_is_that_of_the_noise(self, noisy, fits):
        for name, made in (("even", 0.1), ("slabs", 0.1 * along(0, spread(20)))):
            ratio = fits[name].sigma(noisy[name]) / made
            assert np.abs(np.log(ratio)).max() < 0.25

    @pytest.mark.parametrize("name", ["even", "slabs", "two modes", "signal"])
    def test_levels_are_monotone(self, noisy, name):
        states = []
        cp(noisy[name], 2, callback=lambda state: states.append(state) and None)
        levels = {}
        for state in states:
            levels.setdefault((state.stage, state.level), []).append(state)
        assert len([key for key in levels if key[0] == 1]) > 1
        for held in levels.values():
            values = [state.objective for state in held]
            assert (np.diff(values) <= 0).all()
            assert len({state.noise and state.noise.words() for state in held}) == 1

    @pytest.mark.parametrize("factor", [1e-6, 1e6, -1.0, 2.0**-700])
    @pytest.mark.parametrize("name", ["slabs", "signal"])
    def test_units(self, noisy, fits, name, factor):
        one, X = fits[name], noisy[name] * factor
        other = cp(X, 2)
        assert other.noise.kind == one.noise.kind
        assert other.noise.sigma == pytest.approx(abs(factor) * one.noise.sigma, rel=1e-4)
        for A, B in zip(one.factors, other.factors, strict=True):
            np.testing.assert_allclose(np.abs(A), np.abs(B), atol=1e-4)
        np.testing.assert_allclose(other.sigma(X) / abs(factor), one.sigma(noisy[name]), rtol=1e-3)
        assert other.outliers(X).share == pytest.approx(one.outliers(noisy[name]).share, abs=1e-3)

    @pytest.mark.parametrize("name", ["two modes", "signal"])
    def test_order_of_slabs_and_modes(self, noisy, fits, name):
        X, fit = noisy[name], fits[name]
        start = [A * w ** (1 / 3) for A in fit.factors for w in (fit.weights,)]
        at = np.random.default_rng(0).permutation(X.shape[0])
        one = cp(X, 2, init=start)
        moved = cp(X[at], 2, init=[start[0][at], *start[1:]])
        turned = cp(X.transpose(2, 0, 1), 2, init=[start[2], start[0], start[1]])
        assert moved.noise.kind == one.noise.kind
        assert turned.noise.kind == Kind(tuple(sorted((m + 1) % 3 for m in one.noise.kind.modes)),
                                         one.noise.kind.signal)  # fmt: skip
        for other in (moved, turned):
            assert other.noise.sigma == pytest.approx(one.noise.sigma, rel=1e-3)
        if name == "two modes":
            np.testing.assert_allclose(moved.noise.slabs[0], one.noise.slabs[0][at], rtol=0.01)
            np.testing.assert_allclose(turned.noise.slabs[0], one.noise.slabs[2], rtol=0.01)
            np.testing.assert_allclose(turned.noise.slabs[1], one.noise.slabs[0], rtol=0.01)

    @pytest.mark.parametrize("name", ["two modes", "signal"])
    def test_threads(self, noisy, name):
        one, two = (cp(as_engine(noisy[name], threads=n), 2) for n in (1, 2))
        assert bits(one) == bits(two)
        assert one.noise.sigma == two.noise.sigma

    @pytest.mark.parametrize("name", ["slabs", "signal"])
    def test_float32(self, noisy, fits, name):
        X = noisy[name].astype(np.float32)
        fit = cp(X, 2)
        assert fit.noise.kind == fits[name].noise.kind
        assert fit.noise.sigma == pytest.approx(fits[name].noise.sigma, rel=0.01)
        assert fit.sigma(X).dtype == np.float32
        assert robustcp.factor_match_score(fit, fits[name]) > 0.999

    def test_libraries(self, noisy, fits, xp):
        for name in ("slabs", "signal"):
            X = xp.asarray(noisy[name])
            fit = cp(X, 2)
            assert fit.noise.kind == fits[name].noise.kind
            assert fit.noise.sigma == pytest.approx(fits[name].noise.sigma, rel=1e-3)
            assert type(fit.sigma(X)) is type(X)
            np.testing.assert_allclose(host(fit.sigma(X)), fits[name].sigma(noisy[name]), rtol=1e-2)
            known = cp(X, 2, noise=xp.asarray(fits[name].sigma(noisy[name])))
            assert known.noise.known

    @pytest.mark.parametrize("name", ["slabs", "signal"])
    def test_missing_entries(self, noisy, name):
        X = noisy[name].copy()
        X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
        dense = cp(X, 2, init="random", starts=1)
        at = np.argwhere(~np.isnan(X))
        listed = Observed(at, X[tuple(at.T)], X.shape)
        sparse = cp(listed, 2, init="random", starts=1)
        assert dense.noise.kind == sparse.noise.kind == KINDS[name]
        assert sparse.noise.sigma == pytest.approx(dense.noise.sigma, rel=1e-3)
        np.testing.assert_allclose(sparse.sigma(listed), dense.sigma(X)[tuple(at.T)], rtol=1e-2)

    def test_entries_of_weight_0_are_missing(self, noisy):
        X = noisy["slabs"]
        out = np.random.default_rng(0).random(X.shape) < 0.2
        spoilt = np.where(out, 50.0, X)
        weighed = cp(spoilt, 2, entry_weights=~out * 1.0, init="random", starts=1)
        missing = cp(np.where(out, np.nan, X), 2, init="random", starts=1)
        assert weighed.noise.kind == missing.noise.kind == KINDS["slabs"]
        np.testing.assert_allclose(weighed.noise.slabs[0], missing.noise.slabs[0], rtol=1e-2)

    @pytest.mark.recovery
    @pytest.mark.parametrize("name", ["slabs", "signal"])
    def test_constraints_and_fixed_modes(self, name):
        M, factors = model((20, 18, 16), positive=True)
        X = M + noise_of_kind(name, M, np.random.default_rng(1))
        for constraint in (Smooth(0.01), Unimodal(), Nonnegative()):
            fit = cp(X, 2, constraints={1: constraint}, starts=2)
            assert np.isfinite(fit.sigma(X)).all()
        held = cp(X, 2, init=factors, fixed=(0, 1))
        assert held.noise.kind == KINDS[name]

    def test_projection_with_every_kind(self, noisy, fits):
        for name, fit in fits.items():
            scores = fit.project(noisy[name])
            wanted = fit.factors[0] * fit.weights
            assert np.abs(scores - wanted).max() < 0.02 * np.abs(wanted).max()
            for mode in (1, 2):
                assert np.isfinite(fit.project(noisy[name], mode)).all()
            few = fit.project(noisy[name][:1])
            assert np.isfinite(few).all()

    @pytest.mark.recovery
    def test_rank_profile(self, noisy):
        assert robustcp.rank_profile(noisy["slabs"], range(1, 4), starts=4).rank == 2


# Standard deviations that are known


def known_forms(X, v):
    """Standard deviations that go by the first mode, in every form that is taken."""
    import xarray

    whole = np.broadcast_to(along(0, v), X.shape).copy()
    dims = ("sample", "row", "column")
    yield X, whole
    yield X, along(0, v)
    yield X, [v, None, None]
    yield X, (v, np.ones(X.shape[1]), None)
    yield xarray.DataArray(X, dims=dims), xarray.DataArray(v, dims=dims[:1])
    yield xarray.DataArray(X, dims=dims), xarray.DataArray(whole.T, dims=dims[::-1])
    at = np.random.default_rng(0).permutation(np.argwhere(np.ones(X.shape)))
    listed = Observed(at, X[tuple(at.T)], X.shape)
    yield listed, whole[tuple(at.T)]
    yield listed, whole


class TestKnown:
    def test_forms_are_equal(self, noisy):
        X, v = noisy["slabs"], 0.1 * spread(20)
        fits = [cp(data, 2, noise=form) for data, form in known_forms(X, v)]
        assert len(fits) == 8
        for fit, (data, _) in zip(fits, known_forms(X, v), strict=True):
            assert fit.noise.known
            assert fit.noise.sigma == pytest.approx(0.1, rel=1e-9)
            np.testing.assert_allclose(fit.weights, fits[0].weights, rtol=1e-6)
            for A, B in zip(fit.factors, fits[0].factors, strict=True):
                np.testing.assert_allclose(A, B, atol=1e-6)
            expected = np.broadcast_to(along(0, v), X.shape)
            if isinstance(data, Observed):
                expected = expected[tuple(np.asarray(data.indices).T)]
            np.testing.assert_allclose(fit.sigma(data), expected, rtol=1e-9)
            assert fit.outliers(data).share == fits[0].outliers(X).share
            assert fit.noise.words().endswith("known")

    @pytest.mark.parametrize("factor", [1.0, 2.0**-700, 2.0**700])
    def test_a_number_in_any_units(self, noisy, factor):
        X = noisy["even"] * factor
        forms = [cp(X, 2, noise=0.1 * factor), cp(X, 2, noise=np.full(X.shape, 0.1 * factor))]
        for fit in forms:
            assert fit.noise.known
            assert fit.noise.sigma == pytest.approx(0.1 * factor, rel=1e-9)
            np.testing.assert_allclose(fit.sigma(X), 0.1 * factor, rtol=1e-9)
            assert 0.0003 < fit.outliers(X).share < 0.003
            same = cp(noisy["even"], 2, noise=0.1)
            assert robustcp.factor_match_score(fit, same, weights=False) > 0.999
        assert forms[0].outliers(X).scale == pytest.approx(0.1 * factor)

    def test_true_ones_are_as_good_as_estimated_ones(self, noisy, fits):
        X, truth = noisy["slabs"], robustcp.KruskalTensor.from_factors(model((20, 18, 16))[1])
        known = cp(X, 2, noise=[0.1 * spread(20), None, None])
        told = robustcp.factor_match_score(known, truth)
        assert told > 0.99
        assert robustcp.factor_match_score(fits["slabs"], truth) > told - 0.003

    def test_new_slabs_have_the_noise_of_their_own(self, noisy):
        X = noisy["slabs"]
        fit = cp(X, 2, noise=[0.1 * spread(20), None, None])
        assert np.isfinite(fit.project(X[:5])).all()


# Asked for


@pytest.mark.parametrize(
    ("noise", "kind"),
    [
        ("common", COMMON), ("slabs", Kind((0, 1, 2))), ("signal", BY_SIGNAL),
        ("signal*slabs", Kind((0, 1, 2), True)), (1, Kind((1,))), ([2, 0], Kind((0, 2))),
        (np.int64(1), Kind((1,))), ((0,), Kind((0,))),
    ],
    ids=str,
)  # fmt: skip
def test_kinds_by_name_and_by_modes(noise, kind, noisy):
    assert cp(noisy["even"], 2, noise=noise, max_sweeps=60).noise.kind == kind


def test_modes_by_name(noisy):
    import xarray

    X = xarray.DataArray(noisy["slabs"], dims=("sample", "row", "column"))
    fit = cp(X, 2, noise=["sample", 2])
    assert fit.noise.kind == Kind((0, 2))
    assert "sample and column" in fit.noise.words(fit.modes)


X0 = np.random.default_rng(0).standard_normal((6, 5, 4))


@pytest.mark.parametrize(
    "noise",
    [
        "", "gaussian", "row", 3, -1, [0, 3], [0, 0], ["signal", 0], [], (), True, [False], None,
        0.0, -1.0, math.nan, math.inf, {}, {0: 1.0}, object(), 1j, b"auto", np.array("auto"),
        np.ones((3, 3)), np.ones((2, 6, 5, 4)), np.zeros_like(X0), -np.ones_like(X0),
        np.where(X0[1, 1, 1] == X0, np.nan, 1.0), np.where(X0[1, 1, 1] == X0, 0.0, 1.0),
        np.where(X0[1, 1, 1] == X0, np.inf, 1.0), [None] * 3, [np.ones(6), None],
        [np.ones(5), None, None], [np.zeros(6), None, None], [np.ones(6), -np.ones(5), None],
        np.ones((0,)), ["auto"], 10**400,
    ],
    ids=lambda noise: str(noise)[:20].replace("\n", ""),
)  # fmt: skip
def test_bad_input(noise):
    with pytest.raises(ValueError, match=r"^noise: [^\n]*$") as error:
        cp(X0, 2, noise=noise)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("noise", ["common", "signal", 0, 0.5, np.ones_like(X0), None])
def test_not_together_with_a_loss(noise):
    with pytest.raises(ValueError, match=r"^noise: [^\n]*loss[^\n]*$"):
        cp(X0, 2, noise=noise, loss=L1(1e-3))


# Other engines


class TestEnginesWithoutScales:
    def test_have_common_noise(self, noisy):
        X = noisy["slabs"]
        fit = cp(Halves(X), 2)
        assert fit.noise.kind == COMMON
        assert np.isfinite(fit.sigma(Halves(X))).all()
        assert fit.outliers(Halves(X)).scores.shape == X.shape
        assert fit.project(Halves(X)).shape == (20, 2)

    def test_with_fits_of_other_noise(self, noisy, fits):
        for name in ("slabs", "signal"):
            X = noisy[name]
            assert np.isfinite(fits[name].sigma(Halves(X))).all()
            assert np.isfinite(fits[name].project(Halves(X))).all()
            assert 0 < fits[name].outliers(Halves(X)).share < 1

    @pytest.mark.parametrize("noise", ["slabs", "signal", 1, 0.1])
    def test_refuse_any_other(self, noisy, noise):
        with pytest.raises(ValueError, match=r"^noise: Halves takes only common noise$"):
            cp(Halves(noisy["even"]), 2, noise=noise)


# Files


@pytest.mark.parametrize("name", ["slabs", "two modes", "signal"])
def test_checkpoints_in_the_refinement(name, noisy, tmp_path):
    X, path = noisy[name][:12, :12, :12], tmp_path / "run.ckpt"
    options = {"noise": (KINDS[name].signal and "signal") or list(KINDS[name].modes)}

    class Stop(Exception):  # noqa: N818
        pass

    where = []
    straight = cp(X, 2, callback=lambda state: where.append(state.stage) and None, **options)
    first = where.index(1)
    for at in (first, first + 3, len(where) - 2):
        path.unlink(missing_ok=True)
        count = []

        def callback(state, at=at, count=count):
            count.append(state)
            if len(count) == at + 1:
                raise Stop

        with pytest.raises(Stop):
            cp(X, 2, callback=callback, checkpoint=path, **options)
        resumed = cp(X, 2, checkpoint=path, **options)
        again = cp(X, 2, checkpoint=path, **options)
        for fit in (resumed, again):
            assert bits(fit) == bits(straight)
            assert_same(fit.noise, straight.noise)


@pytest.mark.parametrize("other", ["auto", "slabs", [1], [0, 1], 0.1])
def test_checkpoints_are_of_one_noise(other, noisy, tmp_path):
    path = tmp_path / "run.ckpt"
    cp(noisy["even"], 2, noise=[0], checkpoint=path, max_sweeps=5)
    with pytest.raises(ValueError, match=r"checkpoint: .*(noise|other data)"):
        cp(noisy["even"], 2, noise=other, checkpoint=path, max_sweeps=5)


def test_checkpoints_of_known_deviations(noisy, tmp_path):
    X, path = noisy["slabs"], tmp_path / "run.ckpt"
    known = [0.1 * spread(20), None, None]
    straight = cp(X, 2, noise=known)
    cp(X, 2, noise=known, checkpoint=path, callback=lambda state: state.sweep == 20)
    for _ in range(2):
        resumed = cp(X, 2, noise=known, checkpoint=path)
        assert bits(resumed) == bits(straight)
        assert_same(resumed.noise, straight.noise)
    with pytest.raises(ValueError, match="is of a fit to other data"):
        cp(X, 2, noise=[0.2 * spread(20, 5), None, None], checkpoint=path)


def assert_same(one, other):
    """That two noises are the same to the last bit."""
    for name in (
        "sigma",
        "variance",
        "least",
        "above",
        "below",
        "clean",
        "rejected_share",
        "kind_determined",
    ):
        assert getattr(one, name) == getattr(other, name), name
    for a, b in zip(one.slabs, other.slabs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)
    assert one.known == other.known
    assert one.words() == other.words()


@pytest.mark.parametrize("end", ENDS)
def test_saved_and_loaded(end, noisy, fits, tmp_path):
    path = tmp_path / f"fit{end}"
    for name, fit in fits.items():
        robustcp.save(fit, path, overwrite=True)
        back = robustcp.load(path)
        assert_same(back.noise, fit.noise)
        np.testing.assert_array_equal(back.sigma(noisy[name]), fit.sigma(noisy[name]))
    for data, form in known_forms(noisy["slabs"], 0.1 * spread(20)):
        fit = cp(data, 2, noise=form, max_sweeps=5)
        robustcp.save(fit, path, overwrite=True)
        back = robustcp.load(path)
        assert_same(back.noise, fit.noise)
        np.testing.assert_array_equal(back.sigma(data), fit.sigma(data))


@pytest.mark.recovery
@pytest.mark.parametrize("end", ENDS)
def test_listed_deviations_as_many_as_rows(end, tmp_path):
    rng = np.random.default_rng(0)
    listed = Observed(rng.permuted(np.tile(np.arange(6)[:, None], 3), axis=0),
                      rng.standard_normal(6), (6, 6, 6))  # fmt: skip
    path = tmp_path / f"fit{end}"
    fit = cp(listed, 1, noise=rng.uniform(0.5, 2, 6))
    robustcp.save(fit, path)
    np.testing.assert_array_equal(robustcp.load(path).sigma(listed), fit.sigma(listed))


def test_modes_that_are_named_as_parts_of_the_file(tmp_path, noisy):
    import xarray

    X = xarray.DataArray(noisy["slabs"], dims=("noise_0", "known_0", "noise_0_0"))
    fit = cp(X, 2)
    robustcp.save(fit, tmp_path / "fit.nc")
    back = robustcp.load(tmp_path / "fit.nc")
    assert back.modes == fit.modes
    assert_same(back.noise, fit.noise)


def test_files_without_noise(fits, tmp_path, noisy):
    path = tmp_path / "old.npz"
    robustcp.save(fits["slabs"], path)
    with np.load(path) as archive:
        held = {name: archive[name] for name in archive.files if not name.startswith("noise")}
    about = json.loads(str(held["robustcp"]))
    del about["noise"]
    np.savez(path, **(held | {"robustcp": np.array(json.dumps(about))}))
    old = robustcp.load(path)
    assert old.scale == fits["slabs"].scale
    assert old.noise.kind == COMMON
    # nobody has asked yet what the noise depends on
    np.testing.assert_allclose(
        old.sigma(noisy["slabs"]), fits["slabs"].sigma(noisy["slabs"]), rtol=0.05
    )


# What it is for


class TestOutliers:
    @pytest.mark.recovery
    @pytest.mark.parametrize("name", ["even", "slabs", "signal"])
    def test_false_alarms(self, name):
        shares = []
        for seed in range(3):
            M, _ = model((40, 40, 30), 3, seed)
            X = M + noise_of_kind(name, M, np.random.default_rng(seed))
            shares.append(cp(X, 3).outliers(X, rate=1e-3).share)
        assert min(shares) >= 0.0005
        assert max(shares) <= 0.002

    @pytest.mark.parametrize("dead", [1, 4, 8])
    def test_dead_slabs_do_not_pass_for_the_noise(self, dead):
        M, _ = model((20, 20, 15))
        X = M + 0.1 * np.random.default_rng(0).standard_normal(M.shape)
        X[:dead] = 0.0
        fit = cp(X, 2)
        assert fit.noise.kind == Kind((0,))
        assert fit.notes == ()
        np.testing.assert_allclose(fit.sigma(X)[dead:], 0.1, rtol=0.25)
        assert fit.outliers(X).share < 0.002

    def test_other_estimators_look_too(self, noisy):
        for method in (cpals, cpal1):
            fit = method(noisy["slabs"], 2)
            assert not fit.noise.kind_determined
            assert fit.outliers(noisy["slabs"]).share < 0.01

    @pytest.mark.parametrize("seed", range(2))
    def test_replaced_slabs(self, seed):
        rng = np.random.default_rng(seed)
        M, _ = model((40, 20, 20), 3, seed)
        X = M + 0.1 * rng.standard_normal(M.shape)
        bad = rng.choice(40, 6, replace=False)
        X[bad] = rng.standard_normal((6, 20, 20))
        fit = cp(X, 3)
        assert set(bad) <= {index for index, _ in fit.outliers(X).worst(0, 10)}
        assert "of mode 0 with far more noise than the others" in fit.status

    def test_a_slab_that_is_noisy_as_a_whole(self, noisy):
        X = noisy["even"].copy()
        X[7] += np.random.default_rng(0).standard_normal(X[7].shape)
        fit = cp(X, 2)
        assert "1 slab of mode 0 with far more noise than the others (7)" in fit.status
        (first, share), (_, next_share) = fit.outliers(X).worst(0, 2)
        assert (first, share > 0.3, next_share < 0.02) == (7, True, True)
        assert "far more noise" not in cp(noisy["slabs"], 2).status

    def test_scales_of_ordinary_slabs_stay(self):
        v = spread(30)
        noise = Noise(1.0, (1.0, 0.0, 0.0), (v, None))
        assert noise.outlying_slabs() == {}
        assert np.array_equal(noise.without_outlying_scales().slabs[0], v)
        v = np.where(np.arange(30) == 4, 1e4, np.ones(30))
        noise = Noise(1.0, (1.0, 0.0, 0.0), (v, None))
        assert noise.outlying_slabs()[0].tolist() == [4]
        assert np.array_equal(noise.without_outlying_scales().slabs[0], np.ones(30))


class TestLongModes:
    def test_slabs_of_a_long_mode_have_scales(self):
        """A sample of the usual size has some 13 entries of each slab."""
        rng = np.random.default_rng(0)
        M, _ = model((5000, 20, 15))
        scales = along(0, spread(5000))
        X, bad = M + 0.1 * scales * rng.standard_normal(M.shape), rng.random(M.shape) < 0.05
        X[bad] += 20
        fit = cp(X, 2, rng=0)
        assert fit.noise.kind == Kind((0,))
        flagged = fit.outliers(X).mask
        assert 0.0005 < np.mean(flagged[~bad]) < 0.002
        ratio = fit.noise.slabs[0] / scales.ravel()
        assert np.std(np.log(ratio)) < 0.15


class TestStructure:
    def test_nothing_is_said_of_noise(self, fits):
        for name, fit in fits.items():
            assert "structured" not in fit.status, name

    @pytest.mark.parametrize("seed", range(3))
    def test_nor_of_artifacts(self, seed):
        sim = robustcp.simulate((25, 25, 25), 3, eta=0.2, gamma=2.0, rng=seed)
        assert "structured" not in cp(sim.data, 3).status

    @pytest.mark.recovery
    def test_one_component_too_few(self):
        M, _ = model((25, 24, 23), 3)
        X = M + 0.1 * np.random.default_rng(0).standard_normal(M.shape)
        assert "structured" in cp(X, 2).status
        assert "structured" not in cp(X, 3).status

    def test_a_smooth_misfit(self):
        rng = np.random.default_rng(0)
        M, _ = model((25, 24, 23), 2)
        z = rng.standard_normal((25, 24, 23 + 6))
        smooth = sum(z[..., k : k + 23] for k in range(7)) / math.sqrt(7)
        status = cp(M + 0.1 * smooth, 2).status
        assert "residuals are structured" in status
        assert "neighbours along mode 2 correlate by 0." in status
        assert "mode 0" not in status

    def test_alone(self):
        rng = np.random.default_rng(0)
        zero = tuple(np.zeros((size, 1)) for size in (30, 30, 30))
        r = rng.standard_normal((30, 30, 30))
        found = measure_structure(as_engine(r), zero, 1.0)
        assert found.describe(Axes()) == []
        assert np.abs(found.autocorrelations).max() < 0.03
        np.testing.assert_allclose(found.leading_eigenvalues, 1.0, atol=0.1)
        r[1:] = 0.6 * r[:-1] + 0.8 * r[1:]
        found = measure_structure(as_engine(r), zero, 1.0)
        expected = np.corrcoef(r[1:].ravel(), r[:-1].ravel())[0, 1]
        assert found.autocorrelations[0] == pytest.approx(expected, abs=0.02)
        value = f"{found.autocorrelations[0]:.2f}"
        assert found.describe(Axes(("nm", "b", "c"))) == [
            f"residuals are structured: neighbours along nm correlate by {value}"
        ]

    def test_roundings_are_no_structure(self):
        for X in (np.full((12, 12, 12), 5.0), model((12, 12, 12), 1)[0]):
            for noise in ("auto", "signal*slabs"):
                assert "structured" not in cp(X, 1, noise=noise).status


# Data that has little noise, or little of anything


def odd_data():
    rng = np.random.default_rng(0)
    M, _ = model((14, 12, 10), positive=True)
    dead, live = M + 0.05 * rng.standard_normal(M.shape), np.zeros(M.shape)
    dead[3] = 0
    live[3] = M[3]
    yield "exact", M
    yield "rounded", np.round(M + 0.1 * rng.standard_normal(M.shape), 1)
    yield "coarse", np.round(2 * M) / 2
    yield "mostly zero", np.where(rng.random(M.shape) < 0.9, 0.0, M)
    yield "binary", (np.median(M) < M).astype(float)
    yield "sparse counts", rng.poisson(0.1 * M).astype(float)
    yield "signed counts", np.rint(3 * M - 3 + rng.standard_normal(M.shape))
    yield "zeros", np.zeros(M.shape)
    yield "constant", np.full(M.shape, 3.7)
    yield "dead slab", dead
    yield "one slab", live
    yield "uint8", np.clip(30 * M, 0, 255).astype(np.uint8)
    yield "int64", np.rint(1000 * M).astype(np.int64)
    yield "small", 1e-200 * dead
    yield "tiny", 1e-300 * dead
    yield "wild", np.where(M[2, 2, 2] == M, 1e30, dead)


@pytest.mark.parametrize("noise", ["auto", "signal*slabs", "known"])
@pytest.mark.parametrize(("name", "X"), list(odd_data()), ids=[name for name, _ in odd_data()])
def test_odd_data(name, X, noise):
    if noise == "known":
        noise = 0.1 * float(np.median(np.abs(X))) or 1.0
    fit = cp(X, 2, noise=noise, max_sweeps=150, starts=2)
    assert np.isfinite(fit.noise.sigma)
    assert all(np.isfinite(A).all() for A in fit.factors)
    assert np.isfinite(fit.trace).all()
    sigma = fit.sigma(X)
    assert np.isfinite(sigma).all()
    assert (sigma > 0).all()
    outliers = fit.outliers(X)
    assert np.isfinite(outliers.scores).all()
    assert np.isfinite(fit.project(X)).all()
    if name in ("exact", "constant", "int64"):
        assert outliers.share < 0.01
        assert fit.explained > 0.99
    if name == "dead slab" and noise == "auto":
        assert outliers.share < 0.02


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 4), (2, 2, 2), (1, 5, 1), (2, 1, 3, 2)])
@pytest.mark.parametrize(
    ("noise", "rank"),
    [("auto", 1), ("auto", 3), ("slabs", 1), ("signal", 1), ("signal*slabs", 1), (0.3, 3)],
)
def test_tiny_tensors(shape, noise, rank):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    gaps = X.copy()
    if X.size > max(shape):
        gaps.flat[-1] = np.nan
    for data in (X, gaps):
        if np.isnan(data).any() and min(shape) == 1:
            continue  # a slab without any entry, which cp warns of
        fit = cp(data, rank, noise=noise, starts=2)
        assert np.isfinite(fit.sigma(data)).all()
        assert np.isfinite(fit.noise.sigma)
        assert 0 <= fit.outliers(data).share <= 1


@settings(max_examples=12)
@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(1, 3),
    st.sampled_from(["auto", "slabs", "signal", "signal*slabs"]), st.integers(0, 99),
    st.sampled_from([0.0, 0.3]), st.booleans(),
)  # fmt: skip
def test_any_data_is_fitted(shape, rank, noise, seed, missing, counts):
    rng = np.random.default_rng(seed)
    X = rng.poisson(1.0, shape).astype(float) if counts else rng.standard_normal(shape)
    X[rng.random(shape) < missing] = np.nan
    every = [
        ~np.isnan(X).all(axis=tuple(m for m in range(X.ndim) if m != n)) for n in range(X.ndim)
    ]
    assume(all(rows.all() for rows in every))
    fit = cp(X, rank, noise=noise, starts=1, max_sweeps=30)
    assert np.isfinite(fit.sigma(X)).all()
    assert str(fit.noise)


# What a noise says


def test_words():
    noise = Noise(2.0, (0.5, 0.25, 0.0), (np.array([0.5, 2.0]), None))
    assert str(noise) == (
        "standard deviation 2, grows with the signal and differs between the slabs of mode 0 "
        "(variance 2 + 0.5 |m| at the model's entry m); mode 0: 0.5 to 2 times that"
    )
    assert Noise.common(0.5, 2).words() == "standard deviation 0.5, common to all entries"
    assert Kind((0, 1, 2)).words(("a", "b", "c")) == "differs between the slabs of a, b and c"


def test_scaled_and_inflated():
    noise = Noise(2.0, (0.5, 0.25, 0.1), (np.array([0.5, 2.0]), None), least=0.1)
    held = (np.array([[1.0], [3.0]]), np.array([[2.0], [-1.0], [0.5]]))

    def plain(noise, held):
        m = np.abs(held[0] @ held[1].T)
        a, b, c = noise.variance
        v = a * noise.sigma**2 + b * noise.sigma * m + c * m * m
        v = v * noise.slabs[0][:, None] ** 2
        return (v**2 + noise.least**4) ** 0.25

    def by_scales(noise, held=()):
        at = np.indices((2, 3)).reshape(2, -1)
        return noise.sigma * noise.scales((2, 3), held).values_at(at).reshape(2, 3)

    np.testing.assert_allclose(by_scales(noise, held), plain(noise, held))
    kept = noise.with_signal(held)
    np.testing.assert_allclose(by_scales(kept), plain(noise, held))
    np.testing.assert_allclose(by_scales(kept.scaled(1e3)), 1e3 * plain(noise, held))
    free = replace(kept, least=0.0)
    np.testing.assert_allclose(by_scales(free.inflated(1.5)), 1.5 * plain(free, held))


def test_asked_for_new_slabs():
    v, w = np.array([0.5, 2.0]), np.array([1.0, 1.0, 1.0])
    found = NoiseSpec.for_new_slabs(Noise(1.0, (1.0, 0.0, 0.0), (v, w)), 0)
    assert found.kind == Kind((0, 1))
    assert found.slabs[0] is None
    assert found.slabs[1] is w
    assert NoiseSpec.for_new_slabs(Noise.common(1.0, 2, kind_determined=False), 0) == NoiseSpec()


def test_a_refinement_that_gives_up_entries_is_undone():
    """To a bounded loss a penalty may be dearer than entries that are rejected."""
    sim = simulate((20, 20, 20), 2, eta=0.3, gamma=2.0, rng=0)
    problem = Problem.of(as_engine(sim.data))
    truth = tuple(map(np.asarray, sim.truth.absorbed()))
    refinement = Refinement(problem.resolution)
    first = refinement(0, problem.engine, truth, None)
    assert refinement(1, problem.engine, truth, first) is None
    better = Level(first.loss, replace(first.noise, clean=0.95, rejected_share=0.02))
    with pytest.raises(Skip, match=r"more and more entries \(2%, then 3"):
        refinement(1, problem.engine, truth, better)


@pytest.mark.recovery
class TestSmallCounts:
    def counts(self, mean=1.0):
        rng = np.random.default_rng(0)
        factors = [rng.gamma(1.0, 1.0, (25, 2)) for _ in range(3)]
        M = np.einsum("ar,br,cr->abc", *factors)
        factors[0] *= mean / M.mean()
        return rng.poisson(M * mean / M.mean()).astype(float), tuple(factors)

    def cost(self, X, factors):
        engine = as_engine(X)
        return model_entropy(engine, factors, Resolution.of(engine))

    def test_the_truth_costs_less_than_other_models(self):
        X, factors = self.counts()
        A, B, C = factors
        least = self.cost(X, factors)
        for other in ((0.6 * A, B, C), (1.5 * A, B, C), (A[::-1], B, C), (0.0 * A, B, C)):
            assert self.cost(X, other) > least + 0.01

    def test_in_other_units_it_differs_by_the_logarithm(self):
        X, (A, B, C) = self.counts()
        change = self.cost(0.01 * X, (0.01 * A, B, C)) - self.cost(X, (A, B, C))
        assert change == pytest.approx(np.log(0.01), abs=1e-6)

    def test_outliers_buy_nothing(self):
        X, factors = self.counts()
        rng = np.random.default_rng(1)
        spoilt = np.where(rng.random(X.shape) < 0.02, X + 50, X)
        wrong = (0.6 * factors[0], *factors[1:])
        gain = self.cost(X, wrong) - self.cost(X, factors)
        assert self.cost(spoilt, wrong) - self.cost(spoilt, factors) > 0.9 * gain

    def test_their_noise_grows_with_the_signal_and_medians_do_not_lead(self):
        X, factors = self.counts()
        fit = cp(X, 2, nonnegative=True)
        assert fit.noise.kind == Kind((), signal=True)
        assert [name for name, _ in fit.stages] == ["refinement"]
        truth = robustcp.KruskalTensor.from_factors(factors)
        assert robustcp.factor_match_score(fit, truth) > 0.97

    @pytest.mark.parametrize("mean", [0.1, 0.2])
    def test_mostly_zeros_are_explained_in_part(self, mean):
        X, _ = self.counts(mean)
        assert np.mean(X == 0) > 0.83
        for rank in (2, 3):
            assert 0 < cp(X, rank, nonnegative=True).explained < 1

    def test_large_counts_are_like_real_numbers(self):
        X, _ = self.counts(mean=100.0)
        resolution = Resolution.of(as_engine(X))
        assert resolution.count_data
        assert not resolution.small_counts
