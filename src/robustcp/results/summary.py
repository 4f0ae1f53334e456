"""A fit in short: as text, as HTML, and for programs."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.text import label_text
from robustcp._util.version import __version__
from robustcp.constraints import Free
from robustcp.model.kruskal import component_name, host_factors
from robustcp.noise import Noise
from robustcp.results.outliers import Outliers

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: The slabs with the most flagged entries that are named, for each mode.
MAX_WORST_SLABS = 3
#: The most labels that a line lists.
MAX_LISTED_LABELS = 10


@dataclass(frozen=True, eq=False)
class Summary:
    """A fit in short: `str` for people, `as_dict` for programs, a table in notebooks.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((20, 20, 20), 2, eta=0.1, gamma=2.0, rng=0).data
    >>> summary = robustcp.cp(X, 2).summary(X)
    >>> print(str(summary).splitlines()[0])
    20x20x20, rank 2: converged
    >>> round(summary.as_dict()["outlier_share"], 1)
    0.1
    """

    content: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, fit: Fit, flagged: Outliers | None = None) -> Summary:
        """The summary of a fit, and of what it flags in some data if that is given."""
        return cls(_describe_fit(fit) | _describe_outliers(fit, flagged))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; see `to_json_values`."""
        return to_json_values(self.content)

    def __str__(self) -> str:
        return "\n".join(format_lines(self.content))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return format_html(self.content)


def to_json_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON knows: others, such as dates, become text; NaN and infinities None."""
    text = json.dumps(content, default=str)
    values: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return values


def _describe_fit(fit: Fit) -> dict[str, Any]:
    """The content of a summary that depends on the fit alone."""
    return {
        "shape": list(fit.shape),
        "modes": list(fit.modes),
        "rank": fit.rank,
        "loss": type(fit.loss).__name__,
        "constraints": {
            name: repr(constraint)
            for name, constraint in zip(fit.modes, fit.constraints, strict=True)
            if constraint != Free()
        },
        "status": fit.status,
        "warnings": [asdict(warning) for warning in fit.warnings],
        "ended": fit.result.sentence,
        "notes": list(fit.notes),
        "converged": fit.converged,
        "sweeps": fit.sweeps,
        "stages": [list(stage) for stage in fit.stages],
        "explained": fit.explained,
        "components": _describe_components(fit),
        "noise": describe_noise(fit.noise, fit, fit.noise.outlying_slabs()),
        "limits": None if fit.limits is None else fit.limits.describe(),
        "preprocessing": fit.preprocessing and fit.preprocessing.describe(fit.modes),
        "starts": list(fit.starts),
        "reached": fit.starts.reached,
        "cases": _describe_cases(fit),
        "version": __version__,
    }


def _describe_components(fit: Fit) -> list[dict[str, Any]]:
    """The weight and share of each component, and its largest entry in each mode."""
    weights, *factors = host_factors((fit.weights, *fit.factors))
    components = []
    for r, (weight, share) in enumerate(zip(weights, fit.shares, strict=True)):
        largest = []
        for mode, (name, A) in enumerate(zip(fit.modes, factors, strict=True)):
            k = int(np.argmax(np.abs(A[:, r])))
            label = None if (labels := fit.labels[mode]) is None else labels[k]
            largest.append({"mode": name, "index": k, "label": label})
        components.append({"weight": float(weight), "share": float(share), "largest": largest})
    return components


def _describe_cases(fit: Fit) -> dict[str, Any] | None:
    """The bad samples and the distances of all, for a fit with `cases`."""
    if (cases := fit.cases) is None:
        return None
    distances = [float(d) for d in cases.distances]
    return {
        "mode": fit.modes[cases.mode],
        "bad": [label_of(fit, cases.mode, int(k)) for k in cases.flagged.nonzero()[0]],
        "distances": [None if math.isnan(d) else d for d in distances],
    }


def _describe_outliers(fit: Fit, flagged: Outliers | None) -> dict[str, Any]:
    """The flagged entries of some data, and its noise if the fit did not estimate any."""
    if flagged is None:
        return {}
    aligned = flagged.fit  # in the order of the data
    noise = aligned.noise if fit.noise.kind_determined else flagged.in_data
    return {
        "noise": describe_noise(noise, aligned, flagged.outlying_slabs),
        "censored": flagged.engine.censored_count,
        "outlier_share": flagged.share,
        "worst": describe_worst_slabs(flagged, aligned, MAX_WORST_SLABS),
    }


def describe_noise(noise: Noise, fit: Fit, outlying: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """A noise in words and numbers: its variance is a + b |m| + c m^2 at the model's entry m."""
    kind, names, (a, b, c) = noise.kind, fit.modes, noise.variance
    slabs = {names[n]: noise.slabs[n] for n in kind.modes}
    return {
        "words": noise.words(names),
        "sigma": noise.sigma,
        "known": noise.known,
        "modes": list(slabs),
        "signal": kind.signal,
        "variance": {"a": a * noise.sigma * noise.sigma, "b": b * noise.sigma, "c": c},
        "slabs": {
            name: {"min": float(v.min()), "max": float(v.max())}
            for name, v in slabs.items()
            if v is not None
        },
        "outlying_slabs": {
            names[mode]: [label_of(fit, mode, int(index)) for index in indices]
            for mode, indices in outlying.items()
        },
    }


def describe_worst_slabs(flagged: Outliers, fit: Fit, count: int) -> list[dict[str, Any]]:
    """The slabs of each mode with the most flagged entries, with their labels."""
    return [
        {"mode": name, "index": k, "label": label_of(fit, mode, k), "share": share}
        for mode, name in enumerate(fit.modes)
        for k, share in flagged.worst(mode, count)
    ]


def label_of(fit: Fit, mode: int, index: int) -> Any:
    """The label of an index of a mode, or the index itself."""
    labels = fit.labels[mode]
    return index if labels is None else labels[index]


@dataclass(frozen=True)
class Fact:
    """A name, a line about it, and details that belong to it."""

    name: str
    text: str
    details: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """A line, and one for each detail, indented."""
        return [f"{self.name}: {self.text}", *(f"  {line}" for line in self.details)]


def format_lines(content: Mapping[str, Any]) -> list[str]:
    """A summary as lines of text."""
    components = []
    for k, part in enumerate(content["components"]):
        largest = ", ".join(f"{entry['mode']} {_index_text(entry)}" for entry in part["largest"])
        components.append(
            f"  {component_name(k)}: {part['share']:6.1%}, weight {part['weight']:.6g}, "
            f"largest at {largest}"
        )
    lines = [_headline(content)]
    for fact in list_facts(content):
        lines += fact.lines()
        lines += components if fact.name == "explained" else []
    return [*lines, f"robustcp {content['version']}"]


def format_html(content: Mapping[str, Any]) -> str:
    """A summary as HTML: everything is escaped, and colours are those of the page."""
    facts = [_html_row(("th", "fit"), ("td", _headline(content)))]
    facts += [
        _html_row(("th", fact.name), ("td", fact.text, *fact.details))
        for fact in list_facts(content)
    ]
    names = ("component", "share", "weight", *(f"largest in {name}" for name in content["modes"]))
    components = [
        (str(k + 1), f"{c['share']:.1%}", f"{c['weight']:.6g}", *map(_index_text, c["largest"]))
        for k, c in enumerate(content["components"])
    ]
    head = _html_row(*(("th", name) for name in names))
    body = [_html_row(*(("td", text) for text in row)) for row in components]
    return (
        f"<table>{''.join(facts)}</table><table><thead>{head}</thead>"
        f"<tbody>{''.join(body)}</tbody></table>"
        f"<small>robustcp {html.escape(content['version'])}</small>"
    )


def _html_row(*cells: tuple[str, ...]) -> str:
    """The row of a table; a cell is its tag and its lines."""
    parts = [
        f'<{tag} style="text-align: left">{"<br>".join(map(html.escape, lines))}</{tag}>'
        for tag, *lines in cells
    ]
    return f"<tr>{''.join(parts)}</tr>"


def _headline(content: Mapping[str, Any]) -> str:
    size = "x".join(map(str, content["shape"]))
    ended = "; ".join((content["ended"], *content["notes"]))
    return f"{size}, rank {content['rank']}: {ended}"


def list_facts(content: Mapping[str, Any]) -> Iterator[Fact]:
    """The content of a summary after the headline, but for the components."""
    for warning in content["warnings"]:
        yield Fact("warning", f"{warning['sentence']} [{warning['code']}]")
    names = content["modes"]
    if names != [f"mode {n}" for n in range(len(names))]:
        sizes = zip(names, content["shape"], strict=True)
        yield Fact("modes", ", ".join(f"{name} ({size})" for name, size in sizes))
    constraints = [f"{mode}: {constraint}" for mode, constraint in content["constraints"].items()]
    if content["preprocessing"] is not None:
        units = "weights, factors and noise are of preprocessed data"
        yield Fact("preprocessing", content["preprocessing"], (units,))
    yield Fact("loss", content["loss"], tuple(constraints))
    stages = ", ".join(f"{name} {count}" for name, count in content["stages"])
    yield Fact("sweeps", f"{content['sweeps']} ({stages})")
    yield Fact("starts", f"{content['reached']} of {len(content['starts'])} reached this model")
    yield Fact("explained", f"{content['explained']:.1%} of the data")
    yield noise_fact(content["noise"])
    if content["limits"] is not None:
        count = f"{content['censored']} entries, " if "censored" in content else ""
        yield Fact("censored", f"{count}{content['limits']}")
    if (cases := content["cases"]) is not None:
        yield Fact(f"bad as a whole, of {cases['mode']}", _join_labels(cases["bad"]) or "none")
    if "outlier_share" in content:
        share = content["outlier_share"]
        text = f"{share:.2%} of the entries" if share else "none flagged"
        yield Fact("outliers", text, tuple(worst_lines(content["worst"])))


def noise_fact(noise: Mapping[str, Any]) -> Fact:
    """The content of `describe_noise`, with a detail for each mode that has outlying slabs."""
    details = []
    for mode, labels in noise["outlying_slabs"].items():
        more = ", ..." if len(labels) > MAX_LISTED_LABELS else ""
        listed = _join_labels(labels[:MAX_LISTED_LABELS]) + more
        details.append(f"far more noise than the others of {mode}: {listed}")
    return Fact("noise", noise["words"], tuple(details))


def worst_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The content of `describe_worst_slabs`, a line for each mode with flagged entries."""
    slabs: dict[str, list[str]] = {}
    for row in rows:
        if row["share"] > 0:
            text = f"{label_text(row['label'])} ({row['share']:.1%})"
            slabs.setdefault(row["mode"], []).append(text)
    return [f"most flagged of {mode}: {', '.join(texts)}" for mode, texts in slabs.items()]


def _index_text(largest: Mapping[str, Any]) -> str:
    return f"[{largest['index']}]" if largest["label"] is None else label_text(largest["label"])


def _join_labels(labels: Iterable[Any]) -> str:
    return ", ".join(map(label_text, labels))
