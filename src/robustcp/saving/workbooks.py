"""Fits as workbooks (.xlsx): a sheet for each mode with its labels, and one that holds the rest."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.files.errors import FileError
from robustcp.files.labels import as_text, for_netcdf
from robustcp.files.optional import library
from robustcp.files.writing import write_bytes
from robustcp.saving.described import Held, about, arrays_of
from robustcp.saving.text import tagged, untagged

if TYPE_CHECKING:
    from robustcp.fitted import Fit

#: The sheets of the weights, and of all else.
WEIGHTS, REST = "weights", "robustcp"
#: What a sheet has room for: rows, and characters in a cell.
ROWS, CHARACTERS = 1_048_576, 30_000


def write(fit: Fit, path: Path) -> None:
    """Write a sheet for each mode, one of the weights, and one that holds the rest as JSON."""
    openpyxl = library("openpyxl", "writing it")
    if max(fit.shape) >= ROWS:
        raise FileError(path, f"a sheet has no room for {max(fit.shape)} rows; write .nc or .npz")
    held, names = arrays_of(fit), sheet_names(fit.modes)
    book = openpyxl.Workbook(write_only=True)
    components = list(range(1, fit.rank + 1))
    _fill(book.create_sheet(WEIGHTS), ["component", "weight"], components, held["weights"][:, None])
    for n, (title, labels) in enumerate(zip(names, fit.labels, strict=True)):
        A = held.pop(f"factor_{n}")
        rows = range(len(A)) if labels is None else for_netcdf(labels)
        head = [as_text(fit.modes[n]), *(f"component {r}" for r in components)]
        _fill(book.create_sheet(title), head, rows, A)
    types = {f"factor_{n}": np.asarray(A).dtype.str for n, A in enumerate(fit.factors)}
    text = json.dumps({
        "sheets": names, "types": types,
        "arrays": {name: tagged(array) for name, array in held.items()}, "robustcp": about(fit),
    })  # fmt: skip
    rest = book.create_sheet(REST)
    for at in range(0, len(text), CHARACTERS):
        rest.append([_cell(rest, text[at : at + CHARACTERS])])
    rest.sheet_state = "hidden"
    content = io.BytesIO()
    book.save(content)
    write_bytes(path, content.getbuffer())


def _fill(sheet: Any, head: Sequence[str], labels: Iterable[Any], rows: np.ndarray) -> None:
    sheet.append([_cell(sheet, text) for text in head])
    for label, row in zip(labels, rows, strict=True):
        sheet.append([_cell(sheet, label), *(float(x) for x in row)])


def _cell(sheet: Any, value: Any) -> Any:
    """A cell; text is text, also if it begins as a formula does."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if isinstance(value, np.datetime64):
        exact = value.astype("datetime64[us]")
        usable = exact == value and np.datetime64("1900-03-01") <= value
        value = exact.item() if usable else str(value)
    if isinstance(value, float) and not np.isfinite(value):
        value = repr(value)
    if isinstance(value, bool | int | float | datetime):
        return value
    cell = WriteOnlyCell(sheet, ILLEGAL_CHARACTERS_RE.sub("\N{REPLACEMENT CHARACTER}", str(value)))
    cell.data_type = "s"
    return cell


def sheet_names(modes: Sequence[Any]) -> list[str]:
    """Names of sheets: those of the modes, where a workbook can have them.

    >>> sheet_names(["emission", "a/b", "Emission", "weights"])
    ['emission', 'a_b', 'Emission_2', 'weights_3']
    """
    found: list[str] = []
    taken = {WEIGHTS, REST, "history"}
    for n, mode in enumerate(modes):
        name = re.sub(r"[\[\]:*?/\\\x00-\x1f\ud800-\udfff]", "_", as_text(mode)).strip("' ")[:31]
        if not name or name.lower() in taken:
            name = f"{name[:27] or 'mode'}_{n}"
        while name.lower() in taken:
            name = f"{name[:26]}_{n}_"
        taken.add(name.lower())
        found.append(name)
    return found


def read(path: Path) -> Held:
    """What was written."""
    openpyxl = library("openpyxl", "reading it")
    with path.open("rb") as file:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        try:
            text = "".join(str(row[0]) for row in book[REST].iter_rows(values_only=True))
            told = json.loads(text)
            held = {name: untagged(array) for name, array in told["arrays"].items()}
            for n, title in enumerate(told["sheets"]):
                rows = [row[1:] for row in book[title].iter_rows(min_row=2, values_only=True)]
                kind = np.dtype(told["types"][f"factor_{n}"])
                if kind.kind != "f":
                    raise ValueError(f"no factors are of type {kind}")
                held[f"factor_{n}"] = np.array(rows, dtype=kind)
        finally:
            book.close()
    return held, told["robustcp"]
