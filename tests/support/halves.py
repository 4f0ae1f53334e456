"""An engine that the package does not know: data in two halves along its first mode."""

from __future__ import annotations

import numpy as np

from robustcp.engines import DenseEngine, Engine, View
from robustcp.engines.normal_equations import NormalEquations


class Halves(Engine):
    """Nothing but the abstract methods of `Engine`, each from those of two dense engines."""

    takes_weights = True

    def __init__(self, data):
        cut = data.shape[0] // 2
        self._set([DenseEngine(data[:cut]), DenseEngine(data[cut:])], View())

    def _set(self, halves, view):
        self.halves, self.view = halves, view
        first = halves[0]
        self.cut = first.shape[0]
        self.shape = (sum(half.shape[0] for half in halves), *first.shape[1:])
        self.xp, self.dtype = first.xp, first.dtype

    def _like(self, halves, view):
        other = object.__new__(Halves)
        other._set(halves, view)
        return other

    def _parts(self, factors):
        """Factors as each half has them."""
        if factors is None:
            return None, None
        rows, *rest = factors
        return (rows[: self.cut], *rest), (rows[self.cut :], *rest)

    def with_view(self, view):
        rows = np.arange(self.cut), np.arange(self.cut, self.shape[0])
        rest = [None] * (self.order - 1)
        parts = [view.subset([own, *rest]) for own in rows]
        halves = [half.with_view(part) for half, part in zip(self.halves, parts, strict=True)]
        return self._like(halves, view)

    def normal_equations(self, factors, mode, loss, rows=None):
        rows = rows or slice(0, self.shape[mode])
        one, two = (
            half.normal_equations(part, mode, loss, rows if mode else None)
            for half, part in zip(self.halves, self._parts(factors), strict=True)
        )
        if mode:
            return one + two
        gram, gradient = (
            self.xp.concat([self.xp.broadcast_to(a, (len(g), a.shape[1])) for a, g in pairs])
            for pairs in (
                [(one.gram, one.gradient), (two.gram, two.gradient)],
                [(one.gradient, one.gradient), (two.gradient, two.gradient)],
            )
        )
        return NormalEquations(gram[rows], gradient[rows], one.value + two.value)

    def map_residuals(self, work, factors):
        return self.xp.concat(
            [
                half.map_residuals(work, part)
                for half, part in zip(self.halves, self._parts(factors), strict=True)
            ]
        )

    def subtensor(self, indices):
        chosen = np.arange(self.shape[0]) if indices[0] is None else np.asarray(indices[0])
        here = [chosen[chosen < self.cut], chosen[chosen >= self.cut] - self.cut]
        return self._like(
            [
                half.subtensor([at, *indices[1:]])
                for half, at in zip(self.halves, here, strict=True)
            ],
            self.view.subset([chosen, *indices[1:]]),
        )
