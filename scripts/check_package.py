"""Check what is published: contents of the wheel, installation, and README's example.

    python scripts/check_package.py dist                 # the wheel and the sdist in a folder
    python scripts/check_package.py dist --python python3.12 --python python3.13

Each is installed without extras into a new environment, outside of this repository, where the first
Python block of README.md and the commands `robustcp --version`, `demo` and `fit` are run: the last
on a CSV file and with a report.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Writes data.csv, a table with a row for each entry.
TABLE = """
import csv, itertools, robustcp
X = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
with open("data.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["sample", "emission", "excitation", "value"])
    rows.writerows([*at, X[at]] for at in itertools.product(*map(range, X.shape)))
"""
FIT = ("fit", "data.csv", "--rank", "2", "--out", "fit.npz", "--report", "report.html")
#: What the source distribution must hold, so that it can be tested.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/", "docs/")


def example() -> str:
    """The first Python block of README.md."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    if found is None:
        raise SystemExit("README.md has no Python block")
    return found[1]


def tracked() -> set[str]:
    """Files of the package that git knows; all of them where there is no git."""
    src = ROOT / "src"
    try:
        done = subprocess.run(
            ["git", "ls-files", "."], cwd=src, capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())
    except (OSError, subprocess.CalledProcessError):
        files = (path.relative_to(src) for path in src.rglob("*") if path.is_file())
        return {path.as_posix() for path in files if "__pycache__" not in path.parts}


def check_wheel(path: Path) -> None:
    """The wheel has the package as it is here, its metadata, and nothing else."""
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    package = {name for name in names if not re.match(r"robustcp-[^/]+\.dist-info/", name)}
    if package != tracked():
        extra, missing = sorted(package - tracked()), sorted(tracked() - package)
        raise SystemExit(f"{path.name}: too much: {extra}; missing: {missing}")
    print(f"{path.name}: {len(package)} files, {path.stat().st_size / 1e3:.0f} kB")


def check_sdist(path: Path) -> None:
    """The source distribution has what is needed to build and test."""
    with tarfile.open(path) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    missing = [part for part in SOURCES if not any(name.startswith(part) for name in names)]
    private = [name for name in names if re.search(r"(^|/)(\.venv|__pycache__|_build)(/|$)", name)]
    if missing or private:
        raise SystemExit(f"{path.name}: missing: {missing}; too much: {private[:5]}")
    print(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.1f} MB")


def check_installed(path: Path, python: str) -> None:
    """A new environment in which the package is installed runs README's example."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        there = Path(folder) / ("Scripts" if os.name == "nt" else "bin")
        run = {
            "cwd": folder, "check": True, "text": True, "capture_output": True,
            "env": {**os.environ, "PYTHONPATH": "", "MPLBACKEND": "Agg"},
        }  # fmt: skip
        try:
            subprocess.run(
                [there / "python", "-m", "pip", "install", "-q", str(path.resolve())], **run
            )
            done = subprocess.run([there / "python", "-W", "error", "-c", example()], **run)
            version = subprocess.run([there / "robustcp", "--version"], **run).stdout.strip()
            subprocess.run([there / "robustcp", "demo", "--out", "demo"], **run)
            subprocess.run([there / "python", "-c", TABLE], **run)
            subprocess.run([there / "robustcp", *FIT], **run)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{path.name}: {error.cmd}\n{error.stderr}") from None
        wanted = ("demo/factor.png", "fit.npz", "report.html")
        missing = [name for name in wanted if not (Path(folder) / name).is_file()]
        if missing:
            raise SystemExit(f"{path.name}: not written: {missing}")
    score = float(done.stdout.split()[-1])
    if score < 0.99:
        raise SystemExit(f"{path.name}: README's example has a score of {score}")
    print(f"{path.name} in {python}: {version}, README's example has a score of {score:.4f}; "
          "the demo, a fit of a CSV and its report are written")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", help="further interpreters, if present")
    options = parser.parse_args()
    wheels, sdists = (sorted(options.folder.glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        raise SystemExit(f"{options.folder}: must hold one wheel and one .tar.gz")
    check_wheel(wheels[0])
    check_sdist(sdists[0])
    for python in [sys.executable, *(options.python or [])]:
        if shutil.which(python) is None:
            print(f"{python}: not present")
            continue
        for path in (*wheels, *sdists):
            check_installed(path, python)


if __name__ == "__main__":
    main()
