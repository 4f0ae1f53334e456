import numpy as np
import pytest

import robustcp
from robustcp import ensemble, factor_match_score, simulate

SIM = simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
FOUND = ensemble(SIM.data, [3, 1, 2], starts=4, jobs=1)


def test_all_models_of_all_starts_and_ranks_are_kept():
    assert FOUND.ranks == (1, 2, 3)
    for rank in FOUND.ranks:
        assert len(FOUND.fits[rank]) == len(FOUND.models[rank]) == 4
        assert all(fit.rank == rank for fit in FOUND.fits[rank])
        assert (np.diff(FOUND.costs[rank]) >= 0).all()
        assert FOUND.similarities[rank][0] == pytest.approx(1)
        assert FOUND.best(rank) is FOUND.fits[rank][0]
    np.testing.assert_allclose(FOUND.errors[2], [1 - fit.explained for fit in FOUND.fits[2]])


def test_the_best_of_the_right_rank_is_the_truth_and_starts_of_a_higher_one_disagree():
    assert factor_match_score(FOUND.best(2), SIM.truth) > 0.97
    assert np.median(FOUND.similarities[2]) > 0.99
    assert FOUND.similarities[3].min() < 0.95
    assert FOUND.errors[2][0] < FOUND.errors[1][0]


def test_models_are_aligned_to_the_best_of_their_rank():
    best, close = FOUND.models[2][0], FOUND.similarities[2] > 0.95
    assert close.sum() > 1
    for model, fit, same in zip(FOUND.models[2], FOUND.fits[2], close, strict=True):
        np.testing.assert_allclose(model.full(), fit.full(), atol=1e-10)
        for A, B in zip(model.factors, best.factors, strict=True):
            assert (np.sum(A * B, axis=0) > (0.9 if same else -1)).all()


def test_starts_are_random_and_can_be_repeated():
    again = ensemble(SIM.data, 3, starts=4, jobs=1)
    np.testing.assert_array_equal(again.costs[3], FOUND.costs[3])
    other = ensemble(SIM.data, 3, starts=4, jobs=1, rng=1)
    assert not np.array_equal(other.costs[3], FOUND.costs[3])


def test_it_goes_on_from_a_folder(tmp_path, monkeypatch):
    ensemble(SIM.data, 2, starts=2, jobs=1, folder=tmp_path)
    called = []
    real = robustcp.cp
    monkeypatch.setattr(
        "robustcp.inference.batch.cp",
        lambda X, *args, **options: called.append(1) or real(X, *args, **options),
    )
    more = ensemble(SIM.data, [1, 2], starts=2, jobs=1, folder=tmp_path)
    assert len(called) == 2
    assert len(more.fits[2]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": []}, "^ranks: must name at least one"),
        ({"ranks": [0]}, "^ranks: "),
        ({"starts": 0}, "^starts: "),
        ({"init": "nvecs"}, "^init: cannot be given"),
        ({"jobs": 0}, "^jobs: "),
        ({"checkpoint": "x.ckpt"}, "^checkpoint: is for one fit"),
        ({"callback": print}, "^callback: is for one fit"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        ensemble(SIM.data, **{"ranks": [1], **options})


def test_a_rank_that_was_not_tried():
    with pytest.raises(ValueError, match=r"^rank: must be one of 1, 2, 3, got 5"):
        FOUND.best(5)
