"""Are components recovered from other samples? Fits without parts of a mode, compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robustcp._util import checks
from robustcp.engines import Axes as Names
from robustcp.engines import HostData, LabelledTensor, as_labelled, axes_of, host_data
from robustcp.estimators.cp import cp
from robustcp.inference.batch import cp_many, refuse_single_fit_options
from robustcp.inference.parallel import Progress
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.metrics import align_components, factor_match_score
from robustcp.results.fit import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The default number of folds.
DEFAULT_FOLDS = 10
#: A component is recovered from this congruence on.
RECOVERED_CONGRUENCE = 0.9

#: A subset of the samples: its name and its indices.
Subset = tuple[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Replicability:
    """Models of subsets of the samples, compared with each other and with the fit to all samples.

    Attributes
    ----------
    mode : int
        The mode that holds samples. No score includes it.
    fit : Fit
        The fit to all data.
    models : tuple of KruskalTensor
        The models of the subsets, with components in the order and with the signs of `fit`.
    names : tuple of str
        The names of the subsets.
    kept : tuple of integer arrays
        The indices of the samples of each subset.
    pairs : tuple of (int, int)
        The models that are compared with each other.
    scores : float64 array (pairs,)
        The factor match score of each pair, without weights and without the mode.
    congruences : float64 array (models, rank)
        The congruence of each component with that of `fit`: the product of the cosines of their
        columns in the other modes.

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
        """For each component, the share of the subsets that recover it (congruence 0.9)."""
        return np.asarray((self.congruences >= RECOVERED_CONGRUENCE).mean(axis=0))

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

    Components of the population are recovered from other samples; components that a too high rank
    adds are not.

    Parameters
    ----------
    X : array, masked array, or Observed
    rank : int
    mode : int or str
        The mode that holds samples.
    folds : int, optional
        The number of parts to which samples are assigned at random; each is left out in turn. By
        default 10, or the number of samples. With 2 each half is fitted.
    repeats : int
        The number of random assignments.
    groups : sequence, optional
        The group of each sample: samples of a group, such as the visits of a patient, are assigned
        to the same part.
    preset : {"split_half"}, optional
        In place of folds, what chemists do: samples go in turn to quarters A, B, C and D, and the
        halves AB and CD, AC and BD, AD and BC are compared (`robustcp.plot.split_half` lays their
        spectra over each other).
    rng, jobs, progress, folder
        As in `cp_many`.
    **options
        As in `cp`.

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
    refuse_single_fit_options(options)
    refuse_entrywise_options(options)
    X = as_labelled(X)
    data, axes = host_data(X), axes_of(X)
    mode_index = axes.mode_number("mode", mode, len(data.shape))
    generator = checks.generator(rng)
    group_numbers = _group_numbers(groups, data.shape[mode_index])
    group_count = int(group_numbers.max(initial=-1)) + 1
    if preset is None:
        fold_count = _count_folds(folds, group_count, groups is not None)
        repeats = checks.whole_number("repeats", repeats, 1)
        splits = _fold_subsets(group_numbers, group_count, fold_count, repeats, generator)
    else:
        checks.choice("preset", preset, tuple(SPLIT_PRESETS))
        if folds is not None or repeats != 1:
            option = "repeats" if folds is None else "folds"
            raise checks.ArgumentError(option, "cannot be given together with a preset")
        splits = SPLIT_PRESETS[preset](group_numbers, group_count)
    subsets, pairs = list[Subset](), list[tuple[int, int]]()
    for split in splits:
        first = len(subsets)
        subsets += split
        pairs += combinations(range(first, len(subsets)), 2)
    fit_count = len(subsets) + 1
    report_progress = progress or (lambda *_: None)
    fit = cp(X, rank, rng=rng, **options)
    report_progress(1, fit_count)
    names, kept = zip(*subsets, strict=True)
    fits = cp_many(
        [_take_samples(data, axes, mode_index, indices) for indices in kept],
        rank,
        rng=rng,
        jobs=jobs,
        folder=folder,
        progress=lambda n, _: report_progress(n + 1, fit_count),
        **options,
    )
    for error in fits.failures.values():
        raise error
    models, congruences = zip(
        *(align_components(subset_fit, fit, skip=mode_index) for subset_fit in fits), strict=True
    )
    scores = [
        factor_match_score(models[i], models[j], weights=False, skip=mode_index) for i, j in pairs
    ]
    return Replicability(
        mode_index,
        fit,
        models,
        names,
        kept,
        tuple(pairs),
        np.array(scores),
        np.stack(congruences),
    )


def _take_samples(data: HostData, axes: Names, mode: int, indices: np.ndarray) -> Any:
    """Some samples of the data, with the names of modes, which options may refer to, and labels."""
    subset = data.take(mode, indices).data
    if not axes.modes:
        return subset
    taken = axes.subset([indices if n == mode else None for n in range(len(axes.modes))])
    return LabelledTensor(subset, taken.modes, taken.labels, units=taken.units)


def refuse_entrywise_options(options: dict[str, Any]) -> None:
    """Raise an error for options about single entries, which subsets do not share."""
    if options.get("entry_weights") is not None:
        raise checks.ArgumentError(
            "entry_weights", "cannot be given here; make entries of weight 0 missing (NaN)"
        )
    limits = options.get("limits")
    if isinstance(limits, list | tuple) and any(np.ndim(limit) for limit in limits):
        raise checks.ArgumentError("limits", "must be the same for all entries here")
    if not isinstance(options.get("init", "auto"), str):
        raise checks.ArgumentError("init", "must be a kind of start here: parts differ in size")
    if not isinstance(options.get("noise", "auto"), str):
        raise checks.ArgumentError("noise", "must be a kind of noise here, such as 'auto'")


def _group_numbers(groups: Sequence[Any] | None, size: int) -> np.ndarray:
    """The number of the group of each sample; without groups each sample is one."""
    if groups is None:
        return np.arange(size)
    group_list = list(groups) if isinstance(groups, Sequence) else np.ravel(groups).tolist()
    if len(group_list) != size:
        raise checks.ArgumentError(
            "groups", f"must be one for each of the {size} samples, got {len(group_list)}"
        )
    for group in group_list:
        if not isinstance(group, Hashable) or group != group:
            raise checks.ArgumentError("groups", f"must be names or numbers, got {group!r}")
    order = {group: k for k, group in enumerate(dict.fromkeys(group_list))}
    if len(order) < 2:
        raise checks.ArgumentError("groups", f"must be at least two, got {group_list[:1]!r} only")
    return np.array([order[group] for group in group_list])


def _count_folds(folds: int | None, count: int, grouped: bool) -> int:
    unit_name = "groups" if grouped else "samples"
    if count < 3:
        raise checks.ArgumentError("mode", f"has {count} {unit_name}, too few to leave some out")
    if folds is None:
        return min(DEFAULT_FOLDS, count)
    folds = checks.whole_number("folds", folds, 2)
    if folds > count:
        raise checks.ArgumentError("folds", f"must be at most the {count} {unit_name}, got {folds}")
    return folds


def _fold_subsets(
    numbers: np.ndarray, count: int, folds: int, repeats: int, rng: np.random.Generator
) -> Iterator[list[Subset]]:
    """For each repeat, the samples outside of each part."""
    for repeat in range(repeats):
        fold_of_group = np.empty(count, dtype=np.int64)
        fold_of_group[rng.permutation(count)] = np.arange(count) % folds
        prefix = f"{repeat + 1}." if repeats > 1 else ""
        yield [
            (f"without part {prefix}{fold + 1}", np.flatnonzero(fold_of_group[numbers] != fold))
            for fold in range(folds)
        ]


def _split_half_subsets(numbers: np.ndarray, count: int) -> Iterator[list[Subset]]:
    """Quarters A to D, and the three ways to make halves of them."""
    if count < 4:
        raise checks.ArgumentError("mode", f"has {count} samples, too few for quarters")
    quarters = np.array(list("ABCD"))[numbers % 4]
    for halves in (("AB", "CD"), ("AC", "BD"), ("AD", "BC")):
        yield [(half, np.flatnonzero(np.isin(quarters, list(half)))) for half in halves]


#: Ways to split the samples, by name.
SPLIT_PRESETS: dict[str, Callable[[np.ndarray, int], Iterator[list[Subset]]]] = {
    "split_half": _split_half_subsets
}
