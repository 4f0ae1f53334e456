"""Arguments checked at the front door: errors name the argument and its value."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np


class ArgumentError(ValueError):
    """An argument that cannot be used, and why; the command line names its option instead."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.argument}: {self.problem}"


def whole_number(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < minimum or (maximum is not None and value > maximum):
        span = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ArgumentError(name, f"must be an integer {span}, got {value!r}")
    return int(value)


def real_number(
    name: str,
    value: Any,
    minimum: float,
    *,
    strict: bool = False,
    below: float = math.inf,
    maximum: float = math.inf,
) -> float:
    """A finite number >= least, or > least, and < below, and <= most."""
    sign = ">" if strict else ">="
    limit = "" if below == math.inf else f" and < {below:g}"
    limit += "" if maximum == math.inf else f" and <= {maximum:g}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    too_small = number < minimum or (strict and number == minimum)
    if not math.isfinite(number) or too_small or number >= below or number > maximum:
        raise ArgumentError(name, f"must be a number {sign} {minimum:g}{limit}, got {value!r}")
    return number


def mode_number(name: str, mode: Any, names: Sequence[str], order: int) -> int:
    """The number of a mode that is given by number, or by name where modes have names."""
    if not isinstance(mode, str):
        return whole_number(name, mode, 0, maximum=order - 1)
    if not names:
        raise ArgumentError(name, f"no mode is named {mode!r}: they have no names, give its number")
    if mode not in names:
        raise ArgumentError(name, f"must be one of {', '.join(names)}, got {mode!r}")
    return list(names).index(mode)


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    if value not in options:
        listing = ", ".join(map(repr, options))
        raise ArgumentError(name, f"must be one of {listing}, got {value!r}")
    return str(value)


def generator(rng: int | np.random.Generator | None) -> np.random.Generator:
    """A Generator from a seed; without one a fixed seed, so that a fit can be repeated.

    It is a child of the seed's own: data simulated with the same seed must not come with the
    same numbers as the starts of a fit.
    """
    try:
        return np.random.default_rng(0 if rng is None else rng).spawn(1)[0]
    except (TypeError, ValueError):
        raise ArgumentError("rng", f"must be a seed or a NumPy Generator, got {rng!r}") from None


def seed(name: str, state: Any) -> Any:
    """A seed for `generator` from a random_state; a RandomState gives its next number."""
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31))
    if state is None or isinstance(state, int | np.integer | np.random.Generator):
        return state
    raise ArgumentError(name, f"must be a seed, a RandomState or a Generator, got {state!r}")


def warn(message: str) -> None:
    """A warning that points at the line of the user's that called."""
    depth, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("robustcp."):
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, stacklevel=depth)


@contextmanager
def name_in_errors(name: str) -> Iterator[None]:
    """Errors about X become errors about the argument that was passed on as X."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        raise error_type(str(error).replace("X:", f"{name}:", 1)) from None
