"""Many small tasks, done once: results go to disk as they come, and a rerun goes on from there."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from robustcp.persist.writing import convert_write_errors, write_bytes

#: Which task a row answers; every table begins with them.
KEY_COLUMNS = ("study", "seed", "settings", "method")
#: Columns of any table that do not hold numbers.
TEXT_COLUMNS = ("study", "settings", "method", "converged", "status")
#: The columns of the paper's studies.
PAPER_COLUMNS = (
    *KEY_COLUMNS, "fms", "fms_unweighted", "l1", "sweeps", "seconds", "converged", "status",
    "objective",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One fit of a study: which data, and which method."""

    study: str
    seed: int
    settings: str
    method: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.study, str(self.seed), self.settings, self.method)

    def __getitem__(self, name: str) -> str:
        """One of the settings, which are written 'name=value name=value'."""
        return dict(part.split("=", 1) for part in self.settings.split())[name]


Row = dict[str, str]


def task_of(row: Row) -> Task:
    """The task that a row answers."""
    return Task(row["study"], int(row["seed"]), row["settings"], row["method"])


class ResultsFile:
    """A CSV file of results that survives being killed at any moment.

    Rows are appended and synced one by one; what is half-written is dropped when the file is
    read again. When all is done the rows are put into the order of the tasks, so that the file
    does not depend on interruptions or on how many processes worked.

    Parameters
    ----------
    path : Path
    columns : sequence of str
        `KEY_COLUMNS`, and what else is known of each task: numbers, but for those among
        `TEXT_COLUMNS`.
    """

    def __init__(self, path: Path, columns: Sequence[str] = PAPER_COLUMNS) -> None:
        self.path = path
        self.columns = tuple(columns)

    def load(self) -> dict[tuple[str, ...], Row]:
        """All whole rows; a damaged file is mended."""
        if not self.path.exists():
            return {}
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        *lines, partial_line = text.split("\n")
        parsed = [self._parse_row(line) for line in lines[1:]]
        rows = {task_of(row).key: row for row in parsed if row}
        if partial_line or None in parsed or not lines or lines[0] != ",".join(self.columns):
            self._write_rows(list(rows.values()))
        return rows

    def append(self, row: Row) -> None:
        """One more row, on disk when this returns."""
        is_new = not self.path.exists() or self.path.stat().st_size == 0
        text = (self._header if is_new else "") + self._format_row(row)
        with convert_write_errors(self.path):
            try:
                self._append_bytes(text.encode())
            except OSError:
                if is_new:
                    self.path.unlink(missing_ok=True)  # no row was kept
                raise

    def _append_bytes(self, data: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            remaining = memoryview(data)
            while remaining:  # a disk that is nearly full takes a part
                remaining = remaining[file.write(remaining) :]
            os.fsync(file.fileno())

    def finish(self, tasks: Sequence[Task]) -> list[Row]:
        """The rows of the tasks, in their order; in the file the rows of others follow."""
        rows = self.load()
        ordered = [rows.pop(task.key) for task in tasks]
        others = sorted(rows.values(), key=lambda r: (r["settings"], int(r["seed"]), r["method"]))
        self._write_rows([*ordered, *others])
        return ordered

    @property
    def _header(self) -> str:
        return ",".join(self.columns) + "\n"

    def _write_rows(self, rows: Sequence[Row]) -> None:
        write_bytes(self.path, (self._header + "".join(map(self._format_row, rows))).encode())

    def _format_row(self, row: Row) -> str:
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerow([row[name] for name in self.columns])
        return stream.getvalue()

    def _parse_row(self, line: str) -> Row | None:
        """A row, or None if the line is not a whole one."""
        cells = next(csv.reader([line]), [])
        if len(cells) != len(self.columns):
            return None
        row = dict(zip(self.columns, cells, strict=True))
        try:
            int(row["seed"])
            for name in self.columns:
                if name not in TEXT_COLUMNS:
                    float(row[name])
        except ValueError:
            return None
        return row if row["converged"] in ("True", "False") else None


def settings_conflict(path: Path, settings: dict[str, Any]) -> str | None:
    """Remember the settings of a folder; if it holds others, say which."""
    if path.exists():
        try:
            saved = json.loads(path.read_text())
        except (OSError, ValueError):
            saved = {}
        conflicts = [k for k in settings if saved.get(k, settings[k]) != settings[k]]
        if conflicts:
            return ", ".join(f"{k} = {saved[k]}, not {settings[k]}" for k in conflicts)
        settings = {**saved, **settings}
    write_bytes(path, (json.dumps(settings, indent=1) + "\n").encode())
    return None


def run_tasks(
    tasks: Sequence[Task],
    run_task: Callable[[Task], Row],
    results: ResultsFile,
    jobs: int,
    advance: Callable[[], None],
) -> list[Row]:
    """Do the tasks that the ledger does not hold yet, in some processes; 0 jobs: in this one."""
    finished = results.load()
    pending = [task for task in tasks if task.key not in finished]
    for _ in range(len(tasks) - len(pending)):
        advance()
    if jobs == 0 or not pending:
        for task in pending:
            results.append(run_task(task))
            advance()
        return results.finish(tasks)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare_worker, (os.getpid(),))
    try:
        for future in as_completed([pool.submit(run_task, task) for task in pending]):
            results.append(future.result())
            advance()
    except BrokenProcessPool:
        raise MemoryError("a process was killed, as happens where memory runs out") from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in (pool._processes or {}).values():
            process.terminate()
        raise
    pool.shutdown()
    return results.finish(tasks)


def _prepare_worker(parent: int) -> None:
    """A worker: one BLAS thread, deaf to Ctrl-C (the parent ends it), gone with its parent."""
    from threadpoolctl import threadpool_limits

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
