"""How one factor is solved from its normal equations: freely, or without negative entries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from array_api_compat import array_namespace, device

from robustcp._typing import Array
from robustcp.engines.fused import solve_rows
from robustcp.normal import NormalEquations, unpack_indices


def free(equations: NormalEquations, rows: Array, mu: float) -> Array:
    """The rows that minimise the majorizer plus mu/2 |u|^2, with no constraint (eq. 5).

    They are found as a step from the current rows, (gram + mu I)^-1 (gradient - mu u), which
    stays accurate in float32 near the optimum. The diagonal is raised by a few roundings: the
    majorizer becomes a little steeper, so the step still descends, and it stays finite where
    components coincide. A row that no entry of the data has a say in stays as it is.
    """
    lift = _lift(rows)
    new = solve_rows(equations.gram, equations.gradient, rows, mu, lift)
    if new is not None:
        return new
    G, heard = _gram(equations, rows, mu)
    b = equations.gradient - mu * rows
    step = _solve(G, b)
    return rows + step if heard is None else rows + step * heard


def nonnegative(equations: NormalEquations, rows: Array, mu: float) -> Array:
    """The nonnegative rows that minimise the same, to their KKT conditions.

    Block principal pivoting, for all rows at once: each row guesses which of its entries are
    positive, solves for those, and moves the entries that turn out wrong to the other side; if
    that does not lessen their number for a while it moves one at a time, which must end.
    """
    xp = array_namespace(rows)
    G, heard = _gram(equations, rows, mu)
    rank = rows.shape[1]
    b = equations.gradient - mu * rows + xp.sum(G * rows[:, None, :], axis=-1)  # G u = b if free
    G = xp.broadcast_to(G, (rows.shape[0], rank, rank))
    eye = xp.eye(rank, dtype=G.dtype, device=device(G))
    slack = 64 * rank * float(xp.finfo(G.dtype).eps)
    column = xp.arange(rank, device=device(rows))[None, :]
    positive = rows > 0
    fewest = xp.full((rows.shape[0],), rank + 1, device=device(rows))
    patience = xp.full((rows.shape[0],), 3, device=device(rows))
    u = rows
    for _ in range(10 + 4 * rank * rank):
        both = positive[:, :, None] & positive[:, None, :]
        masked = xp.where(both, G, xp.where(positive[:, :, None], xp.zeros_like(eye), eye))
        u = _solve(masked, xp.where(positive, b, xp.zeros_like(b)))
        y = xp.sum(G * u[:, None, :], axis=-1) - b  # the gradient: >= 0 where u is 0
        size = xp.max(xp.abs(b), axis=1, keepdims=True)
        wrong = (positive & (u < 0)) | (~positive & (y < -slack * size))
        count = xp.sum(xp.astype(wrong, fewest.dtype), axis=1)
        if not bool(xp.any(count > 0)):
            break
        better = count < fewest
        fewest = xp.where(better, count, fewest)
        patience = xp.where(better, xp.full_like(patience, 3), patience - 1)
        highest = xp.max(xp.where(wrong, column, xp.full_like(column, -1)), axis=1, keepdims=True)
        one = wrong & (column == highest)
        positive = positive ^ xp.where((patience >= 0)[:, None], wrong, one)
    u = xp.clip(u, min=0.0)
    return u if heard is None else rows + (u - rows) * heard


def _gram(equations: NormalEquations, rows: Array, mu: float) -> tuple[Array, Array | None]:
    """Gram matrices with their diagonals raised; and 0 for rows without data, 1 for others."""
    xp = array_namespace(rows)
    rank = rows.shape[1]
    where = xp.asarray(unpack_indices(rank), device=device(rows))
    G = xp.reshape(xp.take(equations.gram, where, axis=1), (-1, rank, rank))
    eye: Any = xp.eye(rank, dtype=G.dtype, device=device(G))
    diagonal = xp.sum(G * eye, axis=-1)
    lift = _lift(rows) * diagonal + mu
    lift = xp.where(diagonal + lift <= 0, xp.ones_like(lift), lift)
    silent = xp.sum(diagonal, axis=-1) == 0
    heard = None
    if G.shape[0] == rows.shape[0] and bool(xp.any(silent)):
        heard = xp.where(silent, 0.0, 1.0)[:, None]
        heard = xp.astype(heard, rows.dtype)
    return G + eye * lift[..., None], heard


def _lift(rows: Array) -> float:
    """By how much diagonals are raised, relatively: a few roundings."""
    return 32 * int(rows.shape[1]) * _rounding(rows.dtype, array_namespace(rows))


@lru_cache
def _rounding(dtype: Any, xp: Any) -> float:
    return float(xp.finfo(dtype).eps)


def _solve(G: Array, b: Array) -> Array:
    xp = array_namespace(b)
    if G.shape[0] == 1 and b.shape[0] > 1:
        return xp.linalg.solve(G[0, ...], b.T).T
    return xp.linalg.solve(G, b[..., None])[..., 0]
