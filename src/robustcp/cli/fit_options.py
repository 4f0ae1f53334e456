"""What commands ask of a fit: its method, constraints, and where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustcp.cli.errors import fail
from robustcp.cli.read_options import read_mode

#: Where fits begin, by name.
START_KINDS = ("auto", "nvecs", "random")
#: The constraints that need no value.
PLAIN_CONSTRAINTS = (
    "nonnegative", "unimodal", "increasing", "decreasing", "orthogonal", "simplex",
)  # fmt: skip
#: The others, and what their values are.
CONSTRAINTS_WITH_VALUES = {
    "smooth": "STRENGTH", "l1": "WEIGHT", "cardinality": "COUNT", "fixed": "FILE",
}  # fmt: skip


@dataclass(frozen=True)
class FitOptions:
    """What a fit is asked to be like, as the options say it."""

    method: str
    noise: str | None = None
    cases: str | None = None
    limits: str | None = None
    nonnegative: str | None = None
    smooth: Sequence[str] = ()
    unimodal: Sequence[str] = ()
    constraint: Sequence[str] = ()
    init: str | None = None
    fixed: str | None = None
    center: Sequence[str] = ()
    scale: Sequence[str] = ()
    log_ratio: str | None = None

    def check(self) -> FitOptions:
        """Refuse what cannot be meant, whatever the data."""
        if self.method not in ("cp", "cpal1", "cpals"):
            fail(f"--method {self.method}: must be cp, cpal1 or cpals")
        for name in ("noise", "cases"):
            if getattr(self, name) is not None and self.method != "cp":
                fail(f"--{name}: is for --method cp, not {self.method}")
        if self.fixed is not None and self.init_file is None:
            fail(f"--fixed {self.fixed}: needs the fit whose factors are kept, --init FILE")
        self._parse_constraints()
        if self.limits is not None:
            _parse_limits(self.limits)
        self._parse_preprocessing()
        return self

    @property
    def init_file(self) -> Path | None:
        """The file of the model that a fit begins with, if there is one."""
        return None if self.init in (None, *START_KINDS) else Path(str(self.init))

    def keyword_arguments(self, modes: Sequence[str]) -> dict[str, Any]:
        """What the library takes, for data with some names of modes."""
        arguments: dict[str, Any] = {
            "constraints": self._parse_constraints(),
            "nonnegative": parse_modes(self.nonnegative, modes),
        }
        if self.limits is not None:
            arguments["limits"] = _parse_limits(self.limits)
        if steps := self._parse_preprocessing():
            arguments["preprocess"] = steps
        if self.init is not None:
            file = self.init_file
            arguments["init"] = self.init if file is None else _load_model(file)
        if self.fixed is not None:
            arguments["fixed"] = parse_modes(self.fixed, modes)
        return arguments

    def _parse_preprocessing(self) -> list[Any]:
        """Steps of preprocessing as the library takes them."""
        from robustcp.preprocess import Center, LogRatio, Scale

        steps: list[Any] = []
        try:
            if self.log_ratio is not None:
                option = f"--log-ratio {self.log_ratio}"
                mode, floor = _split_option(self.log_ratio)
                steps += LogRatio(mode, floor=None if floor is None else float(floor))
            for name, texts, step in (
                ("center", self.center, Center),
                ("scale", self.scale, Scale),
            ):
                for text in texts:
                    option = f"--{name} {text}"
                    mode, kind = _split_option(text)
                    steps.append(step(mode) if kind is None else step(mode, kind))
        except ValueError as error:
            fail(f"{option}: {error}")
        return steps

    def _parse_constraints(self) -> dict[Any, Any]:
        """Constraints as the library takes them, each mode as a number or a name."""
        specifications = [
            (f"--smooth {text}", *_split_pair("--smooth", text, "STRENGTH"), "smooth")
            for text in self.smooth
        ]
        specifications += [(f"--unimodal {mode}", mode, "", "unimodal") for mode in self.unimodal]
        for text in self.constraint:
            mode, kind = _split_pair("--constraint", text, "KIND")
            name, _, value = kind.partition(":")
            specifications.append((f"--constraint {text}", mode, value, name))
        constraints: dict[Any, Any] = {}
        for option, mode, value, kind in specifications:
            key = int(mode) if _is_number(mode) else mode
            if key in constraints:
                fail(f"{option}: the mode has another constraint already")
            constraints[key] = _make_constraint(option, kind, value)
        return constraints


def _make_constraint(option: str, kind: str, value: str) -> Any:
    """The constraint that `KIND` or `KIND:VALUE` stands for."""
    from robustcp import constraints

    if (kind in PLAIN_CONSTRAINTS and not value) or (kind in CONSTRAINTS_WITH_VALUES and value):
        try:
            if kind == "smooth":
                return constraints.Smooth(_as_number(value, float))
            if kind == "l1":
                return constraints.Sparse(l1=_as_number(value, float))
            if kind == "cardinality":
                return constraints.Sparse(cardinality=_as_number(value, int))
            if kind == "fixed":
                return constraints.Fixed(_read_columns(Path(value)))
            if kind in ("increasing", "decreasing"):
                return constraints.Monotone(increasing=kind == "increasing")
            return getattr(constraints, kind.capitalize())()
        except ValueError as error:
            fail(f"{option}: {error}")
    kinds = [f"MODE={kind}" for kind in PLAIN_CONSTRAINTS]
    kinds += [f"MODE={kind}:{value}" for kind, value in CONSTRAINTS_WITH_VALUES.items()]
    return fail(f"{option}: must be {', '.join(kinds[:-1])} or {kinds[-1]}")


def _read_columns(path: Path) -> Any:
    """The numbers in a .npy file, or in a text file with commas between them."""
    import numpy as np

    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.genfromtxt(path, delimiter=",")
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: holds no columns of numbers ({error})") from None


def _as_number(text: str, number: type[float | int]) -> Any:
    """A number, or the text, which the constraint refuses, if it is none."""
    try:
        return number(text)
    except ValueError:
        return text


def _split_pair(option: str, text: str, placeholder: str) -> tuple[str, str]:
    mode, separator, value = text.rpartition("=")
    if not separator or not mode:
        fail(f"{option} {text}: must be MODE={placeholder}")
    return mode, value


def _split_option(text: str) -> tuple[int | str, str | None]:
    """A mode, as a number or a name, and what is after a colon."""
    mode, _, kind = text.partition(":")
    return int(mode) if _is_number(mode) else mode, kind or None


def _parse_limits(text: str) -> Any:
    """Limits as the library takes them."""
    if text in ("auto", "none"):
        return "auto" if text == "auto" else None
    low, separator, high = text.partition(":")
    if separator and (low or high):
        with suppress(ValueError):
            return tuple(float(limit) if limit else None for limit in (low, high))
    return fail(f"--limits {text}: must be LOW:HIGH, of which one may be left out, auto or none")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def parse_modes(text: str | None, modes: Sequence[str]) -> Any:
    """Modes by number or name, with commas between; none or all of them as False or True."""
    if text is None or (text == "all" and text not in modes):
        return text is not None
    if text in modes:
        return [text]
    return [read_mode(part.strip(), modes) for part in text.split(",")]


def _load_model(path: Path) -> Any:
    """The fit in a file, or at least the model."""
    from robustcp.persist.errors import FileError
    from robustcp.persist.fits import load, load_model

    try:
        return load(path)
    except FileError:
        return load_model(path)
