"""The spectra of components, and how much of each is in the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustcp import _checks
from robustcp.eem.landscapes import Landscapes, has_wavelengths, landscapes, mode_called
from robustcp.engines import to_host
from robustcp.fitted import Fit

#: Spectra are compared at so many common wavelengths at least.
LEAST = 3


@dataclass(frozen=True, eq=False, repr=False)
class Spectra:
    """Excitation and emission spectra of components.

    Attributes
    ----------
    emission, excitation : float64 arrays
        Wavelengths in nm.
    emission_loadings, excitation_loadings : float64 arrays (wavelengths, components)
    scores : float64 array (samples, components), optional
        In units of the data, if the loadings have a maximum of 1.
    samples : tuple, optional
        Names of the samples.
    info : dict from str to str
        What an OpenFluor file says of the model: name, creator, doi and so on.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> em, ex = np.arange(300.0, 400.0, 5), np.arange(250.0, 300.0, 5)
    >>> peak = np.exp(-0.5 * ((em[:, None] - 350) / 15) ** 2 - 0.5 * ((ex - 270) / 9) ** 2)
    >>> X = robustcp.eem.landscapes([7 * peak, peak, 4 * peak], emission=em, excitation=ex)
    >>> robustcp.eem.spectra(robustcp.cp(X, 1)).peaks  # emission, excitation
    array([[350., 270.]])
    """

    emission: np.ndarray
    excitation: np.ndarray
    emission_loadings: np.ndarray
    excitation_loadings: np.ndarray
    scores: np.ndarray | None = None
    samples: tuple[Any, ...] | None = None
    info: Mapping[str, str] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return int(self.emission_loadings.shape[1])

    @property
    def fmax(self) -> np.ndarray:
        """The largest fluorescence of each component in each sample, in units of the data."""
        if self.scores is None:
            raise ValueError("fmax: there are no scores, as in most files of OpenFluor")
        loadings = (self.emission_loadings, self.excitation_loadings)
        peak = np.prod([_extremes(each) for each in loadings], axis=0)
        return np.asarray(self.scores * peak)

    @property
    def peaks(self) -> np.ndarray:
        """The wavelengths (emission, excitation) at which each component is largest."""
        pairs = ((self.emission, self.emission_loadings), (self.excitation,
                 self.excitation_loadings))  # fmt: skip
        return np.stack([nm[np.abs(each).argmax(axis=0)] for nm, each in pairs], axis=1)

    def similarity(self, other: Spectra) -> np.ndarray:
        """How much each component is like each one of another model: array (rank, other.rank).

        The product of Tucker's congruence coefficients of the emission and of the excitation
        spectra, over the wavelengths that both have; the other's are interpolated.
        """
        parts = []
        for name in ("emission", "excitation"):
            nm, theirs = getattr(self, name), getattr(other, name)
            common = (nm >= theirs.min()) & (nm <= theirs.max())
            if common.sum() < LEAST:
                raise ValueError(f"other: has {int(common.sum())} wavelengths of {name} in common")
            order = np.argsort(theirs)
            B = getattr(other, f"{name}_loadings")[order]
            at = [np.interp(nm[common], theirs[order], column) for column in B.T]
            A, B = getattr(self, f"{name}_loadings")[common], np.stack(at, axis=1)
            norms = np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
            parts.append(np.divide(A.T @ B, norms, out=np.zeros_like(norms), where=norms > 0))
        return np.asarray(parts[0] * parts[1])

    def plot(
        self,
        *others: Spectra,
        labels: Any = None,
        axes: Any = None,
        figsize: tuple[float, float] | None = None,
    ) -> np.ndarray:
        """The spectra, those of other models over them; see `robustcp.plot.spectra`."""
        from robustcp.plot import spectra as draw

        return draw(self, *others, labels=labels, axes=axes, figsize=figsize)

    def __repr__(self) -> str:
        at = ", ".join(f"{ex:g}/{em:g}" for em, ex in self.peaks)
        return f"Spectra(rank {self.rank}, excitation/emission peaks at {at} nm)"


def spectra(fit: Fit, X: Any = None) -> Spectra:
    """The spectra of a fit to landscapes, with a maximum of 1, and scores that are then Fmax.

    Parameters
    ----------
    fit : Fit
    X : Landscapes, or what `landscapes` takes, optional
        What it was fitted to: for wavelengths that the fit does not know, and to undo that samples
        were normalised.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> em, ex = np.arange(300.0, 400.0, 5), np.arange(250.0, 300.0, 5)
    >>> peak = np.exp(-0.5 * ((em[:, None] - 350) / 15) ** 2 - 0.5 * ((ex - 270) / 9) ** 2)
    >>> X = robustcp.eem.landscapes([7 * peak, peak, 4 * peak], emission=em, excitation=ex)
    >>> X = robustcp.eem.normalise(X)
    >>> found = robustcp.eem.spectra(robustcp.cp(X, 1), X)
    >>> found
    Spectra(rank 1, excitation/emission peaks at 270/350 nm)
    >>> found.fmax.round(1).ravel()
    array([7., 1., 4.])
    """
    made = _wavelengths_of(fit, X)
    if made.shape != fit.shape:
        raise _checks.ArgumentError("X", f"has shape {made.shape}, the fit has {fit.shape}")
    factors = [np.asarray(to_host(A), dtype=np.float64) for A in fit.factors]
    scores = factors[made.sample_mode] * np.asarray(to_host(fit.weights), dtype=np.float64)
    scaled = []
    for mode, A in enumerate(factors):
        extremes = _extremes(A)
        scaled.append(A / np.where(extremes == 0, 1.0, extremes))
        if mode != made.sample_mode:
            scores = scores * extremes
    if made.norms is not None:
        scores = scores * made.norms[:, None]
    names = made.labels[made.sample_mode]
    return Spectra(
        made.emission, made.excitation, scaled[made.emission_mode], scaled[made.excitation_mode],
        scores, None if names is None else tuple(names),
    )  # fmt: skip


def _wavelengths_of(fit: Fit, X: Any) -> Landscapes:
    """The landscapes of a fit; without them, ones that have its names and labels."""
    if X is not None:
        return landscapes(X)
    at = [mode_called(fit.modes, kind) for kind in ("em", "ex")]
    if not has_wavelengths(fit.modes) or any(fit.labels[mode] is None for mode in at):
        raise _checks.ArgumentError("X", "must be given: the fit does not know the wavelengths")
    nothing = np.broadcast_to(np.float64(0.0), fit.shape)
    return Landscapes(nothing, fit.modes, fit.labels)


def _extremes(A: np.ndarray) -> np.ndarray:
    """The entry of largest magnitude of each column, with its sign."""
    return np.asarray(A[np.abs(A).argmax(axis=0), np.arange(A.shape[1])])
