"""Compile all that fits of arrays and of listed entries need, before they do."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

import numpy as np

import robustcp
from robustcp.engines.installed import numba_kernels
from robustcp.losses import Loss, loss_types

REAL_TYPES = ("float64", "float32")
#: As data may come without being converted first.
DATA_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32")


def main() -> None:
    """Compile, and tell what and where."""
    code = numba_kernels()
    if code is None:
        sys.exit("robustcp.warm: there is no compiled code without Numba (pip install numba)")
    logging.getLogger("robustcp").setLevel(logging.ERROR)  # it is told here
    start_time, initial_count = time.perf_counter(), len(code.COMPILED_NAMES)
    for name, task in compile_tasks(code):
        task_start, count_before = time.perf_counter(), len(code.COMPILED_NAMES)
        task()
        new, seconds = len(code.COMPILED_NAMES) - count_before, time.perf_counter() - task_start
        print(f"{name}: {new} compiled, {seconds:.1f} s" if new else f"{name}: there already")
    new, seconds = len(code.COMPILED_NAMES) - initial_count, time.perf_counter() - start_time
    folder = code.cache_folder()
    print(
        f"{new} functions in {seconds:.1f} s; {f'kept in {folder}' if folder else 'kept nowhere'}"
    )
    if folder is None:
        print("no folder can be written to: set NUMBA_CACHE_DIR to one")


def compile_tasks(code: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is to be compiled, and what compiles it."""
    for real in map(np.dtype, REAL_TYPES):
        yield f"passes, {real}", partial(_compile_passes, code, real)
        yield f"losses, {real}", partial(_compile_losses, code, real)
        yield f"least squares, {real}", partial(_compile_least_squares, real)
        yield f"listed entries, {real}", partial(_compile_coordinate_lists, real)
    yield "other types of data", partial(_compile_conversions, code)


def _compile_passes(code: Any, real: np.dtype[Any]) -> None:
    for compile_function in (
        code.rows_tile,
        code.columns_tile,
        code.solve_rows,
        code.solve_nonnegative_rows,
        code.sweep,
        code.inverse_scales,
        code.column_norms,
        code.residuals,
    ):
        compile_function(real)
    code.dispatch_tile()
    code.joint_step()
    code.main_effects()
    code.contaminated_scale_rounds()
    code.line_preparation(real, real, True)
    code.line_restoration(real, True)


def _compile_losses(code: Any, real: np.dtype[Any]) -> None:
    for formula in filter(None, (loss.numba_formula for loss in _default_losses())):
        for weighted in (False, True):
            code.formula_line(formula.function, real, weighted, len(formula.numbers))


def _default_losses() -> Iterator[Loss]:
    """One of each loss whose parameters all have default values."""
    for loss_type in loss_types().values():
        if all(field.default is not MISSING for field in fields(loss_type)):
            yield loss_type()


def _compile_least_squares(real: np.dtype[Any]) -> None:
    for size in (8, 40):  # swept as a whole, and by tiles
        X = np.random.default_rng(0).random((size,) * 3).astype(real)
        robustcp.cpals(X, 2, max_sweeps=2, rng=0)


def _compile_coordinate_lists(real: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    indices = np.unique(rng.integers(0, 20, (2000, 3)), axis=0)  # so few that rows get a prior
    values = rng.random(len(indices)).astype(real)
    robustcp.cp(robustcp.Observed(indices, values, (20, 20, 20)), 2, max_sweeps=20, rng=0)


def _compile_conversions(code: Any) -> None:
    for data_type in map(np.dtype, DATA_TYPES):
        real = np.dtype(np.float64)
        code.line_preparation(data_type, real, False)
        code.line_preparation(data_type, real, True)
