"""Where passes over data in chunks are done: how much memory, and which processes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.errors import fail, print_message
from robustcp.cli.read_options import Source, read_tensor

if TYPE_CHECKING:
    from robustcp.io.reading import Loaded

#: Data that takes a larger share of this machine's memory is read by chunks.
MAX_MEMORY_SHARE = 0.4

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="For data in chunks: a Dask scheduler whose workers do the passes, such as "
        "tcp://10.0.0.1:8786.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="For data in chunks: so many processes here do the passes."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="For data in chunks: how much memory may be used, such as 2GB; with --workers by "
        "all processes together, with --scheduler by each.",
    ),
]


@dataclass(frozen=True)
class ComputeResources:
    """What a command is told of where passes are done.

    Attributes
    ----------
    scheduler : str, optional
        The address of a Dask scheduler.
    workers : int, optional
        How many processes are started here.
    memory : int, optional
        In bytes.
    """

    scheduler: str | None = None
    workers: int | None = None
    memory: int | None = None

    @classmethod
    def from_options(
        cls, scheduler: str | None, workers: int | None, memory: str | None
    ) -> ComputeResources:
        """What the options say, if it makes sense."""
        from robustcp.engines.memory import parse_bytes

        if scheduler is not None and workers is not None:
            fail("--workers: starts workers here, and --scheduler names others; give one of them")
        return cls(scheduler, workers, None if memory is None else parse_bytes(memory))

    @property
    def _given_options(self) -> list[str]:
        """Those that were given."""
        given = {"--scheduler": self.scheduler, "--workers": self.workers, "--memory": self.memory}
        return [option for option, value in given.items() if value is not None]

    def read(self, source: Source) -> Loaded:
        """The tensor in a file: in chunks, if something was asked for or memory is too small."""
        from robustcp.engines import is_chunked

        lazy_tensor = read_tensor(source, lazy=True)
        chunked = is_chunked(lazy_tensor.data)
        if self._given_options and not chunked:
            fail(
                f"{self._given_options[0]}: is for data in chunks (Zarr, HDF5, NetCDF, Parquet), "
                f"and {source.file} is not"
            )
        if self._given_options or not chunked or _exceeds_memory_share(lazy_tensor.data):
            return lazy_tensor
        return read_tensor(source)

    def limit_memory(self, loaded: Loaded) -> Loaded:
        """Data whose passes take no more memory than asked for."""
        from robustcp.engines import as_engine

        if self.memory is None:
            return loaded
        share = self.memory // (1 + (self.workers or 0))
        return replace(loaded, data=as_engine(loaded.data, memory=share))

    @contextmanager
    def start_workers(self) -> Iterator[None]:
        """The workers, for the time of some work."""
        from robustcp.engines import connect

        if self.scheduler is not None:
            with connect(self.scheduler) as client:
                if not client.nthreads():
                    print_message(
                        f"{self.scheduler} has no workers yet; the fit goes on when it has"
                    )
                yield
        elif self.workers is not None:
            with _local_workers(self.workers):
                yield
        else:
            yield


def _exceeds_memory_share(data: Any) -> bool:
    """Whether the entries would take most of this machine's memory."""
    try:
        machine_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return False
    return bool(
        math.prod(data.shape) * max(data.dtype.itemsize, 4) > MAX_MEMORY_SHARE * machine_memory
    )


@contextmanager
def _local_workers(count: int) -> Iterator[None]:
    """Processes of this machine, one thread each."""
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        fail("--workers: needs Dask; install it with: pip install 'robustcp[scale]'")
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=count, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        yield
