"""The studies of the paper, from their tasks to tables, figures and summaries in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robustcp.files.errors import OutputError
from robustcp.files.writing import make_folder
from robustcp.studies.ledger import same_settings
from robustcp.studies.paper import STUDIES, Scale
from robustcp.studies.study import Progress, check_folder


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
    check_folder(out, ["settings.json", *(f for name in names for f in STUDIES[name].files)])
    other = same_settings(make_folder(out) / "settings.json", {"scale": _plain(asdict(scale))})
    if other:
        raise OutputError(
            out, f"holds results of other settings ({other}); name another folder", "out"
        )
    for name in names:
        STUDIES[name].run(scale, out, jobs, progress)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
