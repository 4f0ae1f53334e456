"""Arguments checked at the front door: errors name the argument and its value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        span = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: must be an integer {span}, got {value!r}")
    return int(value)


def real_number(
    name: str, value: Any, least: float, *, above: bool = False, below: float = math.inf
) -> float:
    """A finite number >= least, or > least, and < below."""
    sign = ">" if above else ">="
    limit = "" if below == math.inf else f" and < {below:g}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    small = number < least or (above and number == least)
    if not math.isfinite(number) or small or number >= below:
        raise ValueError(f"{name}: must be a number {sign} {least:g}{limit}, got {value!r}")
    return number


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    if value not in options:
        raise ValueError(f"{name}: must be one of {', '.join(map(repr, options))}, got {value!r}")
    return str(value)


def generator(rng: int | np.random.Generator | None) -> np.random.Generator:
    """A Generator from a seed; without one a fixed seed, so that a fit can be repeated.

    It is a child of the seed's own: data simulated with the same seed must not come with the
    same numbers as the starts of a fit.
    """
    try:
        return np.random.default_rng(0 if rng is None else rng).spawn(1)[0]
    except (TypeError, ValueError):
        raise ValueError(f"rng: must be None, a seed or a NumPy Generator, got {rng!r}") from None


@contextmanager
def about(name: str) -> Iterator[None]:
    """Errors about X become errors about the argument that was passed on as X."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("X:", f"{name}:", 1)) from None
