"""The vocabulary of the benchmarks: a figure is what is promised to be measured, a reading is what came out. Pure.

Invariant: every figure that was asked for has exactly one reading in the result. One that could not be taken has
the value None and says why in its note.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `peer` names whom we are compared with, in the same run and in alternation."""

    name: str
    unit: str
    better: Better = Better.LOWER
    peer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was measured of one figure, in the figure's unit. `runs` counts the runs on our side."""

    figure: Figure
    value: float | None
    peer_value: float | None = None
    runs: int = 0
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's. None when either is missing, or the peer's is zero."""
        if self.value is None or not self.peer_value:
            return None
        return self.value / self.peer_value

    def document(self) -> dict[str, str | float | None]:
        """The reading as one object of `bench.json`."""
        return {
            "name": self.figure.name,
            "value": _rounded(self.value),
            "unit": self.figure.unit,
            "better": self.figure.better.value,
            "peer": self.figure.peer,
            "peer_value": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
            "runs": self.runs,
            "note": self.note,
        }


def select_figures(figures: Iterable[Figure], prefixes: Collection[str]) -> tuple[Figure, ...]:
    """The figures whose name starts with one of the prefixes, in their own order; all of them for no prefix.

    Raises ValueError for a prefix that matches nothing: a typing error must not pass for a measurement.
    """
    every = tuple(figures)
    unknown = [prefix for prefix in prefixes if not any(f.name.startswith(prefix) for f in every)]
    if unknown:
        raise ValueError(f"no figure is called {', '.join(unknown)}…; there are {', '.join(f.name for f in every)}")
    return tuple(f for f in every if not prefixes or f.name.startswith(tuple(prefixes)))


def _rounded(value: float | None) -> float | None:
    """Six significant digits: more would claim what no measurement here can hold."""
    return None if value is None else float(f"{value:.6g}")
