"""Preprocessing: its definitions, in every engine, undone in every result, and robust."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm
from typer.testing import CliRunner

import robustcp
from robustcp import Nonnegative, Observed, cp, cpal1, cpals
from robustcp.cli import app
from robustcp.engines import LabelledTensor, as_engine
from robustcp.preprocess import (
    TAU_MEAN_LIMIT,
    TAU_MEAN_MEAN,
    TAU_SCALE_LIMIT,
    Anscombe,
    Center,
    Log,
    LogRatio,
    Scale,
    Sqrt,
    fit_preprocessing,
    slab_sizes,
)
from support.oracles import host
from test_engines import ENGINES

UNITS = np.array([1.0, 300.0, 1e-3, 20.0, 5.0])


def variables(seed=0, shape=(24, 5, 9), rank=2, positive=False):
    """Samples of variables in different units, each with an offset; and the factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, rank)) for size in shape]
    if positive:
        factors = [np.abs(A) + 0.2 for A in factors]
    X = np.einsum("ir,jr,kr->ijk", *factors) + 0.02 * rng.standard_normal(shape)
    X = np.abs(X) + 0.01 if positive else X
    scale = UNITS if shape[1] == UNITS.size else np.ones(shape[1])
    return X * scale[:, None] + (0 if positive else 4 * scale[:, None]), factors


def preprocess(steps, X):
    """Preprocessed values as an array of the shape of X, and the preprocessing."""
    found, preprocessed, _ = fit_preprocessing(steps, as_engine(X))
    return found, dense(preprocessed)


def dense(engine):
    entries = engine.entries()
    return entries.to_dense(entries.values)


# Definitions


def rho(x, limit):
    return 1 - (1 - np.minimum(np.abs(x) / limit, 1) ** 2) ** 3


def tau_scale(x):
    """Yohai & Zamar 1988, by bisection."""
    x = x[(x != 0) & ~np.isnan(x)]
    s = brentq(lambda s: rho(x / s, TAU_SCALE_LIMIT).mean() - 0.5, 1e-9, 1e9, rtol=1e-14)
    return s * np.sqrt(rho(x / s, TAU_MEAN_LIMIT).mean() / TAU_MEAN_MEAN)


def test_means_and_root_mean_squares_are_those_of_nprocess():
    X, _ = variables()
    found, Z = preprocess([Center(0, "mean"), Scale(1, "rms")], X)
    # N-way toolbox: X_n - 1 m', then each slab over the root of its mean square
    m = np.ones((24, 1)) @ X.reshape(24, -1).mean(0, keepdims=True)
    centred = (X.reshape(24, -1) - m).reshape(X.shape)
    s = np.array([np.sqrt((centred[:, j, :] ** 2).mean()) for j in range(5)])
    np.testing.assert_allclose(Z, centred / s[:, None], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.values[1].ravel(), s)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    ("size", "formula"),
    [
        ("tau", tau_scale),
        ("rms", lambda x: np.sqrt(np.nanmean(x**2))),
        ("sd", lambda x: np.nanstd(x, ddof=1)),
    ],
)
def test_sizes_of_slabs_equal_formulas(mode, size, formula):
    X, _ = variables()
    X[3, 2, 1], X[4] = np.nan, 0.0
    sizes = slab_sizes(as_engine(X), mode, size)
    slabs = [np.take(X, k, axis=mode) for k in range(X.shape[mode])]
    expected = [1.0 if not np.nanmax(np.abs(x)) else formula(x) for x in slabs]
    np.testing.assert_allclose(sizes, expected, rtol=1e-7)


def test_constants_of_the_tau_scale():
    def expectation(limit):
        inside = quad(lambda x: rho(x, limit) * norm.pdf(x), -limit, limit)[0]
        return inside + 2 * norm.sf(limit)

    assert expectation(TAU_SCALE_LIMIT) == pytest.approx(0.5, rel=1e-5)
    assert expectation(TAU_MEAN_LIMIT) == pytest.approx(TAU_MEAN_MEAN, rel=1e-6)


def test_the_tau_scale_is_efficient_and_bounded():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 100))
    tau, rms = (slab_sizes(as_engine(X), 0, size) for size in ("tau", "rms"))
    assert abs(tau.mean() - 1) < 0.01
    assert rms.var() / tau.var() > 0.85
    X[:, :20] = 1e9
    assert np.median(slab_sizes(as_engine(X), 0, "tau")) < 2.0


@pytest.mark.parametrize("offset", [1e-30, 1.0, 1e30])
def test_sizes_are_equivariant_also_far_from_1(offset):
    X, _ = variables()
    sizes = slab_sizes(as_engine(X), 1, "tau")
    np.testing.assert_allclose(slab_sizes(as_engine(offset * X), 1, "tau"), offset * sizes)


def test_centred_log_ratios_equal_the_formula():
    X, _ = variables(positive=True)
    found, Z = preprocess(LogRatio(1), X)
    geometric = np.exp(np.log(X).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(Z, np.log(X / geometric), atol=1e-12)
    closed = X / X.sum(axis=1, keepdims=True)  # totals make no difference
    np.testing.assert_allclose(preprocess(LogRatio(1), closed)[1], Z, atol=1e-12)
    np.testing.assert_allclose(found.undo(Z), X, rtol=1e-12)


def test_zeros_of_compositions_are_missing_or_a_floor():
    X, _ = variables(positive=True)
    X[2, 1, 3] = 0.0
    _, Z = preprocess(LogRatio(1), X)
    assert np.isnan(Z[2, 1, 3])
    parts = np.delete(X[2, :, 3], 1)
    expected = np.log(parts / np.exp(np.log(parts).mean()))
    np.testing.assert_allclose(np.delete(Z[2, :, 3], 1), expected)
    _, Z = preprocess(LogRatio(1, floor=0.005), X)
    parts = np.maximum(X[2, :, 3], 0.005)
    np.testing.assert_allclose(Z[2, :, 3], np.log(parts / np.exp(np.log(parts).mean())))
    fit = cp(X, 1, preprocess=LogRatio(1))
    assert any("1 entries have no value after log(x)" in note for note in fit.notes)


@pytest.mark.parametrize(
    ("step", "formula"),
    [
        (Log(), np.log),
        (Log(shift=1), np.log1p),
        (Log(floor=1.0), lambda x: np.log(np.maximum(x, 1.0))),
        (Sqrt(), np.sqrt),
        (Anscombe(), lambda x: 2 * np.sqrt(x + 3 / 8)),
    ],
    ids=["log", "log1p", "log with a floor", "square root", "Anscombe"],
)
def test_functions_of_entries(step, formula):
    X = np.random.default_rng(0).poisson(8.0, (6, 5, 4)) + 1
    found, Z = preprocess([step], X)
    np.testing.assert_allclose(Z, formula(X), rtol=1e-14)
    np.testing.assert_allclose(found.undo(Z), X, rtol=1e-12)


def test_two_centrings_and_two_scalings_are_repeated_until_they_agree():
    X, _ = variables()
    X[0, 0, 0] = np.nan
    steps = [Center(0), Center(2), Scale(1, "rms"), Scale(0, "rms")]
    _, centred = preprocess(steps[:2], X)
    for mode in (0, 2):
        assert np.nanmax(np.abs(np.nanmedian(centred, axis=mode))) < 1e-6
    _, Z = preprocess(steps, X)
    for others in ((0, 2), (1, 2)):
        np.testing.assert_allclose(np.nanmean(Z**2, axis=others), 1.0, atol=1e-6)


@pytest.mark.parametrize("size", ["tau", "rms", "sd"])
@pytest.mark.parametrize("location", ["median", "mean"])
def test_constant_variables_are_not_blown_up(location, size):
    X, _ = variables()
    X[:, 3] = 0.1 + 0.2 * np.arange(9)
    _, Z = preprocess([Center(0, location), Scale(1, size)], X)
    assert np.abs(Z[:, 3]).max() < 1e-13
    np.testing.assert_allclose(np.abs(Z[:, 2]).mean(), 0.75, atol=0.25)


def test_steps_are_applied_in_their_order():
    X, _ = variables()
    _, first = preprocess([Scale(1, "rms"), Center(0)], X)
    scaled = X / np.sqrt((X**2).mean(axis=(0, 2)))[:, None]
    np.testing.assert_allclose(first, scaled - np.median(scaled, axis=0), atol=1e-12)


# Undone, for any shape, mode and gaps

shapes = st.lists(st.integers(1, 6), min_size=2, max_size=3).filter(lambda s: np.prod(s) > 3)


@given(shape=shapes, seed=st.integers(0, 99), data=st.data())
def test_undone_for_any_shape(shape, seed, data):
    rng = np.random.default_rng(seed)
    X = np.exp(2 * rng.standard_normal(shape)) + 5
    gaps = rng.random(shape) < 0.2
    gaps[(0,) * len(shape)] = False
    X[gaps] = np.nan
    modes = st.integers(0, len(shape) - 1)
    steps = data.draw(
        st.lists(
            st.one_of(
                st.builds(Center, modes, st.sampled_from(["median", "skipped", "mean"])),
                st.builds(Scale, modes, st.sampled_from(["tau", "rms"])),
            ),
            max_size=3,
        )
    )
    if len(steps) == 1 and data.draw(st.booleans()):
        steps = [Scale(data.draw(modes), "sd")]
    if data.draw(st.booleans()):
        steps = [data.draw(st.sampled_from([Log(), Sqrt(), Anscombe()])), *steps]
    found, Z = preprocess(steps, X)
    if not steps:
        return
    np.testing.assert_array_equal(np.isnan(Z), gaps)
    np.testing.assert_allclose(found.undo(Z)[~gaps], X[~gaps], rtol=1e-12)
    centrings = [step for step in steps if isinstance(step, Center)]
    locate = {"median": np.nanmedian, "mean": np.nanmean}
    if len(centrings) == 1 and steps[-1] in centrings and steps[-1].location in locate:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fibres without entries
            left = locate[steps[-1].location](Z, axis=steps[-1].mode)
            assert np.nanmax(np.abs(left)) < 1e-9 * np.nanmax(X)


# Every engine


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if kind != "of the test"])
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
class TestEngines:
    STEPS = (Sqrt(), Center(0), Scale(1, "sd"), Center(2, "skipped"), Scale(0), Center(1, "mean"))

    def data(self, gaps):
        X, _ = variables(shape=(6, 5, 4), positive=True)
        if gaps:
            X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
            X[:, 2, 3] = np.nan  # a fibre without entries
        return X

    def test_values_centres_and_sizes(self, kind, gaps):
        X = self.data(gaps)
        expected, Z = preprocess(self.STEPS, X)
        engine = ENGINES[kind](X)
        found, preprocessed, _ = fit_preprocessing(self.STEPS, engine)
        for value, other in zip(found.values[1:], expected.values[1:], strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(dense(preprocessed), Z, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(dense(engine), X)  # the data is as it was
        assert type(preprocessed) is type(engine)

    def test_parts_are_parts_of_the_whole(self, kind, gaps):
        X = self.data(gaps)
        engine = fit_preprocessing(self.STEPS, ENGINES[kind](X))[1]
        part = engine.subtensor([np.array([1, 4]), None, np.array([0, 2])])
        expected = dense(engine)[np.ix_([1, 4], range(5), [0, 2])]
        np.testing.assert_allclose(dense(part), expected, rtol=1e-12)

    def test_residuals_are_in_the_units_of_the_data(self, kind, gaps):
        X = self.data(gaps)
        for steps in (self.STEPS, self.STEPS[1:]):
            fit = cpals(X, 1, preprocess=steps, max_sweeps=5)
            residuals = host(fit.residuals(ENGINES[kind](X)))
            expected = X - fit.full()
            if residuals.ndim == 1:
                expected = expected[~np.isnan(X)]
            np.testing.assert_allclose(residuals, expected, rtol=1e-8, atol=1e-8)

    def test_limits_are_preprocessed_too(self, kind, gaps):
        X = self.data(gaps)
        high = np.nanmax(X, axis=(0, 2), keepdims=True) * 0.8
        clipped = np.minimum(X, high)
        engine = ENGINES[kind](clipped).censored((None, high))
        _, preprocessed, _ = fit_preprocessing(self.STEPS, engine)
        assert preprocessed.censored_count == np.sum(clipped == high) == engine.censored_count


def test_an_engine_that_takes_none_says_so():
    with pytest.raises(ValueError, match=r"preprocess: Halves"):
        fit_preprocessing([Center(0)], ENGINES["of the test"](np.ones((4, 3))))


@pytest.mark.parametrize("layout", ["C", "F", "transposed"])
def test_layouts(layout):
    X, _ = variables()
    stored = X if layout == "C" else np.asfortranarray(X)
    if layout == "transposed":
        stored = np.ascontiguousarray(X.transpose(1, 2, 0)).transpose(2, 0, 1)
    _, Z = preprocess([Center(0), Scale(1)], stored)
    np.testing.assert_allclose(Z, preprocess([Center(0), Scale(1)], X)[1], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool, np.float32])
def test_other_numbers(dtype):
    X = np.random.default_rng(0).integers(0, 2 if dtype is bool else 200, (9, 5, 4)).astype(dtype)
    found, engine, _ = fit_preprocessing([Center(0, "mean"), Scale(1)], as_engine(X))
    assert engine.dtype == (np.float32 if dtype is np.float32 else np.float64)
    tol = 1e-5 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(found.undo(np.asarray(engine.array)), X, rtol=tol, atol=tol)


def test_masked_and_weightless_entries_do_not_count():
    X, _ = variables()
    bad = np.zeros(X.shape, dtype=bool)
    bad[:4, :4] = True
    hidden = np.where(bad, 1e9, X)
    steps = [Center(0), Scale(1)]
    expected = cpals(np.where(bad, np.nan, X), 2, preprocess=steps)
    masked = cpals(np.ma.array(hidden, mask=bad), 2, preprocess=steps)
    weighted = cpals(hidden, 2, entry_weights=~bad, preprocess=steps)
    for fit in (masked, weighted):
        for k, value in enumerate(expected.preprocessing.values):
            np.testing.assert_allclose(fit.preprocessing.values[k], value, rtol=1e-9)
    assert np.isfinite(weighted.full()).all()


def test_data_in_parts():
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    X, _ = variables()
    at = np.argwhere(np.inf > X)
    table = pandas.DataFrame({**{n: at[:, k] for k, n in enumerate("abc")}, "x": X[tuple(at.T)]})
    data = Observed.from_dask(frames.from_pandas(table, npartitions=3))
    found, engine, _ = fit_preprocessing([Center(0), Scale(1)], as_engine(data))
    expected, Z = preprocess([Center(0), Scale(1)], X)
    np.testing.assert_allclose(found.values[1], expected.values[1])
    np.testing.assert_allclose(dense(engine), Z, atol=1e-12)
    fit = cpals(X, 1, preprocess=[Center(0), Scale(1)], max_sweeps=5)
    np.testing.assert_allclose(fit.residuals(data), fit.residuals(X).ravel(), rtol=1e-9, atol=1e-9)


def test_listed_entries_without_a_logarithm_are_refused():
    data = Observed([[0, 0], [1, 1], [1, 0]], [1.0, 0.0, 2.0], (2, 2))
    with pytest.raises(ValueError, match=r"preprocess: log\(x\): 1 listed entries"):
        cpals(data, 1, preprocess=[Log()])


# Fits


@pytest.fixture(scope="module")
def case():
    X, factors = variables(shape=(24, 5, 9))
    return X, factors, cp(X, 2, preprocess=[Center(0), Scale(1)])


class TestFit:
    def test_is_in_the_units_of_the_data(self, case):
        X, _, fit = case
        np.testing.assert_allclose(X - fit.full(), fit.residuals(X), atol=1e-12 * np.abs(X).max())
        at = np.argwhere(np.inf > X)
        np.testing.assert_allclose(fit.at(at), fit.full().ravel(), rtol=1e-12)
        inside = np.abs(X - fit.full()) < 3 * fit.sigma(X)
        assert inside.mean() > 0.95

    def test_is_the_fit_of_preprocessed_data(self, case):
        X, _, fit = case
        Z = (X - np.median(X, axis=0)) / fit.preprocessing.values[1]
        other = cp(Z, 2)
        assert robustcp.factor_match_score(fit, other) > 0.9999
        assert fit.objective == pytest.approx(other.objective, rel=1e-6)
        np.testing.assert_array_equal(fit.outliers(X).mask, other.outliers(Z).mask)
        sizes = fit.preprocessing.values[1]
        np.testing.assert_allclose(fit.sigma(X), other.sigma(Z) * sizes, rtol=1e-4)

    def test_recovers_the_factors(self, case):
        _, factors, fit = case
        estimate = robustcp.KruskalTensor(np.ones(2), tuple(fit.factors[1:]))
        B = factors[1] * UNITS[:, None] / fit.preprocessing.values[1].reshape(-1, 1)
        truth = robustcp.KruskalTensor.from_factors((B, factors[2])).normalized()
        assert robustcp.factor_match_score(estimate, truth, weights=False) > 0.98

    def test_the_same_samples_are_projected_on_their_scores(self, case):
        X, _, fit = case
        scores = fit.project(X[:7])
        np.testing.assert_allclose(scores, fit.factors[0][:7] * fit.weights, atol=0.05)

    def test_slabs_of_their_own_size_are_scaled_by_it(self):
        X, _ = variables(shape=(24, 6, 9), positive=True)
        fit = cp(X, 2, preprocess=[Scale(0)])
        np.testing.assert_allclose(fit.project(3 * X[:7]), fit.project(X[:7]), atol=1e-6)

    @pytest.mark.parametrize("kind", ["centred", "roots"])
    def test_imputes_in_the_units_of_the_data(self, case, kind):
        X, _, _ = case
        rng = np.random.default_rng(1)
        gaps = rng.random(X.shape) < 0.1
        steps = [Sqrt(), Center(0, "skipped"), Scale(1)] if kind == "roots" else [
            Center(0, "skipped"), Scale(1),
        ]  # fmt: skip
        known = np.where(gaps, np.nan, X + 20 * UNITS[:, None])
        fit = cp(known, 2, preprocess=steps)
        filled = fit.impute(known, uncertainty=True)
        np.testing.assert_array_equal(filled.values[~gaps], known[~gaps])
        np.testing.assert_allclose(filled.values[gaps], fit.full()[gaps])
        z = (X + 20 * UNITS[:, None] - filled.values)[gaps] / filled.prediction_errors[gaps]
        assert 0.5 < 1.48 * np.median(np.abs(z)) < 1.5

    @pytest.mark.parametrize("suffix", [".npz", ".json", ".mat", ".nc", ".xlsx"])
    def test_comes_back_from_files(self, case, suffix, tmp_path):
        _, _, fit = case
        path = tmp_path / f"fit{suffix}"
        fit.save(path)
        loaded = robustcp.load(path)
        assert loaded.preprocessing.steps == fit.preprocessing.steps
        np.testing.assert_allclose(loaded.full(), fit.full(), rtol=1e-12, atol=1e-12)

    def test_says_what_its_factors_are_of(self, case, tmp_path):
        X, _, fit = case
        words = "centred across mode 0 (median), scaled within mode 1 (tau)"
        assert f"preprocessing: {words}\n  weights, factors and noise are of" in str(fit.summary())
        assert fit.to_frames()["mode 0"].attrs["preprocessing"] == words
        assert fit.to_xarray().attrs["preprocessing"] == words
        fit.report(X, tmp_path / "report.html")
        assert words in (tmp_path / "report.html").read_text(encoding="utf-8")

    def test_distances_and_intervals(self, case):
        X, _, fit = case
        bad = X.copy()
        bad[3] += 40 * UNITS[:, None] * np.random.default_rng(0).standard_normal((5, 9))
        assert fit.distances(bad, 0).bad[3]
        assert fit.uncertainty(X).errors[1].max() < 0.2

    def test_turns_with_the_data(self, case):
        X, _, _ = case
        labels = [[f"s{k}" for k in range(24)], list("abcde"), None]
        data = LabelledTensor(X, ("sample", "variable", "time"), tuple(labels))
        fit = cp(data, 2, preprocess=[Center("sample"), Scale("variable")])
        order = np.array([4, 2, 0, 1, 3])
        turned = LabelledTensor(
            np.ascontiguousarray(X[:, order].transpose(1, 0, 2)),
            ("variable", "sample", "time"),
            ([labels[1][k] for k in order], labels[0], None),
        )
        aligned = fit.aligned_to(turned)
        np.testing.assert_allclose(aligned.full(), fit.full()[:, order].transpose(1, 0, 2))
        assert aligned.preprocessing.describe(aligned.modes) == fit.preprocessing.describe(
            fit.modes
        )
        np.testing.assert_allclose(
            fit.residuals(turned), fit.residuals(data)[:, order].transpose(1, 0, 2), atol=1e-9
        )

    @pytest.mark.parametrize("estimator", [cp, cpal1, cpals])
    def test_all_estimators_take_it(self, case, estimator):
        X, _, _ = case
        fit = estimator(X, 2, preprocess=[Center(0, "mean"), Scale(1, "rms")])
        assert np.abs(fit.residuals(X) / UNITS[:, None]).mean() < 0.05

    def test_a_checkpoint_of_other_preprocessing_is_refused(self, case, tmp_path):
        X, _, _ = case
        path = tmp_path / "fit.ckpt"
        first = cpal1(X, 2, preprocess=[Center(0)], checkpoint=path)
        again = cpal1(X, 2, preprocess=[Center(0)], checkpoint=path)
        np.testing.assert_array_equal(first.full(), again.full())
        with pytest.raises(robustcp.FileError, match="preprocess"):
            cpal1(X, 2, preprocess=[Center(0, "mean")], checkpoint=path)
        with pytest.raises(robustcp.FileError, match="preprocess"):
            cpal1(X, 2, checkpoint=path)


def test_counts_after_anscombe_have_unit_noise():
    rng = np.random.default_rng(0)
    A, B, C = (1 + 4 * rng.random((size, 2)) for size in (20, 15, 10))
    counts = rng.poisson(np.einsum("ir,jr,kr->ijk", A, B, C))
    fit = cp(counts, 2, preprocess=[Anscombe()])
    assert 0.9 < fit.noise.sigma < 1.15
    assert np.abs(fit.full() - np.einsum("ir,jr,kr->ijk", A, B, C)).mean() < 4


def test_detection_limits_of_logarithms():
    rng = np.random.default_rng(0)
    model = np.einsum("i,j,k->ijk", *(1 + rng.random(size) for size in (20, 8, 9)))
    X = np.exp(model + 0.02 * rng.standard_normal(model.shape))
    low = float(np.quantile(X, 0.2))
    seen = np.where(low >= X, 0.0, X)  # reported as 0
    fit = cp(seen, 1, limits=(low, None), preprocess=[Log()])
    below = low >= X
    error = np.abs(np.log(fit.full()[below] / X[below]))
    assert np.median(error) < 0.05
    assert np.all(fit.residuals(seen)[below & (fit.full() <= low)] == 0)


@pytest.mark.parametrize("observed", [False, True])
def test_skipped_means_are_means_without_far_values(observed):
    X = np.random.default_rng(0).standard_normal((40, 5, 4))
    X[:8, 2] += 50.0
    engine = ENGINES["Observed" if observed else "numpy"](X)
    found = fit_preprocessing([Center(0, "skipped")], engine)[0].values[0][0]
    for j, k in np.ndindex(5, 4):
        x = X[:, j, k]
        distance = np.abs(x - np.median(x))
        expected = x[distance <= 4.45 * np.median(distance)].mean()
        assert found[j, k] == pytest.approx(expected, abs=1e-12)
    assert np.abs(found).max() < 1


def test_centring_by_skipped_means_leaves_components():
    warned = {}
    for location in ("median", "skipped"):
        fits = [
            cp(variables(seed, shape=(24, 8, 9))[0], 2, preprocess=[Center(0, location)])
            for seed in range(4)
        ]
        warned[location] = sum("structured" in [w.code for w in fit.warnings] for fit in fits)
    assert warned["skipped"] < warned["median"]


def test_a_fifth_of_bad_samples_moves_means_and_not_medians():
    X, _ = variables(seed=3, shape=(40, 5, 9))
    bad = X.copy()
    bad[:8] += 100 * UNITS[:, None]
    clean, seen = (preprocess([Center(0), Scale(1)], data)[0] for data in (X, bad))
    shift = np.abs(seen.values[0] - clean.values[0]) / UNITS[:, None]
    assert shift.max() < 2
    assert np.abs(np.log(seen.values[1] / clean.values[1])).max() < np.log(3)
    means = preprocess([Center(0, "mean"), Scale(1, "rms")], bad)[0]
    assert (np.abs(means.values[0] - X.mean(0)) / UNITS[:, None]).min() > 19.9
    assert (means.values[1].ravel() / UNITS).min() > 30


class TestArguments:
    def test_modes_must_be_known(self):
        with pytest.raises(ValueError, match="preprocess"):
            cp(np.ones((3, 4, 5)), 1, preprocess=[Center("sample")])

    @pytest.mark.parametrize("given", ["center", 3, [Center], [1]])
    def test_other_things_are_refused(self, given):
        with pytest.raises(ValueError, match="preprocess: must be"):
            cp(np.ones((3, 4, 5)), 1, preprocess=given)

    def test_standard_deviations_are_of_one_mode(self):
        with pytest.raises(ValueError, match="several modes cannot"):
            cp(np.ones((3, 4, 5)), 1, preprocess=[Scale(0, "sd"), Scale(1)])

    def test_functions_come_before_centring(self):
        with pytest.raises(ValueError, match="must come before any centring"):
            cp(np.ones((3, 4, 5)), 1, preprocess=[Center(0), Log()])

    @pytest.mark.parametrize("make", [
        lambda: Center(0, "mode"), lambda: Scale(0, "mad"), lambda: Log(floor=0),
        lambda: Log(shift=-1),
    ])  # fmt: skip
    def test_options_are_checked(self, make):
        with pytest.raises(ValueError, match="must be"):
            make()

    def test_nonnegative_models_of_centred_data_are_refused(self):
        X, _ = variables(positive=True)
        with pytest.raises(ValueError, match="nonnegative: in all modes"):
            cp(X, 2, preprocess=[Center(0)], nonnegative=True)
        fit = cp(X, 2, preprocess=[Center(0)], constraints={1: Nonnegative()})
        assert fit.factors[1].min() >= 0


# The warning


class TestUnits:
    def test_variables_in_different_units_are_warned_of(self):
        X, _ = variables()
        codes = [[w.code for w in cpals(X, 2, preprocess=p).warnings] for p in (None, [Scale(1)])]
        assert "units" in codes[0]
        assert "units" not in codes[1]

    def test_the_sentence_names_them(self):
        X, _ = variables()
        data = LabelledTensor(X, ("day", "variable", "hour"), (None, list("tlhvw"), None))
        (warning,) = (w for w in cpals(data, 2).warnings if w.code == "units")
        assert "slabs of variable differ" in str(warning)
        assert "(l is largest, h smallest)" in str(warning)
        assert "preprocess=[Scale('variable')]" in str(warning)

    def test_an_axis_of_numbers_is_not(self):
        X, _ = variables()
        data = LabelledTensor(X, ("day", "nm", "hour"), (None, [250, 260, 270, 280, 290], None))
        assert "units" not in [w.code for w in cpals(data, 2).warnings]


# Around the fit


def test_ranks_of_variables_in_different_units():
    X, _ = variables(shape=(24, 5, 12))
    profile = robustcp.rank_profile(
        X, range(1, 4), preprocess=[Center(0, "mean"), Scale(1)], jobs=1, rng=0
    )
    assert profile.rank == 2


def test_many_fits_and_folds_take_it():
    X, _ = variables()
    steps = [Center(0), Scale(1)]
    fits = robustcp.cp_many([X, 2 * X], 2, preprocess=steps, jobs=1)
    assert [fit.preprocessing.steps for fit in fits] == [tuple(steps)] * 2
    steps = [Center(0, "skipped"), Scale(1)]
    found = robustcp.replicability(X, 2, folds=3, preprocess=steps, jobs=1)
    assert found.fit.preprocessing.steps == tuple(steps)
    assert found.score > 0.95
    ends = robustcp.ensemble(X, [2], starts=2, preprocess=steps, jobs=1)
    assert ends.fits[2][0].preprocessing.steps == tuple(steps)


class TestTransformer:
    def test_scores_of_new_samples(self):
        pytest.importorskip("sklearn")
        X, _ = variables()
        model = robustcp.RobustCP(2, preprocess=[Center(0), Scale(1)]).fit(X[:20])
        scores = model.transform(X[20:])
        back = model.inverse_transform(scores)
        assert np.median(np.abs(back - X[20:]) / UNITS[:, None]) < 0.1
        assert model.score(X[20:]) > 0.5
        np.testing.assert_allclose(model.fit_.preprocessing.values[0][0], np.median(X[:20], axis=0))

    def test_samples_of_their_own_size_cannot_be_undone(self):
        pytest.importorskip("sklearn")
        X, _ = variables(positive=True)
        model = robustcp.RobustCP(2, preprocess=[Scale(0)]).fit(X)
        with pytest.raises(ValueError, match="size of its own"):
            model.inverse_transform(model.transform(X))


class TestCommandLine:
    def fit(self, tmp_path, *options):
        X, _ = variables()
        np.save(tmp_path / "x.npy", X)
        out = tmp_path / "fit.npz"
        arguments = ["fit", str(tmp_path / "x.npy"), "--rank", "2", "--out", str(out), *options]
        return CliRunner().invoke(app, arguments), out

    def test_centres_and_scales(self, tmp_path):
        done, out = self.fit(tmp_path, "--center", "0", "--scale", "1", "--center", "2:mean")
        assert done.exit_code == 0, done.output
        assert robustcp.load(out).preprocessing.steps == (Center(0), Center(2, "mean"), Scale(1))
        assert "preprocessing: centred across" in done.output

    def test_log_ratios(self, tmp_path):
        done, out = self.fit(tmp_path, "--log-ratio", "1:0.5", "--scale", "0:rms")
        assert done.exit_code in (0, 1), done.output
        steps = Log(floor=0.5), Center(1, "mean"), Scale(0, "rms")
        assert robustcp.load(out).preprocessing.steps == steps

    @pytest.mark.parametrize("options", [
        ("--scale", "1:mad"), ("--center", "0:mode"), ("--log-ratio", "1:-2"),
        ("--log-ratio", "1:x"), ("--center", "sample"),
    ])  # fmt: skip
    def test_mistakes_are_named(self, tmp_path, options):
        done, out = self.fit(tmp_path, *options)
        assert done.exit_code == 2
        assert options[0].removeprefix("--") in done.stderr or "preprocess" in done.stderr
        assert not out.exists()


# Data that others published, in the folder that ROBUSTCP_DATA names


def read_table(name):
    folder = os.environ.get("ROBUSTCP_DATA")
    path = Path(folder or "", f"{name}.csv")
    if folder is None or not path.exists():
        pytest.skip(f"needs {name}.csv in the folder that ROBUSTCP_DATA names")
    return robustcp.read(path)


@pytest.mark.recovery
class TestPublished:
    """What the robust fits of rrcov3way's vignette call outlying, by distances with all entries."""

    def kinds(self, name, steps):
        X = read_table(name)
        fit = cp(X, 3, preprocess=steps, cases="sample")
        kinds = fit.distances(X, "sample").kinds_before
        return {str(label): kind for label, kind in zip(fit.labels[0], kinds, strict=True)}

    def test_girls(self):
        kinds = self.kinds("girls", [Center("sample"), Scale("variable")])
        assert {k for k in kinds if "outlier" in kinds[k] or "bad" in kinds[k]} >= {"3", "27"}
        assert {k for k in kinds if "leverage" in kinds[k]} >= {"14", "18", "30"}

    def test_countries(self):
        kinds = self.kinds("elind", [Center("sample", "mean"), Scale("variable", "rms")])
        assert kinds["TU"] == kinds["PO"] == "bad leverage"
        assert "outlier" in kinds["DA"]
        assert {kinds[k] for k in ("GR", "NZ", "CH")} <= {"good leverage", "bad leverage"}
