"""`robustcp fit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.errors import NOT_CONVERGED, NOT_WRITTEN, STOPPED, explained, fail, tell
from robustcp.cli.options import (
    Absent,
    AsJson,
    CaseMode,
    Force,
    Key,
    Noise,
    Nonnegative,
    Quiet,
    Seed,
    Smooth,
    TensorFile,
    Unimodal,
)
from robustcp.cli.printing import print_json, print_summary, summary_of
from robustcp.cli.progress import fit_with_progress
from robustcp.cli.reading import check_rank, noise_file, read_cases, read_noise, read_tensor
from robustcp.files.errors import WriteError, reason
from robustcp.files.writing import Outputs, make_folder, write_picture

if TYPE_CHECKING:
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded
    from robustcp.outlying import Outliers


def fit(
    file: TensorFile,
    rank: Annotated[int, typer.Option(help="The number of components.")],
    method: Annotated[str, typer.Option(help="cp, cpal1 or cpals.")] = "cp",
    noise: Noise = None,
    cases: CaseMode = None,
    nonnegative: Nonnegative = False,
    smooth: Smooth = None,
    unimodal: Unimodal = None,
    starts: Annotated[int | None, typer.Option(help="How many starts to try.")] = None,
    seed: Seed = 0,
    max_sweeps: Annotated[int, typer.Option(help="The most sweeps.")] = 1000,
    out: Annotated[Path, typer.Option(help="Where the fit goes: .npz, or .nc.")] = Path("fit.npz"),
    plot: Annotated[Path | None, typer.Option(help="Folder for pictures.")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Keep the fit here while it runs; the same command goes on from it."),
    ] = None,
    key: Key = None,
    absent: Absent = None,
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
    quiet: Quiet = False,
) -> None:
    """Fit the tensor in a file and say what was found.

    Reads .npy, .npz, .mat, .h5, .nc, .zarr, .nii, .nii.gz, .tns, .csv, .parquet.
    Ctrl-C ends the fit and writes what there is. With --checkpoint the fit can go on, after
    Ctrl-C, a signal that ends it, or a crash.

    Exit codes:
    0  the fit converged and is written
    1  it did not converge, and is written all the same
    2  bad input; nothing was done
    3  results could not be written; the message says where the fit is kept
    4  not enough memory
    130  stopped before there was a fit

    Example: robustcp fit aminoacids.mat --key X.data --rank 3 --out fit.npz
    """
    from robustcp import methods
    from robustcp.io.fits import check_suffix
    from robustcp.io.nifti import arranged, check_mappable, check_maps, weights_for, write_maps

    options = _method_options(method, noise, cases, nonnegative, starts, seed, max_sweeps)
    options["constraints"] = _constraints(smooth or [], unimodal or [], nonnegative)
    outputs = Outputs(file, mask_file, weights, noise_file(noise), force=force)
    check_suffix(out)
    outputs.add("out", out)
    if checkpoint is not None:
        outputs.add("checkpoint", checkpoint, replaced=True)
        options["checkpoint"] = checkpoint
    if maps is not None:
        check_maps(maps)
        outputs.add("maps", maps)
    if plot is not None:
        outputs.add_folder("plot", plot, [])
    loaded = arranged(read_tensor(file, key, absent), file, mask_file, flatten)
    if maps is not None:
        check_mappable(loaded, file)
    if plot is not None:
        outputs.add_folder("plot", plot, _picture_files(len(loaded.data.shape)))
    check_rank(rank, loaded)
    if weights is not None:
        options["entry_weights"] = weights_for(weights, loaded)
    if noise is not None:
        options["noise"] = read_noise(noise, loaded)
    if cases is not None:
        options["cases"] = read_cases(cases, loaded)
    found, seconds = fit_with_progress(
        getattr(methods, method), loaded, rank, options, quiet or as_json
    )
    if checkpoint is not None and found.result.name == "stopped":
        tell(f"the same command with --force goes on from {checkpoint}")
    _save(found, out)
    try:
        if maps is not None:
            write_maps(found, loaded, maps)
        if plot is not None:
            _draw(found, loaded, plot)
        summary = summary_of(found, loaded, seconds)
    except (WriteError, MemoryError) as error:
        message, code = explained(error)
        fail(f"{message}; the fit is in {out}", code)
    except KeyboardInterrupt:
        fail(f"stopped; the fit is in {out}", STOPPED)
    if as_json:
        print_json(summary | {"out": str(out)})
    elif not quiet:
        print_summary(summary)
        print(f"written: {out}" + (f", pictures in {plot}" if plot else ""))
    if not found.converged:
        raise typer.Exit(NOT_CONVERGED)


def _method_options(
    method: str,
    noise: str | None,
    cases: str | None,
    nonnegative: bool,
    starts: int | None,
    seed: int,
    max_sweeps: int,
) -> dict[str, Any]:
    if method not in ("cp", "cpal1", "cpals"):
        fail(f"--method {method}: must be cp, cpal1 or cpals")
    asked = (
        ("--nonnegative", nonnegative), ("--noise", noise is not None),
        ("--cases", cases is not None),
    )  # fmt: skip
    for option, given in asked:
        if given and method != "cp":
            fail(f"{option}: is for --method cp, not {method}")
    options: dict[str, Any] = {"rng": seed, "max_sweeps": max_sweeps}
    if method == "cp":
        options["nonnegative"] = nonnegative
    if starts is not None:
        options["starts"] = starts
    return options


def _constraints(smooth: list[str], unimodal: list[str], nonnegative: bool) -> dict[Any, Any]:
    """Constraints as the library takes them, each mode as a number or a name."""
    from robustcp import constraints

    given: list[tuple[str, str, Any]] = []
    for text in smooth:
        mode, sign, number = text.rpartition("=")
        strength: Any = number  # which Smooth refuses if it is none
        if not sign or not mode:
            fail(f"--smooth {text}: must be MODE=STRENGTH")
        try:
            given.append((f"--smooth {text}", mode, constraints.Smooth(strength, nonnegative)))
        except ValueError as error:
            fail(f"--smooth {text}: {error}")
    given += [(f"--unimodal {mode}", mode, constraints.Unimodal()) for mode in unimodal]
    found: dict[Any, Any] = {}
    for option, mode, constraint in given:
        key = int(mode) if mode.isascii() and mode.isdigit() else mode
        if key in found:
            fail(f"{option}: the mode has another constraint already")
        found[key] = constraint
    return found


def _save(found: Fit, out: Path) -> None:
    """Save the fit, or else keep it in the temporary folder and say so."""
    from robustcp.io.fits import rescue, save

    try:
        save(found, out)
    except Exception as error:  # hours of work are not to be lost, whatever it is
        message = str(error if isinstance(error, WriteError) else WriteError.of(out, error))
        try:
            kept = f"the fit is kept in {rescue(found)}"
        except Exception as again:
            kept = f"the fit is lost: it cannot be kept elsewhere either ({reason(again)})"
        fail(f"{message}; {kept}", NOT_WRITTEN)


def _picture_files(order: int) -> list[str]:
    slabs = [f"outliers_{mode}.png" for mode in range(order)]
    return ["components.png", "convergence.png", *slabs]


def _draw(found: Fit, loaded: Loaded, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    flagged = found.outliers(loaded.data)
    make_folder(folder)
    drawn = _pictures(found, flagged)
    for name, axes in zip(_picture_files(len(found.shape)), drawn, strict=True):
        first = axes if hasattr(axes, "figure") else next(iter(axes.flat))
        write_picture(folder / name, first.figure)


def _pictures(found: Fit, flagged: Outliers) -> Iterator[Any]:
    from robustcp import plot as pictures

    yield pictures.components(found)
    yield pictures.convergence(found)
    for mode in range(len(found.shape)):
        yield pictures.outliers(flagged, mode)
