"""Results as lines of text, or as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcp.distances import Distances
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded
    from robustcp.noise import Noise
    from robustcp.outlying import Outliers


def summary_of(found: Fit, loaded: Loaded, seconds: float) -> dict[str, Any]:
    """What there is to say about a fit."""
    flagged = found.outliers(loaded.data)
    return {
        "shape": list(found.shape),
        "rank": found.rank,
        "status": found.status,
        "warnings": [asdict(warning) for warning in found.warnings],
        "ended": found.result.sentence,
        "notes": list(found.notes),
        "converged": found.converged,
        "sweeps": found.sweeps,
        "stages": [list(stage) for stage in found.stages],
        "seconds": round(seconds, 3),
        "explained": found.explained,
        "components": [
            {"weight": float(w), "share": float(s)}
            for w, s in zip(found.weights, found.shares, strict=True)
        ],
        "noise": noise_of(found.noise if found.noise.looked else flagged.in_data, loaded, flagged),
        "starts": list(found.starts),
        "cases": cases_of(found, loaded),
        "outlier_share": flagged.share,
        "worst": worst_of(flagged, loaded, 3),
    }


def cases_of(found: Fit, loaded: Loaded) -> dict[str, Any] | None:
    """What is known of samples, if that was asked for."""
    if (cases := found.cases) is None:
        return None
    bad = [int(k) for k in cases.flagged.nonzero()[0]]
    return {
        "mode": loaded.modes[cases.mode],
        "bad": [_label(loaded, cases.mode, k) for k in bad],
        "distances": [float(d) for d in cases.distances],
    }


def noise_of(noise: Noise, loaded: Loaded, flagged: Outliers) -> dict[str, Any]:
    """A noise in words and numbers: its variance is a + b |m| + c m^2 at the model's entry m."""
    kind, names, (a, b, c) = noise.kind, loaded.modes, noise.variance
    slabs = {names[n]: noise.slabs[n] for n in kind.modes}
    return {
        "words": noise.words(names),
        "sigma": noise.sigma,
        "known": noise.known,
        "modes": list(slabs),
        "signal": kind.signal,
        "variance": {"a": a * noise.sigma * noise.sigma, "b": b * noise.sigma, "c": c},
        "slabs": {
            name: {"min": float(v.min()), "max": float(v.max())}
            for name, v in slabs.items()
            if v is not None
        },
        "outlying_slabs": {
            names[mode]: [_label(loaded, mode, int(index)) for index in at]
            for mode, at in flagged.outlying_slabs.items()
        },
    }


def _label(loaded: Loaded, mode: int, index: int) -> Any:
    labels = loaded.labels[mode]
    return index if labels is None else labels[index]


def worst_of(flagged: Outliers, loaded: Loaded, count: int) -> list[dict[str, Any]]:
    """The slabs of each mode with the most flagged entries, by their labels."""
    rows = []
    for mode, name in enumerate(loaded.modes):
        for index, share in flagged.worst(mode, count):
            label = _label(loaded, mode, index)
            rows.append({"mode": name, "index": index, "label": label, "share": share})
    return rows


def print_summary(summary: dict[str, Any]) -> None:
    """What `summary_of` found, for people."""
    size = "x".join(map(str, summary["shape"]))
    stages = ", ".join(f"{name} {count}" for name, count in summary["stages"])
    ended = "; ".join((summary["ended"], *summary["notes"]))
    print(f"{size}, rank {summary['rank']}: {ended}")
    for warning in summary["warnings"]:
        print(f"warning: {warning['sentence']}")
    print(f"sweeps: {summary['sweeps']} ({stages}), {summary['seconds']:.2f} seconds")
    print(f"explained: {summary['explained']:.1%} of the data")
    for k, part in enumerate(summary["components"]):
        print(f"  component {k}: {part['share']:6.1%}, weight {part['weight']:.6g}")
    print_noise(summary["noise"])
    if (cases := summary["cases"]) is not None:
        shown = ", ".join(map(str, cases["bad"])) or "none"
        print(f"bad as a whole, of {cases['mode']}: {shown}")
    print(f"outliers: {summary['outlier_share']:.2%} of the entries")
    print_worst(summary["worst"])


def print_noise(noise: dict[str, Any]) -> None:
    """What `noise_of` found: a line, and one for each mode with slabs of far more noise."""
    print(f"noise: {noise['words']}")
    for mode, labels in noise["outlying_slabs"].items():
        shown = ", ".join(map(str, labels[:10])) + (", ..." if len(labels) > 10 else "")
        print(f"  far more noise than the others of {mode}: {shown}")


def print_worst(rows: list[dict[str, Any]]) -> None:
    """What `worst_of` found, a line for each mode."""
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if row["mode"] == mode]
        shown = ", ".join(f"{row['label']} ({row['share']:.1%})" for row in mine)
        print(f"  most flagged of {mode}: {shown}")


def distances_of(found: Distances) -> dict[str, Any]:
    """The distances of samples, the most outlying first; None where there are none."""
    rows = [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}
        for row in found.rows()
    ]
    return {
        "mode": found.name,
        "score_cutoff": found.score_cutoff,
        "residual_cutoff": found.residual_cutoff,
        "note": found.note,
        "samples": rows,
    }


def print_distances(found: Distances, count: int) -> None:
    """Distances for people: as they are without bad entries, and in brackets with them."""
    print(found.words)
    print(f"cut-offs: score {found.score_cutoff:.3g}, residual {found.residual_cutoff:.3g}")
    if found.note:
        print(f"note: {found.note}")
    rows = found.rows()
    width = max(len(found.name), *(len(str(row["label"])) for row in rows[:count]))
    print(f"{found.name:>{width}}  {'score':>19}  {'residual':>19}  {'bad entries':>11}  kind")
    for row in rows[:count]:
        score, residual = (f"{row[k]:.4g} ({row[k + '_before']:.4g})" for k in _DISTANCES)
        kind = row["kind"] + (", bad entries only" if row["only_cells"] else "")
        print(
            f"{row['label']!s:>{width}}  {score:>19}  {residual:>19}  {row['share']:>11.1%}  {kind}"
        )
    if len(rows) > count:
        print(f"and {len(rows) - count} more")


_DISTANCES = ("score", "residual")


def print_json(content: dict[str, Any]) -> None:
    """Results for programs, in one line."""
    print(json.dumps(content, default=str))
