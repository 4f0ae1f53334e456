"""Tables as people have them: columns by name, gaps, separators, matrices in files and sheets."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import robustcp
from robustcp.io.reading import FileError, read
from support.formats import landscape, landscapes, table_of, workbook

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def tensor():
    return robustcp.simulate((4, 5, 3), 1, eta=0.1, gamma=1.0, rng=0).data


def written(path, text):
    path.write_text(text)
    return path


class TestColumns:
    @pytest.fixture
    def path(self, tmp_path, tensor):
        table = table_of(tensor).rename(columns={f"mode_{n}": "abc"[n] for n in range(3)})
        table.insert(0, "comment", "x")
        table["unit"] = "mV"
        table.to_csv(tmp_path / "x.csv", index=False)
        return tmp_path / "x.csv"

    def test_by_name_in_any_order(self, path, tensor):
        found = read(path, modes=["c", "a", "b"], value="value")
        assert found.modes == ("c", "a", "b")
        np.testing.assert_array_equal(found.data, tensor.transpose(2, 0, 1))

    def test_by_position(self, path, tensor):
        np.testing.assert_array_equal(read(path, modes=[1, 2, 3], value=4).data, tensor)
        np.testing.assert_array_equal(read(path, modes=["1", "2", "3"], value="4").data, tensor)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "value must name the column of values; the last one, 'unit', has 'mV' in row 0"),
            ({"modes": ["a", "b", "c"]}, "value must name .*, one of 'comment', 'value', 'unit'"),
            ({"modes": ["a", "d"], "value": "value"}, "modes must be of 'comment', 'a'.* got 'd'"),
            ({"modes": ["a", "a"], "value": "value"}, "modes names a column twice"),
            ({"modes": ["a"], "value": "value"}, "at least 2 modes"),
            ({"modes": [1, 9], "value": 4}, "modes must be positions from 0 to 5, got 9"),
            ({"value": "unit"}, "the column of values, 'unit', has 'mV' in row 0"),
        ],
    )
    def test_what_cannot_be_meant(self, path, options, message):
        with pytest.raises(FileError, match=message) as caught:
            read(path, **options)
        assert "\n" not in str(caught.value)

    def test_only_of_tables(self, tmp_path, tensor):
        np.save(tmp_path / "x.npy", tensor)
        for options in ({"value": "v"}, {"stack": True}):
            with pytest.raises(FileError, match="is for tables, not for NumPy"):
                read(tmp_path / "x.npy", **options)


class TestText:
    def test_a_table_without_a_header_keeps_its_first_row(self, tmp_path, tensor):
        table_of(tensor).to_csv(tmp_path / "x.csv", index=False, header=False)
        found = read(tmp_path / "x.csv")
        np.testing.assert_array_equal(found.data, tensor)
        assert found.modes == ("mode 0", "mode 1", "mode 2")
        numbers = written(tmp_path / "y.csv", "0,0,1.5\n0,1,2.5\n1,0,3\n1,1,4\n")
        np.testing.assert_array_equal(read(numbers).data, [[1.5, 2.5], [3, 4]])

    def test_row_numbers_that_pandas_wrote_are_not_a_mode(self, tmp_path, tensor):
        table_of(tensor).to_csv(tmp_path / "x.csv")
        np.testing.assert_array_equal(read(tmp_path / "x.csv").data, tensor)

    @pytest.mark.parametrize("last", ["2026-01-01", "1 days 02:00:00", "12:30"])
    def test_dates_and_durations_are_not_values(self, tmp_path, last):
        rows = "".join(f"{a},{b},{k}.5,{last}\n" for k, (a, b) in enumerate(["ax", "ay", "bx"]))
        path = written(tmp_path / "x.csv", "s,h,v,when\n" + rows)
        with pytest.raises(FileError, match=f"value must name .* last one, 'when', has '{last}'"):
            read(path, absent="missing")
        assert read(path, modes=["s", "h"], value="v", absent="missing").shape == (2, 2)

    def test_dates_in_parquet_are_not_values(self, tmp_path):
        for what, column in {
            "dates": pandas.date_range("2026-01-01", periods=4),
            "durations": pandas.to_timedelta(range(4), unit="h"),
        }.items():
            table = pandas.DataFrame({"a": list("xxyy"), "b": list("pqpq"), "when": column})
            table.to_parquet(tmp_path / "x.parquet")
            with pytest.raises(FileError, match=f"value must name .* 'when' are {what}"):
                read(tmp_path / "x.parquet")

    def test_the_label_na_is_a_label(self, tmp_path):
        path = written(tmp_path / "x.csv", "s,h,v\nNA,1,1\nNA,2,NA\nnan,1,3\nnan,2,\n")
        found = read(path)
        assert found.labels[0] == ["NA", "nan"]
        np.testing.assert_array_equal(found.data, [[1, np.nan], [3, np.nan]])

    def test_gaps_name_their_column_and_row(self, tmp_path):
        path = written(tmp_path / "x.csv", "s,h,v\na,1,1\n\na,2,2\nb,,3\n")
        with pytest.raises(FileError, match="'h', has a gap in row 2"):
            read(path)
        table = pandas.DataFrame({"s": ["a", None], "h": [1, 2], "v": [1.0, 2.0]})
        table.to_parquet(tmp_path / "x.parquet")
        with pytest.raises(FileError, match="'s', has a gap in row 1"):
            read(tmp_path / "x.parquet")

    def test_rows_with_another_separator_are_refused(self, tmp_path):
        path = written(tmp_path / "x.csv", "s,h,v\na,1,1\na;2;2\nb,1,3\nb,2,4\n")
        with pytest.raises(FileError, match="line 3 has 1 fields between ',', not 3 as the first"):
            read(path)

    @pytest.mark.parametrize("separator", [",", ";", "\t", "|", " "])
    def test_separators(self, tmp_path, tensor, separator):
        table_of(tensor).to_csv(tmp_path / "x.csv", index=False, sep=separator)
        np.testing.assert_array_equal(read(tmp_path / "x.csv").data, tensor)

    def test_decimal_commas_and_encodings(self, tmp_path, tensor):
        table = table_of(tensor).rename(columns={"mode_0": "Gerät"})
        table.to_csv(tmp_path / "x.csv", index=False, sep=";", decimal=",", encoding="latin-1")
        found = read(tmp_path / "x.csv")
        np.testing.assert_array_equal(found.data, tensor)
        assert found.modes[0] == "Gerät"
        table.to_csv(tmp_path / "x.csv", index=False, sep="\t", encoding="utf-16")
        np.testing.assert_array_equal(read(tmp_path / "x.csv").data, tensor)

    def test_labels_keep_leading_zeros(self, tmp_path):
        path = written(tmp_path / "x.csv", "s,h,v\n01,1,1\n01,2,2\n10,1,3\n10,2,4\n")
        assert read(path).labels == (["01", "10"], [1, 2])

    def test_a_dead_sensor_is_noted_and_the_fit_says_so(self, tmp_path, tensor):
        table = table_of(tensor)
        table.loc[table["mode_0"] == "a002", "value"] = 0.0
        table.to_csv(tmp_path / "x.csv", index=False)
        found = read(tmp_path / "x.csv")
        assert found.notes == ("mode_0 'a002' never varies (0 in all 15 entries)",)
        assert found.notes[0] in robustcp.cpals(found, 1).status

    def test_repeated_coordinates_are_named(self, tmp_path, tensor):
        table = table_of(tensor)
        pandas.concat([table, table.iloc[:1]]).to_csv(tmp_path / "x.csv", index=False)
        with pytest.raises(FileError, match="mode_0 a000, mode_1 b000, mode_2 c000"):
            read(tmp_path / "x.csv")

    def test_a_wide_table_is_told_from_a_long_one(self, tmp_path):
        landscape(np.random.default_rng(0).random((5, 20))).to_csv(tmp_path / "x.csv")
        with pytest.raises(FileError, match=r"21 columns: modes and value must .* matrix \(stack"):
            read(tmp_path / "x.csv")
        found = read(tmp_path / "x.csv", stack=True, modes=["emission", "excitation"])
        assert found.shape == (5, 20)
        assert found.labels[0] == [300, 302, 304, 306, 308]
        assert found.modes == ("emission", "excitation")


class TestMatrices:
    def test_a_folder_is_one_tensor(self, tmp_path, tensor):
        folder = tmp_path / "eem"
        landscapes(folder, tensor)
        (folder / "notes.doc").write_text("ignored")
        found = read(folder, modes=["sample", "emission", "excitation"])
        np.testing.assert_array_equal(found.data, tensor)
        assert found.modes == ("sample", "emission", "excitation")
        assert found.labels == (
            ["s0", "s1", "s2", "s3"], [300, 302, 304, 306, 308], [240, 245, 250],
        )  # fmt: skip
        for k in (10, 2):
            (folder / "s0.csv").rename(folder / f"s{k}0.csv")
            landscape(tensor[0]).to_csv(folder / "s0.csv")
        assert read(folder).labels[0] == ["s0", "s1", "s2", "s3", "s20", "s100"]

    def test_rows_in_another_order_are_aligned(self, tmp_path, tensor):
        landscapes(tmp_path, tensor)
        landscape(tensor[1]).iloc[::-1, [2, 0, 1]].to_csv(tmp_path / "s1.csv")
        np.testing.assert_array_equal(read(tmp_path).data, tensor)

    def test_other_wavelengths_name_the_file(self, tmp_path, tensor):
        landscapes(tmp_path, tensor)
        table = landscape(tensor[1])
        table.index = table.index + 1
        table.to_csv(tmp_path / "s1.csv")
        with pytest.raises(FileError, match="s1 has other rows than s0, such as 301"):
            read(tmp_path)
        landscape(tensor[1][:4]).to_csv(tmp_path / "s1.csv")
        with pytest.raises(FileError, match="s1 is 4x3, s0 is 5x3; all matrices must have"):
            read(tmp_path)

    def test_text_and_gaps_in_a_matrix(self, tmp_path, tensor):
        table = landscape(tensor[0]).astype(object)
        table.iloc[1, 2] = ""
        table.to_csv(tmp_path / "x.csv")
        assert np.isnan(read(tmp_path / "x.csv", stack=True).data[1, 2])
        table.iloc[1, 2] = "high"
        table.to_csv(tmp_path / "x.csv")
        with pytest.raises(FileError, match="has 'high' in row 1, column 2 of the matrix"):
            read(tmp_path / "x.csv", stack=True)

    def test_plain_matrices_and_a_corner_of_zero(self, tmp_path, tensor):
        np.savetxt(tmp_path / "x.txt", tensor[0])
        found = read(tmp_path / "x.txt", stack=True)
        np.testing.assert_allclose(found.data, tensor[0])
        assert found.labels == (None, None)
        text = landscape(tensor[0]).to_csv().replace("emission", "0", 1)
        found = read(written(tmp_path / "y.csv", text), stack=True)
        assert found.labels[1] == [240, 245, 250]

    def test_sheets(self, tmp_path, tensor):
        workbook(tmp_path / "x.xlsx", tensor)
        found = read(tmp_path / "x.xlsx", stack=True)
        np.testing.assert_allclose(found.data, tensor, rtol=1e-15)
        assert found.modes == ("sheet", "row", "column")
        assert found.labels[0] == ["s0", "s1", "s2", "s3"]
        with pytest.raises(FileError, match=r"key must name one of several sheets: s0, s1, s2, s3"):
            read(tmp_path / "x.xlsx")
        assert read(tmp_path / "x.xlsx", stack=True, key="s2").shape == (5, 3)
        with pytest.raises(FileError, match="holds no sheet 'z'; there are: s0"):
            read(tmp_path / "x.xlsx", key="z")

    def test_a_folder_without_tables(self, tmp_path):
        with pytest.raises(FileError, match=r"is a folder without tables \(\.csv"):
            read(tmp_path)


class TestAxesBeside:
    def test_struct(self, tmp_path, tensor):
        from scipy.io import savemat

        names = np.array([f"s{k}" for k in range(4)], dtype=object)
        savemat(tmp_path / "x.mat", {
            "X": {"data": tensor, "em": np.arange(5.0), "ex": [240, 250, 260], "who": names},
            "em": np.zeros(5),
        })  # fmt: skip
        found = read(tmp_path / "x.mat")
        assert found.modes == ("who", "em", "ex")
        assert found.labels == (["s0", "s1", "s2", "s3"], [0, 1, 2, 3, 4], [240, 250, 260])

    def test_group(self, tmp_path, tensor):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["run/data"] = tensor
            file["run/sensor"] = ["a", "b", "c", "d"]
            file["other/time"] = np.arange(5)
        found = read(tmp_path / "x.h5")
        assert found.modes == ("sensor", "mode 1", "mode 2")
        assert found.labels == (["a", "b", "c", "d"], None, None)

    def test_what_is_not_clear_is_left(self, tmp_path):
        from scipy.io import savemat

        savemat(tmp_path / "x.mat", {
            "X": np.random.default_rng(0).random((4, 4, 3)), "a": np.arange(4),
            "y": [3.0, 1.0, 2.0], "z": [1.0, 3.0, 2.0],
        })  # fmt: skip
        assert read(tmp_path / "x.mat").labels == (None, None, None)


class TestToolboxFiles:
    def test_sizes_of_a_header_count(self, tmp_path):
        path = written(tmp_path / "x.tns", "sptensor\n3\n2 3 4\n2\n1 1 2 0.5\n2 3 1 -1.5\n")
        found = read(path, absent="zero")
        assert found.shape == (2, 3, 4)
        assert found.data[1, 2, 0] == -1.5
        with pytest.raises(FileError, match=r"absent must say .* \(22 of 24\)"):
            read(path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("sptensor\n3\n2 3 4\n3\n1 1 2 0.5\n", "has 1 entries, not 3 as it says"),
            ("sptensor\n3\n2 3\n", r"line 3 must say its sizes \(3 numbers\)"),
            ("sptensor\n3\n2 3 4\n1\n9 1 2 0.5\n", "indices outside of its size, 2x3x4"),
            ("tensor\n2\n2 3\n1\n2\n", r"has 2 values, not 6 \(2x3\)"),
            ("tensor\n2\n2 0\n", "line 3 must say its sizes, got 0"),
            ("ktensor\n3\n", "holds a ktensor, a model"),
            ("tensor\n1\n4\n", "order 1"),
            ("tensor\n", "must say its order"),
        ],
    )
    def test_what_is_wrong(self, tmp_path, text, message):
        with pytest.raises(FileError, match=message):
            read(written(tmp_path / "x.tns", text), absent="zero")

    def test_as_pyttb_writes_them(self, tmp_path, tensor):
        pyttb = pytest.importorskip("pyttb")
        pyttb.export_data(pyttb.tensor(tensor), str(tmp_path / "x.tns"))
        np.testing.assert_allclose(read(tmp_path / "x.tns").data, tensor)
        sparse = pyttb.tensor(np.where(tensor > 0.1, tensor, 0)).to_sptensor()
        pyttb.export_data(sparse, str(tmp_path / "y.tns"))
        np.testing.assert_allclose(
            read(tmp_path / "y.tns", absent="zero").data, np.where(tensor > 0.1, tensor, 0)
        )


class TestArchives:
    def test_only_the_array_that_is_asked_for_is_read(self, tmp_path, tensor):
        path = tmp_path / "x.npz"
        np.savez(path, a=tensor, b=np.full((60, 50, 40), 7.0))
        content = bytearray(path.read_bytes())
        at = content.find(np.full(9, 7.0).tobytes())  # damage b
        content[at : at + 8] = b"damaged!"
        path.write_bytes(bytes(content))
        np.testing.assert_array_equal(read(path, key="a").data, tensor)
        with pytest.raises(FileError, match=r"cannot be read as NumPy \.npz"):
            read(path, key="b")

    def test_an_empty_data_set(self, tmp_path, tensor):
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["nothing"] = h5py.Empty("f8")
            file["X"] = tensor
        np.testing.assert_array_equal(read(tmp_path / "x.h5").data, tensor)
        with pytest.raises(FileError, match="holds no array 'nothing'; there are: X"):
            read(tmp_path / "x.h5", key="nothing")


def test_a_listed_gap_is_missing_also_where_the_rest_is_zero(tmp_path):
    path = written(tmp_path / "x.csv", "s,h,v\na,1,1\na,2,\nb,1,3\n")
    np.testing.assert_array_equal(read(path, absent="zero").data, [[1, np.nan], [3, 0]])


def test_text_needs_no_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "x.csv").write_text("sample,hour,value\na,1,0.5\na,2,1.5\nb,1,2.5\nb,2,\n")
    found = read(tmp_path / "x.csv")
    assert found.modes == ("sample", "hour")
    np.testing.assert_array_equal(found.data, [[0.5, 1.5], [2.5, np.nan]])
