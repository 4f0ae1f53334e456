"""How one factor is solved from its normal equations."""

from __future__ import annotations

from array_api_compat import array_namespace, device

from robustcp._typing import Array
from robustcp.normal import NormalEquations, unpack_indices


def free(equations: NormalEquations, rows: Array, mu: float) -> Array:
    """The rows that minimise the majorizer plus mu/2 |u|^2, with no constraint (eq. 5).

    They are found as a step from the current rows, (gram + mu I)^-1 (gradient - mu u), which
    stays accurate in float32 near the optimum. The diagonal is raised by a few roundings: the
    majorizer becomes a little steeper, so the step still descends, and it stays finite where
    components coincide.
    """
    xp = array_namespace(rows)
    rank = rows.shape[1]
    G = equations.gram
    where = xp.asarray(unpack_indices(rank), device=device(rows))
    G = xp.reshape(xp.take(G, where, axis=1), (-1, rank, rank))
    b = equations.gradient - mu * rows
    return rows + _solve(_raised(G, mu), b)


def _raised(G: Array, mu: float) -> Array:
    xp = array_namespace(G)
    rank = G.shape[-1]
    eye = xp.eye(rank, dtype=G.dtype, device=device(G))
    diagonal = xp.sum(G * eye, axis=-1)
    lift = 32 * rank * float(xp.finfo(G.dtype).eps) * diagonal + mu
    dead = diagonal + lift <= 0
    lift = xp.where(dead, xp.ones_like(lift), lift)
    return G + eye * lift[..., None]


def _solve(G: Array, b: Array) -> Array:
    xp = array_namespace(b)
    if G.shape[0] == 1:
        return xp.linalg.solve(G[0, ...], b.T).T
    return xp.linalg.solve(G, b[..., None])[..., 0]
