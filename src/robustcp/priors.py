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

from robustcp._typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Engine, Sample, to_host
from robustcp.losses import Loss
from robustcp.normal import unpack_indices

#: Rows with so many entries for each component need no prior; with hardly so many, they need it
#: badly.
PLENTY, HARDLY = 50, 8
#: Rounds in which the variances are estimated.
ROUNDS = 5
#: Leverages are not above this, which leaves something of a residual.
HIGHEST = 0.9
#: A prior decides a row if it holds more than this share of what is known of it.
DECIDES = 0.5


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
class Decided:
    """Rows of a mode that a prior decides: how many, and what they rest on."""

    mode: int
    rows: int
    on: str

    @property
    def words(self) -> str:
        rest = "1 row of mode {} rests" if self.rows == 1 else f"{self.rows} rows of mode {{}} rest"
        return f"{rest.format(self.mode)} {self.on}"


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the rows of a model, given the loss and the noise.

    Attributes
    ----------
    variances : tuple of (array (R,) or None), one for each mode
        The prior variances; None for modes without a prior.
    covariances : tuple of array (I_n, R, R)
        Of the rows, each mode by itself, in units of the noise.
    shares : tuple of (array (I_n,) or None)
        Which share of what is known of a row is the prior's.
    """

    variances: tuple[np.ndarray | None, ...]
    covariances: tuple[np.ndarray, ...] = field(repr=False)
    shares: tuple[np.ndarray | None, ...] = field(repr=False)

    def prior(self, unit: float) -> Prior:
        """For a loss that is so many times a negative log likelihood."""
        return Prior(tuple(None if tau is None else unit / tau for tau in self.variances))

    def leverages(self, sample: Sample, factors: Factors, curvatures: np.ndarray) -> np.ndarray:
        """By how much of its own residual each entry moves the model to itself."""
        host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
        rows = [A[index] for A, index in zip(host, sample.indices, strict=True)]
        found = np.zeros(sample.values.size)
        for mode, C in enumerate(self.covariances):
            K = np.ones_like(rows[0])
            for n, row in enumerate(rows):
                K = K if n == mode else K * row
            found += np.einsum("ir,irs,is->i", K, C[sample.indices[mode]], K, optimize=True)
        return np.asarray(np.minimum(found * curvatures, HIGHEST))

    def part(self, indices: Sequence[np.ndarray | None]) -> Known:
        """What is known of some rows of each mode; None takes a mode whole."""
        covariances = tuple(
            C if at is None else C[at] for C, at in zip(self.covariances, indices, strict=True)
        )
        shares = tuple(
            share if at is None or share is None else share[at]
            for share, at in zip(self.shares, indices, strict=True)
        )
        return Known(self.variances, covariances, shares)

    def decided(self, counts: Sequence[np.ndarray]) -> list[Decided]:
        """The rows that the prior decides, given how many entries each has."""
        found, rank = [], self.covariances[0].shape[1]
        for mode, share in enumerate(self.shares):
            if share is None:
                continue
            some = counts[mode] > 0
            few = some & (counts[mode] < rank)
            decided = int(np.sum(some & ~few & (share > DECIDES)))
            if few.any():
                found.append(Decided(mode, int(few.sum()), "on fewer entries than components"))
            if decided:
                found.append(Decided(mode, decided, "more on a prior than on entries"))
        return found


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

    def needed(self, engine: Engine, rank: int) -> bool:
        """Whether some rows have so few entries that they need a prior.

        Where no entry is missing rows differ less, and need it only if they have hardly any.
        """
        enough = HARDLY if engine.complete else PLENTY
        return any(fewest(engine, mode) < enough * rank for mode in self.modes)

    def thin(self, engine: Engine, rank: int) -> bool:
        """Whether some rows have hardly more entries than components."""
        return any(fewest(engine, mode) < HARDLY * rank for mode in self.modes)

    def known(
        self, engine: Engine, factors: Factors, loss: Loss, unit: float, before: Prior | None
    ) -> Known:
        """What is known of the rows, for a loss that is `unit` times a negative log likelihood."""
        variances, covariances, shares = [], [], []
        for mode in range(engine.order):
            ridge = None if before is None else before.ridges[mode]
            tau, C, share = self._mode(engine, factors, mode, loss, unit, ridge)
            variances.append(tau)
            covariances.append(C)
            shares.append(share)
        return Known(tuple(variances), tuple(covariances), tuple(shares))

    def _mode(
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
        packed = np.asarray(to_host(engine.normal(factors, mode, loss).gram), dtype=np.float64)
        G = packed[:, unpack_indices(rank)].reshape(-1, rank, rank)
        G = np.broadcast_to(G, (len(A), rank, rank))
        if mode not in self.modes:
            lift = 1e-9 * np.trace(G, axis1=1, axis2=2)[:, None, None] + 1e-300
            return None, np.linalg.inv(G + lift * np.eye(rank)), None
        seen = np.diagonal(G, axis1=1, axis2=2).sum(axis=1) > 0
        if not seen.any():  # the other factors are zero
            seen[:] = True
        floor = 1e-12 * float(np.max(A * A, initial=0.0)) + 1e-300
        tau = np.mean(A[seen] ** 2, axis=0) + floor if ridge is None else unit / ridge
        for _ in range(ROUNDS):
            C = np.linalg.inv(G + np.diag(unit / tau))
            own = np.diagonal(C, axis1=1, axis2=2)
            tau = np.mean(A[seen] ** 2 + unit * own[seen], axis=0) + floor
        C = np.linalg.inv(G + np.diag(unit / tau))
        share = np.diagonal(C, axis1=1, axis2=2) @ (unit / tau) / rank
        return tau, C, share


def fewest(engine: Engine, mode: int) -> float:
    """The fewest entries that a row of a mode has, of those that have any."""
    counts = engine.counts(mode)
    return float(np.min(counts[counts > 0], initial=np.iinfo(np.int64).max))
