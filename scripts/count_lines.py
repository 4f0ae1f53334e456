"""Count the lines of code in src, as `ruff format` lays them out: no blanks, comments, docstrings.

    python scripts/count_lines.py [FOLDER] [--files N]

Exemptions from the formatter (`# fmt: skip`) are removed first, in a copy. Prints a row for each
entry of the package and the total; --files lists the longest files too.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(tree: ast.Module) -> set[int]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(source)))


def formatted_copy(folder: Path, copy: Path) -> Path:
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        path.write_text(re.sub(r" *# fmt: (skip|off|on)", "", path.read_text(encoding="utf-8")))
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--isolated", "--line-length", "100"]
    subprocess.run([*ruff, str(copy)], check=True)
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    own = Path(__file__).parents[1] / "src" / "robustcp"
    parser.add_argument("folder", type=Path, nargs="?", default=own)
    parser.add_argument("--files", type=int, default=0, help="how many files to list")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        copy = formatted_copy(options.folder, Path(scratch) / "copy")
        counts = {p.relative_to(copy): code_lines(p.read_text()) for p in copy.rglob("*.py")}
    entries: Counter[str] = Counter()
    for path, count in counts.items():
        entries[path.parts[0]] += count
    for entry, count in entries.most_common():
        print(f"{count:6} {entry}")
    for path, count in sorted(counts.items(), key=lambda item: -item[1])[: options.files]:
        print(f"{count:6} {path}")
    print(f"{sum(counts.values()):6} in all")


if __name__ == "__main__":
    main()
