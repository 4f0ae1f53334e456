"""Imputation of others' data beside their figures; without the data these tests are skipped."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
SPEC = importlib.util.spec_from_file_location("hangzhou", ROOT / "scripts" / "hangzhou.py")
hangzhou = importlib.util.module_from_spec(SPEC)
sys.modules["hangzhou"] = hangzhou  # which dataclasses look up
SPEC.loader.exec_module(hangzhou)


def test_masks_are_those_that_were_published():
    shape, rng = (8, 5, 6), np.random.RandomState(1000)
    entries = hangzhou.mask(shape, 0.4, False, np.random.RandomState(1000))
    np.testing.assert_array_equal(entries, np.round(rng.rand(*shape) + 0.1) == 1)
    days = hangzhou.mask(shape, 0.4, True, np.random.RandomState(1000))
    drawn = np.round(np.random.RandomState(1000).rand(8, 5) + 0.1)
    np.testing.assert_array_equal(days, np.broadcast_to(drawn[..., None], shape) == 1)


@pytest.mark.recovery
@pytest.mark.skipif(not (DATA / "hangzhou.mat").exists(), reason="no hangzhou.mat")
@pytest.mark.parametrize("name", hangzhou.MASKS)
def test_errors_are_within_5_percent_of_the_published_ones(name):
    (result,) = hangzhou.study(DATA, [name])
    assert result.mape <= 1.05 * result.published[0]
    assert result.rmse <= 1.05 * result.published[1]
