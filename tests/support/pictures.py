"""Boxes of texts, shades of grey, and labels of samples, for tests of pictures."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import combinations

import matplotlib as mpl
import numpy as np
from matplotlib.text import Text


def overlapping(texts):
    """Pairs of texts whose boxes overlap."""
    texts[0].get_figure().canvas.draw()
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    return [(a, b) for (a, one), (b, two) in combinations(boxes, 2) if one.overlaps(two)]


def outside(texts, box):
    """Texts that leave a box."""
    found = []
    for text in texts:
        mine = Text.get_window_extent(text)  # without the line to its point
        if mine.x0 < box.x0 or mine.y0 < box.y0 or mine.x1 > box.x1 or mine.y1 > box.y1:
            found.append(text.get_text())
    return found


def grey(colour):
    return np.asarray(mpl.colors.to_rgb(colour)) @ [0.299, 0.587, 0.114]


LABELS = {
    "patients": lambda size: [f"patient {k}" for k in range(size)],
    "dates": lambda size: [date(2024, 3, 1) + timedelta(days=k) for k in range(size)],
    "long": lambda size: [f"Lactobacillus rhamnosus of the batch {k}" for k in range(size)],
    "none": lambda size: None,
}
