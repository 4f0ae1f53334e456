"""Constraints on whole columns and rows: their solutions against independent ones, and fits."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize, nnls
from sklearn.base import clone

import robustcp
from robustcp import (
    Fixed,
    KruskalTensor,
    Monotone,
    Nonnegative,
    Observed,
    Orthogonal,
    Simplex,
    Smooth,
    Sparse,
    cp,
    cp_many,
    cpal1,
    cpals,
    factor_match_score,
)
from robustcp.constraints import Free, orient_columns
from robustcp.constraints.orthogonal import common_bound, polar_factor
from robustcp.constraints.simplex import closing_units, minimum_on_simplex, nearest_on_simplex
from robustcp.constraints.sparse import shrink
from robustcp.engines.algebra import algebra_for
from robustcp.engines.normal_equations import NormalEquations

SEEDS = st.integers(0, 10_000)


class System:
    """Random normal equations, with rows that satisfy a constraint."""

    def __init__(self, seed, kind, count=8, rank=3, *, empty=(), shared=False, mu=0.1):
        rng = np.random.default_rng(seed)
        M = rng.standard_normal((1 if shared else count, 2 * rank, rank))
        M = M * rng.uniform(0.2, 3.0, (len(M), 1, 1))  # rows of different weight
        M[list(empty)] = 0.0
        self.G, self.mu, self.kind = np.einsum("ijr,ijs->irs", M, M), mu, kind
        self.rows = kind.project(rng.standard_normal((count, rank)) + 0.5)
        target = rng.standard_normal((count, rank)) + 0.3
        self.gradient = np.einsum(
            "irs,is->ir", np.broadcast_to(self.G, (count, rank, rank)), target - self.rows
        )
        self.price = rng.uniform(0.5, 2.0, rank)

    def majorizer(self, u):
        u = u.reshape(self.rows.shape)
        d = u - self.rows
        G = np.broadcast_to(self.G, (len(d), *self.G.shape[1:]))
        value = np.einsum("ir,irs,is->", d, G, d) / 2 - np.sum(self.gradient * d)
        penalty = self.kind.penalty(u)
        cost = 0.0 if penalty is None else float(penalty @ self.price)
        return value + self.mu / 2 * np.sum(u**2) + cost

    def slope(self, u):
        """The derivative of the majorizer, without the penalty."""
        d = u - self.rows
        G = np.broadcast_to(self.G, (len(d), *self.G.shape[1:]))
        return np.einsum("irs,is->ir", G, d) - self.gradient + self.mu * u

    def solve(self, times=1):
        """The rows after some solves with the same majorizer."""
        i, j = np.triu_indices(self.rows.shape[1])
        u = self.rows
        for _ in range(times):
            gradient = -(self.slope(u) - self.mu * u)
            equations = NormalEquations(np.ascontiguousarray(self.G[:, i, j]), gradient, 0.0)
            new = self.kind.solve(equations, u, self.mu, algebra_for(np), self.price)
            rounding = 1e-12 * np.abs(self.gradient).sum() * (1 + np.abs(u).max())
            assert self.majorizer(new) <= self.majorizer(u) + rounding
            u = new
        return u


def kinds_for(count):
    values = np.random.default_rng(count).random((count, 2))
    values[::3, 0] = np.nan
    return {
        "increasing": Monotone(),
        "decreasing": Monotone(increasing=False, nonnegative=True),
        "orthogonal": Orthogonal(),
        "simplex": Simplex(),
        "l1": Sparse(l1=0.3),
        "l1 and nonnegative": Sparse(l1=0.3, nonnegative=True),
        "cardinality": Sparse(cardinality=3),
        "fixed": Fixed(values),
        "fixed and nonnegative": Fixed(values, nonnegative=True),
    }


NAMES = tuple(kinds_for(3))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(seed=SEEDS, count=st.integers(1, 12), rank=st.integers(1, 4), data=st.data())
def test_no_solve_raises_the_majorizer(name, seed, count, rank, data):
    empty = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    kind = kinds_for(count)[name]
    mu = data.draw(st.sampled_from([0.0, 0.2]))
    shared = data.draw(st.booleans())
    system = System(seed, kind, count, rank, empty=() if shared else empty, shared=shared, mu=mu)
    new = system.solve(4)
    np.testing.assert_allclose(kind.project(new), new, atol=1e-7 * (1 + np.abs(new).max()))


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEEDS, scale=st.floats(1e-3, 1e3))
def test_columns_may_be_multiplied(name, seed, scale):
    rng = np.random.default_rng(seed)
    kind = kinds_for(7)[name]
    allowed = kind.project(rng.standard_normal((7, 3)))
    scaled = allowed * np.array([scale, 1.0, 1 / scale])
    size = np.linalg.norm(scaled, axis=0)
    np.testing.assert_allclose((kind.project(scaled) - scaled) / np.where(size, size, 1), 0,
                               atol=1e-7)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_float32(name):
    kind = kinds_for(8)[name]
    system = System(3, kind)
    i, j = np.triu_indices(3)
    single = NormalEquations(
        system.G[:, i, j].astype(np.float32), system.gradient.astype(np.float32), 0.0
    )
    rows = system.rows.astype(np.float32)
    new = kind.solve(single, rows, system.mu, algebra_for(np), system.price)
    assert new.dtype == kind.project(rows).dtype == np.float32
    np.testing.assert_allclose(new, system.solve(), atol=1e-3)


# Solutions


@pytest.mark.parametrize("increasing", [True, False])
@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_monotone_columns_are_those_of_nonnegative_steps(increasing, nonnegative, seed):
    kind = Monotone(increasing, nonnegative)
    system = System(seed, kind, count=7, rank=2)
    found = system.solve(300)
    # Columns are sums of steps, each of them >= 0, and a free (or nonnegative) level.
    steps = np.tril(np.ones((7, 7))) if increasing else np.triu(np.ones((7, 7)))
    level = steps[:, [0]] if increasing else steps[:, [-1]]
    D = np.kron(steps if nonnegative else np.hstack([steps, -level]), np.eye(2))
    root = np.zeros((14, 14))
    for k in range(7):
        root[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = np.linalg.cholesky(
            system.G[k] + system.mu * np.eye(2)
        ).T
    b = np.einsum("irs,is->ir", system.G, system.rows) + system.gradient
    best = D @ nnls(root @ D, np.linalg.solve(root.T, b.ravel()))[0]
    np.testing.assert_allclose(found.ravel(), best, atol=1e-5)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 4))
def test_rows_on_the_simplex_satisfy_kkt(seed, rank):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((5, rank + 1, rank))
    H, rows = np.einsum("ijr,ijs->irs", M, M), nearest_on_simplex(rng.random((5, rank)))
    gradient = rng.standard_normal((5, rank)) * 10 ** rng.uniform(-1, 2)
    w = minimum_on_simplex(H, gradient, rows)
    assert w.min() >= 0
    np.testing.assert_allclose(w.sum(axis=1), 1)
    slope = np.einsum("irs,is->ir", H, w - rows) - gradient
    level = np.sum(w * slope, axis=1, keepdims=True)
    size = 1e-6 * np.abs(gradient).max()
    assert (slope - level).min() > -size  # no direction of descent
    assert np.abs(w * (slope - level)).max() < size


@pytest.mark.parametrize("seed", range(4))
def test_rows_on_the_simplex_are_those_of_slsqp(seed):
    system = System(seed, Simplex(), count=4)
    d = closing_units(system.rows)
    found = system.solve()
    np.testing.assert_allclose((found * d).sum(axis=1), 1)
    for k in range(4):

        def cost(w, k=k):
            u = system.rows.copy()
            u[k] = w / d
            return system.majorizer(u)

        closed = {"type": "eq", "fun": lambda w: w.sum() - 1}
        best = minimize(cost, np.full(3, 1 / 3), bounds=[(0, 1)] * 3, constraints=closed,
                        method="SLSQP", options={"ftol": 1e-14}).x  # fmt: skip
        np.testing.assert_allclose(found[k] * d, best, atol=1e-5)


@given(SEEDS, st.integers(1, 5))
def test_projections_onto_the_simplex(seed, rank):
    rows = np.random.default_rng(seed).standard_normal((4, rank)) * 3
    near = nearest_on_simplex(rows)
    np.testing.assert_allclose(near.sum(axis=1), 1)
    assert near.min() >= 0
    # Nearest: the linear function of its own slope is least there, over the whole simplex.
    for row, w in zip(rows, near, strict=True):
        slope = w - row
        least = linprog(slope, A_eq=np.ones((1, rank)), b_eq=[1.0], method="highs").fun
        assert slope @ w == pytest.approx(least, abs=1e-9)


def test_compositions_are_recovered_in_any_units():
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 10)
    scaled = shares * np.array([10.0, 1.0, 1e-3])
    np.testing.assert_allclose(Simplex().compositions(scaled), shares, rtol=1e-9)


@settings(max_examples=100)
@given(SEEDS, st.integers(1, 6), st.floats(0, 10))
def test_shrunk_columns_satisfy_kkt(seed, count, cost):
    rng = np.random.default_rng(seed)
    target, weights = rng.standard_normal(count).round(1), rng.uniform(0, 2, count).round(1)
    v = shrink(target, weights, cost)
    slope, level = weights * (v - target), cost * np.abs(v).sum()
    assert np.all(v * target >= 0)
    np.testing.assert_allclose(slope[v != 0], -level * np.sign(v[v != 0]), atol=1e-9)
    assert np.abs(slope[v == 0]).max(initial=0) <= level + 1e-9


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_l1_rows_are_those_of_a_quadratic_program(seed, nonnegative):
    kind = Sparse(l1=1.0, nonnegative=nonnegative)
    system = System(seed, kind, count=5, rank=2)
    found = system.solve(300)
    assert (found == 0).any()

    def cost(parts):  # u = p - q with p, q >= 0
        p, q = parts.reshape(2, 5, 2)
        smooth = system.majorizer(p - q) - kind.penalty(p - q) @ system.price
        return smooth + 1.0 / 10 * np.sum((p + q), axis=0) ** 2 @ system.price

    bounds = [(0, None)] * 10 + [(0, 0) if nonnegative else (0, None)] * 10
    best = minimize(cost, np.full(20, 0.1), bounds=bounds, method="SLSQP",
                    options={"ftol": 1e-15, "maxiter": 1000})  # fmt: skip
    p, q = best.x.reshape(2, 5, 2)
    np.testing.assert_allclose(found, p - q, atol=1e-4)


@given(SEEDS, st.integers(1, 4), st.booleans())
def test_the_best_few_entries_of_a_column(seed, cardinality, nonnegative):
    kind = Sparse(cardinality=cardinality, nonnegative=nonnegative)
    system = System(seed, kind, count=5, rank=1)
    G, b = system.G[:, 0, 0] + system.mu, system.G[:, 0, 0] * system.rows[:, 0]
    target = (b + system.gradient[:, 0]) / G
    if nonnegative:
        target = np.maximum(target, 0)
    costs = []
    for kept in itertools.combinations(range(5), min(cardinality, 5)):
        u = np.zeros((5, 1))
        u[list(kept), 0] = target[list(kept)]
        costs.append(system.majorizer(u))
    assert system.majorizer(system.solve()) == pytest.approx(min(costs), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_free_entries_are_solved_for(seed, nonnegative):
    values = np.random.default_rng(seed).random((6, 2))
    values[[0, 3], 0] = values[[1, 3, 5], 1] = np.nan
    system = System(seed, Fixed(values, nonnegative), count=6, empty=(2,))
    found = system.solve()
    pairs = system.kind._matches(found)
    free = np.ones((6, 3), dtype=bool)
    for k, r in pairs:
        free[:, r] = np.isnan(values[:, k])
        at = ~free[:, r]
        ratios = found[at, r] / values[at, k]
        np.testing.assert_allclose(ratios, ratios[0])
        assert ratios[0] > 0
    np.testing.assert_array_equal(found[~free], system.rows[~free])
    slope = system.slope(found)
    if nonnegative:
        assert found.min() >= 0
        assert slope[free].min() > -1e-8
        slope = slope * found
    np.testing.assert_allclose(slope[free], 0, atol=1e-8)


def test_shared_grams_make_procrustes_steps_exact():
    system = System(0, Orthogonal(), count=7, shared=True, mu=0.0)
    lengths = np.linalg.norm(system.rows, axis=0)
    Q = system.rows / lengths
    # With lengths held, orthonormal columns change the majorizer by a linear term only.
    b = system.rows @ system.G[0] + system.gradient
    best = polar_factor(b * lengths) * lengths
    for seed in range(200):
        noise = np.random.default_rng(seed).standard_normal(Q.shape)
        other = polar_factor(Q + 10 ** (-seed / 50) * noise) * lengths
        assert system.majorizer(best) <= system.majorizer(other) + 1e-9
    assert system.majorizer(system.solve()) <= system.majorizer(best) + 1e-9


@given(SEEDS)
def test_the_common_bound_lies_above_every_gram(seed):
    G = System(seed, Orthogonal(), empty=(1,)).G
    bound = common_bound(G)
    assert np.linalg.eigvalsh(bound - G).min() > -1e-8 * np.abs(bound).max()


@pytest.mark.parametrize("seed", range(4))
def test_orthogonal_rows_are_stationary(seed):
    """No small rotation or change of lengths lowers the majorizer, as SciPy's BFGS confirms."""
    system = System(seed, Orthogonal(), count=6, rank=2)
    found = system.solve(3000)
    lengths = np.linalg.norm(found, axis=0)
    Q = found / lengths

    def moved(x):
        return polar_factor(Q + x[:12].reshape(6, 2)) * (lengths + x[12:])

    best = minimize(lambda x: system.majorizer(moved(x)), np.zeros(14), method="BFGS")
    assert system.majorizer(found) <= best.fun + 1e-5 * abs(best.fun)


def test_fewer_rows_than_components():
    assert np.count_nonzero(np.abs(Orthogonal().project(np.eye(2, 4) + 1)).sum(axis=0)) == 2
    X = np.random.default_rng(0).standard_normal((2, 9, 8))
    fit = cpals(X, 3, constraints={0: Orthogonal()}, max_sweeps=20)
    G = fit.factors[0].T @ fit.factors[0]
    assert np.abs(G - np.diag(np.diag(G))).max() < 1e-8


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Monotone(increasing=1), "increasing: must be True or False, got 1"),
        (lambda: Monotone(nonnegative="no"), "nonnegative: must be True or False"),
        (lambda: Sparse(), "either l1 or cardinality"),
        (lambda: Sparse(0.1, 3), "either l1 or cardinality"),
        (lambda: Sparse(l1=0), "l1: must be a number > 0, got 0"),
        (lambda: Sparse(cardinality=0.5), "cardinality: must be an integer"),
        (lambda: Fixed("known"), "values: must be"),
        (lambda: Fixed([["a"]]), "values: must be an array of numbers"),
        (lambda: Fixed([[np.nan]]), "values: must be columns of finite numbers"),
        (lambda: Fixed([[np.inf]]), "values: must be columns of finite numbers"),
        (lambda: Fixed([[-1.0]], nonnegative=True), "values: some are negative"),
        (lambda: cpals(np.ones((4, 3, 2)), 1, constraints={0: Fixed([1.0])}),
         "values: 1 rows for a mode of size 4"),
    ],
)  # fmt: skip
def test_what_is_no_constraint(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fixed_is_a_value():
    values = np.array([[1.0, np.nan], [2.0, 0.5]])
    assert Fixed(values) == Fixed(values.copy()) == Fixed([[1.0, None], [2.0, 0.5]])
    assert hash(Fixed(values)) == hash(Fixed(values.copy()))
    assert Fixed(values) != Fixed(values + 1)
    assert repr(Fixed(values)) == "Fixed(3 of 2 x 2 entries, mean 1.16667)"
    assert Fixed(values).on(np.array([0])) == Fixed([[1.0, np.nan]])
    assert Fixed([1.0, np.nan], nonnegative=True).on(np.array([1])) == Nonnegative()


# Fits


def simulate(name, seed, shape=(20, 15, 12), rank=3):
    """Data with 20% one-sided gross errors and 10% missing, the truth, and the constraint."""
    rng = np.random.default_rng(seed)
    size = shape[0]
    A = rng.random((size, rank))
    if name == "orthogonal":
        A, kind = np.linalg.qr(rng.standard_normal((size, rank)))[0], Orthogonal()
    elif name == "increasing":
        A, kind = np.cumsum(A**6, axis=0) - 2 * rng.random(rank), Monotone()
    elif name == "simplex":
        A, kind = rng.dirichlet(np.full(rank, 0.7), size), Simplex()
    elif name in ("l1", "cardinality"):
        A = (1 + A) * (np.argsort(A, axis=0) < 5) * rng.choice([-1, 1], A.shape)
        kind = Sparse(l1=0.01) if name == "l1" else Sparse(cardinality=5)
    else:
        values = A[:, :2].copy()
        values[rng.random(values.shape) < 0.3] = np.nan
        kind = Fixed(values)
    others = [rng.standard_normal((n, rank)) for n in shape[1:]]
    truth = KruskalTensor.from_factors([A, *others])
    X = truth.full()
    scale = np.abs(X).mean()
    X = X + 0.05 * scale * rng.standard_normal(shape)
    X = np.where(rng.random(shape) < 0.2, X + 10 * scale * rng.random(shape), X)
    return np.where(rng.random(shape) < 0.1, np.nan, X), truth, kind


RECOVERABLE = ("orthogonal", "increasing", "simplex", "l1", "cardinality", "fixed")


@pytest.mark.parametrize("name", RECOVERABLE)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.recovery),
                                  pytest.param(2, marks=pytest.mark.recovery)])  # fmt: skip
def test_recovery_with_gross_errors(name, seed):
    X, truth, kind = simulate(name, seed)
    fit = cp(X, 3, constraints={0: kind})
    assert factor_match_score(fit, truth) > 0.98
    squares = cpals(X, 3, constraints={0: kind})
    assert factor_match_score(squares, truth) < 0.95
    if name == "cardinality":
        order = np.argmax(np.abs(fit.factors[0].T @ truth.factors[0]), axis=0)
        np.testing.assert_array_equal(fit.factors[0][:, order] != 0, truth.factors[0] != 0)


@pytest.mark.parametrize("name", ["increasing", "simplex", "fixed"])
def test_one_start_is_enough(name):
    scores = []
    for seed in range(7, 12):
        X, truth, kind = simulate(name, seed)
        scores.append(factor_match_score(cpal1(X, 3, constraints={0: kind}), truth))
    assert np.median(scores) > 0.98


def test_columns_are_turned_towards_what_is_allowed():
    rng = np.random.default_rng(0)
    rising = np.cumsum(rng.random((9, 2)), axis=0)
    factors = (rising * np.array([-1, 1]), rng.standard_normal((8, 2)), np.abs(rng.random((7, 2))))
    kinds = (Monotone(), Free(), Fixed(factors[2][:, 0]))
    turned = orient_columns(factors, kinds, range(3))
    np.testing.assert_array_equal(turned[0], rising)
    np.testing.assert_array_equal(turned[1], factors[1] * np.array([-1, 1]))
    np.testing.assert_array_equal(turned[2], factors[2])
    # Without a mode that may take any sign, the mode in which it matters least does.
    kinds = (Monotone(), Monotone(), Fixed(factors[2][:, 0]))
    turned = orient_columns(factors, kinds, range(3))
    for n, A in enumerate(turned):
        assert np.all((factors[n] == A).all(axis=0) | (-factors[n] == A).all(axis=0))
    model = KruskalTensor.from_factors(turned).full()
    np.testing.assert_allclose(model, KruskalTensor.from_factors(factors).full())
    assert orient_columns(factors, (Nonnegative(),) * 3, range(3)) is factors


@pytest.mark.recovery
@pytest.mark.parametrize("name", RECOVERABLE)
def test_cases_limits_and_listed_data(name):
    X, truth, kind = simulate(name, 5, shape=(20, 24, 12))
    X[:, :4] += 5 * np.nanstd(X) * np.random.default_rng(0).random((20, 4, 12))
    constraints = {0: kind}
    fit = cp(X, 3, constraints=constraints, cases=1)
    assert fit.cases.flagged[:4].all()
    assert factor_match_score(fit, truth, weights=False, skip=1) > 0.95
    clipped = np.minimum(X, np.nanquantile(X, 0.9))
    listed = np.argwhere(~np.isnan(clipped))
    data = Observed(listed, clipped[tuple(listed.T)], X.shape)
    fit = cp(data, 3, constraints=constraints, limits=(None, float(np.nanquantile(X, 0.9))))
    assert kind.project(fit.factors[0]) == pytest.approx(fit.factors[0], abs=1e-6)


def test_a_known_spectrum_tells_components_apart():
    """With one column in common, components are not unique unless others are known."""
    rng = np.random.default_rng(0)
    A, B, C = rng.random((12, 2)), rng.random((11, 2)), rng.random((10, 2))
    C[:, 1] = C[:, 0]
    truth = KruskalTensor.from_factors([A, B, C])
    X = truth.full() + 1e-3 * rng.standard_normal((12, 11, 10))
    known = {0: Fixed(A)}
    fit = cp(X, 2, constraints=known)
    assert factor_match_score(fit, truth) > 0.99
    assert factor_match_score(cp(X, 2), truth) < 0.99


@pytest.mark.parametrize("method", [cp, cpal1, cpals], ids=lambda m: m.__name__)
def test_known_columns_come_back_as_they_are(method):
    X, truth, _ = simulate("fixed", 1)
    known = truth.factors[0][:, [2, 0]] * np.array([100.0, 1e-3])
    fit = method(X, 3, constraints={0: Fixed(known)}, entry_weights=np.isfinite(X) * 2.0)
    cosines = fit.factors[0].T @ (known / np.linalg.norm(known, axis=0))
    np.testing.assert_allclose(cosines.max(axis=0), 1, rtol=1e-10)


def test_rows_without_entries():
    X, _, kind = simulate("orthogonal", 0)
    X[4] = np.nan
    fit = cpal1(X, 3, constraints={0: kind})
    assert "unobserved" in [warning.code for warning in fit.warnings]
    assert not fit.factors[0][4].any()  # or else it would take up what is not orthogonal
    np.testing.assert_allclose(fit.factors[0].T @ fit.factors[0], np.eye(3), atol=1e-10)


@pytest.mark.recovery
@pytest.mark.parametrize("name", RECOVERABLE)
def test_large_tensors_begin_on_a_subsample(name):
    X, truth, kind = simulate(name, 3, shape=(110, 105, 100))
    fit = cpal1(X, 3, constraints={0: kind}, max_sweeps=25, starts=3)
    assert factor_match_score(fit, truth) > 0.9


def test_scores_of_new_samples_are_free():
    X, _, kind = simulate("orthogonal", 0)
    fit = cp(X, 3, constraints={0: kind})
    assert fit.project(X[:2]).shape == (2, 3)
    np.testing.assert_allclose(fit.project(X), fit.factors[0] * fit.weights,
                               atol=0.3 * fit.weights.max())  # fmt: skip


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.recovery)])
def test_constraints_reach_every_estimator(many):
    X, _, kind = simulate("simplex", 0, shape=(10, 9, 8), rank=2)
    X = np.nan_to_num(X)
    options = {"constraints": {0: kind}, "nonnegative": [1], "starts": 2}
    expected = (kind, Nonnegative())
    assert cp_many([X], 2, jobs=1, **options)[0].constraints[:2] == expected
    model = clone(robustcp.RobustCP(2, **options)).fit(X)
    assert model.fit_.constraints[:2] == expected
    assert (model.transform(X) >= 0).all()
    if not many:
        return
    models = robustcp.ensemble(X, [2], jobs=1, **options)
    assert models.fits[2][0].constraints[:2] == expected
    back = robustcp.replicability(X, 2, mode=2, folds=2, jobs=1, **options)
    assert back.fit.constraints[:2] == expected
    profile = robustcp.rank_profile(X, [1, 2], mode=2, folds=2, jobs=1, **options)
    assert profile.rank in (1, 2)


# Arguments


ESTIMATORS = (cp, cpal1, cpals)


def parameters(function):
    return inspect.signature(function).parameters


def test_shared_arguments_have_one_order_and_one_meaning():
    functions = (*ESTIMATORS, robustcp.rank_profile, robustcp.RobustCP)
    order = list(parameters(cp))
    for function in functions:
        shared = [name for name in parameters(function) if name in order]
        assert shared == sorted(shared, key=order.index), function
        for name in ("nonnegative", "constraints", "fixed", "entry_weights"):
            if name in parameters(function):
                own = parameters(function)[name]
                assert own.default == parameters(cp)[name].default
                assert own.kind == inspect.Parameter.KEYWORD_ONLY
    shared = set(order) - {"loss", "noise", "cases"}  # of the search and the refinement of cp
    for function in ESTIMATORS:
        assert shared <= set(parameters(function))


@pytest.mark.parametrize("method", ESTIMATORS, ids=lambda m: m.__name__)
def test_nonnegative_and_fixed_in_every_estimator(method):
    X = robustcp.simulate((8, 7, 6), 2, eta=0.1, gamma=1.0, rng=0).data
    fit = method(X, 2, nonnegative=True)
    assert all((A >= 0).all() for A in fit.factors)
    assert fit.constraints == (Nonnegative(),) * 3
    fit = method(X, 2, nonnegative=[0], constraints={0: Smooth(0.1), 1: Monotone()})
    assert fit.constraints[:2] == (Smooth(0.1, nonnegative=True), Monotone())
    begin = [np.random.default_rng(0).random((n, 2)) for n in X.shape]
    fit = method(X, 2, init=begin, fixed=(1,))
    scaled = begin[1] / np.linalg.norm(begin[1], axis=0)
    np.testing.assert_allclose((scaled.T @ fit.factors[1]).max(axis=0), 1)
    with pytest.raises(ValueError, match="fixed: needs the factors to keep in init"):
        method(X, 2, fixed=(1,))
    with pytest.raises(ValueError, match="fixed: must be a list of modes"):
        method(X, 2, init=begin, fixed=1)
    with pytest.raises(ValueError, match="nonnegative: must be a bool"):
        method(X, 2, nonnegative=(True, False))
