"""What in the benchmarks is not timing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import robustcp
from comparing import changes, comparison, mark
from measuring import UNITS, in_turns, row
from problems import as_data, collinear, listed, swamp
from reporting import filled, met, table
from trees import Tree, folder, kept, worker

BENCH = Path(__file__).parents[1] / "benchmarks" / "bench.py"
MACHINE = {"processor": "a", "cores": 2, "date": "2000-01-01"}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH), *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def made(unit: str, *values: float, pace: float = 1.0, bench: str = "a") -> dict[str, object]:
    """A row of results, of a machine that takes so long for everything."""
    paces = {"python": pace, "products": pace, "memory": pace}
    return {"bench": bench, **row("a row", unit, values), "pace": paces}


# The command


@pytest.mark.process
def test_the_command_runs_and_compares_with_an_earlier_run(tmp_path):
    name = "20 sweeps of cpals, a whole call, against the faster peer, 50^3 rank 5"
    known = [
        {"bench": "calls", **row(name, "x faster", [1e6])},
        {"bench": "limit", **row("something else", "s", [1.0])},
    ]
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"machine": MACHINE, "results": known}))
    done = run("--quick", "--only", "calls", "--out", tmp_path, "--against", earlier, "--strict")
    assert done.returncode == 1, done.stderr
    assert "1 rows in both (0 only now): 1 worse" in done.stdout
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(r["bench"], r["name"]) for r in results] == [("calls", name)]
    assert (tmp_path / "bench.png").stat().st_size > 10_000


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "said"), [("--also", "src/robustcp"), ("--docs", "not with --quick")]
)
def test_what_makes_no_sense_is_refused(tmp_path, option, said):
    done = run("--quick", "--only", "calls", "--out", tmp_path, option, tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


# Comparing


@pytest.mark.parametrize(
    ("unit", "old", "new", "said"),
    [
        ("x faster", (10, 11, 12), (7, 8, 9), "worse"),
        ("x faster", (7, 8, 9), (10, 11, 12), "better"),
        ("x faster", (10, 11, 12), (9, 9.5, 10.5), "worse?"),  # no turn of the old run is as low
        ("x faster", (10, 11, 12), (9.5, 10.5, 11.5), ""),
        ("x faster", (10,), (9.8,), ""),  # one turn each: 2% is nothing
        ("sweeps", (100,), (110,), "worse"),
        ("of its limit", (0.6, 0.7), (0.4, 0.5), "worse"),
        ("s", (1.0, 1.1), (1.3, 1.4), "worse"),
        ("s", (1.3, 1.4), (1.0, 1.1), "better"),
    ],
)
def test_a_row_is_worse_where_the_spread_does_not_explain_it(unit, old, new, said):
    assert mark(made(unit, *old), made(unit, *new)) == said


def test_seconds_are_judged_after_what_the_machine_explains():
    old = made("s", 1.0, 1.1)
    assert mark(old, made("s", 2.0, 2.2, pace=2.0)) == ""
    assert mark(old, made("s", 3.0, 3.2, pace=2.0)) == "worse"
    assert mark(old, made("s", 1.0, 1.1, pace=2.0)) == "better"
    # Ratios were taken within a run: a slow machine is no excuse.
    assert mark(made("x faster", 10, 11), made("x faster", 5, 5.5, pace=2.0)) == "worse"


def test_of_three_paces_the_one_that_explains_most_counts():
    old, new = made("s", 1.0), made("s", 1.8)
    assert mark(old, new) == "worse"
    new["pace"] = {"python": 1.0, "products": 1.0, "memory": 2.0}
    assert mark(old, new) == ""
    assert mark(new, old) == ""


def test_seconds_of_another_processor_are_not_judged():
    old = {"machine": MACHINE, "results": [made("s", 1.0), made("x faster", 10.0)]}
    new = {
        "machine": {**MACHINE, "processor": "b"},
        "results": [made("s", 9.0), made("x faster", 1.0)],
    }
    assert [change.mark for change in changes(old, new)] == ["not judged", "worse"]
    text = comparison(old, new)
    assert "processor: a then, b now" in text
    assert "2 rows in both (0 only now): 1 worse" in text


def test_only_rows_of_the_same_name_and_unit_are_compared():
    old = {"machine": MACHINE, "results": [made("s", 1.0), made("s", 1.0, bench="b")]}
    new = {"machine": MACHINE, "results": [made("ms", 1.0), made("s", 1.0, bench="b")]}
    assert [change.new["bench"] for change in changes(old, new)] == ["b"]


# Rows and tables


def test_a_row_says_whether_it_met_its_target():
    assert met(row("", "x faster", [1, 2, 3], ">= 2")) == "yes"
    assert met(row("", "x faster", [1, 2, 3], ">= 2.5")) == "NO"
    assert met(row("", "s", [1, 2, 3], "<= 2")) == "yes"
    assert met(row("", "s", [1, 2, 3])) == ""
    # Fast, but what it computed is not good enough.
    assert met(row("", "x faster", [9], ">= 2", valid=False)) == "NO"


def test_units_are_known():
    with pytest.raises(ValueError, match="unit: must be one of"):
        row("", "parsecs", [1])
    assert UNITS["x faster"].more_is_better


def test_turns_alternate_and_the_first_is_not_counted():
    done: list[str] = []
    work = {name: lambda name=name: done.append(name) or len(done) for name in "ab"}
    taken = in_turns(work, 2, clock=lambda one, rest: one())
    assert done == list("ababab")
    assert taken == {"a": [3, 5], "b": [4, 6]}


def test_tables_of_a_document_are_filled_in():
    text = "A\n<!-- bench: a -->\nold\n<!-- end -->\nB\n<!-- bench: b -->\nkept\n<!-- end -->\n"
    names = ("date", "commit", "threads", "cores", "processor", "python", "numpy", "numba")
    about = dict.fromkeys((*names, "pyttb", "tensorly"), "?")
    rows = [made("s", 1.0, 2.0, 3.0)]
    new = filled(text, about, rows)
    assert table(rows) in new
    assert "old" not in new
    assert "kept" in new
    assert filled(new, about, rows) == new


def test_the_document_has_a_place_for_every_benchmark():
    from bench import BENCHMARKS

    text = (BENCH.parents[1] / "docs" / "performance.md").read_text()
    for name in ("machine", *BENCHMARKS):
        assert text.count(f"<!-- bench: {name} -->") == 1


# Data


def test_collinear_columns_have_exactly_this_congruence():
    A = collinear(12, 4, 0.95, np.random.default_rng(0))
    np.testing.assert_allclose(A.T @ A, 0.95 + 0.05 * np.eye(4), atol=1e-14)


def test_a_swamp_is_its_truth_with_noise_and_artifacts():
    made = swamp(15, 4, 0.1, 0)
    off = np.abs(made.data - made.truth.full()) > 6 * made.sigma
    assert 0.05 < off.mean() < 0.12
    assert np.std((made.data - made.truth.full())[~off]) < 1.5 * made.sigma


@pytest.mark.parametrize("lowest", [0.0, -1.0])
def test_listed_entries_are_distinct_and_mostly_of_low_rank(lowest):
    data = listed(3000, 20, 2, lowest)
    X = as_data(data)[0]
    assert X.shape == (20, 20, 20)
    assert len(np.unique(data["indices"], axis=0)) == 3000
    truth = robustcp.KruskalTensor.from_factors(data["factors"])
    assert robustcp.factor_match_score(robustcp.cp(X, 2), truth) > 0.95


@pytest.mark.process
def test_a_worker_fits_by_the_code_of_its_tree():
    own = Tree.own()
    with folder() as scratch, worker(own) as ours:
        rng = np.random.default_rng(0)
        data = kept(scratch / "data.npz", tensors=rng.standard_normal((2, 5, 5, 5)))
        took, _ = ours.fit(data, "cpals", 1, {"max_sweeps": 2})
    assert took > 0
    assert Tree.at(own.path) == own
