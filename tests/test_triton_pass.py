"""The fused pass of GPUs, in Triton's interpreter, beside einsum and the pass by the library."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robustcp.engines import EntryField, Scales, VarianceFunction
from robustcp.engines.algebra import Algebra, TritonAlgebra
from robustcp.engines.dense import DenseEngine
from robustcp.engines.installed import triton_kernels
from robustcp.engines.normal_equations import NormalEquations, pack_indices
from robustcp.engines.passes.plain import PlainPass
from robustcp.engines.passes.triton_pass import MAX_BLOCK_SIZE, ModeRoles, TritonPass
from robustcp.losses import L1, Cauchy, LeastSquares, Quantile, UserLoss
from support.log_cosh import LogCosh
from support.oracles import KERNEL_LOSSES

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.gpu_kernels


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr("robustcp.engines.installed.KERNEL_DEVICE", "cpu")


def normal(*shape, dtype=None, seed=0):
    X = np.random.default_rng(seed).standard_normal(shape)
    return torch.asarray(X).to(dtype or torch.float64)


def drawn(shape, rank, dtype, seed=1):
    rng = np.random.default_rng(seed)
    return [torch.asarray(rng.standard_normal((n, rank)), dtype=dtype) for n in shape]


def by_einsum(X, factors, mode, loss):
    """Gram matrices, gradients and value of data without gaps, in float64."""
    X, F = X.numpy().astype(float), [A.numpy().astype(float) for A in factors]
    names = "abcde"[: X.ndim]
    model = np.einsum(",".join(f"{n}r" for n in names) + f"->{names}", *F)
    r = X - model
    i, j = pack_indices(F[0].shape[1])
    others = [m for m in range(X.ndim) if m != mode]
    term = ",".join([names, *(f"{names[m]}r" for m in others)]) + f"->{names[mode]}r"
    gradient = np.einsum(term, loss.slope(r), *(F[m] for m in others))
    gram = np.einsum(term, loss.curvature(r), *(F[m][:, i] * F[m][:, j] for m in others))
    return gram, gradient, loss.value(r).sum()


def passes(X, look=lambda engine: engine):
    storage = look(DenseEngine(X, compiled=False))._storage
    return PlainPass(storage), TritonPass(storage, triton_kernels(storage.device))


def compared(X, rank, loss, look=lambda engine: engine, rows=None, close=1e-12):
    """Every mode by both passes."""
    plain, fused = passes(X, look)
    shape, dtype = plain.storage.shape, plain.storage.dtype
    factors = drawn(shape, rank, dtype)
    assert fused.supports(loss)
    for n in range(len(shape)):
        some = rows or slice(0, shape[n])
        a, b = (way.normal_equations(factors, n, loss, some) for way in (plain, fused))
        for one, other in ((a.gram, b.gram), (a.gradient, b.gradient)):
            assert one.shape == other.shape
            assert float((one - other).abs().max()) <= close * float(one.abs().max())
        assert float(b.value) == pytest.approx(float(a.value), rel=close)
    assert fused.value(factors, loss) == pytest.approx(plain.value(factors, loss), rel=close)


@pytest.mark.parametrize("loss", [*KERNEL_LOSSES, LogCosh(0.6)], ids=str)
def test_every_loss_equals_einsum(loss):
    X = normal(18, 9, 11)
    factors = drawn(X.shape, 3, X.dtype)
    _, fused = passes(X)
    for n in range(3):
        found = fused.normal_equations(factors, n, loss, slice(0, X.shape[n]))
        gram, gradient, value = by_einsum(X, factors, n, loss)
        np.testing.assert_allclose(
            np.broadcast_to(found.gram.numpy(), gram.shape), gram, rtol=1e-10, atol=1e-10
        )
        np.testing.assert_allclose(found.gradient.numpy(), gradient, rtol=1e-10, atol=1e-10)
        assert float(found.value) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "shape", [(30, 20), (5, 40, 20), (17, 6, 5, 9), (5, 4, 3, 6, 7), (70, 3, 2)], ids=str
)
def test_any_order(shape):
    compared(normal(*shape), 2, L1(0.01))


@pytest.mark.parametrize("rank", [1, 6, 17, 32])
def test_any_rank(rank):
    compared(normal(18, 17, 3), rank, L1(0.01))


def test_larger_ranks_go_through_the_library():
    compared(normal(5, 4, 3), 33, L1(0.01))


def test_any_strides():
    compared(normal(20, 18, 19).permute(2, 0, 1), 2, L1(0.01))
    compared(normal(20, 36, 19)[:, ::2], 2, L1(0.01))


def test_some_rows():
    compared(normal(20, 18, 17), 2, L1(0.01), rows=slice(3, 11))
    compared(normal(20, 9, 17), 2, L1(0.01), rows=slice(3, 8))


def holed(*shape):
    X = normal(*shape)
    X[torch.asarray(np.random.default_rng(2).random(shape) < 0.2)] = math.nan
    return X


def test_missing_entries():
    compared(holed(20, 7, 18), 2, Quantile(0.8, 0.01))


def test_looked_at_in_another_way():
    X = 100 * normal(20, 7, 18)
    compared(X, 2, L1(0.01), lambda engine: engine.scaled(7).clipped(1.0))
    compared(X, 2, L1(0.01), lambda engine: engine.scaled(7).masked_above(1.0))
    compared(X * 2.0**500, 2, L1(0.01), lambda engine: engine.scaled(507))


def test_weights():
    rng, shape = np.random.default_rng(3), (20, 7, 18)
    vectors = [rng.uniform(0, 2, n) for n in shape]
    for vector in vectors:
        vector[3] = 0
    X = holed(*shape)
    compared(X, 2, L1(0.01), lambda engine: engine.weighted(vectors))
    compared(X, 2, LeastSquares(), lambda engine: engine.weighted(vectors))
    compared(
        X, 2, L1(0.01), lambda engine: engine.weighted(rng.uniform(0, 1, (20, 1, 18)).round(1))
    )


SHAPE = (20, 7, 18)
SLABS = tuple(np.random.default_rng(4).uniform(0.5, 2, n) for n in SHAPE)
SIGNAL = VarianceFunction(
    tuple(np.random.default_rng(5).standard_normal((n, 2)) for n in SHAPE), 0.1, 0.2, 0.3
)


@pytest.mark.parametrize(
    "scales",
    [
        Scales(EntryField(SHAPE, SLABS)),
        Scales(EntryField(SHAPE, (SLABS[0], None, None)), least=0.8, unit=2.0),
        Scales(EntryField(SHAPE, SLABS), SIGNAL, 0.3),
    ],
    ids=["slabs", "floor", "signal"],
)
def test_scales(scales):
    compared(holed(*SHAPE), 2, L1(0.01), lambda engine: engine.standardized(scales))


def test_scales_of_entries_go_through_the_library():
    every = EntryField(SHAPE, (None,) * 3, np.full(SHAPE, 2.0))
    _, fused = passes(normal(*SHAPE), lambda engine: engine.standardized(Scales(every)))
    assert not fused.supports(L1())


def test_losses_that_nobody_compiled_go_through_the_library():
    _, fused = passes(normal(4, 5, 6))
    assert not fused.supports(UserLoss(L1()))


def test_nor_do_numbers_that_single_precision_does_not_hold():
    _, fused = passes(normal(4, 5, 6, dtype=torch.float32))
    assert fused.supports(L1(1e-30))
    assert not fused.supports(L1(1e-50))
    assert not fused.supports(Cauchy(1e-30))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "bool"])
def test_integers_are_read_as_they_are(dtype):
    X = torch.asarray(np.random.default_rng(6).integers(0, 120, (20, 7, 18))).to(
        getattr(torch, dtype)
    )
    compared(X, 2, L1(0.01))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_single_precision(dtype):
    """Gram matrices are right to 2e-3 and gradients to 1e-5 of their sums of magnitudes."""
    X = normal(40, 30, 20, dtype=getattr(torch, dtype))
    factors, loss = drawn(X.shape, 4, torch.float32), L1(0.01)
    _, fused = passes(X)
    for n in range(3):
        found = fused.normal_equations(factors, n, loss, slice(0, X.shape[n]))
        gram, gradient, value = by_einsum(X, factors, n, loss)
        size = np.sqrt((gradient**2).sum(1, keepdims=True)).max()
        assert np.abs(found.gradient.numpy() - gradient).max() <= 1e-5 * size
        assert np.abs(found.gram.numpy() - gram).max() <= 2e-3 * np.abs(gram).max()
        assert (np.diagonal(found.gram.numpy()[:, [0, 4, 7, 9]]) >= 0).all()
        assert float(found.value) == pytest.approx(value, rel=1e-6)


def test_the_same_bits_every_time():
    _, fused = passes(normal(40, 30, 20, dtype=torch.float32))
    factors = drawn((40, 30, 20), 3, torch.float32)
    a, b = (fused.normal_equations(factors, 1, L1(0.01), slice(0, 30)) for _ in range(2))
    assert torch.equal(a.gram, b.gram)
    assert torch.equal(a.gradient, b.gradient)
    assert float(a.value) == float(b.value)


def test_roles():
    roles = ModeRoles.of(0, (1000, 1000, 1000), (10**6, 1000, 1))
    assert (roles.rows, roles.tile, roles.outer) == (0, 2, (1,))
    pixels_colours_frames = (300, 2073600, 3), (6220800, 3, 1)  # in storage order
    roles = ModeRoles.of(1, *pixels_colours_frames)
    assert (roles.rows, roles.tile, roles.outer) == (1, 0, (2,))
    roles = ModeRoles.of(2, *pixels_colours_frames)
    assert roles.per_own_index
    assert (roles.rows, roles.tile, roles.outer) == (1, 0, ())
    assert ModeRoles.of(0, (3, 50), (50, 1)).rows == 0
    assert MAX_BLOCK_SIZE == 64


# Rows


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rank", [1, 3, 10, 17])
@pytest.mark.parametrize("way", ["solve_rows", "solve_nonnegative_rows"])
def test_rows_are_solved_as_by_the_library(way, rank, shared):
    rng = np.random.default_rng(7)
    M = rng.standard_normal((1 if shared else 6, rank + 3, rank))
    i, j = pack_indices(rank)
    gram = np.ascontiguousarray(np.einsum("nkr,nks->nrs", M, M)[:, i, j])
    if not shared:
        gram[2] = 0
    gradient, rows = (torch.asarray(rng.standard_normal((6, rank))) for _ in range(2))
    rows = rows.abs() if way == "nonnegative" else rows
    equations = NormalEquations(torch.asarray(gram), gradient, 0.0)
    a, b = (getattr(way_of(), way)(equations, rows, 0.01) for way_of in (Algebra, TritonAlgebra))
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-10)
    turned = NormalEquations(torch.asarray(gram).T.contiguous().T, gradient, 0.0)
    torch.testing.assert_close(getattr(TritonAlgebra(), way)(turned, rows, 0.01), b)


def test_small_parts_of_it():
    A, B = drawn((5, 5), 3, torch.float32)
    fused, library = TritonAlgebra(), Algebra()
    np.testing.assert_allclose(fused.column_norms(A), library.column_norms(A), rtol=1e-6)
    E = np.random.default_rng(0).standard_normal((2, 3, 3))
    for a, b in (
        (fused.step_products([A, B], [B, A]), library.step_products([A, B], [B, A])),
        (fused.add_step([A, B], E), library.add_step([A, B], E)),
    ):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_balanced_as_by_the_library():
    F = drawn((5, 4, 3), 3, torch.float32)
    F[1][:, 1] = 0  # the others of this component stay as they are
    for a, b in zip(TritonAlgebra().balance_norms(F), Algebra().balance_norms(F), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("loss", [LeastSquares(), L1(0.1)], ids=str)
@pytest.mark.parametrize("modes", [(0, 1, 2), (2, 0)])
@pytest.mark.parametrize("known", [True, False])
def test_sweeps_are_updates_in_turn(loss, modes, known):
    engine, F = DenseEngine(normal(6, 5, 4)), tuple(drawn((6, 5, 4), 2, torch.float64))
    sweeping, expected = engine.whole_sweep(loss), list(F)
    for mode in modes:
        equations = engine.normal_equations(tuple(expected), mode, loss)
        expected[mode] = Algebra().solve_rows(equations, expected[mode], 0.1)
    ahead = sweeping.normal_equations(F, modes[0])
    assert ahead.value == pytest.approx(engine.value(F, loss), rel=1e-12)
    for A, B in zip(
        sweeping.update_factors(F, modes, 0.1, ahead if known else None), expected, strict=True
    ):
        np.testing.assert_allclose(A, B, rtol=1e-9)


def test_sweeps_of_models_that_are_close_to_the_data():
    F = tuple(drawn((6, 5, 4), 2, torch.float64))
    X = torch.einsum("ir,jr,kr->ijk", *F)
    near = tuple(A + 1e-9 * B for A, B in zip(F, drawn(X.shape, 2, torch.float64, 5), strict=True))
    sweeping = DenseEngine(X).whole_sweep(LeastSquares())
    ahead = sweeping.normal_equations(near, 0)
    residuals = X - torch.einsum("ir,jr,kr->ijk", *near)
    assert ahead.value == pytest.approx(0.5 * float((residuals**2).sum()), rel=1e-6)
    after = sweeping.normal_equations(sweeping.update_factors(near, (0, 1, 2), 0.0, ahead), 0)
    assert after.value < ahead.value


def test_sweeps_of_more_components_than_kernels_take():
    X = normal(40, 5, 4)
    F = tuple(drawn(X.shape, 33, torch.float64))
    sweeping = DenseEngine(X).whole_sweep(L1(0.1))
    ahead = sweeping.normal_equations(F, 0)
    swept = sweeping.update_factors(F, (0,), 0.1, ahead)
    expected = Algebra().solve_rows(ahead, F[0], 0.1)
    np.testing.assert_allclose(swept[0], expected, rtol=1e-9)


def test_kernels_compile_for_a_gpu(tmp_path):
    """Without one. In a process of its own: in this one Triton interprets."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("support") / "compile_kernels.py"
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == [
        "plain",
        "all",
        "weights of entries",
        "two peaks",
        "double",
    ]


# Where kernels are used


def test_engines_use_kernels_where_they_run(monkeypatch):
    engine = DenseEngine(normal(5, 6, 7))
    assert isinstance(engine._passes.for_loss(L1()), TritonPass)
    assert isinstance(engine.algebra, TritonAlgebra)
    monkeypatch.undo()
    engine = DenseEngine(normal(5, 6, 7))
    assert isinstance(engine._passes.for_loss(L1()), PlainPass)
    assert not isinstance(engine.algebra, TritonAlgebra)


def test_a_fit_by_kernels_is_that_of_the_host():
    from robustcp import cpal1, simulate

    X = simulate((7, 6, 5), 1, eta=0.1, gamma=1.0, rng=0).data
    begin = [np.ones((n, 1)) for n in X.shape]
    a, b = (cpal1(Y, 1, init=begin, max_sweeps=4) for Y in (torch.asarray(X), X))
    assert a.objective == pytest.approx(b.objective, rel=1e-6)
