"""What is shown while a command works, on standard error and only to people."""

from __future__ import annotations

import logging
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from robustcp.cli.errors import STOPPED, fail, tell

if TYPE_CHECKING:
    from robustcp.fitted import Fit
    from robustcp.io.reading import Loaded


def fit_with_progress(
    method: Callable[..., Fit], loaded: Loaded, rank: int, options: dict[str, Any], quiet: bool
) -> tuple[Fit, float]:
    """Fit with a line that says how far it is; Ctrl-C ends it after its sweep."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console, hidden = Console(stderr=True), quiet or not sys.stderr.isatty()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    begin = time.perf_counter()
    try:
        with (
            _interruptible() as interrupted,
            Progress(*columns, console=console, transient=True, disable=hidden) as bars,
            warnings.catch_warnings(record=True) as caught,
            _told("robustcp.search", lambda text: bars.update(bar, description=text)),
        ):
            bar = bars.add_task("starts", total=None)

            def after_sweep(state: Any) -> bool:
                text = f"{state.name}, sweep {state.sweep}, objective {state.objective:.6g}"
                bars.update(bar, description=text)
                return interrupted()

            warnings.simplefilter("always")
            found = method(loaded, rank, callback=after_sweep, **options)
    except KeyboardInterrupt:
        fail(_kept(options) or "stopped before there was anything to write", STOPPED)
    except SystemExit:  # a signal such as SIGTERM
        if line := _kept(options):
            tell(line)
        raise
    for warning in () if quiet else caught:
        print(f"robustcp: note: {warning.message}", file=sys.stderr)
    named = replace(found, modes=loaded.modes, labels=loaded.labels)
    return named, time.perf_counter() - begin


def _kept(options: dict[str, Any]) -> str:
    """What to say of the checkpoint of a fit that was stopped, if it has one."""
    path = options.get("checkpoint")
    return f"stopped; the same command goes on from {path}" if path and path.exists() else ""


@contextmanager
def _told(name: str, show: Callable[[str], None]) -> Iterator[None]:
    """Show what is logged under a name."""
    handler, logger = logging.Handler(logging.INFO), logging.getLogger(name)
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


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


@contextmanager
def step_bars(quiet: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each step that is told: its name, how much is done, and of how much."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>12}"), BarColumn(), TimeElapsedColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bars:
        yield _shown(bars)


@contextmanager
def study_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each study: how many tasks are done, and when the others will be."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    hidden = not sys.stderr.isatty()
    bars = Progress(*columns, console=Console(stderr=True), disable=hidden)
    try:
        yield _shown(bars)
    finally:
        if bars.tasks:
            bars.stop()


def _shown(bars: Any) -> Callable[[str, int, int | None], None]:
    steps: dict[str, Any] = {}

    def progress(step: str, done: int, total: int | None) -> None:
        if step not in steps:
            bars.start()  # not before, since even an empty one leaves a line
            steps[step] = bars.add_task(step, total=total)
        bars.update(steps[step], completed=done, total=total)

    return progress
