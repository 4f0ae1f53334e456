"""Priors of rows with few entries, and the leverage of entries.

The rows of a factor have independent Gaussian priors of mean 0, with a variance tau_r^2 for each
component. It is estimated from the rows: the mean of A_ir^2 plus their posterior variance (a step
of EM; without the second term components would shrink to nothing). The leverage of an entry is the
share of its own residual by which it pulls the model towards itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Axes, Engine, Entries, row_products, to_host
from robustcp.engines.normal_equations import unpack_indices
from robustcp.losses import Loss

#: Rows with this many entries per component need no prior.
AMPLE_ENTRIES_PER_COMPONENT = 50
#: If no entry is missing, rows with this many entries per component need no prior.
MIN_ENTRIES_PER_COMPONENT = 8
#: Rounds in which the prior variances are estimated.
EM_ROUNDS = 5
#: Leverages are cut here, so that part of each residual remains.
MAX_LEVERAGE = 0.9
#: A prior dominates a row if its share of the posterior precision is larger than this.
DOMINANT_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Prior:
    """A term of the objective: for each mode, ridge_r / 2 times the squared norm of column r.

    Attributes
    ----------
    ridges : tuple of (array (R,) or None), one for each mode
    """

    ridges: tuple[np.ndarray | None, ...]

    def value(self, factors: Factors) -> float:
        """The term at some factors."""
        total = 0.0
        for A, ridge in zip(factors, self.ridges, strict=True):
            if ridge is not None:
                squares = np.sum(np.asarray(to_host(A), dtype=np.float64) ** 2, axis=0)
                total += 0.5 * float(squares @ ridge)
        return total


@dataclass(frozen=True)
class PriorDominatedRows:
    """How many rows of a mode a prior dominates, and what they rest on."""

    mode: int
    count: int
    basis: str

    def describe(self, axes: Axes) -> str:
        """A sentence for users, with the name of the mode."""
        rows, verb = ("1 row", "rests") if self.count == 1 else (f"{self.count} rows", "rest")
        return f"{rows} of {axes.mode_name(self.mode)} {verb} {self.basis}"


@dataclass(frozen=True, eq=False)
class RowPosterior:
    """The posterior of the rows of a model, each mode given the others, with a loss and a noise.

    Attributes
    ----------
    prior_variances : tuple of (array (R,) or None), one for each mode
        The prior variances; None for modes without a prior.
    covariances : tuple of array (I_n, R, R)
        The covariance of each row, in units of the noise.
    prior_shares : tuple of (array (I_n,) or None)
        The share of the prior in the posterior precision of each row.
    """

    prior_variances: tuple[np.ndarray | None, ...]
    covariances: tuple[np.ndarray, ...] = field(repr=False)
    prior_shares: tuple[np.ndarray | None, ...] = field(repr=False)

    def prior(self, unit: float) -> Prior:
        """The prior for a loss that is `unit` times a negative log likelihood."""
        return Prior(tuple(None if tau is None else unit / tau for tau in self.prior_variances))

    def leverages(self, sample: Entries, factors: Factors, curvatures: np.ndarray) -> np.ndarray:
        """The leverage of each entry, for the curvatures of the loss there."""
        host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
        leverages = np.zeros(sample.values.size)
        for mode, C in enumerate(self.covariances):
            others = [n for n in range(len(host)) if n != mode]
            K = row_products([host[n] for n in others], [sample.indices[n] for n in others])
            leverages += np.einsum("ir,irs,is->i", K, C[sample.indices[mode]], K, optimize=True)
        return np.asarray(np.minimum(leverages * curvatures, MAX_LEVERAGE))

    def subset(self, indices: Sequence[np.ndarray | None]) -> RowPosterior:
        """The posterior of some rows of each mode; None takes all of a mode."""
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
        """The rows that the prior dominates, given how many entries each has."""
        found, rank = [], self.covariances[0].shape[1]
        for mode, share in enumerate(self.prior_shares):
            if share is None:
                continue
            thin = (counts[mode] > 0) & (counts[mode] < rank)
            dominated = (counts[mode] > 0) & ~thin & (share > DOMINANT_SHARE)
            for rows, basis in (
                (thin, "on fewer entries than components"),
                (dominated, "more on a prior than on entries"),
            ):
                if rows.any():
                    found.append(PriorDominatedRows(mode, int(rows.sum()), basis))
        return found


@dataclass(frozen=True)
class RowPrior:
    """The modes whose rows have a prior if some of their rows have few entries.

    Attributes
    ----------
    modes : tuple of int
    """

    modes: tuple[int, ...] = ()

    @classmethod
    def of(cls, constraints: Constraints, modes: Sequence[int]) -> RowPrior:
        """The modes that are solved for and whose rows do not depend on each other."""
        return cls(tuple(mode for mode in modes if not constraints[mode].couples_rows))

    def is_needed(self, engine: Engine, rank: int) -> bool:
        """Whether some rows have so few entries that they need a prior.

        If no entry is missing, rows differ less and need it only with hardly any entries.
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
        """The posterior of the rows, for a loss that is `unit` times a negative log likelihood."""
        ridges = (None,) * engine.order if before is None else before.ridges
        prior_variances, covariances, prior_shares = zip(
            *(
                self._mode_posterior(engine, factors, mode, loss, unit, ridge)
                for mode, ridge in enumerate(ridges)
            ),
            strict=True,
        )
        return RowPosterior(prior_variances, covariances, prior_shares)

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
        gram = engine.normal_equations(factors, mode, loss).gram
        packed = np.asarray(to_host(gram), dtype=np.float64)
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
    """The least number of entries in a row of a mode, of rows that have any."""
    counts = engine.slab_counts(mode)
    return float(np.min(counts[counts > 0], initial=np.iinfo(np.int64).max))
