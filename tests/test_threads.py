"""Threads: the same bits from all of them, and the caller's limits as they were, come what may."""

from __future__ import annotations

import _thread
import contextlib
import dis
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import robustcp
from robustcp._util import interrupts as interrupts_module
from robustcp._util.interrupts import interrupts
from robustcp.engines import as_engine, threads
from robustcp.engines.threads import TileExecutor, available_threads, single_blas_thread
from robustcp.losses import L1

METHODS = (robustcp.cp, robustcp.cpal1, robustcp.cpals)


def limits():
    return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def numbers():
    """Each BLAS library at more than one thread, at different numbers, to begin with."""
    libraries = threads._blas_libraries()
    before = [lib.get() for lib in libraries]
    for k, lib in enumerate(libraries):
        lib.set(2 + k)
    yield limits()
    for lib, number in zip(libraries, before, strict=True):
        lib.set(number)
    assert not single_blas_thread.inside


def in_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def bits(fit):
    return b"".join(A.tobytes() for A in fit.model.factors)


class Number:
    """A library's number of threads, for the process or for each thread."""

    def __init__(self, number, per_thread=False):
        self._first, self._numbers, self._per_thread = number, {}, per_thread

    def _at(self):
        return threading.get_ident() if self._per_thread else 0

    def get(self):
        return self._numbers.get(self._at(), self._first)

    def set(self, number):
        self._numbers[self._at()] = number

    def everywhere(self):
        return {self._first, *self._numbers.values()}


@pytest.fixture
def stand_in(monkeypatch):
    """Replaces the libraries by one with a number of threads that is only kept."""

    def replace(number, per_thread=False):
        kept = Number(number, per_thread)
        libraries = (threads._BlasLibrary("stand-in", kept.get, kept.set, per_thread),)
        monkeypatch.setattr(threads, "_library_cache", (0, [], libraries))
        monkeypatch.setattr(threads, "_blas_libraries", lambda: libraries)
        return kept

    return replace


class TestLimit:
    def test_each_library_gets_its_own_number_back(self, numbers):
        with single_blas_thread:
            assert set(limits()) == {1}
            with single_blas_thread:
                pass
            assert set(limits()) == {1}
        assert limits() == numbers

    def test_the_last_one_out_restores_it(self, numbers):
        inside, over = threading.Event(), threading.Event()

        def hold():
            with single_blas_thread:
                inside.set()
                assert over.wait(60)

        with ThreadPoolExecutor(1) as pool:
            with single_blas_thread:
                other = pool.submit(hold)
                assert inside.wait(60)
            assert set(limits()) == {1}
            over.set()
            other.result()
        assert limits() == numbers

    def test_from_a_thread_while_another_has_set_limits(self, numbers):
        with threadpool_limits(2, user_api="blas"):

            def inside():
                with single_blas_thread:
                    return limits()

            assert set(in_thread(inside)) == {1}
            assert set(limits()) == {2}
        assert limits() == numbers

    @pytest.mark.parametrize("run", [lambda work: work(), in_thread], ids=["main", "thread"])
    def test_limits_of_others_work_afterwards(self, numbers, run):
        with single_blas_thread:
            pass
        with single_blas_thread:
            in_thread(lambda: list(TileExecutor(2).map(abs, range(9))))

        def user():
            with threadpool_limits(1, user_api="blas"):
                return limits()

        assert set(run(user)) == {1}
        assert limits() == numbers

    @pytest.mark.process
    def test_libraries_that_are_loaded_later(self):
        code = """
import numpy
from threadpoolctl import threadpool_info
from robustcp.engines import threads
threads.numba_kernels = lambda: None  # it would load SciPy's
from robustcp.engines.threads import single_blas_thread
numbers = lambda: [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
with single_blas_thread:
    early = len(numbers())
    import scipy.linalg
    with single_blas_thread:
        assert set(numbers()) == {1}, numbers()
assert set(numbers()) == {2}, numbers()
print(early, len(numbers()))
"""
        early, late = python(code, OPENBLAS_NUM_THREADS="2").split()
        if early == late:
            pytest.skip("SciPy has no BLAS of its own here")

    def test_a_number_that_each_thread_has_of_its_own(self, stand_in):
        number = stand_in(4, per_thread=True)
        both = threading.Barrier(2, timeout=60)

        def work(_):
            both.wait()
            return threading.get_ident(), number.get()

        found = dict(TileExecutor(2).map(work, range(2)))
        assert len(found) == 2
        assert set(found.values()) == {1}
        assert number.everywhere() == {4}

    def test_a_limit_that_begins_and_ends_inside(self, stand_in):
        number = stand_in(4)
        with single_blas_thread:
            number.set(2)
            with single_blas_thread:
                assert number.get() == 1
            number.set(1)
        assert number.get() == 4

    def test_a_limit_from_before_that_ends_inside(self, stand_in):
        number = stand_in(1)
        with single_blas_thread:
            number.set(4)
            with single_blas_thread:
                assert number.get() == 1
        assert number.get() == 4

    def test_a_number_that_stands_at_the_end_stays(self, stand_in):
        number = stand_in(4)
        with single_blas_thread:
            number.set(3)
        assert number.get() == 3

    @pytest.mark.process
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    def test_a_child_starts_clean(self):
        code = """
import os, threading
from threadpoolctl import threadpool_info
from robustcp.engines.threads import TileExecutor, single_blas_thread
numbers = lambda: {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}
assert list(TileExecutor(2).map(abs, range(-20, 0))) == list(range(20, 0, -1))
inside, over = threading.Event(), threading.Event()

def hold():
    with single_blas_thread, single_blas_thread._lock:
        inside.set()
        over.wait(60)

thread = threading.Thread(target=hold)
thread.start()
inside.wait(60)
assert numbers() == {1}
child = os.fork()
if child == 0:
    clean = numbers() == {2}
    with single_blas_thread:
        clean &= numbers() == {1}
    clean &= numbers() == {2}
    clean &= list(TileExecutor(2).map(abs, range(-20, 0))) == list(range(20, 0, -1))
    os._exit(0 if clean else 1)
status = os.waitpid(child, 0)[1]
over.set()
thread.join()
print(os.waitstatus_to_exitcode(status), numbers())
"""
        assert python(code, OPENBLAS_NUM_THREADS="2").split("\n")[0] == "0 {2}"


class TestAvailable:
    @pytest.mark.process
    def test_what_the_environment_allows(self):
        code = "from robustcp.engines.threads import available_threads; print(available_threads())"
        assert python(code, OPENBLAS_NUM_THREADS="1") == "1"
        two = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
        assert int(python(code, OPENBLAS_NUM_THREADS="2")) >= two

    def test_while_another_fit_is_running(self, stand_in, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
        number = stand_in(6)
        with single_blas_thread:
            assert available_threads() == in_thread(available_threads) == 6
            number.set(3)  # by a thread that has a limit of its own

            def fit():
                with single_blas_thread:
                    assert number.get() == 1
                    return available_threads()

            assert in_thread(fit) == 3
            assert available_threads() == 6
        number.set(1)
        assert available_threads() == 1


#: Where CPython looks for signals: when a function begins, after calls, at the ends of loops.
CHECKED = ("RESUME", "CALL", "JUMP_BACKWARD")
FILES = (threads.__file__, interrupts_module.__file__)


def interrupted(work, at):
    """Do some work with a Ctrl-C somewhere in the modules. None if it ended before."""
    count, last = 0, {}

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = last.get(frame, "RESUME")
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            count += before.startswith(CHECKED)
            if count == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(outer)
        last.clear()
    return None


def enter():
    with single_blas_thread, single_blas_thread:
        pass


def use_tiles():
    with single_blas_thread:
        results = TileExecutor(2).map(abs, range(4))  # by a name, that a traceback keeps
        assert list(results) == [0, 1, 2, 3]


def use_pieces():
    tiles = TileExecutor(2)
    tiles.map_tasks(lambda _: list(tiles.map(abs, range(2))), range(2))


class TestInterrupts:
    @pytest.mark.slow  # it depends on the byte code of CPython
    @pytest.mark.parametrize("work", [enter, use_tiles, use_pieces])
    def test_wherever_they_can_strike(self, numbers, work):
        """The limits are restored at once, also if the traceback is kept, as at a prompt."""
        work()
        kept, at = [], 1
        while error := interrupted(work, at):
            kept.append(error)
            assert limits() == numbers, at
            assert not single_blas_thread.inside, at
            assert in_thread(lambda: list(TileExecutor(2).map(abs, range(-9, 0)))) == [
                *range(9, 0, -1)
            ]
            at += 1
        assert at > 20
        piece = set(TileExecutor(1).map(lambda _: threading.get_ident(), range(3)))
        assert piece == {threading.get_ident()}
        assert not threads._in_task.get()

    def test_at_the_next_tile(self, numbers):
        """Ctrl-C in a tile is answered before the next one, and twice is as good as once."""
        done = []

        def work(k):
            if k == 3:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            done.append(k)

        with pytest.raises(KeyboardInterrupt), single_blas_thread:
            list(TileExecutor(1).map(work, range(9)))
        assert done == [0, 1, 2, 3]
        assert limits() == numbers

    def test_at_the_end(self, numbers):
        def leave():
            with single_blas_thread:
                signal.raise_signal(signal.SIGINT)
                done.append("all")

        done = []
        with pytest.raises(KeyboardInterrupt):
            leave()
        assert done == ["all"]
        assert limits() == numbers

    def test_again_after_a_while(self, numbers, monkeypatch):
        """Work that takes long and never looks for Ctrl-C is ended by the second one."""
        monkeypatch.setattr(interrupts_module, "PATIENCE_SECONDS", -1.0)

        def wait_for_ever():
            with single_blas_thread:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                pytest.fail("the second one is not answered")

        with pytest.raises(KeyboardInterrupt):
            wait_for_ever()
        assert limits() == numbers

    def test_not_in_what_restores_limits(self, numbers, monkeypatch):
        monkeypatch.setattr(interrupts_module, "PATIENCE_SECONDS", -1.0)
        apply_limits = single_blas_thread._apply_limits

        def apply(libraries):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            apply_limits(libraries)

        monkeypatch.setattr(single_blas_thread, "_apply_limits", apply)
        with pytest.raises(KeyboardInterrupt), single_blas_thread:
            pass
        assert limits() == numbers

    def test_at_once_in_callbacks(self, numbers):
        X = robustcp.simulate((8, 8, 8), 2, eta=0.1, gamma=1.0, rng=0).data
        seen = []

        def callback(state):
            seen.append(state.sweep)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("Ctrl-C is held back")

        with pytest.raises(KeyboardInterrupt):
            robustcp.cpals(X, 2, callback=callback)
        assert seen == [1]
        assert limits() == numbers

    def test_fits_in_callbacks(self, numbers):
        """A fit in a callback holds Ctrl-C back again; after it the callback is interrupted."""
        X = robustcp.simulate((8, 8, 8), 2, eta=0.1, gamma=1.0, rng=0).data
        seen = []

        def inner(state):
            seen.append("inner")
            return True

        def callback(state):
            robustcp.cpals(X, 2, callback=inner)
            with single_blas_thread:
                signal.raise_signal(signal.SIGINT)
                seen.append("held back")
            pytest.fail("Ctrl-C is held back")

        with pytest.raises(KeyboardInterrupt):
            robustcp.cpals(X, 2, callback=callback)
        assert seen == ["inner", "held back"]
        assert limits() == numbers

    def test_a_handler_of_the_user(self):
        """It is called, later, and found where it was."""
        calls = []
        previous = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
        try:
            with single_blas_thread:
                signal.raise_signal(signal.SIGINT)
                assert not calls
                list(TileExecutor(1).map(abs, range(3)))
                assert calls == [signal.SIGINT]
                interrupts.call_interruptibly(signal.raise_signal, signal.SIGINT)
                assert len(calls) == 2
            signal.raise_signal(signal.SIGINT)
            assert len(calls) == 3
        finally:
            signal.signal(signal.SIGINT, previous)

    @pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
    def test_no_handler_in_python(self, handler):
        previous = signal.signal(signal.SIGINT, handler)
        try:
            with single_blas_thread:
                assert signal.getsignal(signal.SIGINT) == handler
        finally:
            signal.signal(signal.SIGINT, previous)

    def test_while_another_thread_is_waited_for(self, numbers):
        main, begun = threading.get_ident(), threading.Event()

        def work(k):
            if threading.get_ident() == main:
                assert begun.wait(60)
            elif not begun.is_set():
                begun.set()
                _thread.interrupt_main()
                for _ in TileExecutor(1).map(abs, range(10**9)):
                    pass
                pytest.fail("a helper goes on")

        with pytest.raises(KeyboardInterrupt), single_blas_thread:
            list(TileExecutor(2).map(work, range(2)))
        assert limits() == numbers

    @pytest.mark.process
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    def test_a_child_of_another_thread(self):
        """What the main thread held back is not held back in a child that it did not begin."""
        code = """
import os, signal, threading
from robustcp.engines.threads import single_blas_thread
status = []

def begin_child():
    child = os.fork()
    if child == 0:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            os._exit(0)
        os._exit(1)
    status.append(os.waitpid(child, 0)[1])

with single_blas_thread:
    thread = threading.Thread(target=begin_child)
    thread.start()
    thread.join()
print(os.waitstatus_to_exitcode(status[0]))
"""
        assert python(code) == "0"

    def test_a_map_that_a_traceback_keeps(self, numbers):
        main, most = threading.get_ident(), 10**6
        begun, done = threading.Event(), []

        def work(k):
            if threading.get_ident() == main:
                assert begun.wait(60)
            elif k > 0:
                begun.set()
                for j in TileExecutor(1).map(abs, range(most)):
                    done[:] = [j]

        def consume():
            with single_blas_thread:
                results = TileExecutor(2).map(work, range(100))
                for _ in results:
                    assert begun.wait(60)
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as kept:
            consume()
        assert limits() == numbers
        last = done[:]
        assert last != [most - 1]
        assert list(TileExecutor(2).map(abs, range(50))) == list(range(50))
        assert done == last
        assert kept.value.__traceback__ is not None

    def test_pieces_in_other_threads_are_ended(self, numbers):
        tiles, main, most = TileExecutor(2), threading.get_ident(), 10**6
        begun, done = threading.Event(), []

        def piece(_):
            if threading.get_ident() == main:
                assert begun.wait(60)
                raise KeyboardInterrupt
            begun.set()
            for k in tiles.map(abs, range(most)):
                done[:] = [k]

        with pytest.raises(KeyboardInterrupt):
            tiles.map_tasks(piece, range(2))
        assert limits() == numbers
        last = done[:]
        assert last != [most - 1]
        assert list(tiles.map(abs, range(50))) == list(range(50))
        assert done == last

    @pytest.mark.slow
    @pytest.mark.parametrize("beside", [False, True])
    def test_real_signals(self, beside):
        """Fits that are interrupted at random moments, alone or beside another fit."""
        code = f"""
import os, random, signal, sys, threading, time
import robustcp
from threadpoolctl import threadpool_info
numbers = lambda: [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
X = robustcp.simulate((40, 40, 45), 3, eta=0.2, gamma=2.0, rng=0).data

def fit(out):
    out.append(b"".join(A.tobytes() for A in robustcp.cp(X, 3, rng=0).model.factors))

got = []
fit(got)
begin = time.perf_counter()
fit(got)
length, before, rng = time.perf_counter() - begin, numbers(), random.Random(0)
for _ in range(40):
    other = threading.Thread(target=fit, args=(got,))
    if {beside}:
        other.start()
    wait = rng.random() * length
    kill = threading.Timer(wait, os.kill, (os.getpid(), signal.SIGINT))
    try:
        kill.start()
        fit(got)
        signal.pause()
    except KeyboardInterrupt as error:
        sys.last_value = error
    if {beside}:
        other.join()
    assert numbers() == before, numbers()
    fit(got)
assert len(set(got)) == 1
print(len(got) >= 42)
"""
        assert python(code, OPENBLAS_NUM_THREADS="2") == "True"


class TestPool:
    def test_engines_that_are_kept_share_their_threads(self):
        X = np.random.default_rng(0).standard_normal((60, 70, 80))
        factors = tuple(np.ones((size, 1)) for size in X.shape)
        kept, counts = [], []
        for _ in range(50):
            kept.append(as_engine(X, threads=2))
            kept[-1].value(factors, L1(0.1))
            counts.append(threading.active_count())
        assert len(set(counts)) == 1

    def test_tiles_that_map_again(self):
        def work(k):
            return sum(TileExecutor(3).map(lambda j: k * j, range(30)))

        assert list(TileExecutor(3).map(work, range(30))) == [435 * k for k in range(30)]

    def test_many_at_once(self):
        def fit(k):
            return [sum(TileExecutor(3).map(lambda j: k * j, range(20))) for _ in range(50)]

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(fit, range(12))) == [[190 * k] * 50 for k in range(12)]

    def test_the_context_of_the_caller(self):
        """Such as `numpy.errstate`; changes in one tile are not seen in others."""
        both, variable = threading.Barrier(2, timeout=60), ContextVar("variable", default=0)

        def work(k):
            both.wait()
            seen = variable.get(), np.geterr()["divide"]
            variable.set(2)
            return threading.get_ident(), *seen

        variable.set(1)
        with np.errstate(divide="raise"):
            results = list(TileExecutor(2).map(work, range(2)))
        assert len({thread for thread, *_ in results}) == 2
        assert {tuple(seen) for _, *seen in results} == {(1, "raise")}

    def test_no_more_threads_than_asked_for(self):
        main, begun, over, most = threading.get_ident(), [], threading.Event(), []

        def work(k):
            if threading.get_ident() != main:
                begun.append(k)
                assert over.wait(60)
            elif not over.is_set():
                for _ in range(200):  # calls all threads of the pool, who see what is open here
                    list(TileExecutor(5).map(abs, range(20)))
                most.append(len(begun))
                over.set()

        list(TileExecutor(2).map(work, range(8)))
        assert most[0] <= 1

    def test_the_first_error_comes_out(self):
        def work(k):
            if k in (3, 4, 9):
                raise ValueError(k)
            return k

        for _ in range(100):
            results = TileExecutor(3).map(work, range(12))
            assert [next(results) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(ValueError, match=r"^3$"):
                next(results)

    def test_finished_results_are_bounded(self):
        begun = []
        results = TileExecutor(2).map(begun.append, range(1000))
        for k, _ in enumerate(results):
            assert len(begun) <= k + 1 + 8
        assert len(begun) == 1000

    def test_half_a_map(self, numbers):
        results = TileExecutor(2).map(abs, range(100))
        assert [next(results), next(results)] == [0, 1]
        with single_blas_thread:
            pass
        with contextlib.closing(results):
            pass
        assert limits() == numbers

    def test_a_map_goes_on_outside_of_where_it_began(self):
        with single_blas_thread:
            results = TileExecutor(2).map(abs, range(100))
            assert next(results) == 0
        assert list(results) == list(range(1, 100))

    def test_nothing_is_kept_of_a_map(self):
        class Work:
            def __call__(self, k):
                return k

        work = Work()
        gone = weakref.ref(work)
        list(TileExecutor(2).map(work, range(100)))
        del work
        for _ in range(1000):  # until the other thread has turned to these
            list(TileExecutor(2).map(abs, range(100)))
            if gone() is None:
                break
        assert gone() is None


def python(code, **environment):
    source = str(Path(robustcp.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    given = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**given, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


class TestBits:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("shape", [(20, 20, 45), (300, 20, 15)])
    def test_in_other_threads_and_beside_other_fits(self, method, shape, numbers):
        X = robustcp.simulate(shape, 3, eta=0.2, gamma=2.0, rng=0).data

        def fit():
            return bits(method(X, 3, rng=0))

        here = fit()
        assert in_thread(fit) == here
        with ThreadPoolExecutor(3) as pool:
            beside = [pool.submit(fit) for _ in range(3)]
            assert fit() == here
            assert {other.result() for other in beside} == {here}
        assert limits() == numbers

    @pytest.mark.process
    def test_simulate_for_any_number_of_blas_threads(self):
        code = """
import hashlib, robustcp
for shape in ((50, 50, 50), (900, 40, 30)):
    sim = robustcp.simulate(shape, 4, eta=0.2, gamma=2.0, rng=0)
    arrays = sim.data, sim.truth.weights, *sim.truth.factors
    print(hashlib.sha256(b"".join(A.tobytes() for A in arrays)).hexdigest(), sim.sigma.hex())
"""
        one, two = (python(code, OPENBLAS_NUM_THREADS=n, OMP_NUM_THREADS=n) for n in "12")
        assert one == two

    @pytest.mark.slow
    def test_fits_for_any_number_of_blas_threads(self):
        code = """
import hashlib, threading, robustcp
for shape in ((40, 40, 45), (900, 40, 30)):
    X = robustcp.simulate(shape, 4, eta=0.2, gamma=2.0, rng=0).data
    for method in (robustcp.cp, robustcp.cpal1, robustcp.cpals):
        def fit():
            factors = method(X, 4, rng=0).model.factors
            print(hashlib.sha256(b"".join(A.tobytes() for A in factors)).hexdigest())
        fit()
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()
"""
        one, two = (python(code, OPENBLAS_NUM_THREADS=n, OMP_NUM_THREADS=n) for n in "12")
        assert one == two
        lines = one.split()
        assert len(lines) == 12
        assert lines[::2] == lines[1::2]
