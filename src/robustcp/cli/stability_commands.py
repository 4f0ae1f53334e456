"""`robustcp replicability`, `ensemble` and `uncertainty`: what comes back, and how exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcp.cli.drawing import draw_to_file, picture_file
from robustcp.cli.errors import fail
from robustcp.cli.fit_options import parse_modes
from robustcp.cli.interrupts import explain_interrupt
from robustcp.cli.options import (
    AsJson,
    Force,
    Jobs,
    Nonnegative,
    PictureFormat,
    SampleMode,
    Seed,
    TensorFile,
)
from robustcp.cli.printing import print_json
from robustcp.cli.progress import ProgressDisplay
from robustcp.cli.read_options import Source, check_rank, read_mode, read_tensor
from robustcp.persist.errors import FileError
from robustcp.persist.writing import Outputs, open_atomic

Rank = Annotated[int, typer.Option(help="The number of components.")]
Plot = Annotated[Path | None, typer.Option(help="Folder for pictures.")]
FitFolder = Annotated[
    Path | None,
    typer.Option("--keep", help="Folder that keeps the fits; the same command goes on from them."),
]


def replicability(
    file: TensorFile,
    rank: Rank,
    mode: SampleMode = "0",
    folds: Annotated[int | None, typer.Option(help="How many parts; by default 10.")] = None,
    repeats: Annotated[int, typer.Option(help="How often samples are dealt out anew.")] = 1,
    split_half: Annotated[
        bool, typer.Option("--split-half", help="Quarters A to D: AB/CD, AC/BD, AD/BC.")
    ] = False,
    nonnegative: Nonnegative = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    keep: FitFolder = None,
    plot: Plot = None,
    picture: PictureFormat = "png",
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say whether components come back when samples are left out.

    Example: robustcp replicability data.npy --rank 3 --mode 0 --split-half
    """
    from robustcp.inference.replicability import replicability as run

    if plot is not None:
        Outputs(file, force=force).add_folder(
            "plot", plot, [picture_file("replicability", picture)]
        )
    loaded = read_tensor(source)
    check_rank(rank, loaded)
    nonnegative_modes = parse_modes(nonnegative, loaded.modes)
    message = "stopped; the same command goes on from here" if keep else "stopped"
    with explain_interrupt(message), ProgressDisplay().count_tasks() as show_progress:
        result = run(
            loaded,
            rank,
            mode=read_mode(mode, loaded.modes),
            folds=folds,
            repeats=repeats,
            preset="split_half" if split_half else None,
            nonnegative=nonnegative_modes,
            rng=seed,
            jobs=jobs,
            folder=keep,
            progress=lambda done, total: show_progress("fits", done, total),
        )
    if as_json:
        print_json(
            {
                "rank": result.rank,
                "mode": result.mode,
                "score": result.score,
                "scores": [
                    {"first": result.names[i], "second": result.names[j], "score": float(score)}
                    for (i, j), score in zip(result.pairs, result.scores, strict=True)
                ],
                "components": [
                    {"came_back": float(share), "congruences": [float(c) for c in column]}
                    for share, column in zip(result.came_back, result.congruences.T, strict=True)
                ],
            }
        )
    else:
        print(
            f"factor match score, without {result.fit.modes[result.mode]}: median "
            f"{result.score:.4f}, {result.scores.min():.4f} to {result.scores.max():.4f}"
        )
        if split_half:
            for (i, j), score in zip(result.pairs, result.scores, strict=True):
                print(f"  {result.names[i]} and {result.names[j]}: {score:.4f}")
        print("component  came back  worst congruence")
        for r, share in enumerate(result.came_back):
            print(f"{r + 1:>9}  {share:>9.0%}  {result.congruences[:, r].min():>16.4f}")
    if plot is not None:
        from robustcp import plot as pictures

        plot_function = pictures.split_half if split_half else pictures.replicability
        draw_to_file(plot / picture_file("replicability", picture), lambda: plot_function(result))


def ensemble(
    file: TensorFile,
    most: Annotated[int, typer.Option(help="The largest rank to try.")] = 6,
    starts: Annotated[int, typer.Option(help="Random starts at each rank.")] = 10,
    nonnegative: Nonnegative = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    keep: FitFolder = None,
    plot: Plot = None,
    picture: PictureFormat = "png",
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Follow several random starts at each rank, and say how they ended.

    Example: robustcp ensemble data.npy --most 5 --starts 10 --keep fits --plot pictures
    """
    from robustcp.inference.ensemble import ensemble as run

    if most < 1:
        fail(f"--most {most}: must be at least 1")
    if plot is not None:
        Outputs(file, force=force).add_folder("plot", plot, [picture_file("ensemble", picture)])
    loaded = read_tensor(source)
    check_rank(most, loaded)
    nonnegative_modes = parse_modes(nonnegative, loaded.modes)
    message = "stopped; the same command goes on from here" if keep else "stopped"
    with explain_interrupt(message), ProgressDisplay().count_tasks() as show_progress:
        models = run(
            loaded,
            range(1, most + 1),
            starts=starts,
            nonnegative=nonnegative_modes,
            rng=seed,
            jobs=jobs,
            folder=keep,
            progress=lambda done, total: show_progress("fits", done, total),
        )
    if as_json:
        print_json(
            {
                str(rank): {
                    "errors": models.errors[rank].tolist(),
                    "costs": models.costs[rank].tolist(),
                    "similarities": models.similarities[rank].tolist(),
                }
                for rank in models.ranks
            }
        )
    else:
        print("rank  error of the best  similarity to it: median, worst")
        for rank in models.ranks:
            similarities = models.similarities[rank]
            median, lowest = sorted(similarities)[len(similarities) // 2], min(similarities)
            print(f"{rank:>4}  {models.errors[rank][0]:>17.4f}  {median:>24.3f}, {lowest:.3f}")
    if plot is not None:
        draw_to_file(plot / picture_file("ensemble", picture), models.plot)


def uncertainty(
    file: TensorFile,
    fit_file: Annotated[Path, typer.Argument(help="A fit of it, from robustcp fit.")],
    method: Annotated[str, typer.Option(help="normal, bootstrap or jackknife.")] = "normal",
    mode: Annotated[
        str | None, typer.Option(help="The mode, by number or name, whose slabs are resampled.")
    ] = None,
    count: Annotated[int, typer.Option("--n", help="How many resamples.")] = 200,
    level: Annotated[float, typer.Option(help="The share of intervals that hold.")] = 0.95,
    seed: Seed = 0,
    jobs: Jobs = None,
    out: Annotated[Path | None, typer.Option(help="Write the intervals here (.npz).")] = None,
    plot: Plot = None,
    picture: PictureFormat = "png",
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say how sure the entries of a fit's factors are.

    The file of --out holds low_n, high_n and error_n for each mode n, and came_back.

    Example: robustcp uncertainty data.npy fit.npz --method bootstrap --out intervals.npz
    """
    import numpy as np

    from robustcp.persist.fits import load

    outputs = Outputs(file, fit_file, force=force)
    if out is not None:
        if out.suffix != ".npz":
            raise FileError(out, "intervals are written as .npz")
        outputs.add("out", out)
    if plot is not None:
        outputs.add_folder("plot", plot, [picture_file("uncertainty", picture)])
    loaded, fit = read_tensor(source), load(fit_file)
    with ProgressDisplay().count_tasks() as show_progress:
        intervals = fit.uncertainty(
            loaded,
            method,
            mode=None if mode is None else read_mode(mode, fit.modes),
            n=count,
            level=level,
            rng=seed,
            jobs=jobs,
            progress=lambda done, total: show_progress("resamples", done, total),
        )
    errors = {
        name: None if values is None else [float(x) for x in np.median(values, axis=0)]
        for name, values in zip(fit.modes, intervals.errors, strict=True)
    }
    if as_json:
        print_json(
            {
                "method": intervals.method,
                "mode": intervals.mode,
                "level": intervals.level,
                "median_errors": errors,
                "came_back": intervals.came_back.tolist(),
                "resamples": intervals.count,
                "failed": intervals.failed,
                "notes": list(intervals.notes),
            }
        )
    else:
        print(f"median standard errors of unit columns, by component ({intervals.method}):")
        for name, values in errors.items():
            text = "not told" if values is None else ", ".join(f"{x:.2g}" for x in values)
            print(f"  {name}: {text}")
        if intervals.count:
            text = ", ".join(f"{share:.0%}" for share in intervals.came_back)
            print(f"came back in {intervals.count} resamples: {text}")
        for note in intervals.notes:
            print(f"note: {note}")
    if out is not None:
        arrays_by_kind = {"low": intervals.low, "high": intervals.high, "error": intervals.errors}
        arrays = {
            f"{kind}_{n}": A
            for kind, values in arrays_by_kind.items()
            for n, A in enumerate(values)
            if A is not None
        }
        with open_atomic(out) as file_out:
            np.savez(file_out, came_back=intervals.came_back, allow_pickle=False, **arrays)
    if plot is not None:
        from robustcp import plot as pictures

        draw_to_file(
            plot / picture_file("uncertainty", picture),
            lambda: pictures.components(fit, uncertainty=intervals),
        )
