"""The normal equations of one factor: the result of a pass over the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from robustcp._util.typing import Array


@dataclass(frozen=True)
class NormalEquations:
    """The majorizer of the loss as a function of the rows of one factor, summed over the data.

    For row u_i of the factor the loss lies under

        value + sum_i [ -gradient_i' d_i + d_i' gram_i d_i / 2 ],    d_i = step of row i.

    Attributes
    ----------
    gram : array, (rows, R(R+1)/2), or (1, R(R+1)/2) when all rows share one Gram matrix
        Upper triangles, packed row by row (see `pack_indices`).
    gradient : array, (rows, R)
        The *descent* direction: minus the derivative of the loss.
    value : float, or an array of one
        The loss at the current factors; an array if it is still on a device.

    Normal equations over disjoint parts of the data add up to those over all of it.
    """

    gram: Array
    gradient: Array
    value: float

    def __add__(self, other: NormalEquations) -> NormalEquations:
        return NormalEquations(
            self.gram + other.gram, self.gradient + other.gradient, self.value + other.value
        )

    def with_ridge(self, ridge: np.ndarray, rows: Array) -> NormalEquations:
        """With sum_r ridge_r/2 |u_r|^2 added to the majorizer, u_r the columns; not to the value.

        `rows` are the current ones.
        """
        xp = array_namespace(rows)
        i, j = pack_indices(ridge.size)
        packed = np.where(i == j, ridge[i], 0.0)
        placement = {"dtype": rows.dtype, "device": device(rows)}
        return NormalEquations(
            self.gram + xp.asarray(packed, **placement)[None, :],
            self.gradient - xp.asarray(ridge, **placement)[None, :] * rows,
            self.value,
        )


@lru_cache
def pack_indices(rank: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows and columns of the packed upper triangle of a rank x rank matrix."""
    rows, columns = np.triu_indices(rank)
    return rows, columns


@lru_cache
def unpack_indices(rank: int) -> npt.NDArray[np.intp]:
    """Where each entry of a full symmetric matrix, row by row, lies in the packed one."""
    positions = np.empty((rank, rank), dtype=np.intp)
    rows, columns = pack_indices(rank)
    positions[rows, columns] = positions[columns, rows] = np.arange(rows.size)
    return positions.ravel()
