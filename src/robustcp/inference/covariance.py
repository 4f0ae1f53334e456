"""The covariance of a fit's factors: asymptotic normality of M-estimators, jointly over all modes.

A fit minimises sum_i rho(r_i / u_i) over the factors, with u_i the scale of an entry's noise. With
J the Jacobian of the model's entries in all entries of the factors, their covariance is H^+ M H^+,

    H = c J' diag(w_i / u_i^2) J,    M = J' diag(psi_i^2 / u_i^2 / (1 - h_i)^2) J,

where psi = rho', w = psi(r) / r, and c = sum psi' / sum w corrects weights to what the second
derivative is on average. psi' is taken by differences over a width that shrinks with the number of
entries: for the 1-norm that is twice the density of the residuals at 0. The p smallest are left
out of it, for p unknowns: of the 1-norm these are 0, whatever the noise is.

Residuals are smaller than the noise, since the model was fitted to them. Divided by 1 - h_i, with
h_i the leverage of the entry, they are what they would be if it had been left out (HC3 of MacKinnon
and White).

The size that a component may move from one mode to another is a null direction of H, along which
unit columns do not change: any generalized inverse will do.

A prior of rows adds its ridge to H and, being as wrong as it says itself, its variance to M.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from robustcp.engines import Engine, Sample
from robustcp.engines.normal_equations import pack_indices, unpack_indices
from robustcp.losses import Loss
from robustcp.optimize.row_prior import RowPosterior

#: The most unknowns that are solved for together, besides those of the longest mode.
MAX_JOINT_UNKNOWNS = 4000
#: The most numbers that couple them with the longest mode.
MAX_COUPLING_NUMBERS = 1 << 26
#: Entries that are worked on at a time.
BATCH_ENTRIES = 1 << 15
#: The width of differences by which slopes are derived: in standard deviations of the residuals,
#: times n^(1/5).
DIFFERENCE_WIDTH = 1.2
#: The largest share of residuals that count as met by the model.
MAX_INTERPOLATED_SHARE = 0.1
#: Residuals weigh as if they were no smaller than so many standard deviations.
RESIDUAL_FLOOR = 0.1
#: What holds the sizes of columns, relative to what the data says of them.
GAUGE_STRENGTH = 1e-4
#: What is added to diagonals, relatively.
DIAGONAL_LIFT = 1e-12
#: A direction whose eigenvalue is smaller is not determined.
UNDETERMINED_EIGENVALUE = 1e-9
#: Entries that move less than this along such a direction, of what moves most, stand still.
MIN_MOVEMENT = 1e-5
#: Second derivatives are no smaller than this share of the weights.
MIN_CURVATURE_CORRECTION = 1e-3


@dataclass(frozen=True, eq=False)
class Covariance:
    """What is known of the errors of a model's unit columns.

    Attributes
    ----------
    variances : tuple of float64 array (I_n, R), one for each mode
        Of the entries of the unit columns; infinite where there is no data, or where it does not
        determine them.
    joint : bool
        Whether the errors of the other factors are allowed for.
    determined : bool
        Whether the data determines all factors, but for their sizes.
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
    """The covariance of factors at which a loss is least.

    Parameters
    ----------
    engine : Engine
        The data, with residuals in units of their noise where that differs.
    factors : sequence of float64 array (I_n, R)
        On the host, weights and all.
    loss : Loss
    posterior : Known
        What is known of the rows, each mode by itself.
    unit : float
        The loss is so many times a negative log likelihood, where rows have a prior.
    """
    entries = WeightedEntries.of(engine, factors, loss, posterior)
    ridges = posterior.prior(unit).ridges
    prior = [
        np.zeros_like(A) if ridge is None else np.broadcast_to(ridge, A.shape)
        for A, ridge in zip(factors, ridges, strict=True)
    ]
    unknowns = Unknowns.of(engine.shape, factors[0].shape[1])
    if not unknowns.solvable_jointly:
        return _rowwise_covariance(entries, prior, unit)
    return _joint_covariance(entries, unknowns, prior, unit)


def newton_inverse(
    engine: Engine, factors: Sequence[np.ndarray], loss: Loss, posterior: RowPosterior
) -> GeneralizedInverse | None:
    """What takes slopes to steps, near factors at which a loss is least; None if that is too much.

    The parameters are those of `covariance`.
    """
    unknowns = Unknowns.of(engine.shape, factors[0].shape[1])
    if not unknowns.solvable_jointly:
        return None
    H, _ = _information_matrices(WeightedEntries.of(engine, factors, loss, posterior), unknowns)
    return GeneralizedInverse.of(H, unknowns, factors)


@dataclass(frozen=True, eq=False)
class WeightedEntries:
    """The entries of the data, and what they weigh in H and M.

    Attributes
    ----------
    engine, factors, loss, known
        As in `covariance`.
    residual_floor : float
        Residuals weigh as if they were no smaller than this.
    c : float
        What weights are corrected by.
    mean_weight : float
        What an entry weighs on average.
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
        accepted = r[np.abs(r) <= loss.rejects] if np.any(np.abs(r) <= loss.rejects) else r
        scale = max(1.4826 * float(np.median(np.abs(accepted))), 1e-9 * engine.max_abs, 1e-300)
        residual_floor, h = RESIDUAL_FLOOR * scale, DIFFERENCE_WIDTH * scale * accepted.size**-0.2
        p = factors[0].shape[1] * (sum(engine.shape) - engine.order + 1) / engine.count
        remaining = r[np.abs(r) >= np.quantile(np.abs(r), min(p, MAX_INTERPOLATED_SHARE))]
        slope_derivative = (loss.slope(remaining + h) - loss.slope(remaining - h)) / (2 * h)
        c = float(np.mean(slope_derivative) / np.mean(_weights(loss, r, residual_floor)))
        mean_weight = float(np.mean(_weights(loss, accepted, residual_floor)))
        return cls(
            engine,
            factors,
            loss,
            posterior,
            residual_floor,
            max(c, MIN_CURVATURE_CORRECTION),
            mean_weight,
        )

    def batches(self, mode: int) -> Iterator[tuple[slice, Sample, np.ndarray]]:
        """Rows of a mode, their entries, and what these weigh in H and in M, (2, count)."""
        counts, order = self.engine.slab_counts(mode), self.engine.order
        step = max(1, int(BATCH_ENTRIES / max(float(counts.mean()), 1.0)))
        for first in range(0, counts.size, step):
            rows = slice(first, min(first + step, counts.size))
            if not counts[rows].any():
                continue
            indices = [
                np.arange(rows.start, rows.stop) if n == mode else None for n in range(order)
            ]
            subtensor = self.engine.subtensor(indices)
            part_factors = tuple(A[rows] if n == mode else A for n, A in enumerate(self.factors))
            entries = subtensor.entries(_to_engine(subtensor, part_factors))
            r = entries.values
            omega = np.ones_like(r) if entries.weights is None else entries.weights
            scale = omega if entries.scales is None else omega / entries.scales**2
            h = self.posterior.subset(indices).leverages(
                entries, part_factors, self.mean_weight * scale
            )
            weights, slope = (
                _weights(self.loss, r, self.residual_floor),
                self.loss.slope(r) / (1 - h),
            )
            yield rows, entries, np.stack([self.c * weights * scale, slope**2 * omega * scale])

    @cached_property
    def _row_pair_products(self) -> list[np.ndarray]:
        """Of each row of each factor, A_r A_s (packed)."""
        i, j = pack_indices(self.factors[0].shape[1])
        return [np.ascontiguousarray(A[:, i] * A[:, j]) for A in self.factors]

    def pair_products(self, rows: slice, entries: Sample, mode: int, *excluded: int) -> np.ndarray:
        """For each entry of such a piece, K_r K_s (packed), K the product of the other rows."""
        product = None
        for n, (squares, index) in enumerate(
            zip(self._row_pair_products, entries.indices, strict=True)
        ):
            if n not in excluded:
                gathered = np.take(squares[rows] if n == mode else squares, index, axis=0)
                product = (
                    gathered if product is None else np.multiply(product, gathered, out=product)
                )
        return (
            np.ones((entries.values.size, self._row_pair_products[0].shape[1]))
            if product is None
            else product
        )

    def row_blocks(self, mode: int) -> np.ndarray:
        """The blocks of a mode's rows, each with itself, in H and in M: (2, I_n, R, R)."""
        size, rank = self.factors[mode].shape
        blocks = np.zeros((2, size, rank, rank))
        for rows, entries, weights in self.batches(mode):
            K = self.pair_products(rows, entries, mode, mode)
            blocks[:, rows] = _unpack(
                _sum_by_index(entries.indices[mode], rows.stop - rows.start, weights, K)
            )
        return blocks


def _to_engine(engine: Engine, factors: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(engine.asarray(A) for A in factors)


def _weights(loss: Loss, r: np.ndarray, floor: float) -> np.ndarray:
    """psi(r) / r, for residuals that are no smaller than some size."""
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
        Where the entries of its factor are, row by row.
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
        """Whether they can be solved for together."""
        longest_count = self.rank * self.shape[self.longest]
        return (
            self.other_count <= MAX_JOINT_UNKNOWNS
            and self.other_count * longest_count <= MAX_COUPLING_NUMBERS
        )

    @property
    def other_count(self) -> int:
        return self.rank * (sum(self.shape) - self.shape[self.longest])

    def split(self, by_mode: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (I_n, R) for each mode: those of the longest, and of the rest in a row."""
        return by_mode[self.longest], np.concatenate([by_mode[n].ravel() for n in self.slices])

    def merge(self, longest: np.ndarray, others: np.ndarray) -> list[np.ndarray]:
        """The numbers for each mode, from such parts."""
        return [
            others[self.slices[n]].reshape(size, self.rank) if n in self.slices else longest
            for n, size in enumerate(self.shape)
        ]


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """A symmetric matrix of all unknowns, but for what the longest mode's rows have in common.

    Attributes
    ----------
    E : array (I, R, R)
        Of each row of the longest mode with itself; with those of others it is 0.
    B : array (I, R, q)
        Of these rows with the rest.
    D : array (q, q)
        Of the rest.
    """

    E: np.ndarray
    B: np.ndarray
    D: np.ndarray

    def add_diagonal(self, diagonal: tuple[np.ndarray, np.ndarray]) -> BlockMatrix:
        """With numbers added to the diagonal; see `Unknowns.split`."""
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
    factors = weighted.factors
    E, D = (
        np.zeros((2, shape[mode], rank, rank)),
        np.zeros((2, unknowns.other_count, unknowns.other_count)),
    )
    B = np.zeros((2, shape[mode], rank, unknowns.other_count))
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
            diagonal_block = np.zeros((2, shape[m], rank, shape[m], rank))
            diagonal_block[:, np.arange(shape[m]), :, np.arange(shape[m])] = _unpack(
                total
            ).swapaxes(0, 1)
            D[:, slices[m], slices[m]] = diagonal_block.reshape(2, shape[m] * rank, -1)
        else:
            block = _coupling_blocks(total, factors[m], factors[n]).reshape(2, shape[m] * rank, -1)
            D[:, slices[m], slices[n]], D[:, slices[n], slices[m]] = block, block.swapaxes(1, 2)
    return BlockMatrix(E[0], B[0], D[0]), BlockMatrix(E[1], B[1], D[1])


def _coupling_blocks(sums: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """What two modes with these rows have with each other: (2, I, R, J R)."""
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
        Which unknowns the data says anything about; the others are as good as held.
    undetermined_directions : array (q, count)
        Directions of the rest that the data does not determine, sizes of columns aside.
    """

    unknowns: Unknowns
    E: np.ndarray
    T: np.ndarray
    S: np.ndarray
    observed: list[np.ndarray]
    undetermined_directions: np.ndarray

    @property
    def determined(self) -> bool:
        """Whether the data determines all, but for the sizes of columns."""
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
        H = H.add_diagonal(
            unknowns.split(
                [
                    1.0 - observed_part + DIAGONAL_LIFT * d
                    for observed_part, d in zip(observed, diagonals, strict=True)
                ]
            )
        )
        E = np.linalg.inv(H.E)
        T = E @ H.B
        S = H.D + gauge @ gauge.T - _flatten_blocks(T).T @ _flatten_blocks(H.B)
        units = 1 / np.sqrt(np.maximum(np.diagonal(S), DIAGONAL_LIFT * np.diagonal(H.D)))
        S *= units[:, None] * units
        values, vectors = scipy.linalg.eigh(S, driver="evd", overwrite_a=True)
        vectors *= units[:, None]
        determined, undetermined = (
            vectors[:, values > UNDETERMINED_EIGENVALUE],
            vectors[:, values <= UNDETERMINED_EIGENVALUE],
        )
        S = (determined / values[values > UNDETERMINED_EIGENVALUE]) @ determined.T
        return cls(unknowns, E, T, S, observed, undetermined)

    def undetermined_entries(self, factors: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Which entries of unit columns move along directions that are not determined."""
        moves = [np.zeros_like(A) for A in factors]
        for x in self.undetermined_directions.T:
            steps = self.unknowns.merge(-self.T @ x, x)
            for n, (A, d) in enumerate(zip(factors, steps, strict=True)):
                U, sizes = normalize_columns(A)
                moves[n] = np.maximum(moves[n], np.abs(d - U * np.sum(U * d, axis=0)) / sizes)
        largest = max(move.max() for move in moves)
        return [move > MIN_MOVEMENT * largest for move in moves]

    def multiply(self, by_mode: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The product with numbers (I_n, R) for each mode."""
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
        """Of the unknowns that are not those of the longest mode."""
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
        """Of column r of the longest mode: the diagonal, and the product with a vector."""
        own_variance, cross, T = (
            self._longest_diagonal[:, r],
            self._cross_covariance[:, r],
            self.inverse.T[:, r],
        )
        through = T @ self.other_covariance
        diagonal = own_variance + np.sum((through - 2 * cross) * T, axis=1)
        return diagonal, own_variance * u + (through - cross) @ (T.T @ u) - T @ (cross.T @ u)


def _flatten_blocks(blocks: np.ndarray) -> np.ndarray:
    return blocks.reshape(-1, blocks.shape[-1])


def _joint_covariance(
    weighted: WeightedEntries, unknowns: Unknowns, prior: Sequence[np.ndarray], unit: float
) -> Covariance:
    """The covariance of all factors together."""
    H, M = _information_matrices(weighted, unknowns)
    inverse = GeneralizedInverse.of(H, unknowns, weighted.factors, prior)
    sandwich = SandwichCovariance(
        inverse, M.add_diagonal(unknowns.split([unit * ridge for ridge in prior]))
    )
    variances, undetermined = [], inverse.undetermined_entries(weighted.factors)
    for n, A in enumerate(weighted.factors):
        U, sizes = normalize_columns(A)
        columns = []
        for r, u in enumerate(U.T):
            if n == unknowns.longest:
                diagonal, product = sandwich.longest_column(r, u)
            else:
                C = sandwich.other_covariance[unknowns.slices[n], unknowns.slices[n]][
                    r :: U.shape[1], r :: U.shape[1]
                ]
                diagonal, product = np.diagonal(C), C @ u
            columns.append(diagonal - 2 * u * product + u * u * (u @ product))
        V = np.maximum(np.stack(columns, axis=1), 0.0) / sizes**2
        variances.append(np.where(inverse.observed[n] & ~undetermined[n], V, np.inf))
    return Covariance(tuple(variances), True, inverse.determined)


def _gauge_vectors(factors: Sequence[np.ndarray], unknowns: Unknowns, D: np.ndarray) -> np.ndarray:
    """Vectors that hold the sizes of the columns of all modes but the longest."""
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
    """The covariance of each row given all others."""
    variances, determined = [], True
    for mode, A in enumerate(weighted.factors):
        H, M = weighted.row_blocks(mode)
        diagonal, eye = np.einsum("irr->ir", H), np.eye(A.shape[1])
        observed = diagonal > DIAGONAL_LIFT * np.max(diagonal)
        H = H + (prior[mode] + DIAGONAL_LIFT * diagonal + ~observed)[:, :, None] * eye
        G, M = np.linalg.inv(H), M + unit * prior[mode][:, :, None] * eye
        smallest, trace = np.linalg.eigvalsh(H)[:, 0], np.trace(H, axis1=1, axis2=2)
        determined &= bool(np.all(smallest > UNDETERMINED_EIGENVALUE * trace))
        U, sizes = normalize_columns(A)
        V, square = np.einsum("irr->ir", G @ M @ G) / sizes**2, U * U
        V = V - 2 * square * V + square * np.sum(square * V, axis=0)
        variances.append(np.where(observed, np.maximum(V, 0.0), np.inf))
    return Covariance(tuple(variances), False, determined)
