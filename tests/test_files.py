"""Files: each format reads back as it was written, and bad ones end in one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import robustcp
from robustcp import Fit, KruskalTensor
from robustcp.io.reading import FileError, read
from robustcp.noise import Noise
from robustcp.optimize.outcome import CONVERGED
from robustcp.persist.fits import load_model, save_simulation
from robustcp.persist.labels import LABEL_CODEC
from robustcp.starts.candidates import Starts
from support.formats import FORMATS, OPTIONS, as_xarray, table_of

pytest.importorskip("xarray")


@pytest.fixture(scope="module")
def tensor():
    return robustcp.simulate((6, 7, 8), 2, eta=0.1, gamma=1.0, rng=0).data


@pytest.mark.parametrize("name", FORMATS)
class TestFormats:
    def test_reads_back_what_was_written(self, tmp_path, tensor, name):
        path = tmp_path / name
        FORMATS[name](path, tensor)
        found = read(path, **OPTIONS.get(name, {}))
        np.testing.assert_allclose(np.asarray(found.data), tensor, rtol=1e-15)


@pytest.mark.process
@pytest.mark.parametrize("copies", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_copies_end_in_an_error_or_a_tensor(tmp_path, tensor, copies):
    for name, write in FORMATS.items():
        write(tmp_path / name, tensor[:4, :3, :2])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(tmp_path), str(copies)],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.split() == list(FORMATS)


def damage(path: Path, copies: int) -> None:
    """Read damaged copies of a file; anything but a FileError or a tensor is raised."""
    import faulthandler
    import resource
    import shutil

    faulthandler.dump_traceback_later(400, exit=True)  # a hang
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    rng = np.random.default_rng(0)
    parts = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    whole = {part: part.read_bytes() for part in parts}
    victim = path.with_name("damaged-" + path.name)
    for k in range(copies):
        if path.is_dir():
            shutil.rmtree(victim, ignore_errors=True)
            shutil.copytree(path, victim)
        hit = parts[int(rng.integers(len(parts)))]
        content = bytearray(whole[hit])
        if k % 3 == 0:
            content = content[: int(rng.integers(len(content)))]
        else:
            for at in rng.integers(len(content), size=int(rng.integers(1, 9))):
                content[at] = int(rng.integers(256))
        target = victim / hit.relative_to(path) if path.is_dir() else victim
        target.write_bytes(bytes(content))
        try:
            loaded = read(victim, absent="missing", **OPTIONS.get(path.name, {}))
        except FileError as error:
            if "\n" in str(error) or str(victim) not in str(error):
                raise
            continue
        try:
            robustcp.cpals(loaded.data, 1, max_sweeps=3)
        except ValueError as error:  # all missing, or infinite
            if not str(error).startswith("X:"):
                raise


class TestBadInput:
    @pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.mat", "x.h5", "x.nc", "x.nii", "x.csv"])
    def test_empty(self, tmp_path, name):
        (tmp_path / name).touch()
        with pytest.raises(FileError, match="is empty"):
            read(tmp_path / name)

    def test_mislabelled(self, tmp_path):
        (tmp_path / "x.npy").write_text("not an array")
        with pytest.raises(FileError, match="not what its suffix says"):
            read(tmp_path / "x.npy")

    def test_the_content_counts_not_the_suffix(self, tmp_path, tensor):
        path = tmp_path / "x.dat"
        np.save(tmp_path / "x.npy", tensor)
        (tmp_path / "x.npy").rename(path)
        np.testing.assert_array_equal(read(path).data, tensor)

    def test_unknown_and_missing(self, tmp_path):
        (tmp_path / "x.doc").write_text("hello")
        with pytest.raises(FileError, match="unknown kind of file; there are"):
            read(tmp_path / "x.doc")
        with pytest.raises(FileError, match="no such file"):
            read(tmp_path / "y.npy")
        with pytest.raises(FileError, match="is a folder"):
            read(tmp_path)

    def test_pickles_stay_closed(self, tmp_path):
        np.save(tmp_path / "x.npy", np.array([[{}, 1], [2, 3]], dtype=object))
        with pytest.raises(FileError, match=r"x\.npy"):
            read(tmp_path / "x.npy")
        np.savez(tmp_path / "x.npz", a=np.array([[{}]], dtype=object), b=np.ones((2, 2)))
        assert read(tmp_path / "x.npz").data.shape == (2, 2)
        with pytest.raises(FileError, match=r"x\.npz"):
            read(tmp_path / "x.npz", key="a")

    def test_not_a_tensor(self, tmp_path):
        for name, array in {
            "line": np.ones(3),
            "none": np.ones((2, 0)),
            "text": np.array([["a"]]),
        }.items():
            np.save(tmp_path / f"{name}.npy", array)
            with pytest.raises(FileError, match=name):
                read(tmp_path / f"{name}.npy")

    def test_several_arrays(self, tmp_path, tensor):
        path = tmp_path / "x.npz"
        np.savez(path, a=tensor, b=tensor[0], n=3)
        with pytest.raises(
            FileError, match=r"key must name one of .*: a \(6x7x8\), b \(7x8\)"
        ) as caught:
            read(path)
        assert caught.value.argument == "key"
        assert read(path, key="b").data.shape == (7, 8)
        with pytest.raises(FileError, match="no array 'c'; there are: a, b, n"):
            read(path, key="c")


class TestTables:
    def test_labels_are_kept(self, tmp_path, tensor):
        path = tmp_path / "x.csv"
        table_of(tensor).to_csv(path, index=False)
        loaded = read(path)
        assert loaded.modes == ("mode_0", "mode_1", "mode_2")
        assert loaded.labels[1][:2] == ["b000", "b001"]

    def test_what_is_not_listed_must_be_said(self, tmp_path, tensor):
        path = tmp_path / "x.csv"
        table_of(tensor).iloc[1:].to_csv(path, index=False)
        with pytest.raises(FileError, match=r"absent must say .*, 'missing' or 'zero'") as caught:
            read(path)
        assert caught.value.argument == "absent"
        assert np.isnan(read(path, absent="missing").data[0, 0, 0])
        assert read(path, absent="zero").data[0, 0, 0] == 0

    def test_few_entries_are_observed(self, tmp_path, tensor):
        path = tmp_path / "x.csv"
        table_of(tensor).iloc[::5].to_csv(path, index=False)
        assert isinstance(read(path, absent="missing").data, robustcp.Observed)

    def test_text_among_the_values(self, tmp_path, tensor):
        table = table_of(tensor).astype({"value": object})
        table.loc[3, "value"] = "high"
        table.to_csv(tmp_path / "x.csv", index=False)
        with pytest.raises(FileError, match="'value', has 'high' in row 3"):
            read(tmp_path / "x.csv")

    def test_repeated_coordinates(self, tmp_path, tensor):
        table = table_of(tensor)
        table.iloc[1] = table.iloc[0]
        table.to_csv(tmp_path / "x.csv", index=False)
        with pytest.raises(FileError, match="repeated coordinates"):
            read(tmp_path / "x.csv", absent="missing")

    def test_frostt_of_a_matrix(self, tmp_path):
        path = tmp_path / "x.tns"
        path.write_text("1 2 0.5\n2 3 -1.5\n")
        assert np.array_equal(read(path, absent="zero").data, [[0, 0.5, 0], [0, 0, -1.5]])
        path.write_text("1 0.5\n2 -1.5\n")
        with pytest.raises(FileError, match="at least 2 indices and a value"):
            read(path, absent="zero")

    def test_frostt(self, tmp_path):
        path = tmp_path / "x.tns"
        path.write_text("# a comment\n1 1 2 0.5\n2 3 1 -1.5\n")
        loaded = read(path, absent="zero")
        assert loaded.data.shape == (2, 3, 2)
        assert loaded.data[1, 2, 0] == -1.5
        path.write_text("1 1 2 0.5\n2 3 1\n")
        with pytest.raises(FileError, match="line 2 has 3 numbers, not 4"):
            read(path, absent="zero")
        path.write_text("0 1 2 0.5\n")
        with pytest.raises(FileError, match="whole numbers from 1 on"):
            read(path, absent="zero")


def test_no_member_of_an_archive_is_left_open(tmp_path, tensor, monkeypatch):
    np.savez(tmp_path / "x.npz", tensor)
    opened, real = [], zipfile.ZipFile.open

    def remember(self, *arguments, **options):
        opened.append(real(self, *arguments, **options))
        return opened[-1]

    monkeypatch.setattr(zipfile.ZipFile, "open", remember)
    read(tmp_path / "x.npz")
    assert [file.closed for file in opened] == [True, True]


class TestLabels:
    def test_a_data_array_gives_its_names_and_labels(self, tensor):
        fit = robustcp.cp(as_xarray(tensor), 2)
        assert fit.modes == ("sample", "emission", "excitation")
        assert fit.labels[0] == [f"s{k}" for k in range(6)]
        held = fit.to_xarray()
        assert held["factor_0"].dims == ("sample", "component")
        assert held["sample"].values.tolist() == fit.labels[0]
        plain = robustcp.cp(tensor, 2)
        np.testing.assert_array_equal(plain.factors[1], fit.factors[1])
        assert plain.modes == ("mode 0", "mode 1", "mode 2")

    def test_dates_stay_dates(self, tmp_path, tensor):
        dates = np.array("2026-11-15", "datetime64[ns]") + np.arange(6) * np.timedelta64(1, "D")
        fit = robustcp.cpals(as_xarray(tensor).assign_coords(sample=dates), 1)
        assert fit.labels[0][1].isoformat() == "2026-11-16T00:00:00"
        for name in ("fit.npz", "fit.nc"):
            robustcp.save(fit, tmp_path / name)
            assert robustcp.load(tmp_path / name).labels == fit.labels
        import xarray

        with xarray.open_dataset(tmp_path / "fit.nc", engine="h5netcdf") as opened:
            assert (opened["sample"].values == dates).all()


def fit_of(modes, labels):
    """A fit of rank 1 with these names and labels."""
    factors = tuple(np.full((len(names), 1), len(names) ** -0.5) for names in labels)
    return Fit(
        model=KruskalTensor(np.array([2.0]), factors), trace=np.array([1.0]), result=CONVERGED,
        notes=("a note",), loss=robustcp.L1(), stages=(("L1", 1),), explained=0.5,
        starts=Starts([1.0]), noise=Noise.common(0.1, len(labels)), modes=tuple(modes),
        labels=tuple(labels),
    )  # fmt: skip


def through_files(fit):
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".npz", ".nc"):
            robustcp.save(fit, Path(folder) / f"fit{suffix}")
            yield robustcp.load(Path(folder) / f"fit{suffix}")


def assert_as_they_were(found, expected):
    assert [type(label) for label in found] == [type(label) for label in expected]
    for a, b in zip(found, expected, strict=True):
        if isinstance(a, np.generic):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
        elif isinstance(a, tuple):
            assert_as_they_were(a, b)
        else:
            assert a == b or (a != a and b != b)
            assert getattr(a, "tzinfo", None) == getattr(b, "tzinfo", None)
            assert getattr(a, "fold", 0) == getattr(b, "fold", 0)


UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps")
ZONES = st.none() | st.just(UTC) | st.timezones() | st.just(timezone(timedelta(minutes=-90)))
LABELS = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
        st.complex_numbers(allow_nan=False), st.dates(), st.times(), st.timedeltas(),
        st.datetimes(timezones=ZONES),
        st.builds(
            lambda kind, value, unit: getattr(np, kind)(value, unit),
            st.sampled_from(["datetime64", "timedelta64"]),
            st.integers(-(2**62), 2**62),
            st.sampled_from(UNITS),
        ),
        st.sampled_from([np.datetime64("NaT"), np.datetime64(7, ("s", 25)), np.str_("a\0"),
                         np.str_(""), np.bytes_(b"\xff"), np.True_, np.complex64(1 + 2j)]),
        st.integers(-128, 127).map(np.int8), st.integers(0, 2**64 - 1).map(np.uint64),
        st.floats(width=32).map(np.float32), st.floats().map(np.float64),
    ),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=3,
)  # fmt: skip
SOME_LABELS = st.lists(LABELS, min_size=1, max_size=4)
NAMES = st.text(max_size=5) | st.sampled_from(
    ["component", "sweep", "trace", "weights", "factor_0", "factor_1", "factor_2", "mode_0",
     "mode_1", "a/b", "", ".", "..", "/", " ", "robustcp", "x", "y" * 300, "_nc4_non_coord_x"]
)  # fmt: skip


class TestNamesAndLabels:
    @given(st.lists(st.tuples(NAMES, SOME_LABELS), min_size=2, max_size=4))
    def test_come_back_as_they_were(self, modes):
        fit = fit_of([name for name, _ in modes], [labels for _, labels in modes])
        for back in through_files(fit):
            assert back.modes == fit.modes
            for found, expected in zip(back.labels, fit.labels, strict=True):
                assert_as_they_were(found, expected)

    @given(st.sampled_from([st.text(), st.integers(), st.floats(), st.datetimes(), st.booleans(),
                            st.floats(width=32).map(np.float32)]).flatmap(
           lambda one: st.lists(one, min_size=1, max_size=4)))  # fmt: skip
    def test_of_one_kind(self, labels):
        for back in through_files(fit_of(["a", "b"], [labels, [0]])):
            assert_as_they_were(back.labels[0], labels)

    def test_names_that_are_no_text(self):
        for back in through_files(fit_of([0, None, ("a", 1)], [[1], [2], [3]])):
            assert back.modes == (0, None, ("a", 1))

    def test_pandas(self):
        pandas = pytest.importorskip("pandas")
        labels = [
            pandas.Timestamp("2026-11-15 12:00:00.123456789"),
            pandas.Timestamp("2026-11-15 12:00", tz="Europe/Berlin"),
            pandas.Timestamp(2026, 11, 15).as_unit("s"),
            pandas.Timedelta(5, "ns"),
            pandas.NaT,
        ]
        for back in through_files(fit_of(["a", "b"], [labels, [0]])):
            assert_as_they_were(back.labels[0][:-1], labels[:-1])
            assert back.labels[0][-1] is pandas.NaT

    def test_a_zone_that_this_machine_does_not_know(self):
        noon = datetime(2026, 11, 15, 12, tzinfo=ZoneInfo("Europe/Berlin"))
        held = LABEL_CODEC.encode(noon)
        held["datetime"][1] = "Europe/Atlantis"
        assert LABEL_CODEC.decode(held) == noon
        assert LABEL_CODEC.decode(held).utcoffset() == timedelta(hours=1)

    def test_many(self):
        labels = [f"label {k}" for k in range(20_000)]
        for back in through_files(fit_of(["a", "b"], [labels, [0]])):
            assert back.labels[0] == labels

    def test_what_is_of_no_known_kind_becomes_text(self):
        for back in through_files(fit_of(["a", "b"], [[Fraction(1, 3)], [0]])):
            assert back.labels[0] == ["1/3"]

    def test_of_a_table(self, tmp_path, tensor):
        pandas = pytest.importorskip("pandas")
        table = table_of(tensor)
        days = pandas.to_datetime("2026-11-15") + pandas.to_timedelta(
            table["mode_0"].str[1:].astype(int), unit="D"
        )
        table.assign(mode_0=days).to_parquet(tmp_path / "x.parquet")
        fit = robustcp.cpals(read(tmp_path / "x.parquet").data, 1)
        fit = replace(fit, labels=read(tmp_path / "x.parquet").labels)
        assert fit.labels[0][1] == datetime(2026, 11, 16)
        for back in through_files(fit):
            assert_as_they_were(back.labels[0], fit.labels[0])


class TestLosses:
    """A file may name a loss of this package, and nothing else is called."""

    def named(self, tmp_path, **loss):
        path = tmp_path / "fit.npz"
        robustcp.save(fit_of(["a", "b"], [[1], [2]]), path)
        with np.load(path) as archive:
            held = dict(archive)
        about = json.loads(str(held["robustcp"])) | {"loss": loss}
        np.savez(path, **held | {"robustcp": np.array(json.dumps(about))})
        return path

    @pytest.mark.parametrize("loss", [
        robustcp.L1(1e-6), robustcp.Huber(1.0), robustcp.Cauchy(2.0), robustcp.Welsch(3.0),
        robustcp.Tukey(4.0), robustcp.Contaminated(1.0, 0.1, 0.2),
        robustcp.Contaminated(1.0, 0.1, 0.1, 0.3, 2.5), robustcp.Quantile(0.25),
        robustcp.LeastSquares(),
    ], ids=lambda loss: type(loss).__name__)  # fmt: skip
    def test_come_back(self, loss):
        for back in through_files(replace(fit_of(["a", "b"], [[1], [2]]), loss=loss)):
            assert back.loss == loss

    def test_of_others_are_a_name(self):
        class Mine:
            value = slope = curvature = None

        fit = replace(fit_of(["a", "b"], [[1], [2]]), loss=Mine())
        for back in through_files(fit):
            assert back.loss.name == "Mine"
            for again in through_files(back):
                assert again.loss == back.loss

    @pytest.mark.parametrize("name", ["sys", "lru_cache", "real_number", "_floor_gap", "Loss",
                                      "__doc__", "os.system"])  # fmt: skip
    def test_nothing_else_is_called(self, tmp_path, name):
        loss = robustcp.load(self.named(tmp_path, name=name, numbers={})).loss
        assert loss.name == name

    @pytest.mark.parametrize("numbers", [{"epsilon": "1"}, {"epsilon": True}, {"epsilon": -1.0},
                                         {"epsilon": None}, {"other": 1.0}, {}, [1.0]])  # fmt: skip
    def test_bad_numbers(self, tmp_path, numbers):
        with pytest.raises(FileError, match="is not a fit that robustcp saved"):
            robustcp.load(self.named(tmp_path, name="L1", numbers=numbers))

    def test_labels_of_another_length(self, tmp_path):
        path = tmp_path / "fit.npz"
        fit = fit_of(["a", "b"], [[1], [2]])
        robustcp.save(replace(fit, labels=([1, 2, 3], [2])), path)
        with pytest.raises(FileError, match="labels for a tensor of"):
            robustcp.load(path)


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
class TestSaving:
    def test_comes_back_exactly(self, tmp_path, tensor, suffix):
        fit = robustcp.cp(as_xarray(tensor), 2)
        robustcp.save(fit, tmp_path / f"fit{suffix}")
        back = robustcp.load(tmp_path / f"fit{suffix}")
        for a, b in zip((fit.weights, *fit.factors), (back.weights, *back.factors), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(fit.trace, back.trace)
        for name in (
            "status",
            "converged",
            "loss",
            "stages",
            "explained",
            "starts",
            "scale",
            "modes",
            "labels",
        ):
            assert getattr(back, name) == getattr(fit, name), name
        assert [p.name for p in tmp_path.iterdir()] == [f"fit{suffix}"]

    def test_damaged(self, tmp_path, tensor, suffix):
        path = tmp_path / f"fit{suffix}"
        robustcp.save(robustcp.cpals(tensor, 2), path)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(FileError, match="is not a fit"):
            robustcp.load(path)


def test_numbers_of_numpy_are_saved(tmp_path):
    fit = fit_of(["a", "b"], [[1], [2]])
    fit = replace(
        fit, loss=robustcp.Huber(np.float32(1.5)), noise=Noise.common(np.float32(0.5), 2),
        stages=(("L1", np.int64(3)),), starts=Starts([np.float32(2.0)]),
    )  # fmt: skip
    for back in through_files(fit):
        assert (back.loss, back.scale) == (robustcp.Huber(1.5), 0.5)
        assert (back.stages, back.starts) == ((("L1", 3),), (2.0,))


def test_a_truth_of_many_modes(tmp_path):
    sim = robustcp.simulate((2,) * 9 + (3, 4), 1, eta=0.0, gamma=0.0, rng=0)
    save_simulation(sim, tmp_path / "x.npz")
    assert load_model(tmp_path / "x.npz").shape == (2,) * 9 + (3, 4)


def test_a_suffix_that_says_nothing(tmp_path, tensor):
    with pytest.raises(FileError, match=r"written as \.npz, \.nc"):
        robustcp.save(robustcp.cpals(tensor, 1), tmp_path / "fit.txt")


def test_what_is_not_installed_is_one_line(tmp_path, tensor, monkeypatch):
    np.save(tmp_path / "x.npy", tensor)
    FORMATS["x.h5"](tmp_path / "x.h5", tensor)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        FileError, match=r"needs h5py; install it with: pip install 'robustcp\[files\]'"
    ):
        read(tmp_path / "x.h5")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileError, match="needs xarray"):
        robustcp.persist.fits.check_suffix(tmp_path / "fit.nc")


if __name__ == "__main__":
    for name in FORMATS:
        damage(Path(sys.argv[1]) / name, int(sys.argv[2]))
        sys.stdout.write(f"{name}\n")
