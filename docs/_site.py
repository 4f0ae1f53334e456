"""What the site adds to Sphinx: formulas as MathML, and where each public name has its theory."""

from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util.logging import getLogger

LOG = getLogger(__name__)

#: Pages of theory, and the public names whose mathematics is there.
SECTIONS = {
    "model": (
        "robustcp.KruskalTensor", "robustcp.Simulation", "robustcp.simulate", "robustcp.save",
        "robustcp.load", "robustcp.read", "robustcp.FileError", "robustcp.congruence",
        "robustcp.factor_match_score", "robustcp.plot.components",
        "robustcp.plot.truth_against_estimates", "robustcp.eem.Landscapes",
        "robustcp.eem.landscapes", "robustcp.eem.read", "robustcp.eem.normalise",
        "robustcp.eem.Spectra", "robustcp.eem.spectra", "robustcp.eem.read_openfluor",
        "robustcp.eem.write_openfluor", "robustcp.plot.spectra",
        "robustcp.preprocess.Center", "robustcp.preprocess.Scale", "robustcp.preprocess.LogRatio",
        "robustcp.preprocess.Log", "robustcp.preprocess.Sqrt", "robustcp.preprocess.Anscombe",
    ),
    "losses": (
        "robustcp.Loss", "robustcp.L1", "robustcp.LeastSquares", "robustcp.Huber",
        "robustcp.Cauchy", "robustcp.Tukey", "robustcp.Welsch", "robustcp.Quantile",
        "robustcp.cpal1", "robustcp.cpals", "robustcp.l1_regression",
        "robustcp.baselines.linear_program", "robustcp.baselines.weighted_median",
    ),
    "algorithm": (
        "robustcp.as_engine", "robustcp.Observed", "robustcp.Checkpoint", "robustcp.cp_many",
        "robustcp.Fits", "robustcp.plot.convergence",
    ),
    "refinement": (
        "robustcp.cp", "robustcp.Fit", "robustcp.RobustCP", "robustcp.Contaminated",
        "robustcp.Outliers", "robustcp.plot.outliers", "robustcp.plot.outlier_map",
        "robustcp.plot.cellmap", "robustcp.plot.slices", "robustcp.eem.mask_scatter",
        "robustcp.eem.scatter_mask", "robustcp.tensorly.parafac",
        "robustcp.tensorly.non_negative_parafac", "robustcp.tensorly.non_negative_parafac_hals",
        "robustcp.tensorly.CP", "robustcp.tensorly.CP_NN", "robustcp.tensorly.CP_NN_HALS",
    ),
    "noise": ("robustcp.Noise",),
    "starts": (
        "robustcp.nvecs", "robustcp.Ensemble", "robustcp.ensemble", "robustcp.plot.ensemble",
    ),
    "constraints": (
        "robustcp.Constraint", "robustcp.Nonnegative", "robustcp.Smooth", "robustcp.Unimodal",
        "robustcp.Monotone", "robustcp.Sparse", "robustcp.Simplex", "robustcp.Orthogonal",
        "robustcp.Fixed",
    ),
    "samples": ("robustcp.Cases", "robustcp.Distances", "robustcp.plot.distance_map"),
    "evidence": (
        "robustcp.rank_profile", "robustcp.RankProfile", "robustcp.core_consistency",
        "robustcp.replicability", "robustcp.Replicability", "robustcp.Uncertainty",
        "robustcp.plot.rank_profile", "robustcp.plot.replicability", "robustcp.plot.split_half",
    ),
}  # fmt: skip
THEORY = {name: page for page, names in SECTIONS.items() for name in names}


#: The sections of the gallery, and their first examples; others follow by name.
GALLERY = {
    "basics": ("least_squares_breaks", "outliers", "rank", "tensorly"),
    "bad_data": ("odd_samples", "agreeing_samples", "missing", "noise"),
    "model": ("constraints", "labels", "own_loss", "sklearn"),
    "trust": ("replicability", "uncertainty", "progress"),
    "worked": ("city_bikes",),
    "applications": ("fluorescence", "neuroscience", "fmri", "sensors", "video"),
}


def section(folder: str) -> tuple[int, str]:
    """The place of a section of the gallery, by its folder."""
    name = Path(folder).name
    names = list(GALLERY)
    return (names.index(name) if name in names else len(names), name)


class Order:
    """The place of an example in its section, by its file's name."""

    def __init__(self, folder: str):
        self.first = GALLERY.get(Path(folder).name, ())

    def __call__(self, filename: str) -> tuple[int, str]:
        name = filename.removeprefix("plot_").removesuffix(".py")
        return (self.first.index(name) if name in self.first else len(self.first), name)


def mathml(node: nodes.Element, *, as_block: bool = False) -> str:
    """A formula as MathML; a warning says where one is that cannot be read."""
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        LOG.warning("formula %r: %s", node.astext(), error, location=node)
        return ""


def inline(self: Any, node: nodes.math) -> None:
    """A formula within a line."""
    self.body.append(mathml(node))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    """A formula of its own."""
    self.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let |r| in docstrings mean a magnitude, not a substitution, but for code that is run."""
    code = False
    for k, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and bool(line.strip()))
        if not code:
            parts = line.split("``")
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[k] = "``".join(parts)


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer of formulas, and what is done to docstrings before numpydoc."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("autodoc-process-docstring", bars, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
