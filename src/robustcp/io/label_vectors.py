"""Labels of modes from vectors in the same struct or group as an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robustcp.engines.axes import Labels

NamesAndLabels = tuple[tuple[str, ...], tuple[Labels, ...]]


def axes_from_vectors(shape: Sequence[int], vectors: Mapping[str, Sequence[Any]]) -> NamesAndLabels:
    """Names and labels of modes, from vectors that are stored with an array.

    A vector may label a mode if it is as long as this mode and as no other. Of several such
    vectors the only one of text is used, or without text the only one that is monotone. The name
    of the vector becomes the name of the mode.

    >>> axes_from_vectors((2, 3), {"nm": [300.0, 302.0, 304.0]})
    (('mode 0', 'nm'), (None, [300.0, 302.0, 304.0]))
    """
    names, labels = [f"mode {n}" for n in range(len(shape))], list[Labels]([None] * len(shape))
    for n, size in enumerate(shape):
        if list(shape).count(size) > 1 or size < 2:
            continue
        candidates = {
            name: list(vector)
            for name, vector in vectors.items()
            if len(vector) == size and len(set(vector)) == size
        }
        vector_name = _choose_vector(candidates)
        if vector_name is not None:
            names[n], labels[n] = vector_name, candidates[vector_name]
    short_names = [name.rpartition(".")[2] for name in names]
    return tuple(short_names if len(set(short_names)) == len(short_names) else names), tuple(labels)


def _choose_vector(candidates: Mapping[str, list[Any]]) -> str | None:
    """The name of the vector that labels a mode; None if there is none, or no single one."""
    text_names = [
        name for name, vector in candidates.items() if all(isinstance(x, str) for x in vector)
    ]
    if text_names:
        return text_names[0] if len(text_names) == 1 else None
    if len(candidates) == 1:
        return next(iter(candidates))
    monotone_names = [name for name, vector in candidates.items() if _is_monotone(vector)]
    return monotone_names[0] if len(monotone_names) == 1 else None


def _is_monotone(vector: list[Any]) -> bool:
    try:
        differences = np.diff(np.array(vector, dtype=np.float64))
    except (TypeError, ValueError):
        return False
    return bool(np.all(differences > 0) or np.all(differences < 0))


def as_vector(value: Any) -> list[Any] | None:
    """A vector of finite numbers or of text as a list; None for all else.

    Text of MATLAB may be a matrix of characters, one row for each label.
    """
    array = np.asarray(value)
    if array.ndim == 2 and 1 in array.shape:
        array = array.ravel()
    if array.ndim != 1 or array.size < 2:
        return None
    if array.dtype.kind in "iuf":
        return list(array.tolist()) if np.isfinite(array).all() else None
    if array.dtype.kind == "U":
        return [text.strip() for text in array.tolist()]
    if array.dtype.kind == "S":
        return [text.decode("utf-8", "replace").strip() for text in array.tolist()]
    texts = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in array.tolist()]
    return [x.strip() for x in texts] if all(isinstance(x, str) for x in texts) else None
