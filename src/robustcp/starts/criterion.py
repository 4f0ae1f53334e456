"""The criterion by which starts are compared: the entropy of residuals, or the evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraints
from robustcp.engines import Engine, Fibres, to_host
from robustcp.model.metrics import concentration
from robustcp.noise import (
    Noise,
    Residuals,
    are_evenly_spread,
    estimate_rough_noise,
    find_outlying_fibres,
    fit_contaminated_normal,
    measure_structure,
    median_magnitude,
    model_entropy,
)
from robustcp.optimize.posterior import Posterior
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPrior
from robustcp.starts.candidates import Candidate
from robustcp.starts.settings import SEARCH_SETTINGS, SearchSettings

#: The entropy of the residuals of a model, and the model.
ReducedModel = tuple[float, Factors]


@dataclass(frozen=True)
class Criterion:
    """The cost of models of some data, and tests of models that follow from it."""

    problem: Problem
    constraints: Constraints
    settings: SearchSettings = field(default=SEARCH_SETTINGS, repr=False)
    _reduced_models: list[tuple[Factors, list[ReducedModel]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def needs_row_prior(self, rank: int) -> bool:
        """Whether some rows have so few entries that models need a prior of rows.

        False where there are hardly more entries than parameters: a prior cannot be estimated.
        """
        engine = self.problem.engine
        if (
            not self.settings.min_entries_per_parameter * rank * sum(engine.shape)
            <= engine.count
            <= self.settings.max_full_search_entries
        ):
            return False
        return RowPrior.of(self.constraints, range(engine.order)).is_needed(engine, rank)

    def cost(self, factors: Factors, noise: Noise | None = None) -> float:
        """The cost of a model per entry: the entropy of its residuals; or, where rows have few
        entries, minus its log evidence, which penalises the flexibility of such rows.

        The evidence uses the scale of each entry's noise, where `noise` has scales.
        """
        engine = self.problem.engine
        if not self.needs_row_prior(factors[0].shape[1]):
            return self.entropy(factors)
        if noise is not None and not noise.homoscedastic and not noise.known:
            engine = engine.standardized(noise.scales(engine.shape))
        entries, noise_floor = engine.entries(), self.problem.resolution.min_entry_sigma
        scales = entries.scales
        mean_log_scale = 0.0
        if scales is not None and scales.size:
            mean_log_scale = float(np.mean(np.log(scales)))
        return (
            Posterior.from_factors(entries, self.constraints, factors, noise_floor).cost
            + mean_log_scale
        )

    def entropy(self, factors: Factors) -> float:
        """The entropy of the residuals, per entry."""
        return model_entropy(self.problem.engine, factors, self.problem.resolution)

    @cached_property
    def null_entropy(self) -> float:
        """The entropy of the data: of the residuals of the null model."""
        engine = self.problem.engine
        return self.entropy(tuple(engine.asarray(np.zeros((n, 1))) for n in engine.shape))

    @property
    def component_cost(self) -> float:
        """By how much one more component must lower the cost per entry."""
        engine = self.problem.engine
        return self.settings.cost_per_parameter * sum(engine.shape) / max(engine.count, 1)

    def reduced_models(self, factors: Factors) -> list[ReducedModel]:
        """For each component the model without it, and the entropy of its residuals.

        Those of the last model are kept: the same model is tested and pruned.
        """
        if not self._reduced_models or self._reduced_models[0][0] is not factors:
            models = leave_one_component_out(self.problem.engine.xp, factors)
            reduced = [(self.entropy(model), model) for model in models]
            self._reduced_models[:] = [(factors, reduced)]
        return self._reduced_models[0][1]

    def redundant_components(self, factors: Factors, entropy: float) -> list[int]:
        """Components whose removal raises the entropy by less than `component_cost`."""
        if factors[0].shape[1] == 1 or self.problem.engine.max_abs == 0:
            return []
        limit = entropy + self.component_cost
        reduced_models = self.reduced_models(factors)
        return [r for r, (reduced, _) in enumerate(reduced_models) if reduced < limit]

    def has_odd_component(self, candidate: Candidate) -> bool:
        """Whether a component is localised, redundant, or alike another in all modes but one."""
        factors = candidate.factors
        return bool(
            localised_components(factors, self.settings)
            or has_split_component(factors, self.settings)
            or self.redundant_components(factors, self.candidate_entropy(candidate))
        )

    def candidate_entropy(self, candidate: Candidate) -> float:
        """The entropy of a candidate's residuals, which is its cost but where rows have few
        entries."""
        thin = self.needs_row_prior(candidate.factors[0].shape[1])
        return self.entropy(candidate.factors) if thin else candidate.cost

    def is_exact(self, factors: Factors) -> bool:
        """Whether most entries are fitted nearly exactly, and the others are evenly spread.

        A model that lacks a component with zeros in its factors is exact where that component is
        zero; its other entries are concentrated on some slabs. Entries that are 0 do not count as
        fitted exactly: in sparse data they may be most entries.
        """
        engine, min_sigma = self.problem.engine, self.problem.resolution.min_entry_sigma
        residuals = Residuals.of(engine, factors, self.problem.resolution)
        nonzero = np.abs(residuals.read_data()) > min_sigma
        mixture = fit_contaminated_normal(residuals.values[nonzero], min_sigma)
        limit = self.settings.exact_noise_share * self.problem.ordinary_magnitude
        if mixture.clean <= 0.5 or mixture.sigma >= limit:
            return False
        return are_evenly_spread(np.abs(residuals.values) > 5 * mixture.sigma, residuals.indices)

    def explains_its_entries(self, factors: Factors, sigma: float) -> bool:
        """Whether a model explains the entries where it is beyond the noise, which may be few.

        A sparse model hardly lowers the entropy of all data. These entries must be more than its
        parameters, and most of their residuals much smaller than the data.
        """
        engine, settings = self.problem.engine.censored(None), self.settings
        data, residuals = engine.sample().values, engine.sample(factors).values
        entries = np.abs(data - residuals) > sigma
        if entries.sum() < settings.min_explained_entries * factors[0].shape[1] * sum(engine.shape):
            return False
        size, rest = (median_magnitude(values[entries]) for values in (data, residuals))
        return rest < settings.max_unexplained_ratio * size

    def is_noise(self, factors: Factors, fibres: Fibres | None = None) -> bool:
        """Whether the residuals of a model are noise, apart from outlying fibres."""
        engine = self.problem.engine
        if fibres is None:
            if self._is_only_noise(engine, factors):
                return True
            noise = estimate_rough_noise(engine, factors, self.problem.resolution)
            fibres = find_outlying_fibres(engine, factors, noise)
        return fibres is not None and self._is_only_noise(engine.without_fibres(fibres), factors)

    def _is_only_noise(self, engine: Engine, factors: Factors) -> bool:
        noise = estimate_rough_noise(engine, factors, self.problem.resolution)
        if not noise.homoscedastic:
            engine = engine.standardized(noise.scales(engine.shape))
        return not measure_structure(engine, factors, noise.sigma).describe(engine.view.axes)


def leave_one_component_out(xp: Any, factors: Factors) -> list[Factors]:
    """For each component, the model without it."""
    rank = factors[0].shape[1]
    remaining = [[r for r in range(rank) if r != left_out] for left_out in range(rank)]
    return [
        tuple(xp.stack([A[:, r] for r in components], axis=1) for A in factors)
        for components in remaining
    ]


def localised_components(factors: Factors, settings: SearchSettings = SEARCH_SETTINGS) -> list[int]:
    """Components that are concentrated on a few rows of some mode."""
    host = (np.asarray(to_host(A), dtype=np.float64) for A in factors)
    shares = [concentration(A, settings.localised_row_share) for A in host]
    localised = [share > settings.localised_energy_share for share in shares]
    return [int(r) for r in np.flatnonzero(np.any(localised, axis=0))]


def fibres_of_blocks(factors: Factors, settings: SearchSettings = SEARCH_SETTINGS) -> Fibres | None:
    """The fibres through the blocks on which components are constant; None if there is none.

    Such a component, nearly 0 elsewhere, may have fitted a shade or a saturated patch. Its columns
    are constant on some rows in all modes but at most one. Fibres are taken along that mode, or
    along the mode in which the block is longest.
    """
    host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
    shape = tuple(len(A) for A in host)
    fibres = Fibres(shape)
    for r in range(host[0].shape[1]):
        rows = [_rows_of_constant(A[:, r], settings) for A in host]
        counts = [int(in_block.sum()) for in_block in rows]
        constant = [count for count, size in zip(counts, shape, strict=True) if count < size]
        if (
            len(constant) < max(len(shape) - 1, 2)
            or sum(constant) - len(constant) < settings.min_block_rows
        ):
            continue
        along = int(np.argmax([in_block.mean() for in_block in rows]))
        rows[along] = np.ones(1, dtype=bool)
        fibres |= Fibres(shape, ((along, reduce(np.multiply.outer, rows)),))
    return fibres or None


def _rows_of_constant(column: np.ndarray, settings: SearchSettings) -> np.ndarray:
    """The rows on which a column is nearly constant, a mask, if it is nearly 0 on the others; or
    else all rows."""
    in_block = np.asarray(np.abs(column) > 0.5 * np.max(np.abs(column), initial=0.0))
    everywhere = np.ones_like(in_block)
    if not 0 < np.mean(in_block) <= settings.max_block_row_share:
        return everywhere
    level = float(np.mean(column[in_block]))
    limit = settings.max_level_deviation * abs(level)
    is_constant = np.std(column[in_block]) <= limit
    return in_block if is_constant and np.mean(column[~in_block] ** 2) <= limit**2 else everywhere


def has_split_component(factors: Factors, settings: SearchSettings = SEARCH_SETTINGS) -> bool:
    """Whether two components are alike in all modes but one, as the halves of a split one are."""
    similar_modes: Any = 0
    for A in factors:
        host = np.asarray(to_host(A), dtype=np.float64)
        norms = np.linalg.norm(host, axis=0)
        unit = host / np.where(norms > 0, norms, 1.0)
        similar_modes = similar_modes + (np.abs(unit.T @ unit) > settings.similar_cosine)
    np.fill_diagonal(similar_modes, 0)
    return bool(np.any(similar_modes >= len(factors) - 1))
