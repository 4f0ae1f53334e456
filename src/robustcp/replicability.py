"""Do the components come back from other samples? Fits that leave out parts of a mode, compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp import _checks
from robustcp.engines import Labelled, axes_of, host_data, labelled
from robustcp.engines.axes import Axes as Names
from robustcp.fitted import Fit
from robustcp.kruskal import KruskalTensor
from robustcp.many import cp_many, refuse_single
from robustcp.methods import cp
from robustcp.metrics import aligned, factor_match_score
from robustcp.parallel import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: How many parts there are by default, and the congruence from which a component has come back.
FOLDS, BACK = 10, 0.9

#: A part of the samples: its name, and the indices that are kept.
Part = tuple[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Replicability:
    """Fits to parts of the data, beside that of all of it.

    Attributes
    ----------
    mode : int
        The mode of which parts were left out. It does not count in any score.
    fit : Fit
        That of all data.
    models : tuple of KruskalTensor
        Those of the parts, with their components in the order and with the signs of the fit's.
    names : tuple of str
        What the parts are called.
    kept : tuple of integer arrays
        The indices of the mode that each has.
    pairs : tuple of (int, int)
        The models that are compared with each other.
    scores : float64 array (pairs,)
        The factor match score of each pair, without weights, the mode skipped.
    congruences : float64 array (models, rank)
        How much each component is like that of the fit: the product of the cosines of its columns
        in the other modes.

    Examples
    --------
    >>> import robustcp
    >>> X = robustcp.simulate((12, 9, 8), 2, eta=0.05, gamma=0.5, rng=0).data
    >>> found = robustcp.replicability(X, 2, mode=0, folds=2, jobs=1)
    >>> found.came_back
    array([1., 1.])
    """

    mode: int
    fit: Fit = field(repr=False)
    models: tuple[KruskalTensor, ...] = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    kept: tuple[np.ndarray, ...] = field(repr=False)
    pairs: tuple[tuple[int, int], ...] = field(repr=False)
    scores: np.ndarray = field(repr=False)
    congruences: np.ndarray = field(repr=False)

    @property
    def rank(self) -> int:
        return self.fit.rank

    @property
    def score(self) -> float:
        """The median score."""
        return float(np.median(self.scores))

    @property
    def came_back(self) -> np.ndarray:
        """For each component, the share of the parts in which it came back (congruence 0.9)."""
        return np.asarray((self.congruences >= BACK).mean(axis=0))

    def __repr__(self) -> str:
        back = ", ".join(f"{share:.0%}" for share in self.came_back)
        return (
            f"Replicability(rank {self.rank}, {len(self.models)} fits without parts of "
            f"{self.fit.modes[self.mode]}: score {self.score:.3f} "
            f"({self.scores.min():.3f} to {self.scores.max():.3f}), components back in {back})"
        )

    def plot(self, axes: Any = None) -> np.ndarray | Axes:
        """See `robustcp.plot.replicability`."""
        from robustcp.plot import replicability as draw

        return draw(self, axes=axes)


def replicability(
    X: Any,
    rank: int,
    *,
    mode: int | str = 0,
    folds: int | None = None,
    repeats: int = 1,
    groups: Sequence[Any] | None = None,
    preset: str | None = None,
    rng: int | np.random.Generator | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> Replicability:
    """Fit the data without parts of a mode, and compare the components.

    Components that mean something come back when other samples are taken; those that a rank too
    high is spent on do not.

    Parameters
    ----------
    X : array, masked array, or Observed
    rank : int
    mode : int or str
        The mode that holds samples.
    folds : int, optional
        The samples are dealt out at random to so many parts, each of which is left out in turn;
        by default 10, or as many as there are samples. With 2 each half is fitted.
    repeats : int
        How many times they are dealt out anew.
    groups : sequence, optional
        One for each sample: those of a group, such as the visits of a patient, are kept together.
    preset : {"split_half"}, optional
        In place of folds, what chemists do: samples go in turn to quarters A, B, C and D, and the
        halves AB and CD, AC and BD, AD and BC are compared (`robustcp.plot.split_half` lays their
        spectra over each other).
    rng, jobs, progress, folder
        As in `cp_many`.
    **options
        As in `cp`, which fits all.

    Returns
    -------
    Replicability

    Examples
    --------
    >>> import robustcp
    >>> sim = robustcp.simulate((20, 9, 8), 2, eta=0.1, gamma=1.0, rng=0)
    >>> found = robustcp.replicability(sim.data, 2, folds=4, jobs=1)
    >>> len(found.models), len(found.scores), bool(found.score > 0.95)
    (4, 6, True)
    """
    refuse_single(options)
    refuse_entrywise(options)
    X = labelled(X)
    data, axes = host_data(X), axes_of(X)
    at = axes.mode("mode", mode, len(data.shape))
    generator = _checks.generator(rng)
    numbers = _grouped(groups, data.shape[at])
    count = int(numbers.max(initial=-1)) + 1
    if preset is None:
        count_of_folds = _folds(folds, count, groups is not None)
        repeats = _checks.whole_number("repeats", repeats, 1)
        deals = _dealt(numbers, count, count_of_folds, repeats, generator)
    else:
        _checks.choice("preset", preset, tuple(PRESETS))
        if folds is not None or repeats != 1:
            given = "repeats" if folds is None else "folds"
            raise _checks.ArgumentError(given, "cannot be given together with a preset")
        deals = PRESETS[preset](numbers, count)
    parts, pairs = list[Part](), list[tuple[int, int]]()
    for deal in deals:
        first = len(parts)
        parts += deal
        pairs += combinations(range(first, len(parts)), 2)
    done = len(parts) + 1
    tell = progress or (lambda *_: None)
    fit = cp(X, rank, rng=rng, **options)
    tell(1, done)
    fits = cp_many(
        [_named(data.taken(at, kept).data, axes, at, kept) for _, kept in parts], rank,
        rng=rng, jobs=jobs, folder=folder, progress=lambda n, _: tell(n + 1, done), **options,
    )  # fmt: skip
    for error in fits.failures.values():
        raise error
    found = [aligned(one, fit, skip=at) for one in fits]
    models = tuple(model for model, _ in found)
    scores = [factor_match_score(models[i], models[j], weights=False, skip=at) for i, j in pairs]
    return Replicability(
        at, fit, models, tuple(name for name, _ in parts), tuple(kept for _, kept in parts),
        tuple(pairs), np.array(scores), np.stack([congruences for _, congruences in found]),
    )  # fmt: skip


def _named(part: Any, axes: Names, mode: int, kept: np.ndarray) -> Any:
    """A part with the names that all data has, by which options may call modes, and its labels."""
    if not axes.modes:
        return part
    own = (
        [each[k] for k in kept] if n == mode and each is not None else each
        for n, each in enumerate(axes.labels)
    )
    return Labelled(part, axes.modes, tuple(own), units=axes.units)


def refuse_entrywise(options: dict[str, Any]) -> None:
    """Complain of options that are about single entries, which parts of the data do not share."""
    if options.get("entry_weights") is not None:
        raise _checks.ArgumentError(
            "entry_weights", "cannot be given here; make entries of weight 0 missing (NaN)"
        )
    if not isinstance(options.get("init", "auto"), str):
        raise _checks.ArgumentError("init", "must be a kind of start here: parts differ in size")
    if not isinstance(options.get("noise", "auto"), str):
        raise _checks.ArgumentError("noise", "must be a kind of noise here, such as 'auto'")


def _grouped(groups: Sequence[Any] | None, size: int) -> np.ndarray:
    """The number of each sample's group; without groups, its own."""
    if groups is None:
        return np.arange(size)
    listed = list(groups) if isinstance(groups, Sequence) else np.ravel(groups).tolist()
    if len(listed) != size:
        raise _checks.ArgumentError(
            "groups", f"must be one for each of the {size} samples, got {len(listed)}"
        )
    for group in listed:
        if not isinstance(group, Hashable) or group != group:
            raise _checks.ArgumentError("groups", f"must be names or numbers, got {group!r}")
    order = {group: k for k, group in enumerate(dict.fromkeys(listed))}
    if len(order) < 2:
        raise _checks.ArgumentError("groups", f"must be at least two, got {listed[:1]!r} only")
    return np.array([order[group] for group in listed])


def _folds(folds: int | None, count: int, grouped: bool) -> int:
    what = "groups" if grouped else "samples"
    if count < 3:
        raise _checks.ArgumentError("mode", f"has {count} {what}, too few to leave some out")
    if folds is None:
        return min(FOLDS, count)
    folds = _checks.whole_number("folds", folds, 2)
    if folds > count:
        raise _checks.ArgumentError("folds", f"must be at most the {count} {what}, got {folds}")
    return folds


def _dealt(
    numbers: np.ndarray, count: int, folds: int, repeats: int, rng: np.random.Generator
) -> Iterator[list[Part]]:
    """For each repeat, what is kept when each part is left out; of two, each is kept once."""
    for repeat in range(repeats):
        place = np.empty(count, dtype=np.int64)
        place[rng.permutation(count)] = np.arange(count) % folds
        named = f"{repeat + 1}." if repeats > 1 else ""
        yield [
            (f"without part {named}{fold + 1}", np.flatnonzero(place[numbers] != fold))
            for fold in range(folds)
        ]


def _split_half(numbers: np.ndarray, count: int) -> Iterator[list[Part]]:
    """Quarters A to D, and the three ways to make halves of them."""
    if count < 4:
        raise _checks.ArgumentError("mode", f"has {count} samples, too few for quarters")
    quarter = np.array(list("ABCD"))[numbers % 4]
    for halves in (("AB", "CD"), ("AC", "BD"), ("AD", "BC")):
        yield [(half, np.flatnonzero(np.isin(quarter, list(half)))) for half in halves]


#: Ways to split the samples, by name.
PRESETS: dict[str, Callable[[np.ndarray, int], Iterator[list[Part]]]] = {"split_half": _split_half}
