"""Libraries that are installed only by those who need them."""

from __future__ import annotations

import importlib
from typing import Any

#: The extra that brings a library, for those that are not in `files`.
EXTRAS = {"av": "video", "torch": "gpu", "triton": "gpu", "numba": "fast"}


class MissingError(ImportError):
    """A library that something needs and that is not installed, in one line that says so."""


def library(name: str, what: str) -> Any:
    """A library by name; without it, an error that says what needs it and how to get it.

    >>> library("no_such_library", "reading tea leaves")
    Traceback (most recent call last):
    robustcp.files.optional.MissingError: reading tea leaves needs no_such_library; install it with: pip install 'robustcp[files]'
    """  # noqa: E501
    try:
        return importlib.import_module(name)
    except ImportError:
        top = name.split(".")[0]
        raise MissingError(
            f"{what} needs {top}; install it with: pip install "
            f"'robustcp[{EXTRAS.get(top, 'files')}]'",
            name=top,
        ) from None
