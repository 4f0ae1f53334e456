"""Fits as files: .npz, or NetCDF with the labels of the modes. They come back exactly."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustcp import losses
from robustcp._typing import Array
from robustcp.cases import Judged
from robustcp.constraints import Constraint, Free, Nonnegative, Smooth, Unimodal
from robustcp.doubts import FitWarning
from robustcp.engines import Listed, Weights, to_host
from robustcp.files.errors import FileError, reason
from robustcp.files.writing import whole, write_bytes
from robustcp.fitted import Fit
from robustcp.io.labels import decoded, encoded, for_netcdf
from robustcp.kruskal import KruskalTensor
from robustcp.losses import Loss
from robustcp.noise import Noise
from robustcp.outcome import STOPPED, Outcome
from robustcp.search import Starts
from robustcp.simulation import Simulation

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

SUFFIXES = (".npz", ".nc")


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


def save(fit: Fit, path: str | Path) -> None:
    """Write a fit to a .npz file, or to a NetCDF file (.nc) with names and labels.

    The file is whole or not there: it is written under another name first.

    Examples
    --------
    >>> import robustcp, tempfile, pathlib
    >>> sim = robustcp.simulate((8, 8, 8), 2, eta=0.1, gamma=1.0, rng=0)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.npz"
    >>> fit = robustcp.cpals(sim.data, 2)
    >>> robustcp.save(fit, path)
    >>> robustcp.load(path).status == fit.status
    True
    """
    path = check_suffix(path)
    if path.suffix == ".nc":
        write_bytes(path, _netcdf(fit))
    else:
        with whole(path) as file:
            np.savez(file, **_arrays(fit), robustcp=np.array(json.dumps(_about(fit))))


def rescue(fit: Fit) -> Path:
    """Save a fit that could not be written where it should be, in the temporary folder."""
    handle, name = tempfile.mkstemp(prefix="robustcp-", suffix=".npz")
    os.close(handle)
    try:
        save(fit, name)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _arrays(fit: Fit) -> dict[str, Any]:
    arrays = {f"factor_{n}": np.asarray(to_host(A)) for n, A in enumerate(fit.factors)}
    if fit.cases is not None:
        arrays |= {f"cases_{name}": getattr(fit.cases, name) for name in CASES}
    return (
        arrays
        | _noise_arrays(fit.noise)
        | {"weights": np.asarray(to_host(fit.weights)), "trace": np.asarray(fit.trace)}
    )


def _netcdf(fit: Fit) -> memoryview:
    """A fit as the content of a NetCDF file.

    It is made in memory: HDF5 crashes where it cannot write. Names and labels that NetCDF cannot
    hold have others in their place; the exact ones are in the attribute `robustcp`.
    """
    from xarray.backends import H5NetCDFStore

    shown = [None if labels is None else for_netcdf(labels) for labels in fit.labels]
    dataset = replace(fit, modes=_dimensions(fit.modes), labels=tuple(shown)).to_xarray()
    dataset["trace"] = ("sweep", np.asarray(fit.trace))
    extra = _noise_arrays(fit.noise)
    if fit.cases is not None:
        extra |= {f"cases_{name}": getattr(fit.cases, name) for name in CASES}
    for name, array in extra.items():
        prefix = name
        while any(str(dimension).startswith(prefix) for dimension in dataset.dims):
            prefix += "_"
        dataset[name] = tuple(f"{prefix}_{n}" for n in range(array.ndim)), array
    dataset.attrs["robustcp"] = json.dumps(_about(fit))
    content = io.BytesIO()
    with importlib.import_module("h5netcdf").File(content, "w") as file:
        dataset.dump_to_store(H5NetCDFStore(file))
    return content.getbuffer()


def _dimensions(modes: Sequence[Any]) -> tuple[str, ...]:
    """Names of dimensions: those of the modes, where a NetCDF file can have them."""
    wanted = [str(mode) for mode in modes]
    parts = (f"{part}_{n}" for part in ("factor", "noise", "known") for n in range(len(wanted) + 1))
    taken = {"component", "sweep", "weights", "trace", "known_listed", *parts}
    names: list[str] = []
    for n, name in enumerate(wanted):
        if name in taken or not _is_dimension(name):
            name = f"mode_{n}"
            while name in taken or name in wanted:
                name += "_"
        taken.add(name)
        names.append(name)
    return tuple(names)


def _is_dimension(name: str) -> bool:
    plain = name.isprintable() and name == name.strip() and len(name.encode()) <= 256
    return plain and "/" not in name and name not in ("", ".", "..")


def load(path: str | Path) -> Fit:
    """A fit that `save` wrote."""
    path = Path(path)
    if not path.exists():
        raise FileError(path, "there is no such file")
    try:
        if path.suffix == ".nc":
            import xarray

            with xarray.open_dataset(path, engine="h5netcdf", decode_cf=False) as opened:
                held = {name: np.array(opened[name].values) for name in opened.data_vars}
                about = json.loads(opened.attrs["robustcp"])
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                held = {name: archive[name] for name in archive.files}
            about = json.loads(str(held["robustcp"]))
        return _fit(held, about)
    except ImportError as error:
        raise FileError(path, f"reading it needs {error.name}") from None
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
        constraints=_constraints(about.get("constraints"), len(modes)),
    )


def _cases(held: dict[str, np.ndarray], about: dict[str, Any]) -> Judged | None:
    """What is known of samples, if a file holds that."""
    mode = about.get("cases")
    if mode is None:
        return None
    return Judged(int(mode), **{name: held[f"cases_{name}"] for name in CASES})


def _noise_arrays(noise: Noise) -> dict[str, np.ndarray]:
    """Scales of slabs, and known standard deviations: of slabs, of all entries, or listed."""
    found = {f"noise_{n}": v for n, v in enumerate(noise.slabs) if v is not None}
    if isinstance(noise.given, Listed):
        return found | {"known_listed": noise.given.values}
    known = () if noise.given is None else (*noise.given.vectors, noise.given.array)
    return found | {
        f"known_{n}": np.asarray(to_host(part)) for n, part in enumerate(known) if part is not None
    }


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


def _plain(value: Any) -> Any:
    """Numbers of any type as JSON can hold them."""
    if isinstance(value, tuple):
        return [float(part) for part in value]
    return bool(value) if isinstance(value, bool) else float(value)


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
        if path.suffix != ".npz" or not path.exists():
            raise
        try:
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


def check_suffix(path: str | Path) -> Path:
    """Refuse file names that do not say how a fit is to be written, or cannot be."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise FileError(path, "a fit is written as .npz or .nc")
    for name in ("xarray", "h5netcdf") if path.suffix == ".nc" else ():
        if importlib.util.find_spec(name) is None:
            raise FileError(
                path, f"writing it needs {name}; install it with: pip install 'robustcp[files]'"
            )
    return path


def _about(fit: Fit) -> dict[str, Any]:
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


def _constraint_described(constraint: Constraint) -> dict[str, Any]:
    if isinstance(constraint, ForeignConstraint):
        return {"name": constraint.name, "numbers": None}
    named: Any = getattr(constraint, "original", constraint)
    name = type(named).__name__
    known = CONSTRAINTS.get(name) is type(named)
    return {"name": name, "numbers": asdict(named) if known else None}


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
