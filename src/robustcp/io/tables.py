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

from robustcp.engines import Labelled, Observed
from robustcp.engines.axes import Axes, Labels, some
from robustcp.engines.labelled import (
    SPARSE,
    coded,
    constant_slabs,
    duplicates,
    numbers,
    place,
)
from robustcp.files.errors import FileError
from robustcp.files.optional import MissingError, library

#: What stands for a missing value.
GAPS = {"", "na", "nan", "n/a", "#n/a", "null", "none", "nat"}
#: What may stand between fields, in the order in which it is tried.
SEPARATORS = ("\t", ";", "|", ",")
#: Rows from which the separator and the header are found out.
SAMPLE = 100
#: A long table with more columns is a matrix, or needs to be told which are meant.
MANY = 8
#: Suffixes of text tables.
TEXT = (".csv", ".tsv", ".txt", ".dat", ".asc")


@dataclass(frozen=True)
class Columns:
    """Which columns of a long table are meant, by name or position; None for all or the last."""

    modes: tuple[int | str, ...] | None = None
    value: int | str | None = None

    @property
    def said(self) -> bool:
        return self.modes is not None or self.value is not None


@dataclass(frozen=True, eq=False)
class Table:
    """A table as it was read: names of the columns, if it has any, and rows.

    Attributes
    ----------
    path : Path
    names : list of str
    columns : list of lists
    first : int
        The line of the first row, from 1; 0 where lines mean nothing.
    comma : bool
        Whether numbers may have a comma in place of the point.
    """

    path: Path
    names: list[str]
    columns: list[Any] = field(repr=False)
    first: int = 0
    comma: bool = False

    def row(self, number: int) -> str:
        """Where a row is, in words."""
        return f"row {number}" + (f" (line {self.first + number})" if self.first else "")


# Long tables


def long_table(table: Table, asked: Columns, absent: str | None) -> Labelled:
    """The tensor of a table with a row for each entry."""
    modes, value = _chosen(table, asked)
    x = _values(table, value, asked.value is not None)
    codes, labels = [], []
    for k in modes:
        code, own = _labels(table, k)
        codes.append(code)
        labels.append(own)
    names = tuple(table.names[k] for k in modes)
    return listed_entries(table.path, np.stack(codes, axis=1), x, names, tuple(labels), absent)


def _chosen(table: Table, asked: Columns) -> tuple[list[int], int]:
    """The columns of the modes, and that of the values."""
    path, count = table.path, len(table.columns)
    if not asked.said and count > MANY + 1:
        raise FileError(
            path, f"has {count} columns: modes and value must say which are meant; "
            "or is it a matrix (stack)?",
        )  # fmt: skip
    value = None if asked.value is None else _column(table, "value", asked.value)
    if asked.modes is None:
        value = count - 1 if value is None else value
        modes = [k for k in range(count) if k != value]
    else:
        modes = [_column(table, "modes", name) for name in asked.modes]
        rest = [k for k in range(count) if k not in modes]
        if value is None and len(rest) != 1:
            raise FileError(
                path, f"must name the column of values, one of {_all(table, rest)}", "value"
            )
        value = rest[0] if value is None else value
    if len(set(modes)) < len(modes) or value in modes:
        raise FileError(path, "names a column twice", "modes")
    if len(modes) < 2:
        raise FileError(path, "must have a column for each of at least 2 modes, and one of values")
    if not len(table.columns[0]):
        raise FileError(path, "has no rows")
    return modes, value


def _column(table: Table, argument: str, name: int | str) -> int:
    """The number of a column that is given by position or name."""
    if isinstance(name, str):
        if name in table.names:
            return table.names.index(name)
        if not (name.isascii() and name.isdigit()):
            raise FileError(
                table.path, f"must be of {_all(table, range(len(table.names)))}; got {name!r}",
                argument,
            )  # fmt: skip
    number = int(name)
    if not 0 <= number < len(table.names):
        raise FileError(
            table.path,
            f"must be positions from 0 to {len(table.names) - 1}, got {number}",
            argument,
        )
    return number


def _all(table: Table, columns: Iterable[int]) -> str:
    return ", ".join(repr(table.names[k]) for k in columns) or "none"


def _values(table: Table, k: int, named: bool) -> np.ndarray:
    """A column of values; gaps are NaN."""
    name, column = table.names[k], table.columns[k]
    if isinstance(column, list):
        found, bad = _floats(column, table.comma)
    else:
        try:
            found, bad = numbers(column, f"{name!r}"), np.zeros(len(column), dtype=bool)
        except ValueError as error:
            problem = str(error).removeprefix("X: ")
            raise FileError(
                table.path, f"must name the column of values; of the last one, {problem}"
                if not named else f"of the column of values, {problem}",
                None if named else "value",
            ) from None  # fmt: skip
        bad = np.isinf(found)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        here = f"{column[row]!r} in {table.row(row)}"
        if bad.mean() > 0.5 and not named:
            raise FileError(
                table.path, f"must name the column of values; the last one, {name!r}, has {here}",
                "value",
            )  # fmt: skip
        raise FileError(table.path, f"the column of values, {name!r}, has {here}")
    return found


def _floats(column: Sequence[str], comma: bool) -> tuple[np.ndarray, np.ndarray]:
    """Text as numbers, NaN for gaps, and which are neither."""
    found, bad = np.full(len(column), np.nan), np.zeros(len(column), dtype=bool)
    for k, text in enumerate(column):
        if text.lower() in GAPS:
            continue
        number = _number(text, comma)
        if number is None or not math.isfinite(number):
            bad[k] = True
        else:
            found[k] = number
    return found, bad


def _number(text: str, comma: bool = False) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    if not comma or text.count(",") != 1:
        return None
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _labels(table: Table, k: int) -> tuple[np.ndarray, list[Any]]:
    """The number of each row's label, and the labels."""
    name, column = table.names[k], table.columns[k]
    if not isinstance(column, list):
        try:
            return coded(column, "")
        except ValueError as error:
            row = int(str(error).rpartition(" ")[2])
            raise FileError(
                table.path, f"the column of a mode, {name!r}, has a gap in {table.row(row)}"
            ) from None
    for row, text in enumerate(column):
        if not text:
            raise FileError(
                table.path, f"the column of a mode, {name!r}, has a gap in {table.row(row)}"
            )
    made = as_labels(column, table.comma)
    order = {label: n for n, label in enumerate(sorted(set(made)))}
    return np.array([order[label] for label in made], dtype=np.int64), list(order)


def as_labels(texts: Sequence[str], comma: bool = False) -> list[Any]:
    """Labels from text: whole numbers or numbers if all of them are, else as they are.

    >>> as_labels(["1", "2"]), as_labels(["1.5", "2"]), as_labels(["01", "NA"])
    ([1, 2], [1.5, 2.0], ['01', 'NA'])
    """
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", text) for text in texts):
        return [int(text) for text in texts]
    if any(re.match(r"0\d", text) for text in texts):
        return list(texts)
    found = [_number(text, comma) for text in texts]
    if any(number is None or not math.isfinite(number) for number in found):
        return list(texts)
    return found


def listed_entries(
    path: Path,
    at: np.ndarray,
    values: np.ndarray,
    modes: tuple[str, ...],
    labels: tuple[Labels, ...],
    absent: str | None,
    shape: tuple[int, ...] | None = None,
) -> Labelled:
    """A tensor of listed entries: observed ones, or a whole array where the rest is 0.

    Those that are listed as NaN are missing.
    """
    shape = tuple(len(each or ()) for each in labels) if shape is None else shape
    known = ~np.isnan(values)
    if not known.any():
        raise FileError(path, "has no values")
    size = math.prod(map(float, shape))
    if absent is None and len(values) < size:
        raise FileError(
            path, "must say what the entries that are not listed are, 'missing' or 'zero' "
            f"({size - len(values):.0f} of {size:.0f})", "absent",
        )  # fmt: skip
    repeated = duplicates(at, shape)
    if repeated is not None:
        raise FileError(path, f"repeated coordinates: {place(repeated.tolist(), modes, labels)}")
    named = labels[0] is not None
    notes = constant_slabs(at[known], values[known], modes, labels) if named else ()
    if absent == "missing" and known.sum() < SPARSE * size:
        return Labelled(Observed(at[known], values[known], shape), modes, labels, notes)
    data = np.full(shape, np.nan if absent == "missing" else 0.0)
    data[tuple(at.T)] = values
    return Labelled(data, modes, labels, notes)


# Text


def text_table(path: Path, asked: Columns) -> Table:
    """A long table in a text file."""
    lines, rows, comma = _rows(path)
    if len(rows[0]) < 3:
        raise FileError(path, "must have a column for each of at least 2 modes, and one of values")
    header = _has_header(rows, asked, comma)
    body = rows[1:] if header else rows
    count = len(rows[0])
    names = [text or f"column {k}" for k, text in enumerate(rows[0])] if header else (
        [*(f"mode {k}" for k in range(count - 1)), "value"]
    )  # fmt: skip
    columns = [list(column) for column in zip(*body, strict=True)] or [[] for _ in names]
    if header and not rows[0][0] and columns[0] == [str(k) for k in range(len(body))]:
        names, columns = names[1:], columns[1:]  # the numbers of rows, as pandas writes them
    return Table(path, names, columns, lines[header] if len(lines) > header else 0, comma)


def _has_header(rows: list[list[str]], asked: Columns, comma: bool) -> bool:
    """Whether the first row has names of columns: text where others have numbers."""
    first, body = rows[0], rows[1 : SAMPLE + 1]
    wanted = [*(asked.modes or ()), *([] if asked.value is None else [asked.value])]
    if any(isinstance(name, str) and name in first for name in wanted):
        return True

    def is_number(text: str) -> bool:
        return text.lower() in GAPS - {""} or _number(text, comma) is not None

    if not is_number(first[-1]):
        return True
    return any(
        not is_number(first[k]) and body and all(is_number(row[k]) for row in body)
        for k in range(len(first))
    )


def _rows(path: Path) -> tuple[list[int], list[list[str]], bool]:
    """The line and the fields of each row, and whether numbers may have a comma as a point."""
    text = _text(path)
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise FileError(path, "has no rows")
    separator = _separator([line for _, line in lines[:SAMPLE]])
    rows: list[list[str]] = []
    for number, line in lines:
        fields = _fields(line, separator)
        if rows and len(fields) != len(rows[0]):
            between = "spaces" if separator is None else repr(separator)
            raise FileError(
                path, f"line {number} has {len(fields)} fields between {between}, not "
                f"{len(rows[0])} as the first; one separator must be used throughout, and lines "
                "that are no part of the table must begin with #",
            )  # fmt: skip
        rows.append(fields)
    return [number for number, _ in lines], rows, separator != ","


def _text(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _separator(lines: Sequence[str]) -> str | None:
    """What stands between the fields of most lines; None for spaces."""
    best: tuple[int, str] | None = None
    for one in SEPARATORS:
        counts = [len(_fields(line, one)) for line in lines]
        alike = counts.count(counts[0]) if counts[0] > 1 else 0
        if alike and (best is None or alike > best[0]):
            best = alike, one
    return None if best is None else best[1]


def _fields(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return line.split()
    if '"' not in line:
        return [part.strip() for part in line.split(separator)]
    return [part.strip() for part in next(csv.reader(io.StringIO(line), delimiter=separator))]


# Matrices


def matrix(path: Path) -> Labelled:
    """The matrix in a text file, with labels of rows and columns where it has them."""
    _, rows, comma = _rows(path)
    return _matrix(path, rows, comma)


def _matrix(path: Path, rows: list[list[Any]], comma: bool, where: str = "") -> Labelled:
    """A matrix from fields, the first of which may be labels."""
    if not any(str(row[-1]).strip() for row in rows):  # each line ends in a separator
        rows = [row[:-1] for row in rows]
    if len(rows) < 2 or len(rows[0]) < 2:
        raise FileError(path, f"{where}is not a matrix with rows and columns")
    labelled = _has_labels(rows, comma)
    body = [row[1:] for row in rows[1:]] if labelled else rows
    data = np.empty((len(body), len(body[0])))
    for i, row in enumerate(body):
        found, bad = _floats([str(cell) for cell in row], comma)
        if bad.any():
            j = int(np.flatnonzero(bad)[0])
            raise FileError(
                path, f"{where}has {row[j]!r} in row {i}, column {j} of the matrix; lines that are "
                "no part of it must begin with #",
            )  # fmt: skip
        data[i] = found
    labels: tuple[Labels, ...] = (None, None)
    if labelled:
        texts = [str(row[0]) for row in rows[1:]], [str(cell) for cell in rows[0][1:]]
        if any(not text for each in texts for text in each):
            raise FileError(path, f"{where}has a gap among the labels of its rows or columns")
        labels = tuple(as_labels(each, comma) for each in texts)
    return Labelled(data, ("row", "column"), labels)


def _has_labels(rows: list[list[Any]], comma: bool) -> bool:
    """Whether the first row and column are labels: the corner is no number, or 0 beside axes."""
    corner = _number(str(rows[0][0]), comma)
    if corner is None or math.isnan(corner):
        return True
    edges = list(rows[0][1:]), [row[0] for row in rows[1:]]
    axes = [np.array([_number(str(x), comma) for x in edge], dtype=float) for edge in edges]
    rising = all(len(axis) > 2 and bool(np.all(np.diff(axis) > 0)) for axis in axes)
    return corner == 0 and rising


def stacked(path: Path, parts: Sequence[tuple[str, Labelled]], name: str) -> Labelled:
    """Matrices with the same labels as one tensor, whose first mode has their names as labels."""
    first_name, first = parts[0]
    slabs = []
    for one_name, one in parts:
        if one.shape != first.shape:
            raise FileError(
                path, f"{one_name} is {_size(one)}, {first_name} is {_size(first)}; all matrices "
                "must have the same rows and columns",
            )  # fmt: skip
        slabs.append(_aligned(path, first, one, one_name, first_name))
    names = [one_name for one_name, _ in parts]
    modes = (name, *first.modes)
    return Labelled(np.stack(slabs), modes, (names, *first.labels))


def _aligned(path: Path, first: Labelled, one: Labelled, name: str, first_name: str) -> np.ndarray:
    """A matrix with its rows and columns in the order of the first."""
    data = np.asarray(one.data)
    for axis, what in enumerate(("rows", "columns")):
        have, want = Axes(("x",), (one.labels[axis],)), Axes(("x",), (first.labels[axis],))
        if (one.labels[axis] is None) != (first.labels[axis] is None):
            raise FileError(path, f"only one of {name} and {first_name} has labels of {what}")
        try:
            how = have.arranged(want)
        except ValueError:
            a, b = one.labels[axis] or [], first.labels[axis] or []
            new = [label for label in a if label not in b] or a
            raise FileError(
                path, f"{name} has other {what} than {first_name}, such as {some(new, 1)}"
            ) from None
        if how is not None and how.rows[0] is not None:
            data = np.take(data, how.rows[0], axis=axis)
    return data


def _size(one: Labelled) -> str:
    return "x".join(map(str, one.shape))


def folder(path: Path) -> Labelled:
    """The matrices of a folder's text files as one tensor, with the names of files as labels."""
    files = sorted(
        (p for p in path.iterdir() if p.suffix.lower() in TEXT and not p.name.startswith(".")),
        key=lambda p: _natural(p.stem),
    )
    if not files:
        raise FileError(path, f"is a folder without tables ({', '.join(TEXT[:3])})")
    return stacked(path, [(p.stem, matrix(p)) for p in files], "file")


def _natural(name: str) -> list[tuple[int, int, str]]:
    """So that s2 comes before s10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts if p]


# Workbooks and Parquet


def workbook(path: Path, key: str | None, stack: bool) -> Labelled | Table:
    """All sheets of a workbook as matrices of one tensor, or one sheet as a long table."""
    _needed("openpyxl", path)
    import openpyxl

    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheets = {
            sheet.title: _cells(sheet)
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
        parts = [(name, _matrix(path, rows, False, f"{name}: ")) for name, rows in sheets.items()]
        return parts[0][1] if len(parts) == 1 else stacked(path, parts, "sheet")
    if len(sheets) > 1:
        raise FileError(
            path, f"must name one of several sheets: {', '.join(sheets)} (all as matrices: stack)",
            "key",
        )  # fmt: skip
    return _sheet(path, next(iter(sheets.values())))


def _cells(sheet: Any) -> list[list[Any]]:
    """The rows of a sheet, without empty ones at its end, all of the same length."""
    rows = [
        ["" if cell is None else cell for cell in row] for row in sheet.iter_rows(values_only=True)
    ]
    while rows and all(cell == "" for cell in rows[-1]):
        rows.pop()
    width = max((k + 1 for row in rows for k, cell in enumerate(row) if cell != ""), default=0)
    return [(row + [""] * width)[:width] for row in rows]


def _sheet(path: Path, rows: list[list[Any]]) -> Table:
    """A sheet as a long table with names in its first row."""
    pandas = _needed("pandas", path)
    if len(rows[0]) < 3:
        raise FileError(path, "must have a column for each of at least 2 modes, and one of values")
    header = [str(cell) for cell in rows[0]]
    columns = []
    for column in itertools.zip_longest(*rows[1:]):
        gaps = [None if cell == "" else cell for cell in column]
        columns.append(pandas.Series(pandas.Series(gaps, dtype=object).infer_objects()))
    return Table(path, header, columns or [[] for _ in header], 2)


def parquet(path: Path) -> Table:
    """A long table in a Parquet file."""
    pandas = _needed("pandas", path)
    _needed("pyarrow", path)
    table = pandas.read_parquet(path)
    if any(name is not None for name in table.index.names):
        table = table.reset_index()
    names = [str(name) for name in table.columns]
    if len(names) < 3:
        raise FileError(path, "must have a column for each of at least 2 modes, and one of values")
    return Table(path, names, [table.iloc[:, k] for k in range(len(names))])


def _needed(name: str, path: Path) -> Any:
    try:
        return library(name, "reading it")
    except MissingError as error:
        raise FileError(path, str(error)) from None
