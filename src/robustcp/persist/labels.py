"""Labels of indices: exact ones for files of fits, and plain ones that other programs can read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from robustcp.persist.codec import Codec

#: Labels are of any type; those that no file can hold are kept as text.
LABEL_CODEC = Codec(encode_unknown=str)


def to_plain_labels(labels: list[Any]) -> list[Any]:
    """Labels as a NetCDF file can show them: numbers, dates, or else text.

    The exact ones are beside them, as JSON.
    """
    values = [label.item() if _is_plain_number(label) else label for label in labels]
    if all(type(label) is bool for label in values):
        return values
    if all(type(label) is int and abs(label) < 2**63 for label in values):
        return values
    if all(type(label) is float or (type(label) is int and abs(label) < 2**53) for label in values):
        return [float(label) for label in values]
    dates = [date for date in map(_as_datetime64, values) if date is not None]
    return dates if len(dates) == len(values) else [as_text(label) for label in values]


def _is_plain_number(label: Any) -> bool:
    return isinstance(label, np.generic) and label.dtype.kind in "biuf"


def _as_datetime64(label: Any) -> np.datetime64 | None:
    """A date that every reader of NetCDF can take, to the nanosecond; None for all else."""
    if isinstance(label, datetime) and label.tzinfo is None:
        to_datetime64 = getattr(label, "to_datetime64", None)  # pandas has nanoseconds
        label = to_datetime64() if to_datetime64 else np.datetime64(label, "us")
    if not isinstance(label, np.datetime64) or np.datetime_data(label)[0] not in _DATETIME_UNITS:
        return None
    if not np.datetime64("1700") <= label <= np.datetime64("2200"):
        return None
    nanoseconds: np.datetime64 = label.astype("datetime64[ns]")
    return nanoseconds


_DATETIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")


def as_text(label: Any) -> str:
    """A label or a name as text that every file can hold."""
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
