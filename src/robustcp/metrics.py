"""How well an estimate matches the truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustcp.engines import to_host
from robustcp.kruskal import KruskalTensor


def factor_match_score(estimate: Any, truth: Any, *, weights: bool = True) -> float:
    """How well two CP models agree, from 0 to 1, whatever the order of their components.

    The mean over the best pairing of components of

        (1 - |w - w'| / max(w, w')) * prod_n |cos(a_n, a_n')|

    with w, w' the components' norms; the first term is left out with ``weights=False``. The
    pairing that maximises the sum is found exactly (the Hungarian method). When one model has
    more components, those without a partner are left out of the mean.

    Parameters
    ----------
    estimate, truth : KruskalTensor, Fit, or a pair (weights, factors) such as TensorLy's
    weights : bool
        Whether components must also agree in size.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((6, 2)) for _ in range(3))
    >>> model = KruskalTensor.from_factors([A, B, C])
    >>> swapped = KruskalTensor.from_factors([A[:, ::-1], -B[:, ::-1], C[:, ::-1]])
    >>> round(factor_match_score(model, swapped), 12)
    1.0
    """
    from scipy.optimize import linear_sum_assignment

    ours, theirs = on_host(estimate), on_host(truth)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"estimate: its shape {ours.shape} is not the truth's shape {theirs.shape}"
        )
    score = congruence(ours, theirs)
    if weights:
        w, v = ours.weights[:, None], theirs.weights[None, :]
        larger = np.maximum(w, v)
        score *= np.where(larger > 0, np.minimum(w, v) / np.where(larger > 0, larger, 1.0), 0.0)
    return float(score[linear_sum_assignment(score, maximize=True)].mean())


def congruence(estimate: Any, truth: Any) -> np.ndarray:
    """prod_n |cos| between each component of one model (rows) and each of another (columns).

    >>> import numpy as np
    >>> model = KruskalTensor.from_factors([np.eye(3)[:, :2]] * 3)
    >>> congruence(model, model)
    array([[1., 0.],
           [0., 1.]])
    """
    ours, theirs = on_host(estimate), on_host(truth)
    product = np.ones((ours.rank, theirs.rank))
    for A, B in zip(ours.factors, theirs.factors, strict=True):
        product *= np.abs(A.T @ B)
    return product


def held_by_few(A: np.ndarray, share: float) -> np.ndarray:
    """For each column, the share of its squares that is in the largest of some share of its rows.

    >>> import numpy as np
    >>> held_by_few(np.array([[3.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, 1.0]]), 0.25)
    array([1.  , 0.25])
    """
    squares = np.sort(A * A, axis=0)[::-1]
    few = squares[: int(share * len(squares))].sum(axis=0)
    return np.asarray(few / np.maximum(squares.sum(axis=0), 1e-300))


def on_host(model: Any) -> KruskalTensor:
    """A model of any library, or a pair (weights, factors), in canonical form on the host."""
    weights, factors = model
    host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
    if weights is None:
        return KruskalTensor.from_factors(host).normalized()
    return KruskalTensor(np.asarray(to_host(weights), dtype=np.float64), tuple(host)).normalized()
