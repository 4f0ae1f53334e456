"""A dense array as a matrix, which passes read tile by tile."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from robustcp._util.typing import Array, Factors
from robustcp.engines.arrays import check_dtype, storage_order, to_host, working_dtype
from robustcp.engines.base import View
from robustcp.engines.entry_field import EntryField, TileField, check_shape
from robustcp.engines.limits import TileLimits, drop_satisfied
from robustcp.engines.normal_equations import pack_indices
from robustcp.engines.sample_indices import SampleIndices
from robustcp.engines.scales import TileScales
from robustcp.engines.threads import TileExecutor
from robustcp.engines.tiles import (
    Tile,
    TileFactors,
    Tiling,
    even_split,
    pass_tiles,
    split_boxes,
    split_range,
)
from robustcp.losses import Loss, OneSided

#: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc.
_MALLOC_THRESHOLDS = -1, -3


@cache
def _raise_malloc_thresholds() -> None:
    """Let the temporaries of tiles reuse memory that is already mapped.

    glibc hands freed memory back to the system above a threshold that starts low and rises with
    the largest block freed so far; a pass would then fault its temporaries in again for every
    tile and take up to three times as long. Freeing one larger block, never touched, raises the
    threshold. Elsewhere this does nothing.

    Where the environment fixes the thresholds, as Dask does for its workers, they do not rise by
    themselves.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ and sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "gnu_get_libc_version"):
            for parameter in _MALLOC_THRESHOLDS:
                libc.mallopt(parameter, 1 << 24)
    np.empty(1 << 24, dtype=np.uint8)


class DataSummary(NamedTuple):
    """Magnitudes and missing entries of an array, before scaling.

    Attributes
    ----------
    max_abs : float
        The largest magnitude.
    has_missing : bool
        Whether entries are missing: NaN, or of weight 0.
    has_nan : bool
        Whether an entry of positive weight is NaN.
    max_abs_unweighted : float
        The largest magnitude, entries of weight 0 included; NaN if there is NaN.
    """

    max_abs: float
    has_missing: bool
    has_nan: bool
    max_abs_unweighted: float

    @classmethod
    def of_parts(cls, parts: Sequence[DataSummary]) -> DataSummary:
        """The summary of an array from the summaries of its parts."""
        return cls(
            max(part.max_abs for part in parts),
            any(part.has_missing for part in parts),
            any(part.has_nan for part in parts),
            float(np.max([part.max_abs_unweighted for part in parts])),
        )


class Storage:
    """An array of any array API library, viewed without a copy as a C-ordered one.

    Its modes are put into the order of their strides (`order`); the first `split` of them make
    the rows of a matrix, the others its columns.
    """

    def __init__(
        self,
        data: Array,
        tiling: Tiling,
        executor: TileExecutor,
        view: View = View(),  # noqa: B008
    ) -> None:
        check_dtype(data)
        if data.ndim < 2:
            raise ValueError(f"X: must have at least 2 modes, got {data.ndim} (shape {data.shape})")
        if 0 in data.shape:
            raise ValueError(f"X: has an empty mode (shape {tuple(data.shape)})")
        self.array = data
        self.xp: Any = array_api_compat.array_namespace(data)
        self.dtype: Any = working_dtype(data)
        self.device = array_api_compat.device(data)
        self.view, self.tiling, self.executor = view, tiling, executor
        self._packed_pairs: dict[int, tuple[Array, Array]] = {}
        self._device_positions: list[list[Array]] = []
        self.order = storage_order(data)
        self.weights = self._tile_weights(view)
        self.storage_array = self.xp.permute_dims(data, self.order)
        self.shape: tuple[int, ...] = tuple(int(size) for size in self.storage_array.shape)
        self.split = even_split(self.shape)
        self.scales = self._tile_scales(view)
        self.limits = self._tile_limits(view)
        half = -(-math.prod(self.shape) // 2)
        self.tile_entries = (
            min(tiling.entries, max(tiling.min_entries, half))
            if self.on_host
            else tiling.device_entries
        )
        shape, all_rows = tuple(int(size) for size in data.shape), slice(0, self.shape[0])
        tiles_function = partial(
            pass_tiles, self.shape, self.split, 0, all_rows, tiling, self.tile_entries
        )  # not a method: that would keep the array
        self.sample_indices = SampleIndices(
            shape, self.order, tiles_function, tiling.sample_entries
        )
        if array_api_compat.is_numpy_array(data):
            _raise_malloc_thresholds()

    def with_view(self, view: View) -> Storage:
        """The same array under another view."""
        same_weights = view.weights is self.view.weights
        if same_weights:
            _ = self.summary  # computed once for both
        other = copy(self)
        other.view = view
        if not same_weights:
            other.weights = self._tile_weights(view)
            other.__dict__.pop("summary", None)
        if view.scales is not self.view.scales:
            other.scales = self._tile_scales(view)
        if view.limits is not self.view.limits:
            other.limits = self._tile_limits(view)
        return other

    def _tile_weights(self, view: View) -> TileField | None:
        if view.weights is None:
            return None
        check_shape(view.weights, "entry_weights", tuple(self.array.shape))
        assert isinstance(view.weights, EntryField)
        return TileField(view.weights, self.order, self.xp, self.dtype, self.device)

    def _tile_scales(self, view: View) -> TileScales | None:
        if view.scales is None:
            return None
        view.scales.check(tuple(self.array.shape))
        return TileScales(view.scales, self.order, self.split, self.xp, self.dtype, self.device)

    def _tile_limits(self, view: View) -> TileLimits | None:
        if view.limits is None:
            return None
        view.limits.check(tuple(self.array.shape))
        return TileLimits(view.limits, self.order, self.xp, self.dtype, self.device)

    # What the data is

    @cached_property
    def summary(self) -> DataSummary:
        summary = self.compute_summary()
        if summary.max_abs < 0:
            weightless = "" if self.weights is None else " or of weight 0"
            raise ValueError(f"X: all entries are missing (NaN){weightless}")
        if math.isinf(summary.max_abs):
            raise ValueError(f"X: has infinite entries, {self._first_entry(self.xp.isinf)}")
        return summary

    def compute_summary(self) -> DataSummary:
        """The summary, without errors."""
        xp = self.xp

        def work(tile: Tile) -> DataSummary:
            x = self.storage_array[tile]
            magnitudes = xp.abs(x if x.dtype == self.dtype else xp.astype(x, self.dtype))
            max_abs_unweighted = float(xp.max(magnitudes))
            zeros = self.weights is not None and self.weights.has_zeros
            if not zeros and not math.isnan(max_abs_unweighted):
                return DataSummary(max_abs_unweighted, False, False, max_abs_unweighted)
            missing, has_nan = xp.isnan(magnitudes), True
            if self.weights is not None and zeros:
                zero_weight = self.weights.tile_values(tile) == 0
                has_nan = bool(xp.any(missing & ~zero_weight))
                missing = missing | zero_weight
            observed = xp.where(missing, -xp.ones_like(magnitudes), magnitudes)
            return DataSummary(
                float(xp.max(observed)), bool(xp.any(missing)), has_nan, max_abs_unweighted
            )

        boxes = split_boxes(self.shape, self.tile_entries)
        return DataSummary.of_parts(list(self.executor.map(work, boxes)))

    @property
    def max_abs(self) -> float:
        return self.view.apply_to_magnitude(self.summary.max_abs)

    @property
    def has_missing(self) -> bool:
        """Whether entries are missing."""
        return self.summary.has_missing or self._has_masked

    @property
    def _has_masked(self) -> bool:
        return self.view.masks(self.summary.max_abs)

    @property
    def separable(self) -> bool:
        """Whether entries differ by their weights alone, and these, with 0 for missing entries,
        are an outer product."""
        separable_weights = (self.scales is None and self.limits is None) and (
            self.weights is None or self.weights.array is None
        )
        return separable_weights and not self.summary.has_nan and not self._has_masked

    @property
    def zero_weights_safe(self) -> bool:
        """Whether the entries of weight 0 are finite and not too large to be multiplied by 0."""
        return self.summary.max_abs_unweighted <= 2.0**100 * self.summary.max_abs

    def _first_entry(self, test: Callable[[Array], Array]) -> str:
        """The first entry that passes a test, in words."""
        for tile in split_boxes(self.shape, self.tile_entries):
            hits = np.argwhere(to_host(test(self.read_masked(tile, self.dtype))))
            if hits.size:
                entry = [0] * len(self.shape)
                for mode, part, index in zip(self.order, tile, hits[0], strict=True):
                    entry[mode] = part.start + int(index)
                return f"the first in memory at {tuple(entry)}"
        return "none"

    @cached_property
    def as_matrix(self) -> np.ndarray | None:
        """The matrix in C order, if the array is stored like that on the host."""
        data = self.storage_array
        if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
            return None
        return np.asarray(data).reshape(math.prod(data.shape[: self.split]), -1)

    @property
    def on_host(self) -> bool:
        return str(self.device) == "cpu"

    @cached_property
    def device_matrix(self) -> Array | None:
        """The matrix without a copy, if the array is like that, of the working type and as it is
        seen but for a power of two that factors may be multiplied by instead.
        """
        data, view = self.storage_array, self.view
        unclipped = view.clip_limit == view.mask_limit == math.inf and abs(view.exponent) <= 60
        if not unclipped or data.dtype != self.dtype or not data.is_contiguous():
            return None
        return self.xp.reshape(data, (math.prod(data.shape[: self.split]), -1))

    # Tiles

    def map(self, work: Callable[[Any], Any], tiles: Sequence[Any]) -> Iterator[Any]:
        """Results of the tiles, in order. The summary is computed first, not within a tile."""
        _ = self.summary
        return self.executor.map(work, tiles)

    def pass_tiles(self, n: int = 0, rows: slice | None = None) -> list[Tile]:
        """The tiles of a pass over all, or over some rows of stored mode n."""
        rows = rows if rows is not None else slice(0, self.shape[n])
        return pass_tiles(self.shape, self.split, n, rows, self.tiling, self.tile_entries)

    def read(self, tile: Tile, dtype: Any) -> Array:
        return self.convert(self.storage_array[tile], dtype)

    def convert(self, x: Array, dtype: Any) -> Array:
        """Some of the data under the view, in a floating point type."""
        if x.dtype != dtype:
            x = self.xp.astype(x, dtype)
        return self.view.apply(x, self.xp)

    def read_masked(self, tile: Tile, dtype: Any) -> Array:
        """A tile under the view, with NaN also where the weight is 0."""
        x = self.read(tile, dtype)
        if self.weights is None or not self.weights.has_zeros:
            return x
        return self.xp.where(self.weights.tile_values(tile) == 0, self.xp.full_like(x, math.nan), x)

    def tile_matrix(self, tile: Tile) -> Array:
        return self._flat(self.read_masked(tile, self.dtype))

    def unmasked_tile_matrix(self, tile: Tile) -> Array:
        """The matrix of a tile, with entries of weight 0."""
        return self._flat(self.read(tile, self.dtype))

    def _flat(self, x: Array) -> Array:
        return self.xp.reshape(x, (math.prod(x.shape[: self.split]), -1))

    def tile_scales(self, tile: Tile) -> Array | None:
        """The scales of a tile's entries, as a matrix."""
        return None if self.scales is None else self._flat(self.scales.tile_values(tile))

    def residual(
        self, tile: Tile, factors: TileFactors, scale: Array | None, *, unmasked: bool = False
    ) -> Array:
        r = factors.negated_model(tile)
        r += self.unmasked_tile_matrix(tile) if unmasked else self.tile_matrix(tile)
        return r if scale is None else r / scale

    def tile_sides(self, tile: Tile) -> Array | None:
        """The sides on which a tile's entries are censored, as a matrix; None without limits."""
        if self.limits is None:
            return None
        x = self.xp.astype(self.storage_array[tile], self.dtype, copy=False)
        return self._flat(self.limits.tile_sides(x, tile))

    def loss_of_tile(self, loss: Loss, tile: Tile) -> Loss:
        """The loss of a tile's entries, one-sided where they are censored."""
        sides = self.tile_sides(tile)
        return loss if sides is None else OneSided(loss, sides)

    def observed_residual(
        self, tile: Tile, factors: TileFactors, *, unmasked: bool = False
    ) -> Array:
        """Residuals in units of the scales; of censored entries with the model beyond, NaN.

        If `unmasked`, entries of weight 0 have residuals too, and those of the latter are 0.
        """
        r = self.residual(tile, factors, self.tile_scales(tile), unmasked=unmasked)
        return drop_satisfied(r, self.tile_sides(tile), 0.0 if unmasked else math.nan, self.xp)

    def apply_weights(self, tile: Tile, *parts: Array) -> Sequence[Array]:
        """Arrays over the entries of a tile, times the weights."""
        if self.weights is None:
            return parts
        w = self.xp.reshape(self.weights.tile_values(tile), parts[0].shape)
        if w.dtype != parts[0].dtype:
            w = self.xp.astype(w, parts[0].dtype)
        return [part * w for part in parts]

    def missing_mask(self, x: Array) -> Array | None:
        return self.xp.isnan(x) if self.has_missing else None

    def fill_missing(self, x: Array, mask: Array | None) -> Array:
        """An array with 0 where the data is missing."""
        return x if mask is None else self.xp.where(mask, self.xp.zeros_like(x), x)

    # Factors

    def in_storage_order(self, factors: Factors) -> list[Array]:
        """Factors in storage order."""
        return [factors[m] for m in self.order]

    def weight_rows(self, factors: Sequence[Array]) -> list[Array]:
        """Factors in storage order, rows times the weights of their mode."""
        if self.weights is None:
            return list(factors)
        return [
            A if w is None else w[:, None] * A
            for w, A in zip(self.weights.vectors, factors, strict=True)
        ]

    def row_weights(self, n: int) -> Array | None:
        """The vector of weights of stored mode n, if there is one."""
        return None if self.weights is None else self.weights.vectors[n]

    def tile_factors(self, factors: Sequence[Array]) -> TileFactors:
        """The products of factors (in storage order) that tiles share."""
        return TileFactors(self.xp, factors, self.split, self.packed_pairs(factors[0].shape[1]))

    def sample_positions(self, flat: np.ndarray) -> Iterator[list[Array]]:
        """Indices of the sampled entries: in pieces on the host, kept on a device."""
        if self.on_host:
            for piece in split_range(len(flat), max(1, len(flat) // 4)):
                indices = np.unravel_index(flat[piece], self.array.shape)
                yield [self.xp.asarray(index, device=self.device) for index in indices]
            return
        if not self._device_positions:
            indices = np.unravel_index(flat, self.array.shape)
            self._device_positions.append(
                [self.xp.asarray(index, device=self.device) for index in indices]
            )
        yield from self._device_positions

    def packed_pairs(self, rank: int) -> tuple[Array, Array]:
        """Rows and columns of the packed upper triangle, as arrays of the library."""
        if rank not in self._packed_pairs:
            i, j = (self.xp.asarray(part, device=self.device) for part in pack_indices(rank))
            self._packed_pairs[rank] = i, j
        return self._packed_pairs[rank]

    def zeros(self, *shape: int) -> Array:
        return self.xp.zeros(shape, dtype=self.dtype, device=self.device)
