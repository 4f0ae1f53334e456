"""Compile the fused pass for a GPU, without one: its interpreter takes more than its compiler."""

import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from robustcp.engines.passes import kernels_triton as kernels
from robustcp.losses import L1, Cauchy, Contaminated

FLAGS = (
    "TURNED", "GAPS", "CUT", "OUTER_WEIGHTED", "WEIGHTED", "SCALED", "FLOORED", "SIGNAL", "SPLIT",
)  # fmt: skip
#: What is read only if there are such weights or scales.
BESIDE = {
    "OUTER_WEIGHTED": ("ROW_WEIGHTS", "TILE_WEIGHTS", "OUTER_WEIGHTS"),
    "WEIGHTED": ("WEIGHTS", "WEIGHT_PLACES"),
    "SCALED": ("ROW_SCALES", "TILE_SCALES", "OUTER_SCALES"),
    "SIGNAL": ("SIGNAL_A", "SIGNAL_P", "SIGNAL_Q"),
}
POINTERS = {
    "VALUES": "*fp64",
    "PLACES": "*i64",
    "WEIGHT_PLACES": "*i64",
    "LEFT": "*i32",
    "RIGHT": "*i32",
}


def formula(loss):
    return kernels.compile_formula(loss.triton_formula.function)


VARIANTS = {
    "plain": ("fp32", formula(L1()), ()),
    "all": (
        "fp32",
        formula(Contaminated(above=0.1)),
        tuple(flag for flag in FLAGS if flag != "WEIGHTED"),
    ),
    "weights of entries": ("fp32", formula(Contaminated()), ("WEIGHTED", "TURNED")),
    "double": ("fp64", formula(Cauchy()), ("GAPS", "SCALED")),
}


def compiled(real: str, loss_formula: object, flags: tuple[str, ...]) -> object:
    names = kernels.pass_kernel.arg_names
    fixed = {flag: flag in flags for flag in FLAGS} | {
        "FORMULA": loss_formula, "real": tl.float32 if real == "fp32" else tl.float64,
        "FAST": real == "fp32", "BI": 32, "BT": 32, "R": 16, "S": 16, "RS": 16,
        "ROWS_BY": 8, "ROW_BY": 8, "INNER_BY": 8, "PLACES_BY": 8, "GRADIENT": True, "GRAM": True,
        "SHRUNK": 1, "STAGES": 2, "tile_stride": 1,
    }  # fmt: skip
    for flag, arrays in BESIDE.items():
        fixed |= dict.fromkeys(arrays) if flag not in flags else {}
    signature = {
        name: "constexpr" if name in fixed
        else POINTERS.get(name, f"*{real}") if name.isupper() else "i32"
        for name in names
    }  # fmt: skip
    places = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(fn=kernels.pass_kernel, signature=signature, constexprs=places, attrs={})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


if __name__ == "__main__":
    for name in sys.argv[1:] or VARIANTS:
        assert "mma" in compiled(*VARIANTS[name]).asm["ptx"], name
        sys.stdout.write(f"{name}\n")
