"""Error messages of the command line: one line each, and an exit code for each kind of error."""

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
    """The message of an error in one line, and its exit code."""
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
    """Print one line on standard error."""
    with suppress(OSError):
        print(f"robustcp: {message}", file=sys.stderr)


def fail(message: str, code: int = BAD_INPUT) -> NoReturn:
    """Print one line on standard error and exit with a code."""
    print_message(message)
    raise typer.Exit(code)


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command: its errors end it with a message of one line and an exit code."""

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
    """Whether data in chunks, or the scheduler that should read them, caused the error."""
    from robustcp.engines import ChunkError, SchedulerError

    return isinstance(error, ChunkError | SchedulerError)


def _close_output() -> None:
    """Discard further output, so that the interpreter does not fail to flush it at its end."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
