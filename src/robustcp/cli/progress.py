"""What is shown while a command works, on standard error: a bar to people, else lines of a log."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from robustcp.cli.errors import STOPPED, fail, tell
from robustcp.outcome import Outcome
from robustcp.telling import RECENT, Step, told_every

if TYPE_CHECKING:
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded

LOG = logging.getLogger(__name__)

#: How a fit ended that was stopped from the keyboard.
INTERRUPTED = Outcome("stopped", "stopped by Ctrl-C before it converged: this is the fit so far")

#: How often, in seconds, the library tells a bar, or what the next line will say.
FRESH = 0.5
FORMAT, DATE = "%(asctime)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"

Show = Callable[[Step], object]
Line = Callable[[logging.LogRecord], object]


def fit_with_progress(
    method: Callable[..., Fit],
    loaded: Loaded,
    rank: int,
    options: dict[str, Any],
    shown: Shown,
) -> tuple[Fit, float]:
    """Fit, and show how far it is; Ctrl-C ends it after its sweep."""
    begin = time.perf_counter()
    try:
        with (
            _interruptible() as interrupted,
            shown.watch(),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            found = method(loaded, rank, callback=lambda state: interrupted(), **options)
    except KeyboardInterrupt:
        fail(_kept(options) or "stopped before there was anything to write", STOPPED)
    except (SystemExit, OSError):  # a signal such as SIGTERM; data that cannot be read any more
        if line := _kept(options):
            tell(line)
        raise
    for warning in () if shown.quiet else caught:
        print(f"robustcp: note: {warning.message}", file=sys.stderr)
    if found.result.name == INTERRUPTED.name:
        found = replace(found, result=INTERRUPTED)
    named = replace(found, modes=loaded.modes, labels=loaded.labels, units=loaded.units)
    return named, time.perf_counter() - begin


def _kept(options: dict[str, Any]) -> str:
    """What to say of the checkpoint of a fit that was stopped, if it has one."""
    kept = options.get("checkpoint")
    if kept is None or not kept.path.exists():
        return ""
    return f"stopped; the same command goes on from {kept.path}"


class Shown:
    """What is to be shown of some work.

    Parameters
    ----------
    quiet : bool
        Nothing at all.
    every : float
        Without a terminal, seconds between lines that say how far it is; 0 for none.
    verbose : bool
        All that the library logs at the level INFO.
    """

    def __init__(self, quiet: bool = False, every: float = 10.0, verbose: bool = False) -> None:
        self.quiet, self.every, self.verbose = quiet, every, verbose

    @contextmanager
    def watch(self) -> Iterator[Show]:
        """Show what the library tells of a fit."""
        with self._display() as (show, line), _heard(show, line):
            yield show

    @contextmanager
    def count(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show how much is done of several tasks: their name, how many, and of how many."""
        with self._display() as (show, line), _heard(lambda step: None, line):
            yield _counted(show)

    @contextmanager
    def _display(self) -> Iterator[tuple[Show, Line]]:
        """What shows where some work is, and what shows other lines."""
        begins = Step("begins")
        if self.quiet:
            yield (lambda step: None), (lambda record: None)
        elif sys.stderr.isatty():
            with _bar(begins) as show:
                yield show, self._line(lambda record: tell(record.getMessage()))
        else:
            lines = logging.StreamHandler()
            lines.setFormatter(logging.Formatter(FORMAT, DATE))
            with _ticking(lines, self.every, begins) as show:
                yield show, self._line(lines.handle)

    def _line(self, write: Line) -> Line:
        return lambda record: write(record) if self.verbose or _told_always(record) else None


def _told_always(record: logging.LogRecord) -> bool:
    """Whether a line is of interest to those who did not ask for all of them."""
    told_later = hasattr(record, "of_fit")
    return hasattr(record, "begins") or (record.levelno >= logging.WARNING and not told_later)


@contextmanager
def _heard(show: Show, line: Line) -> Iterator[None]:
    """Listen to the library: where a fit is goes to `show`, and lines to `line`."""
    logger, handler = logging.getLogger("robustcp"), logging.Handler(logging.INFO)

    def emit(record: logging.LogRecord) -> None:
        step: Step | None = getattr(record, "step", None)
        if step is None:
            line(record)
        if record.levelno < logging.WARNING and not hasattr(record, "begins"):
            show(step or Step(record.getMessage()))

    handler.emit = emit  # type: ignore[method-assign]
    before, passed_on = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with told_every(FRESH):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = passed_on


@contextmanager
def _ticking(lines: logging.Handler, every: float, step: Step) -> Iterator[Show]:
    """A line every so often about what was told last."""
    begun = last = time.monotonic()
    over = threading.Event()

    def show(told: Step) -> None:
        nonlocal step, last
        step, last = told, time.monotonic()

    def tick() -> None:
        while not over.wait(every):
            now = time.monotonic()
            text = f"{step.later(now - last)}; {_clock(now - begun)} so far"
            lines.handle(LOG.makeRecord("robustcp", logging.INFO, "", 0, text, (), None))

    thread = threading.Thread(target=tick, name="robustcp progress", daemon=True)
    if every > 0:
        thread.start()
    try:
        yield show
    finally:
        over.set()
        if every > 0:
            thread.join()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@contextmanager
def _bar(step: Step) -> Iterator[Show]:
    """A bar at a terminal, with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn(),
        TextColumn("left: {task.fields[left]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(step.where, total=None, left=step.left)

        def show(told: Step) -> None:
            known = not math.isnan(told.share)
            bars.update(
                bar, description=told.where, left=told.left,
                total=1.0 if known else None, completed=told.share if known else 0.0,
            )  # fmt: skip

        yield show


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; pressed again it interrupts at once."""
    stop = False

    def asked(*_: object) -> None:
        nonlocal stop
        stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, asked)
    try:
        yield lambda: stop
    finally:
        signal.signal(signal.SIGINT, before)


def _counted(show: Show) -> Callable[[str, int, int | None], None]:
    """What is told as numbers, as steps with the time that is left, at the speed of late."""
    begun, reports = time.monotonic(), dict[str, deque[tuple[float, int]]]()

    def progress(name: str, done: int, total: int | None) -> None:
        known = reports.setdefault(name, deque([(begun, 0)], RECENT))
        known.append((time.monotonic(), done))
        (since, before), (now, _) = known[0], known[-1]
        share = about = math.nan
        if total and done > before:
            share, about = done / total, (now - since) * (total - done) / (done - before)
        counted = f"{done} of {total} done" if total else f"{done} done"
        show(Step(name, counted, share=share, about=about))

    return progress
