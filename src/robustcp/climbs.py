"""The climbs of a rank profile that are done, in a file: the same call does only the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robustcp.checkpoints import Asked, compare, named, unusable, versions, warn_of
from robustcp.engines import to_host
from robustcp.files.errors import WriteError
from robustcp.files.records import Vocabulary, write_record
from robustcp.files.writing import whole
from robustcp.kruskal import KruskalTensor
from robustcp.ladder import Rung

LOG = logging.getLogger(__name__)

TITLE = "robustcp rank profile 1"
Climbed = Mapping[int, Rung]


class Climbs:
    """The climbs that are done, by number.

    Parameters
    ----------
    asked : Asked, optional
        The file, and what the profile was asked with; without it nothing is kept.
    total : int
        How many there will be.
    """

    def __init__(self, asked: Asked | None, total: int) -> None:
        self._asked, self.done = asked, dict[int, Climbed]()
        if asked is None:
            return
        self._options = named(Vocabulary(), asked.options)
        content = asked.content
        if content is None:
            return
        compare(asked.path, content.options, self._options)
        if content.about.get("versions") != versions():
            LOG.warning("%s is of other versions: it is not used", asked.path)
            return
        with unusable(asked.path):
            for number, rungs in content.about["climbs"].items():
                self.done[int(number)] = _restored(rungs, content.arrays)
        LOG.info(
            "goes on from %s, written %s: %d of %d climbs are done",
            asked.path, content.written, len(self.done), total, extra={"begins": True},
        )  # fmt: skip

    def add(self, number: int, climbed: Climbed) -> None:
        """One more, which is written at once: each takes long."""
        self.done[number] = climbed
        if self._asked is None:
            return
        arrays: list[np.ndarray] = []
        about = {
            "written": time.time(),
            "outputs": list(self._asked.checkpoint.outputs),
            "versions": versions(),
            "options": self._options,
            "climbs": {number: _described(one, arrays) for number, one in self.done.items()},
        }
        path = Path(self._asked.path)
        try:
            with whole(path) as file:
                write_record(file, TITLE, about, arrays)
        except WriteError as error:
            warn_of(path, error)


def _described(climbed: Climbed, arrays: list[np.ndarray]) -> dict[int, dict[str, Any]]:
    found = {}
    for rank, rung in climbed.items():
        first = len(arrays)
        arrays += [np.asarray(to_host(A)) for A in (rung.model.weights, *rung.model.factors)]
        found[rank] = {
            "arrays": list(range(first, len(arrays))), "cost": float(rung.cost),
            "ends": rung.ends, "agreeing": rung.agreeing,
        }  # fmt: skip
    return found


def _restored(told: dict[str, dict[str, Any]], arrays: list[np.ndarray]) -> Climbed:
    found = {}
    for rank, rung in told.items():
        weights, *factors = (arrays[k] for k in rung["arrays"])
        model = KruskalTensor(weights, tuple(factors))
        found[int(rank)] = Rung(model, rung["cost"], int(rung["ends"]), int(rung["agreeing"]))
    return found
