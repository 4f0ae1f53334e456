"""Models whose rows are uncertain: what is known of each row, given few entries.

A row with hardly more entries than there are components can be fitted to anything. So each row
has a Gaussian prior of mean 0, with a variance for each component of each mode, and of each row
the posterior mean and covariance are kept. By variational inference, one mode at a time: the rows
of the others enter by their means and second moments. Entries are weighted by a t distribution of
their residuals, of which nothing large gets far. Components that the data does not support die
out, by themselves; others are born at random in their place (see `ComponentSearch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraint, Constraints
from robustcp.engines import Engine, to_host
from robustcp.engines.algebra import algebra_for
from robustcp.engines.installed import numba_kernels
from robustcp.engines.normal_equations import NormalEquations, pack_indices, unpack_indices
from robustcp.losses import Loss


@dataclass(frozen=True)
class PosteriorSettings:
    """The constants of the variational posterior."""

    #: Degrees of freedom of the t distribution.
    t_degrees_of_freedom: float = 1.0
    #: A new component begins with this noise, in units of the size of the data: so small that
    #: it is not pruned at once,
    initial_noise: float = 0.1
    #: for so many sweeps.
    fixed_noise_sweeps: int = 30
    #: Sweeps of a fit, at most,
    max_sweeps: int = 60
    #: and the decrease of the cost per entry that ends them.
    cost_tolerance: float = 1e-4
    #: So many degrees of freedom are a Gaussian.
    gaussian_degrees_of_freedom: float = 1e9
    #: Sweeps for the posterior means of a fit, at most,
    means_sweeps: int = 100
    #: and the decrease of the cost per entry that ends them.
    means_tolerance: float = 1e-7
    #: How often the entries are weighted anew.
    reweightings: int = 2
    #: Steps in which the rows are fitted that a part of the data leaves out.
    row_steps: int = 8
    #: A component that is smaller than this share of the data is pruned.
    pruned_size: float = 0.02
    #: Entries that plain passes work on together.
    block_entries: int = 1 << 15


POSTERIOR = PosteriorSettings()


@dataclass(frozen=True, eq=False)
class Entries:
    """All observed entries of some data, on the host.

    Attributes
    ----------
    shape : tuple of int
    values : float64 array (count,)
    indices : tuple of integer arrays (count,), one for each mode
    weights : float64 array (count,)
        What each counts, over the square of its scale.
    scales : float64 array (count,)
    """

    shape: tuple[int, ...]
    values: np.ndarray
    indices: tuple[np.ndarray, ...]
    weights: np.ndarray
    scales: np.ndarray

    @classmethod
    def of(cls, engine: Engine) -> Entries:
        sample = engine.entries()
        weights = np.ones(sample.values.size) if sample.weights is None else sample.weights
        scales = np.ones(sample.values.size) if sample.scales is None else sample.scales
        return cls(engine.shape, sample.values, sample.indices, weights / scales**2, scales)

    def with_weights(self, weights: np.ndarray) -> Entries:
        """With other weights."""
        entries = replace(self, weights=weights)
        for name in ("row_numbers", "typical_magnitude"):  # these do not depend on the weights
            if name in self.__dict__:
                entries.__dict__[name] = self.__dict__[name]
        return entries

    @cached_property
    def row_numbers(self) -> np.ndarray:
        """Which rows each entry has, if those of all modes are numbered one after the other."""
        offsets = np.cumsum((0, *self.shape[:-1]))
        return np.stack([index + k for index, k in zip(self.indices, offsets, strict=True)], axis=1)

    @cached_property
    def typical_magnitude(self) -> float:
        """The size of ordinary entries."""
        x = np.abs(self.values)
        limit = 5 * float(np.median(x)) or float(x.max())
        return math.sqrt(float(np.mean(np.minimum(x, limit) ** 2)))

    def evaluate_model(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The model's entries there."""
        fitted = np.empty(self.values.size)
        for begin in range(0, fitted.size, POSTERIOR.block_entries):
            block = slice(begin, begin + POSTERIOR.block_entries)
            rows = (A[index[block]] for A, index in zip(factors, self.indices, strict=True))
            fitted[block] = math.prod(rows).sum(axis=1)
        return fitted


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the rows of a model.

    Attributes
    ----------
    entries : Entries
    constraints : tuple of Constraint, one for each mode
    means : tuple of float64 array (I_n, R)
    covariances : tuple of float64 array (I_n, R, R)
    prior_variances : tuple of float64 array (R,), one for each mode
        The prior variances.
    squared_scale : float
        The square of the scale of the noise.
    min_squared_scale : float
        What the spread is not below.
    """

    entries: Entries
    constraints: Constraints
    means: tuple[np.ndarray, ...]
    covariances: tuple[np.ndarray, ...]
    prior_variances: tuple[np.ndarray, ...]
    squared_scale: float
    min_squared_scale: float
    #: Degrees of freedom of the t distribution of the noise.
    degrees_of_freedom: float = POSTERIOR.t_degrees_of_freedom
    #: Which entries are looked at; all if None.
    entry_mask: np.ndarray | None = field(repr=False, default=None)
    #: The mean squares of the residuals, as the last sweep found them.
    squared_residuals: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0))

    @classmethod
    def null_model(
        cls, entries: Entries, constraints: Constraints, rank: int, min_scale: float
    ) -> Posterior:
        """A model of dead components."""
        shape, tiny = entries.shape, 1e-12 * entries.typical_magnitude ** (2 / len(entries.shape))
        return cls(
            entries,
            tuple(constraint.of_rows for constraint in constraints),
            tuple(np.zeros((size, rank)) for size in shape),
            tuple(np.zeros((size, rank, rank)) for size in shape),
            tuple(np.full(rank, tiny) for _ in shape),
            entries.typical_magnitude**2,
            min_scale**2,
        )

    @classmethod
    def from_factors(
        cls, entries: Entries, constraints: Constraints, factors: Factors, min_scale: float
    ) -> Posterior:
        """What is known if the means are some factors: noise, priors and covariances of them."""
        null = cls.null_model(entries, constraints, factors[0].shape[1], min_scale)
        means = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
        prior_variances = tuple(
            np.mean(A**2, axis=0) + t for A, t in zip(means, null.prior_variances, strict=True)
        )
        squared_scale = (
            max(float(np.median(np.abs(entries.values - entries.evaluate_model(means)))), min_scale)
            ** 2
        )
        posterior = replace(
            null,
            means=means,
            prior_variances=prior_variances,
            squared_scale=max(squared_scale, 1e-300),
        ).balanced()
        for _ in range(POSTERIOR.row_steps):
            for mode, A in enumerate(posterior.means):
                posterior = posterior.solve_mode(mode)
                posterior = replace(
                    posterior, means=_replace_mode(posterior.means, mode, A)
                )._update_prior(mode)
            posterior = replace(
                posterior,
                squared_scale=max(
                    posterior._estimate_squared_scale(posterior.squared_residuals),
                    posterior.min_squared_scale,
                ),
            )
        return posterior

    def extend(self, mode_entries: Sequence[Entries], all_entries: Entries) -> Posterior:
        """For all data, of what was found on a part of it.

        `mode_entries` are, for each mode, the entries that have any index in it and, in the others,
        those of the part.
        """
        means, covariances = [], []
        for mode, entries in enumerate(mode_entries):
            size = entries.shape[mode]
            posterior = replace(
                self,
                entries=entries,
                entry_mask=None,
                means=_replace_mode(self.means, mode, np.zeros((size, self.rank))),
                covariances=_replace_mode(
                    self.covariances, mode, np.zeros((size, self.rank, self.rank))
                ),
            )
            for _ in range(POSTERIOR.row_steps):
                posterior = posterior.solve_mode(mode)
            means.append(posterior.means[mode])
            covariances.append(posterior.covariances[mode])
        return replace(
            self,
            entries=all_entries,
            entry_mask=None,
            means=tuple(means),
            covariances=tuple(covariances),
        )

    @property
    def rank(self) -> int:
        return int(self.means[0].shape[1])

    @property
    def component_sizes(self) -> np.ndarray:
        """The size of each component, in units of that of the data."""
        roots = [np.sqrt(np.mean(A**2, axis=0)) for A in self.means]
        return np.asarray(math.prod(roots)) / max(self.entries.typical_magnitude, 1e-300)

    @property
    def pruned_components(self) -> np.ndarray:
        """Which components are."""
        return np.flatnonzero(self.component_sizes <= POSTERIOR.pruned_size)

    # Steps

    def with_random_components(
        self, components: Sequence[int], rng: np.random.Generator
    ) -> Posterior:
        """With new components at random in the place of some."""
        variance = (self.entries.typical_magnitude**2 / self.rank) ** (1 / len(self.means))
        means, covariances, prior_variances = [], [], []
        for A, V, tau, constraint in zip(
            self.means, self.covariances, self.prior_variances, self.constraints, strict=True
        ):
            A, V, tau = A.copy(), V.copy(), tau.copy()
            for r in components:
                column = rng.standard_normal(len(A))
                positive = rng.random() < 0.5 or not constraint.signed
                A[:, r] = math.sqrt(variance) * (np.abs(column) if positive else column)
                V[:, r, :] = V[:, :, r] = 0.0
                V[:, r, r], tau[r] = 0.1 * variance, variance
            means.append(A)
            covariances.append(V)
            prior_variances.append(tau)
        squared_scale = max(
            (POSTERIOR.initial_noise * self.entries.typical_magnitude) ** 2, self.min_squared_scale
        )
        return replace(
            self,
            means=tuple(means),
            covariances=tuple(covariances),
            prior_variances=tuple(prior_variances),
            squared_scale=squared_scale,
        )

    def sweep_with_fixed_noise(self, sweeps: int = POSTERIOR.fixed_noise_sweeps) -> Posterior:
        """After some sweeps with noise and priors as they are."""
        posterior = self
        for _ in range(sweeps):
            posterior = posterior.sweep(fixed_noise=True)
        return posterior

    def fit(
        self, max_sweeps: int = POSTERIOR.max_sweeps, tol: float = POSTERIOR.cost_tolerance
    ) -> Posterior:
        """After sweeps with everything estimated."""
        posterior, before = self, math.inf
        for k in range(max_sweeps):
            posterior = posterior.sweep()
            if k % 5 == 4:
                cost = posterior.cost
                if before - cost < tol:
                    break
                before = cost
        return posterior

    def sweep(self, *, fixed_noise: bool = False) -> Posterior:
        """After a sweep over the modes; noise and priors may be held."""
        posterior = replace(self, squared_residuals=np.zeros(self.entries.values.size))
        for mode in range(len(self.means)):
            posterior = posterior.solve_mode(mode)
            if not fixed_noise:
                if mode == 0:
                    posterior = replace(
                        posterior,
                        squared_scale=max(
                            posterior._estimate_squared_scale(posterior.squared_residuals),
                            posterior.min_squared_scale,
                        ),
                    )
                posterior = posterior._update_prior(mode)
        return posterior.balanced()

    def solve_mode(self, mode: int) -> Posterior:
        """With new rows of one mode."""
        rank, squared_residuals = self.rank, np.zeros(self.entries.values.size)
        gram, h = _expected_equations(
            self.entries,
            self._entry_precisions,
            self.means,
            self.covariances,
            mode,
            self.squared_scale,
            self.degrees_of_freedom,
            squared_residuals,
        )
        precisions = np.diag(1 / self.prior_variances[mode])
        G = gram[:, unpack_indices(rank)].reshape(-1, rank, rank) + precisions
        rows = _solve_rows(self.constraints[mode], G, h, self.means[mode])
        return replace(
            self,
            means=_replace_mode(self.means, mode, rows),
            squared_residuals=squared_residuals,
            covariances=_replace_mode(self.covariances, mode, np.linalg.inv(G)),
        )

    def _update_prior(self, mode: int) -> Posterior:
        """With the prior variances that the rows of a mode show."""
        floor = 1e-6 * self.entries.typical_magnitude ** (2 / len(self.means))
        variances = np.diagonal(self.covariances[mode], axis1=1, axis2=2)
        tau = np.maximum(np.mean(self.means[mode] ** 2 + variances, axis=0), floor)
        return replace(self, prior_variances=_replace_mode(self.prior_variances, mode, tau))

    @property
    def _entry_precisions(self) -> np.ndarray:
        weights = self.entries.weights
        return weights if self.entry_mask is None else weights * self.entry_mask

    def _estimate_squared_scale(self, squared_residuals: np.ndarray) -> float:
        """The square of the scale that the t distribution has, in one step."""
        weights = self._entry_precisions
        scaled = weights * squared_residuals
        share = (self.degrees_of_freedom + 1) / (
            self.degrees_of_freedom + scaled / self.squared_scale
        )
        return float(np.sum(share * scaled)) / max(int(np.count_nonzero(weights)), 1)

    def balanced(self) -> Posterior:
        """The same with equal prior variances in all modes."""
        mean = math.prod(tau ** (1 / len(self.prior_variances)) for tau in self.prior_variances)
        multipliers = [np.sqrt(mean / tau) for tau in self.prior_variances]
        return replace(
            self,
            means=tuple(A * c for A, c in zip(self.means, multipliers, strict=True)),
            covariances=tuple(
                V * (c[:, None] * c[None, :])
                for V, c in zip(self.covariances, multipliers, strict=True)
            ),
            prior_variances=tuple(np.array(mean) for _ in multipliers),
        )

    # What it is worth

    @property
    def cost(self) -> float:
        """Minus the log evidence, per entry, or what bounds it; all entries count."""
        scaled = self.entries.weights * self.squared_residuals / max(self.squared_scale, 1e-300)
        fit = 0.5 * math.log(max(self.squared_scale, 1e-300)) + 0.5 * (
            self.degrees_of_freedom + 1
        ) * float(np.mean(np.log1p(scaled / self.degrees_of_freedom)))
        return fit + self.kl_divergence / max(self.entries.values.size, 1)

    @property
    def kl_divergence(self) -> float:
        """How far the posterior is from the prior (Kullback and Leibler)."""
        total = 0.0
        for A, V, tau in zip(self.means, self.covariances, self.prior_variances, strict=True):
            variances = np.diagonal(V, axis1=1, axis2=2)
            root = np.sqrt(tau)
            logs = np.linalg.slogdet(V / (root[:, None] * root[None, :]))[1]
            total += 0.5 * float(np.sum((A**2 + variances) / tau - 1) - np.sum(logs))
        return total


def posterior_means(
    engine: Engine, constraints: Constraints, factors: Factors, loss: Loss, sigma: float
) -> tuple[np.ndarray, ...] | None:
    """The means of the rows over all that the data allows, near some factors; on the host.

    Where data says little of some rows these are closer to the truth than the likeliest rows, in
    which each mode takes the others for certain. Entries are weighted by the loss, that of
    residuals in units of the engine's scales, with noise of standard deviation `sigma`. None if a
    component dies on the way.
    """
    entries = Entries.of(engine)
    posterior = Posterior.from_factors(entries, constraints, factors, sigma)
    pruned = posterior.pruned_components.size
    posterior = replace(
        posterior, squared_scale=sigma**2, degrees_of_freedom=POSTERIOR.gaussian_degrees_of_freedom
    )
    magnitudes = np.abs(entries.values - entries.evaluate_model(posterior.means))
    for _ in range(POSTERIOR.reweightings):
        signs = np.sign(entries.values - entries.evaluate_model(posterior.means))
        weights = loss.curvature(signs * magnitudes / entries.scales)
        posterior = replace(posterior, entries=entries.with_weights(entries.weights * weights))
        posterior = posterior.fit(POSTERIOR.means_sweeps, POSTERIOR.means_tolerance)
        magnitudes = np.sqrt(posterior.squared_residuals)
    return None if posterior.pruned_components.size > pruned else posterior.means


def _replace_mode(
    arrays: tuple[np.ndarray, ...], mode: int, new: np.ndarray
) -> tuple[np.ndarray, ...]:
    return (*arrays[:mode], new, *arrays[mode + 1 :])


def _solve_rows(
    constraint: Constraint, G: np.ndarray, h: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    i, j = pack_indices(rows.shape[1])
    gradient = h - np.einsum("irs,is->ir", G, rows)
    equations = NormalEquations(np.ascontiguousarray(G[:, i, j]), gradient, 0.0)
    return np.asarray(constraint.solve(equations, rows, 0.0, algebra_for(np)))


def _expected_equations(
    entries: Entries,
    precisions: np.ndarray,
    means: Sequence[np.ndarray],
    covariances: Sequence[np.ndarray],
    mode: int,
    squared_scale: float,
    degrees_of_freedom: float,
    squared_residuals: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Gram matrices, packed, and right-hand sides of the rows of a mode."""
    i, j = pack_indices(means[0].shape[1])
    first_moments = np.concatenate(means)
    second_moments = np.concatenate(
        [A[:, i] * A[:, j] + V[:, i, j] for A, V in zip(means, covariances, strict=True)]
    )
    gram, h = np.zeros_like(second_moments), np.zeros_like(first_moments)
    compiled = numba_kernels()
    run = _plain_expected_equations if compiled is None else compiled.expected_equations
    run(
        entries.values,
        precisions,
        entries.row_numbers,
        mode,
        first_moments,
        second_moments,
        squared_scale,
        degrees_of_freedom,
        gram,
        h,
        squared_residuals,
    )
    begin = sum(entries.shape[:mode])
    mode_rows = slice(begin, begin + entries.shape[mode])
    return gram[mode_rows], h[mode_rows]


def _plain_expected_equations(
    x: np.ndarray,
    precisions: np.ndarray,
    row_numbers: np.ndarray,
    mode: int,
    first_moments: np.ndarray,
    second_moments: np.ndarray,
    squared_scale: float,
    degrees_of_freedom: float,
    gram: np.ndarray,
    gradient: np.ndarray,
    squared_residuals: np.ndarray,
) -> None:
    """As the compiled `expected_equations`, without Numba."""
    i, j = pack_indices(first_moments.shape[1])
    multiplicity = np.where(i == j, 1.0, 2.0)
    for begin in range(0, x.size, POSTERIOR.block_entries):
        block = slice(begin, begin + POSTERIOR.block_entries)
        rows, values, p = row_numbers[block], x[block], precisions[block]
        others = [rows[:, m] for m in range(row_numbers.shape[1]) if m != mode]
        second_products = math.prod(second_moments[row] for row in others)
        mean_products = math.prod(first_moments[row] for row in others)
        row = rows[:, mode]
        mean = np.sum(mean_products * first_moments[row], axis=1)
        square = (
            values**2
            - 2 * values * mean
            + np.sum(multiplicity * second_products * second_moments[row], axis=1)
        )
        squared_residuals[block] = np.maximum(square, 0.0)
        weight = (
            p
            * (degrees_of_freedom + 1)
            / (degrees_of_freedom * squared_scale + squared_residuals[block] * p)
        )
        low, count = int(row.min(initial=0)), int(row.max(initial=0)) + 1
        for q in range(i.size):
            sums = np.bincount(row - low, weight * second_products[:, q], count - low)
            gram[low:count, q] += sums
        for r in range(first_moments.shape[1]):
            sums = np.bincount(row - low, weight * values * mean_products[:, r], count - low)
            gradient[low:count, r] += sums
