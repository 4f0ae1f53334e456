"""Fluorescence landscapes with their wavelengths: reading, cutting scatter, normalising samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustcp._util import checks
from robustcp.engines import as_array, axes_of, to_host
from robustcp.io.reading import Loaded
from robustcp.io.reading import read as read_tensor
from robustcp.persist.errors import FileError

#: The names of modes that have none.
DEFAULT_MODES = ("sample", "emission", "excitation")
#: Total widths in nm of the bands of scatter, of the first and of the second order.
RAYLEIGH_WIDTHS, RAMAN_WIDTHS = (20.0, 30.0), (10.0, 10.0)
#: The Raman shift of water, in 1/cm.
WATER_RAMAN_SHIFT = 3600.0

#: A width for both orders, one for each, or None to leave the scatter in.
Widths = float | Sequence[float] | None


@dataclass(frozen=True, eq=False, repr=False)
class Landscapes(Loaded):
    """Landscapes of samples, as a tensor that every function of robustcp takes.

    Attributes
    ----------
    data : float array
        NaN where an entry is missing. `numpy.asarray(landscapes)` is this too.
    modes, labels
        Names of the modes, and labels of their indices: wavelengths in nm, names of samples.
    norms : float64 array, optional
        The divisors of the samples, by which `spectra` multiplies scores.

    Examples
    --------
    >>> import numpy as np, robustcp
    >>> nm = {"emission": [300, 310, 320], "excitation": [250, 260]}
    >>> X = robustcp.eem.landscapes(np.ones((5, 3, 2)), **nm)
    >>> X.shape, X.modes
    ((5, 3, 2), ('sample', 'emission', 'excitation'))
    """

    norms: np.ndarray | None = None

    @property
    def spectral_modes(self) -> tuple[int, int]:
        """The numbers of the modes of emission and of excitation."""
        modes = spectral_modes(self.modes)
        assert modes is not None  # `landscapes` makes no others
        return modes

    @property
    def emission_mode(self) -> int:
        return self.spectral_modes[0]

    @property
    def excitation_mode(self) -> int:
        return self.spectral_modes[1]

    @property
    def sample_mode(self) -> int:
        """The first mode that does not hold wavelengths."""
        return next(n for n in range(len(self.modes)) if n not in self.spectral_modes)

    @property
    def emission(self) -> np.ndarray:
        """Wavelengths of emission, in nm."""
        return np.asarray(self.labels[self.emission_mode], dtype=np.float64)

    @property
    def excitation(self) -> np.ndarray:
        """Wavelengths of excitation, in nm."""
        return np.asarray(self.labels[self.excitation_mode], dtype=np.float64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        sizes = " x ".join(f"{m} ({n})" for m, n in zip(self.modes, self.shape, strict=True))
        missing = float(np.isnan(self.data).mean())
        normalised = "" if self.norms is None else ", samples normalised"
        return f"Landscapes({sizes}, {missing:.1%} missing{normalised})"

    def broadcast_mask(self, mask: np.ndarray) -> np.ndarray:
        """A mask (emission, excitation) as an array that broadcasts to the data."""
        em, ex = self.spectral_modes
        shape = [n if mode in (em, ex) else 1 for mode, n in enumerate(self.shape)]
        return (mask if em < ex else mask.T).reshape(shape)

    def without(self, samples: Sequence[Any]) -> Landscapes:
        """The landscapes without some samples, by name or position."""
        mode = self.sample_mode
        axes, size = self.axes, self.shape[mode]
        removed = {axes.index_position("samples", mode, sample, size) for sample in samples}
        remaining = np.setdiff1d(np.arange(size), list(removed))
        rows = [remaining if n == mode else None for n in range(len(self.shape))]
        return replace(
            self,
            data=np.take(self.data, remaining, axis=mode),
            labels=axes.subset(rows).labels,
            norms=None if self.norms is None else self.norms[remaining],
        )


def landscapes(
    X: Any, *, emission: Any = None, excitation: Any = None, samples: Sequence[Any] | None = None
) -> Landscapes:
    """Landscapes from an array and its wavelengths, or from data that has names and labels.

    Parameters
    ----------
    X : array, xarray.DataArray, or what `robustcp.read` returns
        Where modes have names, those that begin with "em" and "ex" hold the wavelengths.
        Otherwise X is sample x emission x excitation.
    emission, excitation : wavelengths in nm, optional
        In place of the labels that X has.
    samples : sequence, optional
        Names of the samples.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp.eem import landscapes
    >>> landscapes(np.ones((5, 3, 2)), emission=[300, 310, 320], excitation=[250, 260])
    Landscapes(sample (5) x emission (3) x excitation (2), 0.0% missing)
    """
    axes = axes_of(X)
    data = np.asarray(to_host(as_array(X)))
    data = data if data.dtype.kind == "f" else data.astype(np.float64)
    names, modes = axes.modes, spectral_modes(axes.modes)
    if modes is None:
        if data.ndim != 3:
            raise ValueError(
                f"X: must be sample x emission x excitation, or have modes whose names begin with "
                f"'em' and 'ex', got shape {data.shape} and names {names}"
            )
        names, modes = DEFAULT_MODES, (1, 2)
    labels = list(axes.labels or (None,) * data.ndim)
    for mode, name, given in zip(
        modes, ("emission", "excitation"), (emission, excitation), strict=True
    ):
        wavelengths = labels[mode] if given is None else given
        labels[mode] = _check_wavelengths(name, wavelengths, data.shape[mode])
    units = tuple("nm" if mode in modes else "" for mode in range(data.ndim))
    norms = getattr(X, "norms", None)
    eems = Landscapes(data, names, tuple(labels), units=units, norms=norms)
    if samples is not None:
        size = eems.shape[eems.sample_mode]
        labels[eems.sample_mode] = sample_names = list(samples)
        if len(sample_names) != size:
            raise checks.ArgumentError("samples", f"must be {size} names, got {len(sample_names)}")
        eems = replace(eems, labels=tuple(labels))
    _check_order(eems)
    return eems


def read(
    folder: str | Path,
    *,
    rows: str = "emission",
    emission: Any = None,
    excitation: Any = None,
    **options: Any,
) -> Landscapes:
    """The landscapes of a folder, one text file for each sample, or of one file of any kind.

    A file has the wavelengths of one kind in its first row and of the other in its first column,
    perhaps followed by "nm"; the corner may contain anything. Fields are separated by tabs,
    semicolons, commas or spaces, numbers may have a decimal comma unless commas separate fields,
    and lines that begin with # are skipped. Samples are named after the files, 2 before 10. All
    files must have the same wavelengths, in any order. An empty field is a missing entry.

    Parameters
    ----------
    folder : str or Path
        Files other than .csv, .tsv, .txt, .dat and .asc in it, and hidden ones, are skipped.
    rows : {"emission", "excitation"}
        The kind of the wavelengths in the first column, one for each row.
    emission, excitation : wavelengths in nm, optional
        For files that do not have them.
    **options
        As in `robustcp.read`.

    Examples
    --------
    >>> import pathlib, robustcp, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("lake", "river"):
    ...     _ = (folder / f"{name}.csv").write_text("em,250,260\\n300,1,2\\n310,3,4\\n320,5,6\\n")
    >>> robustcp.eem.read(folder).labels[0]
    ['lake', 'river']
    """
    checks.choice("rows", rows, ("emission", "excitation"))
    loaded = read_tensor(folder, **options)
    try:
        if spectral_modes(loaded.modes) is None and len(loaded.modes) == 3:
            columns = "excitation" if rows == "emission" else "emission"
            loaded = replace(loaded, modes=("sample", rows, columns))
        return landscapes(loaded, emission=emission, excitation=excitation)
    except ValueError as error:
        raise FileError(folder, str(error)) from None


def scatter_mask(
    emission: Any,
    excitation: Any,
    *,
    rayleigh: Widths = RAYLEIGH_WIDTHS,
    raman: Widths = RAMAN_WIDTHS,
    shift: float = WATER_RAMAN_SHIFT,
) -> np.ndarray:
    """Where light is scattered: True in bands about the lines of Rayleigh and Raman scatter.

    Scattered light has the wavelength of the excitation (Rayleigh), or 1 / (1 / excitation - shift)
    (Raman); twice that in the second order of the monochromator.

    Parameters
    ----------
    emission, excitation : wavelengths in nm
    rayleigh, raman : float, pair of floats, or None
        Total widths of the bands in nm along emission, of the first and of the second order.
        0 leaves one in, None both.
    shift : float
        The Raman shift of the solvent in 1/cm; that of water is 3600 or a little less.

    Returns
    -------
    bool array (emission, excitation)

    Examples
    --------
    >>> from robustcp.eem import scatter_mask
    >>> scatter_mask([300, 305, 350, 600], [300], rayleigh=(8, 8), raman=None)[:, 0]
    array([ True, False, False,  True])
    """
    em, ex = (
        np.array(_check_wavelengths(name, given))
        for name, given in (("emission", emission), ("excitation", excitation))
    )
    shift = checks.real_number("shift", shift, 0.0, strict=True)
    inverse = 1 / ex - shift * 1e-7  # nm in a cm
    shifted = np.divide(1, inverse, out=np.full(ex.shape, np.inf), where=inverse > 0)
    mask = np.zeros((em.size, ex.size), dtype=bool)
    for line, widths in (
        (ex, _width_pair("rayleigh", rayleigh)),
        (shifted, _width_pair("raman", raman)),
    ):
        for order, width in enumerate(widths, start=1):
            if width > 0:
                mask |= np.abs(em[:, None] - order * line[None, :]) <= width / 2
    return mask


def mask_scatter(
    X: Any,
    *,
    rayleigh: Widths = RAYLEIGH_WIDTHS,
    raman: Widths = RAMAN_WIDTHS,
    shift: float = WATER_RAMAN_SHIFT,
    below: str = "missing",
    emission: Any = None,
    excitation: Any = None,
) -> Landscapes:
    """Landscapes with their scatter cut: such entries are missing.

    Parameters
    ----------
    X : Landscapes, or what `landscapes` takes
    rayleigh, raman, shift
        As in `scatter_mask`.
    below : {"missing", "zero", "kept"}
        What entries with a shorter wavelength of emission than of excitation, where nothing
        fluoresces, become. Keep them if they were measured: as missing entries they may leave rows
        with few entries; zeros have no noise, so that `outliers` underestimates the noise.
    emission, excitation : wavelengths in nm, optional
        In place of the labels that X has.

    Examples
    --------
    >>> import numpy as np
    >>> em, ex = np.arange(250, 451, 5), np.arange(240, 301, 5)
    >>> from robustcp.eem import mask_scatter
    >>> mask_scatter(np.ones((4, 41, 13)), emission=em, excitation=ex)
    Landscapes(sample (4) x emission (41) x excitation (13), 22.0% missing)
    """
    checks.choice("below", below, ("missing", "zero", "kept"))
    eems = landscapes(X, emission=emission, excitation=excitation)
    em, ex = eems.emission, eems.excitation
    mask = scatter_mask(em, ex, rayleigh=rayleigh, raman=raman, shift=shift)
    data = eems.data
    if below != "kept":
        below_excitation = eems.broadcast_mask(em[:, None] < ex[None, :])
        value = 0.0 if below == "zero" else np.nan
        data = np.where(below_excitation & ~np.isnan(data), value, data)
    return replace(eems, data=np.where(eems.broadcast_mask(mask), np.nan, data))


def normalise(X: Any, by: str = "rms") -> Landscapes:
    """Landscapes scaled so that all samples have the same size and the same influence.

    `norms` holds the divisors of the samples, of mean 1, by which `spectra` multiplies scores. A
    sample without entries, or with zeros only, stays as it is.

    Parameters
    ----------
    X : Landscapes, or what `landscapes` takes
    by : {"rms", "total", "largest"}
        The size: root mean square, sum or largest magnitude of all entries of a sample, remaining
        scatter included.

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp.eem import landscapes, normalise
    >>> X = np.multiply.outer([1.0, 3.0], np.ones((3, 2)))
    >>> X = landscapes(X, emission=[300, 310, 320], excitation=[250, 260])
    >>> normalise(X).norms
    array([0.5, 1.5])
    """
    checks.choice("by", by, tuple(SIZE_FUNCTIONS))
    eems = landscapes(X)
    rows = np.moveaxis(np.asarray(eems.data, dtype=np.float64), eems.sample_mode, 0)
    sizes = np.array([SIZE_FUNCTIONS[by](row[~np.isnan(row)]) for row in rows])
    if (sizes < 0).any():
        names = eems.labels[eems.sample_mode] or range(sizes.size)
        worst = names[int(np.argmin(sizes))]
        raise ValueError(f"X: sample {worst!r} has a total below 0; normalise by rms")
    positive = sizes[sizes > 0]
    sizes = np.where(sizes > 0, sizes / (positive.mean() if positive.size else 1.0), 1.0)
    sample_shape = [-1 if n == eems.sample_mode else 1 for n in range(len(eems.shape))]
    data = eems.data / sizes.reshape(sample_shape).astype(eems.data.dtype)
    return replace(eems, data=data, norms=sizes if eems.norms is None else eems.norms * sizes)


SIZE_FUNCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "rms": lambda x: math.sqrt(float(np.mean(x * x))) if x.size else 0.0,
    "total": lambda x: float(x.sum()),
    "largest": lambda x: float(np.abs(x).max(initial=0.0)),
}


def spectral_modes(names: Sequence[str]) -> tuple[int, int] | None:
    """The modes of emission and excitation, whose names begin with "em" and "ex".

    None unless each is the name of exactly one mode.
    """
    modes = []
    for prefix in ("em", "ex"):
        matches = [n for n, name in enumerate(names) if name.lower().startswith(prefix)]
        if len(matches) != 1:
            return None
        modes += matches
    return modes[0], modes[1]


def _check_wavelengths(name: str, given: Any, size: int | None = None) -> list[float]:
    """Wavelengths in nm; raises an error for anything else, or for another number of them."""
    if given is None:
        raise checks.ArgumentError(name, "must be given: X has no wavelengths in nm for it")
    try:
        wavelengths = np.array([float(_strip_unit(value)) for value in np.ravel(given)])
    except (TypeError, ValueError):
        wavelengths = np.empty(0)
    if not wavelengths.size or not np.isfinite(wavelengths).all() or (wavelengths <= 0).any():
        raise checks.ArgumentError(name, f"must be wavelengths in nm, got {given!r}")
    if np.unique(wavelengths).size != wavelengths.size:
        raise checks.ArgumentError(name, "has a wavelength twice")
    if size is not None and wavelengths.size != size:
        raise checks.ArgumentError(name, f"must be {size} wavelengths, got {wavelengths.size}")
    return [float(value) for value in wavelengths]


def _strip_unit(value: Any) -> Any:
    """A text such as "240 nm" without its unit; other values as they are."""
    return str(value).strip().removesuffix("nm") if isinstance(value, str) else value


def _check_order(eems: Landscapes) -> None:
    """Raise an error if emission and excitation must have been confused."""
    em, ex = eems.emission, eems.excitation
    if em.max() < ex.max() and em.min() < ex.min():
        raise checks.ArgumentError(
            "emission",
            f"is at {em.min():g} to {em.max():g} nm and excitation at {ex.min():g} to "
            f"{ex.max():g} nm: emission has the longer wavelengths; are the two mistaken?",
        )


def _width_pair(name: str, widths: Widths) -> tuple[float, float]:
    """Widths of the first and second order."""
    if widths is None:
        return 0.0, 0.0
    width_list = [widths, widths] if np.ndim(widths) == 0 else list(np.ravel(widths))
    if len(width_list) != 2:
        raise checks.ArgumentError(name, f"must be a width or two of them, got {widths!r}")
    first, second = (checks.real_number(name, 0.0 if w is None else w, 0.0) for w in width_list)
    return first, second
