"""Pictures: Matplotlib draws, and the page holds what it drew as elements of SVG.

Colours become variables of the page's style, light or dark. The inner part of a picture is an `svg`
of class `view`, which the script of the page zooms; the axes around it are written here.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator
from matplotlib.transforms import Affine2D

from robustcp._util.text import shorten
from robustcp.report.markup import Markup, element, number

#: The width of a letter, as a share of the font size: page and Matplotlib have different fonts.
LETTER_WIDTH = 0.56
FONT_SIZE = 11.0
#: Pixels between ticks at numbers of a vertical axis.
MIN_TICK_DISTANCE = 27.0
#: Variables of the page's style in place of colours, and of greys up to some lightness.
COLOUR_VARIABLES = {"#0072b2": "blue", "#d55e00": "orange", "#009e73": "green"}
GREY_VARIABLES = ((0.25, "ink"), (0.7, "soft"), (0.93, "rule"), (0.97, "shade"), (1.0, "paper"))
#: The commands of SVG for Matplotlib's codes of paths.
PATH_COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
#: How text is anchored, and where its anchor is, for each horizontal alignment.
TEXT_ANCHORS = {"left": ("start", 0.0), "center": ("middle", 0.5), "right": ("end", 1.0)}

#: Matplotlib's settings belong to the process, so one page is drawn at a time.
_DRAWING = threading.Lock()


@contextlib.contextmanager
def drawing_style() -> Iterator[None]:
    """Draw with Matplotlib's defaults and the font size of the page, not the user's settings."""
    with _DRAWING, mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"font.size": FONT_SIZE, "text.parse_math": False})
        yield


def new_axes(
    width: float,
    height: float,
    *,
    left: float = 44.0,
    right: float = 10.0,
    top: float = 10.0,
    bottom: float = 38.0,
) -> Axes:
    """Axes in a figure of some size, with margins, all in pixels."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    _Canvas(figure)
    inner = left, bottom, width - left - right, height - top - bottom
    ax = figure.add_axes(tuple(np.divide(inner, (width, height, width, height)).tolist()))
    ax.set_axis_off()
    return ax


def set_left_margin(ax: Axes, left: float) -> None:
    """Set the margin to the left of Axes, in pixels."""
    box = ax.get_position()
    ax.set_position(
        (left / ax.figure.bbox.width, box.y0, box.x1 - left / ax.figure.bbox.width, box.height)
    )


def set_ticks(axis: Axis, ticks: Iterable[tuple[float, str]]) -> None:
    """Set ticks at given positions, with their texts."""
    positions, texts = zip(*ticks, strict=True)
    axis.set_major_locator(FixedLocator(positions))
    axis.set_major_formatter(FixedFormatter(texts))


def set_number_ticks(axis: Axis, min_distance: float) -> None:
    """Set ticks at round numbers, at least `min_distance` pixels apart."""
    bounds = axis.axes.bbox
    length = bounds.width if axis is axis.axes.xaxis else bounds.height
    axis.set_major_locator(MaxNLocator(max(1, int(length / min_distance)), steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))


def picture(
    ax: Axes,
    *,
    alt: str,
    kind: str,
    tips: Mapping[str, Sequence[str]] | None = None,
    background: Markup | None = None,
    overlay: Markup | None = None,
    **attributes: Any,
) -> Markup:
    """A picture of Axes.

    Parameters
    ----------
    ax : matplotlib Axes
    alt : str
        What it shows, for those who cannot see it.
    kind : str
        The class of the picture, by which the script knows what to do with it.
    tips : mapping from str to a sequence of str, optional
        For the gid of an artist, what to say of each of its marks.
    background : Markup, optional
        What is in the inner part beneath the artists, in pixels from its upper left corner.
    overlay : Markup, optional
        What is drawn over all, in pixels of the whole.
    """
    ax.set_axis_off()
    if (drawn_legend := ax.get_legend()) is not None:
        drawn_legend.set_visible(False)  # the page has one of its own
    for text in ax.texts:
        text.set_path_effects([])  # the style of the page has an outline
    renderer = _Renderer(ax.figure.bbox.height, ax.bbox, tips or {})
    ax.draw(renderer)
    (width, height), (w, h) = ax.figure.bbox.size, np.round(ax.bbox.size, 1)
    left, top = np.round((ax.bbox.x0, height - ax.bbox.y1), 1)
    return element(
        "svg",
        element("rect", class_="frame", x=left, y=top, width=w, height=h),
        element(
            "svg",
            background,
            *renderer.elements,
            class_="view",
            x=left,
            y=top,
            width=w,
            height=h,
            viewBox=f"0 0 {w} {h}",
            preserveAspectRatio="none",
        ),
        _ticks(ax.xaxis, f"translate({left} {top + h:.1f})"),
        _ticks(ax.yaxis, f"translate({left} {top})"),
        _axis_name(ax.get_xlabel(), 40, f"translate({left + w / 2:.1f} {top + h + 31:.1f})"),
        _axis_name(ax.get_ylabel(), 34, f"translate(11 {top + h / 2:.1f}) rotate(-90)"),
        overlay,
        class_=f"plot {kind}",
        role="img",
        aria_label=alt,
        viewBox=f"0 0 {width:g} {height:g}",
        **attributes,
    )


def _ticks(axis: Axis, transform: str) -> Markup:
    """The ticks of an axis, each with its text."""
    ax, horizontal = axis.axes, axis is axis.axes.xaxis
    low, high = sorted(axis.get_view_interval())
    locations = [x for x in axis.get_majorticklocs() if low <= x <= high]
    ticks = []
    for location, text in zip(
        locations, axis.get_major_formatter().format_ticks(locations), strict=True
    ):
        if horizontal:
            x = ax.get_xaxis_transform().transform((location, 0))[0] - ax.bbox.x0
            shift, mark = f"translate({x:.1f} 0)", element("line", y2=4)
            label = element("text", text, y=16)
        else:
            y = ax.bbox.y1 - ax.get_yaxis_transform().transform((0, location))[1]
            shift, mark = f"translate(0 {y:.1f})", element("line", x2=-4)
            label = element("text", text, x=-7, dy="0.34em")
        ticks.append(element("g", mark, label, transform=shift))
    return element("g", *ticks, class_="xticks" if horizontal else "yticks", transform=transform)


def _axis_name(text: str, max_letters: int, transform: str) -> Markup | None:
    if not text:
        return None
    return element("text", shorten(text, max_letters), class_="name", transform=transform)


def legend(handles: Iterable[Any], names: Iterable[str]) -> Markup:
    """A legend: the name of each mark or line beside a small picture of it."""
    entries = []
    for handle, name in zip(handles, names, strict=True):
        ax = new_axes(22, 12, left=0, right=0, top=0, bottom=0)
        no_room = {"borderpad": 0, "borderaxespad": 0, "handletextpad": 0, "frameon": False}
        ax.legend([handle], [""], loc="center", handlelength=1.8, **no_room)
        renderer = _Renderer(12, ax.bbox, {})
        ax.draw(renderer)
        key = element("svg", *renderer.elements, viewBox="0 0 22 12", class_="key")
        entries.append(element("span", key, name))
    return element("p", *entries, class_="legend")


class _Canvas(FigureCanvasBase):
    """A canvas by which Matplotlib measures texts with the renderer of the page."""

    def __init__(self, figure: Figure) -> None:
        super().__init__(figure)
        self._renderer = _Renderer(figure.bbox.height, figure.bbox, {})

    def get_renderer(self) -> _Renderer:
        return self._renderer


class _Renderer(RendererBase):
    """Collects paths and texts as elements, in pixels from the upper left corner of bounds."""

    def __init__(self, height: float, bounds: Any, tips: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.elements: list[Markup] = []
        self._height, self._bounds = height, bounds
        self._tips = {gid: iter(texts) for gid, texts in tips.items()}
        self._gids: list[str | None] = [None]
        self._to_view = Affine2D().translate(-bounds.x0, -bounds.y1).scale(1, -1)

    def open_group(self, s: str, gid: str | None = None) -> None:
        del s
        self._gids.append(gid)

    def close_group(self, s: str) -> None:
        del s
        self._gids.pop()

    def get_canvas_width_height(self) -> tuple[float, float]:
        return self._bounds.width, self._height

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        del ismath
        size = prop.get_size_in_points()
        return LETTER_WIDTH * size * len(s), 0.95 * size, 0.22 * size

    def draw_path(self, gc: Any, path: Path, transform: Any, rgbFace: Any = None) -> None:
        d = _path_data(path, transform + self._to_view)
        if d:
            self.elements.append(element("path", d=d, **_style(gc, rgbFace)))

    def draw_markers(
        self,
        gc: Any,
        marker_path: Path,
        marker_trans: Any,
        path: Path,
        trans: Any,
        rgbFace: Any = None,
    ) -> None:
        gid = self._gids[-1] or ""
        d = _path_data(marker_path, marker_trans + Affine2D().scale(1, -1))
        style = _style(gc, rgbFace)
        points = (trans + self._to_view).transform(path.vertices)
        for x, y in points[np.isfinite(points).all(axis=1)].tolist():
            tip = next(self._tips.get(gid, iter(())), None)
            place = {"class_": gid or None, "transform": f"translate({x:.1f} {y:.1f})"}
            self.elements.append(element("path", d=d, **style, **place, data_tip=tip))

    def draw_text(
        self,
        gc: Any,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Any = None,
    ) -> None:
        anchor, share = TEXT_ANCHORS["left" if mtext is None else mtext.get_ha()]
        shift = share * self.get_text_width_height_descent(s, prop, ismath)[0]
        x += shift * math.cos(math.radians(angle)) - self._bounds.x0
        y -= shift * math.sin(math.radians(angle)) + self._height - self._bounds.y1
        turn = f" rotate({-angle:g})" if angle else ""
        self.elements.append(
            element(
                "text",
                s,
                class_="in-view",
                transform=f"translate({x:.1f} {y:.1f}){turn}",
                text_anchor=anchor,
                font_size=f"{prop.get_size_in_points():.3g}",
                font_style="italic" if prop.get_style() == "italic" else None,
                fill=_colour_variable(gc.get_rgb()),
            )
        )


def _style(gc: Any, face: Any) -> dict[str, Any]:
    """The attributes of a path: fill, stroke and dashes."""
    width, line = gc.get_linewidth(), gc.get_rgb()
    dashes: Any = gc.get_dashes()[1]
    filled = face is not None and (len(face) == 3 or face[3] > 0)
    style = {"fill": _colour_variable(face) if filled else "none"}
    if filled and len(face) > 3 and face[3] < 1:
        style["fill_opacity"] = f"{face[3]:.3g}"
    if width > 0 and line[3] > 0:
        style |= {"stroke": _colour_variable(line), "stroke_width": f"{width:.3g}"}
        if gc.get_capstyle() == "round":
            style["stroke_linecap"] = "round"
        if dashes:
            style["stroke_dasharray"] = " ".join(f"{x:.3g}" for x in dashes)
    return style


def _colour_variable(colour: Any) -> str:
    """A colour as a variable of the page's style if it has one, else in hexadecimal."""
    name = COLOUR_VARIABLES.get(to_hex(colour[:3]))
    if name is None and np.ptp(colour[:3]) == 0:
        name = next(name for lightness, name in GREY_VARIABLES if colour[0] <= lightness)
    return to_hex(colour[:3]) if name is None else f"var(--{name})"


def _path_data(path: Path, transform: Any) -> str:
    """The `d` attribute of a path, which is interrupted at missing points."""
    path = path.cleaned(transform, remove_nans=True, curves=True)
    codes, vertices = np.asarray(path.codes).tolist(), np.asarray(path.vertices).tolist()
    pieces = []
    for code, group in itertools.groupby(
        zip(codes, vertices, strict=True), key=lambda pair: pair[0]
    ):
        points = [f"{x:.1f} {y:.1f}" for _, (x, y) in group]
        if code == Path.MOVETO:
            pieces.append(f"M{points[-1]}")
        elif code == Path.CLOSEPOLY:
            pieces.append("Z")
        elif code != Path.STOP:
            pieces.append(PATH_COMMANDS[code] + " ".join(points))
    return "".join(pieces)
