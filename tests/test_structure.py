"""The structure of the source: imports, output, and tests of data types.

Exceptions are listed here, and the lists are exact: a test fails for a new exception, and also for
a listed one that is gone, until its line is removed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import robustcp

ROOT = Path(robustcp.__file__).parent

#: Layers, lowest first. A module may import from lower layers and, without cycles, from its own.
#: Names are modules or packages of robustcp, the longest that a module's name begins with counts;
#: `__init__` is robustcp itself. The packages of the first line hold modules of several layers.
LAYERS = (
    ("_util", "persist", "model", "optimize", "starts", "results", "inference"),
    ("persist.errors", "persist.writing", "optimize.outcome"),
    ("losses", "engines.normal_equations"),
    ("engines",),
    ("persist.codec", "persist.labels", "persist.earlier_checkpoints"),
    ("model.kruskal", "model.metrics", "results.minimum_covariance",
     "results.runs"),
    ("plot",),
    ("noise", "optimize.units", "optimize.problem", "constraints"),
    ("optimize.row_prior", "optimize.posterior", "starts.settings", "starts.candidates"),
    ("optimize.objective", "optimize.updates", "optimize.acceleration"),
    ("optimize.schedules", "optimize.solver", "optimize.stages", "starts.search_log"),
    ("optimize.posterior_means",),
    ("results.diagnostics",),
    ("preprocess",),
    ("starts.criterion", "starts.subsamples"),
    ("starts.start", "starts.random", "starts.svd", "starts.spectral", "starts.initial_factors"),
    ("starts.loose_fits",),
    ("starts.proposals", "starts.component_search"),
    ("starts.choice_of_starts",),
    ("starts.multistart", "starts.cases"),
    ("starts.fit_plan",),
    ("inference.parallel",),
    ("inference.covariance", "optimize.regression", "results.outliers", "results.distances",
     "results.summary", "inference.uncertainty"),
    ("results.imputation",),
    ("persist.formats", "report"),
    ("results.fit", "results.view"),
    ("persist.checkpoint",),
    ("estimators",),
    ("baselines",),
    ("model.simulation", "persist.fits"),
    ("io",),
    ("inference.batch",),
    ("inference.core_consistency", "inference.rank_path", "inference.rank_checkpoint",
     "inference.ensemble", "inference.replicability", "inference.rank_profile"),
    ("eem", "sklearn", "tensorly"),
    ("__init__",),
    ("studies", "apps"),
    ("cli", "__main__", "warm"),
)  # fmt: skip

#: (module, what it imports from a higher layer)
UPWARD: set[tuple[str, str]] = set()

#: Types of data, which only `engines` tells apart.
DATA_TYPES = {
    "DataArray", "DenseEngine", "Engine", "MaskedArray", "Observed", "ObservedEngine", "Tensor",
    "ndarray",
}  # fmt: skip
#: Attributes that tell arrays from other objects.
ARRAY_ATTRIBUTES = {"__array__", "__array_namespace__", "__dlpack__", "dtype", "ndim", "shape"}
#: Functions such as array_api_compat.is_torch_array.
ARRAY_TEST = re.compile(r"is_(\w+_array|array_api_obj|\w+_namespace)|isMaskedArray|isMA|is_masked")

#: (module, the test)
TYPE_TESTS = {
    ("io.reading", "isinstance(value, np.ndarray)"),  # arrays among the contents of a MATLAB file
}


# Modules and their imports


def name_of(path: Path) -> str:
    """The name of a file's module within robustcp, such as engines.dense."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from running(other)
        else:
            yield from running(child)


def module_named(dotted: str) -> str:
    """The module of robustcp that holds a name such as robustcp.engines.Observed."""
    parts = dotted.split(".")[1:]
    while parts and ".".join(parts) not in FILES:
        parts.pop()
    return ".".join(parts) or "__init__"


def imported_names(module: str) -> Iterator[str]:
    """The dotted names that a module imports, at its top or inside functions."""
    is_package = FILES[module].name == "__init__.py"
    own = ["robustcp", *([] if module == "__init__" else module.split("."))]
    package = own if is_package else own[:-1]
    for node in running(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant))


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of robustcp that a module imports."""
    names = [n for n in imported_names(module) if n.split(".")[0] == "robustcp"]
    return frozenset(map(module_named, names)) - {module}


def layer(module: str) -> int:
    parts = module.split(".")
    prefixes = [".".join(parts[:k]) for k in range(len(parts), 0, -1)]
    known = {name: k for k, names in enumerate(LAYERS) for name in names}
    return next(known[prefix] for prefix in prefixes if prefix in known)


def upward_imports() -> set[tuple[str, str]]:
    return {(a, b) for a in FILES for b in imports(a) if layer(b) > layer(a)}


def test_every_module_has_one_layer():
    named = [name for names in LAYERS for name in names]
    assert len(set(named)) == len(named)
    mixed = set(LAYERS[0]) - {"_util"}  # these hold modules of several layers, each of them named
    assert all(layer(module) > 0 for module in FILES if module.split(".")[0] in mixed - {module})


def test_a_newcomer_sees_at_most_27_entries():
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__"}
    assert len(entries) <= 27, sorted(entries)


def test_imports_point_downward():
    assert upward_imports() == UPWARD


def test_imports_have_no_cycle():
    graph = {a: {b for b in imports(a) if (a, b) not in UPWARD} for a in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# Names


#: Words that classes, functions and modules once had, and that no reader knew.
PRIVATE_WORDS = {
    "Aim", "Asked", "Begun", "Beside", "Chain", "Climbs", "Cold", "Core", "End", "EvenedOut",
    "Given", "Held", "Journal", "Judged", "Known", "Narrow", "Notes", "OnPart", "Pace",
    "Recorded", "Redescent", "Rung", "Screened", "Step", "Told", "Trend", "Way", "agreeing",
    "ahead", "asked", "asking", "at_hand", "begun", "births", "chosen", "cleared", "climbs",
    "clips", "core", "doubts", "fall", "found", "fused", "idle", "journal", "judged", "keeping",
    "kept", "ladder", "leap", "listed", "look", "nothing", "pages", "places", "settled",
    "stuck", "studying", "tame", "telling", "told", "trusting", "wild",
}  # fmt: skip


def test_names_are_words_of_the_field():
    named = {
        node.name.lstrip("_")
        for module in FILES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    parts = {part for module in FILES for part in module.split(".")}
    assert (named | parts) & PRIVATE_WORDS == set()


#: Packages of algorithms, whose constants are fields of settings or lines of their own.
ALGORITHMS = ("estimators", "inference", "model", "noise", "optimize", "results", "starts")


def test_each_constant_of_an_algorithm_has_a_sentence_of_its_own():
    for module, path in FILES.items():
        if module.split(".")[0] not in ALGORITHMS:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in tree(module).body:
            assert not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)), (
                f"{module}: {ast.unparse(node)}"
            )
            if not (isinstance(node, ast.ClassDef) and node.name.endswith("Settings")):
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    comment = lines[field.lineno - 2].strip()
                    assert comment.startswith("#:"), f"{module}: {ast.unparse(field)}"


def test_lines_that_the_formatter_skips_are_tables_of_data():
    tables = (ast.Assign, ast.AnnAssign)
    for module, path in FILES.items():
        lines = path.read_text(encoding="utf-8").splitlines()
        bodies = [
            tree(module).body,
            *(n.body for n in tree(module).body if type(n) is ast.ClassDef),
        ]
        spans = [(n.lineno, n.end_lineno) for body in bodies for n in body if isinstance(n, tables)]
        for number, line in enumerate(lines, 1):
            if line.endswith("# fmt: skip"):
                assert any(first <= number <= last for first, last in spans), f"{module}:{number}"


# What the package shows


def test_dir_is_the_public_api():
    shown = [name for name in dir(robustcp) if not (name[:2] == name[-2:] == "__")]
    assert shown == sorted(robustcp.__all__)


def test_only_the_command_line_prints():
    printing = [
        f"{module}:{node.lineno}"
        for module in FILES
        if layer(module) < layer("cli")
        for node in ast.walk(tree(module))
        if (isinstance(node, ast.Call) and ast.unparse(node.func) == "print")
        or (isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"))
    ]
    assert printing == []


# Types of data


def last_names(node: ast.AST) -> set[str]:
    """The names in an expression, without what they are attributes of: ndarray for np.ndarray."""
    return {n.attr if isinstance(n, ast.Attribute) else n.id for n in ast.walk(node)
            if isinstance(n, ast.Attribute | ast.Name)}  # fmt: skip


def is_type_test(node: ast.AST) -> bool:
    """Whether an expression asks which type some data has."""
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func).split(".")[-1]
        if function in ("isinstance", "issubclass"):
            return bool(last_names(node.args[1]) & DATA_TYPES)
        if function == "hasattr":
            return getattr(node.args[1], "value", None) in ARRAY_ATTRIBUTES
        return bool(ARRAY_TEST.fullmatch(function))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        asks = any(isinstance(s, ast.Call) and ast.unparse(s.func) == "type" for s in sides)
        return asks and any(last_names(side) & DATA_TYPES for side in sides)
    if isinstance(node, ast.Attribute) and node.attr in ("__module__", "__class__"):
        return True
    if isinstance(node, ast.MatchClass):
        return bool(last_names(node.cls) & DATA_TYPES)
    return False


def type_tests() -> set[tuple[str, str]]:
    return {
        (module, ast.unparse(node))
        for module in FILES
        if module.split(".")[0] != "engines"
        for node in ast.walk(tree(module))
        if is_type_test(node)
    }


def test_only_engines_look_at_types_of_data():
    assert type_tests() == TYPE_TESTS


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("isinstance(x, np.ndarray)", True),
        ("isinstance(x, str | np.ma.MaskedArray)", True),
        ("isinstance(x, (list, Observed))", True),
        ("array_api_compat.is_torch_array(x)", True),
        ("type(x) is Observed", True),
        ("type(x).__module__ == 'xarray'", True),
        ("hasattr(x, 'ndim')", True),
        ("isinstance(x, str | list)", False),
        ("isinstance(observed, Sequence)", False),
        ("type(x).__name__", False),
        ("hasattr(x, 'rejects')", False),
    ],
)
def test_what_counts_as_a_type_test(code, expected):
    assert any(map(is_type_test, ast.walk(ast.parse(code)))) is expected


def test_public_names_are_imported_when_used():
    """The names that type checkers see are those of the table, and `import robustcp` is cheap."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    static = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module not in ("robustcp", "robustcp.sklearn")
        for alias in node.names
    }
    assert static == robustcp._MODULE_OF
    assert set(static) | {"baselines", "eem", "plot", "RobustCP"} >= set(robustcp.__all__)
    code = "import sys, robustcp; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
