"""Test tensors with known factors, as in section 3 of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustcp._util import checks
from robustcp.engines import single_blas_thread
from robustcp.model.kruskal import KruskalTensor


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated tensor, its model and its artifacts.

    Attributes
    ----------
    data : array
        Model plus Gaussian noise plus artifacts.
    truth : KruskalTensor
        The model, in canonical form.
    artifacts : boolean array
        True where an artifact was added.
    sigma : float
        The standard deviation of the Gaussian noise.

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((10, 9, 8), 2, eta=0.1, gamma=1.0, rng=0)
    >>> sim.data.shape, sim.truth.rank, int(sim.artifacts.sum())
    ((10, 9, 8), 2, 60)
    """

    data: np.ndarray
    truth: KruskalTensor
    artifacts: np.ndarray
    sigma: float

    def __repr__(self) -> str:
        size = "x".join(map(str, self.data.shape))
        share = self.artifacts.mean()
        return f"Simulation({size}, rank {self.truth.rank}, {share:.1%} artifacts)"


def simulate(
    shape: Sequence[int] = (50, 50, 50),
    rank: int = 5,
    *,
    eta: float,
    gamma: float,
    noise: float = 0.1,
    density: float = 1.0,
    rng: int | np.random.Generator | None = None,
) -> Simulation:
    """A tensor of known rank with dense Gaussian noise and sparse, one-sided artifacts.

    The factors hold absolute values of standard normal numbers. With T the noise-free tensor
    the data is T + gamma |T|/|P| P + noise |T|/|Q| Q: P is 1 at a share eta of the entries,
    picked at random, and 0 elsewhere; Q is dense and normal.

    Parameters
    ----------
    shape, rank : the size of the tensor and of the model
    eta : the share of entries that are artifacts, 0 to 1
    gamma : the norm of all artifacts together, relative to that of the noise-free tensor
    noise : the norm of the Gaussian noise, relative to that of the noise-free tensor
    density : the share of nonzero entries in the factors, above 0 to 1
    rng : seed or NumPy Generator; without it each call is different

    Examples
    --------
    >>> from robustcp import simulate
    >>> simulate((10, 9, 8), 2, eta=0.1, gamma=1.0, rng=0)
    Simulation(10x9x8, rank 2, 8.3% artifacts)
    """
    eta = checks.real_number("eta", eta, 0.0, maximum=1.0)
    density = checks.real_number("density", density, 0.0, strict=True, maximum=1.0)
    gamma = checks.real_number("gamma", gamma, 0.0)
    noise = checks.real_number("noise", noise, 0.0)
    rank = checks.whole_number("rank", rank, 1)
    sizes = tuple(shape) if isinstance(shape, Sequence) else ()
    if len(sizes) < 2 or any(size < 1 for size in sizes):
        raise checks.ArgumentError(
            "shape", f"must have at least 2 modes, none empty, got {shape!r}"
        )
    rng = _as_generator(rng)
    factors = [np.abs(rng.standard_normal((size, rank))) for size in shape]
    if density < 1:
        factors = [_sparsify(A, density, rng) for A in factors]
    with single_blas_thread:  # for the same bits everywhere
        truth = KruskalTensor.from_factors(factors)
        signal = truth.full()
        norm = np.linalg.norm(signal)
        artifacts = np.zeros(signal.shape, dtype=bool)
        if gamma > 0:
            artifacts = rng.random(signal.shape) < eta
        Q = rng.standard_normal(signal.shape)
        sigma = noise * norm / np.linalg.norm(Q)
        data = signal + sigma * Q
        if artifacts.any():
            data[artifacts] += gamma * norm / math.sqrt(np.count_nonzero(artifacts))
        return Simulation(data, truth.normalized(), artifacts, float(sigma))


def _as_generator(rng: int | np.random.Generator | None) -> np.random.Generator:
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError):
        raise checks.ArgumentError(
            "rng", f"must be a seed or a NumPy Generator, got {rng!r}"
        ) from None


def _sparsify(A: np.ndarray, density: float, rng: np.random.Generator) -> np.ndarray:
    """Factors with zeros at random, and at least one other entry in each column."""
    nonzero = rng.random(A.shape) < density
    nonzero[rng.integers(A.shape[0], size=A.shape[1]), np.arange(A.shape[1])] = True
    return np.where(nonzero, A, 0.0)
