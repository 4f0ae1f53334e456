"""One slice of data and model: where it is, its values, its title and its image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp.engines import to_host
from robustcp.engines.slices import host_slice
from robustcp.plot.modes import mode_number
from robustcp.plot.ticks import is_ordered, label_text, set_index_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

    from robustcp.results.fit import Fit


def fixed_modes(fit: Fit, mode: Any, index: Any) -> dict[int, int]:
    """The index of each fixed mode; one or two modes must be left to draw."""
    modes = list(mode) if isinstance(mode, tuple | list) else [mode]
    indices = list(index) if isinstance(index, tuple | list) else [index]
    numbers = [mode_number(fit, "mode", m) for m in modes]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"mode: the same one twice in {mode!r}")
    order = len(fit.shape)
    if order - len(numbers) not in (1, 2):
        raise ValueError(
            f"mode: must fix {order - 2} or {order - 1} of the {order} modes, so that two or one "
            f"are left to draw, got {mode!r}"
        )
    if len(indices) != len(numbers):
        raise ValueError(f"index: must be one for each fixed mode, got {index!r}")
    return {
        n: fit.axes.index_position("index", n, k, fit.shape[n])
        for n, k in zip(numbers, indices, strict=True)
    }


def data_and_model(fit: Fit, X: Any, fixed: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The slice of the data, NaN where missing, and that of the model."""
    data = host_slice(X, fixed, fit.shape)
    weights = np.asarray(to_host(fit.weights), dtype=np.float64)
    free_factors = []
    for n, A in enumerate(fit.factors):
        B = np.asarray(to_host(A), dtype=np.float64)
        if n in fixed:
            weights = weights * B[fixed[n]]
        else:
            free_factors.append(B)
    model = (free_factors[0] * weights) @ (
        free_factors[1].T if len(free_factors) == 2 else np.ones(fit.rank)
    )
    return data, model


def slice_title(fit: Fit, fixed: Mapping[int, int], name: str, *, name_first: bool = False) -> str:
    """What is drawn, and the name and label of each fixed mode."""
    texts = []
    for n, index in fixed.items():
        labels = fit.labels[n]
        label = f"[{index}]" if labels is None else label_text(labels[index])
        texts.append(f"{fit.modes[n]} {label} {fit.units[n]}".rstrip())
    return ", ".join([name, *texts] if name_first else [*texts, name])


def slice_image(
    ax: Axes,
    fit: Fit,
    values: np.ndarray,
    fixed: Mapping[int, int],
    cmap: Colormap | str,
    limits: tuple[float, float],
) -> AxesImage:
    """A slice as an image with the names and labels of its modes; a fibre as a single row."""
    *vertical, horizontal = (n for n in range(len(fit.shape)) if n not in fixed)
    labels = fit.labels[vertical[0]] if vertical else None
    image = ax.imshow(
        np.atleast_2d(values),
        cmap=cmap,
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto",
        interpolation="nearest",
        origin="lower" if labels is not None and is_ordered(labels) else "upper",
    )
    hatch_background(ax)
    set_index_ticks(ax.xaxis, fit.labels[horizontal], fit.shape[horizontal])
    ax.set_xlabel(fit.axes.title(horizontal))
    if vertical:
        set_index_ticks(ax.yaxis, labels, fit.shape[vertical[0]])
        ax.set_ylabel(fit.axes.title(vertical[0]))
    else:
        ax.set_yticks([])
    return image


def hatch_background(ax: Axes) -> None:
    """Hatch the background, which shows where an image is NaN or transparent."""
    ax.patch.set(facecolor="0.8", edgecolor="0.55", hatch="////")


def finite_values(values: np.ndarray) -> np.ndarray:
    """The finite values, as a vector."""
    return np.asarray(values[np.isfinite(values)])


def colorbar_extend(values: np.ndarray, limits: tuple[float, float]) -> str:
    """At which ends a colour bar needs an arrow, for values outside its limits."""
    observed = finite_values(values)
    below, above = bool((observed < limits[0]).any()), bool((observed > limits[1]).any())
    return "both" if below and above else "min" if below else "max" if above else "neither"
