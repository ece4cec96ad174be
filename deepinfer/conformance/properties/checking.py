"""`check_property`: search the cases of an operator for one that breaks a property.

The id of a property states how many cases it draws. An id without that number is a single drawn
case, on which the property is checked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace

from deepinfer.backend import Fact
from deepinfer.backend.resolution import NATIVE
from deepinfer.conformance.case import Case, Tier, Verdict
from deepinfer.conformance.properties.cached import CACHED
from deepinfer.conformance.properties.plain import PLAIN
from deepinfer.conformance.properties.relations import RANDOM, RELATIONS, Relation, applies
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite
from deepinfer.errors import UsageError

PROPERTY, EXAMPLES, MOST_ROWS = "property", "examples", "most_rows"
SIZES = {Tier.QUICK: (1, 4, 20), Tier.FULL: (2, 25, 40), Tier.SOAK: (20, 25, 130)}
"""Searches of a property in a tier, cases that one draws, and the most rows of a case.

Many small searches: each keeps within the time limit of a case, and workers share them.
"""
SHRINKING_SECONDS = 20.0
"""A search stops accepting smaller failing cases after it has shrunk for this long."""
SPACES = {**PLAIN, **CACHED}


def is_property(case: Case) -> bool:
    """Whether the case checks a property, and not only its own numbers."""
    return PROPERTY in dict(case.facts)


def is_search(case: Case) -> bool:
    """Whether the case draws other cases."""
    return EXAMPLES in dict(case.facts)


def require_property(case: Case, suite: OperatorSuite) -> None:
    """UsageError for a property that the operator lacks, and for a search without cases."""
    _relation(case, suite)
    facts = dict(case.facts)
    if is_search(case):
        numbers = {name: facts[name] for name in facts if name != PROPERTY}
        if numbers.keys() != {EXAMPLES, MOST_ROWS} or not all(
            type(number) is int and number >= 1 for number in numbers.values()
        ):
            raise UsageError(
                f"case {case.id}: a property that draws cases has the facts {EXAMPLES} and "
                f"{MOST_ROWS}, numbers of at least 1, and no others"
            )


def property_cases(suite: OperatorSuite, tier: Tier) -> Iterator[Case]:
    """The properties of an operator in a tier, lower tiers included."""
    for own, (searches, examples, most_rows) in SIZES.items():
        for name in RELATIONS if tier.includes(own) else ():
            if applies(name, suite):
                facts: dict[str, Fact] = {
                    PROPERTY: name,
                    EXAMPLES: examples,
                    MOST_ROWS: most_rows,
                }
                for seed in range(searches):
                    words = {"dtype": "any", "values": "any"}
                    yield Case.of(suite.operator, facts, **words, seed=seed, tier=own)


def check_property(case: Case, suite: OperatorSuite, subject: Subject) -> Verdict:
    """The verdict of a property: passed, or that of the smallest case that breaks it.

    The message names the smallest case by its id, which runs alone like any other. UsageError where
    the operator does not have the property.
    """
    started = time.perf_counter()
    if not is_search(case):
        verdict = _relation(case, suite).check(drawn_case(case), suite, subject)
        return replace(verdict, case=case)
    smallest, seen = _search(case, suite, subject)
    if smallest is not None:
        wrong = seen[smallest]
        verdict = replace(wrong, message=f"falsified by {smallest.id}: {wrong.message}")
    else:
        verdict = next(iter(seen.values()))
        if any(one.provider == NATIVE for one in seen.values()):
            # shapes outside of what the backend takes are the reference's: the grid tells which
            verdict = replace(verdict, provider=NATIVE)
    used: dict[str, float] = {}
    for one in seen.values():
        for name, share in one.used.items():
            used[name] = max(used.get(name, 0.0), share)
    return replace(verdict, case=case, used=used, seconds=time.perf_counter() - started)


def smallest_case(case: Case, suite: OperatorSuite, subject: Subject) -> Case | None:
    """The smallest case that breaks a property, None where nothing does."""
    if not is_search(case):
        return None if check_property(case, suite, subject).passed else case
    return _search(case, suite, subject)[0]


def drawn_case(case: Case) -> Case:
    """The drawn case without its property: both have the same inputs."""
    return replace(case, facts=tuple(part for part in case.facts if part[0] != PROPERTY))


def _named(drawn: Case, name: str) -> Case:
    """A drawn case whose id repeats the check; `random` is what every case is checked for."""
    if name == RANDOM:
        return drawn
    return replace(drawn, facts=tuple(sorted((*drawn.facts, (PROPERTY, name)))))


def _relation(case: Case, suite: OperatorSuite) -> Relation:
    name = str(case.fact(PROPERTY))
    if name not in RELATIONS or not applies(name, suite):
        known = ", ".join(known for known in RELATIONS if applies(known, suite))
        raise UsageError(f"{case.id}: {suite.operator} has the properties {known}, not {name!r}")
    return RELATIONS[name]


def _search(
    case: Case, suite: OperatorSuite, subject: Subject
) -> tuple[Case | None, dict[Case, Verdict]]:
    """The smallest wrong case, and the verdicts of all that were tried."""
    from deepinfer.conformance.properties.draws import smallest

    relation, name = _relation(case, suite), str(case.fact(PROPERTY))
    seen: dict[Case, Verdict] = {}
    end: float | None = None

    def wrong(drawn: Case) -> bool:
        nonlocal end
        named = _named(drawn, name)
        if named not in seen:
            if end is not None and time.monotonic() > end:
                return False
            seen[named] = relation.check(drawn, suite, subject)
        if seen[named].passed:
            return False
        end = end or time.monotonic() + SHRINKING_SECONDS
        return True

    number = int.from_bytes(hashlib.blake2b(case.id.encode(), digest_size=7).digest(), "little")
    sizes = case.size(EXAMPLES), case.size(MOST_ROWS)
    found = smallest(SPACES[suite.operator], wrong, *sizes, number)
    return None if found is None else _named(found, name), seen
