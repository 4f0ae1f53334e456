"""Kruskal tensors: a weighted sum of rank-one terms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from robustcp._util.typing import Array, Factors
from robustcp.engines import khatri_rao, model_at, to_host


@dataclass(frozen=True, eq=False)
class KruskalTensor:
    """The tensor sum_r weights[r] * outer(factors[0][:, r], ..., factors[N-1][:, r]).

    It unpacks as ``weights, factors``, like TensorLy's CPTensor.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import KruskalTensor
    >>> model = KruskalTensor.from_factors([np.array([[3.0], [4.0]]), np.array([[1.0], [0.0]])])
    >>> model.normalized().weights
    array([5.])
    >>> model.full()
    array([[3., 0.],
           [4., 0.]])
    """

    weights: Array
    factors: Factors

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        ranks = {A.shape[1] if A.ndim == 2 else None for A in self.factors}
        if len(self.factors) < 1 or ranks != {self.weights.shape[0]}:
            shapes = ", ".join(str(tuple(A.shape)) for A in self.factors)
            raise ValueError(
                f"factors: expected matrices with {self.weights.shape[0]} columns each, "
                f"one per weight, got shapes {shapes}"
            )

    @classmethod
    def from_factors(cls, factors: Sequence[Array]) -> KruskalTensor:
        """The model of some factors, with all weights 1."""
        xp = array_namespace(factors[0])
        return cls(xp.ones_like(factors[0][0, :]), tuple(factors))

    @classmethod
    def from_tensorly(cls, cp_tensor: Any) -> KruskalTensor:
        """From a TensorLy CPTensor, or any pair ``(weights, factors)``; weights may be None."""
        weights, factors = cp_tensor
        if weights is None:
            return cls.from_factors(factors)
        return cls(weights, tuple(factors))

    def to_tensorly(self) -> tuple[Array, list[Array]]:
        """The plain pair that every TensorLy function takes as a CP tensor."""
        return self.weights, list(self.factors)

    def __iter__(self) -> Iterator[Any]:
        yield self.weights
        yield self.factors

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(A.shape[0]) for A in self.factors)

    @property
    def rank(self) -> int:
        return int(self.weights.shape[0])

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"KruskalTensor({size}, rank {self.rank})"

    def full(self) -> Array:
        """The whole tensor."""
        xp = array_namespace(self.weights)
        first = self.factors[0] * self.weights[None, :]
        if len(self.factors) == 1:
            return xp.sum(first, axis=1)
        rows = khatri_rao([first, *self.factors[1:-1]])
        return xp.reshape(rows @ self.factors[-1].T, self.shape)

    def at(self, indices: Array) -> Array:
        """The entries at some indices, an integer array of shape (count, N)."""
        first, *rest = self.factors
        columns = [indices[:, n] for n in range(len(self.factors))]
        return model_at([self.weights[None, :] * first, *rest], columns)

    def absorbed(self) -> Factors:
        """Factors of the same tensor with the weights spread evenly over the modes."""
        xp = array_namespace(self.weights)
        spread = xp.abs(self.weights) ** (1.0 / len(self.factors))
        first, *rest = (A * spread[None, :] for A in self.factors)
        return (first * xp.sign(self.weights)[None, :], *rest)

    def normalized(self, carrier: int = -1, oriented: Collection[int] = ()) -> KruskalTensor:
        """The canonical form, in which equal models have equal weights and factors.

        Columns have norm 1 and weights are >= 0 in descending order. The entry of largest magnitude
        in each column is positive in all modes but `carrier`, which takes the remaining sign, and
        the `oriented` ones, whose signs stay as they are. A column of zeros stays zero and gives
        its component weight 0.
        """
        xp = array_namespace(self.weights)
        weights = self.weights
        factors = []
        for A in self.factors:
            top = xp.max(xp.abs(A), axis=0)
            scale = xp.where(top > 0, top, xp.ones_like(top))
            A = A / scale[None, :]  # first by the largest entry: squares of 1e-200 are 0
            norm = xp.sqrt(xp.sum(A * A, axis=0))
            unit = A / xp.where(norm > 0, norm, xp.ones_like(norm))[None, :]
            factors.append(unit)
            weights = weights * (scale * norm)
        sign = xp.where(weights < 0, -xp.ones_like(weights), xp.ones_like(weights))
        carrier %= len(factors)
        for n, A in enumerate(factors):
            if n != carrier and n not in oriented:
                flip = _sign_of_largest(A)
                factors[n] = A * flip[None, :]
                sign = sign * flip
        factors[carrier] = factors[carrier] * sign[None, :]
        weights = xp.abs(weights)
        order = xp.argsort(weights, descending=True, stable=True)
        return KruskalTensor(
            xp.take(weights, order, axis=0), tuple(xp.take(A, order, axis=1) for A in factors)
        )


def host_factors(factors: Sequence[Array]) -> list[np.ndarray]:
    """Factors of any library as float64 matrices on the host, without a copy where they are."""
    return [np.asarray(to_host(A), dtype=np.float64) for A in factors]


def component_name(r: int) -> str:
    """The name of component r, counted from 0, in texts and pictures, which count from 1.

    >>> component_name(0)
    'component 1'
    """
    return f"component {r + 1}"


def _sign_of_largest(A: Array) -> Array:
    """+1 or -1 for each column: the sign of its (first) entry of largest magnitude."""
    xp = array_namespace(A)
    index = xp.arange(A.shape[0], device=device(A))[:, None]
    largest = index == xp.argmax(xp.abs(A), axis=0)[None, :]
    value = xp.sum(xp.where(largest, A, xp.zeros_like(A)), axis=0)
    return xp.where(value < 0, -xp.ones_like(value), xp.ones_like(value))
