"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TensorFile = Annotated[Path, typer.Argument(help="The tensor's file.", show_default=False)]
Nonnegative = Annotated[
    str | None,
    typer.Option(
        "--nonnegative",
        metavar="[MODES]",
        help="No negative entries: in all modes, or in those, with commas between.",
    ),
]
PictureFormat = Annotated[
    str, typer.Option("--format", metavar="png|svg|pdf", help="The format of pictures.")
]
Constraint = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint",
        metavar="MODE=KIND",
        help="What a mode must be like: nonnegative, unimodal, increasing, decreasing, orthogonal, "
        "simplex, smooth:STRENGTH, l1:WEIGHT, cardinality:COUNT, or fixed:FILE, a file (.npy, "
        "or numbers with commas) with known columns, nan where not known.",
    ),
]
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
Limits = Annotated[
    str | None,
    typer.Option(
        "--limits",
        metavar="LOW:HIGH",
        help="Entries at most LOW or at least HIGH are censored: they count as that or beyond. One "
        "of both may be left out, as in 0.5: and :4095. Or auto, which finds ceilings (the default "
        "of cp), or none.",
    ),
]
CenterModes = Annotated[
    list[str] | None,
    typer.Option(
        "--center",
        metavar="MODE[:mean|skipped]",
        help="Subtract medians across a mode (number or name), such as the samples; or means, or "
        "means without far values.",
    ),
]
ScaleModes = Annotated[
    list[str] | None,
    typer.Option(
        "--scale",
        metavar="MODE[:rms|sd]",
        help="Divide each slab of a mode, such as each variable, by its robust size; or by its "
        "root mean square or standard deviation. After --center.",
    ),
]
LogRatioMode = Annotated[
    str | None,
    typer.Option(
        "--log-ratio",
        metavar="MODE[:FLOOR]",
        help="Logarithms minus their mean over a mode of parts (clr), first of all. Entries below "
        "FLOOR count as that; without one, zeros are missing.",
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
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Write all about the fit here (.html)."),
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
LogEvery = Annotated[
    float,
    typer.Option(
        "--log-every",
        min=0,
        metavar="SECONDS",
        help="Without a terminal: time between lines that say how far it is; 0 for none.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more of what is done, such as each level.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
