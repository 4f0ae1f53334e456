# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What Numba compiles for listed entries: the pass.

Entries come in the order of the own mode's rows, so that the sums of each row are made in the
cache, `LINE_ENTRIES` entries at once. As in `kernels_numba`, one compiled function does for all
losses, with weights and scales or without. Indices are unsigned and loops begin at 0: where an
index might be negative, it is looked at, and loops do not become vector instructions.
"""

import numpy as np
from numba import njit

from robustcp.engines.passes.kernels_numba import _address, _cached_jit, _call_line
from robustcp.losses.numba_functions import INLINE

#: Entries that are worked on at once: the products of their rows stay in the nearest cache.
LINE_ENTRIES = 256


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


@_cached_jit
def coordinate_pass(
    calls,
    numbers,
    x,
    weights,
    scales,
    at,
    begins,
    starts,
    first,
    last,
    row,
    low,
    own,
    rows,
    edge,
    gradient,
    gram,
):
    """Add what entries first to last give to the normal equations of some rows of a mode.

    Entries are in the order of the own mode's rows: those of row i from starts[i] on. `at` has
    their indices in the other modes, whose factors are in `rows`, see `_gather_products`.
    `gradient` and `gram` begin at row `low`; what goes to `row`, that of the first entry, is added
    to `edge`, gradient and Gram matrix in a line, since entries before may belong to it too.
    Returns the sum of the values; with an empty `gram` that is all.

    `calls`, and the addresses of the loss's numbers, of the data, weights and inverse scales of
    all entries, are as in `kernels_numba._rows_tile`.
    """
    formula, before, after = calls
    rank, packed, real, width = rows.shape[1], gram.shape[1], rows.dtype, rows.itemsize
    K, zero = np.empty((rank, LINE_ENTRIES), real), rows.dtype.type(0)
    slope, curvature, scaled = (
        np.empty(LINE_ENTRIES, real),
        np.empty(LINE_ENTRIES, real),
        np.empty(LINE_ENTRIES, real),
    )
    current_row, total = row, 0.0
    for begin in range(first, last, LINE_ENTRIES):
        count = min(LINE_ENTRIES, last - begin)
        _gather_products(at, begins, np.uint64(begin), count, rows, K)
        k, i = 0, current_row
        while k < count:
            while starts[i + 1] <= begin + k:
                i += 1
            end = min(starts[i + 1] - begin, count)
            for r in range(rank):
                c = own[i, r]
                if r == 0:
                    for j in range(np.uint64(k), np.uint64(end)):
                        slope[j] = c * K[r, j]
                else:
                    for j in range(np.uint64(k), np.uint64(end)):
                        slope[j] += c * K[r, j]
            k = end
        data, h = x + begin * width, scales + begin * width
        if before != 0:
            _call_line(before, data, _address(slope), _address(scaled), h, 0, count)
            data = _address(scaled)
        total += _call_line(
            formula,
            data,
            _address(slope),
            _address(curvature),
            numbers,
            weights + begin * width,
            count,
        )
        k, i, current_row = 0, current_row, i
        if packed == 0:
            continue
        if after != 0:
            _call_line(after, data, _address(slope), _address(curvature), h, 0, count)
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
