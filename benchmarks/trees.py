"""Source trees of robustcp, this one and others, and processes that run their code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import robustcp

#: The commit that the targets of "its time" are about.
BASE = "3c3825f"
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Tree:
    """A source tree: a folder with `src/robustcp` in it."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> Tree:
        if not (path / "src" / "robustcp" / "__init__.py").exists():
            raise ValueError(f"must be a folder with src/robustcp in it, got {path}")
        return cls(path.resolve())

    @classmethod
    def own(cls) -> Tree:
        """The one that this process runs."""
        return cls(Path(robustcp.__file__).resolve().parents[2])

    @property
    def commit(self) -> str:
        """Its commit, or the name of its folder."""
        asked = ["git", "-C", str(self.path), "rev-parse", "--short=7", "HEAD"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else self.path.name

    def target(self, bound: str) -> str:
        """The target, if it is about this tree."""
        return bound if self.commit == BASE else ""

    def environment(self, cache: Path | None = None) -> dict[str, str]:
        """For processes that run its code; what they compile is kept in a folder, if given."""
        found = {**os.environ, "PYTHONPATH": str(self.path / "src")}
        return found if cache is None else {**found, "NUMBA_CACHE_DIR": str(cache)}

    def run(self, code: str, *arguments: str, cache: Path) -> str:
        """What some code prints in a new process."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE,
            text=True, env=self.environment(cache),
        )  # fmt: skip
        return done.stdout


@dataclass
class Worker:
    """A process that fits by the code of a tree, and tells how long it took."""

    process: Any

    def fit(
        self, data: Path, method: str, rank: int, options: Mapping[str, Any] | None = None
    ) -> tuple[float, None]:
        """Seconds per tensor of a file."""
        asked = {"data": str(data), "method": method, "rank": rank, "options": options or {}}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        return self._answer()["seconds"], None

    def _answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of another tree ended with {self.process.wait()}")
        return json.loads(line)


@contextmanager
def worker(tree: Tree, cache: Path | None = None) -> Iterator[Worker]:
    """A worker, which ends with the block."""
    command = [sys.executable, str(HERE / "worker.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=tree.environment(cache),
    ) as process:  # fmt: skip
        found = Worker(process)
        runs = Path(found._answer()["tree"]).resolve()
        if not runs.is_relative_to(tree.path):
            raise RuntimeError(f"also: meant {tree.path}, but {runs} was imported")
        yield found


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="robustcp-bench-") as path:
        yield Path(path)


def kept(path: Path, **arrays: np.ndarray) -> Path:
    """A file with the data for workers."""
    np.savez(path, **arrays)
    return path
