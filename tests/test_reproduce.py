"""`robustcp reproduce`: the studies, their results files, and runs that are interrupted."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from robustcp.studies.paper import (
    METHODS,
    STUDIES,
    StudyExtent,
    _cost_curves,
    _growth_exponent,
    _miss_probability,
    simulate_task,
)
from robustcp.studies.results_file import (
    PAPER_COLUMNS,
    ResultsFile,
    Task,
    run_tasks,
    settings_conflict,
    task_of,
)

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


#: Written by `robustcp reproduce cost --quick` of version 0.1.0.
COST_OF_VERSION_0_1 = """\
study,seed,settings,method,fms,fms_unweighted,l1,sweeps,seconds,converged,status,objective
cost,0,eta=0.2 gamma=2.0 size=20,CPAL1,0.4477,0.5777,27171.6749,61,0.0317,True,converged,27171.6766
cost,0,eta=0.2 gamma=2.0 size=20,weighted medians,0.4892,0.6565,27057.0358,121,1.2640,True,converged,27057.0358
cost,0,eta=0.2 gamma=2.0 size=20,linear programs,0.4697,0.6126,27126.1051,140,30.8166,True,converged,27126.1051
cost,0,eta=0.2 gamma=2.0 size=30,CPAL1,0.9624,0.9980,85895.2725,35,0.0334,False,stopped by the callback,85972.3632
cost,0,eta=0.2 gamma=2.0 size=30,weighted medians,0.7243,0.9590,86281.0626,42,0.8939,False,stopped by the callback,86281.0626
cost,0,eta=0.2 gamma=2.0 size=30,linear programs,0.8289,0.9780,86275.8830,23,13.2065,False,stopped by the callback,86275.8830
cost,0,eta=0.2 gamma=2.0 size=40,CPAL1,0.9712,0.9989,195498.5952,33,0.0623,False,stopped by the callback,195675.1975
cost,0,eta=0.2 gamma=2.0 size=40,weighted medians,0.1731,0.3681,205278.8297,18,0.7396,True,converged,205278.8297
cost,0,eta=0.2 gamma=2.0 size=40,linear programs,0.1471,0.3294,205346.5186,11,13.8590,True,converged,205346.5186
"""  # noqa: E501

TASKS = [Task("study", seed, "eta=0.1 gamma=2.0", "CPALS") for seed in range(6)]


class TestLedger:
    def test_every_cut_of_the_file_is_mended(self, tmp_path):
        whole = ResultsFile(tmp_path / "whole.csv")
        for task in TASKS:
            whole.append(a_row(task))
        data = whole.path.read_bytes()
        for cut in range(len(data)):
            torn = ResultsFile(tmp_path / "torn.csv")
            torn.path.write_bytes(data[:cut])
            calls = []

            def work(task, calls=calls):
                calls.append(task)
                return a_row(task)

            run_tasks(TASKS, work, torn, 0, lambda: None)
            assert torn.path.read_bytes() == data
            whole_rows = max(data[:cut].count(b"\n") - 1, 0)  # the first line is the header
            assert calls == TASKS[whole_rows:]

    def test_damage_in_the_middle_is_done_again(self, tmp_path):
        ledger = ResultsFile(tmp_path / "x.csv")
        for task in TASKS:
            ledger.append(a_row(task))
        data = ledger.path.read_bytes()
        lines = data.splitlines(keepends=True)
        lines[3] = lines[3].replace(b"1.0,1.0", b"1.0,1#0", 1)
        ledger.path.write_bytes(b"".join(lines))
        calls = []

        def work(task):
            calls.append(task)
            return a_row(task)

        run_tasks(TASKS, work, ledger, 0, lambda: None)
        assert calls == [TASKS[2]]
        assert ledger.path.read_bytes() == data

    def test_order_of_completion_does_not_show(self, tmp_path):
        for name, order in (("a", TASKS), ("b", TASKS[::-1])):
            ledger = ResultsFile(tmp_path / name)
            for task in order:
                ledger.append(a_row(task))
            ledger.finish(TASKS)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_row_and_task_go_together(self):
        task = TASKS[0]
        assert task_of(a_row(task)) == task
        assert task["gamma"] == "2.0"
        assert set(a_row(task)) == set(PAPER_COLUMNS)

    def test_settings_are_remembered_and_others_refused(self, tmp_path):
        path = tmp_path / "settings.json"
        assert settings_conflict(path, {"scale": [1, 2]}) is None
        assert settings_conflict(path, {"scale": [1, 2]}) is None
        assert "[1, 2], not [3]" in settings_conflict(path, {"scale": [3]})
        assert settings_conflict(path, {"scale": [1, 2]}) is None


class TestStudies:
    @pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
    def test_tasks_are_distinct(self, study):
        for scale in (StudyExtent(), StudyExtent.quick(), StudyExtent.quick().with_replicates(7)):
            tasks = study.tasks(scale)
            assert len({task.key for task in tasks}) == len(tasks) > 0

    def test_figure1a_is_the_size_of_the_paper(self):
        tasks = STUDIES["figure1a"].tasks(StudyExtent())
        cells = {(t["eta"], t["gamma"]) for t in tasks}
        assert len(cells) == 9
        assert len(tasks) == 9 * 100 * len(METHODS)
        assert {t["size"] for t in tasks} == {"50"}

    @pytest.mark.parametrize("kind", ["laplace", "student", "uniform", "symmetric", "slabs"])
    def test_other_noises_have_the_norm_of_the_artifacts(self, kind):
        sim = simulate_task(Task("noises", 0, f"noise={kind} gamma=1.0 eta=0.2 size=20", "CPALS"))
        clean = simulate_task(Task("noises", 0, "noise=artifacts gamma=0.0 eta=0 size=20", "CPALS"))
        added = np.linalg.norm(sim.data - clean.data)
        assert added == pytest.approx(np.linalg.norm(sim.truth.full()), rel=1e-9)
        if kind == "slabs":
            assert set(sim.artifacts.mean(axis=(1, 2))) == {0.0, 1.0}
        assert sim.artifacts.mean() == pytest.approx(
            0.2 if kind in ("symmetric", "slabs") else 0.0, abs=0.02
        )

    def test_oracle_is_least_squares_on_the_other_entries(self):
        sim = simulate_task(Task("x", 0, "eta=0.2 gamma=2.0 size=20", "oracle"))
        assert sim.artifacts.any()
        spoilt = np.where(sim.artifacts, 1e6, sim.data)  # must make no difference
        a = METHODS["oracle"](sim)
        b = METHODS["oracle"](type(sim)(spoilt, sim.truth, sim.artifacts, sim.sigma))
        assert np.array_equal(a.trace, b.trace)
        r = a.residuals(sim.data)[~sim.artifacts]
        assert a.objective == pytest.approx(0.5 * np.sum(r * r))

    def test_chance_that_all_starts_end_away(self):
        assert _miss_probability([[True, False, False, False]], 1) == 0.25
        assert _miss_probability([[True, True, False], [False] * 3], 2) == pytest.approx(1 / 6)

    def test_cost_is_reached_at_the_objective_of_the_true_factors_whatever_the_status(self):
        tasks = STUDIES["cost"].tasks(StudyExtent(cost_sizes=(8, 9)))
        sims = {task: simulate_task(task) for task in tasks}
        rows = []
        for k, task in enumerate(tasks):
            sim = sims[task]
            target = float(np.abs(sim.data - sim.truth.full()).sum())
            higher = float(np.nextafter(target, np.inf))
            status = "stopped by the callback" if k % 2 else "converged"
            objective = repr(higher if task["size"] == "8" else target)
            rows.append({**a_row(task), "objective": objective, "status": status, "seconds": "6.0"})
        for sizes, per_sweep, to_target in _cost_curves(rows).values():
            assert list(sizes) == [8, 9]
            assert list(per_sweep) == [2.0, 2.0]
            np.testing.assert_array_equal(to_target, [np.nan, 6.0])

    def test_cost_results_of_version_0_1_are_kept_and_read(self, tmp_path):
        table = tmp_path / "cost.csv"
        table.write_text(COST_OF_VERSION_0_1)
        study = STUDIES["cost"]

        def work(task):
            raise AssertionError(f"{task} was done again")

        rows = run_tasks(
            study.tasks(StudyExtent.quick()), work, ResultsFile(table), 0, lambda: None
        )
        assert table.read_text() == COST_OF_VERSION_0_1
        stopped = {m: [r["status"][:7] == "stopped" for r in rows if r["method"] == m]
                   for m in ("CPAL1", "weighted medians", "linear programs")}  # fmt: skip
        curves = _cost_curves(rows)
        assert {m: list(np.isfinite(c[2])) for m, c in curves.items()} == stopped
        assert study.summary(rows).count("not reached") == 5

    def test_growth_exponent(self):
        sizes = np.array([10, 20, 40])
        assert _growth_exponent(sizes, sizes**3.0) == pytest.approx(1.0)
        assert _growth_exponent(sizes, sizes**6.0) == pytest.approx(2.0)


class TestCommand:
    @pytest.mark.process
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

    @pytest.mark.process
    def test_killed_and_resumed_equals_a_straight_run_with_any_jobs(self, tmp_path):
        options = ["minima", "--quick", "--replicates", 1]
        straight = run(*options, "--out", tmp_path / "a", "--jobs", 1)
        assert straight.returncode == 0, straight.stderr
        table = tmp_path / "b" / "minima.csv"
        for rows in (2, 5):
            process = subprocess.Popen(
                command(*options, "--out", tmp_path / "b", "--jobs", 2), stderr=subprocess.DEVNULL
            )
            while process.poll() is None:
                if table.exists() and table.read_bytes().count(b"\n") > rows:
                    process.kill()
                time.sleep(0.005)
            assert process.returncode == -signal.SIGKILL  # it was killed, and had not finished
        resumed = run(*options, "--out", tmp_path / "b", "--jobs", 2)
        assert resumed.returncode == 0, resumed.stderr
        assert rows_but_seconds(table) == rows_but_seconds(tmp_path / "a" / "minima.csv")

    @pytest.mark.process
    def test_ctrl_c_ends_in_one_line(self, tmp_path):
        process = subprocess.Popen(
            command("minima", "--quick", "--replicates", 1, "--out", tmp_path / "c"),
            stderr=subprocess.PIPE,
            text=True,
        )
        while not (tmp_path / "c" / "minima.csv").exists() and process.poll() is None:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        errors = process.communicate()[1]
        assert process.returncode == 130
        assert "goes on from here" in errors
        assert "Traceback" not in errors

    @pytest.mark.process
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

    @pytest.mark.process
    def test_results_of_other_settings_are_not_mixed(self, tmp_path):
        assert run("parallel", "--quick", "--replicates", 1, "--out", tmp_path).returncode == 0
        done = run("parallel", "--quick", "--replicates", 2, "--out", tmp_path)
        assert done.returncode == 2
        assert "holds results of other settings" in done.stderr

    @pytest.mark.process
    def test_folder_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        done = run("parallel", "--quick", "--out", tmp_path / "file")
        assert done.returncode == 2
        assert done.stderr.startswith("robustcp: --out")
