"""Whether the suite can make a case that a user named.

A case that is in no grid is run all the same, so that cases can be varied by hand. Its parts are
compared with those of the suite's own cases before anything runs: an impossible case must not look
like a fault of the backend, and a misspelt part must not go unnoticed.
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
"""Edges of cases that are in no grid: of a model's calls, of claims, and of drawn cases."""


def check_asked(case: Case, known: Iterable[Case]) -> None:
    """UsageError for a case with a part that none of the suite's own cases has.

    known: the suite's own cases of this name. A number may differ from theirs, and must be at least
    0 where theirs are. Shapes that do not fit together are found later, when the case is made.
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
