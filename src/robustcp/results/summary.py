"""What there is to say about a fit: as text, as HTML, and for programs."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from robustcp._util.version import __version__
from robustcp.constraints import Free
from robustcp.engines import to_host
from robustcp.model.kruskal import component_name
from robustcp.noise import Noise
from robustcp.plot.ticks import label_text
from robustcp.results.outliers import Outliers

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: Slabs of each mode that are named as those with the most flagged entries.
MAX_WORST_SLABS = 3
#: Labels that are listed.
MAX_LISTED_LABELS = 10


class LabelledModes(Protocol):
    """What has names of modes and labels of their indices: a fit, or a tensor from a file."""

    @property
    def modes(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> tuple[list[Any] | None, ...]: ...


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
        """Of a fit and, if there are any, what it flags in some data."""
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
    """Values that JSON knows: others, such as dates, are text; NaN and infinities are None."""
    text = json.dumps(content, default=str)
    values: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return values


def _describe_fit(fit: Fit) -> dict[str, Any]:
    """What the fit itself says."""
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
        "starts": list(fit.starts),
        "reached": fit.starts.reached,
        "cases": _describe_cases(fit),
        "version": __version__,
    }


def _describe_components(fit: Fit) -> list[dict[str, Any]]:
    """The weight and share of each component, and its largest entry in each mode."""
    host = [np.abs(np.asarray(to_host(A), dtype=np.float64)) for A in fit.factors]
    weights = np.asarray(to_host(fit.weights), dtype=np.float64)
    components = []
    for r, (weight, share) in enumerate(zip(weights, fit.shares, strict=True)):
        positions = [int(np.argmax(A[:, r])) for A in host]
        largest = [
            {"mode": name, "index": k, "label": None if labels is None else labels[k]}
            for name, labels, k in zip(fit.modes, fit.labels, positions, strict=True)
        ]
        components.append({"weight": float(weight), "share": float(share), "largest": largest})
    return components


def _describe_cases(fit: Fit) -> dict[str, Any] | None:
    """What is known of samples, if that was asked for."""
    if (cases := fit.cases) is None:
        return None
    distances = [float(d) for d in cases.distances]
    return {
        "mode": fit.modes[cases.mode],
        "bad": [label_of(fit, cases.mode, int(k)) for k in cases.flagged.nonzero()[0]],
        "distances": [None if math.isnan(d) else d for d in distances],
    }


def _describe_outliers(fit: Fit, flagged: Outliers | None) -> dict[str, Any]:
    """What is flagged in some data, and its noise if the fit did not look for that."""
    if flagged is None:
        return {}
    fit_in_data_order = flagged.fit  # in the order of the data
    noise = fit_in_data_order.noise if fit.noise.kind_determined else flagged.in_data
    return {
        "noise": describe_noise(noise, fit_in_data_order, flagged.outlying_slabs),
        "outlier_share": flagged.share,
        "worst": describe_worst_slabs(flagged, fit_in_data_order, MAX_WORST_SLABS),
    }


def describe_noise(
    noise: Noise, labelled: LabelledModes, outlying: Mapping[int, np.ndarray]
) -> dict[str, Any]:
    """A noise in words and numbers: its variance is a + b |m| + c m^2 at the model's entry m."""
    kind, names, (a, b, c) = noise.kind, labelled.modes, noise.variance
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
            names[mode]: [label_of(labelled, mode, int(index)) for index in indices]
            for mode, indices in outlying.items()
        },
    }


def describe_worst_slabs(
    flagged: Outliers, labelled: LabelledModes, count: int
) -> list[dict[str, Any]]:
    """The slabs of each mode with the most flagged entries, by their labels."""
    rows = []
    for mode, name in enumerate(labelled.modes):
        for index, share in flagged.worst(mode, count):
            label = label_of(labelled, mode, index)
            rows.append({"mode": name, "index": index, "label": label, "share": share})
    return rows


def label_of(labelled: LabelledModes, mode: int, index: int) -> Any:
    """The label of an index of a mode, or the index itself."""
    labels = labelled.labels[mode]
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
    components = [
        f"  {component_name(k)}: {part['share']:6.1%}, weight {part['weight']:.6g}, "
        f"largest at {_join_labels(map(_mode_and_index_text, part['largest']))}"
        for k, part in enumerate(content["components"])
    ]
    lines = [_headline(content)]
    for fact in list_facts(content):
        lines += fact.lines()
        lines += components if fact.name == "explained" else []
    return [*lines, f"robustcp {content['version']}"]


def format_html(content: Mapping[str, Any]) -> str:
    """A summary as HTML: everything is escaped, and colours are those of the page."""
    rows = [("fit", [_headline(content)])]
    rows += [(fact.name, [fact.text, *fact.details]) for fact in list_facts(content)]
    head = ("component", "share", "weight", *(f"largest in {name}" for name in content["modes"]))
    body = [
        (
            str(k + 1),
            f"{part['share']:.1%}",
            f"{part['weight']:.6g}",
            *map(_index_text, part["largest"]),
        )
        for k, part in enumerate(content["components"])
    ]
    return "".join(
        [
            "<table>",
            *(
                f"<tr>{_format_html_cell('th', [name])}{_format_html_cell('td', lines)}</tr>"
                for name, lines in rows
            ),
            "</table><table><thead>",
            f"<tr>{''.join(_format_html_cell('th', [text]) for text in head)}</tr></thead><tbody>",
            *(
                f"<tr>{''.join(_format_html_cell('td', [text]) for text in row)}</tr>"
                for row in body
            ),
            f"</tbody></table><small>robustcp {html.escape(content['version'])}</small>",
        ]
    )


def _format_html_cell(tag: str, lines: Iterable[str]) -> str:
    text = "<br>".join(html.escape(line) for line in lines)
    return f'<{tag} style="text-align: left">{text}</{tag}>'


def _headline(content: Mapping[str, Any]) -> str:
    size = "x".join(map(str, content["shape"]))
    ended = "; ".join((content["ended"], *content["notes"]))
    return f"{size}, rank {content['rank']}: {ended}"


def list_facts(content: Mapping[str, Any]) -> Iterator[Fact]:
    """The rest, but for the components."""
    for warning in content["warnings"]:
        yield Fact("warning", f"{warning['sentence']} [{warning['code']}]")
    names = content["modes"]
    if names != [f"mode {n}" for n in range(len(names))]:
        sizes = zip(names, content["shape"], strict=True)
        yield Fact("modes", ", ".join(f"{name} ({size})" for name, size in sizes))
    constraints = content["constraints"].items()
    yield Fact(
        "loss", content["loss"], tuple(f"{mode}: {constraint}" for mode, constraint in constraints)
    )
    stages = ", ".join(f"{name} {count}" for name, count in content["stages"])
    yield Fact("sweeps", f"{content['sweeps']} ({stages})")
    yield Fact("starts", f"{content['reached']} of {len(content['starts'])} reached this model")
    yield Fact("explained", f"{content['explained']:.1%} of the data")
    yield noise_fact(content["noise"])
    if (cases := content["cases"]) is not None:
        yield Fact(f"bad as a whole, of {cases['mode']}", _join_labels(cases["bad"]) or "none")
    if "outlier_share" in content:
        share = (
            f"{content['outlier_share']:.2%} of the entries"
            if content["outlier_share"]
            else ("none flagged")
        )
        yield Fact("outliers", share, tuple(worst_lines(content["worst"])))


def noise_fact(noise: Mapping[str, Any]) -> Fact:
    """What `describe_noise` found, and each mode with slabs of far more noise."""
    outlying = tuple(
        f"far more noise than the others of {mode}: {_join_first_labels(labels)}"
        for mode, labels in noise["outlying_slabs"].items()
    )
    return Fact("noise", noise["words"], outlying)


def worst_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What `describe_worst_slabs` found, a line for each mode that has something flagged."""
    lines = []
    flagged_rows = [row for row in rows if row["share"] > 0]
    for mode in dict.fromkeys(row["mode"] for row in flagged_rows):
        mode_rows = [row for row in flagged_rows if row["mode"] == mode]
        slabs_text = _join_labels(
            f"{label_text(row['label'])} ({row['share']:.1%})" for row in mode_rows
        )
        lines.append(f"most flagged of {mode}: {slabs_text}")
    return lines


def _mode_and_index_text(largest: Mapping[str, Any]) -> str:
    return f"{largest['mode']} {_index_text(largest)}"


def _index_text(largest: Mapping[str, Any]) -> str:
    return f"[{largest['index']}]" if largest["label"] is None else label_text(largest["label"])


def _join_labels(labels: Iterable[Any]) -> str:
    return ", ".join(map(label_text, labels))


def _join_first_labels(labels: Sequence[Any]) -> str:
    return _join_labels(labels[:MAX_LISTED_LABELS]) + (
        ", ..." if len(labels) > MAX_LISTED_LABELS else ""
    )
