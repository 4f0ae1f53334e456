"""Constraints: what each solves, what it costs, and that no fit ever rises."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, nnls

import robustcp
from robustcp import (
    Constraint,
    Fixed,
    Monotone,
    Nonnegative,
    Observed,
    Orthogonal,
    Simplex,
    Smooth,
    Sparse,
    Unimodal,
    cp,
    cpal1,
    cpals,
)
from robustcp.constraints import Free, as_constraint, constraints_by_mode
from robustcp.constraints.banded import BandedMatrix, _descend_active_set, nonnegative_minimum
from robustcp.constraints.smooth import SecondDifferences, numeric_labels
from robustcp.constraints.unimodal import unimodal_regression
from robustcp.engines import as_engine
from robustcp.engines import dense as dense_engine
from robustcp.engines import observed as observed_engine
from robustcp.engines.algebra import algebra_for
from robustcp.engines.normal_equations import NormalEquations
from robustcp.io.reading import Loaded
from robustcp.losses import L1, LeastSquares
from robustcp.optimize.objective import Objective
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import Continuation, Single
from robustcp.optimize.solver import Solver, Stage
from robustcp.optimize.updates import MajorizeMinimize
from robustcp.starts.subsamples import restrict_constraints
from support.halves import Halves
from support.oracles import host

AMINO = Path(__file__).parents[2] / "shared" / "data" / "aminoacids.mat"  # not in the repository


class Capped:
    """An object with nothing but `solve` and `project`: no entry above the column's first."""

    def project(self, factor):
        return np.minimum(factor, np.abs(factor[:1]))

    def solve(self, equations, rows, mu, algebra):
        new = self.project(algebra.solve_rows(equations, rows, mu))
        i, j = np.triu_indices(rows.shape[1])
        d = new - rows
        twice = np.where(i == j, 1.0, 2.0)
        rise = np.sum(equations.gram * twice * d[:, i] * d[:, j]) / 2
        rise += np.sum(mu / 2 * (new**2 - rows**2)) - np.sum(equations.gradient * d)
        return new if rise <= 0 else rows

    couples_rows = True


class Shrunk(Constraint):
    """A penalty without coupling: the sum of squares, doubled."""

    def penalty(self, factor):
        return 2.0 * (factor**2).sum(axis=0)

    def solve(self, equations, rows, mu, algebra, price):
        return algebra.solve_rows(equations.with_ridge(4.0 * price, rows), rows, mu)


#: Two columns, one of them with free entries and a zero.
KNOWN = np.array([[np.nan, 1.0], [0.0, 2.0], [1.5, 3.0], [np.nan, 2.5], [0.5, 2.0], [2.0, 1.0]])

KINDS = {
    "free": Free(),
    "nonnegative": Nonnegative(),
    "smooth": Smooth(0.3),
    "smooth and nonnegative": Smooth(0.3, nonnegative=True),
    "unimodal": Unimodal(),
    "increasing": Monotone(),
    "decreasing": Monotone(increasing=False, nonnegative=True),
    "orthogonal": Orthogonal(),
    "simplex": Simplex(),
    "l1": Sparse(l1=0.1),
    "l1 and nonnegative": Sparse(l1=0.1, nonnegative=True),
    "cardinality": Sparse(cardinality=3),
    "fixed": Fixed(KNOWN),
    "fixed and nonnegative": Fixed(KNOWN, nonnegative=True),
}


def kind_for(name, size):
    """The constraint for a mode of some size."""
    kind = KINDS[name]
    return kind.on(np.arange(size) % len(KNOWN)) if isinstance(kind, Fixed) else kind


def peaks(rng, shape, rank):
    """Factors whose columns have one peak."""
    factors = []
    for size in shape:
        at = rng.uniform(0, size, rank)
        width = rng.uniform(0.2, 0.5, rank) * size
        factors.append(np.exp(-(((np.arange(size)[:, None] - at) / width) ** 2)))
    return factors


def tensor(rng, shape, rank, noise=0.1):
    X = robustcp.KruskalTensor.from_factors(peaks(rng, shape, rank)).full()
    X = X + noise * rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.1, X + 3 * rng.random(shape), X)


def engine_of(kind, X):
    if kind == "torch":
        return as_engine(pytest.importorskip("torch").asarray(X))
    if kind == "observed":
        at = np.argwhere(~np.isnan(X))
        return as_engine(Observed(at, X[tuple(at.T)], X.shape))
    if kind == "halves":
        return Halves(X)
    return as_engine(X, compiled=kind == "compiled")


def is_unimodal(column):
    top = int(np.argmax(column))
    slack = 1e-12 * np.abs(column).max()
    rises, falls = np.diff(column[: top + 1]), np.diff(column[top:])
    return column.min() >= 0 and rises.min(initial=0) >= -slack and falls.max(initial=0) <= slack


def is_orthogonal(A):
    cosines = A.T @ A / np.maximum(np.outer(*[np.linalg.norm(A, axis=0)] * 2), 1e-300)
    return np.abs(np.triu(cosines, 1)).max() < 1e-4


def is_closed(A):
    rows = A * np.linalg.lstsq(A, np.ones(len(A)))[0]
    return A.min() >= 0 and np.abs(rows.sum(axis=1) - 1).max() < 1e-4


def holds_known(A):
    """Whether some column holds the known entries of each column, but for a positive factor."""
    values = np.resize(KNOWN, (len(A), 2))

    def misfit(known, a):
        at = ~np.isnan(known)
        size = known[at] @ a[at] / (known[at] @ known[at])
        return np.abs(a[at] - size * known[at]).max() / np.abs(a).max() if size > 0 else 1.0

    misfits = np.array([[misfit(v, a) for a in A.T] for v in values.T])
    matches = itertools.permutations(range(max(misfits.shape)), 2)
    fits = (max(misfits[k, r] for k, r in enumerate(match) if r < A.shape[1]) for match in matches)
    return min(fits, default=1.0) < 1e-4


ALLOWED = {
    "nonnegative": lambda A: A.min() >= 0,
    "smooth and nonnegative": lambda A: A.min() >= 0,
    "unimodal": lambda A: all(map(is_unimodal, A.T)),
    "increasing": lambda A: np.diff(A, axis=0).min() >= 0,
    "decreasing": lambda A: np.diff(A, axis=0).max() <= 0 and A.min() >= 0,
    "orthogonal": is_orthogonal,
    "simplex": is_closed,
    "l1 and nonnegative": lambda A: A.min() >= 0,
    "cardinality": lambda A: np.count_nonzero(A, axis=0).max() <= 3,
    "fixed": holds_known,
    "fixed and nonnegative": lambda A: A.min() >= 0 and holds_known(A),
}


# Fits


def assert_sweep_descends(solver, state):
    """Without the safeguard that keeps the last factors where a sweep would rise."""
    objective = solver.objective_of(state)
    factors = state.factors
    rounding = 1e-20 * objective.value(
        tuple(0 * A for A in factors)
    )  # of data that is fitted exactly
    for mode in solver.modes:
        low = objective.value(factors) + objective.penalty(factors)
        factor = MajorizeMinimize().update_factor(objective, factors, mode).factor
        factors = (*factors[:mode], factor, *factors[mode + 1 :])
        high = low + 1e-9 * abs(low) + rounding
        assert objective.value(factors) + objective.penalty(factors) <= high


@pytest.mark.parametrize("kind", ["compiled", "plain", "torch", "observed", "halves"])
@settings(max_examples=5)
@given(order=st.integers(2, 4), data=st.data())
def test_no_fit_rises(kind, order, data):
    shape = tuple(data.draw(st.lists(st.integers(3, 7), min_size=order, max_size=order)))
    rank = data.draw(st.integers(1, 3))
    names = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=order, max_size=order))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    X = tensor(rng, shape, rank)
    if kind in ("observed", "compiled"):
        X = np.where(rng.random(shape) < 0.3, np.nan, X)
        X.flat[0] = 1.0
    engine = engine_of(kind, X)
    constraints = tuple(kind_for(name, size) for name, size in zip(names, shape, strict=True))
    problem = Problem.of(engine)
    stages = [
        Stage("L1", Continuation(1.0, 1e-4), 1e-4, 1e-6, 4),
        Stage("squares", Single(LeastSquares()), 1e-6),
    ]
    solver = Solver(problem, stages, constraints=constraints)
    begin = tuple(engine.asarray(rng.random((size, rank))) for size in shape)
    states = [solver.start(begin)]
    for _ in range(25):
        before, after = states[-1], solver.advance(states[-1])
        assert after.objective <= before.objective
        assert_sweep_descends(solver, before)
        assert after.objective == pytest.approx(
            float(solver.objective_of(after).value(after.factors))
            + solver.objective_of(after).penalty(after.factors),
            rel=1e-9,
        )
        for mode, name in enumerate(names):
            assert ALLOWED.get(name, lambda A: True)(host(after.factors[mode]))
        states.append(after)
        if solver.is_level_finished(after):
            following, finished = solver.next_level(after)
            if finished:
                break
            states.append(following)


@pytest.mark.parametrize("method", [cp, cpal1, cpals], ids=lambda m: m.__name__)
@pytest.mark.parametrize("name", KINDS)
def test_every_estimator_takes_them(method, name):
    X = tensor(np.random.default_rng(3), (8, 15, 7), 2, noise=0.05)
    kind = kind_for(name, 15)
    # what does not suit the data costs a long search
    options = {"starts": 2} if method is cp and name in ALLOWED else {}
    fit = method(X, 2, constraints={1: kind}, **options)
    assert fit.constraints == (Free(), kind, Free())
    assert ALLOWED.get(name, lambda A: True)(fit.factors[1])
    ends = np.cumsum([count for _, count in fit.stages])
    falls = np.delete(np.diff(fit.trace), ends[:-1] - 1)
    if name != "free" and method is not cp:
        assert falls.max() <= 0  # cp estimates the noise anew, which changes the loss
    assert np.isfinite(fit.objective)


@pytest.mark.parametrize("name", KINDS)
def test_any_library(xp, name):
    X = tensor(np.random.default_rng(3), (8, 15, 7), 2, noise=0.05)
    options = {"constraints": {1: kind_for(name, 15)}, "tol": 1e-6, "rng": 0}
    fit, expected = cpal1(xp.asarray(X), 2, **options), cpal1(X, 2, **options)
    np.testing.assert_allclose(host(fit.full()), expected.full(), atol=2e-2)
    assert ALLOWED.get(name, lambda A: True)(host(fit.factors[1]))


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("loss", [L1(1e-4), LeastSquares()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("free", "nonnegative")])
def test_a_fit_of_c_x_is_c_times_that_of_x(factor, loss, name):
    X = tensor(np.random.default_rng(0), (6, 12, 5), 2)
    if name == "decreasing":  # else components are collinear, and convergence slow
        X = np.cumsum(X[:, ::-1], axis=1)[:, ::-1]
    begin = [A + 0.1 for A in peaks(np.random.default_rng(1), X.shape, 2)]
    options = {"constraints": {1: kind_for(name, 12)}, "tol": 1e-9, "max_sweeps": 200}
    one = cp(X, 2, loss=loss, init=begin, **options)
    other = cp(factor * X, 2, loss=loss.rescaled(factor),
               init=[factor ** (1 / 3) * A for A in begin], **options)  # fmt: skip
    np.testing.assert_allclose(other.full() / factor, one.full(), atol=1e-4)
    assert other.objective == pytest.approx(factor**loss.degree * one.objective, rel=1e-6)


@pytest.mark.recovery
def test_cp_and_cpal1_are_free_of_units():
    X = tensor(np.random.default_rng(0), (6, 12, 5), 2)
    for method in (cp, cpal1, cpals):
        one, other = (
            method(factor * X, 2, constraints={1: Smooth(0.1)}, tol=1e-8) for factor in (1.0, 1e6)
        )
        np.testing.assert_allclose(other.full() / 1e6, one.full(), atol=1e-2 * np.abs(X).max())


def test_the_reported_objective_includes_the_penalty():
    X = tensor(np.random.default_rng(0), (6, 12, 5), 2)
    fit = cpals(X, 2, constraints={1: Smooth(0.5)})
    # The other modes have unit columns.
    rough = 0.5 * np.sum((fit.weights * np.diff(fit.factors[1], 2, axis=0)) ** 2)
    residuals = np.sum(fit.residuals(X) ** 2) / 2
    assert fit.objective == pytest.approx(residuals + rough, rel=1e-9)
    assert rough > 1e-3


# Penalties


@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 100), st.booleans())
def test_the_penalty_moves_with_the_balance_only_by_rounding(order, rank, seed, both):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(3, 7, order))
    engine = as_engine(rng.standard_normal(shape))
    kinds = tuple(Smooth(0.7) if mode == 0 or both else Free() for mode in range(order))
    solver = Solver(Problem.of(engine), [Stage("x", Single(L1(1e-2)), 0.0)], constraints=kinds)
    factors = tuple(rng.standard_normal((size, rank)) * rng.uniform(0.1, 9) for size in shape)
    objective = Objective.of(solver.problem, L1(1e-2), kinds, tuple(range(order)))
    before, after = objective.penalty(factors), objective.penalty(solver._balance_norms(factors))
    assert after == pytest.approx(before, rel=1e-10)


@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 100))
def test_ridges_are_the_derivatives_of_the_penalty(order, rank, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(map(int, rng.integers(3, 6, order)))
    engine = as_engine(rng.standard_normal(shape))
    kinds = (Smooth(0.4), *(Free() if n % 2 else Shrunk() for n in range(1, order)))
    objective = Objective.of(Problem.of(engine), L1(1e-2), kinds, tuple(range(order)))
    factors = tuple(rng.standard_normal((size, rank)) for size in shape)
    for mode in range(order):
        seen = {}

        class Spy(type(kinds[mode])):
            def solve(self, equations, rows, mu, algebra, price=None, seen=seen):
                seen["equations"], seen["price"] = equations, price
                return rows

        spy = Spy(0.4) if mode == 0 else Spy()
        spied = Objective(engine, objective.loss, (*kinds[:mode], spy, *kinds[mode + 1 :]),
                          objective.modes, penalty_unit=objective.penalty_unit)  # fmt: skip
        packed = rank * (rank + 1) // 2
        nothing = NormalEquations(np.zeros((shape[mode], packed)), np.zeros((shape[mode], rank)), 0)
        spied.solve_rows(nothing, factors, mode, slice(0, shape[mode]))
        step = rng.standard_normal(factors[mode].shape)

        def along(t, mode=mode, step=step, seen=seen):
            moved = (*factors[:mode], factors[mode] + t * step, *factors[mode + 1 :])
            own = kinds[mode].penalty(moved[mode])
            return objective.penalty(moved), 0.0 if own is None else float(seen["price"] @ own)

        # The penalty is a quadratic: differences are exact.
        totals, owns = zip(*(along(t) for t in (-1.0, 0.0, 1.0)), strict=True)
        rest = np.array(totals) - np.array(owns)
        slope, bend = (rest[2] - rest[0]) / 2, rest[2] - 2 * rest[1] + rest[0]
        equations = seen["equations"]
        i, j = np.triu_indices(rank)
        twice = np.where(i == j, 1.0, 2.0)
        size = max(totals)
        assert -np.sum(equations.gradient * step) == pytest.approx(slope, abs=1e-9 * size)
        curved = np.sum(equations.gram * twice * step[:, i] * step[:, j])
        assert curved == pytest.approx(bend, abs=1e-9 * size)


def test_a_mode_that_is_fixed_costs_nothing():
    X = tensor(np.random.default_rng(0), (6, 12, 5), 2)
    rough = [np.random.default_rng(5).random((n, 2)) for n in X.shape]
    plain = cp(X, 2, init=rough, fixed=(1,))
    smooth = cp(X, 2, init=rough, fixed=(1,), constraints={1: Smooth(100.0)})
    np.testing.assert_array_equal(plain.trace, smooth.trace)


# Solves


def system(seed, count=9, rank=3, empty=()):
    """Random normal equations, current rows, prices, and the dense coupled system."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((count, 2 * rank, rank))
    M[list(empty)] = 0.0
    G = np.einsum("ijr,ijs->irs", M, M)
    rows = rng.standard_normal((count, rank))
    gradient = np.einsum("ijr,ij->ir", M, rng.standard_normal((count, 2 * rank)))
    i, j = np.triu_indices(rank)
    price = rng.uniform(0.1, 2.0, rank)
    return NormalEquations(G[:, i, j], gradient, 0.0), rows, price, G


def dense(G, D, cost, mu):
    count, rank, _ = G.shape
    H = np.kron(D.T @ D, np.diag(cost))
    for i in range(count):
        block = slice(i * rank, (i + 1) * rank)
        H[block, block] += G[i] + mu * np.eye(rank)
    return H


def second_differences(x):
    D = np.zeros((len(x) - 2, len(x)))
    for k in range(len(x) - 2):
        a, b, c = x[k : k + 3]
        D[k, k : k + 3] = np.array([1 / (a - b) / (a - c), 1 / (b - a) / (b - c),
                                    1 / (c - a) / (c - b)]) * 2  # fmt: skip
    return D


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("empty", [(), (0, 4, 5)])
@pytest.mark.parametrize("even", [True, False])
def test_smooth_rows_solve_the_whole_coupled_system(mu, rank, empty, even):
    equations, rows, price, G = system(1, rank=rank, empty=empty)
    x = np.arange(9.0) if even else np.cumsum(np.random.default_rng(2).uniform(0.5, 3, 9))
    kind = Smooth(0.7, coordinates=x, unit=1.0)
    new = kind.solve(equations, rows, mu, algebra_for(np), price)
    D = second_differences(x)
    H = dense(G, D, 2 * 0.7 * price, mu)
    right = equations.gradient + np.einsum("irs,is->ir", G, rows)
    np.testing.assert_allclose(new, np.linalg.solve(H, right.ravel()).reshape(rows.shape),
                               rtol=1e-7, atol=1e-9)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_smooth_nonnegative_rows_satisfy_kkt(seed):
    equations, rows, price, G = system(seed, count=12, empty=(3, 4))
    rows = np.maximum(rows, 0)
    kind = Smooth(0.7, nonnegative=True)
    new = kind.solve(equations, rows, 0.0, algebra_for(np), price)
    H = dense(G, second_differences(np.arange(12.0)), 1.4 * price, 0.0)
    b = (equations.gradient + np.einsum("irs,is->ir", G, rows)).ravel()
    slope = H @ new.ravel() - b
    scale = np.abs(b).max()
    assert new.min() >= 0
    assert slope.min() >= -1e-6 * scale
    assert np.abs(slope * new.ravel()).max() <= 1e-6 * scale
    L = np.linalg.cholesky(H + 1e-13 * np.eye(len(H)))
    oracle = nnls(L.T, np.linalg.solve(L, b))[0]  # |L'v - L^-1 b|^2 = v'Hv - 2 b'v + const
    np.testing.assert_allclose(new.ravel(), oracle, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_active_sets_agree_with_pivoting(seed):
    rng = np.random.default_rng(seed)
    root = np.tril(np.triu(rng.standard_normal((30, 30)), -3)) + 2 * np.eye(30)
    H = root @ root.T
    bands = np.zeros((4, 30))
    for k in range(4):
        bands[k, : 30 - k] = np.diagonal(H, -k)
    b, start = rng.standard_normal(30), rng.random(30)
    np.testing.assert_allclose(BandedMatrix(bands).multiply(b), H @ b)
    np.testing.assert_allclose(BandedMatrix(bands).solve(b), np.linalg.solve(H, b))
    found = nonnegative_minimum(BandedMatrix(bands), b, start)
    np.testing.assert_allclose(found, _descend_active_set(BandedMatrix(bands), b, start), atol=1e-9)
    slope = H @ found - b
    assert slope.min() > -1e-9
    assert np.abs(slope * found).max() < 1e-9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gap_is_filled_from_its_neighbours(dtype):
    line = np.linspace(1.0, 2.0, 11)
    gram = np.ones((11, 1))
    gram[3:8] = 0.0
    gradient = gram * line[:, None]  # from rows of zeros to the line
    equations = NormalEquations(gram.astype(dtype), gradient.astype(dtype), 0.0)
    new = Smooth(1.0).solve(equations, np.zeros((11, 1), dtype), 0.0, algebra_for(np), np.ones(1))
    assert new.dtype == dtype
    np.testing.assert_allclose(new[:, 0], line, atol=1e-3)


@settings(max_examples=300)
@given(st.integers(1, 8), st.integers(0, 10_000))
def test_unimodal_columns_are_the_best_over_all_peaks(count, seed):
    rng = np.random.default_rng(seed)
    t, w = (rng.standard_normal(count) - 0.5).round(1), rng.uniform(0.1, 3.0, count)
    v = unimodal_regression(t, w)
    assert is_unimodal(v)

    def rising(part):
        return np.maximum(isotonic_regression(t[part], weights=w[part]).x, 0)

    costs = []
    for top in range(count):  # v[top] belongs to the rise; after it comes the fall
        best = rising(slice(0, top + 1))
        if top + 1 < count:
            fall = isotonic_regression(t[top + 1 :], weights=w[top + 1 :], increasing=False).x
            best = np.concatenate([best, np.maximum(fall, 0)])
        costs.append(np.sum(w * (best - t) ** 2))
    assert np.sum(w * (v - t) ** 2) == pytest.approx(min(costs), rel=1e-9, abs=1e-12)


def test_unimodal_solves_lower_the_majorizer():
    for seed in range(5):
        equations, rows, _, G = system(seed, empty=(2,))
        rows = Unimodal().project(np.abs(rows))
        new = Unimodal().solve(equations, rows, 0.1, algebra_for(np))

        def majorizer(u, rows=rows, equations=equations, G=G):
            d = u - rows
            fall = np.sum(equations.gradient * d)
            return np.einsum("ir,irs,is->", d, G, d) / 2 - fall + 0.05 * np.sum(u**2)

        assert all(map(is_unimodal, new.T))
        assert majorizer(new) < majorizer(rows)


@pytest.mark.parametrize("kind", [Smooth(0.3), Unimodal()], ids=str)
@pytest.mark.parametrize("engine", ["compiled", "observed"])
def test_a_mode_with_coupled_rows_is_not_cut_into_blocks(monkeypatch, kind, engine):
    X = tensor(np.random.default_rng(0), (6, 20, 5), 2)
    options = {"constraints": {1: kind}, "loss": L1(1e-2), "rng": 0, "starts": 2}
    whole = cp(engine_of(engine, X), 2, **options)
    monkeypatch.setattr(observed_engine.ObservedEngine, "max_equation_bytes", 200)
    monkeypatch.setattr(dense_engine, "BLOCK_BYTES", 200)
    monkeypatch.setattr(dense_engine, "BLOCK_SHARE", 0.0)
    assert len(engine_of(engine, X).row_blocks(1, 2, L1(1e-2))) > 1
    cut = cp(engine_of(engine, X), 2, **options)
    np.testing.assert_allclose(cut.full(), whole.full(), atol=1e-6)


# Coordinates


def test_even_spacing_gives_plain_second_differences():
    for h in (1.0, 7.0, 1e-9):
        bound = Smooth(1.0).bound(6, [3 + h * k for k in range(6)])
        A = np.random.default_rng(0).standard_normal((6, 2))
        np.testing.assert_allclose(
            bound.penalty(A), np.sum(np.diff(A, 2, axis=0) ** 2, axis=0), rtol=1e-5
        )


def test_what_is_linear_in_the_coordinates_costs_nothing():
    x = np.array([5.0, 1.0, 2.5, 9.0, 3.0])  # in any order
    kind = Smooth(1.0).bound(5, list(x))
    np.testing.assert_allclose(kind.penalty(np.stack([x, 2 - 3 * x], axis=1)), 0, atol=1e-20)
    assert kind.penalty(x[:, None] ** 2)[0] > 1
    assert Smooth(1.0).bound(5, None).penalty(x[:, None])[0] > 1


def test_uneven_differences_are_those_of_a_parabola():
    x = np.cumsum(np.random.default_rng(0).uniform(0.5, 2.0, 9))
    D = SecondDifferences.from_coordinates(x)
    np.testing.assert_allclose(D.apply((x**2)[:, None]), 2.0)
    B = np.random.default_rng(1).standard_normal((7, 1))
    A = np.random.default_rng(2).standard_normal((9, 1))
    assert np.sum(D.apply(A) * B) == pytest.approx(np.sum(A * D.apply_transpose(B)))


@pytest.mark.parametrize(
    "labels",
    [
        [datetime.date(2024, 1, d) for d in (1, 2, 4)],
        [datetime.datetime(2024, 1, d, tzinfo=datetime.UTC) for d in (1, 2, 4)],
        [np.datetime64(f"2024-01-0{d}", "ns") for d in (1, 2, 4)],
        [datetime.timedelta(days=d) for d in (1, 2, 4)],
    ],
    ids=["dates", "times with a zone", "NumPy", "durations"],
)
def test_dates_are_coordinates(labels):
    np.testing.assert_allclose(numeric_labels(labels), [0, 86400, 3 * 86400])


@pytest.mark.parametrize("labels", [["a", "b", "c"], [True, False, True], None, [1, "b", 2]])
def test_other_labels_are_not(labels):
    assert numeric_labels(labels) is None


@pytest.mark.recovery
def test_labels_of_the_data_are_used():
    xarray = pytest.importorskip("xarray")
    X = tensor(np.random.default_rng(0), (5, 9, 4), 2)
    x = np.array([0.0, 1, 2, 3, 10, 11, 12, 13, 30])
    named = xarray.DataArray(X, dims=("s", "x", "t"), coords={"x": x})
    loaded = Loaded(X, ("s", "x", "t"), (None, list(x), None))
    fits = [
        cp(named, 2, constraints={"x": Smooth(1.0)}),
        cp(named, 2, constraints={1: Smooth(1.0)}),
        cp(loaded, 2, constraints={"x": Smooth(1.0)}),
        cp(X, 2, constraints={1: Smooth(1.0, coordinates=x)}),
    ]
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit.factors[1], fits[0].factors[1])
    assert fits[2].modes == ("s", "x", "t")
    assert fits[0].constraints[1] == Smooth(1.0)  # as it was given
    even = cp(X, 2, constraints={1: Smooth(1.0)})
    assert not np.allclose(even.factors[1], fits[0].factors[1], atol=1e-3)


def test_a_part_has_the_coordinates_of_its_rows():
    x = np.cumsum(np.random.default_rng(0).uniform(0.5, 2.0, 12))
    at = np.array([0, 3, 4, 8, 9, 11])
    whole = Smooth(1.0).bound(12, list(x))
    first, second, third = restrict_constraints((whole, whole, Unimodal()), [at, None, at])
    assert (second, third) == (whole, Unimodal())
    assert first.unit == whole.unit
    D = second_differences(x[at] / whole.unit)
    A = np.random.default_rng(1).standard_normal((6, 2))
    np.testing.assert_allclose(first.penalty(A), np.sum((D @ A) ** 2, axis=0))
    plain = Smooth(1.0).on(at)
    np.testing.assert_allclose(
        plain.penalty(A), np.sum((second_differences(at.astype(float)) @ A) ** 2, axis=0)
    )


@pytest.mark.parametrize("kind", [Smooth(0.1), Smooth(0.1, nonnegative=True), Unimodal()], ids=str)
def test_large_tensors_are_begun_on_a_part(kind):
    rng = np.random.default_rng(0)
    truth = [rng.random((105, 2)), peaks(rng, (120,), 2)[0], rng.random((100, 2))]
    X = robustcp.KruskalTensor.from_factors(truth).full()
    X = X + 0.05 * rng.standard_normal(X.shape)
    fit = cpal1(X, 2, constraints={1: kind}, max_sweeps=30)
    found = robustcp.KruskalTensor.from_factors(truth)
    assert robustcp.factor_match_score(fit, found) > 0.97


def test_rows_without_data_follow_from_their_neighbours():
    rng = np.random.default_rng(0)
    truth = [rng.random((8, 2)) + 0.1, peaks(rng, (30,), 2)[0], rng.random((7, 2)) + 0.1]
    X = robustcp.KruskalTensor.from_factors(truth).full()
    full = X.copy()
    X[:, 12:15] = np.nan
    for kind, size in ((Smooth(1e-3), 0.02), (Unimodal(), 0.15)):
        fit = cpals(X, 2, constraints={1: kind})  # and no warning: rows are not set to zero
        assert np.abs(fit.full() - full)[:, 12:15].max() < size * full.max()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_modes_too_short_for_differences(size):
    X = tensor(np.random.default_rng(0), (5, size, 4), 1)
    for kind in (Smooth(1.0), Smooth(1.0, nonnegative=True), Unimodal()):
        fit = cpals(X, 1, constraints={1: kind})
        assert np.isfinite(fit.objective)


# A constraint of one's own


def test_an_object_with_two_methods():
    X = tensor(np.random.default_rng(0), (6, 8, 5), 2)
    kind = Capped()
    fit = cp(X, 2, constraints={1: kind}, loss=L1(1e-2))
    assert fit.constraints[1].original is kind
    assert (fit.factors[1] <= np.abs(fit.factors[1][:1]) + 1e-12).all()
    assert np.diff(fit.trace).max() <= 0


def test_a_penalty_of_ones_own():
    X = tensor(np.random.default_rng(0), (6, 8, 5), 2)
    plain, shrunk = cpals(X, 2), cpals(X, 2, constraints={1: Shrunk()})
    assert np.diff(shrunk.trace).max() <= 0
    assert shrunk.weights.sum() < plain.weights.sum()
    residuals = np.sum(shrunk.residuals(X) ** 2) / 2
    assert shrunk.objective == pytest.approx(residuals + 2 * np.sum(shrunk.weights**2), rel=1e-9)


def test_columns_are_not_turned_around_unless_that_is_allowed():
    class Negative(Constraint):
        def project(self, factor):
            return -np.maximum(-factor, 0)

        def solve(self, equations, rows, mu, algebra):
            turned = NormalEquations(equations.gram, -equations.gradient, 0.0)
            return -Nonnegative().solve(turned, -rows, mu, algebra)

    X = tensor(np.random.default_rng(0), (6, 8, 5), 2)
    fit = cp(X, 2, constraints={1: Negative()})
    assert fit.factors[1].max() <= 0
    assert fit.weights.min() > 0
    np.testing.assert_allclose(fit.full(), fit.model.full())


# Fits that remember


def test_fits_project_by_the_constraint_of_the_mode():
    X = tensor(np.random.default_rng(0), (9, 12, 5), 2)
    kinds = {0: Nonnegative(), 1: Smooth(0.1, nonnegative=True), 2: Smooth(0.1)}
    fit = cp(X, 2, constraints=kinds)
    assert (fit.project(-X[:3]) >= 0).all()
    assert (fit.project(-X, 1) >= 0).all()
    assert (fit.project(-X, 2) < 0).any()
    assert (fit.project(-X[:3], nonnegative=False) < 0).any()
    assert (fit.project(-X, 2, nonnegative=True) >= 0).all()


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_saved_fits_come_back_with_their_constraints(tmp_path, suffix):
    X = tensor(np.random.default_rng(0), (6, 8, 5), 2)
    path = tmp_path / f"fit{suffix}"
    kinds = {0: Smooth(0.25, coordinates=np.arange(6) ** 2.0), 1: Unimodal(), 2: Nonnegative()}
    others = {0: Fixed(KNOWN), 1: Sparse(cardinality=3), 2: Monotone(nonnegative=True)}
    more = {0: Orthogonal(), 1: Simplex(), 2: Sparse(l1=0.1)}
    for named in (kinds, others, more):
        robustcp.save(cpals(X, 2, constraints=named, max_sweeps=3), path, overwrite=True)
        assert robustcp.load(path).constraints == tuple(named.values())
    robustcp.save(cp(X, 2, constraints={1: Capped()}, loss=L1(0.1)), path, overwrite=True)
    fit = robustcp.load(path)
    assert fit.constraints[0] == Free()
    assert fit.constraints[1].name == "Capped"
    robustcp.save(fit, path, overwrite=True)
    assert robustcp.load(path).constraints == fit.constraints
    assert fit.project(X).shape == (6, 2)


# Bad input


@pytest.mark.parametrize("method", [cp, cpal1, cpals], ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({3: Nonnegative()}, "constraints: a mode: must be an integer from 0 to 2, got 3"),
        ({-1: Nonnegative()}, "constraints: a mode: must be an integer from 0 to 2, got -1"),
        ({True: Nonnegative()}, "got True"),
        ({"time": Nonnegative()}, "constraints: no mode is named 'time'"),
        ({0: "smooth"}, "constraints: 'smooth' is no constraint, it has no solve, project"),
        ({0: Nonnegative}, "constraints: must be values such as Nonnegative"),
        ({0: None}, "constraints: None is no constraint"),
        ([Nonnegative()], "constraints: must map modes to constraints"),
        ({0: Smooth(1.0, coordinates=[1.0, 2.0])}, "coordinates: 2 of them for a mode of size 4"),
    ],
)
def test_what_is_no_constraint(method, constraints, message):
    with pytest.raises(ValueError, match=message):
        method(np.ones((4, 3, 2)), 1, constraints=constraints)


def test_a_mode_twice():
    names = ("a", "b")
    with pytest.raises(ValueError, match=r"constraints: mode 1 has two, one of them as 'b'"):
        constraints_by_mode({1: Smooth(1.0), "b": Nonnegative()}, names, 2)
    with pytest.raises(ValueError, match=r"no mode is named 'c'; there are 'a', 'b'"):
        constraints_by_mode({"c": Smooth(1.0)}, names, 2)


@pytest.mark.parametrize("strength", [0, -1.0, float("nan"), float("inf"), "much", None])
def test_strengths(strength):
    with pytest.raises(ValueError, match=r"strength: must be a number > 0, got"):
        Smooth(strength)


def test_other_parameters_of_smooth():
    for bad in ({"nonnegative": 1}, {"unit": 0.0}, {"coordinates": [1, 1, 2]},
                {"coordinates": ["a"]}, {"coordinates": [0, float("nan")]}):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(bad))):
            Smooth(1.0, **bad)
    with pytest.raises(ValueError, match="labels that differ"):
        Smooth(1.0).bound(3, [1, 1, 2])


def test_both_arguments():
    X = tensor(np.random.default_rng(0), (4, 5, 4), 1)
    with pytest.raises(ValueError, match=r"nonnegative: mode 1 has the constraint Orthogonal"):
        cp(X, 1, nonnegative=True, constraints={1: Orthogonal()})
    fit = cp(X, 1, nonnegative=[1], constraints={1: Smooth(0.1), 0: Monotone()})
    assert fit.constraints == (Monotone(), Smooth(0.1, nonnegative=True), Free())
    kinds = {1: Smooth(0.1, nonnegative=True), 0: Unimodal()}
    fit = cp(X, 1, nonnegative=True, constraints=kinds)
    assert fit.constraints == (kinds[0], kinds[1], Nonnegative())
    fit = cp(X, 1, nonnegative=(True, False, False), constraints={1: Smooth(0.1)})
    assert fit.constraints == (Nonnegative(), Smooth(0.1), Free())


def test_constraints_that_are_ones_already_stay():
    assert as_constraint(Nonnegative()) == Nonnegative()


# Real data


def least_cosine(share, seed, constraints):
    """Of emission spectra from a share of the entries, with those from all."""
    X = robustcp.read(AMINO, key="X.data").data
    part = np.where(np.random.default_rng(seed).random(X.shape) < share, X, np.nan)
    fit = cpal1(part, 3, init="random", starts=4, constraints=constraints)
    C = np.abs(cpals(X, 3).factors[1].T @ fit.factors[1])
    return max(min(C[k, p[k]] for k in range(3)) for p in itertools.permutations(range(3)))


@pytest.mark.slow
@pytest.mark.skipif(not AMINO.exists(), reason="needs the amino acids")
@pytest.mark.parametrize("seed", range(3))
def test_amino_acids_from_few_of_the_entries(seed):
    plain = least_cosine(0.1, seed, {})
    for strength in (0.01, 0.1, 1.0):
        assert least_cosine(0.1, seed, {1: Smooth(strength)}) > plain
    assert least_cosine(0.03, seed, {}) < 0.5
    assert least_cosine(0.03, seed, {1: Smooth(1.0)}) > 0.999
