"""Load fits that `save` wrote, exactly; .xlsx alone rounds, to 15 digits.

A .csv file is no whole fit; only `load_model` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from robustcp.engines import EntryField, Limits, ListedField, Preprocessing
from robustcp.losses import loss_types
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.simulation import Simulation
from robustcp.noise import Noise
from robustcp.optimize.outcome import STOPPED, Outcome
from robustcp.persist.errors import FileError, reason
from robustcp.persist.formats import FORMATS, check_suffix, save, save_to_temporary_folder
from robustcp.persist.formats.description import (
    CASE_ARRAYS,
    CONSTRAINTS,
    LATER_NOISE_FIELDS,
    LIMIT_ARRAYS,
    NOISE_FIELDS,
    STEPS,
    ForeignConstraint,
    ForeignLoss,
    decode_instance,
)
from robustcp.persist.formats.text import read_csv
from robustcp.persist.labels import LABEL_CODEC
from robustcp.persist.writing import open_atomic
from robustcp.results.diagnostics import FitWarning
from robustcp.results.fit import Fit
from robustcp.starts.candidates import Starts
from robustcp.starts.cases import CaseDiagnostics

__all__ = [
    "check_suffix",
    "load",
    "load_model",
    "save",
    "save_simulation",
    "save_to_temporary_folder",
]


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
        return _decode_fit(*read(path))
    except ImportError as error:
        raise FileError(path, str(error)) from None
    except FileError:
        raise
    except Exception as error:  # whatever a damaged file makes its library raise
        raise FileError(path, f"is not a fit that robustcp saved ({reason(error)})") from None


def _decode_fit(arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> Fit:
    modes = tuple(LABEL_CODEC.decode(metadata["modes"]))
    model = KruskalTensor(
        arrays["weights"], tuple(arrays[f"factor_{n}"] for n in range(len(modes)))
    )
    labels = tuple(LABEL_CODEC.decode(metadata["labels"]))
    sizes = tuple(
        size if names is None else len(names)
        for size, names in zip(model.shape, labels, strict=True)
    )
    if sizes != model.shape:
        raise ValueError(f"labels for a tensor of {sizes}, not of {model.shape}")
    constraints = metadata.get("constraints", [])  # files of the first versions have none
    if len(constraints) not in (0, len(modes)):
        raise ValueError(f"{len(constraints)} constraints for {len(modes)} modes")
    return Fit(
        model=model,
        trace=arrays["trace"],
        result=_decode_outcome(metadata),
        notes=tuple(map(str, metadata.get("notes", ()))),
        warnings=tuple(FitWarning(**warning) for warning in metadata.get("warnings", ())),
        cases=_decode_cases(arrays, metadata),
        loss=decode_instance(metadata["loss"], loss_types(), ForeignLoss),
        stages=tuple((str(name), int(count)) for name, count in metadata["stages"]),
        explained=float(metadata["explained"]),
        starts=Starts(
            metadata["starts"],
            metadata.get("reached"),
            metadata.get("final", ()),
            families=metadata.get("families", ()),
            seconds=metadata.get("start_seconds", ()),
        ),
        noise=_decode_noise(arrays, metadata, model.shape),
        modes=modes,
        labels=labels,
        units=tuple(map(str, metadata.get("units", ()))),
        constraints=tuple(
            decode_instance(constraint, CONSTRAINTS, ForeignConstraint)
            for constraint in constraints
        ),
        limits=Limits.of(tuple(map(arrays.get, LIMIT_ARRAYS)), model.shape),
        preprocessing=_decode_preprocessing(arrays, metadata, model.shape),
        unobserved=tuple(tuple(map(int, slabs)) for slabs in metadata.get("unobserved", ())),
    )


def _decode_preprocessing(
    arrays: dict[str, np.ndarray], metadata: dict[str, Any], shape: tuple[int, ...]
) -> Preprocessing | None:
    """The preprocessing of a fit, if it has any."""
    steps = [STEPS[step["name"]](**step["numbers"]) for step in metadata.get("preprocess", ())]
    if not steps:
        return None
    values = [arrays.get(f"preprocess_{k}") for k in range(len(steps))]
    for value in values:
        if value is not None and np.broadcast_shapes(value.shape, shape) != shape:
            raise ValueError(f"centres or sizes of shape {value.shape}")
    return Preprocessing(shape, tuple(steps), tuple(values))


def _decode_cases(
    arrays: dict[str, np.ndarray], metadata: dict[str, Any]
) -> CaseDiagnostics | None:
    """What is known of samples, if a file holds that."""
    mode = metadata.get("cases")
    if mode is None:
        return None
    return CaseDiagnostics(int(mode), **{name: arrays[f"cases_{name}"] for name in CASE_ARRAYS})


def _decode_noise(
    arrays: dict[str, np.ndarray], metadata: dict[str, Any], shape: tuple[int, ...]
) -> Noise:
    """The noise of a file; files of the first versions hold only its scale."""
    slabs = tuple(arrays.get(f"noise_{n}") for n in range(len(shape)))
    if "noise" not in metadata:
        scale = float(metadata["scale"])
        return Noise.common(scale, len(shape), kind_determined=False)
    saved = dict.fromkeys(LATER_NOISE_FIELDS, 0.0) | metadata["noise"]
    numbers = {name: saved[key] for key, name in NOISE_FIELDS.items()}
    numbers["variance"] = tuple(map(float, numbers["variance"]))
    if any(v is not None and v.shape != (n,) for v, n in zip(slabs, shape, strict=True)):
        raise ValueError("scales of slabs of another shape")
    return Noise(**numbers, slabs=slabs, known_sigmas=_decode_known_deviations(arrays, shape))


def _decode_known_deviations(
    arrays: dict[str, np.ndarray], shape: tuple[int, ...]
) -> EntryField | ListedField | None:
    """Known standard deviations, if a file holds any."""
    if "known_listed" in arrays:
        return ListedField(arrays["known_listed"])
    *vectors, array = (arrays.get(f"known_{n}") for n in range(len(shape) + 1))
    if array is None and all(vector is None for vector in vectors):
        return None
    sizes = zip(vectors, shape, strict=True)
    if any(vector is not None and vector.shape != (size,) for vector, size in sizes):
        raise ValueError("standard deviations of another shape")
    return EntryField(shape, tuple(vectors), array)


def _decode_outcome(metadata: dict[str, Any]) -> Outcome:
    """How a fit ended; files of the first version hold only words, and whether it converged."""
    if "result" in metadata:
        return Outcome(str(metadata["result"]["name"]), str(metadata["result"]["sentence"]))
    was_stopped = str(metadata["status"]).startswith(STOPPED.sentence)
    name = "converged" if metadata["converged"] else "stopped" if was_stopped else "max_sweeps"
    return Outcome(name, str(metadata["status"]))


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
                weights, factor_list = read_csv(path)
                return KruskalTensor(weights, tuple(factor_list)).normalized(-1)
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
    with open_atomic(path) as file:
        np.savez(file, **arrays)
