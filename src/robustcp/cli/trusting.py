"""`robustcp replicability`, `ensemble` and `uncertainty`: what comes back, and how exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcp.cli.asking import which_modes
from robustcp.cli.drawing import draw, picture_file
from robustcp.cli.errors import STOPPED, fail
from robustcp.cli.options import (
    Absent,
    AsJson,
    Columns,
    Force,
    Jobs,
    Key,
    Nonnegative,
    PictureFormat,
    SampleMode,
    Seed,
    Stack,
    TensorFile,
    Value,
)
from robustcp.cli.printing import print_json
from robustcp.cli.progress import Shown
from robustcp.cli.reading import Source, check_rank, read_mode, read_tensor
from robustcp.files.errors import FileError
from robustcp.files.writing import Outputs, whole

Rank = Annotated[int, typer.Option(help="The number of components.")]
Plot = Annotated[Path | None, typer.Option(help="Folder for pictures.")]
Folder = Annotated[
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
    keep: Folder = None,
    plot: Plot = None,
    picture: PictureFormat = "png",
    key: Key = None,
    absent: Absent = None,
    columns: Columns = None,
    value: Value = None,
    stack: Stack = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say whether components come back when samples are left out.

    Example: robustcp replicability data.npy --rank 3 --mode 0 --split-half
    """
    from robustcp.replicability import replicability as run

    if plot is not None:
        Outputs(file, force=force).add_folder(
            "plot", plot, [picture_file("replicability", picture)]
        )
    loaded = read_tensor(Source(file, key, absent, columns, value, stack))
    check_rank(rank, loaded)
    positive = which_modes(nonnegative, loaded.modes)
    with Shown().count() as bars:
        try:
            found = run(
                loaded, rank, mode=read_mode(mode, loaded.modes), folds=folds, repeats=repeats,
                preset="split_half" if split_half else None, nonnegative=positive, rng=seed,
                jobs=jobs, folder=keep,
                progress=lambda done, total: bars("fits", done, total),
            )  # fmt: skip
        except KeyboardInterrupt:
            fail("stopped" + ("; the same command goes on from here" if keep else ""), STOPPED)
    if as_json:
        print_json({
            "rank": found.rank, "mode": found.mode, "score": found.score,
            "scores": [
                {"first": found.names[i], "second": found.names[j], "score": float(score)}
                for (i, j), score in zip(found.pairs, found.scores, strict=True)
            ],
            "components": [
                {"came_back": float(share), "congruences": [float(c) for c in column]}
                for share, column in zip(found.came_back, found.congruences.T, strict=True)
            ],
        })  # fmt: skip
    else:
        print(
            f"factor match score, without {found.fit.modes[found.mode]}: median "
            f"{found.score:.4f}, {found.scores.min():.4f} to {found.scores.max():.4f}"
        )
        if split_half:
            for (i, j), score in zip(found.pairs, found.scores, strict=True):
                print(f"  {found.names[i]} and {found.names[j]}: {score:.4f}")
        print("component  came back  worst congruence")
        for r, share in enumerate(found.came_back):
            print(f"{r + 1:>9}  {share:>9.0%}  {found.congruences[:, r].min():>16.4f}")
    if plot is not None:
        from robustcp import plot as pictures

        kind = pictures.split_half if split_half else pictures.replicability
        draw(plot / picture_file("replicability", picture), lambda: kind(found))


def ensemble(
    file: TensorFile,
    most: Annotated[int, typer.Option(help="The largest rank to try.")] = 6,
    starts: Annotated[int, typer.Option(help="Random starts at each rank.")] = 10,
    nonnegative: Nonnegative = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    keep: Folder = None,
    plot: Plot = None,
    picture: PictureFormat = "png",
    key: Key = None,
    absent: Absent = None,
    columns: Columns = None,
    value: Value = None,
    stack: Stack = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Follow several random starts at each rank, and say how they ended.

    Example: robustcp ensemble data.npy --most 5 --starts 10 --keep fits --plot pictures
    """
    from robustcp.ensembles import ensemble as run

    if most < 1:
        fail(f"--most {most}: must be at least 1")
    if plot is not None:
        Outputs(file, force=force).add_folder("plot", plot, [picture_file("ensemble", picture)])
    loaded = read_tensor(Source(file, key, absent, columns, value, stack))
    check_rank(most, loaded)
    positive = which_modes(nonnegative, loaded.modes)
    with Shown().count() as bars:
        try:
            found = run(
                loaded, range(1, most + 1), starts=starts, nonnegative=positive, rng=seed,
                jobs=jobs, folder=keep,
                progress=lambda done, total: bars("fits", done, total),
            )  # fmt: skip
        except KeyboardInterrupt:
            fail("stopped" + ("; the same command goes on from here" if keep else ""), STOPPED)
    if as_json:
        print_json({
            str(rank): {
                "errors": found.errors[rank].tolist(), "costs": found.costs[rank].tolist(),
                "similarities": found.similarities[rank].tolist(),
            }
            for rank in found.ranks
        })  # fmt: skip
    else:
        print("rank  error of the best  similarity to it: median, worst")
        for rank in found.ranks:
            same = found.similarities[rank]
            middle, least = sorted(same)[len(same) // 2], min(same)
            print(f"{rank:>4}  {found.errors[rank][0]:>17.4f}  {middle:>24.3f}, {least:.3f}")
    if plot is not None:
        draw(plot / picture_file("ensemble", picture), found.plot)


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
    key: Key = None,
    absent: Absent = None,
    columns: Columns = None,
    value: Value = None,
    stack: Stack = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say how sure the entries of a fit's factors are.

    The file of --out holds low_n, high_n and error_n for each mode n, and came_back.

    Example: robustcp uncertainty data.npy fit.npz --method bootstrap --out intervals.npz
    """
    import numpy as np

    from robustcp.io.fits import load

    outputs = Outputs(file, fit_file, force=force)
    if out is not None:
        if out.suffix != ".npz":
            raise FileError(out, "intervals are written as .npz")
        outputs.add("out", out)
    if plot is not None:
        outputs.add_folder("plot", plot, [picture_file("uncertainty", picture)])
    loaded, known = read_tensor(Source(file, key, absent, columns, value, stack)), load(fit_file)
    with Shown().count() as bars:
        found = known.uncertainty(
            loaded, method, mode=None if mode is None else read_mode(mode, known.modes),
            n=count, level=level, rng=seed, jobs=jobs,
            progress=lambda done, total: bars("resamples", done, total),
        )  # fmt: skip
    errors = {
        name: None if each is None else [float(x) for x in np.median(each, axis=0)]
        for name, each in zip(known.modes, found.errors, strict=True)
    }
    if as_json:
        print_json({
            "method": found.method, "mode": found.mode, "level": found.level,
            "median_errors": errors, "came_back": found.came_back.tolist(),
            "resamples": found.count, "failed": found.failed, "notes": list(found.notes),
        })  # fmt: skip
    else:
        print(f"median standard errors of unit columns, by component ({found.method}):")
        for name, each in errors.items():
            shown = "not told" if each is None else ", ".join(f"{x:.2g}" for x in each)
            print(f"  {name}: {shown}")
        if found.count:
            shown = ", ".join(f"{share:.0%}" for share in found.came_back)
            print(f"came back in {found.count} resamples: {shown}")
        for note in found.notes:
            print(f"note: {note}")
    if out is not None:
        kinds = {"low": found.low, "high": found.high, "error": found.errors}
        arrays = {f"{kind}_{n}": A for kind, each in kinds.items()
                  for n, A in enumerate(each) if A is not None}  # fmt: skip
        with whole(out) as file_out:
            np.savez(file_out, came_back=found.came_back, allow_pickle=False, **arrays)
    if plot is not None:
        from robustcp import plot as pictures

        draw(
            plot / picture_file("uncertainty", picture),
            lambda: pictures.components(known, uncertainty=found),
        )
