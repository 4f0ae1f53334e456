from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm
from scipy.stats import t as student

import robustcp
from robustcp.engines import as_engine
from robustcp.inference import covariance
from robustcp.optimize.problem import Problem
from robustcp.optimize.row_prior import RowPosterior, RowPrior


def unit(A):
    return A / np.linalg.norm(A, axis=0)


def model_of(factors):
    letters = "ijklm"[: len(factors)]
    return np.einsum(",".join(f"{c}r" for c in letters) + "->" + letters, *factors)


def matched_truth(fit, factors):
    """The true unit columns in the order and with the signs of the fit's."""
    ours = [np.asarray(A, dtype=float) for A in fit.factors]
    true = [unit(A) for A in factors]
    score = np.prod([np.abs(A.T @ B) for A, B in zip(ours, true, strict=True)], axis=0)
    order = linear_sum_assignment(-score)[1]
    true = [B[:, order] for B in true]
    return [B * np.sign(np.sum(A * B, axis=0)) for A, B in zip(ours, true, strict=True)]


def covered(found, true):
    """The share of true entries that are inside."""
    inside = [
        ((low <= B) & (high >= B)).ravel()
        for low, high, B in zip(found.low, found.high, true, strict=True)
        if low is not None
    ]
    return np.concatenate(inside).mean()


def noisy(shape, rank, seed, sigma=0.1):
    """A tensor of signed factors and its factors."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, rank)) for size in shape]
    T = model_of(factors)
    return T + sigma * np.sqrt(np.mean(T**2)) * rng.standard_normal(shape), factors


# The covariance beside one that is written differently


def jacobian(f, x):
    step = 1e-5
    columns = [(f(x + step * e) - f(x - step * e)) / (2 * step) for e in np.eye(x.size)]
    return np.stack(columns, axis=1)


def dense_covariance(X, factors, loss, scales, weights, ridges, rank_of_h):
    """Variances of unit columns by a whole Jacobian, finite differences and a pseudoinverse."""
    sizes = [A.size for A in factors]

    def split(x):
        parts = np.split(x, np.cumsum(sizes)[:-1])
        return [part.reshape(A.shape) for part, A in zip(parts, factors, strict=True)]

    theta = np.concatenate([A.ravel() for A in factors])
    some = ~np.isnan(X) & (weights > 0)
    J = jacobian(lambda x: model_of(split(x))[some], theta)
    u, omega = scales[some], weights[some]
    r = (X[some] - model_of(factors)[some]) / u
    size = 1.4826 * np.median(np.abs(r))
    h = 1.2 * size * r.size**-0.2
    far = np.where(np.abs(r) < 0.1 * size, np.copysign(0.1 * size, r), r)
    w = loss.slope(far) / far
    p = (theta.size - (len(sizes) - 1) * factors[0].shape[1]) / r.size
    rest = r[np.abs(r) >= np.quantile(np.abs(r), min(p, 0.1))]
    c = np.mean(loss.slope(rest + h) - loss.slope(rest - h)) / (2 * h) / np.mean(w)
    ridge = np.concatenate([np.broadcast_to(a, A.shape).ravel()
                            for a, A in zip(ridges, factors, strict=True)])  # fmt: skip
    leverage, first = np.zeros(r.size), 0
    for size_of_mode in sizes:
        at = slice(first, first + size_of_mode)
        G = J[:, at].T @ ((loss.curvature(r) * omega / u**2)[:, None] * J[:, at])
        hat = J[:, at] @ np.linalg.pinv(G + np.diag(ridge[at]), hermitian=True)
        leverage += np.sum(hat * J[:, at], axis=1) * np.mean(w) * omega / u**2
        first += size_of_mode
    psi = omega * loss.slope(r) / u / (1 - np.minimum(leverage, 0.9))
    H = c * J.T @ ((w * omega / u**2)[:, None] * J) + np.diag(ridge)
    M = J.T @ (psi[:, None] ** 2 * J) + np.diag(ridge)
    assert np.linalg.matrix_rank(H, 1e-9 * np.abs(H).max(), hermitian=True) == rank_of_h
    G = np.linalg.pinv(H, 1e-9, hermitian=True)
    U = jacobian(lambda x: np.concatenate([unit(A).ravel() for A in split(x)]), theta)
    return split(np.diagonal(U @ G @ M @ G @ U.T))


@pytest.mark.parametrize("case", ["plain", "uneven", "thin", "order 4", "prior"])
def test_covariance_is_that_of_a_dense_jacobian(case, rng):
    shape = (3, 4, 5, 3) if case == "order 4" else (5, 7, 6)
    X, _ = noisy(shape, 2, 3)
    scales, weights = np.ones(shape), np.ones(shape)
    engine = as_engine(X)
    if case == "uneven":
        weights = rng.choice([0.0, 1.0, 2.0], shape)
        scales = np.exp(0.3 * rng.standard_normal(shape))
        held = robustcp.engines.Scales(robustcp.engines.EntryField(shape, (None,) * 3, scales))
        engine = engine.weighted(weights).standardized(held)
    elif case == "thin":
        X[rng.random(shape) < 0.4] = np.nan
        engine = as_engine(X)
    elif case == "order 4":
        engine = as_engine(X.copy(order="F"))
    fit = robustcp.cpals(engine, 2)
    factors = [np.asarray(A) for A in fit.model.absorbed()]
    loss = robustcp.Cauchy(np.nanstd(X - model_of(factors)))
    known = RowPrior().row_posterior(engine, tuple(factors), loss, 1.0, None)
    ridges, nulls = [np.zeros(2)] * len(shape), 2 * (len(shape) - 1)
    if case == "prior":
        taus = tuple(np.array([0.3, 0.5]) + n for n in range(3))
        rows = []
        for mode, tau in enumerate(taus):
            packed = np.asarray(engine.normal_equations(tuple(factors), mode, loss).gram)
            full = packed[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
            rows.append(np.linalg.inv(full + np.diag(1 / tau)))
        known, nulls = RowPosterior(taus, tuple(rows), (None,) * 3), 0
        ridges = [1 / tau for tau in taus]
    found = covariance.covariance(engine, factors, loss, known, 1.0)
    rank_of_h = 2 * sum(shape) - nulls
    expected = dense_covariance(X, factors, loss, scales, weights, ridges, rank_of_h)
    assert found.joint
    assert found.determined
    for V, W in zip(found.variances, expected, strict=True):
        np.testing.assert_allclose(V, W, rtol=1e-3 if case == "prior" else 1e-5)


def test_pieces_of_the_data_make_no_difference(monkeypatch):
    X, _ = noisy((9, 8, 7), 2, 0)
    fit = robustcp.cpals(X, 2)
    whole = fit.uncertainty(X)
    monkeypatch.setattr(covariance, "BATCH_ENTRIES", 100)
    for a, b in zip(fit.uncertainty(X).errors, whole.errors, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def collinear(shape, rank, rng, congruence=0.9):
    gram = np.full((rank, rank), congruence) + (1 - congruence) * np.eye(rank)
    root = np.linalg.cholesky(gram).T
    return [np.linalg.qr(rng.standard_normal((size, rank)))[0] @ root for size in shape]


@pytest.mark.recovery
def test_normal_errors_are_the_spread_of_estimates(rng, monkeypatch):
    """Also where components are alike, so that errors of the factors go together."""
    shape = (12, 11, 10)
    factors = collinear(shape, 2, rng)
    T = model_of(factors)
    sigma = 0.05 * np.sqrt(np.mean(T**2))
    deviations, variances, alone = [], [], []
    for _ in range(80):
        X = T + sigma * rng.standard_normal(shape)
        fit = robustcp.cpals(X, 2, init=factors, tol=1e-11)
        true = matched_truth(fit, factors)
        found = fit.uncertainty(X)
        deviations.append([np.asarray(A) - B for A, B in zip(fit.factors, true, strict=True)])
        variances.append([e**2 for e in found.errors])
        with monkeypatch.context() as patch:
            patch.setattr(covariance, "MAX_JOINT_UNKNOWNS", 0)
            rows = fit.uncertainty(X)
        assert "as if others were known" in rows.notes[0]
        alone.append([e**2 for e in rows.errors])
    for n in range(3):
        spread = np.mean([d[n] ** 2 for d in deviations])
        assert np.mean([v[n] for v in variances]) == pytest.approx(spread, rel=0.2)
        assert np.mean([v[n] for v in alone]) < 0.75 * spread


def test_errors_of_the_1_norm_are_those_of_medians():
    X, _ = noisy((30, 20, 15), 2, 1)
    squares = robustcp.cpals(X, 2).uncertainty(X)
    medians = robustcp.cpal1(X, 2).uncertainty(X)
    ratios = [np.median(a / b) for a, b in zip(medians.errors, squares.errors, strict=True)]
    assert np.mean(ratios) == pytest.approx(np.sqrt(np.pi / 2), rel=0.12)


# Coverage


@pytest.mark.recovery
@pytest.mark.parametrize("method", ["normal", "bootstrap"])
@pytest.mark.parametrize("eta", [0.0, 0.1])
def test_intervals_cover(method, eta):
    shares = []
    for seed in range(8):
        sim = robustcp.simulate((16, 14, 12), 2, eta=eta, gamma=eta and 1.0, rng=seed)
        fit = robustcp.cp(sim.data, 2)
        found = fit.uncertainty(sim.data, method, n=40)
        shares.append(covered(found, matched_truth(fit, sim.truth.factors)))
    assert 0.9 <= np.mean(shares) <= 0.98


def study(kind, seed):
    """Data, its factors and how it is fitted, for the long study."""
    rng = np.random.default_rng(seed)
    small, large = ((12, 10, 8), 2), ((50, 50, 50), 5)
    shape, rank = {"large": large, "small": small}.get(kind.split()[0], ((30, 20, 15), 3))
    factors = [np.abs(rng.standard_normal((size, rank))) for size in shape]
    if kind == "zeros":
        factors = [np.where(rng.random(A.shape) < 0.6, A, 0.0) for A in factors]
    if kind == "collinear":
        factors = collinear(shape, rank, rng)
    T = model_of(factors)
    size = np.sqrt(np.mean(T**2))
    sigma = 0.1 * size * np.ones(shape)
    if kind == "slabs":
        sigma *= np.exp(0.7 * rng.standard_normal(shape[0]))[:, None, None]
    if kind == "signal":
        sigma = 0.03 * (np.abs(T) + size)
    X = T + sigma * rng.standard_normal(shape)
    spots = rng.random(shape) < (0.0 if kind.endswith("clean") else 0.1)
    X[spots] += size / np.sqrt(0.1)
    if kind == "missing":
        X[rng.random(shape) < 0.3] = np.nan
    if kind == "thin":
        keep = rng.random(shape) < 0.25
        X = robustcp.Observed(np.argwhere(keep), X[keep], shape)
    if kind == "float32":
        X = X.astype(np.float32)
    return X, factors, rank, {"nonnegative": kind == "zeros"}


KINDS = (
    "clean", "medium", "small", "small and clean", "large", "large and clean", "collinear", "slabs",
    "signal", "missing", "zeros", "float32", "thin",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_in_fifty_tensors(kind):
    shares = {"normal": [], "bootstrap": []}
    for seed in range(50):
        X, factors, rank, options = study(kind, seed)
        fit = robustcp.cp(X, rank, **options)
        if robustcp.factor_match_score(fit, (None, factors), weights=False) < 0.8:
            continue  # intervals are about another model
        true = matched_truth(fit, factors)
        for method, found in shares.items():
            found.append(covered(fit.uncertainty(X, method), true))
    assert len(shares["normal"]) >= 45
    assert 0.9 <= np.mean(shares["normal"]) <= 0.98
    assert (0.85 if kind == "thin" else 0.9) <= np.mean(shares["bootstrap"]) <= 0.98


def test_nonnegative_intervals_end_at_zero_and_cover_zeros():
    X, factors, rank, options = study("zeros", 0)
    fit = robustcp.cp(X, rank, **options)
    found = fit.uncertainty(X)
    true = matched_truth(fit, factors)
    assert all((low >= 0).all() and (high <= 1).all()
               for low, high in zip(found.low, found.high, strict=True))  # fmt: skip
    zeros = [low[B == 0] == 0 for low, B in zip(found.low, true, strict=True)]
    assert np.mean(np.concatenate(zeros)) > 0.9
    assert covered(found, true) > 0.9


# What makes no difference


def test_listed_entries_are_like_missing_ones():
    X, _ = noisy((12, 11, 10), 2, 2)
    rng = np.random.default_rng(0)
    keep = rng.random(X.shape) < 0.7
    at = rng.permutation(np.argwhere(keep))
    listed = robustcp.Observed(at, X[tuple(at.T)], X.shape)
    dense = np.where(keep, X, np.nan)
    fit = robustcp.cpals(dense, 2)
    for method in ("normal", "bootstrap"):
        one, other = (fit.uncertainty(data, method, n=20) for data in (dense, listed))
        for a, b in zip(one.errors, other.errors, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_weight_zero_is_like_missing():
    X, _ = noisy((12, 11, 10), 2, 2)
    keep = np.random.default_rng(0).random(X.shape) < 0.7
    fit = robustcp.cpals(X, 2, entry_weights=keep)
    for method in ("normal", "bootstrap"):
        one = fit.uncertainty(as_engine(X).weighted(keep), method, n=20)
        other = fit.uncertainty(np.where(keep, X, np.nan), method, n=20)
        for a, b in zip(one.errors, other.errors, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("method", ["normal", "bootstrap"])
@pytest.mark.parametrize("factor", [1e-150, 1e150])
def test_units_make_no_difference(method, factor):
    sim = robustcp.simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0)
    found = []
    for data in (sim.data, factor * sim.data):
        found.append(robustcp.cp(data, 2).uncertainty(data, method, n=20))
    for a, b in zip(found[0].errors, found[1].errors, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.02)


def test_same_seed_same_intervals_whatever_jobs_are():
    X, _ = noisy((10, 9, 8), 2, 0)
    fit, told = robustcp.cp(X, 2), []
    one = fit.uncertainty(X, "bootstrap", n=20, rng=5, jobs=1)
    two = fit.uncertainty(
        X, "bootstrap", n=20, rng=5, jobs=2, progress=lambda done, total: told.append((done, total))
    )
    other = fit.uncertainty(X, "bootstrap", n=20, rng=6, jobs=1)
    assert told[-1] == (20, 20)
    for a, b, c in zip(one.errors, two.errors, other.errors, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.array_equal(a, c)


# Slabs


def by_hand(fit, X, factors_of, mode):
    """Matched unit columns of the other modes, of fits of other data by least squares."""
    found = []
    for data, start in factors_of:
        again = robustcp.cpals(data, fit.rank, init=start, tol=1e-12)
        kept = [n for n in range(3) if n != mode]
        score = np.prod([np.abs(fit.factors[n].T @ again.factors[n]) for n in kept], axis=0)
        order = linear_sum_assignment(-score)[1]
        columns = [again.factors[n][:, order] for n in kept]
        found.append(
            [B * np.sign(np.sum(fit.factors[n] * B, axis=0))
             for n, B in zip(kept, columns, strict=True)]
        )  # fmt: skip
    return [np.stack(each) for each in zip(*found, strict=True)]


def test_jackknife_is_that_of_fits_without_each_slab():
    X, _ = noisy((7, 9, 8), 2, 4)
    fit = robustcp.cpals(X, 2, tol=1e-12)
    found = fit.uncertainty(X, "jackknife", mode=1, level=0.9)
    absorbed = fit.model.absorbed()
    without = [
        (np.delete(X, k, 1), [np.delete(A, k, 0) if n == 1 else A for n, A in enumerate(absorbed)])
        for k in range(9)
    ]
    first, last = by_hand(fit, X, without, 1)
    assert (found.mode, found.count) == (1, 9)
    assert found.low[1] is found.high[1] is found.errors[1] is None
    for n, each in ((0, first), (2, last)):
        error = np.sqrt(8 / 9 * np.sum((each - each.mean(axis=0)) ** 2, axis=0))
        np.testing.assert_allclose(found.errors[n], error, rtol=1e-2)
        half = student.ppf(0.95, 8) * found.errors[n]
        np.testing.assert_allclose(found.high[n], np.minimum(fit.factors[n] + half, 1))


def test_drawn_slabs_are_slabs_repeated():
    from robustcp.inference.uncertainty import FitBasis

    X, _ = noisy((8, 7, 9), 2, 5)
    fit = robustcp.cpals(X, 2, tol=1e-12)
    counts = np.array([0, 3, 1, 1, 0, 2, 1, 0])
    model = FitBasis.of(fit, Problem.of(as_engine(X))).make_refitter().refit_slabs(0, counts)
    absorbed = fit.model.absorbed()
    repeated = np.repeat(X, counts, axis=0)
    start = [np.repeat(absorbed[0], counts, axis=0), *absorbed[1:]]
    expected = robustcp.cpals(repeated, 2, init=start, tol=1e-12)
    assert model[0].shape == (5, 2)
    assert robustcp.factor_match_score(
        (None, model[1:]), (None, expected.factors[1:]), weights=False
    ) == pytest.approx(1, abs=1e-6)


def test_many_slabs_are_left_out_in_groups():
    X, _ = noisy((50, 6, 5), 2, 0)
    fit = robustcp.cpals(X, 2)
    assert fit.uncertainty(X, "jackknife", n=20).count == 20
    every = fit.uncertainty(X, "jackknife")
    assert every.count == 50
    grouped = fit.uncertainty(X, "jackknife", n=25)
    ratio = np.median(grouped.errors[1] / every.errors[1])
    assert 0.7 < ratio < 1.4


def test_slabs_of_samples_speak_of_the_other_modes():
    X, factors = noisy((40, 10, 9), 2, 3)
    fit = robustcp.cp(X, 2)
    found = fit.uncertainty(X, "bootstrap", mode=0, n=60)
    assert found.errors[0] is None
    assert found.count == 60
    np.testing.assert_array_equal(found.came_back, 1)
    normal = fit.uncertainty(X)
    for n in (1, 2):
        assert 0.7 < np.median(found.errors[n] / normal.errors[n]) < 1.4
    assert 0.85 <= covered(found, matched_truth(fit, factors)) <= 1.0


# What there is no telling of


def test_components_that_do_not_come_back_are_counted():
    X, _ = noisy((14, 12, 10), 2, 0, sigma=0.5)
    fit = robustcp.cpals(X, 3)  # the third is noise
    found = fit.uncertainty(X, "bootstrap", mode=0, n=40)
    assert (found.came_back[:2] > 0.9).all()
    assert found.came_back[2] < 0.5
    assert any("component 3 came back" in note for note in found.notes)


@pytest.mark.parametrize("method", ["normal", "bootstrap"])
@pytest.mark.filterwarnings("ignore:X. 1 slabs of mode")
def test_rows_without_entries_have_the_widest_intervals(method):
    X, _ = noisy((12, 11, 10), 2, 0)
    X[3] = np.nan
    X[:, 4] = np.nan
    for fit in (robustcp.cp(X, 2), robustcp.cpals(X, 2)):
        found = fit.uncertainty(X, method, n=20)
        for mode, row in ((0, 3), (1, 4)):
            assert np.isinf(found.errors[mode][row]).all()
            assert (found.low[mode][row] == -1).all()
            assert (found.high[mode][row] == 1).all()
            others = np.delete(found.errors[mode], row, axis=0)
            assert (others < 0.1).all()


def test_bad_cases_have_the_widest_intervals():
    X, _ = noisy((20, 9, 8), 2, 0)
    X[[2, 7]] += 5 * np.std(X)
    fit = robustcp.cp(X, 2, cases=0)
    assert np.flatnonzero(fit.cases.flagged).tolist() == [2, 7]
    for method in ("normal", "bootstrap"):
        errors = fit.uncertainty(X, method, n=20).errors[0]
        assert np.flatnonzero(np.isinf(errors).any(axis=1)).tolist() == [2, 7]


def test_a_matrix_is_not_determined():
    X, _ = noisy((12, 11), 2, 0)
    found = robustcp.cpals(X, 2).uncertainty(X)
    assert "the data does not determine all factors" in found.notes
    assert all(np.median(high - low) > 1 for low, high in zip(found.low, found.high, strict=True))


@pytest.mark.parametrize("shape", [(40, 30), (30, 40, 1)])
def test_what_is_not_determined_has_no_error(shape):
    X, _ = noisy(shape, 2, 0)
    fit = robustcp.cp(X, 2)
    found = fit.uncertainty(X)
    assert all(np.isinf(errors).all() for errors in found.errors[:2])
    assert all((errors < 1e-6).all() for errors in found.errors[2:])  # one entry, of size 1
    assert found.notes == fit.uncertainty(X, "bootstrap", n=20).notes
    assert found.notes == ("the data does not determine all factors",)


def test_exact_data_has_hardly_any_error():
    X, _ = noisy((8, 7, 6), 2, 0, sigma=0.0)
    for method in (robustcp.cp, robustcp.cpal1, robustcp.cpals):
        found = method(X, 2).uncertainty(X)
        assert all((errors < 1e-3).all() for errors in found.errors)


def test_zero_data_tells_nothing():
    X = np.zeros((8, 7, 6))
    fit = robustcp.cp(X, 1)
    for method in ("normal", "bootstrap"):
        assert all(np.isinf(errors).all() for errors in fit.uncertainty(X, method, n=20).errors)


# The front door


def test_width_follows_the_level():
    X, _ = noisy((9, 8, 7), 2, 0)
    fit = robustcp.cp(X, 2)
    for level in (0.5, 0.99):
        found = fit.uncertainty(X, level=level)
        half = norm.ppf((1 + level) / 2) * found.errors[0]
        np.testing.assert_allclose(found.high[0], np.minimum(fit.factors[0] + half, 1))
        np.testing.assert_allclose(found.low[0], np.maximum(fit.factors[0] - half, -1))
    assert repr(found).startswith("Uncertainty(normal, 99% intervals, median error 0.0")
    assert found.count == found.failed == 0
    np.testing.assert_array_equal(found.came_back, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "delta"}, "method: must be one of 'normal', 'bootstrap', 'jackknife'"),
        ({"mode": 0}, "mode: is for resampled slabs, got 0 for 'normal'"),
        ({"method": "bootstrap", "mode": 3}, "mode: must be an integer from 0 to 2, got 3"),
        ({"method": "jackknife", "mode": 2}, "mode: must have at least 4 slabs with data"),
        ({"method": "bootstrap", "n": 19}, "n: must be an integer >= 20, got 19"),
        ({"level": 1.0}, "level: must be a number > 0 and < 1, got 1.0"),
        ({"method": "bootstrap", "rng": "x"}, "rng: must be a seed"),
        ({"method": "bootstrap", "jobs": 0}, "jobs: must be an integer >= 1, got 0"),
    ],
)
def test_arguments_are_checked(options, message):
    X, _ = noisy((6, 5, 3), 2, 0)
    fit = robustcp.cpals(X, 2)
    with pytest.raises(ValueError, match=message):
        fit.uncertainty(X, **options)


def test_data_of_another_shape_is_refused():
    X, _ = noisy((6, 5, 4), 2, 0)
    with pytest.raises(ValueError, match=r"X: has shape \(5, 5, 4\)"):
        robustcp.cpals(X, 2).uncertainty(X[1:])
