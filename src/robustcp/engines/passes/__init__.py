"""Passes: how the dense engine does its one heavy operation.

A pass takes factors in storage order and gives the normal equations of one of them, or the value
of the loss alone. Which pass does a loss is decided in `Passes.of`, and nowhere else.
"""

from __future__ import annotations

import math

from robustcp.engines.base import Sweeping
from robustcp.engines.installed import compiled_code, fused_code
from robustcp.engines.passes.base import Pass
from robustcp.engines.passes.compiled import CompiledPass
from robustcp.engines.passes.fused import FusedPass
from robustcp.engines.passes.least_squares import LeastSquaresPass, MatrixSquares
from robustcp.engines.passes.plain import PlainPass
from robustcp.engines.passes.recorded_sweeps import RecordedSquares, RecordedSweep, Work
from robustcp.engines.passes.sweeps import SquaresSweep, Sweep
from robustcp.engines.storage import Storage
from robustcp.losses import Loss

__all__ = ["Pass", "Passes"]

#: Sweeps on a GPU are recorded for so many entries, and rows of a factor, at most: what they work
#: in is kept. Modes are done in one piece then.
RECORDED, RECORDED_ROWS = 1 << 27, 1 << 12


class Passes:
    """The passes over one array; compiled ones if that is allowed and can be had."""

    def __init__(self, storage: Storage, *, compiled: bool) -> None:
        self._storage = storage
        fused = fused_code(storage.device) if compiled else None
        compiled = compiled and compiled_code() is not None and storage.as_matrix is not None
        self._plain = PlainPass(storage)
        self._compiled = CompiledPass(storage) if compiled else None
        self._fused = None if fused is None else FusedPass(storage, fused)
        self._squares: LeastSquaresPass | None = None
        if self._fused is not None and storage.one_matrix is not None:
            self._squares = MatrixSquares(storage, self._fused)
        elif self._fused is None and storage.dtype == storage.xp.float64:
            # In float32 too many digits would cancel.
            self._squares = LeastSquaresPass(storage, self._plain, compiled=compiled)

    @property
    def fused(self) -> bool:
        """Whether kernels of a GPU are used."""
        return self._fused is not None

    def of(self, loss: Loss, *, whole: bool = True) -> Pass:
        """The pass for a loss, over the whole of a mode or some of its rows."""
        storage = self._storage
        shared = loss.quadratic and storage.separable and storage.harmless
        if self._squares is not None and whole and shared:
            return self._squares
        if self._compiled is not None and self._compiled.takes(loss):
            return self._compiled
        if self._fused is not None and self._fused.takes(loss):
            return self._fused
        return self._plain

    def sweep(self, loss: Loss) -> Sweeping | None:
        """Whole sweeps, if the data is so small that calls take longer than arithmetic."""
        storage, way = self._storage, self.of(loss)
        count, tiling = math.prod(storage.shape), storage.tiling
        if self._fused is not None and count <= RECORDED and max(storage.shape) <= RECORDED_ROWS:
            if way is self._squares:
                return RecordedSquares(self._squares, self._fused, loss)
            return RecordedSweep(Work(self._fused, loss)) if way is self._fused else None
        if self._compiled is None:
            return None
        if way is self._compiled and count <= tiling.swept:
            return Sweep(self._compiled, loss)
        if way is self._squares and storage.weights is None and count <= tiling.swept_squares:
            return SquaresSweep(self._squares, loss)
        return None
