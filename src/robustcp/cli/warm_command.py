"""`python -m robustcp.warm`: compile ahead of time what fits need."""

from __future__ import annotations

import itertools
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
#: Types of data that compiled code reads itself.
DATA_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32")


def main() -> None:
    """Compile, and print what was compiled and where it is kept."""
    code = numba_kernels()
    if code is None:
        sys.exit("robustcp.warm: there is no compiled code without Numba (pip install numba)")
    logging.getLogger("robustcp").setLevel(logging.ERROR)  # it is told here
    results = [_run_task(code, name, task) for name, task in compile_tasks(code)]
    count, seconds = map(sum, zip(*results, strict=True))
    folder = code.cache_folder()
    print(
        f"{count} functions in {seconds:.1f} s; {f'kept in {folder}' if folder else 'kept nowhere'}"
    )
    if folder is None:
        print("no folder can be written to: set NUMBA_CACHE_DIR to one")


def _run_task(code: Any, name: str, task: Callable[[], object]) -> tuple[int, float]:
    """Run a task and print what it did: how many functions were compiled, and the seconds."""
    start_time, count_before = time.perf_counter(), len(code.COMPILED_NAMES)
    task()
    count, seconds = len(code.COMPILED_NAMES) - count_before, time.perf_counter() - start_time
    print(f"{name}: {count} compiled, {seconds:.1f} s" if count else f"{name}: there already")
    return count, seconds


def compile_tasks(code: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """The name of each part, and a function that compiles it."""
    for real in map(np.dtype, REAL_TYPES):
        yield f"passes, {real}", partial(_compile_passes, code, real)
        yield f"losses, {real}", partial(_compile_losses, code, real)
        yield f"least squares, {real}", partial(_compile_least_squares, real)
        yield f"listed entries, {real}", partial(_compile_coordinate_lists, real)
    yield "other types of data", partial(_compile_conversions, code)


def _compile_passes(code: Any, real: np.dtype[Any]) -> None:
    for function, takes_type in code.C_FUNCTIONS:
        _ = function(real) if takes_type else function()
    code.line_preparation(real, real, True)


def _compile_losses(code: Any, real: np.dtype[Any]) -> None:
    for loss in _default_losses():
        formula = loss.numba_formula
        if formula is not None:
            line = partial(code.formula_line, formula.function, real, len(formula.numbers))
            for weighted, censored in itertools.product((False, True), repeat=2):
                line(weighted, censored, censored and loss.convex)


def _default_losses() -> Iterator[Loss]:
    """An instance of each loss whose parameters all have default values."""
    for loss_type in loss_types().values():
        if all(field.default is not MISSING for field in fields(loss_type)):
            yield loss_type()


def _compile_least_squares(real: np.dtype[Any]) -> None:
    for size in (8, 40):  # as whole sweeps, and by tiles
        X = np.random.default_rng(0).random((size,) * 3).astype(real)
        robustcp.cpals(X, 2, max_sweeps=2, rng=0)


def _compile_coordinate_lists(real: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    indices = np.unique(
        rng.integers(0, 20, (2000, 3)), axis=0
    )  # few enough for a prior of the rows
    values = rng.random(len(indices)).astype(real)
    robustcp.cp(robustcp.Observed(indices, values, (20, 20, 20)), 2, max_sweeps=20, rng=0)


def _compile_conversions(code: Any) -> None:
    for data_type in map(np.dtype, DATA_TYPES):
        real = np.dtype(np.float64)
        code.line_preparation(data_type, real, False)
        code.line_preparation(data_type, real, True)
