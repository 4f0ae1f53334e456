"""Censored entries: one-sided losses, limits in every engine, ceilings that are found, recovery."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import robustcp
from robustcp import Observed, cp, cpal1, cpals
from robustcp.cli import app
from robustcp.engines import Limits, as_engine
from robustcp.losses import L1, Contaminated, Huber, LeastSquares, OneSided, Quantile
from robustcp.noise.censoring import find_ceilings
from support.oracles import brute_force, host
from test_engines import ENGINES, ENTRY_SCALES, SCALES, WEIGHTS, assert_equal, problem
from test_losses import LOSSES


def model(factors):
    """The entries of a CP model, by outer products."""
    columns = zip(*(A.T for A in factors), strict=True)
    return sum(reduce(np.multiply.outer, one) for one in columns)


# The one-sided loss

points = st.floats(-60, 60).map(lambda v: round(v, 6))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
class TestOneSided:
    @given(at=points, side=st.sampled_from([-1, 1]))
    def test_is_flat_beyond_the_limit_and_as_usual_before(self, loss, at, side):
        one_sided, least = OneSided(loss, np.array([side])), loss.minimizer
        r = np.array([at])
        cut = np.maximum(r, least) if side > 0 else np.minimum(r, least)
        assert one_sided.value(r) == pytest.approx(loss.value(cut))
        assert one_sided.slope(r) == pytest.approx(loss.slope(r) if r == cut else 0.0)

    @given(at=points, side=st.sampled_from([-1, 0, 1]))
    def test_parabola_touches_and_lies_above_everywhere(self, loss, at, side):
        near = at + np.concatenate([np.linspace(-1e-3, 1e-3, 101), np.linspace(-5e-5, 5e-5, 101)])
        r = np.concatenate([np.linspace(-200, 200, 2001), near, loss.minimizer + near - at])
        one_sided = OneSided(loss, np.array([side]))
        value, slope, curvature = one_sided.majorize(np.array([at]))
        parabola = value + slope * (r - at) + curvature * (r - at) ** 2 / 2
        gap = parabola - OneSided(loss, np.full(r.size, side)).value(r)
        assert gap.min() >= -1e-9 * max(1.0, np.abs(parabola).max())

    def test_the_minimizer_has_the_least_cost(self, loss):
        r = np.linspace(-60, 60, 20001)
        assert loss.value(np.array([loss.minimizer]))[0] <= loss.value(r).min() + 1e-12
        assert abs(loss.slope(np.array([loss.minimizer]))[0]) < 1e-9

    def test_what_declares_itself_convex_is(self, loss):
        slopes = loss.slope(np.linspace(-60, 60, 20001))
        if loss.convex:
            assert np.diff(slopes).min() >= -1e-12


def test_the_curvature_of_the_one_norm_falls_with_the_distance_to_the_limit():
    """With the curvature at 0 a row with one satisfied entry would stay where it is."""
    _, _, curvature = OneSided(L1(1e-10), np.array([1])).majorize(np.array([-3.0]))
    assert curvature[0] < 0.34


# Engines

KINDS = [*ENGINES]
LIMITS = {
    "high": (None, 0.4),
    "both": (-0.6, 0.5),
    "of slabs": (None, np.linspace(0.1, 0.9, 5)[None, :, None]),
    "of fibres": (np.linspace(-2, -0.5, 20).reshape(5, 4), np.full((6, 1, 1), 0.7)),
}


def censor(X, low, high):
    X = X if high is None else np.minimum(X, high)
    return X if low is None else np.maximum(X, low)


def sides_of(X, low, high):
    at_high = np.zeros(X.shape, int) if high is None else (high <= X).astype(int)
    return at_high - (0 if low is None else (low >= X).astype(int))


class Weighted(OneSided):
    """A one-sided loss times weights, for `brute_force`."""

    def __init__(self, loss, sides, known=1.0, scale=1.0):
        super().__init__(loss, sides)
        object.__setattr__(self, "terms", (known, scale))

    def majorize(self, r):
        known, u = self.terms
        value, slope, curvature = super().majorize(r / u)
        parts = value * known, slope * known / u, curvature * known / u**2
        return tuple(np.where(np.isnan(r) | (known == 0), 0.0, part) for part in parts)

    def value(self, r):
        return self.majorize(r)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", LIMITS)
class TestEngines:
    def data(self, kind, limits):
        X, factors = problem((6, 5, 4))
        X = censor(X, *LIMITS[limits])
        X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
        engine = ENGINES[kind](X)
        if not engine.takes_limits:
            with pytest.raises(ValueError, match="limits: Halves"):
                engine.censored(LIMITS[limits])
            pytest.skip("does not take limits")
        engine = engine.censored(LIMITS[limits])
        return X, factors, engine, tuple(engine.asarray(A) for A in factors)

    @pytest.mark.parametrize(
        "loss", [L1(1e-2), Huber(0.3), LeastSquares(), Contaminated(0.3, 0.2, 0.01)], ids=repr
    )
    def test_normal_equations_are_those_of_a_one_sided_loss(self, kind, limits, loss):
        X, factors, engine, own = self.data(kind, limits)
        expected_loss = Weighted(loss, sides_of(X, *LIMITS[limits]))
        for mode in range(3):
            expected = brute_force(X, factors, mode, expected_loss)
            assert_equal(engine.normal_equations(own, mode, loss), expected)
        assert engine.value(own, loss) == pytest.approx(expected[2])
        rows = slice(1, 3)
        part = engine.normal_equations(own, 0, loss, rows)
        whole = engine.normal_equations(own, 0, loss)
        np.testing.assert_allclose(host(part.gradient), host(whole.gradient)[rows], atol=1e-12)

    def test_with_weights_and_scales(self, kind, limits):
        X, factors, engine, own = self.data(kind, limits)
        w, loss = WEIGHTS["array"], Huber(0.3)
        scales = SCALES["all"]
        engine = engine.weighted(w).standardized(scales)
        u = ENTRY_SCALES["all"]
        expected_loss = Weighted(loss, sides_of(X, *LIMITS[limits]), w, u)
        assert_equal(
            engine.normal_equations(own, 1, loss), brute_force(X, factors, 1, expected_loss)
        )

    def test_residuals_of_satisfied_entries_are_left_out_or_zero(self, kind, limits):
        X, factors, engine, own = self.data(kind, limits)
        r = X - model(factors)
        satisfied = sides_of(X, *LIMITS[limits]) * r < 0
        assert satisfied.any()
        counted = ~np.isnan(r) & ~satisfied
        for entries in (engine.entries(own), engine.sample(own)):
            np.testing.assert_allclose(np.sort(entries.values), np.sort(r[counted]))
            np.testing.assert_allclose(entries.values, r[entries.indices])
        np.testing.assert_array_equal(
            engine.slab_sums(lambda r: engine.xp.abs(r) > 0.7, own)[1],
            ((np.abs(r) > 0.7) & counted).sum(axis=(0, 2)),
        )
        np.testing.assert_array_equal(engine.residual_counts(own, 2), counted.sum(axis=(0, 1)))
        shown = host(engine.map_residuals(lambda r: r, own))
        if shown.ndim == 3:
            np.testing.assert_allclose(shown, np.where(satisfied, 0.0, r), atol=1e-12)
        np.testing.assert_array_equal(
            engine.censored_count, np.count_nonzero(sides_of(X, *LIMITS[limits]))
        )
        data = engine.entries()
        np.testing.assert_array_equal(data.sides, sides_of(X, *LIMITS[limits])[data.indices])

    def test_parts_and_units(self, kind, limits):
        X, factors, engine, _ = self.data(kind, limits)
        indices = [np.array([4, 1, 2]), None, np.array([0, 3])]
        part = engine.scaled(5).subtensor(indices)
        rows = tuple(
            part.asarray((A if index is None else A[index]) / 2 ** (5 / 3))
            for A, index in zip(factors, indices, strict=True)
        )
        r = (X - model(factors)) / 2**5
        sides = sides_of(X, *LIMITS[limits])
        grid = np.ix_(indices[0], np.arange(5), indices[2])
        expected = OneSided(L1(1e-4), sides[grid]).value(r[grid])
        assert part.value(rows, L1(1e-4)) == pytest.approx(np.nansum(expected))


@pytest.mark.parametrize("order", [2, 4])
def test_whole_sweeps_agree_with_plain_passes(order):
    X, factors = problem((7, 6, 5, 4)[:order])
    plain, fast = (as_engine(X, compiled=c).censored((-0.8, 0.6)) for c in (False, True))
    for mode in range(order):
        a, b = (e.normal_equations(factors, mode, Quantile(0.3, 1e-2)) for e in (plain, fast))
        np.testing.assert_allclose(a.gradient, b.gradient, atol=1e-12)
        np.testing.assert_allclose(a.gram, b.gram, rtol=1e-12)
        assert a.value == pytest.approx(b.value)


def test_limits_that_are_not_of_the_data():
    X = np.random.default_rng(0).random((4, 5, 6))
    for bad, message in (
        (3.0, "must be a pair"),
        ((0.0, np.ones(5)), "do not broadcast"),
        ((1.0, 0.0), "low must be below high"),
        ((None, np.inf), "no finite number"),
        ((None, "x"), "must be numbers"),
        ("floor", "auto"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            cp(X, 1, limits=bad)
        assert str(error.value).startswith("limits: ")


# Fits


def simulate(seed, shape=(20, 19, 18), share=0.15, spikes=0.0, nonnegative=False):
    """Factors, entries, and which are bad or censored at the largest `share`; and the ceiling."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((n, 3)) for n in shape]
    factors = [np.abs(A) if nonnegative else A for A in factors]
    clean = model(factors)
    X = clean + 0.1 * clean.std() * rng.standard_normal(shape)
    bad = rng.random(shape) < spikes
    X[bad] += rng.choice([-1, 1], bad.sum()) * rng.uniform(2, 6, bad.sum()) * clean.std()
    return factors, X, bad, float(np.quantile(X, 1 - share))


def score(fit, factors, weights=True):
    truth = robustcp.KruskalTensor.from_factors(tuple(factors))
    return robustcp.factor_match_score(fit, truth, weights=weights)


def oracle_score(factors, X, used):
    """Least squares on the clean entries that are not censored, begun at the truth."""
    return score(cpals(X, 3, entry_weights=used, init=list(factors)), factors)


class TestFits:
    def test_a_ceiling_is_found_and_does_no_harm(self):
        factors, X, bad, high = simulate(0, spikes=0.1)
        shown = np.minimum(X, high)
        fit = cp(shown, 3)
        assert score(fit, factors) > oracle_score(factors, X, ~bad & (high > X)) - 0.005
        assert score(cp(shown, 3, limits=None), factors) < 0.97
        assert fit.limits.describe() == f"at least {high:.6g}"
        assert any("at the ceiling" in note for note in fit.notes)
        assert fit.warnings == ()

    @pytest.mark.parametrize("estimator", [cpal1, cpals])
    def test_other_estimators_take_what_is_given(self, estimator):
        factors, X, _, high = simulate(1)
        shown = np.clip(X, -high, high)
        without, fit = estimator(shown, 3), estimator(shown, 3, limits=(-high, high))
        assert without.limits is None
        assert score(fit, factors) > score(without, factors) + 0.05
        assert score(fit, factors) > oracle_score(factors, X, np.abs(X) < high)
        assert np.all(np.diff(fit.trace[-5:]) <= 1e-9 * fit.trace[-1])

    def test_one_norm_of_the_paper_never_rises(self):
        _, X, _, high = simulate(2, spikes=0.1)
        fit = cpal1(
            np.minimum(X, high), 3, limits=(None, high), smoothing="fixed", max_sweeps=60, tol=0.0
        )
        assert np.all(np.diff(fit.trace) <= 1e-10 * fit.trace[0])

    def test_what_is_derived_from_a_fit_knows_its_limits(self, tmp_path):
        _, X, _, high = simulate(3, spikes=0.1)
        shown = np.minimum(X, high)
        fit = cp(shown, 3, limits=(None, high))
        r, m = fit.residuals(shown), fit.full()
        beyond = (shown >= high) & (m > high)
        assert beyond.sum() > 300
        np.testing.assert_array_equal(r[beyond], 0.0)
        np.testing.assert_allclose(r[~beyond], (shown - m)[~beyond])
        flagged = fit.outliers(shown).mask
        assert not flagged[beyond].any()
        far_below = (shown >= high) & (m < high - 10 * fit.scale)
        assert far_below.any()
        assert flagged[far_below].all()
        assert fit.scale == pytest.approx(0.1 * model(simulate(3)[0]).std(), rel=0.05)
        assert "censored" in str(fit.summary(shown))
        for suffix in (".npz", ".json"):
            fit.save(tmp_path / f"fit{suffix}")
            loaded = robustcp.load(tmp_path / f"fit{suffix}")
            np.testing.assert_array_equal(loaded.outliers(shown).mask, flagged)
        np.testing.assert_allclose(
            fit.project(shown[:3]), (fit.factors[0] * fit.weights)[:3], rtol=0.1, atol=0.5
        )

    def test_order_of_modes_units_and_listed_entries_make_no_difference(self):
        factors, X, _, high = simulate(4)
        shown = np.minimum(X, high)
        fit = cp(shown, 3, limits=(None, high))
        turned = cp(shown.transpose(2, 0, 1).copy(), 3, limits=(None, high))
        assert score(turned, [factors[2], factors[0], factors[1]]) == pytest.approx(
            score(fit, factors), abs=1e-4
        )
        huge = cp(shown * 1e200, 3, limits=(None, high * 1e200))
        assert score(huge, factors, weights=False) == pytest.approx(
            score(fit, factors, weights=False), abs=1e-6
        )
        known = np.argwhere(np.random.default_rng(0).random(X.shape) < 0.5)
        listed = Observed(known, shown[tuple(known.T)], X.shape)
        assert score(cp(listed, 3), factors) > 0.98

    def test_ceilings_of_sensors_by_name(self):
        xarray = pytest.importorskip("xarray")
        factors, X, _, _ = simulate(5)
        high = np.quantile(X, 0.85, axis=(0, 2)) * np.linspace(0.7, 1.3, 19)
        data = xarray.DataArray(
            np.minimum(X, high[None, :, None]),
            dims=("sample", "sensor", "time"),
            coords={"sensor": [f"s{k}" for k in range(19)]},
        )
        given = xarray.DataArray(high[::-1], dims="sensor", coords={"sensor": data.sensor[::-1]})
        fit = cp(data, 3, limits=(None, given))
        found = cp(data, 3)
        np.testing.assert_allclose(found.limits.arrays[1].ravel(), high)
        for each in (fit, found):
            assert score(each, factors) > 0.99
        turned = data.transpose("time", "sample", "sensor")
        np.testing.assert_array_equal(
            fit.outliers(turned).mask, fit.outliers(data).mask.transpose(2, 0, 1)
        )

    def test_entries_below_a_limit_of_detection(self):
        factors, X, _, _ = simulate(6, nonnegative=True)
        low = float(np.quantile(X, 0.4))
        fit = cp(np.maximum(X, low), 3, limits=(low, None), nonnegative=True)
        assert score(fit, factors) > max(0.98, oracle_score(factors, X, low < X))

    def test_an_eight_bit_video(self):
        factors, X, _, high = simulate(7, nonnegative=True)
        frames = np.clip(np.round(255 * X / high), 0, 255).astype(np.uint8)
        fit = cp(frames, 3, limits=(None, 255), nonnegative=True)
        without = cp(frames, 3, limits=None, nonnegative=True)
        assert score(fit, factors, weights=False) > 0.99 > score(without, factors, weights=False)
        assert cp(frames, 3, nonnegative=True).limits.describe() == fit.limits.describe()

    def test_checkpoints_of_other_limits_are_refused(self, tmp_path):
        _, X, _, high = simulate(8)
        shown, path = np.minimum(X, high), tmp_path / "fit.ckpt"
        fit = cpals(shown, 2, limits=(None, high), checkpoint=path)
        again = cpals(shown, 2, limits=(None, high), checkpoint=path)
        assert again.limits.describe() == fit.limits.describe()
        np.testing.assert_array_equal(again.trace, fit.trace)
        with pytest.raises(ValueError, match="limits"):
            cpals(shown, 2, checkpoint=path)

    def test_rank_profile_and_replicability(self):
        _, X, _, high = simulate(9, shape=(14, 13, 12))
        shown = np.minimum(X, high)
        assert robustcp.rank_profile(shown, range(2, 5), folds=2, jobs=1).rank == 3
        with pytest.raises(ValueError, match="limits"):
            robustcp.replicability(shown, 3, limits=(None, np.full(12, high)), jobs=1)


# Ceilings that are found


def random_tensor(rng):
    """A tensor of two to four modes, signed or not, with noise and perhaps outliers."""
    order = int(rng.choice([2, 3, 3, 4]))
    shape = rng.integers(*{2: (30, 60), 3: (10, 30), 4: (6, 12)}[order], order)
    factors = [rng.standard_normal((n, int(rng.integers(1, 5)))) for n in shape]
    rank = min(A.shape[1] for A in factors)
    factors = [A[:, :rank] for A in factors]
    if rng.random() < 0.5:
        factors = [np.abs(A) for A in factors]
    M = model(factors)
    X = M + rng.choice([0.01, 0.1, 0.3]) * M.std() * rng.standard_normal(M.shape)
    if rng.random() < 0.4:
        bad = rng.random(M.shape) < rng.uniform(0.01, 0.2)
        X[bad] += rng.uniform(1, 8) * M.std() * rng.standard_normal(bad.sum())
    return X


def some(X, rng, share=0.4):
    return rng.random(X.shape) < rng.uniform(0.01, share)


def to_integers(X, levels):
    return np.round((X - X.min()) / np.ptp(X) * levels)


def with_constant_fibres(X, rng):
    X = X.copy()
    fibres = np.moveaxis(X, int(rng.integers(X.ndim)), -1)
    stuck = rng.random(fibres.shape[:-1]) < 0.1
    fibres[stuck] = np.where(rng.random(stuck.sum()) < 0.5, X.max(), rng.choice(X.ravel()))[:, None]
    return X


def with_block(X, rng):
    X = X.copy()
    X[tuple(slice(0, n // 2) for n in X.shape)] = rng.choice([X.max(), np.quantile(X, 0.9)])
    return X


def copied_slabs(X, rng):
    mode = int(rng.integers(X.ndim))
    return np.take(X, rng.integers(X.shape[mode], size=X.shape[mode]), axis=mode)


def over_maximum(X, rng):
    X = np.abs(X)
    modes = rng.permutation(X.ndim)[: int(rng.integers(1, X.ndim))]
    return X / X.max(axis=tuple(int(m) for m in modes), keepdims=True)


def masked_triangle(fill):
    def apply(X, rng):
        rows, columns = np.indices(X.shape[-2:])
        X = X.copy()
        X[..., rows < columns - 2] = fill(X)
        return X

    return apply


WITHOUT_CEILINGS = {
    "clean": lambda X, rng: X,
    "counts": lambda X, rng: rng.poisson(np.abs(X) / np.abs(X).mean() * rng.choice([0.3, 3, 50])),
    "skewed counts": lambda X, rng: rng.negative_binomial(2, 1 / (1 + np.abs(X))).astype(float),
    "eight bits": lambda X, rng: to_integers(X, 255).astype(np.uint8),
    "sixteen bits": lambda X, rng: to_integers(X, 4095).astype(np.uint16),
    "ratings": lambda X, rng: to_integers(X, int(rng.integers(1, 12))) + 1,
    "rounded": lambda X, rng: np.round(X / X.std(), int(rng.integers(0, 4))),
    "single precision": lambda X, rng: np.round(X / X.std(), 1).astype(np.float32),
    "sparse": lambda X, rng: np.where(some(X, rng, 0.95), 0.0, X),
    "sparse, not positive": lambda X, rng: np.where(some(X, rng, 0.95), 0.0, -np.abs(X)),
    "floor at zero": lambda X, rng: np.maximum(X, 0.0),
    "largest is zero": lambda X, rng: np.minimum(X, 0.0),
    "a floor": lambda X, rng: np.maximum(X, np.quantile(X, rng.uniform(0.05, 0.4))),
    "far fill values": lambda X, rng: np.where(some(X, rng), rng.choice([999.0, -999.0, 1e4]), X),
    "the largest as fill value": lambda X, rng: np.where(some(X, rng), X.max(), X),
    "a usual fill value": lambda X, rng: np.where(some(X, rng), np.quantile(X, rng.random()), X),
    "medians for missing": lambda X, rng: np.where(some(X, rng), np.median(X), X),
    "constant fibres": with_constant_fibres,
    "a block of one value": with_block,
    "copied slabs": copied_slabs,
    "divided by the largest": over_maximum,
    "drawn values": lambda X, rng: rng.choice(X.ravel()[: int(rng.integers(5, 200))], X.shape),
    "shuffled": lambda X, rng: np.where(some(X, rng), rng.permuted(X), rng.permuted(X)),
    "two values": lambda X, rng: (np.quantile(X, rng.uniform(0.3, 0.95)) < X).astype(float),
    "missing triangle": masked_triangle(lambda X: np.nan),
    "zero triangle": masked_triangle(lambda X: 0.0),
    "full triangle": masked_triangle(lambda X: X.max()),
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHOUT_CEILINGS)
@given(seed=st.integers(0, 10**6), observed_share=st.sampled_from([1.0, 0.3, 0.05]))
def test_no_ceiling_is_found_where_there_is_none(kind, seed, observed_share):
    rng = np.random.default_rng(seed)
    X = WITHOUT_CEILINGS[kind](random_tensor(rng), rng)
    known = ~np.isnan(X) & (rng.random(X.shape) < observed_share)
    if np.any(X[known] != 0):
        listed = Observed(np.argwhere(known), X[known], X.shape)
        assert find_ceilings(as_engine(X if observed_share == 1 else listed)) is None


@given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.1, 0.15, 0.3]),
    spikes=st.sampled_from([0.0, 0.1]),
    above=st.booleans(),
)
def test_a_ceiling_is_found(seed, share, spikes, above):
    _, X, _, high = simulate(seed, share=share, spikes=spikes)
    shown = np.minimum(X, high)
    if above:  # spikes that are added to what the detector shows
        rng = np.random.default_rng(seed)
        hit = rng.random(X.shape) < 0.05
        shown[hit] += 5 * X.std() * rng.random(hit.sum())
    assert find_ceilings(as_engine(shown)).arrays[1].item() == high


def test_a_ceiling_of_data_larger_than_the_sample():
    _, X, _, high = simulate(0, shape=(70, 60, 50))
    shown = np.minimum(X, high).astype(np.float32)
    fit = cp(shown, 3)
    assert fit.limits.arrays[1].item() == np.float32(high)
    assert f"{np.count_nonzero(shown >= np.float32(high))} entries" in " ".join(fit.notes)
    assert Limits.of((None, high), X.shape).describe() == f"at least {high:.6g}"


# Recovery, of kinds that nothing was tuned on

MEMBERS = {
    "ceiling, 5%": {"share": 0.05},
    "ceiling, 15%": {},
    "ceiling, 30%": {"share": 0.3},
    "ceiling and spikes": {"share": 0.2, "spikes": 0.1},
    "four modes": {"shape": (13, 12, 11, 10), "spikes": 0.1},
    "nonnegative": {"nonnegative": True, "share": 0.1},
}


@pytest.mark.recovery
@pytest.mark.parametrize("both", [False, True], ids=["above", "both ends"])
@pytest.mark.parametrize("member", MEMBERS)
def test_censored_data_is_recovered_as_well_as_by_an_oracle(member, both):
    gaps = []
    for seed in range(500, 510):
        factors, X, bad, high = simulate(seed, **MEMBERS[member])
        low = float(np.quantile(X, 0.1)) if both else None
        used = ~bad & (high > X) & ((-np.inf if low is None else low) < X)
        fit = cp(
            censor(X, low, high),
            3,
            limits=(low, high) if both else "auto",
            nonnegative=MEMBERS[member].get("nonnegative", False),
        )
        gaps.append(oracle_score(factors, X, used) - score(fit, factors))
    assert np.median(gaps) <= 0.01
    assert max(gaps) <= 0.05


# The command line


@pytest.mark.parametrize(
    ("option", "method", "words"),
    [
        ([], "cp", "at least {high:.6g}"),
        (["--limits", ":{high!r}"], "cpals", "at least {high:.6g}"),
        (["--limits", "-2.5:{high!r}"], "cp", "at most -2.5 or at least {high:.6g}"),
        (["--limits", "none"], "cp", None),
        ([], "cpal1", None),
    ],
)
def test_limits_on_the_command_line(tmp_path, option, method, words):
    _, X, _, high = simulate(10, shape=(14, 13, 12))
    np.save(tmp_path / "x.npy", np.clip(X, -2.5, high))
    option = [part.format(high=high) for part in option]
    out = tmp_path / "fit.npz"
    command = ["fit", tmp_path / "x.npy", "--rank", "3", "--method", method, "--out", out, *option]
    done = CliRunner().invoke(app, [str(part) for part in (*command, "--max-sweeps", "20")])
    assert done.exit_code in (0, 1), done.output
    assert ("censored: " in done.stdout) == (words is not None)
    limits = robustcp.load(out).limits
    assert (limits and limits.describe()) == (words and words.format(high=high))


@pytest.mark.parametrize("text", ["5", ":", "a:b", "1:2:3"])
def test_what_is_no_limit_on_the_command_line(tmp_path, text):
    np.save(tmp_path / "x.npy", np.ones((3, 4, 5)))
    command = ["fit", str(tmp_path / "x.npy"), "--rank", "1", "--limits", text]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert f"--limits {text}: must be LOW:HIGH" in done.stderr
