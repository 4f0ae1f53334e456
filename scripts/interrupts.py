"""Interrupt fits at random times, many times over, and see that nothing is left behind.

    python scripts/interrupts.py [COUNT] [--seed N] [--load N] [--patience SECONDS]

Each round starts a fit in the main thread, mostly others in other threads too, and interrupts the
main thread by SIGINT or `_thread.interrupt_main`, sometimes several times. Afterwards BLAS must
have as many threads as before, Ctrl-C its handler, and the next fit the same bits. Other processes
keep the machine busy. A round that takes longer than the patience ends the script, which then
prints the stack of each thread.
"""

from __future__ import annotations

import _thread
import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager

from threadpoolctl import threadpool_info, threadpool_limits

import robustcp
from robustcp.engines.threads import single_blas_thread

SMALL = robustcp.simulate((20, 20, 20), 3, eta=0.2, gamma=2.0, rng=0).data
LARGE = robustcp.simulate((40, 40, 45), 3, eta=0.2, gamma=2.0, rng=0).data


def callback_with_a_fit(state: object) -> None:
    robustcp.cpals(SMALL, 2, max_sweeps=3)


FITS: dict[str, Callable[[], object]] = {
    "cp": lambda: robustcp.cp(LARGE, 3, rng=0),
    "cp of small data": lambda: robustcp.cp(SMALL, 3, rng=0),
    "cpal1": lambda: robustcp.cpal1(LARGE, 3, rng=0),
    "cpals": lambda: robustcp.cpals(LARGE, 3, rng=0),
    "nested": lambda: robustcp.cpal1(SMALL, 3, rng=0, callback=callback_with_a_fit),
    "outliers": lambda: robustcp.cpals(LARGE, 2, max_sweeps=2).outliers(LARGE),
}


def blas_threads() -> list[int]:
    return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]


def reference_bits() -> bytes:
    return b"".join(A.tobytes() for A in robustcp.cpal1(LARGE, 3, rng=0).model.factors)


@contextmanager
def busy_machine(processes: int):
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


def interrupt_later(rng: random.Random, longest: float, over: threading.Event) -> threading.Thread:
    """Interrupt the main thread once or a few times."""
    waits = [rng.random() * longest] + [
        rng.random() * 0.01 for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    by_signal = rng.random() < 0.5

    def interrupt() -> None:
        for wait in waits:
            time.sleep(wait)
            if over.is_set():
                return
            if by_signal:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def run_round(name: str, rng: random.Random, longest: float, others: int) -> str:
    over, outcome = threading.Event(), "finished"
    threads = [threading.Thread(target=FITS[rng.choice(list(FITS))]) for _ in range(others)]
    for thread in threads:
        thread.start()
    interrupter = None
    while True:  # an interrupt may strike between any two lines here
        try:
            if interrupter is None:
                interrupter = interrupt_later(rng, longest, over)
                FITS[name]()
            over.set()
            for thread in (*threads, interrupter):
                thread.join()
            time.sleep(0)
            return outcome
        except KeyboardInterrupt:
            outcome = "interrupted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for a round")
    options = parser.parse_args()
    rng, outcomes, seconds = random.Random(options.seed), Counter[str](), {}
    threadpool_limits(2, user_api="blas")
    expected, before = reference_bits(), blas_threads()
    for name, fit in FITS.items():
        fit()
        begin = time.perf_counter()
        fit()
        seconds[name] = time.perf_counter() - begin
    handler = signal.getsignal(signal.SIGINT)
    with busy_machine(options.load):
        for number in range(options.count):
            faulthandler.dump_traceback_later(options.patience, exit=True)
            name, others = rng.choice(list(FITS)), rng.choice((0, 1, 2))
            outcomes[run_round(name, rng, 1.5 * seconds[name], others)] += 1
            where = f"round {number}: {name} beside {others} others"
            assert blas_threads() == before, (where, blas_threads(), before)
            assert signal.getsignal(signal.SIGINT) == handler, where
            assert not single_blas_thread.inside, where
            assert reference_bits() == expected, where
            faulthandler.cancel_dump_traceback_later()
            if number % 50 == 49:
                print(f"{number + 1} rounds: {dict(outcomes)}", flush=True)
    assert outcomes["interrupted"] > options.count / 10, outcomes
    print(f"{options.count} rounds: {dict(outcomes)}; nothing is left behind")


if __name__ == "__main__":
    main()
