"""This source tree against another one, such as an older commit: processes that take turns."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import problems
from measuring import Result, in_turns, median, own_clock, ratios, row
from processes import cold, first_result
from trees import Tree, folder, kept, worker


class Case(NamedTuple):
    """What both trees do, and what share of the time of commit `BASE` is the target."""

    name: str
    arrays: Mapping[str, np.ndarray]
    method: str
    rank: int
    turns: int
    target: str = ""


def small(quick: bool) -> list[Case]:
    count, turns = (3, 2) if quick else (20, 7)
    tensors = np.stack([problems.one_sided(20, 3, seed).data for seed in range(count)])
    return [
        Case("cp, 20^3 rank 3, in a loop", {"tensors": tensors}, "cp", 3, turns, "<= 0.35"),
        Case("cpals, 20^3 rank 3, in a loop", {"tensors": tensors}, "cpals", 3, turns, "<= 0.3"),
    ]


def solution(quick: bool) -> list[Case]:
    found = []
    for size, rank, turns in ((50, 5, 7), (200, 10, 5)):
        if quick and size > 50:
            continue
        tensors = {"tensors": problems.one_sided(size, rank).data[None]}
        found += [
            Case(f"{method}, {size}^3 rank {rank}", tensors, method, rank, 1 if quick else turns)
            for method in ("cpal1", "cp")
        ]
    return found


def observed(quick: bool) -> list[Case]:
    count, size, rank = (20_000, 40, 3) if quick else (2_000_000, 2000, 5)
    name = f"cp, {count:,} of {size}^3 rank {rank}, positive factors"
    data = problems.listed(count, size, rank)
    return [Case(name, data, "cp", rank, 1 if quick else 9, "<= 0.2")]


CASES: dict[str, Callable[[bool], list[Case]]] = {
    "small": small, "solution": solution, "observed": observed,
}  # fmt: skip


def against(bench: str, other: Tree, quick: bool) -> list[Result]:
    """What part of the other tree's time ours takes; nothing where a benchmark has no such rows."""
    own = Tree.own()
    if bench == "start":
        return start(own, other, quick)
    if bench not in CASES:
        return []
    found = []
    with folder() as scratch, worker(own, scratch) as ours, worker(other, scratch) as theirs:
        for number, case in enumerate(CASES[bench](quick)):
            data = kept(scratch / f"{number}.npz", **case.arrays)
            taken = in_turns(
                {
                    "theirs": lambda d=data, c=case: theirs.fit(d, c.method, c.rank),
                    "ours": lambda d=data, c=case: ours.fit(d, c.method, c.rank),
                },
                case.turns, own_clock,
            )  # fmt: skip
            found.append(compared(case.name, taken, other, case.target))
    return found


def start(own: Tree, other: Tree, quick: bool) -> list[Result]:
    found = []
    asked = ("cpals" if quick else "cp", 20, 3)
    with folder() as cache:
        work: dict[str, dict[str, Callable[[], Any]]] = {
            "warm": {
                "theirs": lambda: first_result(other, *asked, cache),
                "ours": lambda: first_result(own, *asked, cache),
            },
            "cold": {"theirs": lambda: cold(other, *asked), "ours": lambda: cold(own, *asked)},
        }
        for kind, each in work.items():
            taken = in_turns(each, 1 if quick else 7, discarded=kind == "warm")
            name = f"first result of {asked[0]}, 20^3 rank 3, {kind} cache"
            found.append(compared(name, taken, other))
    return found


def compared(
    name: str, taken: Mapping[str, list[tuple[float, Any]]], other: Tree, target: str = ""
) -> Result:
    ours, theirs = taken["ours"], taken["theirs"]
    return row(
        f"{name}: against {other.commit}", "of its time", ratios(ours, theirs),
        other.target(target), note=f"{median(ours):.3g} s for {median(theirs):.3g} s",
    )  # fmt: skip


def tree_at(path: str) -> Tree:
    """For the command line."""
    try:
        return Tree.at(Path(path))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
