"""The meaning of warnings, for readers who did not make the fit."""

from __future__ import annotations

#: For each code of a warning, what it means and what to do about it.
WARNING_MEANINGS: dict[str, tuple[str, str]] = {
    "structured": (
        "What the model leaves over is not plain noise: residuals vary together, or like their "
        "neighbours. Standard deviations and flags are then less certain than they look.",
        "Look at the residuals of the slices below. Try one more component, more starts, or "
        "cases= if a mode holds samples.",
    ),
    "idle": (
        "The data would be described as well without one of the components.",
        "Fit the lower rank, and see what a rank profile says.",
    ),
    "collinear": (
        "Some components are so alike that the data can hardly tell them apart; their shares and "
        "shapes are not to be read one by one.",
        "Fit a lower rank, or use constraints that tell them apart.",
    ),
    "empty": ("A component has nothing in it.", "Fit a lower rank."),
    "narrow": (
        "A component describes only one entry, one fibre or a few slabs: more likely a fault in "
        "the data than something that all of it has in common.",
        "Look at these slabs below. If they are bad samples, fit with cases=; else a lower rank.",
    ),
    "weak": (
        "The model explains little: residuals are nearly as large as the data.",
        "Try a lower rank, and see whether most entries are flagged.",
    ),
    "ambiguous": (
        "Another start ended at a different model that fits as well. The components shown here "
        "are one of several answers.",
        "Try another rank or constraints, or collect more data.",
    ),
    "one_start": (
        "Only one of many starts led to this model, so that a better one may have been missed.",
        "Fit again with more starts.",
    ),
    "search_limit": (
        "The search for starts ended at its price limit, before enough starts agreed.",
        "Fit again with starts= and the number that the warning names.",
    ),
    "outlying": (
        "Some slabs are far noisier than the others, or far from the model. They have little say "
        "in the fit.",
        "Look at them below. If they are bad samples, fit with cases=, or leave them out.",
    ),
    "not_unique": (
        "The data is a matrix, which determines what its components span, but not the components: "
        "other factors with the same product fit as well.",
        "Read the model, its residuals and flags, not single components; or use data of three "
        "modes. Nonnegative factors are unique only if they have enough zeros.",
    ),
    "unobserved": (
        "Some slabs have no entry that could be used: the model says nothing about them. Their "
        "rows of the factors are 0, which is no finding.",
        "Leave these slabs out, or give data for them.",
    ),
    "prior": (
        "Some rows have so few entries that what is said of them rests on the other rows.",
        "Do not read much into these rows.",
    ),
    "rejected": (
        "More entries were set aside as outliers than kept.",
        "Make sure that what was kept is what you are after; try another rank.",
    ),
    "unrefined": (
        "The noise could not be told from outliers, so the last step of the fit was left out.",
        "Try another rank, or more starts.",
    ),
    "units": (
        "Slabs of a mode that may be of variables differ more than a hundredfold in size, so that "
        "the fit is of the largest.",
        "If their units differ, scale within that mode: preprocess=[Scale(mode)].",
    ),
    "unsolved": ("Some rows could not be solved for.", "Fit a lower rank."),
    "subsets": (
        "Fewer subsets of samples were tried than it takes to be sure that one has no bad sample.",
        "Fit with more starts, or with a smaller share of bad samples.",
    ),
}
