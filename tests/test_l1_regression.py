from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from robustcp import l1_regression
from support.oracles import host


def problem(seed, rows=200, columns=4):
    """A regression with 20% gross errors."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((rows, columns))
    y = M @ rng.standard_normal(columns) + 0.1 * rng.standard_normal(rows)
    bad = rng.random(rows) < 0.2
    return M, y + np.where(bad, 10 * rng.standard_normal(rows), 0.0)


def exact(M, y):
    """The least sum of absolute deviations, by linear programming."""
    rows, columns = M.shape
    cost = np.concatenate([np.zeros(columns), np.ones(2 * rows)])
    equal = np.hstack([M, np.eye(rows), -np.eye(rows)])
    bounds = [(None, None)] * columns + [(0, None)] * (2 * rows)
    return linprog(cost, A_eq=equal, b_eq=y, bounds=bounds, method="highs").fun


@pytest.mark.parametrize("seed", range(20))
def test_equals_linear_programming(seed):
    M, y = problem(seed)
    b = l1_regression(M, y)
    assert np.abs(y - M @ b).sum() <= exact(M, y) * (1 + 1e-6)


def test_several_responses_are_solved_one_by_one(xp):
    M, _ = problem(0)
    Y = np.stack([problem(seed)[1] for seed in range(3)], axis=1)
    B = l1_regression(xp.asarray(M), xp.asarray(Y))
    assert B.shape == (4, 3)
    assert type(B) is type(xp.asarray(Y))
    for k in range(3):
        loss = np.abs(Y[:, k] - M @ host(B)[:, k]).sum()
        assert loss <= exact(M, Y[:, k]) * (1 + 1e-6)


@pytest.mark.parametrize(("a", "c"), [(1e6, 1.0), (1.0, 1e-6), (1e-150, 1e150), (1e5, 1e-5)])
def test_units_do_not_matter(a, c):
    M, y = problem(1)
    np.testing.assert_allclose(
        l1_regression(a * M, c * y) * (a / c), l1_regression(M, y), atol=1e-5
    )


@pytest.mark.parametrize("size", [1e4, 1e9, 1e100])
def test_columns_of_very_different_size(size):
    M, y = problem(2)
    sizes = np.array([1 / size, 1.0, size, 1.0])
    b = l1_regression(M * sizes, y)
    assert np.abs(y - (M * sizes) @ b).sum() <= exact(M, y) * (1 + 1e-6)


def test_responses_of_very_different_size():
    M, _ = problem(0)
    sizes = np.array([1.0, 1e-6, 1e6])
    Y = np.stack([problem(seed)[1] for seed in range(3)], axis=1)
    B = l1_regression(M, Y * sizes)
    for k in range(3):
        assert np.abs(Y[:, k] - M @ B[:, k] / sizes[k]).sum() <= exact(M, Y[:, k]) * (1 + 1e-6)


def test_a_trend_against_time_in_seconds():
    t = 1.7e9 + 3600.0 * np.arange(200)
    y = 3.0 + 1e-6 * (t - t[0])
    y[::7] += 40.0
    M = np.stack([np.ones(200), t - t.mean()], axis=1)
    fitted = M @ l1_regression(M, y)
    clean = np.arange(200) % 7 != 0
    np.testing.assert_allclose(fitted[clean], y[clean], atol=1e-4)


def test_data_frames():
    import pandas

    M, y = problem(0)
    np.testing.assert_allclose(
        l1_regression(pandas.DataFrame(M), pandas.Series(y)), l1_regression(M, y)
    )


def test_dependent_columns_give_a_finite_answer():
    M, y = problem(3)
    b = l1_regression(np.hstack([M, M[:, :1]]), y)
    assert np.isfinite(b).all()
    fitted = np.hstack([M, M[:, :1]]) @ b
    assert np.abs(y - fitted).sum() <= exact(M, y) * (1 + 1e-5)


def test_zeros_and_lists():
    assert np.array_equal(l1_regression([[1.0], [2.0]], [0.0, 0.0]), [0.0])
    np.testing.assert_allclose(l1_regression([[1], [1], [1]], [1, 2, 30]), [2.0], atol=1e-4)


@pytest.mark.parametrize(
    ("M", "Y", "message"),
    [
        (np.ones((3, 2)), np.ones(4), "Y: has 4 rows, M has 3"),
        (np.ones(3), np.ones(3), "M: must have at least 2 modes"),
        (np.ones((3, 2, 2)), np.ones(3), "M, Y: must be"),
        (np.full((3, 2), np.inf), np.ones(3), "M: has infinite"),
        (np.ones((3, 2)), np.array([1.0, np.nan, 1.0]), "Y: has NaN"),
    ],
)
def test_bad_input(M, Y, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        l1_regression(M, Y)
