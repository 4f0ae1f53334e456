from itertools import combinations

import numpy as np
import pytest
import xarray

import robustcp
from robustcp import Observed, replicability, simulate

SIM = simulate((21, 9, 8), 3, eta=0.1, gamma=1.0, rng=0)
RIGHT = replicability(SIM.data, 3, folds=4, jobs=1)


def test_scores_are_those_of_tensorly_viz():
    factor_tools = pytest.importorskip("tlviz.factor_tools")
    expected = [
        factor_tools.factor_match_score(
            RIGHT.models[i].to_tensorly(), RIGHT.models[j].to_tensorly(),
            consider_weights=False, skip_mode=0, allow_smaller_rank=True,
        )
        for i, j in RIGHT.pairs
    ]  # fmt: skip
    np.testing.assert_allclose(RIGHT.scores, expected, rtol=1e-12)


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_factor_match_score_with_a_mode_skipped_is_that_of_tensorly_viz(skip):
    factor_tools = pytest.importorskip("tlviz.factor_tools")
    rng = np.random.default_rng(skip)
    models = [(rng.uniform(1, 2, 3), [rng.standard_normal((n, 3)) for n in (5, 6, 7)])
              for _ in range(2)]  # fmt: skip
    expected = factor_tools.factor_match_score(*models, consider_weights=False, skip_mode=skip)
    found = robustcp.factor_match_score(*models, weights=False, skip=skip)
    assert found == pytest.approx(expected, rel=1e-12)


def test_parts_are_left_out_once_each():
    left_out = [np.setdiff1d(np.arange(21), kept) for kept in RIGHT.kept]
    assert sorted(np.concatenate(left_out).tolist()) == list(range(21))
    assert {out.size for out in left_out} == {5, 6}
    assert RIGHT.pairs == tuple(combinations(range(4), 2))
    assert [model.shape for model in RIGHT.models] == [(21 - out.size, 9, 8) for out in left_out]


def test_models_are_aligned_to_the_fit():
    for model, row in zip(RIGHT.models, RIGHT.congruences, strict=True):
        pairs = zip(model.factors[1:], RIGHT.fit.factors[1:], strict=True)
        cosines = [np.sum(A * B, axis=0) for A, B in pairs]
        assert (np.array(cosines) > 0.9).all()
        np.testing.assert_allclose(row, np.prod(cosines, axis=0))
    assert (RIGHT.came_back == 1).all()


def test_scores_fall_when_the_rank_is_too_high_by_one():
    wrong = replicability(SIM.data, 4, folds=4, jobs=1, starts=4)
    assert wrong.score < RIGHT.score - 0.02
    assert wrong.came_back.min() < 1
    assert RIGHT.score > 0.98


@pytest.mark.recovery
def test_split_half():
    found = replicability(SIM.data, 3, preset="split_half", jobs=1)
    assert found.names == ("AB", "CD", "AC", "BD", "AD", "BC")
    assert found.pairs == ((0, 1), (2, 3), (4, 5))
    for i, j in found.pairs:
        both = np.sort(np.concatenate([found.kept[i], found.kept[j]]))
        assert both.tolist() == list(range(21))
    assert 0 in found.kept[0]
    assert 1 in found.kept[0]
    assert 2 in found.kept[1]
    assert found.score > 0.95


def test_groups_stay_together_and_repeats_are_dealt_anew():
    groups = [f"patient {k // 3}" for k in range(21)]
    found = replicability(SIM.data, 3, folds=3, repeats=2, groups=groups, jobs=1, starts=1)
    assert len(found.models) == 6
    assert len(found.pairs) == 6  # within each repeat
    for kept in found.kept:
        assert all(np.isin([3 * k, 3 * k + 1, 3 * k + 2], kept).sum() in (0, 3) for k in range(7))
    assert any(found.kept[0].tolist() != found.kept[3 + k].tolist() for k in range(3))


@pytest.mark.recovery
def test_modes_by_name_and_listed_entries():
    X = xarray.DataArray(SIM.data, dims=("time", "site", "sample"))
    found = replicability(X, 3, mode="sample", folds=2, jobs=1, starts=1)
    assert found.mode == 2
    assert found.models[0].shape == (21, 9, 4)
    assert "sample" in repr(found)
    seen = np.random.default_rng(0).random(SIM.data.shape) < 0.9
    listed = Observed(np.argwhere(seen), SIM.data[seen], SIM.data.shape)
    assert replicability(listed, 3, folds=2, jobs=1, starts=1).score > 0.9


@pytest.mark.recovery
@pytest.mark.parametrize(
    ("by_name", "by_number"),
    [
        ({"constraints": {"site": robustcp.Smooth(0.01)}},
         {"constraints": {1: robustcp.Smooth(0.01)}}),
        ({"cases": "time"}, {"cases": 0}),
    ],
)  # fmt: skip
def test_options_may_call_modes_by_name(by_name, by_number):
    X = xarray.DataArray(SIM.data, dims=("time", "site", "sample"), coords={"time": range(21)})
    named = replicability(X, 2, folds=3, jobs=1, starts=1, **by_name)
    plain = replicability(SIM.data, 2, folds=3, jobs=1, starts=1, **by_number)
    np.testing.assert_allclose(named.scores, plain.scores, rtol=1e-9)


@pytest.mark.parametrize("kind", [np.asarray, xarray.DataArray, list, tuple])
def test_groups_of_any_kind(kind):
    numbers = np.repeat([3, 1, 2], 7)
    found = replicability(SIM.data, 1, groups=kind(numbers.tolist()), jobs=1, starts=1)
    assert len(found.kept) == 3
    assert all(np.unique(numbers[kept]).size == 2 for kept in found.kept)


def test_a_folder_keeps_the_fits(tmp_path):
    first = replicability(SIM.data, 3, folds=3, jobs=1, starts=1, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    again = replicability(SIM.data, 3, folds=3, jobs=1, starts=1, folder=tmp_path)
    np.testing.assert_array_equal(first.scores, again.scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": 3}, "^mode: must be an integer from 0 to 2"),
        ({"mode": "site"}, "^mode: no mode is named 'site'"),
        ({"folds": 22}, "^folds: must be at most the 21 samples"),
        ({"folds": 1}, "^folds: "),
        ({"repeats": 0}, "^repeats: "),
        ({"groups": ["a"] * 21}, "^groups: must be at least two"),
        ({"groups": ["a", "b"]}, "^groups: must be one for each of the 21 samples, got 2"),
        ({"groups": [np.nan] * 20 + [1.0]}, "^groups: must be names or numbers, got nan"),
        ({"groups": [[1]] * 21}, "^groups: must be names or numbers, got"),
        ({"groups": 3}, "^groups: must be one for each of the 21 samples, got 1"),
        ({"callback": print}, "^callback: is for one fit"),
        ({"preset": "thirds"}, "^preset: must be one of 'split_half'"),
        ({"preset": "split_half", "folds": 3}, "^folds: cannot be given together with a preset"),
        ({"preset": "split_half", "repeats": 3}, "^repeats: cannot be given together"),
        ({"init": [np.ones((21, 3))]}, "^init: must be a kind of start"),
        ({"entry_weights": np.ones((21, 9, 8))}, "^entry_weights: cannot be given here"),
        ({"noise": 0.1}, "^noise: must be a kind"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        replicability(SIM.data, 3, **options)


def test_a_mode_too_short_to_split():
    with pytest.raises(ValueError, match=r"^mode: has 2 samples, too few to leave some out"):
        replicability(SIM.data[:2], 1)
    with pytest.raises(ValueError, match=r"^mode: has 3 samples, too few for quarters"):
        replicability(SIM.data[:3], 1, preset="split_half")
    with pytest.raises(ValueError, match=r"^mode: has 2 groups, too few"):
        replicability(SIM.data[:4], 1, groups=[0, 0, 1, 1])
