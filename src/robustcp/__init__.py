"""robustcp: CP tensor factorization that bad entries cannot pull away.

>>> import robustcp
>>> sim = robustcp.simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
>>> weights, factors = robustcp.cpal1(sim.data, 2)
>>> [A.shape for A in factors]
[(20, 2), (20, 2), (20, 2)]
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from robustcp._util.version import __version__ as __version__

if TYPE_CHECKING:  # the same names as in _MODULES
    from robustcp import baselines, eem, plot
    from robustcp.constraints import (
        Constraint,
        Fixed,
        Monotone,
        Nonnegative,
        Orthogonal,
        Simplex,
        Smooth,
        Sparse,
        Unimodal,
    )
    from robustcp.engines import Observed, as_engine
    from robustcp.estimators.cp import cp
    from robustcp.estimators.cpal1 import cpal1
    from robustcp.estimators.cpals import cpals
    from robustcp.inference.batch import Fits, cp_many
    from robustcp.inference.ensemble import Ensemble, ensemble
    from robustcp.inference.rank_profile import RankProfile, core_consistency, rank_profile
    from robustcp.inference.replicability import Replicability, replicability
    from robustcp.inference.uncertainty import Uncertainty
    from robustcp.io.reading import FileError, read
    from robustcp.losses import (
        L1,
        Cauchy,
        Contaminated,
        Huber,
        LeastSquares,
        Loss,
        Quantile,
        Tukey,
        Welsch,
    )
    from robustcp.model.kruskal import KruskalTensor
    from robustcp.model.metrics import congruence, factor_match_score
    from robustcp.model.simulation import Simulation, simulate
    from robustcp.noise import Noise
    from robustcp.optimize.regression import l1_regression
    from robustcp.persist.checkpoint import Checkpoint
    from robustcp.persist.fits import load, save
    from robustcp.results.distances import Distances
    from robustcp.results.fit import Fit
    from robustcp.results.outliers import Outliers
    from robustcp.sklearn import RobustCP as RobustCP
    from robustcp.starts.cases import Cases
    from robustcp.starts.svd import nvecs

__all__ = [
    "L1",
    "Cases",
    "Cauchy",
    "Checkpoint",
    "Constraint",
    "Contaminated",
    "Distances",
    "Ensemble",
    "FileError",
    "Fit",
    "Fits",
    "Fixed",
    "Huber",
    "KruskalTensor",
    "LeastSquares",
    "Loss",
    "Monotone",
    "Noise",
    "Nonnegative",
    "Observed",
    "Orthogonal",
    "Outliers",
    "Quantile",
    "RankProfile",
    "Replicability",
    "Simplex",
    "Simulation",
    "Smooth",
    "Sparse",
    "Tukey",
    "Uncertainty",
    "Unimodal",
    "Welsch",
    "as_engine",
    "baselines",
    "congruence",
    "core_consistency",
    "cp",
    "cp_many",
    "cpal1",
    "cpals",
    "eem",
    "ensemble",
    "factor_match_score",
    "l1_regression",
    "load",
    "nvecs",
    "plot",
    "rank_profile",
    "read",
    "replicability",
    "save",
    "simulate",
]

if find_spec("sklearn") is not None:
    __all__ += ["RobustCP"]

#: The modules of the public names. A module is imported when one of its names is first used.
_MODULES = {
    "robustcp.constraints": (
        "Constraint",
        "Fixed",
        "Monotone",
        "Nonnegative",
        "Orthogonal",
        "Simplex",
        "Smooth",
        "Sparse",
        "Unimodal",
    ),
    "robustcp.engines": (
        "Observed",
        "as_engine",
    ),
    "robustcp.estimators.cp": ("cp",),
    "robustcp.estimators.cpal1": ("cpal1",),
    "robustcp.estimators.cpals": ("cpals",),
    "robustcp.inference.batch": (
        "Fits",
        "cp_many",
    ),
    "robustcp.inference.ensemble": (
        "Ensemble",
        "ensemble",
    ),
    "robustcp.inference.rank_profile": (
        "RankProfile",
        "core_consistency",
        "rank_profile",
    ),
    "robustcp.inference.replicability": (
        "Replicability",
        "replicability",
    ),
    "robustcp.inference.uncertainty": ("Uncertainty",),
    "robustcp.io.reading": (
        "FileError",
        "read",
    ),
    "robustcp.losses": (
        "L1",
        "Cauchy",
        "Contaminated",
        "Huber",
        "LeastSquares",
        "Loss",
        "Quantile",
        "Tukey",
        "Welsch",
    ),
    "robustcp.model.kruskal": ("KruskalTensor",),
    "robustcp.model.metrics": (
        "congruence",
        "factor_match_score",
    ),
    "robustcp.model.simulation": (
        "Simulation",
        "simulate",
    ),
    "robustcp.noise": ("Noise",),
    "robustcp.optimize.regression": ("l1_regression",),
    "robustcp.persist.checkpoint": ("Checkpoint",),
    "robustcp.persist.fits": (
        "load",
        "save",
    ),
    "robustcp.results.distances": ("Distances",),
    "robustcp.results.fit": ("Fit",),
    "robustcp.results.outliers": ("Outliers",),
    "robustcp.starts.cases": ("Cases",),
    "robustcp.starts.svd": ("nvecs",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

#: What people look for, and what it is called here.
_MEANT = {
    "fit": "cp(X, rank)",
    "rank": "rank_profile(X)",
    "outliers": "cp(X, rank).outliers(X)",
    "parafac": "cp(X, rank), or cpals for least squares",
}


def __getattr__(name: str) -> object:
    if name == "RobustCP":
        return _transformer()
    if name in _MODULE_OF:
        globals()[name] = value = getattr(import_module(_MODULE_OF[name]), name)
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    hint = f"; did you mean {_MEANT[name]}?" if name in _MEANT else ""
    raise AttributeError(f"module 'robustcp' has no attribute {name!r}{hint}")


def _transformer() -> object:
    """The class for scikit-learn, which is imported when it is asked for."""
    if find_spec("sklearn") is None:
        raise ImportError("RobustCP needs scikit-learn: pip install 'robustcp[sklearn]'")
    from robustcp.sklearn import RobustCP

    return RobustCP


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
