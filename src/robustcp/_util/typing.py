"""Names for the types that cross modules."""

from typing import Any, TypeAlias

#: An array of any library that follows the array API standard (NumPy, PyTorch, CuPy, ...).
Array: TypeAlias = Any

#: Factor matrices, one per mode, each of shape (size of the mode, rank).
Factors: TypeAlias = tuple[Array, ...]
