"""Where tasks are done: in this process, by a scheduler of Dask, or on a cluster."""

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
from robustcp.engines.blocks.tasks import Group, Job, run_groups
from robustcp.engines.threads import TileExecutor

#: Groups that are given to a cluster at a time, at least and for each thread; as many more are on
#: their way.
MIN_BATCH_GROUPS, BATCH_GROUPS_PER_THREAD = 512, 32
#: Tasks for each thread of a cluster, where it may choose.
TASKS_PER_THREAD = 4
#: A pass whose factors and the rest take more bytes is sent once, not with each task.
MAX_INLINE_JOB_BYTES = 1 << 20
#: Seconds that a scheduler which does not answer is waited for; and without a result, after which
#: it is asked whether it is still there.
RECONNECT_SECONDS, RESULT_TIMEOUT = 5.0, 20.0
#: Where chunks are is asked again after so many seconds.
PLACEMENT_LIFETIME = 10.0
_key_counter = itertools.count()


class SchedulerError(ConnectionError):
    """A scheduler of Dask that has gone away."""


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
        """What comes of each group, in order."""


class LocalScheduler(Scheduler):
    """Threads of this process."""

    def __init__(self, executor: TileExecutor) -> None:
        self._executor = executor

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        def work(group: Group) -> Any:
            return job.run_group(group, [piece.inputs for piece in group.pieces])[0]

        return self._executor.map(work, groups)


class DaskScheduler(Scheduler):
    """The scheduler of Dask that is set for this process: threads, if no other is."""

    def __init__(self, get: Any, workers: int | None) -> None:
        self._get, self._workers = get, workers

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        options = {} if self._workers is None else {"num_workers": self._workers}
        for batch in _batches(groups):
            tasks, keys = _build_task_graph(_Opaque(job), [[group] for group in batch], graph)
            for (results,) in interrupts.call_interruptibly(self._get, tasks, keys, **options):
                yield results[0]


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
        """What tells tasks of the job: itself, or if it is large a future, one for all tasks."""
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
        """Futures, with the groups that each is of."""
        import dask

        assignments = [
            (worker, task)
            for worker, tasks in self._assign_to_workers(job, groups, graph).items()
            for task in tasks
        ]
        tasks, keys = _build_task_graph(job_argument, [task for _, task in assignments], graph)
        workers = {key: [w] for key, (w, _) in zip(keys, assignments, strict=True) if w is not None}
        with warnings.catch_warnings(), dask.annotate(**_annotations(workers)):
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
        partial_groups: dict[int, dict[int, Any]] = {}
        for (task, _), parts in zip(submission, results, strict=True):
            for group, part in zip(task, parts, strict=True):
                if group.is_whole:
                    whole_groups[group.number] = part[0]
                else:
                    partial_groups.setdefault(group.number, {}).update(
                        zip(group.piece_numbers, part, strict=True)
                    )
        for group in groups:
            if group.number not in whole_groups:
                parts = [partial_groups[group.number][k] for k in group.piece_numbers]
                whole_groups[group.number] = job.operation.combine(group.box, parts)
            yield whole_groups.pop(group.number)

    def _gather(self, futures: list[Any]) -> list[Any]:
        """What comes of tasks; a scheduler that says nothing is asked whether it is there."""
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
            on_one_worker = len(by_worker) == 1
            for worker, numbers in by_worker.items():
                pieces = [group.pieces[k] for k in numbers]
                partial_group = replace(
                    group, pieces=pieces, piece_numbers=numbers, is_whole=on_one_worker
                )
                groups_of_worker.setdefault(worker, []).append(partial_group)
        return {w: _pack_tasks(share, threads.get(w, 1)) for w, share in groups_of_worker.items()}

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Say so if the scheduler has gone."""
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


class _WorkerLookup:
    """The workers for each key, as annotations of Dask tell them."""

    def __init__(self, workers: dict[str, list[str]]) -> None:
        self._workers = workers

    def __call__(self, key: str) -> list[str] | None:
        return self._workers.get(key)


def _annotations(workers: dict[str, list[str]]) -> dict[str, Any]:
    return {"workers": _WorkerLookup(workers), "allow_other_workers": True} if workers else {}


def _pack_tasks(groups: list[Group], count: int) -> list[list[Group]]:
    """Groups, or parts of them, in so many tasks, or fewer, of about the same size."""
    sizes = [sum(volume(piece.block.box) for piece in group.pieces) for group in groups]
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
    """A graph of tasks with what they need of another one, and their keys."""
    task_graph, futures, stem = graph.nodes_to_compute(), graph.futures, _unique_key("task")
    keys = [f"{stem}-{k}" for k in range(len(tasks))]
    for key, task in zip(keys, tasks, strict=True):
        inputs = [
            [[_future_of(key_or_data, futures) for key_or_data in p.inputs] for p in g.pieces]
            for g in task
        ]
        without_data = _Opaque(
            [replace(g, pieces=[p.without_data() for p in g.pieces]) for g in task]
        )
        task_graph[key] = (_run_groups, job_argument, inputs, without_data)
    return task_graph, keys


def _future_of(key: Any, futures: Mapping[Any, Any]) -> Any:
    """The future of a key, where there is one."""
    return futures.get(key, key) if isinstance(key, tuple) else key


class _Opaque:
    """What Dask is to look into neither for keys nor for a hash: it is new each time."""

    def __init__(self, value: Any) -> None:
        self.value, self._token = value, _unique_key("held")

    def __dask_tokenize__(self) -> str:
        return self._token


def _run_groups(job: _Opaque, inputs: Any, groups: _Opaque) -> list[Any]:
    return run_groups(job.value, inputs, groups.value)


# Which one


def scheduler_for(executor: TileExecutor, placement: Placement, *, by_dask: bool) -> Scheduler:
    """The scheduler that is active; without one threads, by Dask or by this process."""
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
        Seconds after which nobody is there.
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
