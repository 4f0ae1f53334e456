# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""How functions are compiled by Numba, and kept on disk.

Compiling takes longer than many a fit. So what most fits need is C functions of integers, addresses
and structs (see `c_function`): each is compiled once for a type of factors, for all losses, types
of data, weights and scales, and calls the others by their addresses. If it called them by name,
they would be compiled again as a part of it. Pointers take less code than arrays, where each slice
and each new array is slow to compile; an assignment to a slice would even compile the message for
shapes that do not agree.
"""

import ctypes
import gc
import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import event
from numba.core.caching import FunctionCache, NullCache
from numba.core.ccallback import CFunc
from numba.core.errors import NumbaError
from numba.np.numpy_support import from_dtype

from robustcp._util.progress import log_notice
from robustcp.losses import numba_helpers
from robustcp.losses.numba_helpers import FAST_MATH, OPTIONS

LOG = logging.getLogger(__name__)

# Compilation, and the notice of it

#: The functions that had to be compiled in this process.
COMPILED_NAMES: list[str] = []
_COMPILING_MESSAGE = (
    "robustcp compiles code for this machine, which takes some seconds; %s "
    "(ahead of time: python -m robustcp.warm)"
)


def _report_compiling(name, folder):
    """Log the first compilation of the process, as a warning: a lower level would not be shown.

    It is no Python warning, which some people turn into an error: nothing is wrong.
    """
    if not COMPILED_NAMES:
        location = f"it is kept in {folder}" if folder else "there is no folder to keep it in"
        log_notice(LOG, _COMPILING_MESSAGE, location)
    COMPILED_NAMES.append(name)


_compile_clock = event.TimingListener()
event.register("numba:compiler_lock", _compile_clock)


def compile_seconds():
    """How long Numba has compiled in this process."""
    return _compile_clock.duration if _compile_clock.done else 0.0


# Compiled code on disk


class _CacheLocation(FunctionCache._impl_class):  # type: ignore[misc]
    """The user's cache folder; not the package's own, which pip removes."""

    _locator_classes = [  # noqa: RUF012
        locator
        for locator in FunctionCache._impl_class._locator_classes
        if not locator.__name__.strip("_").startswith("InTree")
    ]


@cache
def _kernel_files():
    """The files that any compiled function may have code of."""
    return [*sorted(Path(__file__).parent.glob("*.py")), Path(numba_helpers.__file__)]


class _DiskCache(FunctionCache):  # type: ignore[misc]
    """Compiled code on disk; a damaged file is emptied and written anew, not an error.

    A function is compiled again when a file of this folder, or one of its further sources, changed.
    """

    _impl_class = _CacheLocation

    def __init__(self, function, sources=()):
        super().__init__(function)
        files = map(os.stat, (*_kernel_files(), *sources))
        stamps = [(file.st_mtime, file.st_size) for file in files]
        self._cache_file._source_stamp = (self._cache_file._source_stamp, *stamps)

    def load_overload(self, sig, target_context):
        overload = None
        try:
            overload = super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling a damaged file raises
            with suppress(Exception):
                self.flush()
        if overload is None:
            _report_compiling(self._py_func.__qualname__, self.cache_path)
        return overload

    def save_overload(self, sig, data):
        with suppress(Exception):  # a full or read-only disk
            super().save_overload(sig, data)


class _NoCache(NullCache):  # type: ignore[misc]
    """In place of a `_DiskCache` where no folder can be written to."""

    def __init__(self, function):
        self._name = function.__qualname__

    def load_overload(self, sig, target_context):
        _report_compiling(self._name, None)


def _add_cache(compiled, function, sources=()):
    """Keep a compiled function on disk where a folder can be written to; returns it."""
    compiled._cache = _NoCache(function)
    with suppress(RuntimeError, OSError, NumbaError):
        compiled._cache = _DiskCache(function, sources)
    return compiled


def cache_folder():
    """The folder in which compiled code is kept; None if none can be written to."""
    with suppress(RuntimeError, OSError, NumbaError):
        return _DiskCache(cache_folder).cache_path
    return None


# Functions of arrays, and parts of compiled functions


def _ignore_literal_types(dispatcher):
    """Let a function be compiled for types only, not for each number written in a call of it."""
    resolve = dispatcher.get_call_template

    def resolve_unliteral(arguments, named):
        named = {name: types.unliteral(kind) for name, kind in named.items()}
        return resolve(tuple(map(types.unliteral, arguments)), named)

    dispatcher.get_call_template = resolve_unliteral
    return dispatcher


def cached_jit(function):
    """A function compiled for the types that it is called with; without Python's lock, on disk."""
    dispatcher = njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)(function)
    return _ignore_literal_types(_add_cache(dispatcher, function))


def internal_jit(function):
    """A function that only compiled code calls."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _ignore_literal_types(njit(**wrappers, **OPTIONS)(function))


# C functions


class Struct(ctypes.Structure):
    """Integers and addresses that belong together; compiled code reads them as a record.

    Attributes
    ----------
    arrays : tuple
        What the addresses point into, to be held as long as they are used.
    """

    arrays: Any = ()


def integer_fields(names):
    """Fields of a struct that are integers or addresses, by their names in one string."""
    return [(name, ctypes.c_int64) for name in names.split()]


@dataclass(frozen=True)
class CompiledFunction:
    """A compiled C function, which returns a float.

    Attributes
    ----------
    address : int
    run : function
        Calls it from Python, with integers for pointers.
    """

    address: int
    run: Any


#: Numba's and C's types of arguments.
INT = types.intp, ctypes.c_int64
INTS = types.CPointer(types.intp), ctypes.c_int64
FLOATS = types.CPointer(types.float64), ctypes.c_int64
#: A pointer to numbers of the type of the factors.
REALS = None


def _argument_types(kind, real):
    """Numba's and C's type of an argument."""
    if isinstance(kind, tuple):
        return kind
    if isinstance(kind, type) and issubclass(kind, Struct):
        return from_dtype(np.dtype(kind)), ctypes.POINTER(kind)
    return types.CPointer(from_dtype(np.dtype(kind or real))), ctypes.c_int64


#: All C functions that were compiled: their addresses do not keep them from being freed.
_loaded_functions: list[CFunc] = []


@contextmanager
def _paused_garbage_collection():
    """Compiling makes many objects that stay: to look among them for garbage takes a while."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def compile_c_function(function, kinds, real=None, *, sources=(), fastmath=FAST_MATH):
    """A function of arguments of some kinds, compiled, and kept on disk.

    Kinds are as for `c_function`, or the type of the numbers that a pointer points to.
    """
    numba_types, c_types = zip(*(_argument_types(kind, real) for kind in kinds), strict=True)
    options = {**OPTIONS, "fastmath": fastmath}
    compiled = CFunc(function, (numba_types, types.float64), {}, options)
    _add_cache(compiled, function, sources)
    with _paused_garbage_collection():
        compiled.compile()
    _loaded_functions.append(compiled)
    address: Any = compiled.address
    return CompiledFunction(address, ctypes.CFUNCTYPE(ctypes.c_double, *c_types)(address))


#: What `c_function` made, each with whether it takes the type of factors.
C_FUNCTIONS: list[tuple[Any, bool]] = []


def c_function(*kinds, fastmath=FAST_MATH):
    """Decorate a function of arguments of some kinds, to be compiled when it is first needed.

    The name then stands for a function of the type of the factors (of nothing, if no argument
    depends on that type) that returns a `CompiledFunction`. Kinds are `INT`, `INTS`, `FLOATS`,
    `REALS` and subclasses of `Struct`.
    """

    def decorate(function):
        @cache
        @wraps(function)
        def compiled(real=None):
            return compile_c_function(function, kinds, real, fastmath=fastmath)

        C_FUNCTIONS.append((compiled, REALS in kinds))
        return compiled

    return decorate


_address_of, _byte_of = ctypes.addressof, ctypes.c_char.from_buffer


def address(array):
    """Where the memory of an array begins, as `array.ctypes.data` in a quarter of the time.

    0 for an empty one.
    """
    try:
        return _address_of(_byte_of(array)) if array.size else 0
    except (TypeError, ValueError):  # read-only
        return array.ctypes.data
