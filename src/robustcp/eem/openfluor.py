"""Text files of OpenFluor, the database of fluorescence spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp._util.version import __version__
from robustcp.eem.spectra import Spectra
from robustcp.persist.errors import FileError, reason
from robustcp.persist.writing import Outputs, write_bytes

#: The fields of OpenFluor's form, in its order.
INFO_FIELDS = (
    "name", "creator", "date", "email", "doi", "reference", "unit", "toolbox", "fluorometer",
    "nSample", "constraints", "validation", "methods", "preprocess", "sources", "ecozones",
    "description",
)  # fmt: skip
#: The first field of the rows of each kind.
ROW_KINDS = ("Ex", "Em", "Score")


def write_openfluor(
    path: str | Path,
    spectra: Spectra,
    info: Mapping[str, Any] | None = None,
    *,
    scores: bool = False,
    force: bool = False,
) -> None:
    """Write spectra as a text file that OpenFluor takes.

    Parameters
    ----------
    path : str or Path
    spectra : Spectra
        Of `spectra(fit)`.
    info : mapping, optional
        Fields of the form: name, creator, date, email, doi, reference, unit, fluorometer,
        constraints, validation, methods, preprocess, sources, ecozones, description. They add to
        or replace those of `spectra.info`.
    scores : bool
        Whether to add the scores of the samples. OpenFluor does not use them; eem-python reads
        them if samples are named by dates.
    force : bool
        Whether an existing file may be replaced.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from robustcp.eem import Spectra, read_openfluor, write_openfluor
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.txt"
    >>> one = Spectra(np.array([350.0, 400]), np.array([250.0]), np.ones((2, 1)), np.ones((1, 1)))
    >>> write_openfluor(path, one, {"name": "lake water"})
    >>> read_openfluor(path).info["name"]
    'lake water'
    """
    path = Path(path)
    Outputs(force=force).add("path", path)
    lines = ["#", "# Fluorescence Model", "#"]
    lines += [f"{key}\t{value}" for key, value in _complete_info(spectra, info or {}).items()]
    lines += ["#", "# Excitation/Emission (Ex, Em), wavelength [nm], component_n [intensity]", "#"]
    for kind, nm, loadings in (
        ("Ex", spectra.excitation, spectra.excitation_loadings),
        ("Em", spectra.emission, spectra.emission_loadings),
    ):
        lines += [_format_row(kind, f"{w:.10g}", row) for w, row in zip(nm, loadings, strict=True)]
    if scores:
        if spectra.scores is None:
            raise checks.ArgumentError("scores", "there are none")
        names = spectra.samples or tuple(range(1, len(spectra.scores) + 1))
        lines += ["#", "# sample, component_n [Score]", "#"]
        lines += [
            _format_row("Score", _check_text("samples", str(name)), row)
            for name, row in zip(names, spectra.scores, strict=True)
        ]
    else:  # after scores eem-python waits for the end at once
        lines += ["#"]
    lines += ["# end #", ""]
    write_bytes(path, "\n".join(lines).encode())


def read_openfluor(path: str | Path) -> Spectra:
    """Spectra from a text file of OpenFluor, such as one that was downloaded there.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Spectra

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from robustcp.eem import Spectra, read_openfluor, write_openfluor
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.txt"
    >>> one = Spectra(np.array([350.0, 400]), np.array([250.0]), np.ones((2, 1)), np.ones((1, 1)))
    >>> write_openfluor(path, one)
    >>> read_openfluor(path).emission
    array([350., 400.])
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(path, f"cannot be read ({reason(error)})") from None
    info: dict[str, str] = {}
    rows: dict[str, list[tuple[str, list[float]]]] = {kind: [] for kind in ROW_KINDS}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, _, rest = line.partition("\t")
        if key in rows:
            rows[key].append(_parse_row(path, number, rest))
        else:
            info[key.strip()] = rest.strip()
    lengths = {len(values) for kind_rows in rows.values() for _, values in kind_rows}
    if not rows["Ex"] or not rows["Em"]:
        raise FileError(path, "is no file of OpenFluor: it has no rows that begin with Ex and Em")
    if len(lengths) != 1 or 0 in lengths:
        counts = " and ".join(map(str, sorted(lengths)))
        raise FileError(path, f"must have one number for each component, has rows with {counts}")
    labels = {kind: [label for label, _ in rows[kind]] for kind in ROW_KINDS}
    loadings = {kind: np.array([values for _, values in rows[kind]]) for kind in ROW_KINDS}
    samples = tuple(labels["Score"]) or None
    return Spectra(
        _parse_wavelengths(path, labels["Em"]),
        _parse_wavelengths(path, labels["Ex"]),
        loadings["Em"],
        loadings["Ex"],
        loadings["Score"] if samples else None,
        samples,
        info,
    )


def _complete_info(spectra: Spectra, info: Mapping[str, Any]) -> dict[str, str]:
    """All fields of OpenFluor's form, empty where they are unknown, and any others."""
    values = {"toolbox": f"robustcp {__version__}"}
    if spectra.scores is not None:
        values["nSample"] = str(len(spectra.scores))
    values |= {**spectra.info, **{key: str(value) for key, value in info.items()}}
    ordered = {key: values.get(key, "") for key in (*INFO_FIELDS, *values)}
    return {_check_text("info", key): _check_text("info", value) for key, value in ordered.items()}


def _check_text(argument: str, text: str) -> str:
    """A text; raises an error if the file format would give it another meaning."""
    if any(mark in text for mark in "\t\r\n#") or text in ROW_KINDS:
        raise checks.ArgumentError(
            argument,
            f"must be one line without tabs and #, and not {', '.join(ROW_KINDS)}, got {text!r}",
        )
    return text


def _format_row(kind: str, label: str, values: np.ndarray) -> str:
    return "\t".join([kind, label, *(f"{value:.10g}" for value in values)])


def _parse_row(path: str | Path, number: int, rest: str) -> tuple[str, list[float]]:
    label, *values = rest.rstrip().split("\t")
    try:
        return label, [float(value) for value in values]
    except ValueError:
        raise FileError(path, f"line {number} has something else than numbers: {rest!r}") from None


def _parse_wavelengths(path: str | Path, texts: Sequence[str]) -> np.ndarray:
    wavelengths = []
    for text in texts:
        try:
            wavelengths.append(float(text))
        except ValueError:
            raise FileError(path, f"{text!r} is not a wavelength in nm") from None
    return np.array(wavelengths)
