"""Landscapes with their wavelengths; scatter cut, samples normalised."""

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

#: What the modes are called where they have no names.
DEFAULT_MODES = ("sample", "emission", "excitation")
#: Total widths, in nm, of the bands of scatter of the first and of the second order.
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
        What each sample was divided by; `spectra` undoes it.

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
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def emission_mode(self) -> int:
        return mode_starting_with(self.modes, "em")

    @property
    def excitation_mode(self) -> int:
        return mode_starting_with(self.modes, "ex")

    @property
    def sample_mode(self) -> int:
        """The first mode that does not hold wavelengths."""
        spectral = (self.emission_mode, self.excitation_mode)
        return next(n for n in range(len(self.modes)) if n not in spectral)

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
        """A mask (emission, excitation) in the modes of the data."""
        em, ex = self.emission_mode, self.excitation_mode
        shape = [n if mode in (em, ex) else 1 for mode, n in enumerate(self.shape)]
        return (mask if em < ex else mask.T).reshape(shape)

    def without(self, samples: Sequence[Any]) -> Landscapes:
        """The landscapes without some samples, by name or position."""
        mode = self.sample_mode
        axes, size = axes_of(self), self.shape[mode]
        removed = {axes.index_position("samples", mode, sample, size) for sample in samples}
        remaining = [k for k in range(size) if k not in removed]
        labels = [None if mode_labels is None else list(mode_labels) for mode_labels in self.labels]
        sample_labels = labels[mode]
        labels[mode] = None if sample_labels is None else [sample_labels[k] for k in remaining]
        return replace(
            self,
            data=np.take(self.data, remaining, axis=mode),
            labels=tuple(labels),
            norms=None if self.norms is None else self.norms[remaining],
        )

    def sample_name(self, number: int) -> str:
        labels = self.labels[self.sample_mode]
        return repr(number if labels is None else labels[number])

    def _replace_data(self, data: np.ndarray, norms: np.ndarray | None = None) -> Landscapes:
        return replace(self, data=data, norms=self.norms if norms is None else norms)


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
    names, labels = axes.modes, axes.labels
    data = np.asarray(to_host(as_array(X)))
    order = data.ndim
    if not has_wavelengths(names):
        if order != 3:
            raise ValueError(
                f"X: must be sample x emission x excitation, or have modes whose names begin with "
                f"'em' and 'ex', got shape {data.shape} and names {names}"
            )
        names = DEFAULT_MODES
    labels = labels or (None,) * order
    emission_mode, excitation_mode = (
        mode_starting_with(names, "em"),
        mode_starting_with(names, "ex"),
    )
    new_labels = list(labels)
    for mode, name, given in (
        (emission_mode, "emission", emission),
        (excitation_mode, "excitation", excitation),
    ):
        new_labels[mode] = _check_wavelengths(
            name, labels[mode] if given is None else given, data.shape[mode]
        )
    norms = getattr(X, "norms", None)
    units = tuple("nm" if mode in (emission_mode, excitation_mode) else "" for mode in range(order))
    eems = Landscapes(_as_floats(data), names, tuple(new_labels), units=units, norms=norms)
    if samples is not None:
        sample_names = list(samples)
        if len(sample_names) != eems.shape[eems.sample_mode]:
            raise checks.ArgumentError(
                "samples",
                f"must be {eems.shape[eems.sample_mode]} names, got {len(sample_names)}",
            )
        new_labels[eems.sample_mode] = sample_names
        eems = replace(eems, labels=tuple(new_labels))
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

    A file has the wavelengths of one kind in its first row, and of the other in its first column,
    which may be followed by "nm". What is in the corner does not matter. Fields are separated by
    tabs, semicolons, commas or spaces, numbers may have a decimal comma where commas separate
    nothing; lines that begin with # are left out. The names of files, 2 before 10, are those of the
    samples. All files must have the same wavelengths, in any order; an empty field is missing.

    Parameters
    ----------
    folder : str or Path
        Files other than .csv, .tsv, .txt, .dat and .asc in it, and hidden ones, are left out.
    rows : {"emission", "excitation"}
        What the wavelengths in the first column, one for each row, are.
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
        if not has_wavelengths(loaded.modes) and len(loaded.modes) == 3:
            spectral_modes = (
                ("emission", "excitation") if rows == "emission" else ("excitation", "emission")
            )
            loaded = replace(loaded, modes=("sample", *spectral_modes))
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
        What becomes of emission at shorter wavelengths than the excitation, where nothing
        fluoresces. If it was measured, keep it: missing, it may leave rows with few entries;
        zeros have no noise, so that `outliers` takes that of all entries for too small.
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
    return eems._replace_data(np.where(eems.broadcast_mask(mask), np.nan, data))


def normalise(X: Any, by: str = "rms") -> Landscapes:
    """Landscapes of samples of the same size, so that weak samples count as much as strong ones.

    `norms` says what each sample was divided by, on average 1, and `spectra` multiplies scores by
    it. A sample without entries, or without anything but zeros, stays as it is.

    Parameters
    ----------
    X : Landscapes, or what `landscapes` takes
    by : {"rms", "total", "largest"}
        The size: root mean square, sum or largest magnitude of its entries. Scatter that is left
        in counts.

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
        worst = int(np.argmin(sizes))
        raise ValueError(
            f"X: sample {eems.sample_name(worst)} has a total below 0; normalise by rms"
        )
    positive = sizes[sizes > 0]
    sizes = np.where(sizes > 0, sizes / (positive.mean() if positive.size else 1.0), 1.0)
    sample_shape = [-1 if n == eems.sample_mode else 1 for n in range(len(eems.shape))]
    previous_norms = np.ones(sizes.size) if eems.norms is None else eems.norms
    return eems._replace_data(
        eems.data / sizes.reshape(sample_shape).astype(eems.data.dtype), previous_norms * sizes
    )


SIZE_FUNCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "rms": lambda x: math.sqrt(float(np.mean(x * x))) if x.size else 0.0,
    "total": lambda x: float(x.sum()),
    "largest": lambda x: float(np.abs(x).max(initial=0.0)),
}


def _as_floats(data: np.ndarray) -> np.ndarray:
    return data if data.dtype.kind == "f" else data.astype(np.float64)


def mode_starting_with(names: Sequence[str], prefix: str) -> int:
    """The only mode whose name begins so; -1 if there is none, or more than one."""
    matches = [n for n, name in enumerate(names) if name.lower().startswith(prefix)]
    return matches[0] if len(matches) == 1 else -1


def has_wavelengths(names: Sequence[str]) -> bool:
    """Whether names tell which modes are emission and excitation."""
    return mode_starting_with(names, "em") >= 0 and mode_starting_with(names, "ex") >= 0


def _check_wavelengths(name: str, given: Any, size: int | None = None) -> list[float]:
    """Wavelengths in nm, checked."""
    if given is None:
        raise checks.ArgumentError(name, "must be given: X has no wavelengths in nm for it")
    try:
        wavelengths = np.array([float(_strip_unit(value)) for value in np.ravel(given)])
    except (TypeError, ValueError):
        raise checks.ArgumentError(name, f"must be wavelengths in nm, got {given!r}") from None
    if not wavelengths.size or not np.isfinite(wavelengths).all() or (wavelengths <= 0).any():
        raise checks.ArgumentError(name, f"must be wavelengths in nm, got {given!r}")
    if np.unique(wavelengths).size != wavelengths.size:
        raise checks.ArgumentError(name, "has a wavelength twice")
    if size is not None and wavelengths.size != size:
        raise checks.ArgumentError(name, f"must be {size} wavelengths, got {wavelengths.size}")
    return [float(value) for value in wavelengths]


def _strip_unit(value: Any) -> Any:
    """What stands before "nm" in a text such as "240 nm"."""
    return str(value).strip().removesuffix("nm") if isinstance(value, str) else value


def _check_order(eems: Landscapes) -> None:
    """Refuse landscapes whose modes must have been mistaken for each other."""
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
