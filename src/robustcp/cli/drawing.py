"""Pictures that commands are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustcp.cli.errors import fail
from robustcp.persist.writing import make_folder, write_figure

FORMATS = ("png", "svg", "pdf")


def picture_file(name: str, suffix: str) -> str:
    """The file of a picture, in the format that was asked for."""
    if suffix not in FORMATS:
        fail(f"--format {suffix}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return f"{name}.{suffix}"


def draw_to_file(path: Path, make_axes: Callable[[], Any]) -> None:
    """Write what a function draws, Axes or an array of them, without a screen."""
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    axes = np.ravel(np.asarray(make_axes(), dtype=object))
    make_folder(path.parent)
    write_figure(path, axes[0].figure)
