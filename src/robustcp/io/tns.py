"""Listed entries as text: FROSTT's files, and those of the Tensor Toolbox with a header."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from robustcp.engines import LabelledTensor
from robustcp.io.tables import tensor_from_entries
from robustcp.persist.errors import FileError

#: What the first line of a Tensor Toolbox file may say that it holds.
TOOLBOX_HEADERS = ("tensor", "sptensor", "matrix", "ktensor")

Lines = Iterator[tuple[int, list[str]]]


def read_tns(path: Path, absent: str | None) -> LabelledTensor:
    """The tensor in a file; indices begin with 1."""
    with path.open(encoding="utf-8") as file:
        lines = (
            (number, line.split("#")[0].split())
            for number, line in enumerate(file, 1)
            if line.split("#")[0].strip()
        )
        first = next(lines, None)
        if first is None:
            raise FileError(path, "has no entries")
        word = first[1][0].lower()
        if word in TOOLBOX_HEADERS:
            return _read_toolbox(path, word, lines, absent)
        return _tensor_from_rows(path, _parse_table(path, _prepend(first, lines)), None, absent)


def _prepend(first: tuple[int, list[str]], lines: Lines) -> Lines:
    yield first
    yield from lines


def _parse_table(path: Path, lines: Lines) -> np.ndarray:
    """All that follows, as a table of numbers."""
    rows: list[list[float]] = []
    for number, text in lines:
        if rows and len(text) != len(rows[0]):
            raise FileError(path, f"line {number} has {len(text)} numbers, not {len(rows[0])}")
        rows.append(_parse_line(path, number, text))
    return np.array(rows)


def _parse_line(path: Path, number: int, text: list[str]) -> list[float]:
    try:
        return [float(word) for word in text]
    except ValueError:
        raise FileError(path, f"line {number} is not numbers") from None


def _tensor_from_rows(
    path: Path, table: np.ndarray, shape: tuple[int, ...] | None, absent: str | None
) -> LabelledTensor:
    """Rows of indices and a value."""
    if table.ndim != 2 or table.shape[1] < 3:
        raise FileError(path, "must have at least 2 indices and a value in each line")
    coordinates = table[:, :-1]
    if (
        not np.array_equal(coordinates, np.round(coordinates))
        or coordinates.min() < 1
        or coordinates.max() > 2**53
    ):
        raise FileError(path, "indices must be whole numbers from 1 on")
    indices = coordinates.astype(np.int64) - 1
    extent = tuple(int(size) for size in indices.max(axis=0) + 1)
    shape = extent if shape is None else shape
    if len(shape) != len(extent) or any(a > b for a, b in zip(extent, shape, strict=True)):
        raise FileError(path, f"has indices outside of its size, {'x'.join(map(str, shape))}")
    if not np.isfinite(table[:, -1]).all():
        raise FileError(path, "has a value that is not finite")
    modes = tuple(f"mode {n}" for n in range(len(shape)))
    no_labels = (None,) * len(shape)
    return tensor_from_entries(path, indices, table[:, -1], modes, no_labels, absent, shape)


def _read_toolbox(path: Path, word: str, lines: Lines, absent: str | None) -> LabelledTensor:
    """A tensor with the header of the Tensor Toolbox: what it is, its order, its sizes."""
    if word == "ktensor":
        raise FileError(path, "holds a ktensor, a model; a tensor or sptensor can be read")
    order = _parse_integers(path, lines, 1, "its order")[0]
    if order < 2:
        raise FileError(path, f"holds a tensor of order {order}; a tensor has 2 modes or more")
    shape = _parse_integers(path, lines, order, "its sizes")
    if word == "sptensor":
        count = _parse_integers(path, lines, 1, "how many entries it has")[0]
        table = _parse_table(path, lines)
        if len(table) != count:
            raise FileError(path, f"has {len(table)} entries, not {count} as it says")
        return _tensor_from_rows(path, table, shape, absent)
    values = [x for number, text in lines for x in _parse_line(path, number, text)]
    if len(values) != math.prod(shape):
        size = "x".join(map(str, shape))
        raise FileError(path, f"has {len(values)} values, not {math.prod(shape)} ({size})")
    data = np.array(values).reshape(shape, order="F")
    return LabelledTensor(data, tuple(f"mode {n}" for n in range(order)), (None,) * order)


def _parse_integers(path: Path, lines: Lines, count: int, quantity: str) -> tuple[int, ...]:
    """Whole numbers of the next line."""
    number, text = next(lines, (0, []))
    if len(text) != count or not all(word.isascii() and word.isdigit() for word in text):
        raise FileError(path, f"line {number} must say {quantity} ({count} numbers)")
    numbers = tuple(int(word) for word in text)
    if min(numbers) < 1:
        raise FileError(path, f"line {number} must say {quantity}, got {min(numbers)}")
    return numbers
