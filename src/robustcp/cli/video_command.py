"""`robustcp video`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcp.cli.interrupts import explain_interrupt
from robustcp.cli.options import Force, Quiet, Seed
from robustcp.cli.progress import ProgressDisplay
from robustcp.persist.errors import FileError
from robustcp.persist.writing import Outputs


def video(
    file: Annotated[Path, typer.Argument(help="The clip.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("video"),
    rank: Annotated[int, typer.Option(help="The number of components.")] = 2,
    every: Annotated[int, typer.Option(help="Take every k-th frame.", metavar="K")] = 1,
    scale: Annotated[float, typer.Option(help="Resize frames by this factor, at most 1.")] = 1.0,
    frames: Annotated[int | None, typer.Option(help="Take at most this many frames.")] = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Separate the background of a video from what moves in it.

    Writes background.png, foreground.mp4 (a mask) and side_by_side.mp4.

    Example: robustcp video clip.avi --rank 2 --scale 0.5 --out video
    """
    from robustcp.apps.video import OUTPUT_NAMES, separate

    if not file.exists():
        raise FileError(file, "there is no such file")
    Outputs(file, force=force).add_folder("out", out, OUTPUT_NAMES)
    with (
        explain_interrupt("stopped; nothing was written"),
        ProgressDisplay(quiet).count_tasks() as progress,
    ):
        separation = separate(
            file,
            out,
            rank=rank,
            every=every,
            scale=scale,
            frames=frames,
            seed=seed,
            progress=progress,
        )
    if not quiet:
        height, width = separation.size
        print(
            f"{separation.frames} frames of {width}x{height}, "
            f"{separation.share:.2%} of them foreground"
        )
        print(f"written: {separation.background}, {separation.mask}, {separation.beside}")
