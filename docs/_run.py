"""Run the code of pages when the site is built, and show under each block what it prints and draws.

Pages whose blocks of Python are run are those of the guide and those for a field. A page that "goes
on from" another has its names. Values of bare expressions are shown as in a notebook. A picture
that a block draws takes the place of the committed one, which is for readers of the repository:

    python docs/_run.py samples rank    # draw the committed pictures of these pages anew
"""

import argparse
import ast
import contextlib
import io
import logging
import os
import re
import tempfile
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sphinx.util.logging import getLogger

LOG = getLogger(__name__)
HERE = Path(__file__).parent
#: Where pictures go while the site is built.
DRAWN = HERE / "_drawn"
#: Pages that are run.
PAGES = ("guide/*.md", "fluorescence.md", "neuroscience.md")
BLOCK = re.compile(
    r"^```python\n(.*?)^```\n(?:\n!\[([^\]]*)\]\(([^)]+)\)\n)?", re.MULTILINE | re.DOTALL
)
EARLIER = re.compile(r"goes on from \[.*?\]\((\w+)\.md\)")
#: Output that is longer is cut.
LINES, LETTERS = 14, 2000
#: Arrays with more entries are not shown.
LARGE = 40


@dataclass
class Shown:
    """What a block printed and drew."""

    text: str
    figures: list[Any] = field(default_factory=list)


def is_run(name: str) -> bool:
    """Whether the code of a page is run, by its name without suffix."""
    return any(Path(f"{name}.md").match(pattern) for pattern in PAGES)


def is_picture(value: Any) -> bool:
    """Whether a value stands for what was drawn."""
    parts = getattr(value, "flat", [value])
    return any(type(part).__module__.startswith("matplotlib") for part in list(parts)[:1])


def shortened(text: str) -> str:
    """Output of a length that one reads."""
    lines = text.splitlines()
    kept = "\n".join(lines[:LINES])[:LETTERS]
    return kept if kept == "\n".join(lines) else f"{kept}\n..."


def worded(value: Any) -> str:
    """A value as it is shown; of large arrays only what they are."""
    if getattr(value, "size", 0) > LARGE and hasattr(value, "dtype"):
        return f"{value.dtype} array of {' x '.join(map(str, value.shape))}"
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is tuple:
        return "(" + ", ".join(map(worded, value)) + ")"
    return shortened(repr(value))


def step(node: ast.stmt, names: dict[str, Any]) -> None:
    """Run a statement, and print its value if it has one."""
    if not isinstance(node, ast.Expr):
        exec(compile(ast.Module([node], []), "<page>", "exec"), names)
        return
    value = eval(compile(ast.Expression(node.value), "<page>", "eval"), names)
    if value is not None and not is_picture(value):
        print(worded(value))


def run(block: str, names: dict[str, Any]) -> Shown:
    """Run a block, as a notebook would."""
    import matplotlib.pyplot as plt

    plt.close("all")
    printed = io.StringIO()
    short = np.printoptions(precision=3, suppress=True, threshold=20, edgeitems=4)
    with contextlib.redirect_stdout(printed), short:
        try:
            for node in ast.parse(block).body:
                step(node, names)
        except ModuleNotFoundError as error:
            print(f"not run when this site was built, as {error.name} was not installed")
    return Shown(shortened(printed.getvalue()), [plt.figure(n) for n in plt.get_fignums()])


@cache
def names_after(page: Path) -> dict[str, Any]:
    """The names that the code of a page leaves behind."""
    text = page.read_text("utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for earlier in EARLIER.findall(text):
        names |= names_after(page.with_name(f"{earlier}.md"))
    for block in BLOCK.finditer(text):
        run(block[1], names)
    return names


@contextlib.contextmanager
def elsewhere() -> Any:
    """A new folder for the files that code writes; logging as it was, afterwards."""
    folder = tempfile.TemporaryDirectory()
    root, ours = logging.getLogger(), logging.getLogger("robustcp")
    before = root.level, list(root.handlers), ours.level
    with folder as there, contextlib.chdir(there), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            root.setLevel(before[0])
            root.handlers[:] = before[1]
            ours.setLevel(before[2])


def executed(name: str, text: str) -> str:
    """The text of a page with the output of its code."""
    page = HERE / f"{name}.md"
    names: dict[str, Any] = {"__name__": "page"}
    pictures = 0

    def shown(block: re.Match[str]) -> str:
        nonlocal pictures
        done = run(block[1], names)
        parts = [f"```python\n{block[1]}```\n"]
        if done.text.strip():
            parts.append(f"```{{code-block}} text\n:class: output\n\n{done.text.rstrip()}\n```\n")
        for figure in done.figures:
            pictures += 1
            file = DRAWN / f"{name.replace('/', '_')}_{pictures}.png"
            DRAWN.mkdir(exist_ok=True)
            figure.savefig(file, dpi=100)
            parts.append(
                f"![{block[2] or 'What the code above draws'}](/{file.relative_to(HERE)})\n"
            )
        if block[3] and not done.figures:
            parts.append(f"![{block[2]}]({block[3]})\n")
        return "\n".join(parts)

    with elsewhere():
        for earlier in EARLIER.findall(text):
            names |= names_after(page.with_name(f"{earlier}.md"))
        return BLOCK.sub(shown, text)


#: Pages with the output of their code.
RUN: dict[str, str] = {}


def before_reading(app: Any, env: Any, names: list[str]) -> None:
    """Run the code of pages that are to be read, here: a process that was forked has no threads."""
    for name in names:
        if is_run(name) and app.config.run_pages:
            LOG.info("running the code of %s", name)
            RUN[name] = executed(name, Path(env.doc2path(name)).read_text("utf-8"))


def on_source(app: Any, name: str, source: list[str]) -> None:
    """Hand a page with its output to Sphinx."""
    source[0] = RUN.get(name, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Have pages run before they are read."""
    app.add_config_value("run_pages", True, "env")
    app.connect("env-before-read-docs", before_reading)
    app.connect("source-read", on_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    """Draw the committed pictures of some pages anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", help="such as samples")
    os.environ["MPLBACKEND"] = "Agg"
    for name in parser.parse_args().pages:
        page = HERE / "guide" / f"{name}.md"
        text, names = page.read_text("utf-8"), {"__name__": "page"}
        with elsewhere():
            for earlier in EARLIER.findall(text):
                names |= names_after(page.with_name(f"{earlier}.md"))
            for block in BLOCK.finditer(text):
                done = run(block[1], names)
                print(done.text)
                if block[3] and done.figures:
                    done.figures[-1].savefig((page.parent / block[3]).resolve(), dpi=110)
                    print(f"{block[3]}: drawn")


if __name__ == "__main__":
    main()
