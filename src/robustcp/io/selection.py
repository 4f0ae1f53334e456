"""Parts of a tensor, by labels or positions, and values that stand for missing entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from robustcp._util.checks import ArgumentError
from robustcp.engines import LabelledTensor, drop_values, select_indices
from robustcp.engines.axes import Axes, Labels, format_labels

L = TypeVar("L", bound=LabelledTensor)


def without_values(tensor: L, values: Sequence[float]) -> L:
    """A tensor whose entries of some values are missing."""
    return replace(tensor, data=drop_values(tensor.data, values)) if values else tensor


def select(tensor: L, ranges: Mapping[int | str, str]) -> L:
    """The part of a tensor that is within some ranges of its modes.

    Parameters
    ----------
    tensor : LabelledTensor
    ranges : dict from a mode, by number or name, to text
        LOW:HIGH, of which one may be left out, or a single index, or several with commas
        between. Labels where the mode has any: both ends of a range are included; dates may be
        shortened, and a date without a time includes its whole day. Else positions from 0, where a
        range ends before HIGH.

    Examples
    --------
    >>> tensor = LabelledTensor(np.ones((2, 4)), ("sample", "nm"), (["a", "b"], [3.0, 4.0, 5.0, 6.0]))
    >>> select(tensor, {"nm": "4:5.5", 0: "b"})
    LabelledTensor(sample (1) x nm (2); float64; labels of sample, nm)
    """  # noqa: E501
    indices: list[np.ndarray | None] = [None] * len(tensor.shape)
    for mode, text in ranges.items():
        n = tensor.axes.mode_number("select", mode)
        indices[n] = _positions(tensor.axes, n, tensor.shape[n], text)
    if all(index is None for index in indices):
        return tensor
    labels = tensor.axes.subset(indices).labels
    return replace(tensor, data=select_indices(tensor.data, indices), labels=labels)


def _positions(axes: Axes, mode: int, size: int, text: str) -> np.ndarray:
    """The positions that text selects in a mode."""
    labels, name = axes.labels[mode], axes.mode_name(mode)
    if labels is not None and text in map(str, labels):  # which may hold colons and commas
        chosen = np.array([str(label) == text for label in labels])
    elif ":" in text:
        chosen = _range(labels, size, text, name)
    else:
        parts = [part.strip() for part in text.split(",")]
        known = list(map(str, range(size) if labels is None else labels))
        unknown = [part for part in parts if _label_number(known, part) is None]
        if unknown:
            raise ArgumentError(
                "select", f"{name} has no {unknown[0]!r}; it has {_describe(labels, size)}"
            )
        return np.array([_label_number(known, part) for part in parts])
    if not chosen.any():
        raise ArgumentError(
            "select", f"{name}={text} selects nothing; {name} has {_describe(labels, size)}"
        )
    return np.flatnonzero(chosen)


def _label_number(known: Sequence[str], part: str) -> int | None:
    """Where a label is among others; numbers may be written in other ways."""
    if part in known:
        return known.index(part)
    with suppress(ValueError):
        number = float(part)
        return next((k for k, label in enumerate(known) if _is_number(label, number)), None)
    return None


def _is_number(text: str, number: float) -> bool:
    try:
        return float(text) == number
    except ValueError:
        return False


def _describe(labels: Labels, size: int) -> str:
    if labels is None:
        return f"no labels, but positions from 0 to {size - 1}"
    return format_labels(labels) if len(labels) < 5 else f"{labels[0]} to {labels[-1]}"


def _range(labels: Labels, size: int, text: str, name: str) -> np.ndarray:
    """Which indices are within a range of labels, or of positions."""
    if labels is None:
        low, _, high = text.partition(":")
        if all(not part or part.strip().isdigit() for part in (low, high)):
            positions = np.arange(size)
            return (positions >= int(low or 0)) & (positions < int(high or size))
        raise ArgumentError("select", f"{name}={text}: {name} has {_describe(labels, size)}")
    kind = np.asarray(labels).dtype.kind
    chosen: np.ndarray | None
    if kind in "iuf":
        chosen = _numeric_range(np.asarray(labels, dtype=np.float64), text)
    elif kind == "M" or all(isinstance(label, datetime) for label in labels):
        chosen = _range_of_dates(labels, text)
    else:
        chosen = _range_of_texts(list(map(str, labels)), text)
    if chosen is None:
        raise ArgumentError(
            "select",
            f"{name}={text}: must be LOW:HIGH; {name} has {_describe(labels, size)}",
        )
    return chosen


def _numeric_range(values: np.ndarray, text: str) -> np.ndarray | None:
    low, _, high = text.partition(":")
    with suppress(ValueError):
        return np.asarray((values >= float(low or "-inf")) & (values <= float(high or "inf")))
    return None


def _range_of_dates(labels: Sequence[Any], text: str) -> np.ndarray | None:
    """Dates within a range; times have colons too."""
    dates = np.array(
        [np.datetime64(_local(label), "us") for label in labels], dtype="datetime64[us]"
    )
    for k in (k for k, character in enumerate(text) if character == ":"):
        low, high = text[:k].strip(), text[k + 1 :].strip()
        with suppress(ValueError):
            first = datetime.fromisoformat(low) if low else datetime.min
            last = datetime.fromisoformat(high) if high else datetime.max
            if high and len(high) <= len("2024-03-17"):
                last += timedelta(days=1) - timedelta(microseconds=1)
            return np.asarray((dates >= np.datetime64(first)) & (dates <= np.datetime64(last)))
    return None


def _local(label: Any) -> Any:
    """A date without its time zone."""
    return label.replace(tzinfo=None) if isinstance(label, datetime) else label


def _range_of_texts(labels: Sequence[str], text: str) -> np.ndarray | None:
    """Texts from one to another, in their order."""
    for k in (k for k, character in enumerate(text) if character == ":"):
        low, high = text[:k].strip(), text[k + 1 :].strip()
        if low in ("", *labels) and high in ("", *labels):
            chosen = np.zeros(len(labels), dtype=bool)
            first = labels.index(low) if low else 0
            chosen[first : labels.index(high) + 1 if high else len(labels)] = True
            return chosen
    return None
