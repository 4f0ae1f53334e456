# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Compiled copies of two parts of noise estimation; a change must be made in both versions.

Without Numba, `main_effects` is `_main_effects` of `robustcp.noise.quick_slab_scales`, with
`shrink_log_scales` of `robustcp.noise.group_statistics`. `contaminated_scale_rounds` is
`_SortedResiduals._iterate` of `robustcp.noise.contaminated_normal`.
"""

import math

from numba import njit

from robustcp.engines.passes.numba.intrinsics import pointer, shift
from robustcp.engines.passes.numba.runtime import FLOATS, INT, INTS, c_function
from robustcp.losses.numba_helpers import INLINE, exp, log


@njit(**INLINE)
def _shrink_effects(effects, entries, size, most, chance):
    """Replace sums of logs by effects of slabs, in place: means that are shrunk towards 0 and
    centred. Returns the spread of the effects.

    `chance` is the sampling variance of one log; `most` is the largest weight of a slab in the
    overall mean.
    """
    total = count = weighted_sum = weights = true_variance = level = square = 0.0
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


@c_function(FLOATS, INT, INT, INTS, INTS, *[FLOATS] * 4)
def main_effects(values, count, modes, at, sizes, counts, parameters, scales, z):
    """Scales of slabs from the logarithms of magnitudes; and z, the values in units of the scales.

    Logarithms are modelled as sums of effects of slabs. Mode after mode, the effects are the means
    of what the modes before leave, shrunk by their sampling variance. A mode whose effects hardly
    differ has none.

    at, sizes : for each mode, where the slabs of the values are, and how many slabs there are
    counts : how many values each slab has; of all modes, one after the other
    parameters : the least magnitude; the sampling variance of a logarithm; the least spread of
        effects; for each mode the largest weight of an effect, see `_shrink_effects`
    scales : as counts, gets the scales

    Returns the sum of 2^n over the modes n that have scales.
    """
    mode_bits = 0.0
    for i in range(count):
        z[i] = log(max(abs(values[i]), parameters[0]))
    begin = 0
    for m in range(modes):
        index, effects = pointer(at[m], at), shift(scales, begin)
        entries, size = shift(counts, begin), sizes[m]
        begin += size
        for k in range(size):
            effects[k] = 0.0
        for i in range(count):
            effects[index[i]] += z[i]
        if (
            _shrink_effects(effects, entries, size, parameters[3 + m], parameters[1])
            >= parameters[2]
        ):
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
        index, effects = pointer(at[m], at), shift(scales, begin)
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


@c_function(*[FLOATS, INT] * 3, FLOATS, INT, FLOATS)
def contaminated_scale_rounds(
    magnitudes, count, above, many_above, below, many_below, parameters, rounds, result
):
    """The iteration for sigma of a contaminated normal distribution.

    magnitudes : in ascending order
    above, below : those of the residuals of either sign, also in order
    parameters : the first sigma; the least one; the truncation of the core, in sigmas; the variance
        of a normal variable truncated there; the three edges of the windows for outliers
    rounds : 2 for a round without and one with outliers subtracted, 1 for the latter alone
    result : gets sigma, and the densities of outliers above and below
    """
    sigma, min_sigma, cutoff, truncated_variance = (
        parameters[0],
        parameters[1],
        parameters[2],
        parameters[3],
    )
    high = low = 0.0
    for turn in range(2 - rounds, 2):
        for _ in range(100):
            if turn == 1:
                size = count * sigma
                near_width = size * (parameters[5] - parameters[4])
                far_width = size * (parameters[6] - parameters[5])
                a, b, c = sigma * parameters[4], sigma * parameters[5], sigma * parameters[6]
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
    result[0], result[1], result[2] = sigma, high, low
    return 0.0
