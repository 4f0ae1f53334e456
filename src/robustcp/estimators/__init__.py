"""The estimators: arguments to a specification, a plan for the data, and the fit."""

from robustcp.estimators.cp import cp
from robustcp.estimators.cpal1 import cpal1
from robustcp.estimators.cpals import cpals

__all__ = ["cp", "cpal1", "cpals"]
