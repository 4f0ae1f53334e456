"""Data in chunks: time, traffic and memory, beside the same data in memory.

    python benchmarks/scale.py sweeps [--size 400] [--chunks 200 100] [--rank 10] [--repeat 5]
    python benchmarks/scale.py store FOLDER [--gigabytes 12] [--memory 2GB]
    python benchmarks/scale.py table FOLDER [--rows 50000000] [--parts 16] [--memory 2GB]
    python benchmarks/scale.py model [--entries 1e12] [--workers 100]

`sweeps` compares two workers of one thread each, which hold the data, with two threads of the
engine in memory, in one run; `store` reads a Zarr store in every pass; `table` a long table of
Parquet files; `model` is the cost model of docs/scale.md. Files of `store` and `table` are written
if they are not there.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import struct
import time
import warnings
from pathlib import Path

import numpy as np

from robustcp import Observed, as_engine, cpal1
from robustcp.engines.blocks.chunks import GROUP_ENTRIES
from robustcp.losses import L1

LOSS = L1(1e-3)


def factors(shape, rank, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal((size, rank)) for size in shape)


def tensor(shape, rank):
    letters = "abcdef"[: len(shape)]
    spec = ",".join(f"{c}r" for c in letters) + "->" + letters
    X = np.einsum(spec, *factors(shape, rank, 1), optimize=True)
    X += 0.1 * np.random.default_rng(2).standard_normal(shape)
    return X


def sweep(engine, F):
    """The seconds of the passes of a sweep."""
    began = time.perf_counter()
    for mode in range(len(F)):
        engine.normal_equations(F, mode, LOSS)
    return time.perf_counter() - began


# Traffic


def socket_bytes():
    """What the open connections of this process have sent and received; Linux only."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
            with socket.socket(fileno=copy) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue
        if len(info) >= 136:
            sent += struct.unpack_from("Q", info, 120)[0]
            received += struct.unpack_from("Q", info, 128)[0]
    return sent, received


def equation_bytes(rank):
    """Of the normal equations of one row."""
    return 8 * (rank * (rank + 1) // 2 + rank)


def formula(engine, rank, tasks):
    """Bytes of a sweep that workers receive and send, all together, as docs/scale.md has it.

    Each task gets the factors, and what is known of its chunks. A group that lies on one worker
    gives the equations of its rows, one that does not those of the rows of each of its chunks.
    """
    shape, where = engine.shape, engine._shared.placement.worker_of
    out = tasks * 8 * rank * sum(shape) + len(shape) * len(where) * CHUNK
    rows = 0
    for box, blocks in engine._shared.groups:
        together = len({where.get(block.data) for block in blocks}) == 1
        for mode in range(len(shape)):
            parts = [box] if together else [block.box for block in blocks]
            rows += sum(part[mode].stop - part[mode].start for part in parts)
    return out, rows * equation_bytes(rank)


def traffic(client, engine, F, repeat=3):
    before = client.run(socket_bytes)
    for _ in range(repeat):
        sweep(engine, F)
    after = client.run(socket_bytes)
    sent = sum(after[w][0] - before[w][0] for w in after) / repeat
    received = sum(after[w][1] - before[w][1] for w in after) / repeat
    return received, sent


def sweeps(args):
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    warnings.simplefilter("ignore")
    shape = (args.size,) * 3
    X, F = tensor(shape, args.rank), factors(shape, args.rank)
    memory = as_engine(X, threads=2)
    one = as_engine(X, threads=1)
    sweep(memory, F)
    single = min(sweep(one, F) for _ in range(2))
    entry = single / 3 / X.size
    print(f"{args.size}^3, rank {args.rank}: {1e9 * entry:.2f} ns an entry and pass, one thread")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        for chunk in args.chunks:
            held = da.from_array(X, chunks=chunk).persist()
            wait(held)
            engine = as_engine(held)
            _ = engine.max_abs, sweep(engine, F), sweep(memory, F)
            pairs = [(sweep(memory, F), sweep(engine, F)) for _ in range(args.repeat)]
            here, there = (float(np.median(part)) for part in zip(*pairs, strict=True))
            tasks = 3 * 2
            counts = np.unique(
                list(engine._shared.placement.worker_of.values()), return_counts=True
            )[1]
            uneven = counts.max() / counts.mean()
            got, said = traffic(client, engine, F), formula(engine, args.rank, tasks)
            model = here * uneven + 3 * PASS + sum(said) / BANDWIDTH
            print(
                f"chunks of {chunk}^3: in memory {here:.3f} s, two workers {there:.3f} s, "
                f"{there / here:.2f} times; the busier worker holds {counts.max()} of "
                f"{counts.sum()} chunks; model {model:.3f} s"
            )
            print(
                f"  {tasks} tasks a sweep; workers receive {got[0] / 1e6:.2f} MB a sweep "
                f"(formula {said[0] / 1e6:.2f}) and send {got[1] / 1e6:.2f} MB "
                f"(formula {said[1] / 1e6:.2f})"
            )
            del held, engine


# Stores and tables


def peak():
    """The most memory of this process so far, in GB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def store(args):
    import zarr

    size = round((args.gigabytes * 1e9 / 8) ** (1 / 3))
    path = args.folder / f"{size}.zarr"
    shape = (size,) * 3
    if not path.exists():
        array = zarr.create_array(path, shape=shape, chunks=(100,) * 3, dtype="f8")
        F = factors(shape, 5, 1)
        for first in range(0, size, 100):
            rows = slice(first, min(size, first + 100))
            X = np.einsum("ar,br,cr->abc", F[0][rows], *F[1:], optimize=True)
            array[rows] = X + 0.1 * np.random.default_rng(first).standard_normal(X.shape)
    array = zarr.open(path, mode="r")
    engine, F = as_engine(array, memory=args.memory), factors(shape, args.rank)
    began = time.perf_counter()
    _ = engine.max_abs
    print(
        f"{engine}, {engine.executor.threads} threads; "
        f"first look {time.perf_counter() - began:.1f} s"
    )
    passes = []
    for mode in range(3):
        began = time.perf_counter()
        engine.normal_equations(F, mode, LOSS)
        passes.append(time.perf_counter() - began)
    most, boxes = peak(), [box for box, _ in engine._shared.groups]
    began = time.perf_counter()
    total = sum(float(array[box].size) for box in boxes)
    reads = time.perf_counter() - began
    small = tensor((300,) * 3, 5)
    memory, G = as_engine(small), tuple(A[:300] for A in F)
    memory.normal_equations(G, 0, LOSS)
    began = time.perf_counter()
    memory.normal_equations(G, 0, LOSS)
    alone = (time.perf_counter() - began) * total / small.size
    print(
        f"passes {', '.join(f'{t:.1f}' for t in passes)} s; a pass in memory would take "
        f"{alone:.1f} s, bare reads take {reads:.1f} s: at most {alone + 1.2 * reads:.1f} s; "
        f"peak memory {most:.2f} GB"
    )


def table(args):
    import pyarrow
    from pyarrow import parquet

    folder, shape = args.folder / f"{args.rows}", (2000, 1500, 1000)
    if not folder.exists():
        folder.mkdir(parents=True)
        rng, F = np.random.default_rng(0), factors(shape, 5, 1)
        slab = shape[0] // args.parts
        for k in range(args.parts):
            room = slab * shape[1] * shape[2]
            flat = np.unique(rng.integers(room, size=round(1.05 * args.rows / args.parts)))
            flat = rng.permutation(flat)[: args.rows // args.parts]
            i, j, l = np.unravel_index(flat, (slab, *shape[1:]))  # noqa: E741
            i = i + k * slab
            x = (F[0][i] * F[1][j] * F[2][l]).sum(axis=1) + 0.1 * rng.standard_normal(i.size)
            parquet.write_table(
                pyarrow.table({"i": i, "j": j, "k": l, "x": x}), folder / f"{k:02}.parquet"
            )
    began = time.perf_counter()
    data = Observed.from_parquet(folder)
    print(f"{data!r}; opened in {time.perf_counter() - began:.1f} s; peak memory {peak():.2f} GB")
    engine, F = as_engine(data, memory=args.memory), factors(data.shape, args.rank)
    print(f"a sweep's passes: {sweep(engine, F):.1f} s; peak memory {peak():.2f} GB")
    fit = cpal1(engine, 5, init="random", rng=0, max_sweeps=3)
    print(f"cpal1, 3 sweeps: objective {fit.objective:.6g}; peak memory {peak():.2f} GB")


# The cost model

#: Seconds that a pass costs beside the work, and a task the scheduler; bytes for each chunk that a
#: task has; bytes a second that the client takes in: as measured on two cores.
PASS, TASK, CHUNK, BANDWIDTH = 0.02, 0.001, 360, 150e6


def model(args):
    size, rank = round(args.entries ** (1 / 3)), args.rank
    groups = args.entries / GROUP_ENTRIES
    work = args.entries * args.entry * 1e-9 / args.workers
    waves = math.ceil(groups / max(512, 32 * args.workers))
    tasks = waves * args.workers
    out = args.workers * 8 * rank * 3 * size
    back = groups * 200 * equation_bytes(rank)
    serial = PASS + tasks * TASK + (out + back) / args.bandwidth
    print(f"{size}^3 = {args.entries:.3g} entries, rank {rank}, {args.workers} workers of 1 thread")
    print(f"data: {8 * args.entries / args.workers / 1e9:.0f} GB for each worker")
    print(f"a pass: {work:.0f} s of work; {groups:.0f} groups in {tasks} tasks")
    print(f"  factors out {out / 1e9:.1f} GB, equations back {back / 1e9:.1f} GB")
    print(f"  scheduler and client {serial:.0f} s, mostly beside the work")
    print(f"a sweep: {3 * max(work, serial):.0f} to {3 * (work + serial):.0f} s")
    least = next(
        w for w in range(args.workers, 10**6) if args.entries * args.entry * 1e-9 / w < serial
    )
    print(f"more than about {least} workers do not help: the client and scheduler are then busy")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for work in (sweeps, store, table, model):
        one = commands.add_parser(work.__name__)
        one.set_defaults(work=work)
        one.add_argument("--rank", type=int, default=10)
        if work in (store, table):
            one.add_argument("folder", type=Path)
            one.add_argument("--memory", default="2GB")
        if work is sweeps:
            one.add_argument("--size", type=int, default=400)
            one.add_argument("--chunks", type=int, nargs="+", default=[200, 100])
            one.add_argument("--repeat", type=int, default=5)
        if work is store:
            one.add_argument("--gigabytes", type=float, default=12.0)
        if work is table:
            one.add_argument("--rows", type=int, default=50_000_000)
            one.add_argument("--parts", type=int, default=16)
        if work is model:
            one.add_argument("--entries", type=float, default=1e12)
            one.add_argument("--workers", type=int, default=100)
            one.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes a second")
            one.add_argument("--entry", type=float, default=6.5, help="ns an entry and pass")
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
