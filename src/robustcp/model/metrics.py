"""How well an estimate matches the truth."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from robustcp._util import checks
from robustcp.engines import to_host
from robustcp.model.kruskal import KruskalTensor


@overload
def factor_match_score(
    estimate: Any,
    truth: Any,
    *,
    weights: bool = True,
    skip_mode: int | str | None = None,
    return_permutation: Literal[False] = False,
    skip: int | None = None,
) -> float: ...
@overload
def factor_match_score(
    estimate: Any,
    truth: Any,
    *,
    weights: bool = True,
    skip_mode: int | str | None = None,
    return_permutation: Literal[True],
    skip: int | None = None,
) -> tuple[float, list[int]]: ...
def factor_match_score(
    estimate: Any,
    truth: Any,
    *,
    weights: bool = True,
    skip_mode: int | str | None = None,
    return_permutation: bool = False,
    skip: int | None = None,
) -> float | tuple[float, list[int]]:
    """How well two CP models agree, from 0 to 1, whatever the order of their components.

    The mean over the best pairing of components of

        (1 - |w - w'| / max(w, w')) * prod_n |cos(a_n, a_n')|

    with w, w' the components' norms; the first term is left out with ``weights=False``. The
    pairing that maximises the sum is found exactly (the Hungarian method). When one model has
    more components, those without a partner are left out of the mean.

    Parameters
    ----------
    estimate, truth : KruskalTensor, Fit, or a pair (weights, factors) such as TensorLy's
    weights : bool
        Whether components must also agree in size.
    skip_mode : int or str, optional
        A mode that is left out of the product, such as that of the samples, in which the two
        models may differ in size; by name if the estimate is a Fit with names.
    return_permutation : bool
        Whether the partner in the estimate of each component of the truth is returned as well:
        ``estimate.factors[0][:, permutation]`` are in the order of the truth's.
    skip : int, optional
        The older name of `skip_mode`.

    Returns
    -------
    float, or (float, list of int)

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((6, 2)) for _ in range(3))
    >>> from robustcp import KruskalTensor, factor_match_score
    >>> model = KruskalTensor.from_factors([A, B, C])
    >>> swapped = KruskalTensor.from_factors([A[:, ::-1], -B[:, ::-1], C[:, ::-1]])
    >>> round(factor_match_score(model, swapped), 12)
    1.0
    >>> other = KruskalTensor.from_factors([A[:4], B, C])
    >>> round(factor_match_score(model, other, weights=False, skip_mode=0), 12)
    1.0
    >>> factor_match_score(swapped, model, return_permutation=True)[1]
    [1, 0]
    """
    if isinstance(skip_mode, str):
        skip_mode = checks.mode_number(
            "skip_mode", skip_mode, getattr(estimate, "modes", ()), len(estimate[1])
        )
    ours, theirs = normalize_columns(estimate), normalize_columns(truth)
    score = _unit_congruence(ours, theirs, skip if skip_mode is None else skip_mode)
    if weights:
        w, v = ours.weights[:, None], theirs.weights[None, :]
        larger = np.maximum(w, v)
        score *= np.where(larger > 0, np.minimum(w, v) / np.where(larger > 0, larger, 1.0), 0.0)
    pairs = best_pairing(score)
    found = float(score[pairs].mean())
    if not return_permutation:
        return found
    partners = dict(zip(pairs[1].tolist(), pairs[0].tolist(), strict=True))
    return found, [partners[r] for r in range(theirs.rank) if r in partners]


def best_pairing(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns in pairs, so that their scores add up to as much as they can.

    Where each row likes another column best, that is it; SciPy, which takes a while to import, is
    asked only otherwise.

    >>> import numpy as np
    >>> best_pairing(np.array([[0.2, 0.9], [0.8, 0.1]]))
    (array([0, 1]), array([1, 0]))
    """
    best = score.argmax(axis=1)
    if np.unique(best).size == len(score) and not np.isnan(score).any():
        return np.arange(len(score)), best
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(score, maximize=True)
    return rows, columns


def congruence(estimate: Any, truth: Any, *, skip: int | None = None) -> np.ndarray:
    """prod_n |cos| between each component of one model (rows) and each of another (columns).

    Parameters
    ----------
    estimate, truth : KruskalTensor, Fit, or a pair (weights, factors) such as TensorLy's
    skip : int, optional
        A mode that is left out of the product.

    Returns
    -------
    float64 array (rank of the estimate, rank of the truth)

    Examples
    --------
    >>> import numpy as np
    >>> from robustcp import KruskalTensor, congruence
    >>> model = KruskalTensor.from_factors([np.eye(3)[:, :2]] * 3)
    >>> congruence(model, model)
    array([[1., 0.],
           [0., 1.]])
    """
    return _unit_congruence(canonical_model(estimate), canonical_model(truth), skip)


def _unit_congruence(estimate: KruskalTensor, truth: KruskalTensor, skip: int | None) -> np.ndarray:
    """The same for models with unit columns."""
    if skip is not None:
        skip = checks.whole_number("skip", skip, 0, maximum=len(estimate.shape) - 1)
    sizes = [
        [size for n, size in enumerate(model.shape) if n != skip] for model in (estimate, truth)
    ]
    if sizes[0] != sizes[1] or len(estimate.shape) != len(truth.shape):
        raise ValueError(
            f"estimate: its shape {estimate.shape} is not the truth's shape {truth.shape}"
            + (f", mode {skip} aside" if skip is not None else "")
        )
    product = np.ones((estimate.rank, truth.rank))
    for n, (A, B) in enumerate(zip(estimate.factors, truth.factors, strict=True)):
        if n != skip:
            product *= np.abs(A.T @ B)
    return product


def align_components(
    estimate: Any, reference: Any, *, skip: int | None = None
) -> tuple[KruskalTensor, np.ndarray]:
    """A model with its components in the order and with the signs of a reference's.

    Those without a partner come last. A mode to `skip` has no say; it takes the sign that is left,
    as does the mode that is least alike where there is none.

    Returns
    -------
    KruskalTensor, float64 array
        The model, and the congruence of each of its first components with its partner.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> A, B, C = (rng.standard_normal((6, 2)) for _ in range(3))
    >>> model = KruskalTensor.from_factors([A, B, C])
    >>> turned = KruskalTensor.from_factors([-A[:, ::-1], -B[:, ::-1], C[:, ::-1]])
    >>> found, congruences = align_components(turned, model)
    >>> np.allclose(found.factors[0], model.normalized().factors[0]), congruences.round(6)
    (True, array([1., 1.]))
    """
    host_estimate, host_reference = canonical_model(estimate), canonical_model(reference)
    score = _unit_congruence(host_estimate, host_reference, skip)
    rows, columns = best_pairing(score)
    by_column = np.argsort(columns)
    partners, reference_columns = rows[by_column], columns[by_column]
    unpaired = [r for r in range(host_estimate.rank) if r not in set(partners.tolist())]
    order = [*partners.tolist(), *unpaired]
    factors = [A[:, order] for A in host_estimate.factors]
    for r, column in enumerate(reference_columns):
        cosines = np.array(
            [
                0.0 if n == skip else float(A[:, r] @ B[:, column])
                for n, (A, B) in enumerate(zip(factors, host_reference.factors, strict=True))
            ]
        )
        signs = np.where(cosines < 0, -1.0, 1.0)
        if np.prod(signs) < 0:
            signs[int(np.argmin(np.abs(cosines)))] *= -1
        for A, sign in zip(factors, signs, strict=True):
            A[:, r] *= sign
    model = KruskalTensor(host_estimate.weights[order], tuple(factors))
    return model, score[partners, reference_columns]


def concentration(A: np.ndarray, share: float) -> np.ndarray:
    """For each column, the share of its squares that is in the largest of some share of its rows.

    >>> import numpy as np
    >>> concentration(np.array([[3.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, 1.0]]), 0.25)
    array([1.  , 0.25])
    """
    squares = np.sort(A * A, axis=0)[::-1]
    largest = squares[: int(share * len(squares))].sum(axis=0)
    return np.asarray(largest / np.maximum(squares.sum(axis=0), 1e-300))


def normalize_columns(model: Any) -> KruskalTensor:
    """A model on the host with unit columns and the sizes of components as weights; else as it is.

    A column of zeros stays zero and gives its component weight 0.
    """
    weights, factors = model
    host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
    sizes = np.ones(host[0].shape[1])
    if weights is not None:
        sizes = np.abs(np.asarray(to_host(weights), dtype=np.float64))
    units = []
    for A in host:
        top = np.abs(A).max(axis=0)
        top[top == 0] = 1.0
        A = A / top  # first by the largest entry: squares of 1e-200 are 0
        norm = np.sqrt(np.einsum("ir,ir->r", A, A))
        units.append(A / np.where(norm > 0, norm, 1.0))
        sizes = sizes * top * norm
    return KruskalTensor(sizes, tuple(units))


def canonical_model(model: Any) -> KruskalTensor:
    """A model of any library, or a pair (weights, factors), in canonical form on the host."""
    weights, factors = model
    host = [np.asarray(to_host(A), dtype=np.float64) for A in factors]
    if weights is None:
        return KruskalTensor.from_factors(host).normalized()
    return KruskalTensor(np.asarray(to_host(weights), dtype=np.float64), tuple(host)).normalized()
