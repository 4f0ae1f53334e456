"""Names of modes and labels of their indices, and whether two tensors agree in them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.checks import ArgumentError
from robustcp._util.text import label_text, shorten

#: Labels of one mode: a list, or None where indices are all there is.
Labels = list[Any] | None

#: Numbers that differ by less, relatively, are the same label.
LABEL_TOLERANCE = 1e-6
#: The most indices that a sentence lists.
MAX_INDICES_SHOWN = 5
#: Words in names of modes whose slabs are samples, each measured by itself.
SAMPLE_WORDS = re.compile(
    "(animal|assessor|batch|case|child|donor|individual|judge|observation|object|participant|"
    "patient|person|product|recording|replicate|respondent|run|sample|session|specimen|student|"
    "subject|trial)(s|es|ren)?|mouse|mice|people"
)


@dataclass(frozen=True)
class Axes:
    """What the modes of a tensor and their indices are called; without names, nothing.

    Attributes
    ----------
    modes : tuple of str
    labels : tuple of (list or None), one for each mode
    notes : tuple of str
        What whoever made the tensor has to say about it.
    units : tuple of str
        What the labels of each mode are measured in, "" if that is not known; or empty.

    Examples
    --------
    >>> axes = Axes(("sample", "nm"), (["a", "b"], [350.0, 352.0]))
    >>> axes.mode_number("mode", "nm")
    1
    >>> axes.index_position("index", 1, 352.0), axes.index_position("index", 0, 1)
    (1, 1)
    """

    modes: tuple[str, ...] = ()
    labels: tuple[Labels, ...] = ()
    notes: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    @property
    def has_names(self) -> bool:
        """Whether the names were given by somebody."""
        order = len(self.modes)
        default_names = [tuple(f"{word}{n}" for n in range(order)) for word in ("mode ", "dim_")]
        return bool(order) and self.modes not in default_names and len(set(self.modes)) == order

    def subset(self, indices: Sequence[np.ndarray | None]) -> Axes:
        """The names and labels of a part of the data; None takes a mode whole."""
        if not self.modes:
            return self
        labels = tuple(
            mode_labels
            if mode_labels is None or index is None
            else [mode_labels[int(k)] for k in index]
            for mode_labels, index in zip(self.labels, indices, strict=True)
        )
        return Axes(self.modes, labels, self.notes, self.units)

    def title(self, mode: int) -> str:
        """The name of a mode with its units, as at the axis of a picture.

        >>> Axes(("sample", "emission"), (None, None), units=("", "nm")).title(1)
        'emission (nm)'
        """
        unit = self.units[mode] if self.units else ""
        return f"{self.modes[mode]} ({unit})" if unit else self.modes[mode]

    def mode_name(self, mode: int) -> str:
        """A mode as sentences call it.

        >>> Axes(("sample", "nm"), (None, None)).mode_name(1), Axes().mode_name(1)
        ('nm', 'mode 1')
        """
        return self.modes[mode] if self.has_names else f"mode {mode}"

    def argument_of(self, mode: int) -> str:
        """A mode as an argument gives it: its name in quotes, or its number.

        >>> Axes(("sample", "nm"), (None, None)).argument_of(0), Axes().argument_of(0)
        ("'sample'", '0')
        """
        return repr(self.modes[mode]) if self.has_names else str(mode)

    def list_indices(self, mode: int, rows: Sequence[int] | np.ndarray) -> str:
        """The first of some indices of a mode, by their labels where there are any.

        >>> Axes(("sample", "nm"), (["a", "b", "c"], None)).list_indices(0, [0, 2])
        'a, c'
        >>> Axes().list_indices(0, range(20))
        '0, 1, 2, 3, 4, ...'
        """
        labels = self.labels[mode] if self.labels else None
        texts = [
            str(k) if labels is None else shorten(label_text(label_key(labels[k])))
            for k in map(int, rows[:MAX_INDICES_SHOWN])
        ]
        return ", ".join([*texts, "..."] if len(rows) > MAX_INDICES_SHOWN else texts)

    def may_hold_samples(self, mode: int) -> bool:
        """Whether the slabs of a mode may be samples, of which some may be bad as a whole.

        By the name of the mode, where modes have names. Without names any mode may hold samples but
        one with units, or with numbers or dates in order as labels, such as wavelengths or times.

        >>> axes = Axes(("sample", "nm"), (None, [350.0, 352.0]))
        >>> axes.may_hold_samples(0), axes.may_hold_samples(1)
        (True, False)
        """
        if self.has_names:
            words = re.findall(r"[a-z]+", self.modes[mode].lower())
            return any(map(SAMPLE_WORDS.fullmatch, words))
        if self.units and self.units[mode]:
            return False
        return not self.labels or not _are_positions(self.labels[mode])

    def mode_number(self, argument: str, given: Any, order: int | None = None) -> int:
        """The number of a mode that an argument gives by number or name."""
        return checks.mode_number(argument, given, self.modes, order or len(self.modes))

    def index_position(self, argument: str, mode: int, given: Any, size: int | None = None) -> int:
        """The position of an index of a mode; what is not an integer is a label."""
        labels = self.labels[mode] if self.labels else None
        size = size if labels is None else len(labels)
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            if size is not None and not 0 <= given < size and labels and given in labels:
                raise ArgumentError(
                    argument,
                    f"must be a position from 0 to {size - 1}, got {given}; the label {given} is "
                    f"at position {labels.index(given)}",
                )
            return checks.whole_number(
                argument, given, 0, maximum=None if size is None else size - 1
            )
        name = self.modes[mode] if self.modes else f"mode {mode}"
        if labels is None:
            raise ArgumentError(
                argument, f"must be a position, as {name} has no labels, got {given!r}"
            )
        matches = [k for k, label in enumerate(labels) if _matches(label, given)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ArgumentError(argument, f"{given!r} is the label of {len(matches)} of {name}")
        raise ArgumentError(
            argument,
            f"must be a position or a label of {name} ({format_labels(labels)}), got {given!r}",
        )

    def arrangement_for(self, data: Axes, free_modes: Collection[int] = ()) -> Arrangement | None:
        """How a model with these names is to be turned so that it agrees with some data.

        None if it agrees as it is, or if either has no names or labels. Modes that are `free_modes`
        may have other labels than the model's.

        Raises
        ------
        ArgumentError
            If they cannot agree.
        """
        if not self.modes or len(self.modes) != len(data.modes):
            return None
        order = tuple(range(len(self.modes)))
        if self.has_names and data.has_names:
            if set(self.modes) != set(data.modes):
                raise ArgumentError(
                    "X",
                    f"has the modes {', '.join(data.modes)}, the fit has "
                    f"{', '.join(self.modes)}; rename those of X",
                )
            order = tuple(self.modes.index(name) for name in data.modes)
        rows = tuple(
            self._matching_rows(n, data_labels, n in free_modes)
            for n, data_labels in zip(order, data.labels, strict=True)
        )
        if order == tuple(range(len(order))) and all(index is None for index in rows):
            return None
        return Arrangement(order, rows)

    def _matching_rows(self, mode: int, data_labels: Labels, may_differ: bool) -> np.ndarray | None:
        """The rows of the model that go with labels of the data; None for all in their order."""
        model_labels = self.labels[mode]
        if (
            data_labels is None
            or model_labels is None
            or len(data_labels) != len(model_labels)
            or same_labels(data_labels, model_labels)
        ):
            return None  # those of another size are refused as such
        data_keys, model_keys = (
            list(map(label_key, data_labels)),
            list(map(label_key, model_labels)),
        )
        positions = {label: k for k, label in enumerate(model_keys)}
        if len(positions) == len(model_labels) and set(data_keys) == set(positions):
            return np.array([positions[label] for label in data_keys])
        if may_differ:
            return None
        unknown = [key for key in data_keys if key not in positions]
        problem = "has a label twice"
        if unknown:
            problem = f"has {_format_label(unknown[0])}, which the fit has not"
        raise ArgumentError(
            "X", f"{self.modes[mode]} {problem}; both must have the same labels, in any order"
        )


@dataclass(frozen=True, eq=False)
class Arrangement:
    """How a model is to be turned: for each mode of the data, which of its modes and which rows."""

    order: tuple[int, ...]
    rows: tuple[np.ndarray | None, ...]

    def reorder(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """What there is for each mode of the model, for each mode of the data."""
        return tuple(values[n] for n in self.order)

    def reorder_rows(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The same for parts that have something for each index, such as vectors or factors."""
        return tuple(
            value if value is None or index is None else value[index]
            for value, index in zip(self.reorder(values), self.rows, strict=True)
        )


def label_key(label: Any) -> Any:
    """What equal labels have in common, whatever their type."""
    if isinstance(label, np.generic) and label.dtype.kind not in "mM":
        label = label.item()
    if isinstance(label, float) and label != label:
        return "nan"
    try:
        hash(label)
    except TypeError:
        return repr(label)
    return label


def same_labels(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether labels are the same in the same order; of numbers, but for rounding."""
    if len(a) != len(b):
        return False
    x, y = [label_key(label) for label in a], [label_key(label) for label in b]
    if x == y:
        return True
    if not all(_is_number(label) for label in (*x, *y)):
        return False
    return bool(np.allclose(np.array(x, float), np.array(y, float), rtol=LABEL_TOLERANCE, atol=0))


def _are_positions(labels: Labels) -> bool:
    """Whether labels are numbers or dates in order, other than a count from 0 or 1."""
    keys = [label_key(label) for label in labels or ()]
    dates = all(isinstance(key, date | np.datetime64) for key in keys)
    if len(keys) < 2 or not (dates or all(_is_number(key) for key in keys)):
        return False
    if keys in (list(range(len(keys))), list(range(1, len(keys) + 1))):
        return False
    pairs = list(itertools.pairwise(keys))
    return all(a < b for a, b in pairs) or all(a > b for a, b in pairs)


def _is_number(label: Any) -> bool:
    return isinstance(label, int | float) and not isinstance(label, bool)


def _matches(label: Any, given: Any) -> bool:
    """Whether a label is what somebody gave; dates may be given as text."""
    label, given = label_key(label), label_key(given)
    if isinstance(label, datetime) and isinstance(given, str):
        try:
            return label == datetime.fromisoformat(given)
        except (TypeError, ValueError):  # TypeError: only one of them has a time zone
            return False
    if isinstance(label, datetime) and isinstance(given, np.datetime64):
        return bool(np.datetime64(label.replace(tzinfo=None)) == given)
    if _is_number(label) and _is_number(given):
        return bool(abs(label - given) <= LABEL_TOLERANCE * abs(label)) if label != given else True
    equal = label == given
    return bool(equal) if isinstance(equal, bool | np.bool_) else False


def format_labels(labels: Iterable[Any], limit: int = 4) -> str:
    """A few labels in words."""
    texts = list(map(_format_label, labels))
    return ", ".join(texts[:limit]) + (", ..." if len(texts) > limit else "")


def _format_label(label: Any) -> str:
    label = label_key(label)
    return repr(label) if isinstance(label, str | float | int) else str(label)
