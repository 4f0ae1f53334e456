"""The command line. The only module that prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded

app = typer.Typer(
    help="CP tensor factorization that bad entries cannot pull away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from robustcp import __version__

        typer.echo(f"robustcp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


# Options that several commands share

TensorFile = Annotated[Path, typer.Argument(help="The tensor's file.", show_default=False)]
Key = Annotated[str | None, typer.Option(help="Which array of a file that holds several.")]
Absent = Annotated[
    str | None,
    typer.Option(help="In .tns files and tables: what is not listed is 'missing' or 'zero'."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.command()
def fit(
    file: TensorFile,
    rank: Annotated[int, typer.Option(help="The number of components.")],
    method: Annotated[str, typer.Option(help="cp, cpal1 or cpals.")] = "cp",
    nonnegative: Annotated[
        bool, typer.Option("--nonnegative", help="No negative entries.")
    ] = False,
    starts: Annotated[int | None, typer.Option(help="How many starts to try.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is random.")] = 0,
    max_sweeps: Annotated[int, typer.Option(help="The most sweeps.")] = 1000,
    out: Annotated[Path, typer.Option(help="Where the fit goes: .npz, or .nc.")] = Path("fit.npz"),
    plot: Annotated[Path | None, typer.Option(help="Folder for pictures.")] = None,
    key: Key = None,
    absent: Absent = None,
    mask_file: Annotated[
        Path | None, typer.Option(help="A brain mask for a 4-D NIfTI image: 0 is left out.")
    ] = None,
    flatten: Annotated[
        bool, typer.Option("--flatten", help="A 4-D NIfTI image as voxel x time.")
    ] = False,
    maps: Annotated[
        Path | None, typer.Option(help="Write the maps of a 4-D NIfTI fit here (.nii, .nii.gz).")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit the tensor in a file and say what was found.

    Reads .npy, .npz, .mat, .h5, .nc, .zarr, .nii, .nii.gz, .tns, .csv and .parquet. The exit code
    is 0, or 1 if the fit did not converge (it is written all the same), or 2 for bad input.
    Ctrl-C ends the fit and writes what there is.

    Example: robustcp fit aminoacids.mat --key X.data --rank 3 --nonnegative --out fit.npz
    """
    from robustcp import methods
    from robustcp.io.fits import check_suffix, save
    from robustcp.io.nifti import arranged, write_maps
    from robustcp.io.reading import FileError

    if method not in ("cp", "cpal1", "cpals"):
        fail(f"--method {method}: must be cp, cpal1 or cpals")
    if nonnegative and method != "cp":
        fail(f"--nonnegative: is for --method cp, not {method}")
    options: dict[str, Any] = {"rng": seed, "max_sweeps": max_sweeps}
    if method == "cp":
        options["nonnegative"] = nonnegative
    if starts is not None:
        options["starts"] = starts
    try:
        check_suffix(out)
        writable_file("--out", out)
        if maps is not None:
            if not maps.name.endswith((".nii", ".nii.gz")):
                raise FileError(f"{maps}: maps are written as .nii or .nii.gz")
            writable_file("--maps", maps)
        if plot is not None:
            writable(plot, "--plot")
        loaded = arranged(_read(file, key, absent), file, mask_file, flatten)
        if maps is not None and loaded.affine is None:
            raise FileError(f"{file}: --maps is for NIfTI images")
        _check_rank(rank, loaded)
        found, seconds = _fit_with_progress(
            getattr(methods, method), loaded, rank, options, quiet or as_json
        )
        save(found, out)
        if maps is not None:
            write_maps(found, loaded, maps)
    except (FileError, ValueError, TypeError) as error:
        fail(str(error))
    summary = _summary(found, loaded, seconds)
    if plot is not None:
        _draw(found, loaded, plot)
    if as_json:
        _print_json(summary | {"out": str(out)})
    elif not quiet:
        _print_summary(summary)
        print(f"written: {out}" + (f", pictures in {plot}" if plot else ""))
    if not found.converged:
        raise typer.Exit(1)


@app.command()
def rank(
    file: TensorFile,
    most: Annotated[int, typer.Option(help="The largest rank to try.")] = 6,
    nonnegative: Annotated[
        bool, typer.Option("--nonnegative", help="No negative entries.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of what is random.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture.")] = None,
    key: Key = None,
    absent: Absent = None,
    as_json: AsJson = False,
) -> None:
    """Say how many components the tensor in a file has, and why.

    Example: robustcp rank aminoacids.mat --key X.data --most 5
    """
    from robustcp import plot as pictures
    from robustcp.ranks import rank_profile

    if most < 1:
        fail(f"--most {most}: must be at least 1")
    if plot is not None:
        writable(plot, "--plot")
    try:
        loaded = _read(file, key, absent)
        _check_rank(most, loaded)
        profile = rank_profile(loaded.data, range(1, most + 1), nonnegative=nonnegative, rng=seed)
    except (ValueError, TypeError) as error:
        fail(str(error))
    rows = list(zip(profile.ranks, profile.error, profile.stability, strict=True))
    if as_json:
        _print_json(
            {
                "rank": profile.rank,
                "reason": profile.reason,
                "ranks": [
                    {"rank": int(r), "error": float(e), "stability": float(s)} for r, e, s in rows
                ],
            }
        )
    else:
        print("rank  held-out error  agreement of halves")
        for r, e, s in rows:
            print(f"{r:>4}  {e:>14.4f}  {s:>19.3f}{'  <' if r == profile.rank else ''}")
        print(f"recommended: {profile.rank} ({profile.reason})")
    if plot is not None:
        import matplotlib

        matplotlib.use("Agg")
        axes = pictures.rank_profile(profile)
        axes.figure.savefig(plot / "rank.png", dpi=150)  # type: ignore[union-attr]


@app.command()
def outliers(
    file: TensorFile,
    fit_file: Annotated[Path, typer.Argument(help="A fit of it, from robustcp fit.")],
    rate: Annotated[float, typer.Option(help="Share of clean entries flagged by chance.")] = 0.001,
    out: Annotated[Path | None, typer.Option(help="Write the flags here (.npy, of bool).")] = None,
    count: Annotated[int, typer.Option(help="How many slabs of each mode to show.")] = 5,
    key: Key = None,
    absent: Absent = None,
    as_json: AsJson = False,
) -> None:
    """Say which entries and slabs of a tensor its fit does not account for.

    Example: robustcp outliers data.npy fit.npz --out flags.npy
    """
    import numpy as np

    from robustcp.io.fits import load, write_whole
    from robustcp.io.reading import FileError

    try:
        if out is not None:
            if out.suffix != ".npy":
                raise FileError(f"{out}: flags are written as .npy")
            writable_file("--out", out)
        loaded, known = _read(file, key, absent), load(fit_file)
        found = known.outliers(loaded.data, rate=rate)
        report: dict[str, Any] = {
            "share": found.share,
            "scale": found.scale,
            "threshold": found.threshold,
            "worst": _worst(found, known, loaded, count),
        }
        if out is not None:
            flags = np.asarray(found.mask)
            write_whole(out, lambda path: np.save(path, flags))
    except (FileError, ValueError, TypeError) as error:
        fail(str(error))
    if as_json:
        _print_json(report)
        return
    print(f"flagged: {found.share:.3%} of the entries, beyond {found.threshold:.2f} sigmas")
    print(f"sigma: {found.scale:.6g}")
    _print_worst(report["worst"])


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A fit, from robustcp fit.")],
    second: Annotated[Path, typer.Argument(help="Another, or a simulation's truth (.npz).")],
    as_json: AsJson = False,
) -> None:
    """Compare two fits: the factor match score, 1 if they are the same.

    Example: robustcp compare fit.npz other.npz
    """
    from robustcp.io.fits import load_model
    from robustcp.io.reading import FileError
    from robustcp.metrics import factor_match_score

    try:
        a, b = load_model(first), load_model(second)
        if a.shape != b.shape:
            raise FileError(f"{second}: has shape {b.shape}, {first} has {a.shape}")
        scores = {
            "factor_match_score": factor_match_score(a, b),
            "without_weights": factor_match_score(a, b, weights=False),
        }
    except (FileError, ValueError) as error:
        fail(str(error))
    if as_json:
        _print_json(scores)
    else:
        print(f"factor match score: {scores['factor_match_score']:.6f}")
        print(f"without weights:    {scores['without_weights']:.6f}")


@app.command("simulate")
def simulate_command(
    out: Annotated[Path, typer.Option(help="Where the tensor goes (.npz).")] = Path("tensor.npz"),
    shape: Annotated[str, typer.Option(help="Sizes of the modes.")] = "50x50x50",
    rank: Annotated[int, typer.Option(help="The number of components.")] = 5,
    eta: Annotated[float, typer.Option(help="Share of entries that are artifacts.")] = 0.2,
    gamma: Annotated[float, typer.Option(help="Size of the artifacts.")] = 2.0,
    density: Annotated[float, typer.Option(help="Share of nonzeros in the factors.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Write a tensor with artifacts, as in the paper, with the truth beside it.

    The file holds the arrays data, artifacts, weights and factor_0, factor_1, ...

    Example: robustcp simulate --eta 0.2 --gamma 2 --out tensor.npz
    """
    import numpy as np

    from robustcp.io.fits import write_whole
    from robustcp.io.reading import FileError
    from robustcp.simulation import simulate

    try:
        if out.suffix != ".npz":
            raise FileError(f"{out}: a simulation is written as .npz")
        writable_file("--out", out)
        sizes = tuple(int(part) for part in shape.lower().split("x"))
        sim = simulate(sizes, rank, eta=eta, gamma=gamma, density=density, rng=seed)
    except FileError as error:
        fail(str(error))
    except ValueError as error:
        fail(f"--shape {shape} --rank {rank} --eta {eta} --gamma {gamma}: {error}")
    arrays: dict[str, Any] = {f"factor_{n}": A for n, A in enumerate(sim.truth.factors)}
    arrays |= {"weights": sim.truth.weights, "data": sim.data, "artifacts": sim.artifacts}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    write_whole(out, write)
    print(f"{out}: {sim!r}")


@app.command()
def video(
    file: Annotated[Path, typer.Argument(help="The clip.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("video"),
    rank: Annotated[int, typer.Option(help="The number of components.")] = 2,
    every: Annotated[int, typer.Option(help="Take each so many-th frame.")] = 1,
    scale: Annotated[float, typer.Option(help="Resize frames by this, at most 1.")] = 1.0,
    frames: Annotated[int | None, typer.Option(help="At most so many frames.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is random.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Separate the background of a video from what moves in it.

    Writes background.png, foreground.mp4 (a mask) and side_by_side.mp4.

    Example: robustcp video clip.avi --rank 2 --scale 0.5 --out video
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from robustcp.apps.video import separate
    from robustcp.io.reading import FileError

    if not file.exists():
        fail(f"{file}: there is no such file")
    writable(out)
    columns = (TextColumn("{task.description:>12}"), BarColumn(), TimeElapsedColumn())
    try:
        hidden = quiet or not sys.stderr.isatty()
        with Progress(
            *columns, console=Console(stderr=True), transient=True, disable=hidden
        ) as bars:
            steps: dict[str, Any] = {}

            def progress(step: str, done: int, total: int | None) -> None:
                if step not in steps:
                    steps[step] = bars.add_task(step, total=total)
                bars.update(steps[step], completed=done, total=total)

            found = separate(
                file, out, rank=rank, every=every, scale=scale, frames=frames, seed=seed,
                progress=progress,
            )  # fmt: skip
    except (FileError, ValueError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("robustcp: stopped; nothing was written", file=sys.stderr)
        raise typer.Exit(130) from None
    if not quiet:
        height, width = found.size
        print(f"{found.frames} frames of {width}x{height}, {found.share:.2%} of them foreground")
        print(f"written: {found.background}, {found.mask}, {found.beside}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated tensor.")] = 0,
) -> None:
    """Show the paper's story on one tensor: least squares breaks, the 1-norm does not.

    Example: robustcp demo --out demo
    """
    from rich.console import Console
    from rich.table import Table

    writable(out)
    import matplotlib

    matplotlib.use("Agg")
    from robustcp.plot import truth_against_estimates
    from robustcp.studies import demo as story

    console = Console()
    console.print(
        "A 50x50x50 tensor of rank 5 with Gaussian noise. 20% of its entries are\n"
        "artifacts, together twice its size (eta 0.2, gamma 2 in Chi & Kolda 2010)."
    )
    sim, rows = story.run(seed)
    table = Table()
    columns = ("method", "FMS", "FMS, no weights", "relative L1", "sweeps", "seconds")
    for k, title in enumerate(columns):
        table.add_column(title, justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(
            row.method,
            f"{row.fms:.3f}",
            f"{row.fms_unweighted:.3f}",
            f"{row.relative_l1:.4f}",
            str(row.sweeps),
            f"{row.seconds:.2f}",
        )
    console.print(table)
    console.print(
        "FMS: factor match score against the true factors, 1 is perfect.\n"
        "Relative L1: sum |residual| / sum |data|.\n"
        "cp tries several starts and refines the L1 fit; its seconds include that."
    )
    drawn = [row for row in rows if row.method in ("CPALS", "CPAL1")]
    ax = truth_against_estimates(
        sim.truth, {f"{row.method} (FMS {row.fms:.2f})": row.fit for row in drawn}
    )
    path = out / "factor.png"
    ax.figure.savefig(path, dpi=150)  # type: ignore[union-attr]
    console.print(f"One factor column against the truth: {path}", soft_wrap=True)


@app.command()
def reproduce(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all of them if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="A first look: small and few.")] = False,
    replicates: Annotated[
        int | None, typer.Option(help="Replicates per cell, instead of each study's own number.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default all cores.")] = None,
) -> None:
    """Run the experiments of Chi & Kolda (2010).

    The studies: figure1a, figure1b, minima, noises, cost, parallel, sparse, breakdown. Each
    writes its raw results (CSV), a figure (PNG and PDF) and a summary (Markdown). An interrupted
    run goes on where it stopped when the same command is given again.

    Example: robustcp reproduce figure1a --quick --out results
    """
    import os
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from robustcp.studies.ledger import Ledger, carry_out, same_settings, write_whole
    from robustcp.studies.paper import STUDIES, Scale

    chosen = list(dict.fromkeys(studies or STUDIES))
    unknown = [name for name in chosen if name not in STUDIES]
    if unknown:
        fail(f"unknown study {unknown[0]!r}; there are {', '.join(STUDIES)}")
    if replicates is not None and replicates < 1:
        fail(f"--replicates {replicates}: must be at least 1")
    if jobs is not None and jobs < 1:
        fail(f"--jobs {jobs}: must be at least 1")
    writable(out)
    scale = (Scale.quick() if quick else Scale()).with_replicates(replicates)
    other = same_settings(out / "settings.json", {"scale": _plain(asdict(scale))})
    if other:
        fail(f"--out {out}: holds results of other settings ({other}); name another folder")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    try:
        with Progress(*columns, console=console) as bars:
            for name in chosen:
                study = STUDIES[name]
                tasks = study.tasks(scale)
                bar = bars.add_task(name, total=len(tasks))
                rows = carry_out(
                    tasks,
                    study.work,
                    Ledger(out / f"{name}.csv"),
                    0 if study.alone else jobs or os.cpu_count() or 1,
                    lambda bar=bar: bars.advance(bar),  # type: ignore[misc]
                )
                figure = study.draw(rows)
                for suffix in ("png", "pdf"):
                    # without a date in it the same results give the same file
                    metadata = {"CreationDate": None} if suffix == "pdf" else None
                    figure.savefig(out / f"{name}.{suffix}", dpi=150, metadata=metadata)
                plt.close(figure)
                text = f"# {study.title}\n\nThe paper: {study.claim}\n\n"
                text += f"![{study.title}]({name}.png)\n\n{study.summary(rows)}"
                write_whole(out / f"{name}.md", text)
    except KeyboardInterrupt:
        print("robustcp: stopped; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    for name in chosen:
        print(f"{STUDIES[name].title}: {out / name}.csv, .png, .pdf, .md")


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}


def _read(file: Path, key: str | None, absent: str | None) -> Loaded:
    from robustcp.io.reading import read

    if absent not in (None, "missing", "zero"):
        fail(f"--absent {absent}: must be missing or zero")
    return read(file, key=key, absent=absent)


def _check_rank(rank: int, loaded: Loaded) -> None:
    """A rank beyond what any tensor of this shape could need is a slip."""
    import math

    shape = loaded.data.shape
    if rank < 1:
        fail(f"--rank {rank}: must be at least 1")
    most = math.prod(shape) // max(shape)
    if rank > most:
        fail(f"--rank {rank}: a tensor of {'x'.join(map(str, shape))} has at most rank {most}")


def _fit_with_progress(
    method: Any, loaded: Loaded, rank: int, options: dict[str, Any], quiet: bool
) -> tuple[Fit, float]:
    """Fit with a line that says how far it is; Ctrl-C ends it after its sweep."""
    import signal
    import time
    import warnings
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    stop = False

    def asked(*_: object) -> None:
        nonlocal stop
        stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the next one is at once

    console, hidden = Console(stderr=True), quiet or not sys.stderr.isatty()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    before = signal.signal(signal.SIGINT, asked)
    begin = time.perf_counter()
    try:
        with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
            bar = bars.add_task("starts", total=None)

            def after_sweep(state: Any) -> bool:
                text = f"{state.name}, sweep {state.sweep}, objective {state.objective:.6g}"
                bars.update(bar, description=text)
                return stop

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = method(loaded.data, rank, callback=after_sweep, **options)
        for warning in () if quiet else caught:
            print(f"robustcp: note: {warning.message}", file=sys.stderr)
    except KeyboardInterrupt:
        print("robustcp: stopped before there was anything to write", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, before)
    named = replace(found, modes=loaded.modes, labels=loaded.labels)
    return named, time.perf_counter() - begin


def _summary(found: Fit, loaded: Loaded, seconds: float) -> dict[str, Any]:
    flagged = found.outliers(loaded.data)
    return {
        "shape": list(found.shape),
        "rank": found.rank,
        "status": found.status,
        "converged": found.converged,
        "sweeps": found.sweeps,
        "stages": [list(stage) for stage in found.stages],
        "seconds": round(seconds, 3),
        "explained": found.explained,
        "components": [
            {"weight": float(w), "share": float(s)}
            for w, s in zip(found.weights, found.shares, strict=True)
        ],
        "scale": found.scale,
        "starts": list(found.starts),
        "outlier_share": flagged.share,
        "worst": _worst(flagged, found, loaded, 3),
    }


def _worst(flagged: Any, found: Fit, loaded: Loaded, count: int) -> list[dict[str, Any]]:
    """The slabs of each mode with the most flagged entries, by their labels."""
    rows = []
    for mode, name in enumerate(loaded.modes):
        labels = loaded.labels[mode]
        for index, share in flagged.worst(mode, count):
            label = index if labels is None else labels[index]
            rows.append({"mode": name, "index": index, "label": label, "share": share})
    return rows


def _print_summary(summary: dict[str, Any]) -> None:
    size = "x".join(map(str, summary["shape"]))
    stages = ", ".join(f"{name} {count}" for name, count in summary["stages"])
    print(f"{size}, rank {summary['rank']}: {summary['status']}")
    print(f"sweeps: {summary['sweeps']} ({stages}), {summary['seconds']:.2f} seconds")
    print(f"explained: {summary['explained']:.1%} of the data")
    for k, part in enumerate(summary["components"]):
        print(f"  component {k}: {part['share']:6.1%}, weight {part['weight']:.6g}")
    print(f"noise: sigma {summary['scale']:.6g}; outliers: {summary['outlier_share']:.2%}")
    _print_worst(summary["worst"])


def _print_worst(rows: list[dict[str, Any]]) -> None:
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode]
        shown = ", ".join(f"{row['label']} ({row['share']:.1%})" for row in mine)
        print(f"  most flagged of {mode}: {shown}")


def _draw(found: Fit, loaded: Loaded, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from robustcp import plot as pictures

    flagged = found.outliers(loaded.data)
    drawn: dict[str, Any] = {
        "components": pictures.components(found),
        "convergence": pictures.convergence(found),
    }
    for mode in range(len(found.shape)):
        drawn[f"outliers_{mode}"] = pictures.outliers(flagged, mode)
    for name, axes in drawn.items():
        first = axes if hasattr(axes, "figure") else next(iter(axes.flat))
        first.figure.savefig(folder / f"{name}.png", dpi=150)
        plt.close(first.figure)


def _print_json(content: dict[str, Any]) -> None:
    import json

    print(json.dumps(content, default=str))


def writable_file(option: str, path: Path) -> None:
    """See that a file can be written, before any work."""
    import os

    if path.is_dir():
        fail(f"{option} {path}: is a folder")
    if not path.parent.is_dir():
        fail(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        fail(f"{option} {path}: cannot be written")


def writable(folder: Path, option: str = "--out") -> None:
    """Make a folder and see that files can be written there, before any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        fail(f"{option} {folder}: cannot be written ({error.strerror})")


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    print(f"robustcp: {message}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """The entry point `robustcp`."""
    app()
