"""Sweeps on a GPU, recorded: where data is not large, calls take longer than the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from robustcp._typing import Array, Factors
from robustcp.engines.algebra import FusedAlgebra
from robustcp.engines.base import Sweeping
from robustcp.engines.passes.fused import FusedPass
from robustcp.engines.passes.least_squares import LeastSquaresPass
from robustcp.engines.recorded import Recorded
from robustcp.losses import Loss
from robustcp.normal import NormalEquations


class Work:
    """What is recorded, for one loss: passes and updates that leave what they find on the device.

    It does not know its recordings, so that they are gone as soon as nobody uses them.
    """

    def __init__(self, way: FusedPass, loss: Loss) -> None:
        self.way, self._loss, self._storage = way, loss, way.storage

    def updated(self, modes: tuple[int, ...], mu: float, *arrays: Array) -> list[Array]:
        """The factors of some modes, each updated in its turn.

        Arrays are all factors; then the first one's Gram matrices and gradients, if known.
        """
        order = len(self._storage.shape)
        factors, ahead = list(arrays[:order]), arrays[order:]
        for mode in modes:
            if ahead:
                equations = NormalEquations(ahead[0], ahead[1], 0.0)
            else:
                equations = self._normal(tuple(factors), mode)
            factors[mode], ahead = FusedAlgebra().solved(equations, factors[mode], mu), ()
        return [factors[mode] for mode in modes]

    def passed(self, mode: int, *factors: Array) -> list[Array]:
        """Gram matrices, gradients and value of a mode."""
        found = self._normal(factors, mode)
        return [found.gram, found.gradient, found.value]

    def _normal(self, factors: Factors, mode: int) -> NormalEquations:
        storage = self._storage
        n = storage.order.index(mode)
        return self._pass(storage.in_order(factors), n, slice(0, storage.shape[n]))

    def _pass(self, factors: Sequence[Array], n: int, rows: slice) -> NormalEquations:
        return self.way.normal(factors, n, self._loss, rows)


class SquaresWork(Work):
    """That of half the square, by matrix products; values lack the squares of the data."""

    def __init__(self, squares: LeastSquaresPass, way: FusedPass, loss: Loss) -> None:
        super().__init__(way, loss)
        self._squares = squares

    def _pass(self, factors: Sequence[Array], n: int, rows: slice) -> NormalEquations:
        return self._squares.without_squares(factors, n, rows)


class RecordedSweep(Sweeping):
    """Sweeps for one loss."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._sweeps = cache(lambda modes, mu: Recorded(partial(work.updated, modes, mu)))
        self._passes = cache(lambda mode: Recorded(partial(work.passed, mode)))

    def swept(
        self, factors: Factors, modes: tuple[int, ...], mu: float, ahead: NormalEquations | None
    ) -> Factors:
        known = () if ahead is None else (ahead.gram, ahead.gradient)
        run = self._recorded(self._sweeps(modes, mu), factors)
        found = dict(zip(modes, run(*factors, *known), strict=True))
        return tuple(found.get(mode, A) for mode, A in enumerate(factors))

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        gram, gradient, value = self._recorded(self._passes(mode), factors)(*factors)
        return NormalEquations(gram, gradient, float(value))

    def _recorded(self, run: Recorded, factors: Factors) -> Callable[..., Sequence[Array]]:
        """What is beyond the kernels is done by the library, which waits for the device."""
        return run if self._work.way.holds(factors) else run.work


class RecordedSquares(RecordedSweep):
    """Those of half the square.

    Where the model is so close to the data that digits cancel, residuals are passed over.
    """

    def __init__(self, squares: LeastSquaresPass, way: FusedPass, loss: Loss) -> None:
        super().__init__(SquaresWork(squares, way, loss))
        self._squares, self._loss = squares, loss
        self._close = RecordedSweep(Work(way, loss))

    def swept(
        self, factors: Factors, modes: tuple[int, ...], mu: float, ahead: NormalEquations | None
    ) -> Factors:
        if ahead is not None and not self._squares.sound(ahead.value):
            return self._close.swept(factors, modes, mu, ahead)
        return super().swept(factors, modes, mu, ahead)

    def equations(self, factors: Factors, mode: int) -> NormalEquations:
        found = super().equations(factors, mode)
        found = replace(found, value=self._squares.whole_value(found.value, factors, self._loss))
        return found if self._squares.sound(found.value) else self._close.equations(factors, mode)
