from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorly
from hypothesis import given
from hypothesis import strategies as st

from robustcp import KruskalTensor
from support.oracles import host


def random_model(shape=(4, 5, 6), rank=3, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(rank)
    return KruskalTensor(weights, tuple(rng.standard_normal((size, rank)) for size in shape))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 6), (2, 3, 4, 5), (1, 3, 1)], ids=str)
def test_full_at_and_every_form_are_the_same_tensor(shape):
    model = random_model(shape)
    letters = "abcd"[: len(shape)]
    terms = ",".join(f"{c}r" for c in letters)
    expected = np.einsum(f"r,{terms}->{letters}", model.weights, *model.factors)
    np.testing.assert_allclose(model.full(), expected, atol=1e-12)
    np.testing.assert_allclose(model.normalized().full(), expected, atol=1e-12)
    absorbed = KruskalTensor.from_factors(model.absorbed())
    np.testing.assert_allclose(absorbed.full(), expected, atol=1e-12)
    indices = np.argwhere(np.ones(shape))
    np.testing.assert_allclose(model.at(indices), expected.ravel(), atol=1e-12)


@given(seed=st.integers(0, 1000), rank=st.integers(1, 4))
def test_canonical_form_is_one_for_all_writings_of_a_model(seed, rank):
    rng = np.random.default_rng(seed)
    model = random_model(rank=rank, seed=seed)
    order = rng.permutation(rank)
    scales = rng.choice([-1, 1], (3, rank)) * np.exp(rng.standard_normal((3, rank)))
    other = KruskalTensor(
        (model.weights / scales.prod(axis=0))[order],
        tuple((A * s)[:, order] for A, s in zip(model.factors, scales, strict=True)),
    )
    a, b = model.normalized(), other.normalized()
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9)
    for A, B in zip(a.factors, b.factors, strict=True):
        np.testing.assert_allclose(A, B, atol=1e-9)


def test_canonical_form(xp):
    rng = np.random.default_rng(1)
    model = KruskalTensor.from_factors([xp.asarray(rng.standard_normal((n, 3))) for n in (4, 5, 6)])
    weights, factors = model.normalized()
    assert np.all(np.diff(host(weights)) <= 0)
    assert np.all(host(weights) > 0)
    for A in factors:
        np.testing.assert_allclose(np.linalg.norm(host(A), axis=0), 1.0)
    for A in factors[:-1]:
        B = host(A)
        assert np.all(B[np.abs(B).argmax(axis=0), np.arange(3)] > 0)
    assert type(weights) is type(model.weights)


def test_canonical_form_when_two_entries_are_equally_large():
    A, B = np.array([[1.0], [-1.0]]), np.array([[2.0], [3.0]])
    one = KruskalTensor.from_factors([A, B]).normalized()
    other = KruskalTensor.from_factors([-A, -B]).normalized()
    for P, Q in zip(one.factors, other.factors, strict=True):
        assert np.array_equal(P, Q)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_canonical_form_of_extreme_columns_is_finite(size):
    A = np.array([[3.0], [4.0]])
    weights, factors = KruskalTensor.from_factors([A * size, A / size]).normalized()
    np.testing.assert_allclose(weights, [25.0])
    np.testing.assert_allclose(factors[0], [[0.6], [0.8]])


def test_zero_component_stays_zero():
    A = np.array([[1.0, 0.0], [1.0, 0.0]])
    weights, factors = KruskalTensor.from_factors([A, A, A]).normalized()
    np.testing.assert_allclose(weights, [np.sqrt(8), 0.0])
    assert all(np.isfinite(B).all() for B in factors)


def test_goes_to_tensorly_and_back():
    model = random_model()
    np.testing.assert_allclose(tensorly.cp_to_tensor(model.to_tensorly()), model.full())
    there = tensorly.cp_tensor.CPTensor(model.to_tensorly())
    np.testing.assert_allclose(KruskalTensor.from_tensorly(there).full(), model.full())
    bare = KruskalTensor.from_tensorly((None, list(model.factors)))
    np.testing.assert_allclose(bare.weights, np.ones(3))


def test_pickles_and_says_what_it_is():
    model = random_model()
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.full(), model.full())
    assert repr(model) == "KruskalTensor(4x5x6, rank 3)"


def test_factors_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match=r"factors: .*\(4, 3\), \(5, 2\)"):
        KruskalTensor(np.ones(3), (np.ones((4, 3)), np.ones((5, 2))))
