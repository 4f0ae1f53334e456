"""Where a fit begins: several starts, tried cheaply, of which the lowest objective is taken."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from robustcp import init as starting
from robustcp._typing import Factors
from robustcp.engines import Engine
from robustcp.losses import L1
from robustcp.solver import Continuation, Solver, Stage, Update
from robustcp.units import Units, power_of_two

#: How many starts "auto" is.
AUTO = 6
#: Tensors with more entries are tried on a part of about PART entries.
LARGE, PART = 1 << 20, 1 << 17
#: From so many entries on, starts are followed side by side.
WORTH_THREADS = 1 << 15
#: The share of the data's size, squared, that the smoothing of a start begins with. Where strong
#: artifacts lead astray a small one is better, for sparse data a large one: so both are tried.
SHARES = (0.03, 1.0)
#: Starts are followed down to this share, loosely.
LOWEST = 1e-4
#: Starts that end this close to the best, relatively, have reached it.
CLOSE = 5e-3


class Starts(tuple[float, ...]):
    """The objectives that the starts of a fit ended at, in the data's units.

    If few of many reached the best, there may be a better one still.
    """

    __slots__ = ()

    @property
    def reached(self) -> int:
        """How many ended within 0.5% of the best."""
        return sum(objective <= min(self) * (1 + CLOSE) for objective in self)

    def __repr__(self) -> str:
        return f"Starts({self.reached} of {len(self)} reached the best, {min(self):.6g})"


def first_factors(
    units: Units, rank: int, init: Any, rng: np.random.Generator, *, clip: bool = False
) -> Factors:
    """Starting factors in the units of the fit.

    With `clip`, singular vectors are those of the data cut at the size of ordinary entries.
    """
    engine = units.engine
    if not isinstance(init, str):
        shrink = power_of_two(-units.exponent / units.order)
        return tuple(A * shrink for A in starting.given(engine, rank, init))
    if init in ("random", "positive"):
        factors = starting.random(engine, rank, rng)
        if init == "positive":
            factors = tuple(engine.xp.abs(A) for A in factors)
    else:
        source = engine.saturated(units.ordinary) if clip else engine
        factors = tuple(starting.nvecs(source, n, rank, rng=rng) for n in range(units.order))
    size = units.scale if engine.largest > 0 else 0.0  # all zeros: the model is zero at once
    return tuple(A * size ** (1 / units.order) for A in factors)


def blank(engine: Engine, factors: Factors, modes: Sequence[int]) -> Factors:
    """Rows to be solved for of which no entry was observed are set to zero, with a warning."""
    if engine.complete:
        return factors
    filled = []
    for mode, A in enumerate(factors):
        empty = np.flatnonzero(engine.counts(mode) == 0) if mode in modes else np.array([])
        if empty.size:
            shown = ", ".join(map(str, empty[:5])) + (", ..." if empty.size > 5 else "")
            warnings.warn(
                f"X: {empty.size} slabs of mode {mode} have no observed entry ({shown}); "
                "their rows of the factor are 0",
                stacklevel=4,
            )
            heard = np.ones((engine.shape[mode], 1))
            heard[empty] = 0.0
            A = A * engine.asarray(heard)
        filled.append(A)
    return tuple(filled)


def search(
    units: Units,
    rank: int,
    init: str,
    count: int,
    rng: np.random.Generator,
    update: Update,
) -> tuple[Factors, Starts]:
    """The best of several starts under the 1-norm, followed just far enough to tell.

    Large tensors are tried on a random part, and the rows that the part leaves out are then
    found by robust regression on its factors.
    """
    engine = units.engine
    part = _part(engine, rank, rng)
    small = engine if part is None else engine.subtensor(part)
    trial = units.on(small)
    begins = []
    for (kind, share), _ in zip(_kinds(init, engine), range(count), strict=False):
        how = kind if kind in ("random", "positive") else "nvecs"
        factors = first_factors(trial, rank, how, rng, clip=kind == "clipped")
        begins.append((factors, share))
    together = small.tiles.side_by_side if math.prod(small.shape) >= WORTH_THREADS else _in_turn
    ends = together(lambda begin: _follow(trial, begin[0], begin[1], update), begins)
    objectives = [objective for objective, _ in ends]
    best = ends[int(np.argmin(objectives))]
    found = best[1]
    if part is not None:  # what is settled here costs little, and need not be on the whole
        found = _extended(units, part, _settled(trial, found, update), update)
    # What a part of the data costs stands for the whole.
    weight = float(engine.counts(0).sum() / small.counts(0).sum())
    loss = L1(LOWEST * units.ordinary**2)
    return found, Starts(units.in_data(weight * value, loss) for value in objectives)


def begin_on_part(
    units: Units, rank: int, init: str, rng: np.random.Generator, update: Update
) -> Factors | None:
    """For a large tensor: factors from a fit of a part by the 1-norm. None for a small one."""
    part = _part(units.engine, rank, rng)
    if part is None:
        return None
    trial = units.on(units.engine.subtensor(part))
    solver, _ = _trial(trial, SHARES[0], 1e-5, update)
    state, _ = solver.run(solver.start(first_factors(trial, rank, init, rng)), 200, lambda _: False)
    return _extended(units, part, state.factors, update)


def _in_turn(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [work(item) for item in items]


def _kinds(init: str, engine: Engine) -> Iterable[tuple[str, float]]:
    """Kinds of starts and their first smoothing, best guesses first, without end."""
    if init == "auto" and _observed_share(engine) > 0.4:
        yield from (("clipped", SHARES[0]), ("nvecs", SHARES[1]))
    elif init == "nvecs":
        yield "nvecs", SHARES[0]
    small, large = SHARES
    while True:  # data that is mostly of one sign is reached more easily from positive factors
        yield from (("positive", small), ("random", large), ("positive", large), ("random", small))


def _observed_share(engine: Engine) -> float:
    return 1.0 if engine.complete else float(engine.counts(0).sum() / math.prod(engine.shape))


def _follow(units: Units, factors: Factors, share: float, update: Update) -> tuple[float, Factors]:
    """Follow a start until it is plain how low it gets."""
    solver, lowest = _trial(units, share, 1e-3, update)
    state, _ = solver.run(solver.start(factors), 60, lambda _: False)
    return solver.objective(state, lowest), state.factors


def _settled(units: Units, factors: Factors, update: Update) -> Factors:
    """Follow good factors to where they lead."""
    solver, _ = _trial(units, SHARES[0], 1e-5, update)
    stages = [stage.near(units.engine, factors) for stage in solver.stages]
    solver = replace(solver, stages=stages)
    return solver.run(solver.start(factors), 100, lambda _: False)[0].factors


def _trial(units: Units, share: float, tol: float, update: Update) -> tuple[Solver, L1]:
    size = units.ordinary**2
    schedule = Continuation(share * size, LOWEST * size)
    stage = Stage("starts", schedule, tol, units.relative_mu(1e-8), 10, update=update)
    return Solver(units.engine, (stage,), range(units.order), units.baseline), L1(LOWEST * size)


def _part(engine: Engine, rank: int, rng: np.random.Generator) -> list[np.ndarray | None] | None:
    """Random indices of each mode that make a part small enough for trials."""
    total = math.prod(engine.shape)
    if total <= LARGE or _observed_share(engine) <= 0.4:
        return None
    least = [min(size, max(20, 4 * rank)) for size in engine.shape]
    sizes = [float(size) for size in engine.shape]
    for _ in range(20):  # long modes are cut first, short ones stay whole
        over = math.prod(sizes) / PART
        if over <= 1:
            break
        free = [n for n, size in enumerate(sizes) if size > least[n]]
        if not free:
            break
        cut = over ** (1 / len(free))
        for n in free:
            sizes[n] = max(float(least[n]), sizes[n] / cut)
    return [
        None if round(size) >= whole else np.sort(rng.permutation(whole)[: round(size)])
        for size, whole in zip(sizes, engine.shape, strict=True)
    ]


def _extended(
    units: Units, part: list[np.ndarray | None], factors: Factors, update: Update
) -> Factors:
    """Factors of the whole from those of a part: each mode by regression on the others' part."""
    engine = units.engine
    whole = []
    for mode in range(units.order):
        chosen = part[mode]
        if chosen is None:
            whole.append(factors[mode])
            continue
        slabs = engine.subtensor([None if m == mode else part[m] for m in range(units.order)])
        rows = engine.asarray(np.zeros((engine.shape[mode], factors[0].shape[1])))
        rows[engine.xp.asarray(chosen), :] = factors[mode]
        size = units.ordinary**2
        stage = Stage("rows", Continuation(0.03 * size, LOWEST * size), 1e-3, 0.0, 8, update=update)
        solver = Solver(slabs, (stage,), (mode,), units.on(slabs).baseline)
        begin = (*factors[:mode], rows, *factors[mode + 1 :])
        whole.append(solver.run(solver.start(begin), 40, lambda _: False)[0].factors[mode])
    return tuple(whole)
