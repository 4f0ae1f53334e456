"""Every loss keeps the contract that the engines rely on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcp.losses import L1, LeastSquares, Loss, is_quadratic, majorize

LOSSES = [L1(1e-10), L1(1e-2), L1(3.0), LeastSquares()]
points = st.floats(-50, 50).map(lambda v: round(v, 6))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
class TestContract:
    @given(r=points)
    def test_slope_is_the_derivative(self, loss, r):
        if isinstance(loss, L1) and abs(r) < 1e-3 and loss.epsilon < 1e-3:
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
        assert np.all(loss.value(r) <= parabola * (1 + 1e-9) + 1e-12)
        assert curvature > 0

    def test_majorize_is_the_three_together(self, loss):
        r = np.random.default_rng(0).standard_normal(100)
        expected = loss.value(r), loss.slope(r), loss.curvature(r)
        for got, want in zip(majorize(loss, r.copy()), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)

    def test_is_a_hashable_value(self, loss):
        assert isinstance(loss, Loss)
        assert loss == type(loss)(**vars(loss))
        assert hash(loss) == hash(type(loss)(**vars(loss)))

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
