"""Spectra from landscapes with scatter: from a folder of files to Fmax and a file for OpenFluor.

Landscapes are fitted with their scatter left in, by least squares and by `cp`, and by `cp` with
the scatter cut and samples normalised, which the scores are freed of again. Halves of the samples
show whether components come back. Written for OpenFluor, the spectra are read again.

    python examples/fluorescence.py                      # simulated files, the truth is known
    python examples/fluorescence.py --data aminoacids    # the data that comes with pygenten
    python examples/fluorescence.py --data kinetic       # the data that comes with TensorLy

Beside fluorescence.png there are _halves and _sample, and fluorescence.txt for OpenFluor. The
scatter of the amino acids is weak; more is laid over them. The kinetic data is as measured.
"""

import argparse
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linear_sum_assignment

import robustcp
from robustcp import eem

#: The bands that are cut, nm wide. What lies below them was measured: nothing but noise.
BANDS = {"rayleigh": 40, "raman": 30, "below": "kept"}


def with_scatter(X: np.ndarray, emission: np.ndarray, excitation: np.ndarray, rng) -> np.ndarray:
    """Lines of scatter, as high as the largest peak of all, in each sample more or less."""
    lines = ((1.0, excitation), (0.3, 2 * excitation), (0.1, 1e7 / (1e7 / excitation - 3600)))
    off = ((height, (emission[:, None] - line) / 6) for height, line in lines)
    scatter = sum(height * np.exp(-0.5 * z**2) for height, z in off)
    return X + X.max() * scatter * rng.uniform(0.7, 1.3, (len(X), 1, 1))


def simulated(small: bool, seed: int) -> tuple[eem.Landscapes, eem.Spectra, robustcp.KruskalTensor]:
    """Three fluorophores in samples of different strength, read from CSV files; the truth."""
    rng = np.random.default_rng(seed)
    samples, *steps = (12, 30, 18) if small else (24, 57, 43)
    em, ex = np.linspace(300, 580, steps[0]), np.linspace(240, 450, steps[1])
    peaks, widths = rng.normal([[350, 430, 510], [270, 320, 380]], 4), rng.uniform(12, 24, (2, 3))
    B, C = (np.exp(-0.5 * ((nm[:, None] - at) / width) ** 2)
            for nm, at, width in zip((em, ex), peaks, widths, strict=True))  # fmt: skip
    A = 100 * rng.gamma(2, 1, (samples, 3)) * rng.uniform(0.3, 3, (samples, 1))
    M = np.einsum("ir,jr,kr->ijk", A, B, C)
    M += (0.002 * M.max() + 0.02 * M) * rng.standard_normal(M.shape)
    with TemporaryDirectory() as folder:
        for k, landscape in enumerate(with_scatter(M, em, ex, rng)):
            table = np.block([[np.nan, ex], [em[:, None], landscape]])
            np.savetxt(Path(folder) / f"lake {k + 1}.csv", table, delimiter=",", fmt="%.6g")
        X = eem.read(folder)
    truth = eem.Spectra(em, ex, B, C, A)
    return X, truth, robustcp.KruskalTensor.from_factors([A, B, C])


def aminoacids(small: bool, seed: int) -> tuple[eem.Landscapes, eem.Spectra, robustcp.Fit]:
    """Tryptophan, tyrosine and phenylalanine in five samples; least squares as measured."""
    path = files("pygenten") / "share" / "genten" / "data" / "aminoacid_data_dense.txt"
    text = path.read_text(encoding="utf-8").split()
    data = np.array(text[5:], dtype=float).reshape((5, 201, 61), order="F")
    step = 4 if small else 2
    nm = {"emission": np.arange(250.0, 451.0, step), "excitation": np.arange(240.0, 301.0, step)}
    measured = eem.landscapes(data[:, ::step, ::step], **nm)
    reference = least_squares(measured, 3)
    rng = np.random.default_rng(seed)
    names = ["Trp", "Tyr", "Phe", "mixture 1", "mixture 2"]
    spoilt = with_scatter(measured.data, measured.emission, measured.excitation, rng)
    X = eem.landscapes(spoilt, samples=names, **nm)
    return X, eem.spectra(reference, measured), reference


def kinetic(small: bool, seed: int) -> tuple[eem.Landscapes, eem.Spectra, robustcp.Fit]:
    """Phenols that react, measurement x emission x excitation x time; least squares, rank 2."""
    import xarray
    from tensorly.datasets import load_kinetic

    found = load_kinetic()
    ticks = [np.asarray(each) for each in found.ticks]
    names = ("measurement", "emission", "excitation", "time")
    labels = dict(zip(names, ticks, strict=True))
    whole = xarray.DataArray(np.asarray(found.tensor), dims=names, coords=labels)
    X = eem.landscapes(whole[:: 4 if small else 1, :, :, :: 20 if small else 6])
    reference = least_squares(eem.mask_scatter(X, **BANDS), 2)
    return X, eem.spectra(reference, X), reference


SOURCES = {"simulated": simulated, "aminoacids": aminoacids, "kinetic": kinetic}


def least_squares(X: eem.Landscapes, rank: int) -> robustcp.Fit:
    """Nonnegative least squares, the best of ten starts."""
    nonnegative = dict.fromkeys(X.modes, robustcp.Nonnegative())
    return robustcp.cpals(X, rank, constraints=nonnegative, init="random", starts=10, rng=0)


def error_of_fmax(found: eem.Spectra, truth: eem.Spectra) -> float:
    """How far Fmax is off, at the median, relative to the mean of its component."""
    rows, columns = linear_sum_assignment(truth.similarity(found), maximize=True)
    off = np.abs(found.fmax[:, columns] - truth.fmax[:, rows])
    return float(np.median(off / truth.fmax[:, rows].mean(axis=0)))


def main(
    out: str = "fluorescence.png", data: str = "simulated", small: bool = False, seed: int = 0
) -> dict:
    """Read, fit in three ways, compare, split the samples, write for OpenFluor, draw."""
    X, truth, model = SOURCES[data](small, seed)
    cut = eem.normalise(eem.mask_scatter(X, **BANDS))
    print(X, cut, sep="\n")
    options = {"nonnegative": True}
    left_in, without = (
        robustcp.cp(X, truth.rank, **options),
        robustcp.cp(cut, truth.rank, **options),
    )
    spoilt = least_squares(X, truth.rank)
    found = {
        "least squares, scatter in": eem.spectra(spoilt, X),
        "cp, scatter in": eem.spectra(left_in, X),
        "cp, scatter cut": eem.spectra(without, cut),  # not normalised any more
    }
    scores = [robustcp.factor_match_score(fit, model) for fit in (spoilt, left_in)]
    errors = [error_of_fmax(each, truth) for each in found.values()]
    print("factor match score, scatter in: least squares {:.3f}, cp {:.3f}".format(*scores))
    for (name, each), error in zip(found.items(), errors, strict=True):
        print(f"{name}: {each}; Fmax off by {error:.1%}")

    path = Path(out)
    final = found["cp, scatter cut"]
    info = {"name": f"{data} example", "constraints": "nonnegative", "unit": "arbitrary"}
    eem.write_openfluor(path.with_suffix(".txt"), final, info, force=True)
    again = eem.read_openfluor(path.with_suffix(".txt"))
    print("read from the file again:", again)

    drawn = list(found)[:2]
    names = ["truth" if data == "simulated" else "reference", *drawn]
    panels = truth.plot(*(found[name] for name in drawn), labels=names, figsize=(10.5, 3.4))
    panels[0].figure.savefig(path, dpi=150)
    strongest = int(final.fmax.sum(axis=1).argmax())
    later = range(3, len(X.shape))  # modes beside sample, emission and excitation
    sample = robustcp.plot.slices(left_in, X, (strongest, *(0 for _ in later)), (0, *later))
    sample[0].figure.savefig(path.with_name(f"{path.stem}_sample.png"), dpi=150)
    halves = None
    if X.shape[X.sample_mode] >= 8:
        halves = robustcp.replicability(cut, truth.rank, mode=X.sample_mode, preset="split_half",
                                        **options)  # fmt: skip
        print(halves)
        grid = robustcp.plot.split_half(halves)
        grid[0, 0].figure.savefig(path.with_name(f"{path.stem}_halves.png"), dpi=150)
    plt.close("all")
    return {"scores": scores, "errors": errors, "halves": halves, "written": final, "read": again}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", default="fluorescence.png", help="the picture")
    parser.add_argument("--data", choices=SOURCES, default="simulated")
    parser.add_argument("--small", action="store_true", help="fewer samples and wavelengths")
    parser.add_argument("--seed", type=int, default=0, help="of what is simulated")
    main(**vars(parser.parse_args()))
