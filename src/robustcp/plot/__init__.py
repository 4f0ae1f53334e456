"""Plots of fits, outliers, samples and diagnostics.

Modes are given by number or, if the data had named dimensions, by name. Matplotlib is imported
when something is drawn.
"""

from robustcp.plot.colours import STYLES as STYLES
from robustcp.plot.distances import distance_map
from robustcp.plot.ensembles import ensemble
from robustcp.plot.estimates import truth_against_estimates
from robustcp.plot.factors import components
from robustcp.plot.flagged import cellmap, outlier_map, outliers
from robustcp.plot.profiles import rank_profile
from robustcp.plot.replicability import replicability, split_half
from robustcp.plot.residuals import slices
from robustcp.plot.spectra import spectra
from robustcp.plot.traces import convergence

__all__ = [
    "cellmap",
    "components",
    "convergence",
    "distance_map",
    "ensemble",
    "outlier_map",
    "outliers",
    "rank_profile",
    "replicability",
    "slices",
    "spectra",
    "split_half",
    "truth_against_estimates",
]


def __dir__() -> list[str]:
    return sorted(__all__)
