"""The standard deviation of each entry's noise: common, by slab, by signal, or known."""

from robustcp.noise.censoring import parse_limits
from robustcp.noise.contaminated_normal import (
    ContaminatedNormal,
    degrees_of_freedom_correction,
    fit_contaminated_normal,
    median_magnitude,
)
from robustcp.noise.entropy import model_entropy
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.noise_of_model import estimate_model_noise, estimate_rough_noise, rms_log_ratio
from robustcp.noise.outlying_fibres import find_outlying_fibres, flag_outlying_fibres
from robustcp.noise.residual_tests import ResidualStructure, are_evenly_spread, measure_structure
from robustcp.noise.residuals import Residuals
from robustcp.noise.spec import NoiseSpec, is_kind, parse_noise

__all__ = [
    "COMMON",
    "ContaminatedNormal",
    "Kind",
    "Noise",
    "NoiseSpec",
    "ResidualStructure",
    "Residuals",
    "are_evenly_spread",
    "degrees_of_freedom_correction",
    "estimate_model_noise",
    "estimate_rough_noise",
    "find_outlying_fibres",
    "fit_contaminated_normal",
    "flag_outlying_fibres",
    "is_kind",
    "measure_structure",
    "median_magnitude",
    "model_entropy",
    "parse_limits",
    "parse_noise",
    "rms_log_ratio",
]  # fmt: skip
