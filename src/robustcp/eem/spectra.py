"""The spectra of components, and their amounts in the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.eem.landscapes import Landscapes, landscapes, spectral_modes
from robustcp.model.kruskal import host_factors
from robustcp.results.fit import Fit

#: The fewest common wavelengths at which spectra are compared.
MIN_COMMON_WAVELENGTHS = 3


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
        peak = np.prod([_column_extremes(A) for A in loadings], axis=0)
        return np.asarray(self.scores * peak)

    @property
    def peaks(self) -> np.ndarray:
        """The wavelengths (emission, excitation) at which each component is largest."""
        emission = self.emission[np.abs(self.emission_loadings).argmax(axis=0)]
        excitation = self.excitation[np.abs(self.excitation_loadings).argmax(axis=0)]
        return np.stack([emission, excitation], axis=1)

    def similarity(self, other: Spectra) -> np.ndarray:
        """The similarity of each component to each one of another model: array (rank, other.rank).

        It is the product of Tucker's congruence coefficients of the emission and of the excitation
        spectra, over the common range of wavelengths; the other's spectra are interpolated.
        """
        congruences = []
        for name in ("emission", "excitation"):
            nm, other_nm = getattr(self, name), getattr(other, name)
            common = (nm >= other_nm.min()) & (nm <= other_nm.max())
            if common.sum() < MIN_COMMON_WAVELENGTHS:
                raise ValueError(f"other: has {int(common.sum())} wavelengths of {name} in common")
            order = np.argsort(other_nm)
            B = getattr(other, f"{name}_loadings")[order]
            interpolated = [np.interp(nm[common], other_nm[order], column) for column in B.T]
            A, B = getattr(self, f"{name}_loadings")[common], np.stack(interpolated, axis=1)
            norms = np.outer(np.linalg.norm(A, axis=0), np.linalg.norm(B, axis=0))
            congruences.append(np.divide(A.T @ B, norms, out=np.zeros_like(norms), where=norms > 0))
        return np.asarray(congruences[0] * congruences[1])

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
        peaks = ", ".join(f"{ex:g}/{em:g}" for em, ex in self.peaks)
        return f"Spectra(rank {self.rank}, excitation/emission peaks at {peaks} nm)"


def spectra(fit: Fit, X: Any = None) -> Spectra:
    """The spectra of a fit to landscapes, scaled to a maximum of 1, so that scores are Fmax.

    Parameters
    ----------
    fit : Fit
    X : Landscapes, or what `landscapes` takes, optional
        The data of the fit: for wavelengths that the fit does not have, and to undo the
        normalisation of samples.

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
    eems = _landscapes_of_fit(fit, X)
    if eems.shape != fit.shape:
        raise checks.ArgumentError("X", f"has shape {eems.shape}, the fit has {fit.shape}")
    weights, *factors = host_factors((fit.weights, *fit.factors))
    scores = factors[eems.sample_mode] * weights
    scaled = []
    for mode, A in enumerate(factors):
        extremes = _column_extremes(A)
        scaled.append(A / np.where(extremes == 0, 1.0, extremes))
        if mode != eems.sample_mode:
            scores = scores * extremes
    if eems.norms is not None:
        scores = scores * eems.norms[:, None]
    names = eems.labels[eems.sample_mode]
    return Spectra(
        eems.emission,
        eems.excitation,
        scaled[eems.emission_mode],
        scaled[eems.excitation_mode],
        scores,
        None if names is None else tuple(names),
    )


def _landscapes_of_fit(fit: Fit, X: Any) -> Landscapes:
    """The landscapes of a fit; without X, zeros with the names and labels of the fit."""
    if X is not None:
        return landscapes(X)
    modes = spectral_modes(fit.modes)
    if modes is None or any(fit.labels[mode] is None for mode in modes):
        raise checks.ArgumentError("X", "must be given: the fit does not know the wavelengths")
    zeros = np.broadcast_to(np.float64(0.0), fit.shape)
    return Landscapes(zeros, fit.modes, fit.labels)


def _column_extremes(A: np.ndarray) -> np.ndarray:
    """The entry of largest magnitude of each column, with its sign."""
    return np.asarray(A[np.abs(A).argmax(axis=0), np.arange(A.shape[1])])
