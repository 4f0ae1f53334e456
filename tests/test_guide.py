"""The code of the guide runs as it stands, each chapter from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = DOCS / "guide"
CHAPTERS = sorted(path.stem for path in GUIDE.glob("*.md"))

#: Blocks that take most of the time, and that no other needs.
LONG = re.compile(r"rank_profile\(bad|replicability\(|ensemble\(|bootstrap")

#: What the page of a field prints, among other things.
FOUND = {
    "fluorescence": "Slab(6, 0.4757, 'lake 7')",
    "neuroscience": "artifact in trials [2, 14, 17, 18, 45, 48]",
}


def text(chapter):
    return (GUIDE / f"{chapter}.md").read_text(encoding="utf-8")


def before(chapter):
    """The chapters that a chapter says it goes on from."""
    return re.findall(r"goes on from \[.*?\]\((\w+)\.md\)", text(chapter))


def blocks(chapter):
    """The code of a chapter, after that of the chapter that it goes on from."""
    own = re.findall(r"^```python\n(.*?)^```", text(chapter), re.M | re.S)
    return [*(block for earlier in before(chapter) for block in blocks(earlier)), *own]


def test_every_block_is_python():
    assert len({block for chapter in CHAPTERS for block in blocks(chapter)}) >= 20
    for chapter in CHAPTERS:
        for block in blocks(chapter):
            compile(block, f"{chapter}.md", "exec")


@pytest.mark.docs
@pytest.mark.parametrize("all_of_it", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_guide_runs(tmp_path, all_of_it):
    pytest.importorskip("xarray")
    elsewhere = {earlier for chapter in CHAPTERS for earlier in before(chapter)}
    code = {}
    for chapter in set(CHAPTERS) - elsewhere:
        kept = [block for block in blocks(chapter) if all_of_it or not LONG.search(block)]
        code[chapter] = "\n".join(kept)
    script = f"for name, code in {code!r}.items():\n    exec(compile(code, name, 'exec'), {{}})\n"
    (tmp_path / "guide.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "guide.py"],
        cwd=tmp_path, env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "CaseDiagnostics(5 of 25 samples of mode 0 (0, 1, 2, 3, 4) bad)" in done.stdout


@pytest.mark.docs
@pytest.mark.parametrize("all_of_it", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("page", ["fluorescence", "neuroscience"])
def test_the_pages_of_fields_run(page, all_of_it, tmp_path):
    """The hand-over to eem-python where it is installed; what takes long only where slow."""
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    whole = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", whole, re.M | re.S)
    skipped = [LONG] if not all_of_it else []
    skipped += [re.compile("eempy")] if find_spec("eempy") is None else []
    kept = [block for block in code if not any(each.search(block) for each in skipped)]
    assert len(kept) >= len(code) - 2
    (tmp_path / "page.py").write_text("\n".join(kept), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "page.py"],
        cwd=tmp_path, env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert FOUND[page] in done.stdout
