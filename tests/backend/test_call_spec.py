"""`CallSpec` and `Support`: the records of who may run what."""

from __future__ import annotations

import json

import pytest

from deepinfer.backend import CallSpec, Support
from deepinfer.backend.hooks import Mode

CALL = CallSpec.of(
    "top", {"top_k": 8, "block": None}, {"rows": (1, 4), "length": (1, 64)}, "select"
)


def test_order_of_the_keys_does_not_matter() -> None:
    other = CallSpec.of(
        "top", {"block": None, "top_k": 8}, {"length": (1, 64), "rows": (1, 4)}, "select"
    )
    assert other == CALL
    assert hash(other) == hash(CALL)
    assert len({other, CALL}) == 1


@pytest.mark.parametrize(
    "other",
    [
        CallSpec.of("top", {"top_k": 9, "block": None}, dict(CALL.ranges), "select"),
        CallSpec.of("top", dict(CALL.facts), {"rows": (1, 4), "length": (1, 65)}, "select"),
        CallSpec.of("top", dict(CALL.facts), dict(CALL.ranges), None),
        CallSpec.of("attend", dict(CALL.facts), dict(CALL.ranges), "select"),
    ],
)
def test_every_part_counts(other: CallSpec) -> None:
    assert other != CALL


def test_text_names_facts_and_ranges() -> None:
    assert str(CALL) == "top(block=None, top_k=8, length=1..64, rows=1..4)"
    assert str(CallSpec.of("mask", {})) == "mask()"


def test_dict_is_plain_and_goes_through_json() -> None:
    assert json.loads(json.dumps(CALL.to_dict())) == {
        "operator": "top",
        "facts": {"block": None, "top_k": 8},
        "ranges": {"length": [1, 64], "rows": [1, 4]},
        "step": "select",
    }


def test_fact_by_name() -> None:
    assert CALL.fact("top_k") == 8
    with pytest.raises(KeyError, match="heads"):
        CALL.fact("heads")


def test_support_yes() -> None:
    assert Support.yes() == Support(True)


def test_support_within_keeps_its_ranges_by_name() -> None:
    support = Support.within("shared memory", rows=(1, 64), length=(1, 4096))
    assert support.supported
    assert support.ranges == (("length", (1, 4096)), ("rows", (1, 64)))


def test_support_within_needs_a_range() -> None:
    with pytest.raises(ValueError, match="at least one range"):
        Support.within("shared memory")


def test_support_no_needs_a_reason() -> None:
    assert Support.no("only bf16") == Support(False, "only bf16")
    with pytest.raises(ValueError, match="reason"):
        Support.no("")


def test_modes_default_to_real_hardware_in_this_process() -> None:
    mode = Mode("hardware", "a chip", "cpu")
    assert (dict(mode.environment), mode.timing, dict(mode.limits)) == ({}, True, {})
