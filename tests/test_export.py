"""Fits as files of other programs: read by pandas, SciPy and xarray, and read back."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import robustcp
from robustcp.persist.errors import FileError
from robustcp.persist.fits import load_model
from robustcp.persist.formats import FORMATS
from support.formats import as_xarray
from test_files import NAMES, SOME_LABELS, assert_as_they_were, fit_of, st

pandas = pytest.importorskip("pandas")
xarray = pytest.importorskip("xarray")

WHOLE = [suffix for suffix in FORMATS if suffix != ".csv"]


@pytest.fixture(scope="module")
def fit():
    X = as_xarray(robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data)
    days = np.array("2026-01-01", "datetime64[ns]") + np.arange(8) * np.timedelta64(1, "D")
    X = X.assign_coords(emission=300.5 + np.arange(7), excitation=days)
    return robustcp.cp(X, 2, cases="sample", noise=["emission"])


def written(fit, folder, suffix):
    path = Path(folder) / f"fit{suffix}"
    fit.save(path)
    return path


def as_held(held, labels):
    """What pandas, SciPy and xarray give back: factors and labels of each mode."""
    return np.asarray(held, dtype=float), list(labels)


def by_pandas_from_excel(path, fit):
    sheets = pandas.read_excel(path, sheet_name=None, index_col=0)
    return [as_held(sheets[name], sheets[name].index) for name in fit.modes], sheets["weights"]


def by_pandas_from_csv(path, fit):
    table = pandas.read_csv(path)
    found = []
    for name in fit.modes:
        part = table[table["mode"] == name]
        found.append(as_held(part.filter(like="component"), part["label"]))
    return found, table[table["mode"] == "weights"].filter(like="component")


def by_scipy(path, fit):
    from scipy.io import loadmat

    held = loadmat(path, simplify_cells=True)
    assert held["modes"].tolist() == list(fit.modes)
    return [
        as_held(A, labels) for A, labels in zip(held["factors"], held["labels"], strict=True)
    ], held["weights"]


def by_xarray(path, fit):
    with xarray.open_dataset(path, engine="h5netcdf") as held:
        held = held.load()
    return [
        as_held(held[f"factor_{n}"], held[name].values) for n, name in enumerate(fit.modes)
    ], held["weights"]


def by_json(path, fit):
    held = json.loads(path.read_text(), parse_constant=pytest.fail)
    frames = [pandas.DataFrame(m["factor"], index=m["labels"]) for m in held["modes"]]
    return [as_held(frame, frame.index) for frame in frames], held["weights"]


def by_numpy(path, fit):
    with np.load(path) as held:
        labels = json.loads(str(held["robustcp"]))["labels"]
        labels[2] = [label["datetime"][0] for label in labels[2]]
        return [as_held(held[f"factor_{n}"], labels[n]) for n in range(3)], held["weights"]


READERS = {
    ".xlsx": by_pandas_from_excel, ".csv": by_pandas_from_csv, ".mat": by_scipy,
    ".nc": by_xarray, ".json": by_json, ".npz": by_numpy,
}  # fmt: skip


class TestRoundTrips:
    @pytest.mark.parametrize("suffix", FORMATS)
    def test_other_programs_read_factors_and_labels(self, tmp_path, fit, suffix):
        parts, weights = READERS[suffix](written(fit, tmp_path, suffix), fit)
        close = 1e-9 if suffix in (".csv", ".json") else 1e-12
        for (A, labels), B, expected in zip(parts, fit.factors, fit.labels, strict=True):
            np.testing.assert_allclose(A, B, rtol=close, atol=0)
            if isinstance(expected[0], float):
                np.testing.assert_allclose(np.array(labels, dtype=float), expected)
            elif isinstance(expected[0], str):
                assert labels == expected
            else:
                assert list(pandas.to_datetime(labels)) == expected
        weights = np.asarray(weights, dtype=float).ravel()
        np.testing.assert_allclose(weights, fit.weights, rtol=close)

    @pytest.mark.parametrize("suffix", WHOLE)
    def test_all_of_a_fit_comes_back(self, tmp_path, fit, suffix):
        back = robustcp.load(written(fit, tmp_path, suffix))
        for A, B in zip((back.weights, *back.factors), (fit.weights, *fit.factors), strict=True):
            np.testing.assert_allclose(A, B, rtol=1e-15 if suffix == ".xlsx" else 0, atol=0)
        np.testing.assert_array_equal(back.trace, fit.trace)
        np.testing.assert_array_equal(back.cases.distances, fit.cases.distances)
        np.testing.assert_array_equal(back.noise.slabs[1], fit.noise.slabs[1])
        assert (back.modes, back.labels, back.status) == (fit.modes, fit.labels, fit.status)
        assert (back.loss, back.constraints, back.warnings) == (
            fit.loss, fit.constraints, fit.warnings,
        )  # fmt: skip
        assert repr(back) == repr(fit)

    @pytest.mark.parametrize("suffix", WHOLE)
    def test_slabs_without_entries_stay_unknown(self, tmp_path, suffix):
        X = as_xarray(robustcp.simulate((6, 7, 8), 1, eta=0.1, gamma=1.0, rng=0).data)
        X[4], X[:, 2] = np.nan, np.nan
        fit = robustcp.cp(X, 1)
        fit.report(X, tmp_path / "fit.html")
        back = robustcp.load(written(fit, tmp_path, suffix))
        assert back.unobserved == fit.unobserved == ((4,), (2,), ())
        np.testing.assert_array_equal(np.isnan(back.full()), np.isnan(X))
        turned = X.transpose("excitation", "emission", "sample")[:, :, ::-1]
        np.testing.assert_array_equal(np.isnan(back.aligned_to(turned).full()), np.isnan(turned))
        np.testing.assert_array_equal(np.isnan(back.residuals(turned)), np.isnan(turned))

    @pytest.mark.parametrize("suffix", WHOLE)
    def test_float32_and_known_noise(self, tmp_path, suffix):
        X = robustcp.simulate((5, 6, 7), 1, eta=0.1, gamma=1.0, rng=0).data.astype(np.float32)
        known = np.random.default_rng(0).uniform(0.1, 0.2, X.shape)
        fit = robustcp.cp(X, 1, noise=known)
        back = robustcp.load(written(fit, tmp_path, suffix))
        assert back.factors[0].dtype == np.float32
        np.testing.assert_allclose(back.factors[2], fit.factors[2], rtol=1e-7)
        np.testing.assert_allclose(back.sigma(X), fit.sigma(X), rtol=1e-6)

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_a_file_that_exists_is_replaced_only_on_demand(self, tmp_path, fit, suffix):
        path = written(fit, tmp_path, suffix)
        before = path.read_bytes()
        for save in (fit.save, lambda *args: robustcp.save(fit, *args)):
            with pytest.raises(FileExistsError, match=r"^path: .* exists; overwrite=True replaces"):
                save(path)
        assert path.read_bytes() == before
        path.write_bytes(b"other")
        fit.save(path, overwrite=True)
        assert len(path.read_bytes()) > 100

    def test_csv_holds_a_model_and_says_that_it_is_no_fit(self, tmp_path, fit):
        path = written(fit, tmp_path, ".csv")
        model = load_model(path)
        assert robustcp.factor_match_score(model, fit) == pytest.approx(1)
        with pytest.raises(FileError, match="holds the factors of a fit only"):
            robustcp.load(path)

    def test_other_suffixes_are_refused(self, tmp_path, fit):
        with pytest.raises(FileError, match=r"a fit is written as \.npz, \.nc, \.json, \.mat"):
            fit.save(tmp_path / "fit.pkl")

    @settings(max_examples=15)
    @given(st.lists(st.tuples(NAMES, SOME_LABELS), min_size=2, max_size=3))
    def test_any_names_and_labels(self, modes):
        fit = fit_of([name for name, _ in modes], [labels for _, labels in modes])
        with tempfile.TemporaryDirectory() as folder:
            written(fit, folder, ".csv")
            for suffix in (".json", ".mat", ".xlsx"):
                back = robustcp.load(written(fit, folder, suffix))
                assert back.modes == fit.modes
                for found, expected in zip(back.labels, fit.labels, strict=True):
                    assert_as_they_were(found, expected)

    def test_text_is_not_a_formula(self, tmp_path):
        fit = fit_of(["=1+1", "b"], [["=2+2", "@x"], ["+3", "-4"]])
        sheets = pandas.read_excel(written(fit, tmp_path, ".xlsx"), sheet_name=None, index_col=0)
        assert list(sheets["=1+1"].index) == ["=2+2", "@x"]
        with zipfile.ZipFile(tmp_path / "fit.xlsx") as book:
            assert not any(b"<f>" in book.read(name) for name in book.namelist())

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_no_pickle(self, tmp_path, fit, suffix, monkeypatch):
        def refused(*_, **__):
            pytest.fail("pickled")

        for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
            monkeypatch.setattr(pickle, name, refused)
        load_model(written(fit, tmp_path, suffix))


@pytest.mark.process
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("copies", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_copies_end_in_one_line_or_a_fit(tmp_path, fit, suffix, copies):
    path = written(fit, tmp_path, suffix)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(path), str(copies)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def damage(path: Path, copies: int) -> None:
    """Load damaged copies of a file; anything but a FileError of one line or a fit is raised."""
    import faulthandler

    faulthandler.dump_traceback_later(300, exit=True)  # a hang
    rng = np.random.default_rng(0)
    content = path.read_bytes()
    victim = path.with_name("damaged" + path.suffix)
    for k in range(copies):
        copy = bytearray(content)
        if k % 3 == 0:
            copy = copy[: int(rng.integers(len(copy)))]
        else:
            for at in rng.integers(len(copy), size=int(rng.integers(1, 9))):
                copy[at] = int(rng.integers(256))
        victim.write_bytes(bytes(copy))
        try:
            if path.suffix == ".csv":
                load_model(victim).full()
            else:
                str(robustcp.load(victim).summary())
        except FileError as error:
            if "\n" in str(error) or str(victim) not in str(error):
                raise


if __name__ == "__main__":
    damage(Path(sys.argv[1]), int(sys.argv[2]))
