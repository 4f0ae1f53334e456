"""A prior for rows of which the data says little; and leverage.

The rows of a factor have independent Gaussian priors of mean 0, with a variance tau_r^2 for each
component. It is that of the rows themselves: the mean over them of A_ir^2 plus their posterior
variance (a step of EM; without the second term components would die). The leverage of an entry is
how far it pulls the model to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Axes, Engine, Sample, to_host
from robustcp.engines.normal_equations import unpack_indices
from robustcp.losses import Loss

#: Rows with so many entries for each component need no prior.
AMPLE_ENTRIES_PER_COMPONENT = 50
#: Where no entry is missing, so many are enough.
MIN_ENTRIES_PER_COMPONENT = 8
#: Rounds in which the variances are estimated.
EM_ROUNDS = 5
#: Leverages are not above this, which leaves something of a residual.
MAX_LEVERAGE = 0.9
#: A prior decides a row if it holds more than this share of what is known of it.
DOMINANT_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Prior:
    """What is added to the loss: for each mode, ridge_r / 2 times the squared norm of column r.

    Attributes
    ----------
    ridges : tuple of (array (R,) or None), one for each mode
    """

    ridges: tuple[np.ndarray | None, ...]

    def value(self, factors: Factors) -> float:
        total = 0.0
        for A, ridge in zip(factors, self.ridges, strict=True):
            if ridge is not None:
                squares = np.sum(np.asarray(to_host(A), dtype=np.float64) ** 2, axis=0)
                total += 0.5 * float(squares @ ridge)
        return total


@dataclass(frozen=True)
class PriorDominatedRows:
    """Rows of a mode that a prior decides: how many, and what they rest on."""

    mode: int
    count: int
    basis: str

    def describe(self, axes: Axes) -> str:
        """How many rows of which mode rest on what."""
        rows, verb = ("1 row", "rests") if self.count == 1 else (f"{self.count} rows", "rest")
        return f"{rows} of {axes.mode_name(self.mode)} {verb} {self.basis}"


@dataclass(frozen=True, eq=False)
class RowPosterior:
    """What is known of the rows of a model, given the loss and the noise.

    Attributes
    ----------
    prior_variances : tuple of (array (R,) or None), one for each mode
        The prior variances; None for modes without a prior.
    covariances : tuple of array (I_n, R, R)
        Of the rows, each mode by itself, in units of the noise.
    prior_shares : tuple of (array (I_n,) or None)
        Which share of what is known of a row is the prior's.
    """

    prior_variances: tuple[np.ndarray | None, ...]
    covariances: tuple[np.ndarray, ...] = field(repr=False)
    prior_shares: tuple[np.ndarray | None, ...] = field(repr=False)

    def prior(self, unit: float) -> Prior:
        """For a loss that is so many times a negative log likelihood."""
        return Prior(tuple(None if tau is None else unit / tau for tau in self.prior_variances))

    def leverages(self, sample: Sample, factors: Factors, curvatures: np.ndarray) -> np.ndarray:
        """By how much of its own residual each entry moves the model to itself."""
        host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
        rows = [A[index] for A, index in zip(host, sample.indices, strict=True)]
        leverages = np.zeros(sample.values.size)
        for mode, C in enumerate(self.covariances):
            K = np.ones_like(rows[0])
            for n, row in enumerate(rows):
                K = K if n == mode else K * row
            leverages += np.einsum("ir,irs,is->i", K, C[sample.indices[mode]], K, optimize=True)
        return np.asarray(np.minimum(leverages * curvatures, MAX_LEVERAGE))

    def subset(self, indices: Sequence[np.ndarray | None]) -> RowPosterior:
        """What is known of some rows of each mode; None takes a mode whole."""
        covariances = tuple(
            C if index is None else C[index]
            for C, index in zip(self.covariances, indices, strict=True)
        )
        prior_shares = tuple(
            share if index is None or share is None else share[index]
            for share, index in zip(self.prior_shares, indices, strict=True)
        )
        return RowPosterior(self.prior_variances, covariances, prior_shares)

    def prior_dominated_rows(self, counts: Sequence[np.ndarray]) -> list[PriorDominatedRows]:
        """The rows that the prior decides, given how many entries each has."""
        dominated_rows, rank = [], self.covariances[0].shape[1]
        for mode, share in enumerate(self.prior_shares):
            if share is None:
                continue
            observed = counts[mode] > 0
            thin = observed & (counts[mode] < rank)
            dominated = int(np.sum(observed & ~thin & (share > DOMINANT_SHARE)))
            if thin.any():
                dominated_rows.append(
                    PriorDominatedRows(mode, int(thin.sum()), "on fewer entries than components")
                )
            if dominated:
                dominated_rows.append(
                    PriorDominatedRows(mode, dominated, "more on a prior than on entries")
                )
        return dominated_rows


@dataclass(frozen=True)
class RowPrior:
    """Where rows have a prior: in some modes, if some of their rows have few entries.

    Attributes
    ----------
    modes : tuple of int
    """

    modes: tuple[int, ...] = ()

    @classmethod
    def of(cls, constraints: Constraints, modes: Sequence[int]) -> RowPrior:
        """For modes that are solved for and whose rows do not depend on each other."""
        return cls(tuple(mode for mode in modes if not constraints[mode].couples_rows))

    def is_needed(self, engine: Engine, rank: int) -> bool:
        """Whether some rows have so few entries that they need a prior.

        Where no entry is missing rows differ less, and need it only if they have hardly any.
        """
        min_entries = MIN_ENTRIES_PER_COMPONENT if engine.complete else AMPLE_ENTRIES_PER_COMPONENT
        return any(min_row_entries(engine, mode) < min_entries * rank for mode in self.modes)

    def has_thin_rows(self, engine: Engine, rank: int) -> bool:
        """Whether some rows have hardly more entries than components."""
        return any(
            min_row_entries(engine, mode) < MIN_ENTRIES_PER_COMPONENT * rank for mode in self.modes
        )

    def row_posterior(
        self, engine: Engine, factors: Factors, loss: Loss, unit: float, before: Prior | None
    ) -> RowPosterior:
        """What is known of the rows, for a loss that is `unit` times a negative log likelihood."""
        prior_variances, covariances, prior_shares = [], [], []
        for mode in range(engine.order):
            ridge = None if before is None else before.ridges[mode]
            tau, C, share = self._mode_posterior(engine, factors, mode, loss, unit, ridge)
            prior_variances.append(tau)
            covariances.append(C)
            prior_shares.append(share)
        return RowPosterior(tuple(prior_variances), tuple(covariances), tuple(prior_shares))

    def _mode_posterior(
        self,
        engine: Engine,
        factors: Factors,
        mode: int,
        loss: Loss,
        unit: float,
        ridge: np.ndarray | None,
    ) -> tuple[np.ndarray | None, np.ndarray, np.ndarray | None]:
        A = np.asarray(to_host(factors[mode]), dtype=np.float64)
        rank = A.shape[1]
        packed = np.asarray(
            to_host(engine.normal_equations(factors, mode, loss).gram), dtype=np.float64
        )
        G = packed[:, unpack_indices(rank)].reshape(-1, rank, rank)
        G = np.broadcast_to(G, (len(A), rank, rank))
        if mode not in self.modes:
            jitter = 1e-9 * np.trace(G, axis1=1, axis2=2)[:, None, None] + 1e-300
            return None, np.linalg.inv(G + jitter * np.eye(rank)), None
        observed = np.diagonal(G, axis1=1, axis2=2).sum(axis=1) > 0
        if not observed.any():  # the other factors are zero
            observed[:] = True
        floor = 1e-12 * float(np.max(A * A, initial=0.0)) + 1e-300
        tau = np.mean(A[observed] ** 2, axis=0) + floor if ridge is None else unit / ridge
        for _ in range(EM_ROUNDS):
            C = np.linalg.inv(G + np.diag(unit / tau))
            row_variances = np.diagonal(C, axis1=1, axis2=2)
            tau = np.mean(A[observed] ** 2 + unit * row_variances[observed], axis=0) + floor
        C = np.linalg.inv(G + np.diag(unit / tau))
        share = np.diagonal(C, axis1=1, axis2=2) @ (unit / tau) / rank
        return tau, C, share


def min_row_entries(engine: Engine, mode: int) -> float:
    """The fewest entries that a row of a mode has, of those that have any."""
    counts = engine.slab_counts(mode)
    return float(np.min(counts[counts > 0], initial=np.iinfo(np.int64).max))
