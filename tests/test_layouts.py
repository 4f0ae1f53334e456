"""What does not depend on the layout of data in memory, nor on the order of its modes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import robustcp
from robustcp.engines import as_engine, select_by_index
from robustcp.engines.sample_indices import draw_flat_indices
from robustcp.noise import estimate_model_noise
from robustcp.optimize.problem import Problem

SIZES = st.lists(st.integers(2, 40), min_size=2, max_size=5)
#: Two modes have one size. There are more entries than a sample has.
SHAPE = (70, 70, 45)


@given(SIZES, st.integers(1, 500), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_sample_of_an_array_has_the_same_entries(shape, count, random):
    order = random.sample(range(len(shape)), len(shape))
    drawn = np.unravel_index(draw_flat_indices(tuple(shape), count), tuple(shape))
    turned_shape = tuple(shape[n] for n in order)
    turned = np.unravel_index(draw_flat_indices(turned_shape, count), turned_shape)
    assert len(drawn[0]) >= count
    expected = sorted(zip(*(drawn[n].tolist() for n in order), strict=True))
    assert sorted(zip(*(index.tolist() for index in turned), strict=True)) == expected


@given(SIZES, st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_sample_of_listed_entries_has_the_same_entries(shape, seed, random):
    rng = np.random.default_rng(seed)
    listed = np.unique(rng.integers(0, shape, (200, len(shape))), axis=0)
    order = random.sample(range(len(shape)), len(shape))
    turned = rng.permutation(listed)[:, order]
    count = len(listed) // 2
    found, expected = (
        {tuple(row) for row in x[select_by_index(x.T, count)].tolist()}
        for x in (turned, listed[:, order])
    )
    # Entries with the same indices in other modes have the same hash: one of them is at the end.
    assert len(found) == count
    assert {tuple(sorted(row)) for row in found} == {tuple(sorted(row)) for row in expected}


def test_samples_are_spread_evenly():
    shape, count = (60, 60, 60), 1 << 16
    flat = draw_flat_indices(shape, count)
    chosen = select_by_index(np.unravel_index(np.arange(60**3), shape), count)
    for positions in (flat, chosen):
        for index in np.unravel_index(positions, shape):
            share = np.bincount(index, minlength=60) / len(index)
            assert np.abs(share * 60 - 1).max() < 0.15
        values = np.random.default_rng(0).standard_normal(60**3)[positions]
        assert abs(values.mean()) < 0.02
        assert abs(values.std() - 1) < 0.01


def simulated(kind):
    rng = np.random.default_rng(0)
    factors = [np.abs(rng.standard_normal((n, 2))) for n in SHAPE]
    M = np.einsum("ar,br,cr->abc", *factors)
    sigma = 0.1 * M.std()
    if kind == "slabs":
        sigma = sigma * np.exp(rng.uniform(-1, 1, (SHAPE[0], 1, 1)))
    elif kind == "signal":
        sigma = 0.2 * sigma + 0.1 * M
    X = M + sigma * rng.standard_normal(SHAPE)
    X += np.where(rng.random(SHAPE) < 0.1, 5 * M.std(), 0.0)
    X[rng.random(SHAPE) < 0.05] = np.nan
    return X, factors


@pytest.mark.parametrize("kind", ["common", "slabs", "signal"])
def test_noise_is_the_same(kind):
    """Given the factors: sums are rounded in another order, and nothing else differs."""
    X, factors = simulated(kind)

    def estimated(order, layout):
        problem = Problem.of(as_engine(np.asarray(X.transpose(order), order=layout)))
        turned = tuple(factors[n] for n in order)
        return estimate_model_noise(problem.engine, turned, problem.resolution, problem.units)

    expected = estimated((0, 1, 2), "C")
    assert (expected.homoscedastic, expected.kind.signal) == (kind == "common", kind == "signal")
    for order, layout in itertools.product(((0, 1, 2), (1, 0, 2), (2, 0, 1)), "CF"):
        found = estimated(order, layout)
        tol = 1e-9 if kind == "common" else 1e-4  # the last of the drawn entries may differ
        assert found.sigma == pytest.approx(expected.sigma, rel=tol)
        assert found.clean == pytest.approx(expected.clean, rel=tol)
        for n, v in enumerate(found.slabs):
            assert (v is None) == (expected.slabs[order[n]] is None)
            assert v is None or np.allclose(v, expected.slabs[order[n]], rtol=1e-3)


@pytest.mark.parametrize("listed", [False, True])
def test_flags_are_the_same(listed):
    """But for entries at the threshold: fits end when the objective hardly falls."""
    sim = robustcp.simulate((60, 60, 60), 2, eta=0.1, gamma=1.0, rng=0)
    X = sim.data.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.5 * listed] = np.nan

    def fitted(order, layout):
        Y = np.asarray(X.transpose(order), order=layout)
        indices = np.argwhere(~np.isnan(Y))
        data = robustcp.Observed(indices, Y[tuple(indices.T)], Y.shape) if listed else Y
        fit = robustcp.cp(data, 2)
        found = fit.outliers(Y)
        return fit, *(np.transpose(x, np.argsort(order)) for x in (found.mask, found.scores))

    first, mask, scores = fitted((0, 1, 2), "C")
    for order, layout in (((2, 0, 1), "C"), ((1, 0, 2), "F")):
        fit, other_mask, other_scores = fitted(order, layout)
        assert fit.scale == pytest.approx(first.scale, rel=1e-3)
        differ = mask != other_mask
        assert differ.sum() <= 2
        threshold = first.outliers(X).threshold
        assert np.allclose(np.abs(scores[differ]), threshold, rtol=1e-3)
        assert np.nanmax(np.abs(scores - other_scores) / (1 + np.abs(scores))) < 0.01
