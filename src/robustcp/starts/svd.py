"""Leading singular vectors of the unfoldings, for complete and for sparsely observed data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array
from robustcp.engines import (
    Engine,
    as_engine,
    single_blas_thread,
)
from robustcp.optimize.problem import unit_exponent

#: Up to this size the smaller Gram matrix of an unfolding is formed; larger ones are iterated on.
GRAM_LIMIT = 1024
#: Restarts of the iteration for the hollow Gram matrix: its eigenvectors are noisy, and more
#: restarts do not make them better.
HOLLOW_GRAM_RESTARTS = 2


def nvecs(X: Any, mode: int, rank: int, *, rng: int | np.random.Generator | None = None) -> Array:
    """The leading left singular vectors of the mode-n unfolding of X.

    They come from the smaller of the unfolding's two Gram matrices, or by subspace iteration
    when both are large; X is never unfolded. Each column's entry of largest magnitude is
    positive. Columns that the data does not determine (rank above the size of the mode, or
    above the rank of the unfolding) are random, and orthogonal to the rest while there is room.

    Parameters
    ----------
    X : array or Engine
    mode : int or str
        By number or name.
    rank : int
        How many vectors.
    rng : seed or Generator, optional
        For the random columns; without it they are the same in each call.

    Returns
    -------
    array of shape (X.shape[mode], rank), in X's library and on its device

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import nvecs
    >>> nvecs(np.outer([3.0, 4.0], [1.0, 0.0, 2.0]), 0, 1).round(3)
    array([[0.6],
           [0.8]])
    """
    rank = checks.whole_number("rank", rank, 1)
    engine = as_engine(X)
    engine = engine.scaled(unit_exponent(engine, engine.max_abs))
    mode = engine.view.axes.mode_number("mode", mode, engine.order)
    size = engine.shape[mode]
    columns = math.prod(engine.shape) // size
    count = min(rank, size, columns)
    generator = checks.generator(rng)
    with single_blas_thread:
        if min(size, columns) > GRAM_LIMIT:
            U, spectrum = _block_krylov(partial(engine.gram, mode), size, count, generator)
        elif size <= columns:
            U, spectrum = _leading_eigenpairs(engine.gram(mode), count)
        else:
            V, spectrum = _leading_eigenpairs(engine.cogram(mode), count)
            U = engine.project(mode, V)
        significant = spectrum > 1e-14 * max(spectrum[0], np.finfo(float).tiny)
        U = np.linalg.qr(U[:, significant])[0]
        top = U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])]
        U = U * np.where(top < 0, -1.0, 1.0)
        return engine.asarray(_append_random_columns(U, rank, generator))


def _leading_eigenpairs(gram: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading eigenvectors and eigenvalues of a symmetric matrix, largest first."""
    values, vectors = np.linalg.eigh(gram)
    return vectors[:, : -count - 1 : -1], values[: -count - 1 : -1]


def hollow_gram_eigenvectors(
    engine: Engine, mode: int, count: int, rng: np.random.Generator
) -> np.ndarray:
    """The leading eigenvectors of the hollow Gram matrix X_n X_n' - diag(X_n X_n'), on the host.

    With few observed entries the diagonal reflects only norms and counts of the rows; the
    off-diagonal part has the correlations between rows.
    """
    size = engine.shape[mode]
    with single_blas_thread:
        if size <= GRAM_LIMIT:
            gram = engine.gram(mode)
            np.fill_diagonal(gram, 0.0)
            return _leading_eigenpairs(gram, count)[0]
        squares = engine.slab_sums(lambda x: _zero_missing(engine.xp, x) ** 2)[mode][:, None]

        def product(V: np.ndarray) -> np.ndarray:
            return np.asarray(engine.gram(mode, V) - squares * V)

        return _block_krylov(product, size, count, rng, HOLLOW_GRAM_RESTARTS)[0]


def _zero_missing(xp: Any, x: Array) -> Array:
    return xp.where(xp.isnan(x), xp.zeros_like(x), x)


def _block_krylov(
    product: Callable[[np.ndarray], np.ndarray],
    size: int,
    count: int,
    rng: np.random.Generator,
    restarts: int = 5,
) -> tuple[np.ndarray, np.ndarray]:
    """Leading eigenvectors of a symmetric matrix from a restarted block Krylov space.

    A few products with it span a space that holds the leading vectors to many digits when
    the spectrum falls; vectors of a flat spectrum (noise) are as good as any and not waited for.
    """
    depth = 5
    width = min(size // depth, count + 8)
    Q = np.linalg.qr(rng.standard_normal((size, max(width, count))))[0]
    for _ in range(restarts):
        basis, images = Q, product(Q)
        for _ in range(depth - 1):
            new = images[:, -Q.shape[1] :]
            for _ in range(2):  # twice is enough to be orthogonal to rounding
                new = new - basis @ (basis.T @ new)
                new = np.linalg.qr(new)[0]
            basis = np.concatenate([basis, new], axis=1)
            images = np.concatenate([images, product(new)], axis=1)
        rotation, values = _leading_eigenpairs(basis.T @ images, Q.shape[1])
        Q = np.linalg.qr(basis @ rotation)[0]
        residual = np.linalg.norm(images @ rotation - (basis @ rotation) * values, axis=0)[:count]
        if residual.max() <= 1e-8 * max(values[0], np.finfo(float).tiny):
            break
    return Q[:, :count], values[:count]


def _append_random_columns(U: np.ndarray, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Append random unit columns, orthogonal to the rest while there is room."""
    size, count = U.shape
    if count == rank:
        return U
    extra = rng.standard_normal((size, rank - count))
    room = min(rank, size) - count
    inside = extra[:, :room]
    for _ in range(2):  # twice is enough to be orthogonal to rounding
        inside = inside - U @ (U.T @ inside)
    inside = np.linalg.qr(inside)[0]
    outside = extra[:, room:] / np.maximum(np.linalg.norm(extra[:, room:], axis=0), 1e-300)
    return np.concatenate([U, inside, outside], axis=1)
