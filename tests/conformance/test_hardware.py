"""Cases that this machine cannot hold are skipped, and say why."""

from __future__ import annotations

import pytest

from deepinfer.conformance import hardware
from deepinfer.conformance.case import Outcome, Tier
from deepinfer.conformance.profiles import PROFILES, claims
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject
from deepinfer_reference.backend import ReferenceBackend

HUGE = (
    "linear[inputs=1048576,out=bf16,outputs=1048576,rows=1,scheme=None,weight=bf16,dtype=bf16,"
    "values=normal]"
)
SMALL = HUGE.replace("1048576", "64")


def test_a_case_beyond_the_hosts_memory_is_skipped_and_shows_nothing() -> None:
    subject = Subject.of("reference", ReferenceBackend("cpu"))
    verdict = by_id(HUGE).run(subject)
    assert verdict.outcome is Outcome.SKIPPED
    assert "host memory: this case takes about 24576 GiB" in verdict.message
    assert not claims(PROFILES["core"], Tier.FULL, [verdict]).works


def test_the_memory_that_can_be_had_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject.of("reference", ReferenceBackend("cpu"))
    monkeypatch.setattr(hardware, "available_bytes", lambda: 64 * 64 * 24 - 1)
    assert by_id(SMALL).run(subject).outcome is Outcome.SKIPPED
    monkeypatch.setattr(hardware, "available_bytes", lambda: 64 * 64 * 24)
    assert by_id(SMALL).run(subject).passed
    monkeypatch.setattr(hardware, "available_bytes", lambda: None)
    assert by_id(SMALL).run(subject).passed
