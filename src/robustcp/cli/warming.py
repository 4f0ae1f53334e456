"""Compile all that fits of arrays and of listed entries need, before they do."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import robustcp
from robustcp.engines.installed import compiled_code
from robustcp.losses import L1, Cauchy, Contaminated, LeastSquares, Loss, Quantile, Welsch

#: One of each that has a formula.
LOSSES: tuple[Loss, ...] = (
    L1(1.0), Contaminated(1.0, 0.1, 0.1), Cauchy(1.0), Welsch(1.0), Quantile(0.3), LeastSquares(),
)  # fmt: skip
REALS = ("float64", "float32")
#: As data may come without being converted first.
DATA = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32")


def main() -> None:
    """Compile, and tell what and where."""
    code = compiled_code()
    if code is None:
        sys.exit("robustcp.warm: there is no compiled code without Numba (pip install numba)")
    logging.getLogger("robustcp").setLevel(logging.ERROR)  # it is told here
    begin, known = time.perf_counter(), len(code.COMPILED)
    for name, work in steps(code):
        start, before = time.perf_counter(), len(code.COMPILED)
        work()
        new, seconds = len(code.COMPILED) - before, time.perf_counter() - start
        print(f"{name}: {new} compiled, {seconds:.1f} s" if new else f"{name}: there already")
    new, seconds = len(code.COMPILED) - known, time.perf_counter() - begin
    where = code.folder()
    print(f"{new} functions in {seconds:.1f} s; {f'kept in {where}' if where else 'kept nowhere'}")
    if where is None:
        print("no folder can be written to: set NUMBA_CACHE_DIR to one")


def steps(code: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is to be compiled, and what compiles it."""
    for real in map(np.dtype, REALS):
        yield f"passes, {real}", partial(_passes, code, real)
        yield f"losses, {real}", partial(_losses, code, real)
        yield f"least squares, {real}", partial(_squares, real)
        yield f"listed entries, {real}", partial(_listed, real)
    yield "other types of data", partial(_converted, code)


def _passes(code: Any, real: np.dtype[Any]) -> None:
    for function in (
        code.rows_tile, code.columns_tile, code.solve, code.nonnegative, code.sweep,
        code.inverse_scales, code.column_norms, code.differences,
    ):  # fmt: skip
        function(real)
    code.on_tile()
    code.joint_step()
    code.main_effects()
    code.core_rounds()
    code.before(real, real, True)
    code.after(real, True)


def _losses(code: Any, real: np.dtype[Any]) -> None:
    for loss in LOSSES:
        formula = code.LISTED_FORMULAS[type(loss)]
        for weighted in (False, True):
            formula.line(real, weighted, len(formula.numbers(loss)))


def _squares(real: np.dtype[Any]) -> None:
    for size in (8, 40):  # swept as a whole, and by tiles
        X = np.random.default_rng(0).random((size,) * 3).astype(real)
        robustcp.cpals(X, 2, max_sweeps=2, rng=0)


def _listed(real: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    at = np.unique(rng.integers(0, 20, (2000, 3)), axis=0)  # so few that rows get a prior
    values = rng.random(len(at)).astype(real)
    robustcp.cp(robustcp.Observed(at, values, (20, 20, 20)), 2, max_sweeps=20, rng=0)


def _converted(code: Any) -> None:
    for kind in map(np.dtype, DATA):
        real = np.dtype(np.float64)
        code.before(kind, real, False)
        code.before(kind, real, True)
