"""`check_property`: search the cases of an operator for one that breaks a property."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace

from deepinfer.backend.resolution import NATIVE
from deepinfer.conformance.case import Case, Tier, Verdict
from deepinfer.conformance.properties.cached import CACHED
from deepinfer.conformance.properties.plain import PLAIN
from deepinfer.conformance.properties.relations import RELATIONS, applies
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite
from deepinfer.errors import UsageError

PROPERTY = "property"
SIZES = {Tier.QUICK: (4, 20), Tier.FULL: (50, 40), Tier.SOAK: (500, 130)}
"""Cases that a property draws in a tier, and the most rows that one of them has."""
SHRINKING_SECONDS = 20.0
"""A search takes no more cases as wrong once it has shrunk for so long."""
SPACES = {**PLAIN, **CACHED}


def is_property(case: Case) -> bool:
    """Does a case draw others?"""
    return PROPERTY in dict(case.facts)


def property_cases(suite: OperatorSuite, tier: Tier) -> Iterator[Case]:
    """The properties of an operator in a tier, lower tiers included."""
    for own, (examples, most_rows) in SIZES.items():
        if tier.includes(own):
            for name in RELATIONS:
                if applies(name, suite):
                    facts = {PROPERTY: name, "examples": examples, "most_rows": most_rows}
                    words = {"dtype": "any", "values": "any"}
                    yield Case.of(suite.operator, facts, **words, tier=own)


def check_property(case: Case, suite: OperatorSuite, subject: Subject) -> Verdict:
    """The verdict of a property: that of the smallest case that breaks it, else passed.

    The message names the smallest case by its id, which runs alone like any other. UsageError
    where the operator has no such property.
    """
    started = time.perf_counter()
    smallest, seen = _search(case, suite, subject)
    seconds = time.perf_counter() - started
    used: dict[str, float] = {}
    for verdict in seen.values():
        for name, share in verdict.used.items():
            used[name] = max(used.get(name, 0.0), share)
    if smallest is not None:
        wrong = seen[smallest.id]
        message = f"falsified by {smallest.id}: {wrong.message}"
        return replace(wrong, case=case, message=message, used=used, seconds=seconds)
    providers = [verdict.provider for verdict in seen.values()]
    # a shape outside of what the backend takes is the reference's and takes nothing from a claim
    provider = NATIVE if NATIVE in providers else providers[0]
    return replace(next(iter(seen.values())), case=case, provider=provider, used=used,
                   seconds=seconds)  # fmt: skip


def smallest_case(case: Case, suite: OperatorSuite, subject: Subject) -> Case | None:
    """The smallest case that breaks a property, None where nothing does."""
    return _search(case, suite, subject)[0]


def _search(
    case: Case, suite: OperatorSuite, subject: Subject
) -> tuple[Case | None, dict[str, Verdict]]:
    """The smallest wrong case, and the verdicts of all that were tried, by id."""
    from deepinfer.conformance.properties.draws import smallest

    name = str(case.fact(PROPERTY))
    if name not in RELATIONS or not applies(name, suite):
        known = ", ".join(known for known in RELATIONS if applies(known, suite))
        raise UsageError(f"{case.id}: {suite.operator} has the properties {known}, not {name!r}")
    holds = RELATIONS[name].check
    seen: dict[str, Verdict] = {}
    end: float | None = None

    def wrong(drawn: Case) -> bool:
        nonlocal end
        if drawn.id not in seen:
            if end is not None and time.monotonic() > end:
                return False
            seen[drawn.id] = holds(drawn, suite, subject)
        if seen[drawn.id].passed:
            return False
        end = end or time.monotonic() + SHRINKING_SECONDS
        return True

    number = int.from_bytes(hashlib.blake2b(case.id.encode(), digest_size=7).digest(), "little")
    sizes = case.size("examples"), case.size("most_rows")
    return smallest(SPACES[suite.operator], wrong, *sizes, number), seen
