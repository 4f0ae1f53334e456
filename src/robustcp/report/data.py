"""What a report is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines import Engine, to_host
from robustcp.inference.uncertainty import Uncertainty
from robustcp.results.distances import Distances
from robustcp.results.outliers import Outliers
from robustcp.results.summary import Summary

if TYPE_CHECKING:
    from robustcp.inference.rank_profile import RankProfile
    from robustcp.results.fit import Fit

#: Of a slice with more cells only some rows and columns are read.
MAX_SLICE_CELLS = 1 << 23
#: Blocks of a map in each direction, and entries of each where only a sample is looked at.
MAX_BLOCKS_PER_MODE, MIN_ENTRIES_PER_BLOCK = 100, 16


@dataclass(frozen=True, eq=False)
class ReportData:
    """A fit beside its data, and what else is to be told.

    Attributes
    ----------
    fit : Fit
        In the order of the data.
    engine : Engine
        The data as it is.
    outliers : Outliers
    distances : Distances
    rank : RankProfile, optional
    uncertainty : Uncertainty, optional
    title, command : str
    """

    fit: Fit
    engine: Engine
    outliers: Outliers
    distances: Distances
    rank: RankProfile | None = None
    uncertainty: Uncertainty | None = None
    title: str = ""
    command: str = ""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the summary of the fit says."""
        return Summary.of(self.fit, self.outliers).content

    @cached_property
    def score_sample(self) -> ScoreSample:
        """Some entries, or all, with their scores."""
        return ScoreSample.of(self.outliers)

    @cached_property
    def factors(self) -> list[np.ndarray]:
        """Unit columns, on the host."""
        return [np.asarray(to_host(A), dtype=np.float64) for A in self.fit.factors]

    def fixed_indices(self, mode: int, k: int) -> dict[int, int]:
        """Where a slice of a slab is: of its modes the two longest are shown.

        The others are held where most entries of the slab are flagged.
        """
        order = len(self.fit.shape)
        others = [n for n in range(order) if n != mode]
        shown_modes = sorted(sorted(others, key=lambda n: -self.fit.shape[n])[:2])
        fixed = {mode: k}
        if len(others) > 2:
            slab_indices = [np.array([k]) if n == mode else None for n in range(order)]
            slab = self.outliers.engine.subtensor(slab_indices)
            slab_factors = _select_rows(self.outliers.factors, slab_indices)
            limit = self.outliers.threshold * (self.outliers.noise.sigma or 1.0)
            flagged_counts = slab.count_large_residuals(slab_factors, limit)
            fixed |= {n: int(np.argmax(flagged_counts[n])) for n in others if n not in shown_modes}
        return fixed

    def slice_of(self, fixed: Mapping[int, int]) -> Slice:
        """Data, model and scores where some modes are held at an index."""
        free_modes = [n for n in range(len(self.fit.shape)) if n not in fixed]
        cells = math.prod(self.fit.shape[n] for n in free_modes)
        stride = max(1, math.ceil(math.sqrt(cells / MAX_SLICE_CELLS)))
        strided_indices = {n: np.arange(0, self.fit.shape[n], stride) for n in free_modes}
        factors = self.fit.model.absorbed()
        engine_factors = tuple(self.engine.asarray(to_host(A)) for A in factors)
        residual = _residual_slice(self.engine, engine_factors, fixed, strided_indices, stride)
        scores = _residual_slice(
            self.outliers.engine, self.outliers.factors, fixed, strided_indices, stride
        )
        model = _model_slice(
            [np.asarray(to_host(A), dtype=np.float64) for A in factors], fixed, strided_indices
        )
        sigma = self.outliers.noise.sigma or 1.0
        return Slice(residual + model, model, residual, scores / sigma, stride)


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """Scores of some entries, or of all, and where they are."""

    scores: np.ndarray
    indices: tuple[np.ndarray, ...]
    total: int

    @classmethod
    def of(cls, outliers: Outliers) -> ScoreSample:
        """What the engine takes as a sample."""
        sample = outliers.engine.sample(outliers.factors)
        scores = sample.values / (outliers.noise.sigma or 1.0)
        return cls(scores, sample.indices, round(outliers.engine.count))

    @property
    def max_blocks(self) -> int:
        """How many blocks a map may have in each direction: each is to have some entries."""
        if self.scores.size >= self.total:
            return MAX_BLOCKS_PER_MODE
        return max(
            8, min(MAX_BLOCKS_PER_MODE, math.isqrt(self.scores.size // MIN_ENTRIES_PER_BLOCK))
        )

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


def _select_rows(factors: Factors, indices: list[np.ndarray | None]) -> Factors:
    return tuple(
        A if k is None else A[int(k[0]) : int(k[-1]) + 1, :]
        for A, k in zip(factors, indices, strict=True)
    )


def _residual_slice(
    engine: Engine,
    factors: Factors,
    fixed: Mapping[int, int],
    strided_indices: Mapping[int, np.ndarray],
    stride: int,
) -> np.ndarray:
    """Residuals of a slice, or of every so manieth row and column of it."""
    if stride == 1:
        return engine.residual_slice(factors, fixed)
    order = range(engine.order)
    indices = [np.array([fixed[n]]) if n in fixed else strided_indices[n] for n in order]
    host_factors = [np.asarray(to_host(A)) for A in factors]
    rows = tuple(engine.asarray(A[k]) for A, k in zip(host_factors, indices, strict=True))
    return engine.subtensor(indices).residual_slice(rows, dict.fromkeys(fixed, 0))


def _model_slice(
    factors: list[np.ndarray], fixed: Mapping[int, int], strided_indices: Mapping[int, np.ndarray]
) -> np.ndarray:
    """The model's entries of a slice."""
    weights = np.ones(factors[0].shape[1])
    for n, k in fixed.items():
        weights = weights * factors[n][k]
    first, *rest = (factors[n][indices] for n, indices in strided_indices.items())
    return np.asarray((first * weights) @ (rest[0].T if rest else np.ones(len(weights))))
