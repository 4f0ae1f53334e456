"""The same work on many items, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

from robustcp._util import checks
from robustcp.engines.threads import available_threads

#: Told how many are done, and of how many if that is known.
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
    """The results of some work on each item, in their order; an exception where it failed.

    `on_result` is given the number of a result and the result, when it is there.

    The work and its items must be such that they can be pickled, unless they run in threads.
    """
    count = available_threads() if jobs is None else checks.whole_number("jobs", jobs, 1)
    total = len(items) if isinstance(items, Sized) else None
    if count == 1 or total in (0, 1):
        outcomes = map(GuardedWork(work), items)
    else:
        import joblib

        pool = joblib.Parallel(
            count, backend="threading" if threads else "loky", return_as="generator"
        )
        outcomes = pool(joblib.delayed(GuardedWork(work))(item) for item in items)
    results: list[T | Exception] = []
    for result in outcomes:
        results.append(result)
        if on_result is not None:
            on_result(len(results) - 1, result)
        if progress is not None:
            progress(len(results), total)
    return results


def results_or_raise(results: Iterable[T | Exception]) -> list[T]:
    """The results of work that must not fail: the first exception among them is raised."""
    values = []
    for result in results:
        if isinstance(result, Exception):
            raise result
        values.append(result)
    return values


@dataclass(frozen=True)
class GuardedWork:
    """Some work whose exception is a result."""

    work: Callable[[Any], Any]

    def __call__(self, item: Any) -> Any:
        try:
            return self.work(item)
        except Exception as error:
            return error.with_traceback(None)
