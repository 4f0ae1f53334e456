"""A fit as arrays, and as what JSON can hold; files of all kinds are made of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp import losses
from robustcp._typing import Array
from robustcp.constraints import Constraint, Free, Nonnegative, Smooth, Unimodal
from robustcp.engines import Listed, to_host
from robustcp.files.labels import encoded
from robustcp.losses import Loss
from robustcp.noise import Noise

if TYPE_CHECKING:
    from robustcp.fitted import Fit

#: What a file of a fit holds: arrays by name, and all else.
Held = tuple[dict[str, np.ndarray], dict[str, Any]]

#: The losses that a file may name; others come back as a name only.
LOSSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        losses.L1, losses.Cauchy, losses.Contaminated, losses.Huber, losses.LeastSquares,
        losses.Quantile, losses.Tukey, losses.Welsch,
    )
}  # fmt: skip

#: The constraints that a file may name; others come back as a name only.
CONSTRAINTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Free, Nonnegative, Smooth, Unimodal)
}

#: What of a noise is numbers.
NOISE = ("sigma", "variance", "least", "above", "below", "clean", "beyond", "looked")

#: What is known of each sample.
CASES = ("weights", "distances", "cutoffs")


@dataclass(frozen=True)
class ForeignLoss(Loss):
    """The name of a loss that this package does not know."""

    name: str = ""

    def value(self, r: Array) -> Array:
        raise NotImplementedError(f"the file says only the name of the loss, {self.name}")

    slope = curvature = value


@dataclass(frozen=True)
class ForeignConstraint(Constraint):
    """The name of a constraint that this package does not know."""

    name: str = ""

    def solve(self, *arguments: Any) -> Array:
        raise NotImplementedError(f"the file says only the name of the constraint, {self.name}")

    def project(self, factor: Array) -> Array:
        raise NotImplementedError(f"the file says only the name of the constraint, {self.name}")


def arrays_of(fit: Fit) -> dict[str, np.ndarray]:
    """All that is an array."""
    arrays = {f"factor_{n}": np.asarray(to_host(A)) for n, A in enumerate(fit.factors)}
    if fit.cases is not None:
        arrays |= {f"cases_{name}": getattr(fit.cases, name) for name in CASES}
    return (
        arrays
        | noise_arrays(fit.noise)
        | {"weights": np.asarray(to_host(fit.weights)), "trace": np.asarray(fit.trace)}
    )


def noise_arrays(noise: Noise) -> dict[str, np.ndarray]:
    """Scales of slabs, and known standard deviations: of slabs, of all entries, or listed."""
    found = {f"noise_{n}": v for n, v in enumerate(noise.slabs) if v is not None}
    if isinstance(noise.given, Listed):
        return found | {"known_listed": noise.given.values}
    known = () if noise.given is None else (*noise.given.vectors, noise.given.array)
    return found | {
        f"known_{n}": np.asarray(to_host(part)) for n, part in enumerate(known) if part is not None
    }


def _plain(value: Any) -> Any:
    """Numbers of any type as JSON can hold them."""
    if isinstance(value, tuple):
        return [float(part) for part in value]
    return bool(value) if isinstance(value, bool) else float(value)


def about(fit: Fit) -> dict[str, Any]:
    """All that is not an array."""
    return {
        "result": asdict(fit.result),
        "notes": list(fit.notes),
        "warnings": [asdict(warning) for warning in fit.warnings],
        "cases": None if fit.cases is None else fit.cases.mode,
        "loss": _described(fit.loss),
        "stages": [[str(name), int(count)] for name, count in fit.stages],
        "explained": float(fit.explained),
        "starts": [float(value) for value in fit.starts],
        "reached": int(fit.starts.reached),
        "final": [None if value is None else float(value) for value in fit.starts.final],
        "scale": float(fit.scale),
        "noise": {name: _plain(getattr(fit.noise, name)) for name in NOISE},
        "modes": [encoded(name) for name in fit.modes],
        "labels": [
            None if names is None else [encoded(label) for label in names] for names in fit.labels
        ],
        "units": list(fit.units),
        "constraints": [_constraint_described(constraint) for constraint in fit.constraints],
    }


def _described(loss: Any) -> dict[str, Any]:
    name = type(loss).__name__
    known = LOSSES.get(name) is type(loss)
    return {"name": loss.name if isinstance(loss, ForeignLoss) else name,
            "numbers": _floats(asdict(loss)) if known else None}  # fmt: skip


def _floats(numbers: dict[str, Any]) -> dict[str, float]:
    """Numbers of any type as JSON can hold them."""
    return {name: float(number) for name, number in numbers.items()}


def _constraint_described(constraint: Constraint) -> dict[str, Any]:
    if isinstance(constraint, ForeignConstraint):
        return {"name": constraint.name, "numbers": None}
    named: Any = getattr(constraint, "original", constraint)
    name = type(named).__name__
    known = CONSTRAINTS.get(name) is type(named)
    return {"name": name, "numbers": asdict(named) if known else None}
