"""Labels as JSON, so that they come back as they were: dates as dates, bytes as bytes.

Text, whole numbers, finite numbers, booleans and None stand for themselves; all else is an object
with one key, its kind. What has no kind here is kept as text.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np


def encode_label(label: Any) -> Any:
    """A label as JSON can hold it."""
    if label is None or type(label) in (str, int, bool):
        return label
    if type(label) is float:
        return label if math.isfinite(label) else {"float": repr(label)}
    for kind, (matches, encode, _) in _LABEL_TYPES.items():
        if matches(label):
            return {kind: encode(label)}
    for base_type in (str, int, float):  # subclasses of them, such as members of an enumeration
        if isinstance(label, base_type):
            return encode_label(base_type(label) if base_type is not str else str.__str__(label))
    return str(label)


def decode_label(encoded_label: Any) -> Any:
    """The label that `encode_label` wrote."""
    if not isinstance(encoded_label, Mapping):
        return encoded_label
    ((kind, value),) = encoded_label.items()
    return _LABEL_TYPES[kind][2](value)


def _is_exactly(*types: type) -> Callable[[Any], bool]:
    return lambda label: type(label) in types


def _is_instance(kind: type) -> Callable[[Any], bool]:
    return lambda label: isinstance(label, kind)


def _encode_datetime(label: datetime) -> list[Any]:
    """A date and time as text, the name of its zone, and which of two equal times it is."""
    zone = label.tzinfo.key if isinstance(label.tzinfo, ZoneInfo) else None
    return [label.isoformat(), zone, label.fold]


def _decode_datetime(encoded_label: list[Any]) -> datetime:
    text, zone, fold = encoded_label
    label = datetime.fromisoformat(text).replace(fold=fold)
    if zone is None:
        return label
    try:
        return label.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError:  # not every machine knows every zone; the offset is the same
        return label


def _is_numpy_number(label: Any) -> bool:
    return isinstance(label, np.generic) and label.dtype.kind in "biufcmM"


def _decode_numpy_number(encoded_label: list[str]) -> Any:
    dtype = np.dtype(encoded_label[0])
    if dtype.kind not in "biufcmM":
        raise ValueError(f"no labels are of type {encoded_label[0]}")
    (label,) = np.frombuffer(bytes.fromhex(encoded_label[1]), dtype)
    return label


def _is_pandas(name: str) -> Callable[[Any], bool]:
    def matches(label: Any) -> bool:
        pandas = sys.modules.get("pandas")  # without it there are no such labels
        return pandas is not None and type(label) is getattr(pandas, name)

    return matches


def _is_nat(label: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and label is pandas.NaT


def _encode_timestamp(label: Any) -> list[Any]:
    zone = None if label.tz is None else str(label.tz)
    return [int(label.asm8.astype(np.int64)), label.unit, zone]


def _decode_timestamp(encoded_label: list[Any]) -> Any:
    import pandas

    value, unit, zone = encoded_label
    label = pandas.Timestamp(np.datetime64(value, unit))
    return label if zone is None else label.tz_localize("UTC").tz_convert(zone)


def _decode_timedelta(encoded_label: list[Any]) -> Any:
    import pandas

    return pandas.Timedelta(np.timedelta64(encoded_label[0], encoded_label[1]))


def _decode_nat(encoded_label: Any) -> Any:
    import pandas

    return pandas.NaT


#: The kinds of labels: what is one, how it is written, and how it is read.
_LABEL_TYPES: dict[
    str, tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]]
] = {
    "pandas.Timestamp": (_is_pandas("Timestamp"), _encode_timestamp, _decode_timestamp),
    "pandas.Timedelta": (
        _is_pandas("Timedelta"),
        lambda label: [int(label.asm8.astype(np.int64)), label.unit],
        _decode_timedelta,
    ),
    "pandas.NaT": (_is_nat, lambda label: None, _decode_nat),
    "float": (_is_exactly(), repr, float),
    "complex": (_is_exactly(complex), repr, complex),
    "bytes": (_is_exactly(bytes), bytes.hex, bytes.fromhex),
    "datetime": (_is_instance(datetime), _encode_datetime, _decode_datetime),
    "date": (_is_instance(date), date.isoformat, date.fromisoformat),
    "time": (
        lambda label: type(label) is time and label.tzinfo is None,
        lambda label: [label.isoformat(), label.fold],
        lambda held: time.fromisoformat(held[0]).replace(fold=held[1]),
    ),
    "timedelta": (
        _is_instance(timedelta),
        lambda label: [label.days, label.seconds, label.microseconds],
        lambda held: timedelta(*held),
    ),
    "tuple": (
        _is_exactly(tuple),
        lambda label: [encode_label(part) for part in label],
        lambda held: tuple(decode_label(part) for part in held),
    ),
    "numpy.str": (_is_exactly(np.str_), str.__str__, np.str_),
    "numpy.bytes": (_is_exactly(np.bytes_), bytes.hex, lambda held: np.bytes_(bytes.fromhex(held))),
    "numpy": (
        _is_numpy_number,
        lambda label: [label.dtype.str, label.tobytes().hex()],
        _decode_numpy_number,
    ),
}


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
