"""Robust regression: the sweep loop with all factors but one held."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp._typing import Array
from robustcp.constraints import Constraint, Free
from robustcp.engines import Engine, as_engine, single_blas_thread, to_host
from robustcp.engines.arrays import plain_array
from robustcp.kruskal import KruskalTensor
from robustcp.noise import Asked
from robustcp.search import cleared
from robustcp.sizes import Problem
from robustcp.solver import Solver, Stage
from robustcp.stages import to_the_noise, way_down


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
    epsilon = _checks.real_number("epsilon", epsilon, 0.0, above=True)
    mu = _checks.real_number("mu", mu, 0.0)
    tol = _checks.real_number("tol", tol, 0.0, below=1.0)
    max_sweeps = _checks.whole_number("max_sweeps", max_sweeps, 1)
    answers = plain_array(Y)
    vector = answers.ndim == 1
    design, engine = _matrices(M, answers[:, None] if vector else answers)
    # Each column of M and of Y in units of its own: they are separate measurements.
    host = engine.unfolding(0, slice(0, engine.shape[0]))
    by = np.array([_exponent(column) for column in design.T])
    of = np.array([_exponent(column[column != 0]) for column in host.T])
    with single_blas_thread:
        scaled = engine.asarray(np.ldexp(host, -of)) if engine.largest else engine.asarray(host)
        problem = Problem.of(as_engine(scaled))
        down = way_down(problem, epsilon)
        stage = Stage("L1", down, tol, mu / problem.scale, max_sweeps)
        solver = Solver(problem, (stage,), modes=(1,))
        fixed = engine.asarray(np.ldexp(design, -by))
        zero = engine.asarray(np.zeros((engine.shape[1], design.shape[1])))
        state, _ = solver.run(solver.start((fixed, zero)), max_sweeps)
    found = np.ldexp(to_host(state.factors[1]).T.astype(np.float64), of[None, :] - by[:, None])
    result = engine.asarray(found)
    return result[:, 0] if vector else result


def _matrices(M: Any, Y: Any) -> tuple[np.ndarray, Engine]:
    """The design on the host, and the engine of the responses."""
    with _checks.about("M"):
        design = as_engine(M)
        if not design.complete:
            raise ValueError("M: has NaN entries")
    with _checks.about("Y"):
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
    """The power of 2 next to the median magnitude of a column, or to the largest."""
    if not column.size:
        return 0
    sizes = np.abs(column)
    return math.frexp(float(np.median(sizes)) or float(sizes.max()))[1]


def project(
    model: KruskalTensor,
    X: Any,
    mode: int,
    constraint: Constraint = Free(),  # noqa: B008
    noise: Asked = Asked(),  # noqa: B008
) -> Array:
    """The factor of new data in one mode, by the stages of `cp` with the other factors held."""
    mode = _checks.whole_number("mode", mode, 0, most=len(model.shape) - 1)
    with single_blas_thread:
        whole = as_engine(X)
        expected = tuple("any" if m == mode else size for m, size in enumerate(model.shape))
        if whole.order != len(model.shape) or any(
            size != whole.shape[m] for m, size in enumerate(model.shape) if m != mode
        ):
            raise ValueError(f"X: has shape {whole.shape}, the model needs {expected}")
        problem = Problem.of(whole)
        engine, order = problem.engine, problem.units.order
        rows = engine.asarray(np.zeros((engine.shape[mode], model.rank)))
        held = [engine.asarray(to_host(A)) for A in model.factors]
        # Columns of about the data's size, so that mu means what it does elsewhere.
        size = problem.scale ** (1 / order) if engine.largest > 0 else 1.0
        factors = tuple(rows if m == mode else A * size for m, A in enumerate(held))
        stages = to_the_noise(problem, 1e-6, noise.on(engine).in_units(problem.units))
        solver = Solver(problem, stages, (mode,), (constraint,) * order)
        factors = cleared(problem, factors, (mode,), solver.constraints)
        state, _ = solver.run(solver.start(factors), 500)
        scores = state.factors[mode] * size ** (order - 1)
        return scores * problem.units.factor
