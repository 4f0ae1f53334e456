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
        self._order = storage.order
        self._begins = np.cumsum((0, *storage.shape))
        self._unknown = np.empty((0, 0), storage.dtype)

    @abstractmethod
    def _swept(self, *arguments: Any) -> np.ndarray:
        """New stacked factors; the arguments are the last ones of `kernels.sweep`."""

    def swept(
        self, factors: Factors, modes: tuple[int, ...], mu: float, ahead: NormalEquations | None
    ) -> Factors:
        stack = self._stacked(factors)
        real = stack.dtype.type
        gradient, gram = self._unknown, self._unknown
        if ahead is not None:
            gradient, gram = map(np.ascontiguousarray, (ahead.gradient, ahead.gram))
        turns = _turns(modes, self._order)
        new = self._swept(turns, stack, gradient, gram, real(mu), real(lift(stack)))
        found, begins = list(factors), self._begins.tolist()
        for n, mode in enumerate(self._order):
            if mode in modes:
                found[mode] = new[begins[n] : begins[n + 1]]
        return tuple(found)

    def _stacked(self, factors: Factors) -> np.ndarray:
        return np.concatenate([factors[mode] for mode in self._order])


class Sweep(Small):
    """Those of a loss that has a formula."""

    def __init__(self, way: CompiledPass, loss: Loss) -> None:
        super().__init__(way.storage)
        self._entries, self._lines = way.whole(), way.lines(loss)  # held for their addresses
        self._weight = compiled_code().FORMULAS[type(loss)].weight(loss)
        self._known = (
            self._lines.calls, self._lines.at, *self._entries.places, way.storage.split,
            way.storage.tiling.block, self._begins,
        )  # fmt: skip

    def _swept(self, *arguments: Any) -> np.ndarray:
        new: np.ndarray = compiled_code().sweep(*self._known, *arguments)
        return new

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack = self._stacked(factors)
        count, rank = factors[mode].shape
        gradient = np.zeros((count, rank), stack.dtype)
        gram = np.zeros((count, rank * (rank + 1) // 2), stack.dtype)
        n = self._order.index(mode)
        total = compiled_code().whole_pass(*self._known, n, stack, gradient, gram)
        return NormalEquations(gram, gradient, float(self._weight * float(total)))


class SquaresSweep(Small):
    """Those of half the square."""

    def __init__(self, way: LeastSquaresPass, loss: Loss) -> None:
        super().__init__(way.storage)
        self._way, self._loss, storage = way, loss, way.storage
        matrix = storage.as_matrix
        assert matrix is not None
        X = np.ascontiguousarray(storage.converted(matrix, storage.dtype))
        self._known = compiled_code().gemm(storage.dtype), X, storage.split, self._begins

    def _swept(self, *arguments: Any) -> np.ndarray:
        new: np.ndarray = compiled_code().squares_sweep(*self._known, *arguments)
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
