"""Ctrl-C and other signals on the command line.

The first Ctrl-C ends a fit after its sweep, and what there is of it is written. The second one
raises KeyboardInterrupt, usually at the next tile, and the fit is not written. How the library
holds back Ctrl-C until it can leave in order: `_util/interrupts.py`.
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
    """Stop fits at their next sweep after Ctrl-C; raise KeyboardInterrupt at the second one."""
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
    """End with a message and the exit code of Ctrl-C instead of KeyboardInterrupt."""
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
