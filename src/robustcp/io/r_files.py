"""Arrays and data frames from files of R."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robustcp._util.optional import import_optional

#: Suffixes of R's files: of several objects, and of one.
R_SUFFIXES = (".rda", ".rdata", ".rds")


def read_r_objects(path: Path) -> dict[str, Any]:
    """The objects of a file by their names: arrays, those of xarray where they have dimnames, and
    data frames; in lists `list.name`. The only object of an .rds file has the name of the file."""
    rdata = import_optional("rdata", "reading it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are read as what they hold
        if path.suffix.lower() == ".rds":
            return dict(_named_objects({path.stem: rdata.read_rds(path)}))
        return dict(_named_objects(rdata.read_rda(path)))


def _named_objects(objects: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in objects.items():
        if hasattr(value, "items") and not hasattr(value, "dtypes"):
            yield from _named_objects(value, f"{prefix}{name}.")
        elif hasattr(value, "dtypes") or len(np.shape(value)) >= 2:
            yield f"{prefix}{name}", value
