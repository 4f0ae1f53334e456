"""Slices of data and model: their indices, values, limits, titles and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.text import label_text
from robustcp.engines import to_host
from robustcp.engines.slices import host_slice
from robustcp.plot.modes import mode_number
from robustcp.plot.ticks import is_ordered, set_index_ticks

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
    """A slice of the data, with NaN for missing entries, and of the model."""
    data = host_slice(X, fixed, fit.shape)
    factors = [np.asarray(to_host(A), dtype=np.float64) for A in fit.known_model.absorbed()]
    return data, undo_slice(fit, model_slice(factors, fixed), fixed)


def model_slice(factors: Sequence[np.ndarray], fixed: Mapping[int, int]) -> np.ndarray:
    """The entries of a model where modes are fixed; `factors` include the weights."""
    weights = np.prod([factors[n][k] for n, k in fixed.items()], axis=0)
    first, *rest = (A for n, A in enumerate(factors) if n not in fixed)
    return np.asarray((first * weights) @ (rest[0].T if rest else np.ones(first.shape[1])))


def undo_slice(
    fit: Fit, values: np.ndarray, fixed: Mapping[int, int], stride: int = 1
) -> np.ndarray:
    """A slice of preprocessed values, at a stride, in the units of the data."""
    if fit.preprocessing is None:
        return values
    indices: list[Any] = [
        np.array([fixed[n]]) if n in fixed else slice(None, None, stride)
        for n in range(len(fit.shape))
    ]
    part = fit.preprocessing.subset(indices)
    return np.asarray(part.undo(values.reshape(part.shape))).reshape(values.shape)


def slice_limits(
    data: np.ndarray, model: np.ndarray, residual: np.ndarray
) -> tuple[tuple[float, float], ...]:
    """The limits of the colours or heights of data, model and residual.

    Data and model share limits, which hold all of the model and the data between the 1% and 99%
    quantiles. The limits of the residual are symmetric and leave out the largest 1%.
    """
    observed, magnitudes = finite_values(data), np.abs(finite_values(residual))
    values = finite_values(model)
    if observed.size:
        values = np.concatenate([values, np.quantile(observed, [0.01, 0.99])])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    common = (low, high) if high > low else (low - 0.5, high + 0.5)
    largest = np.array([np.quantile(magnitudes, 0.99), magnitudes.max()] if magnitudes.size else [])
    limit = next((float(x) for x in largest if x > 0), 1.0)
    return common, common, (-limit, limit)


def slice_title(fit: Fit, fixed: Mapping[int, int], name: str, *, name_first: bool = False) -> str:
    """A title: the name of what is drawn, and the name and label of each fixed mode."""
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
    """Draw a slice as an image with the labels of its modes; a fibre is a single row."""
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
    """Hatch the background, which shows through where an image is NaN or transparent."""
    ax.patch.set(facecolor="0.8", edgecolor="0.55", hatch="////")


def finite_values(values: np.ndarray) -> np.ndarray:
    """The finite values, as a vector."""
    return np.asarray(values[np.isfinite(values)])


def colorbar_extend(values: np.ndarray, limits: tuple[float, float]) -> str:
    """The ends of a colour bar that need an arrow, because values lie outside its limits."""
    observed = finite_values(values)
    below, above = bool((observed < limits[0]).any()), bool((observed > limits[1]).any())
    return "both" if below and above else "min" if below else "max" if above else "neither"
