"""How large residuals should be, entry by entry: common, by slab, by signal; or known."""

from robustcp.noise.asked import Asked, as_noise, is_kind
from robustcp.noise.core import Core, core_of, degrees_of_freedom_correction, typical
from robustcp.noise.estimation import Residuals, change, entropy_of, first_look, noise_of
from robustcp.noise.fibres import fibres_of, outlying_fibres
from robustcp.noise.model import COMMON, Kind, Noise
from robustcp.noise.structure import Structure, structure_of

__all__ = [
    "COMMON", "Asked", "Core", "Kind", "Noise", "Residuals", "Structure", "as_noise", "change",
    "core_of", "degrees_of_freedom_correction", "entropy_of", "fibres_of", "first_look",
    "is_kind", "noise_of", "outlying_fibres", "structure_of", "typical",
]  # fmt: skip
