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

from robustcp._checks import ArgumentError
from robustcp._typing import Array, Factors
from robustcp.engines.algebra import Algebra
from robustcp.engines.arrays import storage_order, to_host
from robustcp.engines.base import Engine, Sample, View
from robustcp.engines.dense import DenseEngine
from robustcp.engines.memory import as_bytes, as_words, free_memory
from robustcp.engines.storage import Extent
from robustcp.engines.tiles import ranges
from robustcp.losses import Loss
from robustcp.normal import NormalEquations

#: Slabs that are on the device at a time: one that is worked on, the next one, which is copied
#: meanwhile, and the last one, until its memory is given back.
HELD = 3
#: The share of the memory for slabs; the rest is for what passes make of them.
FOR_SLABS = 0.8


class Piece(NamedTuple):
    """A slab of the data on the device: which indices of the cut mode, and its engine."""

    part: slice
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
        self._mode = storage_order(data)[0]
        self._pieces = self._cut(data, memory)
        self._extents: dict[int, Extent] = {}
        like = DenseEngine(self._on_device(self._tensor(slice(0, 1))), compiled=compiled)
        self.xp, self.dtype, self._algebra = like.xp, like.dtype, like.algebra
        _pin(torch, data, device)

    def _cut(self, data: np.ndarray, memory: int) -> list[slice]:
        size = self.shape[self._mode]
        one = data.nbytes // size
        room = int(FOR_SLABS * memory) // HELD
        if one > room:
            raise ArgumentError(
                "memory",
                f"{as_words(memory)} is too little: one index of mode {self._mode} takes "
                f"{as_words(one)} of X, and {HELD} must fit into {FOR_SLABS:.0%} of it",
            )
        return ranges(size, min(size, room // one))

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return f"StreamedEngine({size}, {self._host.array.dtype}, {len(self._pieces)} slabs)"

    # What the data is

    @property
    def array(self) -> Array:
        """The data as given."""
        return self._host.array

    @property
    def largest(self) -> float:
        return self.view.size(self._extent.largest)

    @property
    def complete(self) -> bool:
        return not (self._extent.gaps or self.view.leaves_out(self._extent.largest))

    @cached_property
    def _extent(self) -> Extent:
        """Of all slabs; each is looked at once."""
        if len(self._extents) < len(self._pieces):
            for number, piece in enumerate(self._streamed()):
                self._extents[number] = piece.engine.looked_at()
        every = self._extents.values()
        largest, of_all = max(e.largest for e in every), [e.of_all for e in every]
        if largest < 0 or math.isinf(largest):
            return self._host.extent  # which says what is wrong, and where
        return Extent(
            largest, any(e.gaps for e in every), any(e.holes for e in every), float(np.max(of_all))
        )

    @property
    def algebra(self) -> Algebra:
        return self._algebra

    @property
    def device(self) -> Any:
        return self._device

    def asarray(self, array: Any) -> Array:
        host = np.ascontiguousarray(array)
        return self.xp.asarray(host, dtype=self.dtype, device=self._device)

    def viewed(self, view: View) -> StreamedEngine:
        other = copy(self)
        other.view, other._host = view, self._host.viewed(view)
        if view.weights is not self.view.weights:
            other._extents = {}
            other.__dict__.pop("_extent", None)
        return other

    def subtensor(self, indices: Sequence[np.ndarray | None]) -> DenseEngine:
        part = self._host.subtensor(indices)
        there = self._on_device(self._torch.from_numpy(np.ascontiguousarray(part.array)))
        return DenseEngine(there, compiled=self._compiled).viewed(part.view)

    def unfolding(self, mode: int, rows: slice) -> np.ndarray:
        return self._host.unfolding(mode, rows)

    def sample(self, factors: Factors | None = None) -> Sample:
        return self._host.sample(self._factors_there(factors))

    def _factors_there(self, factors: Factors | None) -> Factors | None:
        """On the host."""
        if factors is None:
            return None
        return tuple(np.asarray(to_host(A), dtype=self._host.dtype) for A in factors)

    # Slabs

    def _tensor(self, part: slice) -> Array:
        """Some indices of the cut mode, as a tensor of the host."""
        at = [slice(None)] * self.order
        at[self._mode] = part
        data = self._host.array[tuple(at)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it must not be written to: nobody does
            return self._torch.from_numpy(data)

    def _on_device(self, tensor: Array) -> Array:
        return tensor.to(self._device, non_blocking=True)

    def _streamed(self) -> Iterator[Piece]:
        """Slabs on the device. One that was yielded is gone when the next but one is asked for."""
        torch, on_gpu = self._torch, self._device.type == "cuda"
        side = torch.cuda.Stream(self._device) if on_gpu else None
        coming: list[tuple[slice, Array, Any]] = []
        for number in range(len(self._pieces) + 1):
            if number < len(self._pieces):
                part = self._pieces[number]
                with torch.cuda.stream(side) if on_gpu else nullcontext():
                    there = self._on_device(self._tensor(part))
                    done = side.record_event() if side is not None else None
                coming.append((part, there, done))
            if number > 0:
                part, there, done = coming.pop(0)
                if done is not None:
                    torch.cuda.current_stream(self._device).wait_event(done)
                    there.record_stream(torch.cuda.current_stream(self._device))
                yield Piece(part, self._engine(number - 1, part, there))
                if on_gpu:  # its memory is for the next but one
                    torch.cuda.current_stream(self._device).synchronize()
                del there

    def _engine(self, number: int, part: slice, there: Array) -> DenseEngine:
        indices: list[np.ndarray | None] = [None] * self.order
        indices[self._mode] = np.arange(part.start, part.stop)
        engine = DenseEngine(there, compiled=self._compiled).viewed(self.view.part(indices))
        known = self._extents.get(number)
        return engine if known is None else engine.known_to_be(known)

    def _part_of(self, factors: Factors, part: slice) -> Factors:
        return tuple(A[part, :] if m == self._mode else A for m, A in enumerate(factors))

    # Passes

    def normal(
        self, factors: Factors, mode: int, loss: Loss, rows: slice | None = None
    ) -> NormalEquations:
        asked = slice(0, self.shape[mode]) if rows is None else rows
        _ = self._extent
        found = []
        for part, engine in self._streamed():
            some = asked
            if mode == self._mode:
                first, last = max(part.start, asked.start), min(part.stop, asked.stop)
                if first >= last:
                    continue
                some = slice(first - part.start, last - part.start)
            found.append(engine.normal(self._part_of(factors, part), mode, loss, some))
        if mode != self._mode:
            return sum(found[1:], start=found[0])
        every = [e.gram for e in found], [e.gradient for e in found]
        shared = len(found) > 1 and all(g.shape[0] == 1 for g in every[0])
        gram, gradient = (self.xp.concat(arrays, axis=0) for arrays in every)
        return NormalEquations(
            gram[:1, :] if shared else gram, gradient, sum(e.value for e in found)
        )

    def value(self, factors: Factors, loss: Loss) -> float:
        _ = self._extent
        return math.fsum(
            piece.engine.value(self._part_of(factors, piece.part), loss)
            for piece in self._streamed()
        )

    def slab_sums(
        self,
        work: Callable[[Array], Array],
        factors: Factors | None = None,
        *,
        weighted: bool = False,
    ) -> list[np.ndarray]:
        _ = self._extent
        found = []
        for part, engine in self._streamed():
            some = None if factors is None else self._part_of(factors, part)
            found.append(engine.slab_sums(work, some, weighted=weighted))
        return [
            np.concatenate(sums) if mode == self._mode else np.sum(sums, axis=0)
            for mode, sums in enumerate(zip(*found, strict=True))
        ]

    def entrywise(self, work: Callable[[Array], Array], factors: Factors) -> Array:
        """On the host, whose memory holds the data."""
        out = None
        for part, engine in self._streamed():
            here = engine.entrywise(work, self._part_of(factors, part)).cpu()
            out = self.xp.empty(self.shape, dtype=here.dtype) if out is None else out
            out.narrow(self._mode, part.start, part.stop - part.start).copy_(here)
        return out

    # Products of unfoldings

    def gram(self, mode: int, basis: np.ndarray | None = None) -> np.ndarray:
        if mode == self._mode:  # slabs have products with each other
            return self._host.gram(mode, basis)
        _ = self._extent
        grams = [piece.engine.gram(mode, basis) for piece in self._streamed()]
        return np.asarray(np.sum(grams, axis=0))

    def cogram(self, mode: int) -> np.ndarray:
        return self._host.cogram(mode)

    def project(self, mode: int, basis: np.ndarray) -> np.ndarray:
        return self._host.project(mode, basis)


def engine_on(data: Array, device: Any, memory: Any, *, compiled: bool = True) -> Engine:
    """The engine of a dense array for a device of PyTorch: the whole array there, if that fits
    into so much of its memory, or slab by slab."""
    torch, there, most = _place(device, memory)
    if there.type == "cpu":
        return DenseEngine(data, compiled=compiled)
    data = data if is_torch_array(data) else np.asanyarray(to_host(data))
    on_host = isinstance(data, np.ndarray)
    size = data.nbytes if on_host else data.numel() * data.element_size()
    if size <= FOR_SLABS * most:
        whole = torch.from_numpy(np.asarray(data)) if on_host else data
        return DenseEngine(whole.to(there), compiled=compiled)
    host = data if on_host else to_host(data)
    return StreamedEngine(np.asanyarray(host), there, most, compiled=compiled)


def _place(device: Any, memory: Any) -> tuple[Any, Any, int]:
    """PyTorch, a device of it that is there, and the bytes that may be used on it."""
    if device is None:
        raise ArgumentError("memory", "is that of a device, which must be named too")
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError("device", f"{device!r} needs PyTorch, which is not installed")
    import torch

    try:
        there = torch.device(device)
    except (RuntimeError, TypeError):
        raise ArgumentError("device", f"PyTorch knows none that is called {device!r}") from None
    asked = None if memory is None else as_bytes(memory)
    if there.type == "cpu":
        return torch, there, asked or 0
    count = torch.cuda.device_count() if there.type == "cuda" else 0
    if (there.index or 0) >= count:
        seen = f"{count} GPUs" if count > 1 else "one GPU" if count else "no GPU"
        raise ArgumentError("device", f"{str(device)!r} is not there: PyTorch sees {seen}")
    there = torch.device(
        "cuda", torch.cuda.current_device() if there.index is None else there.index
    )
    free = free_memory(there)
    if asked is not None and asked > free:
        raise ArgumentError(
            "memory", f"{as_words(asked)} are asked for, and {as_words(free)} of {there} are free"
        )
    return torch, there, asked or int(0.9 * free)


def _pin(torch: Any, data: np.ndarray, device: Any) -> None:
    """Hold an array in place, so that copies to a GPU need no other memory on the way.

    Where that is not possible, as for files, copies take longer and are right all the same.
    """
    owner = data
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    held = owner.flags.owndata and owner.flags.writeable and owner.nbytes == data.nbytes
    if device.type != "cuda" or not held or torch.from_numpy(owner).is_pinned():
        return
    runtime, at = torch.cuda.cudart(), owner.ctypes.data
    if int(runtime.cudaHostRegister(at, owner.nbytes, 0)) == 0:
        weakref.finalize(owner, runtime.cudaHostUnregister, at)
    else:
        with suppress(RuntimeError):  # the next call would be told of it
            torch.zeros(1, device=device)
