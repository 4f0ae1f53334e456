"""The tensor of a command: how its file is read, and checks of other options by it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustcp.cli.errors import fail

if TYPE_CHECKING:
    from robustcp.io.reading import Loaded


Key = Annotated[str | None, typer.Option(help="Which array of a file that holds several.")]
Absent = Annotated[
    str | None,
    typer.Option(help="In .tns files and tables: what is not listed is 'missing' or 'zero'."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--modes",
        metavar="A,B,...",
        help="Names for the modes; in long tables, the columns of the modes, by name or position.",
    ),
]
Value = Annotated[
    str | None, typer.Option("--value", metavar="COLUMN", help="In tables: the column of values.")
]
Stack = Annotated[
    bool,
    typer.Option(
        "--stack", help="Tables are matrices, one in a file or in each sheet: stack them."
    ),
]
Missing = Annotated[
    list[float] | None,
    typer.Option(
        "--missing",
        metavar="VALUE",
        help="A value that stands for missing entries, such as 0 or -999; may be repeated.",
    ),
]
Selection = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="MODE=LOW:HIGH",
        help="Take a part of a mode, by its labels or, if it has none, by positions: "
        "emission=250:450 or sensor=5,7; may be repeated for other modes.",
    ),
]


@dataclass(frozen=True)
class Source:
    """A file and the options that say which tensor is in it.

    A parameter `source` of a command stands for these options on the command line, see
    `with_source_options`. It has their values and the command's `file`.
    """

    file: Path
    key: Key = None
    absent: Absent = None
    columns: Columns = None
    value: Value = None
    stack: Stack = False
    missing: Missing = None
    select: Selection = None


def with_source_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `source` is replaced by the options of a `Source`."""
    signature = inspect.signature(command, eval_str=True)
    if "source" not in signature.parameters:
        return command
    options = [
        parameter
        for name, parameter in inspect.signature(Source, eval_str=True).parameters.items()
        if name != "file"
    ]

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        values = {option.name: arguments.pop(option.name) for option in options}
        command(source=Source(arguments["file"], **values), **arguments)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += options if parameter.name == "source" else [parameter]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    vars(wrapper)["__signature__"] = signature.replace(parameters=parameters)
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def read_tensor(source: Source, *, lazy: bool = False) -> Loaded:
    """The tensor in a file; entries are read when they are needed if `lazy` and if possible."""
    from robustcp.io.reading import read

    if source.absent not in (None, "missing", "zero"):
        fail(f"--absent {source.absent}: must be missing or zero")
    columns = source.columns
    modes = None if columns is None else [part.strip() for part in columns.split(",")]
    return read(
        source.file,
        key=source.key,
        absent=source.absent,
        modes=modes,
        value=source.value,
        stack=source.stack,
        missing=source.missing or (),
        select=_parse_selections(source.select or ()),
        lazy=lazy,
    )


def _parse_selections(texts: Sequence[str]) -> dict[int | str, str]:
    """What `--select` says of each mode."""
    ranges: dict[int | str, str] = {}
    for text in texts:
        name, separator, part = text.partition("=")
        if not separator or not name or not part:
            fail(f"--select {text}: must be MODE=LOW:HIGH, as in emission=250:450")
        mode = int(name) if _is_number(name) else name
        if mode in ranges:
            fail(f"--select {text}: {name} is given twice; separate indices by commas")
        ranges[mode] = part
    return ranges


def noise_file(text: str | None) -> Path | None:
    """The file that `--noise` names, if it is one; kinds of noise have no suffix."""
    return Path(text) if text and Path(text).suffix else None


def read_noise(text: str, loaded: Loaded) -> Any:
    """What `--noise` says of the noise, as the library takes it."""
    from robustcp.io.image_masks import read_deviations
    from robustcp.noise.spec import KIND_NAMES

    if text in (*KIND_NAMES, *loaded.modes):
        return text
    items = [part.strip() for part in text.split(",")]
    if all(part in loaded.modes or _is_number(part) for part in items):
        return [part if part in loaded.modes else int(part) for part in items]
    with suppress(ValueError):
        return float(text)  # one standard deviation for all
    file = noise_file(text)
    if file is None:
        choices = ", ".join((*KIND_NAMES, *loaded.modes))
        fail(f"--noise {text}: must be one of {choices}, numbers of modes, or a file")
    return read_deviations(file, loaded)


def read_cases(text: str, loaded: Loaded) -> Any:
    """What `--cases` says of samples, as the library takes it."""
    from robustcp.starts.cases import Cases

    mode, separator, share = (text, "", "") if text in loaded.modes else text.rpartition("=")
    if not separator:
        mode, share = text, ""
    if mode not in loaded.modes and not _is_number(mode):
        fail(f"--cases {text}: must be one of {', '.join(loaded.modes)}, or the number of a mode")
    mode_key = int(mode) if mode not in loaded.modes else mode
    try:
        return Cases(mode_key, float(share)) if share else Cases(mode_key)
    except ValueError:
        fail(f"--cases {text}: the share must be a number from 0 to 0.4")


def read_mode(text: str, modes: Sequence[str]) -> int | str:
    """A mode by number or name, as the library takes it."""
    return int(text) if text not in modes and _is_number(text) else text


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit()


def check_rank(rank: int, loaded: Loaded) -> None:
    """A rank beyond what any tensor of this shape could need is a slip."""
    shape = loaded.data.shape
    if rank < 1:
        fail(f"--rank {rank}: must be at least 1")
    max_rank = math.prod(shape) // max(shape)
    if rank > max_rank:
        fail(f"--rank {rank}: a tensor of {'x'.join(map(str, shape))} has at most rank {max_rank}")
