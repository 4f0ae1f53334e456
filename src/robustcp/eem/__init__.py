"""Excitation-emission matrices: landscapes of fluorescence, from a folder to OpenFluor.

Landscapes are read, or made of an array and its wavelengths. Scatter is cut or left in, samples are
normalised or not. `robustcp.cp` takes them as they are; what comes out of a fit are spectra and
each sample's Fmax, which can be written for OpenFluor and compared with what is found there.
"""

from robustcp.eem.landscapes import (
    Landscapes,
    landscapes,
    mask_scatter,
    normalise,
    read,
    scatter_mask,
)
from robustcp.eem.openfluor import read_openfluor, write_openfluor
from robustcp.eem.spectra import Spectra, spectra

__all__ = [
    "Landscapes",
    "Spectra",
    "landscapes",
    "mask_scatter",
    "normalise",
    "read",
    "read_openfluor",
    "scatter_mask",
    "spectra",
    "write_openfluor",
]
