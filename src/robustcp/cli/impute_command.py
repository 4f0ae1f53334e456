"""`robustcp impute`: a tensor with its missing entries filled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.errors import NOT_CONVERGED, fail, print_message
from robustcp.cli.fit_options import FitOptions
from robustcp.cli.options import (
    AsJson,
    Force,
    Limits,
    LogEvery,
    Noise,
    Nonnegative,
    Quiet,
    Seed,
    TensorFile,
)
from robustcp.cli.printing import print_json
from robustcp.cli.progress import ProgressDisplay, fit_with_progress
from robustcp.cli.read_options import Source, check_rank, noise_file, read_noise, read_tensor
from robustcp.persist.writing import Outputs

if TYPE_CHECKING:
    from robustcp.io.reading import Loaded
    from robustcp.results.fit import Fit


def impute(
    file: TensorFile,
    out: Annotated[Path, typer.Option(help="The file to write: .npy, .npz, .mat, .nc or .csv.")],
    fit_file: Annotated[
        Path | None, typer.Option("--fit", metavar="FIT", help="A fit of it, from robustcp fit.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Without --fit: fit so many components first.")
    ] = None,
    method: Annotated[str, typer.Option(help="cp, cpal1 or cpals.")] = "cp",
    noise: Noise = None,
    limits: Limits = None,
    nonnegative: Nonnegative = None,
    flagged: Annotated[
        bool, typer.Option("--flagged", help="Replace entries that are flagged as outliers too.")
    ] = False,
    uncertainty: Annotated[
        bool,
        typer.Option(
            "--uncertainty",
            help="Write standard errors too: of the model, and of a prediction with its noise.",
        ),
    ] = False,
    seed: Seed = 0,
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
    log_every: LogEvery = 10.0,
    quiet: Quiet = False,
) -> None:
    """Fill the missing entries of a tensor with the model of a fit.

    All other entries stay as they are; with --flagged, outliers are replaced too. Slabs
    without any observed entry stay missing. With --uncertainty the file also holds
    model_errors, standard errors of the model's entries, and prediction_errors, which
    include the noise of a measurement. Ctrl-C ends the fit, and the fit so far fills the
    entries; the exit codes are those of robustcp fit.

    Example: robustcp impute log.nc --rank 3 --missing -999 --out filled.nc
    """
    import numpy as np

    from robustcp.engines import all_entries, to_host
    from robustcp.io.writing import check_tensor_file, write_tensors
    from robustcp.persist.fits import load
    from robustcp.results.view import FittedView

    if (fit_file is None) == (rank is None):
        fail("impute: give one of --fit FIT, a fit of the file, and --rank, to fit it first")
    options = FitOptions(method, noise, None, limits, nonnegative).check()
    outputs = Outputs(file, fit_file, noise_file(noise), force=force)
    check_tensor_file(out, several=uncertainty)
    outputs.add("out", out)
    loaded = read_tensor(source)
    if fit_file is not None:
        estimate = load(fit_file)
    else:
        display = ProgressDisplay(quiet, log_every)
        estimate = _fit(loaded, rank or 0, options, seed, display)
    view = FittedView.of(estimate, loaded)
    filled = view.impute(loaded, flagged=flagged, uncertainty=uncertainty)
    parts, notes = {"data": filled}, []
    if uncertainty:
        parts, notes = {"data": filled.values}, list(filled.notes)
        parts |= {name: getattr(filled, name) for name in ("model_errors", "prediction_errors")}
    arrays = {name: to_host(all_entries(part)) for name, part in parts.items()}
    before = np.asarray(to_host(all_entries(loaded)))
    write_tensors(out, arrays, view.fit.axes)
    missing, still_missing = np.isnan(before), np.isnan(arrays["data"])
    content: dict[str, Any] = {
        "filled": int(np.count_nonzero(missing & ~still_missing)),
        "replaced": int(np.count_nonzero(~missing & (arrays["data"] != before))),
        "missing": int(np.count_nonzero(still_missing)),
        "notes": notes,
        "warnings": [str(warning) for warning in estimate.warnings],
        "out": str(out),
    }
    if as_json:
        print_json(content)
    elif not quiet:
        print(f"filled: {_entries(content['filled'])}")
        if flagged:
            print(f"replaced: {_entries(content['replaced'])} that are flagged")
        if content["missing"]:
            print(f"still missing: {content['missing']}, in slabs without any observed entry")
        for text in (*notes, *map(str, estimate.warnings)):
            print(f"warning: {text}")
        print(f"written: {out}")
    if rank is not None and not estimate.converged:
        print_message(f"the fit did not converge: {estimate.result.sentence}")
        raise typer.Exit(NOT_CONVERGED)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _fit(
    loaded: Loaded, rank: int, options: FitOptions, seed: int, display: ProgressDisplay
) -> Fit:
    """The fit of a tensor, with the options of the command."""
    import robustcp

    check_rank(rank, loaded)
    arguments = options.keyword_arguments(loaded.modes) | {"rng": seed}
    if options.noise is not None:
        arguments["noise"] = read_noise(options.noise, loaded)
    estimator = getattr(robustcp, options.method)
    return fit_with_progress(estimator, loaded, rank, arguments, display)[0]
