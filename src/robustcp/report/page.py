"""The page: its sections, style, script, and the names that the script shows."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from robustcp._util.version import __version__
from robustcp.report.components import component_table, components, uncertainty
from robustcp.report.convergence import convergence_and_starts, rank_profile
from robustcp.report.data import ReportData
from robustcp.report.images import N_SHARE_LEVELS, definitions
from robustcp.report.indices import MAX_CURVE_POINTS, MAX_IMAGE_CELLS, Index
from robustcp.report.markup import TIMES, Markup, element, figure, join, label, paragraph, percent
from robustcp.report.overview import bad_samples, excluded_data, noise, summary, warnings
from robustcp.report.pictures import drawing_style
from robustcp.report.provenance import provenance
from robustcp.report.samples import MAX_DRAWN_SAMPLES, distance_map, distance_table
from robustcp.report.slabs import cell_legend, cellmaps, flagged_shares, select_slabs, slices
from robustcp.results.distances import Distances


@dataclass(frozen=True)
class Section:
    """A section of the page, with the id that the table of contents links to."""

    name: str
    title: str
    content: Markup


def page(report: ReportData) -> str:
    """A report as HTML."""
    with drawing_style():
        sections = list(_sections(report))
    contents = element(
        "nav",
        element("ol", *(element("li", element("a", s.title, href=f"#{s.name}")) for s in sections)),
        aria_label="Contents",
    )
    body = join(
        [
            definitions(),
            element("header", element("h1", report.title), paragraph(_subtitle(report))),
            contents,
            element(
                "main",
                *(
                    element("section", element("h2", s.title), s.content, id=s.name)
                    for s in sections
                ),
            ),
            element("footer", f"Made by robustcp {__version__}"),
            element("div", class_="tip", id="tip", role="status", hidden=""),
        ]
    )
    return f"<!DOCTYPE html>\n{_document(report, body)}\n"


def _document(report: ReportData, body: Markup) -> Markup:
    style, script = _resource("report.css"), _resource("report.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"robustcp {__version__}"),
        element("title", report.title),
        element("style", Markup(style)),
    )
    data = element(
        "script", Markup(_json(_axis_names(report))), type="application/json", id="names"
    )
    return element(
        "html", head, element("body", body, data, element("script", Markup(script))), lang="en"
    )


def _resource(name: str) -> str:
    return files("robustcp.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash by which the content security policy admits a script or a style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _axis_names(report: ReportData) -> dict[str, Any]:
    """The labels of the blocks of each mode that pictures use."""
    axes: dict[str, Any] = {}
    for mode in range(len(report.fit.shape)):
        for max_blocks in (MAX_CURVE_POINTS, MAX_IMAGE_CELLS, report.score_sample.max_blocks):
            index = Index.of(report.fit, mode, max_blocks)
            axes[index.key] = {
                "name": index.name,
                "count": index.count,
                "texts": index.block_texts(),
            }
    return {"axes": axes, "steps": N_SHARE_LEVELS}


def _json(content: dict[str, Any]) -> str:
    """JSON that cannot end the element which holds it."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(report: ReportData) -> str:
    fit = report.fit
    sizes = zip(fit.shape, fit.modes, strict=True)
    size = f" {TIMES} ".join(f"{n:,} {label(name)}" for n, name in sizes)
    today = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"A CP model of rank {fit.rank} of {size} · {today}"


# Sections


def _sections(report: ReportData) -> Iterator[Section]:
    yield Section("summary", "Summary", summary(report))
    yield Section("warnings", "Warnings", warnings(report))
    yield Section("components", "Components", join([components(report), component_table(report)]))
    if report.uncertainty is not None:
        yield Section("uncertainty", "How sure the components are", uncertainty(report))
    if report.rank is not None:
        yield Section("rank", "How many components", rank_profile(report))
    yield Section("samples", "Samples that stand out", _samples_section(report))
    slabs = select_slabs(report)
    yield Section("flagged", "Flagged entries", _flagged_section(report, slabs))
    yield Section("slices", "Worst slabs, slice by slice", _slices_section(report, slabs))
    yield Section("noise", "Noise", noise(report))
    yield Section("left-out", "What was left out", excluded_data(report))
    yield Section("course", "How the fit came about", convergence_and_starts(report))
    yield Section("repeat", "To repeat this", provenance(report))


def _samples_section(report: ReportData) -> Markup:
    distances = report.distances
    caption = (
        "Each mark is a sample. To the right of the dashed line are those whose scores are far "
        "from the others', above it those that the model does not describe. To the right but "
        "below is unusual and fine (good leverage); above, look at the data. An arrow leads from "
        "where a sample is with all its entries to where it is without the flagged ones: one that "
        "ends below has some bad entries only. Samples with far more of these than others are "
        "not called regular."
    )
    if distances.note:
        caption += f" {distances.note[:1].upper()}{distances.note[1:]}."
    if len(distances.score) > MAX_DRAWN_SAMPLES:
        caption += " Of the regular ones only some are drawn."
    cases = report.fit.cases
    case_note = None
    if cases is not None:
        case_note = paragraph(
            "Found to be bad as a whole while the model was fitted, and without a say in it: "
            f"{bad_samples(cases, report.fit)}."
        )
    return join(
        [
            paragraph(
                f"Samples are the slabs of {label(distances.name)}. {_kind_counts(distances)}"
            ),
            case_note,
            figure(distance_map(distances), caption, class_="single"),
            distance_table(distances),
        ]
    )


def _kind_counts(distances: Distances) -> str:
    return distances.words.replace(f" samples of {distances.name}", " samples") + "."


def _flagged_section(report: ReportData, slabs: dict[str, tuple[int, int]]) -> Markup:
    outliers = report.outliers
    text = (
        f"{percent(outliers.share)} of the entries are further from the model than "
        f"{outliers.threshold:.2f} standard deviations of their noise, where chance would flag "
        f"{percent(outliers.by_chance)}."
    )
    return join(
        [
            paragraph(text),
            figure(
                flagged_shares(report, slabs),
                "The share of flagged entries in each slab of each mode; dotted: what chance would "
                "flag. A slab that stands out is bad as a whole; many with a little more than "
                "chance point to noise with heavy tails.",
            ),
            figure(
                join([cell_legend(), cellmaps(report)]),
                f"Cellmaps, {report.score_sample.words}: colours deepen with the share of a "
                "block's entries that are too high or too low. Stripes are bad slabs, spots are "
                "local faults, and an even grain is scattered outliers.",
            ),
        ]
    )


def _slices_section(report: ReportData, slabs: dict[str, tuple[int, int]]) -> Markup:
    text = (
        "The slabs of each mode with the most flagged entries and, last, an ordinary one to "
        "compare with. Data and model share a scale that leaves out the lowest and highest 1% of "
        "the data; the residual has its own. Structure that is left in the residual is what the "
        "model does not describe. Values at the pointer are read from the picture, to 1 in 254 "
        "of the scale."
    )
    return join([paragraph(text), slices(report, slabs)])
