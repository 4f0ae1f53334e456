"""Fit a corpus of small problems through the public API, and compare the bits of the results.

    python scripts/corpus.py run --out old.json [--tree ../before] [--only 'loss/*']
    python scripts/corpus.py compare old.json new.json [--bits] [--only 'loss/*']
    python scripts/corpus.py files --out FOLDER [--tree ../before]
    python scripts/corpus.py load FOLDER [--tree ../after] [--bits] [--only 'checkpoint/*']

For a change of the code that must not change results. `run` writes digests of all that a fit says,
part by part, and its arrays to an .npz file beside; --tree names another tree whose src is used.
`compare` lists the results that differ, and how. Sentences, names of stages and the like are kept
apart from numbers, and --bits leaves them out. `files` saves fits in every format, and checkpoints
of interrupted fits; `load` loads and resumes them and compares with what the tree that wrote them
got. Bits are those of one machine and its versions. The exit status is 1 if anything differs. Needs
the extras fast, files, gpu, scale and sklearn, and array-api-strict.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import itertools
import json
import logging
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, reduce
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = (12, 10, 9)
#: A result is that of a call; for fits, what they say of the data is part of it.
Entries = dict[str, tuple[Callable[..., Any], Any]]
#: Parts of results, or of their parts, that may be reworded.
TEXTS = {
    "status", "texts", "notes", "note", "stages", "loss", "reason", "words", "ended", "sentence",
    "constraints", "printed", "report", "raised", "log", "python warnings",
}  # fmt: skip
#: Documented attributes of fits, and of other results by class.
FIT = (
    "weights factors trace objective sweeps converged status notes stages explained shares modes "
    "labels units"
)
ATTRIBUTES = {
    "KruskalTensor": "weights factors",
    "Ensemble": "ranks fits models costs errors similarities",
    "RankProfile": "ranks error gain stability agreement consistency noise spread rank runner_up "
    "mode reason",
    "Replicability": "mode fit models names kept pairs scores congruences score came_back",
    "Uncertainty": "method mode level low high errors came_back count failed notes",
    "Distances": "mode name labels score residual score_before residual_before score_cutoff "
    "residual_cutoff shares kinds kinds_before bad only_cells note",
    "Spectra": "emission excitation emission_loadings excitation_loadings scores samples peaks",
    "Simulation": "data truth artifacts sigma",
}
#: Fits that are saved in every format.
SAVED = (
    "data/one-sided/cp", "data/rank too low/cp", "data/one-sided/cpals", "container/float32/cp",
    "cases/by name", "noise/known array/cp", "noise/known vectors/cp", "noise/signal*slabs/cp",
    "noise/known, Observed", "constraint/each/cp", "loss/Huber", "loss/own", "weighted_median/C",
)  # fmt: skip
FORMATS = ("npz", "nc", "json", "mat", "xlsx", "csv")
#: Calls that are interrupted, in what, and after how many steps of it.
INTERRUPTED = (
    *(("data/one-sided/cp", *at) for at in
      (("search", 5), ("search", 60), ("sweep", 1), ("sweep", 9), ("stop", 5), ("end", 0))),
    ("data/outlying fibres/cp", "search", 150), ("data/outlying fibres/cp", "sweep", 7),
    ("data/missing/cp", "search", 30), ("container/Observed/cp", "sweep", 5),
    ("noise/signal*slabs/cp", "sweep", 8), ("noise/known vectors/cp", "sweep", 8),
    ("constraint/Unimodal/cp", "search", 40), ("constraint/each/cp", "sweep", 6),
    ("cases/0", "search", 80), ("cases/0", "sweep", 6), ("loss/sequence", "sweep", 4),
    ("starts/7/cp", "sweep", 6), ("data/missing/cpal1", "sweep", 8),
    ("starts/7/cpal1", "sweep", 60), ("fixed smoothing/C", "sweep", 10),
    ("data/missing/cpals", "sweep", 4), ("linear_program/C", "sweep", 2),
    ("weighted_median/C", "sweep", 3), ("container/Dask/cp", "sweep", 3),
    ("rank_profile/gaps", "progress", 2),
)  # fmt: skip


# Data


def factors(shape: tuple[int, ...] = SHAPE, rank: int = 2, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, 1])
    return [rng.standard_normal((size, rank)) for size in shape]


def full(A: list[np.ndarray]) -> np.ndarray:
    """The tensor of some factors, without BLAS."""
    columns = zip(*(B.T for B in A), strict=True)
    return sum(reduce(np.multiply.outer, each) for each in columns)


def tensor(
    shape: tuple[int, ...] = SHAPE, rank: int = 2, seed: int = 0, *, bad: float = 0.1,
    noise: Any = 0.1, positive: bool = False, missing: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """A CP model with Gaussian noise, one-sided outliers and missing entries."""
    rng, A = np.random.default_rng([seed, 2]), factors(shape, rank, seed)
    X = full([np.abs(B) for B in A] if positive else A) + noise * rng.standard_normal(shape)
    X[rng.random(shape) < bad] += 5.0
    X[rng.random(shape) < missing] = np.nan
    return X


@cache
def kinds_of_data() -> dict[str, tuple[np.ndarray, int]]:
    """Data of many kinds, each with the rank of its fit."""
    X, P, rng = tensor(), tensor(positive=True), np.random.default_rng(3)
    either = np.where(rng.random(SHAPE) < 0.15, rng.choice([-6.0, 6.0], SHAPE), 0.0)
    gross, fill, constant, fibres, foreign, empty = (X.copy() for _ in range(6))
    gross[1, 2, 3], fill[rng.random(SHAPE) < 0.05], foreign[:3] = 1e6, -999.0, 4 + X[3:6]
    constant[2:5, 3], empty[4] = constant[2:5, 3, :1], np.nan
    fibres[:, rng.random(SHAPE[1:]) < 0.15] += 8.0
    close = full([A[:, :1] + [0, 0.1] * A[:, 1:] for A in factors()])
    scales = np.exp(rng.standard_normal(12))[:, None, None]
    em, ex = np.arange(14)[:, None], np.arange(11)
    peaks = [np.exp(-((em - c) ** 2) / 9 - ((ex - d) ** 2) / 6) for c, d in ((4, 3), (9, 7))]
    spectra = sum(np.multiply.outer(rng.random(8) + 0.2, peak) for peak in peaks)
    spectra += 0.01 * rng.standard_normal(spectra.shape) + 2 * (em == ex)
    return {
        "clean": (tensor(bad=0), 2), "noise-free": (tensor(noise=0.0), 2), "one-sided": (X, 2),
        "two-sided": (tensor(bad=0) + either, 2), "most bad": (tensor(positive=True, bad=0.6), 2),
        "gross outlier": (gross, 2), "fill values": (fill, 2), "constant fibres": (constant, 2),
        "outlying fibres": (fibres, 2), "bad samples": (foreign, 2), "scatter": (spectra, 2),
        "heteroscedastic": (tensor(noise=0.1 * scales), 2), "empty slab": (empty, 2),
        "counts": (rng.poisson(np.abs(P)).astype(float), 2), "missing": (tensor(missing=0.3), 2),
        "growing with the signal": (P * np.exp(0.2 * rng.standard_normal(SHAPE)), 2),
        "thin rows": (tensor(missing=0.85), 2), "collinear": (close + 0.01 * either, 2),
        "rank too low": (tensor(rank=4), 2), "rank too high": (X, 4), "rank 5": (tensor(rank=5), 5),
        "rank above sizes": (tensor((7, 4, 3)), 5), "long mode": (tensor((300, 4, 3)), 2),
        "sparse": (np.where(rng.random(SHAPE) < 0.7, 0.0, P), 2), "ones": (np.ones((5, 4, 3)), 1),
        "zero": (np.zeros((5, 4, 3)), 2), "one slab": (X[:1], 2), "tiny units": (1e-200 * X, 2),
        "huge units": (1e200 * X, 2), "Cauchy noise": (rng.standard_cauchy(SHAPE), 1),
    }  # fmt: skip


def data_in_containers(scratch: Path) -> dict[str, Any]:
    """Much the same data in every container that the estimators take."""
    import array_api_strict
    import dask.array
    import h5py
    import pandas
    import torch
    import xarray
    import zarr

    from robustcp import Observed, as_engine, read

    X, gaps, large = tensor(), tensor(missing=0.2), tensor((60, 50, 40), 3)
    at, values = np.argwhere(~np.isnan(gaps)), gaps[~np.isnan(gaps)]
    order, chunks = np.random.default_rng(0).permutation(len(at)), dask.array.from_array
    coords = {"sample": [f"S{k:02}" for k in range(12)], "emission": 300.0 + 5 * np.arange(10),
              "time": np.arange(9).astype("datetime64[D]")}  # fmt: skip
    labelled = xarray.DataArray(X, coords)
    labelled["emission"].attrs["units"] = "nm"
    series = labelled.to_series()
    hdf = h5py.File("x.h5", "w", driver="core", backing_store=False)
    table = pandas.DataFrame(at, columns=["i", "j", "k"]).assign(value=values)
    (scratch / "parts").mkdir()
    for part in range(3):
        table[part::3].to_parquet(scratch / "parts" / f"{part}.parquet")
    np.save(scratch / "x.npy", np.asfortranarray(X))
    table.to_csv(scratch / "x.csv", index=False)
    labelled.to_netcdf(scratch / "x.nc", engine="h5netcdf")
    data = {
        "C": X, "Fortran": np.asfortranarray(X), "transposed": X.transpose(2, 0, 1), "NaN": gaps,
        "strided": np.repeat(X, 2, axis=1)[:, ::2], "Fortran with NaN": np.asfortranarray(gaps),
        "float32": X.astype(np.float32), "float32 with NaN": gaps.astype(np.float32),
        "float16": X.astype(np.float16), "uint8": (np.clip(X, -3, 9) * 20 + 60).astype(np.uint8),
        "int64": np.rint(10 * X).astype(np.int64), "masked": np.ma.array(X, mask=np.isnan(gaps)),
        "nested lists": X.tolist(), "Observed": Observed(at[order], values[order], SHAPE),
        "Observed, float32": Observed(at, values.astype(np.float32), SHAPE),
        "Dask": chunks(X, chunks=(5, 10, 4)), "Dask with NaN": chunks(gaps, chunks=(7, 3, 9)),
        "Dask, memory": as_engine(chunks(X, chunks=(5, 10, 4)), memory="2GB"),
        "Zarr": zarr.create_array(zarr.storage.MemoryStore(), data=gaps, chunks=(4, 5, 9)),
        "HDF5": hdf.create_dataset("X", data=X, chunks=(6, 5, 3)), "xarray": labelled,
        "xarray of Dask": labelled.chunk({"sample": 5}), "pandas Series": series,
        "pandas DataFrame": series.rename("value").reset_index(), "few entries": series[::3],
        "torch": torch.tensor(X), "torch, float32": torch.tensor(X, dtype=torch.float32),
        "torch with NaN": torch.tensor(gaps), "array API": array_api_strict.asarray(X),
        "device": as_engine(X, device="cpu", memory="1MB"), "one thread": as_engine(X, threads=1),
        "large, one thread": as_engine(large, threads=1),
        "large, two threads": as_engine(large, threads=2),
        "large, float32": as_engine(large.astype(np.float32), threads=2),
        "large, Dask": chunks(large, chunks=(25, 50, 20)),
        "not compiled": as_engine(gaps, compiled=False),
        "Observed, not compiled": as_engine(Observed(at, values, SHAPE), compiled=False),
        "read npy": read(scratch / "x.npy"), "read netCDF": read(scratch / "x.nc"),
        "read csv": read(scratch / "x.csv", absent="missing"),
        "read netCDF, lazy": read(scratch / "x.nc", lazy=True),
        "read Parquet, lazy": read(scratch / "parts", absent="missing", lazy=True),
    }  # fmt: skip
    if torch.cuda.is_available():
        data["cuda"] = as_engine(X, device="cuda")
        data["cuda, streamed"] = as_engine(large, device="cuda", memory="1MB")
    return data


# The corpus


@dataclass(frozen=True)
class Charbonnier:
    """A loss of a user's: any object with three methods."""

    value = staticmethod(lambda r: (1 + r * r) ** 0.5)
    slope = staticmethod(lambda r: r / (1 + r * r) ** 0.5)
    curvature = staticmethod(lambda r: 1 / (1 + r * r) ** 0.5)


def corpus(scratch: Path) -> Entries:
    import robustcp as rc

    X, gaps, held = tensor(), tensor(missing=0.2), data_in_containers(scratch)
    rng, A, near = np.random.default_rng(5), factors(), rc.cpals(X, 2)
    W = rng.random(SHAPE) * (rng.random(SHAPE) > 0.1)
    foreign, positive = kinds_of_data()["bad samples"][0], rc.Nonnegative()
    constraints = {
        "Nonnegative": {1: positive}, "Smooth": {1: rc.Smooth(0.3)}, "Unimodal": {1: rc.Unimodal()},
        "strong Smooth": {0: rc.Smooth(1e4)}, "all Nonnegative": dict.fromkeys(range(3), positive),
        "Smooth with coordinates": {1: rc.Smooth(0.3, coordinates=np.arange(10.0) ** 2)},
        "each": {0: positive, 1: rc.Smooth(0.1, nonnegative=True), 2: rc.Unimodal()},
    }  # fmt: skip
    losses = {
        "L1": rc.L1(1e-4), "Huber": rc.Huber(0.3), "Tukey": rc.Tukey(0.8), "Cauchy": rc.Cauchy(0.4),
        "Welsch": rc.Welsch(0.5), "Contaminated": rc.Contaminated(0.1), "own": Charbonnier(),
        "Contaminated above": rc.Contaminated(0.1, 0.1, 0.01), "Quantile": rc.Quantile(0.3, 1e-4),
        "Contaminated below": rc.Contaminated(0.1, 0.01, 0.1), "least squares": rc.LeastSquares(),
        "sequence": [rc.Huber(0.3), rc.Tukey(0.8)],
    }  # fmt: skip
    of_cp = {
        **{f"noise/{kind}": {"noise": kind} for kind in
           ("common", "slabs", "signal", "signal*slabs", 0, (0, 2), 0.1)},
        "noise/known array": {"noise": 0.1 + 0.1 * rng.random(SHAPE)},
        "noise/known vectors": {"noise": [0.1 + rng.random(12), None, None]},
        "nonnegative/all": {"nonnegative": True}, "nonnegative/modes": {"nonnegative": [0, 2]},
        "fixed/one": {"fixed": (0,), "init": A}, "fixed/two": {"fixed": (0, 2), "init": near},
        "fixed/loss": {"fixed": (1,), "init": A, "loss": rc.Huber(0.3)},
    }  # fmt: skip
    of_all = {
        "weights/array": {"entry_weights": W}, "weights/broadcast": {"entry_weights": W[:1]},
        "weights/vectors": {"entry_weights": [rng.random(12), None, rng.random(9)]},
        "weights/mask": {"entry_weights": W > 0.3}, "init/nvecs": {"init": "nvecs"},
        "init/random": {"init": "random", "rng": 3}, "init/list": {"init": A},
        "init/Fit": {"init": near},
        "init/KruskalTensor": {"init": rc.KruskalTensor.from_factors(A)},
        "starts/1": {"starts": 1}, "starts/7": {"starts": 7, "rng": 1}, "rng": {"rng": 11},
        "tol/0": {"tol": 0.0, "max_sweeps": 12}, "tol/1e-9": {"tol": 1e-9},
        "max_sweeps": {"max_sweeps": 3},
        "callback/stop": {"callback": lambda state: state.sweep >= 4},
    }  # fmt: skip
    entries: Entries = {}

    def add(name: str, estimator: Any, X: Any, rank: int = 2, **options: Any) -> None:
        entries[name] = partial(estimator, X, rank, **options), X

    for by, estimator in {"cp": rc.cp, "cpal1": rc.cpal1, "cpals": rc.cpals}.items():
        for name, (data, rank) in kinds_of_data().items():
            add(f"data/{name}/{by}", estimator, data, rank)
        for name, data in held.items():
            add(f"container/{name}/{by}", estimator, data)
        for shape in ((12, 9), (8, 7, 6), (6, 5, 4, 5), (5, 4, 4, 3, 4)):
            add(f"order/{len(shape)}/{by}", estimator, tensor(shape))
            add(f"order/{len(shape)} with NaN/{by}", estimator, tensor(shape, missing=0.1))
        for name, modes in constraints.items():
            add(f"constraint/{name}/{by}", estimator, np.abs(X), constraints=modes)
        for name, options in (of_all | of_cp if by == "cp" else of_all).items():
            add(f"{name}/{by}", estimator, X if by == "cp" else gaps, **options)
    for name, loss in losses.items():
        add(f"loss/{name}", rc.cp, X, loss=loss)
        add(f"loss/{name}, weights and NaN", rc.cp, gaps, loss=loss, entry_weights=W)
        for container in ("float32", "Observed", "not compiled"):
            add(f"loss/{name}, {container}", rc.cp, held[container], loss=loss)
    add("cases/0", rc.cp, foreign, cases=0)
    add("cases/nonnegative", rc.cp, np.abs(foreign), cases=0, nonnegative=True)
    add("cases/noise", rc.cp, foreign, cases=0, noise="slabs")
    add("cases/share", rc.cp, foreign, cases=rc.Cases(0, share=0.4), starts=5)
    add("cases/by name", rc.cp, held["xarray"], cases="sample", nonnegative=["emission"])
    sigma = 0.1 + rng.random(np.count_nonzero(~np.isnan(gaps)))
    add("noise/known, Observed", rc.cp, held["Observed"], noise=sigma)
    fixed = partial(rc.cpal1, smoothing="fixed", max_sweeps=60)
    for name in ("C", "NaN", "Observed", "torch, float32"):
        add(f"fixed smoothing/{name}", fixed, held[name])
        add(f"fixed smoothing/{name}, inner", fixed, held[name], inner=5, epsilon=1e-6)
    for name, data in {"C": X, "order 4": tensor((6, 5, 4, 5))}.items():
        add(f"linear_program/{name}", rc.baselines.linear_program, data, max_sweeps=4)
        add(f"weighted_median/{name}", rc.baselines.weighted_median, data, starts=2)
    add("cpal1/mu", rc.cpal1, X, mu=1e-2, epsilon=1e-4)
    add("cpals/mu", rc.cpals, X, mu=0.3, starts=3, init="random", rng=2)
    return entries | {name: (call, None) for name, call in studies(X, held, scratch).items()}


def studies(X: np.ndarray, held: dict[str, Any], scratch: Path) -> dict[str, Callable[..., Any]]:
    """What is no single fit of a tensor: ranks, resamples, regression, transformers, views."""
    import robustcp as rc

    rng, gaps, spectra = np.random.default_rng(6), held["NaN"], kinds_of_data()["scatter"][0]
    M, Y, truth = rng.standard_normal((30, 3)), rng.standard_cauchy((30, 2)), factors()
    many = [X, tensor(seed=1), tensor((8, 7, 6), seed=2)]
    fit, labelled = cache(lambda: rc.cp(X, 2)), cache(lambda: rc.cp(held["xarray"], 2, cases=0))
    uncertainty = {"normal": {}, "bootstrap": {"n": 20}, "bootstrap of slabs": {"n": 20, "mode": 0},
                   "jackknife": {"mode": 1}}  # fmt: skip

    def transformer(**options: Any) -> dict[str, Any]:
        model = rc.RobustCP(2, random_state=0, **options).fit(X[:9])
        scores = model.transform(X[9:])
        return {"fit": model.fit_, "scores": scores, "back": model.inverse_transform(scores),
                "score": model.score(X), "components": model.components_}  # fmt: skip

    def eem(prepare: Callable[[Any], Any]) -> dict[str, Any]:
        em, ex = 300.0 + 10 * np.arange(14), 250.0 + 10 * np.arange(11)
        data = prepare(rc.eem.landscapes(spectra, emission=em, excitation=ex))
        model = rc.cp(data, 2, nonnegative=True)
        return {"fit": model, "spectra": rc.eem.spectra(model, data)}

    def views(fit: Any, X: Any) -> dict[str, Any]:
        flagged, strict = fit.outliers(X), fit.outliers(X, rate=0.05, control="fdr")
        fit.report(X, scratch / "report.html", title="corpus")
        return {
            "outliers": [flagged.scores, flagged.threshold, flagged.slabs, flagged.share,
                         flagged.worst(1), flagged.scores_of({0: 1}), strict.mask],
            "residuals": fit.residuals(X), "full": fit.full(), "at": fit.at([[0, 1, 2], [3, 4, 5]]),
            "project": [fit.project(X[3:8]), fit.project(X[3:8], nonnegative=True)],
            "summary": [fit.summary().as_dict(), fit.summary(X).as_dict()],
            "printed": [repr(fit), str(fit.summary(X))], "distances": fit.distances(X, 0),
            "core consistency": rc.core_consistency(fit, X),
            "congruence": rc.congruence(fit, (None, truth)),
            "factor match score": rc.factor_match_score(fit, (None, truth), weights=False),
            "report": re.sub(r"\d\d:\d\d UTC", "", (scratch / "report.html").read_text("utf-8")),
        }  # fmt: skip

    return {
        "l1_regression/vector": lambda: rc.l1_regression(M, Y[:, 0]),
        "l1_regression/matrix": lambda: rc.l1_regression(M, Y, epsilon=1e-6, mu=1e-3),
        "RobustCP/plain": transformer, "RobustCP/cases": partial(transformer, cases=True),
        "RobustCP/loss": partial(transformer, loss=rc.Huber(0.3), starts=2),
        "rng/generator": lambda: rc.cp(X, 2, init="random", rng=np.random.default_rng(4)),
        "ensemble": partial(rc.ensemble, X, [1, 2, 3], starts=3, jobs=1, rng=0),
        "rank_profile/plain": partial(rc.rank_profile, X, range(1, 4), folds=3, jobs=1),
        "rank_profile/gaps": partial(rc.rank_profile, gaps, [1, 2], mode=1, folds=3, jobs=1),
        "replicability/folds": partial(rc.replicability, X, 2, folds=3, jobs=1),
        "replicability/split half": partial(
            rc.replicability, held["xarray"], 2, mode="sample", preset="split_half", jobs=1),
        "cp_many/plain": lambda: list(rc.cp_many(many, 2, jobs=1)),
        "cp_many/warm": lambda: list(rc.cp_many([X, X + 0.01], 2, warm=True, jobs=1)),
        "cp_many/threads": lambda: list(rc.cp_many(many, 2, jobs=2, backend="threads")),
        "cp_many/failure": lambda: list(rc.cp_many([*many, np.full((3, 3), np.nan)], 2, jobs=1)),
        "eem/plain": lambda: eem(lambda data: data), "eem/cut": lambda: eem(rc.eem.mask_scatter),
        "eem/normalised": lambda: eem(lambda data: rc.eem.normalise(rc.eem.mask_scatter(data))),
        "views/plain": lambda: views(fit(), X),
        "views/labelled": lambda: views(labelled(), held["xarray"]),
        "nvecs": lambda: [rc.nvecs(data, n, 4) for data in (X, gaps) for n in range(3)],
        "simulate": partial(rc.simulate, (8, 7, 6), 2, eta=0.1, gamma=1.0, density=0.8, rng=0),
        **{f"uncertainty/{name}": lambda name=name, options=options:
           fit().uncertainty(X, name.split()[0], jobs=1, **options)
           for name, options in uncertainty.items()},
    }  # fmt: skip


# Files


class Interrupted(BaseException):
    """Raised in the middle of a fit."""


def call_with_checkpoint(
    call: Any, path: Path, where: str, step: Callable[[str, Any], bool | None]
) -> Any:
    """The result of a call; `step` is called for each line of the log, and each sweep or fold."""
    import robustcp as rc

    kind = "progress" if where == "progress" else "callback"
    log, handler = logging.getLogger("robustcp"), logging.Handler()
    handler.emit = lambda line: step("log", line.getMessage())
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        follow = {kind: lambda state, *_: step(kind, getattr(state, "sweep", state))}
        return call(checkpoint=rc.Checkpoint(path, every=0), **follow)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def interrupt(call: Any, path: Path, where: str, count: int) -> bool:
    """Leave the checkpoint of a call that ends early; whether it did."""
    steps, sweeps = itertools.count(1), itertools.count()

    def step(kind: str, _: Any) -> bool:
        if kind == "callback":
            next(sweeps)
        if (kind == "log") != (where == "search") or not path.exists() or next(steps) != count:
            return False
        if where == "stop":
            return True
        raise Interrupted

    try:
        call_with_checkpoint(call, path, where, step)
    except Interrupted:
        return where != "search" or next(sweeps) == 0
    return where in ("stop", "end")


def resume(call: Any, path: Path, where: str) -> dict[str, Any]:
    """The result of the same call, the steps that it took, and how often it wrote the file."""
    steps: dict[str, list[Any]] = {"log": [], "callback": [], "progress": []}
    result = call_with_checkpoint(call, path, where, lambda kind, at: steps[kind].append(at))
    lines = sum(str(path) in line for line in steps.pop("log"))
    return parts_of(result) | {"steps": steps, "log": f"{lines} lines name the checkpoint"}


def write_files(folder: Path, entries: Entries) -> None:
    """Write saved fits, checkpoints, and a folder of many fits."""
    import robustcp as rc

    folder.mkdir(parents=True)
    for name in SAVED:
        fit = entries[name][0]()
        for suffix in FORMATS:
            fit.save(folder / f"{name.replace('/', ' ')}.{suffix}")
    for k, (name, where, count) in enumerate(INTERRUPTED):
        if not interrupt(entries[name][0], folder / f"{k}.ckpt", where, count):
            print(f"{name} was not interrupted at {where} {count}", file=sys.stderr)
    rc.cp_many([tensor(), tensor(seed=1)], 2, jobs=1, folder=folder / "many")


def read_files(folder: Path, entries: Entries, scratch: Path) -> Entries:
    """What comes back from the files of a folder; copies of the checkpoints are resumed."""
    import robustcp as rc

    def save_again(path: Path, suffix: str) -> dict[str, Any]:
        (copy := scratch / f"copy.{suffix}").unlink(missing_ok=True)
        rc.load(path.with_suffix(".npz")).save(copy)
        return {"same": copy.read_bytes() == path.with_suffix(f".{suffix}").read_bytes()}

    def resume_copy(k: int, name: str, where: str) -> dict[str, Any]:
        shutil.copy(folder / f"{k}.ckpt", scratch)
        return resume(entries[name][0], scratch / f"{k}.ckpt", where)

    def fit_many() -> dict[str, Any]:
        shutil.copytree(folder / "many", scratch / "many")
        fits = rc.cp_many([tensor(), tensor(seed=1)], 2, jobs=1, folder=scratch / "many")
        return {"fits": list(fits), "files": len(list((scratch / "many").iterdir()))}

    files: Entries = {"folder of many": (fit_many, None)}
    for name in SAVED:
        path = folder / name.replace("/", " ")
        for suffix in FORMATS[:-1]:
            files[f"load {suffix}/{name}"] = partial(rc.load, f"{path}.{suffix}"), entries[name][1]
        for suffix in ("json", "csv"):
            files[f"save {suffix}/{name}"] = partial(save_again, path, suffix), None
    for k, (name, where, count) in enumerate(INTERRUPTED):
        files[f"checkpoint/{name}, {where} {count}"] = partial(resume_copy, k, name, where), None
    return files


# Records


def parts_of(result: Any, X: Any = None) -> dict[str, Any]:
    """The parts of a result: of a fit, by documented names, with what it says of its data."""
    if type(result).__name__ != "Fit":
        return result if isinstance(result, dict) else {"result": result}
    cases, starts, noise, reasons = result.cases, result.starts, result.noise, result.warnings
    parts = {
        **{name: getattr(result, name) for name in FIT.split()}, "loss": repr(result.loss),
        "codes": [warning.code for warning in reasons],
        "warnings": {"numbers": [w.numbers for w in reasons], "texts": [str(w) for w in reasons]},
        "flagged": cases and [cases.mode, cases.weights, cases.distances, cases.flagged],
        "starts": [list(starts), starts.reached, starts.final, starts.models],
        "noise": [result.scale, noise.sigma, noise.variance, noise.slabs],
    }  # fmt: skip
    if X is not None:
        parts |= {"mask": result.outliers(X).mask, "sigma": result.sigma(X)}
    return parts


def leaves(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The numbers, texts and arrays that a result is made of, each with its path."""
    name = type(value).__name__
    if name == "Fit":
        value = parts_of(value)
    elif name in ATTRIBUTES:
        value = {key: getattr(value, key) for key in ATTRIBUTES[name].split()}
    if isinstance(value, list | tuple):
        value = {"length": len(value), **{str(k): part for k, part in enumerate(value)}}
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, *path, str(key))
    elif hasattr(value, "shape") and not isinstance(value, np.generic):
        yield path, np.asarray(value.cpu() if hasattr(value, "cpu") else value)
    else:
        yield path, value.item() if isinstance(value, np.generic) else value


def bits(value: Any) -> bytes:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype.str} {value.shape} ".encode() + value.tobytes()
    return (value.hex() if isinstance(value, float) else repr(value)).encode()


def record(name: str, call: Callable[[], Any], X: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Digests of the parts of a result, and what is short as text; its arrays are added to some."""
    began, digests, shown = time.perf_counter(), dict[str, Any](), dict[str, str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values = list(leaves(parts_of(call(), X)))
        except Exception as error:
            message = re.sub(r"\S*/", "", f"{type(error).__name__}: {error}")  # no temporary paths
            values = [(("failed",), True), (("raised",), message)]
    values += [(("python warnings",), str(one.message)) for one in caught]
    for path, value in values:
        part = path[0] + (" (text)" if TEXTS & set(path) else "")
        digest = digests.setdefault(part, hashlib.sha256())
        digest.update("/".join(path).encode() + b"\0" + bits(value) + b"\0")
        shown[part] = f"{shown.get(part, '')} {'[array]' if hasattr(value, 'shape') else value}"
        if hasattr(value, "shape") and value.dtype.kind == "f" and "starts" not in path:
            arrays["/".join((name, *path))] = value
    parts = {part: digest.hexdigest() for part, digest in digests.items()}
    return {
        "digest": hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(),
        "seconds": round(time.perf_counter() - began, 3), "parts": parts,
        "shown": {part: text.strip() for part, text in shown.items() if len(text) < 400},
    }  # fmt: skip


def count_differences(
    old: Mapping[str, Any], new: Mapping[str, Any], arrays: tuple[Any, Any], args: Any
) -> int:
    """Print the results that differ, and how; return how many do."""
    names = fnmatch.filter(dict.fromkeys([*old, *new]), args.only)
    count = 0
    for name in names:
        a, b = (side.get(name, {"parts": {}, "shown": {}}) for side in (old, new))
        parts = [p for p in a["parts"] | b["parts"] if a["parts"].get(p) != b["parts"].get(p)]
        parts = [p for p in parts if not (args.bits and p.endswith("(text)"))]
        if not parts:
            continue
        count += 1
        if "failed" in parts or not (a["parts"] and b["parts"]):
            ends = [
                one["shown"].get("raised (text)", "a result" if one["parts"] else "nothing")
                for one in (a, b)
            ]
            print(f"{name}: {' -> '.join(ends)}")
            continue
        print(f"{name}: {', '.join(parts)}")
        for part in dict.fromkeys(["factors", *parts]):
            keys = [key for key in arrays[0] if f"{key}/".startswith(f"{name}/{part}/")]
            if keys:
                apart = max(difference(*(side.get(key) for side in arrays)) for key in keys)
                print(f"    {part}: largest difference {apart:.3g}")
            elif a["shown"].get(part) != b["shown"].get(part):
                print(f"    {part}: {a['shown'].get(part)} -> {b['shown'].get(part)}")
    print(f"{count} of {len(names)} differ")
    return count


def difference(a: Any, b: Any) -> float:
    """The largest one, entry by entry; infinite if there is no array of the same shape."""
    if b is None or a.shape != b.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(a - b), initial=0.0))


# Commands


def environment(tree: Path) -> dict[str, str]:
    """What bits depend on."""
    names = ("numpy", "scipy", "numba", "torch", "dask", "zarr", "xarray", "pandas", "scikit-learn")
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {"source": commit, "python": platform.python_version(), "machine": platform.platform(),
            **{name: metadata.version(name) for name in names}}  # fmt: skip


def compare(old: Path, new: Path, args: Any) -> int:
    one, other = (json.loads(path.read_text()) for path in (old, new))
    for name, value in other["environment"].items():
        if one["environment"][name] != value:
            print(f"{name}: {one['environment'][name]} -> {value}")
    arrays = tuple(dict(np.load(path.with_suffix(".npz"))) for path in (old, new))
    return count_differences(one["results"], other["results"], arrays, args)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "compare", "files", "load"))
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="*", help="a pattern of names, as of a shell")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--bits", action="store_true", help="leave texts out")
    args = parser.parse_intermixed_args()
    needs = {"compare": 2, "load": 1}.get(args.command, 0)
    if len(args.paths) != needs or (needs == 0) != (args.out is not None):
        parser.error(f"{args.command} needs {f'{needs} paths' if needs else '--out'}")
    if args.command == "compare":
        return int(compare(*args.paths, args) > 0)
    sys.path.insert(0, str(args.tree.resolve() / "src"))
    import robustcp

    if args.tree.resolve() not in Path(robustcp.__file__).resolve().parents:
        raise SystemExit(f"robustcp is imported from {robustcp.__file__}, not from {args.tree}")
    arrays, results = dict[str, Any](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temporary:
        entries = corpus(scratch := Path(temporary))
        folder = {"run": scratch / "files", "files": args.out}.get(args.command) or args.paths[0]
        files = read_files(folder, entries, scratch)
        if args.command != "load" and fnmatch.filter(files, args.only):
            write_files(folder, entries)
        entries = entries | files if args.command == "run" else files
        for name in fnmatch.filter(entries, args.only):
            results[name] = record(name, *entries[name], arrays)
            print(f"{results[name]['seconds']:7.2f} s  {name}", file=sys.stderr, flush=True)
    out = args.out if args.command == "run" else folder / "digests.json"
    if args.command == "load":
        old = json.loads(out.read_text())["results"]
        return int(count_differences(old, results, ({}, {}), args) > 0)
    content = {"environment": environment(args.tree), "results": results}
    out.write_text(json.dumps(content, indent=1))
    np.savez_compressed(out.with_suffix(".npz"), **arrays)
    print(f"{len(results)} results in {sum(r['seconds'] for r in results.values()):.0f} s: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
