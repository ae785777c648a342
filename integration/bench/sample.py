"""What is said about a set of samples. Pure.

Two ways to sum up, and every figure uses one of them: the median over the runs (a run is one block of alternation with
the peer, and one disturbed block must not move the figure), or a percentile over all single operations.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile, 0 < percent ≤ 100: always one of the samples, never an interpolation.

    Raises ValueError when there is no sample.
    """
    if not samples:
        raise ValueError("a percentile of no samples")
    rank = ceil(percent / 100 * len(samples))
    return sorted(samples)[max(rank, 1) - 1]


def paired_ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Of each run to the peer's run beside it. Raises ValueError if one of them has no partner."""
    return [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]


def spread(samples: Sequence[float]) -> str:
    """The range around a median, for a note: `1.2 … 3.4`."""
    return f"{min(samples):.4g} … {max(samples):.4g}"


__all__ = ["median", "paired_ratios", "percentile", "spread"]
