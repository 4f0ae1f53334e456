"""Seconds of `cp` on real data, beside ten random starts of least squares.

    python scripts/real_data.py DATA --out now.json [--only passengers] [--tree ../before]
    python scripts/real_data.py DATA --out now.json --compare before.json

DATA is a folder with aminoacids.mat, hangzhou.mat and sensor.mat; kinetic fluorescence and serology
come with TensorLy. Each fit runs in a process of its own, which has compiled before the clock
starts.

--compare prints the factor match score between the models of two trees, and of both the criterion
by which starts are compared (lower is better) and the mean absolute residual.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Data = tuple[np.ndarray, int, dict[str, Any]]


def matlab(folder: Path, name: str) -> dict[str, Any]:
    from scipy.io import loadmat

    return dict(loadmat(folder / name))


def tensorly_array(name: str) -> np.ndarray:
    spec = find_spec("tensorly")
    assert spec is not None
    assert spec.origin is not None
    array = np.load(Path(spec.origin).parent / "datasets" / "data" / name, allow_pickle=True)
    return np.asarray(array)


def amino_acids(folder: Path) -> Data:
    X = matlab(folder, "aminoacids.mat")["X"]
    return np.asarray(X if isinstance(X, np.ndarray) and X.ndim == 3 else X["data"][0, 0]), 3, {
        "nonnegative": True
    }  # fmt: skip


def passengers(folder: Path, rank: int, missing: float) -> Data:
    X = np.asarray(matlab(folder, "hangzhou.mat")["tensor"], dtype=float)
    if missing:
        legacy = np.random.RandomState(1000)  # as in published experiments
        keep = np.round(legacy.rand(*X.shape) + 0.5 - missing).astype(bool)
        X = np.where(keep & (X != 0), X, np.nan)
    return X, rank, {}


def sensors(folder: Path) -> Data:
    arrays = [a for a in matlab(folder, "sensor.mat").values() if getattr(a, "ndim", 0) == 3]
    X = np.where(arrays[0] == 0, np.nan, arrays[0].astype(float))
    mode = X.shape.index(4)
    others = tuple(n for n in range(3) if n != mode)
    return X / np.nanmedian(np.abs(X), axis=others, keepdims=True), 3, {}


def kinetic(folder: Path) -> Data:
    X = tensorly_array("Kinetic.npy").astype(float)
    return np.where(tensorly_array("Kinetic_missing.npy") > 0, np.nan, X), 4, {"nonnegative": True}


def serology(folder: Path) -> Data:
    return tensorly_array("COVID19_data.npy").astype(float), 3, {}


def eems(folder: Path, seed: int = 0) -> Data:
    """Simulated landscapes: scatter cut out together with the triangle beside it; bad cells."""
    rng = np.random.default_rng(seed)
    emission, excitation = np.linspace(300, 590, 73), np.linspace(240, 445, 42)
    peaks = ((305, 275), (350, 280), (420, 340), (480, 365))

    def spectrum(axis: np.ndarray, centre: float, width: float) -> np.ndarray:
        return np.exp(-(((axis - centre) / width) ** 2))

    B = np.stack([spectrum(emission, em, rng.uniform(25, 55)) for em, _ in peaks], axis=1)
    C = np.stack(
        [
            spectrum(excitation, ex, rng.uniform(18, 35)) + 0.3 * spectrum(excitation, 240, 15)
            for _, ex in peaks
        ],
        axis=1,
    )
    A = rng.gamma(2, 0.5, (17, 4))
    X = np.einsum("ir,jr,kr->ijk", A, B, C)
    X += rng.standard_normal(X.shape) * (0.005 + 0.02 * X)
    X[rng.random(X.shape) < 0.02] += 1.5
    below = emission[:, None] < excitation[None, :] + 15
    second = np.abs(emission[:, None] - 2 * excitation[None, :]) < 15
    return np.where(below | second, np.nan, X), 4, {"nonnegative": True}


DATA: dict[str, Callable[[Path], Data]] = {
    "amino acids": amino_acids,
    "passengers, rank 5": lambda folder: passengers(folder, 5, 0.0),
    "passengers, rank 10": lambda folder: passengers(folder, 10, 0.0),
    "passengers, rank 5, 40% missing": lambda folder: passengers(folder, 5, 0.4),
    "passengers, rank 10, 40% missing": lambda folder: passengers(folder, 10, 0.4),
    "sensors": sensors,
    "kinetic fluorescence": kinetic,
    "serology": serology,
    "landscapes": eems,
    "landscapes 1": lambda folder: eems(folder, 1),
}


def work(folder: Path, name: str, method: str, seed: int) -> None:
    warnings.simplefilter("ignore")
    import robustcp

    X, rank, options = DATA[name](folder)
    small = robustcp.simulate((8, 9, 10), 2, eta=0.1, gamma=1, rng=0).data
    robustcp.cp(small, 2)
    begin = time.perf_counter()
    if method == "cp":
        fit = robustcp.cp(X, rank, rng=seed, **options)
    else:
        fit = robustcp.cp(
            X, rank, loss=robustcp.LeastSquares(), init="random", starts=10, rng=seed, **options
        )
    seconds = time.perf_counter() - begin
    mean = float(np.nanmean(np.abs(X - fit.full())))
    factors = [A.tolist() for A in fit.factors]
    final = [cost for cost in getattr(fit.starts, "final", ()) if cost is not None]
    result = {
        "seconds": seconds, "mean": mean, "cost": min(final, default=None),
        "codes": [w.code for w in fit.warnings],
        "starts": len(fit.starts), "sweeps": fit.sweeps, "weights": fit.weights.tolist(),
        "factors": factors,
    }  # fmt: skip
    print(json.dumps(result))


def run(options: argparse.Namespace, name: str, method: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(options.tree.resolve() / "src")}
    command = [sys.executable, __file__, str(options.data), "--work", name, method]
    try:
        done = subprocess.run(
            [*command, "--seed", str(options.seed)], env=environment, stdout=subprocess.PIPE,
            text=True, check=True, timeout=options.limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"seconds": float("inf")}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(options: argparse.Namespace, rows: dict[str, Any]) -> None:
    import robustcp

    other = json.loads(options.compare.read_text())
    for name, row in rows.items():
        if name not in other or "factors" not in row or "factors" not in other[name]:
            continue
        models = [
            robustcp.KruskalTensor(np.array(r["weights"]), tuple(map(np.array, r["factors"])))
            for r in (row, other[name])
        ]
        score = robustcp.factor_match_score(*models, weights=False)
        before = other[name]
        print(
            f"{name:34} score {score:.4f}  cost {row['cost']:.4f}, {before['cost']:.4f}  "
            f"mean |residual| {row['mean']:.6g}, {before['mean']:.6g}  "
            f"seconds {row['seconds']:.2f}, {before['seconds']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", nargs="*", default=list(DATA))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900, help="the most seconds of a fit")
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--no-least-squares", action="store_true")
    parser.add_argument("--work", nargs=2)
    options = parser.parse_args()
    if options.work:
        work(options.data, *options.work, options.seed)
        return
    rows = {}
    for name in [name for name in DATA if any(name.startswith(only) for only in options.only)]:
        row = rows[name] = run(options, name, "cp")
        line = f"{name:34} cp {row['seconds']:7.2f} s"
        if not options.no_least_squares:
            row["least squares"] = run(options, name, "least squares")["seconds"]
            ratio = row["seconds"] / row["least squares"]
            line += f"  ten starts {row['least squares']:6.2f} s, ratio {ratio:5.2f}"
        print(line, row.get("starts"), row.get("codes"), flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows))
    if options.compare:
        compare(options, rows)


if __name__ == "__main__":
    main()
