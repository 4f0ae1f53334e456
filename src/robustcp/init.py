"""Starting factors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp._typing import Array, Factors
from robustcp.engines import Engine, as_engine, to_host
from robustcp.kruskal import KruskalTensor

#: Up to this size the smaller Gram matrix of an unfolding is formed; beyond it one iterates.
GRAM_LIMIT = 1024


def nvecs(X: Any, mode: int, rank: int, *, rng: int | np.random.Generator | None = None) -> Array:
    """The leading left singular vectors of the mode-n unfolding of X.

    They come from the smaller of the unfolding's two Gram matrices, or by subspace iteration
    when both are large; X is never unfolded. Each column's entry of largest magnitude is
    positive. Columns that the data does not determine (rank above the size of the mode, or
    above the rank of the unfolding) are random, and orthogonal to the rest while there is room.

    Parameters
    ----------
    X : array or Engine
    mode : int
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
    >>> nvecs(np.outer([3.0, 4.0], [1.0, 0.0, 2.0]), 0, 1).round(3)
    array([[0.6],
           [0.8]])
    """
    rank = _checks.whole_number("rank", rank, 1)
    engine, _ = unit_scaled(as_engine(X))
    mode = _checks.whole_number("mode", mode, 0, most=len(engine.shape) - 1)
    size = engine.shape[mode]
    rest = math.prod(engine.shape) // size
    count = min(rank, size, rest)
    generator = _checks.generator(rng)
    if min(size, rest) > GRAM_LIMIT:
        U, spectrum = _subspace_iteration(engine, mode, count, generator)
    elif size <= rest:
        U, spectrum = _leading(engine.gram(mode), count)
    else:
        V, spectrum = _leading(engine.cogram(mode), count)
        U = engine.project(mode, V)
    kept = spectrum > 1e-14 * max(spectrum[0], np.finfo(float).tiny)
    U, triangle = np.linalg.qr(U[:, kept])
    U = U * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    U = U * np.where(-U.min(axis=0, initial=0) > U.max(axis=0, initial=0), -1.0, 1.0)
    return engine.asarray(_completed(U, rank, generator))


def _leading(gram: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The leading eigenvectors and eigenvalues of a symmetric matrix, largest first."""
    from scipy.linalg import eigh

    size = gram.shape[0]
    values, vectors = eigh(gram, subset_by_index=(size - count, size - 1))
    return vectors[:, ::-1], values[::-1]


def _subspace_iteration(
    engine: Engine, mode: int, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Leading left singular vectors by block power steps with Rayleigh-Ritz."""
    size = engine.shape[mode]
    width = min(size, count + max(8, count))
    Q = np.linalg.qr(rng.standard_normal((size, width)))[0]
    for _ in range(100):
        Z = engine.gram(mode, Q)
        turn, ritz = _leading(Q.T @ Z, width)
        values, vectors = ritz[:count], Q @ turn[:, :count]
        residual = np.linalg.norm(Z @ turn[:, :count] - vectors * values, axis=0)
        if residual.max() <= 1e-9 * max(ritz[0], np.finfo(float).tiny):
            break
        Q = np.linalg.qr(Z @ turn)[0]
    return vectors, values


def _completed(U: np.ndarray, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Append random unit columns, orthogonal to the rest while there is room."""
    size, count = U.shape
    extra = rng.standard_normal((size, rank - count))
    room = min(rank, size) - count
    inside = extra[:, :room]
    for _ in range(2):  # twice is enough to be orthogonal to rounding
        inside = inside - U @ (U.T @ inside)
    inside = np.linalg.qr(inside)[0]
    outside = extra[:, room:] / np.maximum(np.linalg.norm(extra[:, room:], axis=0), 1e-300)
    return np.concatenate([U, inside, outside], axis=1)


def random(engine: Engine, rank: int, rng: np.random.Generator) -> Factors:
    """Standard normal factors, drawn on the host whatever the device."""
    return tuple(engine.asarray(rng.standard_normal((size, rank))) for size in engine.shape)


def given(engine: Engine, rank: int, init: Any) -> Factors:
    """Factors from a Kruskal tensor, a Fit, a pair (weights, factors) or a list of factors."""
    try:
        model = init.model if hasattr(init, "model") else init
        if not isinstance(model, KruskalTensor):
            parts = list(model)
            pair = len(parts) == 2 and isinstance(parts[1], list | tuple)
            factors = [engine.asarray(A) for A in (parts[1] if pair else parts)]
            weights = engine.asarray(parts[0]) if pair and parts[0] is not None else None
            model = KruskalTensor.from_tensorly((weights, factors))
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            "init: must be 'nvecs', 'random', 'auto', a KruskalTensor, a Fit or a list of "
            f"factor matrices, got {type(init).__name__} ({error})"
        ) from None
    shape = (*engine.shape, rank)
    if (*model.shape, model.rank) != shape:
        raise ValueError(
            f"init: has shape {model.shape} and rank {model.rank}, "
            f"the data has shape {engine.shape} and rank is {rank}"
        )
    start = tuple(engine.asarray(to_host(A)) for A in model.absorbed())
    xp = engine.xp
    for mode, A in enumerate(start):
        if not bool(xp.all(xp.isfinite(A))):
            raise ValueError(f"init: the factor of mode {mode} has entries that are not finite")
        empty = [r for r in range(rank) if not bool(xp.any(A[:, r] != 0))]
        if empty:
            raise ValueError(f"init: column {empty[0]} of the factor of mode {mode} is zero")
    return start


def unit_scaled(engine: Engine) -> tuple[Engine, int]:
    """The data times a power of 2 when its squares could overflow or vanish; the exponent.

    A power of 2 changes no digit. Data of ordinary size is left alone.
    """
    largest = engine.largest
    ordinary = 2.0**200 if engine.precision < 1e-10 else 2.0**30
    if largest == 0 or 1 / ordinary < largest < ordinary:
        return engine, 0
    exponent = min(1000, max(-1000, math.frexp(largest)[1]))
    return engine.scaled(exponent), exponent
