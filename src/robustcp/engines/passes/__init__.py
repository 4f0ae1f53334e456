"""Passes: how the dense engine does its one heavy operation.

A pass takes factors in storage order and returns the normal equations of one of them, or the value
of the loss alone. `Passes.for_loss`, and nothing else, selects the pass for a loss.
"""

from __future__ import annotations

import math

from robustcp._util.typing import Factors
from robustcp.engines.base import Ridges, WholeSweep
from robustcp.engines.installed import numba_kernels, triton_kernels
from robustcp.engines.passes.base import Pass
from robustcp.engines.passes.cuda_graph_sweeps import CudaGraphLeastSquaresSweep, CudaGraphSweep
from robustcp.engines.passes.least_squares import LeastSquaresPass, MatrixLeastSquaresPass
from robustcp.engines.passes.numba_pass import CompiledPass
from robustcp.engines.passes.plain import PlainPass
from robustcp.engines.passes.sweeps import CompiledSweep, FormulaSweep, LeastSquaresSweep
from robustcp.engines.passes.triton_pass import TritonPass
from robustcp.engines.storage import Storage
from robustcp.losses import Loss

__all__ = ["Pass", "Passes"]

#: The most entries, and rows of a factor, for which sweeps on a GPU are recorded: their working
#: memory is kept, and a mode is not cut into blocks of rows.
MAX_GRAPH_ENTRIES, MAX_GRAPH_ROWS = 1 << 27, 1 << 12


class Passes:
    """The passes over one array; compiled ones if they are allowed and available."""

    def __init__(self, storage: Storage, *, compiled: bool) -> None:
        self._storage = storage
        triton = triton_kernels(storage.device) if compiled else None
        compiled = compiled and numba_kernels() is not None and storage.as_matrix is not None
        self._plain = PlainPass(storage)
        self._compiled = CompiledPass(storage) if compiled else None
        self._triton = None if triton is None else TritonPass(storage, triton)
        self._least_squares: LeastSquaresPass | None = None
        if self._triton is not None and storage.device_matrix is not None:
            self._least_squares = MatrixLeastSquaresPass(storage, self._triton)
        elif self._triton is None and storage.dtype == storage.xp.float64:
            # In float32 too many digits would cancel.
            self._least_squares = LeastSquaresPass(storage, self._plain, compiled=compiled)

    @property
    def uses_triton(self) -> bool:
        """Whether kernels of a GPU are used."""
        return self._triton is not None

    def for_loss(self, loss: Loss, *, whole_mode: bool = True) -> Pass:
        """The pass for a loss, over the whole of a mode or some of its rows."""
        storage = self._storage
        shares_gram = loss.quadratic and storage.separable and storage.zero_weights_safe
        if self._least_squares is not None and whole_mode and shares_gram:
            return self._least_squares
        if self._compiled is not None and self._compiled.supports(loss):
            return self._compiled
        if self._triton is not None and self._triton.supports(loss):
            return self._triton
        return self._plain

    def value(self, factors: Factors, loss: Loss) -> float:
        """The loss summed over the data; of small data in one call of compiled code."""
        sweep = self._compiled_sweep(loss, ("solve_rows",) * len(factors), None)
        if sweep is not None:
            return sweep.normal_equations(factors, 0).value
        return self.for_loss(loss).value(self._storage.in_storage_order(factors), loss)

    def whole_sweep(
        self, loss: Loss, row_solvers: tuple[str, ...], ridges: Ridges | None
    ) -> WholeSweep | None:
        """Whole sweeps, if the data is so small that calls take longer than arithmetic."""
        storage, selected = self._storage, self.for_loss(loss)
        count = math.prod(storage.shape)
        recordable = count <= MAX_GRAPH_ENTRIES and max(storage.shape) <= MAX_GRAPH_ROWS
        recordable = recordable and set(row_solvers) == {"solve_rows"} and ridges is None
        if self._triton is not None and recordable and selected is self._least_squares:
            return CudaGraphLeastSquaresSweep(self._least_squares, self._triton, loss)
        if self._triton is not None and recordable and selected is self._triton:
            return CudaGraphSweep(self._triton, loss)
        return self._compiled_sweep(loss, row_solvers, ridges)

    def _compiled_sweep(
        self, loss: Loss, row_solvers: tuple[str, ...], ridges: Ridges | None
    ) -> CompiledSweep | None:
        storage, selected = self._storage, self.for_loss(loss)
        count, tiling = math.prod(storage.shape), storage.tiling
        if self._compiled is None:
            return None
        if selected is self._compiled and count <= tiling.max_sweep_entries:
            return FormulaSweep(self._compiled, loss, row_solvers, ridges)
        small = (
            storage.weights is None
            and ridges is None
            and count <= tiling.max_least_squares_sweep_entries
        )
        if selected is self._least_squares and small:
            return LeastSquaresSweep(self._least_squares, loss, row_solvers)
        return None
