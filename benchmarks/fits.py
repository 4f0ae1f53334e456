"""Whole fits: to a solution, of a number of sweeps, of small tensors, through swamps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import peers
import problems
import robustcp
from measuring import (
    Result,
    als_limit,
    in_turns,
    median,
    ratios,
    row,
    seconds,
    sweep_limit,
)
from robustcp.losses import LeastSquares
from robustcp.optimize.acceleration import Acceleration, JointStep, NoAcceleration
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.stages import l1_continuation


def solution(quick: bool) -> list[Result]:
    """Times to a solution, against `pyttb.gcp_opt` with Huber's loss."""
    found = []
    for size, rank, turns, targets in (
        (50, 5, 7, (">= 20", ">= 8")),
        (200, 10, 5, (">= 25", ">= 15")),
    ):
        if quick and size > 50:
            continue
        sim = problems.one_sided(size, rank)
        X, peer = sim.data, peers.gcp_opt(sim.data)
        taken = in_turns(
            {
                "gcp_opt": lambda peer=peer, rank=rank: peer(rank),
                "cpal1": lambda X=X, rank=rank: robustcp.cpal1(X, rank),
                "cp": lambda X=X, rank=rank: robustcp.cp(X, rank),
            },
            1 if quick else turns,
        )
        last = {name: runs[-1][1] for name, runs in taken.items()}
        l1 = {name: float(np.abs(X - model.full()).sum()) for name, model in last.items()}
        score = {name: float(robustcp.factor_match_score(m, sim.truth)) for name, m in last.items()}
        objective = l1["cpal1"] / l1["gcp_opt"]
        good = {"cpal1": objective <= 1.0001, "cp": score["cp"] > score["gcp_opt"]}
        says = {
            "cpal1": f"1-norm {objective:.5f} of the peer's",
            "cp": f"score {score['cp']:.4f}, the peer's {score['gcp_opt']:.4f}",
        }
        theirs = median(taken["gcp_opt"])
        for name, target in zip(("cpal1", "cp"), targets, strict=True):
            ours = median(taken[name])
            least = last[name].sweeps * sweep_limit(X.size, rank, 3)
            faster = ratios(taken["gcp_opt"], taken[name])
            found.append(
                row(
                    f"{name} against gcp_opt, {size}^3 rank {rank}", "x faster", faster, target,
                    limit=theirs / least, note=f"{ours:.3g} s, the peer {theirs:.3g}; {says[name]}",
                    valid=good[name], peers={"pyttb.gcp_opt": statistics.median(faster)},
                    label=f"{name} to a solution, {size}³ rank {rank}",
                )
            )  # fmt: skip
    return found


def against_als(
    taken: dict[str, list[tuple[float, Any]]], scale: float, unit: str
) -> tuple[list[float], dict[str, float], str]:
    """Ratios of the faster peer, by its median, to ours; those of each; and the times in words."""
    names = [name for name in taken if name in peers.ALS]
    best = min(names, key=lambda name: median(taken[name]))
    each = {name: statistics.median(ratios(taken[name], taken["robustcp"])) for name in names}
    times = ", ".join(f"{name} {scale * median(runs):.3g}" for name, runs in taken.items())
    return ratios(taken[best], taken["robustcp"]), each, f"{unit}: {times}"


def calls(quick: bool) -> list[Result]:
    """Whole calls of 20 sweeps of least squares from given factors, against the peers."""
    found = []
    for size, rank, turns, target in ((50, 5, 15, ">= 1.5"), (200, 10, 7, ">= 3")):
        if quick and size > 50:
            continue
        X = problems.one_sided(size, rank).data
        start = problems.start_for(X, rank)

        def ours(X: np.ndarray = X, start: Any = start, rank: int = rank) -> Any:
            return robustcp.cpals(X, rank, init=start, tol=0.0, max_sweeps=20)

        work = {"robustcp": ours}
        for name, peer in peers.ALS.items():
            als = peer(X)
            work[name] = lambda als=als, rank=rank, start=start: als(rank, start, 20)
        taken = in_turns(work, 2 if quick else turns)
        faster, each, note = against_als(taken, 1e3, "ms")
        best = min(median(taken[name]) for name in peers.ALS)
        found.append(
            row(
                f"20 sweeps of cpals, a whole call, against the faster peer, {size}^3 rank {rank}",
                "x faster", faster, target, note=note, peers=each,
                limit=best / (20 * als_limit(X.size, rank)),
                label=f"cpals, a call of 20 sweeps, {size}³ rank {rank}",
            )
        )  # fmt: skip
    return found


# Small tensors


def small(quick: bool) -> list[Result]:
    """A loop over different tensors of 20^3, and what a sweep of still smaller ones takes."""
    count, turns = (3, 2) if quick else (20, 7)
    tensors = [problems.one_sided(20, 3, seed).data for seed in range(count)]
    tol, most = 1e-7, 1000

    def loop(fit: Callable[[Any], Any]) -> Callable[[], list[Any]]:
        return lambda: [fit(X) for X in tensors]

    def peer(als: Callable[[np.ndarray], peers.Als]) -> Callable[[], list[Any]]:
        held = [als(X) for X in tensors]
        starts = [[robustcp.nvecs(X, mode, 3) for mode in range(3)] for X in tensors]
        return lambda: [
            fit(3, start, most, tol) for fit, start in zip(held, starts, strict=True)
        ]  # fmt: skip

    taken = in_turns(
        {
            "cp": loop(lambda X: robustcp.cp(X, 3)),
            "robustcp": loop(lambda X: robustcp.cpals(X, 3, tol=tol)),
            **{name: peer(als) for name, als in peers.ALS.items()},
        },
        turns,
    )
    cp = taken.pop("cp")
    faster, each, note = against_als(taken, 1e3 / count, "ms")
    sweeps = {k: sum(fit.sweeps for fit in runs[-1][1]) / count
              for k, runs in (("cp", cp), ("cpals", taken["robustcp"]))}  # fmt: skip
    found = [
        row(
            "cp, 20^3 rank 3, in a loop", "ms", [1e3 * took / count for took, _ in cp],
            limit=1e3 * sweeps["cp"] * sweep_limit(20**3, 3, 3),
            note=f"{sweeps['cp']:.0f} sweeps after the starts",
        ),
        row(
            "cpals, 20^3 rank 3, in a loop", "ms",
            [1e3 * took / count for took, _ in taken["robustcp"]],
            limit=1e3 * sweeps["cpals"] * als_limit(20**3, 3),
            note=f"{sweeps['cpals']:.0f} sweeps",
        ),
        row(
            "cpals in a loop, against the faster peer, 20^3 rank 3", "x faster", faster, note=note,
            peers=each, label="cpals, whole calls in a loop, 20³ rank 3",
        ),
    ]  # fmt: skip
    return found + overheads(quick)


def overheads(quick: bool) -> list[Result]:
    """Microseconds per sweep of small tensors: what comes before and after them falls out."""
    found = []
    for size, rank in ((8, 3), (20, 3), (50, 5)):
        if quick and size > 20:
            continue
        X = problems.one_sided(size, rank).data
        start, count = problems.start_for(X, rank), 50 if quick else 400
        sigma = float(np.median(np.abs(X)))
        losses = {
            "least squares": robustcp.LeastSquares(),
            "the smoothed 1-norm": robustcp.L1(1e-4 * sigma**2),
        }
        for name, loss in losses.items():

            def fit(n: int, loss: Any = loss, X: Any = X, start: Any = start) -> Any:
                rank = start[0].shape[1]
                return robustcp.cp(X, rank, loss=loss, init=start, tol=0.0, max_sweeps=n)

            taken = in_turns(
                {"long": lambda f=fit, n=count: f(n), "short": lambda f=fit, n=count: f(n // 10)},
                2 if quick else 9,
            )
            long, short = taken["long"], taken["short"]
            done = count - count // 10
            limit = (
                als_limit(X.size, rank) if name == "least squares" else sweep_limit(X.size, rank, 3)
            )
            found.append(
                row(
                    f"a sweep of {name}, {size}^3 rank {rank}", "us",
                    [1e6 * (a - b) / done for (a, _), (b, _) in zip(long, short, strict=True)],
                    limit=1e6 * limit,
                )
            )  # fmt: skip
    return found


# Swamps

#: A model counts as found at this factor match score.
SCORE = 0.99
#: What has not found it after so many sweeps has not found it.
MOST = 3000
#: Plain alternation is followed for so many times the sweeps that ours took.
LONGER = 4


class Way:
    """How far a fit has to go until it finds a model, and how long that takes.

    Its own looks at the model are not counted.
    """

    def __init__(self, truth: robustcp.KruskalTensor) -> None:
        self.truth, self.looks, self.sweeps, self.found = truth, 0.0, 0, False
        self.seconds = 0.0

    def look(self, factors: Sequence[Any], sweeps: int) -> bool:
        took, model = seconds(lambda: robustcp.KruskalTensor.from_factors(factors))
        more, score = seconds(lambda: robustcp.factor_match_score(model, self.truth))
        self.looks += took + more
        self.sweeps, self.found = sweeps, bool(score >= SCORE)
        return self.found


def descent(swamp: problems.Swamp, robust: bool, acceleration: Acceleration, most: int) -> Way:
    """By our solver: the stage of `cpal1`, or of `cpals`; as it is, or by plain alternation."""
    way = Way(swamp.truth)
    rank = swamp.start[0].shape[1]
    begin = time.perf_counter()
    engine = robustcp.as_engine(swamp.data)
    if robust:
        problem = Problem.of(engine).without_gross_outliers
        mu = problem.relative_mu(1e-8)
        stage = Stage("L1", l1_continuation(problem, 1e-10), 0.0, mu, acceleration=acceleration)
    else:
        problem = Problem.of(engine, keep_outliers=True)
        stage = Stage("least squares", Single(LeastSquares()), 0.0, acceleration=acceleration)
    solver = Solver(problem, [stage])
    factors = tuple(problem.engine.asarray(A[:, :rank]) for A in swamp.start)
    solver.run(solver.start(factors), most, lambda state: way.look(state.factors, state.sweep))
    way.seconds = time.perf_counter() - begin - way.looks
    return way


def by_peer(swamp: problems.Swamp, als: Callable[[np.ndarray], peers.Als], most: int) -> Way:
    """By a peer, whose sweeps keep nothing but the model: twenty at a time."""
    way, fit = Way(swamp.truth), als(swamp.data)
    factors, rank = swamp.start, swamp.start[0].shape[1]
    for sweeps in range(20, most + 1, 20):
        took, model = seconds(lambda factors=factors: fit(rank, factors, 20))
        way.seconds += took
        factors = _balanced(model)
        if way.look(factors, sweeps):
            break
    return way


def _balanced(model: robustcp.KruskalTensor) -> list[np.ndarray]:
    """Factors that hold the weights of the components."""
    share = np.abs(model.weights) ** (1 / len(model.factors))
    first, *others = (A * share for A in model.factors)
    return [first * np.sign(model.weights), *others]


def swamps(quick: bool) -> list[Result]:
    """Sweeps and seconds until collinear components are told apart."""
    size, seeds, most = (20, range(1), 100) if quick else (60, range(3), MOST)
    found = []
    for share in (0.0, 0.1):
        what = f"collinear {size}^3 rank 4, " + (f"{share:.0%} artifacts" if share else "clean")
        tensors = [problems.swamp(size, 4, share, seed) for seed in seeds]
        methods = {"cpal1": True} if share else {"cpals": False, "cpal1": True}
        for robust in methods.values():
            descent(tensors[0], robust, JointStep(), 10)  # compiles
        ways: dict[str, list[Way]] = {}
        for swamp in tensors:
            for name, way in ways_through(swamp, methods, not share, most).items():
                ways.setdefault(name, []).append(way)
        for name, runs in ways.items():
            done = sum(way.found for way in runs)
            took = statistics.median(way.seconds for way in runs)
            found.append(
                row(
                    f"{what}: {name}", "sweeps", [way.sweeps for way in runs],
                    note=f"{done} of {len(runs)} found; {took:.3g} s",
                )
            )  # fmt: skip
        found += [fewer(what, name, ways) for name in methods]
        if not share:
            found.append(sooner(what, ways))
        found += whole_calls(what, tensors, bool(share), quick)
    return found


def ways_through(
    swamp: problems.Swamp, methods: dict[str, bool], with_peers: bool, most: int
) -> dict[str, Way]:
    """Ours, each as it is and by plain alternation, and the peers'."""
    ways = {}
    for name, robust in methods.items():
        ways[name] = descent(swamp, robust, JointStep(), most)
        ways[f"{name}, plain"] = descent(
            swamp, robust, NoAcceleration(), LONGER * ways[name].sweeps
        )
    if with_peers:
        ways |= {name: by_peer(swamp, als, most) for name, als in peers.ALS.items()}
    return ways


def sooner(what: str, ways: dict[str, list[Way]]) -> Result:
    """How much sooner than the peers the components are found; more, where these found nothing."""
    taken = {"robustcp": ways["cpals"], **{name: ways[name] for name in peers.ALS}}
    faster, each, note = against_als(
        {name: [(way.seconds, None) for way in runs] for name, runs in taken.items()}, 1.0, "s"
    )
    found = [f"{name} found {sum(way.found for way in ways[name])}" for name in peers.ALS]
    return row(
        f"{what}: cpals to a score of {SCORE}, against the faster peer", "x faster", faster,
        note=f"{note}; of {len(faster)} " + ", ".join(found), peers=each,
        valid=all(way.found for way in ways["cpals"]),
        label="cpals, collinear components\ntold apart, 60³ rank 4",
    )  # fmt: skip


def fewer(what: str, name: str, ways: dict[str, list[Way]]) -> Result:
    """The share of the sweeps of plain alternation. Where that finds nothing it is less still."""
    pairs = list(zip(ways[name], ways[name + ", plain"], strict=True))
    lost = sum(not plain.found for _, plain in pairs)
    return row(
        f"{what}: sweeps of {name}", "of plain alternation",
        [ours.sweeps / plain.sweeps for ours, plain in pairs], "<= 0.333",
        note=f"or less: plain alternation found {len(pairs) - lost} of {len(pairs)}" * bool(lost),
        valid=all(ours.found for ours, _ in pairs),
    )  # fmt: skip


def whole_calls(
    what: str, tensors: Sequence[problems.Swamp], robust: bool, quick: bool
) -> list[Result]:
    """`cp` as it is called, all starts included; beside it `pyttb.gcp_opt` where it is needed."""
    found = []
    fits: dict[str, Callable[[problems.Swamp], Any]] = {"cp": lambda t: robustcp.cp(t.data, 4)}
    if robust:
        fits["gcp_opt"] = lambda t: peers.gcp_opt(t.data)(4, 2 * t.sigma, t.start)
    for name, fit in fits.items():
        fit(tensors[0])  # compiles
        runs = [seconds(lambda t=t, fit=fit: fit(t)) for t in tensors[: 1 if quick else 3]]
        scores = [
            float(robustcp.factor_match_score(model, t.truth))
            for (_, model), t in zip(runs, tensors, strict=False)
        ]
        note = "scores " + ", ".join(f"{score:.3f}" for score in scores)
        found.append(row(f"{what}: a call of {name}", "s", [s for s, _ in runs], note=note))
    return found
