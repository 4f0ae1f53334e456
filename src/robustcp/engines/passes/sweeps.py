"""Sweeps over small data by compiled code: there, calls take longer than arithmetic."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines.algebra import diagonal_shift
from robustcp.engines.base import Ridges, SweepRule, SweepState, WholeSweep
from robustcp.engines.installed import numba_kernels
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.least_squares import LeastSquaresPass
from robustcp.engines.passes.numba_pass import CompiledPass
from robustcp.engines.storage import Storage
from robustcp.losses import Loss


class CompiledSweep(WholeSweep):
    """Sweeps for one loss over factors stacked in storage order.

    What does not change between sweeps is looked up once.

    Attributes
    ----------
    function : CompiledFunction
        It updates modes in turn: `formula_sweep`, or another with the same arguments.
    data : Struct
        Its first argument.
    value_factor : float
        The factor of the values that it returns.
    shares_gram : bool
        Whether all rows of a mode share one Gram matrix.
    """

    function: Any
    data: Any
    value_factor = 1.0
    shares_gram = False

    def __init__(
        self, storage: Storage, row_solvers: Sequence[str], ridges: Ridges | None = None
    ) -> None:
        self._order, self._dtype, matrix = storage.order, storage.dtype, storage.as_matrix
        assert matrix is not None
        self._max_rows, self._max_lines = max(storage.shape), max(matrix.shape)
        self._mode_offsets = np.cumsum((0, *storage.shape))
        offsets = self._mode_offsets.tolist()
        #: Modes and their rows in the stack, in storage order.
        self._mode_rows = list(zip(self._order, map(slice, offsets, offsets[1:]), strict=True))
        code = numba_kernels()
        self._solvers = [getattr(code, name)(self._dtype).address for name in row_solvers]
        self._ridges, self._balances = _ridge_matrix(ridges, storage.order, storage.dtype)
        #: The last contraction of least squares: its side (0 for none), the stack of the factors,
        #: and the memory that begins with the result.
        self._contraction = 0, np.empty((0, 0)), np.empty(0)

    @abstractmethod
    def exact_value(self, factors: Factors) -> float:
        """The value, where compiled code cannot compute it accurately."""

    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        stack = self._stack_factors(factors)
        memory = self._allocate(1, stack.shape[1])
        if cached_equations is not None:
            memory.write(0, cached_equations)
        side, old_stack, work = self._contraction
        if side and not self._same_contracted_factors(side, stack, old_stack):
            side = 0
        if side:
            memory.work = work
        code = numba_kernels()
        known, ridges = cached_equations is not None, code.address(self._ridges)
        turns = code.Turns(len(modes), known, -1, stack.shape[1], side, ridges)
        self._contraction = 0, stack, memory.work  # it is overwritten
        self._run_turns(turns, modes, mu, stack, memory)
        return self._unstack_factors(stack, factors, modes)

    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack = self._stack_factors(factors)
        memory = self._allocate(1, stack.shape[1])
        turns = numba_kernels().Turns(0, 0, self._order.index(mode), stack.shape[1], 0)
        value = self.value_factor * self._run_turns(turns, (), 0.0, stack, memory)
        self._contraction = turns.contracted, stack, memory.work
        if value != value:
            value = self.exact_value(factors)
        return memory.read(0, len(factors[mode]), value)

    def penalty(self, factors: Factors, modes: tuple[int, ...], mu: float) -> float:
        code, stack = numba_kernels(), self._stack_factors(factors)
        turns = code.Turns(0, 0, -1, stack.shape[1], 0, code.address(self._ridges))
        arrays = self._turn_arrays(modes)[0], self._mode_offsets, np.array([mu], float), stack
        stored_modes, *others = map(code.address, arrays)
        value: float = code.penalty(self._dtype).run(turns, stored_modes, len(modes), *others)
        return value

    def advance(self, state: SweepState, rule: SweepRule, limit: int) -> SweepState:
        code, modes = numba_kernels(), rule.modes
        stacks = np.stack([self._stack_factors(state.factors)] * 4)
        if state.swept_factors is not state.factors:
            stacks[1] = self._stack_factors(state.swept_factors)
        rank, memory = stacks.shape[2], self._allocate(3, stacks.shape[2])
        memory.write(0, state.equations)
        turns = code.Turns(len(modes), 1, -1, rank, 0, code.address(self._ridges))
        sizes = stacks.shape[1], memory.gradient_size, memory.gram_size
        penalty = code.penalty(self._dtype).address
        pointers = self.function.address, ctypes.addressof(self.data), penalty
        balance = len(modes) > 1 and all(self._balances[mode] for mode in modes)
        run = code.Run(*pointers, len(modes), limit, 0, state.momentum, *sizes, 0, balance)
        loss_numbers = self.value_factor, rule.mu, rule.floor, rule.total_weight, rule.likelihood
        rule_numbers = rule.tol, rule.momentum_weight
        numbers = np.array((*loss_numbers, *rule_numbers, state.objective, state.decrease), float)
        objectives = np.empty(limit)
        arrays = (
            *self._turn_arrays(modes),
            np.array([rule.nonnegative[mode] for mode in modes], np.intp),
            self._mode_offsets,
            numbers,
            _parameters(rule.mu, rank, self._dtype),
            stacks,
            memory.equations,
            memory.work,
            objectives,
        )
        code.run_sweeps(self._dtype).run(run, turns, *map(code.address, arrays))
        objective, decrease = numbers[-2:].tolist()
        return SweepState(
            self._unstack_factors(stacks[0], state.factors, modes),
            self._unstack_factors(stacks[1], state.swept_factors, modes),
            memory.read(run.current, len(state.factors[modes[0]]), objective),
            objective,
            decrease,
            run.momentum,
            tuple(objectives[: run.done].tolist()),
        )

    def _run_turns(
        self, turns: Any, modes: tuple[int, ...], mu: float, stack: np.ndarray, memory: _Memory
    ) -> float:
        parameters = _parameters(mu, stack.shape[1], self._dtype)
        gradient, gram = memory.gradients[0], memory.grams[0]
        arrays = (
            *self._turn_arrays(modes),
            self._mode_offsets,
            parameters,
            stack,
            gradient,
            gram,
            memory.work,
        )
        value: float = self.function.run(self.data, turns, *map(numba_kernels().address, arrays))
        return value

    def _turn_arrays(self, modes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The modes of the turns, in storage order, and the addresses of their row solvers."""
        solvers = np.array([self._solvers[mode] for mode in modes], np.intp)
        return _storage_modes(modes, self._order), solvers

    def _same_contracted_factors(self, side: int, one: np.ndarray, other: np.ndarray) -> bool:
        """Whether the factors are the same that are contracted for the modes of the rows (side 1)
        or of the columns (side 2)."""
        split = self._mode_offsets[self.data.split]
        contracted = slice(split, None) if side == 1 else slice(0, split)
        return np.array_equal(one[contracted], other[contracted])

    def _stack_factors(self, factors: Factors) -> np.ndarray:
        return np.concatenate([factors[mode] for mode in self._order], dtype=self._dtype)

    def _unstack_factors(
        self, stack: np.ndarray, factors: Factors, modes: tuple[int, ...]
    ) -> Factors:
        """All factors, those of some modes from a stack."""
        updated = list(factors)
        for mode, rows in self._mode_rows:
            if mode in modes:
                updated[mode] = stack[rows]
        return tuple(updated)

    def _allocate(self, sets: int, rank: int) -> _Memory:
        gram_rows = 1 if self.shares_gram else self._max_rows
        sizes = self._max_rows, gram_rows, (3 * self._max_lines + 1) * rank
        return _Memory(sets, rank, *sizes, self._dtype)


class _Memory:
    """Room for sets of normal equations of any mode, and for products of factors.

    Attributes
    ----------
    gradient_size, gram_size : int
        The numbers of the gradients and of the Gram matrices of a set.
    equations : array (sets, gradient_size + gram_size)
    work : array
    """

    def __init__(
        self, sets: int, rank: int, rows: int, gram_rows: int, work_size: int, dtype: Any
    ) -> None:
        self._rank, self._packed = rank, rank * (rank + 1) // 2
        self.gradient_size, self.gram_size = rows * rank, gram_rows * self._packed
        self.equations = np.empty((sets, self.gradient_size + self.gram_size), dtype)
        self.work = np.empty(work_size, dtype)

    @property
    def gradients(self) -> np.ndarray:
        return self.equations[:, : self.gradient_size].reshape(len(self.equations), -1, self._rank)

    @property
    def grams(self) -> np.ndarray:
        return self.equations[:, self.gradient_size :].reshape(
            len(self.equations), -1, self._packed
        )

    def write(self, position: int, equations: NormalEquations) -> None:
        """Write normal equations into one of the sets."""
        self.gradients[position, : len(equations.gradient)] = equations.gradient
        self.grams[position, : len(equations.gram)] = equations.gram

    def read(self, position: int, rows: int, value: float) -> NormalEquations:
        """The normal equations of a mode with so many rows, from one of the sets."""
        return NormalEquations(self.grams[position, :rows], self.gradients[position, :rows], value)


class FormulaSweep(CompiledSweep):
    """Sweeps for a loss that has a formula."""

    def __init__(
        self,
        compiled_pass: CompiledPass,
        loss: Loss,
        row_solvers: Sequence[str],
        ridges: Ridges | None,
    ) -> None:
        super().__init__(compiled_pass.storage, row_solvers, ridges)
        storage, code = compiled_pass.storage, numba_kernels()
        functions, self.value_factor = compiled_pass.functions(loss)
        entries, tile_pass = compiled_pass.read_all(), code.tile_pass(storage.dtype).address
        self.function = code.formula_sweep(storage.dtype)
        self.data = code.SweepData(functions, entries, tile_pass, storage.split, len(storage.shape))
        self.data.arrays = functions.arrays, entries.arrays

    def exact_value(self, factors: Factors) -> float:
        return float("nan")


class LeastSquaresSweep(CompiledSweep):
    """Sweeps for half the square."""

    shares_gram = True

    def __init__(
        self, least_squares: LeastSquaresPass, loss: Loss, row_solvers: Sequence[str]
    ) -> None:
        super().__init__(least_squares.storage, row_solvers)
        storage, code = least_squares.storage, numba_kernels()
        self._pass, self._loss, matrix = least_squares, loss, storage.as_matrix
        assert matrix is not None
        X = np.ascontiguousarray(storage.convert(matrix, storage.dtype))
        squares = least_squares.half_data_square, least_squares.least_accurate_value
        arrays = X, np.array(squares, storage.dtype)
        addresses = code.gemm(storage.dtype), *map(code.address, arrays)
        sizes = *X.shape, storage.split, len(storage.shape)
        self.function = code.least_squares_sweep(storage.dtype)
        self.data = code.LeastSquaresData(*addresses, *sizes)
        self.data.arrays = arrays

    def exact_value(self, factors: Factors) -> float:
        stored_factors = [factors[mode] for mode in self._order]
        return self._pass.plain.value(stored_factors, self._loss)


def _ridge_matrix(
    ridges: Ridges | None, order: Sequence[int], dtype: Any
) -> tuple[np.ndarray, list[bool]]:
    """The ridges of all modes in storage order, empty for none; and for each mode of the data
    whether its norms are balanced, which a prior of some modes only would not allow."""
    if ridges is None:
        return np.empty((0, 0), dtype), [True] * len(order)
    rank = max(ridge.size for ridge in ridges if ridge is not None)
    rows = [np.zeros(rank) if ridges[mode] is None else ridges[mode] for mode in order]
    return np.array(rows, dtype), [ridge is not None for ridge in ridges]


@cache
def _parameters(mu: float, rank: int, dtype: Any) -> np.ndarray:
    """The parameters of row solves."""
    return np.array((mu, diagonal_shift(np.empty((0, rank), dtype))), dtype)


@cache
def _storage_modes(modes: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Modes in storage order."""
    return np.array([order.index(mode) for mode in modes], np.intp)
