"""The fused pass on a GPU, by Triton; see `triton/dense_pass.py` for the mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from robustcp._util.typing import Array
from robustcp.engines.entry_field import TileField
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.passes.base import Pass
from robustcp.engines.passes.plain import PlainPass
from robustcp.engines.storage import Storage
from robustcp.engines.tiles import khatri_rao
from robustcp.losses import Formula, Loss

#: The most rows and columns of a block of entries.
MAX_BLOCK_SIZE = 64
#: The most packed columns that a program sums up.
MAX_PACKED_COLUMNS = 64
#: The stages of the pipeline of reads, unless neighbours in memory are in different rows.
PIPELINE_STAGES = 2
#: The entries of a row over which rounding errors of slopes average out.
MIN_AVERAGED_ENTRIES = 1 << 18
#: A mode with fewer indices is too short for the rows of blocks.
MIN_BLOCK_ROWS = 16
#: The number of programs that keep a GPU busy.
TARGET_PROGRAMS = 132 * 16
#: The sums of all programs have at most this share of the numbers of the data.
PARTIAL_SUMS_SHARE = 0.02
#: But a limit below this count does not apply.
MIN_PARTIAL_SUMS = 1 << 22


@dataclass(frozen=True)
class ModeRoles:
    """What each mode does in a pass: stored modes, in storage order.

    Attributes
    ----------
    own : int
        The mode whose normal equations are computed.
    rows, tile : int
        The modes that blocks of entries are cut from. Rows are of the own mode, unless that is too
        short: then each of its indices has programs of its own (`per_own_index`).
    outer : tuple of int
        All other modes.
    """

    own: int
    rows: int
    tile: int
    outer: tuple[int, ...]

    @property
    def per_own_index(self) -> bool:
        return self.own != self.rows

    @classmethod
    def of(cls, own: int, shape: Sequence[int], strides: Sequence[int]) -> ModeRoles:
        """Roles for which blocks are wide, and their entries near each other."""
        others = [m for m in range(len(shape)) if m != own]

        def tile_preference(mode: int) -> tuple[int, int]:
            return min(shape[mode], MAX_BLOCK_SIZE), -strides[mode]

        rows = own
        if shape[own] < MIN_BLOCK_ROWS and len(others) > 1:
            rows = max(others, key=lambda mode: shape[mode])
            others.remove(rows)
        tile = max(others, key=tile_preference)
        return cls(own, rows, tile, tuple(m for m in others if m != tile))


class TritonPass(Pass):
    """One kernel reads the data once and writes sums; any strides, any number of modes.

    Weights and scales of modes come as products over the outer modes, followed by those of the own
    mode if each of its indices has programs of its own.
    """

    def __init__(self, storage: Storage, kernels: Any) -> None:
        super().__init__(storage)
        self._kernels = kernels
        self._plain = PlainPass(storage)
        self._cache: dict[Any, Any] = {}

    def supports(self, loss: Loss) -> bool:
        """Whether there is a kernel for the loss, with its parameters and with the scales.

        There is none for censored entries.
        """
        scales, formula = self.storage.scales, loss.triton_formula
        if formula is None or not self._can_represent(formula.numbers):
            return False
        if self.storage.limits is not None:
            return False
        if scales is None:
            return True
        by_modes = scales.field.array is None
        return by_modes and (not scales.signal_factors or self.supports_rank(scales.signal_factors))

    def supports_rank(self, factors: Sequence[Array]) -> bool:
        """Whether there are kernels for the rank of some factors."""
        return _rank(factors) <= int(self._kernels.MAX_RANK)

    def _can_represent(self, numbers: Sequence[float]) -> bool:
        """Whether some numbers are 0 or normal numbers in the type of the factors."""
        info = self.storage.xp.finfo(self.storage.dtype)
        return all(n == 0 or info.smallest_normal <= abs(n) <= info.max for n in numbers)

    def normal_equations(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice
    ) -> NormalEquations:
        rank = _rank(factors)
        if not self.supports_rank(factors):
            return self._plain.normal_equations(factors, n, loss, rows)
        shared_grams = None
        if loss.quadratic and self.storage.separable:
            shared_grams = self.packed_grams(self.shared_gram(factors, n), n, rows)
        with self._kernels.on_device(self.storage.device):
            sums, value = self._accumulate(factors, n, loss, rows, gram=shared_grams is None)
        gram = sums[:, rank:] if shared_grams is None else shared_grams
        return NormalEquations(gram, sums[:, :rank], value)

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        if not self.supports_rank(factors):
            return self._plain.value(factors, loss)
        n = max(range(len(factors)), key=lambda mode: self.storage.shape[mode])
        with self._kernels.on_device(self.storage.device):
            return float(self._accumulate(factors, n, loss, None, gram=False)[1])

    def _accumulate(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice | None, *, gram: bool
    ) -> tuple[Array, Array]:
        """Gradients beside Gram matrices, and the value, an array of its own."""
        kernels, storage = self._kernels, self.storage
        xp, shape, roles = storage.xp, storage.shape, self._roles(n)
        factors = [xp.asarray(A, dtype=storage.dtype).contiguous() for A in factors]
        rank = _rank(factors)
        own_slice = slice(0, shape[n]) if rows is None else rows
        own_count = own_slice.stop - own_slice.start
        data, first, count = storage.storage_array, own_slice.start, own_count
        own_factor, own_programs = factors[n], 1
        if roles.per_own_index:
            data, own_factor = data.narrow(n, own_slice.start, own_count), own_factor[own_slice, :]
            first, count, own_programs = 0, shape[roles.rows], own_count
        strides, tile_size = data.stride(), shape[roles.tile]
        weights = self._cached("weights", self._weights, roles, own_slice)
        scales = self._cached("scales", self._scales, roles, own_slice)
        layout = self._cached("layout", self._layout, roles, count, rank, gram)
        packed = rank * (rank + 1) // 2 if gram else 0
        pairs = self._cached("pairs", self._column_pairs, rank)
        P = self._outer_products(factors, roles, pairs)
        blocks = -(-count // layout.row_block)
        sums_limit = max(PARTIAL_SUMS_SHARE * math.prod(shape), MIN_PARTIAL_SUMS)
        parts, splits = _split_work(
            blocks=blocks * own_programs,
            tiles=-(-tile_size // layout.tile_block),
            outer=P.shape[0],
            max_parts=max(1, int(sums_limit) // (count * (rank + packed))),
        )
        sums = xp.empty(
            (parts * (blocks if roles.per_own_index else 1), own_count, rank + packed),
            dtype=storage.dtype,
            device=storage.device,
        )
        values = xp.empty(sums.shape[:2], dtype=xp.float64, device=storage.device)
        arguments = (
            kernels.Inputs(
                self._cached("parameters", self._parameters, _formula(loss)),
                kernels.Data(
                    data,
                    self._cached("offsets", self._offsets, roles.outer, self._strides),
                    strides[roles.rows] // layout.row_stride_divisor,
                    strides[roles.tile],
                    strides[n] if roles.per_own_index else 0,
                ),
                weights,
                scales,
            ),
            kernels.Factors(factors[roles.rows], own_factor, P, factors[roles.tile], *pairs),
            kernels.Sums(sums, values),
            count // layout.rows_divisor,
            first,
            tile_size // layout.tile_divisor,
            P.shape[0],
            own_programs,
            rank,
            splits,
            kernels.compile_formula(_formula(loss).function),
        )
        kernels.pass_kernel[blocks, parts, own_programs](*arguments, layout, num_warps=4)
        further_chunks = -(-packed // layout.pair_block) - 1
        if further_chunks > 0:
            layout = replace(layout, gradient=False)
            grid = blocks, parts, further_chunks * own_programs
            kernels.pass_kernel[grid](*arguments, layout, num_warps=4)
        return xp.sum(sums, axis=0), xp.sum(values)

    # What does not change between passes

    def _cached(self, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns for some arguments, computed once."""
        key = name, *((a.start, a.stop) if isinstance(a, slice) else a for a in arguments)
        if key not in self._cache:
            self._cache[key] = compute(*arguments)
        return self._cache[key]

    @property
    def _strides(self) -> tuple[int, ...]:
        return tuple(self.storage.storage_array.stride())

    @property
    def _unit_multipliers(self) -> tuple[float, ...]:
        """What data is multiplied by: in two steps, where one number does not hold it."""
        exponent = self.storage.view.exponent
        if abs(exponent) <= 100:
            return (math.ldexp(1.0, -exponent),) if exponent else ()
        half = exponent // 2
        return math.ldexp(1.0, -half), math.ldexp(1.0, half - exponent)

    def _roles(self, n: int) -> ModeRoles:
        return ModeRoles.of(n, self.storage.shape, self._strides)

    def _layout(self, roles: ModeRoles, count: int, rank: int, gram: bool) -> Any:
        """The layout of a kernel for `count` rows."""
        kernels, storage, strides = self._kernels, self.storage, self._strides
        weights, scales, shape = storage.weights, storage.scales, storage.shape
        signal_factors = () if scales is None else scales.signal_factors
        single, tile_size = storage.dtype == storage.xp.float32, shape[roles.tile]
        max_block = MAX_BLOCK_SIZE if single else MAX_BLOCK_SIZE // 2  # as many registers
        divisors = (_power_of_two_divisor(strides[m]) for m in roles.outer)
        return kernels.Layout(
            real=kernels.TRITON_TYPES[str(storage.dtype)],
            fast=single and not kernels.is_interpreted(),
            row_block=min(max_block, kernels.block_size(count)),
            tile_block=min(max_block, kernels.block_size(tile_size)),
            rank_block=kernels.block_size(rank),
            pair_block=self._pair_block(rank),
            signal_block=kernels.block_size(_rank(signal_factors) if signal_factors else 1),
            rows_divisor=_power_of_two_divisor(count),
            row_stride_divisor=_power_of_two_divisor(strides[roles.rows]),
            tile_divisor=_power_of_two_divisor(tile_size),
            offsets_divisor=min(divisors, default=16),
            gradient=True,
            gram=gram,
            per_own_index=roles.per_own_index,
            has_missing=storage.has_missing,
            clipped=storage.view.clip_limit < math.inf,
            unit_steps=len(self._unit_multipliers),
            mode_weights=weights is not None and weights.array is None,
            entry_weights=weights is not None and weights.array is not None,
            scaled=scales is not None,
            floored=scales is not None and scales.parameters[3] > 0,
            signal=bool(signal_factors),
            split_slopes=math.prod(shape) < MIN_AVERAGED_ENTRIES * shape[roles.own],
            pipeline_stages=1 if strides[roles.rows] == 1 else PIPELINE_STAGES,
        )

    def _pair_block(self, rank: int) -> int:
        """How many packed columns a program sums up."""
        return min(MAX_PACKED_COLUMNS, int(self._kernels.block_size(rank * (rank + 1) // 2)))

    def _offsets(self, modes: Sequence[int], strides: Sequence[int]) -> Array:
        """Where each index of some modes begins."""
        xp, storage = self.storage.xp, self.storage
        options = {"dtype": xp.int64, "device": storage.device}
        offsets = xp.zeros((1,), **options)
        for mode in modes:
            steps = strides[mode] * xp.arange(storage.shape[mode], **options)
            offsets = xp.reshape(offsets[:, None] + steps[None, :], (-1,))
        return offsets

    def _column_pairs(self, rank: int) -> tuple[Array, ...]:
        """The columns of rows and the pairs of packed columns, in whole chunks."""
        xp, storage = self.storage.xp, self.storage
        options = {"dtype": xp.int32, "device": storage.device}
        row_padding = xp.zeros((self._kernels.block_size(rank) - rank,), **options)
        pair_padding = xp.zeros((-(rank * (rank + 1) // 2) % self._pair_block(rank),), **options)
        before = xp.arange(rank, **options), row_padding
        return tuple(
            xp.concat([*before, xp.astype(pair, xp.int32), pair_padding])
            for pair in storage.packed_pairs(rank)
        )

    def _parameters(self, formula: Formula) -> Array:
        """The parameters of the loss, of the view and of the scales."""
        storage, view, scales = self.storage, self.storage.view, self.storage.scales
        *variance, floor = (1.0, 0.0, 0.0, 0.0) if scales is None else scales.parameters
        parameters = (
            *(*formula.numbers, *(0.0,) * 7)[:7],
            *(*self._unit_multipliers, 1.0, 1.0)[:2],
            *(view.clip_limit, view.mask_limit, floor**4),
            *variance,
        )
        return storage.xp.asarray(parameters, dtype=storage.dtype, device=storage.device)

    # What a pass needs beside the data

    def _outer_products(
        self, factors: Sequence[Array], roles: ModeRoles, pairs: tuple[Array, Array]
    ) -> Array:
        """Products of the factor rows of the outer modes, then those of pairs of their columns."""
        xp, storage, rank = self.storage.xp, self.storage, _rank(factors)
        ones_row = xp.ones((1, rank), dtype=storage.dtype, device=storage.device)
        outer_factors = [factors[m] for m in roles.outer]
        last = outer_factors[-1] if outer_factors else ones_row
        first = khatri_rao(outer_factors[:-1]).contiguous() if len(outer_factors) > 1 else ones_row
        count, width = first.shape[0] * last.shape[0], pairs[0].shape[0]
        products = xp.empty((count, width), dtype=storage.dtype, device=storage.device)
        block_entries, sizes = 1024, (count, last.shape[0], rank, width)
        self._kernels.khatri_rao_rows[(-(-count * width // block_entries),)](
            first,
            last,
            *pairs,
            products,
            *sizes,
            R=self._kernels.block_size(rank),
            BLOCK=block_entries,
        )
        return products

    def _weights(self, roles: ModeRoles, own_slice: slice) -> Any:
        """The weights as the kernel reads them."""
        weights, storage = self.storage.weights, self.storage
        if weights is None:
            return self._kernels.EntryWeights()
        if weights.array is None:
            return self._kernels.EntryWeights(*self._mode_vectors(weights, roles, own_slice))
        array = storage.xp.broadcast_to(weights.array, storage.shape)
        if roles.per_own_index:
            array = array.narrow(roles.own, own_slice.start, own_slice.stop - own_slice.start)
        strides = array.stride()
        mode_strides = (strides[mode] for mode in (roles.rows, roles.tile, roles.own))
        offsets = self._offsets(roles.outer, strides)
        return self._kernels.EntryWeights(None, None, None, array, offsets, *mode_strides)

    def _scales(self, roles: ModeRoles, own_slice: slice) -> Any:
        """The scales as the kernel reads them."""
        scales, storage, xp = self.storage.scales, self.storage, self.storage.xp
        if scales is None:
            return self._kernels.EntryScales()
        rows, *others = self._mode_vectors(scales.field, roles, own_slice)
        vectors = rows * scales.unit, *others
        if not scales.signal_factors:
            return self._kernels.EntryScales(*vectors)
        factors = [xp.asarray(A, dtype=storage.dtype).contiguous() for A in scales.signal_factors]
        rank = _rank(factors)
        outer = khatri_rao([factors[m] for m in roles.outer] or [xp.ones_like(factors[0][:1, :])])
        if roles.per_own_index:
            outer = xp.concat([outer, factors[roles.own][own_slice, :]], axis=0)
        padding_shape = outer.shape[0], self._kernels.block_size(rank) - rank
        padding = xp.zeros(padding_shape, dtype=outer.dtype, device=storage.device)
        padded = xp.concat([outer, padding], axis=1).contiguous()
        return self._kernels.EntryScales(
            *vectors, factors[roles.rows], padded, factors[roles.tile], rank
        )

    def _mode_vectors(
        self, weights: TileField | None, roles: ModeRoles, own_slice: slice
    ) -> tuple[Array, Array, Array]:
        """Vectors of rows, of tiles, and of outer indices with those of own indices after them."""
        xp, storage = self.storage.xp, self.storage

        def vector(mode: int) -> Array:
            values = None if weights is None else weights.vectors[mode]
            if values is not None:
                return xp.asarray(values, dtype=storage.dtype)
            return xp.ones((storage.shape[mode],), dtype=storage.dtype, device=storage.device)

        unit = xp.ones((1,), dtype=storage.dtype, device=storage.device)
        outer = unit
        for mode in roles.outer:
            outer = xp.reshape(outer[:, None] * vector(mode)[None, :], (-1,))
        if roles.per_own_index:
            outer = xp.concat([outer, vector(roles.own)[own_slice]])
        return tuple(v.contiguous() for v in (vector(roles.rows), vector(roles.tile), outer))


def _split_work(blocks: int, tiles: int, outer: int, max_parts: int) -> tuple[int, int]:
    """How many programs share the columns of a block of rows, and the outer indices among these.

    Enough programs for a GPU, but at most `max_parts`. Each has as many tiles and outer indices as
    the next, but the last one.
    """
    parts = max(1, min(TARGET_PROGRAMS // blocks, max_parts, tiles * outer))
    tile_groups = _even_parts(tiles, min(tiles, parts))
    outer_splits = _even_parts(outer, max(1, min(outer, parts // tile_groups)))
    return tile_groups * outer_splits, outer_splits


def _even_parts(size: int, max_parts: int) -> int:
    """Into how many parts of even length a size is cut, of at most `max_parts`."""
    return -(-size // -(-size // max_parts))


def _formula(loss: Loss) -> Formula:
    """The formula of a loss that is supported."""
    formula = loss.triton_formula
    assert formula is not None
    return formula


def _rank(factors: Sequence[Array]) -> int:
    return int(factors[0].shape[1])


def _power_of_two_divisor(size: int) -> int:
    """The largest power of two up to 16 that divides a number."""
    return math.gcd(size, 16)
