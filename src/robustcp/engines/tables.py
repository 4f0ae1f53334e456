"""Tables of listed entries in many parts, which need not fit into memory together."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robustcp.engines.chunks import ChunkError, Readable, own_graphs
from robustcp.engines.listing import index_type

#: Rows of a part of a file: those of its row groups, while these are not more.
PART_ROWS = 1 << 22
#: Bytes that are looked through at a time for entries that are listed twice.
TWICE = 1 << 27


class Rows(NamedTuple):
    """Entries: an array of indices for each mode, and values; in the order of the table."""

    at: np.ndarray
    values: np.ndarray


class Table(Readable, ABC):
    """A part of a table: its columns, the value last."""

    def read(self) -> Any:
        try:
            return self.columns()
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise ChunkError(f"X: {self.name} cannot be read ({text})") from None

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def columns(self) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class InParquet(Table):
    """Some row groups of a Parquet file."""

    path: str
    groups: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"part {self.path}"

    def columns(self) -> list[np.ndarray]:
        from pyarrow import parquet

        with parquet.ParquetFile(self.path) as file:
            table = file.read_row_groups(list(self.groups), columns=list(self.names))
        return [_numbers(table.column(name)) for name in self.names]


def _numbers(column: Any) -> np.ndarray:
    """A column of Arrow; NaN for numbers that are missing."""
    if column.null_count and str(column.type) not in ("float", "double"):
        column = column.cast("float64") if _is_number(column.type) else column
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _is_number(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind))


@dataclass(frozen=True, eq=False)
class InFrame(Table):
    """A partition of a DataFrame of Dask."""

    graph: Any
    key: Any
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"partition {self.key[-1]}"

    def columns(self) -> list[np.ndarray]:
        import dask

        frame = dask.get(self.graph, self.key)
        return [np.asarray(frame[name].to_numpy()) for name in self.names]


class Partitioned:
    """A tensor of which some entries are known, listed in a table of many parts.

    The others are missing, not zero. A pass reads one part after the other. It is made by
    `Observed.from_parquet` and `Observed.from_dask`.

    Attributes
    ----------
    shape : tuple of int
    count : int
        How many entries there are.
    modes : tuple of str
        The columns of the indices.
    names : tuple of (array or None)
        What the indices of each mode stand for; None if they are in the table themselves.
    """

    def __init__(
        self, parts: Sequence[Table], modes: Sequence[str], shape: Sequence[int] | None,
        *, by_name: bool = False,
    ) -> None:  # fmt: skip
        if not parts:
            raise ValueError("values: all entries are missing")
        self.parts, self.modes = list(parts), tuple(modes)
        if len(self.modes) < 2:
            raise ValueError("a table must have columns of at least 2 modes, and one of values")
        looks = [_look(part.read(), self.modes, by_name) for part in self.parts]
        self.names, sizes = _joined(looks)
        self.sizes = [look.entries for look in looks]
        self.count = sum(self.sizes)
        if not self.count:
            raise ValueError("values: all entries are missing")
        given = sizes if shape is None else tuple(int(size) for size in shape)
        if len(given) != len(sizes):
            raise ValueError(f"shape: must have {len(sizes)} sizes, got {tuple(given)}")
        self.shape: tuple[int, ...] = tuple(given)
        for mode, (size, least) in enumerate(zip(self.shape, sizes, strict=True)):
            if size < least:
                raise ValueError(
                    f"indices: outside of {self.shape}: {least - 1} in {self.modes[mode]!r}"
                )
        self._check_twice()

    #: Of the values.
    dtype = np.dtype(np.float64)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        share = 100 * self.count / math.prod(self.shape)
        parts = f"{len(self.parts)} parts"
        return f"Partitioned({size}, {self.count} entries in {parts}, {share:.3g}% of all)"

    def rows(self, columns: Sequence[np.ndarray]) -> Rows:
        """The entries of a part, from its columns."""
        *indices, values = columns
        kept = ~np.isnan(values.astype(np.float64, copy=False))
        dtype, at = index_type(self.shape), []
        for index, names in zip(indices, self.names, strict=True):
            found = index if names is None else np.searchsorted(names, index)
            at.append(found[kept].astype(dtype))
        return Rows(np.stack(at), values[kept].astype(np.float64, copy=False))

    def _check_twice(self) -> None:
        """Complain about an entry that is listed more than once, in any of the parts.

        One look will do where parts do not overlap, as those of a sorted table.
        """
        ends = []
        for part in self.parts:
            flat = self._numbers(part)
            self._complain(flat)
            ends += [(int(flat[0]), int(flat[-1]))] if flat.size else []
        ends.sort()
        if all(before[1] < after[0] for before, after in itertools.pairwise(ends)):
            return
        turns = max(1, -(-8 * self.count // TWICE))
        for turn in range(turns):
            found = (self._numbers(part) for part in self.parts)
            every = np.concatenate([flat[flat % turns == turn] for flat in found])
            every.sort()
            self._complain(every)

    def _numbers(self, part: Table) -> np.ndarray:
        """The entries of a part as numbers, in rising order; beyond 2^63 these are hashes."""
        at = self.rows(part.read()).at
        flat = np.zeros(at.shape[1], dtype=np.int64)
        for index, size in zip(at, self.shape, strict=True):
            flat *= size
            flat += index
        flat.sort()
        return flat

    def _complain(self, flat: np.ndarray) -> None:
        twice = flat[1:][flat[1:] == flat[:-1]]
        if twice.size and math.prod(self.shape) < 2**63:
            first = tuple(int(k) for k in np.unravel_index(int(twice[0]), self.shape))
            more = f" and {twice.size - 1} more" if twice.size > 1 else ""
            raise ValueError(f"indices: given more than once: {first}{more}")


class _Look(NamedTuple):
    """What there is in a part: names, or the largest index, of each mode; how many entries."""

    names: list[np.ndarray | None]
    last: list[int]
    entries: int


def _look(columns: Sequence[np.ndarray], modes: Sequence[str], by_name: bool) -> _Look:
    *indices, values = columns
    if values.dtype.kind not in "fiub":
        raise TypeError(f"values: dtype {values.dtype} is not one of real numbers")
    numbers = values.astype(np.float64, copy=False)
    kept = ~np.isnan(numbers)
    if np.isinf(numbers).any():
        raise ValueError("values: not finite")
    names: list[np.ndarray | None] = []
    last = []
    for mode, index in zip(modes, indices, strict=True):
        if index.dtype.kind == "f" and np.isnan(index).any():
            raise ValueError(f"indices: column {mode!r} has gaps")
        own = None if index.dtype.kind in "iu" and not by_name else np.unique(index[kept])
        if own is None and index.size and int(index.min()) < 0:
            raise ValueError(f"indices: column {mode!r} has {int(index.min())}, less than 0")
        names.append(own)
        last.append(int(index[kept].max()) if own is None and kept.any() else -1)
    return _Look(names, last, int(kept.sum()))


def _joined(looks: Sequence[_Look]) -> tuple[list[np.ndarray | None], tuple[int, ...]]:
    """The names of each mode in all parts, and the sizes of the modes."""
    names: list[np.ndarray | None] = []
    sizes = []
    for mode, own in enumerate(looks[0].names):
        if own is None:
            names.append(None)
            sizes.append(max(look.last[mode] for look in looks) + 1)
            continue
        every = [found for look in looks if (found := look.names[mode]) is not None]
        both = np.unique(np.concatenate(every))
        names.append(both)
        sizes.append(both.size)
    return names, tuple(sizes)


def in_parquet(
    path: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None,
    *, by_name: bool = False,
) -> Partitioned:  # fmt: skip
    """See `Observed.from_parquet`."""
    if find_spec("pyarrow") is None:
        raise ImportError("Parquet needs pyarrow; install it with: pip install 'robustcp[scale]'")
    from pyarrow import parquet

    where = Path(path)
    files = sorted(where.rglob("*.parquet")) if where.is_dir() else [where]
    if not files or not all(file.exists() for file in files):
        raise FileNotFoundError(f"{where}: there are no Parquet files")
    parts = []
    for file in files:
        try:
            with parquet.ParquetFile(file) as opened:
                meta, held = opened.metadata, tuple(opened.schema_arrow.names)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise ChunkError(f"X: part {file} cannot be read ({text})") from None
        names = tuple(columns) if columns is not None else held
        unknown = [name for name in names if name not in held]
        if unknown:
            raise ValueError(f"columns: {file} has no {unknown[0]!r}, only {', '.join(held)}")
        sizes = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
        parts += [InParquet(str(file), groups, names) for groups in _packed(sizes)]
    return Partitioned(parts, parts[0].names[:-1], shape, by_name=by_name)


def _packed(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Row groups next to each other, of not too many rows together."""
    some: list[int] = []
    rows = 0
    for number, size in enumerate(sizes):
        if some and rows + size > PART_ROWS:
            yield tuple(some)
            some, rows = [], 0
        some.append(number)
        rows += size
    if some:
        yield tuple(some)


def in_frame(
    frame: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None
) -> Partitioned:
    """See `Observed.from_dask`."""
    names = tuple(columns) if columns is not None else tuple(map(str, frame.columns))
    unknown = [name for name in names if name not in frame.columns]
    if unknown:
        raise ValueError(f"columns: there is no {unknown[0]!r}")
    import dask

    (optimized,) = dask.optimize(frame[list(names)])
    graph = dict(optimized.__dask_graph__())
    keys = list(optimized.__dask_keys__())
    own = own_graphs(graph, keys) or dict.fromkeys(keys, graph)
    return Partitioned([InFrame(own[key], key, names) for key in keys], names[:-1], shape)
