# ruff: noqa: F401
"""What Numba compiles: passes, sweeps, small linear algebra, and estimates of the noise.

Code that may run without Numba gets this package from `robustcp.engines.installed`.
"""

from robustcp.engines.passes.numba.coordinates import (
    Cut,
    EntryAddresses,
    EntryOrder,
    LineCalls,
    coordinate_pass,
)
from robustcp.engines.passes.numba.intrinsics import gemm
from robustcp.engines.passes.numba.least_squares import (
    LeastSquaresData,
    collapse_lines,
    contract_columns,
    contract_rows,
    least_squares_sweep,
)
from robustcp.engines.passes.numba.lines import (
    formula_line,
    line_preparation,
    line_restoration,
    residuals,
)
from robustcp.engines.passes.numba.noise import contaminated_scale_rounds, main_effects
from robustcp.engines.passes.numba.posterior import (
    PosteriorEntries,
    PosteriorTurns,
    posterior_sweeps,
)
from robustcp.engines.passes.numba.runtime import (
    C_FUNCTIONS,
    COMPILED_NAMES,
    address,
    cache_folder,
    compile_seconds,
)
from robustcp.engines.passes.numba.scales import inverse_scales
from robustcp.engines.passes.numba.solves import (
    column_norms,
    joint_step,
    solve_nonnegative_rows,
    solve_rows,
)
from robustcp.engines.passes.numba.sweeps import (
    Run,
    SweepData,
    Turns,
    formula_sweep,
    penalty,
    run_sweeps,
)
from robustcp.engines.passes.numba.tiles import Entries, Functions, Tile, tile_pass
