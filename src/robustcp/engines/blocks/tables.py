"""Tables of listed entries in many parts, which need not fit into memory together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robustcp.engines.blocks.chunks import Readable, independent_graphs, unreadable_error
from robustcp.engines.coordinates import index_dtype

#: The most rows of a part of a file, unless a single row group has more.
MAX_PARTITION_ROWS = 1 << 22
#: Bytes of indices that are searched for duplicates at a time.
DUPLICATE_CHECK_BYTES = 1 << 27


class Rows(NamedTuple):
    """Entries: an array of indices for each mode, and values; in the order of the table."""

    indices: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class ParquetPartition(Readable):
    """Some row groups of a Parquet file; read as a list of columns, the values last."""

    path: str
    groups: tuple[int, ...]
    names: tuple[str, ...]

    def _name(self) -> str:
        return f"part {self.path}"

    def _read(self) -> list[np.ndarray]:
        from pyarrow import parquet

        with parquet.ParquetFile(self.path) as file:
            table = file.read_row_groups(list(self.groups), columns=list(self.names))
        return [_to_numpy(table.column(name)) for name in self.names]


def _to_numpy(column: Any) -> np.ndarray:
    """A column of Arrow; NaN for numbers that are missing."""
    if column.null_count and str(column.type) not in ("float", "double"):
        column = column.cast("float64") if _is_number(column.type) else column
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _is_number(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind))


@dataclass(frozen=True, eq=False)
class DaskPartition(Readable):
    """A partition of a DataFrame of Dask; read as a list of columns, the values last."""

    graph: Any
    key: Any
    names: tuple[str, ...]

    def _name(self) -> str:
        return f"partition {self.key[-1]}"

    def _read(self) -> list[np.ndarray]:
        import dask

        frame = dask.get(self.graph, self.key)
        return [np.asarray(frame[name].to_numpy()) for name in self.names]


@dataclass(frozen=True, eq=False)
class TableLayout:
    """How the columns of a part of a table become entries.

    Attributes
    ----------
    shape : tuple of int
    labels : list of (array or None)
        As in `PartitionedTable`.
    """

    shape: tuple[int, ...]
    labels: list[np.ndarray | None]

    def decode_rows(self, columns: Sequence[np.ndarray]) -> Rows:
        """The entries of a part from its columns, without those that are NaN."""
        *indices, values = columns
        observed = ~np.isnan(values.astype(np.float64, copy=False))
        dtype, codes = index_dtype(self.shape), []
        for index, mode_labels in zip(indices, self.labels, strict=True):
            code = index if mode_labels is None else np.searchsorted(mode_labels, index)
            codes.append(code[observed].astype(dtype))
        return Rows(np.stack(codes), values[observed].astype(np.float64, copy=False))


class PartitionedTable:
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
    labels : tuple of (array or None)
        What the indices of each mode stand for; None if they are in the table themselves.
    """

    def __init__(
        self,
        partitions: Sequence[Readable],
        modes: Sequence[str],
        shape: Sequence[int] | None,
        *,
        by_name: bool = False,
    ) -> None:
        if not partitions:
            raise ValueError("values: all entries are missing")
        self.partitions, self.modes = list(partitions), tuple(modes)
        if len(self.modes) < 2:
            raise ValueError("a table must have columns of at least 2 modes, and one of values")
        summaries = [
            _summarize(partition.read(), self.modes, by_name) for partition in self.partitions
        ]
        self.labels, sizes = _merge_summaries(summaries)
        self.partition_sizes = [summary.entries for summary in summaries]
        self.count = sum(self.partition_sizes)
        if not self.count:
            raise ValueError("values: all entries are missing")
        full_shape = sizes if shape is None else tuple(int(size) for size in shape)
        if len(full_shape) != len(sizes):
            raise ValueError(f"shape: must have {len(sizes)} sizes, got {tuple(full_shape)}")
        self.shape: tuple[int, ...] = tuple(full_shape)
        for mode, (size, min_size) in enumerate(zip(self.shape, sizes, strict=True)):
            if size < min_size:
                raise ValueError(
                    f"indices: outside of {self.shape}: {min_size - 1} in {self.modes[mode]!r}"
                )
        self.layout = TableLayout(self.shape, self.labels)
        self._check_duplicates()

    #: The type of the values.
    dtype = np.dtype(np.float64)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        share = 100 * self.count / math.prod(self.shape)
        parts = f"{len(self.partitions)} parts"
        return f"Partitioned({size}, {self.count} entries in {parts}, {share:.3g}% of all)"

    def _check_duplicates(self) -> None:
        """Refuse an entry that is listed more than once, in one part or in several.

        If the ranges of the parts do not overlap, as in a sorted table, each part is checked alone.
        """
        ends = []
        for partition in self.partitions:
            flat = self._linear_indices(partition)
            self._refuse_duplicates(flat)
            ends += [(int(flat[0]), int(flat[-1]))] if flat.size else []
        ends.sort()
        if all(before[1] < after[0] for before, after in itertools.pairwise(ends)):
            return
        rounds = max(1, -(-8 * self.count // DUPLICATE_CHECK_BYTES))
        for round_number in range(rounds):
            all_indices = (self._linear_indices(partition) for partition in self.partitions)
            round_indices = np.concatenate(
                [flat[flat % rounds == round_number] for flat in all_indices]
            )
            round_indices.sort()
            self._refuse_duplicates(round_indices)

    def _linear_indices(self, partition: Readable) -> np.ndarray:
        """The entries of a part as numbers, in rising order; beyond 2^63 these are hashes."""
        indices = self.layout.decode_rows(partition.read()).indices
        flat = np.zeros(indices.shape[1], dtype=np.int64)
        for index, size in zip(indices, self.shape, strict=True):
            flat *= size
            flat += index
        flat.sort()
        return flat

    def _refuse_duplicates(self, flat: np.ndarray) -> None:
        duplicates = flat[1:][flat[1:] == flat[:-1]]
        if duplicates.size and math.prod(self.shape) < 2**63:
            first = tuple(int(k) for k in np.unravel_index(int(duplicates[0]), self.shape))
            more = f" and {duplicates.size - 1} more" if duplicates.size > 1 else ""
            raise ValueError(f"indices: given more than once: {first}{more}")


class _PartitionSummary(NamedTuple):
    """The number of entries of a part; the labels of each mode, or the size its indices need."""

    extents: list[np.ndarray | int]
    entries: int


def _summarize(
    columns: Sequence[np.ndarray], modes: Sequence[str], by_name: bool
) -> _PartitionSummary:
    *indices, values = columns
    if values.dtype.kind not in "fiub":
        raise TypeError(f"values: dtype {values.dtype} is not one of real numbers")
    numbers = values.astype(np.float64, copy=False)
    observed = ~np.isnan(numbers)
    if np.isinf(numbers).any():
        raise ValueError("values: not finite")
    extents: list[np.ndarray | int] = []
    for mode, index in zip(modes, indices, strict=True):
        if index.dtype.kind == "f" and np.isnan(index).any():
            raise ValueError(f"indices: column {mode!r} has gaps")
        if index.dtype.kind not in "iu" or by_name:
            extents.append(np.unique(index[observed]))
            continue
        if index.size and int(index.min()) < 0:
            raise ValueError(f"indices: column {mode!r} has {int(index.min())}, less than 0")
        extents.append(int(index[observed].max()) + 1 if observed.any() else 0)
    return _PartitionSummary(extents, int(observed.sum()))


def _merge_summaries(
    summaries: Sequence[_PartitionSummary],
) -> tuple[list[np.ndarray | None], tuple[int, ...]]:
    """The labels of each mode in all parts, and the sizes of the modes."""
    labels: list[np.ndarray | None] = []
    sizes = []
    for extents in zip(*(summary.extents for summary in summaries), strict=True):
        if isinstance(extents[0], int):
            labels.append(None)
            sizes.append(max(extent for extent in extents if isinstance(extent, int)))
        else:
            parts = [extent for extent in extents if isinstance(extent, np.ndarray)]
            union = np.unique(np.concatenate(parts))
            labels.append(union)
            sizes.append(union.size)
    return labels, tuple(sizes)


def open_parquet(
    path: Any,
    shape: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    *,
    by_name: bool = False,
) -> PartitionedTable:
    """See `Observed.from_parquet`."""
    if find_spec("pyarrow") is None:
        raise ImportError("Parquet needs pyarrow; install it with: pip install 'robustcp[scale]'")
    from pyarrow import parquet

    root = Path(path)
    files = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
    if not files or not all(file.exists() for file in files):
        raise FileNotFoundError(f"{root}: there are no Parquet files")
    partitions = []
    for file in files:
        try:
            with parquet.ParquetFile(file) as opened:
                metadata, available = opened.metadata, tuple(opened.schema_arrow.names)
        except Exception as error:
            raise unreadable_error(f"part {file}", error) from None
        names = tuple(columns) if columns is not None else available
        unknown = [name for name in names if name not in available]
        if unknown:
            raise ValueError(f"columns: {file} has no {unknown[0]!r}, only {', '.join(available)}")
        sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        partitions += [
            ParquetPartition(str(file), groups, names) for groups in _batch_row_groups(sizes)
        ]
    return PartitionedTable(partitions, partitions[0].names[:-1], shape, by_name=by_name)


def _batch_row_groups(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Batches of neighbouring row groups, of at most `MAX_PARTITION_ROWS` where possible."""
    batch: list[int] = []
    rows = 0
    for number, size in enumerate(sizes):
        if batch and rows + size > MAX_PARTITION_ROWS:
            yield tuple(batch)
            batch, rows = [], 0
        batch.append(number)
        rows += size
    if batch:
        yield tuple(batch)


def open_dask_frame(
    frame: Any, shape: Sequence[int] | None = None, columns: Sequence[str] | None = None
) -> PartitionedTable:
    """See `Observed.from_dask`."""
    names = tuple(columns) if columns is not None else tuple(map(str, frame.columns))
    unknown = [name for name in names if name not in frame.columns]
    if unknown:
        raise ValueError(f"columns: there is no {unknown[0]!r}")
    import dask

    (optimized,) = dask.optimize(frame[list(names)])
    graph = dict(optimized.__dask_graph__())
    keys = list(optimized.__dask_keys__())
    graphs = independent_graphs(graph, keys) or dict.fromkeys(keys, graph)
    return PartitionedTable(
        [DaskPartition(graphs[key], key, names) for key in keys], names[:-1], shape
    )
