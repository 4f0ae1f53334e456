# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The pass over listed entries.

Entries come in the order of the own mode's rows, so that the sums of each row are made in the
cache, `LINE_ENTRIES` entries at once. One compiled function does for all losses, with weights and
scales or without. Indices are unsigned and loops begin at 0: where an index might be negative, it
is looked at, and loops do not become vector instructions.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from robustcp.engines.passes.numba.intrinsics import address, call
from robustcp.engines.passes.numba.runtime import cached_jit
from robustcp.losses.numba_helpers import INLINE

#: Entries that are worked on at once: the products of their rows stay in the nearest cache.
LINE_ENTRIES = 256


class LineCalls(NamedTuple):
    """Addresses of the functions of a line (see `tiles.Functions`) and of the loss's parameters."""

    loss: int
    preparation: int
    restoration: int
    parameters: int


class EntryAddresses(NamedTuple):
    """Where all entries, their weights, inverse scales and sides are; 0 for none."""

    data: int
    weights: int
    scales: int
    sides: int


class EntryOrder(NamedTuple):
    """The order of the entries: by rows of the own mode.

    Attributes
    ----------
    indices : array (order - 1, count)
        Their indices in the other modes.
    offsets : array (order - 1,)
        The row of the stacked other factors with which each mode begins.
    starts : array
        The first entry of each row of the own mode, and the number of entries.
    """

    indices: Any
    offsets: Any
    starts: Any


class Cut(NamedTuple):
    """Entries first to last, of which the first one is in row `row` of the own mode.

    The sums of the rows begin with row `first_row`.
    """

    first: int
    last: int
    row: int
    first_row: int


@njit(**INLINE)
def _gather_products(at, begins, first, count, rows, K):
    """K = products of the rows of entries from `first` on, a line for each component.

    Factors are in one array: that of mode m of `at` begins at row begins[m].
    """
    for r in range(rows.shape[1]):
        if at.shape[0] == 1:
            for j in range(np.uint64(count)):
                K[r, j] = rows[at[0, first + j], r]
        else:
            begin = np.uint64(begins[1])
            for j in range(np.uint64(count)):
                K[r, j] = rows[at[0, first + j], r] * rows[begin + at[1, first + j], r]
        for m in range(2, at.shape[0]):
            begin = np.uint64(begins[m])
            for j in range(np.uint64(count)):
                K[r, j] *= rows[begin + at[m, first + j], r]


@njit(**INLINE)
def _fill_model(starts, begin, count, row, own, K, model):
    """The model of the entries from `begin` on; returns the row of the last one.

    K holds the products of the other factors' rows, `row` is that of the first entry or before.
    """
    k, i = 0, row
    while k < count:
        while starts[i + 1] <= begin + k:
            i += 1
        end = min(starts[i + 1] - begin, count)
        for r in range(own.shape[1]):
            c = own[i, r]
            if r == 0:
                for j in range(np.uint64(k), np.uint64(end)):
                    model[j] = c * K[r, j]
            else:
                for j in range(np.uint64(k), np.uint64(end)):
                    model[j] += c * K[r, j]
        k = end
    return i


@cached_jit
def coordinate_pass(calls, entries, cut, order, own, others, edge, gradient, gram):
    """Add what some entries give to the normal equations of some rows of a mode.

    `own` is the factor of that mode, `others` the stack of all others. What belongs to the row of
    the first entry is added to `edge`, gradient and Gram matrix in a line, since entries before may
    belong to it too. Returns the sum of the values; with an empty `gram` that is all.
    """
    indices, offsets, starts = order.indices, order.offsets, order.starts
    first, last, row, low = cut.first, cut.last, cut.row, cut.first_row
    rank, packed, real, width = others.shape[1], gram.shape[1], others.dtype, others.itemsize
    K, zero = np.empty((rank, LINE_ENTRIES), real), real.type(0)
    slope, curvature = np.empty(LINE_ENTRIES, real), np.empty(LINE_ENTRIES, real)
    scaled = np.empty(LINE_ENTRIES, real)
    current_row, total = row, 0.0
    for begin in range(first, last, LINE_ENTRIES):
        count = min(LINE_ENTRIES, last - begin)
        _gather_products(indices, offsets, np.uint64(begin), count, others, K)
        last_row = _fill_model(starts, begin, count, current_row, own, K, slope)
        data, h = entries.data + begin * width, entries.scales + begin * width
        if calls.preparation != 0:
            call(calls.preparation, (data, slope, scaled, h, 0, count))
            data = address(scaled)
        lines_read = calls.parameters, entries.weights + begin * width, entries.sides + begin
        total += call(calls.loss, (data, slope, curvature, *lines_read, count))
        k, i, current_row = 0, current_row, last_row
        if packed == 0:
            continue
        if calls.restoration != 0:
            call(calls.restoration, (data, slope, curvature, h, 0, count))
        while k < count:
            while starts[i + 1] <= begin + k:
                i += 1
            end = min(starts[i + 1] - begin, count)
            p = rank
            for a in range(rank):
                sum_ = zero
                for j in range(np.uint64(k), np.uint64(end)):
                    sum_ += slope[j] * K[a, j]
                if i == row:
                    edge[a] += sum_
                else:
                    gradient[i - low, a] += sum_
                for b in range(a, rank):
                    sum_ = zero
                    for j in range(np.uint64(k), np.uint64(end)):
                        sum_ += curvature[j] * K[a, j] * K[b, j]
                    if i == row:
                        edge[p] += sum_
                    else:
                        gram[i - low, p - rank] += sum_
                    p += 1
            k = end
    return total
