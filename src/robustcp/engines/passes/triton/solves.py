# mypy: ignore-errors
"""Row solves: each program solves for one row of a factor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _solve_gauss_jordan(G, b, R: tl.constexpr):
    """The solution of G u = b for a positive definite matrix, by Gauss and Jordan."""
    k = tl.arange(0, R)
    for step in range(R):
        row = tl.sum(tl.where(k[:, None] == step, G, 0.0), 0)
        column = tl.sum(tl.where(k[None, :] == step, G, 0.0), 1)
        pivot = tl.sum(tl.where(k == step, row, 0.0), 0)
        ratio = tl.where(k == step, 0.0, column / pivot)
        b -= ratio * tl.sum(tl.where(k == step, b, 0.0), 0)
        G -= ratio[:, None] * row[None, :]
    return b / tl.sum(tl.where(k[:, None] == k[None, :], G, 0.0), 1)


@triton.jit(do_not_specialize=["gram_stride", "gradient_stride", "rank"])
def solve_rows(
    GRAMS,
    GRADIENTS,
    ROWS,
    NUMBERS,
    OUT,
    gram_stride,
    gradient_stride,
    rank,
    R: tl.constexpr,
    SHARED: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
):
    """A row of `Algebra.solved`, or of `Algebra.nonnegative`."""
    row = tl.program_id(0).to(tl.int64)
    mu, lift = tl.load(NUMBERS), tl.load(NUMBERS + 1)
    k = tl.arange(0, R)
    valid, square = k < rank, (k < rank)[:, None] & (k < rank)[None, :]
    low, high = tl.minimum(k[:, None], k[None, :]), tl.maximum(k[:, None], k[None, :])
    packed = low * (2 * rank - low - 1) // 2 + high
    G = tl.load(GRAMS + row * gram_stride + packed, mask=square, other=0.0)
    u = tl.load(ROWS + row * rank + k, mask=valid, other=0.0)
    gradient = tl.load(GRADIENTS + row * gradient_stride + k, mask=valid, other=0.0) - mu * u
    eye = k[:, None] == k[None, :]
    diagonal = tl.sum(tl.where(eye, G, 0.0), 1)
    raised = lift * diagonal + mu
    raised = tl.where(diagonal + raised <= 0, 1.0, raised)
    G += tl.where(eye, raised[:, None], 0.0)  # 1 for columns beyond the last
    if NONNEGATIVE:
        b = gradient + tl.sum(tl.where(square, G, 0.0) * u[None, :], 1)
        slack = 2 * lift * tl.max(tl.abs(b), 0)
        positive = u > 0
        new = u
        fewest, patience, iterations_left = R + 1, 3, 10 + 4 * rank * rank
        while iterations_left > 0:
            both = positive[:, None] & positive[None, :]
            masked = tl.where(both, G, tl.where(eye, 1.0, 0.0))
            new = _solve_gauss_jordan(masked, tl.where(positive, b, 0.0), R)
            y = tl.sum(G * new[None, :], 1) - b  # the gradient: >= 0 where u is 0
            violated = valid & ((positive & (new < 0)) | ((positive == 0) & (y < -slack)))
            count = tl.sum(violated.to(tl.int32), 0)
            patience = tl.where(count < fewest, 3, patience - 1)
            fewest = tl.minimum(count, fewest)
            last = tl.max(tl.where(violated, k, -1), 0)
            change = tl.where(patience >= 0, violated, violated & (k == last))
            positive = positive ^ change
            iterations_left = tl.where(count == 0, 0, iterations_left - 1)
        new = tl.maximum(new, 0.0)
    else:
        new = u + _solve_gauss_jordan(G, gradient, R)
    if not SHARED:
        new = tl.where(tl.sum(diagonal, 0) == 0, u, new)
    tl.store(OUT + row * rank + k, new, mask=valid)
