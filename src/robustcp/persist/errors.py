"""What can be wrong with files. Each error is one line that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class FileError(ValueError):
    """What is wrong with a file, in one line.

    Parameters
    ----------
    path : str or Path
    problem : str
        What is wrong, as a sentence about the file, or about the argument if there is one.
    argument : str, optional
        The Python argument that would mend it. The command line says the option instead.

    Examples
    --------
    >>> from robustcp import FileError
    >>> print(FileError("x.npz", "must name one of several arrays: a, b", "key"))
    x.npz: key must name one of several arrays: a, b
    """

    def __init__(self, path: str | Path, problem: str, argument: str | None = None) -> None:
        super().__init__(path, problem, argument)
        self.path = path
        self.problem = problem
        self.argument = argument

    def message(self, name_argument: Callable[[str], str] = str) -> str:
        """The line, with the argument as `name_argument` spells it."""
        if self.argument is None:
            return f"{self.path}: {self.problem}"
        return f"{self.path}: {name_argument(self.argument)} {self.problem}"

    def __str__(self) -> str:
        return self.message()


class OutputError(FileError):
    """An output that is refused before any work; `argument` is the one that names it."""

    def message(self, name_argument: Callable[[str], str] = str) -> str:
        prefix = "" if self.argument is None else f"{name_argument(self.argument)} "
        return f"{prefix}{self.path}: {self.problem}"


class ExistsError(OutputError):
    """An output that exists and may not be replaced."""

    def message(self, name_argument: Callable[[str], str] = str) -> str:
        return f"{super().message(name_argument)}; {name_argument('force')} replaces it"


class WriteError(FileError):
    """A file that could not be written, though it seemed so at first: a full disk, say."""

    @classmethod
    def of(cls, path: str | Path, error: BaseException) -> WriteError:
        return cls(path, f"cannot be written ({reason(error)})")


def reason(error: BaseException) -> str:
    """Why something failed, in one line."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200] or type(error).__name__
