"""The summary of a fit, its warnings, its noise, and what was left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from robustcp.cases import Judged
from robustcp.doubts import FitWarning
from robustcp.losses import Loss, as_loss
from robustcp.report.curves import column, limits_with_zero
from robustcp.report.drawing import POINTS, Index
from robustcp.report.markup import (
    TIMES,
    Markup,
    counted,
    element,
    escape,
    facts,
    figure,
    joined,
    label,
    number,
    paragraph,
    percent,
)
from robustcp.report.material import Material
from robustcp.report.words import MEANINGS
from robustcp.summaries import facts_of

if TYPE_CHECKING:
    from robustcp.fitted import Fit

#: Labels that are listed.
LISTED = 20


def summary(material: Material) -> Markup:
    """The numbers to begin with, and all that the summary of the fit says."""
    content = material.summary
    doubts = len(material.fit.warnings)
    ended = "converged" if content["converged"] else content["ended"]
    tiles = [
        (percent(content["explained"]), "of the data explained"),
        (percent(content["outlier_share"]), "of the entries flagged"),
        (number(content["noise"]["sigma"], 3), "standard deviation of the noise"),
        (f"{content['reached']} of {len(content['starts'])}", "starts reached this model"),
        (str(doubts) if doubts else "none", "warning" if doubts == 1 else "warnings"),
    ]
    shown = [
        element("div", element("span", value, class_="value"), element("span", name), class_="tile")
        for value, name in tiles
    ]
    told = [
        (fact.name, joined([fact.text, *(joined([element("br"), escape(line)])
                                         for line in fact.details)]))
        for fact in facts_of(content) if fact.name != "warning"
    ]  # fmt: skip
    size = f" {TIMES} ".join(map(str, content["shape"]))
    return joined([
        element("div", *shown, class_="tiles"),
        facts([("size", size), ("rank", content["rank"]), ("ended", ended), *told]),
    ])  # fmt: skip


def warnings(material: Material) -> Markup:
    """Reasons to doubt the fit, what they mean, and what to try."""
    if not material.fit.warnings:
        return paragraph(
            "There are none: no sign that the model is not one to rely on. What signs are looked "
            "for is listed in the guide of robustcp under “Warnings”."
        )
    return element("ul", *map(_warning, material.fit.warnings), class_="warnings")


def _warning(warning: FitWarning) -> Markup:
    meaning, tip = MEANINGS.get(warning.code, ("", ""))
    return element(
        "li",
        element("p", element("strong", _sentence(warning.sentence)), " ",
                element("code", warning.code)),
        paragraph(meaning) if meaning else None,
        paragraph(element("em", "What to try: "), tip) if tip else None,
    )  # fmt: skip


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def noise(material: Material) -> Markup:
    """What the noise is like, in words and, where slabs differ, in pictures."""
    content = material.summary["noise"]
    kind = material.found.in_data if not material.fit.noise.looked else material.fit.noise
    parts = [paragraph(_sentence(content["words"]) + ".")]
    panels = []
    for mode in kind.kind.modes:
        values = kind.slabs[mode]
        assert values is not None
        index = Index.of(material.fit, mode, POINTS)
        panels.append(
            column(
                index, np.asarray(values), limits_with_zero(values), group=f"noise-{mode}",
                names=("", "relative scale"), line=1.0, bars=True,
                alt=f"Scale of the noise of each slab of {index.name}, relative to the typical "
                f"one: {number(float(values.min()), 3)} to {number(float(values.max()), 3)}.",
            )
        )  # fmt: skip
    if panels:
        parts.append(figure(
            element("div", *panels, class_="panels"),
            "How large the noise of each slab is, relative to the typical one (dotted). Slabs "
            "that stand out have less say in the fit, and are measured by the others' noise where "
            "entries are flagged.",
        ))  # fmt: skip
    for mode, labels in content["outlying_slabs"].items():
        parts.append(paragraph(f"Far more noise than the others of {mode}: {_some(labels)}."))
    return joined(parts)


def left_out(material: Material) -> Markup:
    """What has no say in the model: missing entries, wild ones, bad samples."""
    fit, engine = material.fit, material.engine
    total = math.prod(fit.shape)
    missing = total - round(engine.count)
    rows = [("missing entries", f"{missing:,} of {total:,} ({percent(missing / total)})"
             if missing else "none")]  # fmt: skip
    if fit.cases is not None:
        rows.append(
            (f"bad {label(fit.modes[fit.cases.mode])}, as a whole", bad_samples(fit.cases, fit))
        )
    rows += [("noted", _sentence(note)) for note in fit.notes]
    return joined([facts(rows), paragraph(_say_of_outliers(as_loss(fit.loss)), class_="note")])


def bad_samples(cases: Judged, fit: Fit) -> str:
    """Which samples were found to be bad while the model was fitted."""
    bad = np.flatnonzero(cases.flagged).tolist()
    index = Index.of(fit, cases.mode, POINTS)
    names = _some([index.text(int(k)) for k in bad])
    return f"{counted(len(bad), 'sample')}: {names}" if bad else "none"


def _say_of_outliers(loss: Loss) -> str:
    """How much say flagged entries have."""
    if loss.quadratic:
        return (
            "This is least squares, in which every entry counts the more the further it is from "
            "the model: flagged entries have pulled it towards them."
        )
    much = "no" if math.isfinite(loss.rejects) else "little"
    return f"Flagged entries are not left out by hand; those far from the model have {much} say."


def _some(labels: list[object]) -> str:
    shown = ", ".join(label(each, 30) for each in labels[:LISTED])
    more = len(labels) - LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown
