"""Passes compiled by Numba, where it is installed (the extra `fast`).

NumPy goes through memory seven times for the one line of arithmetic of a loss, and a tile costs
it some twenty calls. The dense engine asks `compiled` for a loss; where there is none it does the
same with the library of the data.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from robustcp.losses import L1, Contaminated, Loss

#: Set to False to do without compiled passes.
ENABLED = True
#: Entries of a tile (in float64), and of the blocks that it is done in: a core's cache holds the
#: slopes and curvatures of a block. A small tensor is cut in two, if tiles of some size are left.
TILE_ENTRIES, SMALLEST_TILE_ENTRIES, BLOCK_ENTRIES = 1 << 19, 1 << 15, 1 << 16
#: A tile is not wider than this.
TILE_COLUMNS = 1 << 11


@dataclass(frozen=True)
class CompiledLoss:
    """A loss that has compiled passes.

    Attributes
    ----------
    kind : int
        0 for `L1`, 1 for `Contaminated`.
    numbers : tuple of float
        Its parameters, in the type of the factors.
    weight : float
        What the sum of its values is to be multiplied by.
    """

    kind: int
    numbers: tuple[Any, ...]
    weight: float


def compiled(loss: Loss, dtype: Any) -> CompiledLoss | None:
    """A loss for factors of some type, compiled; None if that cannot be had."""
    if type(loss) not in (L1, Contaminated) or not installed():
        return None
    real = np.dtype(dtype).type
    if isinstance(loss, L1):
        kind, weight, parts = 0, 1.0, (loss.epsilon, 0.0, 0.0, 0.0, 0.0)
    else:
        assert isinstance(loss, Contaminated)
        kind, weight = 1, loss.sigma**2
        rate = 0.5 / weight if weight > 0 else math.inf
        parts = (rate, loss.above, loss.below, *loss.rise)
    with np.errstate(over="ignore", under="ignore"):
        numbers = [real(part) for part in parts]
    if numbers[0] == 0 or not all(number < math.inf for number in numbers):
        return None  # beyond the range of the type
    higher = real(1 if parts[1] > parts[2] else -1)
    return CompiledLoss(kind, (*numbers, higher), weight)


def installed() -> bool:
    """Whether there is Numba, and it is to be used."""
    return ENABLED and _found()


@cache
def _found() -> bool:
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        import robustcp.engines._kernels  # noqa: F401
    except Exception as error:  # a Numba that does not go with this NumPy, for one
        warnings.warn(f"Numba is installed but cannot be used ({error})", stacklevel=2)
        return False
    return True


@dataclass(frozen=True)
class FusedTile:
    """A block of the matrix view.

    Attributes
    ----------
    corner, end : (row, column)
    rows : slice
        The rows of the own mode that it has a part in.
    """

    corner: tuple[int, int]
    end: tuple[int, int]
    rows: slice


#: Gives a C-ordered matrix that holds a tile, and where in it the tile begins.
Reader = Callable[[FusedTile], tuple[np.ndarray, tuple[int, int]]]


class FusedPass:
    """One pass over a matrix view of the data, for the factor of one mode.

    The own mode is on one side of the matrix, where lines run over left x own x right: the modes
    before and after it, multiplied out. The other side is multiplied out as a whole.
    """

    def __init__(
        self, loss: CompiledLoss, read: Reader, factors: Sequence[np.ndarray], split: int, n: int
    ) -> None:
        self._loss, self._read = loss, read
        self._own_rows = n < split
        first, last = (0, split) if self._own_rows else (split, len(factors))
        other = factors[split:] if self._own_rows else factors[:split]
        parts = (factors[first:n], factors[n : n + 1], factors[n + 1 : last], other)
        one = [_ones(factors[0].shape[1], factors[0].dtype)]
        self._sides = tuple(khatri_rao(part or one) for part in parts)

    def tiles(self, rows: slice) -> list[FusedTile]:
        """Blocks that cover some rows of the own mode; the same for any number of threads."""
        left, _, right, other = (len(side) for side in self._sides)
        half = -(-left * (rows.stop - rows.start) * right * other // 2)
        room = TILE_ENTRIES * 8 // self._sides[3].itemsize
        most = min(room, max(SMALLEST_TILE_ENTRIES, half))
        if self._own_rows:
            across = ranges(other, TILE_COLUMNS)
            along = self._along(rows, max(1, most // across[0].stop))
        else:
            along = self._along(rows, TILE_COLUMNS)
            across = ranges(other, max(1, most // max(b - a for a, b, _ in along)))
        return [
            FusedTile((a, c.start), (b, c.stop), own)
            if self._own_rows
            else FusedTile((c.start, a), (c.stop, b), own)
            for (a, b, own), c in itertools.product(along, across)
        ]

    def _along(self, rows: slice, most: int) -> list[tuple[int, int, slice]]:
        """Cuts of the own side, at most so long: first line, end, and the own mode's rows.

        A cut is a part of one run (the lines of one index of the modes before) or several whole
        ones; so it has a part in few rows of the own mode, or each row many lines in it.
        """
        left, own, right = (len(side) for side in self._sides[:3])
        run, length = own * right, (rows.stop - rows.start) * right
        if length == run <= most:
            return [(g.start * run, g.stop * run, rows) for g in ranges(left, most // run)]
        found = []
        for begin in range(rows.start * right, left * run, run):
            for cut in ranges(length, most):
                low, high = cut.start // right, -(-cut.stop // right)
                own_rows = slice(rows.start + low, rows.start + high)
                found.append((begin + cut.start, begin + cut.stop, own_rows))
        return found

    def normal(self, tile: FusedTile) -> tuple[slice, np.ndarray, np.ndarray, float]:
        """A tile's rows of the own mode, with its part of their gradients, Grams and the value."""
        rank = self._sides[3].shape[1]
        count, dtype = tile.rows.stop - tile.rows.start, self._sides[3].dtype
        gradient = np.zeros((count, rank), dtype)
        gram = np.zeros((count, rank * (rank + 1) // 2), dtype)
        return tile.rows, gradient, gram, self._run(tile, gradient, gram)

    def value(self, tile: FusedTile) -> float:
        """A tile's part of the value."""
        nothing = np.empty((0, 0), self._sides[3].dtype)
        return self._run(tile, nothing, nothing)

    def _run(self, tile: FusedTile, gradient: np.ndarray, gram: np.ndarray) -> float:
        from robustcp.engines import _kernels

        run = _kernels.rows_pass if self._own_rows else _kernels.columns_pass
        total = run(
            self._loss.kind, self._loss.numbers, *self._read(tile), tile.corner, tile.end,
            tile.rows.start, BLOCK_ENTRIES, *self._sides, gradient, gram,
        )  # fmt: skip
        return self._loss.weight * float(total)


def contract(X: np.ndarray, K: np.ndarray, rows: bool) -> np.ndarray:
    """X K for a part of a C-ordered matrix, or X' K if not `rows`; by compiled code."""
    from robustcp.engines import _kernels

    lines = np.empty((X.shape[0] if rows else X.shape[1], K.shape[1]), K.dtype)
    run = _kernels.contract_rows if rows else _kernels.contract_columns
    run(X, np.ascontiguousarray(K), lines, BLOCK_ENTRIES // 2)
    return lines


def collapse(lines: np.ndarray, factors: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Contract all modes of one side but its n-th away, by compiled code."""
    from robustcp.engines import _kernels

    one = [_ones(lines.shape[1], lines.dtype)]
    left, right = khatri_rao(factors[:n] or one), khatri_rao(factors[n + 1 :] or one)
    rows: np.ndarray = _kernels.collapse_lines(lines, left, len(factors[n]), right)
    return rows


@lru_cache
def _ones(rank: int, dtype: Any) -> np.ndarray:
    return np.ones((1, rank), dtype)


def solve_rows(gram: Any, gradient: Any, rows: Any, mu: float, lift: float) -> np.ndarray | None:
    """Rows solved from packed normal equations by compiled code; None if that cannot be had."""
    if not isinstance(rows, np.ndarray) or not installed():
        return None
    from robustcp.engines import _kernels

    real = rows.dtype.type
    arrays = (np.ascontiguousarray(part) for part in (gram, gradient, rows))
    new: np.ndarray = _kernels.solve_rows(*arrays, real(mu), real(lift))
    return new


def column_norms(A: Any) -> np.ndarray | None:
    """Euclidean norms of the columns by compiled code; None if that cannot be had."""
    if not isinstance(A, np.ndarray) or not installed():
        return None
    from robustcp.engines import _kernels

    norms: np.ndarray = _kernels.column_norms(np.ascontiguousarray(A))
    return norms


def khatri_rao(factors: Sequence[np.ndarray]) -> np.ndarray:
    """The Khatri-Rao product, rows of the last factor fastest."""
    product = np.ascontiguousarray(factors[0])
    for A in factors[1:]:
        product = (product[:, None, :] * A[None, :, :]).reshape(-1, A.shape[1])
    return product


def ranges(size: int, most: int) -> list[slice]:
    """Cut range(size) into even parts of at most so many."""
    parts = -(-size // most)
    edges = [size * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]
