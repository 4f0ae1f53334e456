"""The limit of what can be recovered: least squares that is told what nobody knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robustcp.engines import khatri_rao
from robustcp.model.kruskal import KruskalTensor
from robustcp.studies.kinds import Factors, Trial

#: A sweep that lowers the objective, a negative log posterior, by less than this is the last.
OBJECTIVE_TOL = 1e-4


@dataclass(frozen=True, eq=False)
class OracleFit:
    """What the oracle found.

    Attributes
    ----------
    model : KruskalTensor
    trace : list of float
        The objective after each sweep.
    converged : bool
    """

    model: KruskalTensor
    trace: list[float]
    converged: bool

    @property
    def sweeps(self) -> int:
        return len(self.trace)

    @property
    def status(self) -> str:
        return "converged" if self.converged else f"stopped after {self.sweeps} sweeps"


def fit_oracle(trial: Trial, max_sweeps: int = 500) -> OracleFit:
    """Weighted least squares on the clean entries, begun at the true factors.

    It minimises, by alternating over the modes,

        1/2 sum_clean ((x - m) / sigma)^2 + 1/2 sum_n,i,r (A_n[i, r] / tau_n[r])^2

    where tau_n[r]^2 is the mean square of column r of the true factor of mode n, with the norms
    of each component spread evenly over the modes: a Gaussian prior on the rows, without which
    rows of few entries go astray. Where the call asks for nonnegative factors these are.
    """
    weights = np.where(trial.clean, 1 / np.square(trial.sigma), 0.0)
    weighted = weights * np.where(trial.clean, trial.data, 0.0)
    W, WX = ([_unfold(T, mode) for mode in range(T.ndim)] for T in (weights, weighted))
    constant = float(np.sum(weighted * np.where(trial.clean, trial.data, 0.0)))
    factors = [np.array(A) for A in _balance_norms(trial.truth)]
    precisions = [1 / np.mean(A * A, axis=0) for A in factors]
    trace: list[float] = []
    while len(trace) < max_sweeps:
        for mode, ridge in enumerate(precisions):
            K = khatri_rao([A for n, A in enumerate(factors) if n != mode])
            G, h = _grams(W[mode], K) + np.diag(ridge), WX[mode] @ K
            if trial.options.get("nonnegative"):
                factors[mode] = solve_nonnegative_rows(G, h, factors[mode])
            else:
                factors[mode] = np.linalg.solve(G, h[..., None])[..., 0]
        A, G = factors[-1], G - np.diag(precisions[-1])
        squares = constant + np.sum(A * (np.einsum("irs,is->ir", G, A) - 2 * h))
        factors = _balance_prior_costs(factors, precisions)
        prior = sum(np.sum(p * B * B) for p, B in zip(precisions, factors, strict=True))
        trace.append(0.5 * float(squares + prior))
        if len(trace) > 1 and trace[-2] - trace[-1] < OBJECTIVE_TOL:
            break
    converged = len(trace) < max_sweeps
    return OracleFit(KruskalTensor.from_factors(factors).normalized(), trace, converged)


def _unfold(T: np.ndarray, mode: int) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(T, mode, 0).reshape(T.shape[mode], -1))


def _balance_norms(factors: Factors) -> Factors:
    """The same components, with the same norm in every mode."""
    return KruskalTensor.from_factors(factors).normalized().absorbed()


def _balance_prior_costs(
    factors: list[np.ndarray], precisions: list[np.ndarray]
) -> list[np.ndarray]:
    """The same components with the norms that the prior likes best: equal costs in every mode.

    Alternating alone gets there slowly.
    """
    costs = np.array([np.sum(p * A * A, axis=0) for p, A in zip(precisions, factors, strict=True)])
    logs = np.log(np.maximum(costs, 1e-300))
    scales = np.exp((logs.mean(axis=0) - logs) / 2)
    return [A * c for A, c in zip(factors, scales, strict=True)]


def _grams(W: np.ndarray, K: np.ndarray) -> np.ndarray:
    """sum_j W[i, j] K[j, r] K[j, s] for each row i."""
    rank = K.shape[1]
    r, s = np.triu_indices(rank)
    grams = np.empty((W.shape[0], rank, rank))
    grams[:, r, s] = grams[:, s, r] = W @ (K[:, r] * K[:, s])
    return grams


def solve_nonnegative_rows(
    G: np.ndarray, h: np.ndarray, start: np.ndarray, max_iterations: int = 1000
) -> np.ndarray:
    """For each row the a >= 0 that minimises a'Ga/2 - h'a, by coordinate descent.

    >>> G = np.array([[[2.0, 1.0], [1.0, 2.0]]])
    >>> solve_nonnegative_rows(G, np.array([[2.0, -3.0]]), np.zeros((1, 2)))
    array([[1., 0.]])
    """
    A: np.ndarray = np.maximum(start, 0.0)
    for _ in range(max_iterations):
        previous = A.copy()
        for r in range(A.shape[1]):
            slope = np.einsum("is,is->i", G[:, r], A) - h[:, r]
            A[:, r] = np.maximum(A[:, r] - slope / G[:, r, r], 0.0)
        if np.all(np.abs(A - previous) <= 1e-10 * A.max()):
            break
    return A
