"""The stages that several estimators are made of."""

from __future__ import annotations

from dataclasses import replace

from robustcp.noise import Asked
from robustcp.priors import RowPrior
from robustcp.schedules import Continuation, EvenedOut, Finish, Refinement
from robustcp.sizes import Problem
from robustcp.solver import Stage


def way_down(problem: Problem, epsilon: float) -> Continuation:
    """From a share of the size of the data, squared, down to epsilon.

    A first epsilon that is too small jams; one that is too large begins as least squares,
    and where the artifacts are strong that is a bad place to begin (at 30^3, rank 5, eta
    0.2, gamma 2, a share of 1 ended in a local minimum in 63% of trials, 0.03 in 7%). For
    sparse data it is the other way round: there a large one is the better beginning.
    """
    last = max(epsilon * problem.scale**2, problem.least_epsilon)
    return Continuation(max(last, 0.03 * problem.ordinary**2), last)


def to_the_noise(
    problem: Problem,
    tol: float,
    noise: Asked = Asked(),  # noqa: B008 - it is frozen
    rows: RowPrior = RowPrior(),  # noqa: B008 - it is frozen
) -> list[Stage]:
    """The stages of `cp`: by the 1-norm to where the noise shows, then by what the noise is.

    The 1-norm goes on to its end only where the noise cannot be told from the outliers. It is
    smoothed within a quantisation step: there, ties would draw the model to the values of the
    data, which for small counts are far from their means.
    """
    mu, mu_of_squares = problem.relative_mu(1e-8), problem.relative_mu(1e-8, degree=2)
    down, grain = way_down(problem, 1e-8), (problem.resolution.step / 2) ** 2
    down = replace(down, first=max(down.first, grain), lowest=max(down.lowest, grain))
    finish = Stage("L1, finished", Finish(down.lowest), tol, mu, 1000)
    refinement = Refinement(problem.resolution, noise, rows)
    evened_out = EvenedOut(replace(down, enough=0.001), problem.resolution, rows=rows)
    last = 0.003 if problem.resolution.small else 0.03  # small counts leave long valleys
    return [
        Stage("L1", evened_out, 10 * tol, mu),
        Stage("refinement", refinement, last * tol, mu_of_squares, 100, otherwise=finish),
    ]
