"""This run beside an earlier one: `--against FILE`.

Of each number there are the median, the lowest and the highest over the turns. A row is *worse*
when the best turn of the new run is worse than the worst turn of the old one, by more than 3%: of
two runs of five turns that differ by chance alone that happens to one row in 252, so in a table of
eighty rows to one in three runs. It is *worse?* when only the medians say so: each lies beyond all
turns of the other run. *better* and *better?* likewise.

Ratios to a peer, to a limit or to another tree were taken within one run, and are compared as they
are; so are sweeps and memory. Seconds depend on the machine and on what else it does. They are
divided by how much slower the machine was than in the old run: a little of Python, of matrix
products and of reading memory is timed before and after each benchmark, and of the three the one
that explains the most is taken, for better as for worse. On another processor, or another number
of cores, seconds are shown but not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from measuring import UNITS, Result

#: Differences below this are no news, whatever the turns say.
ALIKE = 0.03
#: What two runs must share for their seconds to be judged.
SAME = ("processor", "cores")


class Change(NamedTuple):
    """A row in both runs."""

    old: Result
    new: Result
    mark: str

    @property
    def ratio(self) -> float:
        return self.new["median"] / self.old["median"] if self.old["median"] else float("nan")


def slower(old: Result, new: Result) -> tuple[float, float]:
    """How many times slower the machine was in the new run, at least and at most."""
    if not UNITS[new["unit"]].absolute or "pace" not in old or "pace" not in new:
        return 1.0, 1.0
    factors = [new["pace"][name] / old["pace"][name] for name in old["pace"]]
    return min(factors), max(factors)


def mark(old: Result, new: Result) -> str:
    """What the numbers of two runs say, after what the machine explains."""
    least, most = slower(old, new)
    a, b = ((r["low"], r["median"], r["high"]) for r in (old, new))
    if UNITS[new["unit"]].more_is_better:  # turned round, so that less is better
        a, b = ((-high, -middle, -low) for low, middle, high in (a, b))
    risen, fallen = _rise(a, b, most), _rise(b, a, 1 / least)
    return f"worse{risen}" if risen is not None else f"better{fallen}" if fallen is not None else ""


def _rise(a: Sequence[float], b: Sequence[float], factor: float) -> str | None:
    """Whether b is above a times the factor: "" if so, "?" if by the medians, None if not."""
    _, middle, high = (factor * x for x in a)
    margin = ALIKE * abs(middle)
    if b[0] > high + margin:
        return ""
    return "?" if b[1] > high + margin and b[0] > middle + margin else None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What of the two machines differs."""
    names = (*SAME, "quick", "threads", "python", "numpy", "numba", "pyttb", "tensorly")
    return [
        f"{name}: {old.get(name)} then, {new.get(name)} now"
        for name in names
        if old.get(name) != new.get(name)
    ]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The rows that both runs have, in the order of the new one."""
    same = all(old["machine"].get(name) == new["machine"].get(name) for name in SAME)
    known = {(r["bench"], r["name"], r["unit"]): r for r in old["results"]}
    found = []
    for r in new["results"]:
        before = known.get((r["bench"], r["name"], r["unit"]))
        if before is not None:
            judged = same or not UNITS[r["unit"]].absolute
            found.append(Change(before, r, mark(before, r) if judged else "not judged"))
    return found


def comparison(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The table, with what differs between the machines above it."""
    found = changes(old, new)
    lines = [f"Against the run of {old['machine'].get('date', 'an unknown day')}:"]
    lines += [f"- {difference}" for difference in differences(old["machine"], new["machine"])]
    lines += ["", "| what | then | now | ratio | machine | |", "|---|---|---|---|---|---|"]
    for change in found:
        low, high = slower(change.old, change.new)
        machine = "" if low == high == 1 else f"{low:.2f} to {high:.2f}"
        unit = change.new["unit"]
        lines.append(
            f"| {change.new['name']} | {change.old['median']:.3g} {unit} "
            f"| {change.new['median']:.3g} {unit} | {change.ratio:.2f} | {machine} "
            f"| {change.mark} |"
        )
    counts = {word: sum(c.mark == word for c in found) for word in ("worse", "worse?", "better")}
    alone = len(new["results"]) - len(found)
    lines += ["", f"{len(found)} rows in both ({alone} only now): " + ", ".join(
        f"{count} {word}" for word, count in counts.items())]  # fmt: skip
    return "\n".join(lines)
