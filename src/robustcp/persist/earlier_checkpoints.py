"""Checkpoints of earlier versions, in the names and the layout of today."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from robustcp.persist.codec import Codec

RANK_TITLE = "robustcp rank profile 1"
EARLIER_TITLES = ("robustcp checkpoint 2", RANK_TITLE)

CLASSES = {
    "Adapted": "ConstraintAdapter",
    "Asked": "NoiseSpec",
    "Beside": "QuantileContinuation",
    "Cold": "Initialization",
    "EvenedOut": "StandardizedL1",
    "Finish": "L1Finish",
    "Joint": "JointStep",
    "Narrow": "NarrowWelsch",
    "OnPart": "SubsampleStart",
    "OtherUnits": "RescaledLoss",
    "Plain": "NoAcceleration",
    "Redescent": "CauchyContinuation",
    "Screened": "Multistart",
    "Subsets": "SubsetStart",
    "Wrapped": "UserLoss",
}

#: By the new name of a class: its fields, old and new. `State` is written as a dictionary.
FIELDS = {
    "CauchyContinuation": {"rounds": "max_levels"},
    "Continuation": {"enough": "stop_share"},
    "JointStep": {
        "good": "good_ratio", "bad": "bad_ratio", "worth": "min_damping_gain",
        "refused": "rejection_factor", "least": "min_damping", "most": "max_damping",
    },
    "NarrowWelsch": {"rounds": "max_levels"},
    "Noise": {
        "looked": "kind_determined", "given": "known_sigmas", "beyond": "rejected_share",
        "held": "signal_factors",
    },
    "QuantileContinuation": {"down": "continuation"},
    "Refinement": {"rows": "row_prior", "rounds": "max_levels"},
    "Resolution": {
        "least": "min_sigma", "entry": "min_entry_sigma", "counts": "count_data",
        "small": "small_counts",
    },
    "Stage": {"otherwise": "fallback"},
    "StandardizedL1": {"down": "continuation", "known": "trust_residuals", "rows": "row_prior"},
    "State": {"fall": "decrease", "kept": "unsolved_rows"},
}  # fmt: skip

_STARTS = re.compile(r"\b(" + "|".join(CLASSES) + r")\(")


def translate_checkpoint(
    title: str, header: dict[str, Any], arrays: list[np.ndarray]
) -> dict[str, Any]:
    """The header of an earlier checkpoint as it would be written today."""
    header = _translate(header)
    if title == RANK_TITLE:
        return {**header, "progress": _rank_progress(header)}
    options = header["options"]
    shown, values = options["starts"]  # text, not values
    options["starts"] = [_translate_text(shown), [*map(_translate_text, values)]]
    if options["modes to solve for"][0] == "()":  # all of them
        modes = range(len(options["shape"][1]["tuple"]))
        options["modes to solve for"] = [str(tuple(modes)), {"tuple": [*modes]}]
    return {**header, "progress": _fit_progress(header, arrays)}


def _translate_text(text: str) -> str:
    return _STARTS.sub(lambda found: f"{CLASSES[found[1]]}(", text)


def _translate(value: Any) -> Any:
    """JSON of today for values other than those that have a layout of their own below."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, list):
        return [_translate(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"is", "with"}:
        name = CLASSES.get(str(value["is"]), str(value["is"]))
        return {"is": name, "with": _rename(value["with"], FIELDS.get(name, {}))}
    if set(value) == {"dict"}:
        fields = FIELDS["State"]
        pairs = [(key, _translate(item)) for key, item in value["dict"]]
        return {"dict": [[fields.get(k, k) if isinstance(k, str) else k, v] for k, v in pairs]}
    if set(value) == {"array", "values"}:
        return _CODEC.encode(np.array(value["values"], dtype=value["array"]))
    if set(value) == {"numpy", "value"}:
        return _CODEC.encode(np.dtype(value["numpy"]).type(value["value"]))
    return _rename(value, {})


_CODEC = Codec()


def _rename(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): _translate(value) for name, value in fields.items()}


# The layout: the fields of classes that hold arrays were written by hand


def _instance(class_name: str, **contents: Any) -> dict[str, Any]:
    return {"is": class_name, "with": contents}


def _tuple(items: Iterable[Any]) -> dict[str, Any]:
    return {"tuple": list(items)}


def _device_arrays(numbers: list[int]) -> dict[str, Any]:
    return _tuple({"device array": number} for number in numbers)


def _host_array(numbers: list[int] | None) -> dict[str, int] | None:
    return None if numbers is None else {"array": numbers[0]}


def _model(numbers: list[int]) -> dict[str, Any]:
    weights, *factors = numbers
    return _instance(
        "KruskalTensor", weights={"device array": weights}, factors=_device_arrays(factors)
    )


def _starts(old: dict[str, Any] | None) -> dict[str, Any] | None:
    return old and _instance("Starts", **old | {"models": _tuple(map(_model, old["models"]))})


def _noise(old: dict[str, Any] | None) -> dict[str, Any] | None:
    if old is None:
        return None
    arrays = _tuple({"array": number} for number in old["held"])
    contents = {k: v for k, v in old["plain"]["with"].items() if k != "known_sigmas"}
    return _instance("Noise", **contents | {"signal_factors": arrays})


def _state(old: dict[str, Any] | None, arrays: list[np.ndarray]) -> dict[str, Any] | None:
    return old and _instance(
        "State",
        **dict(old["plain"]["dict"]),
        factors=_device_arrays(old["factors"]),
        swept_factors=_device_arrays(old["swept"]),
        trace=_tuple(arrays[old["trace"][0]].tolist()),
        noise=_noise(old["noise"]),
        before_stage=_state(old["before"], arrays),
    )


def _starting_point(old: dict[str, Any]) -> dict[str, Any]:
    return _instance(
        "StartingPoint",
        factors=_device_arrays(old["factors"]),
        warm_start=old["good"],
        starts=_starts(old["tried"]),
        start_number=old["best"],
        fibres=old["fibres"],
        alternatives=_tuple(map(_starting_point, old["others"])),
        sufficient_rank=old["enough"],
        reliable=old["sound"],
        bad_samples=_host_array(old["bad"]),
    )


def _run(old: dict[str, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    return _instance(
        "SavedRun",
        starting_point=_starting_point(old["begun"]),
        state=_state(old["state"], arrays),
        outcome=old["outcome"],
        case_round=old["again"],
    )


def _search_run(old: dict[str, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    if "factors" in old:
        return _instance("LoggedRun", factors=_device_arrays(old["factors"]))
    factors = _device_arrays(old["state"]["factors"])
    return _instance("LoggedRun", factors=factors, state=_state(old["state"], arrays))


def _cases(old: dict[str, Any] | None) -> dict[str, Any] | None:
    if old is None:
        return None
    names = ("weights", "distances", "cutoffs")
    arrays = {name: {"array": k} for name, k in zip(names, old["arrays"], strict=True)}
    return _instance("CaseDiagnostics", mode=old["mode"], **arrays)


def _fit(old: dict[str, Any] | None) -> dict[str, Any] | None:
    return old and _instance(
        "Fit",
        **dict(old["plain"]["dict"]),
        model=_model(old["model"]),
        trace=_host_array(old["trace"]),
        starts=_starts(old["starts"]),
        noise=_noise(old["noise"]),
        cases=_cases(old["cases"]),
    )


def _fit_progress(header: dict[str, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    search_runs = [[name, _search_run(run, arrays)] for name, run in header["search"].items()]
    progress = {
        "stages": _CODEC.encode(header["stages"]),
        "max_sweeps": header["max_sweeps"],
        "max_abs": header["largest"],
        "l1_norm": header["size"],
        "runs": [_run(run, arrays) for run in header["runs"]],
        "search": {"dict": search_runs},
        "fit": _fit(header["fit"]),
    }
    return {"dict": [*progress.items()]}


def _rank_fit(old: dict[str, Any]) -> dict[str, Any]:
    return _instance(
        "RankFit",
        model=_model(old["arrays"]),
        cost=old["cost"],
        start_count=old["ends"],
        converged_count=old["agreeing"],
    )


def _rank_progress(header: dict[str, Any]) -> dict[str, Any]:
    paths = []
    for number, path in header["climbs"].items():
        paths.append([int(number), {"dict": [[int(r), _rank_fit(fit)] for r, fit in path.items()]}])
    return {"dict": [["climbs", {"dict": paths}]]}
