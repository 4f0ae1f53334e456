"""The code of the guide runs as it stands, from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)


def test_every_block_is_python():
    assert len(BLOCKS) >= 20
    for block in BLOCKS:
        compile(block, "guide.md", "exec")


#: Blocks that take most of the time, and that no other needs.
LONG = re.compile(r"rank_profile\(bad|replicability\(|bootstrap")


@pytest.mark.parametrize("all_of_it", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_guide_runs(tmp_path, all_of_it):
    pytest.importorskip("xarray")
    blocks = [block for block in BLOCKS if all_of_it or not LONG.search(block)]
    assert len(blocks) >= len(BLOCKS) - 3
    (tmp_path / "guide.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "guide.py"],
        cwd=tmp_path, env={**os.environ, "MPLBACKEND": "Agg"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Judged(5 of 25 samples of mode 0 (0, 1, 2, 3, 4) bad)" in done.stdout
