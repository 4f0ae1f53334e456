"""`robustcp report`: all about a fit in one file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from robustcp.cli.errors import fail
from robustcp.cli.fit_options import parse_modes
from robustcp.cli.options import (
    Force,
    Jobs,
    Nonnegative,
    Seed,
    TensorFile,
)
from robustcp.cli.progress import ProgressDisplay
from robustcp.cli.read_options import Source, check_rank, read_mode, read_tensor
from robustcp.persist.errors import FileError
from robustcp.persist.writing import Outputs


def report(
    ctx: typer.Context,
    file: TensorFile,
    fit_file: Annotated[Path, typer.Argument(help="A fit of it, from robustcp fit.")],
    out: Annotated[Path, typer.Option(help="The file to write (.html).")] = Path("report.html"),
    mode: Annotated[
        str | None,
        typer.Option(help="The mode, by number or name, that holds samples; else that of --cases."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Its title; else the tensor's file.")] = None,
    uncertainty: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Intervals too: normal, bootstrap or jackknife."),
    ] = None,
    most: Annotated[
        int | None, typer.Option(help="What speaks for each rank too, up to this one.")
    ] = None,
    nonnegative: Nonnegative = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    *,
    source: Source,
    force: Force = False,
) -> None:
    """Write all that there is to say about a fit as one file of HTML, to be passed on.

    --most and --uncertainty take the time of robustcp rank and robustcp uncertainty;
    --nonnegative is for the fits of --most.

    Example: robustcp report aminoacids.mat fit.npz --key X.data --uncertainty normal --most 5
    """
    from robustcp.inference.rank_profile import rank_profile
    from robustcp.persist.fits import load
    from robustcp.results.view import FittedView

    add_report(out, Outputs(file, fit_file, force=force), "out")
    loaded, fit = read_tensor(source), load(fit_file)
    view = FittedView.of(fit, loaded)
    sample_mode: Any = None if mode is None else read_mode(mode, fit.modes)
    profile = intervals = None
    with ProgressDisplay().count_tasks() as show_progress:
        if uncertainty is not None:
            intervals = view.uncertainty(
                uncertainty,
                rng=seed,
                jobs=jobs,
                progress=lambda done, total: show_progress("resamples", done, total),
            )
        if most is not None:
            if most < 1:
                fail(f"--most {most}: must be at least 1")
            check_rank(most, loaded)
            profile = rank_profile(
                loaded,
                range(1, most + 1),
                mode=sample_mode or 0,
                rng=seed,
                jobs=jobs,
                nonnegative=parse_modes(nonnegative, loaded.modes),
                progress=lambda done, total: show_progress("rank", done, total),
            )
    view.report(
        out,
        mode=sample_mode,
        rank=profile,
        uncertainty=intervals,
        command=f"# of a fit that was made before, {fit_file}\n{ctx.obj}",
        title=file.name if title is None else title,
    )
    print(f"written: {out}")


def add_report(path: Path | None, outputs: Outputs, argument: str = "report") -> None:
    """Declare the file of a report, if there is to be one."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".htm"):
        raise FileError(path, "reports are written as .html")
    outputs.add(argument, path)


def with_seed(command: str, seed: int) -> str:
    """A command that says its seed, also where that is the usual one.

    >>> with_seed("robustcp fit x.npy --rank 3", 0)
    'robustcp fit x.npy --rank 3 --seed 0'
    """
    has_seed = any(part.split("=")[0] == "--seed" for part in shlex.split(command))
    return command if has_seed else f"{command} --seed {seed}"
