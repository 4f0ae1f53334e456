"""The command of a fit and the versions of the software, to repeat it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from robustcp._util.version import __version__
from robustcp.report.data import ReportData
from robustcp.report.markup import Markup, element, facts, join, paragraph

#: Packages whose versions may matter.
PACKAGES = ("numpy", "scipy", "numba", "torch", "dask")


def versions() -> dict[str, str]:
    """The versions of robustcp, Python and numerical packages, and the platform."""
    installed = {"robustcp": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed | {"platform": platform.platform()}


def provenance(report: ReportData) -> Markup:
    """The command and a table of the settings and versions."""
    fit = report.fit
    if report.command:
        command = element("pre", element("code", report.command), tabindex=0)
    else:
        command = paragraph(
            "The call was not recorded; ",
            element("code", "fit.report(X, path, command=...)"),
            " keeps it here.",
        )
    constraints = [
        f"{mode}: {constraint}" for mode, constraint in report.summary["constraints"].items()
    ] or ["none"]
    rows = [
        ("rank", fit.rank),
        ("starts", len(fit.starts)),
        ("loss in the end", repr(fit.loss)),
        ("constraints", "; ".join(constraints)),
        ("cases", "none" if fit.cases is None else fit.modes[fit.cases.mode]),
        *versions().items(),
    ]
    note = "The same seed gives the same bits on the same machine with the same versions."
    return join([command, facts(rows), paragraph(note, class_="note")])
