"""What it takes to repeat a fit: the command, and the versions of what it ran with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from robustcp._version import __version__
from robustcp.report.markup import Markup, element, facts, joined, paragraph
from robustcp.report.material import Material

#: Packages whose versions may matter.
PACKAGES = ("numpy", "scipy", "numba", "torch", "dask")


def versions() -> dict[str, str]:
    """Those of robustcp, Python and what it computes with, and the machine."""
    found = {"robustcp": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"platform": platform.platform()}


def origin(material: Material) -> Markup:
    """The command, and the versions."""
    fit = material.fit
    if material.command:
        command = element("pre", element("code", material.command), tabindex=0)
    else:
        command = paragraph(
            "The call was not recorded; ", element("code", "fit.report(X, path, command=...)"),
            " keeps it here.",
        )  # fmt: skip
    asked = [f"{mode}: {what}" for mode, what in material.summary["constraints"].items()] or [
        "none"
    ]
    rows = [
        ("rank", fit.rank), ("starts", len(fit.starts)),
        ("loss in the end", repr(fit.loss)), ("constraints", "; ".join(asked)),
        ("cases", "none" if fit.cases is None else fit.modes[fit.cases.mode]),
        *versions().items(),
    ]  # fmt: skip
    said = "The same seed gives the same bits on the same machine with the same versions."
    return joined([command, facts(rows), paragraph(said, class_="note")])
