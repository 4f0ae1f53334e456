"""Random factors."""

from __future__ import annotations

import numpy as np

from robustcp._util.typing import Factors
from robustcp.engines import Engine


def random_factors(engine: Engine, rank: int, rng: np.random.Generator) -> Factors:
    """Standard normal factors, drawn on the host whatever the device."""
    return tuple(engine.asarray(rng.standard_normal((size, rank))) for size in engine.shape)
