"""What one would use otherwise, called as its users call it.

Each is given the data first, and keeps it in its own form; that conversion is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import robustcp
from robustcp.starts.svd import nvecs

Start = Sequence[np.ndarray]
Model = robustcp.KruskalTensor
#: Of rank, starting factors, sweeps and, for those that stop earlier, tolerance.
Als = Callable[..., Model]


def huber(delta: float) -> tuple[Callable[..., Any], Callable[..., Any], float]:
    """Huber's loss as `pyttb.gcp_opt` takes it: value, derivative in the model, lower bound."""

    def value(x: np.ndarray, m: np.ndarray) -> np.ndarray:
        size = np.abs(x - m)
        return np.where(size <= delta, size * size, 2 * delta * size - delta * delta)

    def slope(x: np.ndarray, m: np.ndarray) -> np.ndarray:
        return -2 * np.clip(x - m, -delta, delta)

    return value, slope, -np.inf


def gcp_opt(X: np.ndarray) -> Callable[..., Model]:
    """`pyttb.gcp_opt` with Huber's loss and L-BFGS-B; by default from singular vectors."""
    import pyttb

    tensor = pyttb.tensor(X)

    def fit(rank: int, delta: float = 0.25, start: Start | None = None) -> Model:
        if start is None:
            start = [nvecs(X, mode, rank) for mode in range(X.ndim)]
        init = pyttb.ktensor([np.asfortranarray(A) for A in start])
        optimizer = pyttb.gcp.optimizers.LBFGSB()
        model, _, _ = pyttb.gcp_opt(tensor, rank, huber(delta), optimizer, init=init, printitn=0)
        return _ours(model)

    return fit


def _ours(model: Any) -> Model:
    return Model.from_tensorly((model.weights, model.factor_matrices))


def tensorly_als(X: np.ndarray) -> Als:
    from tensorly.decomposition import parafac

    def fit(rank: int, start: Start, sweeps: int, tol: float = 0.0) -> Model:
        init = (np.ones(rank), [A.copy() for A in start])
        return Model.from_tensorly(parafac(X, rank, n_iter_max=sweeps, init=init, tol=tol))

    return fit


def pyttb_als(X: np.ndarray) -> Als:
    import pyttb

    tensor = pyttb.tensor(X)

    def fit(rank: int, start: Start, sweeps: int, tol: float = 0.0) -> Model:
        init = pyttb.ktensor([np.asfortranarray(A) for A in start])
        return _ours(pyttb.cp_als(
            tensor, rank, stoptol=tol, maxiters=sweeps, init=init, printitn=0
        )[0])  # fmt: skip

    return fit


ALS = {"TensorLy": tensorly_als, "pyttb": pyttb_als}
