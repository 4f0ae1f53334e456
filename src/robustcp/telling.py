"""What long work says of itself while it runs: where it is, and how long it may take.

The library logs, a logger for each module, and attaches no handler but one that does nothing. At
the level INFO there are starts, stages, levels, and at times where a fit is; at DEBUG each sweep.
A record that says where a fit is has the `Step` as its attribute `step`; one that says from where
it goes on has an attribute `begins`, and a reason to doubt the fit, which is told as a warning, an
attribute `of_fit`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

#: The speed is that of so many sweeps; how fast progress slows down is seen over so many.
RECENT, TREND = 20, 4

logging.getLogger("robustcp").addHandler(logging.NullHandler())


class Often:
    """How often, in seconds, the log says at the level INFO where a fit is."""

    seconds = 10.0


@contextmanager
def told_every(seconds: float) -> Iterator[None]:
    """Say where fits are more or less often than every 10 seconds, in all threads.

    Examples
    --------
    >>> with told_every(60):
    ...     print(Often.seconds)
    60
    """
    before, Often.seconds = Often.seconds, seconds
    try:
        yield
    finally:
        Often.seconds = before


@dataclass(frozen=True)
class Step:
    """Where some work is.

    Attributes
    ----------
    doing : str
        What it is at, such as the stage and level of a fit.
    counted : str
        How far it is, such as the number of the sweep.
    objective : float
        NaN if there is none.
    share : float
        The share of all that is done, at least; NaN if that is not known.
    about : float
        Seconds that it may take, as an estimate; NaN if there is none.
    of_what : str
        What the estimate is for, if it is not for all that is left.
    at_most : float
        Seconds that the rest takes at most, at the speed so far; NaN if that is not known.
    because : str
        What that would be.
    """

    doing: str
    counted: str = ""
    objective: float = math.nan
    share: float = math.nan
    about: float = math.nan
    of_what: str = ""
    at_most: float = math.nan
    because: str = ""

    @property
    def where(self) -> str:
        """What it is at, without the time."""
        value = "" if math.isnan(self.objective) else f"objective {self.objective:.6g}"
        return ", ".join(part for part in (self.doing, self.counted, value) if part)

    @property
    def left(self) -> str:
        """The time that is left, as far as that can be said."""
        said = []
        if not math.isnan(self.about):
            said.append(f"about {duration(self.about)}{self.of_what}")
        if not math.isnan(self.at_most):
            said.append(f"at most {duration(self.at_most)}{self.because}")
        return ", ".join(said) or "not known yet"

    def later(self, seconds: float) -> Step:
        """The same some time later; an estimate that was exceeded is none."""
        about = self.about - seconds
        at_most = self.at_most if math.isnan(self.at_most) else max(self.at_most - seconds, 0.0)
        return replace(self, about=about if about > 0 else math.nan, at_most=at_most)

    def __str__(self) -> str:
        return f"{self.where}; time left: {self.left}"


def duration(seconds: float) -> str:
    """A time in words, to about two digits.

    Examples
    --------
    >>> duration(0.2), duration(42.4), duration(600), duration(3900), duration(200000)
    ('1 s', '42 s', '10 min', '1 h 5 min', '2 days 8 h')
    """
    if seconds < 100:
        return f"{max(1, math.ceil(seconds - 0.5))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes and hours < 10 else "")
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} days" + (f" {hours} h" if hours and days < 10 else "")


class Pace:
    """How fast steps follow each other, and when one was told last."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._told, self._times = now, deque([now], RECENT + 1)

    def step(self) -> None:
        """One more."""
        self._times.append(time.monotonic())

    @property
    def seconds(self) -> float:
        """How long a step takes; NaN before the first."""
        steps = len(self._times) - 1
        return (self._times[-1] - self._times[0]) / steps if steps else math.nan

    def tell(self, logger: logging.Logger, step: Callable[[], Step], *, now: bool = False) -> None:
        """Log where some work is: for all to see if that is new, or was told long ago."""
        time_is_up = self._times[-1] - self._told >= Often.seconds
        level = logging.INFO if now or time_is_up else logging.DEBUG
        if time_is_up:
            self._told = self._times[-1]
        if logger.isEnabledFor(level):
            known = step()
            logger.log(level, "%s", known, extra={"step": known})


class Trend:
    """How the fall of an objective slows down within a level, and so when it ends."""

    def __init__(self) -> None:
        self._falls: deque[float] = deque(maxlen=TREND + 1)

    def add(self, fall: float, first: bool) -> None:
        """The fall in a sweep, which may be the first of a level."""
        if first:
            self._falls.clear()
        self._falls.append(fall)

    def sweeps(self, tol: float) -> float:
        """How many more until it is below a tolerance, if it goes on like this; else NaN."""
        steps = len(self._falls) - 1
        if steps < 1:
            return math.nan
        first, last = self._falls[0], self._falls[-1]
        if not 0 < last < first < math.inf or tol <= 0:
            return math.nan
        rate = math.log(first / last) / steps
        return max(1.0, math.log(last / tol) / rate)


def notice(logger: logging.Logger, message: str, *arguments: object) -> None:
    """Tell people something that is no error, also those who have not set up logging."""
    logger.warning(message, *arguments)
    at: logging.Logger | None = logger
    while at is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in at.handlers):
            return
        at = at.parent if at.propagate else None
    if logging.lastResort is not None and logger.isEnabledFor(logging.WARNING):
        record = logger.makeRecord(
            logger.name, logging.WARNING, "", 0, message, arguments, None
        )  # fmt: skip
        logging.lastResort.handle(record)
