"""Score and residual distances of samples, and the minimum covariance determinant."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

import robustcp
from robustcp import Distances, Observed, cp, plot
from robustcp.cli import app
from robustcp.results import minimum_covariance

KINDS = ("good leverage", "orthogonal outlier", "bad leverage")


def full(factors):
    letters = "abcd"[: len(factors)]
    return np.einsum(",".join(n + "r" for n in letters) + "->" + letters, *factors)


def simulated(seed=0, shape=(24, 9, 8), rank=2):
    """Data of some rank with 10% noise."""
    rng = np.random.default_rng(seed)
    M = full([rng.standard_normal((size, rank)) for size in shape])
    return M + 0.1 * np.std(M) * rng.standard_normal(shape)


@pytest.fixture(scope="module")
def data():
    """Data with a bad sample, one with bad entries, and the fit."""
    X = simulated()
    X[3] += 2 * np.std(X)
    X[8, 2, 1:4] += 9 * np.std(X)
    return X, cp(X, 2, noise="common")


@pytest.mark.parametrize("leverage", [1.0, 6.0])
def test_a_sample_of_which_much_is_bad_is_not_called_good(leverage):
    X = simulated(shape=(30, 16, 14))
    X[5] += (leverage - 1) * cp(X, 2).full()[5]
    cells = np.random.default_rng(1).random(X[5].shape) < 0.39
    X[5] += np.where(
        cells, 9 * np.std(X) * np.random.default_rng(2).choice([-1, 1], cells.shape), 0.0
    )
    fit = cp(X, 2, noise="common")
    found = fit.distances(X, 0)
    assert found.shares[5] > 0.3
    assert not found.bad[5]  # without these entries
    assert found.kinds[5] == "many bad entries"
    assert np.isin(np.delete(found.kinds, 5), ["regular", "good leverage"]).mean() > 0.9
    assert "1 with many bad entries" in found.words
    assert next(row for row in found.rows() if row["index"] == 5)["kind"] == found.kinds[5]


def test_where_all_samples_have_bad_entries_none_has_many():
    X = simulated()
    bad = np.random.default_rng(1).random(X.shape) < 0.3
    X = X + np.where(bad, 9 * np.std(X), 0.0)
    found = cp(X, 2, noise="common").distances(X, 0)
    assert found.shares.max() > 0.3
    assert "many bad entries" not in found.kinds


def of_four_kinds(seed, *, other="foreign", missing=0.0):
    """Samples of all kinds: the data, which are of which of the three kinds, and which are wild."""
    rng = np.random.default_rng(seed)
    shape, rank = (50, 30, 20), 3
    factors = [rng.standard_normal((size, rank)) for size in shape]
    size = float(np.std(full(factors)))
    good, outside, bad, wild = rng.permutation(50)[:16].reshape(4, 4)
    for k in (*good, *bad):
        u = rng.standard_normal(rank)
        factors[0][k] = 5 * math.sqrt(rank) * u / np.linalg.norm(u) * rng.uniform(0.8, 1.3)
    for k in outside:  # in the middle of the others
        factors[0][k] *= min(1.0, 1.5 / np.linalg.norm(factors[0][k]))
    Y = full(factors) + 0.1 * size * rng.standard_normal(shape)
    for k in (*outside, *bad):
        if other == "foreign":
            extra = np.outer(rng.standard_normal(30), rng.standard_normal(20))
        elif other == "noise":
            extra = rng.standard_normal((30, 20))
        else:
            extra = np.ones((30, 20))
        Y[k] += size * extra
    shares = np.full((50, 1, 1), 0.05)
    shares[wild] = 0.25
    hit = rng.random(shape) < shares
    Y[hit] += size * (rng.choice([-1, 1], shape) * rng.uniform(3, 9, shape))[hit]
    Y[rng.random(shape) < missing] = np.nan
    return Y, (good, outside, bad), wild


# The minimum covariance determinant


def every_subset(X):
    """The subset with the smallest determinant, of all that there are."""
    h = (len(X) + X.shape[1] + 1) // 2
    subsets = itertools.combinations(range(len(X)), h)
    return min(subsets, key=lambda at: np.linalg.det(np.cov(X[list(at)], rowvar=False)))


def contaminated(seed):
    """Points of 2 to 6 coordinates, up to a quarter of them outlying in some way."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(30, 201)), int(rng.integers(2, 7))
    X = rng.standard_normal((n, p)) @ rng.standard_normal((p, p))
    bad = rng.random(n) < rng.uniform(0, 0.25)
    way = seed % 3
    if way == 0:
        X[bad] *= 6
    elif way == 1:
        X[bad] += 8 * rng.standard_normal(p)
    else:
        X[bad] += 20 * rng.standard_normal((int(bad.sum()), p))
    return X


class TestCovariance:
    @pytest.mark.parametrize("seed", range(6))
    def test_the_best_of_all_subsets_is_found(self, seed):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((13 + seed % 3, 2 + seed % 2))
        X[:3] += 6
        assert minimum_covariance.multivariate(X).subset.tolist() == list(every_subset(X))

    @pytest.mark.parametrize("n", [3, 4, 7, 12, 51])
    def test_the_best_interval_is_found(self, n):
        rng = np.random.default_rng(n)
        x = rng.standard_normal(n) * np.where(np.arange(n) < n // 4, 1e9, 1.0)
        h, y = n // 2 + 1, np.sort(x)
        windows = [y[k : k + h] for k in range(n - h + 1)]
        best = min(windows, key=np.var)
        np.testing.assert_array_equal(minimum_covariance._best_interval(y, h), best)

    def test_consistent_at_gaussian_points(self):
        rng = np.random.default_rng(0)
        A = rng.standard_normal((3, 3))
        X = rng.standard_normal((20000, 3)) @ A + [5, 0, -5]
        found = minimum_covariance.multivariate(X)
        np.testing.assert_allclose(found.centre, [5, 0, -5], atol=0.08)
        np.testing.assert_allclose(found.covariance, A.T @ A, atol=0.05 * np.trace(A.T @ A))
        centre, spread = minimum_covariance.univariate(X[:, 0])
        assert centre == pytest.approx(5, abs=0.05)
        assert spread == pytest.approx(np.linalg.norm(A[:, 0]), rel=0.03)

    @pytest.mark.parametrize("far", [1e2, 1e6, 1e10])
    def test_outliers_have_no_say(self, far):
        X = np.random.default_rng(0).standard_normal((60, 3))
        one, other = X.copy(), X.copy()
        one[:20], other[:20] = far, [-far, 3 * far, 0]
        a, b = minimum_covariance.multivariate(one), minimum_covariance.multivariate(other)
        np.testing.assert_array_equal(a.subset, b.subset)
        np.testing.assert_allclose(a.covariance, b.covariance, rtol=1e-9)
        assert (a.distances(one)[:20] > 10).all()

    @given(st.integers(0, 10**6))
    def test_affine_maps_and_the_order_make_no_difference(self, seed):
        rng = np.random.default_rng(seed)
        n, p = int(rng.integers(12, 60)), int(rng.integers(2, 5))
        X = rng.standard_normal((n, p))
        X[: n // 5] *= 7
        A, order = rng.standard_normal((p, p)) * 10.0 ** rng.integers(-3, 4, p), rng.permutation(n)
        Y = (X @ A + rng.standard_normal(p))[order]
        a, b = minimum_covariance.multivariate(X), minimum_covariance.multivariate(Y)
        np.testing.assert_array_equal(np.sort(order[b.subset]), a.subset)
        np.testing.assert_allclose(b.distances(Y), a.distances(X)[order], rtol=1e-6)

    @pytest.mark.parametrize("share", [0.55, 0.8, 1.0])
    def test_points_in_a_plane_have_none(self, share):
        X = np.random.default_rng(0).standard_normal((50, 3))
        count = int(share * 50)
        X[:count, 2] = X[:count, 0] - 2 * X[:count, 1] + 7
        assert minimum_covariance.multivariate(X) is None

    def test_half_of_the_points_at_one_place_have_none(self):
        X = np.random.default_rng(0).standard_normal((40, 2))
        X[5:30] = 1 / 3
        assert minimum_covariance.multivariate(X) is None
        assert minimum_covariance.univariate(X[:, 0]) == (pytest.approx(1 / 3), pytest.approx(0.0))

    def test_more_points_than_are_searched_at_first(self):
        X = np.random.default_rng(0).standard_normal((5000, 2))
        X[:1500] += 6
        assert np.linalg.norm(minimum_covariance.multivariate(X).centre) < 0.2


@pytest.mark.filterwarnings("ignore::FutureWarning")  # robpy calls what scikit-learn deprecates
class TestAgainstRobpy:
    @pytest.mark.parametrize("seed", range(15))
    def test_distances_and_flags(self, seed):
        robpy = pytest.importorskip("robpy.covariance.mcd")
        X = contaminated(seed)
        theirs, ours = robpy.FastMCD(random_seed=seed).fit(X), minimum_covariance.multivariate(X)
        lowest = np.linalg.det(np.cov(X[ours.subset], rowvar=False))
        assert lowest <= theirs.best_subset.determinant * (1 + 1e-9)
        # Its C-steps end after four, often before the best subset: it is given ours.
        theirs._perform_c_step = lambda subset, data: theirs._get_subset(ours.subset, data)
        theirs.fit(X)
        d = ours.distances(X)
        np.testing.assert_allclose(d, theirs._robust_distances, rtol=1e-6)
        limit = math.sqrt(stats.chi2.ppf(0.975, X.shape[1]))
        np.testing.assert_array_equal(d > limit, theirs._robust_distances > limit)

    @pytest.mark.parametrize("seed", range(15))
    def test_one_dimension(self, seed):
        robpy = pytest.importorskip("robpy.univariate")
        x = contaminated(seed)[:, 0]
        theirs, (centre, spread) = robpy.UnivariateMCD().fit(x), minimum_covariance.univariate(x)
        assert spread == pytest.approx(theirs.scale, rel=1e-9)
        assert centre == pytest.approx(theirs.location, abs=1e-9 * spread)

    @pytest.mark.recovery
    @pytest.mark.parametrize("cases", [None, 0])
    def test_cut_offs_of_a_fit(self, cases):
        pca = pytest.importorskip("robpy.pca.base")
        Y, _, _ = of_four_kinds(3)
        found = cp(Y, 3, cases=cases).distances(Y, 0)
        expected = pca.get_od_cutoff(found.residual)
        assert found.residual_cutoff == pytest.approx(expected, rel=1e-6)
        assert found.score_cutoff == pytest.approx(math.sqrt(stats.chi2.ppf(0.975, 3)))


# Distances


def by_hand(fit, X, mode, sigma, flagged=None):
    """Scores and residual distances, slab by slab, with noise of one standard deviation."""
    _, factors = fit
    others = [A for n, A in enumerate(factors) if n != mode]
    K = np.einsum("ir,jr->ijr", *others).reshape(-1, fit.rank) * fit.weights
    limit = stats.norm.isf(0.0005)
    within = stats.truncnorm(-limit, limit).var()
    scores, residual = [], []
    for k, x in enumerate(np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1)):
        seen, correction = ~np.isnan(x), 1.0
        if flagged is not None:
            off = np.moveaxis(flagged, mode, 0).reshape(X.shape[mode], -1)[k] & seen
            if 0 < off.sum() <= 0.5 * seen.sum():
                seen, correction = seen & ~off, within
        t = np.linalg.lstsq(K[seen], x[seen], rcond=None)[0]
        z = (x[seen] - K[seen] @ t) / sigma
        scores.append(t)
        residual.append(math.sqrt(z @ z * x.size / (seen.sum() * correction)))
    return np.array(scores), np.array(residual)


class TestNumbers:
    @pytest.mark.parametrize("mode", [0, 1, 2])
    @pytest.mark.parametrize("missing", [0.0, 0.3])
    def test_residual_and_score_distances(self, data, mode, missing):
        X = data[0].copy()
        X[np.random.default_rng(1).random(X.shape) < missing] = np.nan
        fit = cp(X, 2, noise="common")
        found = fit.distances(X, mode)
        sigma = fit.outliers(X).noise.sigma
        flagged = np.abs(X - fit.full()) > stats.norm.isf(0.0005) * sigma
        before, residual_before = by_hand(fit, X, mode, sigma)
        after, residual = by_hand(fit, X, mode, sigma, flagged)
        np.testing.assert_allclose(found.residual_before, residual_before, rtol=1e-6)
        np.testing.assert_allclose(found.residual, residual, rtol=1e-6)
        axes = tuple(n for n in range(3) if n != mode)
        shares = flagged.sum(axis=axes) / (~np.isnan(X)).sum(axis=axes)
        np.testing.assert_allclose(found.shares, shares)
        scatter = minimum_covariance.multivariate(after)
        np.testing.assert_allclose(found.score, scatter.distances(after), rtol=1e-6)
        np.testing.assert_allclose(found.score_before, scatter.distances(before), rtol=1e-6)

    def test_one_component(self):
        X = simulated(rank=1)
        fit = cp(X, 1, noise="common")
        found = fit.distances(X, 0)
        sigma = fit.outliers(X).noise.sigma
        flagged = np.abs(X - fit.full()) > stats.norm.isf(0.0005) * sigma
        scores = by_hand(fit, X, 0, sigma, flagged)[0][:, 0]
        centre, spread = minimum_covariance.univariate(scores)
        np.testing.assert_allclose(found.score, np.abs(scores - centre) / spread, rtol=1e-6)

    def test_noise_of_another_mode_counts_and_that_of_the_samples_does_not(self):
        X = simulated()
        rng = np.random.default_rng(5)
        X[:, 4] += 0.5 * np.std(X) * rng.standard_normal(X[:, 4].shape)
        X[6] += 2 * np.std(X) * rng.standard_normal(X[6].shape)
        fit = cp(X, 2, noise=[0, 1])
        found = fit.distances(X, 0)
        assert found.bad[6]
        assert np.median(found.residual) == pytest.approx(math.sqrt(72), rel=0.1)
        assert found.shares[6] > 0.5 > 0.1 > np.median(found.shares)

    def test_nonnegative_scores(self):
        rng = np.random.default_rng(0)
        from scipy.optimize import nnls

        X = full([rng.random((n, 3)) for n in (25, 9, 8)])
        X += 0.02 * rng.standard_normal(X.shape)
        fit = cp(X, 3, nonnegative=True, noise="common")
        X[5] = -fit.full()[5] + 0.02 * rng.standard_normal((9, 8))
        found = fit.distances(X, 0)
        K = np.einsum("ir,jr->ijr", *fit.factors[1:]).reshape(-1, 3)
        assert found.shares[5] > 0.5
        left = nnls(K, X[5].ravel())[1] / fit.outliers(X).noise.sigma
        assert found.residual[5] == found.residual_before[5] == pytest.approx(left, rel=1e-6)

    def test_a_constraint_that_solves_step_by_step(self):
        class Slow(robustcp.Constraint):
            def project(self, factor):
                return factor

            def solve(self, equations, rows, mu, algebra):
                return rows + 0.7 * (algebra.solve_rows(equations, rows, mu) - rows)

        X = simulated()
        plain = cp(X, 2)
        slow = cp(X, 2, constraints={0: Slow()}, init=plain.model.factors)
        a, b = plain.distances(X, 0), slow.distances(X, 0)
        np.testing.assert_allclose(b.residual, a.residual, rtol=1e-3)

    def test_more_than_half_bad_stays_as_it_is(self, data):
        X, fit = data
        found = fit.distances(X, 0)
        assert found.shares[3] > 0.5
        assert found.residual[3] == found.residual_before[3]
        assert found.score[3] == found.score_before[3]
        untouched = found.shares == 0
        assert untouched.sum() > 10
        np.testing.assert_array_equal(found.residual[untouched], found.residual_before[untouched])

    def test_bad_entries_by_chance_do_not_make_a_sample_bad(self):
        """Of large samples each has entries that are flagged by chance."""
        X = simulated(shape=(40, 100, 100))
        found = cp(X, 2).distances(X, 0)
        assert (found.shares > 0).all()
        assert found.only_cells.sum() <= 3
        assert found.bad.sum() <= 4


class TestKinds:
    """Samples of all kinds, among regular ones with bad entries."""

    @pytest.mark.parametrize("other", ["foreign", "noise", "constant"])
    @pytest.mark.parametrize("seed", [2, 3])
    def test_told_apart(self, other, seed):
        Y, groups, wild = of_four_kinds(seed, other=other)
        found = cp(Y, 3).distances(Y, 0)
        for kind, group in zip(KINDS, groups, strict=True):
            assert set(found.kinds[group]) == {kind}
        assert found.only_cells[wild].all()
        assert not found.bad[wild].any()
        regular = np.setdiff1d(np.arange(50), np.concatenate(groups))
        assert found.bad[regular].mean() <= 0.06
        # As for every MCD of so few: robpy's has 11% of 50 Gaussian points beyond.
        assert (found.kinds[regular] != "regular").mean() <= 0.2
        assert (found.only_cells | found.bad)[regular].all()  # each has 5% of bad entries

    @pytest.mark.recovery
    def test_with_missing_entries_and_cases(self):
        Y, groups, wild = of_four_kinds(4, missing=0.3)
        found = cp(Y, 3, cases=0).distances(Y, 0)
        for kind, group in zip(KINDS, groups, strict=True):
            assert set(found.kinds[group]) == {kind}
        assert found.only_cells[wild].all()

    def test_before(self):
        far, cut = np.array([1.0, 9.0, 1.0, 9.0, np.nan]), 3.0
        out = np.array([1.0, 1.0, 9.0, 9.0, np.nan])
        low = np.where(np.isnan(far), np.nan, 0.0)
        found = Distances(0, "x", None, low, low, far, out, cut, cut, np.zeros(5))
        assert found.kinds_before.tolist() == ["regular", *KINDS, "no data"]
        assert found.kinds.tolist() == ["regular"] * 4 + ["no data"]
        assert found.only_cells.tolist() == [False, False, True, True, False]
        assert not found.bad.any()
        assert repr(found) == (
            "Distances(5 samples of x: 4 regular, 1 without data, 2 with bad entries only)"
        )

    def test_rows_begin_with_the_most_outlying(self, data):
        X, fit = data
        rows = fit.distances(X, 0).rows()
        assert rows[0]["index"] == 3
        assert sorted(row["index"] for row in rows) == list(range(24))
        assert [row["index"] for row in rows if row["only_cells"]] == [8]


class TestInvariance:
    @given(st.integers(0, 10**6), st.floats(-250, 250), st.integers(0, 2))
    def test_order_and_scale(self, data, seed, exponent, mode):
        X, fit = data
        order = np.random.default_rng(seed).permutation(X.shape[mode])
        by = 10.0**exponent
        weights, factors = fit
        part = tuple(A[order] if n == mode else A for n, A in enumerate(factors))
        from dataclasses import replace

        model = robustcp.KruskalTensor(weights * by, part)
        other = replace(fit, model=model, noise=fit.noise.scaled(by))
        a, b = fit.distances(X, mode), other.distances(np.take(X, order, axis=mode) * by, mode)
        for name in ("score", "residual", "score_before", "residual_before", "shares"):
            np.testing.assert_allclose(getattr(b, name), getattr(a, name)[order], rtol=1e-6)
        assert b.residual_cutoff == pytest.approx(a.residual_cutoff, rel=1e-6)
        np.testing.assert_array_equal(b.kinds, a.kinds[order])

    def test_libraries_and_kinds_of_data(self, data, xp):
        X, fit = data
        a, b = fit.distances(X, 0), fit.distances(xp.asarray(X), 0)
        np.testing.assert_allclose(b.residual, a.residual, rtol=1e-9)
        np.testing.assert_allclose(b.score, a.score, rtol=1e-9)

    def test_missing_entries_however_they_are_given(self):
        X = simulated()
        gone = np.random.default_rng(0).random(X.shape) < 0.2
        gone[5] = True
        holes = np.where(gone, np.nan, X)
        fit = cp(holes, 2)
        expected = fit.distances(holes, 0)
        assert np.flatnonzero(np.isnan(expected.residual)).tolist() == [5]
        assert np.isnan(expected.score[5])
        assert expected.kinds[5] == "no data"
        assert not expected.bad[5]
        for given_as in (np.ma.array(X, mask=gone),
                         Observed(np.argwhere(~gone), X[~gone], X.shape)):  # fmt: skip
            found = fit.distances(given_as, 0)
            np.testing.assert_allclose(found.residual, expected.residual, rtol=1e-9)
            np.testing.assert_allclose(found.score, expected.score, rtol=1e-9)

    def test_single_precision(self, data):
        X, fit = data
        a, b = fit.distances(X, 0), fit.distances(X.astype(np.float32), 0)
        np.testing.assert_allclose(b.residual, a.residual, rtol=1e-3)
        np.testing.assert_allclose(b.score, a.score, rtol=1e-3)

    def test_names(self):
        xarray = pytest.importorskip("xarray")
        names = [f"s{k}" for k in range(24)]
        X = simulated()
        X[2] += 9
        labelled = xarray.DataArray(X, dims=("sample", "a", "b"), coords={"sample": names})
        found = cp(labelled, 2).distances(labelled, "sample")
        assert (found.mode, found.name, found.labels) == (0, "sample", names)
        assert found.rows()[0]["label"] == "s2"
        assert "24 samples of sample: 1 " in repr(found)


class TestOddData:
    @pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
    def test_few_samples(self, count):
        X = simulated(shape=(count, 10, 12))
        found = cp(X, 2).distances(X, 0)
        for part in (found.score, found.residual, found.score_before, found.residual_before):
            assert np.isfinite(part).all()
        assert math.isfinite(found.residual_cutoff)
        assert not found.bad[: max(1, count // 2)].all()
        assert ("too few" in found.note) == (count < 6)
        np.testing.assert_allclose(found.residual, math.sqrt(120), rtol=0.3)

    def test_few_samples_one_of_them_bad(self):
        X = simulated(shape=(5, 10, 12))
        X[1] += 5 * np.std(X) * np.random.default_rng(0).standard_normal((10, 12))
        assert cp(X, 2).distances(X, 0).bad.tolist() == [False, True, False, False, False]

    @pytest.mark.parametrize("bad", [[], [4]])
    def test_exact_data(self, bad):
        rng = np.random.default_rng(0)
        X = full([rng.standard_normal((size, 2)) for size in (24, 9, 8)])
        X[bad] += 1.0
        found = cp(X, 2, cases=0).distances(X, 0)
        assert np.flatnonzero(found.bad).tolist() == bad
        assert not found.only_cells.any()

    @pytest.mark.parametrize("noise", [0.0, 0.05])
    def test_a_component_that_is_the_same_everywhere(self, noise):
        rng = np.random.default_rng(0)
        factors = [rng.standard_normal((size, 2)) for size in (24, 9, 8)]
        factors[0][:, 0] = 2.0
        X = full(factors) + noise * rng.standard_normal((24, 9, 8))
        found = cp(X, 2).distances(X, 0)
        assert found.score.max() < 8
        assert ("in a plane" in found.note) == (noise == 0)

    def test_scores_of_which_most_are_zero(self):
        rng = np.random.default_rng(0)
        factors = [rng.random((size, 2)) for size in (40, 9, 8)]
        factors[0][:30, 0] = 0.0
        X = full(factors)
        found = cp(X, 2, nonnegative=True).distances(X, 0)
        assert "in a plane" in found.note
        assert found.score.max() < 20

    def test_zeros(self):
        X = np.zeros((10, 4, 5))
        found = cp(X, 2).distances(X, 0)
        assert set(found.kinds) == {"regular"}
        np.testing.assert_array_equal(found.residual, 0.0)

    def test_an_entry_beyond_all_bounds(self):
        X = simulated()
        X[4, 3, 2] = 1e300
        found = cp(X, 2).distances(X, 0)
        assert found.only_cells[4]
        assert np.isfinite(found.residual_before).all()

    def test_other_data_of_the_shape(self):
        X = simulated()
        fit = cp(X, 2)
        other = full([np.random.default_rng(9).standard_normal((24, 2)), *fit.factors[1:]])
        other += 0.01 * np.random.default_rng(8).standard_normal(X.shape)
        found = fit.distances(other, 0)
        assert found.residual.max() < 5 * np.median(found.residual)  # described, as other scores

    def test_arguments(self, data):
        X, fit = data
        with pytest.raises(ValueError, match=r"X: has shape \(23, 9, 8\)"):
            fit.distances(X[1:], 0)
        with pytest.raises(ValueError, match="mode: must be an integer from 0 to 2, got 3"):
            fit.distances(X, 3)
        with pytest.raises(
            ValueError, match="mode: must be one of mode 0, mode 1, mode 2, got 'x'"
        ):
            fit.distances(X, "x")


@pytest.mark.skipif(not hasattr(plot, "distance_map"), reason="no plot.distance_map")
def test_plot(data):
    X, fit = data
    assert fit.distances(X, 0).plot() is not None


class TestCommandLine:
    @pytest.fixture
    def files(self, tmp_path, data):
        X, fit = data
        np.save(tmp_path / "x.npy", X)
        robustcp.save(fit, tmp_path / "fit.npz")
        return [str(tmp_path / "x.npy"), str(tmp_path / "fit.npz")]

    def run(self, *arguments):
        return CliRunner().invoke(app, ["distances", *arguments])

    def test_lines(self, files):
        done = self.run(*files, "--mode", "0", "--count", "3")
        assert done.exit_code == 0
        first, cutoffs, _, worst, *_, last = done.stdout.splitlines()
        assert first.startswith("24 samples of mode 0: 1 ")
        assert first.endswith("1 with bad entries only")
        assert cutoffs.startswith("cut-offs: score 2.72, residual ")
        assert worst.split()[0] == "3"
        assert last == "and 21 more"

    def test_json(self, files, data):
        X, fit = data
        found = json.loads(self.run(*files, "--mode", "mode 0", "--json").stdout)
        expected = fit.distances(X, 0)
        assert found["mode"] == "mode 0"
        assert found["residual_cutoff"] == pytest.approx(expected.residual_cutoff)
        assert [row["index"] for row in found["samples"]] == [r["index"] for r in expected.rows()]

    def test_samples_without_data_are_null(self, files, data):
        X = data[0].copy()
        X[2] = np.nan
        np.save(files[0], X)
        done = self.run(*files, "--mode", "0", "--json")
        (row,) = [row for row in json.loads(done.stdout)["samples"] if row["index"] == 2]
        assert row["score"] is row["residual"] is None
        assert row["kind"] == "no data"
        assert self.run(*files, "--mode", "0", "--count", "99").exit_code == 0

    def test_bad_input(self, files):
        done = self.run(*files, "--mode", "7")
        assert done.exit_code == 2
        assert "--mode: must be an integer from 0 to 2, got 7" in done.stderr
