"""What Triton compiles for a GPU: the pass over a dense array, and small linear algebra.

Code that may run without Triton gets this package from `robustcp.engines.installed`.
"""

# ruff: noqa: F401
from robustcp.engines.passes.triton.dense_pass import (
    Data,
    EntryScales,
    EntryWeights,
    Factors,
    Inputs,
    Layout,
    Sums,
    pass_kernel,
)
from robustcp.engines.passes.triton.matrices import khatri_rao_rows
from robustcp.engines.passes.triton.runtime import (
    MAX_RANK,
    TRITON_TYPES,
    block_size,
    compile_formula,
    is_interpreted,
    on_device,
)
from robustcp.engines.passes.triton.solves import solve_rows
