"""Sweeps of small data, compiled as a whole: there, calls take longer than arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache

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

    @abstractmethod
    def _swept(
        self, stack: np.ndarray, turns: np.ndarray, mu: float, ahead: NormalEquations | None
    ) -> np.ndarray:
        """New stacked factors; the given ones may change."""

    def swept(
        self, factors: Factors, modes: tuple[int, ...], mu: float, ahead: NormalEquations | None
    ) -> Factors:
        new = self._swept(self._stacked(factors), _turns(modes, self._order), mu, ahead)
        found, begins = list(factors), self._begins.tolist()
        for n, mode in enumerate(self._order):
            if mode in modes:
                found[mode] = new[begins[n] : begins[n + 1]]
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
        self._rows, self._lines = max(storage.shape), 3 * max(matrix.shape)

    def _swept(
        self, stack: np.ndarray, turns: np.ndarray, mu: float, ahead: NormalEquations | None
    ) -> np.ndarray:
        gradient, gram = self._room(stack)
        if ahead is not None:
            gradient[: len(ahead.gradient)] = ahead.gradient
            gram[: len(ahead.gram)] = ahead.gram
        known = ahead is not None
        self._call(stack, turns, len(turns), known, -1, (mu, lift(stack)), gradient, gram)
        return stack

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack, n, count = self._stacked(factors), self._order.index(mode), len(factors[mode])
        gradient, gram = self._room(stack)
        value = self._call(stack, self._begins, 0, 0, n, (0.0, 0.0), gradient, gram)
        return NormalEquations(gram[:count], gradient[:count], float(self._weight * value))

    def _room(self, stack: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For the normal equations of any mode."""
        rank = stack.shape[1]
        gradient = np.empty((self._rows, rank), stack.dtype)
        return gradient, np.empty((self._rows, rank * (rank + 1) // 2), stack.dtype)

    def _call(
        self, stack: np.ndarray, turns: np.ndarray, count: int, known: int, last: int,
        numbers: tuple[float, float], gradient: np.ndarray, gram: np.ndarray,
    ) -> float:  # fmt: skip
        """See `kernels._sweep`."""
        rank, address = stack.shape[1], self._address
        work = np.empty(self._lines * rank, stack.dtype)
        reals = np.array(numbers, stack.dtype)
        value: float = self._run(
            address(self._frame), address(turns), count, known, last, rank, address(reals),
            address(stack), address(gradient), address(gram), address(work),
        )  # fmt: skip
        return value


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
        (gemm, *known), numbers = self._known, np.array((mu, lift(stack)), stack.dtype)
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
def _turns(modes: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Modes in storage order."""
    return np.array([order.index(mode) for mode in modes])
