"""Tables of results, and a document that holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from measuring import Result


def met(result: Result) -> str:
    """Whether the median reaches its target; never if the result is not good enough to count."""
    if not result["target"]:
        return ""
    sign, bound = result["target"].split()
    good = result["median"] >= float(bound) if sign == ">=" else result["median"] <= float(bound)
    return "yes" if good and result["valid"] else "NO"


def table(results: Sequence[Result]) -> str:
    lines = [
        "| what | median | lowest to highest | limit | target | met | beside it |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        limit = "" if r["limit"] is None else f"{r['limit']:.3g}"
        lines.append(
            f"| {r['name']} | {r['median']:.3g} {r['unit']} | {r['low']:.3g} to {r['high']:.3g} "
            f"| {limit} | {r['target']} | {met(r)} | {r['note']} |"
        )
    return "\n".join(lines)


def about(machine: Mapping[str, Any]) -> str:
    packages = ", ".join(
        f"{name} {machine[name]}" for name in ("numpy", "numba", "pyttb", "tensorly")
    )
    return (
        f"Measured on {machine['date']} at commit {machine['commit']}, with {machine['threads']} "
        f"threads on {machine['cores']} cores of {machine['processor']}; "
        f"Python {machine['python']}, {packages}."
    )


def filled(text: str, machine: Mapping[str, Any], results: Sequence[Result]) -> str:
    """A document with new tables between its lines `<!-- bench: NAME -->` and `<!-- end -->`.

    The name is that of a benchmark, or "machine". A table without results stays as it is.
    """
    parts = {"machine": about(machine)} if results else {}
    for name in dict.fromkeys(r["bench"] for r in results):
        parts[name] = table([r for r in results if r["bench"] == name])

    def part(found: re.Match[str]) -> str:
        opening, name, old, closing = found.groups()
        return opening + parts.get(name, old.strip("\n")) + "\n" + closing

    pattern = r"(<!-- bench: (\w+) -->\n)(.*?)(<!-- end -->)"
    return re.sub(pattern, lambda m: part(m), text, flags=re.DOTALL)
