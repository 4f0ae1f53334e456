"""Steps of all factors at once, from their Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations

import numpy as np

#: By how much diagonal blocks are raised, relatively, and to what share of the right side a joint
#: step is solved.
DIAGONAL_SHIFT, CG_TOLERANCE = 1e-12, 0.03


@dataclass(frozen=True, eq=False)
class JointSystem:
    """The Hessian of half the squared residuals in some factors A_n, for steps A_n E_n.

    The Gauss-Newton approximation, which drops the terms with residuals.

    Attributes
    ----------
    grams : array (modes, R, R)
        G_n = A_n' A_n.
    diagonal : array (modes, R, R)
        D_n, the elementwise product of the Gram matrices of all other modes: the diagonal block
        maps a step to A_n (E_n D_n).
    off_diagonal : array (modes, modes, R, R)
        P_nm, the elementwise product of the Gram matrices of all modes but n and m: the block
        (n, m) maps the step of mode m to A_n (P_nm * (E_m' G_m)). Zero for n = m.
    """

    grams: np.ndarray
    diagonal: np.ndarray
    off_diagonal: np.ndarray

    @classmethod
    def from_grams(cls, grams: np.ndarray, modes: Sequence[int]) -> JointSystem:
        """The system of two or more modes, from the Gram matrices of all modes."""
        count, rank = len(modes), grams.shape[1]
        off_diagonal = np.zeros((count, count, rank, rank))
        diagonal = np.empty((count, rank, rank))
        for (i, n), (j, m) in combinations(enumerate(modes), 2):
            other_grams = [gram for k, gram in enumerate(grams) if k not in (n, m)]
            product = reduce(np.multiply, other_grams) if other_grams else np.ones((rank, rank))
            off_diagonal[i, j] = off_diagonal[j, i] = product
            diagonal[i], diagonal[j] = product * grams[m], product * grams[n]
        return cls(grams[list(modes)], diagonal, off_diagonal)

    def own_decreases(self, squares: np.ndarray) -> np.ndarray:
        """The decrease of the loss by the separate step s_n of each factor, from s_n' s_n."""
        return np.asarray(0.5 * np.einsum("nij,nij->n", self.diagonal, squares))

    def coupled_gradients(self, products: np.ndarray) -> np.ndarray:
        """B with -sum_{m>n} H_nm s_m = A_n B_n, from s_n' A_n.

        It is what steps of later modes make of the gradients of earlier ones that were zero.
        """
        gradients = np.zeros_like(products)
        for n, m in combinations(range(len(products)), 2):
            gradients[n] -= self.off_diagonal[n, m] * products[m]
        return gradients

    @property
    def diagonal_inverse(self) -> np.ndarray:
        """The inverses of the diagonal blocks, whose diagonals are raised a little."""
        D = self.diagonal
        shift = D.max(axis=(1, 2)) * DIAGONAL_SHIFT
        shift[shift <= 0] = 1.0
        return np.asarray(np.linalg.inv(D + shift[:, None, None] * _identity(D.shape[1])))

    def solve(self, rhs: np.ndarray, damping: float) -> tuple[np.ndarray, float]:
        """An approximate solution E of (H + damping D) (A E) = A rhs, and a bound of its decrease.

        By conjugate gradients with D as preconditioner. The vectors are A E, whose inner products
        are those of E with G E. The loss falls by at least the bound.
        """
        inverse, E, r, p = self.diagonal_inverse, np.zeros_like(rhs), rhs, np.zeros_like(rhs)
        decrease, rz, tolerance = 0.0, 1.0, -1.0
        for _ in range(rhs.size):
            z = r @ inverse
            previous_rz, rz = rz, self._inner_product(r, z)
            tolerance = CG_TOLERANCE**2 * rz if tolerance < 0 else tolerance
            if not rz > tolerance:
                break
            p = z + rz / previous_rz * p
            Hp = self.multiply(p, damping)
            step = rz / self._inner_product(p, Hp)
            decrease += 0.5 * step * rz
            E, r = E + step * p, r - step * Hp
        return E, decrease

    def diagonal_quadratic_form(self, E: np.ndarray) -> float:
        """The inner product of A E with D (A E)."""
        return self._inner_product(E, E @ self.diagonal)

    def multiply(self, E: np.ndarray, damping: float = 0.0) -> np.ndarray:
        """F with (H + damping D) (A E) = A F."""
        transposed_products = np.swapaxes(E, 1, 2) @ self.grams
        product: np.ndarray = (1 + damping) * (E @ self.diagonal)
        product += np.einsum("nmij,mij->nij", self.off_diagonal, transposed_products)
        return product

    def _inner_product(self, E: np.ndarray, F: np.ndarray) -> float:
        return float(np.sum((self.grams @ E) * F))


@cache
def _identity(rank: int) -> np.ndarray:
    return np.eye(rank)
