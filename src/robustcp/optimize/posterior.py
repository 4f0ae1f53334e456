"""Variational posteriors of the rows of a model, for data with few entries per row.

A row with hardly more entries than there are components can be fitted to anything. So each row
has a Gaussian prior of mean 0, with a variance for each component of each mode, and its posterior
mean and covariance are computed. By variational inference, one mode at a time: the rows of the
other modes enter by their means and second moments. Residuals have a t distribution, so that
outliers have little influence. Components that the data does not support shrink to nothing;
`ComponentSearch` replaces them by random ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from robustcp._util.typing import Factors
from robustcp.constraints import Constraint, Constraints
from robustcp.engines import Entries, to_host
from robustcp.engines.algebra import algebra_for, diagonal_shift
from robustcp.engines.installed import numba_kernels
from robustcp.engines.normal_equations import NormalEquations, pack_indices, unpack_indices


@dataclass(frozen=True)
class PosteriorSettings:
    """The constants of the variational posterior."""

    #: Degrees of freedom of the t distribution of residuals.
    t_degrees_of_freedom: float = 1.0
    #: The initial noise of a new component, relative to the magnitude of the data: small, so that
    #: the component is not pruned at once.
    initial_noise: float = 0.1
    #: Sweeps with that noise, before it is estimated.
    fixed_noise_sweeps: int = 30
    #: The most sweeps of a fit.
    max_sweeps: int = 60
    #: Sweeps between two evaluations of the cost.
    cost_interval: int = 5
    #: A fit ends when its cost per entry falls by less than this in so many sweeps.
    cost_tolerance: float = 1e-4
    #: Degrees of freedom at which the t distribution is a Gaussian, for posterior means.
    gaussian_degrees_of_freedom: float = 1e9
    #: The most sweeps for the posterior means of a fit.
    means_sweeps: int = 100
    #: The fall of the cost per entry between two evaluations below which these end.
    means_tolerance: float = 1e-7
    #: How often the entries are reweighted by the loss for posterior means.
    reweightings: int = 2
    #: Steps in which the rows are fitted that a subsample of the data leaves out.
    row_steps: int = 8
    #: A component smaller than this share of the data is pruned.
    pruned_size: float = 0.02
    #: Entries that passes without Numba process together.
    block_entries: int = 1 << 15


POSTERIOR = PosteriorSettings()


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior distribution of the rows of a model.

    Attributes
    ----------
    entries : Entries
    constraints : tuple of Constraint, one for each mode
    means : tuple of float64 array (I_n, R)
    covariances : tuple of float64 array (I_n, R, R)
    prior_variances : tuple of float64 array (R,), one for each mode
    squared_scale : float
        The square of the scale of the noise.
    min_squared_scale : float
        The least value of it.
    degrees_of_freedom : float
        Degrees of freedom of the t distribution of the noise.
    entry_mask : float64 array (count,), optional
        1 for the entries that are used, 0 for others; by default all are used.
    squared_residuals : float64 array (count,)
        The expected squares of the residuals, from the last sweep.
    """

    entries: Entries
    constraints: Constraints
    means: tuple[np.ndarray, ...]
    covariances: tuple[np.ndarray, ...]
    prior_variances: tuple[np.ndarray, ...]
    squared_scale: float
    min_squared_scale: float
    degrees_of_freedom: float = POSTERIOR.t_degrees_of_freedom
    entry_mask: np.ndarray | None = field(repr=False, default=None)
    squared_residuals: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0))

    @classmethod
    def null_model(
        cls, entries: Entries, constraints: Constraints, rank: int, min_scale: float
    ) -> Posterior:
        """The posterior of a model whose components are all pruned."""
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
        """The posterior around the factors of a model, with noise and priors estimated for it."""
        null = cls.null_model(entries, constraints, factors[0].shape[1], min_scale)
        means = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
        prior_variances = tuple(
            np.mean(A**2, axis=0) + t for A, t in zip(means, null.prior_variances, strict=True)
        )
        median = float(np.median(np.abs(entries.raw_residuals(means))))
        squared_scale = max(max(median, min_scale) ** 2, 1e-300)
        posterior = replace(
            null, means=means, prior_variances=prior_variances, squared_scale=squared_scale
        ).balanced()
        for _ in range(POSTERIOR.row_steps):
            for mode, A in enumerate(posterior.means):
                posterior = posterior.solve_mode(mode)
                posterior = replace(posterior, means=_replace_mode(posterior.means, mode, A))
                posterior = posterior._update_prior(mode)
            posterior = posterior._update_scale()
        return posterior

    @property
    def rank(self) -> int:
        return int(self.means[0].shape[1])

    @property
    def component_sizes(self) -> np.ndarray:
        """The root mean square of each component over that of the data."""
        roots = [np.sqrt(np.mean(A**2, axis=0)) for A in self.means]
        return np.asarray(math.prod(roots)) / max(self.entries.typical_magnitude, 1e-300)

    @property
    def pruned_components(self) -> np.ndarray:
        """The numbers of components that are negligible."""
        return np.flatnonzero(self.component_sizes <= POSTERIOR.pruned_size)

    # Steps

    def with_random_components(
        self, components: Sequence[int], rng: np.random.Generator
    ) -> Posterior:
        """With random components in place of some, and with small noise."""
        variance = (self.entries.typical_magnitude**2 / self.rank) ** (1 / len(self.means))
        means, covariances, prior_variances = (
            tuple(array.copy() for array in arrays)
            for arrays in (self.means, self.covariances, self.prior_variances)
        )
        for A, V, tau, constraint in zip(
            means, covariances, prior_variances, self.constraints, strict=True
        ):
            for r in components:
                column = rng.standard_normal(len(A))
                positive = rng.random() < 0.5 or not constraint.signed
                A[:, r] = math.sqrt(variance) * (np.abs(column) if positive else column)
                V[:, r, :] = V[:, :, r] = 0.0
                V[:, r, r], tau[r] = 0.1 * variance, variance
        initial_scale = POSTERIOR.initial_noise * self.entries.typical_magnitude
        return replace(
            self,
            means=means,
            covariances=covariances,
            prior_variances=prior_variances,
            squared_scale=max(initial_scale**2, self.min_squared_scale),
        )

    def sweep_with_fixed_noise(self, sweeps: int = POSTERIOR.fixed_noise_sweeps) -> Posterior:
        """After some sweeps with fixed noise and priors."""
        return self.sweep(sweeps, fixed_noise=True)

    def fit(
        self,
        max_sweeps: int = POSTERIOR.max_sweeps,
        tol: float = POSTERIOR.cost_tolerance,
    ) -> Posterior:
        """After sweeps that estimate noise and priors too, until the cost falls by less than tol.

        These are not sweeps of `Solver`: see docs/architecture.md.
        """
        posterior, before, interval = self, math.inf, POSTERIOR.cost_interval
        for done in range(0, max_sweeps, interval):
            posterior = posterior.sweep(min(interval, max_sweeps - done))
            cost = posterior.cost
            if before - cost < tol:
                break
            before = cost
        return posterior

    def sweep(self, count: int = 1, *, fixed_noise: bool = False) -> Posterior:
        """After some sweeps over the modes, which may leave noise and priors as they are."""
        solvers, posterior = self._compiled_solvers, self
        if all(solvers):
            modes = range(len(self.means))
            # Which censored entries count is decided before some sweeps.
            step = count if self.entries.sides is None else POSTERIOR.cost_interval
            for done in range(0, count, step):
                sweeps = min(step, count - done)
                posterior = posterior._compiled_sweeps(
                    solvers, modes, sweeps, fixed_noise, balance=True
                )
            return posterior
        for _ in range(count):
            posterior = posterior._plain_sweep(fixed_noise)
        return posterior

    def _plain_sweep(self, fixed_noise: bool) -> Posterior:
        posterior = self
        for mode in range(len(self.means)):
            posterior = posterior.solve_mode(mode)
            if not fixed_noise:
                if mode == 0:
                    posterior = posterior._update_scale()
                posterior = posterior._update_prior(mode)
        return posterior.balanced()

    def solve_mode(self, mode: int) -> Posterior:
        """With new rows of one mode."""
        solvers = self._compiled_solvers
        if solvers[mode]:
            modes = range(mode, mode + 1)
            return self._compiled_sweeps(solvers, modes, 1, True, balance=False)
        rank, means = self.rank, self.means[mode]
        gram, h, squared_residuals = self._expected_equations(mode)
        G = gram[:, unpack_indices(rank)].reshape(-1, rank, rank)
        G = G + np.diag(1 / self.prior_variances[mode])
        return replace(
            self,
            means=_replace_mode(self.means, mode, _solve_rows(self.constraints[mode], G, h, means)),
            squared_residuals=squared_residuals,
            covariances=_replace_mode(self.covariances, mode, np.linalg.inv(G)),
        )

    @property
    def _compiled_solvers(self) -> list[int]:
        """For each mode the address of the compiled function that solves for its rows, or 0."""
        algebra, real = algebra_for(np), self.means[0].dtype
        return [algebra.solver_address(c.row_solver, real) for c in self.constraints]

    def _compiled_sweeps(
        self, solvers: list[int], modes: range, sweeps: int, fixed_noise: bool, *, balance: bool
    ) -> Posterior:
        """As `sweep`, or as `solve_mode` for each of some modes, by compiled code."""
        code, data, (order, rank) = numba_kernels(), self.entries, (len(self.means), self.rank)
        precisions = np.ascontiguousarray(self._entry_precisions, float)
        offsets = np.cumsum((0, *data.shape), dtype=np.intp)
        means, covariances = np.concatenate(self.means), np.concatenate(self.covariances)
        prior_variances = np.stack(self.prior_variances)
        noise = self.squared_scale, self.min_squared_scale, self.degrees_of_freedom
        parameters = np.array((0.0, diagonal_shift(means), *noise, self._least_prior_variance))
        squared_residuals = np.empty(data.values.size)
        arrays = (
            np.ascontiguousarray(data.values, float),
            precisions,
            np.ascontiguousarray(data.row_numbers, np.intp),
            np.array(solvers, np.intp),
        )
        counts = data.values.size, np.count_nonzero(precisions), order, rank
        code.posterior_sweeps().run(
            code.PosteriorEntries(*map(code.address, arrays), *counts),
            code.PosteriorTurns(sweeps, modes.start, modes.stop, fixed_noise, balance),
            *map(
                code.address,
                (offsets, means, covariances, prior_variances, parameters, squared_residuals),
            ),
        )
        slices = [slice(*ends) for ends in pairwise(offsets)]
        return replace(
            self,
            means=tuple(means[rows] for rows in slices),
            covariances=tuple(covariances[rows] for rows in slices),
            prior_variances=tuple(prior_variances),
            squared_scale=float(parameters[2]),
            squared_residuals=squared_residuals,
        )

    def _expected_equations(self, mode: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The expected normal equations of the rows of a mode, and expected squared residuals.

        Gram matrices are packed; the right-hand sides follow. Each entry has the weight of a t
        distribution, given the expectation of its squared residual.
        """
        entries, nu, count = self.entries, self.degrees_of_freedom, len(self.means[mode])
        i, j = pack_indices(self.rank)
        multiplicity = np.where(i == j, 1.0, 2.0)
        second_moments = [
            A[:, i] * A[:, j] + V[:, i, j]
            for A, V in zip(self.means, self.covariances, strict=True)
        ]
        gram, h = np.zeros((count, i.size)), np.zeros((count, self.rank))
        squared_residuals, all_precisions = np.zeros(entries.values.size), self._entry_precisions
        for begin in range(0, entries.values.size, POSTERIOR.block_entries):
            block = slice(begin, begin + POSTERIOR.block_entries)
            x, p = entries.values[block], all_precisions[block]
            rows = [index[block] for index in entries.indices]
            others = [m for m in range(len(rows)) if m != mode]
            row, second_products = rows[mode], math.prod(second_moments[m][rows[m]] for m in others)
            mean_products = math.prod(self.means[m][rows[m]] for m in others)
            mean = np.sum(mean_products * self.means[mode][row], axis=1)
            second = np.sum(multiplicity * second_products * second_moments[mode][row], axis=1)
            squares = np.maximum(x**2 - 2 * x * mean + second, 0.0)
            weights = p * (nu + 1) / (nu * self.squared_scale + squares * p)
            squared_residuals[block] = squares
            for q in range(i.size):
                gram[:, q] += np.bincount(row, weights * second_products[:, q], count)
            for r in range(self.rank):
                h[:, r] += np.bincount(row, weights * x * mean_products[:, r], count)
        return gram, h, squared_residuals

    def _update_prior(self, mode: int) -> Posterior:
        """With the prior variances of a mode estimated from its rows (a step of EM)."""
        variances = np.diagonal(self.covariances[mode], axis1=1, axis2=2)
        tau = np.maximum(
            np.mean(self.means[mode] ** 2 + variances, axis=0), self._least_prior_variance
        )
        return replace(self, prior_variances=_replace_mode(self.prior_variances, mode, tau))

    @property
    def _least_prior_variance(self) -> float:
        return float(1e-6 * self.entries.typical_magnitude ** (2 / len(self.means)))

    @property
    def _decided_precisions(self) -> np.ndarray:
        """The precisions of entries; 0 for censored ones with the mean of the model beyond."""
        decided = self.entries.decided(self.means)
        return self.entries.precisions if decided is None else self.entries.precisions * decided

    @property
    def _entry_precisions(self) -> np.ndarray:
        weights = self._decided_precisions
        return weights if self.entry_mask is None else weights * self.entry_mask

    def _update_scale(self) -> Posterior:
        """With the scale of the t distribution estimated from the residuals (a step of EM)."""
        weights, nu = self._entry_precisions, self.degrees_of_freedom
        scaled = weights * self.squared_residuals
        share = (nu + 1) / (nu + scaled / self.squared_scale)
        estimate = float(np.sum(share * scaled)) / max(int(np.count_nonzero(weights)), 1)
        return replace(self, squared_scale=max(estimate, self.min_squared_scale))

    def balanced(self) -> Posterior:
        """The same model with components rescaled to equal prior variances in all modes."""
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

    @property
    def cost(self) -> float:
        """A bound of minus the log evidence per entry, over all entries, masked or not."""
        squared_scale, nu = max(self.squared_scale, 1e-300), self.degrees_of_freedom
        scaled = self._decided_precisions * self.squared_residuals / squared_scale
        tails = 0.5 * (nu + 1) * float(np.mean(np.log1p(scaled / nu)))
        return (
            0.5 * math.log(squared_scale)
            + tails
            + self.kl_divergence / max(self.entries.values.size, 1)
        )

    @property
    def kl_divergence(self) -> float:
        """The Kullback-Leibler divergence of the posterior from the prior."""
        total = 0.0
        for A, V, tau in zip(self.means, self.covariances, self.prior_variances, strict=True):
            variances = np.diagonal(V, axis1=1, axis2=2)
            root = np.sqrt(tau)
            logs = np.linalg.slogdet(V / (root[:, None] * root[None, :]))[1]
            total += 0.5 * float(np.sum((A**2 + variances) / tau - 1) - np.sum(logs))
        return total


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
