"""Libraries that are installed only by those who need them."""

from __future__ import annotations

import importlib
from typing import Any

#: The extra that brings a library, for those that are not in `files`.
EXTRAS = {"av": "video", "torch": "gpu", "triton": "gpu", "numba": "fast", "rdata": "r"}


class MissingLibraryError(ImportError):
    """A library that something needs and that is not installed, in one line that says so."""


def import_optional(name: str, purpose: str) -> Any:
    """A library by name; without it, an error that says what needs it and how to get it.

    >>> import_optional("no_such_library", "reading tea leaves")
    Traceback (most recent call last):
    robustcp._util.optional.MissingLibraryError: reading tea leaves needs no_such_library; install it with: pip install 'robustcp[files]'
    """  # noqa: E501
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise MissingLibraryError(
            f"{purpose} needs {package}; install it with: pip install "
            f"'robustcp[{EXTRAS.get(package, 'files')}]'",
            name=package,
        ) from None
