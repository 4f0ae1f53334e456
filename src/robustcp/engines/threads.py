"""Tile threads and BLAS threads: one BLAS thread per tile, as many tiles at once as allowed.

The thread that maps a function over tiles works on them too, so a tile may map over tiles itself.
Other threads help: they take tiles from the map's own queue. With a `ThreadPoolExecutor` instead,
a pass over 50 x 50 x 50 entries by two threads takes 5% to 15% longer, even with one future for
each helper and not for each tile.

`threadpoolctl` finds the BLAS libraries. Limits are not set by `threadpool_limits`: since 3.8 they
hold only in the thread that was the first to set one. Another thread's fit would then run with
several BLAS threads, and its bits would depend on their number.

`single_blas_thread` holds back Ctrl-C (see `robustcp._util.interrupts`), so that Ctrl-C does not
interrupt the code that restores the number of BLAS threads.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, Generic, TypeVar

from threadpoolctl import ThreadpoolController

from robustcp._util.interrupts import interrupts, uninterruptible
from robustcp.engines.installed import numba_kernels

T = TypeVar("T")
S = TypeVar("S")

#: A thread that waits for a tile of another one looks for interrupts so often.
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class _BlasLibrary:
    """A BLAS that is loaded.

    Attributes
    ----------
    path : str
    get, set : functions
        Its number of threads.
    per_thread : bool
        Whether each thread has a number of its own.
    """

    path: str
    get: Callable[[], int]
    set: Callable[[int], object]
    per_thread: bool


def _blas_library(controller: Any) -> _BlasLibrary:
    """A library that threadpoolctl found.

    OpenBLAS is called directly. From 3.8 on, threadpoolctl lets only the thread that set a limit
    first change it; before, it changed the number of the process in an OpenBLAS built with
    OpenMP, where that of the thread counts. MKL has a number per thread. So has BLIS, or if not
    (old versions), whoever enters next sets it to one again.
    """
    get, set_, per_thread = controller.get_num_threads, controller.set_num_threads, True
    if controller.internal_api == "openblas":
        per_thread = controller.threading_layer == "openmp"
        names = [("omp_get_max_threads", "omp_set_num_threads")] if per_thread else []
        names += [
            (name, name.replace("_get_", "_set_"))
            for name in controller.check_symbols
            if "get_num_threads" in name
        ]
        for getter, setter in names:
            library = controller.dynlib
            if hasattr(library, getter) and hasattr(library, setter):
                # PyDLL does not release Python's lock, for which other threads may be waiting.
                quick = ctypes.PyDLL(library._name, handle=library._handle)
                get, set_ = getattr(quick, getter), getattr(library, setter)
                break
    return _BlasLibrary(controller.filepath, get, set_, per_thread)


#: What loads a BLAS of its own, after NumPy's.
_LOADERS = "scipy.linalg", "torch"
#: How many modules and which loaders there were when libraries were looked for, and the libraries.
_library_cache: tuple[int, list[str], tuple[_BlasLibrary, ...]] = 0, [], ()


def _blas_libraries() -> tuple[_BlasLibrary, ...]:
    """The BLAS libraries that may be called here; looked for again when one may be new.

    Not while they are being imported, also by other threads: before 3.8 threadpoolctl could
    block for good there (it holds the lock of the loader and waits for Python's).
    """
    global _library_cache
    count, loaders, libraries = _library_cache
    if count != len(sys.modules):
        count, previous_loaders = len(sys.modules), loaders if count else None
        if previous_loaders is None and numba_kernels() is not None:  # compiled passes call SciPy's
            import scipy.linalg.cython_blas  # noqa: F401
        loaders = [name for name in _LOADERS if name in sys.modules]
        if loaders != previous_loaders:
            for name in loaders:
                importlib.import_module(name)
            controllers = ThreadpoolController().select(user_api="blas").lib_controllers
            libraries = tuple(
                _blas_library(lib) for lib in controllers if lib.num_threads is not None
            )
        _library_cache = count, loaders, libraries
    return libraries


def _single_threaded(libraries: Sequence[_BlasLibrary]) -> bool:
    return {lib.get() for lib in libraries} <= {1}


@dataclass(eq=False)
class _BlasUser:
    """A thread that holds BLAS to one thread.

    Attributes
    ----------
    allowed_threads : int
        How many threads BLAS had for it before.
    depth : int
        How many `with` statements it is inside of.
    """

    allowed_threads: int
    depth: int = 0


class _SingleBlasThread:
    """Holds BLAS to one thread while anybody is inside; the last one out restores it.

    The number belongs to the process (to a thread, with OpenMP and MKL), so concurrent fits must
    share it: if each restored what it found, the last could put back another's limit for good.

    Others may set a number meanwhile. It lasts until the next pass, so that a fit's bits do not
    depend on it. It stays if it stands when the last one leaves, or if BLAS was at one thread to
    begin with (a limit from before the fit that ends during it). Otherwise the first number found
    is restored, since mostly the other one is a limit that began and ended during the fit.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: The threads inside, by their identifier.
        self.inside: dict[int, _BlasUser] = {}
        #: By library (and thread, where it has a number of its own) the number to restore.
        self._saved_counts: dict[tuple[str, int], int] = {}

    @uninterruptible
    def __enter__(self) -> None:
        libraries, me = _blas_libraries(), get_ident()
        interrupts.hold()
        with self._lock:
            if me not in self.inside:
                self.inside[me] = _BlasUser(self._unlimited_threads(libraries))
            self.inside[me].depth += 1
            self._apply_limits(libraries)

    @uninterruptible
    def __exit__(self, *_: object) -> None:
        me = get_ident()
        user = self.inside[me]
        user.depth -= 1
        if user.depth == 0:
            _pool.end_jobs(user)
            with self._lock:
                del self.inside[me]
                self._apply_limits(_library_cache[2])
        interrupts.release()

    def is_limited(self) -> bool:
        """Whether this thread is inside, and nobody has set another number since."""
        return get_ident() in self.inside and _single_threaded(_blas_libraries())

    def _apply_limits(self, libraries: Sequence[_BlasLibrary]) -> None:
        """Limit each library to one thread, or restore its number if nobody is inside."""
        me = get_ident()
        for lib in libraries:
            key = (lib.path, me if lib.per_thread else 0)
            if me in self.inside if lib.per_thread else self.inside:
                count = lib.get()
                if count != 1:
                    if self._saved_counts.get(key, 1) == 1:
                        self._saved_counts[key] = count
                    lib.set(1)
            elif key in self._saved_counts:
                if lib.get() == 1:
                    lib.set(self._saved_counts[key])
                del self._saved_counts[key]

    def _unlimited_threads(self, libraries: Sequence[_BlasLibrary]) -> int:
        """The threads of the library that has most, as they will be when nobody is inside."""
        me, counts = get_ident(), [1]
        for lib in libraries:
            count = lib.get()
            if count == 1:
                count = self._saved_counts.get((lib.path, me if lib.per_thread else 0), 1)
            counts.append(count)
        return max(counts)

    def threads_outside(self) -> int:
        """How many threads BLAS may use when no pass is running."""
        libraries = _blas_libraries()
        with self._lock:
            user = self.inside.get(get_ident())
            return user.allowed_threads if user else self._unlimited_threads(libraries)

    @staticmethod
    def _threads_now() -> int:
        return max((lib.get() for lib in _blas_libraries()), default=1)

    def after_fork(self) -> None:
        """In a child only this thread is left."""
        me = get_ident()
        self._lock = threading.RLock()
        self.inside = {thread: user for thread, user in self.inside.items() if thread == me}
        self._apply_limits(_library_cache[2])


single_blas_thread = _SingleBlasThread()


def available_threads() -> int:
    """The processors of this process, or fewer when the caller holds BLAS to fewer threads.

    A limit of one thread that is set while another thread's fit has BLAS at one is not seen.
    """
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return max(1, min(processors, single_blas_thread.threads_outside()))


class _JobAbandoned(BaseException):
    """Ends work of a helper that nobody waits for any more."""


class _TileJob(Generic[S, T]):
    """A map over tiles: the thread that asked for it and helpers of the pool work on it.

    Helpers run in a copy of its context (`contextvars`, such as `numpy.errstate`).
    """

    def __init__(self, work: Callable[[S], T], helpers: int) -> None:
        self._work, self._parent, self._context = work, _current_job.get(), copy_context()
        #: The thread that asked for the map, if it holds BLAS to one thread meanwhile.
        self.user = single_blas_thread.inside.get(get_ident())
        self._open: deque[tuple[int, S]] = deque()
        self._finished: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()
        self._results: dict[int, tuple[T | None, BaseException | None]] = {}
        #: Each is held by a thread that helps.
        self._seats = [threading.Lock() for _ in range(helpers)]
        self._closed = False

    def submit(self, number: int, tile: S) -> None:
        """One more tile."""
        self._open.append((number, tile))
        _pool.call()

    def result(self, number: int) -> T:
        """The result of a tile. While another thread is at it, this thread works on others."""
        while number not in self._results:
            claimed = None if self._finished.qsize() else self._claim()
            if claimed is None:
                self._receive()
                continue
            try:
                self._results[claimed[0]] = _run_tile(self._work, claimed[1]), None
            except Exception as error:  # raised when it is this tile's turn
                self._results[claimed[0]] = None, error
        result, failure = self._results.pop(number)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # not in its own traceback
        return result  # type: ignore[return-value]

    def _receive(self) -> None:
        """Wait for what a helper has finished."""
        try:
            number, result, error = self._finished.get(timeout=POLL_SECONDS)
        except Empty:
            _leave_if_asked()
        else:
            self._results[number] = result, error

    def _claim(self) -> tuple[int, S] | None:
        try:
            return self._open.popleft()
        except IndexError:
            return None

    def help(self) -> None:
        """Work on open tiles in a thread of the pool, if there is a free seat."""
        for seat in self._seats:
            if seat.acquire(blocking=False):
                try:
                    self._context.copy().run(self._take_tiles)
                finally:
                    seat.release()
                return

    def _take_tiles(self) -> None:
        _current_job.set(self)
        while not self.is_abandoned() and (claimed := self._claim()) is not None:
            number, tile = claimed
            try:
                self._finished.put((number, _run_tile(self._work, tile), None))
            except _JobAbandoned:
                self._open.appendleft(claimed)
            except BaseException as error:
                self._finished.put((number, None, error))

    def is_abandoned(self) -> bool:
        return self._closed or (self._parent is not None and self._parent.is_abandoned())

    def close(self) -> None:
        """Send the helpers away; open tiles are left to the thread that asked for them."""
        self._closed = True

    def wait(self) -> None:
        """Wait until the helpers have gone."""
        for seat in self._seats:
            with seat:
                pass


#: The job that a thread of the pool helps with.
_current_job: ContextVar[_TileJob[Any, Any] | None] = ContextVar("current_job", default=None)
#: Whether this is one of several larger pieces of work, see `TileExecutor.map_tasks`.
_in_task: ContextVar[bool] = ContextVar("in_task", default=False)


def _leave_if_asked() -> None:
    """Raise the exception that ends work early, if there is one for this thread."""
    interrupts.answer()
    job = _current_job.get()
    if job is not None and job.is_abandoned():
        raise _JobAbandoned


def _run_tile(work: Callable[[S], T], tile: S) -> T:
    _leave_if_asked()
    if single_blas_thread.is_limited():
        return work(tile)
    with single_blas_thread:
        return work(tile)


class _Pool:
    """The threads of this process that help with tiles, and the maps that they may help with."""

    def __init__(self) -> None:
        self._lock, self._thread_count = threading.Lock(), 0
        #: The values do not matter: this is a set in the order of insertion.
        self.jobs: dict[_TileJob[Any, Any], None] = {}
        self._calls: SimpleQueue[None] = SimpleQueue()

    def add(self, job: _TileJob[Any, Any], helpers: int) -> None:
        """A job, for which there are to be so many threads."""
        with self._lock:
            while self._thread_count < helpers:
                self._thread_count += 1
                name = f"robustcp-{self._thread_count}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        self.jobs[job] = None

    def call(self) -> None:
        """Let a thread look for work. One call for each thread is enough at a time."""
        if self._calls.qsize() < self._thread_count:
            self._calls.put(None)

    def _serve(self) -> None:
        while True:
            self._calls.get()
            for job in list(self.jobs):
                job.help()
                del job  # and its memory, before the next call

    def end_jobs(self, user: _BlasUser) -> None:
        """End the helpers of a thread's maps that an exception has left behind."""
        for job in list(self.jobs):
            if job.user is user:
                job.close()
                job.wait()


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.__init__)  # type: ignore[misc]
    os.register_at_fork(after_in_child=single_blas_thread.after_fork)


class TileExecutor:
    """Maps a function over tiles with some threads, and yields the results in tile order."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def map(self, work: Callable[[S], T], tiles: Sequence[S]) -> Iterator[T]:
        """The results; BLAS is held to one thread while there is work, not between results."""
        if self.threads == 1 or len(tiles) == 1 or _in_task.get():
            return (_run_tile(work, tile) for tile in tiles)
        return self._map_threaded(work, tiles)

    def map_tasks(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """The results of larger pieces of work, each of which maps over tiles in one thread."""

        def run_task(item: S) -> T:
            token = _in_task.set(True)
            try:
                return work(item)
            finally:
                _in_task.reset(token)

        with single_blas_thread:
            return list(self.map(run_task, items))

    def _map_threaded(self, work: Callable[[S], T], tiles: Sequence[S]) -> Iterator[T]:
        max_pending = 4 * self.threads  # bounds the memory of finished results
        helpers = min(self.threads, len(tiles)) - 1
        job = _TileJob(work, helpers)
        try:
            _pool.add(job, helpers)
            for number, tile in enumerate(tiles):
                job.submit(number, tile)
                if number >= max_pending:
                    yield job.result(number - max_pending)
            for number in range(max(0, len(tiles) - max_pending), len(tiles)):
                yield job.result(number)
        except GeneratorExit:  # perhaps by the garbage collector, which must not wait
            raise
        except BaseException:
            job.close()
            job.wait()
            raise
        finally:
            job.close()
            _pool.jobs.pop(job, None)
