"""A loss and an engine that the package does not know work wherever its own do."""

from __future__ import annotations

import numpy as np
import pytest

import robustcp
from robustcp import Loss, Observed, baselines, cp, cpal1, cpals, factor_match_score, nvecs
from robustcp.losses import Tail
from robustcp.optimize.schedules import Single
from robustcp.optimize.solver import Stage
from support.halves import Halves

SIM = robustcp.simulate((14, 13, 12), 2, eta=0.1, gamma=1.0, rng=0)


class LogCosh(Loss):
    """c^2 log cosh(r / c), with its traits."""

    degree = 2

    def __init__(self, c=1.0):
        self.c = c

    def __eq__(self, other):
        return isinstance(other, LogCosh) and other.c == self.c

    __hash__ = None

    @property
    def tail(self):
        return Tail(self.c, self.c)

    @property
    def reach(self):
        return 3 * self.c

    def value(self, r):
        size = abs(r) / self.c
        return self.c**2 * (size + np.log1p(np.exp(-2 * size)) - np.log(2))

    def slope(self, r):
        return self.c * np.tanh(r / self.c)

    def curvature(self, r):
        t = r / self.c
        return np.where(t == 0, 1.0, np.tanh(t) / np.where(t == 0, 1.0, t))

    def rescaled(self, factor):
        return LogCosh(self.c * factor)


class Bare:
    """The three methods, and nothing else."""

    def __init__(self):
        self.value, self.slope, self.curvature = (
            getattr(LogCosh(0.3), name) for name in ("value", "slope", "curvature")
        )


def some_missing():
    return np.where(np.random.default_rng(1).random(SIM.data.shape) < 0.2, np.nan, SIM.data)


def observed():
    at = np.argwhere(~np.isnan(some_missing()))
    return Observed(at, SIM.data[tuple(at.T)], SIM.data.shape)


DATA = {
    "array": lambda: SIM.data,
    "missing": some_missing,
    "observed": observed,
    "engine of the test": lambda: Halves(SIM.data),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("loss", [LogCosh(0.3), Bare()], ids=["Loss", "three methods"])
class TestLoss:
    def test_of_cp(self, data, loss):
        fit = cp(DATA[data](), 2, loss=loss)
        assert fit.converged
        assert factor_match_score(fit, SIM.truth) > 0.95
        assert type(fit.loss) is type(loss)

    def test_among_stages_and_constraints(self, data, loss):
        stages = [robustcp.L1(1e-4), Stage("mine", Single(loss), 1e-6)]
        fit = cp(DATA[data](), 2, loss=stages, nonnegative=True)
        assert [name for name, _ in fit.stages] == ["L1", "mine"]
        assert min(A.min() for A in fit.factors) >= 0
        assert factor_match_score(fit, SIM.truth) > 0.95


class TestUnits:
    def test_a_loss_that_knows_how_to_rescale(self):
        loss = LogCosh(0.3)
        large = cp(SIM.data * 2.0**500, 2, loss=loss.rescaled(2.0**500), rng=0)
        plain = cp(SIM.data, 2, loss=loss, rng=0)
        np.testing.assert_allclose(large.weights / 2.0**500, plain.weights, rtol=1e-6)

    def test_a_loss_that_does_not(self):
        fit = cp(SIM.data * 2.0**300, 2, loss=Bare(), init=SIM.truth, max_sweeps=3)
        assert np.isfinite(fit.weights).all()
        assert fit.objective == pytest.approx(
            Bare().value(fit.residuals(SIM.data * 2.0**300)).sum()
        )


class Tenfold(robustcp.L1):
    """A loss of the package, changed: it must not be taken for what it was made from."""

    def value(self, r):
        return 10 * super().value(r)

    def slope(self, r):
        return 10 * r / super().value(r)

    def curvature(self, r):
        return 10 / super().value(r)


@pytest.mark.parametrize("c", [1.0, 2.0**402])
def test_a_subclass_of_a_loss_stays_what_it_is(c):
    loss, start = Tenfold((0.1 * c) ** 2), [A * c ** (1 / 3) for A in SIM.truth.absorbed()]
    fit = cp(c * SIM.data, 2, loss=loss, init=start)
    assert type(fit.loss) is Tenfold
    assert fit.objective == pytest.approx(loss.value(fit.residuals(c * SIM.data)).sum(), rel=1e-9)
    plain = cp(SIM.data, 2, loss=robustcp.L1(0.01), init=SIM.truth)
    assert fit.objective == pytest.approx(10 * c * plain.objective, rel=1e-6)


def test_traits_are_kept_in_other_units():
    class Bounded(Loss):
        tail, reach, rejects, likelihood = Tail(), 5.0, 4.0, True

    other = Bounded().rescaled(8.0)
    assert (other.tail, other.reach, other.rejects, other.likelihood) == (Tail(), 40, 32, True)


def test_the_tail_of_a_loss_is_used():
    X = SIM.data.copy()
    X[1, 2, 3] = 1e14
    loss = LogCosh(0.3)
    fit = cp(X, 2, loss=loss, init=SIM.truth)
    assert factor_match_score(fit, SIM.truth) > 0.95
    assert fit.objective == pytest.approx(loss.value(fit.residuals(X)).sum(), rel=1e-9)


def published(X, rank, **options):
    return cpal1(X, rank, smoothing="fixed", max_sweeps=3, **options)


def linear_program(X, rank, **options):
    return baselines.linear_program(X, rank, max_sweeps=2, **options)


def weighted_median(X, rank, **options):
    return baselines.weighted_median(X, rank, max_sweeps=5, **options)


def nonnegative(X, rank, **options):
    return cp(X, rank, nonnegative=True, **options)


def with_rows_held(X, rank, **options):
    return cp(X, rank, init=SIM.truth, fixed=(1,), **options)


METHODS = [cp, nonnegative, with_rows_held, cpal1, published, cpals, linear_program,
           weighted_median]  # fmt: skip


class TestEngine:
    @pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
    def test_every_estimator(self, method):
        fit, plain = method(Halves(SIM.data), 2, rng=3), method(SIM.data, 2, rng=3)
        assert [name for name, _ in fit.stages] == [name for name, _ in plain.stages]
        np.testing.assert_allclose(fit.full(), plain.full(), atol=1e-2 * np.abs(SIM.data).max())
        assert fit.objective == pytest.approx(plain.objective, rel=1e-3)

    @pytest.mark.parametrize("wild", [False, True])
    def test_what_is_missing_or_wild(self, wild):
        X = some_missing()
        if wild:
            X[0, 0, 0], X[-1, -1, -1] = 1e20, -1e20
        fit = cp(Halves(X), 2, init=SIM.truth)
        assert factor_match_score(fit, SIM.truth) > 0.97

    def test_extreme_sizes(self):
        fit = cp(Halves(2.0**830 * SIM.data), 2, rng=0)
        plain = cp(Halves(SIM.data), 2, rng=0)
        np.testing.assert_allclose(fit.weights / 2.0**830, plain.weights, rtol=1e-6)

    def test_a_large_tensor_is_begun_on_a_part(self):
        sim = robustcp.simulate((110, 100, 100), 3, eta=0.2, gamma=2.0, rng=0)
        for method in (cp, cpal1):
            fit = method(Halves(sim.data), 3)
            assert factor_match_score(fit, sim.truth) > 0.97

    def test_residuals_outliers_projection_and_singular_vectors(self):
        engine, plain = Halves(SIM.data), SIM.data
        fit = cp(plain, 2)
        np.testing.assert_allclose(fit.residuals(engine), fit.residuals(plain))
        ours, theirs = fit.outliers(engine), fit.outliers(plain)
        assert np.array_equal(ours.mask, theirs.mask)
        np.testing.assert_allclose(ours.slabs[0], theirs.slabs[0])
        for mode in range(3):
            np.testing.assert_allclose(
                fit.project(engine, mode), fit.project(plain, mode), atol=1e-3
            )
            np.testing.assert_allclose(nvecs(engine, mode, 2), nvecs(plain, mode, 2), atol=1e-8)
