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
        for name in ("nonnegative", "noise", "cases", "fixed"):
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
        arguments: dict[str, Any] = {"constraints": self._parse_constraints()}
        if self.limits is not None:
            arguments["limits"] = _parse_limits(self.limits)
        if steps := self._parse_preprocessing():
            arguments["preprocess"] = steps
        if self.method == "cp":
            arguments["nonnegative"] = parse_modes(self.nonnegative, modes)
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
            name, _, strength = kind.partition(":")
            specifications.append((f"--constraint {text}", mode, strength, name))
        constraints: dict[Any, Any] = {}
        for option, mode, strength, kind in specifications:
            key = int(mode) if _is_number(mode) else mode
            if key in constraints:
                fail(f"{option}: the mode has another constraint already")
            constraints[key] = self._make_constraint(option, mode, kind, strength)
        return constraints

    def _make_constraint(self, option: str, mode: str, kind: str, strength: Any) -> Any:
        from robustcp import constraints

        nonnegative_modes = [part.strip() for part in (self.nonnegative or "").split(",")]
        try:
            if kind == "smooth":  # which refuses what is not a number
                return constraints.Smooth(
                    strength, self.nonnegative == "all" or mode in nonnegative_modes
                )
            if kind in ("unimodal", "nonnegative") and not strength:
                return {"unimodal": constraints.Unimodal, "nonnegative": constraints.Nonnegative}[
                    kind
                ]()
        except ValueError as error:
            fail(f"{option}: {error}")
        return fail(f"{option}: must be MODE=nonnegative, MODE=unimodal or MODE=smooth:STRENGTH")


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
