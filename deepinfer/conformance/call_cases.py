"""Cases from a model's calls, and cases at the bounds of what a backend claims.

`deepinfer inspect CHECKPOINT --calls --json` lists the calls of a model, each with the facts that
never change and the ranges of those that do. A case of the declared grid is given the facts of a
call, and is used when the suite lists exactly that call for it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from deepinfer.backend import CallSpec, Fact
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.json_file import read_json
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite
from deepinfer.errors import UsageError

MOST_ROWS = {Tier.QUICK: 17, Tier.FULL: 130}
MOST_LENGTH = {Tier.QUICK: 130, Tier.FULL: 4096}
"""The largest rows or length of a range that a tier runs; soak runs up to the end of the range."""
LARGEST_END = {
    Tier.QUICK: {"rows": 512, "length": 4096},
    Tier.FULL: {"rows": 4096, "length": 65536},
    Tier.SOAK: {},
}
"""The largest bounds of claimed ranges that a tier runs; the reference is too slow beyond."""


def read_calls(path: str | Path) -> list[CallSpec]:
    """The calls in a file: the document of `inspect --calls --json`, or its list of calls.

    UsageError where the file is neither; it names the entry that is wrong.
    """
    document = read_json(path, "case file")
    listed = document.get("calls") if isinstance(document, dict) else document
    if not isinstance(listed, list) or not listed:
        raise UsageError(
            f"case file {str(path)!r} lists no calls; make one with "
            "`deepinfer inspect CHECKPOINT --calls --json`"
        )
    calls = []
    for number, record in enumerate(listed):
        try:
            if not isinstance(record, dict):
                raise ValueError(f"it is {reprlib.repr(record)}, not an object")
            call = CallSpec.from_dict(record)
            negative = [name for name, (low, _) in call.ranges if low < 0]
            if negative:
                raise ValueError(f"the range of {negative[0]} begins below 0")
            calls.append(call)
        except ValueError as error:
            raise UsageError(f"case file {str(path)!r}, call {number}: {error}") from None
    return calls


def cases_of(call: CallSpec, tier: Tier) -> list[Case]:
    """Cases at both ends of the call's ranges, as far as the tier goes.

    UsageError where the suite has no such operator, or no case with these facts.
    """
    suite = SUITES.get(call.operator)
    if suite is None:
        raise UsageError(
            f"call {call}: no operator {call.operator!r} in the suite; there are: "
            f"{', '.join(sorted(SUITES))}"
        )
    template = _template(suite, call)
    if template is None:
        raise UsageError(
            f"call {call}: no case of {call.operator} has these facts; one that has lists "
            f"{_facts_listed(suite)}"
        )
    ends = _ends(template, dict(call.ranges), tier)
    return list(dict.fromkeys(ends)) or [replace(template, edge="call")]


def cases_of_file(path: str | Path, tier: Tier) -> list[Case]:
    """The cases of all calls in a file, without duplicates."""
    calls = dict.fromkeys(read_calls(path))
    return list(dict.fromkeys(case for call in calls for case in cases_of(call, tier)))


def claimed_cases(subject: Subject, operators: Iterable[str], tier: Tier) -> Iterator[Case]:
    """Cases at both bounds of every range that the backend claims, and just outside them.

    The backend runs the calls inside a range, and another provider must run those outside. A bound
    that is too large for the tier is left to a higher tier.
    """
    largest = LARGEST_END[tier]
    for name in sorted(subject.native & set(operators) & set(SUITES)):
        suite = SUITES[name]
        seen: set[tuple[tuple[str, Fact], ...]] = set()
        for template in suite.grid(Tier.QUICK):
            calls = suite.calls(template) if template.values == "normal" else []
            if not calls or calls[0].operator != name or calls[0].facts in seen:
                continue
            seen.add(calls[0].facts)
            for what, (low, high) in subject.backend.supports(calls[0]).ranges:
                ends = {low - 1, low} | (
                    {high, high + 1} if high <= largest.get(what, high) else set()
                )
                for size in sorted(ends):
                    if size >= 0:
                        yield from _sized(_plain(template), {what: size}, edge="claimed")


def _template(suite: OperatorSuite, call: CallSpec) -> Case | None:
    """A case that the suite lists as this call, whatever its rows and lengths."""
    facts = dict(call.facts)
    dtype, numerics = facts.get("dtype"), facts.get("numerics")
    for case in suite.grid(Tier.FULL):
        if case.values != "normal" or not all(value for _, value in _sizes(case)):
            continue
        own = {**dict(case.facts), **suite.facts_of(case, call)}
        changed = replace(
            _plain(case),
            facts=tuple(sorted(own.items())),
            dtype=case.dtype if dtype is None else str(dtype),
            numerics=case.numerics if numerics is None else str(numerics),
        )
        try:
            listed = suite.calls(changed)
        except Exception:  # facts of the call that contradict those of this case
            continue
        if listed and (listed[0].operator, listed[0].facts) == (call.operator, call.facts):
            return changed
    return None


def _plain(case: Case) -> Case:
    return replace(case, edge="", seed=0, tier=Tier.QUICK)


def _sizes(case: Case) -> Iterator[tuple[str, Fact]]:
    """Facts of a case that count rows or lengths."""
    for name in ("rows", "length", "columns"):
        if name in dict(case.facts):
            yield name, case.fact(name)


def _ends(template: Case, ranges: Mapping[str, tuple[int, int]], tier: Tier) -> Iterator[Case]:
    limits = {"rows": MOST_ROWS.get(tier), "length": MOST_LENGTH.get(tier)}
    for end in (0, 1):
        sizes = {}
        for name, bounds in ranges.items():
            most = limits.get(name)
            sizes[name] = bounds[end] if most is None else min(bounds[end], most)
        yield from _sized(template, sizes, edge="call")


def _sized(template: Case, sizes: Mapping[str, int], edge: str) -> Iterator[Case]:
    """The case with other rows and lengths; none where the case has no such size."""
    facts = dict(template.facts)
    if "layout" in facts:
        yield from _laid_out(template, sizes, edge)
        return
    places = {"columns": "length"} if "columns" in facts and "length" in sizes else {}
    places |= {name: name for name in sizes if name in facts}
    if places:
        facts |= {place: sizes[name] for place, name in places.items()}
        yield replace(template, facts=tuple(sorted(facts.items())), edge=edge)


def _laid_out(template: Case, sizes: Mapping[str, int], edge: str) -> Iterator[Case]:
    """The case with a length as one decode step, and with rows as a prompt of at most that."""
    laid_out: dict[str, int] = {}
    if "length" in sizes:
        laid_out["decode"] = sizes["length"]
    if "rows" in sizes:
        laid_out["prompt"] = min(sizes["rows"], sizes.get("length", sizes["rows"]))
    for layout, length in laid_out.items():
        facts = {**dict(template.facts), "layout": layout, "length": length}
        if "columns" in facts:
            facts["columns"] = max(1, length // max(1, template.size("ratio")))
        yield replace(template, facts=tuple(sorted(facts.items())), edge=edge)


def _facts_listed(suite: OperatorSuite) -> str:
    """The call of the first case, as an example of what can be asked."""
    for case in suite.grid(Tier.QUICK):
        calls = suite.calls(case)
        if calls:
            return str(calls[0])
    return "nothing"
