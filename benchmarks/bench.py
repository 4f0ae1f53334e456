"""Ours and the peers side by side: `make bench`, or `make bench ONLY="sweeps small"`.

Everything is compared within one run, in turns (A B A B ...), so that a busy machine hurts all
alike; ratios are medians over the turns, with the lowest and the highest beside them.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import warnings
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import beside
import comparing
import drawing
import fits
import passes
import processes
from measuring import CORES, Result, pace
from reporting import filled, table
from robustcp.engines.threads import available_threads
from trees import Tree

BENCHMARKS: dict[str, Callable[[bool], list[Result]]] = {
    "solution": fits.solution,
    "calls": fits.calls,
    "sweeps": passes.sweeps,
    "small": fits.small,
    "swamps": fits.swamps,
    "limit": passes.limit,
    "growth": passes.growth,
    "observed": passes.observed,
    "long": passes.long,
    "start": processes.start,
    "memory": processes.memory,
}


def about_machine(quick: bool) -> dict[str, Any]:
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((s.split(": ")[1] for s in lines if s.startswith("model name")), model)
    packages = ("numpy", "numba", "pyttb", "tensorly")
    return {
        "date": date.today().isoformat(), "commit": Tree.own().commit, "processor": model,
        "cores": CORES, "threads": available_threads(), "quick": quick,
        "python": platform.python_version(), **{name: version(name) for name in packages},
    }  # fmt: skip


def measured(name: str, quick: bool, also: Tree | None) -> list[Result]:
    """The rows of a benchmark, each with how fast the machine was before and after."""
    before = pace()
    rows = BENCHMARKS[name](quick)
    if also is not None:
        rows += beside.against(name, also, quick)
    after = pace()
    mean = {part: (before[part] + after[part]) / 2 for part in before}
    return [{"bench": name, **result, "pace": mean} for result in rows]


def known(path: Path, machine: dict[str, Any], names: list[str]) -> list[Result]:
    """What an earlier run found of the other benchmarks, if it was on the same machine."""
    if len(names) == len(BENCHMARKS) or not path.exists():
        return []
    earlier = json.loads(path.read_text())
    for name in (*comparing.SAME, "threads", "quick"):
        if earlier["machine"].get(name) != machine[name]:
            was, now = earlier["machine"].get(name), machine[name]
            print(f"{path} is replaced: {name} was {was}, and is {now}")
            return []
    return [r for r in earlier["results"] if r["bench"] not in names]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add(
        "--only", nargs="+", choices=list(BENCHMARKS), help="some of the benchmarks", metavar="NAME"
    )
    add("--out", type=Path, default=Path("bench"), help="folder for the results")
    add("--quick", action="store_true", help="small sizes, few turns: does it run?")
    add("--against", type=Path, help="results.json of an earlier run to compare with")
    add("--strict", action="store_true", help="exit with status 1 if a row is worse than there")
    add("--also", type=beside.tree_at, help="another source tree, to be timed in turns with ours")
    add("--docs", type=Path, help="a document whose tables are replaced; and its images/bench.png")
    return parser


def main() -> int:
    parser = options()
    asked = parser.parse_args()
    if asked.docs and asked.quick:
        parser.error("argument --docs: not with --quick, which measures nothing")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # Read first: it may be the file that this run writes.
    old = json.loads(asked.against.read_text()) if asked.against else None
    asked.out.mkdir(parents=True, exist_ok=True)
    path, machine = asked.out / "results.json", about_machine(asked.quick)
    names = asked.only or list(BENCHMARKS)
    results = known(path, machine, names)
    new: list[Result] = []
    for name in names:
        print(f"\n{name}", flush=True)
        rows = measured(name, asked.quick, asked.also)
        print(table(rows), flush=True)
        new += rows
        results = sorted(results + rows, key=lambda r: list(BENCHMARKS).index(r["bench"]))
        path.write_text(json.dumps({"machine": machine, "results": results}, indent=1))
    (asked.out / "table.md").write_text(table(results) + "\n")
    drawing.draw(results, asked.out / "bench.png")
    print(f"\nwritten to {asked.out}: results.json, table.md, bench.png")
    if asked.docs:
        asked.docs.write_text(filled(asked.docs.read_text(), machine, results))
        picture = asked.docs.parent / "images" / "bench.png"
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes((asked.out / "bench.png").read_bytes())
    if old is None:
        return 0
    run = {"machine": machine, "results": new}
    print("\n" + comparing.comparison(old, run))
    worse = any(change.mark == "worse" for change in comparing.changes(old, run))
    return int(asked.strict and worse)


if __name__ == "__main__":
    sys.exit(main())
