"""Tables: long ones with a row for each entry, and matrices, one in each file or sheet."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustcp._util.optional import import_optional
from robustcp.engines import LabelledTensor, Observed
from robustcp.engines.axes import Axes, Labels, format_labels
from robustcp.engines.labelled import (
    MAX_SPARSE_DENSITY,
    describe_entry,
    factorize_column,
    first_duplicate,
    note_constant_slabs,
    numeric_values,
)
from robustcp.persist.errors import FileError

#: What stands for a missing value.
MISSING_TEXTS = {"", "na", "nan", "n/a", "#n/a", "null", "none", "nat"}
#: What may stand between fields, in the order in which it is tried.
SEPARATORS = ("\t", ";", "|", ",")
#: Rows from which the separator and the header are found out.
SNIFFED_ROWS = 100
#: A long table with more columns is a matrix, or needs to be told which are meant.
MAX_MODE_COLUMNS = 8
#: Suffixes of text tables.
TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".asc")


@dataclass(frozen=True)
class Columns:
    """Which columns of a long table are meant, by name or position; None for all or the last."""

    modes: tuple[int | str, ...] | None = None
    value: int | str | None = None

    @property
    def is_specified(self) -> bool:
        return self.modes is not None or self.value is not None


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read: names of the columns, if it has any, and rows.

    Attributes
    ----------
    path : Path
    names : list of str
    columns : list of lists
    first_line : int
        The line of the first row, from 1; 0 where lines mean nothing.
    decimal_comma : bool
        Whether numbers may have a comma in place of the point.
    """

    path: Path
    names: list[str]
    columns: list[Any] = field(repr=False)
    first_line: int = 0
    decimal_comma: bool = False

    def describe_row(self, number: int) -> str:
        """Where a row is, in words."""
        return f"row {number}" + (f" (line {self.first_line + number})" if self.first_line else "")


# Long tables


def tensor_from_long_table(table: Table, requested: Columns, absent: str | None) -> LabelledTensor:
    """The tensor of a table with a row for each entry."""
    modes, value = _choose_columns(table, requested)
    values = _parse_values(table, value, requested.value is not None)
    codes, labels = [], []
    for k in modes:
        mode_codes, mode_labels = _factorize_labels(table, k)
        codes.append(mode_codes)
        labels.append(mode_labels)
    names = tuple(table.names[k] for k in modes)
    return tensor_from_entries(
        table.path, np.stack(codes, axis=1), values, names, tuple(labels), absent
    )


def _choose_columns(table: Table, requested: Columns) -> tuple[list[int], int]:
    """The columns of the modes, and that of the values."""
    path, count = table.path, len(table.columns)
    if not requested.is_specified and count > MAX_MODE_COLUMNS + 1:
        raise FileError(
            path,
            f"has {count} columns: modes and value must say which are meant; "
            "or is it a matrix (stack)?",
        )
    value = None if requested.value is None else _column_index(table, "value", requested.value)
    if requested.modes is None:
        value = count - 1 if value is None else value
        modes = [k for k in range(count) if k != value]
    else:
        modes = [_column_index(table, "modes", name) for name in requested.modes]
        others = [k for k in range(count) if k not in modes]
        if value is None and len(others) != 1:
            raise FileError(
                path,
                f"must name the column of values, one of {_join_names(table, others)}",
                "value",
            )
        value = others[0] if value is None else value
    if len(set(modes)) < len(modes) or value in modes:
        raise FileError(path, "names a column twice", "modes")
    if len(modes) < 2:
        raise FileError(path, "must have a column for each of at least 2 modes, and one of values")
    if not len(table.columns[0]):
        raise FileError(path, "has no rows")
    return modes, value


def _column_index(table: Table, argument: str, name: int | str) -> int:
    """The number of a column that is given by position or name."""
    if isinstance(name, str):
        if name in table.names:
            return table.names.index(name)
        if not (name.isascii() and name.isdigit()):
            raise FileError(
                table.path,
                f"must be of {_join_names(table, range(len(table.names)))}; got {name!r}",
                argument,
            )
    number = int(name)
    if not 0 <= number < len(table.names):
        raise FileError(
            table.path,
            f"must be positions from 0 to {len(table.names) - 1}, got {number}",
            argument,
        )
    return number


def _join_names(table: Table, columns: Iterable[int]) -> str:
    return ", ".join(repr(table.names[k]) for k in columns) or "none"


def _parse_values(table: Table, k: int, is_named: bool) -> np.ndarray:
    """A column of values; gaps are NaN."""
    name, column = table.names[k], table.columns[k]
    if isinstance(column, list):
        values, bad = _parse_floats(column, table.decimal_comma)
    else:
        try:
            values, bad = numeric_values(column, f"{name!r}"), np.zeros(len(column), dtype=bool)
        except ValueError as error:
            problem = str(error).removeprefix("X: ")
            raise FileError(
                table.path,
                f"must name the column of values; of the last one, {problem}"
                if not is_named
                else f"of the column of values, {problem}",
                None if is_named else "value",
            ) from None
        bad = np.isinf(values)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        bad_cell = f"{column[row]!r} in {table.describe_row(row)}"
        if bad.mean() > 0.5 and not is_named:
            raise FileError(
                table.path,
                f"must name the column of values; the last one, {name!r}, has {bad_cell}",
                "value",
            )
        raise FileError(table.path, f"the column of values, {name!r}, has {bad_cell}")
    return values


def _parse_floats(column: Sequence[str], decimal_comma: bool) -> tuple[np.ndarray, np.ndarray]:
    """Text as numbers, NaN for gaps, and which are neither."""
    values, bad = np.full(len(column), np.nan), np.zeros(len(column), dtype=bool)
    for k, text in enumerate(column):
        if text.lower() in MISSING_TEXTS:
            continue
        number = _parse_number(text, decimal_comma)
        if number is None or not math.isfinite(number):
            bad[k] = True
        else:
            values[k] = number
    return values, bad


def _parse_number(text: str, decimal_comma: bool = False) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    if not decimal_comma or text.count(",") != 1:
        return None
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _factorize_labels(table: Table, k: int) -> tuple[np.ndarray, list[Any]]:
    """The number of each row's label, and the labels."""
    name, column = table.names[k], table.columns[k]
    if not isinstance(column, list):
        try:
            return factorize_column(column, "")
        except ValueError as error:
            row = int(str(error).rpartition(" ")[2])
            raise FileError(
                table.path,
                f"the column of a mode, {name!r}, has a gap in {table.describe_row(row)}",
            ) from None
    for row, text in enumerate(column):
        if not text:
            raise FileError(
                table.path,
                f"the column of a mode, {name!r}, has a gap in {table.describe_row(row)}",
            )
    row_labels = parse_labels(column, table.decimal_comma)
    codes = {label: n for n, label in enumerate(sorted(set(row_labels)))}
    return np.array([codes[label] for label in row_labels], dtype=np.int64), list(codes)


def parse_labels(texts: Sequence[str], decimal_comma: bool = False) -> list[Any]:
    """Labels from text: whole numbers or numbers if all of them are, else as they are.

    >>> parse_labels(["1", "2"]), parse_labels(["1.5", "2"]), parse_labels(["01", "NA"])
    ([1, 2], [1.5, 2.0], ['01', 'NA'])
    """
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", text) for text in texts):
        return [int(text) for text in texts]
    if any(re.match(r"0\d", text) for text in texts):
        return list(texts)
    values = [_parse_number(text, decimal_comma) for text in texts]
    if any(number is None or not math.isfinite(number) for number in values):
        return list(texts)
    return values


def tensor_from_entries(
    path: Path,
    indices: np.ndarray,
    values: np.ndarray,
    modes: tuple[str, ...],
    labels: tuple[Labels, ...],
    absent: str | None,
    shape: tuple[int, ...] | None = None,
) -> LabelledTensor:
    """A tensor of listed entries: observed ones, or a whole array where the rest is 0.

    Those that are listed as NaN are missing.
    """
    shape = tuple(len(mode_labels or ()) for mode_labels in labels) if shape is None else shape
    observed = ~np.isnan(values)
    if not observed.any():
        raise FileError(path, "has no values")
    size = math.prod(map(float, shape))
    if absent is None and len(values) < size:
        raise FileError(
            path,
            "must say what the entries that are not listed are, 'missing' or 'zero' "
            f"({size - len(values):.0f} of {size:.0f})",
            "absent",
        )
    duplicate = first_duplicate(indices, shape)
    if duplicate is not None:
        raise FileError(
            path, f"repeated coordinates: {describe_entry(duplicate.tolist(), modes, labels)}"
        )
    has_labels = labels[0] is not None
    notes = (
        note_constant_slabs(indices[observed], values[observed], modes, labels)
        if has_labels
        else ()
    )
    if absent == "missing" and observed.sum() < MAX_SPARSE_DENSITY * size:
        return LabelledTensor(
            Observed(indices[observed], values[observed], shape), modes, labels, notes
        )
    data = np.full(shape, np.nan if absent == "missing" else 0.0)
    data[tuple(indices.T)] = values
    return LabelledTensor(data, modes, labels, notes)


# Text


def read_text_table(path: Path, requested: Columns) -> Table:
    """A long table in a text file."""
    lines, rows, decimal_comma = _read_rows(path)
    header = _has_header(rows, requested, decimal_comma)
    body = rows[1:] if header else rows
    count = len(rows[0])
    names = (
        [text or f"column {k}" for k, text in enumerate(rows[0])]
        if header
        else ([*(f"mode {k}" for k in range(count - 1)), "value"])
    )
    columns = [list(column) for column in zip(*body, strict=True)] or [[] for _ in names]
    if header and not rows[0][0] and columns[0] == [str(k) for k in range(len(body))]:
        names, columns = names[1:], columns[1:]  # the numbers of rows, as pandas writes them
    return Table(path, names, columns, lines[header] if len(lines) > header else 0, decimal_comma)


def _has_header(rows: list[list[str]], requested: Columns, decimal_comma: bool) -> bool:
    """Whether the first row has names of columns: text where others have numbers."""
    first_row, body = rows[0], rows[1 : SNIFFED_ROWS + 1]
    requested_names = [
        *(requested.modes or ()),
        *([] if requested.value is None else [requested.value]),
    ]
    if any(isinstance(name, str) and name in first_row for name in requested_names):
        return True

    def is_number(text: str) -> bool:
        return (
            text.lower() in MISSING_TEXTS - {""} or _parse_number(text, decimal_comma) is not None
        )

    if not is_number(first_row[-1]):
        return True
    return any(
        not is_number(first_row[k]) and body and all(is_number(row[k]) for row in body)
        for k in range(len(first_row))
    )


def _read_rows(path: Path) -> tuple[list[int], list[list[str]], bool]:
    """The line and the fields of each row, and whether numbers may have a comma as a point."""
    text = _read_text(path)
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise FileError(path, "has no rows")
    separator = _detect_separator([line for _, line in lines[:SNIFFED_ROWS]])
    rows: list[list[str]] = []
    for number, line in lines:
        fields = _split_fields(line, separator)
        if rows and len(fields) != len(rows[0]):
            separator_text = "spaces" if separator is None else repr(separator)
            raise FileError(
                path,
                f"line {number} has {len(fields)} fields between {separator_text}, not "
                f"{len(rows[0])} as the first; one separator must be used throughout, and lines "
                "that are no part of the table must begin with #",
            )
        rows.append(fields)
    return [number for number, _ in lines], rows, separator != ","


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _detect_separator(lines: Sequence[str]) -> str | None:
    """What stands between the fields of most lines; None for spaces."""
    best_match: tuple[int, str] | None = None
    for separator in SEPARATORS:
        counts = [len(_split_fields(line, separator)) for line in lines]
        consistent_lines = counts.count(counts[0]) if counts[0] > 1 else 0
        if consistent_lines and (best_match is None or consistent_lines > best_match[0]):
            best_match = consistent_lines, separator
    return None if best_match is None else best_match[1]


def _split_fields(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return line.split()
    if '"' not in line:
        return [part.strip() for part in line.split(separator)]
    return [part.strip() for part in next(csv.reader(io.StringIO(line), delimiter=separator))]


# Matrices


def read_matrix(path: Path) -> LabelledTensor:
    """The matrix in a text file, with labels of rows and columns where it has them."""
    _, rows, decimal_comma = _read_rows(path)
    return _parse_matrix(path, rows, decimal_comma)


def _parse_matrix(
    path: Path, rows: list[list[Any]], decimal_comma: bool, prefix: str = ""
) -> LabelledTensor:
    """A matrix from fields, the first of which may be labels."""
    if not any(str(row[-1]).strip() for row in rows):  # each line ends in a separator
        rows = [row[:-1] for row in rows]
    if len(rows) < 2 or len(rows[0]) < 2:
        raise FileError(path, f"{prefix}is not a matrix with rows and columns")
    has_labels = _has_labels(rows, decimal_comma)
    body = [row[1:] for row in rows[1:]] if has_labels else rows
    data = np.empty((len(body), len(body[0])))
    for i, row in enumerate(body):
        values, bad = _parse_floats([str(cell) for cell in row], decimal_comma)
        if bad.any():
            j = int(np.flatnonzero(bad)[0])
            raise FileError(
                path,
                f"{prefix}has {row[j]!r} in row {i}, column {j} of the matrix; lines that are "
                "no part of it must begin with #",
            )
        data[i] = values
    labels: tuple[Labels, ...] = (None, None)
    if has_labels:
        texts = [str(row[0]) for row in rows[1:]], [str(cell) for cell in rows[0][1:]]
        if any(not text for axis_texts in texts for text in axis_texts):
            raise FileError(path, f"{prefix}has a gap among the labels of its rows or columns")
        labels = tuple(parse_labels(axis_texts, decimal_comma) for axis_texts in texts)
    return LabelledTensor(data, ("row", "column"), labels)


def _has_labels(rows: list[list[Any]], decimal_comma: bool) -> bool:
    """Whether the first row and column are labels: the corner is no number, or 0 beside axes."""
    corner = _parse_number(str(rows[0][0]), decimal_comma)
    if corner is None or math.isnan(corner):
        return True
    edges = list(rows[0][1:]), [row[0] for row in rows[1:]]
    axes = [
        np.array([_parse_number(str(x), decimal_comma) for x in edge], dtype=float)
        for edge in edges
    ]
    increasing = all(len(axis) > 2 and bool(np.all(np.diff(axis) > 0)) for axis in axes)
    return corner == 0 and increasing


def stack_matrices(
    path: Path, matrices: Sequence[tuple[str, LabelledTensor]], name: str
) -> LabelledTensor:
    """Matrices with the same labels as one tensor, whose first mode has their names as labels."""
    first_name, first = matrices[0]
    slabs = []
    for current_name, current in matrices:
        if current.shape != first.shape:
            raise FileError(
                path,
                f"{current_name} is {_format_shape(current)}, {first_name} is "
                f"{_format_shape(first)}; all matrices must have the same rows and columns",
            )
        slabs.append(_align_matrix(path, first, current, current_name, first_name))
    names = [current_name for current_name, _ in matrices]
    modes = (name, *first.modes)
    return LabelledTensor(np.stack(slabs), modes, (names, *first.labels))


def _align_matrix(
    path: Path, first: LabelledTensor, current: LabelledTensor, name: str, first_name: str
) -> np.ndarray:
    """A matrix with its rows and columns in the order of the first."""
    data = np.asarray(current.data)
    for axis, axis_name in enumerate(("rows", "columns")):
        axes, first_axes = (
            Axes(("x",), (current.labels[axis],)),
            Axes(("x",), (first.labels[axis],)),
        )
        if (current.labels[axis] is None) != (first.labels[axis] is None):
            raise FileError(path, f"only one of {name} and {first_name} has labels of {axis_name}")
        try:
            arrangement = axes.arrangement_for(first_axes)
        except ValueError:
            a, b = current.labels[axis] or [], first.labels[axis] or []
            unmatched = [label for label in a if label not in b] or a
            raise FileError(
                path,
                f"{name} has other {axis_name} than {first_name}, such as "
                f"{format_labels(unmatched, 1)}",
            ) from None
        if arrangement is not None and arrangement.rows[0] is not None:
            data = np.take(data, arrangement.rows[0], axis=axis)
    return data


def _format_shape(tensor: LabelledTensor) -> str:
    return "x".join(map(str, tensor.shape))


def read_folder(path: Path) -> LabelledTensor:
    """The matrices of a folder's text files as one tensor, with the names of files as labels."""
    files = sorted(
        (
            p
            for p in path.iterdir()
            if p.suffix.lower() in TEXT_SUFFIXES and not p.name.startswith(".")
        ),
        key=lambda p: _natural_sort_key(p.stem),
    )
    if not files:
        raise FileError(path, f"is a folder without tables ({', '.join(TEXT_SUFFIXES[:3])})")
    return stack_matrices(path, [(p.stem, read_matrix(p)) for p in files], "file")


def _natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """So that s2 comes before s10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts if p]


# Workbooks and Parquet


def read_workbook(path: Path, key: str | None, stack: bool) -> LabelledTensor | Table:
    """All sheets of a workbook as matrices of one tensor, or one sheet as a long table."""
    openpyxl = import_optional("openpyxl", "reading it")
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheets = {
            sheet.title: _read_cells(sheet)
            for sheet in book.worksheets
            if sheet.sheet_state == "visible"
        }
    finally:
        book.close()
    sheets = {name: rows for name, rows in sheets.items() if rows}
    if key is not None:
        if key not in sheets:
            raise FileError(path, f"holds no sheet {key!r}; there are: {', '.join(sheets)}")
        sheets = {key: sheets[key]}
    if not sheets:
        raise FileError(path, "has no sheet with anything in it")
    if stack:
        matrices = [
            (name, _parse_matrix(path, rows, False, f"{name}: ")) for name, rows in sheets.items()
        ]
        return matrices[0][1] if len(matrices) == 1 else stack_matrices(path, matrices, "sheet")
    if len(sheets) > 1:
        raise FileError(
            path,
            f"must name one of several sheets: {', '.join(sheets)} (all as matrices: stack)",
            "key",
        )
    return _table_from_sheet(path, next(iter(sheets.values())))


def _read_cells(sheet: Any) -> list[list[Any]]:
    """The rows of a sheet, without empty ones at its end, all of the same length."""
    rows = [
        ["" if cell is None else cell for cell in row] for row in sheet.iter_rows(values_only=True)
    ]
    while rows and all(cell == "" for cell in rows[-1]):
        rows.pop()
    width = max((k + 1 for row in rows for k, cell in enumerate(row) if cell != ""), default=0)
    return [(row + [""] * width)[:width] for row in rows]


def _table_from_sheet(path: Path, rows: list[list[Any]]) -> Table:
    """A sheet as a long table with names in its first row."""
    pandas = import_optional("pandas", "reading it")
    header = [str(cell) for cell in rows[0]]
    columns = []
    for column in itertools.zip_longest(*rows[1:]):
        values = [None if cell == "" else cell for cell in column]
        columns.append(pandas.Series(pandas.Series(values, dtype=object).infer_objects()))
    return Table(path, header, columns or [[] for _ in header], 2)


def read_parquet(path: Path) -> Table:
    """A long table in a Parquet file."""
    pandas = import_optional("pandas", "reading it")
    import_optional("pyarrow", "reading it")
    return table_of_frame(path, pandas.read_parquet(path))


def table_of_frame(path: Path, table: Any) -> Table:
    """A DataFrame with what its index has a name for."""
    if any(name is not None for name in table.index.names):
        table = table.reset_index()
    names = [str(name) for name in table.columns]
    return Table(path, names, [table.iloc[:, k] for k in range(len(names))])
