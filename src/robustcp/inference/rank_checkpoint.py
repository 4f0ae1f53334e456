"""The rank paths of a rank profile that are done, in a file: the same call does only the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from robustcp.inference.rank_path import RankFit
from robustcp.model.kruskal import KruskalTensor
from robustcp.persist.checkpoint import CheckpointFile, CheckpointRequest, versions
from robustcp.persist.codec import Codec

LOG = logging.getLogger(__name__)


class RankPathCheckpoint:
    """The fits of the rank paths that are done, by the number of the path.

    Parameters
    ----------
    request : CheckpointRequest, optional
        The file, and the options of the profile; without it nothing is written.
    total : int
        How many rank paths there will be.
    """

    def __init__(self, request: CheckpointRequest | None, total: int) -> None:
        self.completed: dict[int, Mapping[int, RankFit]] = {}
        self._file: CheckpointFile | None = None
        if request is None:
            return
        self._file = CheckpointFile(request, request.options, Codec([RankFit, KruskalTensor]))
        saved, content = self._file.read(), request.content
        if saved is None or content is None:
            return
        if content.versions != versions():
            LOG.warning("%s is of other versions: it is not used", request.path)
            return
        self.completed = saved["climbs"]
        LOG.info(
            "goes on from %s, written %s: %d of %d climbs are done",
            request.path,
            content.time_written,
            len(self.completed),
            total,
            extra={"begins": True},
        )

    def add(self, number: int, rank_fits: Mapping[int, RankFit]) -> None:
        """Add a rank path, and write all at once, since each takes long."""
        self.completed[number] = rank_fits
        if self._file is not None:
            self._file.write({"climbs": self.completed})
