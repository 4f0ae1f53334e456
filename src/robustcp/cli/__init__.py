"""The command line: it parses, translates and prints, and is the only part that prints."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer

from robustcp.cli.clips import video
from robustcp.cli.errors import reporting
from robustcp.cli.exchanging import export, project, show
from robustcp.cli.fitting import fit
from robustcp.cli.inspecting import compare, distances, outliers, rank
from robustcp.cli.pages import report
from robustcp.cli.parsing import Command, Group
from robustcp.cli.studying import demo, reproduce, simulate, trials
from robustcp.cli.trusting import ensemble, replicability, uncertainty

app = typer.Typer(
    help="CP tensor factorization that bad entries cannot pull away.",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    fit, show, export, project, rank, outliers, distances, uncertainty, replicability, ensemble,
    report, compare, simulate, video, demo, reproduce, trials,
)  # fmt: skip

for command in COMMANDS:
    app.command(cls=Command)(reporting(command))


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


def main() -> None:
    """The entry point `robustcp`."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _end)
    app()


def _end(number: int, frame: object) -> NoReturn:
    """End as the signal asks, but remove files that are not complete yet."""
    sys.exit(128 + number)
