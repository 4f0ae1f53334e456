# mypy: ignore-errors
"""What a pass does to the entries of a block: their view, weights and scales, and the loss."""

from __future__ import annotations

import triton
import triton.language as tl

from robustcp.engines.passes.triton.matrices import matrix_product


@triton.jit
def view_entries(x, view, layout: tl.constexpr):
    """Data as it is viewed, given two units and two limits; see `View.apply`."""
    unit, second_unit, clip_limit, mask_limit = view
    if layout.unit_steps > 0:
        x = x * unit
    if layout.unit_steps > 1:
        x = x * second_unit
    if layout.has_missing:
        x = tl.where(tl.abs(x) > mask_limit, float("nan"), x)
        x = tl.where(x > clip_limit, clip_limit, tl.where(x < -clip_limit, -clip_limit, x))
    elif layout.clipped:
        x = tl.maximum(tl.minimum(x, clip_limit), -clip_limit)
    return x


@triton.jit
def _loss(e, PARAMETERS, formula: tl.constexpr, fast: tl.constexpr):
    """Value, slope and curvature."""
    n0, n1, n2 = tl.load(PARAMETERS), tl.load(PARAMETERS + 1), tl.load(PARAMETERS + 2)
    n3, n4, n5 = tl.load(PARAMETERS + 3), tl.load(PARAMETERS + 4), tl.load(PARAMETERS + 5)
    return formula(e, (n0, n1, n2, n3, n4, n5, tl.load(PARAMETERS + 6)), fast)


@triton.jit
def value_at_zero(PARAMETERS, formula: tl.constexpr, layout: tl.constexpr):
    """The value of a row's residual of 0."""
    ROWS: tl.constexpr = layout.row_block
    zeros = tl.zeros((ROWS,), layout.real)
    value, _, _ = _loss(zeros, PARAMETERS, formula, layout.fast)
    return value.to(tl.float64)


@triton.jit
def majorize(e, by, weight, PARAMETERS, formula: tl.constexpr, layout: tl.constexpr):
    """Values, slopes and curvatures of residuals, in units of 1/by, times their weights."""
    observed = e == e
    if layout.has_missing:
        e = tl.where(observed, e, 0.0)
    if layout.scaled:
        e = e * by
    value, slope, curve = _loss(e, PARAMETERS, formula, layout.fast)
    if layout.scaled:
        slope, curve = slope * by, curve * by * by
    if layout.weighted:
        observed = observed & (weight != 0)
        value, slope, curve = value * weight, slope * weight, curve * weight
    if layout.has_missing or layout.weighted:
        value, slope = tl.where(observed, value, 0.0), tl.where(observed, slope, 0.0)
        curve = tl.where(observed, curve, 0.0)
    return value, slope, curve


@triton.jit
def mode_product(vectors, block, o, own_outer, outside, per_own_index: tl.constexpr):
    """Products of numbers of the rows, of the tile and of an outer index; `outside` the data."""
    rows, t, inside = block
    row_values = tl.load(vectors.rows + rows[:, None] + 0 * t[None, :], mask=inside, other=outside)
    product = row_values * tl.load(
        vectors.tile + t[None, :] + 0 * rows[:, None], mask=inside, other=outside
    )
    product *= tl.load(vectors.outer + o)
    if per_own_index:
        product *= tl.load(vectors.outer + own_outer)
    return product


@triton.jit
def inverse_scales(scales, a, q, block, o, own_outer, PARAMETERS, layout: tl.constexpr):
    """Inverse scales of slabs, by signal, and with a floor; see `Scales`.

    a and q are the rows of the factors of the signal, in a block of rows and in the tile.
    """
    scale = mode_product(scales, block, o, own_outer, 1.0, layout.per_own_index)
    if layout.signal:
        size: tl.constexpr = layout.signal_block
        p = tl.load(scales.signal_outer + o * size + tl.arange(0, size))
        magnitude = tl.abs(matrix_product(a * p[None, :], q, layout.real))
        constant, linear = tl.load(PARAMETERS + 12), tl.load(PARAMETERS + 13)
        scale *= tl.sqrt((tl.load(PARAMETERS + 14) * magnitude + linear) * magnitude + constant)
    if layout.floored:
        square = scale * scale
        scale = tl.sqrt(tl.sqrt(square * square + tl.load(PARAMETERS + 11)))
    return 1.0 / scale
