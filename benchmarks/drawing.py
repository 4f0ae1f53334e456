"""The picture: how much faster than what one uses, how it grows, what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from measuring import Result

#: Shades that stay apart in grey.
PEERS = {"pyttb.gcp_opt": "#08306b", "pyttb": "#4292c6", "TensorLy": "#c6dbef"}
METHODS = {
    "cp": ("#08306b", "o", "-"),
    "cpal1": ("#2171b5", "s", "-"),
    "cpals": ("#6baed6", "^", "-"),
    "gcp_opt": ("#d95f02", "D", "--"),
}


def draw(results: Sequence[Result], path: Path) -> None:
    with plt.rc_context({"font.size": 8, "axes.titlesize": 9, "axes.titleweight": "bold"}):
        figure = plt.figure(figsize=(15, 7.5), layout="constrained")
        grid = figure.add_gridspec(2, 3, width_ratios=(1.25, 1, 0.95))
        _faster(figure.add_subplot(grid[:, 0]), results)
        _calls(figure.add_subplot(grid[0, 1]), results)
        _passes(figure.add_subplot(grid[1, 1]), results)
        _first(figure.add_subplot(grid[0, 2]), results)
        _memory(figure.add_subplot(grid[1, 2]), results)
        figure.savefig(path, dpi=120)
        plt.close(figure)


def _empty(ax: Any, title: str, rows: Sequence[Any]) -> bool:
    """Set the title; True, with a word, if there is nothing to show."""
    ax.set_title(title, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    if not rows:
        ax.set_axis_off()
        ax.text(0.5, 0.5, "not measured", ha="center", transform=ax.transAxes, color="0.4")
    return not rows


def _plain(value: float, _: Any = None) -> str:
    return f"{value:g}"


def _faster(ax: Any, results: Sequence[Result]) -> None:
    rows = [r for r in results if r.get("peers")]
    if _empty(ax, "How much faster than what I use", rows):
        return
    at, ticks = 0.0, []
    for r in rows:
        first = at
        for peer, ratio in r["peers"].items():
            ax.barh(
                at, ratio - 1, left=1, color=PEERS[peer], edgecolor="0.2", linewidth=0.5, height=0.8
            )
            ax.text(1.06 * max(ratio, 1), at, f"{ratio:.2g} x", va="center")
            at += 0.9
        ticks.append((first + at - 0.9) / 2)
        at += 0.5
    ax.set_xscale("log")
    top = max(max(r["peers"].values()) for r in rows)
    ax.set_xlim(min(0.5, 0.8 * min(min(r["peers"].values()) for r in rows)), 2.2 * max(top, 25))
    ax.axvline(1, color="0.2", linewidth=1)
    ax.set_yticks(ticks, [r["label"] for r in rows])
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    ax.set_xticks([1, 2, 5, 10, 20, 50], labels=["1", "2", "5", "10", "20", "50"])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("times faster (left of 1: slower)")
    shown = [peer for peer in PEERS if any(peer in r["peers"] for r in rows)]
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=PEERS[p], edgecolor="0.2") for p in shown]
    labels = [f"than {peer}" for peer in shown]
    ax.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.4, -0.06), ncol=3,
              frameon=False)  # fmt: skip


def _calls(ax: Any, results: Sequence[Result]) -> None:
    rows = [r for r in results if r["bench"] == "growth" and "method" in r]
    if _empty(ax, "How it grows: a whole call, cubes of rank 5", rows):
        return
    for name, (colour, marker, line) in METHODS.items():
        own = [r for r in rows if r["method"] == name]
        if own:
            label = "pyttb.gcp_opt" if name == "gcp_opt" else name
            entries = [r["entries"] for r in own]
            ax.plot(entries, [r["median"] for r in own], line, color=colour, marker=marker,
                    label=label)  # fmt: skip
            if name == "cp":
                ax.plot(entries, [r["limit"] for r in own], ":", color="0.3",
                        label="the sweeps of cp at the machine's limit")  # fmt: skip
    _sizes(ax, rows)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    ax.set_ylabel("seconds")
    ax.legend(frameon=False)


def _passes(ax: Any, results: Sequence[Result]) -> None:
    rows = [r for r in results if r["bench"] == "growth" and r.get("cube")]
    if _empty(ax, "One pass over the data, rank 5", rows):
        return
    entries = [r["entries"] for r in rows]
    ax.plot(entries, [r["ns"] for r in rows], "-o", color="#08306b", label="a pass")
    ax.plot(entries, [r["least_ns"] for r in rows], ":", color="0.3", label="the machine's limit")
    _sizes(ax, rows)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks([1, 2, 5, 10, 20, 50])
    ax.set_ylim(0.5 * min(r["least_ns"] for r in rows), 2 * max(r["ns"] for r in rows))
    ax.set_ylabel("ns per entry")
    ax.legend(frameon=False)


def _sizes(ax: Any, rows: Sequence[Result]) -> None:
    """The axis of entries, with cubes for its ticks."""
    ax.set_xscale("log")
    sizes = sorted({r["entries"] for r in rows})
    ax.set_xticks(sizes, [f"{round(n ** (1 / 3))}³" for n in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("entries")


def _bars(ax: Any, rows: Sequence[Result], names: Sequence[str], value: str) -> None:
    at = np.arange(len(rows))
    ax.barh(at, [r["median"] for r in rows], color="#4292c6", edgecolor="0.2", linewidth=0.5,
            height=0.65)  # fmt: skip
    right = max(r["median"] for r in rows)
    for k, r in enumerate(rows):
        ax.text(r["median"] + 0.02 * right, k, value.format(r["median"]), va="center")
    ax.set_yticks(at, names)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.25 * right)
    ax.invert_yaxis()


def _first(ax: Any, results: Sequence[Result]) -> None:
    rows = [r for r in results if r["bench"] == "start" and "first" in r]
    if _empty(ax, "What it needs: seconds to the first result", rows):
        return
    _bars(ax, rows, [r["first"].replace(", ", "\n", 1) for r in rows], "{:.2g} s")
    ax.axvline(rows[0]["limit"], color="0.3", linestyle=":")
    ax.set_xlabel("from the start of Python; dotted: its imports")


def _memory(ax: Any, results: Sequence[Result]) -> None:
    rows = [r for r in results if r["bench"] == "memory" and "needs" in r]
    if _empty(ax, "What it needs: memory beyond the tensor", rows):
        return
    _bars(
        ax,
        rows,
        [r["needs"].replace(" float", "\nfloat").replace("^3", "³") for r in rows],
        "{:.1%}",
    )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    ax.set_xlabel("of the tensor, once compiled")
