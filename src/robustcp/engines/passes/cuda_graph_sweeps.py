"""Sweeps on a GPU, recorded: where data is not large, calls take longer than the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import TritonAlgebra
from robustcp.engines.base import WholeSweep
from robustcp.engines.cuda_graph import CudaGraphFunction
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.least_squares import LeastSquaresPass
from robustcp.engines.passes.triton_pass import TritonPass
from robustcp.losses import Loss


class DeviceSteps:
    """What is recorded, for one loss: passes and updates that leave what they find on the device.

    It does not know its recordings, so that they are gone as soon as nobody uses them.
    """

    def __init__(self, triton_pass: TritonPass, loss: Loss) -> None:
        self.triton_pass, self._loss, self._storage = triton_pass, loss, triton_pass.storage

    def update_modes(self, modes: tuple[int, ...], mu: float, *arrays: Array) -> list[Array]:
        """The factors of some modes, each updated in its turn.

        Arrays are all factors; then the first one's Gram matrices and gradients, if known.
        """
        order = len(self._storage.shape)
        factors, cached_equations = list(arrays[:order]), arrays[order:]
        for mode in modes:
            if cached_equations:
                equations = NormalEquations(cached_equations[0], cached_equations[1], 0.0)
            else:
                equations = self._mode_equations(tuple(factors), mode)
            factors[mode], cached_equations = (
                TritonAlgebra().solve_rows(equations, factors[mode], mu),
                (),
            )
        return [factors[mode] for mode in modes]

    def run_pass(self, mode: int, *factors: Array) -> list[Array]:
        """Gram matrices, gradients and value of a mode."""
        equations = self._mode_equations(factors, mode)
        return [equations.gram, equations.gradient, equations.value]

    def _mode_equations(self, factors: Factors, mode: int) -> NormalEquations:
        storage = self._storage
        n = storage.order.index(mode)
        return self._stored_equations(
            storage.in_storage_order(factors), n, slice(0, storage.shape[n])
        )

    def _stored_equations(self, factors: Sequence[Array], n: int, rows: slice) -> NormalEquations:
        return self.triton_pass.normal_equations(factors, n, self._loss, rows)


class LeastSquaresDeviceSteps(DeviceSteps):
    """That of half the square, by matrix products; values lack the squares of the data."""

    def __init__(
        self, least_squares: LeastSquaresPass, triton_pass: TritonPass, loss: Loss
    ) -> None:
        super().__init__(triton_pass, loss)
        self._least_squares = least_squares

    def _stored_equations(self, factors: Sequence[Array], n: int, rows: slice) -> NormalEquations:
        return self._least_squares.equations_without_data_square(factors, n, rows)


class CudaGraphSweep(WholeSweep):
    """Sweeps for one loss."""

    def __init__(self, steps: DeviceSteps) -> None:
        self._steps = steps
        self._sweep_graphs = cache(
            lambda modes, mu: CudaGraphFunction(partial(steps.update_modes, modes, mu))
        )
        self._pass_graphs = cache(lambda mode: CudaGraphFunction(partial(steps.run_pass, mode)))

    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        cached_arrays = (
            () if cached_equations is None else (cached_equations.gram, cached_equations.gradient)
        )
        run = self._runner(self._sweep_graphs(modes, mu), factors)
        updated = dict(zip(modes, run(*factors, *cached_arrays), strict=True))
        return tuple(updated.get(mode, A) for mode, A in enumerate(factors))

    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        gram, gradient, value = self._runner(self._pass_graphs(mode), factors)(*factors)
        return NormalEquations(gram, gradient, float(value))

    def _runner(self, graph: CudaGraphFunction, factors: Factors) -> Callable[..., Sequence[Array]]:
        """What is beyond the kernels is done by the library, which waits for the device."""
        return graph if self._steps.triton_pass.supports_rank(factors) else graph.function


class CudaGraphLeastSquaresSweep(CudaGraphSweep):
    """Those of half the square.

    Where the model is so close to the data that digits cancel, residuals are passed over.
    """

    def __init__(
        self, least_squares: LeastSquaresPass, triton_pass: TritonPass, loss: Loss
    ) -> None:
        super().__init__(LeastSquaresDeviceSteps(least_squares, triton_pass, loss))
        self._least_squares, self._loss = least_squares, loss
        self._residual_sweep = CudaGraphSweep(DeviceSteps(triton_pass, loss))

    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        if cached_equations is not None and not self._least_squares.is_accurate(
            cached_equations.value
        ):
            return self._residual_sweep.update_factors(factors, modes, mu, cached_equations)
        return super().update_factors(factors, modes, mu, cached_equations)

    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        equations = super().normal_equations(factors, mode)
        equations = replace(
            equations,
            value=self._least_squares.complete_value(equations.value, factors, self._loss),
        )
        return (
            equations
            if self._least_squares.is_accurate(equations.value)
            else self._residual_sweep.normal_equations(factors, mode)
        )
