"""`robustcp reproduce`: every study, interrupted or not, once and for all."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from robustcp.studies.ledger import COLUMNS, Ledger, Task, carry_out, same_settings, task_of
from robustcp.studies.paper import METHODS, STUDIES, Scale, _all_away, _growth, contaminated

CHEAP = ["figure1b", "noises", "parallel"]


def command(*arguments):
    return [sys.executable, "-m", "robustcp", "reproduce", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def rows_but_seconds(path):
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def a_row(task, value="1.0"):
    numbers = dict.fromkeys(("fms", "fms_unweighted", "l1", "seconds", "objective"), value)
    return {
        "study": task.study, "seed": str(task.seed), "settings": task.settings,
        "method": task.method, "sweeps": "3", "converged": "True",
        "status": 'converged; "quoted", with a comma', **numbers,
    }  # fmt: skip


TASKS = [Task("study", seed, "eta=0.1 gamma=2.0", "CPALS") for seed in range(6)]


class TestLedger:
    def test_every_cut_of_the_file_is_mended(self, tmp_path):
        whole = Ledger(tmp_path / "whole.csv")
        for task in TASKS:
            whole.append(a_row(task))
        data = whole.path.read_bytes()
        for cut in range(len(data)):
            torn = Ledger(tmp_path / "torn.csv")
            torn.path.write_bytes(data[:cut])
            calls = []

            def work(task, calls=calls):
                calls.append(task)
                return a_row(task)

            carry_out(TASKS, work, torn, 0, lambda: None)
            assert torn.path.read_bytes() == data
            assert len(calls) >= len(TASKS) - data[:cut].count(b"\n")

    def test_damage_in_the_middle_is_done_again(self, tmp_path):
        ledger = Ledger(tmp_path / "x.csv")
        for task in TASKS:
            ledger.append(a_row(task))
        data = ledger.path.read_bytes()
        ledger.path.write_bytes(data.replace(b"1.0,1.0", b"1.0,1#0", 1))
        carry_out(TASKS, a_row, ledger, 0, lambda: None)
        assert ledger.path.read_bytes() == data

    def test_order_of_completion_does_not_show(self, tmp_path):
        for name, order in (("a", TASKS), ("b", TASKS[::-1])):
            ledger = Ledger(tmp_path / name)
            for task in order:
                ledger.append(a_row(task))
            ledger.finish(TASKS)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_row_and_task_go_together(self):
        task = TASKS[0]
        assert task_of(a_row(task)) == task
        assert task["gamma"] == "2.0"
        assert set(a_row(task)) == set(COLUMNS)

    def test_settings_are_remembered_and_others_refused(self, tmp_path):
        path = tmp_path / "settings.json"
        assert same_settings(path, {"scale": [1, 2]}) is None
        assert same_settings(path, {"scale": [1, 2]}) is None
        assert "[1, 2], not [3]" in same_settings(path, {"scale": [3]})
        assert same_settings(path, {"scale": [1, 2]}) is None


class TestStudies:
    @pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
    def test_tasks_are_distinct(self, study):
        for scale in (Scale(), Scale.quick(), Scale.quick().with_replicates(7)):
            tasks = study.tasks(scale)
            assert len({task.key for task in tasks}) == len(tasks) > 0

    def test_figure1a_is_the_size_of_the_paper(self):
        tasks = STUDIES["figure1a"].tasks(Scale())
        cells = {(t["eta"], t["gamma"]) for t in tasks}
        assert len(cells) == 9
        assert len(tasks) == 9 * 100 * len(METHODS)
        assert {t["size"] for t in tasks} == {"50"}

    @pytest.mark.parametrize("kind", ["laplace", "student", "uniform", "symmetric", "slabs"])
    def test_other_noises_have_the_norm_of_the_artifacts(self, kind):
        sim = contaminated(Task("noises", 0, f"noise={kind} gamma=1.0 eta=0.2 size=20", "CPALS"))
        clean = contaminated(Task("noises", 0, "noise=artifacts gamma=0.0 eta=0 size=20", "CPALS"))
        added = np.linalg.norm(sim.data - clean.data)
        assert added == pytest.approx(np.linalg.norm(sim.truth.full()), rel=1e-9)
        if kind == "slabs":
            assert set(sim.artifacts.mean(axis=(1, 2))) == {0.0, 1.0}
        assert sim.artifacts.mean() == pytest.approx(
            0.2 if kind in ("symmetric", "slabs") else 0.0, abs=0.02
        )

    def test_oracle_is_least_squares_on_the_other_entries(self):
        sim = contaminated(Task("x", 0, "eta=0.2 gamma=2.0 size=20", "oracle"))
        clean = sim.artifacts.copy()
        spoilt = sim.data.copy()
        spoilt[clean] = 1e6  # what stands there must not matter
        a = METHODS["oracle"](sim)
        b = METHODS["oracle"](type(sim)(spoilt, sim.truth, sim.artifacts, sim.sigma))
        assert np.array_equal(a.trace, b.trace)
        r = a.residuals(sim.data)[~sim.artifacts]
        assert a.objective == pytest.approx(0.5 * np.sum(r * r))

    def test_chance_that_all_starts_end_away(self):
        assert _all_away([[True, False, False, False]], 1) == 0.25
        assert _all_away([[True, True, False], [False] * 3], 2) == pytest.approx(1 / 6)

    def test_growth_exponent(self):
        sizes = np.array([10, 20, 40])
        assert _growth(sizes, sizes**3.0) == pytest.approx(1.0)
        assert _growth(sizes, sizes**6.0) == pytest.approx(2.0)


class TestCommand:
    def test_studies_write_everything_and_are_not_done_again(self, tmp_path):
        out = tmp_path / "r"
        first = run(*CHEAP, "--quick", "--replicates", 1, "--out", out)
        assert first.returncode == 0, first.stderr
        for name in CHEAP:
            for suffix in ("csv", "png", "pdf", "md"):
                assert (out / f"{name}.{suffix}").stat().st_size > 0
        before = {p.name: p.read_bytes() for p in out.iterdir()}
        again = run(*CHEAP, "--quick", "--replicates", 1, "--out", out)
        assert again.returncode == 0, again.stderr
        assert {p.name: p.read_bytes() for p in out.iterdir()} == before

    def test_killed_and_resumed_equals_a_straight_run_with_any_jobs(self, tmp_path):
        options = ["noises", "--quick", "--replicates", 1]
        straight = run(*options, "--out", tmp_path / "a", "--jobs", 1)
        assert straight.returncode == 0, straight.stderr
        table = tmp_path / "b" / "noises.csv"
        for rows in (2, 5):
            process = subprocess.Popen(
                command(*options, "--out", tmp_path / "b", "--jobs", 2), stderr=subprocess.DEVNULL
            )
            while process.poll() is None:
                if table.exists() and table.read_bytes().count(b"\n") > rows:
                    process.kill()
                time.sleep(0.005)
        resumed = run(*options, "--out", tmp_path / "b", "--jobs", 2)
        assert resumed.returncode == 0, resumed.stderr
        assert rows_but_seconds(table) == rows_but_seconds(tmp_path / "a" / "noises.csv")

    def test_ctrl_c_ends_in_one_line(self, tmp_path):
        process = subprocess.Popen(
            command("noises", "--quick", "--out", tmp_path / "c"),
            stderr=subprocess.PIPE,
            text=True,
        )
        while not (tmp_path / "c" / "noises.csv").exists() and process.poll() is None:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        errors = process.communicate()[1]
        assert process.returncode == 130
        assert "goes on from here" in errors
        assert "Traceback" not in errors

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["figure9"], "unknown study 'figure9'; there are figure1a"),
            (["--replicates", "0"], "--replicates 0: must be at least 1"),
            (["--jobs", "0"], "--jobs 0: must be at least 1"),
        ],
    )
    def test_bad_input(self, tmp_path, arguments, message):
        done = run(*arguments, "--out", tmp_path / "x")
        assert done.returncode == 2
        assert done.stderr.startswith(f"robustcp: {message}")
        assert not (tmp_path / "x").exists()

    def test_results_of_other_settings_are_not_mixed(self, tmp_path):
        assert run("parallel", "--quick", "--replicates", 1, "--out", tmp_path).returncode == 0
        done = run("parallel", "--quick", "--replicates", 2, "--out", tmp_path)
        assert done.returncode == 2
        assert "holds results of other settings" in done.stderr

    def test_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        done = run("parallel", "--quick", "--out", tmp_path / "file")
        assert done.returncode == 2
        assert done.stderr.startswith("robustcp: --out")
