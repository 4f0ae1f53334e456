"""The report in a headless Chromium, with a mouse and keys."""

from __future__ import annotations

import numpy as np
import pytest

import robustcp

pytestmark = pytest.mark.browser

#: Where "<script>" in names would leave its mark.
TRACE = "<script>document.title = 'hit'</script><img src=x onerror=\"document.title = 'hit'\">"


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A report of 20 samples, of which S04 is bad, with intervals; and its fit and data."""
    xarray = pytest.importorskip("xarray")
    X = robustcp.simulate((20, 15, 12), 2, eta=0.05, gamma=2.0, rng=1).data
    X[4] += 3.0
    X[2, 3, 4] = np.nan
    labels = {"sample": [f"S{k:02}" for k in range(20)], "nm": np.arange(300.0, 330.0, 2.0)}
    labels["sample"][7] = TRACE
    X = xarray.DataArray(X, dims=("sample", "nm", f"day {TRACE}"), coords=labels)
    fit = robustcp.cp(X, 2, rng=0)
    path = tmp_path_factory.mktemp("report") / "a report.html"
    fit.report(X, path, uncertainty=fit.uncertainty(X), title="The title")
    return path, X, fit


def views(browser, group):
    """Which part each picture of a group shows."""
    pictures = browser.all(f'.plot[data-group="{group}"] .view')
    return [[float(x) for x in each.get_dom_attribute("viewBox").split()] for each in pictures]


def shown(browser):
    return [each.get_attribute("id") for each in browser.visible(".slab")]


@pytest.mark.parametrize("width", [380, 768, 1400])
def test_it_loads_at_any_width(browser, report, width):
    browser.open(report[0], width=width)
    assert browser.complaints == []
    assert browser.requests == []
    assert browser.driver.title == "The title"  # not what names of samples would make it
    assert browser.overflow <= 0
    assert browser.broken_images == []
    assert len(browser.all("image")) > 40
    for each in browser.visible(".plot"):
        assert each.rect["x"] >= 0
        assert each.rect["x"] + each.rect["width"] <= width


def test_values_at_the_pointer(browser, report):
    path, _, fit = report
    browser.open(path)
    frame = browser.first("#components .plot .frame")
    assert not browser.visible("#tip")
    browser.hover(frame, 4.5 / 20, 0.5)
    order = np.argsort(-fit.shares, kind="stable")
    value = float(fit.factors[0][4, order[0]])
    name, rest = browser.first("#tip").text.split("\n")
    assert name == "sample S04"
    assert float(rest.split()[0]) == pytest.approx(value, rel=1e-3)
    assert " to " in rest  # the interval
    browser.hover(browser.first("h1"))
    assert not browser.visible("#tip")
    browser.hover(browser.first("#samples .plot .mark.bad, #samples .plot .mark.outside"))
    assert browser.first("#tip").text.startswith("sample S04: ")


def test_values_of_cells_are_read_from_the_picture(browser, report):
    path, X, fit = report
    browser.open(path)
    frame = browser.visible("#slices .plot.cells .frame")[0]
    row, column = 6, 5  # rows rise with the wavelength
    browser.hover(frame, (column + 0.5) / 12, 1 - (row + 0.5) / 15)
    where, *lines = browser.first("#tip").text.split("\n")
    assert where.startswith("nm 312, day ")
    assert where.endswith("[5]")
    values = float(X[4, row, column]), float(fit.at([(4, row, column)])[0])
    assert any("about" in line for line in lines)
    for line, name, value in zip(
        lines, ("data", "model", "residual"), (*values, values[0] - values[1]), strict=True
    ):
        told, text = line.split(": ")
        assert told == name
        if text.startswith("about"):
            read = float(text.split()[1].replace("\N{MINUS SIGN}", "-"))
            assert read == pytest.approx(value, abs=0.1)
    assert len(browser.visible("#slices .cursor")) == 3


def test_zoom_by_the_mouse_and_by_keys(browser, report):
    browser.open(report[0])
    frame = browser.first('#components .plot[data-group="factor-1"] .frame')
    whole = views(browser, "factor-1")
    browser.drag(frame, (0.25, 0.3), (0.75, 0.6))
    for now, before in zip(views(browser, "factor-1"), whole, strict=True):  # of all components
        assert now[2] == pytest.approx(before[2] / 2, rel=0.02)
        assert now[0] == pytest.approx(before[2] / 4, rel=0.05)
        assert now[3] == before[3]
    assert views(browser, "factor-0")[0][0] == 0  # not of other modes
    ticks = browser.all('#components .plot[data-group="factor-1"] .xticks text')
    assert all(304 <= float(each.text) <= 324 for each in ticks)
    browser.double_click(frame)
    assert views(browser, "factor-1") == whole
    browser.press("+")  # the picture has the focus
    assert views(browser, "factor-1")[0][2] == whole[0][2] / 2
    browser.press("0")
    assert views(browser, "factor-1") == whole


def test_zoom_by_buttons(browser, report):
    browser.open(report[0])
    group = shown(browser)[0]
    whole = views(browser, group)
    assert len(whole) == 3
    more, less, every = browser.all(f'.tools[data-group="{group}"] button')
    assert not every.is_enabled()
    browser.click(more)
    assert [now[2:] for now in views(browser, group)] == [[w / 2, h / 2] for *_, w, h in whole]
    browser.click(less)
    assert views(browser, group) == whole
    browser.drag(browser.visible("#slices .plot.cells .frame")[1], (0.1, 0.1), (0.5, 0.5))
    assert views(browser, group)[0][2] < 0.6 * whole[0][2]
    assert every.is_enabled()
    browser.click(every)
    assert views(browser, group) == whole


def test_choosing_a_slice_changes_the_picture(browser, report):
    from selenium.webdriver.support.ui import Select

    browser.open(report[0])
    assert shown(browser) == ["slab-0-4"]  # the worst
    before = browser.visible("#slices image")[0].get_dom_attribute("href")
    choice = Select(browser.first("#slab"))
    assert len(choice.options) == 15
    choice.select_by_index(6)
    assert shown(browser) == [choice.options[6].get_attribute("value")]
    assert browser.visible("#slices image")[0].get_dom_attribute("href") != before
    browser.click(browser.first("#flagged .plot.along .frame"), 4.5 / 20, 0.8)  # the bar of S04
    assert shown(browser) == ["slab-0-4"]
    assert choice.first_selected_option.text.startswith("sample S04")


def test_printed(browser, report):
    browser.open(report[0])
    printed = browser.printed()
    assert printed.startswith(b"%PDF")
    assert 4 <= printed.count(b"/Type /Page\n") <= 20


@pytest.mark.parametrize("width", [380, 1400])
def test_without_javascript(browser, report, width):
    browser.open(report[0], width=width, scripts=False)
    assert len(shown(browser)) == 15  # all slices, one after the other
    assert not browser.visible("#slab")
    assert not browser.visible(".tools")
    assert browser.first("#components .plot").rect["height"] > 50
    assert browser.overflow <= 0
    assert "Samples that stand out" in browser.first("main").text
    browser.open(report[0])
    assert len(shown(browser)) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: robustcp.simulate((12, 15), 2, eta=0.1, gamma=1.0, rng=0).data,
        lambda: robustcp.simulate((4, 5, 3, 4), 2, eta=0.1, gamma=1.0, rng=0).data,
        lambda: np.ones((1, 2, 3)),
    ],
    ids=["matrix", "order 4", "constant"],
)
def test_other_data(browser, tmp_path, make):
    X = make()
    robustcp.cpal1(X, 1, rng=0).report(X, tmp_path / "report.html")
    browser.open(tmp_path / "report.html", width=380)
    assert browser.complaints == []
    assert browser.overflow <= 0
    for frame in browser.visible("#slices .frame")[:1] + browser.visible("#flagged .frame")[:1]:
        browser.hover(frame, 0.4, 0.4)
        assert browser.first("#tip").text
    assert browser.complaints == []
