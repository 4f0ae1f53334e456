from __future__ import annotations

import numpy as np
import pytest

from robustcp import core_consistency, cp, cpals, rank_profile, simulate
from robustcp.ranks import _choose


def test_rank_of_the_paper_is_found(paper):
    profile = rank_profile(paper[1].data, range(3, 8))
    assert profile.rank == 5
    assert "rank 6" in profile.reason
    assert profile.error.argmin() >= 2
    assert profile.stability[2] > 0.99


def test_plot():
    import matplotlib as mpl

    mpl.use("Agg")
    sim = simulate((14, 13, 12), 2, eta=0.1, gamma=1.0, rng=0)
    profile = rank_profile(sim.data, [1, 2, 3])
    assert profile.rank == 2
    assert "recommended: 2" in profile.plot().get_xlabel()
    assert "rank 2" in repr(profile)


def test_core_consistency_is_that_of_the_best_core():
    sim = simulate((7, 6, 5), 2, eta=0.0, gamma=0.0, noise=0.3, rng=0)
    fit = cpals(sim.data, 3)
    clean = np.where(fit.outliers(sim.data).mask, fit.full(), sim.data)
    A, B, C = fit.model.absorbed()
    core = np.linalg.lstsq(np.kron(np.kron(A, B), C), clean.ravel())[0].reshape(3, 3, 3)
    ideal = np.zeros((3, 3, 3))
    ideal[range(3), range(3), range(3)] = 1
    expected = 100 * (1 - np.sum((core - ideal) ** 2) / 3)
    assert core_consistency(fit, sim.data) == pytest.approx(expected, rel=1e-6)
    right = simulate((15, 15, 15), 2, eta=0.1, gamma=2.0, rng=0)
    assert core_consistency(cp(right.data, 2), right.data) > 95


class TestChoice:
    ranks = (1, 2, 3, 4)
    good = np.full(4, 100.0)

    def choose(self, error, consistency, stability):
        return _choose(self.ranks, *map(np.array, (error, consistency, stability)))

    def test_where_the_error_stops_falling(self):
        assert self.choose([1, 0.5, 0.3, 0.299], self.good, [1, 0.7, 1, 1])[0] == 3

    def test_components_that_do_not_come_back_are_not_taken(self):
        rank, reason = self.choose([1, 0.5, 0.3, 0.2], self.good, [1, 1, 0.6, 0.5])
        assert rank == 2
        assert "rank 3 do not come back" in reason

    def test_still_falling(self):
        rank, reason = self.choose([1, 0.5, 0.3, 0.2], self.good, [1, 1, 1, 1])
        assert rank == 4
        assert "still falls" in reason


@pytest.mark.parametrize("ranks", [[], [0], [1.5]])
def test_bad_input(ranks):
    with pytest.raises(ValueError, match=r"^ranks: "):
        rank_profile(np.ones((4, 5, 6)), ranks)
