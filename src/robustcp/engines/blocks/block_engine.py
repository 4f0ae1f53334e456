"""The engine of data in pieces: the results of the pieces are added up in a fixed order.

Engines differ in where a piece comes from (`Block`) and in who works on it (`Scheduler`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np

from robustcp._util import checks
from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array, Factors
from robustcp.engines.axes import Axes
from robustcp.engines.base import Engine, View
from robustcp.engines.blocks.chunks import overlap
from robustcp.engines.blocks.schedulers import Graph, Scheduler
from robustcp.engines.blocks.tasks import (
    BlockOperation,
    Collection,
    Group,
    Job,
    LossValue,
    ModeEquations,
    Piece,
    SlabSums,
    call_engine,
)
from robustcp.engines.memory import format_bytes, parse_bytes
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.storage import DataSummary
from robustcp.engines.threads import available_threads
from robustcp.engines.tiles import Tile, slice_length
from robustcp.losses import Loss

#: Bytes that this process needs beside the data.
PROCESS_BYTES = 450 << 20
#: A box as a key, since slices have no hash: first index and end in each mode.
BoxKey = tuple[tuple[int, int], ...]
E = TypeVar("E", bound="BlockEngine")
D = TypeVar("D", bound="DenseBlockEngine")


class BlockEngine(Engine):
    """Passes over data in pieces."""

    takes_weights = True
    takes_scales = True
    takes_limits = True

    @abstractmethod
    def _groups(self) -> list[Group]:
        """The pieces of the data, in groups."""

    @abstractmethod
    def _scheduler(self) -> Scheduler:
        """Who works on the groups."""

    @property
    def _job_view(self) -> View:
        """The view as jobs need it."""
        return replace(self.view, axes=Axes())

    @property
    def _graph(self) -> Graph:
        """What tasks need beside what they read themselves."""
        return Graph()

    @property
    def _full_box(self) -> Tile:
        return tuple(slice(0, size) for size in self.shape)

    def with_view(self: E, view: View) -> E:
        other = self._without_cached_values()
        other.view = view
        return other

    def _without_cached_values(self: E) -> E:
        """A copy that has computed nothing yet."""
        other, kind = copy(self), type(self)
        for name in vars(self):
            if isinstance(getattr(kind, name, None), cached_property):
                del vars(other)[name]
        return other

    # Passes

    def _map(
        self,
        operation: BlockOperation,
        factors: Factors | None = None,
        groups: Sequence[Group] | None = None,
    ) -> Iterator[tuple[Tile, Any]]:
        """The results of the groups that have any, in order, each with its box."""
        groups = self._groups() if groups is None else groups
        job = Job(operation, self._job_view, factors, self.compiled)
        results = self._scheduler().map(job, groups, self._graph)
        for group, result in zip(groups, results, strict=True):
            if result is not None:
                yield group.box, result

    def _collect(
        self,
        function: Callable[[Any, Any, Piece], Any],
        factors: Factors | None = None,
        groups: Sequence[Group] | None = None,
        **options: bool,
    ) -> Iterator[tuple[Tile, Any]]:
        """The results of a function of all blocks, in order, each with its box."""
        for _, results in self._map(Collection(function, **options), factors, groups):
            yield from results

    def _ask_engines(
        self, method: Callable[[Any], Any], groups: Sequence[Group] | None = None, **options: bool
    ) -> Iterator[tuple[Tile, Any]]:
        """The results of a method of the engines of all blocks, each with the block's box."""
        return self._collect(partial(call_engine, method), None, groups, **options)

    def _check_data(self) -> None:
        """Refuse data that cannot be fitted, before the first pass."""

    def _shares_gram(self, loss: Loss, mode: int) -> bool:
        """Whether all rows of a mode have the same Gram matrix."""
        return False

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        self._check_data()
        box = list(self._full_box)
        rows = box[mode] = box[mode] if rows is None else rows
        groups = [g for g in self._groups() if slice_length(overlap(g.box[mode], rows))]
        operation = ModeEquations(mode, loss, rows, self._shares_gram(loss, mode))
        return operation.combine(tuple(box), self._map(operation, factors, groups))

    def value(self, factors: Factors, loss: Loss) -> float:
        self._check_data()
        return math.fsum(value for _, value in self._map(LossValue(loss), factors))

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        self._check_data()
        operation = SlabSums(work, weighted)
        return operation.combine(self._full_box, self._map(operation, factors))


class DenseBlockEngine(BlockEngine):
    """Passes over an array in blocks, each of which is inspected once."""

    #: What is known of the entries of each block.
    _block_summaries: dict[BoxKey, DataSummary]

    @property
    def max_abs(self) -> float:
        return self.view.apply_to_magnitude(self._summary.max_abs)

    @property
    def complete(self) -> bool:
        return not (self._summary.has_missing or self.view.masks(self._summary.max_abs))

    @cached_property
    def _summary(self) -> DataSummary:
        """The summary of all blocks; an error if they cannot be fitted."""
        self._inspect_blocks()
        summary = DataSummary.of_parts(list(self._block_summaries.values()))
        if summary.max_abs < 0 or math.isinf(summary.max_abs):
            self._refuse(summary)
        return summary

    @abstractmethod
    def _refuse(self, summary: DataSummary) -> None:
        """Say that all entries are missing, or where one is infinite."""

    def _inspect_blocks(self) -> None:
        """Summarize the entries of each block."""
        if not self._block_summaries:
            for box, summary in self._ask_engines(methodcaller("compute_summary")):
                self._block_summaries[box_key(box)] = summary

    def _check_data(self) -> None:
        _ = self._summary

    def with_view(self: D, view: View) -> D:
        other = super().with_view(view)
        if view.weights is not self.view.weights:
            other._block_summaries = {}
        elif "_summary" in vars(self):
            vars(other)["_summary"] = vars(self)["_summary"]
        return other

    def _shares_gram(self, loss: Loss, mode: int) -> bool:
        view, weights = self.view, self.view.weights
        if view.scales is not None or view.limits is not None:
            return False
        if not loss.quadratic or self._summary.has_nan:
            return False
        separable = weights is None or (weights.array is None and weights.vectors[mode] is None)
        return separable and not view.masks(self._summary.max_abs)


def box_key(box: Tile) -> BoxKey:
    """A box as a key."""
    return tuple((part.start, part.stop) for part in box)


def thread_count(threads: int | None) -> int:
    """A checked number of threads; by default as many as there are."""
    return available_threads() if threads is None else checks.whole_number("threads", threads, 1)


def concurrent_pieces(
    memory: int | str, piece_bytes: int, description: str, most: int
) -> tuple[int, int]:
    """How many pieces this process may hold at a time, and the bytes that there are for all."""
    budget = parse_bytes(memory)
    available = max(budget - PROCESS_BYTES, budget // 4)
    if piece_bytes > available:
        raise ArgumentError(
            "memory",
            f"{format_bytes(budget)} is too little{description}, and this process itself up to "
            f"{format_bytes(PROCESS_BYTES)}",
        )
    return max(1, min(most, available // piece_bytes)), available
