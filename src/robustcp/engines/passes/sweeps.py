"""Sweeps of small data, compiled as a whole: there, calls take longer than arithmetic."""

from __future__ import annotations

from functools import cache

import numpy as np

from robustcp._typing import Factors
from robustcp.engines.algebra import lift
from robustcp.engines.base import Sweeping
from robustcp.engines.installed import compiled_code
from robustcp.engines.passes.compiled import CompiledPass
from robustcp.losses import Loss
from robustcp.normal import NormalEquations


class Sweep(Sweeping):
    """Sweeps and passes for one loss; what does not change between them is looked up once."""

    def __init__(self, way: CompiledPass, loss: Loss) -> None:
        storage = way.storage
        self._order = storage.order
        self._entries, self._lines = way.whole(), way.lines(loss)  # held for their addresses
        self._weight = compiled_code().FORMULAS[type(loss)].weight(loss)
        self._begins = np.cumsum((0, *storage.shape))
        self._known = (
            self._lines.calls, self._lines.at, *self._entries.places, storage.split,
            storage.tiling.block, self._begins,
        )  # fmt: skip
        self._unknown = np.empty((0, 0), storage.dtype)

    def swept(
        self, factors: Factors, modes: tuple[int, ...], mu: float, ahead: NormalEquations | None
    ) -> Factors:
        stack = self._stacked(factors)
        real = stack.dtype.type
        gradient, gram = self._unknown, self._unknown
        if ahead is not None:
            gradient, gram = map(np.ascontiguousarray, (ahead.gradient, ahead.gram))
        new = compiled_code().sweep(
            *self._known, _turns(modes, self._order), stack, gradient, gram, real(mu),
            real(lift(stack)),
        )  # fmt: skip
        found, begins = list(factors), self._begins.tolist()
        for n, mode in enumerate(self._order):
            if mode in modes:
                found[mode] = new[begins[n] : begins[n + 1]]
        return tuple(found)

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        stack = self._stacked(factors)
        count, rank = factors[mode].shape
        gradient = np.zeros((count, rank), stack.dtype)
        gram = np.zeros((count, rank * (rank + 1) // 2), stack.dtype)
        n = self._order.index(mode)
        total = compiled_code().whole_pass(*self._known, n, stack, gradient, gram)
        return NormalEquations(gram, gradient, float(self._weight * float(total)))

    def _stacked(self, factors: Factors) -> np.ndarray:
        return np.concatenate([factors[mode] for mode in self._order])


@cache
def _turns(modes: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Modes in storage order."""
    return np.array([order.index(mode) for mode in modes])
