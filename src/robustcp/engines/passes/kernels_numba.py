# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What Numba compiles: passes, lines of entries by the formula of a loss, small linear algebra.

Compiling takes longer than many a fit. So what most fits need is C functions of numbers and
addresses (see `CompiledFunction`): each is compiled once for a type of factors, for all losses,
types of data, weights and scales, and calls the others by their addresses. If it called them by
name, they would be compiled again as a part of it. Pointers have little code to them beside arrays,
where each slice and each new array takes a while; and to assign to a slice would compile the making
of the message for shapes that do not agree. An array of which only the address is used must be
given to `_keep_alive` after that, or it is freed before.
"""

import ctypes
import gc
import logging
import math
import os
import time
import types
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit
from numba import types as numba_types
from numba.core import cgutils, event
from numba.core.caching import FunctionCache, NullCache
from numba.core.ccallback import CFunc
from numba.core.errors import NumbaError
from numba.extending import get_cython_function_address, intrinsic
from numba.np.numpy_support import from_dtype
from numba.np.unsafe.ndarray import to_fixed_tuple

from robustcp._util.progress import log_notice
from robustcp.losses import numba_functions
from robustcp.losses.formula import bind
from robustcp.losses.numba_functions import FAST_MATH, INLINE, OPTIONS, exp, inverse_sqrt, log

LOG = logging.getLogger(__name__)

#: Entries that are standardized at once, so that the first level of the cache holds them.
_STANDARDIZED_ENTRIES = 1 << 10
#: How BLAS is told whether a matrix is to be transposed.
_N, _T = ord("N"), ord("T")
#: Where the first rows of modes are in the frame of `_sweep`.
_FRAME_MODE_OFFSETS = 17
#: A variance that stands for none.
_MIN_VARIANCE = 1e-80


#: What had to be compiled in this process, by name.
COMPILED_NAMES: list[str] = []
_COMPILING_MESSAGE = (
    "robustcp compiles code for this machine, which takes some seconds; %s "
    "(ahead of time: python -m robustcp.warm)"
)


def _report_compiling(name, folder):
    """Say so, the first time: as a warning, since people see nothing less, but by logging.

    Nothing is wrong, so it is none of Python's warnings, which some turn into errors.
    """
    if not COMPILED_NAMES:
        location = f"it is kept in {folder}" if folder else "there is no folder to keep it in"
        log_notice(LOG, _COMPILING_MESSAGE, location)
    COMPILED_NAMES.append(name)


class _CompileClock(event.Listener):  # type: ignore[misc]
    """The seconds in which Numba compiled something."""

    def __init__(self):
        self.seconds, self._depth, self._since = 0.0, 0, 0.0

    def on_start(self, _):
        if not self._depth:
            self._since = time.perf_counter()
        self._depth += 1

    def on_end(self, _):
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._since


#: Of this process.
COMPILE_CLOCK = _CompileClock()
event.register("numba:compiler_lock", COMPILE_CLOCK)


class _CacheLocation(FunctionCache._impl_class):  # type: ignore[misc]
    """Where compiled code is kept: in the user's cache, not in the package, which pip removes."""

    _locator_classes = [  # noqa: RUF012
        one
        for one in FunctionCache._impl_class._locator_classes
        if not one.__name__.strip("_").startswith("InTree")
    ]


class _DiskCache(FunctionCache):  # type: ignore[misc]
    """Compiled code on disk; a damaged file is emptied and written anew, not an error.

    It is compiled anew when the file of the function changed, or one of its further sources.
    """

    _impl_class = _CacheLocation

    def __init__(self, function, sources=()):
        super().__init__(function)
        ages = [(file.st_mtime, file.st_size) for file in map(os.stat, sources)]
        self._cache_file._source_stamp = (self._cache_file._source_stamp, *ages)

    def load_overload(self, sig, target_context):
        overload = None
        try:
            overload = super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling a damaged file raises
            with suppress(Exception):
                self.flush()
        if overload is None:
            _report_compiling(self._py_func.__qualname__, self.cache_path)
        return overload

    def save_overload(self, sig, data):
        with suppress(Exception):  # a full or read-only disk
            super().save_overload(sig, data)


class _NoCache(NullCache):  # type: ignore[misc]
    """Where there is no folder for it."""

    def __init__(self, function):
        self._name = function.__qualname__

    def load_overload(self, sig, target_context):
        _report_compiling(self._name, None)


def _add_cache(compiled, function, sources=()):
    """The same, kept on disk where there is a place for it."""
    compiled._cache = _NoCache(function)
    with suppress(RuntimeError, OSError, NumbaError):
        compiled._cache = _DiskCache(function, sources)
    return compiled


def _ignore_literal_types(dispatcher):
    """The same, compiled for types alone: not for each number that is written in a call."""
    resolve = dispatcher.get_call_template

    def resolve_unliteral(arguments, named):
        named = {name: numba_types.unliteral(kind) for name, kind in named.items()}
        return resolve(tuple(map(numba_types.unliteral, arguments)), named)

    dispatcher.get_call_template = resolve_unliteral
    return dispatcher


def cache_folder():
    """Where compiled code is kept; None for nowhere."""
    return collapse_lines._cache.cache_path


def _cached_jit(function):
    """Compiled, without Python's lock, and kept on disk."""
    dispatcher = njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)(function)
    return _ignore_literal_types(_add_cache(dispatcher, function))


def _internal_jit(function):
    """Compiled, for compiled code alone."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _ignore_literal_types(njit(**wrappers, **OPTIONS)(function))


@intrinsic
def _address(typing_context, array):
    """Where the memory of an array begins, or what a pointer points to."""

    def code(context, builder, signature, arguments):
        kind, data = signature.args[0], arguments[0]
        if isinstance(kind, numba_types.Array):
            data = context.make_array(kind)(context, builder, data).data
        return builder.ptrtoint(data, context.get_value_type(numba_types.intp))

    return numba_types.intp(array), code


@intrinsic
def _keep_alive(typing_context, array):
    """Nothing; but an array that was looked at by its address alone is not freed before."""
    return numba_types.void(array), lambda context, *_: context.get_dummy_value()


@intrinsic
def _or_zero(typing_context, condition, value):
    """The value where a condition holds, else 0: for vectors, where a branch would not do."""

    def code(context, builder, signature, arguments):
        zero = ir.Constant(arguments[1].type, 0.0)
        return builder.select(arguments[0], arguments[1], zero)

    return value(numba_types.boolean, value), code


@intrinsic
def _pointer(typing_context, address, like):
    """What is at an address, of the type that a pointer or an array has."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return numba_types.CPointer(like.dtype)(numba_types.intp, like), code


@intrinsic
def _call_line(typing_context, function, x, s, w, numbers, weights, count):
    """What the function at an address makes of a line, given where all is; see `_compile_line`."""
    return _address_call(7)


@intrinsic
def _call_tile(
    typing_context,
    function,
    frame,
    row,
    column,
    rows,
    columns,
    low,
    count,
    inner,
    rank,
    packed,
    left,
    own,
    right,
    K,
    gradient,
    gram,
):
    """What the function at an address makes of a tile; see `_rows_tile`."""
    return _address_call(17)


@intrinsic
def _call_solver(
    typing_context, function, gram, gradient, rows, numbers, shared, first, last, rank, new
):
    """The function at an address that solves for rows; see `_solve_rows`."""
    return _address_call(10)


def _address_call(count):
    """A call of the function at an address, with numbers; it returns a float."""

    def code(context, builder, signature, arguments):
        number = context.get_value_type(numba_types.intp)
        kind = ir.FunctionType(ir.DoubleType(), [number] * (count - 1))
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return numba_types.float64(*[numba_types.intp] * count), code


@intrinsic
def _gemm(typing_context, function, turn_a, turn_b, m, n, k, a, lda, b, ldb, beta, c, ldc):
    """c = beta c + a b by the function at an address, BLAS's gemm; see there.

    It counts in the order of Fortran, and so sees the transposes of the matrices here: for
    C = A B with m rows, n columns and k in between, b comes first and n before m.
    """

    def code(context, builder, signature, arguments):
        def stack_address(value):
            slot = cgutils.alloca_once_value(builder, value)
            return builder.ptrtoint(slot, number)

        number = context.get_value_type(numba_types.intp)
        call, turn_a, turn_b, m, n, k, a, lda, b, ldb, beta, c, ldc = arguments
        one = context.get_constant(signature.args[10], 1)
        addresses = [
            stack_address(turn_a),
            stack_address(turn_b),
            stack_address(m),
            stack_address(n),
            stack_address(k),
            stack_address(one),
        ]
        addresses += [
            a,
            stack_address(lda),
            b,
            stack_address(ldb),
            stack_address(beta),
            c,
            stack_address(ldc),
        ]
        kind = ir.FunctionType(ir.VoidType(), [number] * 13)
        builder.call(builder.inttoptr(call, kind.as_pointer()), addresses)
        return context.get_dummy_value()

    # In 64 bits, of which BLAS may read the lower half, by what its integers are.
    integers = [numba_types.int64] * 10
    return numba_types.void(*integers, beta, *integers[:2]), code


@_internal_jit
def _pair_products(U, size, rank, first, count, S):
    """The products of pairs of columns, packed as in `robustcp.engines.normal_equations`, into S.

    Of so many rows of U from the first on; after its last comes row 0 again.
    """
    p = 0
    for i in range(count):
        k = (first + i) % size * rank
        for a in range(rank):
            for b in range(a, rank):
                S[p + b - a] = U[k + a] * U[k + b]
            p += rank - a


@_internal_jit
def _khatri_rao_lines(first, lines, rank, left, own, count, right, inner, U):
    """Lines of one side's Khatri-Rao product, left x own x right, from the first on."""
    q, i, p = first % inner, (first // inner) % count, first // (inner * count)
    for k in range(lines):
        for r in range(rank):
            U[k * rank + r] = left[p * rank + r] * right[q * rank + r] * own[i * rank + r]
        q += 1
        if q == inner:
            q, i = 0, i + 1
            if i == count:
                i, p = 0, p + 1


@_internal_jit
def _accumulate_lines(
    begin,
    first,
    lines,
    rank,
    packed,
    Y,
    Z,
    low,
    left,
    beside,
    count,
    right,
    inner,
    pairs,
    gradient,
    gram,
):
    """Add the products of a side's lines to the rows of its own mode.

    The lines begin at `first`; `pairs` are the products of right's columns, from the row of line
    `begin` on; `beside` is a line for those of left's.
    """
    q, i, p = first % inner, (first // inner) % count, first // (inner * count)
    pair_row, left_row = (first - begin) % inner, -1
    for k in range(lines):
        if p != left_row:
            _pair_products(left, p + 1, rank, p, 1, beside)
            left_row = p
        g, G = (i - low) * rank, (i - low) * packed
        for a in range(rank):
            gradient[g + a] += left[p * rank + a] * right[q * rank + a] * Y[k * rank + a]
        for a in range(packed):
            gram[G + a] += beside[a] * pairs[pair_row * packed + a] * Z[k * packed + a]
        q, pair_row = q + 1, pair_row + 1
        if pair_row == inner:
            pair_row = 0
        if q == inner:
            q, i = 0, i + 1
            if i == count:
                i, p = 0, p + 1


@_internal_jit
def _majorize_rows(frame, row, rows, columns, width, s, w, y):
    """The loss on some rows of a tile: one at a time, or as one line if they follow each other.

    Slopes and curvatures go to s and w; y is a line for data that is not read as it is. With
    anything to do beside the loss, lines are short.
    """
    x_step, h, h_step = frame[6], frame[9], frame[10]
    lines = 1
    if x_step == columns * frame[7] and (h == 0 or h_step == columns * width):
        lines = rows if frame[1] == 0 else max(1, min(rows, _STANDARDIZED_ENTRIES // columns))
    total = 0.0
    for i in range(0, rows, lines):
        size, offset = min(lines, rows - i) * columns, i * columns * width
        data, u = frame[5] + (row + i) * x_step, h + (row + i) * h_step
        if frame[1] != 0:  # read here: if it were known before, there would be a loop for each case
            _call_line(frame[1], data, s + offset, y, u, 0, size)
            data = y
        weight = frame[8] + (row + i) * columns * width
        total += _call_line(frame[0], data, s + offset, w + offset, frame[4], weight, size)
        if frame[2] != 0:
            _call_line(frame[2], data, s + offset, w + offset, u, 0, size)
    return total


def _rows_tile(
    frame,
    row,
    column,
    rows,
    columns,
    low,
    count,
    inner,
    rank,
    packed,
    left,
    own,
    right,
    K,
    gradient,
    gram,
):
    """Add a tile's part of the normal equations of a mode among those of the rows.

    The tile is [row : row + rows, column : column + columns] of the matrix. Rows of the matrix run
    over left x own x right, columns over K's rows; own has `count` rows, right `inner`. `gradient`
    and `gram` begin at row `low` of the own mode. Returns the sum of the values; with `packed`,
    the columns of `gram`, 0 that is all.

    frame : 12 int
        Addresses, and sizes in bytes, so that no type of data is compiled apart.
        0-2: the loss of a line; what is done to a line before and after it, 0 for nothing: see
        `Formula.line_address`, `line_preparation` and `line_restoration`. 3: BLAS's gemm. 4: where
        the parameters of the loss are. 5-7: where the data of the tile begins; from row to row;
        from entry to entry. 8: where the weights of its entries begin, in one line; not looked at
        by a loss without. 9-10: where its inverse scales begin, 0 for none; from row to row.
        11: how many entries are done at once, so that nothing leaves the cache.
    """
    real = carray(K, 1).dtype
    gemm, zero, step = frame[3], real.type(0), max(1, min(rows, frame[11] // columns))
    right_rows, line = min(inner, rows) if packed else 0, max(columns, _STANDARDIZED_ENTRIES)
    entries, pair_columns = step * columns, columns if packed else 0
    work = np.empty(
        2 * entries + line + step * (2 * rank + packed) + (pair_columns + right_rows + 1) * packed,
        real,
    )
    width = work.itemsize
    s, w = _address(work), _address(work) + entries * width
    y = w + entries * width
    u = y + line * width
    v = u + step * rank * width
    z = v + step * rank * width
    left_pairs = z + step * packed * width
    pairs = left_pairs + packed * width
    S = pairs + right_rows * packed * width
    k = _address(K) + column * rank * width
    if packed:
        _pair_products(_pointer(k, K), columns, rank, 0, columns, _pointer(S, K))
        _pair_products(right, inner, rank, row, right_rows, _pointer(pairs, K))
    total = 0.0
    for a in range(0, rows, step):
        size = min(step, rows - a)
        _khatri_rao_lines(row + a, size, rank, left, own, count, right, inner, _pointer(u, K))
        _gemm(gemm, _T, _N, columns, size, rank, k, rank, u, rank, zero, s, columns)
        total += _majorize_rows(frame, a, size, columns, width, s, w, y)
        if packed:
            _gemm(gemm, _N, _N, rank, size, columns, k, rank, s, columns, zero, v, rank)
            _gemm(gemm, _N, _N, packed, size, columns, S, packed, w, columns, zero, z, packed)
            _accumulate_lines(
                row,
                row + a,
                size,
                rank,
                packed,
                _pointer(v, K),
                _pointer(z, K),
                low,
                left,
                _pointer(left_pairs, K),
                count,
                right,
                inner,
                _pointer(pairs, K),
                gradient,
                gram,
            )
    _keep_alive(work)
    return total


def _columns_tile(
    frame,
    row,
    column,
    rows,
    columns,
    low,
    count,
    inner,
    rank,
    packed,
    left,
    own,
    right,
    K,
    gradient,
    gram,
):
    """The same for a mode among those of the columns; rows of the matrix run over K's rows."""
    real = carray(K, 1).dtype
    gemm, zero, one = frame[3], real.type(0), real.type(1)
    step = max(1, min(rows, frame[11] // columns))
    right_rows, line, entries = (
        min(inner, columns),
        max(columns, _STANDARDIZED_ENTRIES),
        step * columns,
    )
    work = np.empty(
        2 * entries + line + columns * (2 * rank + packed) + (step + right_rows + 1) * packed, real
    )
    width = work.itemsize
    s, w = _address(work), _address(work) + entries * width
    y = w + entries * width
    u = y + line * width
    v = u + columns * rank * width
    z = v + columns * rank * width
    left_pairs = z + columns * packed * width
    pairs = left_pairs + packed * width
    S = pairs + right_rows * packed * width
    _pair_products(right, inner, rank, column, right_rows, _pointer(pairs, K))
    _khatri_rao_lines(column, columns, rank, left, own, count, right, inner, _pointer(u, K))
    total = 0.0
    for a in range(0, rows, step):
        size, add = min(step, rows - a), one if a > 0 else zero
        k = _address(K) + (row + a) * rank * width
        _gemm(gemm, _T, _N, columns, size, rank, u, rank, k, rank, zero, s, columns)
        total += _majorize_rows(frame, a, size, columns, width, s, w, y)
        _pair_products(_pointer(k, K), size, rank, 0, size, _pointer(S, K))
        _gemm(gemm, _N, _T, rank, columns, size, k, rank, s, columns, add, v, rank)
        _gemm(gemm, _N, _T, packed, columns, size, S, packed, w, columns, add, z, packed)
    _accumulate_lines(
        column,
        column,
        columns,
        rank,
        packed,
        _pointer(v, K),
        _pointer(z, K),
        low,
        left,
        _pointer(left_pairs, K),
        count,
        right,
        inner,
        _pointer(pairs, K),
        gradient,
        gram,
    )
    _keep_alive(work)
    return total


def _dispatch_tile(given):
    """`_rows_tile` or the like: its address, what follows the frame there, and the frame.

    One array instead of 16 numbers, each of which takes Python a while.
    """
    frame = _address(given) + 16 * 8
    return _call_tile(
        given[0],
        frame,
        given[1],
        given[2],
        given[3],
        given[4],
        given[5],
        given[6],
        given[7],
        given[8],
        given[9],
        given[10],
        given[11],
        given[12],
        given[13],
        given[14],
        given[15],
    )


@njit(**INLINE)
def _apply_floor(h, least):
    """The inverse of a scale with a smooth floor, from its inverse without."""
    q = min(h * least, 1e60)
    q = q * q
    root = inverse_sqrt(1.0 + q * q)
    return h * math.sqrt(root)


def _inverse_scales(gemm, rows, columns, rank, outer, h, down, across, left, right, numbers):
    """1 / (u^4 + least^4)^(1/4) of a block, into h, with u^2 the variance of each entry.

    That is constant + linear |m| + quadratic m^2 with m = left right', without columns just 1;
    divided by the square of the outer product of `down` and `across`, or of what h holds.
    """
    constant, linear, quadratic, floor = numbers[0], numbers[1], numbers[2], numbers[3]
    real = carray(h, 1).dtype
    zero, step = real.type(0), max(1, min(rows, 4 * _STANDARDIZED_ENTRIES // columns))
    m = np.empty(step * columns if rank else 0, real)
    for a in range(0, rows, step):
        size, offset = min(step, rows - a), a * columns
        if outer:
            for i in range(size):
                for j in range(columns):
                    h[offset + i * columns + j] = down[a + i] * across[j]
        if rank:
            left_address = _address(left) + a * rank * m.itemsize
            _gemm(
                gemm,
                _T,
                _N,
                columns,
                size,
                rank,
                _address(right),
                rank,
                left_address,
                rank,
                zero,
                _address(m),
                columns,
            )
            for j in range(size * columns):
                t = abs(np.float64(m[j]))
                h[offset + j] *= inverse_sqrt(
                    max((quadratic * t + linear) * t + constant, _MIN_VARIANCE)
                )
        if floor > 0:
            for j in range(size * columns):
                h[offset + j] = _apply_floor(np.float64(h[offset + j]), floor)
    return 0.0


@njit(**INLINE)
def _factorize(L, rank):
    """Cholesky's factor in the lower triangle, with the inverses of its diagonal.

    Where rounding makes a pivot negative, 0 stands for its inverse.
    """
    for j in range(rank):
        for m in range(j):
            for k in range(j, rank):
                L[k * rank + j] -= L[k * rank + m] * L[j * rank + m]
        pivot = L[j * rank + j]
        root = 1 / math.sqrt(pivot) if pivot > 0 else pivot * 0
        for k in range(j + 1, rank):
            L[k * rank + j] *= root
        L[j * rank + j] = root


@njit(**INLINE)
def _substitute(L, b, rank):
    """(L L')^-1 b in place, see `_factorize`."""
    for j in range(rank):
        for k in range(j):
            b[j] -= L[j * rank + k] * b[k]
        b[j] *= L[j * rank + j]
    for j in range(rank - 1, -1, -1):
        for k in range(j + 1, rank):
            b[j] -= L[k * rank + j] * b[k]
        b[j] *= L[j * rank + j]


def _solve_rows(gram, gradient, rows, numbers, shared, first, last, rank, new):
    """Each row's step, (gram + lift diag(gram) + mu I)^-1 (gradient - mu row), added to the row.

    For rows first to last, into `new`, which may be `rows`; numbers are mu and lift. By Cholesky's
    factorization of the packed triangles, or one that all rows share; where rounding makes a pivot
    negative its entry stays as it is. So does a row without data.
    """
    mu, lift, packed = numbers[0], numbers[1], 0 if shared else rank * (rank + 1) // 2
    work = np.empty(rank * rank + rank, carray(gram, 1).dtype)
    step_address = _address(work) + rank * rank * work.itemsize
    L, b = _pointer(_address(work), work), _pointer(step_address, work)
    next_factorization, has_data = first, mu * 0  # the factors are those of rows before
    for i in range(first, last):
        if i == next_factorization:
            p, has_data = i * packed, mu * 0
            for j in range(rank):
                if gram[p] != 0:
                    has_data = mu * 0 + 1
                for k in range(j, rank):
                    L[k * rank + j] = gram[p]
                    p += 1
                L[j * rank + j] += lift * L[j * rank + j] + mu
            _factorize(L, rank)
            next_factorization = last if shared else i + 1
        for j in range(rank):
            b[j] = has_data * (gradient[i * rank + j] - mu * rows[i * rank + j])
        _substitute(L, b, rank)
        for j in range(rank):
            new[i * rank + j] = rows[i * rank + j] + b[j]
    _keep_alive(work)
    return 0.0


def _solve_nonnegative_rows(gram, gradient, rows, numbers, shared, first, last, rank, new):
    """As `_solve_rows`, with no negative entries: by block principal pivoting; see `Algebra`."""
    packed, mu, lift = rank * (rank + 1) // 2, numbers[0], numbers[1]
    work, flags = (
        np.empty((2 * rank + 2) * rank, carray(gram, 1).dtype),
        np.empty(2 * rank, np.int8),
    )
    at, width = _address(work), work.itemsize
    G, L = _pointer(at, work), _pointer(at + rank * rank * width, work)
    b = _pointer(at + 2 * rank * rank * width, work)
    u = _pointer(at + (2 * rank + 1) * rank * width, work)
    positive = _pointer(_address(flags), flags)
    violated = _pointer(_address(flags) + rank, flags)
    for i in range(first, last):
        p, has_data = 0 if shared else i * packed, shared != 0
        for j in range(rank):
            for k in range(j, rank):
                G[j * rank + k] = G[k * rank + j] = gram[p]
                p += 1
            has_data = has_data or G[j * rank + j] != 0
            raised = lift * G[j * rank + j] + mu
            G[j * rank + j] += raised if G[j * rank + j] + raised > 0 else 1
        size = mu * 0
        for j in range(rank):
            b[j] = gradient[i * rank + j] - mu * rows[i * rank + j]
            for k in range(rank):
                b[j] += G[j * rank + k] * rows[i * rank + k]
            size = max(size, abs(b[j]))
            positive[j] = rows[i * rank + j] > 0
        fewest, patience = rank + 1, 3
        for _ in range(10 + 4 * rank * rank):
            for j in range(rank):
                u[j] = b[j] if positive[j] else mu * 0
                for k in range(rank):
                    within = positive[j] and positive[k]
                    L[j * rank + k] = G[j * rank + k] if within else mu * 0 + (j == k)
            _factorize(L, rank)
            _substitute(L, u, rank)
            violations, at = 0, 0
            for j in range(rank):
                y = -b[j]
                for k in range(rank):
                    y += G[j * rank + k] * u[k]
                violated[j] = u[j] < 0 if positive[j] else y < -2 * lift * size
                if violated[j]:
                    violations, at = violations + 1, j
            if violations == 0:
                break
            if violations < fewest:
                fewest, patience = violations, 3
            else:
                patience -= 1
            for j in range(rank):
                if violated[j] and (patience >= 0 or j == at):
                    positive[j] = 1 - positive[j]
        for j in range(rank):
            new[i * rank + j] = max(u[j], mu * 0) if has_data else rows[i * rank + j]
    _keep_alive(work)
    _keep_alive(flags)
    return 0.0


@_internal_jit
def _multiply_blocks(A, B, C, modes, rank):
    """C_n = A_n B_n, square matrices."""
    for i in range(modes * rank):
        B_n = i // rank * rank * rank
        for j in range(rank):
            C[i * rank + j] = 0.0
        for k in range(rank):
            for j in range(rank):
                C[i * rank + j] += A[i * rank + k] * B[B_n + k * rank + j]


def _joint_step(G, D, P, inverse, numbers, modes, rank, r, E, work):
    """`JointSystem.solved`: E from zero, r the right side to begin with; and the fall.

    Numbers are the damping and how precise it is to be; `work` has room for five such as r.
    """
    size, square = modes * rank * rank, rank * rank
    address, width = _address(work), 8 * size
    z, q, Gz = work, _pointer(address + width, work), _pointer(address + 2 * width, work)
    p, Gp = _pointer(address + 3 * width, work), _pointer(address + 4 * width, work)
    for k in range(size):
        p[k] = Gp[k] = 0.0
    decrease, rz, threshold = 0.0, 1.0, -1.0
    for _ in range(size):
        _multiply_blocks(r, inverse, z, modes, rank)
        _multiply_blocks(G, z, Gz, modes, rank)
        old, rz = rz, 0.0
        for k in range(size):
            rz += Gz[k] * r[k]
        if threshold < 0:
            threshold = numbers[1] * numbers[1] * rz
        if not rz > threshold:
            break
        for k in range(size):
            p[k] = z[k] + rz / old * p[k]
            Gp[k] = Gz[k] + rz / old * Gp[k]
        _multiply_blocks(p, D, q, modes, rank)
        curvature = 0.0
        for k in range(size):
            n, i, j = k // square, k // rank % rank, k % rank
            total = q[k] * (1 + numbers[0])
            for m in range(modes):
                total += P[(n * modes + m) * square + k % square] * Gp[m * square + j * rank + i]
            q[k] = total
            curvature += Gp[k] * total
        step = rz / curvature
        decrease += 0.5 * step * rz
        for k in range(size):
            E[k] += step * p[k]
            r[k] -= step * q[k]
    return decrease


@_internal_jit
def _khatri_rao(stack, begins, first, last):
    """The Khatri-Rao product of some of the factors that are stacked, the last one fastest."""
    rank, count = stack.shape[1], 1
    for m in range(first, last):
        count *= begins[m + 1] - begins[m]
    K = np.empty((count, rank), stack.dtype)
    for r in range(rank):
        K[0, r] = 1
    filled = 1
    for m in range(first, last):
        begin, size = begins[m], begins[m + 1] - begins[m]
        for i in range(filled - 1, -1, -1):  # from the end: what is overwritten was read before
            for j in range(size - 1, -1, -1):
                for r in range(rank):
                    K[i * size + j, r] = K[i, r] * stack[begin + j, r]
        filled *= size
    return K


@_internal_jit
def _fill_khatri_rao(stack, rank, frame, first, last, K):
    """The Khatri-Rao product of some modes' factors into K; returns how many lines it has."""
    lines = 1
    for r in range(rank):
        K[r] = 1
    for m in range(first, last):
        begin, size = (
            frame[_FRAME_MODE_OFFSETS + m],
            frame[_FRAME_MODE_OFFSETS + m + 1] - frame[_FRAME_MODE_OFFSETS + m],
        )
        for i in range(lines - 1, -1, -1):  # from the end: what is overwritten was read before
            for j in range(size - 1, -1, -1):
                for r in range(rank):
                    K[(i * size + j) * rank + r] = K[i * rank + r] * stack[(begin + j) * rank + r]
        lines *= size
    return lines


@_internal_jit
def _whole_matrix_equations(frame, n, rank, stack, gradient, gram, work):
    """The normal equations of mode n, from the whole matrix as one tile; see `_sweep`."""
    packed, split, width = rank * (rank + 1) // 2, frame[15], carray(stack, 1).itemsize
    begin, count = (
        frame[_FRAME_MODE_OFFSETS + n],
        frame[_FRAME_MODE_OFFSETS + n + 1] - frame[_FRAME_MODE_OFFSETS + n],
    )
    for j in range(count * rank):
        gradient[j] = 0
    for j in range(count * packed):
        gram[j] = 0
    own_rows = n < split
    first, last = (0, split) if own_rows else (split, frame[16])
    left = _address(work)
    before = _fill_khatri_rao(stack, rank, frame, first, n, work)
    right = left + before * rank * width
    inner = _fill_khatri_rao(stack, rank, frame, n + 1, last, _pointer(right, work))
    K = right + inner * rank * width
    first, last = (split, frame[16]) if own_rows else (0, split)
    other_lines, own_lines = (
        _fill_khatri_rao(stack, rank, frame, first, last, _pointer(K, work)),
        before * count * inner,
    )
    return _call_tile(
        frame[12] if own_rows else frame[13],
        _address(frame),
        0,
        0,
        own_lines if own_rows else other_lines,
        other_lines if own_rows else own_lines,
        0,
        count,
        inner,
        rank,
        packed,
        left,
        _address(stack) + begin * rank * width,
        right,
        K,
        _address(gradient),
        _address(gram),
    )


def _sweep(frame, turns, count, known, last, rank, numbers, stack, gradient, gram, work):
    """Update factors in `count` turns, each solved from its normal equations.

    Factors are stacked in storage order, and change in place. `gradient` and `gram` have room for
    the equations of every mode; if they are `known` they are those of the first turn. With `last`
    a mode and not -1 its equations come in the end, and their value is returned. `numbers` are
    those of `_solve_rows`; `work` holds Khatri-Rao products.

    frame : 17 + order + 1 int
        As in `_rows_tile`, for the whole matrix. 12-14: where `_rows_tile`, `_columns_tile` and
        `_solve_rows` are. 15-16: how many modes the rows run over; how many there are. From 17 on:
        the first rows of the modes in the stack, and the end.
    """
    total, width = 0.0, carray(stack, 1).itemsize
    for t in range(count):
        n = turns[t]
        if t > 0 or known == 0:
            _whole_matrix_equations(frame, n, rank, stack, gradient, gram, work)
        begin, rows = (
            frame[_FRAME_MODE_OFFSETS + n],
            frame[_FRAME_MODE_OFFSETS + n + 1] - frame[_FRAME_MODE_OFFSETS + n],
        )
        own = _address(stack) + begin * rank * width
        _call_solver(
            frame[14],
            _address(gram),
            _address(gradient),
            own,
            _address(numbers),
            0,
            0,
            rows,
            rank,
            own,
        )
    if last >= 0:
        total = _whole_matrix_equations(frame, last, rank, stack, gradient, gram, work)
    return total


@_internal_jit
def _contract_side(gemm, X, stack, begins, split, own_rows):
    """The matrix X times the Khatri-Rao product of the factors of its columns, or its rows."""
    (rows, columns), rank, zero = X.shape, stack.shape[1], X.dtype.type(0)
    if own_rows:
        K = _khatri_rao(stack, begins, split, begins.shape[0] - 1)
        lines = np.empty((rows, rank), X.dtype)
        x, k, y = _address(X), _address(K), _address(lines)
        _gemm(gemm, _N, _N, rank, rows, columns, k, rank, x, columns, zero, y, rank)
    else:
        K = _khatri_rao(stack, begins, 0, split)
        lines = np.empty((columns, rank), X.dtype)
        x, k, y = _address(X), _address(K), _address(lines)
        _gemm(gemm, _N, _T, rank, columns, rows, k, rank, x, columns, zero, y, rank)
    _keep_alive(K)
    return lines


@_internal_jit
def _least_squares_equations(lines, stack, begins, split, n, gradient, gram):
    """The normal equations of mode n for half the square, from the lines of its side.

    Returns the value without the half sum of squares of the data.
    """
    order, rank, value = begins.shape[0] - 1, stack.shape[1], 0.0
    product = np.ones((rank, rank), stack.dtype)
    for m in range(order):
        if m != n:
            for a in range(rank):
                for b in range(a, rank):
                    total = 0.0
                    for i in range(begins[m], begins[m + 1]):
                        total += stack[i, a] * stack[i, b]
                    product[a, b] *= total
    p = 0
    for a in range(rank):
        for b in range(a, rank):
            product[b, a] = product[a, b]
            gram[0, p] = product[a, b]
            p += 1
    first, last = (0, split) if n < split else (split, order)
    left = _khatri_rao(stack, begins, first, n)
    right = _khatri_rao(stack, begins, n + 1, last)
    begin, count = begins[n], begins[n + 1] - begins[n]
    projected = collapse_lines(lines, left, count, right)
    for i in range(count):
        for r in range(rank):
            fitted = 0.0
            for s in range(rank):
                fitted += stack[begin + i, s] * product[s, r]
            gradient[i, r] = projected[i, r] - fitted
            value += (0.5 * fitted - projected[i, r]) * stack[begin + i, r]
    return value


@_cached_jit
def least_squares_pass(gemm, X, split, begins, n, stack, gradient, gram):
    """The normal equations of mode n for half the square, from the whole matrix X.

    Stacked factors as in `_sweep`; returns the value without the half sum of squares of X.
    """
    lines = _contract_side(gemm, X, stack, begins, split, n < split)
    return _least_squares_equations(lines, stack, begins, split, n, gradient, gram)


@_cached_jit
def least_squares_sweep(gemm, solve, X, split, begins, turns, stack, gradient, gram, numbers):
    """As `sweep`, for half the square.

    What is contracted over one side of the matrix serves all modes of the other side, until a
    factor of it changes.
    """
    rank, new, contracted_side = (
        stack.shape[1],
        stack.copy(),
        0,
    )  # 1: of the rows' modes, 2: of the columns'
    lines = new
    for t in range(turns.shape[0]):
        n = turns[t]
        first, last, side = begins[n], begins[n + 1], 1 if n < split else 2
        if t > 0 or gram.shape[0] == 0:
            if contracted_side != side:
                lines, contracted_side = (
                    _contract_side(gemm, X, new, begins, split, n < split),
                    side,
                )
            gradient = np.empty((last - first, rank), new.dtype)
            gram = np.empty((1, rank * (rank + 1) // 2), new.dtype)
            _least_squares_equations(lines, new, begins, split, n, gradient, gram)
        own = _address(new) + first * rank * new.itemsize
        _call_solver(
            solve,
            _address(gram),
            _address(gradient),
            own,
            _address(numbers),
            last - first > 1,
            0,
            last - first,
            rank,
            own,
        )
        _keep_alive(gram)
        _keep_alive(gradient)
        if contracted_side != side:
            contracted_side = 0
    return new


@_cached_jit
def expected_equations(
    x, precisions, at, own, means, seconds, spread, freedom, gram, gradient, squares
):
    """Normal equations of the rows of one mode, if those of all modes are uncertain.

    For each entry the mean of (x - model)^2 goes to `squares`, and by it the entry is weighted as
    a t distribution would. `means` and `seconds` hold, for the rows of all modes, their means and
    packed second moments; `at` says which rows an entry has, and `own` which of them is solved for.
    """
    count, order = at.shape
    rank, pairs = means.shape[1], seconds.shape[1]
    first, product = np.empty(rank), np.empty(pairs)
    for i in range(count):
        for r in range(rank):
            first[r] = 1.0
        for q in range(pairs):
            product[q] = 1.0
        for m in range(order):
            if m != own:
                row = at[i, m]
                for r in range(rank):
                    first[r] *= means[row, r]
                for q in range(pairs):
                    product[q] *= seconds[row, q]
        row = at[i, own]
        mean = 0.0
        for r in range(rank):
            mean += first[r] * means[row, r]
        square, q = 0.0, 0
        for r in range(rank):
            square += product[q] * seconds[row, q]
            q += 1
            for _ in range(r + 1, rank):
                square += 2.0 * product[q] * seconds[row, q]
                q += 1
        square = max(x[i] * x[i] - 2.0 * x[i] * mean + square, 0.0)
        squares[i] = square
        p = precisions[i]
        if p == 0:
            continue
        weight = p * (freedom + 1.0) / (freedom * spread + square * p)
        for q in range(pairs):
            gram[row, q] += weight * product[q]
        weight *= x[i]
        for r in range(rank):
            gradient[row, r] += weight * first[r]


@njit(**INLINE)
def _prefetch(x):
    """Read a line from its beginning to its end: that brings it to the cache fastest by far."""
    total = x[0] * 0
    for k in range(x.shape[0]):
        total += x[k]
    return total


@_cached_jit
def contract_rows(X, K, lines, block):
    """lines = X K, by blocks that are in the cache when they are multiplied."""
    rows, columns = X.shape
    step, checksum = max(1, block // columns), 0.0
    small = rows <= 4 * step  # it may be in the cache already
    for a in range(0, rows, step):
        b = min(a + step, rows)
        if not small:
            checksum += _prefetch(X[a:b].reshape(-1))
        np.dot(X[a:b], K, lines[a:b])
    return checksum


@_cached_jit
def contract_columns(X, U, lines, block):
    """lines = X' U, by blocks that are in the cache when they are multiplied."""
    rows, columns = X.shape
    step, checksum = max(1, block // columns), 0.0
    small = rows <= 4 * step
    part = np.empty_like(lines)
    lines[:] = 0
    for a in range(0, rows, step):
        b = min(a + step, rows)
        if not small:
            checksum += _prefetch(X[a:b].reshape(-1))
        np.dot(X[a:b].T, U[a:b], part)
        lines += part
    return checksum


@_cached_jit
def collapse_lines(lines, left, count, right):
    """Contract the modes beside the own one away: the sum of left[p] right[q] lines[p, i, q]."""
    rank, inner = lines.shape[1], right.shape[0]
    rows = np.zeros((count, rank), lines.dtype)
    k = 0
    for p in range(left.shape[0]):
        for i in range(count):
            for q in range(inner):
                for r in range(rank):
                    rows[i, r] += left[p, r] * right[q, r] * lines[k, r]
                k += 1
    return rows


def _column_norms(A, first, last, columns, norms):
    """Euclidean norms of the columns of some rows, also of very large or small ones."""
    for j in range(columns):
        top = 0.0
        for i in range(first, last):
            top = max(top, abs(np.float64(A[i * columns + j])))
        total = 0.0
        for i in range(first, last):
            x = A[i * columns + j] / top if top > 0 else 0.0
            total += x * x
        norms[j] = top * math.sqrt(total)
    return 0.0


@njit(**INLINE)
def _shrink_effects(effects, entries, size, most, chance):
    """Effects from sums: means, shrunk by what may be chance, around 0; returns their spread.

    An estimate from more than `most` entries counts as one from so many for the mean of all.
    """
    total, count, weighted_sum, weights, true_variance, level, square = (
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    )
    for k in range(size):
        total += effects[k]
        count += entries[k]
    for k in range(size):
        effects[k] = effects[k] / entries[k] if entries[k] > 0 else total / count
        weight = min(max(entries[k], 1e-9), most)
        weighted_sum += weight * effects[k]
        weights += weight
    for k in range(size):
        effects[k] -= weighted_sum / weights
        true_variance += effects[k] * effects[k] - min(chance / max(entries[k], 1e-9), 1.0)
    true_variance = max(true_variance / size, 0.0)
    for k in range(size):
        effects[k] *= true_variance / (true_variance + chance / max(entries[k], 1e-9))
        level += effects[k] / size
    for k in range(size):
        effects[k] -= level
        square += effects[k] * effects[k] / size
    return math.sqrt(square)


def _main_effects(values, count, modes, at, sizes, counts, numbers, scales, z):
    """Scales of slabs, as `robustcp.noise` looks for them first; and z, values in their units.

    Magnitudes are not below a floor. Their logarithms are the sum of effects of slabs: of mode
    after mode these are the means of what is left, shrunk by what may be chance. Modes whose slabs
    hardly differ have none.

    at, sizes : for each mode, where the slabs of the values are, and how many slabs there are
    counts : how many values each slab has; of all modes, one after the other
    numbers : the floor; the variance of one logarithm by chance; how much slabs must differ; for
        each mode, see `_shrink_effects`, `most`
    scales : as counts, gets the scales

    Returns the sum of 2^n over the modes n that have scales.
    """
    mode_bits = 0.0
    for i in range(count):
        z[i] = log(max(abs(values[i]), numbers[0]))
    begin = 0
    for m in range(modes):
        index, effects = _pointer(at[m], at), _pointer(_address(scales) + 8 * begin, scales)
        entries, size = _pointer(_address(counts) + 8 * begin, counts), sizes[m]
        begin += size
        for k in range(size):
            effects[k] = 0.0
        for i in range(count):
            effects[index[i]] += z[i]
        if _shrink_effects(effects, entries, size, numbers[3 + m], numbers[1]) >= numbers[2]:
            mode_bits += 2.0**m
            for i in range(count):
                z[i] -= effects[index[i]]
        else:
            for k in range(size):
                effects[k] = 0.0
    for k in range(begin):
        scales[k] = exp(-scales[k])
    for i in range(count):
        z[i] = values[i]
    begin = 0
    for m in range(modes):
        index, effects = _pointer(at[m], at), _pointer(_address(scales) + 8 * begin, scales)
        begin += sizes[m]
        for i in range(count):
            z[i] *= effects[index[i]]
    for k in range(begin):
        scales[k] = 1 / scales[k]
    return mode_bits


@njit(**INLINE)
def _count_below(x, count, bound):
    """How many of some numbers in order are below a bound."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if x[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low


def _contaminated_scale_rounds(
    magnitudes, count, above, many_above, below, many_below, numbers, rounds, found
):
    """The rounds of `robustcp.noise.contaminated_normal`, of magnitudes in ascending order.

    above, below : the magnitudes of the residuals of either sign, in the same order
    numbers : where sigma begins; its least value; how many sigmas the core is; the mean square
        of a normal variable there; the three edges of the windows for outliers
    rounds : 2 for such without outliers taken off and then with, 1 for the latter alone
    found : gets sigma, and the densities above and below
    """
    sigma, min_sigma, cutoff, truncated_variance = numbers[0], numbers[1], numbers[2], numbers[3]
    high = low = 0.0
    for turn in range(2 - rounds, 2):
        for _ in range(100):
            if turn == 1:
                size = count * sigma
                near_width = size * (numbers[5] - numbers[4])
                far_width = size * (numbers[6] - numbers[5])
                a, b, c = sigma * numbers[4], sigma * numbers[5], sigma * numbers[6]
                middle = _count_below(above, many_above, b)
                first = (middle - _count_below(above, many_above, a)) / near_width
                high = min(first, (_count_below(above, many_above, c) - middle) / far_width)
                middle = _count_below(below, many_below, b)
                first = (middle - _count_below(below, many_below, a)) / near_width
                low = min(first, (_count_below(below, many_below, c) - middle) / far_width)
            within, square = _count_below(magnitudes, count, cutoff * sigma), 0.0
            for i in range(within):
                square += magnitudes[i] * magnitudes[i]
            mass = within / count - cutoff * sigma * (high + low)
            square = square / count - (cutoff * sigma) ** 3 / 3 * (high + low)
            if mass <= 0 or square <= 0:
                break
            new = max(math.sqrt(square / mass / truncated_variance), min_sigma)
            converged = abs(new - sigma) <= 1e-4 * sigma
            if converged:
                break
            sigma = new
    found[0], found[1], found[2] = sigma, high, low
    return 0.0


#: Of `_formula_line`, for `formula_line` to fill in: the formula, how many numbers it takes, and
#: whether entries have weights.
formula: Any = None
size, weighted = 0, False


def _formula_line(x, s, w, numbers, weights, count):
    """One line of entries: `s` holds the model and gets slopes, `w` curvatures; sums the values."""
    n = to_fixed_tuple(carray(numbers, size), size)
    total = 0.0
    for j in range(count):
        value, slope, curvature = formula(x[j] - s[j], n)
        observed = x[j] == x[j]
        value, slope = _or_zero(observed, value), _or_zero(observed, slope)
        curvature = _or_zero(observed, curvature)
        if weighted:
            value, slope, curvature = value * weights[j], slope * weights[j], curvature * weights[j]
        total += value
        s[j] = slope
        w[j] = curvature
    return total


def _convert(x, s, y, h, unused, count):
    """Data in the type of the factors."""
    for j in range(count):
        y[j] = x[j]
    return 0.0


def _standardize(x, s, y, h, unused, count):
    """Data and model in units of the scales: the model in place, the data in another line."""
    for j in range(count):
        y[j] = x[j] * h[j]
        s[j] *= h[j]
    return 0.0


def _restore_units(x, s, w, h, unused, count):
    """Slopes and curvatures in the units of the data again."""
    for j in range(count):
        s[j] *= h[j]
        w[j] *= h[j] * h[j]
    return 0.0


def _residuals(x, s, w, unused, r, count):
    """Residuals, where a loss would look for weights."""
    for j in range(count):
        r[j] = x[j] - s[j]
    return 0.0


def address(array):
    """Where the memory of an array begins, as `array.ctypes.data` in a quarter of the time.

    0 for an empty one.
    """
    try:
        return _address_of(_byte_of(array)) if array.size else 0
    except (TypeError, ValueError):  # read-only
        return array.ctypes.data


_address_of, _byte_of = ctypes.addressof, ctypes.c_char.from_buffer


@dataclass(frozen=True)
class CompiledFunction:
    """A compiled C function of numbers and pointers, which returns a float.

    Attributes
    ----------
    address : int
    run : function
        To call it from Python, with int in place of pointers.
    """

    address: int
    run: Any


#: All that was compiled: addresses do not keep code from being freed.
_loaded_functions: list[CFunc] = []


@contextmanager
def _paused_garbage_collection():
    """Compiling makes many objects that stay: to look among them for garbage takes a while."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compile_c_function(function, arguments, sources=(), fastmath=FAST_MATH):
    """A function compiled for some types of arguments, and kept on disk."""
    options = {**OPTIONS, "fastmath": fastmath}
    compiled = CFunc(function, (arguments, numba_types.float64), {}, options)
    _add_cache(compiled, function, sources)
    with _paused_garbage_collection():
        compiled.compile()
    _loaded_functions.append(compiled)
    address: Any = compiled.address
    prototype = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_int64] * len(arguments))
    return CompiledFunction(address, prototype(address))


def _pointer_types(*kinds):
    return tuple(numba_types.CPointer(from_dtype(np.dtype(kind))) for kind in kinds)


_INT = numba_types.intp
_INTS = numba_types.CPointer(_INT)


@cache
def rows_tile(real):
    """See `_rows_tile`."""
    return _compile_c_function(_rows_tile, (_INTS, *[_INT] * 9, *_pointer_types(*[real] * 6)))


@cache
def columns_tile(real):
    """See `_columns_tile`."""
    return _compile_c_function(_columns_tile, (_INTS, *[_INT] * 9, *_pointer_types(*[real] * 6)))


@cache
def dispatch_tile():
    """See `_dispatch_tile`."""
    return _compile_c_function(_dispatch_tile, (_INTS,))


@cache
def solve_rows(real):
    """See `_solve_rows`."""
    return _compile_c_function(
        _solve_rows, (*_pointer_types(*[real] * 4), *[_INT] * 4, *_pointer_types(real))
    )


@cache
def solve_nonnegative_rows(real):
    """See `_solve_nonnegative_rows`."""
    return _compile_c_function(
        _solve_nonnegative_rows, (*_pointer_types(*[real] * 4), *[_INT] * 4, *_pointer_types(real))
    )


@cache
def sweep(real):
    """See `_sweep`."""
    return _compile_c_function(_sweep, (_INTS, _INTS, *[_INT] * 4, *_pointer_types(*[real] * 5)))


@cache
def joint_step():
    """See `_joint_step`."""
    arrays = _pointer_types(*["float64"] * 8)
    return _compile_c_function(_joint_step, (*arrays[:5], _INT, _INT, *arrays[5:]))


@cache
def main_effects():
    """See `_main_effects`."""
    real = _pointer_types(*["float64"] * 5)
    return _compile_c_function(_main_effects, (real[0], _INT, _INT, _INTS, _INTS, *real[1:]))


@cache
def contaminated_scale_rounds():
    """See `_contaminated_scale_rounds`."""
    real = _pointer_types("float64")
    return _compile_c_function(_contaminated_scale_rounds, (*[*real, _INT] * 3, *real, _INT, *real))


@cache
def inverse_scales(real):
    """See `_inverse_scales`."""
    arrays = *_pointer_types(*[real] * 5), *_pointer_types(np.float64)
    return _compile_c_function(_inverse_scales, (*[_INT] * 5, *arrays))


@cache
def column_norms(real):
    """See `_column_norms`."""
    arguments = *_pointer_types(real), *[_INT] * 3, *_pointer_types(real)
    return _compile_c_function(_column_norms, arguments, fastmath=False)


def _compile_line(function, data, real, sources=()):
    """Where a function of a line is, for types of data and factors."""
    return _compile_c_function(
        function, (*_pointer_types(data, real, real, real, real), _INT), sources
    ).address


@cache
def line_preparation(data, real, scaled):
    """The line function for data of a type that a loss cannot read as it is; 0 for none."""
    if scaled:
        return _compile_line(_standardize, data, real)
    return 0 if data == real else _compile_line(_convert, data, real)


@cache
def line_restoration(real, scaled):
    """The line function that undoes the scales; 0 for none."""
    return _compile_line(_restore_units, real, real) if scaled else 0


@cache
def residuals(real):
    """The line function that has residuals in place of a loss."""
    return _compile_line(_residuals, real, real)


@cache
def gemm(real):
    """Where BLAS's product of matrices is."""
    name = "sgemm" if real == np.float32 else "dgemm"
    return get_cython_function_address("scipy.linalg.cython_blas", name)


@cache
def formula_line(function, real, weighted, size):
    """Where the line function of a loss is, given the function of its formula."""
    compiled = njit(**INLINE)(bind(function, vars(numba_functions)))
    bound = {**globals(), "formula": compiled, "size": size, "weighted": weighted}
    specialized = types.FunctionType(_formula_line.__code__, bound)
    name = f"{function.__module__.removeprefix('robustcp.losses.')}.{function.__qualname__}"
    specialized.__qualname__ = f"{'_weighted' * weighted}_formula_line_{name}"
    sources = function.__code__.co_filename, numba_functions.__file__
    return _compile_line(specialized, real, real, sources)
