"""Figures with their spread, so that no benchmark prints noise as a fact."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_DRAWS = 1000
_PERCENTILES = (5, 95)


class Estimate(NamedTuple):
    """A figure, and the interval of 90 % of its values if the rounds had been others.

    Attributes:
        value: NaN if it follows from figures that are not resolved.
        low, high: NaN if there was one round, which tells nothing of others.
    """

    value: float
    low: float
    high: float

    @property
    def is_resolved(self) -> bool:
        """Whether the figure is at least as large as its spread."""
        return self.high - self.low <= abs(self.value)

    def __str__(self) -> str:
        """Return the figure and its spread, or that it is not resolved."""
        spread = "one round" if math.isnan(self.low) else f"{self.low:.3g} to {self.high:.3g}"
        return f"{f'{self.value:.3g}' if self.is_resolved else 'not resolved'} ({spread})"


def estimate(figure: Callable[[np.ndarray], float], rounds: ArrayLike) -> Estimate:
    """Return a figure of rounds, and its spread over rounds drawn with replacement.

    Args:
        figure: A function of an array whose first axis is that of the rounds, such as a median.
    """
    rounds = np.asarray(rounds, float)
    count = len(rounds)
    drawn = np.random.default_rng(0).integers(count, size=(_DRAWS if count > 1 else 0, count))
    values = [figure(rounds[rows]) for rows in drawn] or [math.nan]
    return Estimate(float(figure(rounds)), *map(float, np.percentile(values, _PERCENTILES)))


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Estimate:
    """Return the ratio of two medians over the rounds, which the two measured in turns."""
    return estimate(
        lambda rounds: np.divide(*np.median(rounds, axis=0)),
        np.stack([numerators, denominators], axis=1),
    )


def marginal_costs(
    lengths: Sequence[int], seconds: ArrayLike, places: tuple[int, int]
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the cost of one more token at two places, and the second cost divided by the first.

    A parabola is fitted to the medians of all lengths, whose errors grow with the time. The
    difference of two times would have the errors of both, which are more than a few tokens cost.

    Args:
        lengths: At least three numbers of tokens.
        seconds: The time of each length in each round, `(rounds, lengths)`.
    """

    def costs(rounds: np.ndarray) -> np.ndarray:
        medians = np.median(rounds, axis=0)
        fitted = np.polynomial.Polynomial.fit(lengths, medians, 2, w=1 / medians)
        return fitted.deriv()(np.array(places))

    first, last = (estimate(lambda rounds, i=i: costs(rounds)[i], seconds) for i in range(2))
    growth = estimate(lambda rounds: costs(rounds)[1] / costs(rounds)[0], seconds)
    is_known = first.is_resolved and last.is_resolved
    return first, last, growth if is_known else growth._replace(value=math.nan)


def fields(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return figures (None if not resolved) and their spreads by name, for a line of JSON."""
    found: dict[str, Any] = {}
    for name, figure in figures.items():
        value, *spread = (None if math.isnan(v) else float(f"{v:.3g}") for v in figure)
        found |= {name: value if figure.is_resolved else None, f"{name}_spread": spread}
    return found
