"""Every loss keeps the contract that the engines rely on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcp.losses import (
    L1,
    Cauchy,
    Contaminated,
    Huber,
    LeastSquares,
    Loss,
    Quantile,
    Tukey,
    Welsch,
    is_quadratic,
    majorize,
    rescaled,
)

LOSSES = [
    L1(1e-10),
    L1(1e-2),
    L1(3.0),
    Huber(),
    Huber(0.1),
    Cauchy(),
    Cauchy(0.3),
    Welsch(),
    Welsch(20.0),
    Tukey(),
    Tukey(30.0),
    Contaminated(),
    Contaminated(2.0, above=0.3, below=1e-4),
    Contaminated(0.5, above=1e-6, below=5.0),
    Quantile(0.5),
    Quantile(0.9, 1e-2),
    Quantile(0.1),
    LeastSquares(),
]
points = st.floats(-50, 50).map(lambda v: round(v, 6))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
class TestContract:
    @given(r=points)
    def test_slope_is_the_derivative(self, loss, r):
        if abs(r) < 1e-3 and getattr(loss, "epsilon", 1.0) < 1e-3:
            return  # finite differences do not see such a kink
        h = 1e-6 * max(1.0, abs(r))
        change = loss.value(np.array(r + h)) - loss.value(np.array(r - h))
        assert loss.slope(np.array(r)) == pytest.approx(change / (2 * h), rel=1e-5, abs=1e-5)

    @given(at=points)
    def test_parabola_touches_and_lies_above_everywhere(self, loss, at):
        r = np.concatenate([np.linspace(-200, 200, 2001), at + np.linspace(-1e-3, 1e-3, 101)])
        value, slope, curvature = (
            f(np.array(at)) for f in (loss.value, loss.slope, loss.curvature)
        )
        parabola = value + slope * (r - at) + 0.5 * curvature * (r - at) ** 2
        assert np.all(loss.value(r) <= parabola + 1e-9 * np.abs(parabola) + 1e-12)
        assert curvature >= 0
        if curvature == 0:  # only where the loss is flat
            assert slope == 0
            assert loss.value(np.array(at * 1.01)) == pytest.approx(value)

    def test_majorize_is_the_three_together(self, loss):
        r = np.random.default_rng(0).standard_normal(100)
        expected = loss.value(r), loss.slope(r), loss.curvature(r)
        for got, want in zip(majorize(loss, r.copy()), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)

    def test_is_a_hashable_value(self, loss):
        assert isinstance(loss, Loss)
        assert loss == type(loss)(**vars(loss))
        assert hash(loss) == hash(type(loss)(**vars(loss)))

    @given(r=points, factor=st.floats(0.01, 100))
    def test_rescaled_is_the_loss_of_rescaled_data(self, loss, r, factor):
        other = rescaled(loss, factor)
        degree = np.log(other.value(np.array(factor * 40.0)) / loss.value(np.array(40.0)))
        expected = loss.value(np.array(r)) * np.exp(degree)
        assert other.value(np.array(factor * r)) == pytest.approx(expected, rel=1e-6, abs=1e-9)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_keeps_the_precision(self, loss, dtype):
        assert all(part.dtype == dtype for part in majorize(loss, np.ones(3, dtype=dtype)))


def test_a_loss_of_three_methods_is_enough():
    class Pseudo:
        def value(self, r):
            return np.sqrt(1 + r * r) - 1

        def slope(self, r):
            return r / np.sqrt(1 + r * r)

        def curvature(self, r):
            return 1 / np.sqrt(1 + r * r)

    loss = Pseudo()
    assert isinstance(loss, Loss)
    assert not is_quadratic(loss)
    assert len(majorize(loss, np.ones(2))) == 3


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: L1(0.0), "epsilon"),
        (lambda: Huber(-1.0), "delta"),
        (lambda: Cauchy(0.0), "c"),
        (lambda: Welsch(float("nan")), "c"),
        (lambda: Tukey(-4.685), "c"),
        (lambda: Quantile(1.0), "tau"),
        (lambda: Quantile(0.5, 0.0), "epsilon"),
        (lambda: Contaminated(0.0), "sigma"),
    ],
)
def test_bad_constants(make, name):
    with pytest.raises(ValueError, match=f"^{name}: .*got"):
        make()
