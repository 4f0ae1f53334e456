"""Each file format, written by the library of its field."""

from __future__ import annotations

import numpy as np


def npy(path, X):
    np.save(path, X)


def npz(path, X):
    np.savez(path, X=X)


def npz_compressed(path, X):
    np.savez_compressed(path, X=X)


def mat5(path, X):
    from scipy.io import savemat

    savemat(path, {"X": {"data": X, "note": "a struct"}, "n": 3}, do_compression=True)


def mat73(path, X):
    import h5py

    with h5py.File(path, "w", userblock_size=512) as file:
        held = file.create_dataset("X/data", data=X.T)
        held.attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(116) + bytes(8) + b"\x00\x02IM")


def hdf5(path, X):
    import h5py

    with h5py.File(path, "w") as file:
        file["group/X"] = X


def as_xarray(X):
    import xarray

    names = ("sample", "emission", "excitation")
    return xarray.DataArray(X, dims=names, coords={"sample": [f"s{k}" for k in range(len(X))]})


def netcdf4(path, X):
    as_xarray(X).to_dataset(name="X").to_netcdf(path, engine="h5netcdf")


def netcdf3(path, X):
    as_xarray(X).to_dataset(name="X").to_netcdf(path, engine="scipy")


def zarr(path, X):
    as_xarray(X).drop_vars("sample").to_dataset(name="X").to_zarr(path, consolidated=False)


def nifti(path, X):
    import nibabel

    nibabel.save(nibabel.Nifti1Image(X, np.diag([2.0, 2.0, 3.0, 1.0])), path)


def tns(path, X):
    rows = [" ".join(str(i + 1) for i in at) + f" {x!r}" for at, x in np.ndenumerate(X.tolist())]
    path.write_text("\n".join(rows).replace("np.float64(", "").replace(")", "") + "\n")


def sptensor(path, X):
    tns(path, X)
    sizes = " ".join(map(str, X.shape))
    path.write_text(f"sptensor\n{X.ndim}\n{sizes}\n{X.size}\n" + path.read_text())


def toolbox(path, X):
    values = "\n".join(map(repr, X.ravel(order="F").tolist()))
    path.write_text(f"tensor\n{X.ndim}\n{' '.join(map(str, X.shape))}\n{values}\n")


def landscape(matrix):
    """Rows and columns with labels, as instruments export them."""
    import pandas

    rows, columns = matrix.shape
    index = pandas.Index(300 + 2 * np.arange(rows), name="emission")
    return pandas.DataFrame(matrix, index, 240 + 5 * np.arange(columns))


def landscapes(path, X):
    path.mkdir(exist_ok=True)
    for k, matrix in enumerate(X):
        landscape(matrix).to_csv(path / f"s{k}.csv")


def workbook(path, X):
    import pandas

    with pandas.ExcelWriter(path, engine="openpyxl") as book:
        for k, matrix in enumerate(X):
            landscape(matrix).to_excel(book, sheet_name=f"s{k}")


def long_sheet(path, X):
    table_of(X).to_excel(path, index=False)


def mat_with_axes(path, X):
    from scipy.io import savemat

    axes = {f"axis_{n}": np.arange(size) * 2.0 for n, size in enumerate(X.shape)}
    savemat(path, {"X": {"data": X, **axes}}, do_compression=True)


def hdf5_with_axes(path, X):
    import h5py

    with h5py.File(path, "w") as file:
        file["group/X"] = X
        file["group/names"] = [f"s{k}" for k in range(len(X))]
        file["group/nm"] = np.arange(X.shape[1]) * 2.0


def table_of(X):
    import pandas

    at = np.indices(X.shape).reshape(X.ndim, -1)
    columns = {f"mode_{n}": [f"{'abc'[n]}{k:03d}" for k in index] for n, index in enumerate(at)}
    return pandas.DataFrame(columns | {"value": X.ravel()})


def csv(path, X):
    table_of(X).to_csv(path, index=False)


def parquet(path, X):
    table_of(X).to_parquet(path)


#: Name of a file: how it is written.
FORMATS = {
    "x.npy": npy, "x.npz": npz, "compressed.npz": npz_compressed, "v5.mat": mat5,
    "v73.mat": mat73, "x.h5": hdf5, "x.nc": netcdf4, "classic.nc": netcdf3, "x.zarr": zarr,
    "x.nii": nifti, "x.nii.gz": nifti, "x.tns": tns, "x.csv": csv, "x.parquet": parquet,
    "sptensor.tns": sptensor, "tensor.tns": toolbox, "landscapes": landscapes,
    "sheets.xlsx": workbook, "long.xlsx": long_sheet, "axes.mat": mat_with_axes,
    "axes.h5": hdf5_with_axes,
}  # fmt: skip

#: What `read` must be told of some of them.
OPTIONS = {"sheets.xlsx": {"stack": True}}
