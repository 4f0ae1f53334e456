"""What is compiled, when, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import robustcp
from robustcp.engines import as_engine
from robustcp.losses import L1, Cauchy, Contaminated

pytest.importorskip("numba")

from robustcp.cli import warm_command
from robustcp.engines.passes.numba import cache_folder, runtime

FIRST_FIT = """
import json, sys, robustcp
X = robustcp.simulate((20, 20, 20), 3, eta=0.2, gamma=2.0, rng=0).data
fit = robustcp.cp(X, 3, max_sweeps=20)
from robustcp.engines.passes.numba import COMPILED_NAMES
slow = [name for name in ("matplotlib", "joblib", "typer", "pandas") if name in sys.modules]
print(json.dumps([COMPILED_NAMES, slow, fit.objective]))
"""


def first_fit(folder):
    """What a new process compiles for a fit, imports that it did not need, and what it says."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_FIT], capture_output=True, text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)}, check=True,
    )  # fmt: skip
    return *json.loads(done.stdout), done.stderr


@pytest.mark.process
def test_a_first_fit_compiles_little_says_so_once_and_keeps_it(tmp_path):
    compiled, slow, objective, said = first_fit(tmp_path)
    assert sorted(set(compiled)) == sorted(compiled)  # nothing for two types
    assert set(compiled) <= {
        "tile_pass", "formula_sweep", "run_sweeps", "penalty", "joint_step", "solve_rows",
        "column_norms", "inverse_scales", "_standardize", "_restore_units", "main_effects",
        "contaminated_scale_rounds",
        *(f"_formula_line_{name}._numba" for name in ("l1", "contaminated", "cauchy", "welsch")),
    }  # fmt: skip
    assert "run_sweeps" in compiled
    assert slow == []
    assert said.count("robustcp compiles") == 1
    assert str(tmp_path) in said
    again, slow, same, said = first_fit(tmp_path)
    assert (again, slow, said) == ([], [], "")
    assert same == objective


def test_what_is_compiled_is_said_the_first_time_only(monkeypatch, caplog):
    monkeypatch.setattr(runtime, "COMPILED_NAMES", [])
    for name in ("one", "two"):
        runtime._report_compiling(name, None)
    assert runtime.COMPILED_NAMES == ["one", "two"]
    (record,) = caplog.records
    assert record.name == runtime.__name__
    assert "no folder to keep it in" in record.getMessage()


def test_code_without_a_place_to_be_kept_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(runtime, "COMPILED_NAMES", ["before"])
    names: dict = {}
    exec("def twice(x):\n    return 2 * x", names)  # no file, so no folder beside it
    twice = runtime.cached_jit(names["twice"])
    assert twice(4.0) == 8.0
    assert runtime.COMPILED_NAMES == ["before", "twice"]


def test_numbers_in_calls_are_not_compiled_in():
    @runtime.internal_jit
    def add(a, b):
        return a + b

    @runtime.cached_jit
    def total(a):
        return add(a, 1) + add(a, 2) + add(3, a)

    assert total(10) == 36
    assert len(add.signatures) == 1


class TestWarm:
    @pytest.mark.process
    def test_afterwards_fits_compile_nothing(self, capsys):
        warm_command.main()
        said = capsys.readouterr().out
        assert f"kept in {cache_folder()}" in said
        known, rng = list(runtime.COMPILED_NAMES), np.random.default_rng(0)
        for dtype in (np.float64, np.float32):
            for size in (10, 36):
                X = rng.random((size, size, size)).astype(dtype)
                weights = rng.random(X.shape)
                for method in (robustcp.cp, robustcp.cpal1, robustcp.cpals):
                    for more in ({}, {"entry_weights": weights}):
                        method(X, 2, max_sweeps=3, rng=0, **more)
                robustcp.cp(X, 2, max_sweeps=3, rng=0, nonnegative=True)
            at = np.argwhere(rng.random((12, 12, 12)) < 0.5)
            listed = robustcp.Observed(at, rng.random(len(at)).astype(dtype), (12, 12, 12))
            robustcp.cp(listed, 2, max_sweeps=3, rng=0)
        robustcp.cp(rng.integers(0, 99, (12, 12, 12), np.uint8), 2, max_sweeps=3, rng=0)
        assert known == runtime.COMPILED_NAMES

    def test_without_numba(self, monkeypatch):
        monkeypatch.setattr(warm_command, "numba_kernels", lambda: None)
        with pytest.raises(SystemExit, match="without Numba"):
            warm_command.main()


def test_passes_and_sweeps_in_threads_do_not_share_memory():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((15, 14, 16))
    factors = tuple(rng.standard_normal((size, 3)) for size in X.shape)
    engine = as_engine(X, threads=1)
    losses = L1(0.01), Cauchy(1.0), Contaminated(0.5, 0.1, 0.1)

    def all_of_it():
        for loss in losses:
            sweep = engine.whole_sweep(loss)
            for mode in range(3):
                equations = engine.normal_equations(factors, mode, loss)
                yield equations.gram.tobytes(), equations.gradient.tobytes(), equations.value
            yield tuple(A.tobytes() for A in sweep.update_factors(factors, (0, 1, 2), 1e-6, None))

    expected, different = list(all_of_it()), []

    def work():
        for _ in range(150):
            different.extend(a for a, b in zip(expected, all_of_it(), strict=True) if a != b)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different
