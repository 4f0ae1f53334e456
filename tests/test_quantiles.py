from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from robustcp._util.quantiles import median, quantile, quantile_of_sorted

numbers = arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32))


@given(numbers, st.floats(0, 1))
def test_quantiles_are_those_of_numpy(x, share):
    before, expected = x.copy(), np.quantile(x, share)
    np.testing.assert_allclose(quantile(x, share), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        quantile_of_sorted(np.sort(x), share), expected, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_array_equal(x, before)


@given(numbers)
def test_the_median_too(x):
    np.testing.assert_allclose(median(x), np.median(x), rtol=1e-12, atol=1e-12)
