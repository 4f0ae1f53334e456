"""A study: many fits, done once, and what is made of their results in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from robustcp.persist.writing import Outputs, write_bytes, write_figure
from robustcp.studies.results_file import PAPER_COLUMNS, ResultsFile, Row, Task, run_tasks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".csv", ".png", ".pdf", ".md")

#: Told about each study: its name, how many tasks are done, and of how many.
Progress = Callable[[str, int, int], object]

Extent = TypeVar("Extent")


@dataclass(frozen=True)
class Study(Generic[Extent]):
    """One experiment: what it runs, and how its results are drawn and summarized.

    Attributes
    ----------
    name, title : str
    introduction : str
        What it is about: the first paragraph of the summary.
    tasks : function of the extent of the study that returns the list of tasks
    run_task : function of a Task that returns a Row
    draw : function of all rows that returns a figure
    summary : function of all rows that returns Markdown
    is_timed : bool
        Whether run times are measured, so that tasks must run one at a time.
    columns : sequence of str
        Those of the rows.
    """

    name: str
    title: str
    introduction: str
    tasks: Callable[[Extent], list[Task]]
    run_task: Callable[[Task], Row]
    draw: Callable[[Sequence[Row]], Figure]
    summary: Callable[[Sequence[Row]], str]
    is_timed: bool = False
    columns: Sequence[str] = PAPER_COLUMNS

    @property
    def files(self) -> list[str]:
        """The names of what it writes."""
        return [self.name + suffix for suffix in SUFFIXES]

    def run(
        self, extent: Extent, out: Path, jobs: int | None = None, progress: Progress | None = None
    ) -> list[Row]:
        """Do what is not done yet, and write all results into a folder.

        Parameters
        ----------
        extent : what `tasks` takes
        out : Path
            A folder that exists. An interrupted run goes on from what it holds.
        jobs : int, optional
            How many processes; by default one for each core.
        progress : callable, optional
            Called with the name of the study, how many of its tasks are done, and of how many.
        """
        tasks, finished = self.tasks(extent), 0
        report_progress = progress or (lambda *_: None)
        report_progress(self.name, 0, len(tasks))

        def advance() -> None:
            nonlocal finished
            finished += 1
            report_progress(self.name, finished, len(tasks))

        count = 0 if self.is_timed else jobs or os.cpu_count() or 1
        results = ResultsFile(out / f"{self.name}.csv", self.columns)
        rows = run_tasks(tasks, self.run_task, results, count, advance)
        self._write_results(rows, out)
        return rows

    def _write_results(self, rows: list[Row], out: Path) -> None:
        figure = self.draw(rows)
        write_figure(out / f"{self.name}.png", figure)
        # without a date in it the same results give the same file
        write_figure(out / f"{self.name}.pdf", figure, metadata={"CreationDate": None})
        text = f"# {self.title}\n\n{self.introduction}\n\n"
        text += f"![{self.title}]({self.name}.png)\n\n{self.summary(rows)}"
        write_bytes(out / f"{self.name}.md", text.encode())


def check_folder(out: Path, names: Sequence[str]) -> None:
    """See, before any work, that files with these names can be written into a folder."""
    Outputs(force=True).add_folder("out", out, names)
