"""Preprocessing: centring across modes, scaling within modes, logarithms and roots.

Estimators take a list of steps as `preprocess`, and apply them in its order. Locations and sizes
are robust unless something else is asked for. See the guide on preprocessing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from robustcp._util.checks import ArgumentError
from robustcp.engines import (
    Anscombe,
    Axes,
    Center,
    Engine,
    EntryField,
    Log,
    Preprocessing,
    PreprocessingStep,
    Scale,
    Scales,
    Sqrt,
)
from robustcp.results.diagnostics import FitWarning

__all__ = ["Anscombe", "Center", "Log", "LogRatio", "Scale", "Sqrt"]

_ARGUMENT_NAME = "preprocess"
#: Steps that disturb each other are repeated until no centre moves by more than this share of the
#: data's size, and no size by more than this share of itself.
REPEAT_TOL = 1e-10
#: How often they are repeated at most.
MAX_REPEATS = 100
#: The constants of the tau scale (Yohai & Zamar 1988) with Tukey's biweight: where the function
#: of its M-scale (breakdown point 50%) and that of its mean (efficiency 95%) become constant. The
#: usual 6.08 for the latter makes regression 95% efficient; for a scale it only adds bias.
TAU_SCALE_LIMIT, TAU_MEAN_LIMIT = 1.54764, 4.0
#: The expectations of these functions for normal values.
TAU_SCALE_MEAN, TAU_MEAN_MEAN = 0.5, 0.1560052
#: The M-scale is computed to this relative accuracy, in at most so many passes.
SCALE_TOL, MAX_SCALE_PASSES = 1e-9, 100
#: Rounding errors in multiples of the machine epsilon.
ROUNDING = 16.0
#: Slabs of variables have different units if their sizes differ by more than this.
MAX_SIZE_RATIO = 100.0
#: A mode without names and labels may be of variables if it is no longer.
MAX_VARIABLES = 12
#: What a mode of variables is called, in lower case, perhaps with an s.
VARIABLE_NAMES = {
    "variable", "feature", "measure", "measurement", "quantity", "indicator", "sensor", "channel",
    "item", "attribute",
}  # fmt: skip
#: A slab of which the sample has fewer entries begins at the size of all entries.
MIN_SAMPLED_ENTRIES = 5


def LogRatio(mode: int | str, *, floor: float | None = None) -> tuple[PreprocessingStep, ...]:
    """The steps of the centred log-ratio transformation (clr) of compositions.

    The logarithm of each entry minus the mean logarithm over the parts that share the indices of
    the other modes: of x over the geometric mean. It does not depend on totals, such as sequencing
    depth. The mean is over the parts that are observed.

    Parameters
    ----------
    mode : int or str
        The mode of the parts, such as taxa, by number or name.
    floor : float, optional
        Smaller entries count as this, such as 0.5 for counts. Without one, zeros count as missing
        (the robust clr of microbiome studies).

    Examples
    --------
    >>> import robustcp
    >>> from robustcp.preprocess import LogRatio
    >>> X = robustcp.simulate((12, 8, 6), 1, eta=0, gamma=0, rng=0).data ** 2 + 0.1
    >>> fit = robustcp.cp(X, 1, preprocess=[*LogRatio(1)])
    >>> fit.preprocessing.describe()
    'log(x), centred across mode 1 (mean)'
    """
    return Log(floor=floor), Center(mode, location="mean")


def parse_steps(given: Any, engine: Engine) -> tuple[PreprocessingStep, ...]:
    """The steps of the argument of an estimator, with modes by number."""
    if given is None:
        return ()
    items = (given,) if isinstance(given, PreprocessingStep) else given
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise ArgumentError(_ARGUMENT_NAME, f"must be a list of steps, got {given!r}")
    steps: list[PreprocessingStep] = []
    for item in items:  # `LogRatio` is several
        steps += item if isinstance(item, tuple) else [item]
    for k, step in enumerate(steps):
        if not isinstance(step, PreprocessingStep):
            raise ArgumentError(
                _ARGUMENT_NAME, f"must be steps, such as Center('sample'), got {step!r}"
            )
        if isinstance(step, Center | Scale):
            mode = engine.view.axes.mode_number(_ARGUMENT_NAME, step.mode, engine.order)
            steps[k] = replace(step, mode=mode)
        elif any(isinstance(earlier, Center) for earlier in steps[:k]):
            raise ArgumentError(_ARGUMENT_NAME, f"{step!r} must come before any centring")
    for run in _runs_of_steps(steps):
        scalings = [step for step in steps[run.start : run.stop] if isinstance(step, Scale)]
        if len(run) > 1 and any(step.size == "sd" for step in scalings):
            raise ArgumentError(
                _ARGUMENT_NAME, "several modes cannot be scaled to standard deviations; use 'rms'"
            )
    return tuple(steps)


def fit_preprocessing(
    given: Any, engine: Engine
) -> tuple[Preprocessing | None, Engine, tuple[str, ...]]:
    """The preprocessing that an estimator's argument asks for, estimated from some data.

    Returns
    -------
    Preprocessing, Engine, tuple of str
        None without steps; the data after it; notes on what is missing then.
    """
    steps = parse_steps(given, engine)
    if not steps:
        return None, engine, ()
    empty = Preprocessing(engine.shape, steps, (None,) * len(steps))
    fitted, notes = complete(empty, engine)
    preprocessed = engine.preprocessed(fitted)
    if not fitted.affine:
        lost = round(engine.count - preprocessed.count)
        if lost:
            words = fitted.describe(engine.view.axes.modes)
            notes = (*notes, f"{lost} entries have no value after {words} and count as missing")
    return fitted, preprocessed, notes


def complete(preprocessing: Preprocessing, engine: Engine) -> tuple[Preprocessing, tuple[str, ...]]:
    """Preprocessing with centres and sizes in place of those that are None, and notes.

    They are estimated in the order of the steps. Several centrings in a row disturb each other, and
    so do several scalings: they are repeated until none changes anything.
    """
    notes: list[str] = []
    for run in _runs_of_steps(preprocessing.steps):
        unknown = [
            k
            for k in run
            if isinstance(preprocessing.steps[k], Center | Scale)
            and preprocessing.values[k] is None
        ]
        if not unknown:
            continue
        before = engine.preprocessed(_take(preprocessing, range(run.start)))
        values = list(preprocessing.values)
        for _ in range(MAX_REPEATS):
            change = 0.0
            for k in unknown:
                known = [m for m in run if values[m] is not None]
                current = before.preprocessed(
                    _take(replace(preprocessing, values=tuple(values)), known)
                )
                value, own_change = _update(preprocessing.steps[k], values[k], current)
                if isinstance(preprocessing.steps[k], Scale):
                    rounding = _rounding_of_centring(preprocessing, k, engine.machine_epsilon)
                    value = np.where(value > rounding, value, 1.0)
                values[k] = value
                change = max(change, own_change)
            if len(unknown) == 1 or change <= REPEAT_TOL:
                break
        else:
            words = ", ".join(preprocessing.steps[k].describe(_names(engine)) for k in unknown)
            notes.append(f"{words}: still change by {change:.1g} after {MAX_REPEATS} repetitions")
        preprocessing = replace(preprocessing, values=tuple(values))
    return preprocessing, tuple(notes)


def _names(engine: Engine) -> Sequence[str]:
    return engine.view.axes.modes or [f"mode {n}" for n in range(engine.order)]


def _runs_of_steps(steps: Sequence[PreprocessingStep]) -> Iterator[range]:
    """The numbers of consecutive steps of the same kind."""
    first = 0
    for _, group in groupby(steps, key=type):
        size = len(list(group))
        yield range(first, first + size)
        first += size


def _rounding_of_centring(preprocessing: Preprocessing, number: int, epsilon: float) -> np.ndarray:
    """The size of rounding errors that centring leaves in each slab that a step scales.

    A variable that is constant has no other size.
    """
    mode = int(preprocessing.steps[number].mode)  # type: ignore[attr-defined]
    shape = [size if n == mode else 1 for n, size in enumerate(preprocessing.shape)]
    errors, others = np.zeros(shape), tuple(n for n in range(len(shape)) if n != mode)
    for step, value in zip(preprocessing.steps[:number], preprocessing.values, strict=False):
        if isinstance(step, Center) and value is not None:
            largest = np.abs(value).max(axis=others, keepdims=True)
            errors = np.maximum(errors, ROUNDING * epsilon * largest)
    return errors


def _take(preprocessing: Preprocessing, numbers: Sequence[int]) -> Preprocessing:
    """Some of the steps."""
    return replace(
        preprocessing,
        steps=tuple(preprocessing.steps[k] for k in numbers),
        values=tuple(preprocessing.values[k] for k in numbers),
    )


def _update(
    step: PreprocessingStep, value: np.ndarray | None, engine: Engine
) -> tuple[np.ndarray, float]:
    """Centres or sizes after one more estimate from what the steps so far leave of the data.

    Also by how much they changed.
    """
    mode = int(step.mode)  # type: ignore[attr-defined]
    if isinstance(step, Center):
        locations = engine.fibre_locations(mode, step.location)
        locations = np.where(np.isnan(locations), 0.0, locations)
        size = engine.max_abs or 1.0
        total = locations if value is None else value + locations
        return total, float(np.abs(locations).max() / size)
    assert isinstance(step, Scale)
    sizes = slab_sizes(engine, mode, step.size)
    shape = [-1 if n == mode else 1 for n in range(engine.order)]
    total = sizes.reshape(shape) * (1.0 if value is None else value)
    # Robust sizes of the slabs of two modes cannot all be 1: that leaves a common factor.
    return total, float(np.ptp(np.log(sizes)))


def slab_sizes(engine: Engine, mode: int, kind: str) -> np.ndarray:
    """The size of each slab of a mode, by a kind of `Scale`; 1 for slabs of zeros, on the host."""
    engine = engine.censored(None)
    sizes = {"tau": _tau_scales, "rms": _root_mean_squares, "sd": _standard_deviations}
    found = sizes[kind](engine, mode)
    return np.where((found > 0) & np.isfinite(found), found, 1.0)


def _root_mean_squares(engine: Engine, mode: int) -> np.ndarray:
    unit = engine.max_abs or 1.0
    return np.asarray(unit * np.sqrt(_slab_means(engine, mode, lambda x: (x / unit) ** 2)))


def _standard_deviations(engine: Engine, mode: int) -> np.ndarray:
    means = _slab_means(engine, mode, lambda x: x)
    shape = [-1 if n == mode else 1 for n in range(engine.order)]
    values = (np.where(np.isnan(means), 0.0, means).reshape(shape),)
    centred = engine.preprocessed(Preprocessing(engine.shape, (Center(mode),), values))
    counts = engine.slab_counts(mode)
    correction = np.sqrt(counts / np.maximum(counts - 1, 1))
    deviations, rms = (_root_mean_squares(data, mode) for data in (centred, engine))
    rounding = ROUNDING * engine.machine_epsilon * rms
    return np.asarray(np.where(deviations > rounding, deviations, 0.0) * correction)


def _slab_means(engine: Engine, mode: int, work: Any) -> np.ndarray:
    """The mean of a function of the observed entries of each slab; NaN for empty ones."""
    xp = engine.xp

    def observed(x: Any) -> Any:
        x = xp.astype(x, xp.float64)
        return xp.where(xp.isnan(x), xp.zeros_like(x), work(x))

    counts = engine.slab_counts(mode)
    means = engine.slab_sums(observed)[mode] / np.maximum(counts, 1)
    return np.where(counts > 0, means, np.nan)


def _tau_scales(engine: Engine, mode: int) -> np.ndarray:
    """The tau scale about 0 of the entries of each slab that are not 0.

    Its square is s^2 mean rho_2(x / s) / E rho_2, with s the M-scale: mean rho_1(x / s) = 1/2. In
    u = log s that is the root of f(u) = log(2 mean rho_1(x / s)) / 2, whose slope is between -1
    (all entries are small beside s) and 0.
    """
    xp = engine.xp
    counts = engine.slab_sums(lambda x: (x != 0) & ~xp.isnan(x))[mode]
    used = np.maximum(counts, 1)

    def mean_rho(scales: np.ndarray, limit: float) -> np.ndarray:
        field = EntryField.from_vector(engine.shape, mode, limit * scales)
        zeros = tuple(engine.asarray(np.zeros((size, 1))) for size in engine.shape)

        def rho(x: Any) -> Any:
            t = xp.clip(xp.abs(xp.astype(x, xp.float64)), 0.0, 1.0)
            value = 1 - (1 - t * t) ** 3
            return xp.where(xp.isnan(x), xp.zeros_like(value), value)

        return np.asarray(engine.standardized(Scales(field)).slab_sums(rho, zeros)[mode] / used)

    u, slope = np.log(_initial_sizes(engine, mode)), np.full(engine.shape[mode], -1.0)
    f = step = np.zeros_like(u)
    tiny = np.finfo(float).tiny
    for number in range(MAX_SCALE_PASSES):
        previous, ratio = f, mean_rho(np.exp(u), TAU_SCALE_LIMIT) / TAU_SCALE_MEAN
        f = np.where(counts > 0, 0.5 * np.log(np.maximum(ratio, tiny)), 0.0)
        if number:
            with np.errstate(all="ignore"):
                secant = (f - previous) / step
            slope = np.where(np.isfinite(secant), np.clip(secant, -1.0, -0.1), slope)
        step = -f / slope
        u = u + step
        if np.abs(step).max() <= SCALE_TOL:
            break
    scales = np.exp(u)
    squares = mean_rho(scales, TAU_MEAN_LIMIT) / TAU_MEAN_MEAN
    return np.where(counts > 0, scales * np.sqrt(squares), 0.0)


def _initial_sizes(engine: Engine, mode: int) -> np.ndarray:
    """The typical sizes of the slabs; of those of which the sample has little, that of all data."""
    medians, typical = _sampled_sizes(engine, mode)
    return np.where(np.isnan(medians), typical, medians)


def _sampled_sizes(engine: Engine, mode: int) -> tuple[np.ndarray, float]:
    """The median magnitude of the entries of each slab that a sample has, zeros left out.

    NaN where the sample has few entries; and the median of all.
    """
    sample = engine.sample()
    sample = sample.select(sample.values != 0)
    if not sample.values.size:
        return np.full(engine.shape[mode], np.nan), engine.max_abs or 1.0
    index, magnitudes = sample.indices[mode], np.abs(sample.values)
    order = np.lexsort((magnitudes, index))
    counts = np.bincount(index, minlength=engine.shape[mode])
    first = np.cumsum(counts) - counts
    medians = magnitudes[order][np.minimum(first + counts // 2, order.size - 1)]
    medians = np.where(counts >= MIN_SAMPLED_ENTRIES, medians, np.nan)
    return medians, float(np.median(magnitudes))


def unit_warnings(engine: Engine) -> list[FitWarning]:
    """A warning if the slabs of a mode that may be of variables differ much in size."""
    axes, warnings = engine.view.axes, []
    for mode in range(engine.order):
        if not may_be_variables(axes, mode, engine.shape[mode]):
            continue
        sizes, _ = _sampled_sizes(engine, mode)
        if np.isnan(sizes).all():
            continue
        low, high = int(np.nanargmin(sizes)), int(np.nanargmax(sizes))
        ratio = float(sizes[high] / sizes[low])
        if ratio < MAX_SIZE_RATIO:
            continue
        name = axes.mode_name(mode)
        labels = axes.labels[mode] if axes.labels else None
        largest, smallest = (k if labels is None else labels[k] for k in (high, low))
        given = repr(axes.modes[mode]) if axes.modes else mode
        sentence = (
            f"slabs of {name} differ {ratio:.2g}-fold in size ({largest} is largest, {smallest} "
            f"smallest), so that the fit is of the largest: if their units differ, "
            f"preprocess=[Scale({given})]"
        )
        warnings.append(FitWarning("units", sentence, {"mode": mode, "ratio": ratio}))
    return warnings


def may_be_variables(axes: Axes, mode: int, size: int) -> bool:
    """Whether a mode is called one of variables, or is short and not an axis of numbers."""
    name = str(axes.modes[mode]).lower() if axes.has_names else ""
    if name in VARIABLE_NAMES or name.removesuffix("s") in VARIABLE_NAMES:
        return True
    labels = axes.labels[mode] if axes.labels else None
    return size <= MAX_VARIABLES and (labels is None or all(isinstance(k, str) for k in labels))
