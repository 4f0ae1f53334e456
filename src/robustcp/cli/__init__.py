"""The command line: it parses, translates and prints, and is the only part that prints."""

from __future__ import annotations

from typing import Annotated

import typer

from robustcp.cli.errors import report_errors
from robustcp.cli.export_commands import export, project, show
from robustcp.cli.fit_command import fit
from robustcp.cli.impute_command import impute
from robustcp.cli.info_command import info
from robustcp.cli.inspect_commands import compare, distances, outliers, rank
from robustcp.cli.interrupts import exit_on_signals
from robustcp.cli.parsing import Command, Group
from robustcp.cli.read_options import with_source_options
from robustcp.cli.report_command import report
from robustcp.cli.stability_commands import ensemble, replicability, uncertainty
from robustcp.cli.study_commands import demo, reproduce, simulate, trials
from robustcp.cli.video_command import video

app = typer.Typer(
    help="CP tensor factorization that bad entries cannot pull away.",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    info, fit, show, export, project, impute, rank, outliers, distances, uncertainty,
    replicability, ensemble, report, compare, simulate, video, demo, reproduce, trials,
)  # fmt: skip

for command in COMMANDS:
    app.command(cls=Command)(report_errors(with_source_options(command)))


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
    exit_on_signals()
    app()
