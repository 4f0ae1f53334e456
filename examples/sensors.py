"""Which of thirty temperature sensors are broken? A long table with gaps, fitted and searched.

The table (sensor, day, hour, temperature) is simulated: a level, the sun's daily course on more
or less cloudy days, and heating in office hours on weekdays, each reaching every sensor in its
own strength. 30% of the rows are missing. Three sensors send spikes, one is stuck for a week.
pandas and xarray turn the table into sensor x day x hour with NaN for the missing rows, and the
labels come along. (Where nearly all rows are missing, give `robustcp.Observed` instead.)

    python examples/sensors.py          # writes sensors.png
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import robustcp

SPIKY, STUCK = (6, 17, 24), 11
PARTS = ("level", "sun", "office heating")


def table(sensors: int, days: int) -> tuple[pd.DataFrame, robustcp.KruskalTensor]:
    """The rows that arrived, and the components behind them."""
    rng = np.random.default_rng(0)
    day, hour = np.arange(days), np.arange(24)
    A = np.stack([rng.uniform(8, 12, sensors), rng.gamma(2, 4, sensors), rng.gamma(1, 4, sensors)])
    B = np.stack([np.ones(days), rng.uniform(0.1, 1, days), 1.0 * (day % 7 < 5)])
    sun = np.clip(np.sin(np.pi * (hour - 6) / 14), 0, None)
    C = np.stack([np.ones(24), sun, 1.0 * ((hour >= 7) & (hour < 18))])
    X = np.einsum("ri,rj,rk->ijk", A, B, C) + rng.normal(0, 0.5, (sensors, days, 24))
    for s in SPIKY:
        X[s] += np.where(rng.random(X[s].shape) < 0.15, rng.uniform(20, 60, X[s].shape), 0)
    X[STUCK, days // 4 : days // 4 + 7] = 35.0
    names = [f"S{s:02}" for s in range(sensors)]
    index = pd.MultiIndex.from_product([names, day, hour], names=["sensor", "day", "hour"])
    rows = pd.DataFrame({"temperature": X.ravel()}, index=index).reset_index()
    truth = robustcp.KruskalTensor.from_factors([A.T, B.T, C.T])
    return rows.sample(frac=0.7, random_state=0), truth


def main(out: str = "sensors.png", small: bool = False) -> dict:
    """Fit the table, name the bad sensors, draw components and flagged shares."""
    rows, truth = table(30, 28 if small else 42)
    X = rows.set_index(["sensor", "day", "hour"])["temperature"].to_xarray()  # NaN: missing
    spoilt, fit = robustcp.cpals(X, 3), robustcp.cp(X, 3)
    found = fit.outliers(X)
    worst = [(fit.labels[0][k], round(share, 3)) for k, share in found.worst(0)]
    scores = [robustcp.factor_match_score(model, truth) for model in (spoilt, fit)]
    print(f"{len(rows)} rows, noise {fit.scale:.2f} degrees, {found.share:.1%} of rows flagged")
    print("worst sensors:", *(f"{name} ({share:.1%} flagged)" for name, share in worst))
    print("factor match score: least squares {:.3f}, cp {:.3f}".format(*scores))

    figure, axes = plt.subplot_mosaic("ABC;DEF;GGG", figsize=(8, 6.4), layout="constrained")
    norms = np.prod([np.linalg.norm(A, axis=0) for A in truth.factors], axis=0)
    models = {"least squares": spoilt, "cp": fit}
    for mode, row in ((2, "ABC"), (1, "DEF")):
        for rank, part in enumerate(np.argsort(-norms)):  # the picture counts by size
            ax = axes[row[part]]
            robustcp.plot.truth_against_estimates(truth, models, mode=mode, component=rank, ax=ax)
            ax.set(xlabel=fit.modes[mode], ylabel="" if part else "unit column")
            ax.set_title(PARTS[part] if mode == 2 else "", fontsize=11)
            ax.get_legend().remove()
    handles, names = axes["A"].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    robustcp.plot.outliers(found, 0, ax=axes["G"])
    for s, bar in enumerate(axes["G"].patches):
        bar.set(width=0.8, x=s - 0.4, edgecolor="white")
        bar.set_hatch("///" if s in SPIKY else "..." if s == STUCK else "")
    axes["G"].set_xticks(range(len(fit.labels[0])), fit.labels[0], rotation=90)
    axes["G"].set(xlabel="sensor (hatched: spikes, dotted: stuck)", ylabel="flagged rows, %")
    figure.savefig(out, dpi=150)
    plt.close(figure)
    return {"worst": worst, "scores": scores}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="sensors.png", help="the picture")
    parser.add_argument("--small", action="store_true", help="four weeks in place of six")
    main(**vars(parser.parse_args()))
