"""`robustcp rank`, `outliers` and `compare`: what a tensor or a fit says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.errors import fail
from robustcp.cli.options import Absent, AsJson, Force, Key, Nonnegative, Seed, TensorFile
from robustcp.cli.printing import print_json, print_lines
from robustcp.cli.reading import check_rank, read_tensor
from robustcp.files.errors import FileError
from robustcp.files.writing import Outputs, make_folder, whole, write_picture

if TYPE_CHECKING:
    from robustcp.ranks import RankProfile


def rank(
    file: TensorFile,
    most: Annotated[int, typer.Option(help="The largest rank to try.")] = 6,
    nonnegative: Nonnegative = False,
    seed: Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="Folder for a picture.")] = None,
    key: Key = None,
    absent: Absent = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say how many components the tensor in a file has, and why.

    Example: robustcp rank aminoacids.mat --key X.data --most 5
    """
    from robustcp.ranks import rank_profile

    if most < 1:
        fail(f"--most {most}: must be at least 1")
    if plot is not None:
        Outputs(file, force=force).add_folder("plot", plot, ["rank.png"])
    loaded = read_tensor(file, key, absent)
    check_rank(most, loaded)
    profile = rank_profile(loaded.data, range(1, most + 1), nonnegative=nonnegative, rng=seed)
    _print_profile(profile, as_json)
    if plot is not None:
        import matplotlib

        matplotlib.use("Agg")
        from robustcp import plot as pictures

        axes = pictures.rank_profile(profile)
        write_picture(make_folder(plot) / "rank.png", axes.figure)


def _print_profile(profile: RankProfile, as_json: bool) -> None:
    rows = list(zip(profile.ranks, profile.error, profile.stability, strict=True))
    if as_json:
        ranks = [{"rank": int(r), "error": float(e), "stability": float(s)} for r, e, s in rows]
        print_json({"rank": profile.rank, "reason": profile.reason, "ranks": ranks})
        return
    print("rank  held-out error  agreement of halves")
    for r, e, s in rows:
        print(f"{r:>4}  {e:>14.4f}  {s:>19.3f}{'  <' if r == profile.rank else ''}")
    print(f"recommended: {profile.rank} ({profile.reason})")


def outliers(
    file: TensorFile,
    fit_file: Annotated[Path, typer.Argument(help="A fit of it, from robustcp fit.")],
    rate: Annotated[float, typer.Option(help="Share of clean entries flagged by chance.")] = 0.001,
    out: Annotated[Path | None, typer.Option(help="Write the flags here (.npy, of bool).")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many slabs of each mode to show.")] = 5,
    key: Key = None,
    absent: Absent = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which entries and slabs of a tensor its fit does not account for.

    Example: robustcp outliers data.npy fit.npz --out flags.npy
    """
    import numpy as np

    from robustcp.io.fits import load
    from robustcp.summaries import noise_fact, noise_of, worst_lines, worst_of

    if out is not None:
        if out.suffix != ".npy":
            raise FileError(out, "flags are written as .npy")
        Outputs(file, fit_file, force=force).add("out", out)
    loaded, known = read_tensor(file, key, absent), load(fit_file)
    found = known.outliers(loaded.data, rate=rate)
    report: dict[str, Any] = {
        "share": found.share,
        "noise": noise_of(found.in_data, loaded, found.outlying_slabs),
        "threshold": found.threshold,
        "worst": worst_of(found, loaded, count),
    }
    if out is not None:
        with whole(out) as flags:
            np.save(flags, np.asarray(found.mask))
    if as_json:
        print_json(report)
        return
    print(
        f"flagged: {found.share:.3%} of the entries, beyond {found.threshold:.2f} standard "
        "deviations of their noise"
    )
    print_lines(noise_fact(report["noise"]).lines())
    print_lines([f"  {line}" for line in worst_lines(report["worst"])])


def compare(
    first: Annotated[Path, typer.Argument(help="A fit, from robustcp fit.")],
    second: Annotated[Path, typer.Argument(help="Another, or a simulation's truth (.npz).")],
    as_json: AsJson = False,
) -> None:
    """Compare two fits: the factor match score, 1 if they are the same.

    Example: robustcp compare fit.npz other.npz
    """
    from robustcp.io.fits import load_model
    from robustcp.metrics import factor_match_score

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
