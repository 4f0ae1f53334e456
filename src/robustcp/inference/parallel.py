"""A function applied to many items, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from functools import partial
from typing import TypeVar

from robustcp._util import checks
from robustcp.engines.threads import available_threads

#: Called with the number of items that are done, and the number of all, or None if unknown.
Progress = Callable[[int, int | None], object]

T = TypeVar("T")
S = TypeVar("S")


def run_parallel(
    work: Callable[[S], T],
    items: Iterable[S],
    *,
    jobs: int | None = None,
    threads: bool = False,
    progress: Progress | None = None,
    on_result: Callable[[int, T | Exception], object] | None = None,
) -> list[T | Exception]:
    """The results of `work` on each item, in the order of the items; an exception where it failed.

    `on_result` is called with the position of each result and the result, `progress` after each.
    Work and items must be such that they can be pickled, unless they run in threads.
    """
    count = available_threads() if jobs is None else checks.whole_number("jobs", jobs, 1)
    total = len(items) if isinstance(items, Sized) else None
    run = partial(result_or_error, work)
    if count == 1 or total in (0, 1):
        outcomes = map(run, items)
    else:
        import joblib

        backend = "threading" if threads else "loky"
        pool = joblib.Parallel(count, backend=backend, return_as="generator")
        outcomes = pool(joblib.delayed(run)(item) for item in items)
    results: list[T | Exception] = []
    for result in outcomes:
        results.append(result)
        if on_result is not None:
            on_result(len(results) - 1, result)
        if progress is not None:
            progress(len(results), total)
    return results


def result_or_error(work: Callable[[S], T], item: S) -> T | Exception:
    """The result of `work` on an item, or its exception."""
    try:
        return work(item)
    except Exception as error:
        return error.with_traceback(None)


def results_or_raise(results: Iterable[T | Exception]) -> list[T]:
    """The results of work that must not fail; raises the first exception among them."""
    values = []
    for result in results:
        if isinstance(result, Exception):
            raise result
        values.append(result)
    return values
