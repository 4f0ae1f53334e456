"""Compare numbers in README and docs with a fresh run of what makes them.

    python scripts/check_numbers.py            # all of them, a minute or two
    python scripts/check_numbers.py demo       # some of them, by name

Every claim names the place in the text, what makes its numbers, and how far they may be apart.
What takes hours or a GPU (benchmarks, trials, the paper's experiments) is compared with the results
that are committed in docs/. Numbers in the guide need no claim here: its code is run when the site
is built.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import robustcp
from robustcp.model.simulation import Simulation
from robustcp.studies import demo
from robustcp.studies.kinds import KINDS

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True)
class Claim:
    """Numbers in a text, and what makes them."""

    name: str
    file: str
    pattern: str
    made: Callable[[], Sequence[float]]
    within: float

    def written(self) -> list[float]:
        """What the text says."""
        found = re.search(self.pattern, text_of(self.file), re.DOTALL)
        if found is None:
            raise SystemExit(f"{self.file}: {self.name} is not there any more")
        return [float(number.replace(",", "")) for number in found.groups()]

    def check(self) -> bool:
        """Print both, and say whether they agree."""
        written, made = self.written(), list(self.made())
        pairs = list(zip(written, made, strict=True))
        good = all(abs(a - b) <= self.within * (1 + 1e-9) for a, b in pairs)
        shown = ", ".join(f"{a:g} ({b:.6g})" for a, b in pairs)
        said = "ok " if good else "NOT"
        print(f"{said} {self.file}: {self.name}: {shown}; within {self.within:g}")
        return good


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


# What makes numbers


@cache
def demonstration() -> tuple[Simulation, dict[str, demo.MethodResult]]:
    sim, rows = demo.run()
    return sim, {row.method: row for row in rows}


def demo_row(method: str) -> Callable[[], list[float]]:
    def made() -> list[float]:
        row = demonstration()[1][method]
        return [row.fms, row.fms_unweighted, row.relative_l1]

    return made


def demo_sweeps() -> list[float]:
    return [float(row.sweeps) for row in demonstration()[1].values()]


def recovered() -> list[float]:
    """Median scores of `cp` and `cpals` over ten tensors with uneven noise."""
    scores: dict[str, list[float]] = {"cp": [], "cpals": []}
    for seed in range(10):
        trial = KINDS["uneven_noise"].make_trial(seed)
        truth = robustcp.KruskalTensor.from_factors(trial.truth)
        for name, into in scores.items():
            fit = getattr(robustcp, name)(trial.input_data, trial.rank, **trial.options)
            into.append(robustcp.factor_match_score(fit, truth))
    return [statistics.median(into) for into in scores.values()]


def committed(file: str, pattern: str) -> Callable[[], list[float]]:
    """Numbers of results that are committed; of a range, its middle."""

    def made() -> list[float]:
        found = re.search(pattern, text_of(file))
        if found is None:
            raise SystemExit(f"{file}: no results {pattern!r}")
        numbers = [float(number) for number in found.groups()]
        return [statistics.mean(numbers)]

    return made


def speed_of(method: str, size: str) -> Callable[[], list[float]]:
    row = rf"\| {method} against gcp_opt, {re.escape(size)}[^|]*\| ([\d.]+) x faster"
    return committed("docs/performance.md", row)


METHODS = ("CPALS", "CPAL1 as published", "CPAL1", "cp", "oracle")
#: Studies of the paper whose tables are in docs/paper.md, and how their settings are called there.
STUDIES = {
    "figure1a": r"eta=(\S+) gamma=(\S+)",
    "noises": r"noise=(\w+)",
    "sparse": r"density=(\S+)",
    "breakdown": r"eta=(\S+)",
}


def paper_rows(study: str) -> list[str]:
    """The rows of a table of docs/paper.md, from the committed summary of a study."""
    rows: dict[str, dict[str, str]] = {}
    for line in text_of(f"docs/results/paper/{study}.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and (found := re.match(STUDIES[study], cells[0])):
            name = ", ".join(found.groups())
            name = "no artifacts" if study == "figure1a" and found[2] == "0.0" else name
            rows.setdefault(name, {})[cells[1]] = f"{cells[2]} ({cells[3]})"
    return [
        f"| {name} | " + " | ".join(scores.get(method, "") for method in METHODS) + " |"
        for name, scores in rows.items()
    ]


def check_paper(study: str) -> bool:
    """Whether the table of a study is in docs/paper.md as its results are."""
    rows = paper_rows(study)
    missing = [row for row in rows if row not in text_of("docs/paper.md")]
    print(f"{'NOT' if missing else 'ok '} docs/paper.md: {study}: {len(rows)} rows", *missing[:3])
    return bool(rows) and not missing


def table_row(label: str) -> str:
    cell = r"\s*\**" + NUMBER + r"\**\s*\|"
    return rf"\| {label} \|" + 3 * cell


CLAIMS = [
    *(
        Claim(f"demo, {name}", "README.md", table_row(label), demo_row(name), 0.002)
        for name, label in (
            ("CPALS", r"CPALS \(least squares\)"),
            ("CPAL1", r"CPAL1 \(the 1-norm\)"),
            ("cp", r"cp \(recommended\)"),
        )
    ),
    Claim(
        "demo, sweeps", "README.md",
        r"CPALS \(least" + 3 * r".*?\| (\d+) \| [\d.]+ \|\n",
        demo_sweeps, 2,
    ),
    *(
        Claim(f"speed of {method}, {size}", "README.md", pattern, speed_of(method, size), 0.5)
        for method, size, pattern in (
            ("cpal1", "50^3", r"`cpal1` is (\d+) times"),
            ("cpal1", "200^3", r"rank 5, and (\d+) times"),
            ("cp", "50^3", r"starts included, (\d+) and"),
            ("cp", "200^3", r"starts included, \d+ and (\d+) times"),
        )
    ),
    Claim(
        "GPU, cp 1000^3", "README.md", r"1000\^3 takes `cp` ([\d.]+\d) s",
        committed("docs/performance.md", r"`cp`, 200\^3; 1000\^3 \|[^;]*; ([\d.]+) to ([\d.]+) s"),
        0.05,
    ),
    Claim(
        "GPU, cp 1000^3", "docs/features.md", r"1000\^3 in ([\d.]+\d) s",
        committed("docs/performance.md", r"`cp`, 200\^3; 1000\^3 \|[^;]*; ([\d.]+) to ([\d.]+) s"),
        0.05,
    ),
    Claim(
        "trials, uneven noise", "docs/recovery.md",
        r"\| uneven_noise \| ([\d.]+) \([\d.]+\) \| [\d.]+ \([\d.]+\) \| ([\d.]+) ", recovered,
        0.005,
    ),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="claims whose name contains one of these")
    names = parser.parse_args().names
    chosen = [one for one in CLAIMS if not names or any(name in one.name for name in names)]
    studies = [study for study in STUDIES if not names or study in names or "paper" in names]
    if not chosen and not studies:
        raise SystemExit(f"no claim has any of {names} in its name")
    wrong = [one.name for one in chosen if not one.check()]
    wrong += [study for study in studies if not check_paper(study)]
    if wrong:
        raise SystemExit(f"{len(wrong)} differ: {', '.join(wrong)}")
    print(f"all {len(chosen) + len(studies)} agree")


if __name__ == "__main__":
    main()
