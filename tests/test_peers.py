"""What TensorLy's tests of parafac and pyttb's of cp_als check, asked of this package; and
TensorLy-Viz, which takes a Fit as TensorLy's pair.

Each class says whose tests it follows; the tests are written anew, in this package's terms. What
has no counterpart here is left out: complex data, `orthogonalise`, ttensors, class wrappers, and
how much is printed.
"""

from __future__ import annotations

import numpy as np
import pytest

import robustcp
from robustcp import KruskalTensor

tensorly = pytest.importorskip("tensorly")


def model(shape, rank, seed, *, positive=False, orthogonal=False):
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, rank)) if positive else rng.standard_normal((n, rank)) for n in shape]
    if orthogonal:
        factors = [np.linalg.qr(A)[0] for A in factors]
    return KruskalTensor.from_factors(factors)


def relative_error(X, fit):
    return np.linalg.norm(X - fit.full()) / max(np.linalg.norm(X), 1e-300)


METHODS = pytest.mark.parametrize("method", [robustcp.cp, robustcp.cpal1, robustcp.cpals])


class TestParafac:
    """TensorLy: test_parafac, test_masked_parafac, test_parafac_linesearch and those beside."""

    @METHODS
    @pytest.mark.parametrize("init", ["nvecs", "random"])
    @pytest.mark.parametrize(("true_rank", "rank"), [(1, 1), (3, 4)])
    @pytest.mark.parametrize("orthogonal", [False, True])
    @pytest.mark.parametrize("seed", [1, 1234])
    def test_a_model_is_found(self, method, init, true_rank, rank, orthogonal, seed):
        X = model((6, 8, 7), true_rank, seed, orthogonal=orthogonal).full()
        fit = method(X, rank, init=init, rng=seed, max_sweeps=300)
        assert relative_error(X, fit) < 0.01
        assert np.abs(X - fit.full()).max() < 0.05

    @pytest.mark.recovery
    @METHODS
    def test_the_same_seed_gives_the_same_fit(self, method):
        X = model((6, 8, 7), 3, 1).full()
        one, two = (method(X, 4, init="random", rng=7) for _ in range(2))
        np.testing.assert_array_equal(one.trace, two.trace)
        for A, B in zip(one.factors, two.factors, strict=True):
            np.testing.assert_array_equal(A, B)

    @pytest.mark.parametrize("method", [robustcp.cpal1, robustcp.cpals])
    @pytest.mark.parametrize("init", ["nvecs", "random"])
    def test_errors_never_rise(self, method, init):
        told = []
        X = model((6, 8, 7), 3, 1).full()
        fit = method(X, 4, init=init, callback=lambda state: told.append(state.objective))
        assert np.diff(told).max(initial=0) <= 1e-9 * told[0]
        assert len(told) == fit.sweeps

    @pytest.mark.parametrize("mode", [0, 1, 2])
    def test_fixed_modes_stay(self, mode):
        X, begin = model((6, 8, 7), 2, 1).full(), model((6, 8, 7), 2, 5)
        fit = robustcp.cp(X, 2, init=begin, fixed=[mode], max_sweeps=2)
        A, B = fit.factors[mode], begin.factors[mode] / np.linalg.norm(begin.factors[mode], axis=0)
        cosines = np.abs(A.T @ B)
        np.testing.assert_allclose(np.sort(cosines.max(axis=0)), [1, 1], atol=1e-12)

    def test_a_sparse_part_is_told_from_the_model(self):
        truth = model((12, 11, 10), 2, 1)
        X = truth.full()
        spikes = np.random.default_rng(0).random(X.shape) < 0.1
        fit = robustcp.cp(X + np.where(spikes, 50.0, 0.0), 2)
        assert relative_error(X, fit) < 0.01
        np.testing.assert_array_equal(fit.outliers(X + np.where(spikes, 50.0, 0.0)).mask, spikes)

    def test_a_kind_of_start_that_is_not_there(self):
        with pytest.raises(ValueError, match="init: must be one of"):
            robustcp.cpals(np.ones((2, 2)), 1, init="bogus init type")

    @METHODS
    def test_missing_entries_are_not_seen(self, method):
        X = model((6, 6, 6), 1, 3).full()
        hidden = np.zeros(X.shape, dtype=bool)
        hidden[1, :, 3] = hidden[:, 2, 3] = True
        fit = method(np.where(hidden, np.nan, X), 1)
        assert relative_error(X, fit) < 1e-3
        weighted = method(np.where(hidden, -10000.0, X), 1, entry_weights=~hidden)
        assert relative_error(X, weighted) < 1e-3

    def test_carrying_sweeps_on_does_no_harm(self):
        X = np.random.default_rng(1234).random((5, 5, 5))
        fit = robustcp.cpals(X, 5, init="random", rng=1234, max_sweeps=10, tol=0)
        plain = tensorly.decomposition.parafac(
            tensorly.tensor(X), 5, init="random", random_state=1234, n_iter_max=10, tol=1e-8
        )
        theirs = np.linalg.norm(X - tensorly.cp_to_tensor(plain)) / np.linalg.norm(X)
        assert relative_error(X, fit) - theirs < 0.1

    def test_any_order(self):
        for shape in [(6, 7), (4, 5, 6), (4, 3, 5, 4), (3, 2, 3, 2, 3)]:
            X = model(shape, 1, 2).full()
            assert relative_error(X, robustcp.cpals(X, 1)) < 1e-6

    @pytest.mark.recovery
    def test_a_rank_beyond_a_size(self):
        X = model((3, 8, 9), 4, 2).full()
        assert relative_error(X, robustcp.cpals(X, 4, init="random", starts=5, tol=0)) < 0.01


@pytest.mark.recovery
class TestNonnegativeParafac:
    """TensorLy: test_non_negative_parafac and those beside."""

    @pytest.mark.parametrize("init", ["nvecs", "random"])
    @pytest.mark.parametrize("rank", [1, 3])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_factors_are_not_negative(self, init, rank, seed):
        X = model((6, 3, 12), rank, seed, positive=True).full()
        fit = robustcp.cp(X, rank, nonnegative=True, init=init, rng=seed)
        assert min(A.min() for A in fit.factors) >= 0
        assert relative_error(X, fit) < 0.07
        assert np.abs(X - fit.full()).max() < 0.1

    @pytest.mark.parametrize("mode", [0, 1])
    def test_fixed_modes_stay(self, mode):
        truth = model((6, 3, 12), 3, 1, positive=True)
        fit = robustcp.cp(truth.full(), 3, nonnegative=True, init=truth, fixed=[mode], max_sweeps=1)
        wanted = truth.factors[mode] / np.linalg.norm(truth.factors[mode], axis=0)
        cosines = fit.factors[mode].T @ wanted
        np.testing.assert_allclose(cosines.max(axis=0), 1, atol=1e-12)

    def test_a_start_is_not_changed(self):
        factors = [-np.ones((30, 3)), -np.ones((20, 3)), -np.ones((10, 3))]
        robustcp.cp(KruskalTensor.from_factors(factors).full(), 3, nonnegative=True, init=factors)
        assert all((A == -1).all() for A in factors)

    def test_one_mode_may_be_negative(self):
        rng = np.random.default_rng(1234)
        A, B, C = rng.random((8, 3)), rng.standard_normal((9, 3)), rng.uniform(0.1, 1.1, (10, 3))
        truth = KruskalTensor(rng.random(3), (A, B, C))
        fit = robustcp.cp(truth.full(), 3, nonnegative=[0, 2], starts=24)  # 8 warn of one start
        assert min(fit.factors[0].min(), fit.factors[2].min()) >= 0
        assert fit.factors[1].min() < 0
        assert robustcp.factor_match_score(fit, truth) > 0.98


class TestCpAls:
    """pyttb: test_cp_als."""

    X = np.array([[29, 39.0], [63.0, 85.0]])
    LISTED = robustcp.Observed([[0, 0], [1, 0], [1, 1]], [0.5, 0.5, 0.5], (2, 2))

    @pytest.mark.parametrize("init", ["nvecs", "random", "given"])
    def test_a_matrix_is_fitted_exactly(self, init):
        start = model((2, 2), 2, 0) if init == "given" else init
        assert relative_error(self.X, robustcp.cpals(self.X, 2, init=start, tol=1e-12)) < 1e-5

    def test_a_lower_rank_fits_less(self):
        one = relative_error(self.X, robustcp.cpals(self.X, 1))
        singular = np.linalg.svd(self.X, compute_uv=False)
        assert one == pytest.approx(singular[1] / np.linalg.norm(singular), rel=1e-6)

    @pytest.mark.parametrize("init", ["nvecs", "random", "given"])
    def test_listed_entries_are_fitted_exactly(self, init):
        start = model((2, 2), 2, 0) if init == "given" else init
        fit = robustcp.cpals(self.LISTED, 2, init=start, tol=1e-12)
        np.testing.assert_allclose(fit.residuals(self.LISTED), 0, atol=1e-5)

    def test_listed_zeros_are_as_the_dense_array(self):
        X = np.array([[0.5, 0.0], [0.5, 0.5]])
        every = np.array(list(np.ndindex(2, 2)))
        listed = robustcp.cpals(robustcp.Observed(every, X.ravel(), X.shape), 2)
        assert relative_error(X, listed) < 1e-4

    def test_starts_that_do_not_fit(self):
        with pytest.raises(ValueError, match="init: must be one of"):
            robustcp.cpals(self.X, 2, init="init")
        with pytest.raises(ValueError, match="init: "):
            robustcp.cpals(self.X, 2, init=model((3, 2), 2, 0))
        with pytest.raises(ValueError, match="init: "):
            robustcp.cpals(self.X, 2, init=model((2, 2), 3, 0))

    def test_the_order_of_modes_does_not_matter(self):
        X = model((4, 5, 6), 2, 1).full() + 0.01 * np.random.default_rng(0).random((4, 5, 6))
        one = robustcp.cpals(X, 2, tol=1e-12)
        two = robustcp.cpals(X.transpose(2, 0, 1), 2, tol=1e-12)
        assert one.objective == pytest.approx(two.objective, rel=1e-6)

    @METHODS
    @pytest.mark.parametrize("shape", [(2, 2), (3, 4, 5)])
    def test_zeros(self, method, shape):
        fit = method(np.zeros(shape), 2)
        assert not np.asarray(fit.full()).any()

    def test_listed_zeros(self):
        at = np.array([[0, 0, 0], [1, 1, 1], [0, 1, 1]])
        fit = robustcp.cpals(robustcp.Observed(at, np.zeros(3), (2, 2, 2)), 1)
        assert not np.asarray(fit.full()).any()

    def test_the_same_call_gives_the_same_fit(self):
        start = model((2, 2), 2, 0)
        one, two = (robustcp.cpals(self.X, 2, init=start, max_sweeps=2) for _ in range(2))
        np.testing.assert_array_equal(one.trace, two.trace)

    def test_nothing_is_printed(self, capsys):
        robustcp.cp(self.X, 1)
        assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def data():
    return robustcp.simulate((10, 9, 8), 2, eta=0.05, gamma=1.0, rng=0).data


@pytest.fixture(scope="module")
def fit(data):
    return robustcp.cp(data, 2)


class TestAsTensorlysPair:
    def test_it_unpacks_and_indexes(self, fit):
        weights, factors = fit
        assert len(fit) == 2
        assert fit[0] is weights
        assert [A is B for A, B in zip(fit[1], factors, strict=True)] == [True] * 3
        assert fit[-1] is not None
        with pytest.raises(IndexError):
            fit[2]
        np.testing.assert_allclose(tensorly.cp_to_tensor(fit), fit.full())
        np.testing.assert_allclose(tensorly.cp_tensor.CPTensor(fit).to_tensor(), fit.full())

    def test_a_model_of_ours_does_so_too(self, fit):
        np.testing.assert_allclose(tensorly.cp_to_tensor(fit.model), fit.full())

    def test_tensorly_viz_takes_it(self, data, fit):
        tlviz = pytest.importorskip("tlviz")
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt

        pair = fit.to_tensorly()
        theirs = tlviz.model_evaluation.core_consistency(pair, data)
        assert tlviz.model_evaluation.core_consistency(fit, data) == pytest.approx(theirs)
        done = tlviz.postprocessing.postprocess(fit, data)
        np.testing.assert_allclose(tensorly.cp_to_tensor(done), fit.full(), atol=1e-9)
        _, axes = tlviz.visualisation.component_comparison_plot({"cp": fit, "pair": pair})
        assert len(np.ravel(axes)) == 6
        tlviz.visualisation.components_plot(fit)
        tlviz.visualisation.core_element_plot(fit, data)
        tlviz.visualisation.percentage_variation_plot(fit, data, method="both")
        plt.close("all")
        assert tlviz.factor_tools.factor_match_score(fit, pair) == pytest.approx(1)

    def test_tensorly_viz_takes_labelled_fits(self, data):
        tlviz = pytest.importorskip("tlviz")
        xarray = pytest.importorskip("xarray")
        names = {"a": [f"s{k}" for k in range(10)], "b": range(9), "c": range(8)}
        X = xarray.DataArray(data, dims=("a", "b", "c"), coords=names)
        done = tlviz.postprocessing.postprocess(robustcp.cp(X, 2), X)
        assert list(done[1][0].index) == [f"s{k}" for k in range(10)]

    def test_core_consistency_beside_theirs(self):
        tlviz = pytest.importorskip("tlviz")
        theirs = tlviz.model_evaluation.core_consistency
        for eta, gamma in ((0.0, 0.0), (0.2, 2.0)):
            sim = robustcp.simulate((20, 18, 16), 3, eta=eta, gamma=gamma, rng=1)
            found = robustcp.cp(sim.data, 3)
            assert robustcp.core_consistency(found, sim.data) > 99
            assert (theirs(found, sim.data) > 99) == (eta == 0)

    def test_our_score_is_theirs(self, fit):
        tlviz = pytest.importorskip("tlviz")
        other = model((10, 9, 8), 2, 1)
        for weights, skip in [(False, None), (True, None), (False, 1)]:
            ours, order = robustcp.factor_match_score(
                fit, other, weights=weights, skip_mode=skip, return_permutation=True
            )
            theirs, permutation = tlviz.factor_tools.factor_match_score(
                other.to_tensorly(), fit.to_tensorly(), consider_weights=weights, skip_mode=skip,
                return_permutation=True,
            )  # fmt: skip
            assert ours == pytest.approx(theirs)
            assert list(order) == list(permutation)
