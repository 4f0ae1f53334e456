"""Constraints: how a factor is solved from its normal equations, and its penalty."""

from robustcp.constraints.base import (
    Constraint,
    Constraints,
    Free,
    as_constraint,
    constraints_by_mode,
    orient_columns,
    project_factors,
)
from robustcp.constraints.fixed import Fixed
from robustcp.constraints.monotone import Monotone
from robustcp.constraints.nonnegative import Nonnegative
from robustcp.constraints.orthogonal import Orthogonal
from robustcp.constraints.simplex import Simplex
from robustcp.constraints.smooth import Smooth
from robustcp.constraints.sparse import Sparse
from robustcp.constraints.unimodal import Unimodal

__all__ = [
    "Constraint",
    "Constraints",
    "Fixed",
    "Free",
    "Monotone",
    "Nonnegative",
    "Orthogonal",
    "Simplex",
    "Smooth",
    "Sparse",
    "Unimodal",
    "as_constraint",
    "constraints_by_mode",
    "orient_columns",
    "project_factors",
]
