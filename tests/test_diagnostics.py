"""Warnings of fits: they come when there is reason, and not otherwise."""

from __future__ import annotations

import json

import numpy as np
import pytest

import robustcp
from robustcp import cp, cpals
from robustcp.engines import Axes
from robustcp.noise import ResidualStructure
from robustcp.results import diagnostics


def codes(fit):
    return [warning.code for warning in fit.warnings]


def model(*factors):
    return np.einsum("ar,br,cr->abc", *factors)


class TestWhenAllIsWell:
    @pytest.mark.parametrize("seed", range(4))
    def test_there_is_none(self, seed):
        sim = robustcp.simulate((24, 24, 24), 3, eta=0.1, gamma=2.0, rng=seed)
        fit = cp(sim.data, 3)
        assert fit.warnings == ()
        assert fit.status == "converged"

    def test_peaks_are_no_reason(self, rng):
        t = np.arange(40.0)[:, None]
        peaks = np.exp(-0.5 * ((t - np.array([8.0, 20.0, 31.0])) / np.array([1.2, 4.0, 5.0])) ** 2)
        X = model(rng.random((20, 3)), rng.random((25, 3)), peaks)
        X = X + 0.02 * rng.standard_normal(X.shape)
        assert "narrow" not in codes(cp(X, 3, nonnegative=True))

    def test_few_entries_that_are_explained_are_no_reason(self, rng):
        """A component that is zero in most entries hardly lowers the entropy of all data."""
        factors = [np.where(np.arange(n) < n / 4, 1 + rng.random(n), 0.0) for n in (40, 30, 28)]
        X = model(*(a[:, None] for a in factors)) + 0.05 * rng.standard_normal((40, 30, 28))
        assert "weak" not in codes(cp(X, 1, starts=3))

    @pytest.mark.parametrize("seed", range(3))
    def test_short_modes_of_sparse_factors_are_no_reason(self, seed):
        """Of six rows with a density of one half, one is soon all that a component has."""
        rng = np.random.default_rng(seed)
        factors = [rng.standard_normal((n, 3)) for n in (25, 20, 6)]
        factors[2] *= [[1, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]]
        X = model(*factors)
        X = X + 0.05 * X.std() * rng.standard_normal(X.shape)
        assert "narrow" not in codes(cp(X, 3))


class TestReasons:
    def test_rank_too_low(self):
        sim = robustcp.simulate((24, 24, 24), 3, eta=0.1, gamma=2.0, rng=0)
        fit = cp(sim.data, 2)
        assert "structured" in codes(fit)
        assert "converged, with" in fit.status
        assert "try rank 3" in fit.status

    @pytest.mark.parametrize("options", [{}, {"cases": 0}])
    def test_one_of_few_starts(self, rng, options):
        """Nothing but noise: no two starts agree."""
        fit = cp(rng.standard_normal((12, 9, 8)), 3, starts=4, **options)
        assert fit.starts.reached <= 1
        assert "one_start" in codes(fit)

    @pytest.mark.parametrize("method", [cp, robustcp.cpal1, cpals])
    def test_components_of_a_matrix(self, rng, method):
        A, B = rng.standard_normal((30, 2)), rng.standard_normal((20, 2))
        X = A @ B.T + 0.05 * rng.standard_normal((30, 20))
        fit = method(X, 2)
        (warning,) = (w for w in fit.warnings if w.code == "not_unique")
        assert "any invertible mixture" in warning.sentence
        T = np.array([[2.0, 1.0], [0.5, 1.5]])  # such as this one
        weights, (U, V) = fit
        np.testing.assert_allclose((U * weights @ T) @ (V @ np.linalg.inv(T).T).T, fit.full())

    def test_constraints_that_may_make_a_matrix_unique(self, rng):
        A, B = np.abs(rng.standard_normal((30, 2))), np.abs(rng.standard_normal((20, 2)))
        X = A @ B.T + 0.05 * rng.standard_normal((30, 20))

        def is_warned(rank=2, **options):
            return "not_unique" in codes(cp(X, rank, **options))

        smooth = robustcp.Smooth(1.0)
        assert is_warned(constraints={0: robustcp.Nonnegative()})  # of one factor only
        assert is_warned(constraints={0: smooth, 1: smooth})
        assert not is_warned(nonnegative=True)
        orthogonal = robustcp.Orthogonal()
        assert is_warned(constraints={0: orthogonal})
        assert not is_warned(constraints={0: orthogonal, 1: orthogonal})  # singular vectors
        assert not is_warned(constraints={0: robustcp.Fixed(A)})
        assert not is_warned(rank=1)
        assert not is_warned(init=[A, B], fixed=(0,))
        assert "not_unique" not in codes(cp(np.stack([X, 2 * X + X[::-1]]), 2))

    @pytest.mark.recovery
    def test_rank_too_high(self):
        sim = robustcp.simulate((24, 24, 24), 2, eta=0.1, gamma=2.0, rng=0)
        assert {"idle", "ambiguous", "collinear"} & set(codes(cp(sim.data, 4)))

    @pytest.mark.recovery
    @pytest.mark.parametrize("positive", [False, True])
    def test_nothing_but_noise(self, rng, positive):
        X = rng.standard_normal((20, 20, 20))
        fit = cp(np.abs(X) if positive else X, 2, nonnegative=positive)
        assert fit.warnings
        assert fit.explained > -1e-9

    def test_a_component_on_a_few_slabs(self, rng):
        A, B, C = (rng.standard_normal((30, 2)) for _ in range(3))
        A[:, 1] = 0.0
        A[7, 1] = 8.0
        X = model(A, B, C)
        X = X + 0.05 * rng.standard_normal(X.shape)
        (warning,) = (w for w in cp(X, 2).warnings if w.code == "narrow")
        assert "lives on 1 slab of mode 0 (7): if these may be bad samples" in warning.sentence
        assert (warning.numbers["modes"], warning.numbers["rows"]) == ([0], [[7]])

    def test_bad_samples_that_agree(self, rng):
        A, B, C = (rng.standard_normal((30, 2)) for _ in range(3))
        X = model(A, B, C)
        X = X + 0.05 * rng.standard_normal(X.shape)
        X[[2, 5, 11, 17, 23, 28]] = 3 * np.outer(*rng.standard_normal((2, 30)))
        found = cp(X, 2).warnings
        assert any("try cases=0" in str(warning) for warning in found)

    def test_more_entries_rejected_than_kept(self, rng):
        X = model(*(rng.standard_normal((25, 2)) for _ in range(3)))
        X = X + 0.05 * rng.standard_normal(X.shape)
        X = np.where(rng.random(X.shape) < 0.6, rng.uniform(-8, 8, X.shape), X)
        assert "rejected" in codes(cp(X, 2))

    def test_rows_that_rest_on_a_prior(self, rng):
        X = model(*(rng.standard_normal((20, 2)) for _ in range(3)))
        X = X + 0.05 * rng.standard_normal(X.shape)
        X[3, 1:] = np.nan
        X[3, 0, 1:] = np.nan
        assert "prior" in codes(cp(X, 2))

    def test_slabs_with_far_more_noise(self, rng):
        X = model(*(rng.standard_normal((25, 2)) for _ in range(3)))
        X = X + 0.05 * rng.standard_normal(X.shape)
        X[4] += 3 * rng.standard_normal(X[4].shape)
        (warning,) = cp(X, 2).warnings
        assert (warning.code, warning.numbers) == ("outlying", {"mode": 0, "slabs": [4]})

    def test_least_squares_of_collinear_components(self, rng):
        A, B, C = (rng.standard_normal((8, 1)) for _ in range(3))
        assert "collinear" in codes(cpals(model(A, B, C), 2)) or "empty" in codes(
            cpals(model(A, B, C), 2)
        )


class TestWords:
    def test_one_entry_and_one_fibre(self):
        spike, flat = np.zeros((20, 1)), np.ones((20, 1))
        spike[3] = 1.0
        (entry,) = diagnostics.localisation_warnings((spike, spike, spike), Axes())
        assert "component 1 lives on one entry" in str(entry)
        (fibre,) = diagnostics.localisation_warnings((spike, flat, spike), Axes())
        assert "component 1 lives on one fibre along mode 1" in str(fibre)

    def test_each_says_what_to_try(self):
        structure = ResidualStructure((0.5, 0.0), (1.0, 1.0), ((0.1, 2.0), (0.1, 2.0)))
        found = [
            *diagnostics.redundancy_warnings([1], None, 3),
            *diagnostics.redundancy_warnings([], 2, 3),
            *diagnostics.single_start_warnings(1, 8),
            *diagnostics.ambiguity_warnings(0.4),
            *diagnostics.structure_warnings(structure, 2, Axes()),
            *diagnostics.rejection_warnings(0.4),
            *diagnostics.skipped_stage_warnings((1,)),
            *diagnostics.subset_count_warnings(10, 20),
            *diagnostics.bad_sample_warnings(15, 30, 0.4),
            *diagnostics.weak_model_warnings(0.1),
            *diagnostics.noisy_slab_warnings({0: np.array([1, 2])}, Axes()),
            *diagnostics.unobserved_slab_warnings(((), (3,)), Axes()),
        ]
        assert len(found) == 12
        assert all("try" in str(warning) for warning in found)
        assert len({warning.code for warning in found}) == 10
        json.dumps([warning.numbers for warning in found])

    #: Axes, `cases`, and what sentences suggest for bad slabs of mode 0 and for structure.
    SUGGESTIONS = (
        (Axes(), None, "cases=0", "or cases= if a mode holds samples"),
        (Axes(), 0, "", "more starts"),
        (Axes(), 1, "", "more starts"),
        (
            Axes(("Sample", "nm"), (["a", "b", "c"], [1.0, 2.0, 3.0])),
            None,
            "cases='Sample'",
            "or cases='Sample' if some of these may be bad",
        ),
        (Axes(("time", "trials"), (None, None)), None, "", "or cases='trials' if"),
        (Axes(("emission", "variable"), (None, None)), None, "", "rank 3 or more starts"),
        (Axes(("mode 0", "mode 1"), ([300, 302, 304], [2.0, 1.0])), None, "", "more starts"),
        (Axes(("mode 0", "mode 1"), ([1, 2, 3], None)), None, "cases=0", "cases= if a mode"),
        (Axes(("mode 0", "mode 1"), (None, None), units=("nm", "nm")), None, "", "more starts"),
    )

    @pytest.mark.parametrize(("axes", "cases", "bad_slabs", "structure"), SUGGESTIONS)
    def test_cases_are_suggested_only_where_they_may_help(self, axes, cases, bad_slabs, structure):
        found = ResidualStructure((0.5, 0.0), (1.0, 1.0), ((0.1, 2.0), (0.1, 2.0)))
        (structured,) = diagnostics.structure_warnings(found, 2, axes, cases)
        assert structure in str(structured)
        assert ("cases=" in structure) == ("cases=" in str(structured))
        (outlying,) = diagnostics.noisy_slab_warnings({0: np.array([1, 2])}, axes, cases)
        assert ("cases=" in str(outlying)) == bool(bad_slabs)
        assert str(outlying).endswith(bad_slabs and f"try {bad_slabs}")

    def test_indices_have_their_labels(self):
        names = [f"patient {k}" for k in range(30)]
        axes = Axes(("sample", "nm"), (names, [300.0 + 2.5 * k for k in range(30)]))
        (outlying,) = diagnostics.noisy_slab_warnings({0: np.array([1, 20])}, axes)
        assert "2 slabs of sample with far more noise than the others (patient 1, patient 20)" in (
            str(outlying)
        )
        assert outlying.numbers["slabs"] == [1, 20]
        for mode, words in ((0, "patient 3): if these may be bad samples"), (1, "307.5): look at")):
            factors = [np.ones((30, 1))] * 3
            factors[mode] = np.eye(30)[:, 3:4]
            three = Axes((*axes.modes, "day"), (*axes.labels, None))
            (narrow,) = diagnostics.localisation_warnings(factors, three)
            assert words in str(narrow)
        (unobserved,) = diagnostics.unobserved_slab_warnings((range(9), ()), axes)
        listed = ", ".join(f"patient {k}" for k in range(5))
        assert f"9 slabs of sample without any observed entry ({listed}, ...)" in str(unobserved)
        assert axes.list_indices(0, [7]) == "patient 7"
        assert len(Axes(("a", "b"), (["x" * 90], None)).list_indices(0, [0])) < 40

    def test_nothing_to_say(self):
        assert (
            diagnostics.redundancy_warnings([], None, 3)
            == diagnostics.redundancy_warnings([], 3, 3)
            == []
        )
        assert (
            diagnostics.rejection_warnings(0.6)
            == diagnostics.skipped_stage_warnings(())
            == diagnostics.subset_count_warnings(9, 9)
            == []
        )
        assert (
            diagnostics.bad_sample_warnings(12, 30, 0.4)
            == diagnostics.weak_model_warnings(1.0)
            == []
        )


@pytest.mark.parametrize("name", ["fit.npz", "fit.nc"])
def test_files_keep_them(tmp_path, name):
    sim = robustcp.simulate((24, 24, 24), 3, eta=0.1, gamma=2.0, rng=0)
    fit = cp(sim.data, 2)
    robustcp.save(fit, tmp_path / name)
    again = robustcp.load(tmp_path / name)
    assert again.warnings == fit.warnings != ()
    assert repr(again) == repr(fit)
