"""Errors as the command line tells them: one line each, and an exit code that says which kind."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, ParamSpec

import typer

from robustcp._util.checks import ArgumentError
from robustcp.persist.errors import FileError, WriteError, reason

NOT_CONVERGED = 1
BAD_INPUT = 2
NOT_WRITTEN = 3
NO_MEMORY = 4
STOPPED = 130

P = ParamSpec("P")


def option_name(argument: str) -> str:
    """The option that sets an argument of the library."""
    return "--" + {"rng": "seed"}.get(argument, argument).replace("_", "-")


def explain(error: Exception) -> tuple[str, int]:
    """The line that tells an error, and the exit code."""
    if isinstance(error, FileError):
        return error.message(option_name), NOT_WRITTEN if isinstance(
            error, WriteError
        ) else BAD_INPUT
    if isinstance(error, ArgumentError):
        return f"{option_name(error.argument)}: {error.problem}", BAD_INPUT
    if isinstance(error, MemoryError):
        return f"not enough memory ({reason(error)})", NO_MEMORY
    return str(error), BAD_INPUT


def print_message(message: str) -> None:
    """One line on standard error."""
    with suppress(OSError):
        print(f"robustcp: {message}", file=sys.stderr)


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """One line on standard error, and an exit code."""
    print_message(message)
    raise typer.Exit(code)


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """The command, which ends in one line where the input is bad or the machine refuses."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            try:
                command(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except (ValueError, TypeError, MemoryError) as error:
            fail(*explain(error))
        except KeyboardInterrupt:
            fail("stopped", STOPPED)
        except BrokenPipeError:  # whoever reads the output has seen enough
            _close_output()
            raise typer.Exit(NOT_WRITTEN) from None
        except OSError as error:
            if _is_data_error(error):
                fail(str(error))
            _close_output()
            fail(f"the results cannot be printed ({reason(error)})", NOT_WRITTEN)

    return wrapper


def _is_data_error(error: OSError) -> bool:
    """Whether it is data in chunks that cannot be read, or those who should."""
    from robustcp.engines import ChunkError, SchedulerError

    return isinstance(error, ChunkError | SchedulerError)


def _close_output() -> None:
    """So that the interpreter does not try to print again as it ends."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
