"""Functions of arrays on a GPU, each as one graph: calls take longer than the work of most."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any

from robustcp._typing import Array

#: A function is recorded when it was called so often: then whatever it compiles or keeps is there.
CALLS = 2
#: Graphs of one function, for arrays of different shapes, at most.
GRAPHS = 16
#: One graph is recorded at a time, and what it reads and writes belongs to one call at a time.
_alone = Lock()


class Recorded:
    """A function of arrays on one device; on anything but an NVIDIA GPU it is just called.

    It must do the same work for all arrays of the same shapes, and must not wait for the device.
    """

    def __init__(self, work: Callable[..., Sequence[Array]]) -> None:
        self.work = work
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()

    def __call__(self, *arrays: Array) -> Sequence[Array]:
        if arrays[0].device.type != "cuda":
            return self.work(*arrays)
        import torch

        there = arrays[0].device
        stream = torch.cuda.current_stream(there).cuda_stream
        key = (there, stream, *((A.shape, A.dtype) for A in arrays))
        with _alone:
            graph = self._graphs.setdefault(key, _Graph(torch))
            self._graphs.move_to_end(key)
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
            return graph(self.work, arrays)


class _Graph:
    """The kernels of one function for arrays of some shapes, and the memory that they work in."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._calls = torch, 0
        self._replay: Callable[[], None] | None = None
        self._given: list[Array] = []
        self._found: Sequence[Array] = ()

    def __call__(
        self, work: Callable[..., Sequence[Array]], arrays: Sequence[Array]
    ) -> Sequence[Array]:
        self._calls += 1
        if self._calls == CALLS + 1:
            self._record(work, arrays)
        if self._replay is None:
            return work(*arrays)
        for held, A in zip(self._given, arrays, strict=True):
            held.copy_(A)
        self._replay()
        return [A.clone() for A in self._found]

    def _record(self, work: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> None:
        """Record the work; if that fails, it is done without."""
        torch = self._torch
        given = [torch.empty_like(A, memory_format=torch.contiguous_format) for A in arrays]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(arrays[0].device), suppress(RuntimeError):
            side = _side_stream(arrays[0].device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), _uncollected():
                work(*arrays)  # that memory is there from now on
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    found = work(*given)
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(side)
            self._given, self._found, self._replay = given, found, graph.replay


@cache
def _side_stream(device: Any) -> Any:
    """The one stream of a device that is recorded from: libraries keep memory for each."""
    import torch

    return torch.cuda.Stream(device)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: to give back memory of a GPU would end the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
