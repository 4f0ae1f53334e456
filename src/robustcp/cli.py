"""The command line. The only module that prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

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

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink()
    except OSError as error:
        fail(f"--out {out}: cannot be written ({error.strerror})")
    import matplotlib

    matplotlib.use("Agg")
    from robustcp import demo as story
    from robustcp.plot import truth_against_estimates

    console = Console()
    console.print(
        "A 50x50x50 tensor of rank 5 with Gaussian noise; 20% of its entries are artifacts\n"
        "that together are twice its size (eta 0.2, gamma 2 in Chi & Kolda 2010)."
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
        "FMS: factor match score against the true factors, 1 is perfect. "
        "Relative L1: sum |residual| / sum |data|."
    )
    ax = truth_against_estimates(
        sim.truth, {f"{row.method} (FMS {row.fms:.2f})": row.fit for row in rows}
    )
    path = out / "factor.png"
    ax.figure.savefig(path, dpi=150)  # type: ignore[union-attr]
    console.print(f"One factor column against the truth: {path}", soft_wrap=True)


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    print(f"robustcp: {message}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """The entry point `robustcp`."""
    app()
