"""Models whose rows are uncertain: what is known of each row, given few entries.

A row with hardly more entries than there are components can be fitted to anything. So each row
has a Gaussian prior of mean 0, with a variance for each component of each mode, and of each row
the posterior mean and covariance are kept. By variational inference, one mode at a time: the rows
of the others enter by their means and second moments. Entries are weighted by a t distribution of
their residuals, of which nothing large gets far. Components that the data does not support die
out, by themselves; others are born at random in their place (see `Chain`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from robustcp._typing import Factors
from robustcp.constraints import Constraint, Constraints
from robustcp.engines import Engine, to_host
from robustcp.engines.algebra import algebra
from robustcp.engines.installed import compiled_code
from robustcp.losses import Loss
from robustcp.normal import NormalEquations, pack_indices, unpack_indices

#: Degrees of freedom of the t distribution.
FREEDOM = 1.0
#: A new component begins with this noise, in units of the size of the data: so small that it is
#: not given up before it has found its place, in so many sweeps.
BIRTH, HOLD = 0.1, 30
#: Sweeps until it has settled, at most, and the fall of the cost per entry that ends them.
SETTLE, ENOUGH = 60, 1e-4
#: So many degrees of freedom are a Gaussian; sweeps that its means take, the fall of the cost per
#: entry that ends them, and how often the entries are weighted anew.
GAUSSIAN, SWEEPS, END, WEIGHINGS = 1e9, 100, 1e-7, 2
#: Steps in which the rows are found that a part of the data leaves out.
ROWS = 8
#: A component that is smaller than this share of the data is dead.
DEAD = 0.02
#: Entries that plain passes look at together.
PIECE = 1 << 15


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
        found = engine.entries()
        weights = np.ones(found.values.size) if found.weights is None else found.weights
        scales = np.ones(found.values.size) if found.scales is None else found.scales
        return cls(engine.shape, found.values, found.indices, weights / scales**2, scales)

    def weighted(self, weights: np.ndarray) -> Entries:
        """With other weights."""
        other = replace(self, weights=weights)
        for name in ("rows", "size"):  # these do not depend on the weights
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    @cached_property
    def rows(self) -> np.ndarray:
        """Which rows each entry has, if those of all modes are numbered one after the other."""
        first = np.cumsum((0, *self.shape[:-1]))
        return np.stack([index + k for index, k in zip(self.indices, first, strict=True)], axis=1)

    @cached_property
    def size(self) -> float:
        """The size of ordinary entries."""
        x = np.abs(self.values)
        cut = 5 * float(np.median(x)) or float(x.max())
        return math.sqrt(float(np.mean(np.minimum(x, cut) ** 2)))

    def model(self, factors: Sequence[np.ndarray]) -> np.ndarray:
        """The model's entries there."""
        found = np.empty(self.values.size)
        for begin in range(0, found.size, PIECE):
            piece = slice(begin, begin + PIECE)
            rows = (A[index[piece]] for A, index in zip(factors, self.indices, strict=True))
            found[piece] = math.prod(rows).sum(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the rows of a model.

    Attributes
    ----------
    entries : Entries
    constraints : tuple of Constraint, one for each mode
    means : tuple of float64 array (I_n, R)
    covariances : tuple of float64 array (I_n, R, R)
    priors : tuple of float64 array (R,), one for each mode
        The prior variances.
    spread : float
        The square of the scale of the noise.
    least : float
        What the spread is not below.
    """

    entries: Entries
    constraints: Constraints
    means: tuple[np.ndarray, ...]
    covariances: tuple[np.ndarray, ...]
    priors: tuple[np.ndarray, ...]
    spread: float
    least: float
    #: Degrees of freedom of the t distribution of the noise.
    freedom: float = FREEDOM
    #: Which entries are looked at; all if None.
    kept: np.ndarray | None = field(repr=False, default=None)
    #: The mean squares of the residuals, as the last sweep found them.
    squares: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0))

    @classmethod
    def nothing(
        cls, entries: Entries, constraints: Constraints, rank: int, least: float
    ) -> Posterior:
        """A model of dead components."""
        shape, tiny = entries.shape, 1e-12 * entries.size ** (2 / len(entries.shape))
        return cls(
            entries, tuple(constraint.of_rows for constraint in constraints),
            tuple(np.zeros((size, rank)) for size in shape),
            tuple(np.zeros((size, rank, rank)) for size in shape),
            tuple(np.full(rank, tiny) for _ in shape), entries.size**2, least**2,
        )  # fmt: skip

    @classmethod
    def at(
        cls, entries: Entries, constraints: Constraints, factors: Factors, least: float
    ) -> Posterior:
        """What is known if the means are some factors: noise, priors and covariances of them."""
        dead = cls.nothing(entries, constraints, factors[0].shape[1], least)
        means = tuple(np.asarray(to_host(A), dtype=np.float64) for A in factors)
        priors = tuple(np.mean(A**2, axis=0) + t for A, t in zip(means, dead.priors, strict=True))
        spread = max(float(np.median(np.abs(entries.values - entries.model(means)))), least) ** 2
        found = replace(dead, means=means, priors=priors, spread=max(spread, 1e-300)).balanced()
        for _ in range(ROWS):
            for mode, A in enumerate(found.means):
                found = found.solved(mode)
                found = replace(found, means=_put(found.means, mode, A))._with_prior(mode)
            found = replace(found, spread=max(found._spread(found.squares), found.least))
        return found

    def extended(self, parts: Sequence[Entries], whole: Entries) -> Posterior:
        """For all data, of what was found on a part of it.

        `parts` are, for each mode, the entries that have any index in it and, in the others, those
        of the part.
        """
        means, covariances = [], []
        for mode, entries in enumerate(parts):
            size = entries.shape[mode]
            found = replace(
                self, entries=entries, kept=None,
                means=_put(self.means, mode, np.zeros((size, self.rank))),
                covariances=_put(self.covariances, mode, np.zeros((size, self.rank, self.rank))),
            )  # fmt: skip
            for _ in range(ROWS):
                found = found.solved(mode)
            means.append(found.means[mode])
            covariances.append(found.covariances[mode])
        return replace(
            self, entries=whole, kept=None, means=tuple(means), covariances=tuple(covariances)
        )

    @property
    def rank(self) -> int:
        return int(self.means[0].shape[1])

    @property
    def sizes(self) -> np.ndarray:
        """The size of each component, in units of that of the data."""
        roots = [np.sqrt(np.mean(A**2, axis=0)) for A in self.means]
        return np.asarray(math.prod(roots)) / max(self.entries.size, 1e-300)

    @property
    def dead(self) -> np.ndarray:
        """Which components are."""
        return np.flatnonzero(self.sizes <= DEAD)

    # Steps

    def born(self, components: Sequence[int], rng: np.random.Generator) -> Posterior:
        """With new components at random in the place of some."""
        variance = (self.entries.size**2 / self.rank) ** (1 / len(self.means))
        means, covariances, priors = [], [], []
        for A, V, tau, constraint in zip(
            self.means, self.covariances, self.priors, self.constraints, strict=True
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
            priors.append(tau)
        spread = max((BIRTH * self.entries.size) ** 2, self.least)
        return replace(
            self, means=tuple(means), covariances=tuple(covariances), priors=tuple(priors),
            spread=spread,
        )  # fmt: skip

    def grown(self, sweeps: int = HOLD) -> Posterior:
        """After some sweeps with noise and priors as they are."""
        found = self
        for _ in range(sweeps):
            found = found.swept(held=True)
        return found

    def settled(self, sweeps: int = SETTLE, enough: float = ENOUGH) -> Posterior:
        """After sweeps with everything estimated."""
        found, before = self, math.inf
        for k in range(sweeps):
            found = found.swept()
            if k % 5 == 4:
                now = found.cost
                if before - now < enough:
                    break
                before = now
        return found

    def swept(self, *, held: bool = False) -> Posterior:
        """After a sweep over the modes; noise and priors may be held."""
        found = replace(self, squares=np.zeros(self.entries.values.size))
        for mode in range(len(self.means)):
            found = found.solved(mode)
            if not held:
                if mode == 0:
                    found = replace(found, spread=max(found._spread(found.squares), found.least))
                found = found._with_prior(mode)
        return found.balanced()

    def solved(self, mode: int) -> Posterior:
        """With new rows of one mode."""
        rank, squares = self.rank, np.zeros(self.entries.values.size)
        gram, h = _equations(
            self.entries, self._precisions, self.means, self.covariances, mode, self.spread,
            self.freedom, squares,
        )  # fmt: skip
        precisions = np.diag(1 / self.priors[mode])
        G = gram[:, unpack_indices(rank)].reshape(-1, rank, rank) + precisions
        rows = _solved(self.constraints[mode], G, h, self.means[mode])
        return replace(
            self, means=_put(self.means, mode, rows), squares=squares,
            covariances=_put(self.covariances, mode, np.linalg.inv(G)),
        )  # fmt: skip

    def _with_prior(self, mode: int) -> Posterior:
        """With the prior variances that the rows of a mode show."""
        floor = 1e-6 * self.entries.size ** (2 / len(self.means))
        variances = np.diagonal(self.covariances[mode], axis1=1, axis2=2)
        tau = np.maximum(np.mean(self.means[mode] ** 2 + variances, axis=0), floor)
        return replace(self, priors=_put(self.priors, mode, tau))

    @property
    def _precisions(self) -> np.ndarray:
        weights = self.entries.weights
        return weights if self.kept is None else weights * self.kept

    def _spread(self, squares: np.ndarray) -> float:
        """The square of the scale that the t distribution has, in one step."""
        weights = self._precisions
        scaled = weights * squares
        share = (self.freedom + 1) / (self.freedom + scaled / self.spread)
        return float(np.sum(share * scaled)) / max(int(np.count_nonzero(weights)), 1)

    def balanced(self) -> Posterior:
        """The same with equal prior variances in all modes."""
        mean = math.prod(tau ** (1 / len(self.priors)) for tau in self.priors)
        by = [np.sqrt(mean / tau) for tau in self.priors]
        return replace(
            self,
            means=tuple(A * c for A, c in zip(self.means, by, strict=True)),
            covariances=tuple(
                V * (c[:, None] * c[None, :]) for V, c in zip(self.covariances, by, strict=True)
            ),
            priors=tuple(np.array(mean) for _ in by),
        )

    # What it is worth

    @property
    def cost(self) -> float:
        """Minus the log evidence, per entry, or what bounds it; all entries count."""
        scaled = self.entries.weights * self.squares / max(self.spread, 1e-300)
        fit = 0.5 * math.log(max(self.spread, 1e-300)) + 0.5 * (self.freedom + 1) * float(
            np.mean(np.log1p(scaled / self.freedom))
        )
        return fit + self.complexity / max(self.entries.values.size, 1)

    @property
    def complexity(self) -> float:
        """How far the posterior is from the prior (Kullback and Leibler)."""
        total = 0.0
        for A, V, tau in zip(self.means, self.covariances, self.priors, strict=True):
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
    found = Posterior.at(entries, constraints, factors, sigma)
    dead = found.dead.size
    found = replace(found, spread=sigma**2, freedom=GAUSSIAN)
    sizes = np.abs(entries.values - entries.model(found.means))
    for _ in range(WEIGHINGS):
        signs = np.sign(entries.values - entries.model(found.means))
        weights = loss.curvature(signs * sizes / entries.scales)
        found = replace(found, entries=entries.weighted(entries.weights * weights))
        found = found.settled(SWEEPS, END)
        sizes = np.sqrt(found.squares)
    return None if found.dead.size > dead else found.means


def _put(arrays: tuple[np.ndarray, ...], mode: int, new: np.ndarray) -> tuple[np.ndarray, ...]:
    return (*arrays[:mode], new, *arrays[mode + 1 :])


def _solved(constraint: Constraint, G: np.ndarray, h: np.ndarray, rows: np.ndarray) -> np.ndarray:
    i, j = pack_indices(rows.shape[1])
    gradient = h - np.einsum("irs,is->ir", G, rows)
    equations = NormalEquations(np.ascontiguousarray(G[:, i, j]), gradient, 0.0)
    return np.asarray(constraint.solve(equations, rows, 0.0, algebra(np)))


def _equations(
    entries: Entries,
    precisions: np.ndarray,
    means: Sequence[np.ndarray],
    covariances: Sequence[np.ndarray],
    mode: int,
    spread: float,
    freedom: float,
    squares: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Gram matrices, packed, and right-hand sides of the rows of a mode."""
    i, j = pack_indices(means[0].shape[1])
    first = np.concatenate(means)
    seconds = np.concatenate(
        [A[:, i] * A[:, j] + V[:, i, j] for A, V in zip(means, covariances, strict=True)]
    )
    gram, h = np.zeros_like(seconds), np.zeros_like(first)
    compiled = compiled_code()
    run = _plain_equations if compiled is None else compiled.expected_equations
    run(
        entries.values, precisions, entries.rows, mode, first, seconds, spread, freedom,
        gram, h, squares,
    )  # fmt: skip
    begin = sum(entries.shape[:mode])
    own = slice(begin, begin + entries.shape[mode])
    return gram[own], h[own]


def _plain_equations(
    x: np.ndarray,
    precisions: np.ndarray,
    at: np.ndarray,
    own: int,
    means: np.ndarray,
    seconds: np.ndarray,
    spread: float,
    freedom: float,
    gram: np.ndarray,
    gradient: np.ndarray,
    squares: np.ndarray,
) -> None:
    """As the compiled `expected_equations`, without Numba."""
    i, j = pack_indices(means.shape[1])
    twice = np.where(i == j, 1.0, 2.0)
    for begin in range(0, x.size, PIECE):
        piece = slice(begin, begin + PIECE)
        rows, values, p = at[piece], x[piece], precisions[piece]
        others = [rows[:, m] for m in range(at.shape[1]) if m != own]
        product = math.prod(seconds[row] for row in others)
        first = math.prod(means[row] for row in others)
        row = rows[:, own]
        mean = np.sum(first * means[row], axis=1)
        square = values**2 - 2 * values * mean + np.sum(twice * product * seconds[row], axis=1)
        squares[piece] = np.maximum(square, 0.0)
        weight = p * (freedom + 1) / (freedom * spread + squares[piece] * p)
        low, count = int(row.min(initial=0)), int(row.max(initial=0)) + 1
        for q in range(i.size):
            found = np.bincount(row - low, weight * product[:, q], count - low)
            gram[low:count, q] += found
        for r in range(means.shape[1]):
            found = np.bincount(row - low, weight * values * first[:, r], count - low)
            gradient[low:count, r] += found
