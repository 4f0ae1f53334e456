"""The values that a report is made of."""

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
from robustcp.model.kruskal import host_factors
from robustcp.plot.slicing import model_slice, slice_limits, undo_slice
from robustcp.results.distances import Distances
from robustcp.results.outliers import Outliers
from robustcp.results.summary import Summary

if TYPE_CHECKING:
    from robustcp.inference.rank_profile import RankProfile
    from robustcp.results.fit import Fit

#: A slice with more cells is read at a stride.
MAX_SLICE_CELLS = 1 << 23
#: The largest number of blocks of a map in each direction, and the smallest number of sampled
#: entries in a block.
MAX_BLOCKS_PER_MODE, MIN_ENTRIES_PER_BLOCK = 100, 16


@dataclass(frozen=True, eq=False)
class ReportData:
    """A fit, its data and the diagnostics that a report shows.

    Attributes
    ----------
    fit : Fit
        In the order of the data.
    engine : Engine
        The data, preprocessed as for the fit, neither weighted nor standardized.
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
        """The content of the summary of the fit."""
        return Summary.of(self.fit, self.outliers).content

    @cached_property
    def score_sample(self) -> ScoreSample:
        """The scores of a sample of the entries."""
        return ScoreSample.of(self.outliers)

    @cached_property
    def factors(self) -> list[np.ndarray]:
        """The factors with unit columns, on the host."""
        return [np.asarray(to_host(A), dtype=np.float64) for A in self.fit.factors]

    def fixed_indices(self, mode: int, k: int) -> dict[int, int]:
        """The index of each fixed mode of the slice that stands for slab k of a mode.

        The two longest other modes are shown. The remaining ones are fixed where the slab has
        the most flagged entries.
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
        """Data, model, residuals and scores of the slice where some modes are fixed.

        All but the scores in the units of the data.
        """
        free_modes = [n for n in range(len(self.fit.shape)) if n not in fixed]
        cells = math.prod(self.fit.shape[n] for n in free_modes)
        stride = max(1, math.ceil(math.sqrt(cells / MAX_SLICE_CELLS)))
        strided_indices = {n: np.arange(0, self.fit.shape[n], stride) for n in free_modes}
        factors = self.fit.model.absorbed()
        engine_factors = tuple(self.engine.asarray(to_host(A)) for A in factors)
        uncensored, residual = (
            _residual_slice(engine, engine_factors, fixed, strided_indices, stride)
            for engine in (self.engine.censored(None), self.engine)
        )
        scores = _residual_slice(
            self.outliers.engine, self.outliers.factors, fixed, strided_indices, stride
        )
        model, known = (
            model_slice([A if n in fixed else A[::stride] for n, A in enumerate(parts)], fixed)
            for parts in map(host_factors, (factors, self.fit.known_model.absorbed()))
        )
        sigma = self.outliers.noise.sigma or 1.0
        data, residual = uncensored + model, np.where(np.isnan(known), np.nan, residual)
        if self.fit.preprocessing is not None:
            data, known, reached = (
                undo_slice(self.fit, values, fixed, stride)
                for values in (data, known, data - residual)
            )
            residual = data - reached
        return Slice(data, known, residual, scores / sigma, stride)


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """The scores and indices of a sample of the entries, which may be all."""

    scores: np.ndarray
    indices: tuple[np.ndarray, ...]
    total: int

    @classmethod
    def of(cls, outliers: Outliers) -> ScoreSample:
        """The scores of the entries that the engine samples."""
        sample = outliers.engine.sample(outliers.factors)
        scores = sample.values / (outliers.noise.sigma or 1.0)
        return cls(scores, sample.indices, round(outliers.engine.count))

    @property
    def max_blocks(self) -> int:
        """The number of blocks in each direction at which each has enough sampled entries."""
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

    @property
    def panels(self) -> list[tuple[str, np.ndarray, tuple[float, float]]]:
        """The name, the values and the limits of each picture."""
        values = self.data, self.model, self.residual
        return list(zip(("data", "model", "residual"), values, slice_limits(*values), strict=True))


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
    """The residuals of a slice, with its rows and columns at a stride."""
    if stride == 1:
        return engine.residual_slice(factors, fixed)
    order = range(engine.order)
    indices = [np.array([fixed[n]]) if n in fixed else strided_indices[n] for n in order]
    host_rows = [np.asarray(to_host(A)) for A in factors]
    rows = tuple(engine.asarray(A[k]) for A, k in zip(host_rows, indices, strict=True))
    return engine.subtensor(indices).residual_slice(rows, dict.fromkeys(fixed, 0))
