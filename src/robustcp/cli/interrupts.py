"""Ctrl-C and other signals on the command line.

While `robustcp fit` or `impute` fits, the first Ctrl-C ends the fit after its current sweep, and
the fit so far is used. The second one raises KeyboardInterrupt, usually before the next tile, and
the fit is not written (two between the same two tiles count as one); `_util/interrupts.py` explains
why KeyboardInterrupt waits for the next tile. In other commands the first Ctrl-C raises it.

KeyboardInterrupt ends a command with a message and the exit code 130. During a fit,
`fit_with_progress` (cli/progress.py) writes the message; within a block of `explain_interrupt`,
that function; everywhere else `report_errors` (cli/errors.py). SIGTERM and SIGHUP raise SystemExit.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from robustcp._util.interrupts import stop_when
from robustcp.cli.errors import STOPPED, fail


@contextmanager
def stop_fits_on_interrupt() -> Iterator[None]:
    """Stop fits after their current sweep at Ctrl-C; raise KeyboardInterrupt at the second one."""
    interrupt_count = 0

    def handle_interrupt(*_: object) -> None:
        nonlocal interrupt_count
        interrupt_count += 1
        if interrupt_count > 1:
            raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGINT, handle_interrupt)
    try:
        with stop_when(lambda: interrupt_count > 0):
            yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


@contextmanager
def explain_interrupt(message: str) -> Iterator[None]:
    """Turn KeyboardInterrupt into a message and the exit code of Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        fail(message, STOPPED)


def exit_on_signals() -> None:
    """On SIGTERM and SIGHUP raise SystemExit, so that clean-up code removes unfinished files."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit_on_signal)


def _exit_on_signal(signal_number: int, frame: object) -> NoReturn:
    sys.exit(128 + signal_number)
