"""Sweeps of small data, compiled as a whole: there, calls take longer than arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import Any

import numpy as np

from robustcp._typing import Factors
from robustcp.engines.algebra import lift
from robustcp.engines.base import Sweeping
from robustcp.engines.installed import compiled_code
from robustcp.engines.passes.compiled import CompiledPass
from robustcp.engines.passes.least_squares import LeastSquaresPass
from robustcp.engines.storage import Storage
from robustcp.losses import Loss
from robustcp.normal import NormalEquations


class Small(Sweeping):
    """Sweeps for one loss; what does not change between them is looked up once.

    Compiled code gets the factors stacked, in storage order.
    """

    def __init__(self, storage: Storage) -> None:
        self._order, self._dtype = storage.order, storage.dtype
        self._begins = np.cumsum((0, *storage.shape))
        begins = self._begins.tolist()
        #: Modes and their rows in the stack, in storage order.
        self._parts = list(zip(self._order, map(slice, begins, begins[1:]), strict=True))

    @abstractmethod
    def _swept(
        self, stack: np.ndarray, turns: np.ndarray, mu: float, ahead: NormalEquations | None
    ) -> np.ndarray:
        """New stacked factors; the given ones may change."""

    def swept(
        self, factors: Factors, modes: tuple[int, ...], mu: float, ahead: NormalEquations | None
    ) -> Factors:
        new = self._swept(self._stacked(factors), _turns(modes, self._order), mu, ahead)
        found = list(factors)
        for mode, rows in self._parts:
            if mode in modes:
                found[mode] = new[rows]
        return tuple(found)

    def _stacked(self, factors: Factors) -> np.ndarray:
        return np.concatenate([factors[mode] for mode in self._order], dtype=self._dtype)


class Sweep(Small):
    """Those of a loss that has a formula."""

    def __init__(self, way: CompiledPass, loss: Loss) -> None:
        super().__init__(way.storage)
        storage, code = way.storage, compiled_code()
        real, matrix = storage.dtype, storage.as_matrix
        assert matrix is not None
        self._held = way.whole(), way.lines(loss)  # the frame has their addresses
        self._weight = self._held[1].weight
        functions = (code.rows_tile, code.columns_tile, code.solve)
        self._frame = np.array(self._held[1].frame(
            self._held[0], storage.tiling.block,
            *(function(real).address for function in functions),
            storage.split, len(storage.shape), *self._begins,
        ))  # fmt: skip
        self._run, self._address = code.sweep(real).run, code.address
        self._at = code.address(self._frame), code.address(self._begins)
        self._rows, self._lines = max(storage.shape), 3 * max(matrix.shape)

    def _swept(
        self, stack: np.ndarray, turns: np.ndarray, mu: float, ahead: NormalEquations | None
    ) -> np.ndarray:
        rank = stack.shape[1]
        gradient, gram, room = self._room(rank)
        if ahead is not None:
            gradient[: len(ahead.gradient)] = ahead.gradient
            gram[: len(ahead.gram)] = ahead.gram
        numbers, address = np.array((mu, _lift(rank, self._dtype)), self._dtype), self._address
        self._run(
            self._at[0], address(turns), len(turns), ahead is not None, -1, rank, address(numbers),
            address(stack), *room,
        )  # fmt: skip
        return stack

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack, n, count = self._stacked(factors), self._order.index(mode), len(factors[mode])
        frame, nothing = self._at
        gradient, gram, room = self._room(stack.shape[1])
        value = self._run(
            frame, nothing, 0, 0, n, stack.shape[1], nothing, self._address(stack), *room
        )
        return NormalEquations(gram[:count], gradient[:count], float(self._weight * value))

    def _room(self, rank: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int]]:
        """For the normal equations of any mode; where they are, and room for `kernels._sweep`."""
        size, packed = self._rows * rank, self._rows * (rank * (rank + 1) // 2)
        whole = np.empty(size + packed + self._lines * rank, self._dtype)
        gradient = whole[:size].reshape(self._rows, rank)
        gram = whole[size : size + packed].reshape(self._rows, -1)
        at, width = self._address(whole), whole.itemsize
        return gradient, gram, (at, at + size * width, at + (size + packed) * width)


class SquaresSweep(Small):
    """Those of half the square."""

    def __init__(self, way: LeastSquaresPass, loss: Loss) -> None:
        super().__init__(way.storage)
        self._way, self._loss, storage = way, loss, way.storage
        matrix = storage.as_matrix
        assert matrix is not None
        X = np.ascontiguousarray(storage.converted(matrix, storage.dtype))
        self._known = compiled_code().gemm(storage.dtype), X, storage.split, self._begins

    def _swept(
        self, stack: np.ndarray, turns: np.ndarray, mu: float, ahead: NormalEquations | None
    ) -> np.ndarray:
        gradient, gram = np.empty((2, 0, 0), stack.dtype)
        if ahead is not None:
            gradient, gram = map(np.ascontiguousarray, (ahead.gradient, ahead.gram))
        (gemm, *known), rank = self._known, stack.shape[1]
        numbers = np.array((mu, _lift(rank, self._dtype)), stack.dtype)
        solve = compiled_code().solve(stack.dtype).address
        new: np.ndarray = compiled_code().squares_sweep(
            gemm, solve, *known, turns, stack, gradient, gram, numbers
        )
        return new

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack = self._stacked(factors)
        count, rank = factors[mode].shape
        gradient = np.empty((count, rank), stack.dtype)
        gram = np.empty((1, rank * (rank + 1) // 2), stack.dtype)
        n = self._order.index(mode)
        found = compiled_code().squares_pass(*self._known, n, stack, gradient, gram)
        stored = [factors[m] for m in self._order]
        return NormalEquations(
            gram, gradient, self._way.whole_value(float(found), stored, self._loss)
        )


@cache
def _lift(rank: int, dtype: Any) -> float:
    return lift(np.empty((0, rank), dtype))


@cache
def _turns(modes: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Modes in storage order."""
    return np.array([order.index(mode) for mode in modes])
