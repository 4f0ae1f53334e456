"""A fit in short: text, HTML and JSON say the same, and what the fit says."""

from __future__ import annotations

import json
from datetime import date
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray
from typer.testing import CliRunner

import robustcp
from robustcp import Observed, cp, cpals, simulate
from robustcp.cli import app


@pytest.fixture(scope="module")
def named():
    """Data with names and labels that HTML and JSON do not take as they are, and its fit."""
    raw = simulate((6, 12, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    raw[3] += 20.0
    X = xarray.DataArray(
        raw,
        dims=("<sample>", "day", "pixel"),
        coords={"<sample>": ["<b>Ann</b>", "Bo & Cy", "Di", "E", "F", "G"],
                "day": [np.datetime64("2024-03-01", "ns") + np.timedelta64(k, "D")
                        for k in range(12)]},
    )  # fmt: skip
    return X, cp(X, 2, starts=2)


class Cells(HTMLParser):
    """The texts of the cells of tables, and whether all tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.seen = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag == "br":
            self.rows[-1][-1] += "\n"
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_text_says_what_the_fit_says(named):
    _, fit = named
    lines = str(fit.summary()).splitlines()
    assert lines[0] == f"6x12x10, rank 2: {fit.result.sentence}" + "".join(
        f"; {note}" for note in fit.notes
    )
    told = [line for line in lines if line.startswith("warning: ")]
    assert told == [f"warning: {w.sentence} [{w.code}]" for w in fit.warnings]
    assert told
    for line in (
        "modes: <sample> (6), day (12), pixel (10)",
        "loss: Contaminated",
        f"starts: {fit.starts.reached} of 2 reached this model",
        f"explained: {fit.explained:.1%} of the data",
        f"noise: {fit.noise.words(fit.modes)}",
        f"robustcp {robustcp.__version__}",
    ):
        assert line in lines
    for r in range(2):
        i, j, k = (int(np.argmax(np.abs(A[:, r]))) for A in fit.factors)
        day = date(2024, 3, 1 + j)
        (line,) = (line for line in lines if line.startswith(f"  component {r + 1}: "))
        assert f"{fit.shares[r]:.1%}, weight {fit.weights[r]:.6g}, " in line
        assert line.endswith(f"largest at <sample> {fit.labels[0][i]}, day {day}, pixel [{k}]")
    assert "outliers" not in str(fit.summary())
    assert repr(fit.summary()) == str(fit.summary())


def test_data_adds_what_is_flagged(named):
    X, fit = named
    found, lines = fit.outliers(X), str(fit.summary(X)).splitlines()
    assert f"outliers: {found.share:.2%} of the entries" in lines
    (worst, share), *_ = found.worst(0)
    shown = f"  most flagged of <sample>: {fit.labels[0][worst]} ({share:.1%}), "
    assert any(line.startswith(shown) for line in lines)
    assert any(line.startswith("  most flagged of day: 2024-03-") for line in lines)
    content = fit.summary(X).as_dict()
    assert content["outlier_share"] == pytest.approx(np.asarray(found.mask).mean())
    assert {row["mode"] for row in content["worst"]} == set(fit.modes)
    with pytest.raises(ValueError, match=r"X: has shape \(2, 12, 10\), the model has shape"):
        fit.summary(X[:2])


def test_programs_get_plain_values(named):
    X, fit = named
    content = fit.summary(X).as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["shape"] == [6, 12, 10]
    assert content["modes"] == list(fit.modes)
    assert content["rank"] == len(content["components"]) == 2
    assert content["version"] == robustcp.__version__
    assert content["explained"] == pytest.approx(sum(c["share"] for c in content["components"]))
    assert [c["weight"] for c in content["components"]] == pytest.approx(list(fit.weights))
    assert [w["code"] for w in content["warnings"]] == [w.code for w in fit.warnings]
    assert sum(count for _, count in content["stages"]) == content["sweeps"] == fit.sweeps
    assert content["starts"] == pytest.approx(list(fit.starts))
    largest = content["components"][0]["largest"]
    assert [place["mode"] for place in largest] == list(fit.modes)
    assert largest[1]["label"] == str(fit.labels[1][largest[1]["index"]])
    assert largest[2]["label"] is None


def test_what_json_cannot_say_is_none():
    X = simulate((8, 7, 6), 1, eta=0.0, gamma=0.0, rng=0).data * 1e200
    content = cp(X, 1).summary(X).as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["noise"]["variance"]["a"] is None  # beyond the largest number


def test_html_is_escaped_whole_and_without_colours(named):
    X, fit = named
    text = fit.summary(X)._repr_html_()
    parsed = Cells(text)
    assert parsed.open == []
    assert {tag for tag, _ in parsed.seen} == {
        "table", "tr", "th", "td", "thead", "tbody", "br", "small"
    }  # fmt: skip
    assert all(set(attributes) <= {"style"} for _, attributes in parsed.seen)
    assert "background" not in text
    assert "color" not in text
    rows = {row[0]: row[1:] for row in parsed.rows}
    assert rows["fit"][0].startswith("6x12x10, rank 2: ")
    assert rows["modes"] == ["<sample> (6), day (12), pixel (10)"]
    assert rows["component"][2:] == ["largest in <sample>", "largest in day", "largest in pixel"]
    at = [int(np.argmax(np.abs(A[:, 1]))) for A in fit.factors]
    assert rows["2"][2] == fit.labels[0][at[0]]
    assert rows["2"][4] == f"[{at[2]}]"
    assert "\nmost flagged of <sample>: " in rows["outliers"][0]
    assert "Bo & Cy" in rows["outliers"][0]
    assert fit._repr_html_() == fit.summary()._repr_html_()


def test_cases_constraints_and_data_of_other_kinds():
    rng = np.random.default_rng(0)
    A, B, C = (rng.random((n, 2)) for n in (20, 9, 8))
    X = np.einsum("ar,br,cr->abc", A, B, C) + 0.01 * rng.standard_normal((20, 9, 8))
    X[[3, 7, 11]] += 4.0
    fit = cp(X, 2, cases=0, nonnegative=(False, True, False))
    text = str(fit.summary())
    assert "bad as a whole, of mode 0: 3, 7, 11\n" in text
    assert "\nmodes: " not in text
    assert "\n  mode 1: Nonnegative()\n" in text
    assert fit.summary().as_dict()["cases"]["bad"] == [3, 7, 11]
    at = np.argwhere(rng.random(X.shape) < 0.7)
    some = Observed(at, X[tuple(at.T)], X.shape)
    assert fit.summary(some).as_dict()["outlier_share"] == pytest.approx(0.15, abs=0.05)


def test_noise_that_the_fit_did_not_look_for_is_that_of_the_data():
    X = simulate((20, 20, 20), 2, eta=0.0, gamma=0.5, rng=0).data
    X[4] += 3 * np.random.default_rng(0).standard_normal((20, 20))
    fit = cpals(X, 2, starts=1)
    assert fit.summary().as_dict()["noise"]["words"] == fit.noise.words(fit.modes)
    found = fit.summary(X).as_dict()["noise"]
    assert found["words"] == fit.outliers(X).in_data.words(fit.modes)
    assert found["outlying_slabs"] == {"mode 0": [4]}


def test_the_command_line_says_the_same(tmp_path):
    X = simulate((12, 11, 10), 2, eta=0.1, gamma=1.0, rng=0).data
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "fit.npz"
    arguments = ["fit", str(tmp_path / "x.npy"), "--rank", "2", "--out", str(out), "--json"]
    told = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert told.pop("seconds") > 0
    assert told.pop("compiling") >= 0
    assert told.pop("out") == str(out)
    assert told == cp(X, 2, rng=0).summary(X).as_dict()
