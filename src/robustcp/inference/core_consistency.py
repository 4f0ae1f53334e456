"""Core consistency: whether the components of a CP model compensate each other."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from robustcp.engines import Entries
from robustcp.model.kruskal import KruskalTensor

#: The most entries that estimate a core, times the number of its elements.
MAX_WORK = 1 << 26
#: The number of entries that estimate even the largest core.
MIN_ENTRIES = 1 << 12
#: The most entries that estimate a core.
MAX_ENTRIES = 1 << 17
#: Entries with larger residuals, in units of their noise, are left out.
OUTLIER_CUTOFF = 3.29
#: The most elements of a core.
MAX_CORE_SIZE = 20_000


def consistency(model: KruskalTensor, residuals: Entries) -> float:
    """Core consistency in percent: 100 (1 - |core - ideal|^2 / rank).

    The core fits the entries by least squares in units of their noise: it is the ideal one, a
    superdiagonal of ones, plus the core that fits the residuals. NaN if there are fewer than two
    entries for each of its elements.

    Parameters
    ----------
    residuals : Entries
        Residuals in units of their noise, whose standard deviations are the scales.
    """
    clean, size = _without_outliers(model, residuals), model.rank ** len(residuals.shape)
    if size > MAX_CORE_SIZE or clean.values.size < 2 * size:
        return float("nan")
    return float(100 * (1 - np.sum(_core_deviation(model, clean) ** 2) / model.rank))


def chance_consistency(model: KruskalTensor, residuals: Entries) -> float:
    """The core consistency if residuals were noise: for residuals with random signs.

    The core of weak components is uncertain; the difference to this shows whether it is wrong.
    """
    clean = _without_outliers(model, residuals)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], clean.values.size)
    return consistency(model, replace(clean, values=signs * clean.values))


def _without_outliers(model: KruskalTensor, residuals: Entries) -> Entries:
    """The entries that are no outliers, or as many of them as the core takes, at random."""
    positions = np.flatnonzero(np.abs(residuals.values) <= OUTLIER_CUTOFF)
    needed = max(MIN_ENTRIES, MAX_WORK // model.rank ** len(residuals.shape))
    if positions.size > min(MAX_ENTRIES, needed):
        drawn = np.random.default_rng(0).permutation(positions)[: min(MAX_ENTRIES, needed)]
        positions = np.sort(drawn)
    return residuals.select(positions)


def _core_deviation(model: KruskalTensor, residuals: Entries) -> np.ndarray:
    """The core that fits the residuals best, by conjugate gradients.

    Factors are made orthogonal first, so that a few iterations are enough.
    """
    from scipy.sparse.linalg import LinearOperator, lsmr

    bases, triangles = zip(*map(np.linalg.qr, model.absorbed()), strict=True)
    pairs = zip(bases, residuals.indices, strict=True)
    rows = [Q[index] * np.sqrt(len(Q)) for Q, index in pairs]
    sigma = np.ones(1) if residuals.scales is None else residuals.scales
    unit = float(np.mean(sigma))
    rows[0] = rows[0] * (unit / sigma)[:, None]
    shape = tuple(Q.shape[1] for Q in bases)

    def expand(core: np.ndarray) -> np.ndarray:
        product = rows[0] @ core.reshape(shape[0], -1)
        for Q in rows[1:]:
            product = np.einsum("nr,nrk->nk", Q, product.reshape(*Q.shape, -1))
        return np.asarray(product.ravel())

    def contract(values: np.ndarray) -> np.ndarray:
        product = values.reshape(-1, 1)
        for Q in rows[:0:-1]:
            product = (Q[:, :, None] * product[:, None, :]).reshape(len(Q), -1)
        return np.asarray((rows[0].T @ product).ravel())

    operator = LinearOperator((len(rows[0]), prod(shape)), matvec=expand, rmatvec=contract)
    core = lsmr(operator, residuals.values, atol=1e-8, btol=1e-8, maxiter=200)[0].reshape(shape)
    core = core * unit * prod(np.sqrt(len(Q)) for Q in bases)
    for mode, R in enumerate(triangles):
        core = np.moveaxis(np.tensordot(np.linalg.pinv(R), core, axes=(1, mode)), 0, mode)
    return np.asarray(core)
