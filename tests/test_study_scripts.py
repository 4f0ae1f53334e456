"""Scripts of studies (published.py, hard_data.py, random_designs.py): data, scores, tables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binomtest

import robustcp
from robustcp.studies.kinds import full_tensor

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


published, hard_data, designs = (
    load(name) for name in ("published", "hard_data", "random_designs")
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


class TestTodorov:
    def test_columns_have_the_cosine_that_is_asked_for(self, rng):
        A = published.congruent_factor(rng, 20, 5, 0.7)
        np.testing.assert_allclose(A.T @ A, 0.3 * np.eye(5) + 0.7, atol=1e-12)

    def test_noise_is_a_share_of_each_fibre(self, rng):
        M, E = rng.standard_normal((2, 30, 4, 5))
        noise = published.noise_of_level(M, E, 0.2)
        squares = np.sum(noise**2, axis=0)
        np.testing.assert_allclose(squares / (squares + np.sum(M**2, axis=0)), 0.2)

    @pytest.mark.parametrize(
        ("kind", "times", "shift"), [("GL", 10, 0), ("BL", 10, 0.1), ("OG", 1, 0.1)]
    )
    def test_bad_samples_are_what_their_kind_says(self, kind, times, shift):
        clean, data = (
            published.todorov_data(np.random.default_rng(3), 3, name, 0.2)
            for name in ("none", kind)
        )
        M, bad = full_tensor(data.factors), data.bad
        assert bad.size == 20
        expected = clean.X.copy()
        expected[bad] += (times - 1) * M[bad] + shift
        np.testing.assert_allclose(data.X, expected, atol=1e-12)

    def test_without_bad_samples_nothing_is_bad(self, rng):
        assert published.todorov_data(rng, 3, "none", 0.0).bad.size == 0

    def test_the_worst_congruence_is_that_of_the_worst_component(self, rng):
        data = published.todorov_data(rng, 3, "GL", 0.2)
        A, B, C = (factor[:, [2, 0, 1]] for factor in data.factors)
        more = [np.column_stack([F, rng.standard_normal(len(F))]) for F in (-A, B, C)]
        model = robustcp.KruskalTensor.from_factors(more)
        assert published.worst_congruence(model, data) == pytest.approx(1)
        spoilt = A.copy()
        spoilt[data.bad] = 100.0  # these do not count
        model = robustcp.KruskalTensor.from_factors([spoilt, B, C])
        assert published.worst_congruence(model, data) == pytest.approx(1)
        mixed = B.copy()
        mixed[:, 1] += 0.5 * rng.standard_normal(20)
        cosine = mixed[:, 1] @ B[:, 1] / np.linalg.norm(mixed[:, 1]) / np.linalg.norm(B[:, 1])
        model = robustcp.KruskalTensor.from_factors([A, mixed, C])
        assert published.worst_congruence(model, data) == pytest.approx(cosine)


class TestOthers:
    def test_a_quarter_of_the_entries_are_outliers_and_the_others_exact(self, rng):
        data = published.heng_data(rng, 5)
        exact = full_tensor(data.factors) == data.X
        assert np.mean(~exact) == pytest.approx(0.25, abs=1e-5)

    def test_noise_is_20_db_below_the_signal(self, rng):
        data = published.brtf_data(rng)
        M = full_tensor(data.factors)
        small = np.abs(data.X - M) < 0.5 * np.std(M)
        assert small.mean() == pytest.approx(0.95, abs=0.02)
        ratio = np.median((data.X - M)[small] ** 2) / 0.455 / np.mean(M**2)
        assert 10 * np.log10(ratio) == pytest.approx(-20, abs=0.4)

    def test_the_truth_has_no_error(self, rng):
        data = published.heng_data(rng, 5)
        truth = robustcp.KruskalTensor.from_factors(data.factors)
        assert published.relative_error(truth, data) < 1e-12


def rows_of(cell, congruences, status=""):
    return [
        {"study": "todorov", "seed": str(seed), "settings": cell.settings, "method": method,
         "value": str(value), "status": status}
        for seed, value in enumerate(congruences)
        for method in ("cp", "cpals")
    ]  # fmt: skip


class TestTables:
    @pytest.mark.parametrize(("failures", "runs"), [(0, 20), (1, 20), (7, 200), (20, 20)])
    def test_intervals_are_exact(self, failures, runs):
        expected = binomtest(failures, runs).proportion_ci(0.95, "exact")
        assert published.interval(failures, runs) == pytest.approx(tuple(expected))

    def test_more_failures_than_theirs_are_bold(self):
        cell = published.TODOROV[2]
        assert cell.limit == 0.002
        good = published.todorov_table(rows_of(cell, [0.99] * 19 + [0.9]))
        assert "| 3, 3 | BL | 10% | 98 | .2 | .6 | 5% | 5.0% (0.1% to 24.9%) | 5.0% | 20 |" in good
        bad = published.todorov_table(rows_of(cell, [0.99] * 15 + [0.9] * 5, "narrow"))
        assert "**25.0% (8.7% to 49.1%)** | 0.0% | 20 |" in bad

    def test_tasks_are_distinct_and_have_data(self):
        tasks = published.list_tasks(list(published.EXPERIMENTS), 5, 30)
        assert len({task.key for task in tasks}) == len(tasks)
        assert len([t for t in tasks if t.study == "heng"]) == 5 * 2 * 10
        assert {task.seed for task in tasks if task.study == "todorov"} == set(range(5, 35))

    def test_a_run_is_scored(self):
        task = published.Task("todorov", 0, "R=3 F=3 kind=none share=0.0", "cpals")
        row = published.run_task(task)
        assert set(row) == set(published.COLUMNS)
        assert 0.9 < float(row["value"]) <= 1


class TestHardData:
    def test_counts_are_overdispersed(self):
        X = hard_data.overdispersed_counts(0)
        assert X.shape == (40, 25, 54)
        assert np.array_equal(X, np.round(X))
        assert np.all(X >= 0)
        assert X.mean() == pytest.approx(100, abs=2)

    def test_errors_are_those_of_what_was_held_out(self, monkeypatch):
        seen = []

        def zero(X, rank):
            seen.append(X)
            return SimpleNamespace(full=lambda: np.zeros(X.shape), converged=True, warnings=[])

        monkeypatch.setattr(robustcp, "cpals", zero)
        X = np.arange(1.0, 1001.0).reshape(10, 10, 10)
        row = hard_data.predict(lambda seed: X, hard_data.Task("x", 3, "rank=2", "cpals"))
        held_out = np.isnan(seen[0])
        assert 0.1 < held_out.mean() < 0.3
        assert np.array_equal(seen[0][~held_out], X[~held_out])
        assert float(row["rmse"]) == pytest.approx(np.sqrt(np.mean(X[held_out] ** 2)))
        assert float(row["mae"]) == pytest.approx(np.mean(X[held_out]))
        assert set(row) == set(hard_data.COLUMNS)

    def test_tables_are_centred_and_scaled(self, tmp_path):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((4, 3, 2)) * np.reshape([1, 10, 100], (1, 3, 1))
        centred = X - X.mean(axis=0)
        sizes = [np.linalg.norm(centred[:, j]) / np.sqrt(8) for j in range(3)]
        lines = [f"s{i},v{j},{k},{value}" for (i, j, k), value in np.ndenumerate(X)]
        path = tmp_path / "x.csv"
        path.write_text("\n".join(["sample,variable,occasion,value", *lines]))
        expected = centred / np.reshape(sizes, (1, 3, 1))
        np.testing.assert_allclose(hard_data.read_table(path), expected)

    def test_a_table_says_what_is_missed(self, tmp_path, monkeypatch):
        row = {"rmse": "1.2", "mae": "1.0", "seconds": "1", "converged": "True", "status": ""}

        def predict(data, task):
            factor = 1.2 if task.method == "cp" else 1.0
            key = dict(zip(hard_data.KEY_COLUMNS, task.key, strict=True))
            return key | row | {"rmse": str(factor)}

        monkeypatch.setattr(hard_data, "predict", predict)
        options = hard_data.argparse.Namespace(out=tmp_path, seeds=2, first=5, jobs=0)
        text = hard_data.prediction_table("simulated", lambda seed: None, 6, options)
        assert "| simulated | 6 | 1.2 | 1.0 | 1.0 | 1.0 | **1.200 (1.200)** |" in text


class TestRandomDesigns:
    def test_earlier_seeds_have_the_kinds_that_they_had(self):
        assert [designs.make_design(seed)["kind"] for seed in (0, 20, 21)] == [
            "clean", "structured", "clean"
        ]  # fmt: skip
        assert designs.SETS["all"][: len(designs.KINDS)] == designs.KINDS

    @pytest.mark.parametrize("seed", range(5 * len(designs.MORE_KINDS)))
    def test_clean_entries_are_the_model_and_noise(self, seed):
        design = designs.make_design(seed, designs.MORE_KINDS)
        X, clean = design["data"], design["clean"]
        np.testing.assert_allclose(designs.full(design["truth"]), design["model"])
        z = (X - design["model"])[clean] / design["sigma"][clean]
        assert 0.4 < np.mean(z**2) < 1.6
        assert not np.isnan(X[clean]).any()
        if design["unrecoverable"]:
            mode, rows = design["unrecoverable"]
            assert not np.moveaxis(clean, mode, 0)[rows].any()
            assert X.shape[mode] == max(X.shape)
        if "cases" in design["options"]:
            samples = X.shape[design["options"]["cases"]]
            assert samples == max(X.shape)
            assert int(0.6 * samples) > design["rank"] + design["extra"]  # or cp refuses

    def test_saturated_entries_are_at_the_ceiling(self):
        design = designs.make_design(0, designs.MORE_KINDS)
        assert design["kind"] == "saturation"
        assert np.array_equal(design["clean"], design["data"] < design["data"].max())
