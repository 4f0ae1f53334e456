"""Robust regression: the sweep loop with all factors but one fixed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.typing import Array
from robustcp.constraints import Constraint, Free
from robustcp.engines import Engine, as_engine, single_blas_thread, to_host
from robustcp.engines.arrays import plain_array
from robustcp.model.kruskal import KruskalTensor
from robustcp.noise import NoiseSpec
from robustcp.optimize.problem import Problem
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.stages import cp_stages, l1_continuation
from robustcp.starts.initial_factors import unobserved_rows, zero_unobserved_rows


def l1_regression(
    M: Array,
    Y: Array,
    *,
    epsilon: float = 1e-10,
    mu: float = 1e-8,
    tol: float = 1e-9,
    max_sweeps: int = 5000,
) -> Array:
    """Least absolute deviations: the b that minimises sum |Y - M b| (section 2.1 of the paper).

    It is the sweep loop of `cpal1` on a matrix, with M as the factor that is not solved for.

    Parameters
    ----------
    M : array (I, J)
    Y : array (I,) or (I, k)
        One or several responses.
    epsilon, mu : float
        Smoothing and ridge, relative to the scales of Y and M.
    tol, max_sweeps
        As in `cpal1`.

    Returns
    -------
    array (J,) or (J, k)

    Examples
    --------
    >>> import numpy as np
    >>> t = np.arange(10.0)
    >>> y = 3 + 2 * t
    >>> y[4] = 1000.0
    >>> from robustcp import l1_regression
    >>> l1_regression(np.stack([np.ones(10), t], axis=1), y).round(3)
    array([3., 2.])
    """
    epsilon = checks.real_number("epsilon", epsilon, 0.0, strict=True)
    mu = checks.real_number("mu", mu, 0.0)
    tol = checks.real_number("tol", tol, 0.0, below=1.0)
    max_sweeps = checks.whole_number("max_sweeps", max_sweeps, 1)
    responses = plain_array(Y)
    vector = responses.ndim == 1
    design, engine = _matrices(M, responses[:, None] if vector else responses)
    # Columns of M and of Y are separate measurements, and each is scaled by itself.
    host = engine.unfolding(0, slice(0, engine.shape[0]))
    design_exponents = np.array([_exponent(column) for column in design.T])
    response_exponents = np.array([_exponent(column[column != 0]) for column in host.T])
    with single_blas_thread:
        scaled = np.ldexp(host, -response_exponents) if engine.max_abs else host
        problem = Problem.of(as_engine(engine.asarray(scaled)))
        continuation = l1_continuation(problem, epsilon)
        stage = Stage("L1", continuation, tol, mu / problem.scale, max_sweeps)
        solver = Solver(problem, (stage,), modes=(1,))
        scaled_design = engine.asarray(np.ldexp(design, -design_exponents))
        zero = engine.asarray(np.zeros((engine.shape[1], design.shape[1])))
        state, _ = solver.run(solver.start((scaled_design, zero)), max_sweeps)
    coefficients = np.ldexp(
        to_host(state.factors[1]).T.astype(np.float64),
        response_exponents[None, :] - design_exponents[:, None],
    )
    result = engine.asarray(coefficients)
    return result[:, 0] if vector else result


def _matrices(M: Any, Y: Any) -> tuple[np.ndarray, Engine]:
    """The design on the host, and the engine of the responses."""
    with checks.name_in_errors("M"):
        design = as_engine(M)
        if not design.complete:
            raise ValueError("M: has NaN entries")
    with checks.name_in_errors("Y"):
        engine = as_engine(Y)
        if not engine.complete:
            raise ValueError("Y: has NaN entries")
    if design.order != 2 or engine.order != 2:
        raise ValueError(
            f"M, Y: must be a matrix and a vector or matrix, got shapes {design.shape}, "
            f"{engine.shape}"
        )
    if design.shape[0] != engine.shape[0]:
        raise ValueError(f"Y: has {engine.shape[0]} rows, M has {design.shape[0]}")
    return design.unfolding(0, slice(0, design.shape[0])), engine


def _exponent(column: np.ndarray) -> int:
    """The exponent of the power of 2 near a column's median magnitude, or near its largest."""
    if not column.size:
        return 0
    sizes = np.abs(column)
    return math.frexp(float(np.median(sizes)) or float(sizes.max()))[1]


def project(
    model: KruskalTensor,
    X: Any,
    mode: int,
    constraint: Constraint = Free(),  # noqa: B008
    noise: NoiseSpec = NoiseSpec(),  # noqa: B008
) -> Array:
    """The factor of new data in one mode, by the stages of `cp` with the other factors fixed."""
    mode = checks.whole_number("mode", mode, 0, maximum=len(model.shape) - 1)
    with single_blas_thread:
        data = as_engine(X)
        expected = tuple("any" if m == mode else size for m, size in enumerate(model.shape))
        if data.order != len(model.shape) or any(
            size != data.shape[m] for m, size in enumerate(model.shape) if m != mode
        ):
            raise ValueError(f"X: has shape {data.shape}, the model needs {expected}")
        problem = Problem.of(data)
        engine, order = problem.engine, problem.units.order
        rows = engine.asarray(np.zeros((engine.shape[mode], model.rank)))
        model_factors = [engine.asarray(to_host(A)) for A in model.factors]
        # Columns of about the data's size, so that mu means what it does elsewhere.
        size = problem.scale ** (1 / order) if engine.max_abs > 0 else 1.0
        factors = tuple(rows if m == mode else A * size for m, A in enumerate(model_factors))
        stages = cp_stages(problem, 1e-6, noise.for_engine(engine).in_units(problem.units))
        solver = Solver(problem, stages, (mode,), (constraint,) * order)
        factors = zero_unobserved_rows(problem, factors, (mode,), solver.constraints)
        empty = unobserved_rows(engine, (mode,), solver.constraints)[mode]
        if empty.size:
            axes = data.view.axes
            checks.warn(
                f"X: {empty.size} slabs of {axes.mode_name(mode)} have no observed entry "
                f"({axes.list_indices(mode, empty)}); their scores are 0"
            )
        state, _ = solver.run(solver.start(factors), 500)
        scores = state.factors[mode] * size ** (order - 1)
        return scores * problem.units.factor
