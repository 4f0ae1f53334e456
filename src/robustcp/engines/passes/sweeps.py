"""Whole sweeps over small data by compiled code: there, calls take longer than arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines.algebra import diagonal_shift
from robustcp.engines.base import WholeSweep
from robustcp.engines.installed import numba_kernels
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.least_squares import LeastSquaresPass
from robustcp.engines.passes.numba_pass import CompiledPass
from robustcp.engines.storage import Storage
from robustcp.losses import Loss

Equations = NormalEquations | None


class StackedSweep(WholeSweep):
    """Sweeps for one loss over factors stacked in storage order.

    What does not change between sweeps is looked up once.
    """

    def __init__(self, storage: Storage) -> None:
        self._order, self._dtype = storage.order, storage.dtype
        self._mode_offsets = np.cumsum((0, *storage.shape))
        offsets = self._mode_offsets.tolist()
        #: Modes and their rows in the stack, in storage order.
        self._mode_rows = list(zip(self._order, map(slice, offsets, offsets[1:]), strict=True))

    @abstractmethod
    def _sweep_stack(
        self, stack: np.ndarray, modes: np.ndarray, parameters: np.ndarray, equations: Equations
    ) -> None:
        """Update the factors of some modes (in storage order) in the stack.

        The parameters are those of row solves, the equations those of the first mode, if known.
        """

    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        stack, stored_modes = self._stack_factors(factors), _storage_modes(modes, self._order)
        parameters = np.array((mu, _lift(stack.shape[1], self._dtype)), self._dtype)
        self._sweep_stack(stack, stored_modes, parameters, cached_equations)
        updated = list(factors)
        for mode, rows in self._mode_rows:
            if mode in modes:
                updated[mode] = stack[rows]
        return tuple(updated)

    def _stack_factors(self, factors: Factors) -> np.ndarray:
        return np.concatenate([factors[mode] for mode in self._order], dtype=self._dtype)


class FormulaSweep(StackedSweep):
    """Sweeps for a loss that has a formula."""

    def __init__(self, compiled_pass: CompiledPass, loss: Loss) -> None:
        super().__init__(compiled_pass.storage)
        storage, code = compiled_pass.storage, numba_kernels()
        real, matrix = storage.dtype, storage.as_matrix
        assert matrix is not None
        functions, self._value_factor = compiled_pass.functions(loss)
        entries = compiled_pass.read_all()
        addresses = code.tile_pass(real).address, code.solve_rows(real).address
        self._sweep = code.Sweep(functions, entries, *addresses, storage.split, len(storage.shape))
        self._sweep.arrays = functions.arrays, entries.arrays
        self._run, self._turns, self._address = code.sweep(real).run, code.Turns, code.address
        self._offsets = code.address(self._mode_offsets)
        self._max_rows, self._work_lines = max(storage.shape), 3 * max(matrix.shape)

    def _sweep_stack(
        self, stack: np.ndarray, modes: np.ndarray, parameters: np.ndarray, equations: Equations
    ) -> None:
        rank, address = stack.shape[1], self._address
        gradient, gram, buffers = self._allocate(rank)
        if equations is not None:
            gradient[: len(equations.gradient)] = equations.gradient
            gram[: len(equations.gram)] = equations.gram
        turns = self._turns(len(modes), equations is not None, -1, rank)
        inputs = address(modes), self._offsets, address(parameters), address(stack)
        self._run(self._sweep, turns, *inputs, *buffers)

    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack, n, count = self._stack_factors(factors), self._order.index(mode), len(factors[mode])
        gradient, gram, buffers = self._allocate(stack.shape[1])
        turns = self._turns(0, 0, n, stack.shape[1])
        inputs = 0, self._offsets, 0, self._address(stack)
        value = self._run(self._sweep, turns, *inputs, *buffers)
        return NormalEquations(gram[:count], gradient[:count], float(self._value_factor * value))

    def _allocate(self, rank: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int]]:
        """Room for the normal equations of any mode and for products of factors.

        Returns the arrays of gradients and of Gram matrices, and the three addresses.
        """
        size, packed = self._max_rows * rank, self._max_rows * (rank * (rank + 1) // 2)
        buffer = np.empty(size + packed + self._work_lines * rank, self._dtype)
        gradient = buffer[:size].reshape(self._max_rows, rank)
        gram = buffer[size : size + packed].reshape(self._max_rows, -1)
        address, width = self._address(buffer), buffer.itemsize
        return gradient, gram, (address, address + size * width, address + (size + packed) * width)


class LeastSquaresSweep(StackedSweep):
    """Sweeps for half the square."""

    def __init__(self, least_squares: LeastSquaresPass, loss: Loss) -> None:
        super().__init__(least_squares.storage)
        self._pass, self._loss, storage = least_squares, loss, least_squares.storage
        matrix = storage.as_matrix
        assert matrix is not None
        X = np.ascontiguousarray(storage.convert(matrix, storage.dtype))
        self._arguments = numba_kernels().gemm(storage.dtype), X, storage.split, self._mode_offsets
        self._column_begin = int(self._mode_offsets[storage.split])
        #: The last contraction: its side, the rows of the stack that it was made with, its lines.
        self._contraction = 0, X[:0], X[:0]

    def _sweep_stack(
        self, stack: np.ndarray, modes: np.ndarray, parameters: np.ndarray, equations: Equations
    ) -> None:
        gradient, gram = np.empty((2, 0, 0), stack.dtype)
        if equations is not None:
            gradient, gram = map(np.ascontiguousarray, (equations.gradient, equations.gram))
        side, others, lines = self._contraction
        if not np.array_equal(self._other_rows(stack, side), others):
            side = 0
        gemm, *arguments = self._arguments
        solve = numba_kernels().solve_rows(stack.dtype).address
        numba_kernels().least_squares_sweep(
            gemm, solve, *arguments, modes, stack, gradient, gram, parameters, lines, side
        )

    def _other_rows(self, stack: np.ndarray, side: int) -> np.ndarray:
        """The factors that are contracted for the modes of the rows (1) or of the columns (2)."""
        return stack[self._column_begin :] if side == 1 else stack[: self._column_begin]

    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack = self._stack_factors(factors)
        count, rank = factors[mode].shape
        gradient = np.empty((count, rank), stack.dtype)
        gram = np.empty((1, rank * (rank + 1) // 2), stack.dtype)
        n = self._order.index(mode)
        value, lines = numba_kernels().least_squares_pass(
            *self._arguments, n, stack, gradient, gram
        )
        side = 1 if n < self._arguments[2] else 2
        self._contraction = side, self._other_rows(stack, side), lines
        stored = [factors[m] for m in self._order]
        return NormalEquations(
            gram, gradient, self._pass.complete_value(float(value), stored, self._loss)
        )


@cache
def _lift(rank: int, dtype: Any) -> float:
    return diagonal_shift(np.empty((0, rank), dtype))


@cache
def _storage_modes(modes: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Modes in storage order."""
    return np.array([order.index(mode) for mode in modes])
