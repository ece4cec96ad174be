"""The sizes of known models are among the cases of the full tier."""

from __future__ import annotations

import json

from deepinfer.conformance.case import Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.config_cases import FOLDER, MOST_BYTES, config_calls, config_cases
from deepinfer.conformance.hardware import needed_bytes
from deepinfer.conformance.registry import checks
from tests.config.released import released_config

BEYOND_MEMORY = {("gather", "table_rows", size) for size in (384006168, 384016682)}
"""Rows of the released n-gram tables: nearly 100 GB each. The soak tier asks for them."""


def test_the_released_configuration_is_the_published_one() -> None:
    assert json.loads((FOLDER / "released.json").read_text()) == released_config()


def test_every_width_and_count_of_known_models_is_run_in_the_full_tier() -> None:
    wanted = {(call.operator, *fact) for call in config_calls() for fact in call.facts}
    run = set()
    for check in checks(Tier.FULL):
        suite = SUITES.get(check.case.operator)
        if suite is not None and check.invalid is None and check.case.edge == "model":
            run |= {(check.case.operator, *fact) for fact in suite.calls(check.case)[0].facts}
    assert wanted - run == BEYOND_MEMORY


def test_what_is_too_large_for_the_full_tier_is_in_the_soak_tier() -> None:
    cases = [case for found in config_cases().values() for case in found]
    assert {case.tier for case in cases} == {Tier.FULL, Tier.SOAK}
    for case in cases:
        needed = needed_bytes(SUITES[case.operator].calls(case))
        assert (needed > MOST_BYTES) == (case.tier is Tier.SOAK), case.id
    soak = {check.id for check in checks(Tier.SOAK)} - {check.id for check in checks(Tier.FULL)}
    assert {case.id for case in cases if case.tier is Tier.SOAK} <= soak
