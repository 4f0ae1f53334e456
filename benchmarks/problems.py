"""The tensors that are fitted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import robustcp


def one_sided(size: int, rank: int, seed: int = 0) -> robustcp.Simulation:
    """A cube with 10% noise and 20% one-sided artifacts, as in the paper."""
    return robustcp.simulate((size,) * 3, rank, eta=0.2, gamma=2.0, rng=seed)


def start_for(X: np.ndarray, rank: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, rank)) for size in X.shape]


def listed(count: int, size: int, rank: int, lowest: float = 0.0) -> dict[str, np.ndarray]:
    """Some entries of a cube, 10% of them with artifacts, as indices and values; and its factors.

    These are uniform between `lowest` and 1: from positive ones, models are found by every version.
    """
    rng = np.random.default_rng(0)
    factors = rng.uniform(lowest, 1.0, (3, size, rank))
    flat = rng.choice(size**3, count, replace=False, shuffle=False)
    indices = np.stack(np.unravel_index(flat, (size,) * 3), axis=1)
    model = np.ones((count, rank))
    for A, index in zip(factors, indices.T, strict=True):
        model *= A[index]
    values = model.sum(axis=1)
    sigma = 0.1 * values.std()
    values = values + sigma * rng.standard_normal(count)
    values += 50 * sigma * (rng.random(count) < 0.1)
    shape = np.array((size,) * 3)
    return {"indices": indices, "values": values, "shape": shape, "factors": factors}


def as_data(arrays: Any) -> Any:
    """What is fitted, from the arrays of a file: a list of tensors."""
    if "indices" in arrays:
        shape = [int(size) for size in arrays["shape"]]
        return [robustcp.Observed(arrays["indices"], arrays["values"], shape)]
    return list(arrays["tensors"])


class Swamp(NamedTuple):
    """Data with components that are nearly alike, in which alternation hardly moves."""

    data: np.ndarray
    truth: robustcp.KruskalTensor
    start: list[np.ndarray]
    sigma: float


def collinear(size: int, rank: int, congruence: float, rng: np.random.Generator) -> np.ndarray:
    """Columns of length one, each two of which have exactly this inner product."""
    Q, _ = np.linalg.qr(rng.standard_normal((size, rank + 1)))
    return np.sqrt(congruence) * Q[:, :1] + np.sqrt(1 - congruence) * Q[:, 1:]


def swamp(size: int, rank: int, artifacts: float, seed: int) -> Swamp:
    """Congruence .95 in each mode, 1% noise, artifacts of five times the data's size; a start."""
    rng = np.random.default_rng(seed)
    truth = robustcp.KruskalTensor.from_factors(
        [collinear(size, rank, 0.95, rng) for _ in range(3)]
    )
    model = truth.full()
    scale = float(np.sqrt(np.mean(model**2)))
    X = model + 0.01 * scale * rng.standard_normal(model.shape)
    hit = rng.random(model.shape) < artifacts
    X = X + hit * 5 * scale * rng.standard_normal(model.shape)
    return Swamp(X, truth, start_for(X, rank, seed), 0.01 * scale)
