"""Kinds of contamination: for each a tensor of known factors, what is bad in it, how noisy it is.

A kind is a function of a seed, and of settings where it has several cells. Its docstring is one
sentence on the data, which the tables show.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustcp.engines import Observed
from robustcp.model.kruskal import KruskalTensor
from robustcp.model.simulation import simulate

Factors = tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Trial:
    """A tensor to be fitted, and all that the fit is not told.

    Attributes
    ----------
    data : array
        NaN where entries are missing.
    truth : tuple of arrays
        The true factors; the norms of their columns count.
    clean : boolean array
        True where an entry is the model plus its noise.
    sigma : array
        The standard deviation of each entry's noise.
    rank : int
        The number of components to ask for.
    options : dict
        Other arguments of the call.
    unrecoverable : (int, array of int) or None
        A mode and those of its rows that no method can recover, left out of the score.
    as_coo : bool
        Whether the data is handed over as a list of observed entries.
    """

    data: np.ndarray
    truth: Factors
    clean: np.ndarray
    sigma: np.ndarray
    rank: int
    options: dict[str, Any] = field(default_factory=dict)
    unrecoverable: tuple[int, np.ndarray] | None = None
    as_coo: bool = False

    @property
    def input_data(self) -> Any:
        """The data as a method gets it."""
        observed = ~np.isnan(self.data)
        if not self.as_coo:
            return self.data
        return Observed(np.argwhere(observed), self.data[observed], self.data.shape)

    def recoverable_model(self, estimate: Any) -> KruskalTensor:
        """An estimate, or the true factors, without the rows that cannot be recovered."""
        weights, factors = estimate
        if self.unrecoverable:
            mode, rows = self.unrecoverable
            factors = [np.delete(A, rows, 0) if n == mode else A for n, A in enumerate(factors)]
        return KruskalTensor(weights, tuple(factors)).normalized()


@dataclass(frozen=True)
class Target:
    """What `cp` must reach, over the seeds of each cell.

    Attributes
    ----------
    median, worst : float, optional
        The least median and the least score.
    margins, worst_margins : mapping
        By how much the median and the worst score may be below those of each of these methods.
    failures : float, optional
        The largest share of scores below .9 among tensors where the oracle's is above .94.
    false_alarms : (float, float), optional
        Between which the median share of clean entries that are flagged must be.
    finds_bad_slabs : bool
        Whether all bad slabs must be among the worst ten of `Outliers.worst`.
    """

    median: float | None = None
    worst: float | None = None
    margins: Mapping[str, float] = field(default_factory=dict)
    worst_margins: Mapping[str, float] = field(default_factory=dict)
    failures: float | None = None
    false_alarms: tuple[float, float] | None = None
    finds_bad_slabs: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of contamination.

    Attributes
    ----------
    name, description : str
    make : function of a seed, and of the numbers in a cell's settings, that returns a Trial
    target : Target
    cells : sequence of str
        Settings, written 'name=number name=number'.
    tensors : int
        How many tensors there are for each seed that is asked for.
    flags : bool
        Whether entries are either clean or bad, so that false alarms can be counted.
    """

    name: str
    description: str
    make: Callable[..., Trial]
    target: Target
    cells: Sequence[str] = ("",)
    tensors: int = 1
    flags: bool = True

    def make_trial(self, seed: int, cell: str = "") -> Trial:
        settings = (setting.split("=", 1) for setting in cell.split())
        return self.make(seed, **{name: float(value) for name, value in settings})


#: All kinds, by name, in the order of the tables.
KINDS: dict[str, Kind] = {}

TrialMaker = Callable[..., Trial]

#: A median within .01 of the oracle's, and a worst score within .05 of its worst.
NEAR_ORACLE = Target(margins={"oracle": 0.01}, worst_margins={"oracle": 0.05})


def _register_kind(
    target: Target | None = None, **options: Any
) -> Callable[[TrialMaker], TrialMaker]:
    """Make a function of a seed a kind: its name is the kind's, its docstring the description."""

    def register(make: TrialMaker) -> TrialMaker:
        text = " ".join((inspect.getdoc(make) or "").split())
        KINDS[make.__name__] = Kind(make.__name__, text, make, target or Target(), **options)
        return make

    return register


# Models, noise and artifacts


def full_tensor(factors: Sequence[np.ndarray]) -> np.ndarray:
    """The tensor of some factors."""
    return np.asarray(KruskalTensor.from_factors(factors).full())


def _rms(M: np.ndarray) -> float:
    return float(np.sqrt(np.mean(M * M)))


def _draw_model(
    rng: np.random.Generator,
    shape: Sequence[int],
    rank: int,
    *,
    signed: bool = False,
    density: float = 1.0,
) -> tuple[Factors, np.ndarray]:
    """Normal factors, by default their absolute values, a share of them 0; and their tensor."""
    normal = [rng.standard_normal((size, rank)) for size in shape]
    nonzero = [rng.random(A.shape) < density for A in normal]
    factors = [
        np.where(k, A if signed else np.abs(A), 0.0) for A, k in zip(normal, nonzero, strict=True)
    ]
    return tuple(factors), full_tensor(factors)


def _add_homoscedastic_noise(
    rng: np.random.Generator, M: np.ndarray, level: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian noise of one size, relative to the model's root mean square; its sigmas."""
    sigma = np.full(M.shape, level * _rms(M))
    return M + sigma * rng.standard_normal(M.shape), sigma


def _slab_sigmas(rng: np.random.Generator, M: np.ndarray) -> np.ndarray:
    """Sigmas that differ 30-fold between the slabs of mode 0."""
    slabs = np.exp(rng.uniform(np.log(0.02), np.log(0.6), M.shape[0]))
    return np.broadcast_to(_rms(M) * slabs.reshape(-1, *[1] * (M.ndim - 1)), M.shape)


def _signal_sigmas(M: np.ndarray) -> np.ndarray:
    """Sigmas of 1% of the data's size plus 5% of each entry's."""
    return np.asarray(0.01 * _rms(M) + 0.05 * np.abs(M))


def _add_artifacts(
    rng: np.random.Generator,
    Y: np.ndarray,
    share: float,
    size: float,
    signs: Sequence[int] = (1,),
) -> tuple[np.ndarray, np.ndarray]:
    """Something added to a share of the entries, on average `size` standard deviations of Y."""
    bad = rng.random(Y.shape) < share
    heights = size * np.std(Y) * rng.gamma(5, 0.2, Y.shape)
    return np.where(bad, Y + heights * rng.choice(signs, Y.shape), Y), bad


def _trial_with_artifacts(
    rng: np.random.Generator,
    shape: Sequence[int],
    rank: int,
    share: float,
    size: float = 5.0,
    signs: Sequence[int] = (1,),
    **options: Any,
) -> Trial:
    """10% Gaussian noise, and artifacts at a share of the entries."""
    factors, M = _draw_model(rng, shape, rank, **options)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    Y, bad = _add_artifacts(rng, Y, share, size, signs)
    return Trial(Y, factors, ~bad, sigma, rank)


def _hide_entries(
    rng: np.random.Generator, trial: Trial, share: float, as_coo: bool = False
) -> Trial:
    """A share of the entries, the others missing."""
    hidden = rng.random(trial.data.shape) > share
    data = np.where(hidden, np.nan, trial.data)
    return replace(trial, data=data, clean=trial.clean & ~hidden, as_coo=as_coo)


# The paper's artifacts

PAPER_CELLS = tuple(
    f"eta={eta} gamma={gamma}" for eta in (0.1, 0.2) for gamma in (0.5, 1.0, 1.5, 2.0)
)


@_register_kind(Target(worst=0.99, margins={"oracle": 0.001}), cells=PAPER_CELLS)
def paper(seed: int, eta: float, gamma: float) -> Trial:
    """The paper's eight cells: 50^3, rank 5, 10% noise, a share eta of the entries raised by the
    same amount, together gamma times the norm of the model."""
    sim = simulate(eta=eta, gamma=gamma, rng=seed)
    factors = tuple(np.asarray(A) for A in sim.truth.absorbed())
    return Trial(
        sim.data, factors, ~sim.artifacts, np.full(sim.data.shape, sim.sigma), sim.truth.rank
    )


# Clean data: robustness must cost nothing


def _clean_target(false_alarms: tuple[float, float] | None = None, **margins: float) -> Target:
    return Target(margins={"cpals": 0.003, "cpal1": 0.003, **margins}, false_alarms=false_alarms)


def _clean_trial(rng: np.random.Generator, draw: Callable[[tuple[int, ...]], np.ndarray]) -> Trial:
    """40^3 of rank 4 with noise of variance 1 as drawn, at 10%."""
    factors, M = _draw_model(rng, (40,) * 3, 4)
    sigma = np.full(M.shape, 0.1 * _rms(M))
    return Trial(M + sigma * draw(M.shape), factors, np.ones(M.shape, dtype=bool), sigma, 4)


@_register_kind(_clean_target((0.0005, 0.002)))
def clean_even(seed: int) -> Trial:
    """40^3, rank 4, Gaussian noise of 10% everywhere, nothing bad."""
    rng = np.random.default_rng(seed)
    return _clean_trial(rng, rng.standard_normal)


@_register_kind(_clean_target((0.0005, 0.002)))
def clean_slabs(seed: int) -> Trial:
    """30 x 40 x 50, rank 4, Gaussian noise that differs 30-fold between the slabs of mode 0,
    nothing bad."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (30, 40, 50), 4)
    sigma = _slab_sigmas(rng, M)
    Y = M + sigma * rng.standard_normal(M.shape)
    return Trial(Y, factors, np.ones(M.shape, dtype=bool), sigma, 4)


@_register_kind(
    replace(
        _clean_target((0.0005, 0.002)), margins={"cpals": 0.003, "cpal1": 0.003, "oracle": 0.003}
    )
)
def clean_by_signal(seed: int) -> Trial:
    """40^3, rank 4, Gaussian noise of 1% of the data's size plus 5% of each entry's, nothing
    bad."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4)
    sigma = _signal_sigmas(M)
    Y = M + sigma * rng.standard_normal(M.shape)
    return Trial(Y, factors, np.ones(M.shape, dtype=bool), sigma, 4)


@_register_kind(_clean_target((0.0003, 0.004)))
def clean_counts(seed: int) -> Trial:
    """60 trials x 40 neurons x 50 times, rank 4, Poisson counts with means from about 5, nothing
    bad; nonnegative."""
    rng = np.random.default_rng(seed)
    t = np.arange(50)[:, None]
    base = [
        rng.uniform(0.75, 1.25, (60, 1)),
        rng.uniform(0.75, 1.25, (40, 1)),
        np.full((50, 1), 9.0),
    ]
    peaks = np.exp(-0.5 * ((t - rng.uniform(8, 42, 3)) / rng.uniform(3, 7, 3)) ** 2)
    bursts = [rng.gamma(2, 0.5, (60, 3)), rng.gamma(1, 1, (40, 3)), 15 * peaks]
    factors = tuple(np.hstack(pair) for pair in zip(base, bursts, strict=True))
    M = full_tensor(factors)
    Y = rng.poisson(M).astype(np.float64)
    return Trial(Y, factors, np.ones(M.shape, dtype=bool), np.sqrt(M), 4, {"nonnegative": True})


@_register_kind(_clean_target())
def clean_laplace(seed: int) -> Trial:
    """40^3, rank 4, Laplace noise of 10%, nothing bad."""
    rng = np.random.default_rng(seed)
    return _clean_trial(rng, lambda shape: rng.laplace(scale=np.sqrt(0.5), size=shape))


@_register_kind(_clean_target())
def clean_uniform(seed: int) -> Trial:
    """40^3, rank 4, uniform noise of 10%, nothing bad."""
    rng = np.random.default_rng(seed)
    return _clean_trial(rng, lambda shape: rng.uniform(-np.sqrt(3), np.sqrt(3), size=shape))


# Noise that is not the same everywhere, or not Gaussian


@_register_kind(Target(worst=0.985, margins={"oracle": 0.003}))
def uneven_noise(seed: int) -> Trial:
    """30 x 40 x 50, rank 4, noise that differs 30-fold between the slabs of mode 0, 10%
    artifacts."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (30, 40, 50), 4)
    sigma = _slab_sigmas(rng, M)
    Y, bad = _add_artifacts(rng, M + sigma * rng.standard_normal(M.shape), 0.1, 5)
    return Trial(Y, factors, ~bad, sigma, 4)


@_register_kind(Target(margins={"oracle": 0.003}))
def times_ten(seed: int) -> Trial:
    """40^3, rank 4, noise of 1% of the data's size plus 5% of each entry's, 5% of the entries
    times ten."""
    trial = clean_by_signal(seed)
    bad = np.random.default_rng([seed, 10]).random(trial.data.shape) < 0.05
    return replace(trial, data=np.where(bad, 10 * trial.data, trial.data), clean=~bad)


@_register_kind()
def laplace(seed: int) -> Trial:
    """40^3, rank 4, Laplace noise of 10%, 10% artifacts."""
    trial = clean_laplace(seed)
    Y, bad = _add_artifacts(np.random.default_rng([seed, 10]), trial.data, 0.1, 5)
    return replace(trial, data=Y, clean=~bad)


def _student_trial(seed: int, degrees_of_freedom: float, level: float) -> Trial:
    """40^3 of rank 4 with Student's noise: Gaussian, each entry with its own precision."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4)
    sigma = (
        level * _rms(M) / np.sqrt(rng.chisquare(degrees_of_freedom, M.shape) / degrees_of_freedom)
    )
    Y = M + sigma * rng.standard_normal(M.shape)
    return Trial(Y, factors, np.ones(M.shape, dtype=bool), sigma, 4)


@_register_kind(cells=("freedom=2", "freedom=3"), flags=False)
def heavy_tails(seed: int, freedom: float) -> Trial:
    """40^3, rank 4, Student's t noise with 2 or 3 degrees of freedom and a scale of 10%."""
    return _student_trial(seed, freedom, 0.1)


@_register_kind(Target(worst=0.99, margins={"cp_at_truth": 0.002}), flags=False)
def cauchy(seed: int) -> Trial:
    """40^3, rank 4, Cauchy noise with a scale of 5%."""
    return _student_trial(seed, 1, 0.05)


@_register_kind(Target(median=0.985, worst=0.97))
def counts(seed: int) -> Trial:
    """120 trials x 80 neurons x 60 times, rank 4, Poisson counts with mean 2, nothing bad;
    nonnegative."""
    return _count_trial(seed, 0)


@_register_kind(Target(median=0.93, worst=0.85))
def counts_with_artifacts(seed: int) -> Trial:
    """The same counts, with about 25 more in all neurons over 8 of the 60 times in a tenth of the
    trials; nonnegative."""
    return _count_trial(seed, 12)


def _count_trial(seed: int, bad_trials: int) -> Trial:
    rng = np.random.default_rng(seed)
    trials, neurons = rng.gamma(4, 0.25, (120, 4)), rng.gamma(1, 1, (80, 4))
    centres, widths = rng.uniform(8, 52, 4), rng.uniform(4, 9, 4)
    times = np.exp(-0.5 * ((np.arange(60)[:, None] - centres) / widths) ** 2)
    trials *= 2 / full_tensor([trials, neurons, times]).mean()
    M = full_tensor([trials, neurons, times])
    Y = rng.poisson(M).astype(np.float64)
    clean = np.ones(M.shape, dtype=bool)
    for k in rng.choice(120, bad_trials, replace=False):
        first = int(rng.integers(52))
        Y[k, :, first : first + 8] += rng.poisson(25, (80, 8))
        clean[k, :, first : first + 8] = False
    sigma = np.sqrt(M + 0.05)
    return Trial(Y, (trials, neurons, times), clean, sigma, 4, {"nonnegative": True})


# Artifacts at single entries


@_register_kind(Target(worst=0.99, margins={"oracle": 0.002}))
def four_way(seed: int) -> Trial:
    """20^4, rank 5, signed factors, a quarter of the entries too large."""
    return _trial_with_artifacts(np.random.default_rng(seed), (20,) * 4, 5, 0.25, signed=True)


@_register_kind(Target(worst=0.99, margins={"oracle": 0.002}))
def many_components(seed: int) -> Trial:
    """60^3, rank 20, signed factors, 15% artifacts."""
    return _trial_with_artifacts(np.random.default_rng(seed), (60,) * 3, 20, 0.15, signed=True)


@_register_kind(Target(worst=0.99, margins={"oracle": 0.002}))
def one_wild_entry(seed: int) -> Trial:
    """40^3, rank 3, one entry a million times the size of the others."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 3)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    clean = np.ones(M.shape, dtype=bool)
    index = tuple(rng.integers(40, size=3))
    Y[index], clean[index] = 1e6 * _rms(M), False
    return Trial(Y, factors, clean, sigma, 3)


@_register_kind(Target(median=0.97, worst=0.90))
def most_entries_too_large(seed: int) -> Trial:
    """50^3, rank 5, 60% of the entries too large."""
    return _trial_with_artifacts(np.random.default_rng(seed), (50,) * 3, 5, 0.6, 6.0)


@_register_kind(Target(median=0.985, worst=0.90))
def most_entries_random(seed: int) -> Trial:
    """50^3, rank 5, 60% of the entries replaced by random numbers between plus and minus the
    largest of the model."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (50,) * 3, 5)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    bad = rng.random(M.shape) < 0.6
    random_values = M.max() * rng.uniform(-1, 1, M.shape)
    return Trial(np.where(bad, random_values, Y), factors, ~bad, sigma, 5)


@_register_kind(Target(median=0.98, worst=0.95))
def one_component_too_many(seed: int) -> Trial:
    """50^3 of rank 4, 20% artifacts, rank 5 asked for; scored over the true components."""
    return replace(_trial_with_artifacts(np.random.default_rng(seed), (50,) * 3, 4, 0.2), rank=5)


@_register_kind()
def collinear(seed: int) -> Trial:
    """50^3, rank 3, components with cosines of about .9 in every mode, 5% noise, 10%
    artifacts."""
    rng = np.random.default_rng(seed)
    factors = tuple(
        np.sqrt(0.9) * rng.standard_normal((50, 1)) + np.sqrt(0.1) * rng.standard_normal((50, 3))
        for _ in range(3)
    )
    Y, sigma = _add_homoscedastic_noise(rng, full_tensor(factors), 0.05)
    Y, bad = _add_artifacts(rng, Y, 0.1, 5)
    return Trial(Y, factors, ~bad, sigma, 3)


@_register_kind()
def weak_component(seed: int) -> Trial:
    """50^3, rank 4, signed factors, one component with a tenth of the norm of the others, 10%
    artifacts."""
    rng = np.random.default_rng(seed)
    unit = [A / np.linalg.norm(A, axis=0) for A in _draw_model(rng, (50,) * 3, 4, signed=True)[0]]
    factors = (unit[0] * [1.0, 1.0, 1.0, 0.1], *unit[1:])
    Y, sigma = _add_homoscedastic_noise(rng, full_tensor(factors))
    Y, bad = _add_artifacts(rng, Y, 0.1, 5)
    return Trial(Y, factors, ~bad, sigma, 4)


@_register_kind()
def sparse_factors(seed: int) -> Trial:
    """50^3, rank 4, factors of which 30% are not zero, 10% artifacts."""
    return _trial_with_artifacts(np.random.default_rng(seed), (50,) * 3, 4, 0.1, density=0.3)


@_register_kind(Target(failures=0.025), tensors=40)
def small_tensors(seed: int) -> Trial:
    """6 to 17 rows in each mode, order 2 with rank 1 or order 3 to 6 with rank 1 to 3, signed
    factors, 10% large outliers of either sign; 40 tensors for each seed."""
    rng = np.random.default_rng(seed)
    order = int(rng.integers(2, 7))
    rank = 1 if order == 2 else int(rng.integers(1, 4))
    sizes: list[int] = []
    for remaining in range(order - 1, -1, -1):  # at most 100,000 entries
        max_size = int(1e5 / (np.prod(sizes) * 6**remaining))
        sizes.append(int(rng.integers(6, min(max_size, 17) + 1)))
    return _trial_with_artifacts(
        rng, rng.permutation(sizes).tolist(), rank, 0.1, 10.0, (-1, 1), signed=True
    )


# Missing entries, and rows of which few are left


@_register_kind()
def half_missing(seed: int) -> Trial:
    """40^3, rank 4, 10% artifacts, half of the entries missing."""
    rng = np.random.default_rng(seed)
    return _hide_entries(rng, _trial_with_artifacts(rng, (40,) * 3, 4, 0.1), 0.5)


@_register_kind()
def nine_tenths_missing(seed: int) -> Trial:
    """40^3, rank 4, 10% artifacts, nine tenths of the entries missing."""
    rng = np.random.default_rng(seed)
    return _hide_entries(rng, _trial_with_artifacts(rng, (40,) * 3, 4, 0.1), 0.1)


FEW_ENTRIES_CELLS = tuple(
    f"{size} listed={k}" for size in ("rank=2 entries=40", "rank=5 entries=100") for k in (0, 1)
)


@_register_kind(Target(median=0.97, worst=0.90), cells=FEW_ENTRIES_CELLS)
def few_entries(seed: int, rank: float, entries: float, listed: float) -> Trial:
    """30^3, signed factors, 10% outliers of either sign; rank 2 with about 40 observed entries in
    each row, and rank 5 with 100; given as NaN and as a list."""
    rng = np.random.default_rng(seed)
    complete = _trial_with_artifacts(rng, (30,) * 3, int(rank), 0.1, signs=(-1, 1), signed=True)
    return _hide_entries(rng, complete, entries / 900, bool(listed))


@_register_kind(Target(median=0.95, worst=0.90))
def thin_rows(seed: int) -> Trial:
    """400 x 30 x 30, rank 4, signed factors, about 12 observed entries in each of the 400 rows,
    5% of them outliers of either sign."""
    rng = np.random.default_rng(seed)
    complete = _trial_with_artifacts(rng, (400, 30, 30), 4, 0.05, signs=(-1, 1), signed=True)
    return _hide_entries(rng, complete, 12 / 900)


@_register_kind(Target(median=0.935, worst=0.90))
def scatter_cut(seed: int) -> Trial:
    """The landscapes of `fluorescence` with the scatter removed, so that of some rows little is
    left; nonnegative."""
    trial = fluorescence(seed)
    return replace(trial, data=np.where(trial.clean, trial.data, np.nan))


# Fibres and slabs that are bad as a whole


def _draw_landscapes(
    rng: np.random.Generator, samples: int
) -> tuple[np.ndarray, np.ndarray, Factors]:
    """Wavelengths of emission and excitation, and four fluorophores in some samples."""
    emission, excitation = np.linspace(300, 600, 70), np.linspace(240, 460, 45)
    emission_peaks = np.array([345, 410, 460, 520]) + rng.uniform(-8, 8, 4)
    excitation_peaks = np.array([275, 310, 360, 430]) + rng.uniform(-10, 10, 4)
    amounts, widths = rng.gamma(2, 1, (samples, 4)), rng.uniform(15, 35, 4)
    spectra = np.exp(-0.5 * ((emission[:, None] - emission_peaks) / widths) ** 2)
    widths = rng.uniform(12, 30, 4)
    absorption = np.exp(-0.5 * ((excitation[:, None] - excitation_peaks) / widths) ** 2)
    return emission, excitation, (amounts, spectra, absorption)


@_register_kind(Target(median=0.88, worst=0.75))
def fluorescence(seed: int) -> Trial:
    """25 samples x 70 emissions x 45 excitations, rank 4, with Rayleigh and Raman scatter and an
    unmeasured triangle, noise by signal; nonnegative."""
    rng = np.random.default_rng(seed)
    emission, excitation, factors = _draw_landscapes(rng, 25)
    M = full_tensor(factors)
    sigma = 0.002 * M.max() + 0.02 * M
    m, x = emission[:, None], excitation[None, :]
    raman = 1e7 / (1e7 / x - 3400)  # water: 3400 per cm below the excitation
    lines = ((3.0, m - x), (1.0, m - 2 * x), (0.15, m - raman))
    scatter = sum(height * np.exp(-0.5 * (offset / 6) ** 2) for height, offset in lines)
    Y = M + sigma * rng.standard_normal(M.shape)
    Y += M.max() * scatter * rng.uniform(0.7, 1.3, (25, 1, 1))
    Y[:, m - x < -12] = np.nan
    clean = (scatter < 0.003) & ~np.isnan(Y)
    return Trial(Y, factors, clean, sigma, 4, {"nonnegative": True})


@_register_kind(Target(median=0.97, worst=0.90), cells=("common=0", "common=1"))
def stuck_sensors(seed: int, common: float) -> Trial:
    """30 sensors x 24 hours x 21 days, rank 2, half of the sensors stuck on 10 days, each at a
    constant of its own up to five times the data's size; days of their own or in common;
    nonnegative."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24)[:, None] - np.array([8.0, 18.0]) - rng.uniform(-1, 1, 2)
    hours = (hours + 12) % 24 - 12  # round the clock
    profiles = np.exp(-0.5 * (hours / rng.uniform(2.5, 4.5, 2)) ** 2)
    factors = (rng.gamma(2, 0.5, (30, 2)), profiles, rng.gamma(4, 0.25, (21, 2)))
    M = full_tensor(factors)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    clean = np.ones(M.shape, dtype=bool)
    days = rng.choice(21, 10, replace=False)
    for k in rng.choice(30, 15, replace=False):
        days = days if common else rng.choice(21, 10, replace=False)
        Y[k][:, days] = 5 * _rms(M) * rng.random()
        clean[k][:, days] = False
    return Trial(Y, factors, clean, sigma, 2, {"nonnegative": True})


@_register_kind()
def outlying_fibres(seed: int) -> Trial:
    """40^3, rank 4, a tenth of the fibres along mode 2 replaced by levels of their own."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    bad_fibres = rng.random((40, 40)) < 0.1
    levels = 5 * _rms(M) * rng.uniform(-1, 1, bad_fibres.sum())
    Y[bad_fibres] = levels[:, None] + sigma[bad_fibres] * rng.standard_normal(
        (bad_fibres.sum(), 40)
    )
    return Trial(Y, factors, np.repeat(~bad_fibres[:, :, None], 40, axis=2), sigma, 4)


@_register_kind(Target(median=0.985, worst=0.95))
def bad_samples(seed: int) -> Trial:
    """40^3, rank 4, to six slabs of mode 0 something strong is added, of rank 1 and different in
    each."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    bad_slabs = rng.choice(40, 6, replace=False)
    for k in bad_slabs:
        Y[k] += 12 * _rms(M) * np.outer(rng.random(40), rng.random(40))
    return Trial(
        Y, factors, _mask_without_slabs(M.shape, bad_slabs), sigma, 4, unrecoverable=(0, bad_slabs)
    )


@_register_kind(Target(finds_bad_slabs=True))
def replaced_slabs(seed: int) -> Trial:
    """40^3, rank 4, six slabs of mode 0 replaced by matrices of rank 4 of their own, of the size
    of the others."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    bad_slabs = rng.choice(40, 6, replace=False)
    for k in bad_slabs:
        other = _draw_model(rng, (40, 40), 4)[1]
        Y[k] = other * (_rms(M) / _rms(other)) + sigma[k] * rng.standard_normal((40, 40))
    return Trial(
        Y, factors, _mask_without_slabs(M.shape, bad_slabs), sigma, 4, unrecoverable=(0, bad_slabs)
    )


@_register_kind(Target(median=0.985, worst=0.95))
def foreign_samples(seed: int) -> Trial:
    """50^3, rank 5, a fifth of the samples, the slabs of mode 0, hold a component that the others
    do not have; 10% artifacts."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (50,) * 3, 5)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    bad_slabs = rng.choice(50, 10, replace=False)
    foreign = [np.abs(rng.standard_normal(50)) for _ in range(2)]
    Y[bad_slabs] += 2 * _rms(M) * np.outer(*foreign)
    Y, bad = _add_artifacts(rng, Y, 0.1, 5)
    clean = ~bad & _mask_without_slabs(M.shape, bad_slabs)
    return Trial(Y, factors, clean, sigma, 5, {"cases": 0}, unrecoverable=(0, bad_slabs))


#: Orders, and shares of missing entries.
CASES_CELLS = ("order=3 missing=0", "order=4 missing=0", "order=3 missing=0.3")


def _trial_with_bad_samples(
    seed: int,
    order: float,
    missing: float,
    contaminate: Callable[[np.random.Generator, np.ndarray, float], np.ndarray] | None,
    share: float = 0.2,
) -> Trial:
    """50^3 of rank 5 or 30 x 15^3 of rank 4, a share of the samples bad as a whole."""
    rng = np.random.default_rng(seed)
    shape, rank = ((50,) * 3, 5) if order == 3 else ((30, 15, 15, 15), 4)
    factors, M = _draw_model(rng, shape, rank)
    Y, sigma = _add_homoscedastic_noise(rng, M)
    bad_slabs = rng.choice(shape[0], round(share * shape[0]), replace=False)
    if contaminate is None:
        bad_slabs = bad_slabs[:0]
    else:
        Y[bad_slabs] = contaminate(rng, Y[bad_slabs], _rms(M))
    trial = Trial(
        Y,
        factors,
        _mask_without_slabs(shape, bad_slabs),
        sigma,
        rank,
        {"cases": 0},
        unrecoverable=(0, bad_slabs),
    )
    return _hide_entries(rng, trial, 1 - missing) if missing else trial


@_register_kind(Target(median=0.985, worst=0.95), cells=CASES_CELLS)
def shifted_samples(seed: int, order: float, missing: float) -> Trial:
    """50^3, rank 5, or 30 x 15^3, rank 4; one constant is added to a fifth of the samples, the
    slabs of mode 0, which is told (cases=0)."""
    return _trial_with_bad_samples(seed, order, missing, lambda rng, Y, size: Y + 2 * size)


@_register_kind(Target(median=0.985, worst=0.95), cells=CASES_CELLS)
def differently_shifted_samples(seed: int, order: float, missing: float) -> Trial:
    """The same, with a constant of its own added to each bad sample."""

    def contaminate(rng: np.random.Generator, Y: np.ndarray, size: float) -> np.ndarray:
        shape = (len(Y), *(1,) * (Y.ndim - 1))
        return np.asarray(Y + size * rng.uniform(1, 5, shape))

    return _trial_with_bad_samples(seed, order, missing, contaminate)


def _trial_with_a_foreign_component(
    seed: int, order: float, missing: float, share: float = 0.2
) -> Trial:
    """One component added to the bad samples that the others do not have."""

    def contaminate(rng: np.random.Generator, Y: np.ndarray, size: float) -> np.ndarray:
        foreign = full_tensor([np.abs(rng.standard_normal((n, 1))) for n in (1, *Y.shape[1:])])
        amounts = rng.uniform(0.5, 1.5, (len(Y), *(1,) * (Y.ndim - 1)))
        return np.asarray(Y + 2 * size / _rms(foreign) * amounts * foreign)

    return _trial_with_bad_samples(seed, order, missing, contaminate, share)


@_register_kind(Target(median=0.985, worst=0.95), cells=CASES_CELLS)
def samples_with_a_foreign_component(seed: int, order: float, missing: float) -> Trial:
    """The same, with one component added to the bad samples that the others do not have."""
    return _trial_with_a_foreign_component(seed, order, missing)


@_register_kind(Target(median=0.985, worst=0.95), cells=CASES_CELLS)
def samples_of_noise(seed: int, order: float, missing: float) -> Trial:
    """The same, with bad samples that are nothing but noise."""
    return _trial_with_bad_samples(
        seed, order, missing, lambda rng, Y, size: size * rng.standard_normal(Y.shape)
    )


@_register_kind(Target(worst=0.98), cells=CASES_CELLS)
def no_bad_sample(seed: int, order: float, missing: float) -> Trial:
    """The same, with no bad sample; and still cases=0."""
    return _trial_with_bad_samples(seed, order, missing, None)


def _mask_without_slabs(shape: tuple[int, ...], rows: np.ndarray) -> np.ndarray:
    """True but in some slabs of mode 0."""
    clean = np.ones(shape, dtype=bool)
    clean[rows] = False
    return clean


# Entries at the limits of a detector


def _saturated_trial(seed: int, *, signed: bool = False) -> tuple[Trial, np.random.Generator]:
    """40^3 of rank 4 with 5% noise, to be clipped."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4, signed=signed)
    Y, sigma = _add_homoscedastic_noise(rng, M, 0.05)
    return Trial(Y, factors, np.ones(M.shape, dtype=bool), sigma, 4), rng


def _clip(trial: Trial, low: Any, high: Any, *, told: bool) -> Trial:
    """The entries beyond the limits at the limits, which `cp` is told, or must see for itself."""
    data = np.clip(trial.data, low, high)
    options = trial.options | ({"limits": (low, high)} if told else {})
    return replace(trial, data=data, clean=trial.clean & (data == trial.data), options=options)


@_register_kind(NEAR_ORACLE, cells=tuple(f"share={share}" for share in (0.05, 0.15, 0.3)))
def saturated(seed: int, share: float) -> Trial:
    """40^3, rank 4, 5% noise, the largest 5, 15 or 30% of the entries at the ceiling of the
    detector, which is not told."""
    trial, _ = _saturated_trial(seed)
    return _clip(trial, None, np.quantile(trial.data, 1 - share), told=False)


@_register_kind(NEAR_ORACLE)
def saturated_with_artifacts(seed: int) -> Trial:
    """40^3, rank 4, 5% noise, 5% of the entries raised, then the largest 15% at the ceiling of
    the detector, which is not told."""
    trial, rng = _saturated_trial(seed)
    Y, bad = _add_artifacts(rng, trial.data, 0.05, 3, (-1, 1))
    return _clip(replace(trial, data=Y, clean=~bad), None, np.quantile(Y, 0.85), told=False)


@_register_kind(NEAR_ORACLE, cells=("share=0.05", "share=0.15"))
def saturated_at_both_ends(seed: int, share: float) -> Trial:
    """40^3, rank 4, signed factors, 5% noise, the largest and the smallest 5 or 15% of the
    entries at the limits of the detector, which are told (limits=)."""
    trial, _ = _saturated_trial(seed, signed=True)
    low, high = np.quantile(trial.data, [share, 1 - share])
    return _clip(trial, float(low), float(high), told=True)


@_register_kind(NEAR_ORACLE, cells=("told=0", "told=1"))
def saturated_sensors(seed: int, told: float) -> Trial:
    """40^3, rank 4, 5% noise, the largest 5 to 30% of each slab of mode 1 at a ceiling of its
    own; not told, or told (limits=)."""
    trial, rng = _saturated_trial(seed)
    shares = rng.uniform(0.05, 0.3, 40)
    ceilings = [np.quantile(trial.data[:, k], 1 - share) for k, share in enumerate(shares)]
    return _clip(trial, None, np.reshape(ceilings, (1, 40, 1)), told=bool(told))


# Two peaks of noise, and structure beside noise


@_register_kind(
    NEAR_ORACLE,
    cells=(
        "share=0.1 shift=3",
        "share=0.2 shift=2.5",
        "share=0.2 shift=3",
        "share=0.2 shift=5",
        "share=0.3 shift=4",
    ),
)
def shifted_entries(seed: int, share: float, shift: float) -> Trial:
    """40^3, rank 4, 20% noise, 10 to 30% of the entries shifted by 2.5 to 5 standard deviations
    of the noise."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (40,) * 3, 4)
    Y, sigma = _add_homoscedastic_noise(rng, M, 0.2)
    bad = rng.random(M.shape) < share
    return Trial(np.where(bad, Y + shift * sigma, Y), factors, ~bad, sigma, 4)


@_register_kind(NEAR_ORACLE)
def landscapes_with_misfit(seed: int) -> Trial:
    """17 samples x 70 emissions x 45 excitations, rank 4, an unmeasured triangle, a smooth misfit
    of 4% of each entry, noise of .5%, two samples with a peak of their own, cases=0;
    nonnegative."""
    rng = np.random.default_rng(seed)
    emission, excitation, factors = _draw_landscapes(rng, 17)
    M = full_tensor(factors)
    bumps = [
        np.exp(-0.5 * ((x[:, None] - np.linspace(x[0], x[-1], 5)) / 50) ** 2)
        for x in (emission, excitation)
    ]
    misfit = np.einsum("iab,ma,xb->imx", rng.standard_normal((17, 5, 5)), *bumps)
    misfit *= 0.04 / _rms(misfit)
    noise = 0.005 * (0.1 * M.max() + M)
    Y = M * (1 + misfit) + noise * rng.standard_normal(M.shape)
    bad_samples = rng.choice(17, 2, replace=False)
    for k in bad_samples:
        m, x = rng.uniform(350, 550), rng.uniform(250, 320)
        peak = np.outer(
            np.exp(-0.5 * ((emission - m) / 25) ** 2), np.exp(-0.5 * ((excitation - x) / 25) ** 2)
        )
        Y[k] += 0.5 * M.max() * peak
    Y[:, emission[:, None] - excitation < 0] = np.nan
    sigma = np.hypot(0.04 * M, noise)
    clean = _mask_without_slabs(M.shape, bad_samples) & ~np.isnan(Y)
    options = {"nonnegative": True, "cases": 0}
    return Trial(Y, factors, clean, sigma, 4, options, (0, bad_samples))


# Bad samples with bad cells, good leverage, slabs that one component fits exactly


@_register_kind(
    NEAR_ORACLE,
    cells=(
        "share=0.2 cells=0.1 missing=0",
        "share=0.1 cells=0.2 missing=0",
        "share=0.3 cells=0.1 missing=0",
        "share=0.2 cells=0.2 missing=0.4",
    ),
)
def foreign_samples_and_bad_cells(seed: int, share: float, cells: float, missing: float) -> Trial:
    """50^3, rank 5, 10 to 30% of the samples hold a component that the others do not have, 10 or
    20% artifacts everywhere, up to 40% missing; cases=0."""
    trial = _trial_with_a_foreign_component(seed, 3, 0, share)
    rng = np.random.default_rng([seed, 10])
    Y, bad = _add_artifacts(rng, trial.data, cells, 5)
    trial = replace(trial, data=Y, clean=trial.clean & ~bad)
    return _hide_entries(rng, trial, 1 - missing) if missing else trial


@_register_kind(NEAR_ORACLE, cells=("size=4", "size=20"))
def uneven_samples_of_their_own(seed: int, size: float) -> Trial:
    """50 x 40 x 30, rank 4, noise that differs 30-fold between the samples, 6 samples that hold
    something of their own of rank 1, 4 or 20 times as large, 8% artifacts, 20% missing, cases=0;
    nonnegative."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (50, 40, 30), 4)
    sigma = _slab_sigmas(rng, M)
    Y = M + sigma * rng.standard_normal(M.shape)
    bad_samples = rng.choice(50, 6, replace=False)
    for k in bad_samples:
        Y[k] += 3 * size * _rms(M) * np.outer(rng.random(40), rng.random(30))
    Y, bad = _add_artifacts(rng, Y, 0.08, 5)
    clean = ~bad & _mask_without_slabs(M.shape, bad_samples)
    options = {"nonnegative": True, "cases": 0}
    trial = Trial(Y, factors, clean, sigma, 4, options, (0, bad_samples))
    return _hide_entries(rng, trial, 0.8)


@_register_kind(
    NEAR_ORACLE,
    cells=("times=3 extra=1", "times=10 extra=0", "times=10 extra=1", "times=30 extra=1"),
)
def good_leverage(seed: int, times: float, extra: float) -> Trial:
    """100 x 20 x 20, rank 3, 20% noise, a fifth of the samples 3 to 30 times as large and not
    bad, the rank asked for right or one too high; cases=0."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (100, 20, 20), 3)
    _, sigma = _add_homoscedastic_noise(rng, M, 0.2)
    large = rng.choice(100, 20, replace=False)
    factors[0][large] *= times
    Y = full_tensor(factors) + sigma * rng.standard_normal(M.shape)
    return Trial(Y, factors, np.ones(M.shape, dtype=bool), sigma, 3 + int(extra), {"cases": 0})


@_register_kind(NEAR_ORACLE, cells=("rank=0 told=0", "rank=1 told=0", "rank=1 told=1"))
def exact_slabs(seed: int, rank: float, told: float) -> Trial:
    """40^3, rank 4, 5% artifacts, three slabs of mode 0 replaced by constants or by matrices of
    rank 1 without noise; told (cases=0) or not."""
    rng = np.random.default_rng(seed)
    trial = _trial_with_artifacts(rng, (40,) * 3, 4, 0.05)
    exact = rng.choice(40, 3, replace=False)
    Y = trial.data.copy()
    for k in exact:
        pattern = np.outer(rng.random(40), rng.random(40)) if rank else np.ones((40, 40))
        Y[k] = 5 * np.std(trial.data) * rng.uniform(0.5, 1.5) * pattern
    clean = trial.clean & _mask_without_slabs(Y.shape, exact)
    options = {"cases": 0} if told else {}
    return replace(trial, data=Y, clean=clean, options=options, unrecoverable=(0, exact))


@_register_kind(replace(NEAR_ORACLE, false_alarms=(0.0003, 0.004)))
def long_mode(seed: int) -> Trial:
    """5000 x 20 x 20, rank 4, noise that differs 30-fold between the slabs of mode 0, 5%
    artifacts."""
    rng = np.random.default_rng(seed)
    factors, M = _draw_model(rng, (5000, 20, 20), 4)
    sigma = _slab_sigmas(rng, M)
    Y, bad = _add_artifacts(rng, M + sigma * rng.standard_normal(M.shape), 0.05, 5)
    return Trial(Y, factors, ~bad, sigma, 4)
