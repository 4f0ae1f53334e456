"""Starts for data of which few entries are known, against products that are written out."""

from __future__ import annotations

import numpy as np
import pytest

import robustcp
import robustcp.starts.svd
from robustcp import KruskalTensor, Observed, as_engine, factor_match_score
from robustcp.starts.spectral import _core_tensor, spectral_factors
from robustcp.starts.svd import hollow_gram_eigenvectors


def few(shape, rank, count, seed=0, outliers=0.1):
    """Some entries of a model with signed factors, as a list and as an array with gaps."""
    rng = np.random.default_rng(seed)
    truth = KruskalTensor.from_factors([rng.standard_normal((size, rank)) for size in shape])
    whole = truth.full()
    at = np.unravel_index(rng.choice(whole.size, count, replace=False), shape)
    values = whole[at] + 0.1 * whole.std() * rng.standard_normal(count)
    values += 10 * whole.std() * rng.standard_normal(count) * (rng.random(count) < outliers)
    gaps = np.full(shape, np.nan)
    gaps[at] = values
    return Observed(np.stack(at, axis=1), values, shape), gaps, truth


@pytest.mark.parametrize("limit", [5, 1024], ids=["by products", "by the matrix"])
@pytest.mark.parametrize("listed", [True, False])
def test_eigenvectors_of_the_gram_matrix_without_its_diagonal(monkeypatch, listed, limit):
    monkeypatch.setattr(robustcp.starts.svd, "GRAM_LIMIT", limit)
    data, gaps, _ = few((30, 20, 25), 2, 3000, outliers=0.0)
    engine, X = as_engine(data if listed else gaps), np.nan_to_num(gaps)
    for mode, letters in enumerate(("iab,jab->ij", "aib,ajb->ij", "abi,abj->ij")):
        gram = np.einsum(letters, X, X)
        leading = np.linalg.eigh(gram - np.diag(np.diag(gram)))[1][:, :-3:-1]
        found = hollow_gram_eigenvectors(engine, mode, 2, np.random.default_rng(0))
        np.testing.assert_allclose(np.abs(np.sum(found * leading, axis=0)), 1.0, atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 8), (9, 8, 7), (6, 5, 4, 3)], ids=str)
def test_core(monkeypatch, shape):
    monkeypatch.setattr("robustcp.starts.spectral.BLOCK_ENTRIES", 64)  # several parts
    count = int(np.prod(shape)) // 2
    data, gaps, _ = few(shape, 2, count)
    rng = np.random.default_rng(1)
    bases = [rng.standard_normal((size, k + 1)) for k, size in enumerate(shape)]
    expected = np.nan_to_num(gaps)
    for U in bases:  # the first mode goes, and comes back as the last
        expected = np.tensordot(expected, U, axes=(0, 0))
    found = _core_tensor(as_engine(data), bases)
    np.testing.assert_allclose(found, expected * gaps.size / count, rtol=1e-10)


def test_factors_are_near_the_truth_where_singular_vectors_are_not():
    data, _, truth = few((150, 150, 150), 2, 20000)
    engine = as_engine(data).clipped(float(np.median(np.abs(data.values))))
    near = spectral_factors(engine, 2, np.random.default_rng(0))
    assert factor_match_score(KruskalTensor.from_factors(near), truth, weights=False) > 0.5
    plain = [robustcp.nvecs(engine, mode, 2) for mode in range(3)]
    assert factor_match_score(KruskalTensor.from_factors(plain), truth, weights=False) < 0.3


@pytest.mark.parametrize("rank", [5, 300], ids=["above the size of a mode", "a large core"])
def test_any_rank(rank):
    data, _, _ = few((40, 30, 3), 2, 1200)
    factors = spectral_factors(as_engine(data), rank, np.random.default_rng(0))
    assert [A.shape for A in factors] == [(40, rank), (30, rank), (3, rank)]
    assert all(np.all(np.isfinite(A)) for A in factors)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("count", [20000, 40000], ids=["few entries in a row", "some"])
def test_cp_finds_signed_factors_from_few_entries(seed, count):
    data, _, truth = few((150, 150, 150), 3, count, seed)
    fit = robustcp.cp(data, 3, rng=0)
    assert factor_match_score(fit, truth) > 0.98
    assert fit.warnings == ()


@pytest.mark.recovery
def test_noise_alone_is_doubted():
    data, _, _ = few((40, 40, 40), 2, 6000)
    values = np.random.default_rng(0).standard_normal(data.values.size)
    fit = robustcp.cp(Observed(data.indices, values, data.shape), 2, rng=0)
    assert {"weak", "idle", "one_start", "ambiguous"} & {warning.code for warning in fit.warnings}
