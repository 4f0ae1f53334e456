"""Core consistency: whether the components of a CP model compensate each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

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


@dataclass(frozen=True, eq=False)
class EntryResiduals:
    """The residuals of a model at some entries of the data.

    Attributes
    ----------
    model : KruskalTensor
    indices : integer array (count, N)
    residuals : float64 array (count,)
        The residuals in units of their noise.
    sigma : float64 array (count,)
        The standard deviation of the noise.
    """

    model: KruskalTensor
    indices: np.ndarray
    residuals: np.ndarray
    sigma: np.ndarray

    @cached_property
    def without_outliers(self) -> EntryResiduals:
        """The entries that are no outliers, or as many of them as the core takes, at random."""
        positions = np.flatnonzero(np.abs(self.residuals) <= OUTLIER_CUTOFF)
        core_size = self.model.rank ** self.indices.shape[1]
        max_count = min(MAX_ENTRIES, max(MIN_ENTRIES, MAX_WORK // core_size))
        if positions.size > max_count:
            positions = np.sort(np.random.default_rng(0).permutation(positions)[:max_count])
        return EntryResiduals(
            self.model, self.indices[positions], self.residuals[positions], self.sigma[positions]
        )


def consistency(entries: EntryResiduals) -> float:
    """Core consistency in percent: 100 (1 - |core - ideal|^2 / rank).

    The core fits the entries by least squares in units of their noise: it is the ideal one, a
    superdiagonal of ones, plus the core that fits the residuals. NaN if there are fewer than two
    entries for each of its elements.
    """
    rank, clean = entries.model.rank, entries.without_outliers
    size = rank ** entries.indices.shape[1]
    if size > MAX_CORE_SIZE or clean.residuals.size < 2 * size:
        return float("nan")
    return float(100 * (1 - np.sum(_core_deviation(clean) ** 2) / rank))


def chance_consistency(entries: EntryResiduals) -> float:
    """The core consistency if residuals were noise: for residuals with random signs.

    The core of weak components is uncertain; the difference to this shows whether it is wrong.
    """
    clean = entries.without_outliers
    signs = np.random.default_rng(1).choice([-1.0, 1.0], clean.residuals.size)
    return consistency(replace(clean, residuals=signs * clean.residuals))


def _core_deviation(entries: EntryResiduals) -> np.ndarray:
    """The core that fits the residuals best, by conjugate gradients.

    Factors are made orthogonal first, so that a few iterations are enough.
    """
    from scipy.sparse.linalg import LinearOperator, lsmr

    bases, triangles = zip(*map(np.linalg.qr, entries.model.absorbed()), strict=True)
    rows = [Q[entries.indices[:, n]] * np.sqrt(len(Q)) for n, Q in enumerate(bases)]
    unit = float(np.mean(entries.sigma))
    rows[0] = rows[0] * (unit / entries.sigma)[:, None]
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
    core = lsmr(operator, entries.residuals, atol=1e-8, btol=1e-8, maxiter=200)[0].reshape(shape)
    core = core * unit * prod(np.sqrt(len(Q)) for Q in bases)
    for mode, R in enumerate(triangles):
        core = np.moveaxis(np.tensordot(np.linalg.pinv(R), core, axes=(1, mode)), 0, mode)
    return np.asarray(core)
