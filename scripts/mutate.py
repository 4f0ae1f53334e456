"""Plant faults in src, one at a time, and count how many of them the tests catch.

    pytest -n 2 --cov=robustcp --cov-context=test --cov-report= --durations=0 -vv > suite.log
    python scripts/mutate.py draw --seed 31 --count 72 > faults.json
    python scripts/mutate.py run faults.json --coverage .coverage --log suite.log > caught.jsonl
    python scripts/mutate.py table before=caught.jsonl after=caught2.jsonl

A fault is one changed expression inside a function: a sign, a bound, an off-by-one, swapped axes or
arguments, a dropped weight, a skipped check, a negated condition, a file left open. `draw` samples
faults from every package of src, in proportion to its size but at least two of each, by a fixed
seed. `run` plants each fault in a clone of the last commit and runs, shortest first, the tests that
reach the changed lines according to the coverage of the suite; compiled functions leave no
coverage, so their faults run the tests that reach the modules importing theirs. A fault is caught
if a test fails that passes without it. Needs pytest-cov.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/robustcp"
SIGNS = {ast.Add: "-", ast.Sub: "+"}
BOUNDS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
WEIGHTS = re.compile(r"weight|scale|sigma|\bw\b|curvature", re.IGNORECASE)
OPENS = re.compile(r"\b(open|ZipFile|File|fdopen)\(")
#: Bounds are changed only where integers are compared, real numbers being hardly ever equal, and
#: not beside tuning constants: a threshold of 2**20 entries is as good as one of 2**20 + 1.
INTEGERS = re.compile(r"\b(len|size|count|counts|order|ndim|rank|rows|sweeps|steps|number)\b|shape")
TUNED = re.compile(r"\b[A-Z][A-Z_]+\b|\*\*|[./]\s*\d")
#: Functions for which the order of two arguments does not matter, or only breaks typing.
COMMUTATIVE = {
    "isinstance", "getattr", "hasattr", "max", "min", "zip", "print", "cast", "sorted", "maximum",
    "minimum", "hypot", "allclose", "isclose", "gcd",
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One changed expression: its file, lines, byte span, kind and replacement."""

    path: str
    line: int
    last_line: int
    start: int
    end: int
    kind: str
    function: str
    before: str
    after: str

    def plant(self, tree: Path) -> bytes:
        """Write the fault into a tree; return the text of the file before."""
        file = tree / self.path
        text = file.read_bytes()
        if text[self.start : self.end].decode() != self.before:
            raise SystemExit(f"{self.path}:{self.line} is not the text the fault was drawn from")
        file.write_bytes(text[: self.start] + self.after.encode() + text[self.end :])
        return text


# Drawing


def changes(node: ast.AST, parents: list[ast.AST]) -> Iterator[tuple[str, ast.AST, str]]:
    """The faults that can be planted at a node: kind, the node that is replaced, the new text."""
    text = ast.unparse
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        sides = (node.left, node.right)
        texts = ast.JoinedStr | ast.List | ast.Tuple
        strings = any(isinstance(getattr(s, "value", 0), str | bytes) for s in sides)
        nothing = text(node.right).startswith("0 *")
        if not (strings or nothing or any(isinstance(s, texts) for s in sides)):
            yield "sign", node, f"({text(node.left)} {SIGNS[type(node.op)]} ({text(node.right)}))"
    if (
        isinstance(node, ast.UnaryOp)
        and type(node.op) is ast.USub
        and not isinstance(node.operand, ast.Constant)
    ):
        yield "sign", node, f"({text(node.operand)})"
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDS:
        left, right = text(node.left), text(node.comparators[0])
        if INTEGERS.search(left + right) and not TUNED.search(left + right):
            yield "bound", node, f"({left} {BOUNDS[type(node.ops[0])]} {right})"
    if isinstance(node, ast.Constant) and type(node.value) is int and parents:
        parent = parents[-1]
        counts = isinstance(parent, ast.Slice) or (
            isinstance(parent, ast.Call) and text(parent.func) in ("range", "np.arange")
        )
        if counts or (isinstance(parent, ast.BinOp) and type(parent.op) in SIGNS):
            yield "off by one", node, str(node.value + 1)
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            value = keyword.value
            if keyword.arg == "axis" and isinstance(value, ast.Constant) and value.value in (0, 1):
                yield "swapped axis", value, str(1 - value.value)
        names = [arg for arg in node.args[:2] if isinstance(arg, ast.Name)]
        name = text(node.func).split(".")[-1]
        if len(names) == 2 and names[0].id != names[1].id and name not in COMMUTATIVE:
            new = ast.Call(node.func, [names[1], names[0], *node.args[2:]], node.keywords)
            yield "swapped arguments", node, text(ast.fix_missing_locations(new))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        if WEIGHTS.search(text(node.right)):
            yield "dropped weight", node, f"({text(node.left)})"
        elif WEIGHTS.search(text(node.left)):
            yield "dropped weight", node, f"({text(node.right)})"
    if isinstance(node, ast.If):
        if isinstance(node.body[-1], ast.Raise) and not node.orelse:
            yield "skipped check", node.test, "False"
        else:
            yield "negated condition", node.test, f"not ({text(node.test)})"
    if isinstance(node, ast.With) and len(node.items) == 1:
        item = node.items[0]
        leaves = any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(node))
        if item.optional_vars is not None and OPENS.search(text(item.context_expr)) and not leaves:
            yield (
                "file left open",
                node,
                f"for {text(item.optional_vars)} in [{text(item.context_expr)}]:",
            )


def candidates(path: Path) -> Iterator[Fault]:
    """All faults that can be planted in a file, within functions."""
    data = path.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.AST) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def walk(node: ast.AST, parents: list[ast.AST], names: list[str]) -> Iterator[Fault]:
        inside = any(isinstance(p, ast.FunctionDef) for p in parents)
        if inside:
            for kind, place, after in changes(node, parents):
                start, end = span(place)
                last = place.end_lineno
                if kind == "file left open":  # only the line of the `with`
                    colon = node.items[0].optional_vars
                    end = span(colon)[1] + data[span(colon)[1] :].index(b":") + 1
                    last = colon.end_lineno
                before = data[start:end].decode()
                yield Fault(path.relative_to(ROOT).as_posix(), place.lineno, last, start, end, kind,
                            ".".join(names), before, after)  # fmt: skip
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
                node, ast.Call
            ):
                continue
            if isinstance(node, ast.Raise | ast.JoinedStr):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    named = isinstance(child, ast.FunctionDef | ast.ClassDef)
                    yield from walk(
                        child, [*parents, node], [*names, child.name] if named else names
                    )

    for fault in walk(ast.parse(data), [], []):
        text = data[: fault.start] + fault.after.encode() + data[fault.end :]
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        yield fault


def package_of(path: str) -> str:
    parts = Path(path).relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "robustcp"


def draw(seed: int, count: int) -> list[Fault]:
    """Faults of every package: at least two, the others in proportion to the size of packages."""
    rng = random.Random(seed)
    packages: dict[str, list[Fault]] = defaultdict(list)
    for path in sorted((ROOT / SOURCE).rglob("*.py")):
        for fault in candidates(path):
            packages[package_of(fault.path)].append(fault)
    total = sum(map(len, packages.values()))
    drawn = []
    for faults in packages.values():
        kinds: dict[str, list[Fault]] = defaultdict(list)
        for fault in faults:
            kinds[fault.kind].append(fault)
        order = sorted(kinds)
        rng.shuffle(order)
        order.sort(key=lambda kind: kind != "file left open")  # rare: wherever there is one
        for k in range(max(2, round(count * len(faults) / total))):
            some = kinds[order[k % len(order)]]
            if some:
                drawn.append(some.pop(rng.randrange(len(some))))
    return drawn


# Running


class Reach:
    """Which tests reach a line, and how long each takes."""

    def __init__(self, coverage: Path, log: Path) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(coverage))
        self.data.read()
        self.files = {f.split("/src/robustcp/")[-1]: f for f in self.data.measured_files()}
        seconds: Counter[str] = Counter()
        failed = set()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if timed := re.match(r"([0-9.]+)s (?:call|setup|teardown) +(\S.*)", line):
                seconds[timed[2].strip()] += float(timed[1])
            elif bad := re.match(r"(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", line):
                failed.add(bad[1])
        self.seconds, self.failed = seconds, failed

    def contexts(self, file: str, lines: set[int] | None) -> set[str]:
        by_line = self.data.contexts_by_lineno(self.files.get(file, ""))
        found = {c for n, names in by_line.items() if lines is None or n in lines for c in names}
        return {c.rsplit("|", 1)[0] for c in found if "::" in c}

    def tests(self, fault: Fault, budget: float) -> list[str]:
        file = Path(fault.path).relative_to(SOURCE).as_posix()
        found = self.contexts(file, set(range(fault.line, fault.last_line + 1)))
        if not found:
            for importer in importers(fault.path):
                found |= self.contexts(importer, None)
        chosen, spent = [], 0.0
        for name in sorted(found - self.failed, key=lambda name: (self.seconds[name], name)):
            spent += self.seconds[name] + 0.005
            if spent > budget and chosen:
                break
            chosen.append(name)
        return chosen


def importers(path: str) -> list[str]:
    """The file itself and those that import it, directly."""
    dotted = ".".join(Path(path).with_suffix("").parts[1:])
    stem, name = dotted.rsplit(".", 1)
    pattern = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(stem)} import [^\n]*\b{name}\b")
    files = sorted((ROOT / SOURCE).rglob("*.py"))
    return [
        file.relative_to(ROOT / SOURCE).as_posix()
        for file in files
        if file == ROOT / path or pattern.search(file.read_text(encoding="utf-8"))
    ]


def pytest(tree: Path, tests: list[str], cache: str | None = None) -> tuple[int, str]:
    """The exit status of these tests, and the first that failed."""
    names = tree / "mutate.txt"
    names.write_text("\n".join(tests), encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    if cache:
        env["NUMBA_CACHE_DIR"] = cache
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p",
               "no:cov", "-m", "", "--tb=no", f"@{names}"]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, timeout=1500, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "stands still"
    bad = re.search(r"^(?:FAILED|ERROR) (\S+.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return done.returncode, bad[1] if bad else done.stdout[-200:] if done.returncode else ""


def collected(tree: Path) -> set[str]:
    """The names of all tests of a tree."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cov"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    return {line for line in done.stdout.splitlines() if "::" in line}


def try_fault(fault: Fault, tree: Path, tests: list[str]) -> dict[str, object]:
    """Plant one fault in a tree, run its tests, and take the fault out again."""
    outcome = {**asdict(fault), "tests": len(tests), "caught": False, "by": "no test reaches it"}
    if not tests:
        return outcome
    text = fault.plant(tree)
    with tempfile.TemporaryDirectory() as cache:
        compiled = "/engines/passes/" in fault.path
        status, by = pytest(tree, tests, cache if compiled else None)
        (tree / fault.path).write_bytes(text)
        if status and "::" in by:  # a test that fails without the fault too proves nothing
            other, _ = pytest(tree, [by])
            if other:
                outcome["by"] = f"fails anyway: {by}"
                return outcome
    return outcome | {"caught": status != 0, "by": by}


def run(
    faults: list[Fault], reach: Reach, budget: float, jobs: int, first: dict[tuple[str, int], str]
) -> None:
    """Try all faults in clones of the last commit; a line of JSON for each.

    `first` names a test for a fault, by file and byte, that is run before the others.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for k in range(jobs):
            tree = Path(folder) / f"tree{k}"
            subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(tree)], check=True)
            trees.put(tree)

        there = collected(tree)

        def attempt(fault: Fault) -> dict[str, object]:
            tree = trees.get()
            try:
                tests = [name for name in reach.tests(fault, budget) if name in there]
                known = first.get((fault.path, fault.start), "")
                if known in there:
                    outcome = try_fault(fault, tree, [known])
                    if outcome["caught"]:
                        return outcome
                return try_fault(fault, tree, tests)
            finally:
                trees.put(tree)

        for outcome in pool.map(attempt, faults):
            print(json.dumps(outcome), flush=True)


def table(runs: dict[str, Path]) -> None:
    """How many faults each run caught, by package, and those that survived."""
    rows = {name: [json.loads(x) for x in p.read_text().splitlines()] for name, p in runs.items()}
    packages = sorted({package_of(row["path"]) for found in rows.values() for row in found})
    print("| package | faults | " + " | ".join(rows) + " |")
    print("|---" * (2 + len(rows)) + "|")
    for package in [*packages, "all"]:
        chosen = {
            name: [r for r in found if package in ("all", package_of(r["path"]))]
            for name, found in rows.items()
        }
        counts = [str(sum(r["caught"] for r in some)) for some in chosen.values()]
        total = max(map(len, chosen.values()))
        print(f"| {package} | {total} | " + " | ".join(counts) + " |")
    for name, found in rows.items():
        for row in found:
            if not row["caught"]:
                print(f"\n{name}: {row['path']}:{row['line']} {row['kind']} in {row['function']}: "
                      f"`{row['before']}` -> `{row['after']}` ({row['by']})")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=31)
    drawing.add_argument("--count", type=int, default=72)
    running = commands.add_parser("run")
    running.add_argument("faults", type=Path)
    running.add_argument("--coverage", type=Path, required=True)
    running.add_argument("--log", type=Path, required=True)
    running.add_argument("--budget", type=float, default=240.0, help="seconds of tests for a fault")
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--first", type=Path, help="an earlier run, whose catches are tried first")
    tables = commands.add_parser("table")
    tables.add_argument("runs", nargs="+", help="NAME=FILE")
    given = parser.parse_args()
    if given.command == "draw":
        print(json.dumps([asdict(fault) for fault in draw(given.seed, given.count)], indent=1))
    elif given.command == "run":
        faults = [Fault(**each) for each in json.loads(given.faults.read_text())]
        rows = given.first.read_text().splitlines() if given.first else []
        first = {(row["path"], row["start"]): row["by"] for row in map(json.loads, rows)}
        run(faults, Reach(given.coverage, given.log), given.budget, given.jobs, first)
    else:
        table({name: Path(path) for name, path in (each.split("=", 1) for each in given.runs)})


if __name__ == "__main__":
    main()
