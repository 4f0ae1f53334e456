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
    """What is recorded, for one loss: passes and updates that leave their results on the device.

    It has no reference to its recordings, so that they are gone as soon as nobody uses them.

    Attributes
    ----------
    triton_pass : TritonPass
    compute : function
        Normal equations from factors in storage order, a mode, and some of its rows.
    """

    def __init__(
        self,
        triton_pass: TritonPass,
        compute: Callable[[Sequence[Array], int, slice], NormalEquations],
    ) -> None:
        self.triton_pass, self._compute = triton_pass, compute

    def update_modes(self, modes: tuple[int, ...], mu: float, *arrays: Array) -> list[Array]:
        """The factors of some modes, each updated in its turn.

        Arrays are all factors; then the first one's Gram matrices and gradients, if known.
        """
        order = len(self.triton_pass.storage.shape)
        factors, cached_equations = list(arrays[:order]), arrays[order:]
        for mode in modes:
            if cached_equations:
                equations = NormalEquations(cached_equations[0], cached_equations[1], 0.0)
            else:
                equations = self._mode_equations(factors, mode)
            factors[mode] = TritonAlgebra().solve_rows(equations, factors[mode], mu)
            cached_equations = ()
        return [factors[mode] for mode in modes]

    def run_pass(self, mode: int, *factors: Array) -> list[Array]:
        """Gram matrices, gradients and value of a mode."""
        equations = self._mode_equations(factors, mode)
        return [equations.gram, equations.gradient, equations.value]

    def _mode_equations(self, factors: Sequence[Array], mode: int) -> NormalEquations:
        storage = self.triton_pass.storage
        n = storage.order.index(mode)
        return self._compute([factors[m] for m in storage.order], n, slice(0, storage.shape[n]))


class CudaGraphSweep(WholeSweep):
    """Sweeps for one loss, by its passes or by others that compute its normal equations."""

    def __init__(
        self,
        triton_pass: TritonPass,
        loss: Loss,
        compute: Callable[[Sequence[Array], int, slice], NormalEquations] | None = None,
    ) -> None:
        self._triton_pass = triton_pass
        steps = DeviceSteps(triton_pass, compute or partial(_equations, triton_pass, loss))
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
        """The graph; the plain function for ranks beyond the kernels, which wait for the device."""
        return graph if self._triton_pass.supports_rank(factors) else graph.function


def _equations(
    triton_pass: TritonPass, loss: Loss, factors: Sequence[Array], n: int, rows: slice
) -> NormalEquations:
    return triton_pass.normal_equations(factors, n, loss, rows)


class CudaGraphLeastSquaresSweep(CudaGraphSweep):
    """Sweeps for half the square, by matrix products; recorded values lack the data's squares.

    Where the model is so close to the data that digits cancel, the pass over residuals is used.
    """

    def __init__(
        self, least_squares: LeastSquaresPass, triton_pass: TritonPass, loss: Loss
    ) -> None:
        super().__init__(triton_pass, loss, least_squares.equations_without_data_square)
        self._least_squares, self._loss = least_squares, loss
        self._residual_sweep = CudaGraphSweep(triton_pass, loss)

    def update_factors(
        self,
        factors: Factors,
        modes: tuple[int, ...],
        mu: float,
        cached_equations: NormalEquations | None,
    ) -> Factors:
        accurate = cached_equations is None or self._least_squares.is_accurate(
            cached_equations.value
        )
        update = super().update_factors if accurate else self._residual_sweep.update_factors
        return update(factors, modes, mu, cached_equations)

    def normal_equations(self, factors: Factors, mode: int) -> NormalEquations:
        equations = super().normal_equations(factors, mode)
        value = self._least_squares.complete_value(equations.value, factors, self._loss)
        if self._least_squares.is_accurate(value):
            return replace(equations, value=value)
        return self._residual_sweep.normal_equations(factors, mode)
