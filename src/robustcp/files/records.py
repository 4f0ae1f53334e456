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

PLAIN = (type(None), bool, int, float, str)


class UnknownError(TypeError):
    """A value that could not be read back."""


class Vocabulary:
    """The dataclasses that values may be made of, by name: a file cannot ask for others.

    Examples
    --------
    >>> from robustcp.losses import Huber
    >>> known = Vocabulary([Huber])
    >>> known.described(Huber(2.0))
    {'is': 'Huber', 'with': {'delta': 2.0}}
    >>> known.restored(_)
    Huber(delta=2.0)
    """

    def __init__(self, kinds: Iterable[type[Any]] = ()) -> None:
        self._kinds: dict[str, type[Any]] = {}
        for kind in kinds:
            self._add(kind)

    def _add(self, kind: type[Any]) -> None:
        if self._kinds.setdefault(kind.__qualname__, kind) is not kind:
            raise UnknownError(f"two classes have the name {kind.__qualname__}")

    def learn(self, value: Any) -> None:
        """Add the dataclasses that a value is made of."""
        if isinstance(value, list | tuple):
            for item in value:
                self.learn(item)
        elif is_dataclass(value) and not isinstance(value, type):
            self._add(type(value))
            for part in fields(value):
                self.learn(getattr(value, part.name))

    def described(self, value: Any) -> Any:
        """A value as JSON can hold it, types of numbers included."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, np.generic):
            return {"numpy": value.dtype.str, "value": value.item()}
        if isinstance(value, tuple):
            return {"tuple": [self.described(item) for item in value]}
        if isinstance(value, list):
            return [self.described(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.described(k), self.described(v)] for k, v in value.items()]}
        name = type(value).__qualname__
        if is_dataclass(value) and self._kinds.get(name) is type(value):
            parts = {part.name: getattr(value, part.name) for part in fields(value)}
            return {"is": name, "with": {k: self.described(v) for k, v in parts.items()}}
        array = None if is_dataclass(value) else np.asarray(value)
        if array is None or array.dtype.kind not in "biuf":
            raise UnknownError(f"{_shown(value)} cannot be kept in a file: it is no dataclass")
        return {"array": array.dtype.str, "values": array.tolist()}

    def restored(self, told: Any) -> Any:
        """The value that was described."""
        if type(told) in PLAIN:
            return told
        if isinstance(told, list):
            return [self.restored(item) for item in told]
        if "numpy" in told:
            return np.dtype(told["numpy"]).type(told["value"])
        if "tuple" in told:
            return tuple(self.restored(item) for item in told["tuple"])
        if "dict" in told:
            return {self.restored(k): self.restored(v) for k, v in told["dict"]}
        if "array" in told:
            return np.array(told["values"], dtype=told["array"])
        kind = self._kinds[told["is"]]
        return kind(**{name: self.restored(part) for name, part in told["with"].items()})


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Files


class _Hashed:
    """A file that knows the digest of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, part: bytes) -> int:
        self.digest.update(part)
        return self._file.write(part)


def write_record(file: BinaryIO, title: str, about: Any, arrays: Sequence[np.ndarray]) -> None:
    """Write a line that says what it is, a digest, what JSON can hold, and arrays."""
    first = f"{title}\n".encode()
    file.write(first + b"0" * 64 + b"\n")
    body = _Hashed(file)
    content = json.dumps([len(arrays), about]).encode()
    for array in (np.frombuffer(content, np.uint8), *arrays):
        np.lib.format.write_array(body, array, allow_pickle=False)
    file.seek(len(first))
    file.write(body.digest.hexdigest().encode())


def read_record(path: Path, title: str) -> tuple[Any, list[np.ndarray]]:
    """What was written: what JSON holds, and arrays.

    Raises
    ------
    ValueError
        If it is not a whole record of this title.
    """
    with path.open("rb") as opened:
        first = f"{title}\n".encode()
        if opened.read(len(first)) != first:
            raise ValueError(f"does not begin with {title!r}")
        digest, _, body = opened.read().partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its digest is of another content")
    file = io.BytesIO(body)
    content = np.lib.format.read_array(file, allow_pickle=False)
    count, about = json.loads(content.tobytes())
    return about, [np.lib.format.read_array(file, allow_pickle=False) for _ in range(count)]
