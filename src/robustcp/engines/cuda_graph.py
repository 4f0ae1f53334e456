"""Functions of arrays on a GPU as CUDA graphs: small kernels launch more slowly than they run."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any

from robustcp._util.typing import Array

#: A function is captured after this many calls, when compilation and allocations are done.
WARMUP_CALLS = 2
#: The most graphs of one function, for arrays of different shapes.
MAX_GRAPHS = 16
#: Only one graph is captured at a time, and its buffers are used by one call at a time.
_capture_lock = Lock()


class CudaGraphFunction:
    """A function of arrays on one device, captured on NVIDIA GPUs, and otherwise called.

    It must run the same kernels for all arrays of equal shapes, and must not wait for the device.
    """

    def __init__(self, function: Callable[..., Sequence[Array]]) -> None:
        self.function = function
        self._graphs: OrderedDict[Any, _CudaGraph] = OrderedDict()

    def __call__(self, *arrays: Array) -> Sequence[Array]:
        if arrays[0].device.type != "cuda":
            return self.function(*arrays)
        import torch

        device = arrays[0].device
        stream = torch.cuda.current_stream(device).cuda_stream
        key = (device, stream, *((A.shape, A.dtype) for A in arrays))
        with _capture_lock:
            graph = self._graphs.setdefault(key, _CudaGraph(torch))
            self._graphs.move_to_end(key)
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
            return graph(self.function, arrays)


class _CudaGraph:
    """The kernels of one function for arrays of some shapes, with their buffers."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._calls = torch, 0
        self._replay: Callable[[], None] | None = None
        self._inputs: list[Array] = []
        self._outputs: Sequence[Array] = ()

    def __call__(
        self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array]
    ) -> Sequence[Array]:
        self._calls += 1
        if self._calls == WARMUP_CALLS + 1:
            self._capture(function, arrays)
        if self._replay is None:
            return function(*arrays)
        for buffer, A in zip(self._inputs, arrays, strict=True):
            buffer.copy_(A)
        self._replay()
        return [A.clone() for A in self._outputs]

    def _capture(self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> None:
        """Capture the function; after an error it is called as before."""
        torch = self._torch
        inputs = [torch.empty_like(A, memory_format=torch.contiguous_format) for A in arrays]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(arrays[0].device), suppress(RuntimeError):
            stream = _capture_stream(arrays[0].device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), _pause_garbage_collection():
                function(*arrays)  # that memory is there from now on
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    outputs = function(*inputs)
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
            self._inputs, self._outputs, self._replay = inputs, outputs, graph.replay


@cache
def _capture_stream(device: Any) -> Any:
    """The stream of a device for all captures: libraries keep memory for each stream."""
    import torch

    return torch.cuda.Stream(device)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would end a capture by freeing memory of the GPU."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
