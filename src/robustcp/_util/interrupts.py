"""Ctrl-C in the library: during a fit it takes effect only at points where a fit can be left.

Python runs the handler of a signal between any two instructions of the main thread. An exception
that the handler raises, such as KeyboardInterrupt, may therefore be raised in the first line of an
`__exit__`, which then restores nothing. Between `interrupts.hold()` and `interrupts.release()` a
handler of this module only notes that Ctrl-C was pressed: it is pending. `interrupts.answer()`
calls the previous handler if one is pending. It is called before each tile, after each sweep and
while one thread waits for others. In callbacks of the user, and while Dask works, the previous
handler is called at once, see `call_interruptibly`.

`hold` and `release` are called by `single_blas_thread` (engines/threads.py) when it is entered and
left. If a Ctrl-C has been pending for more than `PATIENCE_SECONDS`, the next one interrupts the
code at once, except in functions marked with `uninterruptible`.

`stop_when` ends fits early: they stop after their current sweep and return the fit so far. If the
search for starts has finished none yet, it raises KeyboardInterrupt. The command line uses
`stop_when` for the first Ctrl-C (cli/interrupts.py).

Fits run in the thread that called them. Running each fit in a worker thread would also keep
interrupts out. But the fit would then lose what belongs to the caller's thread: the current GPU and
its stream, BLAS limits, the worker of a Dask task, debuggers and profilers.

This is for Ctrl-C only (SIGINT, also by `_thread.interrupt_main`). Other signals mostly end the
process.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, which cost 20 us
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: If a Ctrl-C has been pending for more than this, in seconds, the next one interrupts the code
#: wherever it is.
PATIENCE_SECONDS = 1.0

#: Functions that are not interrupted even after `PATIENCE_SECONDS`.
_protected_code: set[CodeType] = set()


def uninterruptible(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a short function that would leave a wrong state if an exception interrupted it."""
    _protected_code.add(function.__code__)
    return function


class _Interrupts:
    """Ctrl-C in the main thread: the holds not yet released, and whether a Ctrl-C is pending."""

    def __init__(self) -> None:
        #: For each `hold` not yet released, the value that `_at_once` had before it.
        self._holds: list[bool] = []
        #: Whether Ctrl-C calls the previous handler at once, as in callbacks of the user.
        self._at_once = False
        #: When the pending Ctrl-C came; None if none is pending.
        self._waiting_since: float | None = None
        self._previous_handler: Any = None
        #: The thread that called the first `hold`.
        self._thread = 0

    @uninterruptible
    def hold(self) -> None:
        """Hold back Ctrl-C until the matching `release`. Does nothing in other threads."""
        if not _in_main_thread():
            return
        if not self._holds:
            self._waiting_since, self._thread = None, threading.get_ident()
            self._install_handler()
        outer, self._at_once = self._at_once, False  # from here on Ctrl-C raises nothing
        self._holds.append(outer)

    @uninterruptible
    def release(self) -> None:
        """Undo the last `hold`. Call the previous handler for a pending Ctrl-C, unless an earlier
        `hold` still defers it."""
        if not _in_main_thread():
            return
        self._at_once = self._holds.pop()
        if not self._holds:
            self._restore_handler()
        if self._at_once or not self._holds:
            self.answer()

    def answer(self) -> None:
        """Call the previous handler if a Ctrl-C is pending; mostly it raises KeyboardInterrupt."""
        if self._waiting_since is not None and _in_main_thread():
            self._waiting_since = None
            self._previous_handler(signal.SIGINT, sys._getframe(1))

    def call_interruptibly(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, during which Ctrl-C calls the previous handler at once."""
        if not self._holds or not _in_main_thread():
            return function(*args, **kwargs)
        self.answer()
        self._at_once = True
        try:
            return function(*args, **kwargs)
        finally:
            self._at_once = False

    def _install_handler(self) -> None:
        handler = _signal.getsignal(signal.SIGINT)
        if callable(handler) and handler != self._handle:
            self._previous_handler = handler
            with suppress(ValueError):  # in an interpreter that gets no signals
                _signal.signal(signal.SIGINT, self._handle)

    def _restore_handler(self) -> None:
        if _signal.getsignal(signal.SIGINT) == self._handle:
            _signal.signal(signal.SIGINT, self._previous_handler)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        waiting_since, now = self._waiting_since, time.monotonic()
        if self._at_once:
            # If the handler raises, this stays False: another Ctrl-C is held back and does not
            # interrupt the clean-up after the first.
            self._at_once = False
            self._previous_handler(signal_number, frame)
            self._at_once = True
        elif waiting_since is None:
            self._waiting_since = now
        elif now - waiting_since > PATIENCE_SECONDS and not _is_protected(frame):
            self._waiting_since = None
            for _ in range(2):  # at its first call the handler of `robustcp fit` does not raise
                self._previous_handler(signal_number, frame)

    def after_fork(self) -> None:
        """Called in a forked child, where only the thread that forked is left.

        If another thread called `hold`, its `release` will never come: drop all holds and restore
        the previous handler.
        """
        if self._holds and self._thread != threading.get_ident():
            self._holds.clear()
            self._restore_handler()


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _is_protected(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _protected_code:
        frame = frame.f_back
    return frame is not None


interrupts = _Interrupts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=interrupts.after_fork)


_stop_condition: ContextVar[Callable[[], bool]] = ContextVar(
    "stop_condition", default=lambda: False
)


@contextmanager
def stop_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Within the block, stop fits after their current sweep once a condition is true.

    As with a callback that returns True, the fit so far is returned. A search for starts ends with
    the starts that are finished, or with KeyboardInterrupt if there are none.
    """
    token = _stop_condition.set(condition)
    try:
        yield
    finally:
        _stop_condition.reset(token)


def stop_requested() -> bool:
    """Whether the condition of `stop_when` is true."""
    return _stop_condition.get()()
