from __future__ import annotations

import numpy as np
import pytest

import robustcp.starts.svd
from robustcp import nvecs, simulate
from support.oracles import host


def unfold(X, mode):
    return np.moveaxis(X, mode, 0).reshape(X.shape[mode], -1)


def assert_leading(U, X, mode, tol=1e-6):
    """U spans the leading left singular vectors, one by one."""
    left = np.linalg.svd(unfold(X, mode), full_matrices=False)[0][:, : U.shape[1]]
    np.testing.assert_allclose(np.abs(np.sum(U * left, axis=0)), 1.0, atol=tol)


@pytest.mark.parametrize("shape", [(6, 30), (30, 6), (8, 7, 6), (40, 3, 4), (5, 4, 3, 6)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_equals_svd(xp, shape, order):
    X = np.asarray(np.random.default_rng(0).standard_normal(shape), order=order)
    for mode in range(X.ndim):
        U = nvecs(xp.asarray(X), mode, 3)
        assert_leading(host(U), X, mode)
        assert np.all(host(U).max(axis=0) >= -host(U).min(axis=0))
        assert type(U) is type(xp.asarray(X))


def test_iterative_when_both_grams_are_large(monkeypatch):
    monkeypatch.setattr(robustcp.starts.svd, "GRAM_LIMIT", 10)
    X = simulate((40, 30, 20), 4, eta=0.1, gamma=0.5, rng=0).data
    for mode in range(3):
        assert_leading(nvecs(X, mode, 4), X, mode)


@pytest.mark.parametrize("shape", [(200_000, 10, 10), (20_000, 3, 100)], ids=str)
def test_long_modes_in_every_mode(shape):
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((size, 2)) for size in shape]
    X = np.empty(shape, dtype=np.float32)
    for k in range(0, shape[0], 10_000):
        part = slice(k, k + 10_000)
        X[part] = np.einsum("ir,jr,kr->ijk", factors[0][part], *factors[1:])
    for mode, A in enumerate(factors):
        U = nvecs(X, mode, 2)
        assert U.dtype == np.float32
        inside = U @ (U.T @ A)
        assert np.linalg.norm(inside - A) <= 1e-4 * np.linalg.norm(A)


class TestUndeterminedColumns:
    def test_above_the_size_of_the_mode(self):
        X = np.random.default_rng(0).standard_normal((4, 20, 20))
        U = nvecs(X, 0, 7, rng=1)
        assert U.shape == (4, 7)
        np.testing.assert_allclose(U[:, :4].T @ U[:, :4], np.eye(4), atol=1e-10)
        np.testing.assert_allclose(np.linalg.norm(U, axis=0), 1.0)

    def test_above_the_rank_of_the_unfolding_they_are_orthogonal(self):
        X = np.random.default_rng(0).standard_normal((30, 2, 3))
        U = nvecs(X, 0, 9)
        np.testing.assert_allclose(U.T @ U, np.eye(9), atol=1e-10)
        assert_leading(U[:, :6], X, 0)

    def test_seeded(self):
        X = np.random.default_rng(0).standard_normal((4, 20))
        assert np.array_equal(nvecs(X, 0, 7), nvecs(X, 0, 7))
        assert np.array_equal(nvecs(X, 0, 7, rng=1), nvecs(X, 0, 7, rng=1))
        assert not np.array_equal(nvecs(X, 0, 7, rng=1), nvecs(X, 0, 7, rng=2))

    def test_zeros(self):
        U = nvecs(np.zeros((5, 4, 3)), 0, 2)
        np.testing.assert_allclose(U.T @ U, np.eye(2), atol=1e-12)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_extreme_values(size):
    X = np.random.default_rng(0).standard_normal((6, 7, 8))
    np.testing.assert_allclose(nvecs(X * size, 1, 3), nvecs(X, 1, 3), atol=1e-8)


@pytest.mark.parametrize(
    ("mode", "rank", "name"), [(3, 1, "mode"), (0.5, 1, "mode"), (0, 0, "rank")]
)
def test_bad_input(mode, rank, name):
    with pytest.raises(ValueError, match=f"^{name}: .*got"):
        nvecs(np.ones((3, 3, 3)), mode, rank)
