"""The studies of the paper, from their tasks to tables, figures and summaries in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robustcp.files.errors import OutputError
from robustcp.files.writing import Outputs, make_folder, write_bytes, write_picture
from robustcp.studies.ledger import Ledger, Row, carry_out, same_settings
from robustcp.studies.paper import STUDIES, Scale, Study

SUFFIXES = (".csv", ".png", ".pdf", ".md")

#: Told about each study: its name, how many tasks are done, and of how many.
Progress = Callable[[str, int, int], object]


def reproduce(
    names: Sequence[str],
    out: str | Path,
    scale: Scale,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Run studies; an interrupted run goes on where it stopped when it is called again.

    Parameters
    ----------
    names : sequence of str
        Of `STUDIES`.
    out : str or Path
        The folder for each study's raw results (CSV), figure (PNG, PDF) and summary (Markdown).
    scale : Scale
        How large the studies are. A folder holds results of one scale.
    jobs : int, optional
        How many processes; by default one for each core.
    progress : callable, optional
        Called with the name of the study, how many of its tasks are done, and of how many.

    Raises
    ------
    OutputError
        If the folder cannot be written, or holds results of another scale.
    """
    out = Path(out)
    files = [name + suffix for name in names for suffix in SUFFIXES]
    Outputs(force=True).add_folder("out", out, ["settings.json", *files])
    other = same_settings(make_folder(out) / "settings.json", {"scale": _plain(asdict(scale))})
    if other:
        raise OutputError(
            out, f"holds results of other settings ({other}); name another folder", "out"
        )
    for name in names:
        rows = _results(STUDIES[name], scale, out, jobs, progress or (lambda *_: None))
        _write(STUDIES[name], rows, out)


def _results(study: Study, scale: Scale, out: Path, jobs: int | None, tell: Progress) -> list[Row]:
    tasks, done = study.tasks(scale), 0
    tell(study.name, 0, len(tasks))

    def advance() -> None:
        nonlocal done
        done += 1
        tell(study.name, done, len(tasks))

    count = 0 if study.alone else jobs or os.cpu_count() or 1
    return carry_out(tasks, study.work, Ledger(out / f"{study.name}.csv"), count, advance)


def _write(study: Study, rows: list[Row], out: Path) -> None:
    figure = study.draw(rows)
    write_picture(out / f"{study.name}.png", figure)
    # without a date in it the same results give the same file
    write_picture(out / f"{study.name}.pdf", figure, metadata={"CreationDate": None})
    text = f"# {study.title}\n\nThe paper: {study.claim}\n\n"
    text += f"![{study.title}]({study.name}.png)\n\n{study.summary(rows)}"
    write_bytes(out / f"{study.name}.md", text.encode())


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
