"""Cases of experts, sampling and the device: the reference passes, and calls say what is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.backend import Numerics
from deepinfer.backend.trace import shown_facts
from deepinfer.config import ModelConfig
from deepinfer.conformance.case import Case, Tier
from deepinfer.conformance.cases.device import DEVICE, Device
from deepinfer.conformance.cases.experts import ROUTING, Route
from deepinfer.conformance.cases.mixture import MIXTURE
from deepinfer.conformance.cases.mlp import MLP
from deepinfer.conformance.cases.sampling import SAMPLING
from deepinfer.conformance.cases.slots import SLOTS
from deepinfer.conformance.oracles import experts as oracle
from deepinfer.conformance.registry import Check, checks
from deepinfer.conformance.subject import Subject
from deepinfer.conformance.suite import OperatorSuite, generator_of
from deepinfer.conformance.world import World
from deepinfer.model import model_calls
from deepinfer.model.calls import CallLimits
from deepinfer_reference.backend import ReferenceBackend
from tests.config.released import released_config

SUITES: list[OperatorSuite] = [*ROUTING, *MLP, *MIXTURE, *SLOTS, *SAMPLING, *DEVICE]
suites = pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.operator)


@pytest.fixture(scope="module")
def reference() -> Subject:
    return Subject.of("reference", ReferenceBackend("cpu"))


def first(suite: OperatorSuite) -> list[Check]:
    """The first check of every edge, the large ones aside, and all refusals."""
    found: dict[str, Check] = {}
    for check in checks(Tier.QUICK):
        if check.case.operator == suite.operator and check.case.edge not in ("deep", "golden"):
            key = check.id if check.invalid is not None else check.case.edge
            found.setdefault(key, check)
    return list(found.values())


@suites
def test_the_reference_passes_the_first_cases(suite: OperatorSuite, reference: Subject) -> None:
    for check in first(suite):
        verdict = check.run(reference)
        assert verdict.passed, str(verdict)


@suites
def test_an_oracle_judges_the_first_cases(suite: OperatorSuite) -> None:
    judged = [
        suite.oracle(check.case, suite.inputs(check.case, generator_of(check.case)))
        for check in first(suite)[:3]
        if check.invalid is None
    ]
    assert all(judged)


@suites
def test_calls_state_the_facts_that_arguments_show(
    suite: OperatorSuite, reference: Subject
) -> None:
    cases = [check.case for check in first(suite) if check.invalid is None]
    for case in [case for case in cases if dict(case.facts).get("rows", 1)][:2]:
        calls = suite.calls(case)
        stated = {call.operator: [] for call in calls}  # type: ignore[var-annotated]
        for call in calls:
            stated[call.operator].append(dict(call.facts))
        seen: list[str] = []

        def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
            if operator in stated:  # noqa: B023
                seen.append(operator)  # noqa: B023
                shown = shown_facts(operator, arguments)
                assert any(shown.items() <= facts.items() for facts in stated[operator]), shown  # noqa: B023

        operators = reference.operators(calls).tapped(tap)
        arguments = World(operators).place(suite.inputs(case, generator_of(case)))
        suite.run(operators, arguments)
        assert set(seen) == set(stated)


@suites
def test_facts_are_named_as_the_model_names_them(suite: OperatorSuite) -> None:
    config = ModelConfig.from_dict(released_config())
    listed = {
        call.operator: {name for name, _ in call.facts}
        for call in model_calls(config, Numerics.INFER, "bf16", CallLimits(8, 2, 64))
    }
    for call in suite.calls(next(iter(suite.grid(Tier.QUICK)))):
        if call.operator in listed:
            assert {name for name, _ in call.facts} == listed[call.operator], call.operator


def test_choices_of_experts_do_not_hang_on_the_last_bits() -> None:
    suite = Route()
    for case in suite.grid(Tier.QUICK):
        arguments = suite.inputs(case, generator_of(case))
        ids, _ = oracle.route(**arguments)
        moved, _ = oracle.route(**{**arguments, "logits": arguments["logits"] * (1 + 1e-6)})
        assert torch.equal(ids, moved), case.id


def test_services_name_their_provider(reference: Subject) -> None:
    class Own(ReferenceBackend):
        def synchronise(self) -> None:
            pass

        def memory(self) -> None:
            return None

    suite = Device()
    own = Subject.of("own", Own("cpu"))
    given = {
        service: suite.provider(Case.of("device", {"service": service}), own.operators([]))
        for service in ("memory", "workspace")
    }
    assert given == {"memory": "native", "workspace": "default"}
