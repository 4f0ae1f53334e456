"""The constants of the search for starts, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """The constants of the search for starts."""

    # Rounds of starts
    #: Numbers of starts in the first blocks; a block is fitted only if those before disagree.
    first_blocks: tuple[int, ...] = (2, 2, 2)
    #: The same of further blocks, which follow on exchanges and quantile starts.
    further_blocks: tuple[int, ...] = (2, 6, 8)
    #: First epsilon of a start, as a multiple of the squared magnitude of ordinary entries: a small
    #: one, for data with strong artifacts.
    small_epsilon_share: float = 0.03
    #: The same: a large one, for sparse factors.
    large_epsilon_share: float = 1.0
    #: The last epsilon of fits to subsamples, in the same units.
    lowest_epsilon_share: float = 1e-4
    #: Data is mostly positive if more than this share of its nonzero entries is.
    mostly_positive_share: float = 0.9
    #: The order of the first proposals for mostly positive data.
    positive_data_order: tuple[int, ...] = (3, 1, 2, 0)
    #: Starts for data with a majority of outliers: kind of initial factors, and quantile.
    quantile_starts: tuple[tuple[str, float], ...] = (
        ("clipped", 0.2),
        ("clipped", 0.8),
        ("positive", 0.2),
        ("positive", 0.5),
    )
    #: Starts are fitted in parallel if the data has at least this many entries.
    min_parallel_entries: int = 1 << 15

    # Agreement
    #: Two models are the same above this factor match score without weights.
    same_model_score: float = 0.95
    #: Relative difference below which two objectives are the same.
    same_objective_tol: float = 5e-3
    #: Number of agreeing starts that ends the search, whatever the residuals, if exchanges do not
    #: lower the cost.
    sufficient_same_starts: int = 3
    #: After so many starts a model is not taken as reliable, and its redundant components are
    #: counted.
    many_starts: int = 8
    #: A component is redundant if leaving it out raises the cost, summed over entries, by less
    #: than this for each of its parameters.
    cost_per_parameter: float = 2.0
    #: If the best model lowers the entropy of the data by less, most entries may be outliers.
    large_entropy_drop: float = 1.0
    #: A model explains its entries if they are at least so many times its parameters, ...
    min_explained_entries: float = 3.0
    #: ... and the median magnitude of their residuals is below this share of that of the data.
    max_unexplained_ratio: float = 0.25
    #: A component of a candidate is replaced if the entropy without it rises by no more than this.
    negligible_entropy_rise: float = 0.005
    #: Whether other components make up for one is tried if the entropy rises by no more than this.
    max_entropy_rise_to_refit: float = 0.3
    #: Multiplier of each factor of the component that replaces it.
    replacement_size: float = 0.1
    #: Component searches for matrices agree if their costs per entry differ by less than this.
    same_search_cost: float = 0.005
    #: A component is localised if few rows hold most of its squares: this share of the rows ...
    localised_row_share: float = 0.05
    #: ... holds this share of the squares.
    localised_energy_share: float = 0.9
    #: A column is constant on some rows if entries above half the largest, and the others, differ
    #: from one level, and from 0, by at most this share of the level (root mean squares), ...
    max_level_deviation: float = 0.1
    #: ... and if it is so on at most this share of the rows.
    max_block_row_share: float = 0.7
    #: A component is constant on a block if its columns, but for one, are constant on some rows, on
    #: so many in all beyond the first of each mode: fewer may be alike by chance.
    min_block_rows: int = 4
    #: Two columns are alike above this cosine.
    similar_cosine: float = 0.8
    #: Multiplier of each factor of a new component.
    new_component_size: float = 0.3
    #: The kinds of initial factors of new components, in turn.
    exchange_kinds: tuple[str, ...] = ("residuals", "random", "positive")
    #: Residuals are clipped between these multiples of their median magnitude, at random.
    residual_limits: tuple[float, float] = (0.5, 3.0)
    #: Exchanges of a candidate end after this many failures in a row: `max_exchange_entries` over
    #: the number of entries, but at least and at most so many.
    exchange_patience: tuple[int, int] = (6, 9)
    #: Largest product of entries and failures in a row.
    max_exchange_entries: int = 1 << 17
    #: Components are exchanged of so many candidates: `max_exchanged_entries` over the number of
    #: entries, but at least and at most so many.
    exchanged_candidates: tuple[int, int] = (2, 3)
    #: Largest product of entries and candidates whose components are exchanged.
    max_exchanged_entries: int = 1 << 16
    #: Largest number of exchanges of a candidate, as a multiple of the patience.
    max_exchange_ratio: int = 3

    #: A model is exact if its noise is below this share of the magnitude of ordinary entries.
    exact_noise_share: float = 1e-3

    # Price: entries x rank x passes
    #: The search ends when it has cost this many times as much as the final fit of all data, ...
    max_price_ratio: float = 10.0
    #: ... whose number of sweeps is taken to be this.
    final_fit_sweeps: int = 200
    #: A search of a lower price, about a second, is not limited.
    min_price_limit: float = 5e8

    # What is fitted to the end
    #: Candidates whose cost per entry exceeds the lowest by more than this are dropped.
    max_cost_gap: float = 0.05
    #: Largest product of entries and candidates that are fitted to convergence.
    max_final_fit_entries: int = 1 << 16
    #: As many selected candidates are fitted to convergence, however large the data is.
    min_final_fits: int = 3

    # Subsamples
    #: Starts of complete tensors with more entries than this are fitted to a subsample, ...
    max_complete_search_entries: int = 1 << 18
    #: ... and of all tensors with more than this: in a part of incomplete data more rows have few
    #: entries.
    max_full_search_entries: int = 1 << 20
    #: Number of entries of such a subsample.
    subsample_entries: int = 1 << 17
    #: The first starts of tensors with more entries than this are fitted to a part of them, ...
    min_first_subsample_entries: int = 1 << 16
    #: ... of at most a quarter, and of at most this many entries.
    first_subsample_entries: int = 1 << 15

    # Component search
    #: Number of component searches that run until two of them agree.
    component_searches: int = 2
    #: Proposals of each search between two comparisons.
    additions_per_round: int = 4
    #: Fewest proposals before searches with pruned components may agree.
    min_additions_if_pruned: int = 20
    #: Number of proposals without improvement that ends a search.
    addition_patience: int = 32
    #: Largest number of proposals of a search.
    max_additions: int = 80
    #: The same where rows have many entries.
    max_fallback_additions: int = 8
    #: Largest rank of a component search where rows have many entries.
    max_component_search_rank: int = 8
    #: Sweeps of an addition, for its price.
    addition_sweeps: int = 50
    #: Where rows have many entries, larger data is searched on a subsample of so many entries.
    max_component_search_entries: int = 1 << 16
    #: Largest product of entries and proposals, where rows have few entries.
    max_addition_entries: int = 80 << 13
    #: Fewest entries per parameter from which a prior of rows can be estimated.
    min_entries_per_parameter: int = 2
    #: Probability to replace an active component while there are pruned ones.
    replacement_probability: float = 0.3
    #: A proposal is accepted if it lowers the cost per entry by at least this.
    min_improvement: float = 1e-4
    #: Largest number of times that outlying fibres are flagged anew.
    fibre_rounds: int = 3


SEARCH_SETTINGS = SearchSettings()


@dataclass(frozen=True)
class CaseSettings:
    """The constants of the search for bad samples."""

    #: Samples of a subset beyond the number of components.
    extra_subset_samples: int = 2
    #: Probability that every subset has a bad sample.
    max_failure_probability: float = 0.001
    #: Largest number of subsets.
    max_subsets: int = 300
    #: Share of the samples that must be good; models are compared by this share of the samples.
    good_share: float = 0.6
    #: Share of the samples in a large subset.
    subset_share: float = 0.75
    #: Extra components of large subsets, in turn; they are pruned.
    extra_components: tuple[int, ...] = (1, 1, 1, 2)
    #: From this start on every second subset is small: `extra_subset_samples` beyond the rank.
    large_subsets: int = 8
    #: Starts of mostly positive data: kind of initial factors, multiple for the first epsilon, and
    #: whether residuals are divided by scales of their slabs.
    positive_starts: tuple[tuple[str, float, bool], ...] = (
        ("positive", 1.0, False),
        ("positive", 0.03, True),
        ("clipped", 0.03, True),
        ("random", 0.03, False),
    )
    #: The same of other data.
    signed_starts: tuple[tuple[str, float, bool], ...] = (
        ("clipped", 0.03, True),
        ("random", 0.03, False),
        ("clipped", 1.0, False),
        ("random", 1.0, False),
    )
    #: Number of agreeing starts that ends the search, ...
    sufficient_same_starts: int = 4
    #: ... and the same if the residuals are noise.
    sufficient_same_noise_starts: int = 3
    #: A component is localised if all but 40% of the samples hold less than this share of its
    #: squares, ...
    localised_remainder: float = 0.1
    #: ... and less than this multiple of the median of the components; ...
    least_remainder_ratio: float = 0.65
    #: ... or less than this share, whatever the other components.
    tiny_remainder: float = 0.02
    #: So many models are then fitted to the other samples, at least.
    fits_without_localised_samples: int = 6
    #: Fits whose cost exceeds the lowest by more get no concentration steps.
    max_cost_gap: float = 0.3
    #: Largest number of concentration steps.
    concentration_steps: int = 3
    #: Concentration steps end with one that lowers the cost by less.
    min_cost_decrease: float = 0.03
    #: Number of models that are fitted to the end unless subsets agree and residuals are noise, ...
    min_final_fits: int = 3
    #: ... and of small data, which `max_final_fit_entries` of `SearchSettings` allows.
    max_final_fits: int = 6
    #: Distances smaller than this share of the median count as this share.
    min_distance_share: float = 0.1
    #: Number of entries on which subsets are compared.
    subset_fit_entries: int = 1 << 15
    #: Cells beyond this many scales of their sample are outliers, ...
    bad_cell_limit: float = 3.5
    #: ... and are left out of it, so many times.
    scale_rounds: int = 2
    #: A sample is bad if its log distance exceeds the median by more than each of three limits:
    #: this many robust standard deviations of the log distances, ...
    cutoff_deviations: float = 4.0
    #: ... this many standard errors of a log distance, ...
    cutoff_standard_errors: float = 5.0
    #: ... and the logarithm of this factor.
    min_cutoff_ratio: float = 1.3
    #: Length of the interval of the middle 60% of a standard normal distribution.
    normal_interval: float = 1.683
    #: Standard error of the logarithm of a median magnitude, times the square root of the count.
    log_median_standard_error: float = 1.17
    #: Smallest distance.
    min_distance: float = 1e-12
    #: By how much the variance of the model of a sample that was left out, which the errors of the
    #: other factors cause, may exceed its estimate.
    left_out_variance_ratio: float = 2.0
    #: Samples are not readmitted if the cost rises by more than this, or by more than the number of
    #: parameters per entry.
    max_cost_rise: float = 0.01
    #: Coefficients by which squared distances may grow with the squared relative size of samples.
    growth_coefficients: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
    #: Samples of ordinary size are within this many robust standard deviations of log sizes.
    ordinary_deviations: float = 2.5
    #: The standard deviation of the log distances of most of these must be smaller by this factor.
    min_growth_gain: float = 0.6
    #: Of fewer samples it is not estimated.
    min_samples_for_growth: int = 8
    #: Largest number of times that the model is fitted again without the bad samples.
    max_rounds: int = 5


CASE_SETTINGS = CaseSettings()
