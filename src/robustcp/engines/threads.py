"""Tile threads and BLAS threads: one BLAS thread per tile, as many tiles at once as allowed."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from robustcp.engines.installed import compiled_code

T = TypeVar("T")
S = TypeVar("S")


@cache
def _blas() -> ThreadpoolController:
    if (
        compiled_code() is not None
    ):  # compiled passes use SciPy's BLAS, which must be loaded to be seen here
        import scipy.linalg.cython_blas  # noqa: F401
    return ThreadpoolController().select(user_api="blas")


class _SingleBlasThread:
    """Holds BLAS to one thread while anybody is inside; the last one out restores it.

    The setting belongs to the process, so concurrent passes must share it: if each restored
    what it found, the last could put back another's limit for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None
        self._before = 1

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = self._threads_now()
                self._limit = _blas().limit(limits=1)
            self._inside += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()

    @staticmethod
    def _threads_now() -> int:
        return max((lib.num_threads or 1 for lib in _blas().lib_controllers), default=1)

    def threads_outside(self) -> int:
        """How many threads BLAS may use when no pass is running."""
        with self._lock:
            return self._before if self._inside else self._threads_now()


single_blas_thread = _SingleBlasThread()
if hasattr(os, "register_at_fork"):  # a child must not inherit a count of its parent's threads
    os.register_at_fork(after_in_child=single_blas_thread.__init__)  # type: ignore[misc]


def available_threads() -> int:
    """The processors of this process, or fewer when BLAS is held to fewer threads."""
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return max(1, min(processors, single_blas_thread.threads_outside()))


#: What is true of one thread: whether its work is a piece among others, see `side_by_side`.
_here = threading.local()


class Tiles:
    """Maps a function over tiles with some threads, and yields the results in tile order."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[S], T], tiles: Sequence[S]) -> Iterator[T]:
        with single_blas_thread:
            if self.threads == 1 or len(tiles) == 1 or getattr(_here, "alone", False):
                yield from map(work, tiles)
            else:
                yield from self._threaded(work, tiles)

    def side_by_side(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """The same for larger pieces of work, which map over tiles themselves: in one thread."""

        def alone(item: S) -> T:
            before = getattr(_here, "alone", False)
            _here.alone = True
            try:
                return work(item)
            finally:
                _here.alone = before

        return list(self.map(alone, items))

    def _threaded(self, work: Callable[[S], T], tiles: Sequence[S]) -> Iterator[T]:
        if self._pool is None:  # its threads end when the pool is garbage
            self._pool = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="robustcp")
        waiting: deque[tuple[S, Future[T]]] = deque()
        done: dict[Future[T], T] = {}

        def first() -> T:
            """The result of the tile that is next; while it takes time, this thread works too."""
            while not waiting[0][1].done():
                free = next(
                    (pair for pair in waiting if pair[1] not in done and pair[1].cancel()), None
                )
                if free is None:
                    break
                done[free[1]] = work(free[0])
            _, future = waiting.popleft()
            return done.pop(future) if future in done else future.result()

        try:
            for tile in tiles:
                waiting.append((tile, self._pool.submit(work, tile)))
                if len(waiting) > 4 * self.threads:  # bounds the memory of finished results
                    yield first()
            while waiting:
                yield first()
        finally:
            for _, future in waiting:
                future.cancel()
