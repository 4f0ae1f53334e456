"""A fit as arrays and JSON, which files of all formats but .csv hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util.typing import Array
from robustcp.constraints import (
    Constraint,
    Fixed,
    Free,
    Monotone,
    Nonnegative,
    Orthogonal,
    Simplex,
    Smooth,
    Sparse,
    Unimodal,
)
from robustcp.engines import (
    Anscombe,
    Center,
    ListedField,
    Log,
    PreprocessingStep,
    Scale,
    Sqrt,
    to_host,
)
from robustcp.losses import Loss, loss_types
from robustcp.noise import Noise
from robustcp.persist.labels import LABEL_CODEC

if TYPE_CHECKING:
    from robustcp.results.fit import Fit

#: What a file of a fit holds: arrays by name, and JSON.
FitContent = tuple[dict[str, np.ndarray], dict[str, Any]]

#: The constraints that a file may name; a constraint of another type is saved, and loaded, as its
#: name only (`ForeignConstraint`).
CONSTRAINTS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Fixed,
        Free,
        Monotone,
        Nonnegative,
        Orthogonal,
        Simplex,
        Smooth,
        Sparse,
        Unimodal,
    )
}

#: The numbers of a noise: their keys in files, and the attributes of `Noise`. Where the names
#: differ, files keep the name that the attribute had when the format was made.
#: Files of earlier versions lack those of `LATER_NOISE_FIELDS`.
NOISE_FIELDS = {
    "sigma": "sigma", "variance": "variance", "least": "least", "above": "above", "below": "below",
    "clean": "clean", "beyond": "rejected_share", "looked": "kind_determined",
    "shifted": "shifted", "shift": "shift",
}  # fmt: skip

LATER_NOISE_FIELDS = ("shifted", "shift")

#: The arrays of `CaseDiagnostics`, with a value for each sample.
CASE_ARRAYS = ("weights", "distances", "cutoffs")

#: The steps of preprocessing, by the name that a file gives them.
STEPS: dict[str, type[PreprocessingStep]] = {
    kind.__name__: kind for kind in (Anscombe, Center, Log, Scale, Sqrt)
}

#: The limits of entries, as arrays that broadcast to the data.
LIMIT_ARRAYS = ("limits_low", "limits_high")


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
        return self.solve(factor)


def fit_arrays(fit: Fit) -> dict[str, np.ndarray]:
    """The arrays of a fit by name."""
    arrays = {f"factor_{n}": np.asarray(to_host(A)) for n, A in enumerate(fit.factors)}
    if fit.cases is not None:
        arrays |= {f"cases_{name}": getattr(fit.cases, name) for name in CASE_ARRAYS}
    if fit.limits is not None:
        limits = zip(LIMIT_ARRAYS, fit.limits.arrays, strict=True)
        arrays |= {name: array for name, array in limits if array is not None}
    if fit.preprocessing is not None:
        values = enumerate(fit.preprocessing.values)
        arrays |= {f"preprocess_{k}": value for k, value in values if value is not None}
    return (
        arrays
        | noise_arrays(fit.noise)
        | {"weights": np.asarray(to_host(fit.weights)), "trace": np.asarray(fit.trace)}
    )


def noise_arrays(noise: Noise) -> dict[str, np.ndarray]:
    """Scales of slabs, and known standard deviations: of slabs, of all entries, or listed."""
    arrays = {f"noise_{n}": v for n, v in enumerate(noise.slabs) if v is not None}
    if isinstance(noise.known_sigmas, ListedField):
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


def fit_metadata(fit: Fit) -> dict[str, Any]:
    """The rest of a fit, as JSON."""
    return {
        "result": asdict(fit.result),
        "notes": list(fit.notes),
        "warnings": [asdict(warning) for warning in fit.warnings],
        "cases": None if fit.cases is None else fit.cases.mode,
        "loss": _describe_instance(fit.loss, loss_types()),
        "stages": [[str(name), int(count)] for name, count in fit.stages],
        "explained": float(fit.explained),
        "starts": [float(value) for value in fit.starts],
        "reached": int(fit.starts.reached),
        "final": [None if value is None else float(value) for value in fit.starts.final],
        "families": list(fit.starts.families),
        "start_seconds": [float(value) for value in fit.starts.seconds],
        "scale": float(fit.scale),
        "noise": {
            key: _as_plain_numbers(getattr(fit.noise, name)) for key, name in NOISE_FIELDS.items()
        },
        "modes": LABEL_CODEC.encode(list(fit.modes)),
        "labels": LABEL_CODEC.encode(list(fit.labels)),
        "units": list(fit.units),
        **_describe_preprocessing(fit),
        "constraints": [
            _describe_instance(constraint, CONSTRAINTS) for constraint in fit.constraints
        ],
        "unobserved": [list(slabs) for slabs in fit.unobserved],
    }


def _describe_preprocessing(fit: Fit) -> dict[str, Any]:
    """The steps of preprocessing, and in words what the units of the numbers are."""
    if fit.preprocessing is None:
        return {}
    return {
        "preprocess": [
            {"name": type(step).__name__, "numbers": asdict(step)}  # type: ignore[call-overload]
            for step in fit.preprocessing.steps
        ],
        "values": f"weights and factors are of data {fit.preprocessing.describe(fit.modes)}",
    }


def _as_plain_numbers(value: Any) -> Any:
    """Numbers of any type as JSON can hold them."""
    if isinstance(value, tuple):
        return [float(number) for number in value]
    return value if isinstance(value, bool) else float(value)


def _describe_instance(value: Any, known_types: Mapping[str, type[Any]]) -> dict[str, Any]:
    """The name and the numbers of a loss or a constraint; of a type that is not known, its name."""
    if isinstance(value, ForeignLoss | ForeignConstraint):
        return {"name": value.name, "numbers": None}
    original = getattr(value, "original", value)
    name = type(original).__name__
    if known_types.get(name) is not type(original):
        return {"name": name, "numbers": None}
    numbers = asdict(original)
    if isinstance(value, Loss):
        numbers = {key: float(number) for key, number in numbers.items()}
    return {"name": name, "numbers": numbers}


def decode_instance(
    description: dict[str, Any], known_types: Mapping[str, type[Any]], foreign_type: type[Any]
) -> Any:
    """The loss or constraint that a file describes."""
    name, numbers = str(description["name"]), description["numbers"]
    if numbers is None or name not in known_types:
        return foreign_type(name)
    class_ = known_types[name]
    differences = set(numbers) ^ {field.name for field in fields(class_)}
    may_lack = set(class_.later_fields) - set(numbers) if issubclass(class_, Loss) else set()
    if differences - may_lack:
        raise ValueError(f"{name} has other parameters than {', '.join(numbers)}")
    if issubclass(class_, Loss) and any(type(x) not in (int, float) for x in numbers.values()):
        raise ValueError(f"a parameter of the loss {name} is not a number")
    return class_(**numbers)  # the class checks the values
