from __future__ import annotations

import numpy as np
import pytest

from robustcp import simulate


def test_sizes_are_those_of_the_paper():
    sim = simulate(eta=0.2, gamma=2.0, rng=0)
    signal = sim.truth.full()
    assert sim.data.shape == (50, 50, 50)
    assert sim.artifacts.mean() == pytest.approx(0.2, abs=0.01)
    noise = (sim.data - signal)[~sim.artifacts]
    assert noise.std() == pytest.approx(sim.sigma, rel=0.01)
    assert sim.sigma * np.sqrt(signal.size) == pytest.approx(0.1 * np.linalg.norm(signal), rel=0.01)
    artifacts = (sim.data - signal)[sim.artifacts]
    assert np.linalg.norm(artifacts) == pytest.approx(2 * np.linalg.norm(signal), rel=0.01)
    assert artifacts.mean() > 0


def test_truth_is_canonical_and_nonnegative():
    sim = simulate((6, 7, 8, 9), 3, eta=0.0, gamma=1.0, noise=0.0, rng=1)
    np.testing.assert_allclose(sim.data, sim.truth.full(), atol=1e-12)
    assert all((A >= 0).all() for A in sim.truth.factors)
    assert not sim.artifacts.any()


def test_density():
    sim = simulate(rank=4, eta=0.0, gamma=0.0, density=0.2, rng=0)
    share = np.mean([(A > 0).mean() for A in sim.truth.factors])
    assert share == pytest.approx(0.2, abs=0.05)
    tiny = simulate((3, 3, 3), 4, eta=0.0, gamma=0.0, density=1e-9, rng=0)
    assert (tiny.truth.weights > 0).all()


def test_seed():
    a, b = (simulate((5, 5, 5), 2, eta=0.1, gamma=1.0, rng=3) for _ in range(2))
    assert np.array_equal(a.data, b.data)
    c = simulate((5, 5, 5), 2, eta=0.1, gamma=1.0, rng=np.random.default_rng(3))
    assert np.array_equal(a.data, c.data)


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        ({"eta": 1.5, "gamma": 1}, "eta"),
        ({"eta": float("nan"), "gamma": 1}, "eta"),
        ({"eta": 0.1, "gamma": -1}, "gamma"),
        ({"eta": 0.1, "gamma": 1, "noise": float("inf")}, "noise"),
        ({"eta": 0.1, "gamma": 1, "density": 0}, "density"),
        ({"eta": 0.1, "gamma": 1, "rank": 0}, "rank"),
        ({"eta": "x", "gamma": 1}, "eta"),
        ({"eta": 0.1, "gamma": 1, "rng": "a"}, "rng"),
        ({"eta": 0.1, "gamma": 1, "shape": 5}, "shape"),
        ({"eta": 0.1, "gamma": 1, "shape": (5,)}, "shape"),
        ({"eta": 0.1, "gamma": 1, "shape": (5, 0)}, "shape"),
    ],
)
def test_bad_input(bad, name):
    with pytest.raises(ValueError, match=f"^{name}: .*got"):
        simulate(**bad)
