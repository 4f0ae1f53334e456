"""The climbs of a rank profile that are done, in a file: the same call does only the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robustcp.engines import to_host
from robustcp.inference.rank_path import RankFit
from robustcp.model.kruskal import KruskalTensor
from robustcp.persist.checkpoint import (
    CheckpointRequest,
    describe_options,
    refuse_other_options,
    refuse_unusable,
    versions,
    warn_unwritable,
)
from robustcp.persist.codec import Codec, write_record
from robustcp.persist.errors import WriteError
from robustcp.persist.writing import open_atomic

LOG = logging.getLogger(__name__)

TITLE = "robustcp rank profile 1"
RankFits = Mapping[int, RankFit]


class RankPathCheckpoint:
    """The climbs that are done, by number.

    Parameters
    ----------
    request : Asked, optional
        The file, and what the profile was asked with; without it nothing is kept.
    total : int
        How many there will be.
    """

    def __init__(self, request: CheckpointRequest | None, total: int) -> None:
        self._request, self.completed = request, dict[int, RankFits]()
        if request is None:
            return
        self._options = describe_options(Codec(), request.options)
        content = request.content
        if content is None:
            return
        refuse_other_options(request.path, content.options, self._options)
        if content.header.get("versions") != versions():
            LOG.warning("%s is of other versions: it is not used", request.path)
            return
        with refuse_unusable(request.path):
            for number, description in content.header["climbs"].items():
                self.completed[int(number)] = _restore_fits(description, content.arrays)
        LOG.info(
            "goes on from %s, written %s: %d of %d climbs are done",
            request.path,
            content.time_written,
            len(self.completed),
            total,
            extra={"begins": True},
        )

    def add(self, number: int, rank_fits: RankFits) -> None:
        """One more, which is written at once: each takes long."""
        self.completed[number] = rank_fits
        if self._request is None:
            return
        arrays: list[np.ndarray] = []
        about = {
            "written": time.time(),
            "outputs": list(self._request.checkpoint.outputs),
            "versions": versions(),
            "options": self._options,
            "climbs": {
                number: _describe_fits(fits, arrays) for number, fits in self.completed.items()
            },
        }
        path = Path(self._request.path)
        try:
            with open_atomic(path) as file:
                write_record(file, TITLE, about, arrays)
        except WriteError as error:
            warn_unwritable(path, error)


def _describe_fits(rank_fits: RankFits, arrays: list[np.ndarray]) -> dict[int, dict[str, Any]]:
    descriptions = {}
    for rank, rank_fit in rank_fits.items():
        first = len(arrays)
        arrays += [
            np.asarray(to_host(A)) for A in (rank_fit.model.weights, *rank_fit.model.factors)
        ]
        descriptions[rank] = {
            "arrays": list(range(first, len(arrays))),
            "cost": float(rank_fit.cost),
            "ends": rank_fit.start_count,
            "agreeing": rank_fit.converged_count,
        }
    return descriptions


def _restore_fits(descriptions: dict[str, dict[str, Any]], arrays: list[np.ndarray]) -> RankFits:
    rank_fits = {}
    for rank, description in descriptions.items():
        weights, *factors = (arrays[k] for k in description["arrays"])
        model = KruskalTensor(weights, tuple(factors))
        rank_fits[int(rank)] = RankFit(
            model, description["cost"], int(description["ends"]), int(description["agreeing"])
        )
    return rank_fits
