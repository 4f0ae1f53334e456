"""Schedulers: tasks run in this process, under a scheduler of Dask, or on a cluster."""

from __future__ import annotations

import itertools
import math
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from robustcp._util.checks import ArgumentError
from robustcp._util.interrupts import interrupts
from robustcp.engines.blocks.chunks import volume
from robustcp.engines.blocks.tasks import Group, Job
from robustcp.engines.threads import TileExecutor, single_blas_thread

#: The least number of groups that are submitted to a cluster at a time, and the number for each of
#: its threads; the next batch is submitted before the results of the last one are collected.
MIN_BATCH_GROUPS, BATCH_GROUPS_PER_THREAD = 512, 32
#: Tasks for each thread of a cluster, for data that no worker holds.
TASKS_PER_THREAD = 4
#: A job whose factors take more bytes, for all threads together, is sent once, not with each task.
MAX_INLINE_JOB_BYTES = 1 << 20
#: Seconds to wait for a lost connection; and for a result, before the scheduler is asked whether it
#: is still there.
RECONNECT_SECONDS, RESULT_TIMEOUT = 5.0, 20.0
#: Seconds after which the scheduler is asked again where chunks are.
PLACEMENT_LIFETIME = 10.0
_key_counter = itertools.count()


class SchedulerError(ConnectionError):
    """The scheduler of Dask does not answer any more, or has cancelled tasks."""


@dataclass(frozen=True, eq=False)
class Graph:
    """What tasks need beside what they read themselves.

    Attributes
    ----------
    nodes : dict
        A graph of Dask.
    futures : dict from a key to a future
        Chunks that a cluster holds.
    """

    nodes: dict[Any, Any] = field(default_factory=dict)
    futures: dict[Any, Any] = field(default_factory=dict)

    def nodes_to_compute(self) -> dict[Any, Any]:
        """The nodes that must be computed."""
        return {key: node for key, node in self.nodes.items() if key not in self.futures}


@dataclass(eq=False)
class Placement:
    """Which worker holds each chunk, how many threads workers have, and when that was asked."""

    worker_of: dict[Any, str] = field(default_factory=dict)
    threads: dict[str | None, int] = field(default_factory=dict)
    update_time: float = -math.inf


class Scheduler(ABC):
    """Does a job on groups of blocks."""

    @abstractmethod
    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        """The result of each group, in order."""


class LocalScheduler(Scheduler):
    """Threads of this process."""

    def __init__(self, executor: TileExecutor) -> None:
        self._executor = executor

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        def work(group: Group) -> Any:
            return job.run_group(group, [piece.inputs for piece in group.pieces])

        return self._executor.map(work, groups)


class DaskScheduler(Scheduler):
    """The scheduler of Dask that is set for this process: threads, if no other is."""

    def __init__(self, get: Any, workers: int | None) -> None:
        self._get, self._workers = get, workers

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        options = {} if self._workers is None else {"num_workers": self._workers}
        for batch in _batches(groups):
            tasks, keys = _build_task_graph(_Opaque(job), [[group] for group in batch], graph)
            for (result,) in interrupts.call_interruptibly(self._get, tasks, keys, **options):
                yield result


class ClusterScheduler(Scheduler):
    """The workers of a `distributed.Client`.

    Chunks that workers hold are worked on where they are.
    """

    def __init__(self, client: Any, placement: Placement) -> None:
        self._client, self._placement = client, placement
        self._address = client.scheduler.address if client.scheduler else "an unknown address"

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        submitted: list[tuple[list[Group], list[Any]]] = []
        with self._translate_errors():
            interrupts.call_interruptibly(self._update_placement, graph)
            job_argument = self._job_argument(job)
        for batch in _batches(
            groups, BATCH_GROUPS_PER_THREAD * sum(self._placement.threads.values())
        ):
            with self._translate_errors():
                submitted.append((batch, self._submit(job, job_argument, batch, graph)))
            if len(submitted) > 1:
                yield from self._collect_results(job, *submitted.pop(0))
        for submission in submitted:
            yield from self._collect_results(job, *submission)

    def _job_argument(self, job: Job) -> Any:
        """The job as an argument of tasks; a large one as a future that all tasks share."""
        wrapped, threads = _Opaque(job), sum(self._placement.threads.values())
        if job.nbytes * threads <= MAX_INLINE_JOB_BYTES:
            return wrapped
        key = _unique_key("pass")
        return self._client.get({key: wrapped}, [key], sync=False)[0]

    def _update_placement(self, graph: Graph) -> None:
        """Ask where the chunks are that workers hold, and how many threads those have."""
        placement, start = self._placement, time.monotonic()
        while self._client.status != "running":  # it tries to connect again, for longer than this
            if time.monotonic() - start > RECONNECT_SECONDS:
                raise ConnectionError
            time.sleep(0.1)
        if time.monotonic() - placement.update_time < PLACEMENT_LIFETIME:
            return
        placement.threads = self._client.nthreads()
        futures = list(graph.futures.values())
        if futures:
            from distributed import wait

            wait(futures)
            workers_of = self._client.who_has(futures)
            placement.worker_of = {
                key: workers[0] for key, workers in workers_of.items() if workers
            }
        placement.update_time = time.monotonic()

    def _submit(self, job: Job, job_argument: Any, groups: list[Group], graph: Graph) -> list[Any]:
        """The groups of each task, and its future."""
        import dask

        assignments = [
            (worker, task)
            for worker, tasks in self._assign_to_workers(job, groups, graph).items()
            for task in tasks
        ]
        tasks, keys = _build_task_graph(job_argument, [task for _, task in assignments], graph)
        workers = {key: [w] for key, (w, _) in zip(keys, assignments, strict=True) if w is not None}
        # Dask asks a function of the key for the workers.
        placement = {"workers": workers.get, "allow_other_workers": True} if workers else {}
        with warnings.catch_warnings(), dask.annotate(**placement):
            warnings.filterwarnings("ignore", "Sending large graph")
            futures = self._client.get(tasks, keys, sync=False)
        return [(task, future) for (_, task), future in zip(assignments, futures, strict=True)]

    def _collect_results(
        self, job: Job, groups: list[Group], submission: list[Any]
    ) -> Iterator[Any]:
        with self._translate_errors():
            futures = [future for _, future in submission]
            results = interrupts.call_interruptibly(self._gather, futures)
        whole_groups: dict[int, Any] = {}
        pieces_of_groups: dict[int, dict[int, Any]] = {}
        for (task, _), task_results in zip(submission, results, strict=True):
            for group, result in zip(task, task_results, strict=True):
                if group.piece_numbers is None:
                    whole_groups[group.number] = result
                else:
                    pieces = pieces_of_groups.setdefault(group.number, {})
                    pieces.update(zip(group.piece_numbers, result, strict=True))
        for group in groups:
            if group.number in whole_groups:
                yield whole_groups.pop(group.number)
            else:
                pieces = pieces_of_groups.pop(group.number)
                in_order = [pieces[k] for k in range(len(group.pieces))]
                yield job.operation.combine(group.box, in_order)

    def _gather(self, futures: list[Any]) -> list[Any]:
        """The results of tasks; a silent scheduler is asked whether it is still there."""
        from distributed import wait

        while True:
            try:
                wait(futures, timeout=RESULT_TIMEOUT)
                return list(self._client.gather(futures))
            except TimeoutError:
                self._client.sync(self._client.scheduler.identity, callback_timeout=RESULT_TIMEOUT)

    def _assign_to_workers(
        self, job: Job, groups: list[Group], graph: Graph
    ) -> dict[str | None, list[list[Group]]]:
        """Tasks for each worker: of chunks that it holds, as many as it has threads.

        A group whose chunks are on several workers is done by parts. For data that no worker
        holds any worker may do a task; there are some for each thread.
        """
        threads = self._placement.threads
        if not graph.futures or job.operation.needs_whole_group:
            return {None: _pack_tasks(groups, TASKS_PER_THREAD * max(1, sum(threads.values())))}
        groups_of_worker: dict[str | None, list[Group]] = {}
        for group in groups:
            by_worker: dict[str | None, list[int]] = {}
            for k, piece in enumerate(group.pieces):
                by_worker.setdefault(self._placement.worker_of.get(piece.block.data), []).append(k)
            for worker, numbers in by_worker.items():
                share = group
                if len(by_worker) > 1:
                    pieces = [group.pieces[k] for k in numbers]
                    share = replace(group, pieces=pieces, piece_numbers=numbers)
                groups_of_worker.setdefault(worker, []).append(share)
        return {w: _pack_tasks(own, threads.get(w, 1)) for w, own in groups_of_worker.items()}

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise a `SchedulerError` if the scheduler has gone or has cancelled tasks."""
        from concurrent.futures import CancelledError

        from distributed.comm import CommClosedError

        try:
            yield
        except (CommClosedError, CancelledError, ConnectionError, TimeoutError) as error:
            if self._client.status == "running":
                text = " ".join(str(error).split())[:150] or type(error).__name__
                raise SchedulerError(f"tasks of the cluster were cancelled ({text})") from None
            raise SchedulerError(
                f"the Dask scheduler at {self._address} has gone away; with a checkpoint the same "
                "call goes on from there"
            ) from None


def _pack_tasks(groups: list[Group], count: int) -> list[list[Group]]:
    """At most `count` tasks of about the same size, each of neighbouring groups or their parts."""
    sizes = [sum(volume(piece.box) for piece in group.pieces) for group in groups]
    share = sum(sizes) / max(1, min(count, len(groups)))
    tasks: list[list[Group]] = [[] for _ in range(min(count, len(groups)))]
    preceding = 0.0
    for group, size in zip(groups, sizes, strict=True):
        tasks[min(len(tasks) - 1, int((preceding + size / 2) / share))].append(group)
        preceding += size
    return [task for task in tasks if task]


def _batches(groups: Sequence[Group], min_size: int = 0) -> Iterator[list[Group]]:
    size = max(MIN_BATCH_GROUPS, min_size)
    for first in range(0, len(groups), size):
        yield list(groups[first : first + size])


def _unique_key(kind: str) -> str:
    return f"robustcp-{kind}-{next(_key_counter)}-{time.monotonic_ns():x}"


def _build_task_graph(
    job_argument: Any, tasks: Sequence[Sequence[Group]], graph: Graph
) -> tuple[dict[Any, Any], list[str]]:
    """A graph of tasks, which includes the nodes of the data's graph, and the keys of the tasks."""
    task_graph, futures, stem = graph.nodes_to_compute(), graph.futures, _unique_key("task")
    keys = [f"{stem}-{k}" for k in range(len(tasks))]
    for key, task in zip(keys, tasks, strict=True):
        inputs = [
            [[_future_of(key_or_data, futures) for key_or_data in p.inputs] for p in g.pieces]
            for g in task
        ]
        without_data = _Opaque(
            [replace(g, pieces=[p.without_inputs() for p in g.pieces]) for g in task]
        )
        task_graph[key] = (_run_groups, job_argument, inputs, without_data)
    return task_graph, keys


def _future_of(key: Any, futures: Mapping[Any, Any]) -> Any:
    """The future of a key, where there is one."""
    return futures.get(key, key) if isinstance(key, tuple) else key


class _Opaque:
    """A value in which Dask looks neither for keys nor for a hash."""

    def __init__(self, value: Any) -> None:
        self.value, self._token = value, _unique_key("held")

    def __dask_tokenize__(self) -> str:
        return self._token


def _run_groups(job: _Opaque, inputs: Any, groups: _Opaque) -> list[Any]:
    """The results of some groups; `inputs` are those of their pieces."""
    with single_blas_thread:
        pairs = zip(groups.value, inputs, strict=True)
        return [job.value.run_group(group, data) for group, data in pairs]


# The active scheduler


def scheduler_for(executor: TileExecutor, placement: Placement, *, by_dask: bool) -> Scheduler:
    """The active scheduler of Dask; without one, threads of Dask or of this process."""
    if find_spec("dask") is None:
        return LocalScheduler(executor)
    from dask.base import get_scheduler

    get = get_scheduler()
    client = getattr(get, "__self__", None)
    if client is not None and hasattr(client, "gather"):
        return ClusterScheduler(client, placement)
    if not by_dask:
        return LocalScheduler(executor)
    import dask.threaded

    threaded = get is None or get is dask.threaded.get
    return DaskScheduler(get or dask.threaded.get, executor.threads if threaded else None)


def connect(address: str, timeout: float = 5.0) -> Any:
    """A client of the Dask scheduler at an address.

    Parameters
    ----------
    address : str
        Such as "tcp://10.0.0.1:8786".
    timeout : float
        Seconds to wait for an answer.
    """
    if find_spec("distributed") is None:
        raise ArgumentError(
            "scheduler", "needs Dask; install it with: pip install 'robustcp[scale]'"
        )
    from distributed import Client

    results: list[Any] = []

    def try_connect() -> None:  # which waits for ever on others who take the call and say nothing
        try:
            # A default client that nobody answered would stay behind and break others.
            Client(address, timeout=timeout, set_as_default=False).close()
            results.append(Client(address, timeout=timeout))
        except Exception as error:  # what they say is read as if it were Dask's
            results.append(error)

    thread = threading.Thread(target=try_connect, name="robustcp connects", daemon=True)
    thread.start()
    thread.join(timeout + 2.0)
    client = results[0] if results else TimeoutError("nothing that a scheduler would say")
    if not isinstance(client, Exception):
        return client
    text = " ".join(str(client).split())[:150]
    if isinstance(client, OSError | ValueError | TypeError):
        raise ArgumentError("scheduler", f"nobody answers at {address!r} ({text})")
    raise ArgumentError("scheduler", f"what answers at {address!r} is no Dask scheduler ({text})")
