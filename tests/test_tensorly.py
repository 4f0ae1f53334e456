"""The drop-in for TensorLy: signatures and meanings, TensorLy's own tests, programs that use it."""

from __future__ import annotations

import inspect
import logging
import os
import re
import subprocess
import sys
import venv
import warnings
from pathlib import Path

import numpy as np
import pytest

import robustcp
from robustcp import tensorly as ours

tensorly = pytest.importorskip("tensorly")
theirs = pytest.importorskip("tensorly.decomposition")
CPTensor = tensorly.cp_tensor.CPTensor

FUNCTIONS = ("parafac", "non_negative_parafac", "non_negative_parafac_hals")
CLASSES = ("CP", "CP_NN", "CP_NN_HALS")
SHAPE = (12, 11, 10)


def function(name):
    return getattr(ours, name)


@pytest.fixture(scope="module")
def sim():
    """Nonnegative data with 10% of its entries far too large."""
    return robustcp.simulate(SHAPE, 2, eta=0.1, gamma=3.0, rng=5)


@pytest.fixture(scope="module")
def noisy(sim):
    """The same model with noise, and nothing wrong."""
    return sim.truth.full() + 0.05 * np.random.default_rng(0).standard_normal(SHAPE)


def relative_error(X, model, mask=None):
    """TensorLy's definition, in which missing entries are imputed by the model."""
    estimate = tensorly.cp_to_tensor(model)
    filled = X if mask is None else np.where(mask, X, estimate)
    return np.linalg.norm(filled - estimate) / np.linalg.norm(filled)


def arguments(signature, without=()):
    parameters = signature.parameters.values()
    return [(each.name, each.default) for each in parameters if each.name not in without]


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES)
def test_signatures_are_those_of_tensorly(name):
    mine, original = function(name), getattr(theirs, name)
    signature = inspect.signature(mine)
    assert signature.parameters["robust"].kind is inspect.Parameter.KEYWORD_ONLY
    assert signature.parameters["robust"].default is True
    assert arguments(signature, ("robust",)) == arguments(inspect.signature(original))
    assert "robust" in inspect.getdoc(mine).splitlines()[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_robust_by_default_and_least_squares_if_asked(name, sim):
    model = function(name)(sim.data, 2)
    assert type(model) is CPTensor
    assert robustcp.factor_match_score(model, sim.truth) > 0.98
    assert model.fit.outliers(sim.data).mask[sim.artifacts].mean() > 0.9
    plain, errors = function(name)(sim.data, 2, robust=False, return_errors=True)
    reference, _ = getattr(theirs, name)(
        sim.data, 2, return_errors=True, n_iter_max=1000, tol=1e-12
    )
    assert robustcp.factor_match_score(plain, sim.truth) < 0.9
    assert errors[-1] <= relative_error(sim.data, reference) * (1 + 1e-4)
    assert np.all(np.diff(errors) <= 1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_least_squares_agrees_with_tensorly(noisy, normalize):
    model = ours.parafac(noisy, 2, robust=False, normalize_factors=normalize)
    reference = theirs.parafac(noisy, 2, normalize_factors=normalize)
    difference = tensorly.cp_to_tensor(model) - tensorly.cp_to_tensor(reference)
    assert np.linalg.norm(difference) < 1e-4 * np.linalg.norm(noisy)


@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("given", ["all", "mask", "nan"])
@pytest.mark.parametrize("name", FUNCTIONS[:2])
def test_errors_are_relative_as_tensorly_defines_them(name, given, robust, noisy):
    mask = np.random.default_rng(1).random(SHAPE) < (1.0 if given == "all" else 0.7)
    X = np.where(mask, noisy, np.nan if given == "nan" else noisy)
    options = {"mask": mask} if given == "mask" else {}
    model, errors = function(name)(X, 2, return_errors=True, robust=robust, **options)
    assert errors[-1] == pytest.approx(relative_error(noisy, model, mask), rel=1e-9)
    assert all(isinstance(error, np.floating) for error in errors)


@pytest.mark.parametrize("robust", [True, False])
def test_masks_mean_observed_where_1(noisy, robust):
    mask = np.random.default_rng(1).random(SHAPE) < 0.7
    spoiled = np.where(mask, noisy, -1e4)
    models = [
        ours.parafac(spoiled, 2, mask=mask, robust=robust),
        ours.parafac(spoiled, 2, mask=mask.astype(float), robust=robust),
        ours.parafac(np.where(mask, noisy, np.nan), 2, robust=robust),
    ]
    full = [tensorly.cp_to_tensor(model) for model in models]
    np.testing.assert_allclose(full[1], full[0], atol=1e-8)
    np.testing.assert_allclose(full[2], full[0], atol=1e-6)
    if not robust:
        filled = np.where(mask, noisy, 0.0)
        reference = theirs.parafac(filled, 2, mask=mask, init="random", random_state=0, tol=1e-12,
                                   n_iter_max=2000)  # fmt: skip
        np.testing.assert_allclose(full[0], tensorly.cp_to_tensor(reference), atol=1e-3)


def test_normalize_factors(sim):
    plain, unit = (ours.parafac(sim.data, 2, normalize_factors=flag) for flag in (False, True))
    assert np.all(plain.weights == 1)
    for A in unit.factors:
        np.testing.assert_allclose(np.linalg.norm(A, axis=0), 1)
    np.testing.assert_allclose(plain.to_tensor(), unit.to_tensor())
    np.testing.assert_allclose(plain.fit.full(), unit.to_tensor())


def test_sparsity_is_the_largest_residuals(sim):
    (model, sparse), errors = ours.parafac(sim.data, 2, sparsity=0.1, return_errors=True)
    residuals = sim.data - model.to_tensor()
    largest = np.sort(abs(residuals), axis=None)[-int(0.1 * residuals.size)]
    np.testing.assert_allclose(sparse, np.where(abs(residuals) < largest, 0, residuals), atol=1e-9)
    assert (sparse != 0)[sim.artifacts].mean() > 0.9
    rest = np.linalg.norm(residuals - sparse) / np.linalg.norm(sim.data)
    assert errors[-1] == pytest.approx(rest)
    mask = np.ones(SHAPE)
    mask[3, :5] = 0
    seen = []
    _, sparse = ours.parafac(sim.data, 2, sparsity=50, mask=mask, robust=False, n_iter_max=3,
                             callback=lambda both, error: seen.append(both))  # fmt: skip
    assert np.count_nonzero(sparse) == 50
    assert not sparse[3, :5].any()
    assert all(np.count_nonzero(part) == 50 for _, part in seen)


def test_l2_reg_is_the_ridge_of_least_squares(noisy):
    model = ours.parafac(noisy, 2, l2_reg=3.0, robust=False, tol=1e-13, n_iter_max=2000)
    A, B, C = model.factors
    residuals = noisy - model.to_tensor()
    for gradient, factor in (
        (np.einsum("ijk,jr,kr->ir", residuals, B, C), A),
        (np.einsum("ijk,ir,kr->jr", residuals, A, C), B),
        (np.einsum("ijk,ir,jr->kr", residuals, A, B), C),
    ):
        np.testing.assert_allclose(gradient, 3.0 * factor, atol=1e-3 * abs(gradient).max())


# Initial factors and fixed modes


@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("fixed", [[0], [1], [2], [0, 2], [-1]])
def test_fixed_modes_stay_as_they_were(name, fixed, robust, sim):
    factors = [A[:, ::-1] * scale for A, scale in zip(sim.truth.factors, (1, 3, 0.2), strict=True)]
    init = CPTensor((np.array([2.0, 5.0]), [A.copy() for A in factors]))
    model = function(name)(sim.data, 2, init=init, fixed_modes=fixed, robust=robust)
    for mode in fixed:
        np.testing.assert_array_equal(model.factors[mode], factors[mode])
    for A, before in zip(init.factors, factors, strict=True):
        np.testing.assert_array_equal(A, before)
    np.testing.assert_allclose(model.to_tensor(), model.fit.full(), atol=1e-9)
    if robust:
        assert robustcp.factor_match_score(model, sim.truth) > 0.98


def test_fixed_columns_keep_their_order_and_signs(noisy):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((12, 2))
    A[:, 1] = -2 * A[:, 0]  # parallel columns can be paired either way
    init = (None, [A, rng.standard_normal((11, 2)), rng.standard_normal((10, 2))])
    model = ours.parafac(noisy, 2, init=init, fixed_modes=[0], robust=False)
    np.testing.assert_array_equal(model.factors[0], A)
    np.testing.assert_allclose(model.to_tensor(), model.fit.full(), atol=1e-9)


@pytest.mark.parametrize("robust", [True, False])
def test_new_data_with_the_factors_of_other_data(sim, robust):
    first = ours.parafac(sim.data[:, :, :6], 2)
    model = ours.parafac(sim.data, 2, init=first, fixed_modes=[0, 1], robust=robust)
    assert [A.shape for A in model.factors] == [(12, 2), (11, 2), (10, 2)]
    assert [A.shape for A in first.factors] == [(12, 2), (11, 2), (6, 2)]
    np.testing.assert_array_equal(model.factors[1], first.factors[1])
    if robust:
        assert robustcp.factor_match_score(model, sim.truth) > 0.95
    with pytest.raises(ValueError, match="init: the factor of the fixed mode 2 has 6 rows"):
        ours.parafac(sim.data, 2, init=first, fixed_modes=[2])


def test_all_modes_fixed_returns_the_initial_factors(sim):
    init = CPTensor((np.array([2.0, 5.0]), list(sim.truth.factors)))
    model, errors = ours.parafac(sim.data, 2, init=init, fixed_modes=[0, 1, 2], return_errors=True)
    np.testing.assert_allclose(model.to_tensor(), init.to_tensor())
    assert errors == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_iterations_return_tensorlys_initial_factors(name, sim):
    for init in ("svd", "random"):
        options = {"init": init, "random_state": 3, "n_iter_max": 0}
        model = function(name)(sim.data, 2, **options)
        reference = getattr(theirs, name)(sim.data, 2, **options)
        np.testing.assert_allclose(model.to_tensor(), reference.to_tensor())


def test_a_fit_is_an_initial_value(sim):
    fit = robustcp.cp(sim.data, 2)
    model = ours.parafac(sim.data, 2, init=fit)
    np.testing.assert_allclose(model.to_tensor(), fit.full(), atol=0.02 * abs(fit.full()).max())


# Iterations


@pytest.mark.parametrize("robust", [True, False])
def test_same_random_state_same_bits(sim, robust):
    def factors(state):
        options = {"init": "random", "random_state": state, "robust": robust, "n_iter_max": 5}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ours.parafac(sim.data, 2, **options).factors[0]

    makers = (int, np.random.RandomState, np.random.default_rng)
    for make in makers:
        np.testing.assert_array_equal(factors(make(7)), factors(make(7)))
    np.random.seed(4)  # noqa: NPY002 - None is NumPy's global state for TensorLy
    first, second = factors(None), factors(None)
    np.random.seed(4)  # noqa: NPY002
    np.testing.assert_array_equal(factors(None), first)
    if not robust:
        assert not np.array_equal(first, second)


def test_tol_and_n_iter_max_of_least_squares(noisy):
    assert (
        len(ours.parafac(noisy, 2, tol=0, n_iter_max=37, robust=False, return_errors=True)[1]) == 37
    )
    assert (
        len(ours.parafac(noisy, 2, tol=None, n_iter_max=37, robust=False, return_errors=True)[1])
        == 37
    )
    for criterion in ("abs_rec_error", "rec_error"):
        _, errors = ours.parafac(noisy, 2, tol=1e-5, cvg_criterion=criterion, robust=False,
                                 return_errors=True)  # fmt: skip
        falls = -np.diff(errors)
        assert falls[-1] < 1e-5
        assert np.all(falls[:-1] >= 1e-5)


def test_a_robust_fit_says_that_it_ended_early(sim):
    with pytest.warns(UserWarning, match="n_iter_max: .*n_iter_max=1"):
        ours.parafac(sim.data, 2, n_iter_max=1)
    model = ours.non_negative_parafac_hals(sim.data, 2, tol=0)
    assert robustcp.factor_match_score(model, sim.truth) > 0.98


@pytest.mark.parametrize("robust", [True, False])
def test_callback(sim, robust):
    seen = []
    _, errors = ours.parafac(sim.data, 2, robust=robust, return_errors=True,
                             callback=lambda model, error: seen.append((model, error)))  # fmt: skip
    model, error = seen[-1]
    assert type(model) is CPTensor
    assert relative_error(sim.data, model) == pytest.approx(error)
    if not robust:
        assert [each for _, each in seen] == errors
    seen.clear()

    def third(model, error):
        seen.append(error)
        return len(seen) == 3

    _, errors = ours.parafac(sim.data, 2, robust=robust, return_errors=True, callback=third)
    assert len(seen) == 3
    assert errors == seen


def test_verbose_is_logged(noisy, caplog):
    with caplog.at_level(logging.INFO, logger="robustcp.tensorly"):
        _, errors = ours.parafac(noisy, 2, verbose=1, robust=False, return_errors=True)
    lines = [each.message for each in caplog.records if each.name == "robustcp.tensorly"]
    assert len(lines) == len(errors)
    assert lines[0].startswith("sweep 1: relative error 0.")


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "bogus"}, "init: must be one of 'svd', 'random'"),
        ({"init": 3}, "init: must be 'svd', 'random' or a CPTensor"),
        ({"init": (None, [np.ones((12, 2))])}, "init: has 1 modes"),
        ({"svd": "bogus"}, "svd: must be one of"),
        ({"fixed_modes": [0]}, "fixed_modes: needs the factors to keep in init"),
        ({"fixed_modes": [3], "init": "svd"}, "fixed_modes: must be an integer"),
        ({"l2_reg": 0.1}, "l2_reg: is for least squares, robust=False"),
        ({"l2_reg": -1, "robust": False}, "l2_reg: must be a number >= 0"),
        ({"n_iter_max": -1}, "n_iter_max: must be an integer >= 0"),
        ({"tol": -1}, "tol: must be a number >= 0"),
        ({"sparsity": 1.5}, "sparsity: must be a number >= 0"),
        ({"random_state": "7"}, "random_state: must be a seed"),
        ({"mask": np.ones((2, 3))}, "entry_weights"),
        ({"rank": 0}, "rank: must be an integer >= 1"),
    ],
)
def test_arguments_that_make_no_sense(options, message, noisy):
    with pytest.raises(ValueError, match=re.escape(message)):
        ours.parafac(noisy, **{"rank": 2, **options})


def test_other_arguments(noisy):
    with pytest.raises(TypeError, match="cvg_criterion"):
        ours.parafac(noisy, 2, cvg_criterion="bogus")
    with pytest.raises(ValueError, match="sparsity_coefficients: must be None"):
        ours.non_negative_parafac_hals(noisy, 2, sparsity_coefficients=[0.1, None, None])
    with pytest.raises(ValueError, match="nn_modes: must be one of 'all'"):
        ours.non_negative_parafac_hals(noisy, 2, nn_modes="some")
    with pytest.raises(TypeError, match="complex128"):
        ours.parafac(noisy + 1j, 2)
    with pytest.warns(UserWarning, match="orthogonalise: has no effect"):
        ours.parafac(noisy, 2, orthogonalise=True, robust=False)


def test_rank_as_a_share_of_the_entries(noisy):
    for rank in (0.02, 0.05):
        expected = tensorly.cp_tensor.validate_cp_rank(SHAPE, rank)
        model = ours.parafac(noisy, rank, n_iter_max=0)
        assert model.rank == expected


@pytest.mark.parametrize("modes", [None, {0, 2}, [1], "all"])
def test_nn_modes(modes):
    rng = np.random.default_rng(1)
    X = tensorly.cp_to_tensor((None, [rng.standard_normal((n, 2)) for n in SHAPE]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data has negative entries
        model = ours.non_negative_parafac_hals(X, 2, nn_modes=modes, robust=False)
    for mode in range(3) if modes == "all" else modes or ():
        assert np.all(model.factors[mode] >= 0)
    if modes is None:
        assert relative_error(X, model) < 1e-3


# What comes out


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_library_and_dtype_are_kept(xp, name, sim):
    X = xp.asarray(sim.data, dtype=getattr(xp, name))
    init = (None, [xp.asarray(A.copy(), dtype=X.dtype) for A in sim.truth.factors])
    for options in ({}, {"robust": False}, {"init": init, "fixed_modes": [1]}):
        weights, factors = ours.parafac(X, 2, **options)
        for array in (weights, *factors):
            assert type(array) is type(X)
            assert array.dtype == X.dtype
    _, sparse = ours.parafac(X, 2, sparsity=0.1, mask=xp.ones(SHAPE, dtype=xp.bool), robust=False)
    assert type(sparse) is type(X)


def test_integers_and_data_frames_of_modes_work(sim):
    counts = np.round(20 * sim.data).astype(np.int64)
    assert ours.parafac(counts, 2, robust=False).factors[0].dtype == np.float64


def test_without_tensorly_a_pair(sim, monkeypatch):
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    (weights, factors), errors = ours.parafac(sim.data, 2, return_errors=True)
    assert np.all(weights == 1)
    assert robustcp.factor_match_score((weights, factors), sim.truth) > 0.98
    assert errors


def test_doubts_are_warnings(noisy):
    A, B, C = (np.random.default_rng(0).standard_normal((n, 1)) for n in SHAPE)
    init = (None, [np.hstack([A, A]), np.hstack([B, -B]), np.hstack([C, C[::-1]])])
    with pytest.warns(UserWarning, match="collinear: try rank 1"):
        ours.parafac(noisy, 2, init=init, fixed_modes=[0, 1], robust=False)


@pytest.mark.parametrize(("name", "of"), list(zip(CLASSES, FUNCTIONS, strict=True)))
def test_classes(name, of, sim):
    model = function(name)(2, random_state=1)
    assert model.fit(sim.data) is model
    expected, errors = function(of)(sim.data, 2, random_state=1, return_errors=True)
    np.testing.assert_array_equal(model.decomposition_.to_tensor(), expected.to_tensor())
    assert model.errors_ == errors
    assert repr(model) == repr(getattr(theirs, name)(2))
    assert robustcp.factor_match_score(model.fit_transform(sim.data), sim.truth) > 0.98
    plain = function(name)(2, robust=False).fit_transform(sim.data)
    assert robustcp.factor_match_score(plain, sim.truth) < 0.9


# Programs of others


def test_tensorly_viz_works_on_the_result(sim, noisy):
    tlviz = pytest.importorskip("tlviz")
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    model, plain = ours.parafac(noisy, 2), theirs.parafac(noisy, 2, normalize_factors=True)
    score = tlviz.factor_tools.factor_match_score
    assert score(model, plain, consider_weights=False) > 0.999
    assert score(ours.parafac(sim.data, 2), plain, consider_weights=False) > 0.98
    assert tlviz.model_evaluation.core_consistency(model, noisy) > 99
    assert tlviz.model_evaluation.fit(model, noisy) > 0.9
    ready = tlviz.postprocessing.postprocess(model, noisy)
    np.testing.assert_allclose(tensorly.cp_to_tensor(ready), model.to_tensor(), atol=1e-9)
    _, axes = tlviz.visualisation.components_plot(model)
    assert len(np.ravel(axes)) == 3
    tlviz.visualisation.percentage_variation_plot(model, noisy, method="both")
    plt.close("all")


#: Tests of TensorLy that are left out, and why.
EXCLUDED = {
    "test_parafac[True-": "complex data: the package is for real data",
}
#: Lines of TensorLy's tests that do not hold in robust fits, and why.
NOT_ROBUST = {
    "assert_(np.all(np.diff(errors.error) <= 1.0e-7))": "the error of least squares falls in each "
    "sweep; a robust fit lowers another objective, and begins with several starts",
}


def tensorly_tests(robust):
    """TensorLy's tests of CP with only the import replaced."""
    source = Path(theirs.__file__).parent / "tests" / "test_cp.py"
    text = source.read_text(encoding="utf-8")
    text = re.sub(r"^from \.\.\.(\w+) ", r"from tensorly.\1 ", text, flags=re.M)
    text = re.sub(r"^from \.\.\.(\w+)\.(\w+) ", r"from tensorly.\1.\2 ", text, flags=re.M)
    text = re.sub(r"^from \.\.\. ", "from tensorly ", text, flags=re.M)
    text = re.sub(r"^from \.\.(\w+) ", r"from tensorly.decomposition.\1 ", text, flags=re.M)
    lines = f"from robustcp.tensorly import {', '.join(FUNCTIONS + CLASSES)}\n"
    if not robust:
        lines += (
            f"for each in ({', '.join(FUNCTIONS)}):\n    each.__kwdefaults__['robust'] = False\n"
        )
    for line in NOT_ROBUST if robust else ():
        assert text.count(line) == 1
        text = text.replace(line, "pass")
    assert text.count("\nclass ErrorTracker") == 1
    return text.replace("\nclass ErrorTracker", f"\n{lines}\n\nclass ErrorTracker")


def environment():
    source_tree = str(Path(robustcp.__file__).parents[1])
    path = os.pathsep.join(filter(None, (source_tree, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg"}


@pytest.mark.recovery
@pytest.mark.parametrize("robust", [True, False])
def test_tensorlys_own_tests(robust, tmp_path):
    """All tests of the file run, also those of its other functions, which are TensorLy's own."""
    (tmp_path / "test_cp.py").write_text(tensorly_tests(robust), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
         "--tb=short", "-c", os.devnull, "--rootdir", tmp_path, "--collect-only", tmp_path],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = [line for line in done.stdout.splitlines() if "::" in line]
    excluded = [name for name in names if any(each in name for each in EXCLUDED)]
    assert len(excluded) == 64
    kept = [name for name in names if name not in excluded]
    assert len(kept) >= 100
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
         "--tb=short", "-c", os.devnull, "--rootdir", tmp_path, *kept],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"{len(kept)} passed" in done.stdout


#: tensor-cell2cell on data with planted factors and 3% bad entries, on others' toy data, and with
#: missing entries. The line that imports TensorLy's functions is replaced before.
CELL2CELL = """
import cell2cell, numpy, tensorly, robustcp

assert cell2cell.tensor.factorization.parafac.__module__ == "robustcp.tensorly"
rng = numpy.random.default_rng(SEED)
shape = (8, 12, 6, 7)
factors = [rng.gamma(1.0, 1.0, (size, 3)) for size in shape]
full = tensorly.cp_to_tensor((None, factors))
data = full / full.std() + 0.05 * rng.standard_normal(shape)
bad = rng.random(shape) < 0.03
data[bad] += 15 * rng.random(bad.sum())
names = [[f"{mode}.{k}" for k in range(size)] for mode, size in enumerate(shape)]
mask = (rng.random(shape) < 0.8).astype(int)

def score(kind, mask=None, **options):
    tensor = cell2cell.tensor.PreBuiltTensor(data, order_names=names, mask=mask)
    tensor.compute_tensor_factorization(rank=3, tf_type=kind, random_state=0, runs=2, **options)
    assert [list(frame.index) for frame in tensor.factors.values()] == names
    found = [frame.to_numpy() for frame in tensor.factors.values()]
    pairs = [(numpy.ones(3), matrices) for matrices in (found, factors)]
    return robustcp.factor_match_score(*pairs, weights=False)

for kind in ("non_negative_cp", "non_negative_cp_hals", "parafac"):
    robust, plain = score(kind, return_errors=True), score(kind, return_errors=True, robust=False)
    print(kind, robust, plain)
    assert robust > 0.98 and robust > plain
masked = score("non_negative_cp", mask=mask)
print("mask", masked)
assert masked > 0.98

contexts = cell2cell.datasets.generate_toy_contexts()
contexts = list(contexts.values()) if isinstance(contexts, dict) else contexts
interactions = cell2cell.datasets.generate_toy_ppi()
tensor = cell2cell.tensor.InteractionTensor(contexts, interactions, how="outer")
tensor.compute_tensor_factorization(rank=2, random_state=0)
assert [frame.shape[0] for frame in tensor.factors.values()] == list(tensor.shape)
_, errors = tensor.elbow_rank_selection(upper_rank=3, runs=1, automatic_elbow=False, manual_elbow=2)
errors = [float(error) for _, error in errors]
assert len(errors) == 3 and all(0 <= error < 1 for error in errors)
print("done")
"""


@pytest.mark.slow
def test_cell2cell_runs_with_one_line_changed(tmp_path):
    """cell2cell from PyPI, in an environment of its own."""
    venv.create(tmp_path / "env", with_pip=True)
    folder = "Scripts" if os.name == "nt" else "bin"
    python = tmp_path / "env" / folder / "python"
    wanted = ["cell2cell==0.9.0", "array-api-compat>=1.11", "joblib", "threadpoolctl", "numba"]
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(install, env=clean, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution" in done.stderr + done.stdout:
        pytest.skip("PyPI cannot be reached")
    assert done.returncode == 0, done.stderr[-3000:]
    (module,) = (tmp_path / "env").glob("[Ll]ib/**/site-packages/cell2cell/tensor/factorization.py")
    text = module.read_text(encoding="utf-8")
    line = (
        "from tensorly.decomposition import non_negative_parafac, non_negative_parafac_hals, "
        "parafac, constrained_parafac\n"
    )
    assert text.count(line) == 1
    changed = (
        "from robustcp.tensorly import non_negative_parafac, non_negative_parafac_hals, parafac\n"
        "from tensorly.decomposition import constrained_parafac\n"
    )
    module.write_text(text.replace(line, changed), encoding="utf-8")
    (tmp_path / "run.py").write_text(CELL2CELL.replace("SEED", "0"), encoding="utf-8")
    done = subprocess.run(
        [python, "-W", "ignore", "run.py"], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "done"
