"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TensorFile = Annotated[Path, typer.Argument(help="The tensor's file.", show_default=False)]
Key = Annotated[str | None, typer.Option(help="Which array of a file that holds several.")]
Absent = Annotated[
    str | None,
    typer.Option(help="In .tns files and tables: what is not listed is 'missing' or 'zero'."),
]
Nonnegative = Annotated[bool, typer.Option("--nonnegative", help="No negative entries.")]
Smooth = Annotated[
    list[str] | None,
    typer.Option("--smooth", metavar="MODE=STRENGTH", help="A mode, by number or name, is smooth."),
]
Unimodal = Annotated[
    list[str] | None,
    typer.Option(
        "--unimodal", metavar="MODE", help="A mode, by number or name, has one peak, none below 0."
    ),
]
Noise = Annotated[
    str | None,
    typer.Option(
        "--noise",
        metavar="KIND|MODES|FILE",
        help="What the noise depends on: auto (the default), common, slabs, signal, signal*slabs, "
        "or the modes whose slabs differ (numbers or names, with commas between); or a file with "
        "known standard deviations, of the tensor's shape or one that broadcasts.",
    ),
]
CaseMode = Annotated[
    str | None,
    typer.Option(
        "--cases",
        metavar="MODE[=SHARE]",
        help="The mode, by number or name, that holds samples some of which may be bad as a whole; "
        "and the share of them that may be (0.25).",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of what is random.")]
SampleMode = Annotated[
    str, typer.Option("--mode", help="The mode, by number or name, that holds samples.")
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="How many fits at once; by default one for each core.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace files that exist; never those that are read.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
