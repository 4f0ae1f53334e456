"""Passes and fits on a GPU, ours and TensorLy's, in one run: python benchmarks/gpu.py [--out FILE].

Times are medians: of kernels by events of the device, of fits by the clock, after everything was
compiled once.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from robustcp import KruskalTensor, cp, cpal1, cpals, factor_match_score
from robustcp.engines import as_engine
from robustcp.losses import L1, Contaminated

SMOOTH, SYMMETRIC, ONE_SIDED = (
    L1(1e-4),
    Contaminated(0.3, 0.05, 0.05),
    Contaminated(0.3, 0.05, 0.01),
)
Row = tuple[str, str]


def drawn(*shape: int, rank: int = 10, dtype: Any = torch.float32) -> tuple[Any, list[Any]]:
    """A noisy model, and its factors."""
    draw = torch.Generator(device="cuda").manual_seed(0)
    to = {"generator": draw, "device": "cuda", "dtype": dtype}
    F = [torch.randn(n, rank, **to) for n in shape]
    names = "abcde"[: len(shape)]
    X = torch.einsum(",".join(f"{n}r" for n in names) + "->" + names, *F)
    for part in X:  # one slab after the other: no second tensor of that size
        part += 0.3 * torch.randn(part.shape, **to)
    return X, F


def contaminated(size: int, rank: int = 10) -> tuple[Any, list[Any]]:
    """As `simulate`: Gaussian noise of eta .2, and a fifth of the entries off by gamma 2."""
    draw = torch.Generator(device="cuda").manual_seed(1)
    to = {"generator": draw, "device": "cuda"}
    F = [torch.randn(size, rank, **to) for _ in range(3)]
    F = [A / A.norm(dim=0) for A in F]
    X = torch.einsum("ar,br,cr->abc", *F)
    noise, top = 0.1 * float(X.norm()) / X.numel() ** 0.5, 2 * float(X.abs().max())
    for part in X:
        part += noise * torch.randn(part.shape, **to)
        part += top * torch.randn(part.shape, **to) * (torch.rand(part.shape, **to) < 0.2)
    return X, F


def on_device(work: Callable[[], Any], turns: int = 7) -> float:
    """Milliseconds by the device's own events."""
    work()
    found = []
    for _ in range(turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found)


def by_clock(work: Callable[[], Any], turns: int = 3) -> tuple[float, Any]:
    """Seconds, and the last result."""
    work()
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return median(found), result


def passes(X: Any, F: list[Any], loss: Any) -> list[float]:
    """Milliseconds of a pass in each mode."""
    engine = as_engine(X)

    def one(mode: int) -> None:
        for rows in engine.row_blocks(mode, F[0].shape[1], loss):
            engine.normal_equations(F, mode, loss, rows)

    return [on_device(partial(one, mode)) for mode in range(X.ndim)]


def shown(times: list[float]) -> str:
    return " / ".join(f"{t:.2f}" for t in times) + " ms"


def of_passes() -> list[Row]:
    rows = []
    for rank in (5, 10, 20):
        X, F = drawn(1000, 1000, 1000, rank=rank)
        if rank == 5:
            rows.append(("reading 1000^3 once", shown([on_device(X.sum)])))
        rows.append((f"pass, 1000^3, rank {rank}, L1", shown(passes(X, F, SMOOTH))))
        if rank == 10:
            for name, loss in (("refinement", SYMMETRIC), ("refinement, one-sided", ONE_SIDED)):
                rows.append((f"pass, 1000^3, rank 10, {name}", shown(passes(X, F, loss))))
            rows.append(("errors of that pass, L1", errors(X, F)))
        del X
    X, F = drawn(1000, 1000, 1000, dtype=torch.float64)
    rows.append(("pass, 1000^3, rank 10, float64", shown(passes(X, F, SMOOTH))))
    del X
    X, F = drawn(200, 200, 200, 200)
    rows.append(("pass, 200^4, rank 10", per_entry(passes(X, F, SMOOTH), X)))
    del X
    X = torch.randint(0, 255, (300, 1920 * 1080, 3), dtype=torch.uint8, device="cuda").permute(
        1, 2, 0
    )
    F = [torch.rand(n, 10, device="cuda") for n in X.shape]
    rows.append(("pass, clip of 1920 x 1080 x 3 x 300, uint8", per_entry(passes(X, F, SMOOTH), X)))
    return rows


def per_entry(times: list[float], X: Any) -> str:
    return (
        shown(times)
        + ": "
        + " / ".join(f"{1e9 * t / X.numel():.1f}" for t in times)
        + " ps an entry"
    )


def errors(X: Any, F: list[Any], rows: int = 40) -> str:
    """Of gradients, in units of the sums of magnitudes, and of Gram matrices; against float64."""
    found = as_engine(X).normal_equations(F, 0, SMOOTH, slice(0, rows))
    A, B, C = (M.double() for M in F)
    r = X[:rows].double() - torch.einsum("ar,br,cr->abc", A[:rows], B, C)
    slope, curvature = SMOOTH.slope(r), SMOOTH.curvature(r)
    i, j = torch.triu_indices(B.shape[1], B.shape[1], device="cuda")

    def sums(values: Any, *others: Any) -> Any:
        return torch.einsum("abc,br,cr->ar", values, *others)

    size = sums(slope.abs(), B.abs(), C.abs())
    off = ((found.gradient - sums(slope, B, C)).abs() / size).max()
    gram = sums(curvature, B[:, i] * B[:, j], C[:, i] * C[:, j])
    return f"gradient {off:.1e}, Gram {(found.gram - gram).norm() / gram.norm():.1e}"


def of_fits(sizes: tuple[int, ...]) -> list[Row]:
    rows = []
    for size in sizes:
        X, F = contaminated(size)
        truth = KruskalTensor.from_factors([A.cpu().numpy() for A in F])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for method in (cpal1, cp):
            seconds, fit = by_clock(partial(method, X, 10))
            score = factor_match_score(fit.model, truth)
            rows.append(
                (f"{method.__name__}, {size}^3, rank 10", f"{seconds:.3f} s, score {score:.4f}")
            )
        more = (torch.cuda.max_memory_allocated() - before) / (X.numel() * X.element_size())
        rows.append((f"memory beyond the tensor, {size}^3", f"{more:.1%}"))
        rows += of_sweeps(X, size)
        if size <= 50:
            host = X.cpu().numpy()
            for method in (cpal1, cp):
                seconds, _ = by_clock(partial(method, host, 10))
                rows.append((f"{method.__name__}, {size}^3, on the CPU", f"{seconds:.3f} s"))
        del X
    return rows


def of_sweeps(X: Any, size: int) -> list[Row]:
    """A sweep of least squares in steady state, from given factors."""
    import tensorly
    from tensorly.decomposition import parafac

    tensorly.set_backend("pytorch")
    begin = [torch.rand(n, 10, device="cuda") for n in X.shape]

    def theirs(sweeps: int) -> float:
        init = torch.ones(10, device="cuda"), [A.clone() for A in begin]
        return by_clock(lambda: parafac(X, 10, n_iter_max=sweeps, init=init, tol=0), 1)[0]

    def ours(sweeps: int) -> tuple[float, int]:
        seconds, fit = by_clock(lambda: cpals(X, 10, init=begin, max_sweeps=sweeps), 1)
        return seconds, fit.sweeps

    peer = median((theirs(23) - theirs(3)) / 20 for _ in range(3))
    turns = []
    for _ in range(3):
        (long, many), (short, few) = ours(23), ours(3)
        turns.append((long - short) / max(1, many - few))
    return [
        (f"cpals, {size}^3, a sweep", f"{1e3 * median(turns):.2f} ms"),
        (f"TensorLy's parafac, {size}^3, a sweep", f"{1e3 * peer:.2f} ms"),
    ]


def of_large() -> list[Row]:
    """A fit of 40 GB on the device, and a pass over 32 GB of the host through 16 GB of it."""
    X, F = drawn(10, 1000, 1000, 1000)
    seconds, fit = by_clock(partial(cpal1, X, 10, max_sweeps=30), 1)
    truth = KruskalTensor.from_factors([A.cpu().numpy() for A in F])
    score = factor_match_score(fit.model, truth)
    rows = [("cpal1, 10 x 1000^3 (40 GB), rank 10", f"{seconds:.2f} s, score {score:.4f}")]
    host = np.empty((8, *X.shape[1:]), np.float32)
    for slab, there in zip(host, X, strict=False):
        slab[...] = there.cpu().numpy()
    del X, there
    torch.cuda.empty_cache()
    begin = time.perf_counter()
    engine = as_engine(host, device="cuda", memory="16GB")
    rows.append(("pinning 32 GB, once", f"{time.perf_counter() - begin:.2f} s"))
    F = [A[: len(host)] if m == 0 else A for m, A in enumerate(F)]
    engine.normal_equations(F, 1, SMOOTH)
    torch.cuda.reset_peak_memory_stats()
    seconds, _ = by_clock(lambda: float(engine.normal_equations(F, 1, SMOOTH).value), 2)
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(pinned, device="cuda")
    rate = (1 << 30) / on_device(lambda: there.copy_(pinned, non_blocking=True)) / 1e6
    found = host.nbytes / seconds / 1e9
    peak = torch.cuda.max_memory_allocated() / 1e9
    words = (
        f"{found:.1f} GB/s of {rate:.1f} by pinned copies ({found / rate:.0%}), peak {peak:.1f} GB"
    )
    return [*rows, ("a pass over 32 GB of the host, rank 10", words)]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "passes": of_passes,
    "fits": lambda: of_fits((50, 200, 1000)),
    "large": of_large,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    about = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    lines = [about, "", "| | |", "|---|---|"]
    print("\n".join(lines))
    for name in asked.only:
        rows = [f"| {a} | {b} |" for a, b in PARTS[name]()]
        print("\n".join(rows), flush=True)
        lines += rows
        if asked.out:
            asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
