"""RobustCP by the conventions of scikit-learn."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import robustcp

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from robustcp.sklearn import DEGREES_OF_FREEDOM, _mean_log_density

RobustCP = robustcp.RobustCP

#: Checks of scikit-learn that do not hold, and why.
EXEMPT = {
    "check_methods_subset_invariance": (
        "the noise, which says how far an outlier is out, is estimated from the samples that are "
        "transformed together, so scores of a sample alone differ a little"
    ),
}


@pytest.fixture(scope="module")
def sim():
    return robustcp.simulate((24, 15, 12), 3, eta=0.1, gamma=1.0, rng=0)


@pytest.fixture(scope="module")
def model(sim):
    return RobustCP(n_components=3).fit(sim.data)


#: In a process of its own: beside array-api-compat, scikit-learn wants this set before SciPy is
#: imported.
CHECKS = """
import json, sys, warnings
import robustcp
from sklearn.utils.estimator_checks import check_estimator
warnings.simplefilter("ignore")
found = check_estimator(
    robustcp.RobustCP(n_components=1), on_fail=None, expected_failed_checks=json.loads(sys.argv[1])
)
print(json.dumps([[each["check_name"], each["status"], str(each["exception"])] for each in found]))
"""


@pytest.mark.slow
def test_scikit_learn_accepts_it():
    """X may be a matrix as well, so that all its checks can be run."""
    done = subprocess.run(
        [sys.executable, "-c", CHECKS, json.dumps(EXEMPT)], capture_output=True, text=True,
        check=True, env={**os.environ, "SCIPY_ARRAY_API": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert [each for each in found if each[1] == "failed"] == []
    assert {name for name, status, _ in found if status == "xfail"} == set(EXEMPT)
    assert len(found) > 40


def test_scores_are_those_of_the_fit(sim, model):
    fit = model.fit_
    np.testing.assert_allclose(
        model.transform(sim.data), fit.factors[0] * fit.weights, atol=0.02 * fit.weights[0]
    )
    assert robustcp.factor_match_score(fit, sim.truth) > 0.98


def test_inverse_transform_is_the_model(model, sim):
    scores = model.fit_.factors[0] * model.fit_.weights
    np.testing.assert_allclose(model.inverse_transform(scores), model.fit_.full(), atol=1e-9)
    B, C = model.fit_.factors[1:]
    np.testing.assert_allclose(model.components_, np.einsum("jr,kr->rjk", B, C), atol=1e-12)
    back = model.inverse_transform(model.transform(sim.data[:5]))
    clean = sim.truth.full()[:5]
    assert np.linalg.norm(back - clean) < 0.1 * np.linalg.norm(clean)


def test_new_samples_are_transformed_without_their_outliers(sim):
    model = RobustCP(n_components=3).fit(sim.data[:18])
    new = sim.truth.full()[18:]
    spoilt = new.copy()
    spoilt[:, 2, 3] += 1000.0
    spoilt[:, 5, :] = np.nan
    np.testing.assert_allclose(
        model.transform(spoilt), model.transform(new), atol=0.01 * model.fit_.weights[0]
    )


def test_what_scikit_learn_asks_for(model):
    assert model.n_features_in_ == 15 * 12
    assert model.sample_shape_ == (15, 12)
    assert list(model.get_feature_names_out()) == ["robustcp0", "robustcp1", "robustcp2"]
    again = clone(model.set_params(tol=1e-6))
    assert again.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        again.transform(np.ones((2, 15, 12)))
    with pytest.raises(AttributeError):
        again.components_  # noqa: B018


def test_pickled_it_is_the_same(model, sim):
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(sim.data), model.transform(sim.data))


def test_the_same_state_gives_the_same_bits(sim):
    def scores(state):
        return RobustCP(n_components=2, random_state=state, starts=1).fit_transform(sim.data)

    np.testing.assert_array_equal(scores(3), scores(3))
    one, other = (scores(np.random.RandomState(3)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_in_a_pipeline(sim):
    y = sim.truth.factors[0] @ [1.0, -2.0, 3.0]
    line = make_pipeline(
        FunctionTransformer(lambda X: X * 10.0), RobustCP(n_components=3), LinearRegression()
    )
    line.fit(sim.data[:18], y[:18])
    assert line.score(sim.data[18:], y[18:]) > 0.95
    assert line[1:-1].get_feature_names_out().tolist() == ["robustcp0", "robustcp1", "robustcp2"]


def test_a_data_frame_comes_out(model, sim):
    pandas = pytest.importorskip("pandas")
    again = clone(model).set_output(transform="pandas")
    scores = again.fit(sim.data).transform(sim.data[:4])
    assert isinstance(scores, pandas.DataFrame)
    assert list(scores.columns) == ["robustcp0", "robustcp1", "robustcp2"]


@pytest.mark.recovery
def test_names_and_labels_are_kept(sim):
    xarray = pytest.importorskip("xarray")
    X = xarray.DataArray(
        sim.data, dims=("sample", "em", "ex"), coords={"em": np.arange(300.0, 315.0)}
    )
    model = RobustCP(n_components=2, constraints={"em": robustcp.Smooth(0.1)}).fit(X)
    assert model.fit_.modes == ("sample", "em", "ex")
    assert model.fit_.labels[1] == list(np.arange(300.0, 315.0))
    scores = cross_val_score(RobustCP(n_components=1, starts=1), X, cv=2)
    assert np.isfinite(scores).all()


def test_masked_entries_are_missing(sim):
    spoilt = np.ma.masked_array(np.where(sim.artifacts, 1e6, sim.data), mask=sim.artifacts)
    model = RobustCP(n_components=3).fit(spoilt)
    assert robustcp.factor_match_score(model.fit_, sim.truth) > 0.98


@pytest.mark.recovery
def test_bad_samples_are_found(sim):
    X = sim.truth.full() + 0.01 * np.random.default_rng(0).standard_normal(sim.data.shape)
    X[:4] += 20.0
    model = RobustCP(n_components=3, cases=True).fit(X)
    assert set(np.flatnonzero(model.fit_.cases.flagged)) == {0, 1, 2, 3}
    share = RobustCP(n_components=3, cases=0.3).fit(X)
    assert set(np.flatnonzero(share.fit_.cases.flagged)) == {0, 1, 2, 3}


@pytest.mark.recovery
def test_cross_validation_chooses_the_rank(sim):
    search = GridSearchCV(RobustCP(starts=4), {"n_components": [2, 3, 4]}, cv=3).fit(sim.data)
    assert search.best_params_ == {"n_components": 3}


@pytest.mark.slow
def test_cross_validation_chooses_the_rank_in_9_of_10():
    chosen = []
    for seed in range(10):
        X = robustcp.simulate((50, 50, 50), 3, eta=0.1, gamma=1.0, rng=seed).data
        search = GridSearchCV(RobustCP(), {"n_components": [1, 2, 3, 4, 5]}, cv=5).fit(X)
        chosen.append(search.best_params_["n_components"])
    assert sum(rank == 3 for rank in chosen) >= 9, chosen


def test_the_score_does_not_depend_on_units_or_outliers(model, sim):
    score = model.score(sim.data)
    scaled = clone(model).fit(2.0**20 * sim.data)
    assert scaled.score(2.0**20 * sim.data) == pytest.approx(score, abs=1e-3)
    spoilt = sim.data.copy()
    spoilt[3, 2, 1] = 1e9
    assert model.score(spoilt) == pytest.approx(score, abs=0.01)
    assert model.score(np.random.default_rng(0).standard_normal(sim.data.shape)) < 0.01


def test_the_score_is_a_log_likelihood_of_student_t_at_its_best_scale():
    from scipy.stats import t

    r = 0.3 * np.random.default_rng(0).standard_t(3, 500)
    scales = np.geomspace(0.01, 10, 20_001)
    best = max(
        np.mean(t.logpdf(r, DEGREES_OF_FREEDOM, scale=s)) - t.logpdf(0, DEGREES_OF_FREEDOM)
        for s in scales
    )
    assert _mean_log_density(r, np.ones(500)) == pytest.approx(best, abs=1e-4)


def test_scores_of_exact_data_do_not_run_off(sim):
    exact = sim.truth.full()
    model = RobustCP(n_components=3).fit(exact)
    more = RobustCP(n_components=4).fit(exact)
    assert np.isfinite(model.score(exact))
    assert more.score(exact) <= model.score(exact) + 1e-9


def test_samples_with_little_in_them(model, sim):
    X = sim.data.copy()
    X[0] = np.nan
    X[1] = np.nan
    X[1, 3, 3] = 1.0
    X[2] = 0.0
    with pytest.warns(UserWarning, match="1 slabs of mode 0 have no observed entry"):
        scores = model.transform(X)
    assert np.isfinite(scores).all()
    assert not scores[0].any()
    assert np.isfinite(model.score(X))
    assert np.isfinite(model.score(np.zeros((2, 15, 12))))
    with pytest.raises(ValueError, match="no entries to predict"):
        model.score(np.full((2, 15, 12), np.nan))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_components": 0}, "^n_components: must be an integer >= 1, got 0"),
        ({"n_components": 2.5}, "^n_components: must be an integer >= 1, got 2.5"),
        ({"cases": 0.9}, "^cases: share: must be a number"),
        ({"starts": "many"}, "^starts: must be an integer >= 1, got 'many'"),
        ({"random_state": "seed"}, "^random_state: must be a seed, a RandomState or a Generator"),
    ],
)
def test_bad_parameters_are_named(sim, change, message):
    with pytest.raises(ValueError, match=message):
        RobustCP(**change).fit(sim.data)


def test_samples_of_another_shape_are_refused(model):
    with pytest.raises(ValueError, match=r"^X: has samples of shape \(12, 15\), .* \(15, 12\)"):
        model.transform(np.ones((3, 12, 15)))
    with pytest.raises(ValueError, match=r"^X: must have a score for each of 3 components"):
        model.inverse_transform(np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"^X: needs an array of all entries"):
        model.transform(robustcp.Observed([[0, 0, 0]], [1.0], (1, 15, 12)))


def test_a_fit_that_is_cut_short_says_so(sim):
    with pytest.warns(ConvergenceWarning, match="RobustCP: "):
        RobustCP(n_components=3, max_sweeps=2).fit(sim.data)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(robustcp, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'robustcp\[sklearn\]'"):
        robustcp.RobustCP  # noqa: B018
