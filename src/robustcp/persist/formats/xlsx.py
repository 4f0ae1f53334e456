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

from robustcp._util.optional import import_optional
from robustcp.persist.codec import decode_array, encode_array
from robustcp.persist.errors import FileError
from robustcp.persist.formats.description import FitContent, fit_arrays, fit_metadata
from robustcp.persist.labels import as_text, to_plain_labels
from robustcp.persist.writing import write_bytes

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: The sheets of the weights, and of all else.
WEIGHTS_SHEET, METADATA_SHEET = "weights", "robustcp"
#: What a sheet has room for: rows, and characters in a cell.
MAX_ROWS, MAX_CELL_CHARACTERS = 1_048_576, 30_000


def write(fit: Fit, path: Path) -> None:
    """Write a sheet for each mode, one of the weights, and one that holds the rest as JSON."""
    openpyxl = import_optional("openpyxl", "writing it")
    if max(fit.shape) >= MAX_ROWS:
        raise FileError(path, f"a sheet has no room for {max(fit.shape)} rows; write .nc or .npz")
    arrays, names = fit_arrays(fit), sheet_names(fit.modes)
    book = openpyxl.Workbook(write_only=True)
    components = list(range(1, fit.rank + 1))
    _fill_sheet(
        book.create_sheet(WEIGHTS_SHEET),
        ["component", "weight"],
        components,
        arrays["weights"][:, None],
    )
    for n, (title, labels) in enumerate(zip(names, fit.labels, strict=True)):
        A = arrays.pop(f"factor_{n}")
        rows = range(len(A)) if labels is None else to_plain_labels(labels)
        header = [as_text(fit.modes[n]), *(f"component {r}" for r in components)]
        _fill_sheet(book.create_sheet(title), header, rows, A)
    types = {f"factor_{n}": np.asarray(A).dtype.str for n, A in enumerate(fit.factors)}
    text = json.dumps(
        {
            "sheets": names,
            "types": types,
            "arrays": {name: encode_array(array) for name, array in arrays.items()},
            "robustcp": fit_metadata(fit),
        }
    )
    metadata_sheet = book.create_sheet(METADATA_SHEET)
    for offset in range(0, len(text), MAX_CELL_CHARACTERS):
        metadata_sheet.append(
            [_make_cell(metadata_sheet, text[offset : offset + MAX_CELL_CHARACTERS])]
        )
    metadata_sheet.sheet_state = "hidden"
    content = io.BytesIO()
    book.save(content)
    write_bytes(path, content.getbuffer())


def _fill_sheet(sheet: Any, header: Sequence[str], labels: Iterable[Any], rows: np.ndarray) -> None:
    sheet.append([_make_cell(sheet, text) for text in header])
    for label, row in zip(labels, rows, strict=True):
        sheet.append([_make_cell(sheet, label), *(float(x) for x in row)])


def _make_cell(sheet: Any, value: Any) -> Any:
    """A cell; text is text, also if it begins as a formula does."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if isinstance(value, np.datetime64):
        microseconds = value.astype("datetime64[us]")
        is_representable = microseconds == value and np.datetime64("1900-03-01") <= value
        value = microseconds.item() if is_representable else str(value)
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
    names: list[str] = []
    used_names = {WEIGHTS_SHEET, METADATA_SHEET, "history"}
    for n, mode in enumerate(modes):
        name = re.sub(r"[\[\]:*?/\\\x00-\x1f\ud800-\udfff]", "_", as_text(mode)).strip("' ")[:31]
        if not name or name.lower() in used_names:
            name = f"{name[:27] or 'mode'}_{n}"
        while name.lower() in used_names:
            name = f"{name[:26]}_{n}_"
        used_names.add(name.lower())
        names.append(name)
    return names


def read(path: Path) -> FitContent:
    """What was written."""
    openpyxl = import_optional("openpyxl", "reading it")
    with path.open("rb") as file:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        try:
            text = "".join(str(row[0]) for row in book[METADATA_SHEET].iter_rows(values_only=True))
            metadata = json.loads(text)
            arrays = {name: decode_array(array) for name, array in metadata["arrays"].items()}
            for n, title in enumerate(metadata["sheets"]):
                rows = [row[1:] for row in book[title].iter_rows(min_row=2, values_only=True)]
                dtype = np.dtype(metadata["types"][f"factor_{n}"])
                if dtype.kind != "f":
                    raise ValueError(f"no factors are of type {dtype}")
                arrays[f"factor_{n}"] = np.array(rows, dtype=dtype)
        finally:
            book.close()
    return arrays, metadata["robustcp"]
