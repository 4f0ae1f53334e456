"""Linear algebra on the rows of a factor: by the array library, or compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_namespace

from robustcp._util.typing import Array
from robustcp.engines.arrays import to_host
from robustcp.engines.cuda_graph import CudaGraphFunction
from robustcp.engines.installed import numba_kernels, triton_kernels
from robustcp.engines.joint_step import CG_TOLERANCE, JointSystem
from robustcp.engines.normal_equations import NormalEquations, unpack_indices
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import split_range

T = TypeVar("T")

#: Rows of a factor that are worked on at once.
ROWS_PER_RANGE = 1 << 14


class Algebra:
    """Linear algebra by the array library of the factors."""

    def solve_rows(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        """The rows that minimise the majorizer plus mu/2 |u|^2 (eq. 5).

        Computed as a step from the current rows, (gram + mu I)^-1 (gradient - mu u), which stays
        accurate in float32 near the optimum. The diagonal is raised by a few rounding errors: the
        step stays finite where components coincide, and still descends, since the majorizer only
        becomes steeper. Rows without data are unchanged.
        """
        G, has_data = self.grams(equations, rows, mu)
        step = self.solve(G, equations.gradient - mu * rows)
        return rows + step if has_data is None else rows + step * has_data

    def solve_nonnegative_rows(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        """The nonnegative rows that minimise the same function: they satisfy its KKT conditions.

        By block principal pivoting, for all rows at once. Each row guesses which of its entries
        are positive, solves for these, and exchanges the entries that violate a condition. If their
        number does not fall for a while, one entry is exchanged at a time, which terminates.
        """
        xp = array_namespace(rows)
        G, has_data = self.grams(equations, rows, mu)
        rank = rows.shape[1]
        b = equations.gradient - mu * rows + xp.sum(G * rows[:, None, :], axis=-1)  # G u = b, free
        G = xp.broadcast_to(G, (rows.shape[0], rank, rank))
        eye = xp.eye(rank, dtype=G.dtype, device=device(G))
        slack = 2 * diagonal_shift(rows)
        column = xp.arange(rank, device=device(rows))[None, :]
        positive = rows > 0
        fewest = xp.full((rows.shape[0],), rank + 1, device=device(rows))
        patience = xp.full((rows.shape[0],), 3, device=device(rows))
        u = rows
        for _ in range(10 + 4 * rank * rank):
            both_positive = positive[:, :, None] & positive[:, None, :]
            masked = xp.where(
                both_positive, G, xp.where(positive[:, :, None], xp.zeros_like(eye), eye)
            )
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
            last_wrong = wrong & (column == last)
            positive = positive ^ xp.where((patience >= 0)[:, None], wrong, last_wrong)
        u = xp.clip(u, min=0.0)
        return u if has_data is None else rows + (u - rows) * has_data

    def solver_address(self, name: str | None, dtype: Any) -> int:
        """The address of a compiled function that does what a method does: one of those above.

        0 if there is none.
        """
        return 0

    def grams(
        self, equations: NormalEquations, rows: Array, mu: float
    ) -> tuple[Array, Array | None]:
        """Gram matrices of the rows plus mu I, with their diagonals raised; one if it is shared.

        Also a column of 1 for rows with data and 0 for rows without; None if all have some.
        """
        xp = array_namespace(rows)
        rank = rows.shape[1]
        unpacking = xp.asarray(unpack_indices(rank), device=device(rows))
        G = xp.reshape(xp.take(equations.gram, unpacking, axis=1), (-1, rank, rank))
        eye: Any = xp.eye(rank, dtype=G.dtype, device=device(G))
        diagonal = xp.sum(G * eye, axis=-1)
        raised = diagonal_shift(rows) * diagonal + mu
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

    def squared_norm(self, A: Array) -> float:
        """The sum of the squares of all entries."""
        return float(array_namespace(A).sum(A * A))

    def balance_norms(self, factors: Sequence[Array], roots: Sequence[Any] = ()) -> list[Array]:
        """The same model with equal column norms, or equal products of these and the roots.

        Where a column is 0 the others of its component stay as they are.
        """
        xp = array_namespace(factors[0])
        norms = [self.column_norms(A) for A in factors]
        if roots:
            norms = [norm * root for norm, root in zip(norms, roots, strict=True)]
        mean = math.prod(norm ** (1.0 / len(norms)) for norm in norms)
        if not bool(xp.all(mean > 0)):
            nonzero, ones = mean > 0, xp.ones_like(mean)
            mean = xp.where(nonzero, mean, ones)
            norms = [xp.where(nonzero, norm, ones) for norm in norms]
        return [self.scale_columns(A, mean / norm) for A, norm in zip(factors, norms, strict=True)]

    def scale_columns(self, A: Array, factors: Array) -> Array:
        """Each column times a number."""
        return A * factors[None, :]

    def step_products(
        self, old: Sequence[Array], new: Sequence[Array]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the steps D from old factors to new ones: A'A of the new ones, D'D and D'A.

        Host, float64.
        """
        products = [to_host(part) for part in _step_products(*old, *new)]
        grams, squares, cross_products = np.split(np.array(products, dtype=np.float64), 3)
        return grams, squares, cross_products

    def add_step(self, factors: Sequence[Array], E: np.ndarray) -> list[Array]:
        """A + A E of each factor; the matrices E are on the host."""
        return _add_step(_as_array_like(E, factors[0]), *factors)

    def joint_step(
        self, system: JointSystem, rhs: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        """See `JointSystem.solve_rows`."""
        return system.solve(rhs, damping)


class CompiledAlgebra(Algebra):
    """By compiled code, for NumPy: long factors by ranges of rows, on some threads.

    The ranges do not depend on the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._executor = TileExecutor(threads)

    def solve_rows(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._run_solver(numba_kernels().solve_rows(rows.dtype).run, equations, rows, mu)

    def solve_nonnegative_rows(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._run_solver(
            numba_kernels().solve_nonnegative_rows(rows.dtype).run, equations, rows, mu
        )

    def solver_address(self, name: str | None, dtype: Any) -> int:
        return getattr(numba_kernels(), name)(dtype).address if name else 0

    def _run_solver(self, run: Any, equations: NormalEquations, rows: Array, mu: float) -> Array:
        real, (count, rank), new = rows.dtype, rows.shape, np.empty(rows.shape, rows.dtype)
        inputs = equations.gram, equations.gradient, rows, (mu, diagonal_shift(rows))
        arrays = [np.ascontiguousarray(A, real) for A in inputs]
        address = numba_kernels().address
        addresses, output = [address(A) for A in arrays], address(new)
        shared = arrays[0].shape[0] == 1 and count > 1
        self._map_row_ranges(
            lambda first, last: run(*addresses, shared, first, last, rank, output), count
        )
        return new

    def column_norms(self, A: Array) -> Array:
        A, columns = np.ascontiguousarray(A), A.shape[1]
        code = numba_kernels()
        run, address = code.column_norms(A.dtype).run, code.address

        def norms(first: int, last: int) -> np.ndarray:
            out = np.empty(columns, A.dtype)
            run(address(A), first, last, columns, address(out))
            return out

        parts = self._map_row_ranges(norms, len(A))
        return parts[0] if len(parts) == 1 else self.column_norms(np.stack(parts))

    def squared_norm(self, A: Array) -> float:
        return float(np.vdot(A, A))

    def balance_norms(self, factors: Sequence[Array], roots: Sequence[Any] = ()) -> list[Array]:
        slices, factor_of_row = _stack_slices(tuple(map(len, factors)))
        if roots or factor_of_row.size > ROWS_PER_RANGE:
            return super().balance_norms(factors, roots)
        code, stack = numba_kernels(), np.concatenate(factors)
        rank, norms = stack.shape[1], np.empty((len(slices), stack.shape[1]), stack.dtype)
        run, source, target = code.column_norms(stack.dtype).run, *map(code.address, (stack, norms))
        for n, part in enumerate(slices):
            run(source, part.start, part.stop, rank, target + n * rank * norms.itemsize)
        if not (norms > 0).all():
            return super().balance_norms(factors)
        logs = np.log(norms)
        stack *= np.exp(logs.mean(axis=0) - logs)[factor_of_row]
        return [stack[part] for part in slices]

    def scale_columns(self, A: Array, factors: Array) -> Array:
        new = np.empty(A.shape, A.dtype)
        self._map_row_ranges(
            lambda first, last: np.multiply(A[first:last], factors, new[first:last]), len(A)
        )
        return new

    def joint_step(
        self, system: JointSystem, rhs: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        code, (modes, rank, _) = numba_kernels(), rhs.shape
        inputs = (
            system.grams,
            system.diagonal,
            system.off_diagonal,
            system.diagonal_inverse,
            (damping, CG_TOLERANCE),
        )
        arrays = [np.ascontiguousarray(A, float) for A in inputs]
        residual, E = np.array(rhs, float), np.zeros(rhs.shape)
        results = residual, E, np.empty((5, *rhs.shape))
        decrease: float = code.joint_step().run(
            *map(code.address, arrays), modes, rank, *map(code.address, results)
        )
        return E, decrease

    def _map_row_ranges(self, work: Callable[[int, int], T], count: int) -> list[T]:
        """The results of a function of the first row and the end of each range of rows."""
        if count <= ROWS_PER_RANGE:
            return [work(0, count)]
        return list(
            self._executor.map(
                lambda part: work(part.start, part.stop), split_range(count, ROWS_PER_RANGE)
            )
        )


class TritonAlgebra(Algebra):
    """By kernels, on a GPU: nothing waits for the device but what the host asks for."""

    def solve_rows(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._run_solver(equations, rows, mu, nonnegative=False)

    def solve_nonnegative_rows(self, equations: NormalEquations, rows: Array, mu: float) -> Array:
        return self._run_solver(equations, rows, mu, nonnegative=True)

    def _run_solver(
        self, equations: NormalEquations, rows: Array, mu: float, *, nonnegative: bool
    ) -> Array:
        (count, rank), code = rows.shape, triton_kernels(device(rows))
        if rank > code.MAX_RANK:
            by_library = super().solve_nonnegative_rows if nonnegative else super().solve_rows
            return by_library(equations, rows, mu)
        xp, rows = array_namespace(rows), rows.contiguous()
        gram, gradient = (
            A if A.stride(1) == 1 else A.contiguous() for A in (equations.gram, equations.gradient)
        )
        shared, new = gram.shape[0] == 1 and count > 1, xp.empty_like(rows)
        with code.on_device(device(rows)):
            code.solve_rows[(count,)](
                gram,
                gradient,
                rows,
                _solver_parameters(mu, diagonal_shift(rows), rows.dtype, device(rows), xp),
                new,
                0 if shared else gram.stride(0),
                gradient.stride(0),
                rank,
                R=code.block_size(rank),
                SHARED=shared,
                NONNEGATIVE=nonnegative,
                num_warps=1 if rank <= 16 else 4,
            )
        return new

    def column_norms(self, A: Array) -> Array:
        xp = array_namespace(A)
        return xp.astype(xp.linalg.vector_norm(xp.astype(A, xp.float64), axis=0), A.dtype)

    def balance_norms(self, factors: Sequence[Array], roots: Sequence[Any] = ()) -> list[Array]:
        return super().balance_norms(factors, roots) if roots else list(_balance_norms(*factors))

    def joint_step(
        self, system: JointSystem, rhs: np.ndarray, damping: float
    ) -> tuple[np.ndarray, float]:
        return algebra_for(np).joint_step(system, rhs, damping)

    def step_products(
        self, old: Sequence[Array], new: Sequence[Array]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (products,) = _stacked_products(*old, *new)
        grams, squares, cross_products = np.split(
            np.asarray(to_host(products), dtype=np.float64), 3
        )
        return grams, squares, cross_products

    def add_step(self, factors: Sequence[Array], E: np.ndarray) -> list[Array]:
        return list(_add_step_graph(_as_array_like(E, factors[0]), *factors))


def _step_products(*factors: Array) -> list[Array]:
    """See `Algebra.step_products`; old factors before new ones."""
    count = len(factors) // 2
    old, new = factors[:count], factors[count:]
    steps = [B - A for A, B in zip(old, new, strict=True)]
    As, Bs = (*new, *steps, *steps), (*new, *steps, *new)
    return [A.T @ B for A, B in zip(As, Bs, strict=True)]


def _add_step(E: Array, *factors: Array) -> list[Array]:
    """See `Algebra.add_step`."""
    return [A + A @ E[n, ...] for n, A in enumerate(factors)]


def _as_array_like(small: np.ndarray, A: Array) -> Array:
    """A small array of the host as one of a factor's library."""
    xp = array_namespace(A)
    return xp.asarray(small, dtype=A.dtype, device=device(A))


@CudaGraphFunction
def _stacked_products(*factors: Array) -> list[Array]:
    return [array_namespace(factors[0]).stack(_step_products(*factors))]


_add_step_graph = CudaGraphFunction(_add_step)


@CudaGraphFunction
def _balance_norms(*factors: Array) -> list[Array]:
    """As `Algebra.balance_norms`, without a look at any number."""
    algebra, xp = TritonAlgebra(), array_namespace(factors[0])
    norms = [algebra.column_norms(A) for A in factors]
    mean = math.prod(norm ** (1.0 / len(norms)) for norm in norms)
    nonzero, ones = mean > 0, xp.ones_like(mean)
    sizes = (xp.where(nonzero, mean / norm, ones) for norm in norms)
    return [A * size[None, :] for A, size in zip(factors, sizes, strict=True)]


@lru_cache
def _solver_parameters(mu: float, shift: float, dtype: Any, on_device: Any, xp: Any) -> Array:
    return xp.asarray([mu, shift], dtype=dtype, device=on_device)


@lru_cache
def _stack_slices(sizes: tuple[int, ...]) -> tuple[list[slice], np.ndarray]:
    """Where factors of some sizes are in a stack, and the number of each row's factor."""
    ends = np.cumsum(sizes)
    slices = list(map(slice, (ends - sizes).tolist(), ends.tolist()))
    return slices, np.repeat(np.arange(len(sizes)), sizes)


@cache
def algebra_for(xp: Any, compiled: bool = True, threads: int = 1) -> Algebra:
    """The algebra for arrays of a library; compiled, if that is allowed and can be had."""
    if compiled and is_numpy_namespace(xp) and numba_kernels() is not None:
        return CompiledAlgebra(threads)
    return Algebra()


def diagonal_shift(rows: Array) -> float:
    """By how much diagonals are raised, relatively: a few roundings."""
    return 32 * int(rows.shape[1]) * _machine_epsilon(rows.dtype, array_namespace(rows))


@cache
def _machine_epsilon(dtype: Any, xp: Any) -> float:
    return float(xp.finfo(dtype).eps)
