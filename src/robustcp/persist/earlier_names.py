"""Names in checkpoints of version 2, which 0.1.0 wrote before its classes were renamed."""

from __future__ import annotations

import re
from typing import Any

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


def translate_header(header: dict[str, Any]) -> dict[str, Any]:
    """The header of a checkpoint of version 2, in the names of today."""
    header = _translate(header)
    options = header.get("options", {})
    if "starts" in options:  # text, not values
        shown, values = options["starts"]
        options["starts"] = _translate_text(shown), [*map(_translate_text, values)]
    if options.get("modes to solve for", [""])[0] == "()":  # all of them
        modes = range(len(options["shape"][1]["tuple"]))
        options["modes to solve for"] = str(tuple(modes)), {"tuple": [*modes]}
    return header


def _translate_text(text: str) -> str:
    return _STARTS.sub(lambda found: f"{CLASSES[found[1]]}(", text)


def _translate(value: Any) -> Any:
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
    return _rename(value, {})


def _rename(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): _translate(value) for name, value in fields.items()}
