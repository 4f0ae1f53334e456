"""Linear algebra on the rows of a factor: by the array library, or compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace

from robustcp._typing import Array
from robustcp.engines.arrays import to_host
from robustcp.engines.installed import compiled_code, fused_code
from robustcp.engines.joint import PRECISE, JointSystem
from robustcp.engines.recorded import Recorded
from robustcp.engines.threads import Tiles
from robustcp.engines.tiles import ranges
from robustcp.normal import NormalEquations, unpack_indices

T = TypeVar("T")

#: Rows of a factor that are worked on at once.
ROWS = 1 << 14


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

    def nonnegative(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        """The same, among rows without negative entries: those that satisfy their KKT conditions.

        By block principal pivoting, for all rows at once. Each row guesses which of its entries
        are positive, solves for those, and moves the entries that turn out wrong to the other
        side; if that does not lessen their number for a while it moves one at a time, which must
        end.
        """
        xp = array_namespace(rows)
        G, has_data = self.grams(equations, rows, mu)
        rank = rows.shape[1]
        b = equations.gradient - mu * rows + xp.sum(G * rows[:, None, :], axis=-1)  # G u = b, free
        G = xp.broadcast_to(G, (rows.shape[0], rank, rank))
        eye = xp.eye(rank, dtype=G.dtype, device=device(G))
        slack = 2 * lift(rows)
        column = xp.arange(rank, device=device(rows))[None, :]
        positive = rows > 0
        fewest = xp.full((rows.shape[0],), rank + 1, device=device(rows))
        patience = xp.full((rows.shape[0],), 3, device=device(rows))
        u = rows
        for _ in range(10 + 4 * rank * rank):
            both = positive[:, :, None] & positive[:, None, :]
            masked = xp.where(both, G, xp.where(positive[:, :, None], xp.zeros_like(eye), eye))
            u = self.solve(masked, xp.where(positive, b, xp.zeros_like(b)))
            y = xp.sum(G * u[:, None, :], axis=-1) - b  # the gradient: >= 0 where u is 0
            size = xp.max(xp.abs(b), axis=1, keepdims=True)
            wrong = (positive & (u < 0)) | (~positive & (y < -slack * size))
            count = xp.sum(xp.astype(wrong, fewest.dtype), axis=1)
            if not bool(xp.any(count > 0)):
                break
            better = count < fewest
            fewest = xp.where(better, count, fewest)
            patience = xp.where(better, xp.full_like(patience, 3), patience - 1)
            last = xp.max(xp.where(wrong, column, xp.full_like(column, -1)), axis=1, keepdims=True)
            one = wrong & (column == last)
            positive = positive ^ xp.where((patience >= 0)[:, None], wrong, one)
        u = xp.clip(u, min=0.0)
        return u if has_data is None else rows + (u - rows) * has_data

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

    def square(self, A: Array) -> float:
        """The sum of the squares of all entries."""
        return float(array_namespace(A).sum(A * A))

    def balanced(self, factors: Sequence[Array], roots: Sequence[Any] = ()) -> list[Array]:
        """The same model with equal column norms, or equal products of these and the roots.

        Where a column is 0 the others of its component stay as they are.
        """
        xp = array_namespace(factors[0])
        norms = [self.column_norms(A) for A in factors]
        if roots:
            norms = [norm * root for norm, root in zip(norms, roots, strict=True)]
        mean = math.prod(norm ** (1.0 / len(norms)) for norm in norms)
        if not bool(xp.all(mean > 0)):
            some, one = mean > 0, xp.ones_like(mean)
            mean = xp.where(some, mean, one)
            norms = [xp.where(some, norm, one) for norm in norms]
        return [self.times(A, mean / norm) for A, norm in zip(factors, norms, strict=True)]

    def times(self, A: Array, sizes: Array) -> Array:
        """Each column times a number."""
        return A * sizes[None, :]

    def step_products(
        self, old: Sequence[Array], new: Sequence[Array]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the steps D from old factors to new ones: A'A of the new ones, D'D and D'A.

        Host, float64.
        """
        found = [to_host(part) for part in _step_products(*old, *new)]
        grams, squares, slipped = np.split(np.array(found, dtype=np.float64), 3)
        return grams, squares, slipped

    def changed(self, factors: Sequence[Array], E: np.ndarray) -> list[Array]:
        """A + A E of each factor; the matrices E are on the host."""
        return _changed(_like(E, factors[0]), *factors)

    def joint_step(
        self, system: JointSystem, right: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        """See `JointSystem.solved`."""
        return system.solved(right, damping)


class CompiledAlgebra(Algebra):
    """By compiled code, for NumPy: long factors by ranges of rows, on some threads.

    The ranges do not depend on the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._tiles = Tiles(threads)

    def solved(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._rows(compiled_code().solve(rows.dtype).run, equations, rows, mu)

    def nonnegative(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._rows(compiled_code().nonnegative(rows.dtype).run, equations, rows, mu)

    def _rows(self, run: Any, equations: NormalEquations, rows: Array, mu: float) -> Array:
        real, (count, rank), new = rows.dtype, rows.shape, np.empty(rows.shape, rows.dtype)
        given = equations.gram, equations.gradient, rows, (mu, lift(rows))
        arrays = [np.ascontiguousarray(A, real) for A in given]
        address = compiled_code().address
        places, at = [address(A) for A in arrays], address(new)
        shared = arrays[0].shape[0] == 1 and count > 1
        self._each(lambda first, last: run(*places, shared, first, last, rank, at), count)
        return new

    def column_norms(self, A: Array) -> Array:
        A, columns = np.ascontiguousarray(A), A.shape[1]
        code = compiled_code()
        run, address = code.column_norms(A.dtype).run, code.address

        def norms(first: int, last: int) -> np.ndarray:
            found = np.empty(columns, A.dtype)
            run(address(A), first, last, columns, address(found))
            return found

        found = self._each(norms, len(A))
        return found[0] if len(found) == 1 else self.column_norms(np.stack(found))

    def square(self, A: Array) -> float:
        return float(np.vdot(A, A))

    def balanced(self, factors: Sequence[Array], roots: Sequence[Any] = ()) -> list[Array]:
        parts, numbers = _parts(tuple(map(len, factors)))
        if roots or numbers.size > ROWS:
            return super().balanced(factors, roots)
        code, stack = compiled_code(), np.concatenate(factors)
        rank, norms = stack.shape[1], np.empty((len(parts), stack.shape[1]), stack.dtype)
        run, at, to = code.column_norms(stack.dtype).run, code.address(stack), code.address(norms)
        for n, part in enumerate(parts):
            run(at, part.start, part.stop, rank, to + n * rank * norms.itemsize)
        if not (norms > 0).all():
            return super().balanced(factors)
        logs = np.log(norms)
        stack *= np.exp(logs.mean(axis=0) - logs)[numbers]
        return [stack[part] for part in parts]

    def times(self, A: Array, sizes: Array) -> Array:
        new = np.empty(A.shape, A.dtype)
        self._each(lambda first, last: np.multiply(A[first:last], sizes, new[first:last]), len(A))
        return new

    def joint_step(
        self, system: JointSystem, right: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        code, (modes, rank, _) = compiled_code(), right.shape
        given = system.grams, system.diagonal, system.beside, system.inverse, (damping, PRECISE)
        arrays = [np.ascontiguousarray(A, float) for A in given]
        rest, E = np.array(right, float), np.zeros(right.shape)
        results = rest, E, np.empty((5, *right.shape))
        fall: float = code.joint_step().run(
            *map(code.address, arrays), modes, rank, *map(code.address, results)
        )
        return E, fall

    def _each(self, work: Callable[[int, int], T], count: int) -> list[T]:
        """What is made of each range of rows, given its first row and its end."""
        if count <= ROWS:
            return [work(0, count)]
        return list(self._tiles.map(lambda part: work(part.start, part.stop), ranges(count, ROWS)))


class FusedAlgebra(Algebra):
    """By kernels, on a GPU: nothing waits for the device but what the host asks for."""

    def solved(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._rows(equations, rows, mu, nonnegative=False)

    def nonnegative(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._rows(equations, rows, mu, nonnegative=True)

    def _rows(
        self, equations: NormalEquations, rows: Array, mu: float, *, nonnegative: bool
    ) -> Array:
        (count, rank), code = rows.shape, fused_code(device(rows))
        if rank > code.RANKS:
            by_library = super().nonnegative if nonnegative else super().solved
            return by_library(equations, rows, mu)
        xp, rows = array_namespace(rows), rows.contiguous()
        gram, gradient = (
            A if A.stride(1) == 1 else A.contiguous() for A in (equations.gram, equations.gradient)
        )
        shared, new = gram.shape[0] == 1 and count > 1, xp.empty_like(rows)
        with code.on_device(device(rows)):
            code.solve_rows[(count,)](
                gram, gradient, rows, _numbers_of(mu, lift(rows), rows.dtype, device(rows), xp),
                new, 0 if shared else gram.stride(0), gradient.stride(0), rank,
                R=code.block_size(rank), SHARED=shared, NONNEGATIVE=nonnegative,
                num_warps=1 if rank <= 16 else 4,
            )  # fmt: skip
        return new

    def column_norms(self, A: Array) -> Array:
        xp = array_namespace(A)
        return xp.astype(xp.linalg.vector_norm(xp.astype(A, xp.float64), axis=0), A.dtype)

    def balanced(self, factors: Sequence[Array], roots: Sequence[Any] = ()) -> list[Array]:
        return super().balanced(factors, roots) if roots else list(_balanced(*factors))

    def joint_step(
        self, system: JointSystem, right: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        return algebra(np).joint_step(system, right, damping)

    def step_products(
        self, old: Sequence[Array], new: Sequence[Array]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (found,) = _stacked_products(*old, *new)
        grams, squares, slipped = np.split(np.asarray(to_host(found), dtype=np.float64), 3)
        return grams, squares, slipped

    def changed(self, factors: Sequence[Array], E: np.ndarray) -> list[Array]:
        return list(_recorded_changes(_like(E, factors[0]), *factors))


def _step_products(*factors: Array) -> list[Array]:
    """See `Algebra.step_products`; old factors before new ones."""
    count = len(factors) // 2
    old, new = factors[:count], factors[count:]
    steps = [B - A for A, B in zip(old, new, strict=True)]
    As, Bs = (*new, *steps, *steps), (*new, *steps, *new)
    return [A.T @ B for A, B in zip(As, Bs, strict=True)]


def _changed(E: Array, *factors: Array) -> list[Array]:
    """See `Algebra.changed`."""
    return [A + A @ E[n, ...] for n, A in enumerate(factors)]


def _like(small: np.ndarray, A: Array) -> Array:
    """A small array of the host as one of a factor's library."""
    xp = array_namespace(A)
    return xp.asarray(small, dtype=A.dtype, device=device(A))


@Recorded
def _stacked_products(*factors: Array) -> list[Array]:
    return [array_namespace(factors[0]).stack(_step_products(*factors))]


_recorded_changes = Recorded(_changed)


@Recorded
def _balanced(*factors: Array) -> list[Array]:
    """As `Algebra.balanced`, without a look at any number."""
    algebra, xp = FusedAlgebra(), array_namespace(factors[0])
    norms = [algebra.column_norms(A) for A in factors]
    mean = math.prod(norm ** (1.0 / len(norms)) for norm in norms)
    some, one = mean > 0, xp.ones_like(mean)
    sizes = (xp.where(some, mean / norm, one) for norm in norms)
    return [A * size[None, :] for A, size in zip(factors, sizes, strict=True)]


@lru_cache
def _numbers_of(mu: float, lift: float, dtype: Any, at: Any, xp: Any) -> Array:
    return xp.asarray([mu, lift], dtype=dtype, device=at)


@lru_cache
def _parts(sizes: tuple[int, ...]) -> tuple[list[slice], np.ndarray]:
    """Where factors of some sizes are in a stack, and the number of each row's factor."""
    ends = np.cumsum(sizes)
    parts = list(map(slice, (ends - sizes).tolist(), ends.tolist()))
    return parts, np.repeat(np.arange(len(sizes)), sizes)


@cache
def algebra(xp: Any, compiled: bool = True, threads: int = 1) -> Algebra:
    """The algebra for arrays of a library; compiled, if that is allowed and can be had."""
    if compiled and is_numpy_namespace(xp) and compiled_code() is not None:
        return CompiledAlgebra(threads)
    return Algebra()


def lift(rows: Array) -> float:
    """By how much diagonals are raised, relatively: a few roundings."""
    return 32 * int(rows.shape[1]) * _rounding(rows.dtype, array_namespace(rows))


@cache
def _rounding(dtype: Any, xp: Any) -> float:
    return float(xp.finfo(dtype).eps)
