from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import settings

import robustcp
from support.browser import chromium

# Where the tests run in the background of a shell, Ctrl-C is ignored, by their children too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run must not depend on chance; HYPOTHESIS_PROFILE=explore looks further.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure(config):
    """Kernels for GPUs are tried in Triton's interpreter, unless they are tried on a GPU."""
    if config.option.markexpr != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"


#: The packages that the tests behind a marker need; the browser says itself what it lacks.
REQUIRED = {
    "torch": ("torch",),
    "gpu_kernels": ("torch", "triton"),
    "cluster": ("dask", "distributed", "zarr"),
    "docs": ("sphinx", "sphinx_gallery", "xarray"),
}


def pytest_collection_modifyitems(items):
    """Mark the tests that are run with PyTorch as one of several libraries."""
    for item in items:
        params = getattr(item, "callspec", None)
        values = params.params.values() if params else ()
        if any(isinstance(value, str) and value == "torch" for value in values):
            item.add_marker("torch")


def pytest_runtest_setup(item):
    """Skip a test whose marker needs a package that is not installed."""
    for marker, packages in REQUIRED.items():
        missing = [name for name in packages if find_spec(name) is None]
        if missing and item.get_closest_marker(marker):
            pytest.skip(f"{marker}: needs {', '.join(missing)}")


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
