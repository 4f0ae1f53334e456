"""The constants of the search for starts, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """The constants of the search for starts."""

    # Rounds of starts
    #: How many starts are fitted at once: more only if those before do not agree.
    block_sizes: tuple[int, ...] = (2, 2, 2, 6, 8)
    #: After this block, if starts disagree, quantile starts and component searches run.
    fallback_after_block: int = 1
    #: The smoothing of a start begins with this share of the data's size, squared: where strong
    #: artifacts lead astray a small one is better,
    small_epsilon_share: float = 0.03
    #: for sparse data a large one; so both are tried.
    large_epsilon_share: float = 1.0
    #: The last epsilon of fits to subsamples, in the same units.
    lowest_epsilon_share: float = 1e-4
    #: If more than this share of the entries is positive,
    mostly_positive_share: float = 0.9
    #: the first proposals are fitted in this order.
    positive_data_order: tuple[int, ...] = (3, 1, 2, 0)
    #: Starts for data of which most entries are outliers: initialization and quantile.
    quantile_starts: tuple[tuple[str, float], ...] = (
        ("clipped", 0.2),
        ("clipped", 0.8),
        ("positive", 0.2),
        ("positive", 0.5),
    )
    #: From so many entries on, starts are fitted side by side.
    min_parallel_entries: int = 1 << 15

    # Agreement
    #: The factor match score, without weights, from which two models are the same.
    same_model_score: float = 0.95
    #: Objectives this close to the lowest, relatively, are the same.
    same_objective_tol: float = 5e-3
    #: If so many starts agree there is no better model to be found, whatever the residuals.
    sufficient_same_starts: int = 6
    #: From so many starts on, redundant components are left out when models are compared.
    many_starts: int = 8
    #: Without a redundant component the cost, summed over entries, rises by less than this for each
    #: of its parameters.
    cost_per_parameter: float = 2.0
    #: By how much a model should lower the entropy of the data.
    large_entropy_drop: float = 1.0
    #: A component is redundant to a candidate if the entropy without it rises by no more.
    negligible_entropy_rise: float = 0.005
    #: A component is localised if this share of the rows of a mode
    localised_row_share: float = 0.05
    #: holds this share of its squares.
    localised_energy_share: float = 0.9
    #: The cosine from which two columns are alike.
    similar_cosine: float = 0.8
    #: Each factor of a new component is multiplied by this.
    new_component_size: float = 0.1

    # What is fitted to the end
    #: Candidates that cost more per entry than the best by this are dropped.
    max_cost_gap: float = 0.05
    #: So many entries, times candidates, are fitted to the end,
    max_final_fit_entries: int = 1 << 20
    #: but at least so many candidates.
    min_final_fits: int = 3

    # Subsamples
    #: Starts of tensors with more entries are fitted to a subsample
    max_full_search_entries: int = 1 << 20
    #: of about so many.
    subsample_entries: int = 1 << 17
    #: Of tensors with more entries the first starts are fitted to a quarter.
    min_first_subsample_entries: int = 1 << 16

    # Component search
    #: How many component searches run, until two of them agree.
    component_searches: int = 2
    #: Components that each proposes between comparisons.
    additions_per_round: int = 4
    #: Proposals before two searches with pruned components may agree.
    min_additions_if_pruned: int = 20
    #: A search ends after so many proposals without improvement,
    addition_patience: int = 32
    #: or after so many in all.
    max_additions: int = 80
    #: The same, where rows have many entries and the search is a fallback.
    max_fallback_additions: int = 8
    #: Entries, times proposals, that are worth it where rows have few entries.
    max_addition_entries: int = 80 << 13
    #: A fallback search of more entries runs on a subsample
    max_component_search_entries: int = 1 << 16
    #: of so many,
    component_search_subsample: int = 1 << 14
    #: and there is none for more components.
    max_component_search_rank: int = 8
    #: Below so many entries for each parameter a prior of rows cannot be estimated.
    min_entries_per_parameter: int = 2
    #: How often an active component is replaced while there are pruned ones.
    replacement_probability: float = 0.3
    #: A proposal is accepted if it lowers the cost per entry by this.
    min_improvement: float = 1e-4
    #: How often outlying fibres are looked for.
    fibre_rounds: int = 3
    #: Sweeps on all data, for a model of a subsample.
    extension_sweeps: int = 10


SEARCH_SETTINGS = SearchSettings()


@dataclass(frozen=True)
class CaseSettings:
    """The constants of the search for bad samples."""

    #: A subset has so many samples more than there are components.
    extra_subset_samples: int = 2
    #: The probability to have no subset without bad samples,
    max_failure_probability: float = 0.001
    #: and the most subsets.
    max_subsets: int = 300
    #: The share of the samples that must be good, and by which models are compared.
    good_share: float = 0.6
    #: Rounds in which the closest samples are fitted again, for each subset;
    concentration_steps: int = 1
    #: so many of the best subsets
    best_subsets: int = 4
    #: get so many more.
    final_concentration_steps: int = 3
    #: Subsets are compared on so many entries.
    subset_fit_entries: int = 1 << 15
    #: How subsets begin: initialization and first smoothing.
    subset_starts: tuple[tuple[str, float], ...] = (
        ("clipped", 0.03),
        ("positive", 1.0),
        ("random", 1.0),
        ("random", 0.03),
    )
    #: A sample is bad if its log distance is larger than the median by so many robust standard
    #: deviations,
    cutoff_deviations: float = 4.0
    #: by so many standard errors,
    cutoff_standard_errors: float = 5.0
    #: and its distance by this factor.
    min_cutoff_ratio: float = 1.3
    #: The standard error of the logarithm of a median magnitude, times the root of the count.
    log_median_standard_error: float = 1.17
    #: Distances are not below this.
    min_distance: float = 1e-12
    #: Rounds in which the model is fitted again without the bad samples.
    max_rounds: int = 5


CASE_SETTINGS = CaseSettings()
