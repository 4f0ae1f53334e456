"""Landscapes of fluorescence: scatter, norms, spectra, OpenFluor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp import eem

EM, EX = np.arange(280.0, 601.0, 10.0), np.arange(240.0, 401.0, 10.0)


def peaks(nm, at, width):
    return np.exp(-0.5 * ((nm[:, None] - np.asarray(at)) / np.asarray(width)) ** 2)


@pytest.fixture(scope="module")
def truth():
    """Concentrations, whose spectra have a maximum of 1, and the spectra."""
    C = np.random.default_rng(0).uniform(0.5, 5.0, (12, 2)) * np.geomspace(0.1, 10, 12)[:, None]
    return C, peaks(EM, [350, 450], [25, 30]), peaks(EX, [270, 340], [15, 20])


@pytest.fixture(scope="module")
def X(truth):
    noise = 1e-3 * np.random.default_rng(1).standard_normal((12, EM.size, EX.size))
    return eem.landscapes(np.einsum("ir,jr,kr->ijk", *truth) + noise, emission=EM, excitation=EX)


# Scatter


def test_each_band_by_hand():
    em, ex = np.array([290.0, 300.0, 336.3, 600.0, 672.6]), np.array([300.0])

    def cut(**bands):
        return eem.scatter_mask(em, ex, **{"rayleigh": None, "raman": None, **bands})[:, 0].tolist()

    assert cut(rayleigh=(5, 0)) == [False, True, False, False, False]
    assert cut(rayleigh=(0, 5)) == [False, False, False, True, False]
    assert cut(raman=(1, 0)) == [False, False, True, False, False]  # 1/300 - 3600e-7 = 1/336.32
    assert cut(raman=(0, 1)) == [False, False, False, False, True]
    assert cut(rayleigh=20) == [True, True, False, True, False]  # its edges included
    assert cut(raman=(0, None)) == [False] * 5
    assert cut(raman=(1, 0), shift=3000.0) == [False] * 5


@given(
    st.lists(st.floats(200, 800), min_size=1, max_size=6, unique=True),
    st.lists(st.floats(200, 800), min_size=1, max_size=6, unique=True),
    st.tuples(st.floats(0, 60), st.floats(0, 60)),
    st.tuples(st.floats(0, 60), st.floats(0, 60)),
)
def test_masks_are_bands_entry_by_entry(em, ex, rayleigh, raman):
    mask = eem.scatter_mask(em, ex, rayleigh=rayleigh, raman=raman)
    for j, emitted in enumerate(em):
        for k, excited in enumerate(ex):
            shifted = 1e7 / (1e7 / excited - 3600.0)
            lines = (excited, 2 * excited, shifted, 2 * shifted)
            gaps = [
                abs(emitted - line) - width / 2
                for line, width in zip(lines, (*rayleigh, *raman), strict=True)
                if width
            ]
            if all(abs(gap) > 1e-9 for gap in gaps):
                assert mask[j, k] == any(gap < 0 for gap in gaps)


def test_cut_landscapes_are_missing_there_and_nowhere_else(X):
    cut = eem.mask_scatter(X, rayleigh=(20, 30), raman=10, below="kept")
    mask = eem.scatter_mask(EM, EX, rayleigh=(20, 30), raman=10)
    np.testing.assert_array_equal(np.isnan(cut), np.broadcast_to(mask, X.shape))
    np.testing.assert_array_equal(cut.data[:, ~mask], X.data[:, ~mask])
    assert not np.isnan(X.data).any()
    under = EM[:, None] < EX
    missing = eem.mask_scatter(X, rayleigh=(20, 30), raman=10)
    np.testing.assert_array_equal(np.isnan(missing.data[0]), mask | under)
    zero = eem.mask_scatter(X, rayleigh=(20, 30), raman=10, below="zero")
    np.testing.assert_array_equal(np.isnan(zero.data[0]), mask)
    assert not zero.data[:, under & ~mask].any()


def test_missing_entries_stay_missing(X):
    data = X.data.copy()
    data[2] = np.nan
    cut = eem.mask_scatter(data, emission=EM, excitation=EX, below="zero")
    assert np.isnan(cut.data[2]).all()


def test_modes_are_found_by_their_names(X):
    xarray = pytest.importorskip("xarray")
    turned = xarray.DataArray(
        np.moveaxis(X.data, 0, 2)[..., None].repeat(2, axis=3).transpose(1, 0, 2, 3),
        dims=("Excitation mode", "Emission mode", "file", "time"),
        coords={"Excitation mode": EX, "Emission mode": EM},
    )
    cut = eem.mask_scatter(turned)
    assert cut.modes == turned.dims
    assert (cut.emission_mode, cut.excitation_mode, cut.sample_mode) == (1, 0, 2)
    expected = np.isnan(eem.mask_scatter(X).data[0])
    np.testing.assert_array_equal(np.isnan(cut.data[:, :, 5, 1]).T, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"emission": EM[:-1]}, "^emission: must be 33 wavelengths, got 32"),
        ({"emission": None}, "^emission: must be given"),
        ({"emission": np.full(33, 300.0)}, "^emission: has a wavelength twice"),
        ({"excitation": [-1.0] * 17}, "^excitation: must be wavelengths in nm"),
        ({"excitation": ["a"] * 17}, "^excitation: must be wavelengths in nm"),
        ({"rayleigh": (1, 2, 3)}, "^rayleigh: must be a width or two of them"),
        ({"raman": -1}, "^raman: must be a number >= 0"),
        ({"below": "cut"}, "^below: must be one of"),
        ({"shift": 0}, "^shift: must be a number > 0"),
        ({"emission": EM / 3}, "^emission: is at 93.3333 to 200 nm .* mistaken"),
    ],
)
def test_bad_arguments_are_named(X, change, message):
    with pytest.raises(ValueError, match=message):
        eem.mask_scatter(X.data, **{"emission": EM, "excitation": EX, **change})


def test_tensors_without_names_must_have_three_modes(X):
    with pytest.raises(ValueError, match=r"^X: must be sample x emission x excitation"):
        eem.landscapes(X.data[None], emission=EM, excitation=EX)
    with pytest.raises(ValueError, match=r"^samples: must be 12 names, got 2"):
        eem.landscapes(X, samples=["a", "b"])


# Norms and spectra


@pytest.mark.parametrize("by", ["rms", "total", "largest"])
def test_norms_are_undone_in_the_scores(truth, X, by):
    normal = eem.normalise(eem.mask_scatter(X), by)
    assert normal.norms.mean() == pytest.approx(1.0)
    np.testing.assert_allclose(
        normal.data * normal.norms[:, None, None], eem.mask_scatter(X).data, rtol=1e-12
    )
    found = eem.spectra(robustcp.cp(normal, 2, nonnegative=True), normal)
    order = np.argsort(found.peaks[:, 0])
    np.testing.assert_allclose(found.fmax[:, order], truth[0], rtol=0.02, atol=0.02)
    np.testing.assert_allclose(found.emission_loadings[:, order], truth[1], atol=0.05)
    np.testing.assert_allclose(found.excitation_loadings[:, order], truth[2], atol=0.05)
    assert "normalised" in repr(normal)


def test_samples_are_left_out_by_name_or_position(X):
    named = eem.normalise(eem.landscapes(X, samples=[f"S{k}" for k in range(12)]))
    left = named.without(["S3", 7])
    kept = [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    np.testing.assert_array_equal(left.data, named.data[kept])
    np.testing.assert_array_equal(left.norms, named.norms[kept])
    assert left.labels[0] == [f"S{k}" for k in kept]
    assert left.labels[1:] == named.labels[1:]
    assert X.without([0]).labels[0] is None
    with pytest.raises(ValueError, match=r"^samples: must be a position or a label of sample"):
        named.without(["S12"])


def test_norms_of_empty_samples_and_of_samples_twice(X):
    data = X.data.copy()
    data[3], data[4] = 0.0, np.nan
    once = eem.normalise(eem.landscapes(data, emission=EM, excitation=EX))
    assert list(once.norms[3:5]) == [1.0, 1.0]
    twice = eem.normalise(once, "largest")
    np.testing.assert_allclose(twice.data * twice.norms[:, None, None], data)
    with pytest.raises(ValueError, match=r"^X: sample 5 has a total below 0"):
        eem.normalise(eem.landscapes(-data[[0, 1, 2, 3, 0, 5]], emission=EM, excitation=EX,
                                     samples=range(6)), "total")  # fmt: skip


def test_spectra_of_a_fit_that_does_not_know_the_wavelengths(X):
    fit = robustcp.cp(X.data, 2, starts=1)
    with pytest.raises(ValueError, match=r"^X: must be given"):
        eem.spectra(fit)
    with pytest.raises(ValueError, match=r"^X: has shape"):
        eem.spectra(fit, eem.landscapes(X.data[:5], emission=EM, excitation=EX))
    found, known = eem.spectra(fit, X), eem.spectra(robustcp.cp(X, 2, starts=1))
    np.testing.assert_array_equal(found.fmax, known.fmax)
    assert repr(found).startswith("Spectra(rank 2, excitation/emission peaks at ")


def test_similarity_goes_by_common_wavelengths(truth):
    one = eem.Spectra(EM, EX, truth[1], truth[2])
    fine_em, fine_ex = np.arange(300.0, 500.0)[::-1], np.arange(250.0, 380.0)
    other = eem.Spectra(
        fine_em, fine_ex, peaks(fine_em, [450, 350], [30, 25]), peaks(fine_ex, [340, 270], [20, 15])
    )
    alike = one.similarity(other)
    assert alike[0, 1] > 0.999
    assert alike[1, 0] > 0.999
    assert alike[0, 0] < 0.1
    np.testing.assert_allclose(np.diag(one.similarity(one)), 1.0)
    with pytest.raises(ValueError, match="wavelengths of emission in common"):
        one.similarity(eem.Spectra(EM + 1000, EX, truth[1], truth[2]))


def test_spectra_are_drawn_over_those_they_are_like(truth):
    one = eem.Spectra(EM, EX, truth[1], truth[2])
    other = eem.Spectra(EM, EX, 7 * truth[1][:, ::-1], truth[2][:, ::-1])
    axes = one.plot(other, labels=["this", "that"])
    for ax in axes:
        solid = [line for line in ax.lines if line.get_linestyle() == "-"]
        np.testing.assert_allclose(solid[0].get_ydata(), solid[1].get_ydata())
    (legend,) = axes[0].figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["excitation", "emission", "this", "that"]
    with pytest.raises(ValueError, match="labels: must be 2 names"):
        one.plot(other, labels=["this"])


# OpenFluor


@pytest.fixture
def found(X):
    return eem.Spectra(
        EM, EX, peaks(EM, [350.123456789], [25]), peaks(EX, [270], [15]),
        np.array([[1.5], [2.25e-7]]), ("2020-01-01", "2020-01-02"), {"name": "a lake, ö"},
    )  # fmt: skip


def test_what_is_written_is_read(found, tmp_path):
    path = tmp_path / "model.txt"
    eem.write_openfluor(path, found, {"doi": "10.1/x"}, scores=True)
    again = eem.read_openfluor(path)
    for name in ("emission", "excitation", "emission_loadings", "excitation_loadings", "scores"):
        np.testing.assert_allclose(getattr(again, name), getattr(found, name), rtol=1e-9)
    assert again.samples == found.samples
    assert again.info["name"] == "a lake, ö"
    assert again.info["doi"] == "10.1/x"
    assert again.info["nSample"] == "2"
    assert again.info["toolbox"].startswith("robustcp")
    last = path.read_text(encoding="utf-8").splitlines()[-2:]
    assert last[0].startswith("Score\t2020-01-02\t")  # another line here, and eem-python hangs
    assert last[1] == "# end #"
    eem.write_openfluor(path, again, force=True)
    assert eem.read_openfluor(path).scores is None
    with pytest.raises(ValueError, match="fmax: there are no scores"):
        eem.read_openfluor(path).fmax  # noqa: B018


def test_fmax_of_files_whose_loadings_have_other_maxima(found, tmp_path):
    scaled = eem.Spectra(EM, EX, 2 * found.emission_loadings, 5 * found.excitation_loadings,
                         found.scores / 10, found.samples)  # fmt: skip
    np.testing.assert_allclose(scaled.fmax, found.fmax)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no file of OpenFluor"),
        ("name\tx\nEx\t250\t1\n", "is no file of OpenFluor"),
        ("Ex\t250\t1\nEm\t300\t1\t2\n", "has rows with 1 and 2"),
        ("Ex\t250\t1\nEm\t300\ta\n", "line 2 has something else than numbers"),
        ("Ex\t250\t1\nEm\tx\t1\n", "'x' is not a wavelength"),
        ("Ex\t250\nEm\t300\n", "must have one number for each component"),
    ],
)
def test_damaged_files_are_refused(text, message, tmp_path):
    path = tmp_path / "model.txt"
    path.write_text(text)
    with pytest.raises(robustcp.FileError, match=message):
        eem.read_openfluor(path)


def test_files_that_cannot_be(found, tmp_path):
    with pytest.raises(robustcp.FileError, match="cannot be read"):
        eem.read_openfluor(tmp_path / "none.txt")
    path = tmp_path / "model.txt"
    path.write_text("mine")
    with pytest.raises(robustcp.FileError, match="force replaces it"):
        eem.write_openfluor(path, found)
    assert path.read_text() == "mine"
    for text in ("two\nlines", "a # b", "a\tb"):
        with pytest.raises(ValueError, match="info: must be one line without tabs and #"):
            eem.write_openfluor(path, found, {"name": text}, force=True)
    with pytest.raises(ValueError, match="info: must be one line"):
        eem.write_openfluor(path, found, {"Ex": "1"}, force=True)


# Files of instruments


def exported(folder, separator=",", corner="", unit="", end="", before="", comma=".", grid=EM[:6]):
    """Three landscapes, the number of the sample times that of the cell plus one half."""
    folder.mkdir()
    for k in (1, 2, 10):
        rows = [[corner, *(f"{nm:g}{unit}" for nm in EX[:4])]]
        cells = k * (np.arange(24.0).reshape(6, 4) + 0.5)
        rows += [[f"{nm:g}", *(f"{x:g}" for x in row)] for nm, row in zip(grid, cells, strict=True)]
        lines = (separator.join(row).replace(".", comma) + end for row in rows)
        (folder / f"lake {k}.dat").write_text(before + "\n".join(lines) + "\n", encoding="latin-1")
    (folder / ".DS_Store").write_bytes(b"\0\1")
    return folder


@pytest.mark.parametrize(
    "form",
    [
        {"separator": "\t", "corner": "Wavelength"},
        {"corner": "Wellenlänge (nm)", "end": ","},
        {"separator": ";", "comma": ","},
        {"unit": " nm", "before": "# blank subtracted\n\n"},
        {"separator": "\t", "corner": "0", "end": "\r"},
    ],
)
def test_exports_of_instruments(form, tmp_path):
    X = eem.read(exported(tmp_path / "lakes", **form))
    assert X.labels[0] == ["lake 1", "lake 2", "lake 10"]
    np.testing.assert_array_equal(X.emission, EM[:6])
    np.testing.assert_array_equal(X.excitation, EX[:4])
    cells = np.arange(24.0).reshape(6, 4) + 0.5
    np.testing.assert_allclose(X.data, np.array([1.0, 2.0, 10.0])[:, None, None] * cells)


def test_files_that_are_no_landscapes_say_what_to_do(tmp_path):
    folder = exported(tmp_path / "lakes")
    (folder / "lake 2.dat").write_text("Sample:,S1\nData points\n,240,250\n300,1,2\n")
    with pytest.raises(robustcp.FileError, match=r"lake 2.*line 2 has 1 fields .* begin with #"):
        eem.read(folder)
    (folder / "lake 2.dat").write_text(",240,250\nnm,a.u.,a.u.\n300,1,2\n")
    with pytest.raises(robustcp.FileError, match=r"lake 2.*has 'a.u.' in row 0.* begin with #"):
        eem.read(folder)
    (folder / "lake 2.dat").unlink()
    other = exported(tmp_path / "other", grid=EM[:6] + 1)
    (folder / "lake 2.dat").write_text((other / "lake 2.dat").read_text())
    with pytest.raises(robustcp.FileError, match="lake 2 has other rows than lake 1, such as 281"):
        eem.read(folder)
    with pytest.raises(robustcp.FileError, match="are the two mistaken"):
        eem.read(exported(tmp_path / "turned"), rows="excitation")


# Real data, and another package


def test_kinetic_fluorescence():
    """The set that comes with TensorLy: measurement x emission x excitation x time."""
    xarray = pytest.importorskip("xarray")
    datasets = pytest.importorskip("tensorly.datasets")
    kinetic = datasets.load_kinetic()
    X = xarray.DataArray(
        np.asarray(kinetic.tensor)[::8, :, :, ::10], dims=kinetic.dims,
        coords={"Emission mode": kinetic.ticks[1], "Excitation mode": kinetic.ticks[2]},
    )  # fmt: skip
    cut = eem.normalise(eem.mask_scatter(X))
    found = eem.spectra(robustcp.cp(cut, 2, nonnegative=True, starts=2), cut)
    assert found.fmax.shape == (8, 2)
    assert found.emission_loadings.shape == (12, 2)
    np.testing.assert_allclose(found.emission_loadings.max(axis=0), 1.0)


@pytest.mark.slow
def test_masks_are_those_of_eem_python():
    basic = pytest.importorskip("eempy.eem_processing.basic", reason="needs eem-python")
    em, ex = np.arange(250.0, 801.0, 1.0), np.arange(230.0, 501.0, 2.0)
    blank = np.ones((ex.size, em.size))
    for widths, width in (((20, 30), 5), ((14, 9), 11)):
        _, first, second = basic.eem_rayleigh_scattering_removal(
            blank, ex, em, width_o1=widths[0], width_o2=widths[1]
        )
        _, raman = basic.eem_raman_scattering_removal(
            blank, ex, em, width=width, interpolation_method="nan"
        )
        for theirs, bands in (
            (first, {"rayleigh": (widths[0], 0), "raman": None}),
            (second, {"rayleigh": (0, widths[1]), "raman": None}),
            (raman, {"rayleigh": None, "raman": (width, 0)}),
        ):
            mask = eem.scatter_mask(em, ex, **bands)
            assert mask.sum() > 500
            np.testing.assert_array_equal(mask.T, theirs == 0)


@pytest.mark.slow
def test_openfluor_files_go_through_eem_python(found, X, tmp_path, capsys):
    read_data = pytest.importorskip("eempy.read_data", reason="needs eem-python")
    processing = pytest.importorskip("eempy.eem_processing", reason="needs eem-python")
    path, theirs = tmp_path / "ours.txt", tmp_path / "theirs.txt"
    eem.write_openfluor(path, found, scores=True)
    ex, em, scores, info = read_data.read_parafac_model_from_openfluor(str(path))
    for frame, nm, ours in ((ex, EX, found.excitation_loadings), (em, EM, found.emission_loadings)):
        np.testing.assert_allclose(frame.index.get_level_values("wavelength"), nm)
        np.testing.assert_allclose(frame.to_numpy(), ours, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(scores.to_numpy(), found.scores, rtol=1e-6)
    assert info["name"] == found.info["name"]

    model = processing.PARAFAC(n_components=2)
    data = processing.EEMDataset(X.data.transpose(0, 2, 1), EX, EM)
    model.fit(data)
    model.export(str(theirs), {"name": "theirs"})
    again = eem.read_openfluor(theirs)
    np.testing.assert_allclose(again.emission_loadings, model.em_loadings.to_numpy(), atol=1e-6)
    np.testing.assert_allclose(again.excitation_loadings, model.ex_loadings.to_numpy(), atol=1e-6)
    np.testing.assert_allclose(again.fmax, model.nnls_fmax.to_numpy(), rtol=1e-6)
    eem.write_openfluor(path, again, scores=False, force=True)
    ex, em, _, _ = read_data.read_parafac_model_from_openfluor(str(path))
    np.testing.assert_allclose(em.to_numpy(), model.em_loadings.to_numpy(), atol=1e-6)
    np.testing.assert_allclose(ex.to_numpy(), model.ex_loadings.to_numpy(), atol=1e-6)
