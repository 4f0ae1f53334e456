"""4-D images: masks, weights, voxel x time, and maps that go back to where they came from."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from robustcp._util.typing import Array
from robustcp.engines import EntryField, ListedField, as_weights, values_at_entries
from robustcp.io.reading import Loaded, read
from robustcp.persist.errors import FileError
from robustcp.persist.writing import write_bytes
from robustcp.results.fit import Fit


def prepare_image(loaded: Loaded, path: Path, mask_file: Path | None, flatten: bool) -> Loaded:
    """An image as it is to be fitted.

    With a mask, voxels outside of it are missing; flattened, only those inside are rows of
    voxel x time, and `labels` of the first mode holds their place in the image.
    """
    if mask_file is None and not flatten:
        return loaded
    argument = "mask_file" if mask_file is not None else "flatten"
    if loaded.affine is None or loaded.data.ndim != 4:
        raise FileError(path, "is for 4-D NIfTI images", argument)
    space = loaded.data.shape[:3]
    in_mask = np.ones(space, dtype=bool)
    if mask_file is not None:
        mask = np.asarray(read(mask_file).data)
        if mask.shape != space:
            raise FileError(mask_file, f"has shape {mask.shape}, the image has {space}")
        in_mask = np.nan_to_num(mask) != 0
        if not in_mask.any():
            raise FileError(mask_file, "leaves no voxel")
    data = np.asarray(loaded.data)
    if flatten:
        voxel_indices = np.flatnonzero(in_mask.ravel()).tolist()
        return replace(
            loaded,
            data=data[in_mask],
            modes=("voxel", loaded.modes[3]),
            labels=(voxel_indices, loaded.labels[3]),
            units=(),
            space=space,
        )
    values = data.astype(np.float32 if data.dtype == np.float32 else np.float64)
    return replace(loaded, data=np.where(in_mask[..., None], values, np.nan))


def read_weights(path: Path, loaded: Loaded) -> EntryField | ListedField | None:
    """The weights of entries in a file, for a tensor; what is not listed there has weight 0.

    Those of an image that was flattened may have its shape in space.
    """
    w = _read_entry_values(path, loaded, "weights")
    try:
        return as_weights(w, tuple(loaded.data.shape))
    except ValueError as error:
        raise FileError(path, str(error).replace("entry_weights:", "weights", 1)) from None


def read_deviations(path: Path, loaded: Loaded) -> Array:
    """The standard deviations of entries in a file, for a tensor, as `read_weights` reads weights.

    Those of missing entries may be anything.
    """
    return values_at_entries(loaded.data, _read_entry_values(path, loaded, "standard deviations"))


def _read_entry_values(path: Path, loaded: Loaded, quantity: str) -> Array:
    """What a file holds for the entries of a tensor, 0 for those that it does not list."""
    w = read(path, absent="zero").data
    if loaded.space is None or w.ndim != 4:
        return w
    try:
        w = np.broadcast_to(w, (*loaded.space, loaded.data.shape[1]))
    except ValueError:
        raise FileError(path, f"{quantity} of shape {w.shape} do not fit the image") from None
    return w[np.unravel_index(np.asarray(loaded.labels[0]), loaded.space)]


def check_maps(maps: Path) -> None:
    """Refuse a name for maps that does not say how they are to be written."""
    if not maps.name.endswith((".nii", ".nii.gz")):
        raise FileError(maps, "maps are written as .nii or .nii.gz")


def check_mappable(loaded: Loaded, path: Path) -> None:
    """Refuse data whose components have no maps."""
    if loaded.affine is None or (loaded.data.ndim != 4 and loaded.space is None):
        raise FileError(path, "is for 4-D NIfTI images", "maps")


def write_maps(fit: Fit, loaded: Loaded, path: Path) -> None:
    """The components' maps, weights included, as a NIfTI image with the affine of the data."""
    import nibabel

    weights = np.asarray(fit.weights)
    if len(fit.shape) == 4:
        maps = [
            reduce(np.multiply.outer, (np.asarray(A)[:, r] for A in fit.factors[:3])) * weights[r]
            for r in range(fit.rank)
        ]
    else:
        assert loaded.space is not None
        maps = []
        for r in range(fit.rank):
            flat = np.zeros(math.prod(loaded.space))
            flat[loaded.labels[0]] = np.asarray(fit.factors[0])[:, r] * weights[r]
            maps.append(flat.reshape(loaded.space))
    image = nibabel.Nifti1Image(np.stack(maps, axis=-1).astype(np.float32), loaded.affine)
    content = image.to_bytes()
    # without a time in it the same maps give the same file
    write_bytes(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)
