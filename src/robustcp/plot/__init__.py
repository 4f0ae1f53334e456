"""Pictures. Matplotlib is imported when something is drawn.

Modes may be given by number or, where the data had names, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from robustcp import _checks
from robustcp.engines import Observed, as_array, to_host
from robustcp.metrics import congruence, on_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

    from robustcp.fitted import Fit
    from robustcp.outlying import Outliers
    from robustcp.ranks import RankProfile

#: A mode's number or name.
Mode: TypeAlias = int | str

#: Colour-blind safe, and apart in grey: (colour, line style, marker).
STYLES = (("#D55E00", "--", "s"), ("#0072B2", "-", "o"), ("#009E73", ":", "^"))

#: Modes with no labels and at most so many indices are drawn as bars.
FEW = 12

KINDS = ("line", "bar", "image")


def truth_against_estimates(
    truth: Any,
    estimates: Mapping[str, Any],
    *,
    mode: int = 0,
    component: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """One factor column of the truth and of each estimate (the paper's figure 1b).

    Each estimate's component is the one that goes with the truth's in the best pairing of all
    components, turned to the same sign.

    Parameters
    ----------
    truth : KruskalTensor or pair (weights, factors)
    estimates : mapping from a label to a Fit, KruskalTensor or pair
    mode, component : int
        Which column; components are counted in the order of the truth's weights.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    from scipy.optimize import linear_sum_assignment

    ax = _axes(ax, (8, 3.6))
    true = on_host(truth)
    column = true.factors[mode][:, component]
    index = np.arange(column.size)
    ax.bar(index, column, width=0.8, color="0.85", label="truth")
    for (label, estimate), (colour, line, marker) in zip(estimates.items(), STYLES, strict=False):
        model = on_host(estimate)
        rows, partners = linear_sum_assignment(congruence(true, model), maximize=True)
        found = model.factors[mode][:, dict(zip(rows, partners, strict=True)).get(component, 0)]
        found = found * (1.0 if found @ column >= 0 else -1.0)
        ax.plot(
            index, found, line, color=colour, marker=marker, markersize=3.5, linewidth=1.2,
            label=label,
        )  # fmt: skip
    ax.set_xlabel(f"row of the factor of mode {mode}")
    ax.set_ylabel("entry of the unit column")
    ax.set_xlim(-1, column.size)
    ax.legend(frameon=False, ncols=1 + len(estimates), loc="upper left", bbox_to_anchor=(0, 1.13))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def rank_profile(profile: RankProfile, *, ax: Axes | None = None) -> Axes:
    """Held-out error (left axis) and stability (right axis) against the rank."""
    ax = _axes(ax, (6, 3.6))
    (orange, _, square), (blue, _, circle), _ = STYLES
    other = ax.twinx()
    error = ax.plot(profile.ranks, profile.error, circle + "-", color=blue)
    stable = other.plot(profile.ranks, profile.stability, square + "--", color=orange)
    ax.axvline(profile.rank, color="0.6", linestyle=":", linewidth=1.5)
    ax.set_xlabel(f"rank (recommended: {profile.rank})")
    ax.set_ylabel("held-out error, of a zero model's")
    ax.set_ylim(bottom=0)
    other.set_ylabel("agreement of halves")
    other.set_ylim(0, 1.05)
    ax.set_xticks(profile.ranks)
    ax.legend([*error, *stable], ["held-out error", "agreement of halves"], frameon=False)
    ax.spines[["top"]].set_visible(False)
    other.spines[["top"]].set_visible(False)
    return ax


def components(
    fit: Fit,
    *,
    kinds: Mapping[Mode, str] | None = None,
    shapes: Mapping[Mode, tuple[int, int]] | None = None,
    axes: Any = None,
) -> np.ndarray:
    """The factors: one row for each component, one column for each mode.

    All panels of a mode are on one scale. The titles say which share of the data a component
    explains.

    Parameters
    ----------
    fit : Fit
    kinds : mapping from a mode to "line", "bar" or "image", optional
        By default lines for modes with numbers or dates as labels, bars for those with other
        labels; without labels, bars for at most 12 indices.
    shapes : mapping from a mode to (height, width), optional
        Modes whose indices are the pixels of an image, row by row.
    axes : array of matplotlib Axes (rank, order), optional

    Returns
    -------
    array of matplotlib Axes (rank, order)

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((4, 30, 12), 2, eta=0, gamma=0, rng=0).data
    >>> axes = components(robustcp.cp(X, 2), shapes={2: (3, 4)})
    >>> axes.shape
    (2, 3)
    """
    order = len(fit.shape)
    sizes = _image_shapes(fit, shapes)
    drawn = _kinds(fit, kinds, sizes)
    grid = _grid("axes", axes, (fit.rank, order), (2.7 * order, 1.45 * fit.rank + 0.5))
    for n, kind in enumerate(drawn):
        A = np.asarray(to_host(fit.factors[n]), dtype=np.float64)
        for ax, column in zip(grid[:, n], A.T, strict=True):
            if kind == "image":
                _pixels(ax, column.reshape(sizes[n]), A)
            else:
                _column(ax, column, kind, fit.labels[n], A)
                ax.tick_params(labelbottom=ax is grid[-1, n])
        grid[-1, n].set_xlabel(fit.modes[n])
    for r, (ax, share) in enumerate(zip(grid[:, 0], fit.shares, strict=True)):
        ax.set_ylabel("" if drawn[0] == "image" else "unit column")
        ax.set_title(f"component {r}: {share:.1%} of the data", loc="left", fontsize="medium")
    return grid


def convergence(fit: Fit, *, ax: Axes | None = None) -> Axes:
    """The objective after each sweep, each stage on its own background.

    Only values of one stage can be compared, and of one level: where a stage goes to the next
    level, the objective is another one, and jumps. Points are therefore not joined.

    Parameters
    ----------
    fit : Fit
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = _axes(ax, (6.4, 3.4))
    begin = 0
    for k, (name, sweeps) in enumerate(fit.stages):
        colour, _, marker = STYLES[(k + 1) % len(STYLES)]
        number = np.arange(begin + 1, begin + sweeps + 1)
        ax.axvspan(begin + 0.5, begin + sweeps + 0.5, color=("0.96", "0.9")[k % 2], zorder=0, lw=0)
        ax.plot(
            number, fit.trace[begin : begin + sweeps], linestyle="none", marker=marker,
            markersize=3, color=colour, markerfacecolor=("none", colour)[k % 2],
            label=f"{name} ({sweeps} sweep{'s' * (sweeps != 1)})",
        )  # fmt: skip
        begin += sweeps
    if 0 < 5 * fit.trace.min() < fit.trace.max():  # else stages of small values look flat
        ax.set_yscale("log")
        _plain_log_ticks(ax.yaxis)
    ax.set_xlim(0, begin + 1)
    _index_ticks(ax.xaxis, None, begin + 1)
    ax.set_xlabel("sweep (jumps: the objective itself changes)")
    ax.set_ylabel("objective")
    ax.legend(
        frameon=False, ncols=len(fit.stages), loc="lower left", bbox_to_anchor=(0, 1),
        borderaxespad=0.2, title="stage", title_fontsize="medium", alignment="left",
    )  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def outliers(found: Outliers, mode: Mode = 0, *, ax: Axes | None = None) -> Axes:
    """The share of flagged entries in each slab of a mode.

    Parameters
    ----------
    found : Outliers
    mode : int or str
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    n = _mode_number(found.fit, "mode", mode)
    ax = _axes(ax, (8, 2.8))
    shares = found.slabs[n]
    few = shares.size <= FEW
    ax.bar(np.arange(shares.size), 100 * shares, width=0.8 if few else 1.0, color=STYLES[1][0])
    _index_ticks(ax.xaxis, found.fit.labels[n], shares.size)
    ax.set_xlim(-0.6, shares.size - 0.4)
    ax.set_xlabel(found.fit.modes[n])
    ax.set_ylabel("flagged entries, %")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def outlier_map(
    found: Outliers,
    mode: Mode | Sequence[Mode] = 0,
    index: int | Sequence[int] = 0,
    *,
    ax: Axes | None = None,
) -> Axes:
    """The scores of one slice as an image: pale where clean, strong where flagged.

    In grey, flagged entries are dark where the data is too low and of middle grey where it is
    too high. Missing entries are hatched. Colours end at three times the threshold.

    Parameters
    ----------
    found : Outliers
    mode, index : int, or one for each mode that is held
        Where the slice is; see `slices`.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    fit = found.fit
    held = _held(fit, mode, index)
    data, model = _slice(fit, found.data, held)
    scores = (data - model) / (found.scale or 1.0)
    known = np.abs(scores[np.isfinite(scores)])
    threshold = found.threshold
    limit = 3 * threshold if math.isfinite(threshold) else known.max(initial=1.0)
    flagged = np.count_nonzero(known > threshold) / max(known.size, 1)
    ax = _axes(ax, (6, 3.8))
    image = _picture(ax, fit, scores, held, _diverging(threshold / limit), (-limit, limit))
    bar = ax.figure.colorbar(image, ax=ax, extend=_extend(scores, -limit, limit))
    bar.set_label("residual, robust sigmas")
    if math.isfinite(threshold):
        bar.set_ticks([s * threshold for s in range(-3, 4)])
        bar.ax.yaxis.set_major_formatter("{x:.1f}")
    ax.set_title(_where(fit, held, f"{flagged:.1%} flagged"), fontsize="medium")
    return ax


def slices(
    fit: Fit,
    X: Any,
    index: int | Sequence[int],
    mode: Mode | Sequence[Mode] = 0,
    *,
    axes: Any = None,
) -> np.ndarray:
    """Data, model and residual of one slice, side by side.

    Data and model are on one scale, the residual is on its own. Scales leave out the largest
    hundredth of the data and of the residuals, so that outliers do not hide the rest; colour
    bars then end in an arrow. Missing entries are grey and hatched. Only the slice is computed.

    Parameters
    ----------
    fit : Fit
    X : array or Observed
        The data, or other data of the same shape.
    index, mode : int, or one for each mode that is held
        `mode` is held at `index`. Two modes must remain, which are drawn as images, or one,
        drawn as lines: of a tensor of order 4, ``slices(fit, X, (3, 7), mode=(0, 1))`` draws
        X[3, 7, :, :]; of a matrix, ``slices(fit, X, (), mode=())`` draws all.
    axes : array of three matplotlib Axes, optional

    Returns
    -------
    array of three matplotlib Axes

    Examples
    --------
    >>> import matplotlib, robustcp
    >>> matplotlib.use("Agg")
    >>> X = robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=0, rng=0).data
    >>> data, model, residual = slices(robustcp.cp(X, 2), X, 3)
    >>> data.get_title()
    'data, mode 0 [3]'
    """
    held = _held(fit, mode, index)
    data, model = _slice(fit, X, held)
    residual = data - model
    low, high = _span(data, model)
    most = _largest(residual)
    panels = _grid("axes", axes, (3,), (10.5, 3.2))
    if data.ndim == 1:
        _lines(panels, fit, (data, model, residual), held, ((low, high), (-most, most)))
    else:
        for ax, values in zip(panels[:2], (data, model), strict=True):
            image = _picture(ax, fit, values, held, "cividis", (low, high))
            ax.figure.colorbar(image, ax=ax, extend=_extend(values, low, high))
        image = _picture(panels[2], fit, residual, held, _diverging(), (-most, most))
        extend = _extend(residual, -most, most)
        panels[2].figure.colorbar(image, ax=panels[2], extend=extend)
    for ax, name in zip(panels, ("data", "model", "residual"), strict=True):
        ax.set_title(_where(fit, held, name, first=True), fontsize="medium")
    return panels


# Arguments


def _mode_number(fit: Fit, name: str, mode: Any) -> int:
    if isinstance(mode, str) and mode in fit.modes:
        return fit.modes.index(mode)
    if isinstance(mode, str):
        raise ValueError(f"{name}: must be one of {', '.join(fit.modes)}, got {mode!r}")
    return _checks.whole_number(name, mode, 0, most=len(fit.shape) - 1)


def _by_mode(fit: Fit, name: str, given: Any) -> dict[int, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{name}: must be a mapping from modes, got {given!r}")
    return {_mode_number(fit, name, mode): value for mode, value in given.items()}


def _image_shapes(fit: Fit, shapes: Any) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for n, shape in _by_mode(fit, "shapes", shapes).items():
        pair = tuple(shape) if isinstance(shape, Sequence) else ()
        if len(pair) != 2:
            raise ValueError(f"shapes: must be (height, width) for {fit.modes[n]}, got {shape!r}")
        height, width = (_checks.whole_number("shapes", size, 1) for size in pair)
        if height * width != fit.shape[n]:
            raise ValueError(
                f"shapes: {height} x {width} is not the size of {fit.modes[n]}, {fit.shape[n]}"
            )
        found[n] = height, width
    return found


def _kinds(fit: Fit, kinds: Any, sizes: Mapping[int, tuple[int, int]]) -> list[str]:
    """How each mode is drawn."""
    given = _by_mode(fit, "kinds", kinds)
    drawn = []
    for n, labels in enumerate(fit.labels):
        bars = fit.shape[n] <= FEW if labels is None else not _ordered(labels)
        usual = "image" if n in sizes else "bar" if bars else "line"
        drawn.append(_checks.choice("kinds", given.get(n, usual), KINDS))
        if drawn[n] == "image" and n not in sizes:
            raise ValueError(f"shapes: needs the (height, width) of {fit.modes[n]}, an image")
    return drawn


def _held(fit: Fit, mode: Any, index: Any) -> dict[int, int]:
    """The modes that are held, and where; one or two others must remain."""
    modes = list(mode) if isinstance(mode, tuple | list) else [mode]
    places = list(index) if isinstance(index, tuple | list) else [index]
    numbers = [_mode_number(fit, "mode", m) for m in modes]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"mode: the same one twice in {mode!r}")
    order = len(fit.shape)
    if order - len(numbers) not in (1, 2):
        raise ValueError(
            f"mode: must hold {order - 2} or {order - 1} of the {order} modes, so that two or one "
            f"remain to be drawn, got {mode!r}"
        )
    if len(places) != len(numbers):
        raise ValueError(f"index: must be one for each mode that is held, got {index!r}")
    return {
        n: _checks.whole_number("index", at, 0, most=fit.shape[n] - 1)
        for n, at in zip(numbers, places, strict=True)
    }


def _axes(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=figsize, layout="constrained")[1] if ax is None else ax


def _grid(name: str, axes: Any, shape: tuple[int, ...], figsize: tuple[float, float]) -> np.ndarray:
    import matplotlib.pyplot as plt

    if axes is None:
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        made = plt.subplots(rows, columns, figsize=figsize, squeeze=False, layout="constrained")
        return np.reshape(np.asarray(made[1]), shape)
    grid = np.asarray(axes, dtype=object)
    if grid.size != math.prod(shape):
        raise ValueError(f"{name}: must be an array of {shape} Axes, got shape {grid.shape}")
    return np.reshape(grid, shape)


# One slice


def _slice(fit: Fit, X: Any, held: Mapping[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The data and the model where some modes are held; missing entries are NaN."""
    data = X if hasattr(X, "ndim") else as_array(X)
    if tuple(data.shape) != fit.shape:
        raise ValueError(f"X: has shape {tuple(data.shape)}, the model has shape {fit.shape}")
    coefficients = np.asarray(to_host(fit.weights), dtype=np.float64)
    rest = []
    for n, A in enumerate(fit.factors):
        B = np.asarray(to_host(A), dtype=np.float64)
        if n in held:
            coefficients = coefficients * B[held[n]]
        else:
            rest.append(B)
    model = (rest[0] * coefficients) @ (rest[1].T if len(rest) == 2 else np.ones(fit.rank))
    if isinstance(data, Observed):
        return _observed_slice(data, held, model.shape), model
    part = data[tuple(held.get(n, slice(None)) for n in range(len(fit.shape)))]
    return np.asarray(to_host(as_array(part)), dtype=np.float64), model


def _observed_slice(X: Observed, held: Mapping[int, int], shape: tuple[int, ...]) -> np.ndarray:
    here = np.ones(len(X.values), dtype=bool)
    for n, at in held.items():
        here &= X.indices[:, n] == at
    part = np.full(shape, np.nan)
    free = [n for n in range(X.ndim) if n not in held]
    part[tuple(X.indices[here][:, free].T)] = X.values[here]
    return part


def _where(fit: Fit, held: Mapping[int, int], name: str, *, first: bool = False) -> str:
    """A title: what is drawn, and the name and label of each mode that is held."""
    places = []
    for n, at in held.items():
        labels = fit.labels[n]
        place = f"[{at}]" if labels is None else _text(labels[at])
        places.append(f"{fit.modes[n]} {place}")
    return ", ".join([name, *places] if first else [*places, name])


def _known(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.isfinite(values)])


def _span(data: np.ndarray, model: np.ndarray) -> tuple[float, float]:
    """A scale for all of the model and all but the outer hundredths of the data."""
    both = model.ravel()
    if _known(data).size:
        both = np.concatenate([both, np.quantile(_known(data), [0.01, 0.99])])
    low, high = float(both.min()), float(both.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _largest(residual: np.ndarray) -> float:
    """The end of a symmetric scale for all but the largest hundredth."""
    known = np.abs(_known(residual))
    return (float(np.quantile(known, 0.99)) or float(known.max()) or 1.0) if known.size else 1.0


def _extend(values: np.ndarray, low: float, high: float) -> str:
    """At which ends a colour bar needs an arrow."""
    known = _known(values)
    below, above = bool((known < low).any()), bool((known > high).any())
    return "both" if below and above else "min" if below else "max" if above else "neither"


# Drawing


def _column(
    ax: Axes, column: np.ndarray, kind: str, labels: list[Any] | None, A: np.ndarray
) -> None:
    """One column of a factor A as a line or bars, on the scale of all columns."""
    if kind == "line":
        _curve(ax, column, labels)
    else:
        ax.bar(np.arange(column.size), column, width=0.8, color=STYLES[1][0])
        _index_ticks(ax.xaxis, labels, column.size)
    low, high = min(0.0, float(A.min())), max(0.0, float(A.max()))
    margin = 0.06 * ((high - low) or 1.0)
    ax.set_ylim(low - margin * (low < 0), high + margin)
    ax.axhline(0, color="0.4", linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)


def _curve(ax: Axes, values: np.ndarray, labels: list[Any] | None) -> None:
    """A line over the labels, if these have an order, or else over the indices."""
    colour, line, marker = STYLES[1]
    style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.3}
    if values.size <= 3 * FEW:
        style |= {"marker": marker, "markersize": 3.5}
    if labels is not None and _ordered(labels):
        turn = sorted(range(values.size), key=lambda k: labels[k])
        ax.plot([labels[k] for k in turn], values[turn], **style)
    else:
        ax.plot(np.arange(values.size), values, **style)
        _index_ticks(ax.xaxis, labels, values.size)


def _pixels(ax: Axes, pixels: np.ndarray, A: np.ndarray) -> None:
    """One column of a factor A as an image, on the scale of all columns."""
    most = float(np.abs(A).max()) or 1.0
    signed = bool((A < 0).any())
    image = ax.imshow(
        pixels, cmap=_diverging() if signed else "cividis", vmin=-most if signed else 0.0,
        vmax=most, interpolation="nearest",
    )  # fmt: skip
    ax.figure.colorbar(image, ax=ax)
    ax.set_xticks([])
    ax.set_yticks([])


def _lines(
    panels: np.ndarray,
    fit: Fit,
    values: Sequence[np.ndarray],
    held: Mapping[int, int],
    limits: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    (n,) = (n for n in range(len(fit.shape)) if n not in held)
    for ax, line, (low, high) in zip(panels, values, (limits[0], *limits), strict=True):
        _curve(ax, line, fit.labels[n])
        margin = 0.05 * (high - low)
        ax.set_ylim(low - margin, high + margin)
        ax.set_xlabel(fit.modes[n])
        ax.spines[["top", "right"]].set_visible(False)
    panels[2].axhline(0, color="0.4", linewidth=0.7)


def _picture(
    ax: Axes,
    fit: Fit,
    values: np.ndarray,
    held: Mapping[int, int],
    cmap: Colormap | str,
    limits: tuple[float, float],
) -> AxesImage:
    """A slice as an image with the names and labels of its modes; a fibre as one row."""
    *upright, across = (n for n in range(len(fit.shape)) if n not in held)
    labels = fit.labels[upright[0]] if upright else None
    image = ax.imshow(
        np.atleast_2d(values), cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto",
        interpolation="nearest",
        origin="lower" if labels is not None and _ordered(labels) else "upper",
    )  # fmt: skip
    ax.patch.set(facecolor="0.8", edgecolor="0.55", hatch="////")  # seen where NaN
    _index_ticks(ax.xaxis, fit.labels[across], fit.shape[across])
    ax.set_xlabel(fit.modes[across])
    if upright:
        _index_ticks(ax.yaxis, labels, fit.shape[upright[0]])
        ax.set_ylabel(fit.modes[upright[0]])
    else:
        ax.set_yticks([])
    return image


def _diverging(pale: float = 0.0) -> Colormap:
    """Blue, white, orange; the blue is darker, so that signs are apart in grey as well.

    `pale` is the share of each half that stays near white, with a step in colour at its end.
    """
    from matplotlib.colors import LinearSegmentedColormap

    if pale == 0:
        stops = [(0.0, "#08306b"), (0.25, "#4f87bd"), (0.5, "#ffffff"), (0.8, "#f5a55a"),
                 (1.0, "#d55e00")]  # fmt: skip
    elif pale >= 1:
        stops = [(0.0, "#dde8f2"), (0.5, "#ffffff"), (1.0, "#f9e9dc")]
    else:
        low, high = 0.5 - pale / 2, 0.5 + pale / 2
        stops = [(0.0, "#08306b"), (low, "#2f6fae"), (low, "#dde8f2"), (0.5, "#ffffff"),
                 (high, "#f9e9dc"), (high, "#f5a55a"), (1.0, "#d55e00")]  # fmt: skip
    return LinearSegmentedColormap.from_list("blue_orange", stops, N=1024).with_extremes(bad="none")


# Labels


def _ordered(labels: Sequence[Any]) -> bool:
    """Whether labels are numbers or dates."""
    dates = all(isinstance(label, date) for label in labels)
    numbers = all(isinstance(label, int | float) for label in labels)
    flags = any(isinstance(label, bool) for label in labels)
    return dates or (numbers and not flags and all(map(math.isfinite, labels)))


def _text(label: Any) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def _index_ticks(axis: Axis, labels: list[Any] | None, size: int) -> None:
    """Ticks at whole indices, with their labels: all of few names, else some."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    def text(x: float, _: Any = None) -> str:
        k = round(x)
        if not 0 <= k < size or abs(x - k) > 1e-6:
            return ""
        return str(k) if labels is None else _text(labels[k])

    named = labels is not None and not _ordered(labels)
    if named and size <= FEW:
        axis.set_major_locator(FixedLocator(range(size)))
        if axis is axis.axes.xaxis and sum(len(text(k)) for k in range(size)) > 24:
            for tick in axis.get_ticklabels():
                tick.set(rotation=30, ha="right", rotation_mode="anchor")
    else:
        axis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(text))


def _plain_log_ticks(axis: Axis) -> None:
    """Numbers such as 1, 2, 5, 10 on a logarithmic axis, also on one of less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())
