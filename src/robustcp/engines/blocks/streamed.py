"""Dense data in the host's memory, or in a file, that passes over a GPU slab by slab."""

from __future__ import annotations

import importlib.util
import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_torch_array

from robustcp._util.checks import ArgumentError
from robustcp._util.typing import Array, Factors
from robustcp.engines.algebra import Algebra
from robustcp.engines.arrays import storage_order, to_host
from robustcp.engines.base import Engine, View
from robustcp.engines.dense import DenseEngine
from robustcp.engines.entries import Entries
from robustcp.engines.memory import format_bytes, free_memory, parse_bytes
from robustcp.engines.normal_equations import NormalEquations
from robustcp.engines.storage import DataSummary
from robustcp.engines.tiles import split_range
from robustcp.losses import Loss

#: Slabs that are on the device at a time: one that is worked on, the next one, which is copied
#: meanwhile, and the last one, until its memory is given back.
SLABS_ON_DEVICE = 3
#: The share of the memory for slabs; the rest is for what passes make of them.
SLAB_MEMORY_SHARE = 0.8


class DeviceSlab(NamedTuple):
    """A slab of the data on the device: which indices of the cut mode, and its engine."""

    rows: slice
    engine: DenseEngine


class StreamedEngine(Engine):
    """Passes of a GPU over an array that need not fit its memory.

    The array is cut along the mode with the longest stride, so that a slab is one piece of memory
    or of a file. Slabs go through the device one after the other; the next one is copied while
    kernels work on this one. Samples and small parts are taken on the host.

    Parameters
    ----------
    data : NumPy array, memory maps included
    device : torch.device
    memory : int
        Bytes of the device's memory that may be used.
    compiled : bool
        Whether kernels are used where there are any.
    """

    takes_weights = True
    takes_scales = True

    def __init__(
        self, data: np.ndarray, device: Any, memory: int, *, compiled: bool = True
    ) -> None:
        import torch

        self._torch, self._device, self._compiled = torch, device, compiled
        self._host = DenseEngine(data, compiled=compiled)
        self.shape, self.view = self._host.shape, self._host.view
        self._cut_mode = storage_order(data)[0]
        self._slabs = self._cut_into_slabs(data, memory)
        self._slab_summaries: dict[int, DataSummary] = {}
        template = DenseEngine(self._to_device(self._host_slab(slice(0, 1))), compiled=compiled)
        self.xp, self.dtype, self._algebra = template.xp, template.dtype, template.algebra
        _pin_memory(torch, data, device)

    def _cut_into_slabs(self, data: np.ndarray, memory: int) -> list[slice]:
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
        return split_range(size, min(size, slab_bytes // row_bytes))

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"StreamedEngine({size}, {self._host.array.dtype}, {len(self._slabs)} slabs)"

    # What the data is

    @property
    def array(self) -> Array:
        """The data as given."""
        return self._host.array

    @property
    def max_abs(self) -> float:
        return self.view.apply_to_magnitude(self._summary.max_abs)

    @property
    def complete(self) -> bool:
        return not (self._summary.has_missing or self.view.masks(self._summary.max_abs))

    @cached_property
    def _summary(self) -> DataSummary:
        """Of all slabs; each is looked at once."""
        if len(self._slab_summaries) < len(self._slabs):
            for number, slab in enumerate(self._stream_slabs()):
                self._slab_summaries[number] = slab.engine.compute_summary()
        summaries = self._slab_summaries.values()
        max_abs, max_abs_unweighted = (
            max(e.max_abs for e in summaries),
            [e.max_abs_unweighted for e in summaries],
        )
        if max_abs < 0 or math.isinf(max_abs):
            return self._host.summary  # which says what is wrong, and where
        return DataSummary(
            max_abs,
            any(e.has_missing for e in summaries),
            any(e.has_nan for e in summaries),
            float(np.max(max_abs_unweighted)),
        )

    @property
    def algebra(self) -> Algebra:
        return self._algebra

    @property
    def device(self) -> Any:
        return self._device

    def with_view(self, view: View) -> StreamedEngine:
        other = copy(self)
        other.view, other._host = view, self._host.with_view(view)
        if view.weights is not self.view.weights:
            other._slab_summaries = {}
            other.__dict__.pop("_summary", None)
        return other

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> DenseEngine:
        subset = self._host.subtensor(indices)
        tensor = self._to_device(self._torch.from_numpy(np.ascontiguousarray(subset.array)))
        return DenseEngine(tensor, compiled=self._compiled).with_view(subset.view)

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        return self._host.unfolding(mode, rows)

    def sample(self, factors: Factors | None = None) -> Entries:
        return self._host.sample(self._factors_on_host(factors))

    def _factors_on_host(self, factors: Factors | None) -> Factors | None:
        """On the host."""
        if factors is None:
            return None
        return tuple(np.asarray(to_host(A), dtype=self._host.dtype) for A in factors)

    # Slabs

    def _host_slab(self, rows: slice) -> Array:
        """Some indices of the cut mode, as a tensor of the host."""
        box = [slice(None)] * self.order
        box[self._cut_mode] = rows
        data = self._host.array[tuple(box)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it must not be written to: nobody does
            return self._torch.from_numpy(data)

    def _to_device(self, tensor: Array) -> Array:
        return tensor.to(self._device, non_blocking=True)

    def _stream_slabs(self) -> Iterator[DeviceSlab]:
        """Slabs on the device. One that was yielded is gone when the next but one is asked for."""
        torch, on_gpu = self._torch, self._device.type == "cuda"
        copy_stream = torch.cuda.Stream(self._device) if on_gpu else None
        copies: list[tuple[slice, Array, Any]] = []
        for number in range(len(self._slabs) + 1):
            if number < len(self._slabs):
                rows = self._slabs[number]
                with torch.cuda.stream(copy_stream) if on_gpu else nullcontext():
                    tensor = self._to_device(self._host_slab(rows))
                    copy_event = copy_stream.record_event() if copy_stream is not None else None
                copies.append((rows, tensor, copy_event))
            if number > 0:
                rows, tensor, copy_event = copies.pop(0)
                if copy_event is not None:
                    torch.cuda.current_stream(self._device).wait_event(copy_event)
                    tensor.record_stream(torch.cuda.current_stream(self._device))
                yield DeviceSlab(rows, self._slab_engine(number - 1, rows, tensor))
                if on_gpu:  # its memory is for the next but one
                    torch.cuda.current_stream(self._device).synchronize()
                del tensor

    def _slab_engine(self, number: int, rows: slice, tensor: Array) -> DenseEngine:
        indices: list[np.ndarray | None] = [None] * self.order
        indices[self._cut_mode] = np.arange(rows.start, rows.stop)
        engine = DenseEngine(tensor, compiled=self._compiled).with_view(self.view.subset(indices))
        summary = self._slab_summaries.get(number)
        return engine if summary is None else engine.with_summary(summary)

    def _slab_factors(self, factors: Factors, rows: slice) -> Factors:
        return tuple(A[rows, :] if m == self._cut_mode else A for m, A in enumerate(factors))

    # Passes

    def normal_equations(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        wanted_rows = slice(0, self.shape[mode]) if rows is None else rows
        _ = self._summary
        equations = []
        for slab_rows, engine in self._stream_slabs():
            local_rows = wanted_rows
            if mode == self._cut_mode:
                first, last = (
                    max(slab_rows.start, wanted_rows.start),
                    min(slab_rows.stop, wanted_rows.stop),
                )
                if first >= last:
                    continue
                local_rows = slice(first - slab_rows.start, last - slab_rows.start)
            equations.append(
                engine.normal_equations(
                    self._slab_factors(factors, slab_rows), mode, loss, local_rows
                )
            )
        if mode != self._cut_mode:
            return sum(equations[1:], start=equations[0])
        arrays_of_slabs = [e.gram for e in equations], [e.gradient for e in equations]
        shared = len(equations) > 1 and all(g.shape[0] == 1 for g in arrays_of_slabs[0])
        gram, gradient = (self.xp.concat(arrays, axis=0) for arrays in arrays_of_slabs)
        return NormalEquations(
            gram[:1, :] if shared else gram, gradient, sum(e.value for e in equations)
        )

    def value(self, factors: Factors, loss: Loss) -> float:
        _ = self._summary
        return math.fsum(
            slab.engine.value(self._slab_factors(factors, slab.rows), loss)
            for slab in self._stream_slabs()
        )

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        _ = self._summary
        sums_of_slabs = []
        for slab_rows, engine in self._stream_slabs():
            slab_factors = None if factors is None else self._slab_factors(factors, slab_rows)
            sums_of_slabs.append(engine.slab_sums(work, slab_factors, weighted=weighted))
        return [
            np.concatenate(sums) if mode == self._cut_mode else np.sum(sums, axis=0)
            for mode, sums in enumerate(zip(*sums_of_slabs, strict=True))
        ]

    def map_residuals(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """On the host, whose memory holds the data."""
        out = None
        for slab_rows, engine in self._stream_slabs():
            values = engine.map_residuals(work, self._slab_factors(factors, slab_rows)).cpu()
            out = self.xp.empty(self.shape, dtype=values.dtype) if out is None else out
            out.narrow(self._cut_mode, slab_rows.start, slab_rows.stop - slab_rows.start).copy_(
                values
            )
        return out

    # Products of unfoldings

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        if mode == self._cut_mode:  # slabs have products with each other
            return self._host.gram(mode, basis)
        _ = self._summary
        grams = [slab.engine.gram(mode, basis) for slab in self._stream_slabs()]
        return np.asarray(np.sum(grams, axis=0))

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
