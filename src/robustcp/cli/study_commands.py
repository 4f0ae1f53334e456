"""`robustcp simulate`, `demo`, `reproduce` and `trials`: simulated data and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robustcp.cli.errors import fail
from robustcp.cli.interrupts import explain_interrupt
from robustcp.cli.options import Force
from robustcp.cli.progress import ProgressDisplay
from robustcp.persist.errors import FileError
from robustcp.persist.writing import Outputs, make_folder, write_figure

if TYPE_CHECKING:
    from rich.table import Table

    from robustcp.studies.demo import MethodResult


def simulate(
    out: Annotated[Path, typer.Option(help="Where the tensor goes (.npz).")] = Path("tensor.npz"),
    shape: Annotated[str, typer.Option(help="Sizes of the modes.")] = "50x50x50",
    rank: Annotated[int, typer.Option(help="The number of components.")] = 5,
    eta: Annotated[float, typer.Option(help="Share of entries that are artifacts.")] = 0.2,
    gamma: Annotated[float, typer.Option(help="Size of the artifacts.")] = 2.0,
    density: Annotated[float, typer.Option(help="Share of nonzeros in the factors.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    force: Force = False,
) -> None:
    """Write a tensor with artifacts, as in the paper, with the truth beside it.

    The file holds the arrays data, artifacts, weights and factor_0, factor_1, ...

    Example: robustcp simulate --eta 0.2 --gamma 2 --out tensor.npz
    """
    from robustcp.model import simulation
    from robustcp.persist.fits import save_simulation

    if out.suffix != ".npz":
        raise FileError(out, "a simulation is written as .npz")
    Outputs(force=force).add("out", out)
    try:
        sizes = tuple(int(part) for part in shape.lower().split("x"))
    except ValueError:
        fail(f"--shape {shape}: must be sizes such as 50x50x50")
    sim = simulation.simulate(sizes, rank, eta=eta, gamma=gamma, density=density, rng=seed)
    save_simulation(sim, out)
    print(f"{out}: {sim!r}")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated tensor.")] = 0,
) -> None:
    """Show the paper's story on one tensor: least squares breaks, the 1-norm does not.

    Example: robustcp demo --out demo
    """
    from rich.console import Console

    Outputs(force=True).add_folder("out", out, ["factor.png"])
    import matplotlib

    matplotlib.use("Agg")
    from robustcp.plot import truth_against_estimates
    from robustcp.studies import demo as story

    console = Console()
    console.print(
        "A 50x50x50 tensor of rank 5 with Gaussian noise. 20% of its entries are\n"
        "artifacts, together twice its size (eta 0.2, gamma 2 in Chi & Kolda 2010)."
    )
    sim, rows = story.run(seed)
    console.print(_table(rows))
    console.print(
        "FMS: factor match score against the true factors, 1 is perfect.\n"
        "Relative L1: sum |residual| / sum |data|.\n"
        "cp tries several starts and refines the L1 fit; its seconds include that."
    )
    drawn_rows = [row for row in rows if row.method in ("CPALS", "cp")]
    ax = truth_against_estimates(
        sim.truth,
        {f"{row.method} (FMS {row.fms:.3f})": row.fit for row in drawn_rows},
        component=story.worst_component(sim.truth, drawn_rows[0].fit),
    )
    path = make_folder(out) / "factor.png"
    write_figure(path, ax.figure)
    console.print(f"One factor column against the truth: {path}", soft_wrap=True)


def _table(rows: list[MethodResult]) -> Table:
    from rich.table import Table

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
    return table


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

    The studies: figure1a, figure1b, minima, noises, cost, parallel, sparse,
    breakdown. Each writes its raw results (CSV), a figure (PNG and PDF) and a
    summary (Markdown). An interrupted run goes on where it stopped when the same
    command is given again.

    Example: robustcp reproduce figure1a --quick --out results
    """
    import matplotlib

    matplotlib.use("Agg")
    from robustcp.studies.paper import STUDIES, StudyExtent
    from robustcp.studies.reproduce import reproduce as run
    from robustcp.studies.study import SUFFIXES

    study_names = _check_names("study", studies, STUDIES) or list(STUDIES)
    if replicates is not None and replicates < 1:
        fail(f"--replicates {replicates}: must be at least 1")
    if jobs is not None and jobs < 1:
        fail(f"--jobs {jobs}: must be at least 1")
    scale = (StudyExtent.quick() if quick else StudyExtent()).with_replicates(replicates)
    with (
        explain_interrupt("stopped; the same command goes on from here"),
        ProgressDisplay().count_tasks() as progress,
    ):
        run(study_names, out, scale, jobs=jobs, progress=progress)
    for name in study_names:
        print(f"{STUDIES[name].title}: {out / name}{', '.join(SUFFIXES)}")


def trials(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="Which kinds; all of them if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("results"),
    seeds: Annotated[int | None, typer.Option(help="How many seeds; by default 10.")] = None,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A first look: two seeds.")] = False,
    methods: Annotated[
        str, typer.Option(help="Of cp, cpal1, cpals, oracle, cp_at_truth, with commas between.")
    ] = "",
    jobs: Annotated[int | None, typer.Option(help="Processes; by default all cores.")] = None,
) -> None:
    """Measure recovery from each kind of contamination.

    Tensors of known factors, contaminated in many ways, are fitted by cp, cpal1 and
    cpals, and by an oracle that is told which entries are clean. Raw results go to
    trials.csv, the table to trials.md, the figure to trials.png and .pdf. An
    interrupted run goes on where it stopped when the same command is given again.

    Example: robustcp trials bad_samples counts --quick --out results
    """
    import matplotlib

    matplotlib.use("Agg")
    from robustcp.studies.kinds import KINDS
    from robustcp.studies.study import SUFFIXES
    from robustcp.studies.trials import METHODS, Selection, summarize_targets
    from robustcp.studies.trials import run_trials as run

    kind_names = _check_names("kind", kinds, KINDS)
    method_names = _check_names("method", methods.split(",") if methods else [], METHODS)
    if seeds is not None and seeds < 1:
        fail(f"--seeds {seeds}: must be at least 1")
    if first_seed < 0:
        fail(f"--first-seed {first_seed}: must not be negative")
    if jobs is not None and jobs < 1:
        fail(f"--jobs {jobs}: must be at least 1")
    number = seeds or (2 if quick else 10)
    selection = Selection(kind_names or list(KINDS), number, method_names, first_seed)
    with (
        explain_interrupt("stopped; the same command goes on from here"),
        ProgressDisplay().count_tasks() as progress,
    ):
        rows = run(selection, out, jobs=jobs, progress=progress)
    if verdict_text := summarize_targets(rows):
        print(verdict_text)
    print(f"{out / 'trials'}{', '.join(SUFFIXES)}")


def _check_names(noun: str, names: Sequence[str] | None, valid_names: Iterable[str]) -> list[str]:
    """Names without repetition, each of which must be known."""
    unique_names, valid_names = (
        list(dict.fromkeys(name.strip() for name in names or [])),
        list(valid_names),
    )
    for name in unique_names:
        if name not in valid_names:
            fail(f"unknown {noun} {name!r}; there are {', '.join(valid_names)}")
    return unique_names
