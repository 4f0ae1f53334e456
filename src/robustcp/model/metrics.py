"""How well two CP models agree."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from robustcp._util import checks
from robustcp.model.kruskal import KruskalTensor, host_factors


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
        A mode that is left out of the product, such as that of the samples, in which the sizes of
        the two models may differ; by name if the estimate is a Fit with names.
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
    ours, theirs = _with_unit_columns(estimate), _with_unit_columns(truth)
    score = _unit_congruence(ours, theirs, skip if skip_mode is None else skip_mode)
    if weights:
        w, v = ours.weights[:, None], theirs.weights[None, :]
        larger = np.maximum(w, v)
        score *= np.where(larger > 0, np.minimum(w, v) / np.where(larger > 0, larger, 1.0), 0.0)
    pairs = best_pairing(score)
    mean = float(score[pairs].mean())
    if not return_permutation:
        return mean
    partners = dict(zip(pairs[1].tolist(), pairs[0].tolist(), strict=True))
    return mean, [partners[r] for r in sorted(partners)]


def best_pairing(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns in pairs with the largest sum of scores.

    If the rows have their largest scores in different columns, these are the pairs. Only otherwise
    is SciPy imported, which takes a while.

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
    """The congruences of the components of models that have unit columns."""
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
    """A model with its components in the order and with the signs of a reference.

    Components without a partner come last. The mode to `skip` takes the sign that remains; without
    one, the mode whose columns are least similar takes it.

    Returns
    -------
    KruskalTensor, float64 array
        The model, and the congruences of its components with their partners.

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
    """For each column, the share of its squares that the largest of some share of its rows hold.

    >>> import numpy as np
    >>> concentration(np.array([[3.0, 1.0], [0.0, 1.0], [0.0, -1.0], [0.0, 1.0]]), 0.25)
    array([1.  , 0.25])
    """
    squares = np.sort(A * A, axis=0)[::-1]
    largest = squares[: int(share * len(squares))].sum(axis=0)
    return np.asarray(largest / np.maximum(squares.sum(axis=0), 1e-300))


def _with_unit_columns(model: Any) -> KruskalTensor:
    """A model on the host with unit columns and weights >= 0, in the order of its components.

    A column of zeros stays zero and gives its component weight 0.
    """
    model = _on_host(model)
    weights = np.abs(model.weights)
    units = []
    for A in model.factors:
        top = np.abs(A).max(axis=0)
        top[top == 0] = 1.0
        A = A / top  # first by the largest entry: squares of 1e-200 are 0
        norm = np.sqrt(np.einsum("ir,ir->r", A, A))
        units.append(A / np.where(norm > 0, norm, 1.0))
        weights = weights * top * norm
    return KruskalTensor(weights, tuple(units))


def canonical_model(model: Any) -> KruskalTensor:
    """A model of any library, or a pair (weights, factors), in canonical form on the host."""
    return _on_host(model).normalized()


def _on_host(model: Any) -> KruskalTensor:
    """A model, or a pair (weights or None, factors), in float64 on the host."""
    weights, factors = model
    host = host_factors(factors)
    if weights is None:
        return KruskalTensor.from_factors(host)
    return KruskalTensor(host_factors([weights])[0], tuple(host))
