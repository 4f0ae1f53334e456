"""Checkpoints of commands: the same command goes on, and may write its own files again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from robustcp.persist.writing import Outputs

if TYPE_CHECKING:
    from robustcp.persist.checkpoint import Checkpoint


@dataclass(frozen=True)
class CheckpointOption:
    """A checkpoint that a command is given, and what it says of an earlier run of the command."""

    path: Path | None
    every: float
    #: Files of the earlier run, which may be replaced.
    earlier_outputs: tuple[str, ...] = ()

    @classmethod
    def from_path(
        cls, path: Path | None, *inputs: Path | None, every: float = 0.0
    ) -> CheckpointOption:
        """The option for a path; refused if that is an input, or a file of something else."""
        from robustcp.persist.checkpoint import CheckpointContent

        if path is None:
            return cls(path, every)
        Outputs(*inputs).add("checkpoint", path, may_exist=True)
        content = CheckpointContent.read(path)
        return cls(path, every, content.outputs if content else ())

    def checkpoint(self, outputs: Outputs) -> Checkpoint | None:
        """What the library takes, with the files that the command writes."""
        from robustcp.persist.checkpoint import Checkpoint

        if self.path is None:
            return None
        names = outputs.full_paths
        outputs.add("checkpoint", self.path, may_exist=True)
        return Checkpoint(self.path, self.every, names)
