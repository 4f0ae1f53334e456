"""Compile the fused pass for a GPU, without one: its interpreter takes more than its compiler."""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from robustcp.engines.passes import triton as kernels
from robustcp.losses import L1, Cauchy, Contaminated

FLAGS = (
    "per_own_index", "has_missing", "clipped", "mode_weights", "entry_weights", "scaled", "floored",
    "signal", "split_slopes",
)  # fmt: skip


def formula(loss):
    return kernels.compile_formula(loss.triton_formula.function)


VARIANTS = {
    "plain": ("fp32", formula(L1()), ()),
    "all": (
        "fp32",
        formula(Contaminated(above=0.1)),
        tuple(flag for flag in FLAGS if flag != "entry_weights"),
    ),
    "weights of entries": ("fp32", formula(Contaminated()), ("entry_weights", "per_own_index")),
    "two peaks": ("fp32", formula(Contaminated(shifted=0.2, shift=3.0)), ("has_missing",)),
    "double": ("fp64", formula(Cauchy()), ("has_missing", "scaled")),
}


def argument_types(real: str, flags: tuple[str, ...]) -> dict[str, object]:
    """The types of the kernel's arguments; what is read of weights and scales only if wanted."""

    def pointers(flag: str, *types: str) -> tuple[str, ...]:
        return types if flag in flags else ("constexpr",) * len(types)

    numbers = f"*{real}"
    weights = kernels.EntryWeights(
        *pointers("mode_weights", *[numbers] * 3),
        *pointers("entry_weights", numbers, "*i64"),
        *["i32"] * 3,
    )
    scales = kernels.EntryScales(
        *pointers("scaled", *[numbers] * 3), *pointers("signal", *[numbers] * 3), "i32"
    )
    return {
        "inputs": kernels.Inputs(
            numbers, kernels.Data(numbers, "*i64", "i32", "constexpr", "i32"), weights, scales
        ),
        "factors": kernels.Factors(*[numbers] * 4, "*i32", "*i32"),
        "sums": kernels.Sums(numbers, "*fp64"),
        **dict.fromkeys(("rows", "first", "inner", "outer", "own", "rank", "splits"), "i32"),
        "formula": "constexpr",
        "layout": "constexpr",
    }


def constant_paths(types: object, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Where in nested types the constants are."""
    if isinstance(types, tuple):
        nested = (constant_paths(part, (*path, k)) for k, part in enumerate(types))
        return [found for part in nested for found in part]
    return [path] if types == "constexpr" else []


def compiled(real: str, loss_formula: object, flags: tuple[str, ...]) -> object:
    layout = kernels.Layout(
        real=tl.float32 if real == "fp32" else tl.float64, fast=real == "fp32", row_block=32,
        tile_block=32, rank_block=16, pair_block=16, signal_block=16, rows_divisor=8,
        row_stride_divisor=8, tile_divisor=8, offsets_divisor=8, gradient=True, gram=True,
        unit_steps=1, pipeline_stages=2, **{flag: flag in flags for flag in FLAGS},
    )  # fmt: skip
    signature = argument_types(real, flags)
    assert list(signature) == kernels.pass_kernel.arg_names
    constants = dict.fromkeys(constant_paths(tuple(signature.values())))
    constants |= {(0, 1, 3): 1, (10,): loss_formula, (11,): layout}  # (0, 1, 3): the tile's stride
    source = ASTSource(fn=kernels.pass_kernel, signature=signature, constexprs=constants, attrs={})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


if __name__ == "__main__":
    for name in sys.argv[1:] or VARIANTS:
        assert "mma" in compiled(*VARIANTS[name]).asm["ptx"], name
        sys.stdout.write(f"{name}\n")
