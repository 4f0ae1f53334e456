"""Values in files without pickle: JSON for what is plain, NumPy's format for arrays, and a digest.

JSON has None, booleans, numbers, text and lists. Every other value becomes an object with one key,
the kind of the value, such as `{"tuple": [1, 2]}` or `{"date": "2026-11-15"}`; an instance of a
class that the codec knows, an object with two: `{"is": "Huber", "with": {"delta": 2.0}}`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from robustcp.engines import to_host


class UnsupportedValueError(TypeError):
    """A value that could not be read back."""


# Arrays


class ArrayStore:
    """Arrays that are written next to the JSON, each of them once; JSON refers to them by number.

    Arrays of other libraries than NumPy come back by `asarray`, in that library, on its device.
    """

    def __init__(
        self, arrays: Iterable[np.ndarray] = (), asarray: Callable[[np.ndarray], Any] = np.asarray
    ) -> None:
        self.arrays, self._asarray = list(arrays), asarray
        #: By the id of an array, with the array, so that no other one gets its id.
        self._references: dict[int, tuple[dict[str, int], Any]] = {}

    def encode(self, array: Any, host_array: np.ndarray) -> dict[str, int]:
        """Store an array, unless it is stored already, and return the reference to it."""
        if id(array) not in self._references:
            kind = "array" if host_array is array else "device array"
            self._references[id(array)] = {kind: len(self.arrays)}, array
            self.arrays.append(host_array)
        return self._references[id(array)][0]

    def decode(self, kind: str, number: int) -> Any:
        """The array that a reference stands for."""
        array = self.arrays[number]
        return self._asarray(array) if kind == "device array" else array


def encode_array(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON can hold it, with its type and shape; what is not finite as text."""
    values: list[Any] = np.ascontiguousarray(array).ravel().tolist()
    if not np.isfinite(array).all():
        values = [x if math.isfinite(x) else repr(x) for x in values]
    return {"type": array.dtype.str, "shape": list(array.shape), "values": values}


def decode_array(encoded: Mapping[str, Any]) -> np.ndarray:
    """The array that `encode_array` described."""
    return array_from_lists(encoded["values"], encoded["type"]).reshape(encoded["shape"])


def array_from_lists(lists: Any, type_name: str) -> np.ndarray:
    """An array of numbers from lists of numbers, or of text that stands for numbers."""
    dtype = np.dtype(type_name)
    if dtype.kind not in "biuf":
        raise ValueError(f"no arrays are of type {type_name}")
    return np.array(lists, dtype=dtype)


# Other values: which are of a kind, how JSON holds them, and what they are made from


class _Kind(NamedTuple):
    matches: Callable[[Any], bool]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _of_type(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def _instance_of(class_: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, class_)


def _of_pandas(name: str) -> Callable[[Any], bool]:
    def matches(value: Any) -> bool:
        pandas = sys.modules.get("pandas")  # if it is not imported, there are no such values
        return pandas is not None and type(value) is getattr(pandas, name)

    return matches


def _is_nat(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and value is pandas.NaT


def _encode_datetime(value: datetime) -> list[Any]:
    """A date and time as text, the name of its zone, and which of two equal times it is."""
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return [value.isoformat(), zone, value.fold]


def _decode_datetime(encoded: list[Any]) -> datetime:
    text, zone, fold = encoded
    value = datetime.fromisoformat(text).replace(fold=fold)
    if zone is None:
        return value
    try:
        return value.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError:  # not every machine knows every zone; the offset is right
        return value


def _is_numpy_number(value: Any) -> bool:
    return isinstance(value, np.generic) and value.dtype.kind in "biufcmM"


def _decode_numpy_number(encoded: list[str]) -> Any:
    dtype = np.dtype(encoded[0])
    if dtype.kind not in "biufcmM":
        raise ValueError(f"no numbers are of type {encoded[0]}")
    (value,) = np.frombuffer(bytes.fromhex(encoded[1]), dtype)
    return value


def _encode_timestamp(value: Any) -> list[Any]:
    zone = None if value.tz is None else str(value.tz)
    return [int(value.asm8.astype(np.int64)), value.unit, zone]


def _decode_timestamp(encoded: list[Any]) -> Any:
    import pandas

    count, unit, zone = encoded
    value = pandas.Timestamp(np.datetime64(count, unit))
    return value if zone is None else value.tz_localize("UTC").tz_convert(zone)


def _decode_timedelta(encoded: list[Any]) -> Any:
    import pandas

    return pandas.Timedelta(np.timedelta64(encoded[0], encoded[1]))


def _decode_nat(encoded: Any) -> Any:
    import pandas

    return pandas.NaT


_KINDS = {
    "pandas.Timestamp": _Kind(_of_pandas("Timestamp"), _encode_timestamp, _decode_timestamp),
    "pandas.Timedelta": _Kind(
        _of_pandas("Timedelta"),
        lambda value: [int(value.asm8.astype(np.int64)), value.unit],
        _decode_timedelta,
    ),
    "pandas.NaT": _Kind(_is_nat, lambda value: None, _decode_nat),
    "float": _Kind(_of_type(float), repr, float),  # one that is not finite
    "complex": _Kind(_of_type(complex), repr, complex),
    "bytes": _Kind(_of_type(bytes), bytes.hex, bytes.fromhex),
    "datetime": _Kind(_instance_of(datetime), _encode_datetime, _decode_datetime),
    "date": _Kind(_instance_of(date), date.isoformat, date.fromisoformat),
    "time": _Kind(
        lambda value: type(value) is time and value.tzinfo is None,
        lambda value: [value.isoformat(), value.fold],
        lambda encoded: time.fromisoformat(encoded[0]).replace(fold=encoded[1]),
    ),
    "timedelta": _Kind(
        _instance_of(timedelta),
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda encoded: timedelta(*encoded),
    ),
    "numpy.str": _Kind(_of_type(np.str_), str.__str__, np.str_),
    "numpy.bytes": _Kind(
        _of_type(np.bytes_), bytes.hex, lambda encoded: np.bytes_(bytes.fromhex(encoded))
    ),
    "numpy": _Kind(
        _is_numpy_number,
        lambda value: [value.dtype.str, value.tobytes().hex()],
        _decode_numpy_number,
    ),
}


def _refuse_unknown(value: Any) -> Any:
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    raise UnsupportedValueError(f"{text} cannot be kept in a file: it is no dataclass")


class Codec:
    """How values become JSON and arrays, and come back equal.

    Parameters
    ----------
    classes : iterable of types
        The dataclasses, and tuples with attributes, that a file may name: it can ask for no other.
    omitted : mapping from types to names, optional
        Fields that are not written, and come back as their default.
    encode_unknown : function, optional
        What stands for a value of no known kind. By default such a value is refused.

    Examples
    --------
    >>> from robustcp.losses import Huber
    >>> codec = Codec([Huber])
    >>> codec.encode((1, Huber(2.0)))
    {'tuple': [1, {'is': 'Huber', 'with': {'delta': 2.0}}]}
    >>> codec.decode(_)
    (1, Huber(delta=2.0))
    """

    def __init__(
        self,
        classes: Iterable[type[Any]] = (),
        omitted: Mapping[type[Any], Collection[str]] | None = None,
        encode_unknown: Callable[[Any], Any] = _refuse_unknown,
    ) -> None:
        self._classes: dict[str, type[Any]] = {}
        self._omitted, self._encode_unknown = omitted or {}, encode_unknown
        for class_ in classes:
            self._register_class(class_)

    def _register_class(self, class_: type[Any]) -> None:
        if self._classes.setdefault(class_.__qualname__, class_) is not class_:
            raise UnsupportedValueError(f"two classes have the name {class_.__qualname__}")

    def register(self, value: Any) -> None:
        """Add the dataclasses that a value is made of."""
        if isinstance(value, list | tuple):
            for item in value:
                self.register(item)
        elif is_dataclass(value) and not isinstance(value, type):
            self._register_class(type(value))
            for field in fields(value):
                self.register(getattr(value, field.name))

    def encode(self, value: Any, store: ArrayStore | None = None) -> Any:
        """A value as JSON can hold it; arrays go to the store, without one into the JSON."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float and math.isfinite(value):
            return value
        name = type(value).__qualname__
        if self._classes.get(name) is type(value):
            contents = self._contents(value).items()
            return {"is": name, "with": {key: self.encode(item, store) for key, item in contents}}
        if isinstance(value, list):
            return [self.encode(item, store) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item, store) for item in value]}
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[self.encode(k, store), self.encode(v, store)] for k, v in pairs]}
        for kind, (matches, encode, _) in _KINDS.items():
            if matches(value):
                return {kind: encode(value)}
        for base_type in (int, float):  # subclasses of them, such as members of an enumeration
            if isinstance(value, base_type):
                return self.encode(base_type(value))
        if isinstance(value, str):
            return str.__str__(value)
        host_array = None if is_dataclass(value) else _as_host_array(value)
        if host_array is None:
            return self._encode_unknown(value)
        if store is None:
            return {"array": encode_array(host_array)}
        return store.encode(value, host_array)

    def _contents(self, value: Any) -> dict[str, Any]:
        """What an instance is made from."""
        if not is_dataclass(value):  # a tuple with attributes
            contents = {"values": tuple(value)} | vars(value)
        else:
            contents = {field.name: getattr(value, field.name) for field in fields(value)}
        omitted = self._omitted.get(type(value), ())
        return {name: item for name, item in contents.items() if name not in omitted}

    def decode(self, encoded: Any, store: ArrayStore | None = None) -> Any:
        """The value that `encode` described."""
        if isinstance(encoded, list):
            return [self.decode(item, store) for item in encoded]
        if not isinstance(encoded, Mapping):
            return encoded
        if "is" in encoded:
            contents = encoded["with"].items()
            return self._classes[encoded["is"]](
                **{name: self.decode(item, store) for name, item in contents}
            )
        ((kind, content),) = encoded.items()
        if kind == "tuple":
            return tuple(self.decode(item, store) for item in content)
        if kind == "dict":
            return {self.decode(k, store): self.decode(v, store) for k, v in content}
        if kind in ("array", "device array"):
            if store is None or isinstance(content, Mapping):
                return decode_array(content)
            return store.decode(kind, content)
        return _KINDS[kind].decode(content)


def _as_host_array(value: Any) -> np.ndarray | None:
    """An array of numbers of any library as one of NumPy; None for all else."""
    try:
        array = to_host(value)
    except (AttributeError, BufferError, TypeError):  # no array
        array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else None


# Files


class _HashingFile:
    """A file that knows the digest of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def write_record(file: BinaryIO, title: str, header: Any, arrays: Sequence[np.ndarray]) -> None:
    """Write a line that says what it is, a digest, what JSON can hold, and arrays."""
    title_line = f"{title}\n".encode()
    file.write(title_line + b"0" * 64 + b"\n")
    body = _HashingFile(file)
    encoded_header = json.dumps([len(arrays), header]).encode()
    for array in (np.frombuffer(encoded_header, np.uint8), *arrays):
        np.lib.format.write_array(body, array, allow_pickle=False)
    file.seek(len(title_line))
    file.write(body.digest.hexdigest().encode())


def read_record(path: Path, *titles: str) -> tuple[str, Any, list[np.ndarray]]:
    """The title of a record, what JSON holds, and arrays.

    Raises
    ------
    ValueError
        If it is not a whole record of one of these titles.
    """
    with path.open("rb") as source:
        title = source.readline(100).removesuffix(b"\n").decode("ascii", "replace")
        digest, _, body = source.read().partition(b"\n")
    if title not in titles:
        raise ValueError(f"does not begin with {titles[0]!r}")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its digest is of another content")
    file = io.BytesIO(body)
    encoded_header = np.lib.format.read_array(file, allow_pickle=False)
    count, header = json.loads(encoded_header.tobytes())
    return title, header, [np.lib.format.read_array(file, allow_pickle=False) for _ in range(count)]
