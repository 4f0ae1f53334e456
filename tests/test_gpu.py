"""On a GPU: `pytest -m gpu`. test_triton_pass.py tests what the kernels compute, without one."""

import math

import numpy as np
import pytest

import robustcp
from robustcp import cp, cpal1, cpals, simulate
from robustcp.engines import EntryField, Scales, VarianceFunction, as_engine
from robustcp.engines.cuda_graph import WARMUP_CALLS
from robustcp.engines.dense import DenseEngine
from robustcp.engines.memory import free_memory
from robustcp.engines.passes.plain import PlainPass
from robustcp.engines.passes.triton_pass import TritonPass
from robustcp.losses import L1, LeastSquares
from support.oracles import KERNEL_LOSSES

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch


def drawn(torch, shape, rank, dtype, seed=0):
    """A noisy model, and its factors."""
    rng = np.random.default_rng(seed)
    F = [torch.asarray(rng.standard_normal((n, rank)), device="cuda") for n in shape]
    names = "abcde"[: len(shape)]
    X = torch.einsum(",".join(f"{n}r" for n in names) + "->" + names, *F)
    X += 0.3 * torch.asarray(rng.standard_normal(shape), device="cuda")
    return X.to(dtype), [A.to(dtype if dtype.is_floating_point else torch.float32) for A in F]


def compared(torch, X, factors, loss, look=lambda engine: engine):
    """Every mode by the kernel, beside the pass by the library in float64."""
    fused = look(DenseEngine(X))._passes.for_loss(loss, whole_mode=False)
    assert isinstance(fused, TritonPass)
    storage = look(DenseEngine(X.double(), compiled=False))._storage
    plain, single = PlainPass(storage), factors[0].dtype == torch.float32
    double = [A.double() for A in factors]
    order = storage.order
    ours, theirs = [[F[m] for m in order] for F in (factors, double)]
    for n in range(X.ndim):
        rows = slice(0, storage.shape[n])
        a, b = (
            plain.normal_equations(theirs, n, loss, rows),
            fused.normal_equations(ours, n, loss, rows),
        )
        rank = factors[0].shape[1]
        diagonal = a.gram[:, [k * rank - k * (k - 1) // 2 for k in range(rank)]]
        size = math.sqrt(2 * float(a.value) * float(diagonal.sum()))  # by Cauchy and Schwarz
        assert float((a.gradient - b.gradient).norm()) <= (1e-5 if single else 1e-12) * size
        off = (a.gram - b.gram).norm() / a.gram.norm()
        assert float(off) <= (2e-3 if single else 1e-12)
        # Logarithms of numbers near 1, which single precision holds to 6e-8, end in values near 0.
        assert float(b.value) == pytest.approx(float(a.value), rel=5e-6 if single else 1e-12)


@pytest.mark.parametrize("loss", KERNEL_LOSSES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_loss(torch, loss, dtype):
    compared(torch, *drawn(torch, (90, 70, 50), 7, getattr(torch, dtype)), loss)


@pytest.mark.parametrize("shape", [(300, 200), (3, 150, 90), (20, 30, 17, 9), (9, 8, 7, 6, 5)])
def test_any_order(torch, shape):
    compared(torch, *drawn(torch, shape, 4, torch.float32), L1(0.01))


@pytest.mark.parametrize("rank", [1, 5, 16, 20, 32])
def test_any_rank(torch, rank):
    compared(torch, *drawn(torch, (70, 60, 50), rank, torch.float32), L1(0.01))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "bool", "float16", "bfloat16"])
def test_any_type(torch, dtype):
    X = (50 * torch.rand((80, 40, 30), device="cuda")).to(getattr(torch, dtype))
    F = [torch.rand((n, 3), device="cuda") for n in X.shape]
    assert as_engine(X).dtype == torch.float32
    compared(torch, X, F, L1(0.01))


def test_any_strides(torch):
    X, F = drawn(torch, (80, 40, 30), 3, torch.float32)
    for order in ((2, 0, 1), (1, 2, 0)):
        compared(torch, X.permute(order), [F[m] for m in order], L1(0.01))
    compared(torch, X[:, ::2], [F[0], F[1][::2], F[2]], L1(0.01))


def test_gaps_weights_and_scales(torch):
    X, F = drawn(torch, (80, 40, 30), 3, torch.float32)
    X[torch.rand(X.shape, device="cuda") < 0.2] = math.nan
    rng = np.random.default_rng(1)
    w = [rng.uniform(0, 2, n).round(1) for n in X.shape]
    entries = rng.uniform(0, 1, (80, 1, 30)).round(1)
    u = tuple(rng.uniform(0.5, 2, n) for n in X.shape)
    signal = VarianceFunction(tuple(rng.standard_normal((n, 2)) for n in X.shape), 0.1, 0.2, 0.3)
    slabs = EntryField(tuple(X.shape), u)
    for look in (
        lambda engine: engine,
        lambda engine: engine.weighted(w),
        lambda engine: engine.weighted(entries),
        lambda engine: engine.standardized(Scales(slabs)),
        lambda engine: engine.standardized(Scales(slabs, signal, 0.3)),
        lambda engine: engine.scaled(3).clipped(0.5),
        lambda engine: engine.scaled(3).masked_above(0.5),
    ):
        compared(torch, X, F, L1(0.01), look)


def test_the_same_bits_every_time(torch):
    X, F = drawn(torch, (300, 200, 100), 10, torch.float32)
    fused = DenseEngine(X)._passes.for_loss(L1(0.01))
    for n in range(3):
        a, b = (fused.normal_equations(F, n, L1(0.01), slice(0, X.shape[n])) for _ in range(2))
        assert torch.equal(a.gram, b.gram)
        assert torch.equal(a.gradient, b.gradient)
        assert float(a.value) == float(b.value)
    sim = simulate((100, 90, 80), 3, eta=0.2, gamma=2.0, rng=0)
    X = torch.asarray(sim.data, dtype=torch.float32, device="cuda")
    a, b = cp(X, 3), cp(X, 3)
    assert all(torch.equal(A, B) for A, B in zip(a.factors, b.factors, strict=True))


@pytest.mark.parametrize("size", [40, 120])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_are_those_of_the_host(torch, size, dtype):
    sim = simulate((size,) * 3, 4, eta=0.2, gamma=2.0, rng=0)
    X = torch.asarray(sim.data, dtype=getattr(torch, dtype), device="cuda")
    for method in (cp, cpal1):
        there, here = method(X, 4), method(sim.data, 4)
        assert there.factors[0].is_cuda
        truth = robustcp.factor_match_score(there, sim.truth)
        assert truth >= robustcp.factor_match_score(here, sim.truth) - 1e-3
    assert cpals(X, 4).objective == pytest.approx(cpals(sim.data, 4).objective, rel=1e-2)


def test_nonnegative_fits(torch):
    rng = np.random.default_rng(0)
    A, B, C = (rng.random((90, 3)) * (rng.random((90, 3)) < 0.6) for _ in range(3))
    X = np.einsum("ir,jr,kr->ijk", A, B, C) + 0.01 * rng.standard_normal((90, 90, 90))
    X[rng.random(X.shape) < 0.1] = 3.0
    fit = cp(torch.asarray(X, dtype=torch.float32, device="cuda"), 3, nonnegative=True)
    assert all(bool((F >= 0).all()) for F in fit.factors)
    assert robustcp.factor_match_score(fit, (None, (A, B, C)), weights=False) > 0.99


def test_integers_are_never_converted_as_a_whole(torch):
    X = torch.randint(0, 255, (500, 400, 300), dtype=torch.uint8, device="cuda")
    F = [torch.rand((n, 5), device="cuda") for n in X.shape]
    engine = as_engine(X)
    engine.normal_equations(F, 0, L1(0.01))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for mode in range(3):
        engine.normal_equations(F, mode, L1(0.01))
    assert torch.cuda.max_memory_allocated() - before < X.numel()


@pytest.mark.parametrize("loss", [LeastSquares(), L1(0.01)], ids=str)
@pytest.mark.parametrize("shape", [(120, 90, 60), (40, 30, 20, 30)])
def test_recorded_sweeps_are_those_that_were_not(torch, loss, shape):
    X, F = drawn(torch, shape, 5, torch.float32)
    F = [A + 0.3 * torch.randn_like(A) for A in F]
    sweeping = as_engine(X).whole_sweep(loss)
    modes = tuple(range(X.ndim))
    found = []
    for _ in range(WARMUP_CALLS + 2):
        ahead = sweeping.normal_equations(F, 0)
        found.append((*sweeping.update_factors(F, modes, 0.0, ahead), ahead.gradient, ahead.gram))
    for other in found[1:]:
        assert all(torch.equal(A, B) for A, B in zip(found[0], other, strict=True))
    recordings = sweeping._pass_graphs(0)._graphs.values()
    assert [recording._replay is not None for recording in recordings] == [True]
    again = sweeping.update_factors(
        found[0][: X.ndim], modes, 0.0, None
    )  # other factors, other results
    assert sweeping.normal_equations(again, 0).value < ahead.value


def test_models_that_are_close_to_the_data(torch):
    X, F = drawn(torch, (120, 90, 60), 3, torch.float32)
    X = torch.einsum("ir,jr,kr->ijk", *F)
    fit = cpals(X, 3, init=[A + 0.1 * torch.randn_like(A) for A in F], tol=0.0, max_sweeps=100)
    assert fit.explained > 1 - 1e-10


def test_small_data_is_brought_to_the_host(torch):
    X, F = drawn(torch, (30, 20, 10), 3, torch.float32)
    seen = []
    fit = cpals(X, 3, init=F, callback=lambda state: seen.append(state.factors[0].is_cuda))
    assert fit.factors[0].is_cuda
    assert all(seen)
    here = cpals(X.cpu().numpy().astype(float), 3, init=[A.cpu().numpy() for A in F])
    assert np.array_equal(fit.factors[0].cpu().numpy(), here.factors[0].astype(np.float32))
    with pytest.raises(ValueError, match=r"init: is on cpu, the data on cuda:0"):
        cpals(X, 3, init=[A.cpu() for A in F])


def test_too_little_memory_says_so_before_the_work_begins(torch, monkeypatch):
    X, _ = drawn(torch, (300, 200, 100), 3, torch.float32)
    assert free_memory(X.device) > 10**9
    monkeypatch.setattr("robustcp.engines.dense.free_memory", lambda device: 64_000_000)
    words = r"X: a fit takes about 168 MB of cuda:0 beside the data, and 64 MB are free"
    with pytest.raises(ValueError, match=words):
        cpal1(X, 3, callback=lambda state: pytest.fail("it began"))
