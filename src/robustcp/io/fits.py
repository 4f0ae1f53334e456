"""Fits as files: .npz, or NetCDF with the labels of the modes. They come back exactly."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustcp import losses
from robustcp._typing import Array
from robustcp.engines import to_host
from robustcp.fitted import Fit
from robustcp.io.reading import FileError
from robustcp.kruskal import KruskalTensor
from robustcp.losses import Loss
from robustcp.outcome import Outcome
from robustcp.search import Starts

SUFFIXES = (".npz", ".nc")


@dataclass(frozen=True)
class ForeignLoss(Loss):
    """The name of a loss that this package does not know."""

    name: str = ""

    def value(self, r: Array) -> Array:
        raise NotImplementedError(f"the file says only the name of the loss, {self.name}")

    slope = curvature = value


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
        dataset = fit.to_xarray()
        dataset["trace"] = ("sweep", np.asarray(fit.trace))
        dataset.attrs["robustcp"] = json.dumps(_about(fit))
        write_whole(path, lambda temporary: dataset.to_netcdf(temporary, engine="h5netcdf"))
        return
    arrays: dict[str, Any] = {
        f"factor_{n}": np.asarray(to_host(A)) for n, A in enumerate(fit.factors)
    }
    arrays["weights"] = np.asarray(to_host(fit.weights))
    arrays["trace"] = np.asarray(fit.trace)
    arrays["robustcp"] = np.array(json.dumps(_about(fit)))

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)

    write_whole(path, write)


def load(path: str | Path) -> Fit:
    """A fit that `save` wrote."""
    path = Path(path)
    if not path.exists():
        raise FileError(f"{path}: there is no such file")
    try:
        if path.suffix == ".nc":
            import xarray

            with xarray.open_dataset(path, engine="h5netcdf") as opened:
                held = {name: np.array(opened[name].values) for name in opened.data_vars}
                about = json.loads(opened.attrs["robustcp"])
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                held = {name: archive[name] for name in archive.files}
            about = json.loads(str(held["robustcp"]))
        factors = tuple(held[f"factor_{n}"] for n in range(len(about["modes"])))
        return Fit(
            model=KruskalTensor(held["weights"], factors),
            trace=held["trace"],
            result=Outcome(str(about["result"]["name"]), str(about["result"]["sentence"])),
            notes=tuple(map(str, about["notes"])),
            loss=_loss(about["loss"]),
            stages=tuple((str(name), int(count)) for name, count in about["stages"]),
            explained=float(about["explained"]),
            starts=Starts(about["starts"]),
            scale=float(about["scale"]),
            modes=tuple(about["modes"]),
            labels=tuple(about["labels"]),
        )
    except ImportError as error:
        raise FileError(f"{path}: reading it needs {error.name}") from None
    except Exception as error:  # whatever a damaged file makes its library raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"{path}: is not a fit that robustcp saved ({text[:200]})") from None


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
                names = sorted(name for name in archive.files if name.startswith("factor_"))
                factors = tuple(archive[name] for name in names)
                return KruskalTensor(archive["weights"], factors).normalized(-1)
        except Exception as error:
            text = " ".join(str(error).split())
            raise FileError(f"{path}: holds no model ({text[:200]})") from None


def check_suffix(path: str | Path) -> Path:
    """Refuse file names that do not say how a fit is to be written, or cannot be."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise FileError(f"{path}: a fit is written as .npz or .nc")
    for name in ("xarray", "h5netcdf") if path.suffix == ".nc" else ():
        if importlib.util.find_spec(name) is None:
            raise FileError(
                f"{path}: writing it needs {name}; install it with: pip install 'robustcp[files]'"
            )
    return path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be written under another name in its folder, then give it its own."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, prefix=".writing-", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _about(fit: Fit) -> dict[str, Any]:
    return {
        "result": asdict(fit.result),
        "notes": list(fit.notes),
        "loss": _described(fit.loss),
        "stages": [list(stage) for stage in fit.stages],
        "explained": fit.explained,
        "starts": list(fit.starts),
        "scale": fit.scale,
        "modes": list(fit.modes),
        "labels": [None if names is None else [_label(x) for x in names] for names in fit.labels],
    }


def _label(label: Any) -> Any:
    return label if isinstance(label, str | int | float | bool) else str(label)


def _described(loss: Any) -> dict[str, Any]:
    name = type(loss).__name__
    known = getattr(losses, name, None) is type(loss) and is_dataclass(loss)
    return {"name": name, "numbers": asdict(loss) if known else None}


def _loss(described: dict[str, Any]) -> Loss:
    name, numbers = described["name"], described["numbers"]
    if numbers is None:
        return ForeignLoss(name)
    made: Loss = getattr(losses, name)(**numbers)
    return made
