# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Whole sweeps over small data, for losses with a formula: the matrix is one tile.

Factors are stacked in storage order.
"""

from robustcp.engines.passes.numba.intrinsics import address, call, shift
from robustcp.engines.passes.numba.runtime import (
    INTS,
    REALS,
    Struct,
    c_function,
    integer_fields,
    internal_jit,
)
from robustcp.engines.passes.numba.tiles import Entries, Functions, Tile


class Sweep(Struct):
    """What does not change between the sweeps of one loss.

    Attributes
    ----------
    functions, entries : as passes take them, for the whole matrix
    tile_pass, solve_rows : the addresses of these functions
    split, order : how many modes the rows of the matrix run over; how many there are
    """

    _fields_ = (
        ("functions", Functions),
        ("entries", Entries),
        *integer_fields("tile_pass solve_rows split order"),
    )


class Turns(Struct):
    """The updates of one sweep.

    Attributes
    ----------
    count : how many modes are updated
    known : 1 if the normal equations of the first one are given, else 0
    last : the mode whose normal equations are computed in the end, or -1
    rank : the columns of the factors
    tile : room for the tile of each pass
    """

    _fields_ = (*integer_fields("count known last rank"), ("tile", Tile))


@internal_jit
def khatri_rao(stack, rank, offsets, first, last, K):
    """The Khatri-Rao product of modes first to last, the last one fastest, into K.

    Returns how many lines it has.
    """
    lines = 1
    for r in range(rank):
        K[r] = 1
    for m in range(first, last):
        begin, size = offsets[m], offsets[m + 1] - offsets[m]
        for i in range(lines - 1, -1, -1):  # from the end: what is overwritten was read before
            for j in range(size - 1, -1, -1):
                for r in range(rank):
                    K[(i * size + j) * rank + r] = K[i * rank + r] * stack[(begin + j) * rank + r]
        lines *= size
    return lines


@internal_jit
def _whole_matrix_equations(sweep, tile, offsets, n, rank, stack, gradient, gram, work):
    """The normal equations of mode n; returns the sum of the values."""
    packed, split = rank * (rank + 1) // 2, sweep.split
    begin, count = offsets[n], offsets[n + 1] - offsets[n]
    for j in range(count * rank):
        gradient[j] = 0
    for j in range(count * packed):
        gram[j] = 0
    own_rows = n < split
    first, last = (0, split) if own_rows else (split, sweep.order)
    before = khatri_rao(stack, rank, offsets, first, n, work)
    right = shift(work, before * rank)
    inner = khatri_rao(stack, rank, offsets, n + 1, last, right)
    other = shift(right, inner * rank)
    first, last = (split, sweep.order) if own_rows else (0, split)
    other_lines = khatri_rao(stack, rank, offsets, first, last, other)
    own_lines = before * count * inner
    tile.rows = own_lines if own_rows else other_lines
    tile.columns = other_lines if own_rows else own_lines
    tile.own_rows, tile.count, tile.inner = own_rows, count, inner
    tile.rank, tile.packed = rank, packed
    tile.left, tile.own = address(work), address(shift(stack, begin * rank))
    tile.right, tile.other = address(right), address(other)
    return call(sweep.tile_pass, (sweep.functions, sweep.entries, tile, gradient, gram))


@c_function(Sweep, Turns, INTS, INTS, *[REALS] * 5)
def sweep(sweep, turns, modes, offsets, parameters, stack, gradient, gram, work):
    """Update the factors of some modes in turn, each solved from its normal equations, in place.

    `offsets` are the first rows of all modes in the stack, and its end. `gradient` and `gram` have
    room for the equations of every mode, and hold those of the first turn if they are known;
    afterwards those of the last mode, whose value is returned. Parameters are as for `solve_rows`;
    `work` holds Khatri-Rao products.
    """
    total, rank, tile = 0.0, turns.rank, turns.tile
    for t in range(turns.count):
        n = modes[t]
        if t > 0 or turns.known == 0:
            _whole_matrix_equations(sweep, tile, offsets, n, rank, stack, gradient, gram, work)
        rows, own = offsets[n + 1] - offsets[n], shift(stack, offsets[n] * rank)
        call(sweep.solve_rows, (gram, gradient, own, parameters, 0, 0, rows, rank, own))
    if turns.last >= 0:
        n = turns.last
        total = _whole_matrix_equations(sweep, tile, offsets, n, rank, stack, gradient, gram, work)
    return total
