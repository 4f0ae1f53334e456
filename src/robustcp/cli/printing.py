"""Results as lines of text, or as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcp.results.distances import Distances
    from robustcp.results.view import FittedView


def summary_of(view: FittedView, seconds: float) -> dict[str, Any]:
    """The content of a fit's summary, and how long the fit took."""
    from robustcp.engines.installed import compilation_seconds

    return view.summary().content | {
        "seconds": round(seconds, 3),
        "compiling": round(compilation_seconds(), 3),
    }


def print_summary(summary: dict[str, Any]) -> None:
    """What `summary_of` found, for people."""
    from robustcp.results.summary import format_lines

    print_lines(format_lines(summary))
    compiling = summary["compiling"]
    compile_note = (
        f", {compiling:.1f} of them to compile code, which is kept" if compiling > 0.5 else ""
    )
    print(f"time: {summary['seconds']:.2f} seconds{compile_note}")


def print_lines(lines: list[str]) -> None:
    """Lines of text."""
    for line in lines:
        print(line)


def distances_of(distances: Distances) -> dict[str, Any]:
    """The distances of samples, the most outlying first."""
    return {
        "mode": distances.name,
        "score_cutoff": distances.score_cutoff,
        "residual_cutoff": distances.residual_cutoff,
        "note": distances.note,
        "samples": distances.rows(),
    }


def print_distances(distances: Distances, count: int) -> None:
    """Distances for people: as they are without bad entries, and in brackets with them."""
    print(distances.words)
    print(f"cut-offs: score {distances.score_cutoff:.3g}, residual {distances.residual_cutoff:.3g}")
    if distances.note:
        print(f"note: {distances.note}")
    rows = distances.rows()
    width = max(len(distances.name), *(len(str(row["label"])) for row in rows[:count]))
    print(f"{distances.name:>{width}}  {'score':>19}  {'residual':>19}  {'bad entries':>11}  kind")
    for row in rows[:count]:
        score, residual = (f"{row[k]:.4g} ({row[k + '_before']:.4g})" for k in _DISTANCE_KEYS)
        kind = row["kind"] + (", bad entries only" if row["only_cells"] else "")
        print(
            f"{row['label']!s:>{width}}  {score:>19}  {residual:>19}  {row['share']:>11.1%}  {kind}"
        )
    if len(rows) > count:
        print(f"and {len(rows) - count} more")


_DISTANCE_KEYS = ("score", "residual")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as comma-separated text."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def print_json(content: dict[str, Any]) -> None:
    """Results for programs, in one line."""
    from robustcp.results.summary import to_json_values

    print(json.dumps(to_json_values(content)))
