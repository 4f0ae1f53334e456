"""CPALS, CPAL1 and cp on one simulated tensor of the paper."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustcp.estimators.cp import cp
from robustcp.estimators.cpal1 import cpal1
from robustcp.estimators.cpals import cpals
from robustcp.model.metrics import best_pairing, congruence, factor_match_score
from robustcp.model.simulation import Simulation, simulate
from robustcp.results.fit import Fit

METHODS: dict[str, Callable[..., Fit]] = {"CPALS": cpals, "CPAL1": cpal1, "cp": cp}


@dataclass(frozen=True)
class MethodResult:
    """The results of one method."""

    method: str
    fms: float
    fms_unweighted: float
    relative_l1: float
    sweeps: int
    seconds: float
    fit: Fit


def worst_component(truth: Any, fit: Fit) -> int:
    """The true component that a fit is furthest from."""
    congruences = np.abs(congruence(truth, fit))
    rows, partners = best_pairing(congruences)
    return int(rows[np.argmin(congruences[rows, partners])])


def run(
    seed: int = 0, progress: Callable[[str], Any] = lambda _: None
) -> tuple[Simulation, list[MethodResult]]:
    """Simulate a tensor of the paper (eta 0.2, gamma 2) and fit it by each method.

    `progress` is called with the name of each method before its fit.
    """
    sim = simulate((50, 50, 50), 5, eta=0.2, gamma=2.0, rng=seed)
    rows = []
    for name, method in METHODS.items():
        progress(name)
        start_time = time.perf_counter()
        fit = method(sim.data, 5)
        seconds = time.perf_counter() - start_time
        l1 = np.abs(fit.residuals(sim.data)).sum() / np.abs(sim.data).sum()
        rows.append(
            MethodResult(
                name,
                factor_match_score(fit, sim.truth),
                factor_match_score(fit, sim.truth, weights=False),
                float(l1),
                fit.sweeps,
                seconds,
                fit,
            )
        )
    return sim, rows
