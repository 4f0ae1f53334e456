"""Values in files without pickle: plain ones as JSON, arrays as NumPy writes them, and a digest."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

PLAIN_TYPES = (type(None), bool, int, float, str)


class UnsupportedValueError(TypeError):
    """A value that could not be read back."""


class Codec:
    """The dataclasses that values may be made of, by name: a file cannot ask for others.

    Examples
    --------
    >>> from robustcp.losses import Huber
    >>> known = Codec([Huber])
    >>> known.encode(Huber(2.0))
    {'is': 'Huber', 'with': {'delta': 2.0}}
    >>> known.decode(_)
    Huber(delta=2.0)
    """

    def __init__(self, classes: Iterable[type[Any]] = ()) -> None:
        self._classes: dict[str, type[Any]] = {}
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

    def encode(self, value: Any) -> Any:
        """A value as JSON can hold it, types of numbers included."""
        if type(value) in PLAIN_TYPES:
            return value
        if isinstance(value, np.generic):
            return {"numpy": value.dtype.str, "value": value.item()}
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item) for item in value]}
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        name = type(value).__qualname__
        if is_dataclass(value) and self._classes.get(name) is type(value):
            field_values = {field.name: getattr(value, field.name) for field in fields(value)}
            return {"is": name, "with": {k: self.encode(v) for k, v in field_values.items()}}
        array = None if is_dataclass(value) else np.asarray(value)
        if array is None or array.dtype.kind not in "biuf":
            raise UnsupportedValueError(
                f"{_short_repr(value)} cannot be kept in a file: it is no dataclass"
            )
        return {"array": array.dtype.str, "values": array.tolist()}

    def decode(self, encoded: Any) -> Any:
        """The value that was described."""
        if type(encoded) in PLAIN_TYPES:
            return encoded
        if isinstance(encoded, list):
            return [self.decode(item) for item in encoded]
        if "numpy" in encoded:
            return np.dtype(encoded["numpy"]).type(encoded["value"])
        if "tuple" in encoded:
            return tuple(self.decode(item) for item in encoded["tuple"])
        if "dict" in encoded:
            return {self.decode(k): self.decode(v) for k, v in encoded["dict"]}
        if "array" in encoded:
            return np.array(encoded["values"], dtype=encoded["array"])
        class_ = self._classes[encoded["is"]]
        return class_(
            **{name: self.decode(encoded_value) for name, encoded_value in encoded["with"].items()}
        )


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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


def has_title(path: Path, title: str) -> bool:
    """Whether a file is a record of this title, by its first line."""
    with path.open("rb") as source:
        return source.read(len(title) + 1) == f"{title}\n".encode()


def read_record(path: Path, title: str) -> tuple[Any, list[np.ndarray]]:
    """What was written: what JSON holds, and arrays.

    Raises
    ------
    ValueError
        If it is not a whole record of this title.
    """
    with path.open("rb") as source:
        title_line = f"{title}\n".encode()
        if source.read(len(title_line)) != title_line:
            raise ValueError(f"does not begin with {title!r}")
        digest, _, body = source.read().partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its digest is of another content")
    file = io.BytesIO(body)
    encoded_header = np.lib.format.read_array(file, allow_pickle=False)
    count, header = json.loads(encoded_header.tobytes())
    return header, [np.lib.format.read_array(file, allow_pickle=False) for _ in range(count)]
