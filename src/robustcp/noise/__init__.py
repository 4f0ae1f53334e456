"""How large residuals should be, entry by entry: common, by slab, by signal; or known."""

from robustcp.noise.asked import Asked, as_kind, is_kind
from robustcp.noise.core import Core, core_of, degrees_of_freedom_correction, typical
from robustcp.noise.estimation import Residuals, change, look
from robustcp.noise.model import COMMON, Kind, Noise

__all__ = [
    "COMMON", "Asked", "Core", "Kind", "Noise", "Residuals", "as_kind", "change", "core_of",
    "degrees_of_freedom_correction", "is_kind", "look", "typical",
]  # fmt: skip
