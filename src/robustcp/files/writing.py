"""Files out: which may be written, and how, so that they are complete or not there at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from robustcp.files.errors import ExistsError, FileError, OutputError, WriteError, reason

# What may be written


class Outputs:
    """The files that are to be written, each checked before any work.

    Refused are files that cannot be written, files that exist (unless `force`), and always the
    inputs and files that were declared before, under whatever name.

    Parameters
    ----------
    *inputs : Path or None
        What is read: files, or folders of files.
    force : bool
        Whether existing files may be replaced.
    own : sequence of paths
        Files that an earlier run of the same work has written, which may be replaced.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> data = pathlib.Path(tempfile.mkdtemp()) / "x.npz"
    >>> data.touch()
    >>> outputs = Outputs(data, force=True)
    >>> outputs.add("out", data.with_name("fit.npz"))
    >>> outputs.add("out", data)
    Traceback (most recent call last):
    robustcp.files.errors.OutputError: out ...x.npz: is an input, which would be lost
    """

    def __init__(
        self, *inputs: str | Path | None, force: bool = False, own: Sequence[str | Path] = ()
    ) -> None:
        self.inputs = [Path(path) for path in inputs if path is not None]
        self.force = force
        self._own = {_target(Path(path)) for path in own}
        self._declared: list[Path] = []

    @property
    def names(self) -> tuple[str, ...]:
        """What was declared, as full paths."""
        return tuple(str(_target(path)) for path in self._declared)

    def add(self, argument: str, path: Path, *, replaced: bool = False) -> None:
        """Declare a file in a folder that exists; `argument` is the one that names it.

        With `replaced` it may exist, whatever `force` says.
        """
        self._declare(argument, path, replaced=replaced)

    def add_folder(self, argument: str, folder: Path, names: Sequence[str]) -> None:
        """Declare files of a folder, which need not exist yet."""
        with _refusal(argument, folder):
            made = _target(folder)
            found = _nearest(made)
            if not found.is_dir():
                raise OutputError(folder, "cannot be written (Not a directory)", argument)
            if not _accessible(found):
                raise OutputError(folder, "cannot be written (Permission denied)", argument)
        for name in names:
            self._declare(argument, folder / name, made)

    def _declare(
        self, argument: str, path: Path, made: Path | None = None, *, replaced: bool = False
    ) -> None:
        """Check a file, in a folder that will be made if it is not there."""
        with _refusal(argument, path):
            found, parent = _status(path), _target(path).parent
            if found and stat.S_ISDIR(found.st_mode):
                raise OutputError(path, "is a folder", argument)
            if parent != made and not parent.is_dir():
                raise OutputError(path, f"there is no folder {parent}", argument)
            if any(source.exists() and _within(path, source) for source in self.inputs):
                raise OutputError(path, "is an input, which would be lost", argument)
            for other in self._declared:
                if _same(path, other):
                    raise OutputError(
                        path, f"is the same file as {other}, which is also written", argument
                    )
            if found and not stat.S_ISREG(found.st_mode):
                raise OutputError(path, "is not a regular file", argument)
            if found and not (self.force or replaced or _target(path) in self._own):
                raise ExistsError(path, "exists", argument)
            if not _accessible(_nearest(parent)) or (found and not os.access(path, os.W_OK)):
                raise OutputError(path, "cannot be written (Permission denied)", argument)
            self._declared.append(path)


@contextmanager
def _refusal(argument: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # links in a circle, names that are too long
        raise OutputError(path, f"cannot be written ({reason(error)})", argument) from None


def _status(path: Path) -> os.stat_result | None:
    """The file that a path leads to, if there is one."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _accessible(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _nearest(path: Path) -> Path:
    """The path, or the first above it that exists."""
    while not os.path.lexists(path):
        path = path.parent
    return path


def _target(path: Path) -> Path:
    """Where a path leads, also if nothing is there yet."""
    return Path(os.path.realpath(path))


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them does not exist
        return _target(a) == _target(b)


def _within(path: Path, source: Path) -> bool:
    """Whether a path leads to a source, or to a file of a source that is a folder."""
    if _same(path, source):
        return True
    if not source.is_dir():
        return False
    if any(_same(parent, source) for parent in _target(path).parents):
        return True
    # a file elsewhere that the folder links to
    return path.exists() and any(
        _same(path, Path(folder, name))
        for folder, _, names in os.walk(source, followlinks=True)
        for name in names
    )


# Writing


@contextmanager
def whole(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `path` when the block ends well, or else goes away.

    It is in the folder of `path` and has another name until then. A link is followed, not
    replaced; an existing file's permissions are kept.

    Raises
    ------
    WriteError
        Where the system refuses, within the block or after it.
    """
    with whole_together(path) as (file,), write_errors(path):
        yield file


@contextmanager
def whole_together(*paths: str | Path) -> Iterator[list[BinaryIO]]:
    """Several files as by `whole`, none of which gets its name before all are complete."""
    parts: list[_Part] = []
    try:
        for path in paths:
            with write_errors(path):
                parts.append(_Part.beside(Path(path)))
        yield [part.file for part in parts]
        for part in parts:
            with write_errors(part.path):
                part.complete()
        for part in parts:
            with write_errors(part.path):
                part.publish()
    finally:
        for part in parts:
            part.discard()


def write_bytes(path: str | Path, content: bytes | memoryview) -> None:
    """Write a file that is complete or not there at all."""
    with whole(path) as file:
        file.write(content)


def write_picture(path: str | Path, figure: Any, **options: Any) -> None:
    """Write a Matplotlib figure, in the format that the suffix says, and close it."""
    import matplotlib.pyplot as plt

    path = Path(path)
    try:
        with whole(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=150, **options)
    finally:
        plt.close(figure)


def make_folder(folder: str | Path) -> Path:
    """The folder, made if it is not there; a link to one that is not there makes that one."""
    folder = Path(folder)
    with write_errors(folder):
        _target(folder).mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Say that a file cannot be written, where the system says that something failed."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise WriteError.of(path, error) from error


@dataclass
class _Part:
    """A file under a temporary name."""

    path: Path
    target: Path
    file: BinaryIO

    @classmethod
    def beside(cls, path: Path) -> _Part:
        target = _target(path)
        before = _status(target)
        temporary = target.with_name(f".writing-{secrets.token_hex(8)}")
        # what others may not read must not be open to them while it is written; for new files
        # the umask decides
        mode = 0o666 if before is None else 0o600 | stat.S_IMODE(before.st_mode) & 0o066
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        os.close(os.open(temporary, flags, mode))
        # "r+b" makes NumPy write in pieces, which say why they fail; the shortcut that it takes
        # with files for writing only does not
        return cls(path, target, temporary.open("r+b"))

    def complete(self) -> None:
        """See that all is on disk, with the permissions of the file that is replaced."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        before, now = _status(self.target), os.stat(self.file.name)
        if before is None:
            return
        if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
            with suppress(OSError):  # only root may give files away
                os.chown(self.file.name, before.st_uid, before.st_gid)
        if stat.S_IMODE(before.st_mode) != stat.S_IMODE(now.st_mode):
            os.chmod(self.file.name, stat.S_IMODE(before.st_mode))

    def publish(self) -> None:
        os.replace(self.file.name, self.target)
        with suppress(OSError):  # not every system can sync a folder
            folder = os.open(self.target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Remove the temporary file, if it is still there."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            os.unlink(self.file.name)
