"""The summary of a fit, its warnings, its noise, and the data that was left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from robustcp.losses import Loss, as_loss
from robustcp.plot.factors import limits_with_zero
from robustcp.report.curves import plot_along_mode
from robustcp.report.data import ReportData
from robustcp.report.indices import MAX_CURVE_POINTS, Index
from robustcp.report.markup import (
    TIMES,
    Markup,
    count_text,
    element,
    escape,
    facts,
    figure,
    join,
    label,
    number,
    paragraph,
    percent,
)
from robustcp.report.words import WARNING_MEANINGS
from robustcp.results.diagnostics import FitWarning
from robustcp.results.summary import list_facts
from robustcp.starts.cases import CaseDiagnostics

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: The largest number of labels in a list.
MAX_LISTED_LABELS = 20


def summary(report: ReportData) -> Markup:
    """The main numbers as tiles, and a table of the summary of the fit."""
    content = report.summary
    warning_count = len(report.fit.warnings)
    status = "converged" if content["converged"] else content["ended"]
    tiles = [
        (percent(content["explained"]), "of the data explained"),
        (percent(content["outlier_share"]), "of the entries flagged"),
        (number(content["noise"]["sigma"], 3), "standard deviation of the noise"),
        (f"{content['reached']} of {len(content['starts'])}", "starts reached this model"),
        (
            str(warning_count) if warning_count else "none",
            "warning" if warning_count == 1 else "warnings",
        ),
    ]
    tile_elements = [
        element("div", element("span", value, class_="value"), element("span", name), class_="tile")
        for value, name in tiles
    ]
    rows = [
        (
            fact.name,
            join([fact.text, *(join([element("br"), escape(line)]) for line in fact.details)]),
        )
        for fact in list_facts(content)
        if fact.name != "warning"
    ]
    size = f" {TIMES} ".join(map(str, content["shape"]))
    return join(
        [
            element("div", *tile_elements, class_="tiles"),
            facts([("size", size), ("rank", content["rank"]), ("ended", status), *rows]),
        ]
    )


def warnings(report: ReportData) -> Markup:
    """A list of the warnings of the fit, with what they mean and what to try."""
    if not report.fit.warnings:
        return paragraph(
            "There are none: no sign that the model is not one to rely on. What signs are looked "
            "for is listed in the guide of robustcp under “Warnings”."
        )
    return element("ul", *map(_warning, report.fit.warnings), class_="warnings")


def _warning(warning: FitWarning) -> Markup:
    meaning, tip = WARNING_MEANINGS.get(warning.code, ("", ""))
    return element(
        "li",
        element(
            "p",
            element("strong", _capitalise(warning.sentence)),
            " ",
            element("code", warning.code),
        ),
        paragraph(meaning) if meaning else None,
        paragraph(element("em", "What to try: "), tip) if tip else None,
    )


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def noise(report: ReportData) -> Markup:
    """A description of the noise, with pictures of its scales where slabs differ."""
    content = report.summary["noise"]
    model = report.outliers.in_data if not report.fit.noise.kind_determined else report.fit.noise
    elements = [paragraph(_capitalise(content["words"]) + ".")]
    panels = []
    for mode in model.kind.modes:
        values = model.slabs[mode]
        assert values is not None
        index = Index.of(report.fit, mode, MAX_CURVE_POINTS)
        panels.append(
            plot_along_mode(
                index,
                np.asarray(values),
                limits_with_zero(values),
                group=f"noise-{mode}",
                name="relative scale",
                line=1.0,
                bars=True,
                alt=f"Scale of the noise of each slab of {index.name}, relative to the typical "
                f"one: {number(float(values.min()), 3)} to {number(float(values.max()), 3)}.",
            )
        )
    if panels:
        elements.append(
            figure(
                element("div", *panels, class_="panels"),
                "How large the noise of each slab is, relative to the typical one (dotted). Slabs "
                "that stand out have less say in the fit, and are measured by the others' noise "
                "where entries are flagged.",
            )
        )
    for mode, labels in content["outlying_slabs"].items():
        elements.append(
            paragraph(f"Far more noise than the others of {mode}: {_list_labels(labels)}.")
        )
    return join(elements)


def excluded_data(report: ReportData) -> Markup:
    """A table of the data without influence on the model: missing entries and bad samples."""
    fit, engine = report.fit, report.engine
    total = math.prod(fit.shape)
    missing = total - round(engine.count)
    rows = [
        (
            "missing entries",
            f"{missing:,} of {total:,} ({percent(missing / total)})" if missing else "none",
        )
    ]
    if fit.cases is not None:
        rows.append(
            (f"bad {label(fit.modes[fit.cases.mode])}, as a whole", bad_samples(fit.cases, fit))
        )
    rows += [("noted", _capitalise(note)) for note in fit.notes]
    return join([facts(rows), paragraph(_outlier_influence(as_loss(fit.loss)), class_="note")])


def bad_samples(cases: CaseDiagnostics, fit: Fit) -> str:
    """The names of the samples that were found to be bad while the model was fitted."""
    indices = np.flatnonzero(cases.flagged).tolist()
    index = Index.of(fit, cases.mode, MAX_CURVE_POINTS)
    names = _list_labels([index.text(int(k)) for k in indices])
    return f"{count_text(len(indices), 'sample')}: {names}" if indices else "none"


def _outlier_influence(loss: Loss) -> str:
    """A sentence about the influence of flagged entries."""
    if loss.quadratic:
        return (
            "This is least squares, in which every entry counts the more the further it is from "
            "the model: flagged entries have pulled it towards them."
        )
    influence = "no" if math.isfinite(loss.rejects) else "little"
    return (
        f"Flagged entries are not left out by hand; those far from the model have {influence} say."
    )


def _list_labels(labels: list[object]) -> str:
    text = ", ".join(label(value, 30) for value in labels[:MAX_LISTED_LABELS])
    remaining = len(labels) - MAX_LISTED_LABELS
    return f"{text} and {remaining:,} more" if remaining > 0 else text
