"""What a report is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._typing import Factors
from robustcp.distances import Distances
from robustcp.engines import Engine, to_host
from robustcp.outlying import Outliers
from robustcp.summaries import Summary
from robustcp.uncertainty import Uncertainty

if TYPE_CHECKING:
    from robustcp.fitted import Fit
    from robustcp.ranks import RankProfile

#: Of a slice with more cells only some rows and columns are read.
MOST_CELLS = 1 << 23
#: Blocks of a map in each direction, and entries of each where only a sample is looked at.
BLOCKS, ENTRIES = 100, 16


@dataclass(frozen=True, eq=False)
class Material:
    """A fit beside its data, and what else is to be told.

    Attributes
    ----------
    fit : Fit
        In the order of the data.
    engine : Engine
        The data as it is.
    found : Outliers
    distances : Distances
    rank : RankProfile, optional
    uncertainty : Uncertainty, optional
    title, command : str
    """

    fit: Fit
    engine: Engine
    found: Outliers
    distances: Distances
    rank: RankProfile | None = None
    uncertainty: Uncertainty | None = None
    title: str = ""
    command: str = ""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the summary of the fit says."""
        return Summary.of(self.fit, self.found).content

    @cached_property
    def scored(self) -> Scored:
        """Some entries, or all, with their scores."""
        return Scored.of(self.found)

    @cached_property
    def factors(self) -> list[np.ndarray]:
        """Unit columns, on the host."""
        return [np.asarray(to_host(A), dtype=np.float64) for A in self.fit.factors]

    def places(self, mode: int, k: int) -> dict[int, int]:
        """Where a slice of a slab is: of its modes the two longest are shown.

        The others are held where most entries of the slab are flagged.
        """
        order = len(self.fit.shape)
        others = [n for n in range(order) if n != mode]
        shown = sorted(sorted(others, key=lambda n: -self.fit.shape[n])[:2])
        fixed = {mode: k}
        if len(others) > 2:
            at = [np.array([k]) if n == mode else None for n in range(order)]
            slab = self.found.engine.subtensor(at)
            rows = _rows_at(self.found.factors, at)
            limit = self.found.threshold * (self.found.noise.sigma or 1.0)
            hits = slab.flagged(rows, limit)
            fixed |= {n: int(np.argmax(hits[n])) for n in others if n not in shown}
        return fixed

    def slice_of(self, fixed: Mapping[int, int]) -> Slice:
        """Data, model and scores where some modes are held at an index."""
        free = [n for n in range(len(self.fit.shape)) if n not in fixed]
        cells = math.prod(self.fit.shape[n] for n in free)
        stride = max(1, math.ceil(math.sqrt(cells / MOST_CELLS)))
        picked = {n: np.arange(0, self.fit.shape[n], stride) for n in free}
        own = self.fit.model.absorbed()
        raw = tuple(self.engine.asarray(to_host(A)) for A in own)
        residual = _residual(self.engine, raw, fixed, picked, stride)
        scores = _residual(self.found.engine, self.found.factors, fixed, picked, stride)
        model = _model([np.asarray(to_host(A), dtype=np.float64) for A in own], fixed, picked)
        unit = self.found.noise.sigma or 1.0
        return Slice(residual + model, model, residual, scores / unit, stride)


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of some entries, or of all, and where they are."""

    scores: np.ndarray
    at: tuple[np.ndarray, ...]
    total: int

    @classmethod
    def of(cls, found: Outliers) -> Scored:
        """What the engine takes as a sample."""
        sample = found.engine.sample(found.factors)
        scores = sample.values / (found.noise.sigma or 1.0)
        return cls(scores, sample.indices, round(found.engine.count))

    @property
    def blocks(self) -> int:
        """How many blocks a map may have in each direction: each is to have some entries."""
        if self.scores.size >= self.total:
            return BLOCKS
        return max(8, min(BLOCKS, math.isqrt(self.scores.size // ENTRIES)))

    @property
    def words(self) -> str:
        if self.scores.size >= self.total:
            return f"from all {self.total:,} entries"
        return f"from a sample of {self.scores.size:,} of the {self.total:,} entries"


@dataclass(frozen=True, eq=False)
class Slice:
    """Data, model, residual and score of the cells of a slice; NaN where missing."""

    data: np.ndarray
    model: np.ndarray
    residual: np.ndarray
    scores: np.ndarray
    stride: int = 1


def _rows_at(factors: Factors, at: list[np.ndarray | None]) -> Factors:
    return tuple(A if k is None else A[int(k[0]) : int(k[-1]) + 1, :]
                 for A, k in zip(factors, at, strict=True))  # fmt: skip


def _residual(
    engine: Engine, factors: Factors, fixed: Mapping[int, int], picked: Mapping[int, np.ndarray],
    stride: int,
) -> np.ndarray:  # fmt: skip
    """Residuals of a slice, or of every so manieth row and column of it."""
    if stride == 1:
        return engine.residual_slice(factors, fixed)
    order = range(engine.order)
    at = [np.array([fixed[n]]) if n in fixed else picked[n] for n in order]
    host = [np.asarray(to_host(A)) for A in factors]
    rows = tuple(engine.asarray(A[k]) for A, k in zip(host, at, strict=True))
    return engine.subtensor(at).residual_slice(rows, dict.fromkeys(fixed, 0))


def _model(
    factors: list[np.ndarray], fixed: Mapping[int, int], picked: Mapping[int, np.ndarray]
) -> np.ndarray:
    """The model's entries of a slice."""
    weights = np.ones(factors[0].shape[1])
    for n, k in fixed.items():
        weights = weights * factors[n][k]
    first, *rest = (factors[n][at] for n, at in picked.items())
    return np.asarray((first * weights) @ (rest[0].T if rest else np.ones(len(weights))))
