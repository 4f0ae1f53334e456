"""Names and labels: taken wherever a mode or an index is, and data that disagrees is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp.engines import Axes, align_to_axes, axes_of

pandas = pytest.importorskip("pandas")
xarray = pytest.importorskip("xarray")

MODES = ("sample", "emission", "excitation")


@pytest.fixture(scope="module")
def cube():
    """A tensor with names and labels of each kind, and one bad sample."""
    X = robustcp.simulate((8, 7, 6), 2, eta=0.0, gamma=0.0, rng=0).data.copy()
    X[3] += np.where(np.random.default_rng(0).random((7, 6)) < 0.3, 5.0, 0.0)
    days = np.arange(6) * np.timedelta64(1, "D")
    labels = {
        "sample": [f"s{k}" for k in range(8)],
        "emission": 300.0 + 2 * np.arange(7),
        "excitation": np.array("2026-01-01", "datetime64[ns]") + days,
    }  # fmt: skip
    return xarray.DataArray(X, dims=MODES, coords=labels)


@pytest.fixture(scope="module")
def fit(cube):
    return robustcp.cp(cube, 2)


def shuffled(cube, seed=0):
    """The same data with its modes and all of its indices in another order."""
    rng = np.random.default_rng(seed)
    turned = cube.transpose(*rng.permutation(cube.dims))
    return turned.isel({name: rng.permutation(size) for name, size in turned.sizes.items()})


class TestModesAndIndices:
    def test_modes_by_name(self, cube, fit):
        found = fit.outliers(cube)
        assert found.worst("sample") == found.worst(0)
        assert found.worst("sample")[0].label == "s3"
        assert found.worst("sample", 1)[0][0] == 3
        np.testing.assert_array_equal(fit.project(cube, "sample"), fit.project(cube, 0))
        np.testing.assert_array_equal(
            robustcp.nvecs(cube, "emission", 2), robustcp.nvecs(cube, 1, 2)
        )

    def test_fixed_and_nonnegative_by_name(self, cube, fit):
        again = robustcp.cp(cube, 2, init=fit, fixed=("emission", "excitation"))
        np.testing.assert_allclose(again.factors[1], fit.factors[1], atol=1e-12)
        some = robustcp.cp(abs(cube), 2, nonnegative=["sample", 2])
        flags = robustcp.cp(abs(cube), 2, nonnegative=(True, False, True))
        for A, B in zip(some.factors, flags.factors, strict=True):
            np.testing.assert_array_equal(A, B)

    @pytest.mark.parametrize("wrong", [["colour"], ["sample", True], [7], "colour", [None]])
    def test_modes_that_are_not_there(self, cube, wrong):
        with pytest.raises(ValueError, match="nonnegative: must be"):
            robustcp.cp(cube, 2, nonnegative=wrong)

    def test_indices_by_label(self, cube, fit):
        found = fit.outliers(cube)
        slice_ = found.scores_of({1: 2})
        np.testing.assert_array_equal(found.scores_of({"emission": 304.0}), slice_)
        np.testing.assert_array_equal(found.scores_of({"emission": 2}), slice_)
        day = found.scores_of({2: 3})
        for label in ("2026-01-04", np.datetime64("2026-01-04"), fit.labels[2][3]):
            np.testing.assert_array_equal(found.scores_of({"excitation": label}), day)
        at = fit.at([("s3", 304.0, 5), (3, 2, 5)])
        assert at[0] == at[1] == pytest.approx(fit.full()[3, 2, 5])

    def test_an_integer_is_a_position(self):
        X = xarray.DataArray(np.random.default_rng(0).random((5, 6, 4)), dims=MODES)
        X = X.assign_coords(sample=[4, 3, 2, 1, 0])
        fit = robustcp.cpals(X, 1)
        found = fit.outliers(X)
        np.testing.assert_allclose(
            found.scores_of({"sample": 0}), np.asarray(found.scores)[0], rtol=1e-9
        )
        with pytest.raises(ValueError, match=r"a label of sample \(4, 3, 2, 1, \.\.\.\), got 'a'"):
            found.scores_of({"sample": "a"})
        far = robustcp.cpals(X.assign_coords(sample=[10, 20, 30, 40, 50]), 1)
        with pytest.raises(ValueError, match="from 0 to 4, got 30; the label 30 is at position 2"):
            far.outliers(X.values).scores_of({"sample": 30})

    def test_pictures(self, cube, fit):
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt

        one = robustcp.plot.slices(fit, cube, "s3", mode="sample")
        two = robustcp.plot.slices(fit, shuffled(cube), "s3", mode="sample")
        assert one[0].get_title() == two[0].get_title() == "data, sample s3"
        ax = robustcp.plot.cellmap(fit.outliers(cube), "sample", "s3")
        assert "s3" in ax.get_title()
        plt.close("all")


class TestAlignment:
    @pytest.mark.parametrize("seed", range(4))
    def test_data_in_another_order_gives_the_same_entries(self, cube, fit, seed):
        other = shuffled(cube, seed)
        there = {name: other.indexes[name] for name in other.dims}
        for find in (
            lambda fit, X: fit.outliers(X).mask,
            lambda fit, X: fit.residuals(X),
            lambda fit, X: fit.sigma(X),
        ):
            here = cube.copy(data=np.asarray(find(fit, cube), dtype=float))
            expected = here.transpose(*other.dims).reindex(there)
            np.testing.assert_allclose(
                np.asarray(find(fit, other), dtype=float), expected.values, rtol=1e-9, atol=1e-9
            )

    def test_results_have_the_labels_of_the_data(self, cube, fit):
        other = shuffled(cube)
        assert fit.outliers(other).worst("sample", 1)[0].label == "s3"
        found = fit.distances(other, "sample")
        assert found.labels == list(other.indexes["sample"])
        assert [found.labels[k] for k in np.flatnonzero(found.bad)] == [
            fit.labels[0][k] for k in np.flatnonzero(fit.distances(cube, "sample").bad)
        ]
        assert "s3" in str(fit.summary(other))
        assert robustcp.core_consistency(fit, other) == pytest.approx(
            robustcp.core_consistency(fit, cube), abs=1e-6
        )

    def test_projection_of_new_samples_on_turned_data(self, cube, fit):
        new = cube.isel(sample=[5, 1]).assign_coords(sample=["x", "y"])
        expected = fit.project(new.values, 0)
        np.testing.assert_allclose(fit.project(new, "sample"), expected, rtol=1e-6)
        turned = shuffled(new.isel(sample=[0, 1]))
        back = fit.project(turned, "sample")
        at = [list(turned.indexes["sample"]).index(name) for name in ("x", "y")]
        np.testing.assert_allclose(back[at], expected, rtol=1e-4, atol=1e-6)
        mode = turned.dims.index("sample")  # by number: that of the data at hand
        np.testing.assert_array_equal(fit.project(turned, mode), back)

    def test_other_wavelengths_are_refused(self, cube, fit):
        other = cube.assign_coords(emission=cube.emission + 1.0)
        for call in (fit.outliers, fit.residuals, fit.sigma, fit.project, fit.uncertainty):
            with pytest.raises(ValueError, match=r"X: emission has 301\.0, which the fit has not"):
                call(other)
        with pytest.raises(ValueError, match="the same labels"):
            robustcp.plot.slices(fit, other, 0)

    def test_other_names_are_refused(self, cube, fit):
        with pytest.raises(ValueError, match="has the modes sample, nm, excitation, the fit has"):
            fit.outliers(cube.rename(emission="nm"))

    def test_labels_that_differ_by_rounding_are_the_same(self, cube, fit):
        close = cube.assign_coords(emission=cube.emission.astype("float32") * (1 + 1e-7))
        assert fit.aligned_to(close) is fit

    def test_without_names_positions_count(self, cube, fit):
        np.testing.assert_array_equal(fit.outliers(cube.values).mask, fit.outliers(cube).mask)
        assert fit.aligned_to(cube.values) is fit
        plain = robustcp.cp(cube.values, 2)
        assert plain.aligned_to(cube) is plain

    def test_uncertainty_says_what_to_do(self, cube, fit):
        other = cube.transpose("emission", "sample", "excitation")
        with pytest.raises(ValueError, match=r"ask fit\.aligned_to\(X\)\.uncertainty\(X\)"):
            fit.uncertainty(other)
        found = fit.aligned_to(other).uncertainty(other)
        assert found.low[0].shape == (7, 2)

    def test_engines_keep_names(self, cube, fit):
        engine = robustcp.as_engine(cube.transpose("emission", "sample", "excitation"))
        assert fit.outliers(engine).worst("sample", 1)[0].label == "s3"
        assert robustcp.cp(engine, 2).modes == ("emission", "sample", "excitation")
        weighted = engine.weighted([None, np.ones(8), None])
        assert fit.aligned_to(weighted).modes[0] == "emission"

    def test_a_start_is_turned(self, cube, fit):
        other = shuffled(cube)
        again = robustcp.cp(other, 2, init=fit, fixed=("emission",))
        at = [fit.labels[1].index(label) for label in other.indexes["emission"]]
        mode = other.dims.index("emission")
        np.testing.assert_allclose(again.factors[mode], fit.factors[1][at], atol=1e-12)
        with pytest.raises(ValueError, match="emission has"):
            robustcp.cp(cube.assign_coords(emission=range(7)), 2, init=fit, fixed=("emission",))
        window = cube.assign_coords(sample=[f"t{k}" for k in range(8)])
        assert robustcp.cp(window, 2, init=fit, fixed=(1,)).labels[0][0] == "t0"

    def test_saved_noise_and_cases_are_turned(self, cube):
        cube = cube.copy()
        cube[3] = cube[3].values[::-1] * 3  # not of the model, as a whole
        fit = robustcp.cp(cube, 2, cases="sample", noise=["emission"])
        other = shuffled(cube)
        turned = fit.aligned_to(other)
        bad = [turned.labels[turned.cases.mode][k] for k in np.flatnonzero(turned.cases.flagged)]
        assert bad == [fit.labels[0][k] for k in np.flatnonzero(fit.cases.flagged)] == ["s3"]
        scales = dict(zip(fit.labels[1], fit.noise.slabs[1], strict=True))
        mode = other.dims.index("emission")
        again = dict(zip(turned.labels[mode], turned.noise.slabs[mode], strict=True))
        assert again == scales

    def test_weights_are_aligned_or_refused(self, cube):
        axes = axes_of(cube)
        w = xarray.DataArray(np.arange(7.0), dims="emission", coords={"emission": cube.emission})
        there = align_to_axes(axes, w[::-1])
        assert there.shape == (1, 7, 1)
        np.testing.assert_array_equal(there.ravel(), w.values)
        with pytest.raises(ValueError, match="other labels than X in dimension 'emission'"):
            align_to_axes(axes, w.assign_coords(emission=w.emission + 1))
        with pytest.raises(ValueError, match="no dimension 'nm'"):
            align_to_axes(axes, w.rename(emission="nm"))

    @given(st.permutations(range(5)), st.permutations(range(3)))
    def test_an_arrangement_brings_labels_together(self, rows, order):
        names, labels = ("a", "b", "c"), [list("vwxyz"), None, [1.5, 2.5, 3.5, 4.5, 5.5]]
        model = Axes(names, tuple(labels))
        data = Axes(
            tuple(names[n] for n in order),
            tuple(None if labels[n] is None else [labels[n][k] for k in rows] for n in order),
        )
        how = model.arrangement_for(data)
        turned = model if how is None else Axes(
            how.reorder(model.modes),
            tuple(each if at is None else [each[k] for k in at]
                  for each, at in zip(how.reorder(model.labels), how.rows, strict=True)),
        )  # fmt: skip
        assert (turned.modes, turned.labels) == (data.modes, data.labels)


class TestPandas:
    def long(self, cube):
        return cube.to_series().rename("value").reset_index()

    def test_series_and_long_tables_are_the_array(self, cube, fit):
        series = cube.to_series()
        for X in (
            series,
            self.long(cube),
            series.to_frame(),
            series.sample(frac=1, random_state=0),
        ):
            again = robustcp.cp(X, 2)
            assert again.modes == MODES
            assert again.labels == fit.labels
            np.testing.assert_array_equal(again.factors[0], fit.factors[0])
        assert fit.outliers(series).worst("sample", 1)[0].label == "s3"

    def test_rows_that_are_not_there_are_missing(self, cube):
        table = self.long(cube).drop(index=[0, 5])
        engine = robustcp.as_engine(table)
        assert engine.count == cube.size - 2
        few = robustcp.as_engine(self.long(cube).sample(frac=0.3, random_state=0))
        assert type(few).__name__ == "ObservedEngine"

    def test_a_matrix_stays_a_matrix(self):
        rng = np.random.default_rng(0)
        table = pandas.DataFrame(rng.random((5, 4)), columns=list("abcd"))
        fit = robustcp.cpals(table, 1)
        assert fit.shape == (5, 4)
        assert fit.labels[1] == list("abcd")

    def test_tables_that_cannot_be_told(self, cube):
        with pytest.raises(TypeError, match="a matrix or a long table"):
            robustcp.cp(pandas.DataFrame(np.arange(12).reshape(4, 3)), 1)
        with pytest.raises(TypeError, match="a level for each mode"):
            robustcp.cp(pandas.Series([1.0, 2.0]), 1)
        with pytest.raises(TypeError, match="one column of the DataFrame"):
            robustcp.cp(cube.to_series().to_frame().assign(b=1.0), 1)
        table = self.long(cube)
        with pytest.raises(ValueError, match="the values are dates"):
            robustcp.cp(table[["sample", "value", "excitation"]], 1)
        with pytest.raises(ValueError, match="X: the level 'sample' has a gap in row 3"):
            robustcp.cp(table.assign(sample=table["sample"].mask(table.index == 3)), 1)
        with pytest.raises(
            ValueError,
            match=r"X: given more than once: sample s0, emission 300\.0, exc",
        ):
            robustcp.cp(pandas.concat([table, table.iloc[:1]]), 1)
        with pytest.raises(TypeError, match="one variable of the Dataset; there are 'a', 'b'"):
            robustcp.cp(xarray.Dataset({"a": cube, "b": cube}), 1)

    def test_a_sensor_that_never_varies_is_noted(self, cube):
        table = self.long(cube)
        table.loc[table["sample"] == "s5", "value"] = 35.0
        fit = robustcp.cp(table, 1)
        assert "without any observed entry (s5)" in fit.status  # it is left out as stuck
        assert any(
            note.startswith("sample 's5' never varies (35 in all 42 entries)") for note in fit.notes
        )

    def test_frames_and_dataset(self, fit):
        frames = fit.to_frames()
        assert list(frames) == list(MODES)
        for n, (name, labels) in enumerate(zip(MODES, fit.labels, strict=True)):
            np.testing.assert_array_equal(frames[name].to_numpy(), fit.factors[n])
            assert frames[name].index.name == name
            assert list(frames[name].index) == labels
            assert list(frames[name].columns) == [*range(1, fit.rank + 1)]
        held = fit.to_xarray()
        assert held["factor_1"].sel(emission=304.0).values.tolist() == fit.factors[1][2].tolist()


@pytest.mark.process
def test_a_missing_library_is_one_line():
    code = (
        "import sys; sys.modules.update(xarray=None, pandas=None); import robustcp\n"
        "fit = robustcp.cpals(robustcp.simulate((4, 4, 4), 1, eta=0, gamma=0, rng=0).data, 1)\n"
        "for call in (fit.to_xarray, fit.to_frames):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "to_xarray needs xarray; install it with: pip install 'robustcp[files]'",
        "to_frames needs pandas; install it with: pip install 'robustcp[files]'",
    ]


def test_a_read_tensor_prints_as_one_line(tmp_path, cube):
    cube.to_series().rename("value").reset_index().to_csv(tmp_path / "x.csv", index=False)
    shown = repr(robustcp.read(tmp_path / "x.csv"))
    assert shown.startswith("Loaded(sample (8) x emission (7) x excitation (6); float64; labels of")
    assert "\n" not in shown
