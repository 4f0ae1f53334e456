"""Pictures that commands are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustcp.files.writing import make_folder, write_picture


def draw(path: Path, picture: Callable[[], Any]) -> None:
    """Write what a function draws, Axes or an array of them, without a screen."""
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    axes = np.ravel(np.asarray(picture(), dtype=object))
    make_folder(path.parent)
    write_picture(path, axes[0].figure)
