from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcp import KruskalTensor, congruence, factor_match_score


def model(rank, seed, shape=(5, 6, 7)):
    rng = np.random.default_rng(seed)
    factors = tuple(rng.standard_normal((size, rank)) for size in shape)
    return KruskalTensor(rng.uniform(0.5, 2, rank), factors)


@given(
    ranks=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    seed=st.integers(0, 10_000),
    weights=st.booleans(),
)
def test_equals_tensorly_viz(ranks, seed, weights):
    from tlviz.factor_tools import factor_match_score as theirs

    a, b = model(ranks[0], seed), model(ranks[1], seed + 1)
    expected = theirs(a.to_tensorly(), b.to_tensorly(), consider_weights=weights)
    assert factor_match_score(a, b, weights=weights) == pytest.approx(expected, rel=1e-10)


@given(seed=st.integers(0, 10_000), weights=st.booleans())
def test_is_the_best_over_all_pairings(seed, weights):
    a, b = model(3, seed).normalized(), model(3, seed + 1).normalized()
    scores = congruence(a, b)
    if weights:
        w, v = a.weights[:, None], b.weights[None, :]
        scores = scores * (1 - np.abs(w - v) / np.maximum(w, v))
    best = max(scores[range(3), p].mean() for p in itertools.permutations(range(3)))
    assert factor_match_score(a, b, weights=weights) == pytest.approx(best, rel=1e-12)


def test_more_components_than_the_truth_do_no_harm_to_those_that_match():
    truth = model(2, 0)
    extra = model(1, 5)
    more = KruskalTensor(
        np.concatenate([truth.weights, extra.weights]),
        tuple(np.hstack(pair) for pair in zip(truth.factors, extra.factors, strict=True)),
    )
    assert factor_match_score(more, truth) == pytest.approx(1.0)
    assert factor_match_score(truth, more) == pytest.approx(1.0)


def test_weight_penalty():
    truth = model(2, 0)
    double = KruskalTensor(2 * truth.weights, truth.factors)
    assert factor_match_score(double, truth) == pytest.approx(0.5)
    assert factor_match_score(double, truth, weights=False) == pytest.approx(1.0)


def test_empty_components_score_nothing():
    truth = model(2, 0)
    nothing = KruskalTensor.from_factors([np.zeros((size, 2)) for size in truth.shape])
    assert factor_match_score(nothing, truth) == 0.0
    assert factor_match_score(nothing, nothing) == 0.0


def test_any_library(xp):
    truth = model(2, 0)
    ours = KruskalTensor(xp.asarray(truth.weights), tuple(xp.asarray(A) for A in truth.factors))
    assert factor_match_score(ours, truth) == pytest.approx(1.0)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(5, 6, 7\).*\(5, 6, 8\)"):
        factor_match_score(model(2, 0), model(2, 0, (5, 6, 8)))
