"""Samples that are bad as a whole."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import robustcp
from robustcp import Cases, KruskalTensor, Observed, cp, factor_match_score
from robustcp.starts import cases

BAD = np.array([1, 4, 9, 15, 20, 27])


def full(factors):
    letters = "abcd"[: len(factors)]
    return np.einsum(",".join(n + "r" for n in letters) + "->" + letters, *factors)


def simulated(kind="foreign", shape=(30, 14, 15), rank=3, *, positive=False, seed=0):
    """Data of some rank with 10% noise, true factors, and which samples are bad."""
    rng = np.random.default_rng(seed)
    draw = rng.random if positive else rng.standard_normal
    factors = [draw((size, rank)) for size in shape]
    M = full(factors)
    size = float(np.sqrt(np.mean(M**2)))
    Y = M + 0.1 * size * rng.standard_normal(shape)
    other = full([draw((n, 1)) for n in shape[1:]])
    each = (-1,) + (1,) * (len(shape) - 1)
    if kind == "foreign":
        amounts = 2 * size * rng.uniform(0.7, 1.3, BAD.size)
        Y[BAD] += amounts.reshape(each) * other / np.sqrt(np.mean(other**2))
    elif kind == "constant":
        Y[BAD] += 2 * size
    elif kind == "noise":
        Y[BAD] = 2 * size * rng.standard_normal(Y[BAD].shape)
    return Y, factors, BAD if kind != "none" else BAD[:0]


def score(fit, factors, bad):
    """How well the clean samples are recovered."""
    found, keep = fit.model.absorbed(), np.setdiff1d(np.arange(len(factors[0])), bad)
    models = [
        KruskalTensor.from_factors([np.asarray(A[0])[keep], *A[1:]]) for A in (found, factors)
    ]
    return factor_match_score(*models)


def spoilt_cells(Y, share, seed=1):
    rng = np.random.default_rng(seed)
    at = rng.random(Y.shape) < share
    size = np.sqrt(np.nanmean(Y**2))
    return np.where(at, Y + size * rng.choice([-1, 1], Y.shape) * rng.uniform(3, 9, Y.shape), Y)


class TestFinding:
    @pytest.mark.parametrize("kind", ["foreign", "constant", "noise"])
    def test_bad_samples_that_agree_are_found(self, kind):
        Y, factors, bad = simulated(kind)
        fit = cp(Y, 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        assert score(fit, factors, bad) > 0.98
        assert "6 of 30 samples of mode 0 (1, 4, 9, 15, 20, ...) left out" in fit.status

    @pytest.mark.recovery
    def test_missing_data_artifacts_and_nonnegativity_together(self):
        Y, factors, bad = simulated(positive=True, seed=2)
        Y = spoilt_cells(Y, 0.05)
        Y[np.random.default_rng(3).random(Y.shape) < 0.2] = np.nan
        fit = cp(Y, 3, cases=0, nonnegative=True)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        assert all((A >= 0).all() for A in fit.factors)
        assert score(fit, factors, bad) > 0.95

    @pytest.mark.recovery
    def test_listed_entries(self):
        Y, factors, bad = simulated()
        seen = np.random.default_rng(0).random(Y.shape) < 0.8
        fit = cp(Observed(np.argwhere(seen), Y[seen], Y.shape), 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        assert score(fit, factors, bad) > 0.98

    @pytest.mark.recovery
    def test_entry_weights(self):
        Y, _, bad = simulated()
        Y[:, 3] += 50 * np.random.default_rng(0).standard_normal(Y[:, 3].shape)
        weights = np.ones(14)
        weights[3] = 0.0
        fit = cp(Y, 3, cases=0, entry_weights=[None, weights, None])
        assert fit.unobserved == ((), (3,), ())
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)

    def test_another_mode_of_four_by_its_name(self):
        xarray = pytest.importorskip("xarray")
        Y, _, bad = simulated(shape=(30, 8, 9, 7), rank=2)
        X = xarray.DataArray(np.moveaxis(Y, 0, 2), dims=("a", "b", "sample", "c"))
        fit = cp(X, 2, cases="sample")
        assert fit.cases.mode == 2
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)

    def test_a_given_start(self):
        Y, factors, bad = simulated("constant")
        fit = cp(Y, 3, cases=0, init=factors)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)

    def test_the_same_for_any_order_of_the_samples(self):
        Y, _, bad = simulated()
        order = np.random.default_rng(5).permutation(30)
        fit = cp(Y[order], 3, cases=0)
        np.testing.assert_array_equal(np.sort(order[fit.cases.flagged]), bad)

    @pytest.mark.recovery
    def test_the_same_seed_gives_the_same_bits(self):
        Y, _, _ = simulated()
        one, other = cp(Y, 3, cases=0, rng=1), cp(Y, 3, cases=0, rng=1)
        for A, B in zip(one.factors, other.factors, strict=True):
            np.testing.assert_array_equal(A, B)


class TestNoBadSample:
    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_changes(self, seed):
        Y, _, _ = simulated("none", seed=seed)
        with_cases, without = cp(Y, 3, cases=0), cp(Y, 3)
        assert not with_cases.cases.flagged.any()
        assert factor_match_score(with_cases, without) > 0.999
        assert with_cases.warnings == without.warnings == ()

    def test_samples_with_more_noise_than_others_are_not_bad(self):
        rng = np.random.default_rng(0)
        Y, _, _ = simulated("none")
        scales = np.exp(0.5 * rng.standard_normal(30))[:, None, None]
        Y = Y + 0.2 * np.std(Y) * scales * rng.standard_normal(Y.shape)
        assert cp(Y, 3, cases=0).cases.flagged.sum() <= 1


@pytest.mark.recovery
class TestOddData:
    def test_exact_data(self):
        factors = simulated("none")[1]
        fit = cp(full(factors), 3, cases=0)
        assert not fit.cases.flagged.any()
        assert score(fit, factors, BAD[:0]) > 0.9999

    def test_exact_data_with_bad_samples(self):
        factors = simulated("none")[1]
        Y = full(factors)
        Y[BAD] += 3.0
        fit = cp(Y, 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), BAD)

    def test_zeros(self):
        fit = cp(np.zeros((10, 4, 5)), 2, cases=0)
        assert not fit.cases.flagged.any()
        assert (fit.weights == 0).all()

    def test_samples_without_an_entry(self):
        Y, _, bad = simulated()
        Y[12] = np.nan
        fit = cp(Y, 3, cases=0)
        assert fit.unobserved[0] == (12,)  # bad samples have scores
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        assert np.isnan(fit.cases.distances[12])


@pytest.mark.recovery
class TestScores:
    def test_bad_samples_have_scores_and_no_say(self):
        Y, _, bad = simulated("noise")
        fit = cp(Y, 3, cases=0)
        other = Y.copy()
        other[bad] *= -3.0
        again = cp(other, 3, cases=0)
        for mode in (1, 2):
            np.testing.assert_allclose(fit.factors[mode], again.factors[mode], atol=0.02)
        scores = fit.project(Y[bad])
        np.testing.assert_allclose((fit.factors[0] * fit.weights)[bad], scores, atol=0.5)

    def test_distances(self):
        Y, _, bad = simulated()
        found = cp(Y, 3, cases=0).cases
        clean = np.delete(found.distances, bad)
        assert 0.7 < clean.min() < clean.max() < 1.35  # 210 entries each
        assert found.distances[bad].min() > 3
        assert (found.distances[bad] > found.cutoffs[bad]).all()
        np.testing.assert_array_equal(found.weights == 0, found.flagged)
        assert "6 of 30 samples" in repr(found)


class TestAsking:
    @pytest.mark.parametrize("rank", [1, 3, 8])
    @pytest.mark.parametrize("share", [0.05, 0.25, 0.4])
    def test_so_many_subsets_hold_a_good_one_almost_surely(self, rank, share):
        count = Cases(0, share).subsets(rank)
        good = (1 - share) ** (rank + 2)
        assert (1 - good) ** count <= 0.001 < (1 - good) ** (count - 1)

    def test_too_few_samples(self):
        Y = np.random.default_rng(0).standard_normal((6, 8, 8))
        with pytest.raises(ValueError, match="cases: mode 0 has 6 samples"):
            cp(Y, 3, cases=0)
        cp(Y, 2, cases=0)

    @pytest.mark.parametrize(
        ("given", "match"),
        [(3, "cases: must be an integer from 0 to 2"), ("sample", "no mode is named 'sample'"),
         (1.5, "cases: must be an integer")],
    )  # fmt: skip
    def test_modes_that_are_none(self, given, match):
        with pytest.raises(ValueError, match=match):
            cp(simulated()[0], 3, cases=given)

    def test_shares_that_cannot_be(self):
        with pytest.raises(ValueError, match="cases: share"):
            Cases(0, 0.5)

    def test_not_with_a_loss(self):
        with pytest.raises(ValueError, match="cases: cannot be asked for"):
            cp(simulated()[0], 3, cases=0, loss=robustcp.L1())

    def test_too_few_subsets_are_told(self, monkeypatch):
        few = replace(cases.CASE_SETTINGS, max_subsets=10)
        monkeypatch.setattr(cases, "CASE_SETTINGS", few)
        noise = np.random.default_rng(0).standard_normal((30, 14, 15))  # no two subsets agree
        fit = cp(noise, 3, cases=0)
        assert len(fit.starts) == 10
        warnings = {warning.code: warning.numbers for warning in fit.warnings}
        assert warnings["subsets"] == {"subsets": 10, "wanted": math.ceil(Cases(0).subsets(3))}

    def test_the_search_ends_when_subsets_agree(self):
        Y, _, _ = simulated("none")
        fit = cp(Y, 3, cases=0)
        assert 2 <= len(fit.starts) < Cases(0).subsets(3) / 2
        assert fit.warnings == ()
        assert len(cp(Y, 3, cases=0, starts=5).starts) == 5  # a given number is a given number


class TestBadSamplesWithBadCells:
    @pytest.mark.parametrize("seed", range(2))
    def test_a_foreign_component_bad_cells_and_missing_entries(self, seed):
        Y, factors, bad = simulated(seed=seed)
        Y = spoilt_cells(Y, 0.15, seed=seed)
        Y[np.random.default_rng(seed).random(Y.shape) < 0.2] = np.nan
        fit = cp(Y, 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        assert score(fit, factors, bad) > 0.97

    @pytest.mark.recovery
    @pytest.mark.parametrize("seed", range(4))
    def test_few_entries_in_each_sample(self, seed):
        Y, factors, bad = simulated(shape=(30, 12, 12), positive=True, seed=seed)
        Y = spoilt_cells(Y, 0.1, seed=seed)
        fit = cp(Y, 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        Y[bad] = np.nan
        told = cp(Y, 3)
        assert told.unobserved[0] == tuple(bad)
        assert score(fit, factors, bad) > score(told, factors, bad) - 0.01

    @pytest.mark.recovery
    @pytest.mark.parametrize("seed", range(3))
    def test_samples_of_one_component_without_noise_have_no_weight(self, seed):
        rng = np.random.default_rng(seed)
        Y, factors, bad = simulated("none", seed=seed)[0], simulated("none", seed=seed)[1], BAD
        for k in bad:
            Y[k] = 5 * np.multiply.outer(rng.standard_normal(14), rng.standard_normal(15))
        fit = cp(spoilt_cells(Y, 0.05), 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), bad)
        assert score(fit, factors, bad) > 0.98


class TestGoodLeverage:
    """Samples that are many times larger than others, and follow the model."""

    @staticmethod
    def large_samples(factor, seed):
        rng = np.random.default_rng(seed)
        factors = [rng.random((size, 3)) for size in (40, 15, 12)]
        size = float(np.sqrt(np.mean(full(factors) ** 2)))
        factors[0][::5] *= factor
        M = full(factors)
        return M + 0.15 * size * rng.standard_normal(M.shape), factors

    @pytest.mark.parametrize("factor", [3.0, 30.0])
    def test_they_are_not_bad(self, factor):
        Y, factors = self.large_samples(factor, 0)
        fit = cp(Y, 3, cases=0)
        assert not fit.cases.flagged.any()
        assert score(fit, factors, BAD[:0]) > 0.98

    def test_unless_they_hold_something_else(self):
        Y, _ = self.large_samples(10.0, 1)
        rng = np.random.default_rng(1)
        Y[:15:5] += 3 * np.multiply.outer(rng.random(15), rng.random(12))
        fit = cp(Y, 3, cases=0)
        np.testing.assert_array_equal(np.flatnonzero(fit.cases.flagged), [0, 5, 10])

    @pytest.mark.recovery
    @pytest.mark.parametrize("seed", range(3))
    def test_a_rank_that_is_one_too_high_does_no_harm(self, seed):
        Y, factors = self.large_samples(10.0, seed)
        fit = cp(Y, 4, cases=0)
        found = [np.asarray(A) / np.linalg.norm(A, axis=0) for A in fit.factors[1:]]
        true = [A / np.linalg.norm(A, axis=0) for A in factors[1:]]
        congruence = math.prod(A.T @ B for A, B in zip(true, found, strict=True))
        assert not fit.cases.flagged.any()
        assert congruence.max(axis=1).min() > 0.9 or fit.warnings


def test_noise_that_grows_with_a_sample_is_not_bad():
    rng = np.random.default_rng(3)
    factors = [rng.random((40, 3)), rng.random((15, 3)), rng.random((12, 3))]
    factors[0] *= np.exp(0.7 * rng.standard_normal((40, 1)))
    M = full(factors)
    sizes = np.sqrt(np.mean(M**2, axis=(1, 2), keepdims=True))
    Y = M + 0.1 * sizes * rng.standard_normal(M.shape)
    assert not cp(Y, 3, cases=0).cases.flagged.any()


@pytest.mark.recovery
@pytest.mark.parametrize("data", ["structured", "noise"])
def test_searches_end_at_the_same_model_or_say_so(data):
    rng = np.random.default_rng(7)
    Y = rng.standard_normal((25, 8, 9))
    if data == "structured":  # smooth, and of no low rank
        Y = np.cumsum(np.cumsum(Y, axis=1), axis=2)
    sure = []
    for seed in range(3):
        fit = cp(Y, 3, cases=0, rng=seed)
        if not {"one_start", "ambiguous"} & {warning.code for warning in fit.warnings}:
            sure.append(fit)
    for fit in sure:
        assert factor_match_score(fit, sure[0]) > 0.99


@pytest.mark.parametrize("kind", ["foreign", "none"])
def test_the_same_samples_are_bad_by_their_distances(kind):
    Y, _, _ = simulated(kind)
    fit = cp(Y, 3, cases=0)
    found = fit.distances(Y, 0)
    np.testing.assert_array_equal(found.bad, fit.cases.flagged)
    np.testing.assert_array_equal(fit.cases.distances > fit.cases.cutoffs, fit.cases.flagged)
    assert not np.isin(found.kinds[fit.cases.flagged], ["regular", "good leverage"]).any()
    assert np.isin(found.kinds[~fit.cases.flagged], ["regular", "good leverage"]).all()


def test_files(tmp_path):
    Y, _, _ = simulated()
    fit = cp(Y, 3, cases=0)
    for name in ("fit.npz", "fit.nc"):
        robustcp.save(fit, tmp_path / name)
        again = robustcp.load(tmp_path / name)
        assert again.cases.mode == 0
        for part in ("weights", "distances", "cutoffs"):
            np.testing.assert_array_equal(getattr(again.cases, part), getattr(fit.cases, part))
        assert again.status == fit.status
