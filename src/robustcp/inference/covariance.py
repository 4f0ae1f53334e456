"""The covariance of a fit's factors: asymptotic normality of M-estimators, jointly over all modes.

A fit minimises sum_i rho(r_i / u_i) over the factors, with u_i the scale of an entry's noise. With
J the Jacobian of the model's entries in all entries of the factors, their covariance is H^+ M H^+,

    H = c J' diag(w_i / u_i^2) J,    M = J' diag(psi_i^2 / u_i^2 / (1 - h_i)^2) J,

where psi = rho', w = psi(r) / r, and c = sum psi' / sum w corrects weights to the average second
derivative. psi' is taken by differences over a width that shrinks with the number of entries: for
the 1-norm that is twice the density of the residuals at 0. For p unknowns the p smallest residuals
are left out of it: under the 1-norm these are 0, whatever the noise is.

Residuals are smaller than the noise, since the model was fitted to them. Divided by 1 - h_i, with
h_i the leverage of the entry, they are the residuals of fits without the entry (HC3 of MacKinnon
and White).

Moving the size of a component from one mode to another is a null direction of H, along which unit
columns do not change: any generalized inverse will do.

A prior of rows adds its ridge to H, and its variance to M.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from robustcp.engines import Engine, Entries, row_products
from robustcp.engines.normal_equations import pack_indices, unpack_indices
from robustcp.losses import Loss
from robustcp.optimize.row_prior import RowPosterior

#: The most unknowns of a joint solution, without those of the longest mode.
MAX_JOINT_UNKNOWNS = 4000
#: The most elements of the matrix that couples them with the longest mode.
MAX_COUPLING_NUMBERS = 1 << 26
#: The number of entries in a batch.
BATCH_ENTRIES = 1 << 15
#: The width of the differences for psi', in standard deviations of the residuals times n^(-1/5).
DIFFERENCE_WIDTH = 1.2
#: The largest share of residuals that count as fitted exactly.
MAX_INTERPOLATED_SHARE = 0.1
#: Smaller residuals, in their standard deviations, get the weight of a residual of this size.
RESIDUAL_FLOOR = 0.1
#: The strength of the ridge that fixes the norms of columns, relative to the information on them.
GAUGE_STRENGTH = 1e-4
#: The relative ridge on diagonals.
DIAGONAL_LIFT = 1e-12
#: Directions with smaller eigenvalues are undetermined.
UNDETERMINED_EIGENVALUE = 1e-9
#: An undetermined direction affects entries that it moves by more than this share of the most.
MIN_MOVEMENT = 1e-5
#: The least correction c of the weights.
MIN_CURVATURE_CORRECTION = 1e-3


@dataclass(frozen=True, eq=False)
class Covariance:
    """The variances of a model's unit columns.

    Attributes
    ----------
    variances : tuple of float64 array (I_n, R), one for each mode
        The variances of the entries of the unit columns; infinite where there is no data, or where
        it does not determine them.
    joint : bool
        Whether the errors of the other factors are included.
    determined : bool
        Whether the data determines all factors up to the norms of columns.
    """

    variances: tuple[np.ndarray, ...]
    joint: bool
    determined: bool


def covariance(
    engine: Engine,
    factors: Sequence[np.ndarray],
    loss: Loss,
    posterior: RowPosterior,
    unit: float,
) -> Covariance:
    """The covariance of factors that minimise a loss.

    Parameters
    ----------
    engine : Engine
        The data, with residuals in units of their noise where that differs between entries.
    factors : sequence of float64 array (I_n, R)
        The factors on the host, with the weights multiplied in.
    loss : Loss
    posterior : RowPosterior
        The posterior of the rows of each mode, given the other factors.
    unit : float
        The ratio of the loss to a negative log likelihood, where rows have a prior.
    """
    entries = WeightedEntries.of(engine, factors, loss, posterior)
    prior, unknowns = entries.prior(unit), Unknowns.of(engine.shape, factors[0].shape[1])
    if not unknowns.solvable_jointly:
        return _rowwise_covariance(entries, prior, unit)
    return _joint_covariance(entries, unknowns, prior, unit)


def entry_variances(
    engine: Engine,
    factors: Sequence[np.ndarray],
    loss: Loss,
    posterior: RowPosterior,
    unit: float,
) -> EntryVariances:
    """The variances of the model's entries, of any; the parameters are those of `covariance`."""
    entries = WeightedEntries.of(engine, factors, loss, posterior)
    prior, unknowns = entries.prior(unit), Unknowns.of(engine.shape, factors[0].shape[1])
    if unknowns.solvable_jointly:
        return JointEntryVariances(factors, _joint_sandwich(entries, unknowns, prior, unit))
    return RowwiseEntryVariances(factors, list(_row_covariances(entries, prior, unit)))


def newton_inverse(
    engine: Engine, factors: Sequence[np.ndarray], loss: Loss, posterior: RowPosterior
) -> GeneralizedInverse | None:
    """The inverse of the second derivatives, for Newton steps; None if there are too many unknowns.

    The parameters are those of `covariance`.
    """
    unknowns = Unknowns.of(engine.shape, factors[0].shape[1])
    if not unknowns.solvable_jointly:
        return None
    H, _ = _information_matrices(WeightedEntries.of(engine, factors, loss, posterior), unknowns)
    return GeneralizedInverse.of(H, unknowns, factors)


@dataclass(frozen=True, eq=False)
class WeightedEntries:
    """The entries of the data, with their weights in H and M.

    Attributes
    ----------
    engine, factors, loss, posterior
        As in `covariance`.
    residual_floor : float
        The least residual for weights.
    c : float
        The correction of weights.
    mean_weight : float
        The mean weight of accepted entries.
    """

    engine: Engine
    factors: Sequence[np.ndarray]
    loss: Loss
    posterior: RowPosterior
    residual_floor: float
    c: float
    mean_weight: float

    @classmethod
    def of(
        cls, engine: Engine, factors: Sequence[np.ndarray], loss: Loss, posterior: RowPosterior
    ) -> WeightedEntries:
        r = engine.sample(_to_engine(engine, factors)).values
        accepted = r[np.abs(r) <= loss.rejects]
        accepted = accepted if accepted.size else r
        scale = max(1.4826 * float(np.median(np.abs(accepted))), 1e-9 * engine.max_abs, 1e-300)
        residual_floor, h = RESIDUAL_FLOOR * scale, DIFFERENCE_WIDTH * scale * accepted.size**-0.2
        p = factors[0].shape[1] * (sum(engine.shape) - engine.order + 1) / engine.count
        remaining = r[np.abs(r) >= np.quantile(np.abs(r), min(p, MAX_INTERPOLATED_SHARE))]
        slope_derivative = (loss.slope(remaining + h) - loss.slope(remaining - h)) / (2 * h)
        c = float(np.mean(slope_derivative) / np.mean(_weights(loss, r, residual_floor)))
        c = max(c, MIN_CURVATURE_CORRECTION)
        mean_weight = float(np.mean(_weights(loss, accepted, residual_floor)))
        return cls(engine, factors, loss, posterior, residual_floor, c, mean_weight)

    def prior(self, unit: float) -> list[np.ndarray]:
        """What the priors of rows add to the diagonal of H, an array (I_n, R) for each mode."""
        ridges = self.posterior.prior(unit).ridges
        return [
            np.zeros_like(A) if ridge is None else np.broadcast_to(ridge, A.shape)
            for A, ridge in zip(self.factors, ridges, strict=True)
        ]

    def batches(self, mode: int) -> Iterator[tuple[slice, Entries, np.ndarray]]:
        """Blocks of rows of a mode, their entries, and their weights in H and M (2, count)."""
        counts, order = self.engine.slab_counts(mode), self.engine.order
        step = max(1, int(BATCH_ENTRIES / max(float(counts.mean()), 1.0)))
        for first in range(0, counts.size, step):
            rows = slice(first, min(first + step, counts.size))
            if not counts[rows].any():
                continue
            row_numbers = np.arange(rows.start, rows.stop)
            indices = [row_numbers if n == mode else None for n in range(order)]
            subtensor = self.engine.subtensor(indices)
            part_factors = tuple(A[rows] if n == mode else A for n, A in enumerate(self.factors))
            entries = subtensor.entries(_to_engine(subtensor, part_factors))
            r = entries.values
            omega = np.ones_like(r) if entries.weights is None else entries.weights
            scale = omega if entries.scales is None else omega / entries.scales**2
            posterior = self.posterior.subset(indices)
            h = posterior.leverages(entries, part_factors, self.mean_weight * scale)
            weights = _weights(self.loss, r, self.residual_floor)
            slope = self.loss.slope(r) / (1 - h)
            yield rows, entries, np.stack([self.c * weights * scale, slope**2 * omega * scale])

    @cached_property
    def _row_pair_products(self) -> list[np.ndarray]:
        """The products A_r A_s (packed) of each row of each factor."""
        i, j = pack_indices(self.factors[0].shape[1])
        return [np.ascontiguousarray(A[:, i] * A[:, j]) for A in self.factors]

    def pair_products(self, rows: slice, entries: Entries, mode: int, *excluded: int) -> np.ndarray:
        """K_r K_s (packed) for each entry of a batch, K the product of its rows of other modes."""
        modes = [n for n in range(len(self.factors)) if n not in excluded]
        if not modes:
            return np.ones((entries.values.size, self._row_pair_products[0].shape[1]))
        squares = [self._row_pair_products[n][rows if n == mode else slice(None)] for n in modes]
        return np.asarray(row_products(squares, [entries.indices[n] for n in modes]))

    def row_blocks(self, mode: int) -> np.ndarray:
        """The diagonal blocks of H and M for the rows of a mode: (2, I_n, R, R)."""
        size, rank = self.factors[mode].shape
        blocks = np.zeros((2, size, rank, rank))
        for rows, entries, weights in self.batches(mode):
            K = self.pair_products(rows, entries, mode, mode)
            sums = _sum_by_index(entries.indices[mode], rows.stop - rows.start, weights, K)
            blocks[:, rows] = _unpack(sums)
        return blocks


def _to_engine(engine: Engine, factors: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(engine.asarray(A) for A in factors)


def _weights(loss: Loss, r: np.ndarray, floor: float) -> np.ndarray:
    """psi(r) / r, with smaller residuals replaced by `floor`."""
    r = np.where(np.abs(r) < floor, np.copysign(floor, r), r)
    return np.asarray(loss.slope(r) / r)


def _sum_by_index(index: np.ndarray, size: int, weights: np.ndarray, K: np.ndarray) -> np.ndarray:
    """The weighted rows of K summed over the entries of each index: (2, size, columns)."""
    import scipy.sparse

    positions, shape = (index, np.arange(index.size)), (size, index.size)
    return np.stack([scipy.sparse.csr_array((w, positions), shape=shape) @ K for w in weights])


def _unpack(packed: np.ndarray) -> np.ndarray:
    """Symmetric matrices from packed ones."""
    rank = int(np.sqrt(2 * packed.shape[-1]))
    return packed[..., unpack_indices(rank)].reshape(*packed.shape[:-1], rank, rank)


# All modes together


@dataclass(frozen=True)
class Unknowns:
    """The entries of all factors, those of the longest mode apart from the rest.

    Attributes
    ----------
    shape : tuple of int
    rank : int
    longest : int
    slices : dict from each other mode to a slice
        The positions of the entries of its factor, row by row, among those of all other modes.
    """

    shape: tuple[int, ...]
    rank: int
    longest: int
    slices: dict[int, slice]

    @classmethod
    def of(cls, shape: tuple[int, ...], rank: int) -> Unknowns:
        longest, slices, first = int(np.argmax(shape)), {}, 0
        for n, size in enumerate(shape):
            if n != longest:
                slices[n] = slice(first, first + rank * size)
                first += rank * size
        return cls(shape, rank, longest, slices)

    @property
    def solvable_jointly(self) -> bool:
        """Whether there are few enough unknowns for a joint solution."""
        longest_count = self.rank * self.shape[self.longest]
        return (
            self.other_count <= MAX_JOINT_UNKNOWNS
            and self.other_count * longest_count <= MAX_COUPLING_NUMBERS
        )

    @property
    def other_count(self) -> int:
        return self.rank * (sum(self.shape) - self.shape[self.longest])

    def split(self, by_mode: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Arrays (I_n, R) of each mode as the one of the longest mode and a vector of the rest."""
        return by_mode[self.longest], np.concatenate([by_mode[n].ravel() for n in self.slices])

    def merge(self, longest: np.ndarray, others: np.ndarray) -> list[np.ndarray]:
        """The arrays of each mode, from the parts that `split` returns."""
        return [
            others[self.slices[n]].reshape(size, self.rank) if n in self.slices else longest
            for n, size in enumerate(self.shape)
        ]


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """A symmetric matrix of all unknowns, block diagonal in the rows of the longest mode.

    Attributes
    ----------
    E : array (I, R, R)
        The diagonal blocks of the rows of the longest mode.
    B : array (I, R, q)
        The blocks of these rows with the rest.
    D : array (q, q)
        The block of the rest.
    """

    E: np.ndarray
    B: np.ndarray
    D: np.ndarray

    def add_diagonal(self, diagonal: tuple[np.ndarray, np.ndarray]) -> BlockMatrix:
        """The matrix plus a diagonal, in the parts of `Unknowns.split`."""
        longest, others = diagonal
        E = self.E + longest[:, :, None] * np.eye(longest.shape[1])
        return BlockMatrix(E, self.B, self.D + np.diag(others))


def _information_matrices(
    weighted: WeightedEntries, unknowns: Unknowns
) -> tuple[BlockMatrix, BlockMatrix]:
    """H and M.

    Between row j of mode m and row k of mode n they have A_kr A_js sum_i w_i C_ir C_is, with the
    sum over the entries of both rows and C the products of the rows of all other modes.
    """
    shape, rank, mode, slices = unknowns.shape, unknowns.rank, unknowns.longest, unknowns.slices
    factors, q = weighted.factors, unknowns.other_count
    E, D = np.zeros((2, shape[mode], rank, rank)), np.zeros((2, q, q))
    B = np.zeros((2, shape[mode], rank, q))
    sums = {
        (m, n): np.zeros((2, shape[m] * (shape[n] if m < n else 1), rank * (rank + 1) // 2))
        for m in slices
        for n in slices
        if m <= n
    }
    for rows, entries, weights in weighted.batches(mode):
        index, count = entries.indices, rows.stop - rows.start
        K = weighted.pair_products(rows, entries, mode, mode)
        E[:, rows] = _unpack(_sum_by_index(index[mode], count, weights, K))
        for m, part in slices.items():
            K = weighted.pair_products(rows, entries, mode, mode, m)
            Z = _sum_by_index(index[mode] * shape[m] + index[m], count * shape[m], weights, K)
            B[:, rows, :, part] = _coupling_blocks(Z, factors[mode][rows], factors[m])
        for (m, n), total in sums.items():
            K = weighted.pair_products(rows, entries, mode, m, n)
            group = index[m] * shape[n] + index[n] if m < n else index[m]
            total += _sum_by_index(group, total.shape[1], weights, K)
    for (m, n), total in sums.items():
        if m == n:
            diagonal, k = np.zeros((2, shape[m], rank, shape[m], rank)), np.arange(shape[m])
            diagonal[:, k, :, k] = _unpack(total).swapaxes(0, 1)
            D[:, slices[m], slices[m]] = diagonal.reshape(2, shape[m] * rank, -1)
        else:
            block = _coupling_blocks(total, factors[m], factors[n]).reshape(2, shape[m] * rank, -1)
            D[:, slices[m], slices[n]], D[:, slices[n], slices[m]] = block, block.swapaxes(1, 2)
    return BlockMatrix(E[0], B[0], D[0]), BlockMatrix(E[1], B[1], D[1])


def _coupling_blocks(sums: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The off-diagonal blocks of two modes, from sums over their pairs of rows: (2, I, R, J R)."""
    (i, r), j = A.shape, len(B)
    blocks = np.einsum("hijrs,jr,is->hirjs", _unpack(sums).reshape(2, i, j, r, r), B, A)
    return np.asarray(blocks.reshape(2, i, r, j * r))


@dataclass(frozen=True, eq=False)
class GeneralizedInverse:
    """A generalized inverse of H: diag(E^-1, 0) + V S^-1 V', V = (-T, 1), T = E^-1 B, S = D - B' T.

    Attributes
    ----------
    unknowns : Unknowns
    E : array (I, R, R)
    T : array (I, R, q)
    S : array (q, q)
        The inverses of E and S, and T.
    observed : list of boolean arrays (I_n, R), one for each mode
        The unknowns that the data has any information on; the others are held.
    undetermined_directions : array (q, count)
        Directions of the rest that the data does not determine, without the norms of columns.
    """

    unknowns: Unknowns
    E: np.ndarray
    T: np.ndarray
    S: np.ndarray
    observed: list[np.ndarray]
    undetermined_directions: np.ndarray

    @property
    def determined(self) -> bool:
        """Whether the data determines all unknowns up to the norms of columns."""
        return not self.undetermined_directions.size

    @classmethod
    def of(
        cls,
        H: BlockMatrix,
        unknowns: Unknowns,
        factors: Sequence[np.ndarray],
        prior: Sequence[np.ndarray] | None = None,
    ) -> GeneralizedInverse:
        import scipy.linalg

        diagonals = unknowns.merge(np.einsum("irr->ir", H.E), np.diagonal(H.D))
        observed = [d > DIAGONAL_LIFT * np.max(d) for d in diagonals]
        gauge = _gauge_vectors(factors, unknowns, H.D)
        if prior is not None:
            H = H.add_diagonal(unknowns.split(prior))
        lift = [~seen + DIAGONAL_LIFT * d for seen, d in zip(observed, diagonals, strict=True)]
        H = H.add_diagonal(unknowns.split(lift))
        E = np.linalg.inv(H.E)
        T = E @ H.B
        S = H.D + gauge @ gauge.T - _flatten_blocks(T).T @ _flatten_blocks(H.B)
        units = 1 / np.sqrt(np.maximum(np.diagonal(S), DIAGONAL_LIFT * np.diagonal(H.D)))
        S *= units[:, None] * units
        values, vectors = scipy.linalg.eigh(S, driver="evd", overwrite_a=True)
        vectors *= units[:, None]
        determined = values > UNDETERMINED_EIGENVALUE
        S = (vectors[:, determined] / values[determined]) @ vectors[:, determined].T
        return cls(unknowns, E, T, S, observed, vectors[:, ~determined])

    def undetermined_entries(self, factors: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Which entries of unit columns change along undetermined directions."""
        moves = [np.zeros_like(A) for A in factors]
        for x in self.undetermined_directions.T:
            steps = self.unknowns.merge(-self.T @ x, x)
            for n, (A, d) in enumerate(zip(factors, steps, strict=True)):
                U, sizes = normalize_columns(A)
                moves[n] = np.maximum(moves[n], np.abs(d - U * np.sum(U * d, axis=0)) / sizes)
        largest = max(move.max() for move in moves)
        return [move > MIN_MOVEMENT * largest for move in moves]

    def multiply(self, by_mode: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The product with arrays (I_n, R) of each mode."""
        longest, others = self.unknowns.split(by_mode)
        x = self.S @ (others - _flatten_blocks(self.T).T @ longest.ravel())
        return self.unknowns.merge((self.E @ longest[:, :, None])[:, :, 0] - self.T @ x, x)


@dataclass(frozen=True, eq=False)
class SandwichCovariance:
    """An inverse of H, times M, times the inverse again."""

    inverse: GeneralizedInverse
    M: BlockMatrix

    @cached_property
    def other_covariance(self) -> np.ndarray:
        """The covariance of the unknowns of all modes but the longest."""
        T, M, S = _flatten_blocks(self.inverse.T), self.M, self.inverse.S
        cross = T.T @ _flatten_blocks(M.B)
        middle = M.D - cross - cross.T + T.T @ _flatten_blocks(M.E @ self.inverse.T)
        return np.asarray(S @ middle @ S)

    @cached_property
    def _longest_diagonal(self) -> np.ndarray:
        return np.asarray(np.einsum("irr->ir", self.inverse.E @ self.M.E @ self.inverse.E))

    @cached_property
    def _cross_covariance(self) -> np.ndarray:
        left = self.M.B - self.M.E @ self.inverse.T
        return np.asarray(self.inverse.E @ left @ self.inverse.S)

    def longest_column(self, r: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The covariance of column r of the longest mode: its diagonal, and its product with u."""
        own_variance = self._longest_diagonal[:, r]
        cross, T = self._cross_covariance[:, r], self.inverse.T[:, r]
        through = T @ self.other_covariance
        diagonal = own_variance + np.sum((through - 2 * cross) * T, axis=1)
        return diagonal, own_variance * u + (through - cross) @ (T.T @ u) - T @ (cross.T @ u)

    @cached_property
    def longest_with_others(self) -> np.ndarray:
        """The covariance of the rows of the longest mode with the rest: (I, R, q)."""
        return np.asarray(self._cross_covariance - self.inverse.T @ self.other_covariance)

    @cached_property
    def longest_blocks(self) -> np.ndarray:
        """The covariances of the rows of the longest mode: (I, R, R)."""
        T, E = self.inverse.T, self.inverse.E
        through = (self.longest_with_others - self._cross_covariance) @ T.swapaxes(1, 2)
        cross = self._cross_covariance @ T.swapaxes(1, 2)
        return np.asarray(E @ self.M.E @ E - cross - cross.swapaxes(1, 2) - through)


def _flatten_blocks(blocks: np.ndarray) -> np.ndarray:
    return blocks.reshape(-1, blocks.shape[-1])


def _joint_sandwich(
    weighted: WeightedEntries, unknowns: Unknowns, prior: Sequence[np.ndarray], unit: float
) -> SandwichCovariance:
    H, M = _information_matrices(weighted, unknowns)
    inverse = GeneralizedInverse.of(H, unknowns, weighted.factors, prior)
    prior_variance = unknowns.split([unit * ridge for ridge in prior])
    return SandwichCovariance(inverse, M.add_diagonal(prior_variance))


def _joint_covariance(
    weighted: WeightedEntries, unknowns: Unknowns, prior: Sequence[np.ndarray], unit: float
) -> Covariance:
    """The covariance of all factors jointly."""
    sandwich = _joint_sandwich(weighted, unknowns, prior, unit)
    inverse = sandwich.inverse
    variances, undetermined = [], inverse.undetermined_entries(weighted.factors)
    for n, A in enumerate(weighted.factors):
        U, sizes = normalize_columns(A)
        columns = []
        for r, u in enumerate(U.T):
            if n == unknowns.longest:
                diagonal, product = sandwich.longest_column(r, u)
            else:
                part = unknowns.slices[n]
                column = slice(part.start + r, part.stop, unknowns.rank)
                C = sandwich.other_covariance[column, column]
                diagonal, product = np.diagonal(C), C @ u
            columns.append(diagonal - 2 * u * product + u * u * (u @ product))
        V = np.maximum(np.stack(columns, axis=1), 0.0) / sizes**2
        variances.append(np.where(inverse.observed[n] & ~undetermined[n], V, np.inf))
    return Covariance(tuple(variances), True, inverse.determined)


def _gauge_vectors(factors: Sequence[np.ndarray], unknowns: Unknowns, D: np.ndarray) -> np.ndarray:
    """Vectors whose outer products fix the norms of the columns of all modes but the longest."""
    rank = unknowns.rank
    vectors = np.zeros((unknowns.other_count, rank * len(unknowns.slices)))
    for k, (n, part) in enumerate(unknowns.slices.items()):
        for r, a in enumerate(factors[n].T):
            indices = np.arange(part.start, part.stop)[r::rank]
            curvature, square = a @ D[np.ix_(indices, indices)] @ a, a @ a
            if curvature > 0:
                vectors[indices, k * rank + r] = np.sqrt(GAUGE_STRENGTH * curvature) / square * a
    return vectors


def normalize_columns(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit columns and the norms of the columns, with norm 1 for a column of zeros."""
    sizes = np.linalg.norm(A, axis=0)
    sizes = np.where(sizes > 0, sizes, 1.0)
    return A / sizes, sizes


# Each row by itself


def _rowwise_covariance(
    weighted: WeightedEntries, prior: Sequence[np.ndarray], unit: float
) -> Covariance:
    """The covariance of each row, given all other rows."""
    variances, determined = [], True
    rows = _row_covariances(weighted, prior, unit)
    for A, (C, observed, own_determined) in zip(weighted.factors, rows, strict=True):
        determined &= own_determined
        U, sizes = normalize_columns(A)
        V, square = np.einsum("irr->ir", C) / sizes**2, U * U
        V = V - 2 * square * V + square * np.sum(square * V, axis=0)
        variances.append(np.where(observed, np.maximum(V, 0.0), np.inf))
    return Covariance(tuple(variances), False, determined)


def _row_covariances(
    weighted: WeightedEntries, prior: Sequence[np.ndarray], unit: float
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """For each mode the covariances of its rows (I_n, R, R), given all other rows; which of their
    entries the data has any information on (I_n, R); and whether it determines all rows."""
    for mode, A in enumerate(weighted.factors):
        H, M = weighted.row_blocks(mode)
        diagonal, eye = np.einsum("irr->ir", H), np.eye(A.shape[1])
        observed = diagonal > DIAGONAL_LIFT * np.max(diagonal)
        H = H + (prior[mode] + DIAGONAL_LIFT * diagonal + ~observed)[:, :, None] * eye
        G, M = np.linalg.inv(H), M + unit * prior[mode][:, :, None] * eye
        smallest, trace = np.linalg.eigvalsh(H)[:, 0], np.trace(H, axis1=1, axis2=2)
        determined = bool(np.all(smallest > UNDETERMINED_EIGENVALUE * trace))
        yield G @ M @ G, observed, determined


# Entries of the model


@dataclass(frozen=True, eq=False)
class EntryVariances(ABC):
    """The variances of a model's entries: j' C j, with j the derivatives of an entry.

    Attributes
    ----------
    factors : sequence of float64 array (I_n, R)
    """

    factors: Sequence[np.ndarray]

    @property
    @abstractmethod
    def joint(self) -> bool:
        """Whether the covariance is that of all factors jointly."""

    @abstractmethod
    def _batch(self, indices: Sequence[np.ndarray], slopes: list[np.ndarray]) -> np.ndarray:
        """The variances of a few entries with these derivatives in the rows of each mode."""

    def at(self, indices: Sequence[np.ndarray]) -> np.ndarray:
        """The variances of some entries; infinite where the data does not determine them."""
        rank, count = self.factors[0].shape[1], len(indices[0])
        step = max(1, BATCH_ENTRIES * 64 // (64 + rank * rank))
        variances = np.empty(count)
        for first in range(0, count, step):
            part = [index[first : first + step] for index in indices]
            slopes = [self._slopes(part, mode) for mode in range(len(self.factors))]
            variances[first : first + step] = self._batch(part, slopes)
        return np.maximum(variances, 0.0)

    def _slopes(self, indices: Sequence[np.ndarray], mode: int) -> np.ndarray:
        """The derivatives of entries in their row of a mode: (count, R)."""
        others = [n for n in range(len(self.factors)) if n != mode]
        return np.asarray(
            row_products([self.factors[n] for n in others], [indices[n] for n in others])
        )


@dataclass(frozen=True, eq=False)
class JointEntryVariances(EntryVariances):
    """Variances by the joint covariance of all factors."""

    sandwich: SandwichCovariance
    joint: ClassVar[bool] = True

    def _batch(self, indices: Sequence[np.ndarray], slopes: list[np.ndarray]) -> np.ndarray:
        inverse, unknowns = self.sandwich.inverse, self.sandwich.inverse.unknowns
        longest, rank, modes = unknowns.longest, unknowns.rank, list(unknowns.slices)
        rows, own = indices[longest], slopes[longest]
        variances = np.einsum("er,ers,es->e", own, self.sandwich.longest_blocks[rows], own)
        cross, C = self.sandwich.longest_with_others, self.sandwich.other_covariance
        columns = {
            n: unknowns.slices[n].start + rank * indices[n][:, None] + np.arange(rank)
            for n in modes
        }
        for k, n in enumerate(modes):
            blocks = cross[rows[:, None, None], np.arange(rank)[:, None], columns[n][:, None, :]]
            variances += 2 * np.einsum("er,ers,es->e", own, blocks, slopes[n])
            for m in modes[: k + 1]:
                blocks = C[columns[m][:, :, None], columns[n][:, None, :]]
                factor = 1 if m == n else 2
                variances += factor * np.einsum("er,ers,es->e", slopes[m], blocks, slopes[n])
        unknown = np.zeros(len(rows), dtype=bool)
        for n, observed in enumerate(inverse.observed):
            unknown |= ~np.all(observed[indices[n]], axis=1)
        for change, largest in self._undetermined_changes(indices, slopes):
            unknown |= np.abs(change) > MIN_MOVEMENT * largest
        return np.where(unknown, np.inf, variances)

    def _undetermined_changes(
        self, indices: Sequence[np.ndarray], slopes: list[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, float]]:
        """By how much entries change along each undetermined direction, and a bound of that."""
        inverse = self.sandwich.inverse
        for x in inverse.undetermined_directions.T:
            steps = inverse.unknowns.merge(-inverse.T @ x, x)
            parts = [slope * d[i] for slope, d, i in zip(slopes, steps, indices, strict=True)]
            change = np.sum([part.sum(axis=1) for part in parts], axis=0)
            sizes = [np.abs(A).max(axis=0) for A in self.factors]
            bounds = [
                np.abs(d).max(axis=0) * math.prod(sizes[:n] + sizes[n + 1 :])
                for n, d in enumerate(steps)
            ]
            yield change, float(np.sum(bounds))


@dataclass(frozen=True, eq=False)
class RowwiseEntryVariances(EntryVariances):
    """Variances by the covariance of each row, as if those of other modes were known."""

    rows: Sequence[tuple[np.ndarray, np.ndarray, bool]]
    joint: ClassVar[bool] = False

    def _batch(self, indices: Sequence[np.ndarray], slopes: list[np.ndarray]) -> np.ndarray:
        variances = np.zeros(len(indices[0]))
        for index, slope, (C, observed, _) in zip(indices, slopes, self.rows, strict=True):
            variances += np.einsum("er,ers,es->e", slope, C[index], slope)
            variances[~np.all(observed[index], axis=1)] = np.inf
        return variances
