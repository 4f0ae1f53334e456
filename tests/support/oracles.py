"""Quantities that tests compare with, written differently from the package."""

from __future__ import annotations

import numpy as np

from robustcp import losses
from robustcp.engines import to_host

#: Losses that have a kernel for GPUs.
KERNEL_LOSSES = (
    losses.L1(0.01), losses.Contaminated(0.7), losses.Contaminated(0.7, 0.1, 0.01),
    losses.Contaminated(0.7, 0.01, 0.1), losses.Contaminated(0.7, 0.01, 0.01, 0.3, 2.0),
    losses.Cauchy(1.0), losses.Welsch(2.0),
    losses.Huber(0.5), losses.Tukey(3.0), losses.Quantile(0.8, 0.01), losses.LeastSquares(),
)  # fmt: skip


def brute_force(X, factors, mode, loss):
    """Gram matrices, gradient and value of one factor, by einsum over the whole tensor."""
    letters = "abcdefgh"[: X.ndim]
    rank = factors[0].shape[1]
    terms = ",".join(f"{c}r" for c in letters)
    r = X - np.einsum(f"{terms}->{letters}", *factors)
    others = [A for m, A in enumerate(factors) if m != mode]
    rest = letters.replace(letters[mode], "")
    K = np.einsum(",".join(f"{c}r" for c in rest) + f"->{rest}r", *others)
    gram = np.einsum(
        f"{letters},{rest}r,{rest}s->{letters[mode]}rs", np.asarray(loss.curvature(r)), K, K
    )
    gradient = np.einsum(f"{letters},{rest}r->{letters[mode]}r", np.asarray(loss.slope(r)), K)
    i, j = np.triu_indices(rank)
    return gram[:, i, j], gradient, float(np.asarray(loss.value(r)).sum())


def host(array):
    return np.asarray(to_host(array))
