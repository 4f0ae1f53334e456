"""Labels as text, in one line and not too long."""

from __future__ import annotations

from typing import Any

#: The most letters of a name in a sentence or a picture.
MAX_NAME_LETTERS = 26


def label_text(label: Any) -> str:
    """A label as it is written at a tick or in a title; days without a time of day.

    Examples
    --------
    >>> from datetime import datetime
    >>> label_text(datetime(2024, 3, 1)), label_text(312.50), label_text("patient 17")
    ('2024-03-01', '312.5', 'patient 17')
    """
    return f"{label:g}" if isinstance(label, float) else str(label).removesuffix(" 00:00:00")


def shorten(text: str, max_letters: int = MAX_NAME_LETTERS) -> str:
    """A text in one line, without its middle if it is longer than that.

    Examples
    --------
    >>> shorten("patient 17")
    'patient 17'
    >>> len(shorten("an extraordinarily long name of a sample, 17")) == MAX_NAME_LETTERS
    True
    """
    text = " ".join(text.split())
    if len(text) <= max_letters:
        return text
    half = (max_letters - 1) // 2
    return f"{text[: max_letters - 1 - half]}…{text[-half:]}"
