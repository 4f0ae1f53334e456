"""The recommended estimator: as good as if somebody had told where the outliers are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

import robustcp
from robustcp import (
    Contaminated,
    Huber,
    KruskalTensor,
    LeastSquares,
    Observed,
    Tukey,
    cp,
    simulate,
)
from robustcp import factor_match_score as score
from robustcp.constraints import Nonnegative
from robustcp.engines.algebra import algebra_for
from robustcp.engines.normal_equations import NormalEquations
from robustcp.noise import fit_contaminated_normal
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from robustcp.studies.paper import METHODS
from support.oracles import host


class TestRecovery:
    @pytest.mark.parametrize(
        "cell",
        [
            (0.2, 2.0),
            *(pytest.param(c, marks=pytest.mark.recovery) for c in ((0.1, 0.5), (0.2, 0.5))),
        ],
    )
    def test_as_good_as_the_oracle(self, cell):
        sims = [simulate(eta=cell[0], gamma=cell[1], rng=seed) for seed in range(3)]
        fits = [cp(sim.data, 5) for sim in sims]
        ours = np.median([score(fit, sim.truth) for fit, sim in zip(fits, sims, strict=True)])
        told = np.median([score(METHODS["oracle"](sim), sim.truth) for sim in sims])
        assert ours >= told - 0.002
        for fit, sim in zip(fits, sims, strict=True):
            assert fit.scale == pytest.approx(sim.sigma, rel=0.03)
            assert [name for name, _ in fit.stages] == ["L1", "refinement"]

    @pytest.mark.slow
    @pytest.mark.parametrize("eta", [0.1, 0.2])
    @pytest.mark.parametrize("gamma", [0.5, 1.0, 1.5, 2.0])
    def test_every_cell_of_the_paper(self, eta, gamma):
        sims = [simulate(eta=eta, gamma=gamma, rng=seed) for seed in range(10)]
        fits = [cp(sim.data, 5) for sim in sims]
        ours = [score(fit, sim.truth) for fit, sim in zip(fits, sims, strict=True)]
        told = [score(METHODS["oracle"](sim), sim.truth) for sim in sims]
        assert np.median(ours) >= np.median(told) - 0.002
        assert min(ours) >= 0.99
        assert all(abs(f.scale / s.sigma - 1) < 0.03 for f, s in zip(fits, sims, strict=True))

    @pytest.mark.recovery
    @pytest.mark.parametrize(
        "settings",
        [
            {"eta": 0.1, "gamma": 1.0, "density": 0.3},
            {"eta": 0.1, "gamma": 1.0, "density": 0.2},
            {"eta": 0.4, "gamma": 2.0},
            {"eta": 0.4, "gamma": 0.5},
        ],
        ids=str,
    )
    def test_sparse_factors_and_many_artifacts(self, settings):
        scores = []
        for seed in range(5):
            sim = simulate(**settings, rng=seed)
            scores.append(score(cp(sim.data, 5), sim.truth))
        assert np.median(scores) >= 0.99

    @pytest.mark.recovery
    def test_half_missing_and_a_fifth_of_the_rest_bad(self):
        scores = []
        for seed in range(3):
            sim = simulate(eta=0.2, gamma=2.0, rng=seed)
            holes = np.random.default_rng(seed + 50).random(sim.data.shape) < 0.5
            scores.append(score(cp(np.where(holes, np.nan, sim.data), 5), sim.truth))
        assert np.median(scores) >= 0.99

    @pytest.mark.recovery
    def test_outliers_of_a_thousand_times_the_data(self):
        scores = []
        for seed in range(3):
            sim = simulate(eta=0.0, gamma=0.0, rng=seed)
            rng = np.random.default_rng(seed + 50)
            hit = rng.random(sim.data.shape) < 0.05
            size = 1000 * np.sqrt(np.mean(sim.data**2))
            wild = np.where(hit, size * rng.choice([-1, 1], hit.shape), sim.data)
            scores.append(score(cp(wild, 5), sim.truth))
        assert np.median(scores) >= 0.99

    @pytest.mark.recovery
    def test_large_tensors_are_tried_on_a_part(self):
        sim = simulate((140, 150, 130), 4, eta=0.2, gamma=2.0, rng=3)
        fit = cp(sim.data, 4)
        assert score(fit, sim.truth) > 0.995
        assert fit.starts.reached >= 1

    @pytest.mark.parametrize("noise", [0.0, "rounded"])
    def test_exact_and_quantised_data(self, noise):
        sim = simulate((20, 19, 18), 2, eta=0.1, gamma=1.0, noise=0.0, rng=0)
        X = np.round(sim.data, 1) if noise == "rounded" else sim.data
        fit = cp(X, 2)
        assert score(fit, sim.truth) > 0.999
        assert np.isfinite(fit.trace).all()

    @pytest.mark.parametrize("share", [0.5, 0.6, 0.65])
    def test_more_than_half_may_be_outliers(self, share):
        rng = np.random.default_rng(1)
        sim = simulate((20, 20, 20), 1, eta=0.0, gamma=0.0, noise=0.01, rng=0)
        spread = np.where(rng.random(sim.data.shape) < share, sim.data.std(), 0.0)
        fit = cp(sim.data + spread * rng.standard_normal(sim.data.shape), 1)
        assert score(fit, sim.truth) > 0.999
        assert fit.objective == fit.trace[-1]

    def test_rows_that_nothing_fits_are_reported(self):
        sim = simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=1)
        X = sim.data.copy()
        X[3] = 3 * X.max() * np.random.default_rng(1).choice([-1, 1], X[3].shape)
        told = cp(X, 2, init=sim.truth, fixed=(1, 2))
        assert "1 slab of mode 0 with far more noise than the others (3)" in told.status
        fit = cp(X, 2, init=sim.truth, fixed=(1, 2), noise="common")
        assert "20 fibres along mode 1 left out" in fit.status  # all of slab 3
        good = np.delete(np.arange(20), 3)
        true = sim.truth.factors[0] * sim.truth.weights
        found = np.abs(fit.factors[0] * fit.weights)  # row 3 may decide the sign
        pair = np.abs(fit.factors[1].T @ sim.truth.factors[1]).argmax(axis=1)
        np.testing.assert_allclose(found[good], true[good][:, pair], atol=0.05 * true.max())

    def test_bad_slabs_do_not_spoil_the_rest(self):
        sim = simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=1)
        X = sim.data.copy()
        X[3] = 10 * np.random.default_rng(1).standard_normal(X[3].shape)
        fit = cp(X, 2)
        rest = KruskalTensor.from_factors(fit.factors[1:])
        assert score(rest, KruskalTensor.from_factors(sim.truth.factors[1:]), weights=False) > 0.99


class TestNoise:
    @given(
        sigma=st.floats(1e-3, 1e3), share=st.floats(0, 0.35), sided=st.booleans(),
        seed=st.integers(0, 100),
    )  # fmt: skip
    def test_sigma_among_outliers(self, sigma, share, sided, seed):
        rng = np.random.default_rng(seed)
        r = sigma * rng.standard_normal(50_000)
        hit = rng.random(r.size) < share
        far = np.abs(rng.standard_normal(r.size)) * 20 * sigma
        r += np.where(hit, far if sided else far * rng.choice([-1, 1], r.size), 0.0)
        noise = fit_contaminated_normal(r)
        assert noise.sigma == pytest.approx(sigma, rel=0.05)
        assert noise.clean == pytest.approx(1 - share, abs=0.05)
        if sided and share > 0.1:
            assert noise.above > 5 * noise.below

    def test_floor(self):
        assert fit_contaminated_normal(np.zeros(100), 0.5).sigma == 0.5
        assert fit_contaminated_normal(np.array([])).sigma > 0


class TestLosses:
    def test_any_loss_or_list_of_stages(self):
        sim = simulate((15, 15, 15), 2, eta=0.1, gamma=1.0, rng=0)
        own = Stage("mine", Single(Tukey(2.0)), 1e-6)
        for loss in (Huber(0.3), [Huber(0.5), Tukey(1.5)], [own]):
            fit = cp(sim.data, 2, loss=loss)
            assert score(fit, sim.truth) > 0.9
            assert np.all(np.diff(fit.trace[-3:]) <= 0)
        assert fit.stages[0][0] == "mine"

    def test_a_users_own_loss(self, xp):
        class Pseudo:
            def value(self, r):
                return (1 + r * r) ** 0.5 - 1

            def slope(self, r):
                return r / (1 + r * r) ** 0.5

            def curvature(self, r):
                return 1 / (1 + r * r) ** 0.5

        sim = simulate((12, 12, 12), 2, eta=0.1, gamma=1.0, rng=0)
        mine = Pseudo()
        fit = cp(xp.asarray(sim.data), 2, loss=mine)
        assert fit.loss is mine
        assert score(fit, sim.truth) > 0.9
        r = host(fit.residuals(xp.asarray(sim.data)))
        assert fit.objective == pytest.approx(Pseudo().value(r).sum(), rel=1e-4)

    def test_stages_keep_bounds_and_units(self):
        sim = simulate((12, 12, 12), 2, eta=0.1, gamma=1.0, rng=0)
        stage = [Stage("mine", Single(Tukey(1.5)), 1e-6)]
        fit = cp(sim.data - 2, 2, loss=stage, nonnegative=True)
        assert min(A.min() for A in fit.factors) >= 0
        huge = cp(1e250 * sim.data, 2, loss=[Stage("mine", Single(Tukey(1.5e250)), 1e-6)])
        plain = cp(sim.data, 2, loss=stage)
        np.testing.assert_allclose(huge.weights / 1e250, plain.weights, rtol=1e-3)

    def test_least_squares_sees_wild_entries_whole(self):
        X = simulate((6, 6, 6), 1, eta=0, gamma=0, rng=0).data
        X[1, 2, 3] = 1e12
        ours, plain = cp(X, 1, loss=LeastSquares()), robustcp.cpals(X, 1)
        np.testing.assert_allclose(ours.weights, plain.weights, rtol=1e-3)

    def test_losses_are_in_the_units_of_the_data(self):
        sim = simulate((12, 12, 12), 2, eta=0.1, gamma=1.0, rng=0)
        one = cp(sim.data, 2, loss=Huber(0.3), rng=0)
        other = cp(1e250 * sim.data, 2, loss=Huber(0.3e250), rng=0)
        np.testing.assert_allclose(other.weights / 1e250, one.weights, rtol=1e-3)
        assert other.loss.delta == pytest.approx(0.3e250)


class TestMissing:
    def test_nan_masked_and_observed_are_the_same(self):
        sim = simulate((14, 13, 12), 2, eta=0.1, gamma=1.0, rng=0)
        holes = np.random.default_rng(9).random(sim.data.shape) < 0.3
        gaps = np.where(holes, np.nan, sim.data)
        masked = np.ma.MaskedArray(np.where(holes, 1e9, sim.data), holes)
        rng = np.random.default_rng(1)
        indices = rng.permutation(np.argwhere(~holes))
        seen = Observed(indices, sim.data[tuple(indices.T)], sim.data.shape)
        fits = [cp(X, 2, init=sim.truth) for X in (gaps, masked, seen)]
        for fit in fits:
            assert score(fit, sim.truth) > 0.98
            np.testing.assert_allclose(fit.full(), fits[0].full(), atol=1e-6)
        assert np.isnan(fits[0].residuals(gaps)).sum() == holes.sum()
        assert fits[2].residuals(seen).shape == seen.values.shape
        np.testing.assert_allclose(fits[2].outliers(seen).slabs[0], fits[0].outliers(gaps).slabs[0])

    def test_observed_results_are_in_the_order_given(self):
        sim = simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
        indices = np.random.default_rng(0).permutation(np.argwhere(np.ones(sim.data.shape)))
        values = sim.data[tuple(indices.T)]
        X = Observed(indices, values, sim.data.shape)
        fit = cp(X, 2)
        found = fit.outliers(X)
        np.testing.assert_allclose(found.scores * found.scale, values - fit.at(indices))
        assert np.array_equal(X.indices, indices)

    def test_masked_values_are_refused(self):
        with pytest.raises(ValueError, match=r"^values: masked"):
            Observed([[0, 0], [1, 1]], np.ma.array([1.0, 9.0], mask=[0, 1]), (2, 2))

    @pytest.mark.parametrize("bad", [[[0, 0]], [[0, 0, -1]], [[0, 0, 99]], [[0.5, 0, 0]]])
    def test_bad_places_to_predict(self, bad):
        fit = cp(simulate((6, 5, 4), 1, eta=0, gamma=0, rng=0).data, 1)
        with pytest.raises(ValueError, match=r"^indices: "):
            fit.at(bad)

    @pytest.mark.parametrize("method", [cp, robustcp.cpal1, robustcp.cpals])
    def test_slabs_without_an_entry_are_unknown_and_warned_of(self, method):
        sim = simulate((10, 9, 8), 1, eta=0.0, gamma=0.0, rng=0)
        X = sim.data.copy()
        X[4], X[:, :, 2] = np.nan, np.nan
        fit = method(X, 1)
        warnings = [w for w in fit.warnings if w.code == "unobserved"]
        assert [w.numbers for w in warnings] == [
            {"mode": 0, "slabs": [4]},
            {"mode": 2, "slabs": [2]},
        ]
        assert str(warnings[0]).startswith("1 slab of mode 0 without any observed entry (4)")
        assert fit.unobserved == ((4,), (), (2,))
        assert np.all(fit.factors[0][4] == 0)
        np.testing.assert_array_equal(np.isnan(fit.full()), np.isnan(X))
        np.testing.assert_array_equal(np.isnan(fit.residuals(sim.data)), np.isnan(X))
        assert np.isnan(fit.at([(4, 0, 0), (0, 0, 2), (0, 0, 0)])).tolist() == [True, True, False]

    def test_slabs_without_an_entry_follow_their_neighbours(self):
        X = simulate((10, 9, 8), 1, eta=0.0, gamma=0.0, rng=0).data.copy()
        X[4] = np.nan
        fit = cp(X, 1, constraints={0: robustcp.Smooth(1.0)})
        assert not any(fit.unobserved)
        assert "unobserved" not in [w.code for w in fit.warnings]
        assert np.isfinite(fit.full()).all()

    def test_integers_with_a_mask(self):
        X = np.round(50 * simulate((10, 9, 8), 1, eta=0, gamma=0, rng=0).data).astype(np.int16)
        fit = cp(np.ma.masked_equal(X, X.max()), 1)
        assert fit.weights.dtype == np.float64

    def test_one_entry_is_missing(self):
        X = simulate((10, 9, 8), 1, eta=0.0, gamma=0.0, rng=0).data
        X[0, 0, 0] = np.nan
        for method in (robustcp.cpal1, robustcp.cpals, cp):
            fit = method(X, 1)
            assert abs(fit.full()[0, 0, 0]) < np.nanmax(X)

    @pytest.mark.parametrize(
        ("indices", "values", "shape", "message"),
        [
            ([[0, 0], [2, 0]], [1.0, 2.0], (2, 2), r"indices: outside of \(2, 2\): \(2, 0\)"),
            ([[0, -1]], [1.0], (2, 2), r"indices: outside .*\(0, -1\)"),
            ([[0, 1], [1, 1], [0, 1]], [1.0] * 3, (2, 2), r"indices: .*more than once: \(0, 1\)"),
            ([[0.5, 1.0]], [1.0], (2, 2), "indices: must be integers"),
            ([[0, 1, 1]], [1.0], (2, 2), r"indices: must be .*\(count, 2\)"),
            ([[0, 1]], [1.0, 2.0], (2, 2), r"values: must have shape \(1,\)"),
            ([[0, 1]], [np.nan], (2, 2), r"values: not finite at \(0, 1\)"),
            (np.zeros((0, 2), dtype=int), [], (2, 2), "values: all entries are missing"),
            ([[0]], [1.0], (2,), "shape: "),
        ],
    )  # fmt: skip
    def test_bad_coordinates(self, indices, values, shape, message):
        with pytest.raises(ValueError, match=f"^{message}"):
            Observed(indices, values, shape)

    @pytest.mark.slow
    def test_two_million_entries_of_2000_cubed(self):
        rng = np.random.default_rng(123)
        factors = [np.abs(rng.standard_normal((2000, 5))) for _ in range(3)]
        indices = np.unique(rng.integers(2000, size=(2_000_500, 3)), axis=0)
        indices = rng.permutation(indices)[:2_000_000]
        x = np.ones(len(indices))[:, None]
        for A, index in zip(factors, indices.T, strict=True):
            x = x * A[index]
        x = x.sum(axis=1)
        size = np.sqrt(np.mean(x**2))
        x += 0.1 * size * rng.standard_normal(x.size)
        x += np.where(rng.random(x.size) < 0.1, 5 * size, 0.0)
        fit = cp(Observed(indices, x, (2000, 2000, 2000)), 5)
        assert score(fit, KruskalTensor.from_factors(factors)) >= 0.99


class TestNonnegative:
    @given(rows=st.integers(1, 8), rank=st.integers(1, 6), seed=st.integers(0, 10_000))
    def test_rows_satisfy_kkt_and_equal_nnls(self, rows, rank, seed):
        rng = np.random.default_rng(seed)
        M = rng.standard_normal((rows, 12, rank))
        y = rng.standard_normal((rows, 12))
        G = np.einsum("ijr,ijs->irs", M, M)
        i, j = np.triu_indices(rank)
        old = np.abs(rng.standard_normal((rows, rank))) * (rng.random((rows, rank)) < 0.7)
        gradient = np.einsum("ijr,ij->ir", M, y - np.einsum("ijr,ir->ij", M, old))
        equations = NormalEquations(G[:, i, j], gradient, 0.0)
        u = Nonnegative().solve(equations, old, 0.0, algebra_for(np))
        assert np.all(u >= 0)
        slope = np.einsum("irs,is->ir", G, u) - np.einsum("ijr,ij->ir", M, y)
        scale = np.abs(G).max() * np.abs(u).max() + 1
        assert np.all(slope >= -1e-6 * scale)
        assert np.all(np.abs(slope * u) <= 1e-6 * scale)
        for k in range(rows):
            np.testing.assert_allclose(u[k], nnls(M[k], y[k])[0], atol=1e-6)

    def test_fits_satisfy_kkt_row_by_row(self):
        sim = simulate((15, 14, 13), 3, eta=0.1, gamma=1.0, density=0.5, rng=0)
        for bounds in (True, (True, False, True)):
            fit = cp(sim.data, 3, nonnegative=bounds, tol=1e-10, max_sweeps=3000)
            each = bounds if isinstance(bounds, tuple) else (True,) * 3
            for A, bounded in zip(fit.factors, each, strict=True):
                assert not bounded or np.all(A >= 0)
            assert score(fit, sim.truth) > 0.98
        fit = cp(sim.data, 3, nonnegative=True, tol=1e-12, max_sweeps=5000)
        engine = robustcp.as_engine(sim.data)
        factors = fit.model.absorbed()
        for mode in range(3):
            equations = engine.normal_equations(factors, mode, fit.loss)
            again = Nonnegative().solve(equations, factors[mode], 0.0, engine.algebra)
            i, j = np.triu_indices(3)
            G = np.zeros((len(again), 3, 3))
            G[:, i, j] = G[:, j, i] = equations.gram
            step = again - factors[mode]
            slope = np.einsum("irs,is->ir", G, step) - equations.gradient
            size = np.abs(equations.gram).max() * np.abs(factors[mode]).max()
            assert np.all(slope >= -1e-6 * size)
            assert np.all(np.abs(slope * again) <= 1e-6 * size * np.abs(again).max())

    def test_objective_never_rises(self):
        rng = np.random.default_rng(0)
        fit = cp(rng.standard_normal((8, 7, 6)), 3, nonnegative=True, loss=LeastSquares())
        assert np.all(np.diff(fit.trace) <= 0)
        assert all((A >= 0).all() for A in fit.factors)

    def test_any_library(self, xp):
        sim = simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
        fit = cp(xp.asarray(sim.data), 2, nonnegative=True)
        assert score(fit, sim.truth) > 0.97


class TestFixedAndProject:
    sim = simulate((30, 15, 14), 2, eta=0.1, gamma=1.0, rng=0)

    def test_fixed_modes_stay(self):
        truth = self.sim.truth
        fit = cp(self.sim.data, 2, init=truth, fixed=(1, 2))
        for mode in (1, 2):
            match = np.abs(fit.factors[mode].T @ truth.factors[mode]).max(axis=1)
            np.testing.assert_allclose(match, 1.0, atol=1e-12)
        assert score(fit, truth) > 0.99

    def test_fixed_modes_are_not_touched_by_bounds_or_gaps(self):
        A, B, C = (np.array(F) for F in self.sim.truth.absorbed())
        fit = cp(self.sim.data, 2, init=[-A, -B, C], fixed=[1], nonnegative=(False, True, False))
        assert score(fit, self.sim.truth) > 0.98
        X = self.sim.data.copy()
        X[:, 4] = np.nan
        fit = cp(X, 2, init=[A, B, C], fixed=[1])
        unit = B / np.linalg.norm(B, axis=0)
        pair = np.abs(fit.factors[1].T @ unit).argmax(axis=1)
        np.testing.assert_allclose(np.abs(fit.factors[1][4]), unit[4, pair], atol=1e-9)

    def test_nonnegative_scores(self):
        fit = cp(self.sim.data, 2, nonnegative=True)
        assert (fit.project(-np.abs(self.sim.data[:2]), nonnegative=True) >= 0).all()

    def test_new_samples_get_the_scores_they_would_have_had(self):
        fit = cp(self.sim.data[:20], 2)
        scores = fit.project(self.sim.data[20:])
        true = self.sim.truth.factors[0][20:] * self.sim.truth.weights
        pair = np.abs(fit.factors[1].T @ self.sim.truth.factors[1]).argmax(axis=1)
        np.testing.assert_allclose(scores, true[:, pair], atol=0.06 * np.abs(true).max())
        old = fit.project(self.sim.data[:20])
        np.testing.assert_allclose(old, fit.factors[0] * fit.weights, atol=0.03 * fit.weights.max())

    def test_other_modes_and_gaps(self):
        fit = cp(self.sim.data, 2)
        part = self.sim.data[:, 3:7].copy()
        part[0, 0, 0] = np.nan
        assert fit.project(part, mode=1).shape == (4, 2)

    def test_shapes_must_match(self):
        fit = cp(self.sim.data, 2)
        with pytest.raises(ValueError, match=r"^X: has shape \(5, 15, 13\), .*\('any', 15, 14\)"):
            fit.project(np.ones((5, 15, 13)))
        with pytest.raises(ValueError, match=r"^mode: "):
            fit.project(self.sim.data, mode=3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"starts": 0}, "starts: .*got 0"),
        ({"starts": -3}, "starts: .*got -3"),
        ({"starts": "many"}, "starts: .*got 'many'"),
        ({"nonnegative": (True, False)}, "nonnegative: must be a bool or 3"),
        ({"nonnegative": "yes"}, "nonnegative: "),
        ({"loss": []}, "loss: an empty list"),
        ({"loss": [None]}, "loss: None has no value"),
        ({"loss": Huber}, "loss: must be a loss such as"),
        ({"nonnegative": None}, "nonnegative: "),
        ({"fixed": 0}, "fixed: must be a list of modes, got 0"),
        ({"loss": object()}, "loss: .*has no value, slope, curvature"),
        ({"loss": [Huber(), 3]}, "loss: 3 has no"),
        ({"fixed": (0,)}, "fixed: needs the factors"),
        ({"fixed": (0, 1, 2), "init": [np.ones((n, 1)) for n in (4, 5, 6)]}, "fixed: must leave"),
        ({"fixed": (7,), "init": [np.ones((n, 1)) for n in (4, 5, 6)]}, "fixed: .*got 7"),
        ({"init": "zeros"}, "init: .*got 'zeros'"),
    ],
)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        cp(np.ones((4, 5, 6)), 1, **bad)


def test_seed_and_starts_are_reported():
    X = simulate((15, 15, 15), 3, eta=0.2, gamma=2.0, rng=0).data
    a, b = (cp(X, 3, rng=5) for _ in range(2))
    assert np.array_equal(a.trace, b.trace)
    assert len(a.starts) == len(b.starts) >= 2
    assert len(cp(X, 3, starts=9).starts) == 9
    assert f"of {len(a.starts)} reached the best" in repr(a.starts)


def test_starts_are_not_the_numbers_of_the_data():
    """With one seed for both, a random start must not be the truth."""
    truth = simulate((20, 20, 20), 3, eta=0, gamma=0, noise=0, rng=0).truth
    start = robustcp.starts.random.random_factors(
        robustcp.as_engine(np.ones((20, 20, 20))), 3, robustcp._util.checks.generator(0)
    )
    positive = KruskalTensor.from_factors([np.abs(A) for A in start])
    assert score(positive, truth, weights=False) < 0.9


def test_contaminated_is_the_loss_of_the_fit():
    sim = simulate((20, 20, 20), 2, eta=0.2, gamma=2.0, rng=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = cp(sim.data, 2)
    assert isinstance(fit.loss, Contaminated)
    assert fit.loss.sigma == pytest.approx(sim.sigma, rel=0.05)
