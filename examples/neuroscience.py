"""Cell assemblies from spike times: trials of two conditions, some cut short, some with artifacts.

The recording is simulated: a table of spikes (trial, neuron, time) and one of trials (condition,
end, whether there was an artifact). Four assemblies fire: at the cue, less from trial to trial;
in left trials; in right trials; at the reward. In a tenth of the trials an artifact adds spikes
to all neurons for 0.4 s. A quarter of the trials ends early: later bins are missing, not zero.

    python examples/neuroscience.py     # writes neuroscience.png, and beside it _ranks and _trials
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray

import robustcp

PEAKS = np.array([0.3, 0.8, 0.9, 1.4])  # s: cue, left, right, reward
LENGTH, BIN = 2.0, 0.05  # s


def recorded(neurons: int, trials: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, tuple]:
    """The spikes, the trials, and the factors of the rates: neurons, a function of time, trials."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"condition": np.where(rng.permutation(trials) % 2, "right", "left")})
    table["end"] = np.where(rng.random(trials) < 0.25, rng.uniform(1.2, LENGTH, trials), LENGTH)
    table["artifact"] = rng.permutation(trials) < trials // 10
    A, C = rng.gamma(1, 30, (neurons, 4)), rng.gamma(8, 1 / 8, (trials, 4))  # spikes/s; gains
    C[:, 0] *= np.linspace(1.5, 0.5, trials)
    for column, condition in ((1, "left"), (2, "right")):
        C[table["condition"] != condition, column] *= 0.1

    def course(time: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * ((time[:, None] - PEAKS) / [0.1, 0.15, 0.2, 0.15]) ** 2)

    step = 0.005
    time = np.arange(0, LENGTH, step)
    rates = np.einsum("kr,ir,jr->kij", C, A, course(time + step / 2))
    begin = rng.uniform(0.1, 1.2, trials)  # of the artifacts
    during = (time > begin[:, None]) & (time < begin[:, None] + 0.4)
    rates += 160 * (during & table["artifact"].to_numpy()[:, None])[:, None, :]
    trial, neuron, at = np.repeat(np.indices(rates.shape).reshape(3, -1),
                                  rng.poisson(rates * step).ravel(), axis=1)  # fmt: skip
    spikes = pd.DataFrame({"trial": trial, "neuron": neuron, "time": time[at]})
    spikes["time"] += rng.uniform(0, step, len(spikes))
    spikes = spikes[spikes["time"] < table["end"].to_numpy()[trial]]
    return spikes, table, (A, course, C)


def binned(spikes: pd.DataFrame, trials: pd.DataFrame) -> xarray.DataArray:
    """Spike counts, neuron x time x trial; NaN in bins that a trial did not last for."""
    edges = np.linspace(0, LENGTH, round(LENGTH / BIN) + 1)
    neurons = np.unique(spikes["neuron"])
    counts = np.zeros((neurons.size, edges.size - 1, len(trials)))
    row = np.searchsorted(neurons, spikes["neuron"])
    column = np.searchsorted(edges, spikes["time"], side="right") - 1
    np.add.at(counts, (row, column, trials.index.get_indexer(spikes["trial"])), 1)
    counts[:, edges[1:, None] > trials["end"].to_numpy()] = np.nan
    centres = (edges[1:] + edges[:-1]) / 2
    time = xarray.Variable("time", centres, {"units": "s"})
    coords = {"neuron": [f"n{k + 1}" for k in neurons], "time": time, "trial": trials.index}
    return xarray.DataArray(counts, dims=("neuron", "time", "trial"), coords=coords)


def pictures(
    out: str, ranks: robustcp.Ensemble, found: robustcp.Outliers, trials: pd.DataFrame
) -> None:
    """Components with trials by condition; errors and similarities by rank; artifact trials."""
    fit, path = found.fit, Path(out)
    beside = {name: path.with_name(f"{path.stem}_{name}.png") for name in ("ranks", "trials")}
    groups = {"trial": trials["condition"].tolist()}
    grid = robustcp.plot.components(fit, kinds={"neuron": "bar"}, groups=groups)
    grid[0, 0].figure.savefig(path, dpi=150)
    ranks.plot()[0].figure.savefig(beside["ranks"], dpi=150)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    robustcp.plot.outliers(found, "trial", ax=left)
    robustcp.plot.cellmap(found, "trial", found.worst("trial", 1)[0][0], ax=right)
    figure.savefig(beside["trials"], dpi=150)
    plt.close("all")


def main(out: str = "neuroscience.png", small: bool = False, seed: int = 0) -> dict:
    """Bin the spikes, fit, name the artifact trials, try other ranks without them, draw."""
    spikes, trials, (A, course, C) = recorded(30 if small else 50, 60 if small else 100, seed)
    X = binned(spikes, trials)
    print(f"{len(spikes)} spikes, {float(X.mean()):.2f} a bin; {float(X.isnull().mean()):.1%} of "
          "the bins missing")  # fmt: skip
    fit = robustcp.cp(X, 4, nonnegative=True)
    nonnegative = dict.fromkeys(X.dims, robustcp.Nonnegative())
    spoilt = robustcp.cpals(X, 4, constraints=nonnegative, init="random", starts=10, rng=0)
    truth = robustcp.KruskalTensor.from_factors([A, BIN * course(X["time"].to_numpy()), C])
    scores = [robustcp.factor_match_score(model, truth) for model in (spoilt, fit)]
    print("factor match score: least squares {:.3f}, cp {:.3f}".format(*scores))
    print("noise:", fit.noise)
    for warning in fit.warnings:
        print(warning)

    found = fit.outliers(X)
    bad = [trial for trial, share in zip(trials.index, found.slabs[2], strict=True) if share > 0.05]
    worst = found.worst("trial", len(bad) + 1)
    print("worst trials:", *(f"{slab.label} ({slab[1]:.1%} flagged)" for slab in worst))
    print("trials with an artifact:", *trials.index[trials["artifact"]])

    kept = X.drop_sel(trial=bad)  # or components of too high a rank are spent on them
    ranks = robustcp.ensemble(kept, range(3 if small else 1, 6 if small else 8), nonnegative=True,
                              starts=2 if small else 8, rng=0)  # fmt: skip
    for rank in ranks.ranks:
        print(f"rank {rank}: error {ranks.errors[rank][0]:.3f}, "
              f"similarity of starts {np.median(ranks.similarities[rank]):.2f}")  # fmt: skip
    pictures(out, ranks, found, trials)
    artifacts = trials.index[trials["artifact"]].tolist()
    return {"scores": scores, "bad": bad, "artifacts": artifacts, "errors": ranks.errors}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="neuroscience.png", help="the picture")
    parser.add_argument("--small", action="store_true", help="30 neurons and 60 trials")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation")
    main(**vars(parser.parse_args()))
