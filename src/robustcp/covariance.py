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
from robustcp.losses import Loss
from robustcp.normal import pack_indices, unpack_indices
from robustcp.priors import Known

#: The most unknowns that are solved for together, besides those of the longest mode; and the most
#: numbers that couple them with that mode.
TOGETHER, COUPLING = 4000, 1 << 26
#: Entries that are worked on at a time.
PIECE = 1 << 15
#: The width of differences by which slopes are derived: in standard deviations of the residuals,
#: times n^(1/5).
WIDTH = 1.2
#: The largest share of residuals that count as met by the model.
MET = 0.1
#: Residuals weigh as if they were no smaller than so many standard deviations.
NEAR = 0.1
#: What holds the sizes of columns, relative to what the data says of them.
GAUGE = 1e-4
#: What is added to diagonals, relatively; a direction that is not held better is not determined.
LIFT, LOOSE = 1e-12, 1e-9
#: Entries that move less than this along such a direction, of what moves most, stand still.
STILL = 1e-5
#: Second derivatives are no smaller than this share of the weights.
LEAST = 1e-3


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
    known: Known,
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
    known : Known
        What is known of the rows, each mode by itself.
    unit : float
        The loss is so many times a negative log likelihood, where rows have a prior.
    """
    weighed = Weighed.of(engine, factors, loss, known)
    ridges = known.prior(unit).ridges
    prior = [
        np.zeros_like(A) if ridge is None else np.broadcast_to(ridge, A.shape)
        for A, ridge in zip(factors, ridges, strict=True)
    ]
    unknowns = Unknowns.of(engine.shape, factors[0].shape[1])
    if not unknowns.few:
        return _row_by_row(weighed, prior, unit)
    return _jointly(weighed, unknowns, prior, unit)


def newton(
    engine: Engine, factors: Sequence[np.ndarray], loss: Loss, known: Known
) -> Inverse | None:
    """What takes slopes to steps, near factors at which a loss is least; None if that is too much.

    The parameters are those of `covariance`.
    """
    unknowns = Unknowns.of(engine.shape, factors[0].shape[1])
    if not unknowns.few:
        return None
    H, _ = _information(Weighed.of(engine, factors, loss, known), unknowns)
    return Inverse.of(H, unknowns, factors)


@dataclass(frozen=True, eq=False)
class Weighed:
    """The entries of the data, and what they weigh in H and M.

    Attributes
    ----------
    engine, factors, loss, known
        As in `covariance`.
    near : float
        Residuals weigh as if they were no smaller than this.
    c : float
        What weights are corrected by.
    usual : float
        What an entry weighs on average.
    """

    engine: Engine
    factors: Sequence[np.ndarray]
    loss: Loss
    known: Known
    near: float
    c: float
    usual: float

    @classmethod
    def of(cls, engine: Engine, factors: Sequence[np.ndarray], loss: Loss, known: Known) -> Weighed:
        r = engine.sample(_on(engine, factors)).values
        fit = r[np.abs(r) <= loss.rejects] if np.any(np.abs(r) <= loss.rejects) else r
        size = max(1.4826 * float(np.median(np.abs(fit))), 1e-9 * engine.largest, 1e-300)
        near, h = NEAR * size, WIDTH * size * fit.size**-0.2
        p = factors[0].shape[1] * (sum(engine.shape) - engine.order + 1) / engine.count
        rest = r[np.abs(r) >= np.quantile(np.abs(r), min(p, MET))]
        rise = (loss.slope(rest + h) - loss.slope(rest - h)) / (2 * h)
        c = float(np.mean(rise) / np.mean(_weights(loss, r, near)))
        usual = float(np.mean(_weights(loss, fit, near)))
        return cls(engine, factors, loss, known, near, max(c, LEAST), usual)

    def pieces(self, mode: int) -> Iterator[tuple[slice, Sample, np.ndarray]]:
        """Rows of a mode, their entries, and what these weigh in H and in M, (2, count)."""
        counts, order = self.engine.counts(mode), self.engine.order
        step = max(1, int(PIECE / max(float(counts.mean()), 1.0)))
        for first in range(0, counts.size, step):
            rows = slice(first, min(first + step, counts.size))
            if not counts[rows].any():
                continue
            at = [np.arange(rows.start, rows.stop) if n == mode else None for n in range(order)]
            part = self.engine.subtensor(at)
            held = tuple(A[rows] if n == mode else A for n, A in enumerate(self.factors))
            entries = part.entries(_on(part, held))
            r = entries.values
            omega = np.ones_like(r) if entries.weights is None else entries.weights
            scale = omega if entries.scales is None else omega / entries.scales**2
            h = self.known.part(at).leverages(entries, held, self.usual * scale)
            weights, slope = _weights(self.loss, r, self.near), self.loss.slope(r) / (1 - h)
            yield rows, entries, np.stack([self.c * weights * scale, slope**2 * omega * scale])

    @cached_property
    def _squares(self) -> list[np.ndarray]:
        """Of each row of each factor, A_r A_s (packed)."""
        i, j = pack_indices(self.factors[0].shape[1])
        return [np.ascontiguousarray(A[:, i] * A[:, j]) for A in self.factors]

    def products(self, rows: slice, entries: Sample, mode: int, *without: int) -> np.ndarray:
        """For each entry of such a piece, K_r K_s (packed), K the product of the other rows."""
        found = None
        for n, (squares, index) in enumerate(zip(self._squares, entries.indices, strict=True)):
            if n not in without:
                taken = np.take(squares[rows] if n == mode else squares, index, axis=0)
                found = taken if found is None else np.multiply(found, taken, out=found)
        return np.ones((entries.values.size, self._squares[0].shape[1])) if found is None else found

    def of_rows(self, mode: int) -> np.ndarray:
        """The blocks of a mode's rows, each with itself, in H and in M: (2, I_n, R, R)."""
        size, rank = self.factors[mode].shape
        found = np.zeros((2, size, rank, rank))
        for rows, entries, weights in self.pieces(mode):
            K = self.products(rows, entries, mode, mode)
            found[:, rows] = _full(
                _summed(entries.indices[mode], rows.stop - rows.start, weights, K)
            )
        return found


def _on(engine: Engine, factors: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(engine.asarray(A) for A in factors)


def _weights(loss: Loss, r: np.ndarray, near: float) -> np.ndarray:
    """psi(r) / r, for residuals that are no smaller than some size."""
    r = np.where(np.abs(r) < near, np.copysign(near, r), r)
    return np.asarray(loss.slope(r) / r)


def _summed(index: np.ndarray, size: int, weights: np.ndarray, K: np.ndarray) -> np.ndarray:
    """The weighted rows of K summed over the entries of each index: (2, size, columns)."""
    import scipy.sparse

    at, shape = (index, np.arange(index.size)), (size, index.size)
    return np.stack([scipy.sparse.csr_array((w, at), shape=shape) @ K for w in weights])


def _full(packed: np.ndarray) -> np.ndarray:
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
    at : dict from each other mode to a slice
        Where the entries of its factor are, row by row.
    """

    shape: tuple[int, ...]
    rank: int
    longest: int
    at: dict[int, slice]

    @classmethod
    def of(cls, shape: tuple[int, ...], rank: int) -> Unknowns:
        longest, at, first = int(np.argmax(shape)), {}, 0
        for n, size in enumerate(shape):
            if n != longest:
                at[n] = slice(first, first + rank * size)
                first += rank * size
        return cls(shape, rank, longest, at)

    @property
    def few(self) -> bool:
        """Whether they can be solved for together."""
        apart = self.rank * self.shape[self.longest]
        return self.rest <= TOGETHER and self.rest * apart <= COUPLING

    @property
    def rest(self) -> int:
        return self.rank * (sum(self.shape) - self.shape[self.longest])

    def parts(self, each: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (I_n, R) for each mode: those of the longest, and of the rest in a row."""
        return each[self.longest], np.concatenate([each[n].ravel() for n in self.at])

    def each(self, apart: np.ndarray, rest: np.ndarray) -> list[np.ndarray]:
        """The numbers for each mode, from such parts."""
        return [
            rest[self.at[n]].reshape(size, self.rank) if n in self.at else apart
            for n, size in enumerate(self.shape)
        ]


@dataclass(frozen=True, eq=False)
class Blocks:
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

    def plus(self, parts: tuple[np.ndarray, np.ndarray]) -> Blocks:
        """With numbers added to the diagonal; see `Unknowns.parts`."""
        apart, rest = parts
        E = self.E + apart[:, :, None] * np.eye(apart.shape[1])
        return Blocks(E, self.B, self.D + np.diag(rest))


def _information(weighed: Weighed, unknowns: Unknowns) -> tuple[Blocks, Blocks]:
    """H and M.

    Between row j of mode m and row k of mode n they have A_kr A_js sum_i w_i C_ir C_is, with the
    sum over the entries of both rows and C the products of the rows of all other modes.
    """
    shape, rank, mode, at = unknowns.shape, unknowns.rank, unknowns.longest, unknowns.at
    factors = weighed.factors
    E, D = np.zeros((2, shape[mode], rank, rank)), np.zeros((2, unknowns.rest, unknowns.rest))
    B = np.zeros((2, shape[mode], rank, unknowns.rest))
    sums = {
        (m, n): np.zeros((2, shape[m] * (shape[n] if m < n else 1), rank * (rank + 1) // 2))
        for m in at
        for n in at
        if m <= n
    }
    for rows, entries, weights in weighed.pieces(mode):
        index, count = entries.indices, rows.stop - rows.start
        K = weighed.products(rows, entries, mode, mode)
        E[:, rows] = _full(_summed(index[mode], count, weights, K))
        for m, part in at.items():
            K = weighed.products(rows, entries, mode, mode, m)
            Z = _summed(index[mode] * shape[m] + index[m], count * shape[m], weights, K)
            B[:, rows, :, part] = _coupling(Z, factors[mode][rows], factors[m])
        for (m, n), total in sums.items():
            K = weighed.products(rows, entries, mode, m, n)
            group = index[m] * shape[n] + index[n] if m < n else index[m]
            total += _summed(group, total.shape[1], weights, K)
    for (m, n), total in sums.items():
        if m == n:
            own = np.zeros((2, shape[m], rank, shape[m], rank))
            own[:, np.arange(shape[m]), :, np.arange(shape[m])] = _full(total).swapaxes(0, 1)
            D[:, at[m], at[m]] = own.reshape(2, shape[m] * rank, -1)
        else:
            block = _coupling(total, factors[m], factors[n]).reshape(2, shape[m] * rank, -1)
            D[:, at[m], at[n]], D[:, at[n], at[m]] = block, block.swapaxes(1, 2)
    return Blocks(E[0], B[0], D[0]), Blocks(E[1], B[1], D[1])


def _coupling(sums: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """What two modes with these rows have with each other: (2, I, R, J R)."""
    (i, r), j = A.shape, len(B)
    found = np.einsum("hijrs,jr,is->hirjs", _full(sums).reshape(2, i, j, r, r), B, A)
    return np.asarray(found.reshape(2, i, r, j * r))


@dataclass(frozen=True, eq=False)
class Inverse:
    """A generalized inverse of H: diag(E^-1, 0) + V S^-1 V', V = (-T, 1), T = E^-1 B, S = D - B' T.

    Attributes
    ----------
    unknowns : Unknowns
    E : array (I, R, R)
    T : array (I, R, q)
    S : array (q, q)
        The inverses of E and S, and T.
    seen : list of boolean arrays (I_n, R), one for each mode
        Which unknowns the data says anything about; the others are as good as held.
    loose : array (q, count)
        Directions of the rest that the data does not determine, sizes of columns aside.
    """

    unknowns: Unknowns
    E: np.ndarray
    T: np.ndarray
    S: np.ndarray
    seen: list[np.ndarray]
    loose: np.ndarray

    @property
    def determined(self) -> bool:
        """Whether the data determines all, but for the sizes of columns."""
        return not self.loose.size

    @classmethod
    def of(
        cls,
        H: Blocks,
        unknowns: Unknowns,
        factors: Sequence[np.ndarray],
        prior: Sequence[np.ndarray] | None = None,
    ) -> Inverse:
        import scipy.linalg

        own = unknowns.each(np.einsum("irr->ir", H.E), np.diagonal(H.D))
        seen = [d > LIFT * np.max(d) for d in own]
        gauge = _gauge(factors, unknowns, H.D)
        if prior is not None:
            H = H.plus(unknowns.parts(prior))
        H = H.plus(
            unknowns.parts([1.0 - some + LIFT * d for some, d in zip(seen, own, strict=True)])
        )
        E = np.linalg.inv(H.E)
        T = E @ H.B
        S = H.D + gauge @ gauge.T - _flat(T).T @ _flat(H.B)
        unit = 1 / np.sqrt(np.maximum(np.diagonal(S), LIFT * np.diagonal(H.D)))
        S *= unit[:, None] * unit
        values, vectors = scipy.linalg.eigh(S, driver="evd", overwrite_a=True)
        vectors *= unit[:, None]
        held, free = vectors[:, values > LOOSE], vectors[:, values <= LOOSE]
        S = (held / values[values > LOOSE]) @ held.T
        return cls(unknowns, E, T, S, seen, free)

    def moved(self, factors: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Which entries of unit columns move along directions that are not determined."""
        moves = [np.zeros_like(A) for A in factors]
        for x in self.loose.T:
            steps = self.unknowns.each(-self.T @ x, x)
            for n, (A, d) in enumerate(zip(factors, steps, strict=True)):
                U, sizes = _unit_columns(A)
                moves[n] = np.maximum(moves[n], np.abs(d - U * np.sum(U * d, axis=0)) / sizes)
        most = max(move.max() for move in moves)
        return [move > STILL * most for move in moves]

    def times(self, each: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The product with numbers (I_n, R) for each mode."""
        apart, rest = self.unknowns.parts(each)
        x = self.S @ (rest - _flat(self.T).T @ apart.ravel())
        return self.unknowns.each((self.E @ apart[:, :, None])[:, :, 0] - self.T @ x, x)


@dataclass(frozen=True, eq=False)
class Sandwich:
    """An inverse of H, times M, times the inverse again."""

    inverse: Inverse
    M: Blocks

    @cached_property
    def rest(self) -> np.ndarray:
        """Of the unknowns that are not those of the longest mode."""
        T, M, S = _flat(self.inverse.T), self.M, self.inverse.S
        cross = T.T @ _flat(M.B)
        middle = M.D - cross - cross.T + T.T @ _flat(M.E @ self.inverse.T)
        return np.asarray(S @ middle @ S)

    @cached_property
    def _own(self) -> np.ndarray:
        return np.asarray(np.einsum("irr->ir", self.inverse.E @ self.M.E @ self.inverse.E))

    @cached_property
    def _cross(self) -> np.ndarray:
        left = self.M.B - self.M.E @ self.inverse.T
        return np.asarray(self.inverse.E @ left @ self.inverse.S)

    def apart(self, r: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of column r of the longest mode: the diagonal, and the product with a vector."""
        own, cross, T = self._own[:, r], self._cross[:, r], self.inverse.T[:, r]
        through = T @ self.rest
        diagonal = own + np.sum((through - 2 * cross) * T, axis=1)
        return diagonal, own * u + (through - cross) @ (T.T @ u) - T @ (cross.T @ u)


def _flat(blocks: np.ndarray) -> np.ndarray:
    return blocks.reshape(-1, blocks.shape[-1])


def _jointly(
    weighed: Weighed, unknowns: Unknowns, prior: Sequence[np.ndarray], unit: float
) -> Covariance:
    """The covariance of all factors together."""
    H, M = _information(weighed, unknowns)
    inverse = Inverse.of(H, unknowns, weighed.factors, prior)
    found = Sandwich(inverse, M.plus(unknowns.parts([unit * ridge for ridge in prior])))
    variances, moved = [], inverse.moved(weighed.factors)
    for n, A in enumerate(weighed.factors):
        U, sizes = _unit_columns(A)
        columns = []
        for r, u in enumerate(U.T):
            if n == unknowns.longest:
                diagonal, product = found.apart(r, u)
            else:
                C = found.rest[unknowns.at[n], unknowns.at[n]][r :: U.shape[1], r :: U.shape[1]]
                diagonal, product = np.diagonal(C), C @ u
            columns.append(diagonal - 2 * u * product + u * u * (u @ product))
        V = np.maximum(np.stack(columns, axis=1), 0.0) / sizes**2
        variances.append(np.where(inverse.seen[n] & ~moved[n], V, np.inf))
    return Covariance(tuple(variances), True, inverse.determined)


def _gauge(factors: Sequence[np.ndarray], unknowns: Unknowns, D: np.ndarray) -> np.ndarray:
    """Vectors that hold the sizes of the columns of all modes but the longest."""
    rank = unknowns.rank
    found = np.zeros((unknowns.rest, rank * len(unknowns.at)))
    for k, (n, part) in enumerate(unknowns.at.items()):
        for r, a in enumerate(factors[n].T):
            place = np.arange(part.start, part.stop)[r::rank]
            known, square = a @ D[np.ix_(place, place)] @ a, a @ a
            if known > 0:
                found[place, k * rank + r] = np.sqrt(GAUGE * known) / square * a
    return found


def _unit_columns(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sizes = np.linalg.norm(A, axis=0)
    sizes = np.where(sizes > 0, sizes, 1.0)
    return A / sizes, sizes


# Each row by itself


def _row_by_row(weighed: Weighed, prior: Sequence[np.ndarray], unit: float) -> Covariance:
    """The covariance of each row given all others."""
    variances, determined = [], True
    for mode, A in enumerate(weighed.factors):
        H, M = weighed.of_rows(mode)
        own, eye = np.einsum("irr->ir", H), np.eye(A.shape[1])
        seen = own > LIFT * np.max(own)
        H = H + (prior[mode] + LIFT * own + ~seen)[:, :, None] * eye
        G, M = np.linalg.inv(H), M + unit * prior[mode][:, :, None] * eye
        least, trace = np.linalg.eigvalsh(H)[:, 0], np.trace(H, axis1=1, axis2=2)
        determined &= bool(np.all(least > LOOSE * trace))
        U, sizes = _unit_columns(A)
        V, square = np.einsum("irr->ir", G @ M @ G) / sizes**2, U * U
        V = V - 2 * square * V + square * np.sum(square * V, axis=0)
        variances.append(np.where(seen, np.maximum(V, 0.0), np.inf))
    return Covariance(tuple(variances), False, determined)
