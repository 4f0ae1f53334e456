"""What data may be, and the few things that array libraries do differently."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

from robustcp._checks import ArgumentError
from robustcp._typing import Array


def to_host(array: Array) -> np.ndarray:
    """An array of any library as a NumPy array (the same memory where possible)."""
    if array_api_compat.is_numpy_array(array):
        return np.asarray(array)
    if array_api_compat.is_torch_array(array):
        return np.asarray(array.detach().cpu().numpy())
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    return np.from_dlpack(array)


def check_device(name: str, array: Any, device: Any) -> None:
    """Refuse what is on another device of PyTorch than the data; other arrays may go anywhere."""
    if not array_api_compat.is_torch_array(array):
        return
    data = device if hasattr(device, "type") else "cpu"
    if str(array.device) != str(data):
        raise ArgumentError(name, f"is on {array.device}, the data on {data}")


def check_dtype(array: Array) -> None:
    """Refuse arrays that do not hold real numbers."""
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
        short = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    elif xp.isdtype(array.dtype, "real floating"):
        short = xp.finfo(array.dtype).bits <= 32
    elif getattr(array_api_compat.device(array), "type", "cpu") == "cuda":
        short = xp.isdtype(array.dtype, "bool") or xp.iinfo(array.dtype).bits <= 16
    else:
        short = False
    return xp.float32 if short else xp.float64


def storage_order(array: Array) -> tuple[int, ...]:
    """Modes from the one with the longest stride to that with the shortest.

    Viewed in this order a C-ordered, Fortran-ordered or otherwise transposed array is C-ordered,
    without a copy. Libraries that do not tell their strides are taken to be in C order.
    """
    strides = getattr(array, "strides", None)
    if strides is None and array_api_compat.is_torch_array(array):
        strides = array.stride()
    if strides is None:
        return tuple(range(array.ndim))
    return tuple(sorted(range(array.ndim), key=lambda mode: (-abs(strides[mode]), mode)))


def is_labelled(data: Any) -> bool:
    """Whether it is a tensor that was read from a file, `robustcp.io.reading.Loaded`."""
    return all(hasattr(data, name) for name in ("modes", "labels", "data"))


def names_and_labels(data: Any) -> tuple[tuple[str, ...], tuple[list[Any] | None, ...]]:
    """Names of the modes and labels of their indices, of an xarray.DataArray or what was read
    from a file; else nothing.
    """
    if is_labelled(data):
        return tuple(data.modes), tuple(data.labels)
    if type(data).__module__.split(".")[0] != "xarray":
        return (), ()
    labels = tuple(
        _listed(data.coords[dim].values) if dim in data.coords else None for dim in data.dims
    )
    return tuple(map(str, data.dims)), labels


def _listed(values: np.ndarray) -> list[Any]:
    """Labels as a list; dates and durations as such, and NumPy's where Python's are too coarse."""
    kind = values.dtype.kind
    if kind not in "mM":
        return list(values.tolist())
    coarse = values.astype(f"{kind}8[us]")
    exact = bool(np.all((coarse == values) | np.isnat(values)))
    return list(coarse.tolist() if exact else values)


def in_modes_of(data: Any, other: Any) -> Any:
    """Another xarray.DataArray with the dimensions of the data's, by name; else as it is.

    Dimensions that it does not have get size 1. Labels that both have must be the same.
    """
    names, other_names = names_and_labels(data)[0], names_and_labels(other)[0]
    if not names or not other_names:
        return other
    unknown = [name for name in other_names if name not in names]
    if unknown:
        raise ValueError(f"entry_weights: X has no dimension {unknown[0]!r}, only {names}")
    for name in other_names:
        here, there = data.indexes.get(name), other.indexes.get(name)
        both = here is not None and there is not None and len(here) == len(there)
        if both and not here.equals(there):
            raise ValueError(f"entry_weights: other labels than X in dimension {name!r}")
    ordered = other.transpose(*(name for name in names if name in other_names))
    sizes = [other.sizes.get(name, 1) for name in names]
    return ordered.data.reshape(sizes)


def plain_array(data: Any) -> Array:
    """An array, or what can be made one, as an array of one of the array API libraries."""
    if array_api_compat.is_dask_array(data):
        raise TypeError("X: Dask arrays are not supported yet; pass X.compute()")
    if type(data).__module__.split(".")[0] in ("scipy", "sparse", "pyttb"):
        raise TypeError(
            f"X: {type(data).__name__} is not supported yet; pass a dense array of all entries"
        )
    if isinstance(data, np.ma.MaskedArray):
        if not np.ma.getmaskarray(data).any():
            return data.data
        check_dtype(data.data)
        return np.ma.filled(data.astype(working_dtype(data.data)), np.nan)
    if array_api_compat.is_torch_array(data):
        return data.detach()
    if array_api_compat.is_array_api_obj(data) and not isinstance(data, np.ndarray):
        return data
    try:
        return np.asarray(data)
    except ValueError as error:  # rows of different lengths, for one
        raise ValueError(f"X: is not an array ({error})") from None
