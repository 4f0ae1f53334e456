"""Results as lines of text, or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded


def summary_of(found: Fit, loaded: Loaded, seconds: float) -> dict[str, Any]:
    """What there is to say about a fit, and how long it took."""
    return found.summary(loaded.data).content | {"seconds": round(seconds, 3)}


def print_summary(summary: dict[str, Any]) -> None:
    """What `summary_of` found, for people."""
    from robustcp.summaries import lines_of

    print_lines(lines_of(summary))
    print(f"time: {summary['seconds']:.2f} seconds")


def print_lines(lines: list[str]) -> None:
    """Lines of text."""
    for line in lines:
        print(line)


def print_json(content: dict[str, Any]) -> None:
    """Results for programs, in one line."""
    print(json.dumps(content, default=str))
