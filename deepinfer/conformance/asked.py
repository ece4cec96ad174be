"""Cases that somebody names: is it one that the suite can make?

An id that is in no grid is run all the same, so that a case can be varied by hand. What is wrong
with such a case must not read as a fault of the backend, and a word that nothing reads must not
pass as a variation: its parts are held against those of the suite's own cases before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from deepinfer.backend import Fact
from deepinfer.conformance.case import Case
from deepinfer.conformance.values import CLASSES
from deepinfer.errors import UsageError
from deepinfer.formats.dtypes import COMPUTE_DTYPES

EDGES = ("", "call", "claimed", "history", "midpoints", "small")
"""Edges that cases have beside those of a grid: of calls, of claims, and of drawn cases."""


def check_asked(case: Case, known: Iterable[Case]) -> None:
    """UsageError for a case whose words are none of the suite's.

    known: the suite's own cases of this name. A number may be any other of its kind, of at least 0
    where theirs are; a shape that does not fit the others is found when the case is made.
    """
    known = list(known)
    forms = {tuple(sorted(dict(one.facts))) for one in known}
    names = tuple(sorted(dict(case.facts)))
    if names not in forms:
        listed = "; or ".join(", ".join(form) or "none" for form in sorted(forms))
        raise UsageError(f"case {case.id}: its facts are {_listed(names)}; allowed: {listed}")
    for name, value in case.facts:
        _check_fact(case, name, value, [own for one in known for n, own in one.facts if n == name])
    dtypes = {one.dtype for one in known}
    others = COMPUTE_DTYPES.keys() if dtypes & COMPUTE_DTYPES.keys() else set()
    _check_word(case, "dtype", case.dtype, dtypes | others)
    _check_word(case, "values", case.values, CLASSES.keys() | {one.values for one in known})
    _check_word(case, "edge", case.edge, {*EDGES, *(one.edge for one in known)})
    numerics = {one.numerics for one in known}
    if case.numerics not in numerics:
        listed = _listed("none" if one is None else one for one in sorted(numerics, key=str))
        raise UsageError(f"case {case.id}: numerics is {case.numerics}; allowed: {listed}")


def _check_fact(case: Case, name: str, value: Fact, own: Collection[Fact]) -> None:
    kinds = {type(one) for one in own}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    right = type(value) in kinds or (type(value) is int and float in kinds)
    if not right:
        wanted = _listed(sorted("None" if one is None else str(one) for one in set(own))[:8])
        raise UsageError(f"case {case.id}: {name} is {value!r}; the suite's cases have {wanted}")
    if not number:
        return
    assert isinstance(value, int | float)
    lowest = min((one for one in own if isinstance(one, int | float)), default=0)
    if not math.isfinite(value) or (value < 0 and lowest >= 0):
        raise UsageError(f"case {case.id}: {name} is {value}; allowed: a number of at least 0")


def _check_word(case: Case, what: str, word: str, allowed: Collection[str]) -> None:
    if word not in allowed:
        raise UsageError(
            f"case {case.id}: {what} is {word!r}; allowed: {_listed(sorted(filter(None, allowed)))}"
        )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"
