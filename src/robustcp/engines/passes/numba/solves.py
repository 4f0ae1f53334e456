# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Small linear algebra: row solves, the joint step of all factors, norms of columns."""

import math

import numpy as np
from numba import carray, njit

from robustcp.engines.passes.numba.intrinsics import address, keep_alive, pointer, shift
from robustcp.engines.passes.numba.runtime import FLOATS, INT, REALS, c_function, internal_jit
from robustcp.losses.numba_helpers import INLINE


@njit(**INLINE)
def _factorize(L, rank):
    """Replace the lower triangle by its Cholesky factor, with the diagonal inverted.

    Where rounding makes a pivot negative, its inverse is replaced by 0.
    """
    for j in range(rank):
        for m in range(j):
            for k in range(j, rank):
                L[k * rank + j] -= L[k * rank + m] * L[j * rank + m]
        pivot = L[j * rank + j]
        root = 1 / math.sqrt(pivot) if pivot > 0 else pivot * 0
        for k in range(j + 1, rank):
            L[k * rank + j] *= root
        L[j * rank + j] = root


@njit(**INLINE)
def _substitute(L, b, rank):
    """(L L')^-1 b in place, see `_factorize`."""
    for j in range(rank):
        for k in range(j):
            b[j] -= L[j * rank + k] * b[k]
        b[j] *= L[j * rank + j]
    for j in range(rank - 1, -1, -1):
        for k in range(j + 1, rank):
            b[j] -= L[k * rank + j] * b[k]
        b[j] *= L[j * rank + j]


#: Of what solves for rows.
_SOLVER_ARGUMENTS = (*[REALS] * 4, *[INT] * 4, REALS)


@c_function(*_SOLVER_ARGUMENTS)
def solve_rows(gram, gradient, rows, parameters, shared, first, last, rank, new):
    """Each row plus its step, (gram + lift diag(gram) + mu I)^-1 (gradient - mu row), into `new`.

    For rows first to last; `new` may be `rows`; the parameters are mu and lift. By Cholesky's
    factorization of the packed triangles, or of one that all rows share. Where rounding makes a
    pivot negative, its entry stays as it is; so does a row without data.
    """
    mu, lift, packed = parameters[0], parameters[1], 0 if shared else rank * (rank + 1) // 2
    work = np.empty(rank * rank + rank, carray(gram, 1).dtype)
    L = pointer(address(work), gram)
    b = shift(L, rank * rank)
    next_factorization, has_data = first, mu * 0
    for i in range(first, last):
        if i == next_factorization:
            p, has_data = i * packed, mu * 0
            for j in range(rank):
                if gram[p] != 0:
                    has_data = mu * 0 + 1
                for k in range(j, rank):
                    L[k * rank + j] = gram[p]
                    p += 1
                L[j * rank + j] += lift * L[j * rank + j] + mu
            _factorize(L, rank)
            next_factorization = last if shared else i + 1
        for j in range(rank):
            b[j] = has_data * (gradient[i * rank + j] - mu * rows[i * rank + j])
        _substitute(L, b, rank)
        for j in range(rank):
            new[i * rank + j] = rows[i * rank + j] + b[j]
    keep_alive(work)
    return 0.0


@njit(**INLINE)
def _unpack_raised(gram, p, mu, lift, rank, G):
    """G + lift diag(G) + mu I of a packed matrix that begins at p; returns whether G has data."""
    has_data = False
    for j in range(rank):
        for k in range(j, rank):
            G[j * rank + k] = G[k * rank + j] = gram[p]
            p += 1
        has_data = has_data or G[j * rank + j] != 0
        raised = lift * G[j * rank + j] + mu
        G[j * rank + j] += raised if G[j * rank + j] + raised > 0 else 1
    return has_data


@c_function(*_SOLVER_ARGUMENTS)
def solve_nonnegative_rows(gram, gradient, rows, parameters, shared, first, last, rank, new):
    """As `solve_rows`, with no negative entries: by block principal pivoting; see `Algebra`."""
    packed, mu, lift = rank * (rank + 1) // 2, parameters[0], parameters[1]
    work = np.empty((2 * rank + 2) * rank, carray(gram, 1).dtype)
    flags = np.empty(2 * rank, np.int8)
    G = pointer(address(work), gram)
    L = shift(G, rank * rank)
    b = shift(L, rank * rank)
    u = shift(b, rank)
    positive = pointer(address(flags), flags)
    violated = shift(positive, rank)
    for i in range(first, last):
        has_data = (
            _unpack_raised(gram, 0 if shared else i * packed, mu, lift, rank, G) or shared != 0
        )
        size = mu * 0
        for j in range(rank):
            b[j] = gradient[i * rank + j] - mu * rows[i * rank + j]
            for k in range(rank):
                b[j] += G[j * rank + k] * rows[i * rank + k]
            size = max(size, abs(b[j]))
            positive[j] = rows[i * rank + j] > 0
        fewest, patience = rank + 1, 3
        for _ in range(10 + 4 * rank * rank):
            for j in range(rank):
                u[j] = b[j] if positive[j] else mu * 0
                for k in range(rank):
                    within = positive[j] and positive[k]
                    L[j * rank + k] = G[j * rank + k] if within else mu * 0 + (j == k)
            _factorize(L, rank)
            _substitute(L, u, rank)
            violations, last_violated = 0, 0
            for j in range(rank):
                y = -b[j]
                for k in range(rank):
                    y += G[j * rank + k] * u[k]
                violated[j] = u[j] < 0 if positive[j] else y < -2 * lift * size
                if violated[j]:
                    violations, last_violated = violations + 1, j
            if violations == 0:
                break
            if violations < fewest:
                fewest, patience = violations, 3
            else:
                patience -= 1
            for j in range(rank):
                if violated[j] and (patience >= 0 or j == last_violated):
                    positive[j] = 1 - positive[j]
        for j in range(rank):
            new[i * rank + j] = max(u[j], mu * 0) if has_data else rows[i * rank + j]
    keep_alive(work)
    keep_alive(flags)
    return 0.0


@internal_jit
def _multiply_blocks(A, B, C, modes, rank):
    """C_n = A_n B_n, for a square matrix of each mode."""
    for i in range(modes * rank):
        B_n = i // rank * rank * rank
        for j in range(rank):
            C[i * rank + j] = 0.0
        for k in range(rank):
            for j in range(rank):
                C[i * rank + j] += A[i * rank + k] * B[B_n + k * rank + j]


@c_function(*[FLOATS] * 5, INT, INT, *[FLOATS] * 3)
def joint_step(G, D, P, inverse, parameters, modes, rank, r, E, work):
    """`JointSystem.solve` by conjugate gradients; returns the predicted decrease.

    E is zero and gets the solution, r is the right side and gets the residual. Parameters are the
    damping and the relative tolerance; `work` has room for five arrays of the size of r.
    """
    size, square = modes * rank * rank, rank * rank
    z, q, Gz = work, shift(work, size), shift(work, 2 * size)
    p, Gp = shift(work, 3 * size), shift(work, 4 * size)
    for k in range(size):
        p[k] = Gp[k] = 0.0
    decrease, rz, threshold = 0.0, 1.0, -1.0
    for _ in range(size):
        _multiply_blocks(r, inverse, z, modes, rank)
        _multiply_blocks(G, z, Gz, modes, rank)
        old, rz = rz, 0.0
        for k in range(size):
            rz += Gz[k] * r[k]
        if threshold < 0:
            threshold = parameters[1] * parameters[1] * rz
        if not rz > threshold:
            break
        for k in range(size):
            p[k] = z[k] + rz / old * p[k]
            Gp[k] = Gz[k] + rz / old * Gp[k]
        _multiply_blocks(p, D, q, modes, rank)
        curvature = 0.0
        for k in range(size):
            n, i, j = k // square, k // rank % rank, k % rank
            total = q[k] * (1 + parameters[0])
            for m in range(modes):
                total += P[(n * modes + m) * square + k % square] * Gp[m * square + j * rank + i]
            q[k] = total
            curvature += Gp[k] * total
        step = rz / curvature
        decrease += 0.5 * step * rz
        for k in range(size):
            E[k] += step * p[k]
            r[k] -= step * q[k]
    return decrease


@c_function(REALS, *[INT] * 3, REALS, fastmath=False)
def column_norms(A, first, last, columns, norms):
    """Euclidean norms of the columns of some rows, also of very large or small ones."""
    for j in range(columns):
        top = 0.0
        for i in range(first, last):
            top = max(top, abs(np.float64(A[i * columns + j])))
        total = 0.0
        for i in range(first, last):
            x = A[i * columns + j] / top if top > 0 else 0.0
            total += x * x
        norms[j] = top * math.sqrt(total)
    return 0.0
