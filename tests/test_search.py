"""The search for starts: families of starts, when they are tried, what they cost, and its end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from robustcp import (
    Checkpoint,
    KruskalTensor,
    Observed,
    as_engine,
    cp,
    factor_match_score,
    load,
    save,
    simulate,
)
from robustcp.constraints import Free
from robustcp.engines import Fibres, single_blas_thread
from robustcp.estimators import cp as estimator
from robustcp.optimize.problem import Problem
from robustcp.starts import multistart
from robustcp.starts.candidates import Candidate, Starts
from robustcp.starts.choice_of_starts import Search
from robustcp.starts.loose_fits import StartFitter, serial_map
from robustcp.starts.multistart import Multistart
from robustcp.starts.proposals import ExchangeProposal, L1Proposal
from robustcp.starts.search_log import SearchLog
from robustcp.starts.settings import SEARCH_SETTINGS

CONSTRAINTS = (Free(),) * 3


def hard_problem(seed=0):
    """Data on which starts disagree: most of a small tensor of high rank are outliers."""
    return simulate((12, 11, 10), 4, eta=0.45, gamma=1.5, rng=seed).data


class TestExchange:
    sim = simulate((15, 14, 13), 4, eta=0.1, gamma=1.0, rng=3)

    def candidate(self, fitter, factors):
        return Candidate(factors, fitter.criterion.cost(factors))

    def test_a_wrong_component_is_replaced(self):
        fitter = StartFitter(Problem.of(as_engine(self.sim.data)), CONSTRAINTS)
        rng = np.random.default_rng(0)
        wrong = [np.asarray(A).copy() for A in self.sim.truth.absorbed()]
        for A in wrong:
            A[:, 3] = 0.1 * rng.standard_normal(len(A))
        with single_blas_thread:
            before = self.candidate(fitter, tuple(wrong))
            after = ExchangeProposal(before, 6).fit(fitter, 4, rng)
        assert factor_match_score(before.model, self.sim.truth, weights=False) < 0.9
        assert factor_match_score(after.model, self.sim.truth, weights=False) > 0.97
        assert after.cost < before.cost

    def test_the_right_model_stays(self):
        fitter = StartFitter(Problem.of(as_engine(self.sim.data)), CONSTRAINTS)
        truth = tuple(map(np.asarray, self.sim.truth.absorbed()))
        with single_blas_thread:
            start = self.candidate(fitter, fitter.fit_cauchy(truth))
            after = ExchangeProposal(start, 4).fit(fitter, 4, np.random.default_rng(2))
        assert factor_match_score(after.model, start.model, weights=False) > 0.98

    def test_a_model_without_residuals_stays(self):
        exact = np.einsum("i,j,k->ijk", *(np.arange(1.0, n) for n in (6, 7, 8)))
        fitter = StartFitter(Problem.of(as_engine(exact)), CONSTRAINTS)
        factors = tuple(np.arange(1.0, n)[:, None] for n in (6, 7, 8))
        with single_blas_thread:
            same = fitter.exchange_component(factors, "residuals", np.random.default_rng(0))
        assert same is factors

    def test_of_listed_entries(self):
        """The residuals of listed entries are a list too."""
        X = simulate((24, 23, 22), 6, eta=0.5, gamma=1.5, rng=1).data
        seen = np.random.default_rng(0).random(X.shape) < 0.8
        listed = cp(Observed(np.argwhere(seen), X[seen], X.shape), 6, rng=0)
        dense = cp(np.where(seen, X, np.nan), 6, rng=0)
        assert "exchanged components" in listed.starts.families
        np.testing.assert_allclose(sorted(listed.starts), sorted(dense.starts), rtol=1e-6)

    @pytest.mark.parametrize("scale", [1e-80, 1e80])
    def test_do_not_depend_on_units(self, scale):
        X = hard_problem(2)
        one, other = cp(X, 3, rng=0).starts, cp(scale * X, 3, rng=0).starts
        assert other.families == one.families
        np.testing.assert_allclose(np.array(other) - np.log(scale), one, atol=0.02)

    def test_leave_excluded_fibres_out(self):
        X = self.sim.data.copy()
        X[:, 3, 4] += 100
        mask = np.zeros((1, 14, 13), dtype=bool)
        mask[0, 3, 4] = True
        fitter = StartFitter(Problem.of(as_engine(X)), CONSTRAINTS)
        part = fitter.without_fibres(Fibres(X.shape, ((0, mask),)))
        truth = tuple(map(np.asarray, self.sim.truth.absorbed()))
        with single_blas_thread:
            _, B, C = part._residual_component(truth, np.inf)
        assert abs(B[3, 0]) < 0.9 * np.linalg.norm(B)
        assert abs(C[4, 0]) < 0.9 * np.linalg.norm(C)


class TestPrice:
    def fitter(self):
        return StartFitter(Problem.of(as_engine(hard_problem())), CONSTRAINTS, SearchLog())

    def test_is_entries_times_rank_times_passes(self):
        fitter = self.fitter()
        initial = fitter.initialize("random", 3, np.random.default_rng(0))
        with single_blas_thread:
            fitter.fit_l1(initial, 0.03, 0.0, 7)
        assert fitter.search_log.price == 12 * 11 * 10 * 3 * 3 * 7

    def test_sums_up_the_sections_of_a_search(self):
        fitter = self.fitter()
        proposals = [L1Proposal("clipped", 0.03), L1Proposal("nvecs", 1.0)]
        rngs = np.random.default_rng(0).spawn(2)
        with single_blas_thread:
            one, both = SearchLog(), SearchLog()
            replace(fitter, search_log=one).fit_starts("a", proposals[:1], 3, rngs, serial_map)
            rngs = np.random.default_rng(0).spawn(2)
            replace(fitter, search_log=both).fit_starts("a", proposals, 3, rngs, serial_map)
        assert 0 < one.price < both.price

    def cheap(self, monkeypatch, **settings):
        changed = replace(SEARCH_SETTINGS, **settings)
        monkeypatch.setattr(
            estimator, "Multistart", partial(Multistart, settings=changed), raising=True
        )

    def test_of_the_first_look_may_reach_the_limit(self, monkeypatch):
        X = simulate((42, 41, 40), 4, eta=0.45, gamma=1.5, rng=0).data
        self.cheap(monkeypatch, max_price_ratio=0.0, min_price_limit=1.0)
        fit = cp(X, 4, rng=0, max_sweeps=10)
        assert "search_limit" in [warning.code for warning in fit.warnings]

    def test_a_search_that_reaches_its_limit_says_so(self, monkeypatch):
        X = hard_problem()
        free = cp(X, 4, rng=0)
        self.cheap(monkeypatch, max_price_ratio=0.0, min_price_limit=1.0)
        limited = cp(X, 4, rng=0)
        assert len(limited.starts) < len(free.starts)
        (warning,) = [w for w in limited.warnings if w.code == "search_limit"]
        assert warning.numbers["starts"] == len(limited.starts)
        assert f"starts={3 * len(limited.starts)}" in warning.sentence
        assert "search_limit" not in [w.code for w in free.warnings]
        # A number of starts that is asked for is not limited.
        assert len(cp(X, 4, rng=0, starts=6).starts) == 6


class TestStartsAskedFor:
    @pytest.mark.parametrize("count", [1, 2, 5, 9, 13, 25])
    def test_are_as_many(self, count):
        assert len(cp(hard_problem(), 3, starts=count, rng=0).starts) == count

    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_also_where_rows_have_few_entries(self, count):
        X = hard_problem()
        X[np.random.default_rng(0).random(X.shape) < 0.9] = np.nan
        assert len(cp(X, 2, starts=count, rng=0).starts) == count


class TestTable:
    def test_has_the_family_and_price_of_each_start(self, tmp_path):
        fit = cp(hard_problem(), 4, rng=0)
        table = fit.starts.table()
        assert len(table) == len(fit.starts)
        assert table["cost"].is_monotonic_increasing
        assert (table["seconds"] > 0).all()
        assert "quantile 0.2 from positive factors" in set(table["family"])
        assert table["final cost"].notna().sum() == sum(c is not None for c in fit.starts.final)
        save(fit, tmp_path / "fit.npz")
        back = load(tmp_path / "fit.npz").starts
        assert back.families == fit.starts.families
        assert back.seconds == fit.starts.seconds

    def test_of_estimators_with_one_kind_of_start(self):
        from robustcp import cpals

        table = cpals(hard_problem(), 2, starts=3).starts.table()
        assert list(table.index) == sorted(table.index, key=lambda k: table["cost"][k])
        assert set(table["family"]) == {""}


class StopError(Exception):
    pass


@pytest.mark.parametrize("stops", [20, 90])
def test_a_search_that_is_interrupted_goes_on_with_the_same_bits(tmp_path, monkeypatch, stops):
    X, path = hard_problem(1), tmp_path / "fit.checkpoint"
    whole = cp(X, 4, rng=0)
    put, count = SearchLog.run, 0

    def interrupted(self, *arguments):
        nonlocal count
        count += 1
        if count == stops:
            raise StopError
        return put(self, *arguments)

    monkeypatch.setattr(SearchLog, "run", interrupted)
    try:
        cp(X, 4, rng=0, checkpoint=Checkpoint(path, every=0.05))
    except StopError:
        monkeypatch.setattr(SearchLog, "run", put)
    fit = cp(X, 4, rng=0, checkpoint=path)
    assert tuple(fit.starts) == tuple(whole.starts)
    assert fit.starts.families == whole.starts.families
    assert all(map(np.array_equal, fit.factors, whole.factors))
    assert fit.warnings == whole.warnings


class TestFirstLook:
    """Data of more than 65,536 entries is searched on a part first."""

    @pytest.mark.parametrize(("localised", "shares"), [([], [False]), ([0], [False, True])])
    def test_is_trusted_unless_a_component_is_localised(self, monkeypatch, localised, shares):
        X = simulate((42, 41, 40), 3, eta=0.1, gamma=1.0, rng=0).data
        searches, run = [], Search.run

        def recorded(search, blocks):
            searches.append(search.fitter.problem.engine.shape == X.shape)
            return run(search, blocks)

        monkeypatch.setattr(Search, "run", recorded)
        monkeypatch.setattr(multistart, "localised_components", lambda *_: localised)
        cp(X, 3, rng=0, max_sweeps=5)
        assert searches == shares


class TestDataWithoutNoise:
    def data(self, seed):
        """A model with zeros in its factors, and outliers."""
        rng = np.random.default_rng(seed)
        factors = [rng.standard_normal((n, 3)) * (rng.random((n, 3)) < 0.6) for n in (30, 12, 10)]
        truth = KruskalTensor(np.ones(3), tuple(factors)).normalized()
        X = truth.full() + 1e-6 * rng.standard_normal(truth.shape)
        outliers = rng.choice((-1, 1), X.shape) * rng.uniform(2, 8, X.shape)
        return np.where(rng.random(X.shape) < 0.1, X + outliers, X), truth

    @pytest.mark.parametrize("seed", range(4))
    def test_a_missing_component_is_found(self, seed):
        """Without one of its components a model with zeros is exact where that one is zero."""
        X, truth = self.data(seed)
        fit = cp(X, 3, rng=0)
        assert factor_match_score(fit, truth, weights=False) > 0.999

    def test_an_exact_model_lacks_no_component(self):
        X, truth = self.data(0)
        factors = tuple(map(np.asarray, truth.absorbed()))
        fitter = StartFitter(Problem.of(as_engine(X)), CONSTRAINTS)
        factors = fitter.problem.units.factors_of_fit(factors)
        with single_blas_thread:
            assert fitter.criterion.is_exact(factors)
            assert not any(map(fitter.criterion.is_exact, fitter.leave_one_out(factors)))


@pytest.mark.parametrize("sign", [-1, 1])
def test_starts_within_half_a_percent_reached_the_best(sign):
    assert Starts([sign * 2.0, sign * 2.0 + 0.005, sign * 2.0 + 0.5]).reached == 2
