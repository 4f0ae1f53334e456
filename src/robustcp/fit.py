"""What a fit gives back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from robustcp import _checks
from robustcp._typing import Array, Factors
from robustcp.engines import Engine, as_array, as_engine, to_host
from robustcp.kruskal import KruskalTensor
from robustcp.losses import Loss


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted CP model and how it came about. Unpacks as ``weights, factors``.

    Attributes
    ----------
    model : KruskalTensor
        In canonical form: unit columns, descending weights, fixed signs.
    trace : float64 array
        The objective after each sweep, in the data's units.
    status : str
        How the fit ended, and what to know about its components, in words.
    converged : bool
    loss : Loss
        The loss of the last level.
    stages : tuple of (name, sweeps)
    explained : float
        The share of the data that the model explains: 1 - objective / objective of a zero model.
    starts : tuple of float
        The final objective from each start.
    """

    model: KruskalTensor
    trace: np.ndarray = field(repr=False)
    status: str
    converged: bool
    loss: Loss
    stages: tuple[tuple[str, int], ...]
    explained: float
    starts: tuple[float, ...]

    @property
    def weights(self) -> Array:
        """The components' norms, descending."""
        return self.model.weights

    @property
    def factors(self) -> Factors:
        """One matrix per mode, with unit columns."""
        return self.model.factors

    @property
    def objective(self) -> float:
        return float(self.trace[-1])

    @property
    def sweeps(self) -> int:
        return len(self.trace)

    @property
    def rank(self) -> int:
        return self.model.rank

    @property
    def shape(self) -> tuple[int, ...]:
        return self.model.shape

    @property
    def shares(self) -> np.ndarray:
        """The share of the data that each component explains; they add up to `explained`.

        `explained` is split in proportion to each component's inner product with the model,
        w_r <component r, model>. Components that cancel each other can have negative shares.
        """
        w = np.asarray(to_host(self.weights), dtype=np.float64)
        overlap = np.ones((self.rank, self.rank))
        for A in self.factors:
            B = np.asarray(to_host(A), dtype=np.float64)
            overlap *= B.T @ B
        w = w / max(w.max(initial=0.0), np.finfo(float).tiny)
        part = w * (overlap @ w)
        total = part.sum()
        return self.explained * part / total if total > 0 else np.zeros(self.rank)

    def __iter__(self) -> Iterator[Any]:
        yield from self.model

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        return (
            f"Fit({size}, rank {self.rank}, {type(self.loss).__name__} objective "
            f"{self.objective:.6g}, {self.explained:.1%} explained, {self.sweeps} sweeps, "
            f"{self.status})"
        )

    def full(self) -> Array:
        """The model as a whole tensor."""
        return self.model.full()

    def at(self, indices: Array) -> Array:
        """The model's entries at some indices, an integer array of shape (count, N)."""
        return self.model.at(indices)

    def residuals(self, X: Array) -> Array:
        """X minus the model, as an array of X's library."""
        engine = as_engine(X)
        if engine.shape != self.shape:
            raise ValueError(f"X: has shape {engine.shape}, the model has shape {self.shape}")
        return as_array(X) - KruskalTensor.from_factors(self._factors_for(engine)).full()

    def _factors_for(self, engine: Engine) -> Factors:
        """The model's factors, weights and all, in the library and precision of an engine."""
        return tuple(engine.asarray(to_host(A)) for A in self.model.absorbed())

    def outliers(self, X: Array, *, rate: float = 1e-3) -> Outliers:
        """Which entries of X the model does not account for.

        Parameters
        ----------
        X : array
            The data, or other data of the same shape.
        rate : float
            The share of clean entries, with Gaussian noise, that may be flagged by chance.
        """
        rate = _checks.real_number("rate", rate, 0.0, above=True, below=1.0)
        engine = as_engine(X)
        if engine.shape != self.shape:
            raise ValueError(f"X: has shape {engine.shape}, the model has shape {self.shape}")
        sizes = engine.magnitudes(self._factors_for(engine))
        # The median may be zero, a rounding, or within the smoothing of the loss, when the data
        # is exact or quantised; smaller differences than those must not be flagged.
        smoothing = math.sqrt(getattr(self.loss, "epsilon", 0.0))
        floor = max(8 * engine.precision * engine.largest, smoothing)
        return Outliers(self, X, max(1.4826 * float(np.median(sizes)), floor), rate)

    def to_tensorly(self) -> tuple[Array, list[Array]]:
        """The plain pair (weights, factors) that TensorLy's functions take."""
        return self.model.to_tensorly()


@dataclass(frozen=True, eq=False)
class Outliers:
    """Residuals in robust sigmas; arrays are computed when asked for.

    Attributes
    ----------
    scale : float
        The robust standard deviation of the residuals (from their median magnitude).
    rate : float
        The share of clean entries that `mask` flags by chance.
    """

    fit: Fit = field(repr=False)
    data: Array = field(repr=False)
    scale: float
    rate: float

    @property
    def threshold(self) -> float:
        """The score from which an entry is flagged."""
        from scipy.special import ndtri

        return float(-ndtri(self.rate / 2))

    @property
    def scores(self) -> Array:
        """Residuals divided by the scale."""
        return self.fit.residuals(self.data) / (self.scale or 1.0)

    @property
    def mask(self) -> Array:
        """True where an entry is flagged."""
        scores = self.scores
        return array_namespace(scores).abs(scores) > self.threshold


def diagnosis(model: KruskalTensor) -> str:
    """What to know about the components of a model in canonical form: empty or collinear ones.

    Components are collinear when, for some mode, the other modes' columns are so close to
    linear dependence that the data cannot tell the components apart in that mode.
    """
    w = np.asarray(to_host(model.weights), dtype=np.float64)
    empty = np.flatnonzero(w <= 1e-9 * w.max(initial=0.0))
    full = np.setdiff1d(np.arange(model.rank), empty)
    overlaps = []
    for A in model.factors:
        B = np.asarray(to_host(A), dtype=np.float64)[:, full]
        overlaps.append(B.T @ B)
    together: set[int] = set()
    for mode in range(len(overlaps)):
        if full.size < 2:
            break
        others = math.prod(G for m, G in enumerate(overlaps) if m != mode)
        values, vectors = np.linalg.eigh(others)
        for vector in vectors[:, values < 0.01].T:
            together.update(int(r) for r in full[np.abs(vector) > 0.3 * np.abs(vector).max()])
    notes = []
    if empty.size:
        notes.append(_named(empty.tolist(), "is empty", "are empty"))
    if together:
        notes.append(_named(sorted(together), "is collinear", "are collinear"))
    return "; ".join(notes)


def _named(components: list[int], one: str, many: str) -> str:
    if len(components) == 1:
        return f"component {components[0]} {one}"
    *most, last = map(str, components)
    return f"components {', '.join(most)} and {last} {many}"
