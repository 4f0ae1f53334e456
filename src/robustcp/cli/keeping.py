"""Checkpoints of commands: the same command goes on, and may write its own files again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robustcp.files.writing import Outputs

if TYPE_CHECKING:
    from robustcp.checkpoints import Checkpoint


@dataclass(frozen=True)
class Checkpointed:
    """A checkpoint that a command is given, and what it says of an earlier run of the command."""

    path: Path | None
    every: float
    #: Files of the earlier run, which may be replaced.
    outputs: tuple[str, ...] = ()

    @classmethod
    def at(
        cls, path: Path | None, *inputs: Path | None, every: float = 0.0, title: str | None = None
    ) -> Checkpointed:
        """That of a path: refused, before any work, if it is something else, such as an input."""
        from robustcp.checkpoints import TITLE, Content

        if path is None:
            return cls(path, every)
        Outputs(*inputs).add("checkpoint", path, replaced=True)
        content = Content.of(path, title or TITLE)
        return cls(path, every, tuple(content.outputs) if content else ())

    def checkpoint(self, outputs: Outputs) -> Checkpoint | None:
        """What the library takes, with the files that the command writes."""
        from robustcp.checkpoints import Checkpoint

        if self.path is None:
            return None
        names = outputs.names
        outputs.add("checkpoint", self.path, replaced=True)
        return Checkpoint(self.path, self.every, names)
