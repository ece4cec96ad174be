"""`Draws`: draws the parts of a case; `smallest`: searches drawn cases for a failing one.

This is the only module of the suite that imports hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from deepinfer.backend import Fact
from deepinfer.conformance.case import Case

T = TypeVar("T")
LONGEST = 40
"""Positions of a drawn sequence: three blocks of 16, ten pages of 4."""


class Draws:
    """Parts of one case. Every part shrinks towards its first or smallest value."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], most_rows: int) -> None:
        self._draw = draw
        self.most_rows = most_rows

    def integer(self, low: int, high: int) -> int:
        """Any whole number from low to high."""
        return int(self._draw(st.integers(low, high)))

    def multiple(self, of: int, most: int) -> int:
        """A positive multiple of a number, at most `most`."""
        return of * self.integer(1, most // of)

    def pick(self, *values: T) -> T:
        chosen: T = self._draw(st.sampled_from(values))
        return chosen

    def rows(self) -> int:
        """A number of rows; 0 and 1 are possible."""
        return self.integer(0, self.most_rows)

    def dtype(self) -> str:
        return self.pick("bf16", "fp32", "fp64")

    def numerics(self) -> str:
        return self.pick("ref", "infer")

    def batch(self) -> dict[str, Fact]:
        """Facts `layout` and `length`: rows of up to four sequences, then some without one."""
        chunks = []
        for _ in range(self.integer(0, 4)):
            start = self.integer(0, LONGEST - 1)
            stop = self.integer(start + 1, min(LONGEST, start + self.most_rows))
            chunks.append((start, stop))
        if not chunks:
            return {"layout": "none", "length": 1}
        parts = [f"{start}:{stop}" for start, stop in chunks]
        padding = self.integer(0, 3)
        layout = "+".join([*parts, *([f"pad{padding}"] if padding else [])])
        return {"layout": layout, "length": max(stop for _, stop in chunks)}

    def case(
        self,
        operator: str,
        facts: dict[str, Fact],
        *,
        dtype: str = "bf16",
        numerics: str | None = None,
        values: str = "normal",
        edge: str = "",
    ) -> Case:
        """The drawn case; its seed is drawn last."""
        more: dict[str, Any] = {"values": values, "edge": edge, "seed": self.integer(0, 0xFFFF)}
        return Case.of(operator, facts, dtype=dtype, numerics=numerics, **more)


Space = Callable[[Draws], Case]


def smallest(
    space: Space, wrong: Callable[[Case], bool], examples: int, most_rows: int, number: int
) -> Case | None:
    """The smallest drawn case that fails; None where none of `examples` cases does.

    number: of the search. The same number draws the same cases, whatever ran before.
    """
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(st.data())
    def search(data: st.DataObject) -> None:
        case = space(Draws(data.draw, most_rows))
        if wrong(case):
            found[:] = [case]
            raise _Wrong

    try:
        search()
    except _Wrong:
        return found[0]
    return None


class _Wrong(Exception):
    """Raised inside a search for a drawn case that fails."""
