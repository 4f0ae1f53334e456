"""Linear algebra on the rows of a factor: by the array library, or compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace

from robustcp._typing import Array
from robustcp.engines.installed import compiled_code
from robustcp.normal import NormalEquations, unpack_indices


class Algebra:
    """By the array library of the factors."""

    def solved(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        """The rows that minimise the majorizer plus mu/2 |u|^2 (eq. 5).

        They are found as a step from the current rows, (gram + mu I)^-1 (gradient - mu u), which
        stays accurate in float32 near the optimum. The diagonal is raised by a few roundings: the
        majorizer becomes a little steeper, so the step still descends, and it stays finite where
        components coincide. A row without data stays as it is.
        """
        G, has_data = self.grams(equations, rows, mu)
        step = self.solve(G, equations.gradient - mu * rows)
        return rows + step if has_data is None else rows + step * has_data

    def grams(
        self, equations: NormalEquations, rows: Array, mu: float
    ) -> tuple[Array, Array | None]:
        """Gram matrices of the rows plus mu I, with their diagonals raised; one if it is shared.

        Also a column of 1 for rows with data and 0 for rows without; None if all have some.
        """
        xp = array_namespace(rows)
        rank = rows.shape[1]
        where = xp.asarray(unpack_indices(rank), device=device(rows))
        G = xp.reshape(xp.take(equations.gram, where, axis=1), (-1, rank, rank))
        eye: Any = xp.eye(rank, dtype=G.dtype, device=device(G))
        diagonal = xp.sum(G * eye, axis=-1)
        raised = lift(rows) * diagonal + mu
        raised = xp.where(diagonal + raised <= 0, xp.ones_like(raised), raised)
        empty = xp.sum(diagonal, axis=-1) == 0
        has_data = None
        if G.shape[0] == rows.shape[0] and bool(xp.any(empty)):
            has_data = xp.astype(xp.where(empty, 0.0, 1.0)[:, None], rows.dtype)
        return G + eye * raised[..., None], has_data

    def solve(self, G: Array, b: Array) -> Array:
        """G_i u_i = b_i for each row; G may be one matrix for all."""
        xp = array_namespace(b)
        if G.shape[0] == 1 and b.shape[0] > 1:
            return xp.linalg.solve(G[0, ...], b.T).T
        return xp.linalg.solve(G, b[..., None])[..., 0]

    def column_norms(self, A: Array) -> Array:
        """Euclidean norms of the columns, also of very large or small ones."""
        xp = array_namespace(A)
        top = xp.max(xp.abs(A), axis=0)
        top = xp.where(top > 0, top, xp.ones_like(top))
        return top * xp.sqrt(xp.sum((A / top[None, :]) ** 2, axis=0))


class CompiledAlgebra(Algebra):
    """By compiled code, for NumPy."""

    def solved(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        real = rows.dtype.type
        arrays = map(np.ascontiguousarray, (equations.gram, equations.gradient, rows))
        new: np.ndarray = compiled_code().solve_rows(*arrays, real(mu), real(lift(rows)))
        return new

    def column_norms(self, A: Array) -> Array:
        norms: np.ndarray = compiled_code().column_norms(np.ascontiguousarray(A))
        return norms


@cache
def algebra(xp: Any, compiled: bool = True) -> Algebra:
    """The algebra for arrays of a library; compiled, if that is allowed and can be had."""
    if compiled and is_numpy_namespace(xp) and compiled_code() is not None:
        return CompiledAlgebra()
    return Algebra()


def lift(rows: Array) -> float:
    """By how much diagonals are raised, relatively: a few roundings."""
    return 32 * int(rows.shape[1]) * _rounding(rows.dtype, array_namespace(rows))


@cache
def _rounding(dtype: Any, xp: Any) -> float:
    return float(xp.finfo(dtype).eps)
