"""Images of many cells: blocks of them with the mean of their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp.plot.labelling import shortened
from robustcp.plot.ticks import label_text

#: More rows and columns than these cannot be told apart.
MOST = (60, 100)
#: Colours are made of so many cells at a time.
AT_ONCE = 1 << 20
#: The letters of an end of a range.
LETTERS = 14


def block_sizes(blocks: Any, shape: Sequence[int]) -> tuple[int, int]:
    """How many rows and columns make a block, as the argument `blocks` says."""
    if blocks is None:
        rows, columns = (math.ceil(n / most) for n, most in zip(shape, MOST, strict=True))
        return rows, columns
    pair = list(blocks) if isinstance(blocks, tuple | list) else [blocks, blocks]
    if len(pair) != 2:
        raise ValueError(f"blocks: must be a number or (rows, columns), got {blocks!r}")
    rows, columns = (
        min(_checks.whole_number("blocks", k, 1), n) for k, n in zip(pair, shape, strict=True)
    )
    return rows, columns


def block_sums(
    values: np.ndarray, size: tuple[int, int], colours: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The sums of the colours of the cells of each block; those at the end may be smaller.

    Examples
    --------
    >>> block_sums(np.arange(6.0).reshape(2, 3), (2, 2), lambda v: v)
    array([[8., 7.]])
    """
    rows, columns = size
    band = rows * max(1, AT_ONCE // (rows * values.shape[1]))
    parts = []
    for begin in range(0, len(values), band):
        part = colours(values[begin : begin + band])
        part = np.add.reduceat(part, np.arange(0, len(part), rows), axis=0)
        parts.append(np.add.reduceat(part, np.arange(0, values.shape[1], columns), axis=1))
    return np.concatenate(parts)


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
    return [_range(first, last) for first, last in ends]


def _range(first: str, last: str) -> str:
    """Two texts as the ends of a range, the words that they begin with only once."""
    if first == last:
        return shortened(first, 2 * LETTERS)
    start, end = first.split(), last.split()
    while len(end) > 1 and start[:1] == end[:1]:
        start, end = start[1:], end[1:]
    room = LETTERS if len(end) == len(last.split()) else 2 * LETTERS
    return f"{shortened(first, room)} to {shortened(' '.join(end), LETTERS)}"
