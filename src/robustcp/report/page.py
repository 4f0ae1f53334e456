"""The page: its sections one after the other, with style, script and what the script needs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from robustcp._version import __version__
from robustcp.distances import Distances
from robustcp.report.components import component_table, components, uncertainty
from robustcp.report.course import course, rank_profile
from robustcp.report.drawing import CELLS, POINTS, Index
from robustcp.report.images import STEPS, definitions
from robustcp.report.markup import TIMES, Markup, element, figure, joined, label, paragraph, percent
from robustcp.report.material import Material
from robustcp.report.origin import origin
from robustcp.report.overview import bad_samples, left_out, noise, summary, warnings
from robustcp.report.samples import DRAWN, distance_map, distance_table
from robustcp.report.slabs import cell_legend, cellmaps, chosen, shares, slices


@dataclass(frozen=True)
class Section:
    """A part of the page, which the table of contents leads to."""

    name: str
    title: str
    content: Markup


def page(material: Material) -> str:
    """A report as HTML."""
    sections = list(_sections(material))
    contents = element(
        "nav",
        element("ol", *(element("li", element("a", s.title, href=f"#{s.name}"))
                        for s in sections)),
        aria_label="Contents",
    )  # fmt: skip
    body = joined([
        definitions(),
        element("header", element("h1", material.title), paragraph(_subtitle(material))),
        contents,
        element("main", *(element("section", element("h2", s.title), s.content, id=s.name)
                          for s in sections)),
        element("footer", f"Made by robustcp {__version__}"),
        element("div", class_="tip", id="tip", role="status", hidden=""),
    ])  # fmt: skip
    return f"<!DOCTYPE html>\n{_document(material, body)}\n"


def _document(material: Material, body: Markup) -> Markup:
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
        element("title", material.title),
        element("style", Markup(style)),
    )
    data = element("script", Markup(_json(_names(material))), type="application/json", id="names")
    return element("html", head, element("body", body, data, element("script", Markup(script))),
                   lang="en")  # fmt: skip


def _resource(name: str) -> str:
    return files("robustcp.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a policy calls the text of a script or a style, so that no other is heeded."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _names(material: Material) -> dict[str, Any]:
    """What the indices of the modes are called, as far as pictures need it."""
    found: dict[str, Any] = {}
    for mode in range(len(material.fit.shape)):
        for most in (POINTS, CELLS, material.scored.blocks):
            index = Index.of(material.fit, mode, most)
            found[index.key] = {"name": index.name, "count": index.count, "texts": index.texts()}
    return {"axes": found, "steps": STEPS}


def _json(content: dict[str, Any]) -> str:
    """JSON that cannot end the element that it is in."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(material: Material) -> str:
    fit = material.fit
    sizes = zip(fit.shape, fit.modes, strict=True)
    size = f" {TIMES} ".join(f"{n:,} {label(name)}" for n, name in sizes)
    today = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"A CP model of rank {fit.rank} of {size} · {today}"


# Sections


def _sections(material: Material) -> Iterator[Section]:
    yield Section("summary", "Summary", summary(material))
    yield Section("warnings", "Warnings", warnings(material))
    yield Section(
        "components", "Components", joined([components(material), component_table(material)])
    )
    if material.uncertainty is not None:
        yield Section("uncertainty", "How sure the components are", uncertainty(material))
    if material.rank is not None:
        yield Section("rank", "How many components", rank_profile(material))
    yield Section("samples", "Samples that stand out", _samples(material))
    slabs = chosen(material)
    yield Section("flagged", "Flagged entries", _flagged(material, slabs))
    yield Section("slices", "Worst slabs, slice by slice", _slices(material, slabs))
    yield Section("noise", "Noise", noise(material))
    yield Section("left-out", "What was left out", left_out(material))
    yield Section("course", "How the fit came about", course(material))
    yield Section("repeat", "To repeat this", origin(material))


def _samples(material: Material) -> Markup:
    found = material.distances
    caption = (
        "Each mark is a sample. To the right of the dotted line are those whose scores are far "
        "from the others', above it those that the model does not describe. To the right but "
        "below is unusual and fine (good leverage); above, look at the data. A sample whose line "
        "ends below has some bad entries only."
    )
    if found.note:
        caption += f" {found.note[:1].upper()}{found.note[1:]}."
    if len(found.score) > DRAWN:
        caption += " Of the regular ones only some are drawn."
    cases = material.fit.cases
    judged = None
    if cases is not None:
        judged = paragraph(
            "Found to be bad as a whole while the model was fitted, and without a say in it: "
            f"{bad_samples(cases, material.fit)}."
        )
    return joined([
        paragraph(f"Samples are the slabs of {label(found.name)}. {_counts(found)}"),
        judged,
        figure(distance_map(found), caption, class_="single"),
        distance_table(found),
    ])  # fmt: skip


def _counts(found: Distances) -> str:
    return found.words.replace(f" samples of {found.name}", " samples") + "."


def _flagged(material: Material, slabs: dict[str, tuple[int, int]]) -> Markup:
    found = material.found
    said = (
        f"{percent(found.share)} of the entries are further from the model than "
        f"{found.threshold:.2f} standard deviations of their noise, where chance would flag "
        f"{percent(found.by_chance)}."
    )
    return joined([
        paragraph(said),
        figure(
            shares(material, slabs),
            "The share of flagged entries in each slab of each mode; dotted: what chance would "
            "flag. A slab that stands out is bad as a whole; many with a little more than chance "
            "point to noise with heavy tails.",
        ),
        figure(
            joined([cell_legend(), cellmaps(material)]),
            f"Cellmaps, {material.scored.words}: colours deepen with the share of a block's "
            "entries that are too high or too low. Stripes are bad slabs, spots are local "
            "faults, and an even grain is scattered outliers.",
        ),
    ])  # fmt: skip


def _slices(material: Material, slabs: dict[str, tuple[int, int]]) -> Markup:
    said = (
        "The slabs of each mode with the most flagged entries and, last, an ordinary one to "
        "compare with. Data and model share a scale that leaves out the lowest and highest 1% of "
        "the data; the residual has its own. Structure that is left in the residual is what the "
        "model does not describe. Values at the pointer are read from the picture, to 1 in 254 "
        "of the scale."
    )
    return joined([paragraph(said), slices(material, slabs)])
