"""`robustcp show`, `export` and `project`: what is done with a fit that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.options import (
    AsJson,
    Force,
    TensorFile,
)
from robustcp.cli.printing import csv_text, print_json, print_lines
from robustcp.cli.read_options import Source, read_mode, read_tensor
from robustcp.persist.errors import FileError
from robustcp.persist.formats import list_suffixes
from robustcp.persist.writing import Outputs, open_atomic, write_bytes

if TYPE_CHECKING:
    import numpy as np

FitFile = Annotated[
    Path, typer.Argument(help="A fit, from robustcp fit.", metavar="FIT", show_default=False)
]

#: How many rows of scores are shown.
MAX_SHOWN_ROWS = 20


def show(fit_file: FitFile, as_json: AsJson = False) -> None:
    """Say what is in the file of a fit.

    Example: robustcp show fit.npz
    """
    from robustcp.persist.fits import load

    summary = load(fit_file).summary()
    if as_json:
        print_json(summary.content)
    else:
        print_lines(str(summary).splitlines())


def export(
    fit_file: FitFile,
    to: Annotated[Path, typer.Option(help=f"The file to write: {list_suffixes()}.")],
    force: Force = False,
) -> None:
    """Write a fit to a file that other programs read, with names and labels.

    An .xlsx file has a sheet for each mode, a .mat file cells of factors and labels, a .csv
    file a row for each index of each mode. All but .csv can be read back as a fit.

    Example: robustcp export fit.npz --to fit.xlsx
    """
    from robustcp.persist.fits import check_suffix, load

    check_suffix(to)
    Outputs(fit_file, force=force).add("to", to)
    load(fit_file).save(to, overwrite=True)
    print(f"written: {to}")


def project(
    fit_file: FitFile,
    file: TensorFile,
    mode: Annotated[
        str, typer.Option(help="The mode that is new, by number or name, such as the samples'.")
    ] = "0",
    nonnegative: Annotated[
        bool | None,
        typer.Option(help="Whether scores must not be negative; by default as in the fit."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the scores here (.csv or .npy).")] = None,
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say how much of each component new data has: robust scores, the other factors held.

    Where both have labels, the data must have the fit's in the other modes, in any order.

    Example: robustcp project fit.npz new.nc --mode sample --out scores.csv
    """
    import numpy as np

    from robustcp.engines import to_host
    from robustcp.persist.fits import load

    if out is not None:
        if out.suffix not in (".csv", ".npy"):
            raise FileError(out, "scores are written as .csv or .npy")
        Outputs(file, fit_file, force=force).add("out", out)
    fit = load(fit_file)
    loaded = read_tensor(source)
    new_mode = read_mode(mode, fit.modes)
    scores = np.asarray(to_host(fit.project(loaded, new_mode, nonnegative=nonnegative)))
    n = fit.aligned_to(loaded, free=range(len(fit.shape))).axes.mode_number("mode", new_mode)
    name, labels = fit.modes[n] if isinstance(new_mode, int) else new_mode, loaded.labels[n]
    rows = list(range(len(scores))) if labels is None else labels
    if out is not None:
        _write_scores(out, name, rows, scores)
    if as_json:
        print_json({"mode": name, "labels": rows, "scores": scores.tolist()})
        return
    width = max(len(name), *(len(str(row)) for row in rows[:MAX_SHOWN_ROWS]))
    print(f"{name:>{width}}" + "".join(f"  {f'component {r + 1}':>12}" for r in range(fit.rank)))
    for row, row_scores in list(zip(rows, scores, strict=True))[:MAX_SHOWN_ROWS]:
        print(f"{row!s:>{width}}" + "".join(f"  {x:>12.5g}" for x in row_scores))
    if len(rows) > MAX_SHOWN_ROWS:
        print(f"and {len(rows) - MAX_SHOWN_ROWS} more")


def _write_scores(out: Path, name: str, rows: list[Any], scores: np.ndarray) -> None:
    """Scores with their labels, or without."""
    import numpy as np

    if out.suffix == ".npy":
        with open_atomic(out) as file:
            np.save(file, scores, allow_pickle=False)
        return
    table = [[name, *(f"component {r + 1}" for r in range(scores.shape[1]))]]
    table += [
        [row, *(repr(float(x)) for x in row_scores)]
        for row, row_scores in zip(rows, scores, strict=True)
    ]
    write_bytes(out, csv_text(table).encode())
