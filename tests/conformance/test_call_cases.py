"""Cases of a model's own calls (`--case-file`), and the ends of what a backend claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer.backend import CallSpec, Numerics, Support
from deepinfer.config import ModelConfig
from deepinfer.conformance.call_cases import cases_of, claimed_cases, read_calls
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases import SUITES
from deepinfer.conformance.command import chosen_from
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject
from deepinfer.data import bundled_checkpoint
from deepinfer.errors import UsageError
from deepinfer.model import model_calls
from deepinfer.model.calls import CallLimits
from deepinfer_reference.backend import ReferenceBackend

LINEAR = CallSpec.of(
    "linear",
    {"dtype": "bf16", "inputs": 96, "outputs": 40, "weight": "fp8", "scheme": None, "out": "bf16"},
    {"rows": (1, 4096)},
)


def bundled_calls(numerics: Numerics) -> list[CallSpec]:
    config = ModelConfig.from_dict(json.loads((bundled_checkpoint() / "config.json").read_text()))
    return model_calls(config, numerics, "bf16", CallLimits(2048, 64, 4096))


@pytest.mark.parametrize("numerics", Numerics)
def test_every_call_of_a_model_becomes_cases_of_that_call(numerics: Numerics) -> None:
    calls = bundled_calls(numerics)
    assert len(calls) > 50
    for call in calls:
        cases = cases_of(call, Tier.QUICK)
        assert cases
        for case in cases:
            listed = SUITES[call.operator].calls(case)[0]
            assert (listed.operator, listed.facts) == (call.operator, call.facts)
            assert Case.parse(case.id) == case


def test_both_ends_of_a_range_as_far_as_the_tier_goes() -> None:
    rows = {tier: [case.size("rows") for case in cases_of(LINEAR, tier)] for tier in Tier}
    assert rows == {Tier.QUICK: [1, 17], Tier.FULL: [1, 130], Tier.SOAK: [1, 4096]}


def test_a_length_is_a_decode_step_and_rows_are_a_prompt() -> None:
    call = next(call for call in bundled_calls(Numerics.INFER) if call.operator == "attend")
    found = {(case.fact("layout"), case.size("length")) for case in cases_of(call, Tier.QUICK)}
    assert found == {("decode", 1), ("prompt", 1), ("decode", 130), ("prompt", 17)}


def test_a_call_that_no_suite_knows() -> None:
    with pytest.raises(UsageError, match="no operator 'nothing' in the suite"):
        cases_of(CallSpec.of("nothing", {}), Tier.QUICK)
    with pytest.raises(UsageError, match="no case of linear has these facts; one that has lists"):
        cases_of(CallSpec.of("linear", {"inputs": 3, "color": "red"}), Tier.QUICK)


def test_a_file_of_inspect_and_a_bare_list(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    for document in ({"directory": "x", "calls": [LINEAR.to_dict()]}, [LINEAR.to_dict()]):
        path.write_text(json.dumps(document))
        assert read_calls(path) == [LINEAR]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("{}", "lists no calls; make one with `deepinfer inspect"),
        ("[]", "lists no calls"),
        ("[3]", "call 0: it is 3, not an object"),
        ('[{"operator": 3}]', "call 0: operator is 3"),
        ('[{"operator": "linear", "rows": 3}]', "call 0: unknown keys: rows"),
        ('[{"operator": "linear", "facts": {"a": [1]}}]', "facts is"),
        ('[{"operator": "linear", "ranges": {"rows": [2, 1]}}]', "ranges is"),
        ('[{"operator": "linear", "ranges": {"rows": [true, 1]}}]', "ranges is"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "calls.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"case file .*calls.json") as raised:
        read_calls(path)
    assert said in str(raised.value)


def test_profile_and_pattern_choose_among_the_calls(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    path.write_text(json.dumps([call.to_dict() for call in bundled_calls(Numerics.REF)]))
    names = {text.partition("[")[0] for text in chosen_from(str(path), "sampling", "quick")}
    assert names == {"process", "sample", "top_logprobs"}
    assert len(chosen_from(str(path), "core", "quick", "embed")) == 2
    with pytest.raises(UsageError, match="no call of an operator of profile core named like 'x'"):
        chosen_from(str(path), "core", "quick", "x")


class FewRows(ReferenceBackend):
    """Runs `embed` for 2 to 5 rows itself, and says so."""

    def supports(self, call: CallSpec) -> Support:
        return Support.within("small", rows=(2, 5)) if call.operator == "embed" else Support.yes()


class FewerRows(FewRows):
    """Fails for 5 rows although it claims them."""

    def embed(self, table, ids, dtype):  # type: ignore[no-untyped-def]
        return super().embed(table, ids, dtype) * (0 if len(ids) == 5 else 1)


@pytest.mark.slow
def test_the_ends_of_claimed_sub_ranges_are_cases() -> None:
    subject = Subject.of("few", FewRows("cpu"))
    cases = list(claimed_cases(subject, SUITES, Tier.QUICK))
    assert {case.operator for case in cases} == {"embed"}
    assert {case.size("rows") for case in cases} == {1, 2, 5, 6}
    assert all(by_id(case.id).run(subject).passed for case in cases)
    assert not list(claimed_cases(subject, ["linear"], Tier.QUICK))


class ManyRows(ReferenceBackend):
    """Runs `embed` for up to 5000 rows itself."""

    def supports(self, call: CallSpec) -> Support:
        return (
            Support.within("large", rows=(1, 5000)) if call.operator == "embed" else Support.yes()
        )


def test_an_end_that_takes_too_long_is_left_to_a_higher_tier() -> None:
    subject = Subject.of("many", ManyRows("cpu"))
    rows = {
        tier: sorted({case.size("rows") for case in claimed_cases(subject, ["embed"], tier)})
        for tier in Tier
    }
    assert rows == {Tier.QUICK: [0, 1], Tier.FULL: [0, 1], Tier.SOAK: [0, 1, 5000, 5001]}


def test_mutant_claims_one_row_too_many() -> None:
    subject = Subject.of("fewer", FewerRows("cpu"))
    failed = [
        case.size("rows")
        for case in claimed_cases(subject, ["embed"], Tier.QUICK)
        if not by_id(case.id).run(subject).passed
    ]
    assert set(failed) == {5}
