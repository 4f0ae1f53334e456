"""Loss functions of residuals, one per module, with formulas for compiled code.

base.py says how to add one.
"""

from robustcp.losses.base import Loss, RescaledLoss, Tail, UserLoss, as_loss, loss_types
from robustcp.losses.cauchy import Cauchy
from robustcp.losses.contaminated import Contaminated
from robustcp.losses.formula import Formula
from robustcp.losses.huber import Huber
from robustcp.losses.l1 import L1
from robustcp.losses.least_squares import LeastSquares
from robustcp.losses.one_sided import OneSided
from robustcp.losses.quantile import Quantile
from robustcp.losses.tukey import Tukey
from robustcp.losses.welsch import Welsch

__all__ = [
    "L1",
    "Cauchy",
    "Contaminated",
    "Formula",
    "Huber",
    "LeastSquares",
    "Loss",
    "OneSided",
    "Quantile",
    "RescaledLoss",
    "Tail",
    "Tukey",
    "UserLoss",
    "Welsch",
    "as_loss",
    "loss_types",
]
