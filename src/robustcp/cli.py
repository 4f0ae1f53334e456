"""The command line. The only module that prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

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

    writable(out)
    import matplotlib

    matplotlib.use("Agg")
    from robustcp import demo as story
    from robustcp.plot import truth_against_estimates

    console = Console()
    console.print(
        "A 50x50x50 tensor of rank 5 with Gaussian noise. 20% of its entries are\n"
        "artifacts, together twice its size (eta 0.2, gamma 2 in Chi & Kolda 2010)."
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
        "FMS: factor match score against the true factors, 1 is perfect.\n"
        "Relative L1: sum |residual| / sum |data|.\n"
        "cp tries several starts and refines the L1 fit; its seconds include that."
    )
    drawn = [row for row in rows if row.method in ("CPALS", "CPAL1")]
    ax = truth_against_estimates(
        sim.truth, {f"{row.method} (FMS {row.fms:.2f})": row.fit for row in drawn}
    )
    path = out / "factor.png"
    ax.figure.savefig(path, dpi=150)  # type: ignore[union-attr]
    console.print(f"One factor column against the truth: {path}", soft_wrap=True)


@app.command()
def reproduce(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Which studies; all of them if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="A first look: small and few.")] = False,
    replicates: Annotated[
        int | None, typer.Option(help="Replicates per cell, instead of each study's own number.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; by default all cores.")] = None,
) -> None:
    """Run the experiments of Chi & Kolda (2010).

    The studies: figure1a, figure1b, minima, noises, cost, parallel, sparse, breakdown. Each
    writes its raw results (CSV), a figure (PNG and PDF) and a summary (Markdown). An interrupted
    run goes on where it stopped when the same command is given again.

    Example: robustcp reproduce figure1a --quick --out results
    """
    import os
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from robustcp.ledger import Ledger, carry_out, same_settings, write_whole
    from robustcp.paper import STUDIES, Scale

    chosen = list(dict.fromkeys(studies or STUDIES))
    unknown = [name for name in chosen if name not in STUDIES]
    if unknown:
        fail(f"unknown study {unknown[0]!r}; there are {', '.join(STUDIES)}")
    if replicates is not None and replicates < 1:
        fail(f"--replicates {replicates}: must be at least 1")
    if jobs is not None and jobs < 1:
        fail(f"--jobs {jobs}: must be at least 1")
    writable(out)
    scale = (Scale.quick() if quick else Scale()).with_replicates(replicates)
    other = same_settings(out / "settings.json", {"scale": _plain(asdict(scale))})
    if other:
        fail(f"--out {out}: holds results of other settings ({other}); name another folder")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    try:
        with Progress(*columns, console=console) as bars:
            for name in chosen:
                study = STUDIES[name]
                tasks = study.tasks(scale)
                bar = bars.add_task(name, total=len(tasks))
                rows = carry_out(
                    tasks,
                    study.work,
                    Ledger(out / f"{name}.csv"),
                    0 if study.alone else jobs or os.cpu_count() or 1,
                    lambda bar=bar: bars.advance(bar),  # type: ignore[misc]
                )
                figure = study.draw(rows)
                for suffix in ("png", "pdf"):
                    # without a date in it the same results give the same file
                    metadata = {"CreationDate": None} if suffix == "pdf" else None
                    figure.savefig(out / f"{name}.{suffix}", dpi=150, metadata=metadata)
                plt.close(figure)
                text = f"# {study.title}\n\nThe paper: {study.claim}\n\n"
                text += f"![{study.title}]({name}.png)\n\n{study.summary(rows)}"
                write_whole(out / f"{name}.md", text)
    except KeyboardInterrupt:
        print("robustcp: stopped; the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    for name in chosen:
        print(f"{STUDIES[name].title}: {out / name}.csv, .png, .pdf, .md")


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}


def writable(folder: Path) -> None:
    """Make a folder and see that files can be written there, before any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        fail(f"--out {folder}: cannot be written ({error.strerror})")


def fail(message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    print(f"robustcp: {message}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """The entry point `robustcp`."""
    app()
