"""The report as a file: what is in it, whatever the data and however things are called."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

import robustcp
from robustcp.cli import app
from robustcp.inference.rank_profile import RankProfile
from robustcp.inference.uncertainty import Uncertainty
from robustcp.report import images
from robustcp.report.convergence import convergence
from robustcp.report.pictures import drawing_style
from robustcp.report.words import WARNING_MEANINGS
from robustcp.results.diagnostics import FitWarning

#: Elements without an end.
VOID = {"br", "hr", "img", "meta"}


class Page(HTMLParser):
    """The elements of a page, which must be well nested, and its texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts, self.scripts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open[-1:] in (["script"], ["style"]) else self.texts).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag, **attributes):
        return [found for name, found in self.elements
                if name == tag and attributes.items() <= found.items()]  # fmt: skip

    @property
    def ids(self):
        return [found["id"] for _, found in self.elements if "id" in found]

    @property
    def names(self):
        return json.loads(next(text for text in self.scripts if text.startswith('{"axes"')))


def data(shape=(9, 8, 7), rank=2, seed=0):
    return robustcp.simulate(shape, rank, eta=0.1, gamma=1.0, rng=seed).data


def reported(X, fit, tmp_path, **options):
    path = tmp_path / "report.html"
    fit.report(X, path, **options)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def usual():
    X = robustcp.simulate((20, 15, 12), 2, eta=0.05, gamma=2.0, rng=1).data
    X[4] += 3.0
    X[2, 3, 4] = np.nan
    return X, robustcp.cp(X, 2, rng=0)


def levels_of(address):
    """The levels of an image, read by the rules of PNG."""
    content, place, parts = base64.b64decode(address.split(",")[1]), 8, {}
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        kind = content[place + 4 : place + 8]
        parts[kind] = parts.get(kind, b"") + content[place + 8 : place + 8 + size]
        place += size + 12
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:]


# What it says


def test_the_numbers_are_those_of_the_fit(tmp_path, usual):
    X, fit = usual
    page = reported(X, fit, tmp_path, title="A title", command="robustcp.cp(X, 2, rng=0)")
    found, text = fit.outliers(X), page.text
    assert text.count("A title") == 2  # as the title, and above all
    assert f"{100 * fit.explained:.1f}%" in text
    assert f"{100 * found.share:.3g}%" in text
    for fact in str(fit.summary(X)).splitlines()[2:]:
        if not fact.startswith(("  component", "warning", "robustcp")):
            assert fact.partition(": ")[2] in text, fact
    for warning in fit.warnings:
        assert warning.sentence[1:] in text
        assert WARNING_MEANINGS[warning.code][0] in text
        assert WARNING_MEANINGS[warning.code][1] in text
    assert "1 of 3,600 (0.0278%)" in text  # missing
    assert "robustcp.cp(X, 2, rng=0)" in text
    assert np.__version__ in text
    worst = found.worst(0)[0]
    assert f"[{worst[0]}]: {100 * worst[1]:.1f}% flagged" in text


def test_stages_are_parted_where_their_sweeps_begin():
    fit = robustcp.cpals(data(), 2)
    trace = np.geomspace(9, 1, 10)
    fit = replace(fit, trace=trace, stages=(("first", 4), ("second", 6)))
    with drawing_style():
        page = str(convergence(SimpleNamespace(fit=fit)))
    stages = re.findall(r'<path d="M([0-9.]+) [0-9.]+L([0-9.]+) [^"]*Z" fill="var\(--', page)
    marks = [re.findall(rf'class="mark stage-{k}" transform="translate\(([0-9.]+) ', page)
             for k in (0, 1)]  # fmt: skip
    assert [len(positions) for positions in marks] == [4, 6]
    assert len(stages) == 2
    for (left, right), positions in zip(stages, marks, strict=True):
        assert float(left) < float(positions[0]) < float(positions[-1]) < float(right)
    assert stages[0][1] == stages[1][0]


def test_what_is_held_is_named_where_that_is_more_than_the_slab(tmp_path):
    for shape, named in (((6, 5, 4), False), ((6, 5, 4, 3), True)):
        X = data(shape, 1)
        X[2] += 5
        page = reported(X, robustcp.cpal1(X, 1), tmp_path)
        assert ("Shown: " in page.text) == named


def test_contents_lead_to_sections(tmp_path, usual):
    page = reported(*usual, tmp_path)
    assert len(set(page.ids)) == len(page.ids)
    links = [found["href"] for found in page.all("a")]
    assert len(links) == 10
    assert {link[1:] for link in links} <= set(page.ids)


def test_every_picture_says_what_it_is(tmp_path, usual):
    page = reported(*usual, tmp_path)
    pictures = page.all("svg", role="img")
    assert len(pictures) > 50
    assert all(len(found["aria-label"]) > 20 for found in pictures)


def test_nothing_is_fetched(tmp_path, usual):
    page = reported(*usual, tmp_path)
    for _, attributes in page.elements:
        for name in ("src", "href", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy["content"]
    assert not re.search(r"@import|url\((?!#)", "".join(page.scripts))


def test_slices_are_those_of_the_data(tmp_path, usual):
    X, fit = usual
    path = tmp_path / "report.html"
    fit.report(X, path)
    text = path.read_text(encoding="utf-8")
    part = text[text.index('id="slab-0-4"') :]
    shown = [levels_of(each) for each in re.findall(r'href="(data:image/png[^"]+)"', part)[:3]]
    ends = re.findall(r'data-from="([^"]+)" data-to="([^"]+)"', part)[:3]
    model = fit.full()
    for levels, (low, high), values in zip(
        shown, ends, (X[4], model[4], X[4] - model[4]), strict=True
    ):
        low, high = float(low), float(high)
        assert levels.shape == (15, 12)
        expected = np.clip(values, low, high)
        read = low + (levels - 1.0) / 254 * (high - low)
        np.testing.assert_allclose(read, expected, atol=0.51 * (high - low) / 254)


def test_missing_cells_are_level_0(tmp_path, usual):
    X, fit = usual
    fit.report(X, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = re.findall(r'<figure id="slab-(\d)-(\d+)".*?href="(data:image/png[^"]+)"', text)
    assert len(found) == 15
    for mode, index, address in found:
        missing = levels_of(address) == 0
        np.testing.assert_array_equal(missing, np.isnan(np.take(X, int(index), int(mode))))


def test_cellmaps_count_what_is_flagged(tmp_path, usual):
    X, fit = usual
    fit.report(X, tmp_path / "report.html", mode=1)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    part = text[text.index('data-kind="shares"') :]
    address = re.search(r'class="missing".*?href="(data:image/png[^"]+)"', part).group(1)
    levels = levels_of(address).astype(int)
    scores, limit = np.asarray(fit.outliers(X).scores), fit.outliers(X).threshold
    high, low = (np.nanmean(np.where(np.isnan(scores), np.nan, flags), axis=2).T
                 for flags in (scores > limit, scores < -limit))  # fmt: skip
    found = np.divmod(levels - 1, images.N_SHARE_LEVELS)
    for part, share in zip(found, (high, low), strict=True):
        np.testing.assert_array_equal(part, np.round((images.N_SHARE_LEVELS - 1) * np.sqrt(share)))


def test_rank_and_uncertainty_where_they_are_given(tmp_path, usual):
    X, fit = usual
    page = reported(X, fit, tmp_path)
    assert "rank" not in page.ids
    assert "uncertainty" not in page.ids
    profile = robustcp.rank_profile(X[:, :, :8], range(1, 3), folds=2, starts=1, jobs=1)
    page = reported(X, fit, tmp_path, rank=profile, uncertainty=fit.uncertainty(X))
    assert f"Recommended: rank {profile.rank}." in page.text
    assert "Bands and bars are 95% intervals" in page.text
    assert page.all("path", **{"class": "band"})
    with pytest.raises(ValueError, match="uncertainty: must be of a fit"):
        fit.report(X, tmp_path / "x.html", uncertainty=robustcp.cp(data(), 1).uncertainty(data()))


def test_samples_are_those_that_are_named(tmp_path):
    X = data((25, 12, 10), seed=3)
    X[:5] += 3.0
    fit = robustcp.cp(np.moveaxis(X, 0, 1), 2, cases=1, rng=0)
    page = reported(np.moveaxis(X, 0, 1), fit, tmp_path)
    assert "Samples are the slabs of mode 1." in page.text
    assert "5 samples: [0], [1], [2], [3], [4]" in page.text
    assert (
        "Samples are the slabs of mode 2."
        in reported(np.moveaxis(X, 0, 1), fit, tmp_path, mode=2).text
    )


def test_every_warning_has_a_meaning():
    codes = re.findall(r'"(\w+)"', FitWarning.__doc__.partition("For programs: ")[2].split(".")[0])
    assert len(codes) > 10
    assert set(WARNING_MEANINGS) == set(codes)


# Whatever the data


def masked():
    return np.ma.masked_array(data(), np.random.default_rng(0).random((9, 8, 7)) < 0.2)


def observed():
    at = np.argwhere(np.random.default_rng(0).random((9, 8, 7)) < 0.6)
    return robustcp.Observed(at, data()[tuple(at.T)], (9, 8, 7))


def chunked():
    return pytest.importorskip("dask.array").from_array(data(), chunks=4)


DATA = {
    "matrix": lambda: data((12, 15)),
    "order 4": lambda: data((6, 5, 4, 7)),
    "order 5": lambda: data((4, 5, 3, 4, 3)),
    "masked": masked,
    "observed": observed,
    "chunked": chunked,
    "single": lambda: data().astype(np.float32),
    "counts": lambda: np.random.default_rng(0).poisson(np.abs(data())),
    "constant": lambda: np.ones((5, 6, 7)),
    "one sample": lambda: data((1, 8, 9)),
    "engine": lambda: robustcp.as_engine(data()),
    "large": lambda: 1e200 * data(),
    "wild": lambda: np.where(np.arange(504).reshape(9, 8, 7) == 17, 1e20, data()),
}


@pytest.mark.parametrize("method", ["cpal1", "cpals"])
@pytest.mark.parametrize("kind", DATA)
def test_any_data_and_method(tmp_path, kind, method):
    X = DATA[kind]()
    fit = getattr(robustcp, method)(X, 1 if kind == "constant" else 2, rng=0)
    page = reported(X, fit, tmp_path)
    order = len(fit.shape)
    slabs = page.all("figure", **{"class": "slab"})
    assert len(slabs) >= order
    panels = len(page.all("svg", **{"data-group": slabs[-1]["id"]}))
    assert panels == 3
    assert ("least squares" in page.text) == (method == "cpals")


def test_order_4_shows_the_slice_with_most_flags(tmp_path):
    X = data((5, 6, 4, 7))
    fit = robustcp.cpal1(X, 2, rng=0)
    X[2, :, 3, :] += 5.0
    page = reported(X, fit, tmp_path)
    assert "Shown: mode 0 [2], mode 2 [3]." in page.text


def test_a_table_of_many_parts(tmp_path):
    pandas = pytest.importorskip("pandas")
    X = observed()
    columns = {f"mode {n}": X.indices[:, n] for n in range(3)} | {"value": X.values}
    pandas.DataFrame(columns).to_parquet(tmp_path / "x.parquet", row_group_size=100)
    table = robustcp.Observed.from_parquet(tmp_path / "x.parquet")
    fit = robustcp.cpal1(X, 2, rng=0)
    found, same = fit.outliers(table), fit.outliers(X)
    np.testing.assert_allclose(found.scores_of({1: 3}), same.scores_of({1: 3}), rtol=1e-6)
    assert len(reported(table, fit, tmp_path).all("figure", **{"class": "slab"})) >= 12


# However things are called

NASTY = ["<script>alert(1)</script>", "\"quote's\" & <b>", 10_000 * "x", "naïve Ω 漢字",
         "\x00 \x1b", "\ud800 half", "</script><!--", "{{7*7}} ${1}", "a\nb\u202erb"]  # fmt: skip


def test_names_are_text(tmp_path):
    xarray = pytest.importorskip("xarray")
    modes = ("<img src=x onerror=alert(1)>", 'em"ission', "' style='x")
    X = xarray.DataArray(data(), dims=modes, coords={modes[0]: NASTY})
    fit = robustcp.cpal1(X, 2, rng=0)
    page = reported(X, fit, tmp_path, title="</title><b>", command="x</code><script>1</script>")
    assert len(page.all("script")) == 2
    assert not page.all("img")
    assert not page.all("b")
    assert "<script>alert(1)</script>" in page.text
    assert "x</code><script>1</script>" in page.text
    assert "naïve Ω 漢字" in page.text
    assert "\u202e" not in page.text
    assert 200 * "x" not in page.text
    texts = page.names["axes"]["0/1"]["texts"]
    assert texts[0] == "<script>alert(1)</script>"
    assert max(map(len, texts)) <= 60


@pytest.mark.pictures
def test_ten_thousand_names(tmp_path):
    xarray = pytest.importorskip("xarray")
    names = [f"a sample with a rather long name, number {k}" for k in range(10_000)]
    X = xarray.DataArray(data((10_000, 4, 3)), dims=("s", "a", "b"), coords={"s": names})
    path = tmp_path / "report.html"
    robustcp.cpals(X, 2, rng=0, max_sweeps=3).report(X, path)
    assert path.stat().st_size < 2e6


def test_data_in_another_order_is_matched(tmp_path):
    xarray = pytest.importorskip("xarray")
    X = xarray.DataArray(data(), dims=("s", "a", "b"), coords={"s": list("abcdefghi")})
    fit = robustcp.cpal1(X, 2, rng=0)
    page = reported(X.transpose("b", "s", "a")[:, ::-1], fit, tmp_path, mode="s")
    assert "of 7 b \N{MULTIPLICATION SIGN} 9 s" in page.text
    assert page.names["axes"]["1/1"]["texts"] == list("ihgfedcba")


# How large it is


@pytest.mark.pictures
def test_at_most_5_megabytes_for_a_large_tensor(tmp_path):
    shape, rank = (500, 300, 200), 5
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape, dtype=np.float32)
    fit = robustcp.cpals(X, rank, init="random", max_sweeps=1, rng=0)
    ends = tuple(np.asarray(A, dtype=float) for A in fit.factors)
    sure = Uncertainty("normal", None, 0.95, ends, ends, ends, np.ones(rank))
    each = np.linspace(0.1, 1, 8)
    names = ("error", "gain", "stability", "consistency")
    profile = RankProfile(tuple(range(1, 9)), each, each, each, each, each, each,
                          dict.fromkeys(names, each), 5, "why", 6)  # fmt: skip
    path = tmp_path / "report.html"
    fit.report(X, path, uncertainty=sure, rank=profile)
    assert path.stat().st_size < 5e6


# From the command line


@pytest.fixture
def run(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    np.save("x <b>.npy", data())
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize(
    "options", [(), ("--report", "r.html"), ("--report", "r.html", "--plot", "p")]
)
def test_fit_estimates_noise_and_outliers_once(run, monkeypatch, options):
    from robustcp.results import view

    calls = []
    for name in ("estimate_model_noise", "Outliers"):
        original = getattr(view, name)
        monkeypatch.setattr(
            view,
            name,
            lambda *args, name=name, original=original: calls.append(name) or original(*args),
        )
    done = run("fit", "x <b>.npy", "--rank", 2, "--method", "cpal1", *options)
    assert done.exit_code == 0, done.output
    assert sorted(calls) == ["Outliers", "estimate_model_noise"]


def test_commands(run, tmp_path):
    done = run("fit", "x <b>.npy", "--rank", 2, "--method", "cpal1", "--report", "r.html")
    assert done.exit_code == 0, done.output
    assert "written: fit.npz, r.html" in done.output
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "fit 'x <b>.npy' --rank 2 --method cpal1 --report r.html --seed 0" in page.text
    assert "x <b>.npy" in page.text
    done = run("report", "x <b>.npy", "fit.npz", "--mode", 2, "--uncertainty", "normal")
    assert done.exit_code == 0, done.output
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "uncertainty" in page.ids
    assert "Samples are the slabs of mode 2." in page.text


def test_what_commands_refuse(run):
    done = run("fit", "x <b>.npy", "--rank", 2, "--report", "r.pdf")
    assert done.exit_code == 2
    assert "r.pdf: reports are written as .html" in done.output
    (run("fit", "x <b>.npy", "--rank", 2, "--method", "cpals"))
    assert run("report", "x <b>.npy", "fit.npz", "--most", 0).exit_code == 2
    assert run("report", "x <b>.npy", "fit.npz", "--out", "x <b>.npy").exit_code == 2
