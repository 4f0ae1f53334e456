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


def encoded(label: Any) -> Any:
    """A label as JSON can hold it."""
    if label is None or type(label) in (str, int, bool):
        return label
    if type(label) is float:
        return label if math.isfinite(label) else {"float": repr(label)}
    for kind, (fits, encode, _) in _KINDS.items():
        if fits(label):
            return {kind: encode(label)}
    for plain in (str, int, float):  # subclasses of them, such as members of an enumeration
        if isinstance(label, plain):
            return encoded(plain(label) if plain is not str else str.__str__(label))
    return str(label)


def decoded(held: Any) -> Any:
    """The label that `encoded` wrote."""
    if not isinstance(held, Mapping):
        return held
    ((kind, value),) = held.items()
    return _KINDS[kind][2](value)


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda label: type(label) in types


def _are(kind: type) -> Callable[[Any], bool]:
    return lambda label: isinstance(label, kind)


def _zoned(label: datetime) -> list[Any]:
    """A date and time as text, the name of its zone, and which of two equal times it is."""
    zone = label.tzinfo.key if isinstance(label.tzinfo, ZoneInfo) else None
    return [label.isoformat(), zone, label.fold]


def _from_zoned(held: list[Any]) -> datetime:
    text, zone, fold = held
    label = datetime.fromisoformat(text).replace(fold=fold)
    if zone is None:
        return label
    try:
        return label.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError:  # not every machine knows every zone; the offset is the same
        return label


def _is_number(label: Any) -> bool:
    return isinstance(label, np.generic) and label.dtype.kind in "biufcmM"


def _number(held: list[str]) -> Any:
    dtype = np.dtype(held[0])
    if dtype.kind not in "biufcmM":
        raise ValueError(f"no labels are of type {held[0]}")
    (label,) = np.frombuffer(bytes.fromhex(held[1]), dtype)
    return label


def _from_pandas(name: str) -> Callable[[Any], bool]:
    def fits(label: Any) -> bool:
        pandas = sys.modules.get("pandas")  # without it there are no such labels
        return pandas is not None and type(label) is getattr(pandas, name)

    return fits


def _is_nat(label: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and label is pandas.NaT


def _stamp(label: Any) -> list[Any]:
    zone = None if label.tz is None else str(label.tz)
    return [int(label.asm8.astype(np.int64)), label.unit, zone]


def _from_stamp(held: list[Any]) -> Any:
    import pandas

    value, unit, zone = held
    label = pandas.Timestamp(np.datetime64(value, unit))
    return label if zone is None else label.tz_localize("UTC").tz_convert(zone)


def _from_span(held: list[Any]) -> Any:
    import pandas

    return pandas.Timedelta(np.timedelta64(held[0], held[1]))


def _not_a_time(held: Any) -> Any:
    import pandas

    return pandas.NaT


#: The kinds of labels: what is one, how it is written, and how it is read.
_KINDS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "pandas.Timestamp": (_from_pandas("Timestamp"), _stamp, _from_stamp),
    "pandas.Timedelta": (
        _from_pandas("Timedelta"),
        lambda label: [int(label.asm8.astype(np.int64)), label.unit],
        _from_span,
    ),
    "pandas.NaT": (_is_nat, lambda label: None, _not_a_time),
    "float": (_is(), repr, float),
    "complex": (_is(complex), repr, complex),
    "bytes": (_is(bytes), bytes.hex, bytes.fromhex),
    "datetime": (_are(datetime), _zoned, _from_zoned),
    "date": (_are(date), date.isoformat, date.fromisoformat),
    "time": (
        lambda label: type(label) is time and label.tzinfo is None,
        lambda label: [label.isoformat(), label.fold],
        lambda held: time.fromisoformat(held[0]).replace(fold=held[1]),
    ),
    "timedelta": (
        _are(timedelta),
        lambda label: [label.days, label.seconds, label.microseconds],
        lambda held: timedelta(*held),
    ),
    "tuple": (
        _is(tuple),
        lambda label: [encoded(part) for part in label],
        lambda held: tuple(decoded(part) for part in held),
    ),
    "numpy.str": (_is(np.str_), str.__str__, np.str_),
    "numpy.bytes": (_is(np.bytes_), bytes.hex, lambda held: np.bytes_(bytes.fromhex(held))),
    "numpy": (_is_number, lambda label: [label.dtype.str, label.tobytes().hex()], _number),
}


def for_netcdf(labels: list[Any]) -> list[Any]:
    """Labels as a NetCDF file can show them: numbers, dates, or else text.

    The exact ones are beside them, as JSON.
    """
    plain = [label.item() if _is_plain_number(label) else label for label in labels]
    if all(type(label) is bool for label in plain):
        return plain
    if all(type(label) is int and abs(label) < 2**63 for label in plain):
        return plain
    if all(type(label) is float or (type(label) is int and abs(label) < 2**53) for label in plain):
        return [float(label) for label in plain]
    dates = [date for date in map(_common_date, plain) if date is not None]
    return dates if len(dates) == len(plain) else [as_text(label) for label in plain]


def _is_plain_number(label: Any) -> bool:
    return isinstance(label, np.generic) and label.dtype.kind in "biuf"


def _common_date(label: Any) -> np.datetime64 | None:
    """A date that every reader of NetCDF can take, to the nanosecond; None for all else."""
    if isinstance(label, datetime) and label.tzinfo is None:
        exact = getattr(label, "to_datetime64", None)  # pandas has nanoseconds
        label = exact() if exact else np.datetime64(label, "us")
    if not isinstance(label, np.datetime64) or np.datetime_data(label)[0] not in _UNITS:
        return None
    if not np.datetime64("1700") <= label <= np.datetime64("2200"):
        return None
    shown: np.datetime64 = label.astype("datetime64[ns]")
    return shown


_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")


def as_text(label: Any) -> str:
    """A label or a name as text that every file can hold."""
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
