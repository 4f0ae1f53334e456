"""What is for contributors: workflows and templates are valid, and name what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))

pytest.importorskip("check_jsonschema")
yaml = pytest.importorskip("ruamel.yaml")


def check(schema, *files):
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", [p for p in GITHUB.glob("ISSUE_TEMPLATE/*.yml")
                                       if p.name != "config.yml"]),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)  # fmt: skip
def test_files_for_github_are_valid(schema, files):
    assert files
    check(schema, *files)


def commands():
    """Every command of every workflow."""
    for path in WORKFLOWS:
        for job in yaml.YAML(typ="safe").load(path)["jobs"].values():
            yield from (step["run"] for step in job["steps"] if "run" in step)


def test_workflows_run_what_is_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    seen = list(commands())
    assert {target for line in seen for target in re.findall(r"\bmake (\S+)", line)} <= targets
    scripts = {name for line in seen for name in re.findall(r"\bscripts/\S+", line)}
    assert scripts
    assert all((ROOT / name).exists() for name in scripts)


def test_every_supported_python_is_tested():
    tests = yaml.YAML(typ="safe").load(GITHUB / "workflows" / "tests.yml")
    tested = tests["jobs"]["tests"]["strategy"]["matrix"]["python"]
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert tested == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def test_contributing_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    named = re.findall(r"`((?:src|tests|docs|scripts|benchmarks)/[\w/.]+)`", text)
    assert len(links) + len(named) > 10
    assert [name for name in [*links, *named] if not (ROOT / name).exists()] == []
