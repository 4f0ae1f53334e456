"""The core of a CP model: how much its components mend each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from robustcp.kruskal import KruskalTensor

#: A core is estimated from so many entries that, times its numbers, they are not more than this;
#: and from how many at least and at most.
WORK, LEAST, MOST = 1 << 26, 1 << 12, 1 << 17
#: Residuals beyond this, in units of their noise, do not count.
OUTLYING = 3.29
#: The largest core.
LARGEST = 20_000


@dataclass(frozen=True, eq=False)
class Cells:
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
    def clean(self) -> Cells:
        """Without outliers, and not more than are needed."""
        at = np.flatnonzero(np.abs(self.residuals) <= OUTLYING)
        wanted = min(MOST, max(LEAST, WORK // self.model.rank ** self.indices.shape[1]))
        if at.size > wanted:
            at = np.sort(np.random.default_rng(0).permutation(at)[:wanted])
        return Cells(self.model, self.indices[at], self.residuals[at], self.sigma[at])


def consistency(cells: Cells) -> float:
    """Core consistency in percent: 100 (1 - |core - ideal|^2 / rank).

    The core is the one that describes the entries best by least squares in units of their noise:
    the ideal one, a superdiagonal of ones, plus what the residuals ask for. NaN if there are too
    few of them for its numbers.
    """
    rank, some = cells.model.rank, cells.clean
    size = rank ** cells.indices.shape[1]
    if size > LARGEST or some.residuals.size < 2 * size:
        return float("nan")
    return float(100 * (1 - np.sum(_change(some) ** 2) / rank))


def by_chance(cells: Cells) -> float:
    """What the core consistency would be if residuals were noise: with random signs of theirs.

    Weak components have a core that is uncertain; this tells it from one that is wrong.
    """
    some = cells.clean
    signs = np.random.default_rng(1).choice([-1.0, 1.0], some.residuals.size)
    return consistency(Cells(some.model, some.indices, signs * some.residuals, some.sigma))


def _change(cells: Cells) -> np.ndarray:
    """The core that describes residuals best, by conjugate gradients.

    Factors are made orthogonal first, so that the problem is nearly solved at once.
    """
    from scipy.sparse.linalg import LinearOperator, lsmr

    bases, triangles = zip(*map(np.linalg.qr, cells.model.absorbed()), strict=True)
    rows = [Q[cells.indices[:, n]] * np.sqrt(len(Q)) for n, Q in enumerate(bases)]
    unit = float(np.mean(cells.sigma))
    rows[0] = rows[0] * (unit / cells.sigma)[:, None]
    shape = tuple(Q.shape[1] for Q in bases)

    def expand(core: np.ndarray) -> np.ndarray:
        found = rows[0] @ core.reshape(shape[0], -1)
        for Q in rows[1:]:
            found = np.einsum("nr,nrk->nk", Q, found.reshape(*Q.shape, -1))
        return np.asarray(found.ravel())

    def contract(values: np.ndarray) -> np.ndarray:
        found = values.reshape(-1, 1)
        for Q in rows[:0:-1]:
            found = (Q[:, :, None] * found[:, None, :]).reshape(len(Q), -1)
        return np.asarray((rows[0].T @ found).ravel())

    operator = LinearOperator((len(rows[0]), prod(shape)), matvec=expand, rmatvec=contract)
    core = lsmr(operator, cells.residuals, atol=1e-8, btol=1e-8, maxiter=200)[0].reshape(shape)
    core = core * unit * prod(np.sqrt(len(Q)) for Q in bases)
    for mode, R in enumerate(triangles):
        core = np.moveaxis(np.tensordot(np.linalg.pinv(R), core, axes=(1, mode)), 0, mode)
    return np.asarray(core)
