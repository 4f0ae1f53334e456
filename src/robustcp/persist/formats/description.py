"""A fit as arrays, and as what JSON can hold; files of all kinds are made of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints import Constraint, Free, Nonnegative, Smooth, Unimodal
from robustcp.engines import CoordinateWeights, to_host
from robustcp.losses import Loss, loss_types
from robustcp.noise import Noise
from robustcp.persist.labels import LABEL_CODEC

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: What a file of a fit holds: arrays by name, and all else.
FitContent = tuple[dict[str, np.ndarray], dict[str, Any]]

#: The constraints that a file may name; others come back as a name only.
CONSTRAINTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Free, Nonnegative, Smooth, Unimodal)
}

#: The numbers of a noise: their keys in files, and the attributes of `Noise`.
NOISE_FIELDS = {
    "sigma": "sigma", "variance": "variance", "least": "least", "above": "above", "below": "below",
    "clean": "clean", "beyond": "rejected_share", "looked": "kind_determined",
}  # fmt: skip

#: What is known of each sample.
CASE_ARRAYS = ("weights", "distances", "cutoffs")


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


def fit_arrays(fit: Fit) -> dict[str, np.ndarray]:
    """All that is an array."""
    arrays = {f"factor_{n}": np.asarray(to_host(A)) for n, A in enumerate(fit.factors)}
    if fit.cases is not None:
        arrays |= {f"cases_{name}": getattr(fit.cases, name) for name in CASE_ARRAYS}
    return (
        arrays
        | noise_arrays(fit.noise)
        | {"weights": np.asarray(to_host(fit.weights)), "trace": np.asarray(fit.trace)}
    )


def noise_arrays(noise: Noise) -> dict[str, np.ndarray]:
    """Scales of slabs, and known standard deviations: of slabs, of all entries, or listed."""
    arrays = {f"noise_{n}": v for n, v in enumerate(noise.slabs) if v is not None}
    if isinstance(noise.known_sigmas, CoordinateWeights):
        return arrays | {"known_listed": noise.known_sigmas.values}
    deviations = (
        ()
        if noise.known_sigmas is None
        else (*noise.known_sigmas.vectors, noise.known_sigmas.array)
    )
    return arrays | {
        f"known_{n}": np.asarray(to_host(values))
        for n, values in enumerate(deviations)
        if values is not None
    }


def _as_json_numbers(value: Any) -> Any:
    """Numbers of any type as JSON can hold them."""
    if isinstance(value, tuple):
        return [float(number) for number in value]
    return bool(value) if isinstance(value, bool) else float(value)


def fit_metadata(fit: Fit) -> dict[str, Any]:
    """All that is not an array."""
    return {
        "result": asdict(fit.result),
        "notes": list(fit.notes),
        "warnings": [asdict(warning) for warning in fit.warnings],
        "cases": None if fit.cases is None else fit.cases.mode,
        "loss": _describe_loss(fit.loss),
        "stages": [[str(name), int(count)] for name, count in fit.stages],
        "explained": float(fit.explained),
        "starts": [float(value) for value in fit.starts],
        "reached": int(fit.starts.reached),
        "final": [None if value is None else float(value) for value in fit.starts.final],
        "scale": float(fit.scale),
        "noise": {
            key: _as_json_numbers(getattr(fit.noise, name)) for key, name in NOISE_FIELDS.items()
        },
        "modes": LABEL_CODEC.encode(list(fit.modes)),
        "labels": LABEL_CODEC.encode(list(fit.labels)),
        "units": list(fit.units),
        "constraints": [_describe_constraint(constraint) for constraint in fit.constraints],
    }


def _describe_loss(loss: Any) -> dict[str, Any]:
    name = type(loss).__name__
    is_known = loss_types().get(name) is type(loss)
    return {
        "name": loss.name if isinstance(loss, ForeignLoss) else name,
        "numbers": _as_floats(asdict(loss)) if is_known else None,
    }


def _as_floats(numbers: dict[str, Any]) -> dict[str, float]:
    """Numbers of any type as JSON can hold them."""
    return {name: float(number) for name, number in numbers.items()}


def _describe_constraint(constraint: Constraint) -> dict[str, Any]:
    if isinstance(constraint, ForeignConstraint):
        return {"name": constraint.name, "numbers": None}
    original: Any = getattr(constraint, "original", constraint)
    name = type(original).__name__
    is_known = CONSTRAINTS.get(name) is type(original)
    return {"name": name, "numbers": asdict(original) if is_known else None}
