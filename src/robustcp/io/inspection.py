"""What there is to know of a tensor before it is fitted, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from robustcp.engines import Axes, Engine, Entries, Fibres, LabelledTensor, as_engine
from robustcp.engines.axes import Labels, format_labels, label_key
from robustcp.noise.censoring import find_ceilings
from robustcp.noise.constant_fibres import find_constant_fibres
from robustcp.noise.resolution import Magnitudes, Resolution
from robustcp.optimize.problem import GrossOutliers
from robustcp.preprocess import MAX_SIZE_RATIO, may_be_variables

#: Values of more entries are looked at in a sample.
MAX_LISTED_ENTRIES = 1 << 24
#: Zeros are mentioned from this share on.
MIN_ZERO_SHARE = 1e-3
#: A fill value is the smallest or largest of all, is repeated so often, and is as far from the
#: others as this share of their range.
MIN_FILL_COUNT, MIN_FILL_GAP = 5, 0.5
#: Values are far from the others of their variable from so many interquartile ranges on, if they
#: are no larger share of these; slabs with fewer entries are not looked at.
FAR_RANGES, MAX_FAR_SHARE, MIN_SLAB_ENTRIES = 15.0, 0.1, 20


@dataclass(frozen=True)
class Finding:
    """Something about a tensor.

    Attributes
    ----------
    topic : str
        What it is about, such as "zeros".
    text : str
    suggestion : str
        What to do, with options of the command line; "" if there is nothing to be done.
    """

    topic: str
    text: str
    suggestion: str = ""


@dataclass(frozen=True)
class Inspection:
    """What was found out about a tensor.

    Attributes
    ----------
    modes : list of dict
        For each mode its `name`, `size`, and the first and last of its `labels`, if it has any.
    dtype : str
    count : int
        The number of observed entries.
    sampled : bool
        Whether values were looked at in a sample.
    findings : list of Finding

    Examples
    --------
    >>> X = np.arange(1.0, 61.0).reshape(3, 4, 5)
    >>> X[0, :2] = -999
    >>> tensor = LabelledTensor(X, ("sample", "nm", "day"), (None, None, None))
    >>> [finding.suggestion for finding in inspect(tensor).findings if finding.topic == "fill"]
    ['--missing -999']
    """

    modes: list[dict[str, Any]]
    dtype: str
    count: int
    sampled: bool
    findings: list[Finding]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(mode["size"] for mode in self.modes)

    def as_dict(self) -> dict[str, Any]:
        return {"shape": list(self.shape)} | asdict(self)

    def lines(self) -> list[str]:
        """Text for people."""
        entries = math.prod(self.shape)
        lines = [f"{'x'.join(map(str, self.shape))}, {self.dtype}, {entries} entries"]
        width = max(len(mode["name"]) for mode in self.modes)
        for mode in self.modes:
            first, last = mode["labels"] or (None, None)
            labels = "no labels" if mode["labels"] is None else f"{first} to {last}"
            lines.append(f"  {mode['name']:<{width}}  {mode['size']:>6}  {labels}")
        if self.sampled:
            lines.append("values are those of a sample")
        for finding in self.findings:
            lines.append(f"{finding.topic}: {finding.text}")
            lines += [f"  {finding.suggestion}"] if finding.suggestion else []
        return lines


def inspect(tensor: LabelledTensor) -> Inspection:
    """Find out what there is to know of a tensor before it is fitted."""
    engine = as_engine(tensor)
    listed = engine.entries_fit_in_memory and engine.count <= MAX_LISTED_ENTRIES
    entries = engine.entries() if listed else engine.sample()
    axes = tensor.axes
    modes = [
        {"name": name, "size": size, "labels": _ends(labels)}
        for name, size, labels in zip(axes.modes, engine.shape, axes.labels, strict=True)
    ]
    findings = [
        *_notes(tensor, axes),
        *_missing(engine, axes),
        *_zeros(entries),
        *_values(entries),
        *_fill_values(entries),
        *_sizes(entries, axes),
        *_far_values(entries, axes),
        *_constant_fibres(engine, axes),
        *_gross_outliers(engine),
        *_ceilings(engine),
        *_counts(engine),
    ]
    dtype = str(getattr(tensor.data, "dtype", entries.values.dtype))
    return Inspection(modes, dtype, int(engine.count), not listed, findings)


def _ends(labels: Labels) -> list[str] | None:
    return None if labels is None else [str(label_key(labels[k])) for k in (0, -1)]


def _notes(tensor: LabelledTensor, axes: Axes) -> Iterator[Finding]:
    if not axes.has_names:
        names = ",".join(["sample", "variable", "time", *"abcdef"][: len(axes.modes)])
        yield Finding("names", "the modes have none", f"name them: --modes {names}")
    yield from (Finding("note", note) for note in tensor.notes)


def _share(count: float, total: float) -> str:
    share = count / total
    return f"{count:.0f} ({share:.2g})" if share < 1e-4 else f"{count:.0f} ({share:.2%})"


def _missing(engine: Engine, axes: Axes) -> Iterator[Finding]:
    total = math.prod(engine.shape)
    if engine.count == total:
        yield Finding("missing", "none")
        return
    yield Finding("missing", f"{_share(total - engine.count, total)} of the entries")
    for mode in range(engine.order):
        empty = np.flatnonzero(engine.slab_counts(mode) == 0)
        if empty.size:
            labels = [_label(axes, mode, int(k)) for k in empty]
            yield Finding(
                "empty",
                f"{empty.size} of {axes.mode_name(mode)} have no observed entry "
                f"({format_labels(labels)})",
                "nothing can be said of them; --select takes the others",
            )


def _label(axes: Axes, mode: int, k: int) -> Any:
    labels = axes.labels[mode]
    return int(k) if labels is None else labels[k]


def _zeros(entries: Entries) -> Iterator[Finding]:
    zeros = int(np.count_nonzero(entries.values == 0))
    if zeros >= max(1, MIN_ZERO_SHARE * entries.values.size):
        share = _share(zeros, entries.values.size)
        yield Finding(
            "zeros", f"{share} of the observed entries", "if they stand for missing: --missing 0"
        )


def _values(entries: Entries) -> Iterator[Finding]:
    x = entries.values
    low, median, high = np.min(x), np.median(x), np.max(x)
    text = f"from {low:.6g} to {high:.6g}, median {median:.6g}"
    negative = int(np.count_nonzero(x < 0))
    if negative:
        yield Finding("values", f"{text}; negative: {_share(negative, x.size)}")
    else:
        yield Finding("values", f"{text}; none negative", "--nonnegative, if components add up")


def _fill_values(entries: Entries) -> Iterator[Finding]:
    """The smallest and the largest value, where they are repeated and far from all others."""
    levels, counts = np.unique(entries.values, return_counts=True)
    for level, rest, count in (
        (levels[0], levels[1:], counts[0]),
        (levels[-1], levels[:-1], counts[-1]),
    ):
        if rest.size < 2 or count < MIN_FILL_COUNT or level == 0:
            continue
        gap = np.min(np.abs(rest - level))
        if gap >= MIN_FILL_GAP * (rest[-1] - rest[0]):
            yield Finding(
                "fill",
                f"{count} entries are {level:g}, far from all others",
                f"--missing {level:g}",
            )


def _variables(entries: Entries, axes: Axes) -> Iterator[tuple[int, list[np.ndarray]]]:
    """The modes that may be of variables, and the values of each of their slabs."""
    for mode, size in enumerate(entries.shape):
        if may_be_variables(axes, mode, size):
            index = entries.indices[mode]
            yield mode, [entries.values[index == k] for k in range(entries.shape[mode])]


def _sizes(entries: Entries, axes: Axes) -> Iterator[Finding]:
    """Modes that may be of variables, and whose slabs differ much in size."""
    for mode, slabs in _variables(entries, axes):
        magnitudes = [np.abs(x[x != 0]) for x in slabs]
        sizes = np.array([np.median(x) if x.size else np.nan for x in magnitudes])
        if np.isnan(sizes).all() or np.nanmax(sizes) < MAX_SIZE_RATIO * np.nanmin(sizes):
            continue
        high, low = int(np.nanargmax(sizes)), int(np.nanargmin(sizes))
        yield Finding(
            "units",
            f"slabs of {axes.mode_name(mode)} differ {sizes[high] / sizes[low]:.2g}-fold in size "
            f"({_label(axes, mode, high)}: {sizes[high]:.3g}, {_label(axes, mode, low)}: "
            f"{sizes[low]:.3g}); a fit is of the largest",
            f"if their units differ, --scale {axes.mode_name(mode).removeprefix('mode ')}",
        )


def _far_values(entries: Entries, axes: Axes) -> Iterator[Finding]:
    """Entries far outside of the other values of their variable."""
    for mode, slabs in _variables(entries, axes):
        for k, x in enumerate(slabs):
            if x.size < MIN_SLAB_ENTRIES:
                continue
            low, median, high = np.quantile(x, (0.25, 0.5, 0.75))
            far = x[np.abs(x - median) > FAR_RANGES * (high - low)] if high > low else x[:0]
            if far.size and far.size <= MAX_FAR_SHARE * x.size:
                worst = far[np.argmax(np.abs(far - median))]
                entry = "1 entry is" if far.size == 1 else f"{far.size} entries are"
                yield Finding(
                    "far values",
                    f"{axes.mode_name(mode)} {_label(axes, mode, k)}: {entry} far from the others, "
                    f"such as {worst:.6g} (half of them are from {low:.4g} to {high:.4g})",
                )


def _constant_fibres(engine: Engine, axes: Axes) -> Iterator[Finding]:
    fibres = find_constant_fibres(engine)
    if fibres is not None:
        yield Finding(
            "constant",
            f"{fibres.describe(axes)} never vary ({_first_fibre(fibres, axes)})",
            "cp leaves them out",
        )


def _first_fibre(fibres: Fibres, axes: Axes) -> str:
    """Where the first fibre is, in words."""
    mode, mask = fibres.along[0]
    index = np.argwhere(mask)[0]
    places = [f"{axes.mode_name(n)} {_label(axes, n, k)}" for n, k in enumerate(index) if n != mode]
    return "the first: " + ", ".join(places)


def _gross_outliers(engine: Engine) -> Iterator[Finding]:
    outliers = GrossOutliers.of(engine, Magnitudes.of(engine))
    if outliers is not None:
        count = "1 entry" if outliers.count == 1 else f"{outliers.count} entries"
        yield Finding(
            "gross outliers",
            f"{count} beyond {outliers.threshold:.3g}, far from all others",
            "cp and cpal1 leave them out",
        )


def _ceilings(engine: Engine) -> Iterator[Finding]:
    limits = find_ceilings(engine)
    if limits is None:
        return
    high = limits.arrays[1]
    assert high is not None
    count = engine.censored(limits).censored_count
    ceilings = f"a ceiling of {float(high.flat[0]):g}" if high.size == 1 else "ceilings of slabs"
    option = f":{float(high.flat[0]):g}" if high.size == 1 else "auto"
    yield Finding(
        "ceiling", f"{count} entries are at {ceilings}", f"cp finds it; others: --limits {option}"
    )


def _counts(engine: Engine) -> Iterator[Finding]:
    if Resolution.of(engine).count_data:
        yield Finding(
            "whole numbers",
            "none negative",
            "if they are counts, noise grows with the signal: --noise signal",
        )
