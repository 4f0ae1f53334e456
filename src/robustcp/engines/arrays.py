"""Checks of arrays that users pass, and functions in which array libraries differ."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array


def to_host(array: Array) -> np.ndarray:
    """An array of any library as a NumPy array (the same memory where possible)."""
    if array_api_compat.is_numpy_array(array):
        return np.asarray(array)
    if array_api_compat.is_torch_array(array):
        return np.asarray(array.detach().cpu().numpy())
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    if is_lazy(array):
        return np.asarray(array.compute())
    return np.from_dlpack(array)


def is_lazy(array: Any) -> bool:
    """Whether an array is of Dask, which computes entries on demand."""
    return bool(array_api_compat.is_dask_array(array))


def take_indices(array: Array, indices: np.ndarray | slice, mode: int) -> Array:
    """An array at some indices of a mode."""
    if is_lazy(array) or isinstance(indices, slice):
        return array[(slice(None),) * mode + (indices,)]
    xp, device = array_api_compat.array_namespace(array), array_api_compat.device(array)
    return xp.take(array, xp.asarray(indices, device=device), axis=mode)


def check_device(name: str, array: Any, device: Any) -> None:
    """Raise an error for a tensor on another device than the data; other arrays are copied."""
    if not array_api_compat.is_torch_array(array):
        return
    data_device = device if hasattr(device, "type") else "cpu"
    if str(array.device) != str(data_device):
        raise ArgumentError(name, f"is on {array.device}, the data on {data_device}")


def check_dtype(array: Array) -> None:
    """Raise an error unless an array holds real numbers."""
    xp = array_api_compat.array_namespace(array)
    if isinstance(array, np.ndarray):
        real = array.dtype.kind in "fiub"
    else:
        real = bool(xp.isdtype(array.dtype, ("real floating", "integral", "bool")))
    if not real:
        raise TypeError(f"X: dtype {array.dtype} is not one of real numbers")


def working_dtype(array: Array) -> Any:
    """float32 for 16- and 32-bit floats; float64 for everything else, integers included.

    On a GPU, where double precision is slow, float32 also for integers of up to 16 bits.
    """
    xp = array_api_compat.array_namespace(array)
    if isinstance(array, np.ndarray):
        single_precision = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    elif xp.isdtype(array.dtype, "real floating"):
        single_precision = xp.finfo(array.dtype).bits <= 32
    elif getattr(array_api_compat.device(array), "type", "cpu") == "cuda":
        single_precision = xp.isdtype(array.dtype, "bool") or xp.iinfo(array.dtype).bits <= 16
    else:
        single_precision = False
    return xp.float32 if single_precision else xp.float64


def storage_order(array: Array) -> tuple[int, ...]:
    """The modes in the order of their strides, the longest first.

    Viewed in this order a C-ordered, Fortran-ordered or otherwise transposed array is C-ordered,
    without a copy. Arrays without strides are assumed to be in C order.
    """
    strides = getattr(array, "strides", None)
    if strides is None and array_api_compat.is_torch_array(array):
        strides = array.stride()
    if strides is None:
        return tuple(range(array.ndim))
    return tuple(sorted(range(array.ndim), key=lambda mode: (-abs(strides[mode]), mode)))


def _strided_tensor(data: Any) -> Array:
    """A dense tensor of PyTorch, detached from its graph; an error for other layouts."""
    if data.is_nested:
        raise TypeError("X: is a nested tensor; pass torch.nested.to_padded_tensor(X, math.nan)")
    if str(data.layout) != "torch.strided":
        kind = str(data.layout).removeprefix("torch.")
        raise TypeError(
            f"X: is a {kind} tensor; pass X.to_dense(), or robustcp.Observed if the rest is missing"
        )
    if data.is_meta:
        raise TypeError("X: is a meta tensor, which has a shape but no entries")
    return data.detach().resolve_neg()


def plain_array(data: Any) -> Array:
    """An array or array-like as an array of one of the array API libraries."""
    if is_lazy(data):
        return data
    if type(data).__module__.split(".")[0] in ("scipy", "sparse", "pyttb"):
        raise TypeError(
            f"X: {type(data).__name__} is not supported yet; pass a dense array of all entries, or "
            "robustcp.Observed with those of sparse data"
        )
    if isinstance(data, np.ma.MaskedArray):
        if not np.ma.getmaskarray(data).any():
            return data.data
        check_dtype(data.data)
        return np.ma.filled(data.astype(working_dtype(data.data)), np.nan)
    if array_api_compat.is_torch_array(data):
        return _strided_tensor(data)
    if array_api_compat.is_array_api_obj(data) and not isinstance(data, np.ndarray):
        return data
    try:
        return np.asarray(data)
    except ValueError as error:  # rows of different lengths, for one
        raise ValueError(f"X: is not an array ({error})") from None
