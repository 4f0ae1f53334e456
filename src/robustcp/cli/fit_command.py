"""`robustcp fit`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.checkpoint_options import CheckpointOption
from robustcp.cli.compute_options import ComputeResources, Memory, Scheduler, Workers
from robustcp.cli.drawing import picture_file
from robustcp.cli.errors import NOT_CONVERGED, NOT_WRITTEN, explain, fail, print_message
from robustcp.cli.fit_options import FitOptions
from robustcp.cli.interrupts import explain_interrupt
from robustcp.cli.options import (
    AsJson,
    CaseMode,
    CenterModes,
    Constraint,
    Force,
    Limits,
    LogEvery,
    LogRatioMode,
    Noise,
    Nonnegative,
    PictureFormat,
    Quiet,
    ReportFile,
    ScaleModes,
    Seed,
    Smooth,
    TensorFile,
    Unimodal,
    Verbose,
)
from robustcp.cli.printing import print_json, print_summary, summary_of
from robustcp.cli.progress import ProgressDisplay, fit_with_progress
from robustcp.cli.read_options import Source, check_rank, noise_file, read_cases, read_noise
from robustcp.cli.report_command import add_report, with_seed
from robustcp.persist.errors import WriteError, reason
from robustcp.persist.formats import FORMATS, check_suffix, list_suffixes
from robustcp.persist.writing import Outputs, make_folder, write_figure

if TYPE_CHECKING:
    from robustcp.io.reading import Loaded
    from robustcp.results.fit import Fit
    from robustcp.results.view import FittedView


def fit(
    ctx: typer.Context,
    file: TensorFile,
    rank: Annotated[int, typer.Option(help="The number of components.")],
    method: Annotated[str, typer.Option(help="cp, cpal1 or cpals.")] = "cp",
    noise: Noise = None,
    cases: CaseMode = None,
    limits: Limits = None,
    center: CenterModes = None,
    scale: ScaleModes = None,
    log_ratio: LogRatioMode = None,
    nonnegative: Nonnegative = None,
    smooth: Smooth = None,
    unimodal: Unimodal = None,
    constraint: Constraint = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="FILE|KIND", help="Begin with a fit; or auto, nvecs, random."),
    ] = None,
    fixed: Annotated[
        str | None,
        typer.Option(metavar="MODES", help="Modes whose factors stay as they are in --init."),
    ] = None,
    starts: Annotated[int | None, typer.Option(help="How many starts to try.")] = None,
    seed: Seed = 0,
    max_sweeps: Annotated[int, typer.Option(help="How many sweeps at most.")] = 1000,
    out: Annotated[
        Path, typer.Option(help=f"Where the fit goes: {list_suffixes(whole=True)}.")
    ] = Path("fit.npz"),
    report: ReportFile = None,
    plot: Annotated[Path | None, typer.Option(help="Folder for pictures.")] = None,
    picture: PictureFormat = "png",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Write the unfinished fit here; the same command goes on from it."),
    ] = None,
    checkpoint_every: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Shortest time between two writes of the checkpoint."
        ),
    ] = 30.0,
    scheduler: Scheduler = None,
    workers: Workers = None,
    memory: Memory = None,
    *,
    source: Source,
    weights: Annotated[
        Path | None,
        typer.Option(help="Weights of entries (0: missing): their shape, or one that broadcasts."),
    ] = None,
    mask_file: Annotated[
        Path | None, typer.Option(help="A brain mask for a 4-D NIfTI image: 0 is left out.")
    ] = None,
    flatten: Annotated[
        bool, typer.Option("--flatten", help="A 4-D NIfTI image as voxel x time.")
    ] = False,
    maps: Annotated[
        Path | None, typer.Option(help="Write the maps of a 4-D NIfTI fit here (.nii, .nii.gz).")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    log_every: LogEvery = 10.0,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Fit the tensor in a file and say what was found.

    Reads .npy, .npz, .mat, .h5, .nc, .zarr, .nii, .nii.gz, .tns, .csv, .parquet, .xlsx,
    and folders of .csv with a matrix in each.
    Ctrl-C stops the fit after its sweep and writes the fit so far; in the search for starts
    that is the best start so far, if any is finished. A second Ctrl-C stops it without writing.
    With --checkpoint the same command, given again, goes on after Ctrl-C, a signal or a crash.

    Exit codes:
    0  the fit converged and is written
    1  it did not converge, or Ctrl-C ended it; it is written all the same
    2  bad input; nothing was done
    3  results could not be written; the message says where the fit is kept
    4  not enough memory
    130  stopped by Ctrl-C before there was a fit, or while reports and pictures were written

    Example: robustcp fit aminoacids.mat --key X.data --rank 3 --out fit.npz
    """
    import robustcp
    from robustcp.io.image_masks import (
        check_mappable,
        check_maps,
        prepare_image,
        read_weights,
        write_maps,
    )
    from robustcp.results.view import FittedView

    fit_options = FitOptions(
        method,
        noise,
        cases,
        limits,
        nonnegative,
        smooth or (),
        unimodal or (),
        constraint or (),
        init,
        fixed,
        center or (),
        scale or (),
        log_ratio,
    ).check()
    resources = ComputeResources.from_options(scheduler, workers, memory)
    inputs = (file, mask_file, weights, noise_file(noise), fit_options.init_file)
    checkpoint_option = CheckpointOption.from_path(checkpoint, *inputs, every=checkpoint_every)
    outputs = Outputs(*inputs, force=force, replaceable=checkpoint_option.earlier_outputs)
    check_fit_file(out)
    outputs.add("out", out)
    add_report(report, outputs)
    if maps is not None:
        check_maps(maps)
        outputs.add("maps", maps)
    if plot is not None:
        outputs.add_folder("plot", plot, [])
    loaded = prepare_image(resources.read(source), file, mask_file, flatten)
    if maps is not None:
        check_mappable(loaded, file)
    if plot is not None:
        outputs.add_folder("plot", plot, _picture_files(len(loaded.data.shape), picture))
    options = fit_options.keyword_arguments(loaded.modes) | {"rng": seed, "max_sweeps": max_sweeps}
    if starts is not None:
        options["starts"] = starts
    options["checkpoint"] = checkpoint_option.checkpoint(outputs)
    check_rank(rank, loaded)
    if weights is not None:
        options["entry_weights"] = read_weights(weights, loaded)
    options |= _data_options(noise, cases, loaded)
    with resources.start_workers():
        loaded = resources.limit_memory(loaded)
        estimate, seconds = fit_with_progress(
            getattr(robustcp, method),
            loaded,
            rank,
            options,
            ProgressDisplay(quiet, log_every, verbose),
        )
        if checkpoint is not None and estimate.result.name == "stopped":
            print_message(f"the same command goes on from {checkpoint}")
        _save(estimate, out)
        with _mention_saved_fit(out):
            if maps is not None:
                write_maps(estimate, loaded, maps)
            view = FittedView.of(estimate, loaded)
            if plot is not None:
                _draw_pictures(view, plot, picture)
            if report is not None:
                view.report(report, title=file.name, command=with_seed(ctx.obj, seed))
            summary = summary_of(view, seconds)
    if as_json:
        print_json(summary | {"out": str(out)})
    elif not quiet:
        print_summary(summary)
        print(f"written: {_written_files(out, report, plot)}")
    if not estimate.converged:
        raise typer.Exit(NOT_CONVERGED)


def _data_options(noise: str | None, cases: str | None, loaded: Loaded) -> dict[str, Any]:
    """What is said of the noise and the samples of some data, as the library takes it."""
    options: dict[str, Any] = {} if noise is None else {"noise": read_noise(noise, loaded)}
    return options if cases is None else options | {"cases": read_cases(cases, loaded)}


def _written_files(out: Path, report: Path | None, plot: Path | None) -> str:
    """What was written."""
    report_files = [] if report is None else [str(report)]
    return ", ".join([str(out), *report_files, *([] if plot is None else [f"pictures in {plot}"])])


def check_fit_file(out: Path) -> None:
    """Refuse names of files that a fit could not be read back from."""
    if out.suffix in FORMATS and not FORMATS[out.suffix].whole:
        fail(f"{out}: holds no whole fit; write .npz, and then robustcp export FIT --to {out}")
    check_suffix(out)


def _save(fit: Fit, out: Path) -> None:
    """Save the fit, or else keep it in the temporary folder and say so."""
    from robustcp.persist.fits import save, save_to_temporary_folder

    try:
        save(fit, out, overwrite=True)  # checked before the fit
    except Exception as error:  # hours of work are not to be lost, whatever it is
        message = str(error if isinstance(error, WriteError) else WriteError.of(out, error))
        try:
            rescue_text = f"the fit is kept in {save_to_temporary_folder(fit)}"
        except Exception as second_error:
            rescue_text = (
                f"the fit is lost: it cannot be kept elsewhere either ({reason(second_error)})"
            )
        fail(f"{message}; {rescue_text}", NOT_WRITTEN)


@contextmanager
def _mention_saved_fit(out: Path) -> Iterator[None]:
    """Say where the fit is if something fails after it was saved."""
    try:
        with explain_interrupt(f"stopped; the fit is in {out}"):
            yield
    except (WriteError, MemoryError) as error:
        message, code = explain(error)
        fail(f"{message}; the fit is in {out}", code)


def _picture_files(order: int, suffix: str) -> list[str]:
    names = ["components", "convergence", *(f"outliers_{mode}" for mode in range(order))]
    return [picture_file(name, suffix) for name in names]


def _draw_pictures(view: FittedView, folder: Path, suffix: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    make_folder(folder)
    names = _picture_files(len(view.fit.shape), suffix)
    for name, axes in zip(names, _pictures(view), strict=True):
        first = axes if hasattr(axes, "figure") else next(iter(axes.flat))
        write_figure(folder / name, first.figure)


def _pictures(view: FittedView) -> Iterator[Any]:
    from robustcp import plot as pictures

    yield pictures.components(view.fit)
    yield pictures.convergence(view.fit)
    for mode in range(len(view.fit.shape)):
        yield pictures.outliers(view.outliers, mode)
