"""HTML and SVG as values: what is not markup already is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from robustcp._util.text import label_text, shorten

#: The largest number of letters of a label in tables and tooltips.
MAX_LABEL_LETTERS = 60
#: The texts for a missing number and between the sizes of a shape.
NO_VALUE, TIMES = "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
#: Replacements of characters that HTML cannot hold or that turn text around.
_CONTROL = dict.fromkeys((*range(10), *range(11, 32), *range(127, 160), 0xFFFE, 0xFFFF), " ")
_CONTROL |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), "")  # turn text around
_CONTROL |= dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


class Markup(str):
    """Text that is HTML or SVG."""

    __slots__ = ()


def escape(value: Any) -> Markup:
    """A value as text of a page; markup stays as it is.

    >>> escape('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(clean(str(value))))


def clean(text: str) -> str:
    """A text without control characters and unpaired surrogates, which files cannot hold."""
    return text.translate(_CONTROL)


def element(name: str, /, *content: Any, **attributes: Any) -> Markup:
    """An element; content and values are escaped, and what is None is left out.

    Underscores in the names of attributes are hyphens, but for one at the end.

    >>> element("td", "a < b", class_="n", data_x=3, title=None)
    '<td class="n" data-x="3">a &lt; b</td>'
    >>> element("br")
    '<br>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not content and name in ("br", "hr", "img", "meta"):
        return Markup(f"<{name}{attribute_text}>")
    return Markup(f"<{name}{attribute_text}>{join(content)}</{name}>")


def join(pieces: Iterable[Any]) -> Markup:
    """The concatenation of pieces of markup; pieces that are None are left out."""
    return Markup("".join(escape(piece) for piece in pieces if piece is not None))


def label(value: Any, max_letters: int = MAX_LABEL_LETTERS) -> str:
    """A label in one line, not too long."""
    return shorten(clean(label_text(value)), max_letters)


def number(x: float, digits: int = 4) -> str:
    """A number with some digits and a proper minus sign.

    >>> number(0.123456), number(123456.7), number(12e9), number(float("inf"))
    ('0.1235', '123457', '1.2e10', '∞')
    """
    if math.isnan(x):
        return NO_VALUE
    if 10**digits <= abs(x) < 1e7:
        return f"{x:.0f}".replace("-", "\N{MINUS SIGN}")
    text = f"{x:.{digits}g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return text.replace("-", "\N{MINUS SIGN}").replace("inf", "∞")


def count_text(count: int, singular: str, plural: str | None = None) -> str:
    """A count with its noun, in the singular or plural.

    >>> count_text(1, "entry", "entries"), count_text(12000, "entry", "entries")
    ('1 entry', '12,000 entries')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def percent(share: float) -> str:
    """A share in percent, with more digits if it is small.

    >>> percent(0.5), percent(0.0123), percent(0.00012), percent(0), percent(0.99999)
    ('50.0%', '1.23%', '0.012%', '0%', 'over 99.9%')
    """
    if share in (0, 1):
        return f"{100 * share:g}%"
    if 0.9995 <= share < 1:
        return "over 99.9%"
    return f"{100 * share:.1f}%" if abs(share) >= 0.1 else f"{100 * share:.3g}%"


def table(
    head: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str | None = None,
    text_columns: Sequence[int] = (0,),
) -> Markup:
    """A table of numbers; the columns at `text_columns` hold text. It scrolls if it is too wide."""

    def cells(name: str, row: Sequence[Any], **attributes: Any) -> Markup:
        columns = enumerate(row)
        return join(
            element(name, value, class_=None if k in text_columns else "n", **attributes)
            for k, value in columns
        )

    body = join(element("tr", cells("td", row)) for row in rows)
    return element(
        "div",
        element(
            "table",
            None if caption is None else element("caption", caption),
            element("thead", element("tr", cells("th", head, scope="col"))),
            element("tbody", body),
        ),
        class_="scroll",
        tabindex=0,
    )


def facts(rows: Iterable[tuple[Any, Any]]) -> Markup:
    """A table of two columns: names and facts."""
    body = join(
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in rows
    )
    return element("div", element("table", body, class_="facts"), class_="scroll", tabindex=0)


def paragraph(*content: Any, class_: str | None = None) -> Markup:
    """A paragraph."""
    return element("p", *content, class_=class_)


def figure(content: Any, caption: Any, **attributes: Any) -> Markup:
    """Pictures with a caption."""
    return element("figure", content, element("figcaption", caption), **attributes)
