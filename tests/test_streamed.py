"""Data that passes over a device slab by slab, beside the same data there as a whole."""

import math

import numpy as np
import pytest
from array_api_compat import array_namespace

from robustcp import as_engine, cpal1, simulate
from robustcp.engines import EntryField, Observed, Scales, check_device
from robustcp.engines.blocks.streamed import StreamedEngine
from robustcp.engines.dense import DenseEngine
from robustcp.engines.entry_field import _to_device
from robustcp.engines.memory import format_bytes, parse_bytes
from robustcp.losses import L1, LeastSquares

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
SHAPE = (7, 11, 6)


def data(seed=0, gaps=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(SHAPE)
    X[rng.random(SHAPE) < gaps] = np.nan
    return X


def streamed(X, slabs=2):
    """With room for so many indices of the longest stride at a time."""
    longest = X.shape[int(np.argmax(X.strides))]
    return StreamedEngine(X, CPU, math.ceil(3 * slabs * X.nbytes / longest / 0.8) + 16)


def factors(rank=2, seed=1):
    rng = np.random.default_rng(seed)
    return tuple(torch.asarray(rng.standard_normal((n, rank))) for n in SHAPE)


LOOKS = {
    "as it is": lambda engine: engine,
    "weights": lambda engine: engine.weighted([np.arange(n) % 3 for n in SHAPE]),
    "weights of entries": lambda engine: engine.weighted(np.arange(42).reshape(7, 1, 6) % 4),
    "scales": lambda engine: engine.standardized(
        Scales(EntryField(SHAPE, tuple(1.0 + np.arange(n) for n in SHAPE)))
    ),
    "cut": lambda engine: engine.scaled(1).clipped(0.5),
    "without": lambda engine: engine.masked_above(1.5),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("gaps", [0.0, 0.2])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_it_is_the_engine_of_the_whole(look, gaps, order):
    X = np.ascontiguousarray(data(gaps=gaps).transpose(order)).transpose(np.argsort(order))
    ours, whole = (LOOKS[look](e) for e in (streamed(X), DenseEngine(torch.from_numpy(X))))
    F = factors()
    assert ours.max_abs == whole.max_abs
    assert ours.complete == whole.complete
    for loss in (L1(0.01), LeastSquares()):
        assert ours.value(F, loss) == pytest.approx(whole.value(F, loss), rel=1e-12)
        for mode in range(3):
            for rows in (None, slice(2, 5)):
                a, b = (e.normal_equations(F, mode, loss, rows) for e in (ours, whole))
                torch.testing.assert_close(a.gram, b.gram, rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(a.gradient, b.gradient, rtol=1e-12, atol=1e-12)
                assert float(a.value) == pytest.approx(float(b.value), rel=1e-12)
    for a, b in zip(
        ours.slab_sums(lambda r: r > 0.3, F), whole.slab_sums(lambda r: r > 0.3, F), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    torch.testing.assert_close(
        ours.map_residuals(lambda r: r, F), whole.map_residuals(lambda r: r, F), equal_nan=True
    )
    np.testing.assert_allclose(ours.sample(F).values, whole.sample(F).values, rtol=1e-12)
    for mode in range(3):
        np.testing.assert_allclose(ours.gram(mode), whole.gram(mode), rtol=1e-10, atol=1e-12)
        assert ours.slab_counts(mode).tolist() == whole.slab_counts(mode).tolist()
    part = [np.array([1, 4]), None, np.array([0, 5])]
    np.testing.assert_array_equal(
        ours.subtensor(part).unfolding(1, slice(0, 11)),
        whole.subtensor(part).unfolding(1, slice(0, 11)),
    )


def test_slabs_are_as_large_as_memory_allows():
    X = data()
    assert repr(streamed(X, 2)) == "StreamedEngine(7x11x6, float64, 4 slabs)"
    assert repr(streamed(X, 7)) == "StreamedEngine(7x11x6, float64, 1 slabs)"
    with pytest.raises(
        ValueError, match=r"^memory: 500 bytes is too little: one index of mode 0 takes 528 b"
    ):
        StreamedEngine(X, CPU, 500)


def test_files_and_arrays_that_must_not_be_written_to(tmp_path):
    X = data()
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    a, b = (streamed(Y).value(factors(), L1(0.01)) for Y in (mapped, X))
    assert a == b


def test_a_fit_is_that_of_the_whole():
    X = simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    engine = StreamedEngine(X, CPU, 15000)
    a, b = cpal1(engine, 2), cpal1(torch.from_numpy(X), 2)
    assert a.objective == pytest.approx(b.objective, rel=1e-9)


# The front door


def test_sizes_in_words():
    assert parse_bytes("16GB") == parse_bytes(16_000_000_000) == parse_bytes("16 gb")
    assert parse_bytes("500MB") == 5 * 10**8
    assert format_bytes(parse_bytes("1.5GB")) == "1.5 GB"
    for wrong in ("much", "-3GB", "0", None):
        with pytest.raises(ValueError, match=r"^memory: must be a size such as"):
            parse_bytes(wrong)


def test_devices():
    X = data()
    assert isinstance(as_engine(X, device="cpu"), DenseEngine)
    with pytest.raises(ValueError, match=r"^device: PyTorch knows none that is called 'abacus'"):
        as_engine(X, device="abacus")
    with pytest.raises(ValueError, match=r"^memory: is that of a device, which must be named too"):
        as_engine(X, memory="1GB")
    with pytest.raises(TypeError, match=r"^device: is for dense data"):
        as_engine(Observed(np.array([[0, 0, 0]]), np.ones(1), (2, 2, 2)), device="cpu")
    with pytest.raises(ValueError, match=r"^device: 'cuda:64' is not there: PyTorch sees"):
        as_engine(X, device="cuda:64")


def test_weights_and_init_must_be_where_the_data_is():
    elsewhere = torch.empty((7, 2), device="meta")
    engine = as_engine(torch.from_numpy(data()))
    with pytest.raises(ValueError, match=r"^entry_weights: is on meta, the data on cpu"):
        engine.weighted([elsewhere[:, 0], None, None])
    beside = StreamedEngine(data(), CPU, 12000)
    assert str(beside.device) == "cpu"
    with pytest.raises(ValueError, match=r"^init: is on cpu, the data on meta"):
        check_device("init", torch.ones(3), torch.device("meta"))


def test_a_device_without_pytorch_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"device: 'cpu' needs PyTorch, which is not installed"):
        as_engine(np.ones((3, 4)), device="cpu")


def test_weights_follow_to_another_device():
    moved = _to_device(torch.ones(2), array_namespace(torch.ones(2)), torch.device("meta"))
    assert moved.device == torch.device("meta")
