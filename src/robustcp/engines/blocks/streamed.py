"""Dense data in the host's memory, or in a file, that passes over a GPU slab by slab."""

from __future__ import annotations

import importlib.util
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import is_torch_array

from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra
from robustcp.engines.arrays import storage_order, to_host
from robustcp.engines.base import Engine, View
from robustcp.engines.blocks.block_engine import DenseBlockEngine, box_key
from robustcp.engines.blocks.chunks import Block
from robustcp.engines.blocks.schedulers import Graph, Scheduler
from robustcp.engines.blocks.tasks import Group, Job, Piece
from robustcp.engines.dense import DenseEngine
from robustcp.engines.entries import Entries
from robustcp.engines.memory import format_bytes, free_memory, parse_bytes
from robustcp.engines.preprocessing import Transformation
from robustcp.engines.storage import DataSummary
from robustcp.engines.tiles import split_range

#: Slabs that are on the device at a time: one that is worked on, the next one, which is copied
#: meanwhile, and the last one, until its memory is given back.
SLABS_ON_DEVICE = 3
#: The share of the memory for slabs; the rest is for the temporaries of passes.
SLAB_MEMORY_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class DeviceSlab(Block):
    """A slab of an array on the host, which is passed over as a tensor on a device."""

    def load(self, data: Array) -> Array:
        return data

    def engine(self, arrays: Sequence[Array], job: Job) -> DenseEngine:
        return DenseEngine(arrays[0], compiled=job.compiled, view=job.view.restrict(self.box))


class DeviceStream(Scheduler):
    """Slabs go through a device of PyTorch one after the other.

    The next slab is copied while kernels work on the current one, which is gone when the next but
    one is asked for.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device

    def to_device(self, data: np.ndarray) -> Array:
        """An array of the host as a tensor on the device."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tensor must not be written to: nobody does
            tensor = self._torch.from_numpy(data)
        return tensor.to(self._device, non_blocking=True)

    def map(self, job: Job, groups: Sequence[Group], graph: Graph) -> Iterator[Any]:
        torch, on_gpu = self._torch, self._device.type == "cuda"
        copy_stream = torch.cuda.Stream(self._device) if on_gpu else None
        copies: list[tuple[Array, Any]] = []
        for number in range(len(groups) + 1):
            if number < len(groups):
                (slab,) = groups[number].pieces[0].inputs
                with torch.cuda.stream(copy_stream) if on_gpu else nullcontext():
                    tensor = self.to_device(slab)
                    copy_event = copy_stream.record_event() if copy_stream is not None else None
                copies.append((tensor, copy_event))
            if number > 0:
                tensor, copy_event = copies.pop(0)
                if copy_event is not None:
                    torch.cuda.current_stream(self._device).wait_event(copy_event)
                    tensor.record_stream(torch.cuda.current_stream(self._device))
                yield job.run_group(groups[number - 1], [[tensor]])
                if on_gpu:  # its memory is for the next but one
                    torch.cuda.current_stream(self._device).synchronize()
                del tensor


class StreamedEngine(DenseBlockEngine):
    """Passes of a GPU over an array that need not fit its memory.

    The array is cut along the mode with the longest stride, so that a slab is one piece of memory
    or of a file. Samples and small parts are taken on the host.

    Parameters
    ----------
    data : NumPy array, memory maps included
    device : torch.device
    memory : int
        Bytes of the device's memory that may be used.
    compiled : bool
        Whether kernels are used where there are any.
    """

    def __init__(
        self, data: np.ndarray, device: Any, memory: int, *, compiled: bool = True
    ) -> None:
        import torch

        self._device, self._memory, self.compiled = device, memory, compiled
        self._stream = DeviceStream(torch, device)
        self._host = DenseEngine(data, compiled=compiled)
        self.shape, self.view = self._host.shape, self._host.view
        self._cut_mode = storage_order(data)[0]
        self._slabs = self._cut_into_slabs(data, memory)
        self._block_summaries = {}
        template = self._device_engine(self._slabs[0].data[(slice(0, 1),) * self.order])
        self.xp, self.dtype, self._algebra = template.xp, template.dtype, template.algebra
        _pin_memory(torch, data, device)

    def _cut_into_slabs(self, data: np.ndarray, memory: int) -> list[DeviceSlab]:
        size = self.shape[self._cut_mode]
        row_bytes = data.nbytes // size
        slab_bytes = int(SLAB_MEMORY_SHARE * memory) // SLABS_ON_DEVICE
        if row_bytes > slab_bytes:
            raise ArgumentError(
                "memory",
                f"{format_bytes(memory)} is too little: one index of mode {self._cut_mode} takes "
                f"{format_bytes(row_bytes)} of X, and {SLABS_ON_DEVICE} must fit into "
                f"{SLAB_MEMORY_SHARE:.0%} of it",
            )
        boxes = []
        for rows in split_range(size, min(size, slab_bytes // row_bytes)):
            box = list(self._full_box)
            box[self._cut_mode] = rows
            boxes.append(tuple(box))
        return [DeviceSlab(box, self._host.array[box]) for box in boxes]

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"StreamedEngine({size}, {self._host.array.dtype}, {len(self._slabs)} slabs)"

    def _groups(self) -> list[Group]:
        summaries = self._block_summaries
        return [
            Group(number, slab.box, [Piece((slab,), summaries.get(box_key(slab.box)))])
            for number, slab in enumerate(self._slabs)
        ]

    def _scheduler(self) -> Scheduler:
        return self._stream

    @property
    def array(self) -> Array:
        """The data as given."""
        return self._host.array

    def _refuse(self, summary: DataSummary) -> None:
        _ = self._host.summary  # says what is wrong, and where

    @property
    def algebra(self) -> Algebra:
        return self._algebra

    @property
    def device(self) -> Any:
        return self._device

    def with_view(self, view: View) -> StreamedEngine:
        other = super().with_view(view)
        other._host = self._host.with_view(view)
        return other

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> DenseEngine:
        subset = self._host.subtensor(indices)
        return self._device_engine(np.ascontiguousarray(subset.array)).with_view(subset.view)

    def fibre_locations(self, mode: int, location: str) -> np.ndarray:
        return self._host.fibre_locations(mode, location)

    def transformed(self, transformation: Transformation) -> StreamedEngine:
        """The same data with other entries, in the host's memory."""
        data = self._host.transformed(transformation).array
        engine = StreamedEngine(data, self._device, self._memory, compiled=self.compiled)
        return engine.with_view(self.view)

    def _device_engine(self, data: np.ndarray) -> DenseEngine:
        return DenseEngine(self._stream.to_device(data), compiled=self.compiled)

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        return self._host.unfolding(mode, rows)

    def sample(self, factors: Factors | None = None) -> Entries:
        if factors is not None:
            factors = tuple(np.asarray(to_host(A), dtype=self._host.dtype) for A in factors)
        return self._host.sample(factors)

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """work(x - model) of every entry, on the host, whose memory holds the data."""
        out = None
        residuals = self._collect(lambda engine, A, _: engine.map_residuals(work, A).cpu(), factors)
        for box, values in residuals:
            out = self.xp.empty(self.shape, dtype=values.dtype) if out is None else out
            out[box] = values
        return out

    # Products of unfoldings

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        if mode == self._cut_mode:  # slabs have products with each other
            return self._host.gram(mode, basis)
        self._check_data()
        grams = self._ask_engines(lambda engine: engine.gram(mode, basis))
        return np.asarray(sum(gram for _, gram in grams))

    def cogram(self, mode: int) -> np.ndarray:
        return self._host.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self._host.project(mode, basis)


def engine_on_device(data: Array, device: Any, memory: Any, *, compiled: bool = True) -> Engine:
    """The engine of a dense array for a device of PyTorch: the whole array there, if that fits
    into so much of its memory, or slab by slab."""
    torch, torch_device, budget = _resolve_device(device, memory)
    if torch_device.type == "cpu":
        return DenseEngine(data, compiled=compiled)
    data = data if is_torch_array(data) else np.asanyarray(to_host(data))
    on_host = isinstance(data, np.ndarray)
    size = data.nbytes if on_host else data.numel() * data.element_size()
    if size <= SLAB_MEMORY_SHARE * budget:
        tensor = torch.from_numpy(np.asarray(data)) if on_host else data
        return DenseEngine(tensor.to(torch_device), compiled=compiled)
    host = data if on_host else to_host(data)
    return StreamedEngine(np.asanyarray(host), torch_device, budget, compiled=compiled)


def _resolve_device(device: Any, memory: Any) -> tuple[Any, Any, int]:
    """PyTorch, a device of it that is there, and the bytes that may be used on it."""
    if device is None:
        raise ArgumentError("memory", "is that of a device, which must be named too")
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError("device", f"{device!r} needs PyTorch, which is not installed")
    import torch

    try:
        torch_device = torch.device(device)
    except (RuntimeError, TypeError):
        raise ArgumentError("device", f"PyTorch knows none that is called {device!r}") from None
    requested = None if memory is None else parse_bytes(memory)
    if torch_device.type == "cpu":
        return torch, torch_device, requested or 0
    count = torch.cuda.device_count() if torch_device.type == "cuda" else 0
    if (torch_device.index or 0) >= count:
        gpus = f"{count} GPUs" if count > 1 else "one GPU" if count else "no GPU"
        raise ArgumentError("device", f"{str(device)!r} is not there: PyTorch sees {gpus}")
    torch_device = torch.device(
        "cuda", torch.cuda.current_device() if torch_device.index is None else torch_device.index
    )
    free = free_memory(torch_device)
    if requested is not None and requested > free:
        raise ArgumentError(
            "memory",
            f"{format_bytes(requested)} are asked for, and {format_bytes(free)} of {torch_device} "
            "are free",
        )
    return torch, torch_device, requested or int(0.9 * free)


def _pin_memory(torch: Any, data: np.ndarray, device: Any) -> None:
    """Hold an array in place, so that copies to a GPU need no other memory on the way.

    Where that is not possible, as for files, copies take longer and are right all the same.
    """
    owner = data
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    pinnable = owner.flags.owndata and owner.flags.writeable and owner.nbytes == data.nbytes
    if device.type != "cuda" or not pinnable or torch.from_numpy(owner).is_pinned():
        return
    runtime, address = torch.cuda.cudart(), owner.ctypes.data
    if int(runtime.cudaHostRegister(address, owner.nbytes, 0)) == 0:
        weakref.finalize(owner, runtime.cudaHostUnregister, address)
    else:
        with suppress(RuntimeError):  # the next call would be told of it
            torch.zeros(1, device=device)
