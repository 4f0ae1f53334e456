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

from robustcp._checks import ArgumentError
from robustcp.engines.chunks import volume
from robustcp.engines.tasks import Group, Job, perform
from robustcp.engines.threads import Tiles

#: Groups that are given to a cluster at a time, at least and for each thread; as many more are on
#: their way.
WAVE, PER_THREAD = 512, 32
#: Tasks for each thread of a cluster, where it may choose.
EACH = 4
#: A pass whose factors and the rest take more bytes is sent once, not with each task.
LARGE_JOB = 1 << 20
#: Seconds that a scheduler which does not answer is waited for; and without a result, after which
#: it is asked whether it is still there.
PATIENCE, SILENT = 5.0, 20.0
#: Where chunks are is asked again after so many seconds.
STALE = 10.0
_numbers = itertools.count()


class SchedulerError(ConnectionError):
    """A scheduler of Dask that has gone away."""


@dataclass(frozen=True, eq=False)
class Graph:
    """What tasks need beside what they read themselves.

    Attributes
    ----------
    nodes : dict
        A graph of Dask.
    held : dict from a key to a future
        Chunks that a cluster holds.
    """

    nodes: dict[Any, Any] = field(default_factory=dict)
    held: dict[Any, Any] = field(default_factory=dict)

    def needed(self) -> dict[Any, Any]:
        """The nodes that must be computed."""
        return {key: node for key, node in self.nodes.items() if key not in self.held}


@dataclass(eq=False)
class Placement:
    """Which worker holds each chunk, how many threads workers have, and when that was asked."""

    where: dict[Any, str] = field(default_factory=dict)
    threads: dict[str | None, int] = field(default_factory=dict)
    asked: float = -math.inf


class Scheduler(ABC):
    """Does a job on groups of blocks."""

    @abstractmethod
    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        """What comes of each group, in order."""


class Here(Scheduler):
    """Threads of this process."""

    def __init__(self, tiles: Tiles) -> None:
        self._tiles = tiles

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        def work(group: Group) -> Any:
            return job.on(group, [piece.inputs for piece in group.pieces])[0]

        return self._tiles.map(work, groups)


class ByDask(Scheduler):
    """The scheduler of Dask that is set for this process: threads, if no other is."""

    def __init__(self, get: Any, workers: int | None) -> None:
        self._get, self._workers = get, workers

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        more = {} if self._workers is None else {"num_workers": self._workers}
        for wave in _waves(groups):
            tasks, keys = _tasks(_Opaque(job), [[group] for group in wave], graph)
            for (found,) in self._get(tasks, keys, **more):
                yield found[0]


class Cluster(Scheduler):
    """The workers of a `distributed.Client`.

    Chunks that workers hold are worked on where they are.
    """

    def __init__(self, client: Any, placed: Placement) -> None:
        self._client, self._placement = client, placed
        self._address = client.scheduler.address if client.scheduler else "an unknown address"

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        ahead: list[tuple[list[Group], list[Any]]] = []
        with self._lost():
            self._look(graph)
            given = self._given(job)
        for wave in _waves(groups, PER_THREAD * sum(self._placement.threads.values())):
            with self._lost():
                ahead.append((wave, self._begun(job, given, wave, graph)))
            if len(ahead) > 1:
                yield from self._done(job, *ahead.pop(0))
        for one in ahead:
            yield from self._done(job, *one)

    def _given(self, job: Job) -> Any:
        """What tells tasks of the job: itself, or if it is large a future, one for all tasks."""
        held, threads = _Opaque(job), sum(self._placement.threads.values())
        if job.size * threads <= LARGE_JOB:
            return held
        key = _name("pass")
        return self._client.get({key: held}, [key], sync=False)[0]

    def _look(self, graph: Graph) -> None:
        """Ask where the chunks are that workers hold, and how many threads those have."""
        placed, began = self._placement, time.monotonic()
        while self._client.status != "running":  # it tries to connect again, for longer than this
            if time.monotonic() - began > PATIENCE:
                raise ConnectionError
            time.sleep(0.1)
        if time.monotonic() - placed.asked < STALE:
            return
        placed.threads = self._client.nthreads()
        held = list(graph.held.values())
        if held:
            from distributed import wait

            wait(held)
            found = self._client.who_has(held)
            placed.where = {key: workers[0] for key, workers in found.items() if workers}
        placed.asked = time.monotonic()

    def _begun(self, job: Job, given: Any, groups: list[Group], graph: Graph) -> list[Any]:
        """Futures, with the groups that each is of."""
        import dask

        placed = [
            (worker, task)
            for worker, tasks in self._placed(job, groups, graph).items()
            for task in tasks
        ]
        tasks, keys = _tasks(given, [task for _, task in placed], graph)
        where = {key: [w] for key, (w, _) in zip(keys, placed, strict=True) if w is not None}
        with warnings.catch_warnings(), dask.annotate(**_annotations(where)):
            warnings.filterwarnings("ignore", "Sending large graph")
            futures = self._client.get(tasks, keys, sync=False)
        return [(task, future) for (_, task), future in zip(placed, futures, strict=True)]

    def _done(self, job: Job, groups: list[Group], begun: list[Any]) -> Iterator[Any]:
        with self._lost():
            results = self._gathered([future for _, future in begun])
        found: dict[int, Any] = {}
        some: dict[int, dict[int, Any]] = {}
        for (task, _), parts in zip(begun, results, strict=True):
            for group, part in zip(task, parts, strict=True):
                if group.whole:
                    found[group.number] = part[0]
                else:
                    some.setdefault(group.number, {}).update(zip(group.numbers, part, strict=True))
        for group in groups:
            if group.number not in found:
                parts = [some[group.number][k] for k in group.numbers]
                found[group.number] = job.action.gathered(group.at, parts)
            yield found.pop(group.number)

    def _gathered(self, futures: list[Any]) -> list[Any]:
        """What comes of tasks; a scheduler that says nothing is asked whether it is there."""
        from distributed import wait

        while True:
            try:
                wait(futures, timeout=SILENT)
                return list(self._client.gather(futures))
            except TimeoutError:
                self._client.sync(self._client.scheduler.identity, callback_timeout=SILENT)

    def _placed(
        self, job: Job, groups: list[Group], graph: Graph
    ) -> dict[str | None, list[list[Group]]]:
        """Tasks for each worker: of chunks that it holds, as many as it has threads.

        A group whose chunks are on several workers is done by parts. For data that no worker
        holds any worker may do a task; there are some for each thread.
        """
        threads = self._placement.threads
        if not graph.held or job.action.together:
            return {None: _together(groups, EACH * max(1, sum(threads.values())))}
        shares: dict[str | None, list[Group]] = {}
        for group in groups:
            by_worker: dict[str | None, list[int]] = {}
            for k, piece in enumerate(group.pieces):
                by_worker.setdefault(self._placement.where.get(piece.block.data), []).append(k)
            whole = len(by_worker) == 1
            for worker, numbers in by_worker.items():
                pieces = [group.pieces[k] for k in numbers]
                part = replace(group, pieces=pieces, numbers=numbers, whole=whole)
                shares.setdefault(worker, []).append(part)
        return {w: _together(share, threads.get(w, 1)) for w, share in shares.items()}

    @contextmanager
    def _lost(self) -> Iterator[None]:
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


class _Where:
    """The workers for each key, as annotations of Dask tell them."""

    def __init__(self, workers: dict[str, list[str]]) -> None:
        self._workers = workers

    def __call__(self, key: str) -> list[str] | None:
        return self._workers.get(key)


def _annotations(where: dict[str, list[str]]) -> dict[str, Any]:
    return {"workers": _Where(where), "allow_other_workers": True} if where else {}


def _together(groups: list[Group], count: int) -> list[list[Group]]:
    """Groups, or parts of them, in so many tasks, or fewer, of about the same size."""
    sizes = [sum(volume(piece.block.at) for piece in group.pieces) for group in groups]
    share = sum(sizes) / max(1, min(count, len(groups)))
    tasks: list[list[Group]] = [[] for _ in range(min(count, len(groups)))]
    before = 0.0
    for group, size in zip(groups, sizes, strict=True):
        tasks[min(len(tasks) - 1, int((before + size / 2) / share))].append(group)
        before += size
    return [task for task in tasks if task]


def _waves(groups: Sequence[Group], least: int = 0) -> Iterator[list[Group]]:
    size = max(WAVE, least)
    for first in range(0, len(groups), size):
        yield list(groups[first : first + size])


def _name(kind: str) -> str:
    return f"robustcp-{kind}-{next(_numbers)}-{time.monotonic_ns():x}"


def _tasks(
    given: Any, tasks: Sequence[Sequence[Group]], graph: Graph
) -> tuple[dict[Any, Any], list[str]]:
    """A graph of tasks with what they need of another one, and their keys."""
    found, held, stem = graph.needed(), graph.held, _name("task")
    keys = [f"{stem}-{k}" for k in range(len(tasks))]
    for key, task in zip(keys, tasks, strict=True):
        inputs = [[[_future(one, held) for one in p.inputs] for p in g.pieces] for g in task]
        bare = _Opaque([replace(g, pieces=[p.bare() for p in g.pieces]) for g in task])
        found[key] = (_perform, given, inputs, bare)
    return found, keys


def _future(one: Any, held: Mapping[Any, Any]) -> Any:
    """The future of a key, where there is one."""
    return held.get(one, one) if isinstance(one, tuple) else one


class _Opaque:
    """What Dask is to look into neither for keys nor for a hash: it is new each time."""

    def __init__(self, held: Any) -> None:
        self.held, self._token = held, _name("held")

    def __dask_tokenize__(self) -> str:
        return self._token


def _perform(job: _Opaque, inputs: Any, groups: _Opaque) -> list[Any]:
    return perform(job.held, inputs, groups.held)


# Which one


def scheduler_for(tiles: Tiles, placed: Placement, *, by_dask: bool) -> Scheduler:
    """The scheduler that is active; without one threads, by Dask or by this process."""
    if find_spec("dask") is None:
        return Here(tiles)
    from dask.base import get_scheduler

    get = get_scheduler()
    client = getattr(get, "__self__", None)
    if client is not None and hasattr(client, "gather"):
        return Cluster(client, placed)
    if not by_dask:
        return Here(tiles)
    import dask.threaded

    threaded = get is None or get is dask.threaded.get
    return ByDask(get or dask.threaded.get, tiles.threads if threaded else None)


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

    found: list[Any] = []

    def dial() -> None:  # which waits for ever on others who take the call and say nothing
        try:
            # A default client that nobody answered would stay behind and break others.
            Client(address, timeout=timeout, set_as_default=False).close()
            found.append(Client(address, timeout=timeout))
        except Exception as error:  # what they say is read as if it were Dask's
            found.append(error)

    caller = threading.Thread(target=dial, name="robustcp connects", daemon=True)
    caller.start()
    caller.join(timeout + 2.0)
    client = found[0] if found else TimeoutError("nothing that a scheduler would say")
    if not isinstance(client, Exception):
        return client
    text = " ".join(str(client).split())[:150]
    if isinstance(client, OSError | ValueError | TypeError):
        raise ArgumentError("scheduler", f"nobody answers at {address!r} ({text})")
    raise ArgumentError("scheduler", f"what answers at {address!r} is no Dask scheduler ({text})")
