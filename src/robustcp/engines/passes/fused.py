"""The fused pass on a GPU, by Triton; see `fused_kernels` for the mathematics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from robustcp._typing import Array
from robustcp.engines.passes.base import Pass
from robustcp.engines.passes.plain import PlainPass
from robustcp.engines.storage import Storage
from robustcp.engines.tiles import khatri_rao
from robustcp.engines.weights import TileWeights
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

#: Rows and columns of a block, and packed columns that a program sums up, at most.
BLOCK, COLUMNS = 64, 64
#: Reads under way at a time, where they are of neighbours in memory.
STAGES = 2
#: Entries of a row over which errors of slopes average out.
FEW = 1 << 18
#: A mode with fewer indices is no good for the rows of blocks.
SHORT = 16
#: So many programs keep a GPU busy; their sums may be this share of the data, or so many numbers.
PROGRAMS, SUMS, FEW_SUMS = 132 * 16, 0.02, 1 << 22


@dataclass(frozen=True)
class Roles:
    """What each mode does in a pass: stored modes, in storage order.

    Attributes
    ----------
    own : int
        The mode whose normal equations are asked for.
    rows, tile : int
        Those that a block of entries is cut from. Rows are of the own mode, unless that is too
        short: then each of its indices has programs of its own (`turned`).
    outer : tuple of int
        All others.
    """

    own: int
    rows: int
    tile: int
    outer: tuple[int, ...]

    @property
    def turned(self) -> bool:
        return self.own != self.rows

    @classmethod
    def of(cls, own: int, shape: Sequence[int], strides: Sequence[int]) -> Roles:
        """Blocks should be wide, and their entries near each other."""
        others = [m for m in range(len(shape)) if m != own]

        def fits(mode: int) -> tuple[int, int]:
            return min(shape[mode], BLOCK), -strides[mode]

        rows = own
        if shape[own] < SHORT and len(others) > 1:
            rows = max(others, key=lambda mode: shape[mode])
            others.remove(rows)
        tile = max(others, key=fits)
        return cls(own, rows, tile, tuple(m for m in others if m != tile))


class FusedPass(Pass):
    """One kernel reads the data once and writes sums; any strides, any number of modes.

    Vectors of weights and scales are products over the outer modes there, followed by those of
    the own mode if the pass is turned.
    """

    def __init__(self, storage: Storage, code: Any) -> None:
        super().__init__(storage)
        self._code = code
        self._plain = PlainPass(storage)

    def takes(self, loss: Loss) -> bool:
        """Whether there is a kernel for it."""
        scales = self.storage.scales
        plain = scales is None or scales.slabs is None or scales.slabs.array is None
        few = scales is None or not scales.held or _width(scales.held) <= self._code.RANKS
        formula = self._code.formula_of(loss)
        return plain and few and formula is not None and self._holds(formula.numbers(loss))

    def holds(self, factors: Sequence[Array]) -> bool:
        """Whether there are kernels for factors of so many columns."""
        return _width(factors) <= int(self._code.RANKS)

    def _holds(self, numbers: Sequence[float]) -> bool:
        """Whether the type of the factors holds some numbers."""
        info = self.storage.xp.finfo(self.storage.dtype)
        return all(n == 0 or info.smallest_normal <= abs(n) <= info.max for n in numbers)

    def normal(self, factors: Sequence[Array], n: int, loss: Loss, rows: slice) -> NormalEquations:
        rank = _width(factors)
        if not self.holds(factors):
            return self._plain.normal(factors, n, loss, rows)
        known = None
        if loss.quadratic and self.storage.separable:
            known = self.grams(self.shared_gram(factors, n), n, rows)
        with self._code.on_device(self.storage.device):
            sums, value = self._sums(factors, n, loss, rows, gram=known is None)
        gram = sums[:, rank:] if known is None else known
        return NormalEquations(gram, sums[:, :rank], value)

    def value(self, factors: Sequence[Array], loss: Loss) -> float:
        if not self.holds(factors):
            return self._plain.value(factors, loss)
        n = max(range(len(factors)), key=lambda mode: self.storage.shape[mode])
        with self._code.on_device(self.storage.device):
            return float(self._sums(factors, n, loss, None, gram=False)[1])

    def _sums(
        self, factors: Sequence[Array], n: int, loss: Loss, rows: slice | None, *, gram: bool
    ) -> tuple[Array, Array]:
        """Gradients beside Gram matrices, and the value, an array of its own."""
        code, storage = self._code, self.storage
        xp, shape, roles = storage.xp, storage.shape, self._roles(n)
        factors = [xp.asarray(A, dtype=storage.dtype).contiguous() for A in factors]
        rank = _width(factors)
        pairs_of = rank * (rank + 1) // 2
        packed = pairs_of if gram else 0
        R, S = code.block_size(rank), min(COLUMNS, code.block_size(pairs_of))
        chunks = -(-packed // S)
        asked = slice(0, shape[n]) if rows is None else rows
        own = asked.stop - asked.start
        data, first, count = storage.stored, asked.start, own
        turn = factors[n]
        if roles.turned:
            data, turn = data.narrow(n, asked.start, own), turn[asked, :]
            first, count = 0, shape[roles.rows]
        pairs = self._pairs(rank, R, S)
        P = self._outer_rows(factors, roles, pairs, rank, R)
        outer = P.shape[0]
        block = BLOCK if storage.dtype == xp.float32 else BLOCK // 2  # as many registers
        BI, BT = (min(block, code.block_size(size)) for size in (count, shape[roles.tile]))
        cut = _Cut.of(
            blocks=-(-count // BI) * (own if roles.turned else 1),
            tiles=-(-shape[roles.tile] // BT),
            outer=outer,
            most=max(1, int(max(SUMS * math.prod(shape), FEW_SUMS)) // (count * (rank + packed))),
        )
        blocks = -(-count // BI)
        places = own if roles.turned else 1
        sums = xp.empty(
            (cut.parts * (blocks if roles.turned else 1), own, rank + packed),
            dtype=storage.dtype, device=storage.device,
        )  # fmt: skip
        values = xp.empty(sums.shape[:2], dtype=xp.float64, device=storage.device)
        strides, formula = data.stride(), code.formula_of(loss)
        beside = self._beside(roles, asked)
        by = [_multiple(count), _multiple(strides[roles.rows]), _multiple(shape[roles.tile])]
        view = storage.view

        def launch(columns: int, chunks: int, gradient: bool) -> None:
            code.over_all[blocks, cut.parts, chunks * places](
                data, factors[roles.rows], turn, P, factors[roles.tile], *pairs,
                self._numbers(loss), self._places(n)[0], sums, values, *beside.arrays,
                count // by[0], first, shape[roles.tile] // by[2], outer, places, rank, packed,
                P.shape[1], beside.signals,
                strides[roles.rows] // by[1], strides[roles.tile], strides[n], *beside.strides,
                cut.tiles_each, cut.outer_each, cut.splits, columns,
                FORMULA=formula.run, real=code.TYPES[str(storage.dtype)],
                FAST=not code.interpreted() and storage.dtype == xp.float32,
                BI=BI, BT=BT, R=R, S=S, RS=code.block_size(max(1, beside.signals)),
                ROWS_BY=by[0], ROW_BY=by[1], INNER_BY=by[2], PLACES_BY=self._places(n)[1],
                GRADIENT=gradient, GRAM=gram, TURNED=roles.turned, GAPS=storage.gaps,
                SHRUNK=len(self._shrink), CUT=view.limit < math.inf, **beside.flags,
                SPLIT=math.prod(shape) < FEW * shape[n], num_warps=4,
                STAGES=1 if strides[roles.rows] == 1 else STAGES,
            )  # fmt: skip

        launch(0, 1, True)
        if chunks > 1:
            launch(S, chunks - 1, False)
        return xp.sum(sums, axis=0), xp.sum(values)

    # What does not change between passes

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return {}

    @property
    def _shrink(self) -> tuple[float, ...]:
        """What data is multiplied by: in two steps, where one number does not hold it."""
        exponent = self.storage.view.exponent
        if abs(exponent) <= 100:
            return (math.ldexp(1.0, -exponent),) if exponent else ()
        half = exponent // 2
        return math.ldexp(1.0, -half), math.ldexp(1.0, half - exponent)

    def _roles(self, n: int) -> Roles:
        return Roles.of(n, self.storage.shape, self.storage.stored.stride())

    def _places(self, n: int) -> tuple[Array, int]:
        """Where the data of each outer index begins, and a power of two that divides them all."""
        key = "places", n
        if key not in self._known:
            strides = self.storage.stored.stride()
            outer = self._roles(n).outer
            by = min((_multiple(strides[m]) for m in outer), default=16)
            self._known[key] = self._offsets(outer, strides), by
        found: tuple[Array, int] = self._known[key]
        return found

    def _offsets(self, modes: Sequence[int], strides: Sequence[int]) -> Array:
        xp, storage = self.storage.xp, self.storage
        to = {"dtype": xp.int64, "device": storage.device}
        found = xp.zeros((1,), **to)
        for mode in modes:
            steps = strides[mode] * xp.arange(storage.shape[mode], **to)
            found = xp.reshape(found[:, None] + steps[None, :], (-1,))
        return found

    def _pairs(self, rank: int, R: int, S: int) -> tuple[Array, Array]:
        """The columns of rows and the pairs of packed columns, in whole chunks."""
        key = "pairs", rank
        if key not in self._known:
            xp, storage = self.storage.xp, self.storage
            to = {"dtype": xp.int32, "device": storage.device}
            packed = rank * (rank + 1) // 2
            first, last = xp.zeros((R - rank,), **to), xp.zeros((-packed % S,), **to)
            self._known[key] = tuple(
                xp.concat([xp.arange(rank, **to), first, xp.astype(pair, xp.int32), last])
                for pair in storage.pack(rank)
            )
        found: tuple[Array, Array] = self._known[key]
        return found

    def _numbers(self, loss: Loss) -> Array:
        """The numbers of the loss, of the view and of the scales."""
        if loss not in self._known:
            storage, view = self.storage, self.storage.view
            seven = (*self._code.formula_of(loss).numbers(loss), *(0.0,) * 7)[:7]
            shrink = (*self._shrink, 1.0, 1.0)[:2]
            constant, linear, quadratic, least = (
                (1.0, 0.0, 0.0, 0.0) if storage.scales is None else storage.scales.numbers
            )
            every = *seven, *shrink, view.limit, view.wild, least**4, constant, linear, quadratic
            self._known[loss] = storage.xp.asarray(
                every, dtype=storage.dtype, device=storage.device
            )
        return self._known[loss]

    # What a pass needs beside the data

    def _outer_rows(
        self, factors: Sequence[Array], roles: Roles, pairs: tuple[Array, Array], rank: int, R: int
    ) -> Array:
        """Products of the factor rows of the outer modes, then those of pairs of their columns."""
        xp, storage = self.storage.xp, self.storage
        one = xp.ones((1, rank), dtype=storage.dtype, device=storage.device)
        modes = [factors[m] for m in roles.outer]
        last = modes[-1] if modes else one
        first = khatri_rao(modes[:-1]).contiguous() if len(modes) > 1 else one
        count, width = first.shape[0] * last.shape[0], pairs[0].shape[0]
        found = xp.empty((count, width), dtype=storage.dtype, device=storage.device)
        block = 1024
        self._code.outer_rows[(-(-count * width // block),)](
            first, last, *pairs, found, count, last.shape[0], rank, width, R=R, BLOCK=block
        )
        return found

    def _beside(self, roles: Roles, asked: slice) -> _Beside:
        """Weights and scales, if there are any."""
        key = "beside", roles.own, asked.start, asked.stop
        if key not in self._known:
            self._known[key] = self._weights_and_scales(roles, asked)
        found: _Beside = self._known[key]
        return found

    def _weights_and_scales(self, roles: Roles, asked: slice) -> _Beside:
        storage, xp = self.storage, self.storage.xp
        weights, scales = storage.weights, storage.scales
        arrays: list[Any] = [None] * 11
        strides, signals = (0, 0, 0), 0
        flags = {
            "OUTER_WEIGHTED": weights is not None and weights.array is None,
            "WEIGHTED": weights is not None and weights.array is not None,
            "SCALED": scales is not None,
            "FLOORED": scales is not None and scales.numbers[3] > 0,
            "SIGNAL": scales is not None and bool(scales.held),
        }
        if weights is not None and weights.array is None:
            arrays[:3] = self._vectors(weights, roles, asked)
        elif weights is not None:
            whole = xp.broadcast_to(weights.array, storage.shape)
            if roles.turned:
                whole = whole.narrow(roles.own, asked.start, asked.stop - asked.start)
            steps = whole.stride()
            arrays[3:5] = whole, self._offsets(roles.outer, steps)
            strides = steps[roles.rows], steps[roles.tile], steps[roles.own]
        if scales is not None:
            rows, *others = self._vectors(scales.slabs, roles, asked)
            arrays[5:8] = rows * scales.unit, *others
        if scales is not None and scales.held:
            held = [xp.asarray(A, dtype=storage.dtype).contiguous() for A in scales.held]
            signals = _width(held)
            outer = khatri_rao([held[m] for m in roles.outer] or [xp.ones_like(held[0][:1, :])])
            if roles.turned:
                outer = xp.concat([outer, held[roles.own][asked, :]], axis=0)
            room = self._code.block_size(signals) - signals
            padding = xp.zeros((outer.shape[0], room), dtype=outer.dtype, device=storage.device)
            padded = xp.concat([outer, padding], axis=1)
            arrays[8:11] = held[roles.rows], padded.contiguous(), held[roles.tile]
        return _Beside(tuple(arrays), strides, signals, flags)

    def _vectors(
        self, weights: TileWeights | None, roles: Roles, asked: slice
    ) -> tuple[Array, Array, Array]:
        """Those of rows, of tiles, and of outer indices with the own ones after them."""
        xp, storage = self.storage.xp, self.storage

        def vector(mode: int) -> Array:
            found = None if weights is None else weights.vectors[mode]
            if found is not None:
                return xp.asarray(found, dtype=storage.dtype)
            return xp.ones((storage.shape[mode],), dtype=storage.dtype, device=storage.device)

        one = xp.ones((1,), dtype=storage.dtype, device=storage.device)
        outer = one
        for mode in roles.outer:
            outer = xp.reshape(outer[:, None] * vector(mode)[None, :], (-1,))
        if roles.turned:
            outer = xp.concat([outer, vector(roles.own)[asked]])
        return tuple(v.contiguous() for v in (vector(roles.rows), vector(roles.tile), outer))


@dataclass(frozen=True)
class _Beside:
    """What a kernel reads beside data and factors.

    Attributes
    ----------
    arrays : tuple
        Weights of rows, tiles and outer indices; of entries, and where those of outer indices
        begin; scales of rows, tiles and outer indices; the signal's rows, outer rows and tiles.
    strides : (row, tile, own) of the weights of entries
    signals : int
        The columns of the signal's factors.
    flags : which of them there are
    """

    arrays: tuple[Any, ...]
    strides: tuple[int, int, int]
    signals: int
    flags: dict[str, bool]


@dataclass(frozen=True)
class _Cut:
    """How the columns of a block of rows are shared among programs."""

    parts: int
    splits: int
    outer_each: int
    tiles_each: int

    @classmethod
    def of(cls, blocks: int, tiles: int, outer: int, most: int) -> _Cut:
        """Enough programs for a GPU, but no more than so many parts."""
        parts = max(1, min(PROGRAMS // blocks, most, tiles * outer))
        groups = min(tiles, parts)
        tiles_each = -(-tiles // groups)
        groups = -(-tiles // tiles_each)
        outer_each = -(-outer // max(1, min(outer, parts // groups)))
        splits = -(-outer // outer_each)
        return cls(groups * splits, splits, outer_each, tiles_each)


def _width(factors: Sequence[Array]) -> int:
    return int(factors[0].shape[1])


def _multiple(size: int) -> int:
    """The largest power of two up to 16 that divides a number."""
    return math.gcd(size, 16)
