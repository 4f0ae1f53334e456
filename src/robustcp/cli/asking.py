"""What commands ask of a fit: its method, constraints, and where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustcp.cli.errors import fail
from robustcp.cli.reading import read_mode

#: Where fits begin, by name.
STARTS = ("auto", "nvecs", "random")


@dataclass(frozen=True)
class Asked:
    """What a fit is asked to be like, as the options say it."""

    method: str
    noise: str | None = None
    cases: str | None = None
    nonnegative: str | None = None
    smooth: Sequence[str] = ()
    unimodal: Sequence[str] = ()
    constraint: Sequence[str] = ()
    init: str | None = None
    fixed: str | None = None

    def check(self) -> Asked:
        """Refuse what cannot be meant, whatever the data."""
        if self.method not in ("cp", "cpal1", "cpals"):
            fail(f"--method {self.method}: must be cp, cpal1 or cpals")
        for name in ("nonnegative", "noise", "cases", "fixed"):
            if getattr(self, name) is not None and self.method != "cp":
                fail(f"--{name}: is for --method cp, not {self.method}")
        if self.fixed is not None and self.init_file is None:
            fail(f"--fixed {self.fixed}: needs the fit whose factors are kept, --init FILE")
        self._constraints()
        return self

    @property
    def init_file(self) -> Path | None:
        """The file of the model that a fit begins with, if there is one."""
        return None if self.init in (None, *STARTS) else Path(str(self.init))

    def options(self, modes: Sequence[str]) -> dict[str, Any]:
        """What the library takes, for data with some names of modes."""
        found: dict[str, Any] = {"constraints": self._constraints()}
        if self.method == "cp":
            found["nonnegative"] = which_modes(self.nonnegative, modes)
        if self.init is not None:
            file = self.init_file
            found["init"] = self.init if file is None else _model(file)
        if self.fixed is not None:
            found["fixed"] = which_modes(self.fixed, modes)
        return found

    def _constraints(self) -> dict[Any, Any]:
        """Constraints as the library takes them, each mode as a number or a name."""
        given = [(f"--smooth {text}", *_pair("--smooth", text, "STRENGTH"), "smooth")
                 for text in self.smooth]  # fmt: skip
        given += [(f"--unimodal {mode}", mode, "", "unimodal") for mode in self.unimodal]
        for text in self.constraint:
            mode, kind = _pair("--constraint", text, "KIND")
            name, _, number = kind.partition(":")
            given.append((f"--constraint {text}", mode, number, name))
        found: dict[Any, Any] = {}
        for option, mode, number, kind in given:
            key = int(mode) if _is_number(mode) else mode
            if key in found:
                fail(f"{option}: the mode has another constraint already")
            found[key] = self._constraint(option, mode, kind, number)
        return found

    def _constraint(self, option: str, mode: str, kind: str, number: Any) -> Any:
        from robustcp import constraints

        listed = [part.strip() for part in (self.nonnegative or "").split(",")]
        try:
            if kind == "smooth":  # which refuses what is not a number
                return constraints.Smooth(number, self.nonnegative == "all" or mode in listed)
            if kind in ("unimodal", "nonnegative") and not number:
                return {"unimodal": constraints.Unimodal, "nonnegative": constraints.Nonnegative}[
                    kind
                ]()
        except ValueError as error:
            fail(f"{option}: {error}")
        return fail(f"{option}: must be MODE=nonnegative, MODE=unimodal or MODE=smooth:STRENGTH")


def _pair(option: str, text: str, what: str) -> tuple[str, str]:
    mode, sign, rest = text.rpartition("=")
    if not sign or not mode:
        fail(f"{option} {text}: must be MODE={what}")
    return mode, rest


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def which_modes(text: str | None, modes: Sequence[str]) -> Any:
    """Modes by number or name, with commas between; none or all of them as False or True."""
    if text is None or (text == "all" and text not in modes):
        return text is not None
    if text in modes:
        return [text]
    return [read_mode(part.strip(), modes) for part in text.split(",")]


def _model(path: Path) -> Any:
    """The fit in a file, or at least the model."""
    from robustcp.files.errors import FileError
    from robustcp.io.fits import load, load_model

    try:
        return load(path)
    except FileError:
        return load_model(path)
