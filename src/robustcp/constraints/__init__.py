"""Constraints: how a factor is solved from its normal equations, and its penalty."""

from robustcp.constraints.base import (
    Constraint,
    Constraints,
    Free,
    as_constraint,
    constraints_by_mode,
    project_factors,
)
from robustcp.constraints.nonnegative import Nonnegative
from robustcp.constraints.smooth import Smooth
from robustcp.constraints.unimodal import Unimodal

__all__ = [
    "Constraint",
    "Constraints",
    "Free",
    "Nonnegative",
    "Smooth",
    "Unimodal",
    "as_constraint",
    "constraints_by_mode",
    "project_factors",
]
