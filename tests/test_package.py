"""The package as it is installed: what importing and running it costs and shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import robustcp

MEASURE = """
import resource, sys
import numpy as np
import robustcp

dtype, rank = sys.argv[1], 5
rng = np.random.default_rng(0)
A, B, C = (rng.random((400, rank)) for _ in range(3))
X = np.empty((400, 400, 400), dtype=dtype)
for i in range(400):
    X[i] = 40 * ((A[i] * B) @ C.T + 0.1 * rng.random((400, 400)))
method = getattr(robustcp, sys.argv[3])
method(X[:20, :20, :20], rank)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fit = method(X, rank, max_sweeps=int(sys.argv[2]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024, X.nbytes)
"""


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def measured(dtype, sweeps, method="cpal1"):
    done = run("-c", MEASURE, dtype, str(sweeps), method)
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's peak memory")
@pytest.mark.parametrize("sweeps", [3, pytest.param(1000, marks=pytest.mark.slow)])
class TestMemory:
    @pytest.mark.parametrize("method", ["cpal1", "cp"])
    def test_float64_beyond_the_tensor_at_most_15_percent_of_it(self, sweeps, method):
        beyond, tensor = measured("float64", sweeps, method)
        assert beyond <= 0.15 * tensor

    def test_uint8_is_never_converted_as_a_whole(self, sweeps):
        beyond, _ = measured("uint8", sweeps)
        assert beyond <= 200e6


def test_import_is_light():
    code = (
        "import sys, robustcp; heavy = {'matplotlib', 'torch', 'scipy.optimize', 'typer', 'rich'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = run("-W", "error", "-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_everything_public_is_documented():
    for name in robustcp.__all__:
        assert getattr(robustcp, name).__doc__, name
    assert (Path(robustcp.__file__).parent / "py.typed").exists()


class TestCommandLine:
    @pytest.mark.process
    def test_demo_prints_the_table_and_writes_the_picture(self, tmp_path):
        done = run("-m", "robustcp", "demo", "--out", str(tmp_path / "pictures"))
        assert done.returncode == 0, done.stderr
        rows = [line.split("│") for line in done.stdout.splitlines() if line.count("│") > 2]
        scores = {row[1].strip(): float(row[2]) for row in rows}
        assert scores["CPAL1"] > 0.95 > 0.8 > scores["CPALS"]
        assert "factor.png" in done.stdout
        picture = tmp_path / "pictures" / "factor.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert "\x1b" not in done.stdout

    @pytest.mark.process
    def test_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        done = run("-m", "robustcp", "demo", "--out", str(tmp_path / "file"))
        assert done.returncode == 2
        assert done.stderr.startswith("robustcp: --out")
        assert done.stderr.count("\n") == 1

    @pytest.mark.process
    def test_version_and_help(self):
        assert run("-m", "robustcp", "--version").stdout.startswith("robustcp ")
        assert "demo" in run("-m", "robustcp", "--help").stdout
