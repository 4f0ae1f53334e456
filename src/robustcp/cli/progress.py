"""What is shown while a command works, on standard error: a bar to people, else lines of a log."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from robustcp._util.progress import RECENT_SWEEPS, ProgressReport, report_every
from robustcp.cli.errors import STOPPED, fail, print_message
from robustcp.cli.interrupts import stop_fits_on_interrupt
from robustcp.optimize.outcome import Outcome

if TYPE_CHECKING:
    from robustcp.io.reading import Loaded
    from robustcp.results.fit import Fit

LOG = logging.getLogger(__name__)

#: How a fit ended that was stopped from the keyboard.
INTERRUPTED = Outcome("stopped", "stopped by Ctrl-C before it converged: this is the fit so far")

#: How often, in seconds, the library tells a bar, or what the next line will say.
REPORT_SECONDS = 0.5
LOG_FORMAT, DATE_FORMAT = "%(asctime)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"

ShowProgress = Callable[[ProgressReport], object]
WriteRecord = Callable[[logging.LogRecord], object]


def fit_with_progress(
    method: Callable[..., Fit],
    loaded: Loaded,
    rank: int,
    options: dict[str, Any],
    display: ProgressDisplay,
) -> tuple[Fit, float]:
    """The fit so far when it ends or Ctrl-C stops it, and its seconds; progress is shown."""
    start_time = time.perf_counter()
    try:
        with (
            stop_fits_on_interrupt(),
            display.watch_fit(),
            warnings.catch_warnings(record=True) as caught_warnings,
        ):
            warnings.simplefilter("always")
            fit = method(loaded, rank, **options)
    except KeyboardInterrupt:
        message = _checkpoint_message(options)
        fail(message or "stopped before there was a fit; nothing is written", STOPPED)
    except (SystemExit, OSError):  # a signal such as SIGTERM; data that cannot be read any more
        if message := _checkpoint_message(options):
            print_message(message)
        raise
    for warning in () if display.quiet else caught_warnings:
        print(f"robustcp: note: {warning.message}", file=sys.stderr)
    if fit.result.name == INTERRUPTED.name:
        fit = replace(fit, result=INTERRUPTED)
    named_fit = replace(fit, modes=loaded.modes, labels=loaded.labels, units=loaded.units)
    return named_fit, time.perf_counter() - start_time


def _checkpoint_message(options: dict[str, Any]) -> str:
    """What to say of the checkpoint of a fit that was stopped, if it has one."""
    checkpoint = options.get("checkpoint")
    if checkpoint is None or not checkpoint.path.exists():
        return ""
    return f"stopped; the same command goes on from {checkpoint.path}"


class ProgressDisplay:
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
    def watch_fit(self) -> Iterator[ShowProgress]:
        """Show what the library tells of a fit."""
        with self._display() as (show, write_record), _listen(show, write_record):
            yield show

    @contextmanager
    def count_tasks(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show how much is done of several tasks: their name, how many, and of how many."""
        with self._display() as (show, write_record), _listen(lambda step: None, write_record):
            yield _count_progress(show)

    @contextmanager
    def _display(self) -> Iterator[tuple[ShowProgress, WriteRecord]]:
        """What shows where some work is, and what shows other lines."""
        initial = ProgressReport("begins")
        if self.quiet:
            yield (lambda step: None), (lambda record: None)
        elif sys.stderr.isatty():
            with _show_bar(initial) as show:
                yield show, self._filter_records(lambda record: print_message(record.getMessage()))
        else:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(LOG_FORMAT, DATE_FORMAT))
            with _log_periodically(handler, self.every, initial) as show:
                yield show, self._filter_records(handler.handle)

    def _filter_records(self, write: WriteRecord) -> WriteRecord:
        return lambda record: write(record) if self.verbose or _is_always_shown(record) else None


def _is_always_shown(record: logging.LogRecord) -> bool:
    """Whether a line is of interest to those who did not ask for all of them."""
    is_fit_warning = hasattr(record, "of_fit")
    return hasattr(record, "begins") or (record.levelno >= logging.WARNING and not is_fit_warning)


@contextmanager
def _listen(show: ShowProgress, write_record: WriteRecord) -> Iterator[None]:
    """Listen to the library: where a fit is goes to `show`, and lines to `write_record`."""
    logger, handler = logging.getLogger("robustcp"), logging.Handler(logging.INFO)

    def emit(record: logging.LogRecord) -> None:
        progress: ProgressReport | None = getattr(record, "step", None)
        if progress is None:
            write_record(record)
        if record.levelno < logging.WARNING and not hasattr(record, "begins"):
            show(progress or ProgressReport(record.getMessage()))

    handler.emit = emit  # type: ignore[method-assign]
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with report_every(REPORT_SECONDS):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def _log_periodically(
    handler: logging.Handler, every: float, latest: ProgressReport
) -> Iterator[ShowProgress]:
    """A line every so often about what was told last."""
    start_time = update_time = time.monotonic()
    stop_event = threading.Event()

    def show(progress: ProgressReport) -> None:
        nonlocal latest, update_time
        latest, update_time = progress, time.monotonic()

    def tick() -> None:
        while not stop_event.wait(every):
            now = time.monotonic()
            text = f"{latest.after(now - update_time)}; {_clock(now - start_time)} so far"
            handler.handle(LOG.makeRecord("robustcp", logging.INFO, "", 0, text, (), None))

    thread = threading.Thread(target=tick, name="robustcp progress", daemon=True)
    if every > 0:
        thread.start()
    try:
        yield show
    finally:
        stop_event.set()
        if every > 0:
            thread.join()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@contextmanager
def _show_bar(initial: ProgressReport) -> Iterator[ShowProgress]:
    """A bar at a terminal, with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("left: {task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(initial.position, total=None, left=initial.time_left)

        def show(progress: ProgressReport) -> None:
            has_share = not math.isnan(progress.share)
            display.update(
                task,
                description=progress.position,
                left=progress.time_left,
                total=1.0 if has_share else None,
                completed=progress.share if has_share else 0.0,
            )

        yield show


def _count_progress(show: ShowProgress) -> Callable[[str, int, int | None], None]:
    """What is told as numbers, as steps with the time that is left, at the speed of late."""
    start_time, histories = time.monotonic(), dict[str, deque[tuple[float, int]]]()

    def report_count(name: str, done: int, total: int | None) -> None:
        history = histories.setdefault(name, deque([(start_time, 0)], RECENT_SWEEPS))
        history.append((time.monotonic(), done))
        (first_time, first_done), (now, _) = history[0], history[-1]
        share = seconds_left = math.nan
        if total and done > first_done:
            share, seconds_left = (
                done / total,
                (now - first_time) * (total - done) / (done - first_done),
            )
        count_text = f"{done} of {total} done" if total else f"{done} done"
        show(ProgressReport(name, count_text, share=share, seconds_left=seconds_left))

    return report_count
