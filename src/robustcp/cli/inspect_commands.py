"""`robustcp rank`, `outliers`, `distances` and `compare`: what a tensor or a fit says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.checkpoint_options import CheckpointOption
from robustcp.cli.drawing import draw_to_file, picture_file
from robustcp.cli.errors import fail
from robustcp.cli.fit_options import parse_modes
from robustcp.cli.options import (
    AsJson,
    Force,
    Jobs,
    LogEvery,
    Nonnegative,
    PictureFormat,
    SampleMode,
    Seed,
    TensorFile,
)
from robustcp.cli.printing import csv_text, distances_of, print_distances, print_json, print_lines
from robustcp.cli.progress import ProgressDisplay
from robustcp.cli.read_options import Source, check_rank, read_mode, read_tensor
from robustcp.persist.errors import FileError
from robustcp.persist.writing import Outputs, open_atomic, write_bytes

if TYPE_CHECKING:
    from robustcp.inference.rank_profile import RankProfile
    from robustcp.results.runs import Run


def rank(
    file: TensorFile,
    most: Annotated[int, typer.Option(help="The largest rank to try.")] = 6,
    mode: SampleMode = "0",
    folds: Annotated[int, typer.Option(help="In how many folds data is held out.")] = 5,
    nonnegative: Nonnegative = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture.")] = None,
    picture: PictureFormat = "png",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Keep what is done here; the same command does only the rest."),
    ] = None,
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
    log_every: LogEvery = 10.0,
) -> None:
    """Say how many components the tensor in a file has, and why.

    Example: robustcp rank aminoacids.mat --key X.data --most 5
    """
    from robustcp.inference.rank_profile import rank_profile

    if most < 1:
        fail(f"--most {most}: must be at least 1")
    checkpoint_option = CheckpointOption.from_path(checkpoint, file)
    outputs = Outputs(file, force=force, replaceable=checkpoint_option.earlier_outputs)
    if plot is not None:
        outputs.add_folder("plot", plot, [picture_file("rank", picture)])
    profile_checkpoint = checkpoint_option.checkpoint(outputs)
    loaded = read_tensor(source)
    check_rank(most, loaded)
    nonnegative_modes = parse_modes(nonnegative, loaded.modes)
    with ProgressDisplay(every=log_every).count_tasks() as show_progress:
        profile = rank_profile(
            loaded,
            range(1, most + 1),
            mode=read_mode(mode, loaded.modes),
            folds=folds,
            nonnegative=nonnegative_modes,
            rng=seed,
            jobs=jobs,
            checkpoint=profile_checkpoint,
            progress=lambda done, total: show_progress("rank", done, total),
        )
    _print_profile(profile, as_json)
    if plot is not None:
        draw_to_file(plot / picture_file("rank", picture), profile.plot)


def _print_profile(profile: RankProfile, as_json: bool) -> None:
    rows = profile.rows()
    if as_json:
        print_json(
            {
                "rank": profile.rank,
                "reason": profile.reason,
                "runner_up": profile.runner_up,
                "mode": profile.mode,
                "ranks": rows,
            }
        )
        return
    print("rank  held-out error  gain, nats        come back  consistency  starts agree")
    for row in rows:
        consistency_text = f"{row['consistency']:.0f}%"
        print(
            f"{row['rank']:>4}  {row['error']:>14.4f}  {row['gain']:>7.4f} "
            f"+-{row['gain_spread']:.4f}  {row['stability']:>9.3f}  {consistency_text:>11}  "
            f"{row['agreement']:>12.0%}"
            f"{'  <' if row['rank'] == profile.rank else ''}"
        )
    print(f"recommended: {profile.rank} ({profile.reason})")
    if profile.runner_up is not None:
        print(f"runner-up: {profile.runner_up}")


def outliers(
    file: TensorFile,
    fit_file: Annotated[Path, typer.Argument(help="A fit of it, from robustcp fit.")],
    rate: Annotated[float, typer.Option(help="Share of clean entries flagged by chance.")] = 0.001,
    out: Annotated[Path | None, typer.Option(help="Write the flags here (.npy, of bool).")] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write runs of flagged entries here (.csv): where, from, to, too high or too low, "
            "the largest score, how many entries.",
        ),
    ] = None,
    along: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="The mode of runs, by number or name; else one of dates, of rising numbers, or "
            "the longest.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="How many slabs of each mode, and runs, to show.")
    ] = 5,
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which entries and slabs of a tensor its fit does not account for.

    Flagged entries that follow each other, such as a sensor's for two weeks, are one run. Scores
    are residuals in standard deviations of their noise.

    Example: robustcp outliers log.nc fit.npz --along time --csv runs.csv
    """
    import numpy as np

    from robustcp.persist.fits import load
    from robustcp.results.summary import (
        describe_noise,
        describe_worst_slabs,
        noise_fact,
        worst_lines,
    )

    outputs = Outputs(file, fit_file, force=force)
    if out is not None:
        if out.suffix != ".npy":
            raise FileError(out, "flags are written as .npy")
        outputs.add("out", out)
    if csv_file is not None:
        if csv_file.suffix != ".csv":
            raise FileError(csv_file, "runs are written as .csv")
        outputs.add("csv", csv_file)
    loaded, fit = read_tensor(source), load(fit_file)
    flagged_entries = fit.outliers(loaded, rate=rate)
    runs: list[Run] = []
    if csv_file is not None or flagged_entries.engine.entries_fit_in_memory:
        runs = flagged_entries.runs(None if along is None else read_mode(along, fit.modes))
    content: dict[str, Any] = {
        "share": flagged_entries.share,
        "noise": describe_noise(
            flagged_entries.in_data, flagged_entries.fit, flagged_entries.outlying_slabs
        ),
        "threshold": flagged_entries.threshold,
        "worst": describe_worst_slabs(flagged_entries, flagged_entries.fit, count),
        "runs": [asdict(run) for run in runs],
    }
    if out is not None:
        with open_atomic(out) as flags:
            np.save(flags, np.asarray(flagged_entries.mask))
    if csv_file is not None:
        _write_runs(csv_file, runs)
    if as_json:
        print_json(content)
        return
    print(
        f"flagged: {flagged_entries.share:.3%} of the entries, beyond "
        f"{flagged_entries.threshold:.2f} standard deviations of their noise"
    )
    print_lines(noise_fact(content["noise"]).lines())
    print_lines([f"  {line}" for line in worst_lines(content["worst"])])
    if runs:
        print(f"runs of flagged entries: {len(runs)}; the longest:")
        print_lines([f"  {run}" for run in runs[:count]])
    if csv_file is not None:
        print(f"written: {csv_file}")


def _write_runs(path: Path, runs: Sequence[Run]) -> None:
    """A row for each run."""
    header = [
        *(runs[0].fixed if runs else ()),
        "along",
        "from",
        "to",
        "side",
        "largest z",
        "entries",
    ]
    rows = [
        [
            *map(_text_of_label, run.fixed.values()),
            run.along,
            *map(_text_of_label, (run.start, run.end)),
            run.side,
            f"{run.largest:.6g}",
            run.count,
        ]
        for run in runs
    ]
    write_bytes(path, csv_text([header, *rows]).encode())


def _text_of_label(label: Any) -> str:
    """A label as tables have it; dates in the form of ISO."""
    return label.isoformat() if hasattr(label, "isoformat") else str(label)


def distances(
    file: TensorFile,
    fit_file: Annotated[Path, typer.Argument(help="A fit of it, from robustcp fit.")],
    mode: Annotated[str, typer.Option(help="The mode that holds samples, by number or name.")],
    count: Annotated[int, typer.Option(min=1, help="How many samples to show.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture.")] = None,
    picture: PictureFormat = "png",
    *,
    source: Source,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which samples of a tensor are unusual, bad as a whole, or bad in some entries only.

    Example: robustcp distances data.npy fit.npz --mode 0
    """
    from robustcp.persist.fits import load

    if plot is not None:
        Outputs(file, fit_file, force=force).add_folder(
            "plot", plot, [picture_file("distances", picture)]
        )
    loaded, fit = read_tensor(source), load(fit_file)
    sample_distances = fit.distances(loaded, read_mode(mode, fit.modes))
    if as_json:
        print_json(distances_of(sample_distances))
    else:
        print_distances(sample_distances, count)
    if plot is not None:
        draw_to_file(plot / picture_file("distances", picture), sample_distances.plot)


def compare(
    first: Annotated[Path, typer.Argument(help="A fit, from robustcp fit.")],
    second: Annotated[Path, typer.Argument(help="Another, or a simulation's truth (.npz).")],
    as_json: AsJson = False,
) -> None:
    """Compare two fits: the factor match score, 1 if they are the same.

    Example: robustcp compare fit.npz other.npz
    """
    from robustcp.model.metrics import factor_match_score
    from robustcp.persist.fits import load_model

    a, b = load_model(first), load_model(second)
    if a.shape != b.shape:
        raise FileError(second, f"has shape {b.shape}, {first} has {a.shape}")
    scores = {
        "factor_match_score": factor_match_score(a, b),
        "without_weights": factor_match_score(a, b, weights=False),
    }
    if as_json:
        print_json(scores)
    else:
        print(f"factor match score: {scores['factor_match_score']:.6f}")
        print(f"without weights:    {scores['without_weights']:.6f}")
