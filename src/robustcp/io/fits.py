"""Fits from files: they come back exactly."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from robustcp.cases import Judged
from robustcp.constraints import Constraint
from robustcp.doubts import FitWarning
from robustcp.engines import Listed, Weights
from robustcp.files.errors import FileError, reason
from robustcp.files.labels import decoded
from robustcp.files.writing import whole
from robustcp.fitted import Fit
from robustcp.kruskal import KruskalTensor
from robustcp.losses import Loss
from robustcp.noise import Noise
from robustcp.outcome import STOPPED, Outcome
from robustcp.saving import FORMATS, check_suffix, rescue, save
from robustcp.saving.described import (
    CASES,
    CONSTRAINTS,
    LOSSES,
    NOISE,
    ForeignConstraint,
    ForeignLoss,
)
from robustcp.saving.text import read_csv
from robustcp.search import Starts
from robustcp.simulation import Simulation

__all__ = ["check_suffix", "load", "load_model", "rescue", "save", "save_simulation"]


def load(path: str | Path) -> Fit:
    """A fit that `save` wrote: .npz, .nc, .json, .mat or .xlsx.

    Examples
    --------
    >>> import pathlib, robustcp, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.npz"
    >>> fit = robustcp.cp(robustcp.simulate((6, 5, 4), 1, eta=0.1, gamma=1.0, rng=0).data, 1)
    >>> robustcp.save(fit, path)
    >>> robustcp.load(path).objective == fit.objective
    True
    """
    path = Path(path)
    if not path.exists():
        raise FileError(path, "there is no such file")
    try:
        read = FORMATS[path.suffix if path.suffix in FORMATS else ".npz"].read
        return _fit(*read(path))
    except ImportError as error:
        raise FileError(path, str(error)) from None
    except FileError:
        raise
    except Exception as error:  # whatever a damaged file makes its library raise
        raise FileError(path, f"is not a fit that robustcp saved ({reason(error)})") from None


def _fit(held: dict[str, np.ndarray], about: dict[str, Any]) -> Fit:
    modes = tuple(map(decoded, about["modes"]))
    model = KruskalTensor(held["weights"], tuple(held[f"factor_{n}"] for n in range(len(modes))))
    labels = tuple(
        None if names is None else [decoded(name) for name in names] for names in about["labels"]
    )
    sizes = tuple(size if names is None else len(names)
                  for size, names in zip(model.shape, labels, strict=True))  # fmt: skip
    if sizes != model.shape:
        raise ValueError(f"labels for a tensor of {sizes}, not of {model.shape}")
    return Fit(
        model=model,
        trace=held["trace"],
        result=_result(about),
        notes=tuple(map(str, about.get("notes", ()))),
        warnings=tuple(FitWarning(**warning) for warning in about.get("warnings", ())),
        cases=_cases(held, about),
        loss=_loss(about["loss"]),
        stages=tuple((str(name), int(count)) for name, count in about["stages"]),
        explained=float(about["explained"]),
        starts=Starts(about["starts"], about.get("reached"), about.get("final", ())),
        noise=_noise(held, about, model.shape),
        modes=modes,
        labels=labels,
        units=tuple(map(str, about.get("units", ()))),
        constraints=_constraints(about.get("constraints"), len(modes)),
    )


def _cases(held: dict[str, np.ndarray], about: dict[str, Any]) -> Judged | None:
    """What is known of samples, if a file holds that."""
    mode = about.get("cases")
    if mode is None:
        return None
    return Judged(int(mode), **{name: held[f"cases_{name}"] for name in CASES})


def _noise(held: dict[str, np.ndarray], about: dict[str, Any], shape: tuple[int, ...]) -> Noise:
    """The noise of a file; files of the first versions hold only its scale."""
    slabs = tuple(held.get(f"noise_{n}") for n in range(len(shape)))
    if "noise" not in about:
        scale = float(about["scale"])
        return Noise.common(scale, len(shape), looked=False)
    numbers = {name: about["noise"][name] for name in NOISE}
    numbers["variance"] = tuple(map(float, numbers["variance"]))
    if any(v is not None and v.shape != (n,) for v, n in zip(slabs, shape, strict=True)):
        raise ValueError("scales of slabs of another shape")
    return Noise(**numbers, slabs=slabs, given=_known(held, shape))


def _known(held: dict[str, np.ndarray], shape: tuple[int, ...]) -> Weights | Listed | None:
    """Known standard deviations, if a file holds any."""
    if "known_listed" in held:
        return Listed(held["known_listed"])
    *vectors, array = (held.get(f"known_{n}") for n in range(len(shape) + 1))
    if array is None and all(vector is None for vector in vectors):
        return None
    sizes = zip(vectors, shape, strict=True)
    if any(vector is not None and vector.shape != (size,) for vector, size in sizes):
        raise ValueError("standard deviations of another shape")
    return Weights(shape, tuple(vectors), array)


def _result(about: dict[str, Any]) -> Outcome:
    """How a fit ended; files of the first version hold only words, and whether it converged."""
    if "result" in about:
        return Outcome(str(about["result"]["name"]), str(about["result"]["sentence"]))
    stopped = str(about["status"]).startswith(STOPPED.sentence)
    name = "converged" if about["converged"] else "stopped" if stopped else "max_sweeps"
    return Outcome(name, str(about["status"]))


def load_model(path: str | Path) -> KruskalTensor:
    """The model of a fit that `save` wrote, or the truth of a simulation."""
    path = Path(path)
    try:
        return load(path).model
    except FileError:
        if path.suffix not in (".npz", ".csv") or not path.exists():
            raise
        try:
            if path.suffix == ".csv":
                weights, parts = read_csv(path)
                return KruskalTensor(weights, tuple(parts)).normalized(-1)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                order = sum(name.startswith("factor_") for name in archive.files)
                factors = tuple(archive[f"factor_{n}"] for n in range(order))
                return KruskalTensor(archive["weights"], factors).normalized(-1)
        except Exception as error:
            raise FileError(path, f"holds no model ({reason(error)})") from None


def save_simulation(sim: Simulation, path: str | Path) -> None:
    """Write a simulated tensor and its truth to a .npz file."""
    arrays: dict[str, Any] = {f"factor_{n}": A for n, A in enumerate(sim.truth.factors)}
    arrays |= {"weights": sim.truth.weights, "data": sim.data, "artifacts": sim.artifacts}
    with whole(path) as file:
        np.savez(file, **arrays)


def _loss(described: dict[str, Any]) -> Loss:
    name, numbers = str(described["name"]), described["numbers"]
    if numbers is None or name not in LOSSES:
        return ForeignLoss(name)
    kind = LOSSES[name]
    if set(numbers) != {part.name for part in fields(kind)}:
        raise ValueError(f"the loss {name} has other parameters than {', '.join(numbers)}")
    if any(type(number) not in (int, float) for number in numbers.values()):
        raise ValueError(f"a parameter of the loss {name} is not a number")
    made: Loss = kind(**numbers)
    return made


def _constraints(described: Any, order: int) -> tuple[Constraint, ...]:
    """Those of a file; files of the first versions hold none."""
    if described is None:
        return ()
    if len(described) != order:
        raise ValueError(f"{len(described)} constraints for {order} modes")
    return tuple(map(_constraint, described))


def _constraint(described: dict[str, Any]) -> Constraint:
    name, numbers = str(described["name"]), described["numbers"]
    if numbers is None or name not in CONSTRAINTS:
        return ForeignConstraint(name)
    kind = CONSTRAINTS[name]
    if set(numbers) != {part.name for part in fields(kind)}:
        raise ValueError(f"the constraint {name} has other parameters than {', '.join(numbers)}")
    made: Constraint = kind(**numbers)  # which refuses what is not a number
    return made
