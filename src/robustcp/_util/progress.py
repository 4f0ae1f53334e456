"""What long work says of itself while it runs: where it is, and how long it may take.

The library logs, a logger for each module, and attaches no handler but one that does nothing. At
the level INFO there are starts, stages, levels, and at times where a fit is; at DEBUG each sweep.
A record that says where a fit is has the `ProgressReport` as its attribute `step`; one that says
from where it goes on has an attribute `begins`, and a reason to doubt the fit, which is told as a
warning, an attribute `of_fit`.
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
RECENT_SWEEPS, TREND_SWEEPS = 20, 4

logging.getLogger("robustcp").addHandler(logging.NullHandler())


class ReportInterval:
    """How often, in seconds, the log says at the level INFO where a fit is."""

    seconds = 10.0


@contextmanager
def report_every(seconds: float) -> Iterator[None]:
    """Say where fits are more or less often than every 10 seconds, in all threads.

    Examples
    --------
    >>> with report_every(60):
    ...     print(ReportInterval.seconds)
    60
    """
    before, ReportInterval.seconds = ReportInterval.seconds, seconds
    try:
        yield
    finally:
        ReportInterval.seconds = before


@dataclass(frozen=True)
class ProgressReport:
    """Where some work is.

    Attributes
    ----------
    activity : str
        What it is at, such as the stage and level of a fit.
    counter : str
        How far it is, such as the number of the sweep.
    objective : float
        NaN if there is none.
    share : float
        The share of all that is done, at least; NaN if that is not known.
    seconds_left : float
        Seconds that it may take, as an estimate; NaN if there is none.
    estimate_scope : str
        What the estimate is for, if it is not for all that is left.
    max_seconds_left : float
        Seconds that the rest takes at most, at the speed so far; NaN if that is not known.
    bound_reason : str
        What that would be.
    """

    activity: str
    counter: str = ""
    objective: float = math.nan
    share: float = math.nan
    seconds_left: float = math.nan
    estimate_scope: str = ""
    max_seconds_left: float = math.nan
    bound_reason: str = ""

    @property
    def position(self) -> str:
        """What it is at, without the time."""
        value = "" if math.isnan(self.objective) else f"objective {self.objective:.6g}"
        return ", ".join(part for part in (self.activity, self.counter, value) if part)

    @property
    def time_left(self) -> str:
        """The time that is left, as far as that can be said."""
        phrases = []
        if not math.isnan(self.seconds_left):
            phrases.append(f"about {format_duration(self.seconds_left)}{self.estimate_scope}")
        if not math.isnan(self.max_seconds_left):
            phrases.append(f"at most {format_duration(self.max_seconds_left)}{self.bound_reason}")
        return ", ".join(phrases) or "not known yet"

    def after(self, seconds: float) -> ProgressReport:
        """The same some time later; an estimate that was exceeded is none."""
        seconds_left = self.seconds_left - seconds
        max_seconds_left = (
            self.max_seconds_left
            if math.isnan(self.max_seconds_left)
            else max(self.max_seconds_left - seconds, 0.0)
        )
        return replace(
            self,
            seconds_left=seconds_left if seconds_left > 0 else math.nan,
            max_seconds_left=max_seconds_left,
        )

    def __str__(self) -> str:
        return f"{self.position}; time left: {self.time_left}"


def format_duration(seconds: float) -> str:
    """A time in words, to about two digits.

    Examples
    --------
    >>> [format_duration(seconds) for seconds in (0.2, 42.4, 600, 3900, 200000)]
    ['1 s', '42 s', '10 min', '1 h 5 min', '2 days 8 h']
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


class Throughput:
    """How fast steps follow each other, and when one was told last."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._last_report, self._times = now, deque([now], RECENT_SWEEPS + 1)

    def count_steps(self, count: int = 1) -> None:
        """Some more steps."""
        self._times.extend([time.monotonic()] * min(count, RECENT_SWEEPS))

    @property
    def seconds_per_step(self) -> float:
        """How long a step takes; NaN before the first."""
        steps = len(self._times) - 1
        return (self._times[-1] - self._times[0]) / steps if steps else math.nan

    def report(
        self,
        logger: logging.Logger,
        make_report: Callable[[], ProgressReport],
        *,
        now: bool = False,
    ) -> None:
        """Log where some work is: for all to see if that is new, or was told long ago."""
        due = self._times[-1] - self._last_report >= ReportInterval.seconds
        level = logging.INFO if now or due else logging.DEBUG
        if due:
            self._last_report = self._times[-1]
        if logger.isEnabledFor(level):
            progress = make_report()
            logger.log(level, "%s", progress, extra={"step": progress})


class ConvergenceTrend:
    """How the fall of an objective slows down within a level, and so when it ends."""

    def __init__(self) -> None:
        self._decreases: deque[float] = deque(maxlen=TREND_SWEEPS + 1)

    def add(self, decrease: float, first: bool) -> None:
        """The fall in a sweep, which may be the first of a level."""
        if first:
            self._decreases.clear()
        self._decreases.append(decrease)

    def sweeps_left(self, tol: float) -> float:
        """How many more until it is below a tolerance, if it goes on like this; else NaN."""
        steps = len(self._decreases) - 1
        if steps < 1:
            return math.nan
        first, last = self._decreases[0], self._decreases[-1]
        if not 0 < last < first < math.inf or tol <= 0:
            return math.nan
        rate = math.log(first / last) / steps
        return max(1.0, math.log(last / tol) / rate)


def log_notice(logger: logging.Logger, message: str, *arguments: object) -> None:
    """Tell people something that is no error, also those who have not set up logging."""
    logger.warning(message, *arguments)
    ancestor: logging.Logger | None = logger
    while ancestor is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in ancestor.handlers):
            return
        ancestor = ancestor.parent if ancestor.propagate else None
    if logging.lastResort is not None and logger.isEnabledFor(logging.WARNING):
        record = logger.makeRecord(logger.name, logging.WARNING, "", 0, message, arguments, None)
        logging.lastResort.handle(record)
