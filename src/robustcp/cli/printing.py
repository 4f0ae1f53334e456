"""Results as lines of text, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcp.distances import Distances
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded


def summary_of(found: Fit, loaded: Loaded, seconds: float) -> dict[str, Any]:
    """What there is to say about a fit, and how long it took."""
    from robustcp.engines.installed import seconds_compiling

    return found.summary(loaded).content | {
        "seconds": round(seconds, 3), "compiling": round(seconds_compiling(), 3)
    }  # fmt: skip


def print_summary(summary: dict[str, Any]) -> None:
    """What `summary_of` found, for people."""
    from robustcp.summaries import lines_of

    print_lines(lines_of(summary))
    compiling = summary["compiling"]
    told = f", {compiling:.1f} of them to compile code, which is kept" if compiling > 0.5 else ""
    print(f"time: {summary['seconds']:.2f} seconds{told}")


def print_lines(lines: list[str]) -> None:
    """Lines of text."""
    for line in lines:
        print(line)


def distances_of(found: Distances) -> dict[str, Any]:
    """The distances of samples, the most outlying first."""
    return {
        "mode": found.name,
        "score_cutoff": found.score_cutoff,
        "residual_cutoff": found.residual_cutoff,
        "note": found.note,
        "samples": found.rows(),
    }


def print_distances(found: Distances, count: int) -> None:
    """Distances for people: as they are without bad entries, and in brackets with them."""
    print(found.words)
    print(f"cut-offs: score {found.score_cutoff:.3g}, residual {found.residual_cutoff:.3g}")
    if found.note:
        print(f"note: {found.note}")
    rows = found.rows()
    width = max(len(found.name), *(len(str(row["label"])) for row in rows[:count]))
    print(f"{found.name:>{width}}  {'score':>19}  {'residual':>19}  {'bad entries':>11}  kind")
    for row in rows[:count]:
        score, residual = (f"{row[k]:.4g} ({row[k + '_before']:.4g})" for k in _DISTANCES)
        kind = row["kind"] + (", bad entries only" if row["only_cells"] else "")
        print(
            f"{row['label']!s:>{width}}  {score:>19}  {residual:>19}  {row['share']:>11.1%}  {kind}"
        )
    if len(rows) > count:
        print(f"and {len(rows) - count} more")


_DISTANCES = ("score", "residual")


def print_json(content: dict[str, Any]) -> None:
    """Results for programs, in one line."""
    from robustcp.summaries import plain

    print(json.dumps(plain(content)))
