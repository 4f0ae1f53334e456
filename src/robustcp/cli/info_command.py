"""`robustcp info`: what there is to know of a file before a fit."""

from __future__ import annotations

import shlex

import typer

from robustcp.cli.compute_options import ComputeResources
from robustcp.cli.options import AsJson, TensorFile
from robustcp.cli.printing import print_json, print_lines
from robustcp.cli.read_options import Source


def info(ctx: typer.Context, file: TensorFile, *, source: Source, as_json: AsJson = False) -> None:
    """Say what is in a file, what to look out for, and with which options.

    Shape and names; missing entries, zeros and fill values; slabs whose sizes differ 100-fold;
    fibres that never vary; gross outliers; ceilings.

    Example: robustcp info log.csv --modes sensor,hour,day --value value --absent missing
    """
    from robustcp.io.inspection import inspect

    inspection = inspect(ComputeResources().read(source))
    if as_json:
        print_json({"file": str(file), **inspection.as_dict()})
        return
    print_lines(inspection.lines())
    command = shlex.split(ctx.obj)
    print(f"next: robustcp rank {shlex.join(command[command.index('info') + 1 :])}")
