from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from hypothesis import settings

import robustcp
from browser import chromium
from robustcp import losses
from robustcp.engines import to_host

# Where the tests run in the background of a shell, Ctrl-C is ignored, by their children too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run must not depend on chance; HYPOTHESIS_PROFILE=explore looks further.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure(config):
    """Kernels for GPUs are tried in Triton's interpreter, unless they are tried on a GPU."""
    if config.option.markexpr != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"


#: Losses that have a kernel for GPUs.
KERNEL_LOSSES = (
    losses.L1(0.01), losses.Contaminated(0.7), losses.Contaminated(0.7, 0.1, 0.01),
    losses.Contaminated(0.7, 0.01, 0.1), losses.Cauchy(1.0), losses.Welsch(2.0),
    losses.Huber(0.5), losses.Tukey(3.0), losses.Quantile(0.8, 0.01), losses.LeastSquares(),
)  # fmt: skip

LIBRARIES = ("numpy", "array_api_strict", "torch")


@pytest.fixture(params=LIBRARIES)
def xp(request):
    """Each array library that the engine is tested with."""
    module = pytest.importorskip(request.param)
    return module


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(params=["compiled", "plain"])
def compiled(request):
    """Whether passes are compiled by Numba, or those of the array library."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    return request.param == "compiled"


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; tests are skipped where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def paper():
    """Ten tensors of the paper's hardest cell."""
    return [robustcp.simulate(eta=0.2, gamma=2.0, rng=seed) for seed in range(10)]


def brute_force(X, factors, mode, loss):
    """Gram matrices, gradient and value of one factor, by einsum over the whole tensor."""
    letters = "abcdefgh"[: X.ndim]
    rank = factors[0].shape[1]
    terms = ",".join(f"{c}r" for c in letters)
    r = X - np.einsum(f"{terms}->{letters}", *factors)
    others = [A for m, A in enumerate(factors) if m != mode]
    rest = letters.replace(letters[mode], "")
    K = np.einsum(",".join(f"{c}r" for c in rest) + f"->{rest}r", *others)
    gram = np.einsum(
        f"{letters},{rest}r,{rest}s->{letters[mode]}rs", np.asarray(loss.curvature(r)), K, K
    )
    gradient = np.einsum(f"{letters},{rest}r->{letters[mode]}r", np.asarray(loss.slope(r)), K)
    i, j = np.triu_indices(rank)
    return gram[:, i, j], gradient, float(np.asarray(loss.value(r)).sum())


def host(array):
    return np.asarray(to_host(array))
