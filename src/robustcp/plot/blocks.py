"""Images of many cells: blocks of them with the mean of their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.text import label_text, shorten

#: The largest numbers of rows and columns that can be told apart.
MAX_GRID_SHAPE = (60, 100)
#: The number of cells that are coloured at a time.
CELLS_PER_BAND = 1 << 20
#: The largest number of letters of an end of a range.
RANGE_END_LETTERS = 14


def block_sizes(blocks: Any, shape: Sequence[int]) -> tuple[int, int]:
    """The numbers of rows and columns of a block, from the argument `blocks`."""
    if blocks is None:
        rows, columns = (
            math.ceil(n / limit) for n, limit in zip(shape, MAX_GRID_SHAPE, strict=True)
        )
        return rows, columns
    pair = list(blocks) if isinstance(blocks, tuple | list) else [blocks, blocks]
    if len(pair) != 2:
        raise ValueError(f"blocks: must be a number or (rows, columns), got {blocks!r}")
    rows, columns = (
        min(checks.whole_number("blocks", k, 1), n) for k, n in zip(pair, shape, strict=True)
    )
    return rows, columns


def block_sums(
    values: np.ndarray, size: tuple[int, int], colormap: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The sum of the colours of the cells of each block; the last blocks may be smaller.

    Examples
    --------
    >>> block_sums(np.arange(6.0).reshape(2, 3), (2, 2), lambda v: v)
    array([[8., 7.]])
    """
    rows, columns = size
    band_rows = rows * max(1, CELLS_PER_BAND // (rows * values.shape[1]))
    sums = []
    for first_row in range(0, len(values), band_rows):
        band_colours = colormap(values[first_row : first_row + band_rows])
        band_colours = np.add.reduceat(band_colours, np.arange(0, len(band_colours), rows), axis=0)
        sums.append(np.add.reduceat(band_colours, np.arange(0, values.shape[1], columns), axis=1))
    return np.concatenate(sums)


def block_labels(labels: list[Any] | None, size: int, step: int) -> list[Any] | None:
    """The labels of single indices, or the first and last of each block.

    Examples
    --------
    >>> block_labels(None, 5, 2)
    ['0 to 1', '2 to 3', '4']
    >>> block_labels(["day 8", "day 9", "day 10"], 3, 2)
    ['day 8 to 9', 'day 10']
    """
    if step == 1:
        return labels
    texts = [str(k) for k in range(size)] if labels is None else [label_text(v) for v in labels]
    ends = [(texts[k], texts[min(k + step, size) - 1]) for k in range(0, size, step)]
    return [_range_text(first, last) for first, last in ends]


def _range_text(first: str, last: str) -> str:
    """A range from one text to another, with their common first words written once."""
    if first == last:
        return shorten(first, 2 * RANGE_END_LETTERS)
    start, end = first.split(), last.split()
    while len(end) > 1 and start[:1] == end[:1]:
        start, end = start[1:], end[1:]
    max_letters = RANGE_END_LETTERS if len(end) == len(last.split()) else 2 * RANGE_END_LETTERS
    return f"{shorten(first, max_letters)} to {shorten(' '.join(end), RANGE_END_LETTERS)}"
