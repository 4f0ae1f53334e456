"""The core of a CP model: how much its components mend each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from robustcp.model.kruskal import KruskalTensor

#: The most entries, times the numbers of a core, from which a core is estimated;
MAX_WORK = 1 << 26
#: but at least so many entries,
MIN_ENTRIES = 1 << 12
#: and at most so many.
MAX_ENTRIES = 1 << 17
#: Residuals beyond this, in units of their noise, do not count.
OUTLIER_CUTOFF = 3.29
#: The largest core.
MAX_CORE_SIZE = 20_000


@dataclass(frozen=True, eq=False)
class EntryResiduals:
    """Some entries of the data beside a model.

    Attributes
    ----------
    model : KruskalTensor
    indices : integer array (count, N)
    residuals : float64 array (count,)
        In units of their noise.
    sigma : float64 array (count,)
        The standard deviation of the noise.
    """

    model: KruskalTensor
    indices: np.ndarray
    residuals: np.ndarray
    sigma: np.ndarray

    @cached_property
    def without_outliers(self) -> EntryResiduals:
        """Without outliers, and not more than are needed."""
        positions = np.flatnonzero(np.abs(self.residuals) <= OUTLIER_CUTOFF)
        max_count = min(
            MAX_ENTRIES, max(MIN_ENTRIES, MAX_WORK // self.model.rank ** self.indices.shape[1])
        )
        if positions.size > max_count:
            positions = np.sort(np.random.default_rng(0).permutation(positions)[:max_count])
        return EntryResiduals(
            self.model, self.indices[positions], self.residuals[positions], self.sigma[positions]
        )


def consistency(entries: EntryResiduals) -> float:
    """Core consistency in percent: 100 (1 - |core - ideal|^2 / rank).

    The core is the one that describes the entries best by least squares in units of their noise:
    the ideal one, a superdiagonal of ones, plus what the residuals ask for. NaN if there are too
    few of them for its numbers.
    """
    rank, clean = entries.model.rank, entries.without_outliers
    size = rank ** entries.indices.shape[1]
    if size > MAX_CORE_SIZE or clean.residuals.size < 2 * size:
        return float("nan")
    return float(100 * (1 - np.sum(_core_deviation(clean) ** 2) / rank))


def chance_consistency(entries: EntryResiduals) -> float:
    """What the core consistency would be if residuals were noise: with random signs of theirs.

    Weak components have a core that is uncertain; this tells it from one that is wrong.
    """
    clean = entries.without_outliers
    signs = np.random.default_rng(1).choice([-1.0, 1.0], clean.residuals.size)
    return consistency(
        EntryResiduals(clean.model, clean.indices, signs * clean.residuals, clean.sigma)
    )


def _core_deviation(entries: EntryResiduals) -> np.ndarray:
    """The core that describes residuals best, by conjugate gradients.

    Factors are made orthogonal first, so that the problem is nearly solved at once.
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
