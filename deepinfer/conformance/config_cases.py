"""Cases with the sizes of known models: the released one and those of the golden data.

`configs/` holds their config.json files. The calls are those that the model's code makes for these
configurations. Declared grids cover edges; these cases cover sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from deepinfer.backend import CallSpec, Numerics
from deepinfer.config import ModelConfig
from deepinfer.conformance.call_cases import cases_of
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.hardware import MATRICES, needed_bytes
from deepinfer.model import model_calls
from deepinfer.model.calls import CallLimits

FOLDER = Path(__file__).parent / "configs"
LIMITS = CallLimits(8192, 256, 1 << 20)
MOST_BYTES = 2 << 30
"""Memory that a case of the full tier may take; a larger one becomes one case for each size."""
DEAR_BYTES = 64 << 20
"""A case that takes more memory is run with one number of rows only."""
SMALL = 64
COUNTS_SMALL = 6
"""What a small size is: of widths, and of counts of experts."""


@cache
def config_calls() -> tuple[CallSpec, ...]:
    """Distinct calls of all known models in both numeric modes, computing in bf16."""
    found: dict[CallSpec, None] = {}
    for path in sorted(FOLDER.glob("*.json")):
        config = ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
        for numerics in Numerics:
            for call in model_calls(config, numerics, "bf16", LIMITS):
                found[replace(call, step=None)] = None
    return tuple(found)


@cache
def config_cases() -> Mapping[str, tuple[Case, ...]]:
    """Cases by operator: of the full tier, and of the soak tier where one is too large for it."""
    found: dict[str, dict[Case, None]] = {}
    for call in config_calls():
        for case in _fitted(call):
            found.setdefault(call.operator, {})[case] = None
    return MappingProxyType({name: tuple(cases) for name, cases in found.items()})


def _fitted(call: CallSpec) -> Iterator[Case]:
    needed = needed_bytes([call])
    for case in _sizes(call, dear=needed > DEAR_BYTES):
        tier = Tier.FULL if needed <= MOST_BYTES else Tier.SOAK
        yield replace(case, edge="model", tier=tier)
        if tier is Tier.SOAK:
            yield from _one_size_at_a_time(call, case)


def _sizes(call: CallSpec, dear: bool) -> list[Case]:
    """The call with few rows, and with more rows unless its matrices are large."""
    cases = cases_of(call, Tier.QUICK)
    if "layout" in dict(cases[0].facts):
        cases = [case for case in cases if case.size("length") > 1] or cases
    return cases[-1:] if dear else cases


def _one_size_at_a_time(call: CallSpec, case: Case) -> Iterator[Case]:
    """One case for each large size: that size as in the model, the others small."""
    names = [name for name in MATRICES[call.operator] if name in dict(case.facts)]
    for kept in names:
        facts = dict(case.facts)
        for name in names:
            small = COUNTS_SMALL if name == "experts" else SMALL
            if name != kept:
                facts[name] = min(case.size(name), small)
        smaller = replace(case, facts=tuple(sorted(facts.items())), edge="model", tier=Tier.FULL)
        if needed_bytes(SUITES[call.operator].calls(smaller)) <= MOST_BYTES:
            yield smaller
