"""Imputation of the passengers of 80 metro stations of Hangzhou, beside published figures.

The data (80 stations x 25 days x 108 times, zeros missing) and the masks are those of transdim
(github.com/xinychen/transdim), whose Bayesian CP of rank 30 is compared. The rank and the ridge
are chosen for each mask by entries that are held out from the observed ones, in the same pattern;
the masked entries are used for the scores only.

Use: python scripts/hangzhou.py FOLDER, which holds hangzhou.mat.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import robustcp

#: Share of missing entries, whether they are whole days of a station, and the published MAPE, RMSE.
MASKS = {
    "40% of the entries": (0.4, False, (0.1977, 33.7)),
    "60% of the entries": (0.6, False, (0.2017, 37.7)),
    "40% of the days": (0.4, True, (0.2137, 76.1)),
}
RANKS, RIDGES = (10, 20, 30), (3.0, 10.0, 30.0)
#: Of the observed entries, or days of a station, held out to choose among these; and how often.
HELD_OUT, TIMES = 0.15, 3


@dataclass(frozen=True)
class Result:
    """What was chosen for a mask, and the scores of its masked entries."""

    mask: str
    rank: int
    ridge: float
    mape: float
    rmse: float
    published: tuple[float, float]


def mask(
    shape: tuple[int, ...], share: float, days: bool, rng: np.random.RandomState
) -> np.ndarray:
    """Which entries are kept, as transdim draws them."""
    drawn = rng.rand(*(shape[:2] if days else shape))
    return (
        np.broadcast_to(np.round(drawn + 0.5 - share).reshape(*drawn.shape, *[1] * days), shape) > 0
    )


def fill(X: np.ndarray, rank: int, ridge: float) -> np.ndarray:
    """X with its gaps filled: least squares with a ridge, of the square roots of counts."""
    roots = np.sqrt(X)
    fit = robustcp.cpals(roots, rank, mu=ridge, tol=1e-5, rng=0)
    return np.maximum(fit.impute(roots), 0) ** 2


def choose(X: np.ndarray, days: bool) -> tuple[int, float]:
    """The rank and the ridge that predict the square roots of held-out entries best."""
    errors: dict[tuple[int, float], float] = {}
    for seed in range(TIMES):
        keep = mask(X.shape, HELD_OUT, days, np.random.RandomState(seed))
        held_out = ~keep & ~np.isnan(X)
        training = np.where(keep, X, np.nan)
        for setting in ((rank, ridge) for rank in RANKS for ridge in RIDGES):
            error = np.sqrt(fill(training, *setting)[held_out]) - np.sqrt(X[held_out])
            errors[setting] = errors.get(setting, 0.0) + float(np.mean(error**2))
    return min(errors, key=lambda setting: errors[setting])


def study(folder: Path, names: list[str]) -> list[Result]:
    """The result for each mask."""
    passengers = np.asarray(robustcp.read(folder / "hangzhou.mat", key="tensor").data, dtype=float)
    results = []
    for name in names:
        share, days, published = MASKS[name]
        keep = mask(passengers.shape, share, days, np.random.RandomState(1000))
        X = np.where(keep & (passengers != 0), passengers, np.nan)
        rank, ridge = choose(X, days)
        masked = ~keep & (passengers != 0)
        error, truth = fill(X, rank, ridge)[masked] - passengers[masked], passengers[masked]
        mape, rmse = np.mean(np.abs(error) / truth), np.sqrt(np.mean(error**2))
        results.append(Result(name, rank, ridge, float(mape), float(rmse), published))
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="holds hangzhou.mat")
    parser.add_argument("--mask", choices=list(MASKS), action="append", help="only this one")
    arguments = parser.parse_args()
    if not (arguments.folder / "hangzhou.mat").exists():
        sys.exit(f"{arguments.folder / 'hangzhou.mat'}: there is no such file")
    print("| missing | rank | ridge | MAPE | RMSE | MAPE, Bayesian CP | RMSE, Bayesian CP |")
    print("|---|---|---|---|---|---|---|")
    for r in study(arguments.folder, arguments.mask or list(MASKS)):
        mape, rmse = r.published
        print(
            f"| {r.mask} | {r.rank} | {r.ridge:g} | {r.mape:.4f} | {r.rmse:.1f} "
            f"| {mape:.4f} | {rmse:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
