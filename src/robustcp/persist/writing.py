"""Output files: checks of where they may be written, and atomic writing."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from robustcp.persist.errors import ExistsError, FileError, OutputError, WriteError, reason

# What may be written


class Outputs:
    """Files that will be written. `add` and `add_folder` check them before any work is done.

    They raise an error for a file that cannot be written, for one that exists (unless `force`), and
    always for an input and for a file that was added before, also under another name (a link).

    Parameters
    ----------
    *inputs : Path or None
        What is read: files, or folders of files.
    force : bool
        Whether existing files may be replaced.
    replaceable : sequence of paths
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
    robustcp.persist.errors.OutputError: out ...x.npz: is an input, which would be lost
    """

    def __init__(
        self,
        *inputs: str | Path | None,
        force: bool = False,
        replaceable: Sequence[str | Path] = (),
    ) -> None:
        self.inputs = [Path(path) for path in inputs if path is not None]
        self.force = force
        self._replaceable = {_resolve(Path(path)) for path in replaceable}
        self._paths: list[Path] = []

    @property
    def full_paths(self) -> tuple[str, ...]:
        """The full paths of the files that were added."""
        return tuple(str(_resolve(path)) for path in self._paths)

    def add(self, argument: str, path: Path, *, may_exist: bool = False) -> None:
        """Check and add a file, in a folder that exists; `argument` is the one that names it.

        With `may_exist` it may exist, whatever `force` says.
        """
        self._add(argument, path, may_exist=may_exist)

    def add_folder(self, argument: str, folder: Path, names: Sequence[str]) -> None:
        """Check and add files of a folder, which need not exist yet."""
        with _refuse_on_os_error(argument, folder):
            target = _resolve(folder)
            nearest = _nearest_existing(target)
            if not nearest.is_dir():
                raise OutputError(folder, "cannot be written (Not a directory)", argument)
            if not _is_writable_folder(nearest):
                raise OutputError(folder, "cannot be written (Permission denied)", argument)
        for name in names:
            self._add(argument, folder / name, target)

    def _add(
        self, argument: str, path: Path, new_folder: Path | None = None, *, may_exist: bool = False
    ) -> None:
        """Check and add a file; `new_folder` is a folder that will be made if it does not exist."""
        with _refuse_on_os_error(argument, path):
            status, parent = _stat_or_none(path), _resolve(path).parent
            if status and stat.S_ISDIR(status.st_mode):
                raise OutputError(path, "is a folder", argument)
            if parent != new_folder and not parent.is_dir():
                raise OutputError(path, f"there is no folder {parent}", argument)
            if any(source.exists() and _is_within(path, source) for source in self.inputs):
                raise OutputError(path, "is an input, which would be lost", argument)
            for other in self._paths:
                if _is_same_file(path, other):
                    raise OutputError(
                        path, f"is the same file as {other}, which is also written", argument
                    )
            if status and not stat.S_ISREG(status.st_mode):
                raise OutputError(path, "is not a regular file", argument)
            if status and not (self.force or may_exist or _resolve(path) in self._replaceable):
                raise ExistsError(path, "exists", argument)
            if not _is_writable_folder(_nearest_existing(parent)) or (
                status and not os.access(path, os.W_OK)
            ):
                raise OutputError(path, "cannot be written (Permission denied)", argument)
            self._paths.append(path)


@contextmanager
def _refuse_on_os_error(argument: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # links in a circle, names that are too long
        raise OutputError(path, f"cannot be written ({reason(error)})", argument) from None


def _stat_or_none(path: Path) -> os.stat_result | None:
    """The file that a path leads to, if there is one."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_writable_folder(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _nearest_existing(path: Path) -> Path:
    """The path, or the first above it that exists."""
    while not os.path.lexists(path):
        path = path.parent
    return path


def _resolve(path: Path) -> Path:
    """Where a path leads, also if nothing is there yet."""
    return Path(os.path.realpath(path))


def _is_same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them does not exist
        return _resolve(a) == _resolve(b)


def _is_within(path: Path, source: Path) -> bool:
    """Whether a path leads to a source, or to a file of a source that is a folder."""
    if _is_same_file(path, source):
        return True
    if not source.is_dir():
        return False
    if any(_is_same_file(parent, source) for parent in _resolve(path).parents):
        return True
    # a file elsewhere that the folder links to
    return path.exists() and any(
        _is_same_file(path, Path(folder, name))
        for folder, _, names in os.walk(source, followlinks=True)
        for name in names
    )


# Writing


@contextmanager
def open_atomic(path: str | Path) -> Iterator[BinaryIO]:
    """Open a temporary file, which is renamed to `path` if the block raises no exception.

    Otherwise it is deleted. It is in the same folder as the file that `path` leads to: a link stays
    a link, and the file that it leads to is replaced. A new file gets the permissions of the one
    that it replaces.

    Raises
    ------
    WriteError
        If the system raises an error, within the block or after it.
    """
    with open_atomic_together(path) as (file,), convert_write_errors(path):
        yield file


@contextmanager
def open_atomic_together(*paths: str | Path) -> Iterator[list[BinaryIO]]:
    """Open several files as `open_atomic` does; none is renamed before all are complete."""
    temporaries: list[_TemporaryFile] = []
    try:
        for path in paths:
            with convert_write_errors(path):
                temporaries.append(_TemporaryFile.create_for(Path(path)))
        yield [temporary.file for temporary in temporaries]
        for temporary in temporaries:
            with convert_write_errors(temporary.path):
                temporary.complete()
        for temporary in temporaries:
            with convert_write_errors(temporary.path):
                temporary.publish()
    finally:
        for temporary in temporaries:
            temporary.discard()


def write_bytes(path: str | Path, content: bytes | memoryview) -> None:
    """Write a file that is complete or not there at all."""
    with open_atomic(path) as file:
        file.write(content)


def write_figure(path: str | Path, figure: Any, **options: Any) -> None:
    """Write a Matplotlib figure, in the format that the suffix says, and close it."""
    import matplotlib.pyplot as plt

    path = Path(path)
    try:
        with open_atomic(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=150, **options)
    finally:
        plt.close(figure)


def make_folder(folder: str | Path) -> Path:
    """The folder, which is made if it does not exist. For a broken link, its target is made."""
    folder = Path(folder)
    with convert_write_errors(folder):
        _resolve(folder).mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def convert_write_errors(path: str | Path) -> Iterator[None]:
    """Say that a file cannot be written, where the system says that something failed."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise WriteError.of(path, error) from error


@dataclass
class _TemporaryFile:
    """A file under a temporary name."""

    path: Path
    target: Path
    file: BinaryIO

    @classmethod
    def create_for(cls, path: Path) -> _TemporaryFile:
        target = _resolve(path)
        replaced_status = _stat_or_none(target)
        temporary = target.with_name(f".writing-{secrets.token_hex(8)}")
        # what others may not read must not be open to them while it is written; for new files
        # the umask decides
        mode = (
            0o666
            if replaced_status is None
            else 0o600 | stat.S_IMODE(replaced_status.st_mode) & 0o066
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        os.close(os.open(temporary, flags, mode))
        # To a file opened for writing only, NumPy writes by `tofile`, whose errors do not say why
        # writing failed. With "r+b" it calls the file's `write`, whose errors do.
        return cls(path, target, temporary.open("r+b"))

    def complete(self) -> None:
        """See that all is on disk, with the permissions of the file that is replaced."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        replaced_status, status = _stat_or_none(self.target), os.stat(self.file.name)
        if replaced_status is None:
            return
        if hasattr(os, "chown") and (replaced_status.st_uid, replaced_status.st_gid) != (
            status.st_uid,
            status.st_gid,
        ):
            with suppress(OSError):  # only root may give files away
                os.chown(self.file.name, replaced_status.st_uid, replaced_status.st_gid)
        if stat.S_IMODE(replaced_status.st_mode) != stat.S_IMODE(status.st_mode):
            os.chmod(self.file.name, stat.S_IMODE(replaced_status.st_mode))

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
