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
    as_loss,
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
    Contaminated(1.0, 0.05, 0.05, shifted=0.25, shift=3.0),
    Contaminated(0.3, 1e-4, 1e-4, shifted=0.9, shift=-1.5),
    Contaminated(2.0, 1e-3, 1e-3, shifted=0.02, shift=14.0),
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
        for got, want in zip(loss.majorize(r.copy()), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)

    def test_is_a_hashable_value(self, loss):
        assert isinstance(loss, Loss)
        assert loss == type(loss)(**vars(loss))
        assert hash(loss) == hash(type(loss)(**vars(loss)))

    @given(r=points, factor=st.floats(0.01, 100))
    def test_rescaled_is_the_loss_of_rescaled_data(self, loss, r, factor):
        other = loss.rescaled(factor)
        expected = loss.value(np.array(r)) * factor**loss.degree
        assert other.value(np.array(factor * r)) == pytest.approx(expected, rel=1e-6, abs=1e-9)

    def test_tail_is_how_it_grows_far_out(self, loss):
        near = 1e5 * max(1.0, loss.reach)
        x = near * np.array([-30.0, -1.5, -0.5, 0.5, 2.0, 100.0])
        grown = loss.value(x) - loss.value(x.clip(-near, near))
        if loss.tail is None:
            assert grown[-1] > 1e3 * near
            return
        np.testing.assert_allclose(loss.tail.excess(x, near), grown, rtol=1e-4, atol=1e-6)
        far = 1e3 * near
        assert loss.slope(np.array(far)) == pytest.approx(loss.tail.above, abs=1e-3)
        assert loss.slope(np.array(-far)) == pytest.approx(-loss.tail.below, abs=1e-3)
        assert loss.tail.flat == bool(np.all(grown == 0) or np.abs(grown).max() < 1e-9)

    def test_what_it_rejects_has_little_influence(self, loss):
        if np.isfinite(loss.rejects):
            sizes = loss.rejects * np.array([1.01, 3.0, 100.0])
            most = np.abs(loss.slope(np.linspace(0, loss.rejects, 1000))).max()
            assert np.all(np.abs(loss.slope(sizes)) <= 0.2 * most)
        else:
            assert loss.tail is None or not loss.tail.flat or loss.slope(np.array(3.0)) > 0

    def test_quadratic_means_half_the_square(self, loss):
        r = np.linspace(-3, 3, 7)
        assert loss.quadratic == np.allclose(loss.value(r), r * r / 2)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_keeps_the_precision(self, loss, dtype):
        assert all(part.dtype == dtype for part in loss.majorize(np.ones(3, dtype=dtype)))


class Pseudo:
    """What a user may write."""

    def value(self, r):
        return np.sqrt(1 + r * r) - 1

    def slope(self, r):
        return r / np.sqrt(1 + r * r)

    def curvature(self, r):
        return 1 / np.sqrt(1 + r * r)


class TestDoor:
    def test_a_loss_of_three_methods_is_enough(self):
        given = Pseudo()
        loss = as_loss(given)
        assert isinstance(loss, Loss)
        assert loss.original is given
        assert loss.name == "Pseudo"
        assert not loss.quadratic
        assert loss.tail is None
        assert len(loss.majorize(np.ones(2))) == 3
        assert as_loss(loss) is loss

    def test_in_other_units_and_back(self):
        loss, r = as_loss(Pseudo()), np.linspace(-3, 3, 7)
        other = loss.rescaled(8.0)
        for k, name in enumerate(("value", "slope", "curvature")):
            expected = getattr(loss, name)(r) / 8.0**k
            np.testing.assert_allclose(getattr(other, name)(8 * r), expected)
        assert other.rescaled(0.125) is loss

    @pytest.mark.parametrize("bad", [Huber, Pseudo, Loss])
    def test_what_is_not_a_loss(self, bad):
        with pytest.raises(ValueError, match=r"^loss: must be a loss such as"):
            as_loss(bad)

    def test_what_it_lacks(self):
        class Half:
            value = slope = Pseudo.value

        with pytest.raises(ValueError, match=r"^loss: .* has no curvature"):
            as_loss(Half())


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
        (lambda: Contaminated(1.0, 0.1, 0.2, shifted=0.1, shift=3.0), "below"),
        (lambda: Contaminated(1.0, shifted=-0.1), "shifted"),
    ],
)
def test_bad_constants(make, name):
    with pytest.raises(ValueError, match=f"^{name}: .*got"):
        make()
