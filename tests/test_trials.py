"""`robustcp trials`: kinds of contamination, the oracle, what is made of the results."""

from __future__ import annotations

import csv
import inspect
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

import robustcp
from robustcp.studies import trials
from robustcp.studies.kinds import KINDS, Target, full_tensor
from robustcp.studies.oracle import _balance_norms, fit_oracle, solve_nonnegative_rows
from robustcp.studies.results_file import ResultsFile, Task
from robustcp.studies.trials import (
    METHODS,
    STUDY,
    TRIAL_COLUMNS,
    Claim,
    Results,
    Selection,
    check_target,
)

CELLS = [(kind, cell) for kind in KINDS.values() for cell in kind.cells]
every_cell = pytest.mark.parametrize(
    ("kind", "cell"), CELLS, ids=[f"{kind.name} {cell}".strip() for kind, cell in CELLS]
)
#: Kinds of which bad entries may be near to the model: the median of their size, in sigmas.
MILD = {"shifted_entries": 2.4, "landscapes_with_misfit": 1}


def score(estimate, trial):
    truth = robustcp.KruskalTensor.from_factors(trial.truth)
    return robustcp.factor_match_score(
        trial.recoverable_model(estimate), trial.recoverable_model(truth)
    )


def small(seed=0):
    """A trial that takes no time."""
    sim = robustcp.simulate((9, 8, 7), 2, eta=0.1, gamma=1.0, rng=seed)
    return trials.Trial(
        sim.data, sim.truth.absorbed(), ~sim.artifacts, np.full(sim.data.shape, sim.sigma), 2
    )


class TestKinds:
    @every_cell
    def test_is_well_formed(self, kind, cell):
        trial = kind.make_trial(0, cell)
        shape = trial.data.shape
        assert trial.clean.shape == trial.sigma.shape == shape
        assert tuple(A.shape[0] for A in trial.truth) == shape
        assert len({A.shape[1] for A in trial.truth}) == 1
        assert trial.rank >= trial.truth[0].shape[1]
        assert np.all(trial.sigma > 0)
        assert not np.isnan(trial.data[trial.clean]).any()
        assert not np.isinf(trial.data).any()
        if trial.options.get("nonnegative"):
            assert all(np.all(A >= 0) for A in trial.truth)
        assert set(trial.options) <= {"nonnegative", "cases", "limits"}
        assert kind.description.endswith(".")
        assert ". " not in kind.description

    @every_cell
    def test_depends_on_the_seed_alone(self, kind, cell):
        a, b, other = (kind.make_trial(seed, cell) for seed in (0, 0, 1))
        assert np.array_equal(a.data, b.data, equal_nan=True)
        assert np.array_equal(a.clean, b.clean)
        assert a.data.shape != other.data.shape or not np.array_equal(
            a.data, other.data, equal_nan=True
        )

    @every_cell
    def test_clean_entries_are_the_model_and_noise_of_the_stated_size(self, kind, cell):
        trial = kind.make_trial(0, cell)
        z = (trial.data - full_tensor(trial.truth)) / trial.sigma
        clean, bad = z[trial.clean], z[~trial.clean & ~np.isnan(z)]
        assert 0.8 < np.mean(clean**2) < 1.2
        assert np.quantile(np.abs(clean), 0.999) < 6
        if bad.size:
            assert np.median(np.abs(bad)) > MILD.get(kind.name, 3)

    @pytest.mark.parametrize(
        ("name", "missing"),
        [("half_missing", 0.5), ("nine_tenths_missing", 0.9), ("thin_rows", 1 - 12 / 900),
         ("clean_even", 0.0)],
    )  # fmt: skip
    def test_missing_entries_are_nan(self, name, missing):
        assert np.isnan(KINDS[name].make_trial(0).data).mean() == pytest.approx(missing, abs=0.01)

    def test_listed_entries_are_those_that_are_there(self):
        as_nan, listed = (
            KINDS["few_entries"].make_trial(0, f"rank=2 entries=40 listed={k}") for k in (0, 1)
        )
        assert np.array_equal(as_nan.data, listed.data, equal_nan=True)
        given = listed.input_data
        assert isinstance(given, robustcp.Observed)
        assert np.array_equal(as_nan.data[tuple(given.indices.T)], given.values)
        assert len(given.values) == np.count_nonzero(~np.isnan(as_nan.data))

    def test_small_tensors_have_the_sizes_that_they_should(self):
        orders = set()
        for seed in range(200):
            trial = KINDS["small_tensors"].make_trial(seed)
            orders.add(trial.data.ndim)
            assert all(6 <= size <= 17 for size in trial.data.shape)
            assert trial.data.size <= 100_000
            assert trial.rank == 1 if trial.data.ndim == 2 else 1 <= trial.rank <= 3
        assert orders == {2, 3, 4, 5, 6}

    def test_collinear_components_have_cosines_of_about_nine_tenths(self):
        for A in KINDS["collinear"].make_trial(0).truth:
            unit = A / np.linalg.norm(A, axis=0)
            assert np.all(np.abs((unit.T @ unit)[np.triu_indices(3, 1)] - 0.9) < 0.1)

    def test_rows_that_are_lost_do_not_count(self):
        trial = KINDS["bad_samples"].make_trial(0)
        mode, rows = trial.unrecoverable
        spoilt = [A.copy() for A in trial.truth]
        spoilt[mode][rows] = 1e3
        assert not trial.clean[rows].any()
        assert score(robustcp.KruskalTensor.from_factors(spoilt), trial) == pytest.approx(1)


HARD = [kind for kind in KINDS.values() if kind.target.worst_margins]


class TestKindsNearTheOracle:
    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(kind.name, marks=[pytest.mark.recovery] * (kind.name == "long_mode"))
            for kind in HARD
        ],
    )
    def test_least_squares_is_far_from_the_oracle(self, name):
        kind = KINDS[name]
        trial = kind.make_trial(0, kind.cells[-1])
        assert score(fit_oracle(trial).model, trial) > score(METHODS["cpals"](trial), trial) + 0.04

    @pytest.mark.parametrize("share", [0.05, 0.15, 0.3])
    def test_the_largest_entries_are_at_the_ceiling(self, share):
        trial = KINDS["saturated"].make_trial(0, f"share={share}")
        assert np.array_equal(trial.clean, trial.data < trial.data.max())
        assert 1 - trial.clean.mean() == pytest.approx(share, abs=0.001)
        assert "limits" not in trial.options

    def test_limits_are_those_of_the_data(self):
        trial = KINDS["saturated_at_both_ends"].make_trial(0, "share=0.15")
        low, high = trial.options["limits"]
        assert (low, high) == (trial.data.min(), trial.data.max())
        inside = (trial.data > low) & (trial.data < high)
        assert np.array_equal(trial.clean, inside)
        assert np.mean(trial.data == low) == pytest.approx(0.15, abs=0.001)

    def test_each_sensor_has_its_ceiling(self):
        trial, told = (KINDS["saturated_sensors"].make_trial(0, f"told={told}") for told in (0, 1))
        assert np.array_equal(trial.data, told.data)
        assert "limits" not in trial.options
        low, ceilings = told.options["limits"]
        assert low is None
        np.testing.assert_array_equal(ceilings, trial.data.max(axis=(0, 2), keepdims=True))
        assert np.array_equal(trial.clean, trial.data < ceilings)
        shares = np.mean(~trial.clean, axis=(0, 2))
        assert 0.049 < shares.min() < 0.1
        assert 0.25 < shares.max() < 0.301

    def test_artifacts_are_clipped_with_the_data(self):
        trial = KINDS["saturated_with_artifacts"].make_trial(0)
        at_ceiling = trial.data == trial.data.max()
        assert at_ceiling.mean() == pytest.approx(0.15, abs=0.001)
        assert not trial.clean[at_ceiling].any()
        assert 0.02 < np.mean(~trial.clean & ~at_ceiling) < 0.05

    def test_entries_are_shifted_by_so_many_sigmas(self):
        trial = KINDS["shifted_entries"].make_trial(0, "share=0.3 shift=4")
        z = (trial.data - full_tensor(trial.truth)) / trial.sigma
        assert z[~trial.clean].mean() == pytest.approx(4, abs=0.05)
        assert z[~trial.clean].std() == pytest.approx(1, abs=0.05)
        assert np.mean(~trial.clean) == pytest.approx(0.3, abs=0.01)

    def test_the_misfit_is_smooth_and_the_noise_is_not(self):
        trial = KINDS["landscapes_with_misfit"].make_trial(0)
        M = full_tensor(trial.truth)
        ratio = (trial.data / M - 1)[np.setdiff1d(range(17), trial.unrecoverable[1])]
        strong = M[np.setdiff1d(range(17), trial.unrecoverable[1])] > 0.5 * M.max()
        assert np.nanstd(ratio[strong]) == pytest.approx(0.04, abs=0.02)
        steps = np.diff(np.where(strong, ratio, np.nan), axis=1)
        assert np.nanstd(steps) < 0.012
        assert 0.1 < np.isnan(trial.data).mean() < 0.4

    def test_bad_samples_and_bad_cells_are_beside_each_other(self):
        kind = KINDS["foreign_samples_and_bad_cells"]
        trial = kind.make_trial(0, "share=0.3 cells=0.1 missing=0")
        _, rows = trial.unrecoverable
        assert len(rows) == 15
        others = np.setdiff1d(range(50), rows)
        assert not trial.clean[rows].any()
        assert trial.clean[others].mean() == pytest.approx(0.9, abs=0.01)
        trial = kind.make_trial(0, "share=0.2 cells=0.2 missing=0.4")
        assert np.isnan(trial.data).mean() == pytest.approx(0.4, abs=0.01)

    def test_samples_of_good_leverage_are_large_and_follow_the_model(self):
        trial = KINDS["good_leverage"].make_trial(0, "times=30 extra=1")
        assert trial.clean.all()
        assert trial.rank == 4
        sizes = np.sort(np.linalg.norm(trial.truth[0], axis=1))
        assert np.median(sizes[80:]) / np.median(sizes[:80]) == pytest.approx(30, rel=0.4)

    @pytest.mark.parametrize(("rank", "told"), [(0, 0), (1, 1)])
    def test_exact_slabs_have_no_noise(self, rank, told):
        trial = KINDS["exact_slabs"].make_trial(0, f"rank={rank} told={told}")
        for k in trial.unrecoverable[1]:
            assert np.linalg.matrix_rank(trial.data[k], tol=1e-8) == 1
            assert (np.ptp(trial.data[k]) > 0) == bool(rank)
        assert trial.options == ({"cases": 0} if told else {})


class TestOracle:
    @pytest.mark.parametrize(
        ("name", "least"),
        [("bad_samples", 0.99), ("uneven_noise", 0.99), ("thin_rows", 0.97), ("scatter_cut", 0.93),
         ("most_entries_random", 0.99), ("collinear", 0.9), ("stuck_sensors", 0.99)],
    )  # fmt: skip
    def test_recovers_what_can_be_recovered(self, name, least):
        kind = KINDS[name]
        trial = kind.make_trial(0, kind.cells[0])
        limit = fit_oracle(trial)
        assert limit.converged
        assert score(limit.model, trial) > least
        steps = np.diff(limit.trace)
        assert np.all(steps < 1e-9 * limit.trace[0])

    @pytest.mark.parametrize("name", ["uneven_noise", "most_entries_random", "four_way"])
    def test_agrees_with_weighted_least_squares_where_rows_are_determined(self, name):
        trial = KINDS[name].make_trial(0)
        weights = np.where(trial.clean, trial.sigma**-2, 0.0)
        weights /= weights.max()
        fit = robustcp.cpals(
            np.where(trial.clean, trial.data, 0.0), trial.rank, entry_weights=weights,
            init=list(trial.truth), tol=1e-9,
        )  # fmt: skip
        model = fit_oracle(trial).model
        assert score(model, trial) == pytest.approx(score(fit, trial), abs=5e-4)
        assert robustcp.factor_match_score(model, fit) > 0.998

    @pytest.mark.parametrize("nonnegative", [False, True])
    def test_is_at_a_stationary_point_of_the_posterior(self, nonnegative):
        trial = replace(small(), options={"nonnegative": nonnegative})
        limit = fit_oracle(trial, max_sweeps=2000)
        prior = [1 / np.mean(A * A, axis=0) for A in _balance_norms(trial.truth)]

        def objective(factors):
            z = ((trial.data - full_tensor(factors)) / trial.sigma)[trial.clean]
            ridges = sum(np.sum(p * A * A) for p, A in zip(prior, factors, strict=True))
            return 0.5 * (z @ z + ridges)

        # the model of least prior cost, which normalized() has taken apart
        factors = list(limit.model.absorbed())
        costs = np.array([np.sum(p * A * A, axis=0) for p, A in zip(prior, factors, strict=True)])
        scales = np.exp((np.log(costs).mean(axis=0) - np.log(costs)) / 2)
        factors = [A * s for A, s in zip(factors, scales, strict=True)]
        assert objective(factors) == pytest.approx(limit.trace[-1], rel=1e-9)
        rng = np.random.default_rng(0)
        for _ in range(30):
            moved = [A + 1e-3 * rng.standard_normal(A.shape) for A in factors]
            if nonnegative:
                moved = [np.maximum(A, 0) for A in moved]
            assert objective(moved) > limit.trace[-1] - 1e-3

    def test_bad_entries_make_no_difference(self):
        trial = small()
        spoilt = replace(trial, data=np.where(trial.clean, trial.data, np.nan))
        assert fit_oracle(spoilt).trace == fit_oracle(trial).trace

    def test_nonnegative_rows_are_those_of_nnls(self):
        rng = np.random.default_rng(0)
        C, d = rng.standard_normal((5, 8, 4)), rng.standard_normal((5, 8))
        rows = solve_nonnegative_rows(
            np.einsum("ijr,ijs->irs", C, C), np.einsum("ijr,ij->ir", C, d), np.ones((5, 4))
        )
        expected = [nnls(c, y)[0] for c, y in zip(C, d, strict=True)]
        np.testing.assert_allclose(rows, expected, atol=1e-8)


class TestMethods:
    def test_cp_is_called_as_a_user_would(self, monkeypatch):
        calls = []

        def recorded(X, rank, *, nonnegative=False):
            calls.append((X, rank, nonnegative))

        trial = replace(small(), options={"nonnegative": True, "cases": 0})
        trials._call_method(recorded, trial)
        assert calls == [(trial.data, 2, True)]  # it knows nothing of cases

    def test_least_squares_gets_the_same_constraints(self):
        trial = replace(small(), options={"nonnegative": True})
        fit = METHODS["cpals"](trial)
        assert all(np.all(A >= 0) for A in fit.factors)

    def test_begun_at_the_truth_with_a_component_too_many(self):
        trial = replace(small(), rank=3)
        fit = METHODS["cp_at_truth"](trial)
        assert fit.rank == 3
        assert score(fit, trial) > 0.9

    def test_a_row_has_scores_and_shares(self):
        row = trials.score_task(Task("trials", 0, "kind=one_wild_entry", "cp"))
        assert set(row) == set(TRIAL_COLUMNS)
        assert 0 <= float(row["false_alarms"]) < 0.01
        assert row["detected"] == "1.0"
        assert row["slabs_found"] == "nan"
        assert 0 <= float(row["fms"]) <= float(row["fms_unweighted"]) + 1e-12

    def test_an_error_is_a_score_of_zero_and_a_status(self, monkeypatch, tmp_path):
        def broken(trial):
            raise ValueError("no\nway")

        monkeypatch.setitem(METHODS, "cp", broken)
        row = trials.score_task(Task("trials", 0, "kind=stuck_sensors common=0", "cp"))
        assert (row["fms"], row["status"]) == ("0.0", "error: no way")
        assert "scored 0: 1 fits, by cp on stuck_sensors." in trials.summarize_targets([row])
        ledger = ResultsFile(tmp_path / "x.csv", TRIAL_COLUMNS)
        ledger.append(row)
        assert list(ledger.load().values()) == [row]


def rows_of(kind="counts", cell="", **scores):
    """Rows of some methods with given scores, one for each seed."""
    rest = dict.fromkeys(TRIAL_COLUMNS[4:], "nan") | {"converged": "True", "status": "converged"}
    return [
        {"study": "trials", "seed": str(seed), "settings": f"kind={kind} {cell}".strip(),
         "method": method, **rest, "fms": repr(value), "seconds": "1.0"}
        for method, values in scores.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


class TestTargets:
    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            (Target(median=0.9), [Claim("median ≥ 0.900", True)]),
            (Target(median=0.91), [Claim("median ≥ 0.910", False)]),
            (Target(worst=0.8), [Claim("worst ≥ 0.800", True)]),
            (Target(worst=0.81), [Claim("worst ≥ 0.810", False)]),
            (Target(margins={"oracle": 0.02}), [Claim("median ≥ 0.930 (oracle - 0.020)", False)]),
            (Target(margins={"oracle": 0.06}), [Claim("median ≥ 0.890 (oracle - 0.060)", True)]),
            (Target(margins={"cpals": 0.01}), []),  # it was not run
            (
                Target(worst_margins={"oracle": 0.2}),
                [Claim("worst ≥ 0.740 (oracle - 0.200)", True)],
            ),
            (
                Target(worst_margins={"oracle": 0.1}),
                [Claim("worst ≥ 0.840 (oracle - 0.100)", False)],
            ),
            (Target(failures=0.3), [Claim("failures ≤ 30.0% (found: 33.3%)", False)]),
            (Target(failures=0.4), [Claim("failures ≤ 40.0% (found: 33.3%)", True)]),
        ],
    )
    def test_what_holds(self, target, expected):
        rows = rows_of(cp=[0.8, 0.9, 0.95], oracle=[0.95, 0.94, 0.99])
        assert check_target(target, Results(rows)) == expected

    def test_every_cell_must_reach_it(self):
        rows = rows_of("few_entries", "rank=2", cp=[0.99, 0.99], oracle=[0.99, 0.99])
        rows += rows_of("few_entries", "rank=5", cp=[0.9, 0.9], oracle=[0.99, 0.99])
        target = Target(median=0.95, margins={"oracle": 0.05})
        assert [c.holds for c in check_target(target, Results(rows))] == [False, False]
        assert [c.holds for c in check_target(target, Results(rows[:4]))] == [True, True]

    def test_false_alarms_and_slabs(self):
        found = zip(rows_of(cp=[1.0, 1.0]), ("1.0", "0.5"), strict=True)
        rows = [row | {"false_alarms": "0.001", "slabs_found": share} for row, share in found]
        target = Target(false_alarms=(0.0005, 0.002), finds_bad_slabs=True)
        assert [c.holds for c in check_target(target, Results(rows))] == [True, False]

    def test_the_table_marks_what_is_missed(self):
        rows = rows_of("counts", cp=[0.98, 0.99], cpals=[0.9, 0.8], oracle=[0.99, 0.99])
        text = STUDY.summary(rows)
        line = next(line for line in text.splitlines() if line.startswith("| counts | 0."))
        assert "| 0.985 (0.980) | 0.850 (0.800) | 0.990 (0.990) | 1.00 |" in line
        assert "median ≥ 0.985, worst ≥ 0.970" in line
        assert "Targets hold for 1 of 1 kinds." in text
        assert "over seeds 0 to 1," in text
        assert KINDS["counts"].description in text
        later = [row | {"seed": str(int(row["seed"]) + 1000)} for row in rows]
        assert "over seeds 1000 to 1001," in STUDY.summary(later)
        missed = STUDY.summary(rows_of("counts", cp=[0.97, 0.9], oracle=[0.99, 0.99]))
        assert "**median ≥ 0.985**, **worst ≥ 0.970**" in missed
        assert "Targets hold for 0 of 1 kinds; missed: counts." in missed

    def test_targets_name_methods_that_there_are(self):
        for kind in KINDS.values():
            assert {*kind.target.margins, *kind.target.worst_margins} <= set(METHODS)


class TestStudy:
    def test_tasks_are_distinct_and_can_be_done(self):
        tasks = STUDY.tasks(Selection(list(KINDS), 3))
        assert len({task.key for task in tasks}) == len(tasks)
        assert {task["kind"] for task in tasks} == set(KINDS)
        assert {task.method for task in tasks} == set(METHODS)
        for kind, cell in CELLS:
            wanted = set(dict(part.split("=") for part in cell.split()))
            assert wanted == set(inspect.signature(kind.make).parameters) - {"seed"}

    def test_seeds_go_on_from_the_first(self):
        tasks = STUDY.tasks(Selection(["small_tensors", "counts"], 2, ["cp"], first_seed=7))
        assert [t.seed for t in tasks if t["kind"] == "small_tensors"] == list(range(280, 360))
        assert [t.seed for t in tasks if t["kind"] == "counts"] == [7, 8]

    def test_results_of_other_kinds_and_seeds_are_kept(self, tmp_path):
        done = []

        def work(task):
            done.append(task)
            return rows_of("x", **{task.method: [0.5]})[0] | {
                "settings": task.settings, "seed": str(task.seed),
            }  # fmt: skip

        study = replace(STUDY, run_task=work, is_timed=True)
        table = tmp_path / "trials.csv"
        study.run(Selection(["counts", "four_way"], 3), tmp_path)
        whole, count = table.read_bytes(), len(done)
        assert count == 2 * 3 * 4
        study.run(Selection(["four_way"], 2, ["cp"]), tmp_path)
        assert len(done) == count
        study.run(Selection(["counts", "four_way"], 3), tmp_path)
        assert len(done) == count
        assert table.read_bytes() == whole


# The command


def command(*arguments):
    return [sys.executable, "-m", "robustcp", "trials", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def rows_but_seconds(path):
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


class TestCommand:
    @pytest.mark.process
    def test_killed_and_resumed_equals_a_straight_run_with_any_jobs(self, tmp_path):
        options = ["stuck_sensors", "one_wild_entry", "--quick"]
        straight = run(*options, "--out", tmp_path / "a", "--jobs", 1)
        assert straight.returncode == 0, straight.stderr
        assert straight.stdout.startswith("Targets hold for ")
        for suffix in ("csv", "png", "pdf", "md"):
            assert (tmp_path / "a" / f"trials.{suffix}").stat().st_size > 0
        assert "| stuck_sensors |" in (tmp_path / "a" / "trials.md").read_text()
        table = tmp_path / "b" / "trials.csv"
        process = subprocess.Popen(
            command(*options, "--out", tmp_path / "b", "--jobs", 2), stderr=subprocess.DEVNULL
        )
        while process.poll() is None:
            if table.exists() and table.read_bytes().count(b"\n") > 4:
                process.kill()
            time.sleep(0.005)
        assert process.returncode == -signal.SIGKILL  # it was killed, and had not finished
        resumed = run(*options, "--out", tmp_path / "b", "--jobs", 2)
        assert resumed.returncode == 0, resumed.stderr
        assert rows_but_seconds(table) == rows_but_seconds(tmp_path / "a" / "trials.csv")

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["countz"], "unknown kind 'countz'; there are paper, clean_even,"),
            (["--methods", "cp,ls"], "unknown method 'ls'; there are cp, cpal1, cpals, oracle"),
            (["--seeds", "0"], "--seeds 0: must be at least 1"),
            (["--first-seed", "-1"], "--first-seed -1: must not be negative"),
            (["--jobs", "0"], "--jobs 0: must be at least 1"),
        ],
    )
    def test_bad_input(self, tmp_path, arguments, message):
        done = run(*arguments, "--out", tmp_path / "x")
        assert done.returncode == 2
        assert done.stderr.startswith(f"robustcp: {message}")
        assert len(done.stderr.splitlines()) == 1
        assert not (tmp_path / "x").exists()
