"""Progress on standard error while a command works: a bar at a terminal, else lines of a log."""

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

#: The outcome of a fit that Ctrl-C stopped.
INTERRUPTED = Outcome("stopped", "stopped by Ctrl-C before it converged: this is the fit so far")

#: Seconds between two progress reports of the library, which update the bar or the next line.
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
    """The message about the checkpoint of a fit that was stopped; empty if it has none."""
    checkpoint = options.get("checkpoint")
    if checkpoint is None or not checkpoint.path.exists():
        return ""
    return f"stopped; the same command goes on from {checkpoint.path}"


class ProgressDisplay:
    """Shows the progress of some work.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    every : float
        Without a terminal, seconds between two lines of progress; 0 for none.
    verbose : bool
        Show all that the library logs at the level INFO.
    """

    def __init__(self, quiet: bool = False, every: float = 10.0, verbose: bool = False) -> None:
        self.quiet, self.every, self.verbose = quiet, every, verbose

    @contextmanager
    def watch_fit(self) -> Iterator[ShowProgress]:
        """Show the progress that the library logs during a fit."""
        with self._display() as (show, write_record), _listen(show, write_record):
            yield show

    @contextmanager
    def count_tasks(self) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show how many tasks are done; yield a function of their name, that number, the total."""
        with self._display() as (show, write_record), _listen(lambda step: None, write_record):
            yield _count_progress(show)

    @contextmanager
    def _display(self) -> Iterator[tuple[ShowProgress, WriteRecord]]:
        """Yield a function that shows a progress report, and one that writes a log record."""
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
    """Whether a record is shown without --verbose."""
    is_fit_warning = hasattr(record, "of_fit")
    return hasattr(record, "begins") or (record.levelno >= logging.WARNING and not is_fit_warning)


@contextmanager
def _listen(show: ShowProgress, write_record: WriteRecord) -> Iterator[None]:
    """Pass the progress reports of the library to `show`, and its log records to `write_record`."""
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
    """Log the latest progress report at regular intervals."""
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
    """Show a progress bar with the time left."""
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
    """A function that turns counts of tasks into progress reports, for `show`.

    The time left is estimated from the speed of the latest counts.
    """
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
