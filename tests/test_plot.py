from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from robustcp import KruskalTensor, simulate
from robustcp.plot import truth_against_estimates

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_estimates_are_paired_with_the_truth_and_turned_to_its_sign():
    truth = simulate((9, 8, 7), 3, eta=0, gamma=0, rng=0).truth
    shuffled = KruskalTensor(
        truth.weights[[2, 0, 1]],
        (
            -truth.factors[0][:, [2, 0, 1]],
            -truth.factors[1][:, [2, 0, 1]],
            truth.factors[2][:, [2, 0, 1]],
        ),
    )
    ax = truth_against_estimates(truth, {"ours": shuffled}, mode=1, component=2)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), truth.factors[1][:, 2])
    assert "mode 1" in ax.get_xlabel()
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"truth", "ours"}
