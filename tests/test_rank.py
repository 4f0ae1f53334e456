from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import xarray

import robustcp
from robustcp import Observed, Smooth, core_consistency, cp, cpals, rank_profile, simulate
from robustcp.engines import Entries
from robustcp.inference.core_consistency import chance_consistency, consistency
from robustcp.inference.rank_profile import RankChoice
from robustcp.studies.kinds import KINDS

AMINO = Path(__file__).parents[2] / "shared" / "data" / "aminoacids.mat"  # not in the repository

SMALL = simulate((16, 15, 14), 2, eta=0.1, gamma=1.0, rng=0)


@pytest.fixture(scope="module")
def profile():
    return rank_profile(SMALL.data, range(1, 5), jobs=1)


@pytest.mark.recovery
def test_rank_of_the_paper_is_found(paper):
    profile = rank_profile(paper[1].data, range(4, 7))
    assert profile.rank == 5
    assert "rank 6" in profile.reason
    assert profile.error.argmin() >= 1
    assert profile.stability[1] > 0.99
    assert profile.consistency[1] > 90
    assert profile.stability[2] < 0.9


def test_every_number_has_a_spread_and_a_meaning(profile):
    assert profile.rank == 2
    assert profile.runner_up == 3
    assert set(profile.spread) == {"error", "gain", "stability", "consistency"}
    for name in profile.spread:
        assert profile.spread[name].shape == getattr(profile, name).shape == (4,)
    assert (profile.spread["error"] > 0).all()
    assert profile.error[0] > profile.error[1] > 0
    assert profile.gain[1] > 0.05 > profile.gain[2]
    assert profile.noise[1] < profile.noise[0]
    assert profile.agreement[1] >= 0.6
    rows = profile.rows()
    assert [row["rank"] for row in rows] == [1, 2, 3, 4]
    assert rows[1]["gain_spread"] == profile.spread["gain"][1]


def test_the_core_of_cells_that_were_not_seen_tells_too_many_components(profile):
    assert profile.consistency[1] > 90
    assert profile.consistency[2] < profile.consistency[1] - 10
    assert profile.consistency[3] < profile.consistency[1] - 10


def test_a_profile_equals_itself_and_no_other(profile):
    assert profile == profile
    assert profile == copy.deepcopy(profile)
    assert profile == pickle.loads(pickle.dumps(profile))
    other = copy.deepcopy(profile)
    other.error[0] += 1
    assert profile != other
    assert profile != "profile"


@pytest.mark.recovery
def test_same_seed_same_profile_whatever_the_number_of_jobs(profile):
    assert rank_profile(SMALL.data, range(1, 5), jobs=2) == profile


@pytest.mark.recovery
def test_observed_and_missing_entries():
    seen = np.random.default_rng(0).random(SMALL.data.shape) < 0.7
    listed = Observed(np.argwhere(seen), SMALL.data[seen], SMALL.data.shape)
    found = rank_profile(listed, range(1, 4), jobs=1)
    assert found.rank == 2
    dense = rank_profile(np.where(seen, SMALL.data, np.nan), range(1, 4), jobs=1)
    assert dense.rank == 2
    np.testing.assert_allclose(found.error, dense.error, rtol=0.1)


def test_modes_have_names_and_samples_are_of_the_one_given():
    X = xarray.DataArray(SMALL.data, dims=("wavelength", "time", "sample"))
    found = rank_profile(X, [1, 2, 3], mode="sample", jobs=1)
    assert found.mode == 2
    assert found.rank == 2


@pytest.mark.recovery
def test_few_samples_are_all_kept():
    sim = simulate((3, 25, 25), 2, eta=0.1, gamma=1.0, rng=1)
    assert rank_profile(sim.data, range(1, 4), jobs=1).rank == 2


@pytest.mark.recovery
def test_nonnegative_and_other_constraints():
    found = rank_profile(SMALL.data, range(1, 4), nonnegative=True, jobs=1)
    assert found.rank == 2
    smooth = rank_profile(SMALL.data, [1, 2], constraints={0: Smooth(1e-3)}, jobs=1)
    assert smooth.rank == 2


def test_progress_is_told():
    told = []
    rank_profile(SMALL.data, [1], folds=3, jobs=1, progress=lambda *at: told.append(at))
    assert told == [(k, 4) for k in (1, 2, 3, 4)]


def test_plot(profile):
    import matplotlib as mpl

    mpl.use("Agg")
    ax = profile.plot()
    assert "recommended: 2" in ax.get_xlabel()
    assert "rank 2" in repr(profile)


# Core consistency


def best_core(fit, X, keep):
    """By least squares, each entry in units of its noise."""
    factors, sigma = fit.model.absorbed(), np.asarray(fit.sigma(X)).ravel()
    K = np.kron(np.kron(*factors[:2]), factors[2]) / sigma[:, None]
    return np.linalg.lstsq(K[keep], (X.ravel() / sigma)[keep])[0].reshape((fit.rank,) * 3)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_core_consistency_is_that_of_the_best_core(missing):
    sim = simulate((9, 8, 7), 2, eta=0.05, gamma=1.0, noise=0.3, rng=0)
    X = np.where(np.random.default_rng(0).random(sim.data.shape) < missing, np.nan, sim.data)
    fit = cpals(X, 3)
    keep = (~fit.outliers(X).mask & ~np.isnan(X)).ravel()
    ideal = np.zeros((3, 3, 3))
    ideal[range(3), range(3), range(3)] = 1
    core = best_core(fit, X, keep)
    expected = 100 * (1 - np.sum((core - ideal) ** 2) / 3)
    assert core_consistency(fit, X) == pytest.approx(expected, rel=1e-5)


def test_core_consistency_of_robust_fits():
    right = simulate((15, 15, 15), 2, eta=0.1, gamma=2.0, rng=0)
    assert core_consistency(cp(right.data, 2), right.data) > 95
    seen = np.random.default_rng(0).random(right.data.shape) < 0.8
    listed = Observed(np.argwhere(seen), right.data[seen], right.data.shape)
    assert core_consistency(cp(listed, 2), listed) > 95
    with pytest.raises(ValueError, match=r"^X: has shape \(15, 15, 14\)"):
        core_consistency(cp(right.data, 2), right.data[..., 1:])


def standardized(model, at, z, sigma):
    """Residuals in units of their noise."""
    return Entries(model.shape, z, tuple(at.T), scales=sigma)


def test_a_core_of_uneven_noise_is_that_of_weighted_least_squares():
    rng = np.random.default_rng(0)
    model = cp(SMALL.data, 2).model
    at = np.argwhere(np.ones(model.shape, dtype=bool))
    sigma = rng.uniform(0.5, 2, len(at))
    z = np.clip(rng.standard_normal(len(at)), -3, 3)
    A, B, C = (F[at[:, n]] for n, F in enumerate(model.absorbed()))
    K = np.einsum("nr,ns,nt->nrst", A, B, C).reshape(len(at), -1) / sigma[:, None]
    change = np.linalg.lstsq(K, z)[0]
    expected = 100 * (1 - np.sum(change**2) / 2)
    assert consistency(model, standardized(model, at, z, sigma)) == pytest.approx(
        expected, rel=1e-5
    )


def test_a_core_is_as_uncertain_by_chance_as_residuals_of_random_signs_say():
    rng = np.random.default_rng(0)
    model = cp(SMALL.data, 2).model
    at = np.argwhere(np.ones(model.shape, dtype=bool))
    z = np.clip(rng.standard_normal(len(at)), -3, 3)
    noise = standardized(model, at, z, np.ones(len(at)))
    assert chance_consistency(model, noise) == pytest.approx(consistency(model, noise), abs=5)
    A, B, C = (F[at[:, n]] for n, F in enumerate(model.absorbed()))
    wrong = 0.5 * A[:, 0] * B[:, 1] * C[:, 0]  # a core with an entry off the diagonal
    wrong = standardized(model, at, np.clip(z + wrong, -3, 3), noise.scales)
    assert chance_consistency(model, wrong) > consistency(model, wrong) + 5


def test_too_few_cells_for_a_core():
    model = cp(SMALL.data, 2).model
    at = np.argwhere(np.ones(model.shape, dtype=bool))[:10]
    assert np.isnan(consistency(model, standardized(model, at, np.zeros(10), np.ones(10))))


class TestChoice:
    ranks = (1, 2, 3, 4)
    good, none = np.ones(4), np.zeros(4)

    def choose(self, loss, stability, mended=None):
        losses = np.array(loss)[:, None] + np.zeros(5)
        mended = self.none if mended is None else np.array(mended)
        return RankChoice(self.ranks, losses, 3.0, np.array(stability), mended)

    def test_where_the_error_stops_falling(self):
        found = self.choose([1, 0.5, 0.3, 0.2999], [1, 0.7, 1, 1])
        assert found.rank == 3
        assert found.runner_up == 4
        assert "rank 4 predicts held-out cells only" in found.reason

    def test_a_rank_that_pays_only_with_the_next_is_passed_over(self):
        assert self.choose([1, 1, 0.3, 0.3], self.good).rank == 3

    def test_components_that_do_not_come_back_are_not_taken(self):
        found = self.choose([1, 0.5, 0.3, 0.2], [1, 1, 0.6, 0.5])
        assert found.rank == 2
        assert found.runner_up == 3
        assert "do not all come back" in found.reason

    def test_nor_those_that_mend_each_other(self):
        assert self.choose([1, 0.5, 0.3, 0.2], self.good, [0, 0, 5, 130]).rank == 3
        assert self.choose([1, 0.5, 0.3, 0.2], self.good, [0, 0, 5, np.nan]).rank == 4

    def test_more_is_not_given_up_than_the_last_component_gains(self):
        found = self.choose([2.5, 1.5, 0.8, 0.1], [1, 0.8, 0.8, 0.8])
        assert found.rank == 4
        assert "but its components do not all come back" in found.reason
        assert self.choose([2.5, 0.5, 0.3, 0.2], [1, 1, 0.8, 0.8]).rank == 2

    def test_one_fold_may_disagree(self):
        losses = np.array([[1.0] * 5, [0.5] * 4 + [1.2]])
        assert RankChoice((1, 2), losses, 3.0, np.ones(2), np.zeros(2)).rank == 2
        losses[1, 3] = 1.2
        assert RankChoice((1, 2), losses, 3.0, np.ones(2), np.zeros(2)).rank == 1

    def test_still_falling(self):
        found = self.choose([1, 0.5, 0.3, 0.2], self.good)
        assert found.rank == 4
        assert "still" in found.reason

    def test_none_is_sound(self):
        found = self.choose([1, 0.5, 0.3, 0.3], [0.5] * 4)
        assert found.rank == 3
        assert "but its components do not all come back" in found.reason

    def test_reasons_name_what_is_wrong_and_nothing_else(self):
        reason = self.choose([1, 0.5, 0.3, 0.2], self.good, [0, 0, 5, 130]).reason
        assert "mend each other" in reason
        assert "come back" not in reason
        reason = self.choose([1, 0.5, 0.3, 0.2], [1, 1, 1, 0.5], np.full(4, np.nan)).reason
        assert "congruence 0.50" in reason
        assert "nan" not in reason

    def test_a_gain_in_too_few_folds_is_not_called_small(self):
        losses = np.array([[1.0] * 5, [0.1] * 3 + [1.2] * 2])
        reason = RankChoice((1, 2), losses, 3.0, np.ones(2), np.zeros(2)).reason
        assert "0.4600 nats better on average, but in too few folds" in reason


@pytest.mark.recovery
def test_data_that_is_mostly_zero():
    X = np.random.default_rng(0).random((10, 9, 8)) < 0.05
    profile = rank_profile(X, [1], folds=3, starts=1, jobs=1)
    assert np.isnan(profile.error).all()
    assert np.isfinite(profile.gain).all()


def test_data_without_any_component():
    with pytest.raises(ValueError, match=r"^X: is zero everywhere"):
        rank_profile(np.zeros((5, 6, 7)))


def test_core_consistency_in_single_precision():
    X = simulate((12, 10, 9), 2, eta=0.0, gamma=0.0, rng=0).data
    fit = cp(X, 2)
    single = X.astype(np.float32)
    found = core_consistency(cp(single, 2, init=fit), single)
    assert found == pytest.approx(core_consistency(fit, X), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": []}, "^ranks: "),
        ({"ranks": [0]}, "^ranks: "),
        ({"ranks": [1.5]}, "^ranks: "),
        ({"folds": 1}, "^folds: "),
        ({"mode": 3}, "^mode: "),
        ({"mode": "time"}, "^mode: no mode is named"),
        ({"starts": 0}, "^starts: "),
        ({"jobs": 0}, "^jobs: "),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        rank_profile(np.ones((4, 5, 6)), **options)


# Nine of ten seeds


def sensors(seed):
    """A level, the sun's course, heating in office hours; spikes, a stuck sensor, 15% missing."""
    rng = np.random.default_rng(seed)
    day, hour = np.arange(42), np.arange(24)
    A = np.stack([rng.uniform(8, 12, 30), rng.gamma(2, 4, 30), rng.gamma(1, 4, 30)])
    B = np.stack([np.ones(42), rng.uniform(0.1, 1, 42), 1.0 * (day % 7 < 5)])
    sun = np.clip(np.sin(np.pi * (hour - 6) / 14), 0, None)
    C = np.stack([np.ones(24), sun, 1.0 * ((hour >= 7) & (hour < 18))])
    X = np.einsum("ri,rj,rk->ijk", A, B, C) + rng.normal(0, 0.5, (30, 42, 24))
    spiky, stuck = rng.choice(30, 3, replace=False), rng.integers(30)
    X[spiky] += np.where(rng.random((3, 42, 24)) < 0.15, rng.uniform(20, 60, (3, 42, 24)), 0)
    X[stuck, 10:17] = 35.0
    return np.where(rng.random(X.shape) < 0.15, np.nan, X)


def amino_acids(seed):
    X = np.asarray(robustcp.read(AMINO, key="X.data").data, dtype=float)
    return np.where(np.random.default_rng(seed).random(X.shape) < 0.1, 10 * X, X)


def of_kind(name):
    def make(seed):
        return KINDS[name].make_trial(seed).data

    return make


def simulated(rank):
    return lambda seed: simulate(rank=rank, eta=0.2, gamma=2.0, rng=seed).data


NONNEGATIVE = {"nonnegative": True}
DATA = {
    "rank 2": (simulated(2), 2, {}),
    "rank 3": (simulated(3), 3, {}),
    "rank 5": (simulated(5), 5, {}),
    "rank 8": (simulated(8), 8, {}),
    "uneven noise": (of_kind("uneven_noise"), 4, {}),
    "counts": (of_kind("counts"), 4, NONNEGATIVE),
    "scatter cut": (of_kind("scatter_cut"), 4, NONNEGATIVE),
    "sensors": (sensors, 3, {}),
    "amino acids": (amino_acids, 3, {}),
    "amino acids, nonnegative": (amino_acids, 3, NONNEGATIVE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DATA))
def test_the_rank_is_found_in_nine_of_ten_seeds(name):
    make, rank, options = DATA[name]
    if make is amino_acids and not AMINO.exists():
        pytest.skip("needs the amino acids")
    ranks = range(1, rank + 4)
    found = [rank_profile(make(seed), ranks, rng=seed, **options).rank for seed in range(10)]
    assert found.count(rank) >= 9, found


@pytest.mark.recovery
@pytest.mark.parametrize("seed", [0, 1])
def test_a_table_of_sensors(seed):
    assert rank_profile(sensors(seed), range(2, 5), rng=seed).rank == 3
