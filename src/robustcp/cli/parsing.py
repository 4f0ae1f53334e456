"""How command lines are understood: options whose value may be left out, and errors in one line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from robustcp.cli.errors import fail

#: What is wrong with a command line, as Typer tells it.
UsageError = typer.BadParameter.__mro__[1]

#: Options that stand for themselves, or have a value after them; and what they are then.
IMPLIED_VALUES = {"--nonnegative": "all"}


class Command(TyperCommand):
    """A command; what is wrong with its options is told in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = shlex.join([*ctx.command_path.split(), *args])  # as it was given
        try:
            return super().parse_args(ctx, fill_in_values(args))
        except UsageError as error:  # type: ignore[misc]
            _refuse(ctx, error)
            raise


class Group(TyperGroup):
    """All commands; one that is not there is told in one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:  # type: ignore[misc]
            _refuse(ctx, error)
            raise


def _refuse(ctx: Any, error: Any) -> None:
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    if (
        ctx.resilient_parsing or not message
    ):  # a shell that completes, or somebody who asks for help
        return
    fail(f"{message}; see {ctx.command_path} --help")


def fill_in_values(args: list[str]) -> list[str]:
    """Arguments with the values of options that may stand for themselves.

    >>> fill_in_values(["x.npy", "--nonnegative", "--rank", "2"])
    ['x.npy', '--nonnegative=all', '--rank', '2']
    >>> fill_in_values(["x.npy", "--nonnegative", "sample,emission"])
    ['x.npy', '--nonnegative=sample,emission']
    """
    expanded: list[str] = []
    positions = iter(range(len(args)))
    for k in positions:
        argument, next_argument = args[k], args[k + 1] if k + 1 < len(args) else "-"
        if argument == "--":
            return expanded + args[k:]
        if argument not in IMPLIED_VALUES:
            expanded.append(argument)
        elif (
            next_argument.startswith("-") or Path(next_argument).exists()
        ):  # the next option, or the data
            expanded.append(f"{argument}={IMPLIED_VALUES[argument]}")
        else:
            expanded.append(f"{argument}={next_argument}")
            next(positions)
    return expanded
