"""Fits by the robustcp of any source tree: a process that is told what to fit, line by line.

It is started with that tree's `src` on PYTHONPATH; see trees.py. A line holds the path of the
data, the method, the rank and other arguments, and the answer is the seconds that it took.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from functools import lru_cache
from typing import Any

import numpy as np

import robustcp
from problems import as_data


@lru_cache
def tensors(path: str) -> Any:
    with np.load(path) as arrays:
        return as_data(dict(arrays))


def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(json.dumps({"tree": robustcp.__file__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        data, fit = tensors(asked["data"]), getattr(robustcp, asked["method"])
        begin = time.perf_counter()
        for X in data:
            fit(X, asked["rank"], **asked["options"])
        took = time.perf_counter() - begin
        print(json.dumps({"seconds": took / len(data)}), flush=True)


if __name__ == "__main__":
    main()
