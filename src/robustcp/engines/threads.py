"""Tile threads and BLAS threads: one BLAS thread per tile, as many tiles at once as allowed.

Ctrl-C can strike wherever Python code runs in the main thread, at the first line of an `__exit__`
too. So nothing here is a count that goes wrong when a line is missed: who is inside is known by
objects that die with the `with` they belong to, and each step may be cut short and done again.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, Generic, TypeVar

from threadpoolctl import ThreadpoolController

from robustcp.engines.installed import numba_kernels

T = TypeVar("T")
S = TypeVar("S")

#: Threads of the pool end after so many seconds without work.
IDLE_SECONDS = 0.1


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
            if hasattr(controller.dynlib, getter) and hasattr(controller.dynlib, setter):
                get, set_ = getattr(controller.dynlib, getter), getattr(controller.dynlib, setter)
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


class _ExitToken:
    """Looks up `__exit__` for one `with`: a new object each time, registered as being inside.

    The interpreter keeps it on the stack of the frame until the `with` is left, however that
    happens, and no traceback keeps it (as it would `self` of a method in Python). When it dies
    unused, because Ctrl-C came first, its weak reference leaves in its place.
    """

    def __get__(self, owner: _SingleBlasThread | None, _: object = None) -> Callable[..., None]:
        if owner is None:  # contextlib.ExitStack would keep the method without the object
            raise AttributeError("__exit__ is for `with` statements only")
        key, thread = next(owner._keys), get_ident()
        token = partial(owner._leave, key)
        ref = weakref.ref(token, owner._leave)
        owner._refs[key] = ref  # no call, and so no Ctrl-C, from here to the return
        owner.inside[key] = thread
        return token


class _SingleBlasThread:
    """Holds BLAS to one thread while anybody is inside; the last one out restores it.

    The number belongs to the process (to a thread, with OpenMP and MKL), so concurrent fits must
    share it: if each restored what it found, the last could put back another's limit for good.

    Others may set a number meanwhile. It lasts until the next pass, so that a fit's bits do not
    depend on it; it stays if it stands when the last one leaves, or if BLAS was at one thread to
    begin with (a limit from before the fit that ends during it). Otherwise what was found first
    is restored, since mostly it will be a limit that began and ended during the fit.
    """

    __exit__ = _ExitToken()

    def __init__(self) -> None:
        self._keys = itertools.count()
        self._lock = threading.RLock()  # reentrant: garbage that is collected may leave any time
        #: The thread of each `with`, and the weak reference that leaves for it in need.
        self.inside: dict[int, int] = {}
        self._refs: dict[int, weakref.ref[partial[None]]] = {}
        #: By library (and thread, where it has a number of its own) what is to be restored.
        self._saved_counts: dict[tuple[str, int], int] = {}
        #: By thread inside, how many threads its caller allows.
        self._allowed_threads: dict[int, int] = {}

    def __enter__(self) -> None:
        libraries, me = _blas_libraries(), get_ident()
        nested = list(self.inside.values()).count(me) > 1
        if nested and _single_threaded(libraries):
            return
        with self._lock:
            if not nested:
                self._allowed_threads[me] = self._unlimited_threads(libraries)
            self._apply_limits(libraries)

    def is_limited(self) -> bool:
        """Whether this thread is inside, and nobody has set another number since."""
        return get_ident() in list(self.inside.values()) and _single_threaded(_blas_libraries())

    def _leave(self, key: object, *_: object) -> None:
        """Leave a `with`, and those of this thread that have died.

        What Ctrl-C cuts short is done again: by the weak reference, or by the next one to leave.
        """
        me = get_ident()
        left_keys = [
            k
            for k, ref in list(self._refs.items())
            if k == key or (ref() is None and self.inside.get(k, me) == me)
        ]
        for k in left_keys:
            if _pool.jobs:  # some may be of generators that an exception left behind
                _pool.close(k)
            self.inside.pop(k, None)
        if me not in self.inside.values():
            with self._lock:
                self._apply_limits(_library_cache[2])
        for k in left_keys:
            self._refs.pop(k, None)

    def _apply_limits(self, libraries: Sequence[_BlasLibrary]) -> None:
        """Limit or restore each library, as who is inside asks for."""
        me, inside = get_ident(), self.inside.values()
        is_inside = me in inside
        for lib in libraries:
            key = (lib.path, me if lib.per_thread else 0)
            if is_inside if lib.per_thread else inside:
                count = lib.get()
                if count != 1:
                    if self._saved_counts.get(key, 1) == 1:
                        self._saved_counts[key] = count
                    lib.set(1)
            elif key in self._saved_counts:
                if lib.get() == 1:
                    lib.set(self._saved_counts[key])
                self._saved_counts.pop(key, None)
        if not is_inside:
            self._allowed_threads.pop(me, None)

    def _unlimited_threads(self, libraries: Sequence[_BlasLibrary]) -> int:
        me, counts = get_ident(), [1]
        for lib in libraries:
            count = lib.get()
            if count == 1:
                count = self._saved_counts.get((lib.path, me if lib.per_thread else 0), 1)
            counts.append(count)
        return max(counts)

    def innermost_key(self) -> int:
        """The innermost `with` of this thread; -1 if there is none."""
        me = get_ident()
        return max((key for key, thread in list(self.inside.items()) if thread == me), default=-1)

    def threads_outside(self) -> int:
        """How many threads BLAS may use when no pass is running."""
        libraries, me = _blas_libraries(), get_ident()
        with self._lock:
            outside = self._unlimited_threads(libraries)
            if me in self.inside.values():
                outside = self._allowed_threads.get(me, outside)
        return outside

    @staticmethod
    def _threads_now() -> int:
        return max((lib.get() for lib in _blas_libraries()), default=1)

    def after_fork(self) -> None:
        """In a child only this thread is left, and what it is inside of."""
        me = get_ident()
        self._lock = threading.RLock()
        self.inside = {key: thread for key, thread in self.inside.items() if thread == me}
        self._refs = {key: ref for key, ref in self._refs.items() if key in self.inside}
        self._allowed_threads = {
            thread: n for thread, n in self._allowed_threads.items() if thread == me
        }
        self._apply_limits(_library_cache[2])


def available_threads() -> int:
    """The processors of this process, or fewer when the caller holds BLAS to fewer threads.

    A limit of one thread that is set while another thread's fit has BLAS at one is not seen.
    """
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    return max(1, min(processors, single_blas_thread.threads_outside()))


class _ThreadState(threading.local):
    """What is true of one thread.

    Attributes
    ----------
    serial_key : int
        The `with` around a piece of work among others, see `map_tasks`.
    job : _Job or None
        Of which it does a tile, in the pool.
    """

    serial_key: int = -1
    job: _TileJob[Any, Any] | None = None


_thread_state = _ThreadState()


class _JobAbandoned(BaseException):
    """Ends work in the pool that nobody waits for any more."""


class _TileJob(Generic[S, T]):
    """Tiles that are open to the threads of the pool, while the thread that has them works too."""

    def __init__(self, work: Callable[[S], T], helpers: int) -> None:
        self.key, self._parent = single_blas_thread.innermost_key(), _thread_state.job
        self._work = work
        self._pending: deque[tuple[int, S]] = deque()
        self._finished: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()
        self._results: dict[int, tuple[T | None, BaseException | None]] = {}
        #: Held by the threads that help.
        self._helper_locks = [threading.Lock() for _ in range(helpers)]
        self._closed = False

    def submit(self, k: int, tile: S) -> None:
        self._pending.append((k, tile))
        _pool.wake()

    def result(self, k: int) -> T:
        """The result of a tile; while that takes time, this thread works on others."""
        while k not in self._results:
            claimed_tile = None if self._finished.qsize() else self._claim()
            if claimed_tile is None:  # one is finished, or will be: another thread has it
                finished, result, error = self._finished.get()
            else:
                finished, result, error = claimed_tile[0], None, None
                try:
                    result = _run_tile(self._work, claimed_tile[1])
                except Exception as caught:  # it comes out when its tile's turn comes
                    error = caught
            self._results[finished] = result, error
        result, error = self._results.pop(k)
        if error is not None:
            try:
                raise error
            finally:
                del error  # not in its own traceback
        return result  # type: ignore[return-value]

    def _claim(self) -> tuple[int, S] | None:
        try:
            return self._pending.popleft()
        except IndexError:
            return None

    def help(self) -> None:
        """Work on open tiles, in a thread of the pool, if there is a seat."""
        for lock in self._helper_locks:
            if lock.acquire(blocking=False):
                try:
                    self._help()
                finally:
                    lock.release()
                return

    def _help(self) -> None:
        _thread_state.job = self
        try:
            while not self._closed and (claimed_tile := self._claim()) is not None:
                try:
                    self._finished.put(
                        (claimed_tile[0], _run_tile(self._work, claimed_tile[1]), None)
                    )
                except _JobAbandoned:
                    self._pending.appendleft(claimed_tile)
                    self._finished.put((-1, None, None))  # wakes the owner, who may wait for it
                except BaseException as error:
                    self._finished.put((claimed_tile[0], None, error))
        finally:
            _thread_state.job = None

    def is_abandoned(self) -> bool:
        return self._closed or (self._parent is not None and self._parent.is_abandoned())

    def close(self) -> None:
        """Send the helpers away; what is open is left to the owner."""
        self._closed = True

    def wait(self) -> None:
        """Wait until the helpers have gone."""
        for seat in self._helper_locks:
            with seat:
                pass
        _pool.jobs.pop(id(self), None)


def _run_tile(work: Callable[[S], T], tile: S) -> T:
    if _thread_state.job is not None and _thread_state.job.is_abandoned():
        raise _JobAbandoned
    if single_blas_thread.is_limited():
        return work(tile)
    with single_blas_thread:
        return work(tile)


class _Pool:
    """The threads that help with tiles, shared by all that is done in this process."""

    def __init__(self) -> None:
        self.jobs: dict[int, weakref.ref[_TileJob[Any, Any]]] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[None] = SimpleQueue()

    def register(self, job: _TileJob[Any, Any], helpers: int) -> None:
        with self._lock:
            while len(self._threads) < helpers:
                name = f"robustcp-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        self.jobs[id(job)] = weakref.ref(job, partial(self.jobs.pop, id(job)))

    def wake(self) -> None:
        """Let a thread look for work. Enough calls that wait will do: they are answered later."""
        if self._calls.qsize() < len(self._threads):
            self._calls.put(None)

    def _wait_for_call(self) -> bool:
        """Wait for a call; a thread that none reaches for a while ends.

        One that has slept is woken on the core of the thread that calls, and then waits for it;
        a new one begins on a free core.
        """
        try:
            self._calls.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if self._calls.empty():
                    me = threading.current_thread()
                    self._threads = [thread for thread in self._threads if thread is not me]
                    return False
        return True

    def _serve(self) -> None:
        while self._wait_for_call():
            for ref in list(self.jobs.values()):
                job = ref()
                if job is not None:
                    job.help()
                del job  # and its memory, before the next call

    def close(self, key: int) -> None:
        """Close the jobs that were begun inside some `with`."""
        for ref in list(self.jobs.values()):
            job = ref()
            if job is not None and job.key == key:
                job.close()
                if job is not _thread_state.job:  # one cannot wait for oneself
                    job.wait()


single_blas_thread = _SingleBlasThread()
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
        serial = _thread_state.serial_key in single_blas_thread.inside
        if self.threads == 1 or len(tiles) == 1 or serial:
            return (_run_tile(work, tile) for tile in tiles)
        return self._map_threaded(work, tiles)

    def map_tasks(self, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """The same for larger pieces of work, which map over tiles themselves: in one thread."""

        def run_serially(item: S) -> T:
            previous_key, _thread_state.serial_key = (
                _thread_state.serial_key,
                single_blas_thread.innermost_key(),
            )
            try:
                return work(item)
            finally:
                _thread_state.serial_key = previous_key

        return list(self.map(run_serially, items))

    def _map_threaded(self, work: Callable[[S], T], tiles: Sequence[S]) -> Iterator[T]:
        max_pending = 4 * self.threads  # bounds the memory of finished results
        job = _TileJob(work, self.threads - 1)
        try:
            _pool.register(job, self.threads - 1)
            for k, tile in enumerate(tiles):
                job.submit(k, tile)
                if k >= max_pending:
                    yield job.result(k - max_pending)
            for k in range(max(0, len(tiles) - max_pending), len(tiles)):
                yield job.result(k)
        except GeneratorExit:  # perhaps by the garbage collector, which must not wait
            job.close()
            raise
        except BaseException:
            job.close()
            job.wait()
            raise
        job.close()
        _pool.jobs.pop(id(job), None)
