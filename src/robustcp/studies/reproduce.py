"""The studies of the paper, from their tasks to tables, figures and summaries in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robustcp.persist.errors import OutputError
from robustcp.persist.writing import make_folder
from robustcp.studies.paper import STUDIES, StudyExtent
from robustcp.studies.results_file import settings_conflict
from robustcp.studies.study import Progress, check_folder


def reproduce(
    names: Sequence[str],
    out: str | Path,
    extent: StudyExtent,
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
    extent : Scale
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
    check_folder(out, ["settings.json", *(f for name in names for f in STUDIES[name].files)])
    conflict = settings_conflict(
        make_folder(out) / "settings.json", {"scale": _as_json(asdict(extent))}
    )
    if conflict:
        raise OutputError(
            out, f"holds results of other settings ({conflict}); name another folder", "out"
        )
    for name in names:
        STUDIES[name].run(extent, out, jobs, progress)


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
