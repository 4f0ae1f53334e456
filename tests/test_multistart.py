"""Where a fit begins: starts that nothing large can buy, compared by the entropy of residuals."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from robustcp import KruskalTensor, as_engine, cp, cpals, factor_match_score, load, save, simulate
from robustcp.noise import Residuals, estimate_rough_noise, model_entropy
from robustcp.noise.entropy import residual_entropy
from robustcp.noise.noise_of_model import standardize_by_main_effects
from robustcp.optimize.problem import Problem
from robustcp.optimize.schedules import CauchyContinuation, StandardizedL1
from robustcp.results.view import FittedView
from robustcp.starts.candidates import Candidate, Candidates, Starts, multistart
from robustcp.starts.criterion import fibres_of_blocks
from robustcp.starts.proposals import l1_proposals
from robustcp.studies.kinds import KINDS


def trial_of(name, seed):
    kind = KINDS[name]
    return kind.make_trial(seed, kind.cells[0])


def scored(trial, fit):
    truth = KruskalTensor.from_factors(trial.truth)
    return factor_match_score(trial.recoverable_model(fit.model), trial.recoverable_model(truth))


def factors_of(fit, X):
    return FittedView.of(fit, X).data_factors


class TestEntropy:
    def of(self, X, factors):
        problem = Problem.of(as_engine(X))
        return model_entropy(problem.engine, factors, problem.resolution)

    def test_of_gaussian_noise(self):
        X = 3 * np.random.default_rng(0).standard_normal((40, 40, 40))
        zero = tuple(np.zeros((40, 1)) for _ in range(3))
        assert self.of(X, zero) == pytest.approx(np.log(3 * np.sqrt(2 * np.pi * np.e)), abs=0.02)

    def test_of_noise_that_differs_between_slabs(self):
        rng = np.random.default_rng(0)
        scale = np.exp(rng.uniform(-1.5, 1.5, 40))
        X = scale[:, None, None] * rng.standard_normal((40, 40, 40))
        zero = tuple(np.zeros((40, 1)) for _ in range(3))
        told = np.mean(np.log(scale)) + np.log(np.sqrt(2 * np.pi * np.e))
        assert self.of(X, zero) == pytest.approx(told, abs=0.03)

    @pytest.mark.parametrize("size", [1e3, 1e9])
    def test_no_entry_can_buy_it(self, size):
        sim = simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=0)
        X = sim.data.copy()
        X[3, 4, 5] = size
        truth = tuple(map(np.asarray, sim.truth.absorbed()))
        spike = tuple(np.eye(20)[:, [k]] for k in (3, 4, 5))
        bought = tuple(
            np.stack([A[:, 0], (size ** (1 / 3)) * B[:, 0]], axis=1)
            for A, B in zip(truth, spike, strict=True)
        )
        assert self.of(X, truth) < self.of(X, bought) - 0.1

    @pytest.mark.parametrize("name", ["bad_samples", "four_way", "uneven_noise", "times_ten"])
    def test_is_lower_at_the_truth_than_where_least_squares_ends(self, name):
        from robustcp import cpals

        trial = trial_of(name, 50)
        X = trial.data
        least_squares = factors_of(cpals(X, trial.rank), X)
        assert self.of(X, tuple(map(np.asarray, trial.truth))) < self.of(X, least_squares) - 0.1

    def test_units(self):
        sim = simulate((15, 15, 15), 2, eta=0.1, gamma=1.0, rng=0)
        problem = Problem.of(as_engine(sim.data))
        truth = tuple(map(np.asarray, sim.truth.absorbed()))
        one = model_entropy(problem.engine, truth, problem.resolution)
        larger = Problem.of(as_engine(64 * sim.data))
        moved = tuple(4 * A for A in truth)
        other = model_entropy(larger.engine, moved, larger.resolution)
        assert other == pytest.approx(one + np.log(64), abs=1e-6)

    def test_of_nothing(self):
        residuals = Residuals.of(
            as_engine(np.ones((3, 3, 3))), tuple(np.ones((3, 1)) for _ in range(3)),
            Problem.of(as_engine(np.ones((3, 3, 3)))).resolution,
        )  # fmt: skip
        none = residuals.subsample(0)
        assert residual_entropy(none) == 0.0
        assert standardize_by_main_effects(none, none.scalable_modes)[0].homoscedastic


class TestOrder:
    def test_of_positive_data_two_plain_starts_from_positive_factors_are_first(self):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((12, 11, 10))
        mixed, positive = (
            list(map(str, islice(l1_proposals(as_engine(Y), "auto", True), 12)))
            for Y in (X, np.abs(X))
        )
        assert sorted(mixed) == sorted(positive)  # none is missed
        in_order = list(map(str, islice(l1_proposals(as_engine(np.abs(X)), "auto", False), 12)))
        assert mixed == in_order != positive
        for proposal in islice(l1_proposals(as_engine(np.abs(X)), "auto", True), 2):
            assert proposal.kind == "positive"
            assert not proposal.standardized
        few = np.where(rng.random(X.shape) < 0.7, np.nan, np.abs(X))  # too few to tell
        assert next(l1_proposals(as_engine(few), "auto", True)).kind == "spectral"


class TestMultistart:
    """One loop over rounds of starts, and one rule of agreement."""

    def ends(self, costs, seeds):
        return [
            Candidate(tuple(np.random.default_rng(s).standard_normal((6, 2)) for _ in range(3)), c)
            for c, s in zip(costs, seeds, strict=True)
        ]

    def test_rounds_are_added_until_two_agree_with_the_best(self):
        ends, rounds = self.ends([3.0, 2.0, 2.5, 1.0, 1.1], [0, 1, 1, 2, 2]), []

        def add_ends(candidates):
            for number in range(len(ends)):
                rounds.append(number)
                candidates.add([ends[number]])
                yield

        candidates, agree = multistart(add_ends, lambda candidates: candidates.count_same() > 1)
        assert agree
        assert (len(candidates), rounds) == (3, [0, 1, 2])
        assert candidates.best is ends[1]

    def test_without_agreement_all_rounds_are_done(self):
        ends = self.ends([3.0, 2.0, 1.0], [0, 1, 2])

        def add_ends(candidates):
            candidates.add(ends[:2])
            yield
            candidates.add(ends[2:])
            yield

        candidates, agree = multistart(add_ends, lambda candidates: candidates.count_same() > 1)
        assert not agree
        assert [len(ends) for ends in candidates.rounds] == [2, 1]


class TestFirstLook:
    def test_slabs_of_some_modes(self):
        rng = np.random.default_rng(1)
        rows, columns = np.exp(rng.uniform(-1, 1, 30)), np.exp(rng.uniform(-1, 1, 25))
        X = rows[:, None, None] * columns[:, None] * rng.standard_normal((30, 25, 20))
        X[rng.random(X.shape) < 0.1] += 50
        problem = Problem.of(as_engine(X))
        zero = tuple(np.zeros((n, 1)) for n in X.shape)
        noise = estimate_rough_noise(problem.engine, zero, problem.resolution)
        assert noise.slabs[2] is None
        for found, true in ((noise.slabs[0], rows), (noise.slabs[1], columns)):
            off = np.log(found) - np.log(true / np.exp(np.mean(np.log(true))))
            assert np.abs(off).max() < 0.5

    def test_a_small_matrix_has_none(self):
        """A component can be spent on one row of it, which would then have no noise."""
        X = np.random.default_rng(0).standard_normal((40, 40)) * np.arange(1, 41)[:, None]

        def is_homoscedastic(X, rank):
            problem, zero = Problem.of(as_engine(X)), [np.zeros((n, rank)) for n in X.shape]
            noise = estimate_rough_noise(problem.engine, tuple(zero), problem.resolution)
            return noise.homoscedastic

        assert is_homoscedastic(X[:, :8], 1)
        assert not is_homoscedastic(X, 1)


@pytest.mark.recovery
class TestRecovery:
    @pytest.mark.parametrize("seed", [50, 51])
    @pytest.mark.parametrize(
        ("name", "least"), [("bad_samples", 0.985), ("cauchy", 0.985), ("one_wild_entry", 0.985)]
    )
    def test_of_what_the_1_norm_gets_wrong(self, name, least, seed):
        trial = trial_of(name, seed)
        assert scored(trial, cp(trial.data, trial.rank)) > least

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(60, 65))
    @pytest.mark.parametrize("name", ["four_way", "many_components", "bad_samples"])
    def test_in_many_trials(self, name, seed):
        trial = trial_of(name, seed)
        assert scored(trial, cp(trial.data, trial.rank)) > 0.98

    def test_a_local_component_is_found(self):
        sim = simulate((20, 20, 20), 2, eta=0.0, gamma=0.0, rng=3)
        block = np.zeros((20, 20, 20))
        block[5:9, 5:9, 5:9] = 30.0
        fit = cp(sim.data + block, 3)
        np.testing.assert_allclose(fit.full()[5:9, 5:9, 5:9].mean(), 30.0, rtol=0.1)


class TestStarts:
    X = simulate((15, 15, 15), 3, eta=0.2, gamma=2.0, rng=0).data

    def test_a_start_depends_on_its_number_and_the_seed_alone(self):
        few, more = (cp(self.X, 3, starts=count, rng=4).starts for count in (3, 7))
        assert more[:3] == few[:3]

    def test_agreement_is_by_factors(self):
        easy = simulate((20, 20, 20), 2, eta=0.1, gamma=1.0, rng=1)
        starts = cp(easy.data, 2).starts
        assert (starts.reached, len(starts)) == (2, 2)

    def test_files_keep_what_was_reached(self, tmp_path):
        fit = cp(self.X, 3, starts=5)
        save(fit, tmp_path / "fit.npz")
        back = load(tmp_path / "fit.npz").starts
        assert (tuple(back), back.reached) == (tuple(fit.starts), fit.starts.reached)

    def test_scaled_data_has_the_same_starts(self):
        one, other = cp(self.X, 3).starts, cp(1e6 * self.X, 3).starts
        np.testing.assert_allclose(np.array(other) - np.log(1e6), one, atol=0.02)
        assert one.reached == other.reached


def test_schedules_end():
    problem = Problem.of(as_engine(TestStarts.X))
    zero = tuple(np.zeros((15, 1)) for _ in range(3))
    redescent = CauchyContinuation(problem.resolution, max_levels=2)
    assert redescent(2, problem.engine, zero, None) is None
    from robustcp.optimize.schedules import Continuation

    down = StandardizedL1(Continuation(1.0, 0.1), problem.resolution)
    assert down(2, problem.engine, zero, None) is None
    assert down.is_last(1)
    assert not down.is_last(0)


class TestFollowedToTheEnd:
    @pytest.mark.recovery
    def test_starts_have_models_and_final_costs(self):
        trial = KINDS["bad_samples"].make_trial(50, "")
        fit = cp(trial.data, 4)
        starts = fit.starts
        assert len(starts) == len(starts.final) == len(starts.models)
        ended = {k: value for k, value in enumerate(starts.final) if value is not None}
        best = min(ended, key=ended.__getitem__)
        assert factor_match_score(starts.models[best], fit.model) > 0.999
        agreeing = [factor_match_score(m, fit.model, weights=False) > 0.95 for m in starts.models]
        assert starts.reached == sum(agreeing)

    def test_with_more_blocks_none_drops_out(self):
        rng = np.random.default_rng(0)
        ends = [Candidate(tuple(rng.standard_normal((5, 2)) for _ in range(3)), cost)
                for cost in (0.04, 0.01, 0.02, 0.03, 0.0, 0.05, 0.9)]  # fmt: skip
        few, more = Candidates([ends[:3]]).select(), Candidates([ends[:3], ends[3:]]).select()
        assert [end.cost for end in few] == [0.01, 0.02]
        assert [end.cost for end in more] == [0.0, 0.01, 0.02, 0.03]

    def test_of_ends_that_agree_the_best_is_followed(self):
        factors = tuple(np.random.default_rng(0).standard_normal((5, 2)) for _ in range(3))
        assert [
            end.cost
            for end in Candidates([[Candidate(factors, 0.2), Candidate(factors, 0.1)]]).select()
        ] == [0.1]

    def test_two_models_of_which_one_is_better_in_the_end(self):
        found = Starts([1.0, 2.0], models=[simulate((4, 4, 4), 1, eta=0, gamma=0, rng=k).truth
                                           for k in range(2)])  # fmt: skip
        after = found.with_final(1, 0.5, found.models[1]).with_final(0, 0.9, found.models[0])
        assert after.final == (0.9, 0.5)
        assert after.recount_reached(1).reached == 1
        assert "0.5" in repr(after)

    @pytest.mark.recovery
    def test_the_search_says_why_it_goes_on(self, caplog):
        trial = KINDS["most_entries_too_large"].make_trial(50, "")
        with caplog.at_level("INFO", "robustcp.search"):
            cp(trial.data, 5)
        assert "starts disagree" in caplog.text


@pytest.mark.recovery
class TestMostEntries:
    @pytest.mark.parametrize("name", ["most_entries_too_large", "most_entries_random"])
    def test_may_be_outliers(self, name):
        trial = KINDS[name].make_trial(51, "")
        found = factor_match_score(cp(trial.data, 5).model, KruskalTensor.from_factors(trial.truth))
        assert found > 0.97

    def test_too_small_ones(self):
        trial = KINDS["most_entries_too_large"].make_trial(52, "")
        fit = cp(-trial.data, 5)
        turned = (-trial.truth[0], *trial.truth[1:])
        assert factor_match_score(fit.model, KruskalTensor.from_factors(turned)) > 0.97


@pytest.mark.recovery
@pytest.mark.parametrize("name", ["scatter_cut", "fluorescence"])
def test_landscapes(name):
    trial = KINDS[name].make_trial(50, "")
    fit = cp(trial.data, 4, nonnegative=True)
    assert factor_match_score(fit.model, KruskalTensor.from_factors(trial.truth)) > 0.85
    if name == "fluorescence":
        assert "fibres along mode 0 left out" in fit.status


@pytest.mark.recovery
def test_least_squares_does_not_run_off_where_entries_are_missing():
    for seed in range(36, 60):
        rng = np.random.default_rng(seed)
        M = np.einsum("i,j,k->ijk", *[rng.standard_normal(4) for _ in range(3)])
        X = M.copy()
        X.reshape(-1)[rng.choice(64, 7, replace=False)] = np.nan
        fit = cpals(X, 1, init="random", rng=seed)
        assert np.abs(fit.full()).max() < 100 * np.abs(M).max()


class TestBlocks:
    """A component that is constant on a block may have fitted no more than that."""

    @staticmethod
    def with_block(shape, seed):
        """Data of four sparse components, and a bright block in a third of the slabs of a mode."""
        rng = np.random.default_rng(seed)
        factors = [rng.standard_normal((n, 4)) * (rng.random((n, 4)) < 0.6) for n in shape]
        M = np.einsum("ar,br,cr->abc", *(np.abs(A) for A in factors))
        X = M + 0.1 * M.std() * rng.standard_normal(shape)
        a, b, c = shape
        block = np.ix_(range(2, 2 + a // 3), range(3, 3 + b // 3), rng.permutation(c)[: c // 3])
        X[block] += 4 * M.std()
        return X, block, KruskalTensor.from_factors([np.abs(A) for A in factors])

    @pytest.mark.parametrize(
        ("shape", "seed"), [((24, 21, 18), 2), ((12, 30, 18), 1), ((12, 30, 18), 4)]
    )
    def test_it_is_left_out_where_another_component_is_lacking(self, shape, seed):
        X, block, truth = self.with_block(shape, seed)
        fit = cp(X, 4)
        assert factor_match_score(fit, truth, weights=False) > 0.98
        assert fit.outliers(X).mask[block].mean() > 0.95

    def test_a_true_component_that_is_constant_on_a_block_is_kept(self):
        X, block, _ = self.with_block((24, 21, 18), 2)
        fit = cp(X, 5)  # there is a component for everything
        assert fit.outliers(X).mask[block].mean() < 0.05
        blocks = fibres_of_blocks(fit.factors)
        assert blocks is not None
        indices = tuple(index.ravel() for index in np.broadcast_arrays(*block))
        assert blocks.contains(indices).all()
        assert "ambiguous" not in [warning.code for warning in fit.warnings]

    def test_what_is_a_block(self, rng):
        def component(*supports):
            return tuple(
                (np.isin(np.arange(n), s) + 0.01 * rng.standard_normal(n))[:, None]
                for n, s in zip((20, 15, 12), supports, strict=True)
            )

        (found,) = fibres_of_blocks(component(range(4, 9), range(6), range(2, 5))).along
        assert found[0] == 1  # along the mode in which the block is longest
        assert np.argwhere(found[1][:, 0]).tolist() == [
            [a, c] for a in range(4, 9) for c in range(2, 5)
        ]
        A, _, C = component(range(4, 9), range(6), range(2, 5))
        (found,) = fibres_of_blocks((A, rng.standard_normal((15, 1)), C)).along
        assert found[0] == 1
        assert fibres_of_blocks((A, *(rng.standard_normal((n, 1)) for n in (15, 12)))) is None
        everywhere = [np.ones((n, 1)) for n in (15, 12)]
        assert fibres_of_blocks((A, *everywhere)) is None
        assert fibres_of_blocks(component([3], [4], [5])) is None  # one entry


@pytest.mark.parametrize("density", [0.2, 0.3])
def test_the_truth_of_sparse_data_is_not_left(density):
    for seed in range(2):
        sim = simulate((20, 20, 20), 3, eta=0.1, gamma=2.0, noise=0.0, density=density, rng=seed)
        fit = cp(sim.data, 3, init=sim.truth)
        assert factor_match_score(fit, sim.truth) > 0.9999
