# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Sweeps over small data: passes with the matrix as one tile, and runs of accelerated sweeps.

Factors are stacked in storage order.
"""

import math

import numpy as np

from robustcp.engines.passes.numba.intrinsics import address, call, pointer, shift
from robustcp.engines.passes.numba.runtime import (
    FLOATS,
    INT,
    INTS,
    REALS,
    Struct,
    c_function,
    integer_fields,
    internal_jit,
)
from robustcp.engines.passes.numba.tiles import Entries, Functions, Tile


class SweepData(Struct):
    """What does not change between the sweeps of a loss that has a formula.

    Attributes
    ----------
    functions, entries : as passes take them, for the whole matrix
    tile_pass : the address of this function
    split, order : how many modes the rows of the matrix run over; how many there are
    """

    _fields_ = (
        ("functions", Functions),
        ("entries", Entries),
        *integer_fields("tile_pass split order"),
    )


class Turns(Struct):
    """The updates of one sweep.

    Attributes
    ----------
    count : how many modes are updated
    known : 1 if the normal equations of the first one are given, else 0
    last : the mode whose normal equations are computed in the end, or -1
    rank : the columns of the factors
    contracted : the side of the matrix for which least squares holds the contraction, or 0
    ridges : where the ridges of all modes are, which a prior adds to the diagonals of Gram
        matrices; 0 for none
    tile : room for the tile of each pass
    """

    _fields_ = (*integer_fields("count known last rank contracted ridges"), ("tile", Tile))


class Run(Struct):
    """A run of accelerated sweeps.

    Attributes
    ----------
    sweep, data, penalty : the addresses of a sweep function, of its data, and of `penalty`
    modes : how many modes are updated
    limit, done : the most sweeps, and how many were done
    momentum : how many extrapolated sweeps in a row were accepted
    rows : of the stack
    gradient_size, gram_size : of the normal equations of one mode
    current : which of the two sets of normal equations, 0 or 1, belongs to the current factors
    balance : 1 if column norms are made equal after each sweep, else 0
    """

    _fields_ = integer_fields(
        "sweep data penalty modes limit done momentum rows gradient_size gram_size current balance"
    )


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
def _whole_matrix_equations(data, tile, offsets, n, rank, stack, gradient, gram, work):
    """The normal equations of mode n; returns the sum of the values."""
    packed, split = rank * (rank + 1) // 2, data.split
    begin, count = offsets[n], offsets[n + 1] - offsets[n]
    for j in range(count * rank):
        gradient[j] = 0
    for j in range(count * packed):
        gram[j] = 0
    own_rows = n < split
    first, last = (0, split) if own_rows else (split, data.order)
    before = khatri_rao(stack, rank, offsets, first, n, work)
    right = shift(work, before * rank)
    inner = khatri_rao(stack, rank, offsets, n + 1, last, right)
    other = shift(right, inner * rank)
    first, last = (split, data.order) if own_rows else (0, split)
    other_lines = khatri_rao(stack, rank, offsets, first, last, other)
    own_lines = before * count * inner
    tile.rows = own_lines if own_rows else other_lines
    tile.columns = other_lines if own_rows else own_lines
    tile.own_rows, tile.count, tile.inner = own_rows, count, inner
    tile.rank, tile.packed = rank, packed
    tile.left, tile.own = address(work), address(shift(stack, begin * rank))
    tile.right, tile.other = address(right), address(other)
    return call(data.tile_pass, (data.functions, data.entries, tile, gradient, gram))


@internal_jit
def _ridge(turns, stack, n, r, without):
    """The ridge of a column of mode n, or another number without a prior."""
    if turns.ridges == 0:
        return without
    return np.float64(pointer(turns.ridges, stack)[n * turns.rank + r])


@internal_jit
def _add_ridge(turns, n, count, rows, gradient, gram):
    """Add a prior to the normal equations of mode n: see `NormalEquations.with_ridge`."""
    rank, p = turns.rank, 0
    for i in range(count):
        for a in range(rank):
            ridge = _ridge(turns, rows, n, a, 0.0)
            gram[p] += ridge
            gradient[i * rank + a] -= ridge * rows[i * rank + a]
            p += rank - a


@c_function(SweepData, Turns, INTS, INTS, INTS, *[REALS] * 5)
def formula_sweep(data, turns, modes, solvers, offsets, parameters, stack, gradient, gram, work):
    """Update the factors of some modes in turn, each solved from its normal equations, in place.

    `solvers` are the addresses of the row solvers of these modes, `offsets` the first rows of all
    modes in the stack, and its end. `gradient` and `gram` have room for the equations of every
    mode, and hold those of the first turn if they are known; afterwards those of the last mode,
    whose value is returned. Parameters are as for `solve_rows`; `work` holds Khatri-Rao products.
    """
    total, rank, tile = 0.0, turns.rank, turns.tile
    for t in range(turns.count):
        n = modes[t]
        if t > 0 or turns.known == 0:
            _whole_matrix_equations(data, tile, offsets, n, rank, stack, gradient, gram, work)
        rows, own = offsets[n + 1] - offsets[n], shift(stack, offsets[n] * rank)
        if turns.ridges != 0:
            _add_ridge(turns, n, rows, own, gradient, gram)
        call(solvers[t], (gram, gradient, own, parameters, 0, 0, rows, rank, own))
    if turns.last >= 0:
        n = turns.last
        total = _whole_matrix_equations(data, tile, offsets, n, rank, stack, gradient, gram, work)
    return total


@internal_jit
def _log_column_norm(turns, stack, offsets, n, r):
    """The logarithm of a column's Euclidean norm, or with a prior, of the root of its term.

    Minus infinity for a column of zeros.
    """
    top, total, rank, first, last = 0.0, 0.0, turns.rank, offsets[n], offsets[n + 1]
    for i in range(first, last):
        top = max(top, abs(np.float64(stack[i * rank + r])))
    if top == 0:
        return -math.inf
    for i in range(first, last):
        x = stack[i * rank + r] / top
        total += x * x
    return math.log(top) + 0.5 * math.log(total * _ridge(turns, stack, n, r, 1.0))


@internal_jit
def _balance_norms(turns, stack, offsets, modes, count):
    """Make the column norms of some modes equal, without changing the model.

    With a prior, its terms become equal. A component with a column of zeros stays as it is.
    """
    rank = turns.rank
    for r in range(rank):
        mean = 0.0
        for t in range(count):
            mean += _log_column_norm(turns, stack, offsets, modes[t], r)
        mean /= count
        for t in range(count if mean > -math.inf else 0):
            n = modes[t]
            factor = math.exp(mean - _log_column_norm(turns, stack, offsets, n, r))
            for i in range(offsets[n], offsets[n + 1]):
                stack[i * rank + r] *= factor


@internal_jit
def _copy(source, target, count):
    for k in range(count):
        target[k] = source[k]


@internal_jit
def _extrapolate(run, modes, nonnegative, offsets, rank, coefficient, end, before, new):
    """The end of a sweep plus a multiple of the step from the end of the one before, projected."""
    _copy(end, new, run.rows * rank)
    for t in range(run.modes):
        for k in range(offsets[modes[t]] * rank, offsets[modes[t] + 1] * rank):
            x = end[k] + coefficient * (end[k] - before[k])
            new[k] = 0 if nonnegative[t] != 0 and x < 0 else x


@c_function(Turns, INTS, INT, INTS, FLOATS, REALS)
def penalty(turns, modes, count, offsets, mu, stack):
    """The terms of the objective other than the loss: mu and the prior, of some modes."""
    total, rank = 0.0, turns.rank
    for t in range(count):
        n = modes[t]
        for i in range(offsets[n], offsets[n + 1]):
            for r in range(rank):
                x = np.float64(stack[i * rank + r])
                total += 0.5 * (mu[0] + _ridge(turns, stack, n, r, 0.0)) * x * x
    return total


@internal_jit
def _evaluate(run, turns, modes, solvers, offsets, parameters, stack, equations, work):
    """The value of the loss; the normal equations of the first mode become those that are not
    current."""
    gradient = shift(equations, (1 - run.current) * (run.gradient_size + run.gram_size))
    gram = shift(gradient, run.gradient_size)
    turns.count, turns.last, turns.contracted = 0, modes[0], 0
    value = call(
        run.sweep,
        (run.data, turns, modes, solvers, offsets, parameters, stack, gradient, gram, work),
    )
    turns.count, turns.last = run.modes, -1
    return value


@internal_jit
def _relative_decrease(numbers, before, after):
    """See `Objective.relative_decrease`."""
    floor, total_weight, likelihood = numbers[2], numbers[3], numbers[4]
    reference = before - floor if before > floor else before
    if likelihood != 0 or reference <= 0:
        reference = total_weight
    return (before - after) / reference


@c_function(Run, Turns, *[INTS] * 4, FLOATS, *[REALS] * 4, FLOATS, fastmath=False)
def run_sweeps(
    run,
    turns,
    modes,
    solvers,
    nonnegative,
    offsets,
    numbers,
    parameters,
    stacks,
    equations,
    work,
    objectives,
):
    """Sweeps with Nesterov's momentum, until one lowers the objective by too little.

    The same steps as `Solver.advance` with `Momentum`, or without acceleration. `stacks` holds the
    current factors and those at the end of the last sweep, and has room for two more stacks;
    `equations` the normal equations of the first mode at the current factors, and room for others.
    `numbers` are: factor of values, mu, floor, total weight, 1 for likelihoods (see
    `Objective.relative_decrease`), tolerance, momentum weight, objective, last decrease. The last
    two are updated, and `objectives` gets one number for each sweep. Where the objective cannot be
    computed accurately the run ends before the sweep.
    """
    size, rank = run.rows * turns.rank, turns.rank
    current, swept = stacks, shift(stacks, size)
    end, new = shift(stacks, 2 * size), shift(stacks, 3 * size)
    sizes = run.gradient_size + run.gram_size
    turns.count, turns.known, turns.last = run.modes, 1, -1
    while run.done < run.limit:
        _copy(current, end, size)
        gradient = shift(equations, 2 * sizes)  # a copy, which the sweep overwrites
        gram = shift(gradient, run.gradient_size)
        _copy(shift(equations, run.current * sizes), gradient, sizes)
        call(
            run.sweep,
            (run.data, turns, modes, solvers, offsets, parameters, end, gradient, gram, work),
        )
        if run.balance != 0:
            _balance_norms(turns, end, offsets, modes, run.modes)
        objective, coefficient = numbers[7], numbers[6] * run.momentum / (run.momentum + 3)
        value, accepted = math.nan, run.momentum
        for attempt in range(0 if coefficient > 0 else 1, 2):  # extrapolated, then without
            run.momentum = accepted + 1 if attempt == 0 else 1
            multiple = coefficient if attempt == 0 else 0.0
            _extrapolate(run, modes, nonnegative, offsets, rank, multiple, end, swept, new)
            value = numbers[0] * _evaluate(
                run, turns, modes, solvers, offsets, parameters, new, equations, work
            )
            value += call(run.penalty, (turns, modes, run.modes, offsets, shift(numbers, 1), new))
            if value <= objective:
                break
        if value != value:
            break
        numbers[8] = 0.0
        if value <= objective:
            numbers[8] = _relative_decrease(numbers, objective, value)
            numbers[7] = value
            _copy(new, current, size)
            _copy(end, swept, size)
            run.current = 1 - run.current
        else:  # only rounding makes a plain sweep rise: stay
            run.momentum, turns.contracted = 0, 0
        objectives[run.done] = numbers[7]
        run.done += 1
        if numbers[8] < numbers[5]:
            break
    return 0.0
