"""The documentation: an example and a page for every public name, a site whose links hold."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import robustcp
from robustcp import baselines, eem, plot, preprocess, tensorly
from support.browser import chromium
from support.sites import Site

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

MODULES = {
    "robustcp": robustcp,
    "robustcp.eem": eem,
    "robustcp.plot": plot,
    "robustcp.preprocess": preprocess,
    "robustcp.tensorly": tensorly,
}
PUBLIC = {
    f"{name}.{each}": getattr(module, each)
    for name, module in MODULES.items()
    for each in module.__all__
    if not inspect.ismodule(getattr(module, each))
} | {
    f"robustcp.baselines.{name}": each
    for name, each in vars(baselines).items()
    if inspect.isfunction(each) and each.__module__ == baselines.__name__ and name[0] != "_"
}


def examples_of(name):
    return doctest.DocTestParser().get_examples(inspect.getdoc(PUBLIC[name]) or "")


def unbound(source):
    """The names that some code uses without having made them."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names]  # fmt: skip
    made = {alias.asname or alias.name.split(".")[0] for alias in imported}
    made |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - made - set(dir(builtins))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_has_an_example_that_runs_as_it_stands(name):
    assert "\nExamples\n--------\n" in inspect.getdoc(PUBLIC[name])
    examples = examples_of(name)
    assert any(example.want for example in examples)
    assert unbound("".join(example.source for example in examples)) == set()


def test_every_public_name_has_a_page():
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    lists = re.findall(r"\.\. autosummary::\n   :toctree: api\n\n((?:   \S+\n)+)", text)
    listed = [f"robustcp.{name}" for each in lists for name in each.split()]
    assert sorted(listed) == sorted(PUBLIC)


def test_every_public_name_has_its_theory():
    spec = importlib.util.spec_from_file_location("_site", DOCS / "_site.py")
    module = importlib.util.module_from_spec(spec)
    pytest.importorskip("sphinx", reason="needs the extra 'docs'")
    spec.loader.exec_module(module)
    assert set(module.THEORY) == set(PUBLIC)
    assert {*module.THEORY.values()} <= {path.stem for path in (DOCS / "theory").glob("*.md")}


WITH_DOCTESTS = [
    path.relative_to(DOCS).as_posix()
    for path in sorted(DOCS.rglob("*.md"))
    if "_build" not in path.parts and ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", WITH_DOCTESTS)
def test_examples_in_pages_hold(page):
    found = doctest.testfile(str(DOCS / page), module_relative=False)
    assert found.attempted > 0
    assert found.failed == 0


# Sites


def build(source, out, *options):
    """Build a site, with warnings as errors."""
    pytest.importorskip("sphinx_gallery", reason="needs the extra 'docs'")
    source_tree = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", *options, source, out],
        env={**os.environ, "PYTHONPATH": source_tree}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return Site(out)


ONE_EXAMPLE = """
# One example

```{toctree}
gallery/index
theory/refinement
```

```{eval-rst}
.. currentmodule:: robustcp

.. autosummary::
   :toctree: api

   cp
```
"""


@pytest.fixture(scope="module")
def one_example(tmp_path_factory):
    """A site of one example, one page of the API and a formula."""
    folder = tmp_path_factory.mktemp("site")
    source, examples = folder / "docs", folder / "examples"
    (source / "theory").mkdir(parents=True)
    examples.mkdir()
    (examples / "GALLERY_HEADER.rst").write_text("Examples\n========\n")
    shutil.copy(ROOT / "examples/gallery/basics/plot_least_squares_breaks.py", examples)
    shutil.copy(DOCS / "references.bib", source)
    (source / "index.md").write_text(ONE_EXAMPLE)
    (source / "theory" / "refinement.md").write_text("# Refinement\n\n$$\\rho'(r) = r\\, p(r)$$\n")
    return build(
        source, folder / "html", "-c", DOCS, "-D", f"sphinx_gallery_conf.examples_dirs={examples}"
    )


@pytest.mark.docs
def test_one_example_site(one_example):
    assert one_example.broken() == []
    assert one_example.fetched() == set()
    page = one_example.pages[one_example.folder / "gallery" / "plot_least_squares_breaks.html"]
    assert re.search(r"cp +0\.99\d", page.text)  # the example was run
    assert any(link.element == "img" and "_images" in link.target for link in page.links)
    api = one_example.pages[one_example.folder / "api" / "robustcp.cp.html"]
    assert "Examples that use it" in api.text
    formula = (one_example.folder / "theory" / "refinement.html").read_text(encoding="utf-8")
    assert "<math" in formula


WIDTHS = (380, 1400)


def assert_shows_well(browser, path, width):
    browser.open(path, width=width)
    assert browser.complaints == []
    assert browser.broken_images == []
    assert browser.overflow <= 0


@pytest.mark.docs
@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
def test_one_example_site_in_chromium(one_example, width):
    pages = ("index", "gallery/index", "gallery/plot_least_squares_breaks", "api/robustcp.cp")
    with chromium() as browser:
        for name in pages:
            assert_shows_well(browser, one_example.folder / f"{name}.html", width)


# The whole site takes minutes, as all examples run.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    generated = shutil.ignore_patterns("_build", "api", "gallery")
    shutil.copytree(DOCS, folder / "docs", ignore=generated)
    shutil.copytree(ROOT / "examples", folder / "examples")
    for path in ROOT.glob("*.md"):  # pages include some of them
        shutil.copy(path, folder)
    return build(folder / "docs", folder / "html")


@pytest.mark.slow
class TestWholeSite:
    def test_links_anchors_and_images(self, whole):
        assert len(whole.pages) > 100
        assert whole.broken() == []
        assert whole.fetched() == set()

    def test_every_example_has_a_picture(self, whole):
        for path in (ROOT / "examples" / "gallery").rglob("plot_*.py"):
            name = f"gallery/{path.parent.name}/{path.stem}.html"
            links = whole.pages[whole.folder / name].links
            assert any(link.element == "img" and "_images" in link.target for link in links), name

    def test_size(self, whole):
        files = [path for path in whole.folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 50e6

    def test_two_clicks_from_the_start(self, whole):
        near = whole.within(2)
        for name, said in {
            "start.html": "robustcp.cp(X, 5)",
            "api/robustcp.plot.components.html": "one row of panels for each component",
            "guide/outliers.html": ".outliers(sim.data)",
            "guide/rank.html": "robustcp.rank_profile(bad",
            "guide/gpu.html": 'device="cuda"',
            "guide/cluster.html": "distributed import Client",
        }.items():
            assert said in near[name], name

    @pytest.mark.parametrize("width", WIDTHS)
    def test_in_chromium(self, whole, width):
        with chromium() as browser:
            for path in whole.pages:
                assert_shows_well(browser, path, width)

    def test_search_without_a_network(self, whole):
        with chromium() as browser:
            browser.open(whole.folder / "search.html")
            browser.driver.get((whole.folder / "search.html").as_uri() + "?q=outliers")
            found = "document.querySelectorAll('#search-results ul.search li').length"
            browser.driver.implicitly_wait(20)
            browser.first("#search-results ul.search li")
            assert browser.run(found) > 0
            assert browser.complaints == []
