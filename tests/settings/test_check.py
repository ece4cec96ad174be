"""`check`: nothing that is set is silently ignored."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from deepinfer.backend import Setting
from deepinfer.errors import NotBuiltYetError, UsageError
from deepinfer.settings.catalogue import VARIABLES
from deepinfer.settings.check import check, nearest, refusal, remark
from deepinfer.settings.settings import Origin, Reading, Settings
from deepinfer.settings.variables import Status, Variable
from tests.backend.plugins import spec

REFERENCE = spec("reference")


def checked(environ: dict[str, str], caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that a process with this environment gives on the reference."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="deepinfer"):
        check(Settings.from_environment(environ), REFERENCE)
    return caplog.messages


def test_empty_environment(caplog: pytest.LogCaptureFixture) -> None:
    assert checked({}, caplog) == []


def test_works(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"DEEPINFER_STRICT_OPERATORS": "1", "DEEPINFER_HF_MODEL_DIR": "model"}
    assert checked(environ, caplog) == []


@pytest.mark.parametrize(
    ("name", "value", "feature", "instead"),
    [
        ("DEEPINFER_USE_NEXTN_DECODE", "5", "speculative decoding", "set 0"),
        ("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "1", "zero-overhead scheduling", "set 0"),
        ("DEEPINFER_BATCH_INVARIANT", "1", "batch invariance on request", "set 0"),
        ("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "mask", "bounded replay", "set off"),
        ("DEEPINFER_XGRAMMAR_TIMEOUT", "5", "structured output", "set 20"),
        ("DEEPINFER_GLOO_TIMEOUT", "5.0", "parallelism over several processes", "set 14400.0"),
        ("DEEPINFER_SHOW_EPLB_DETAIL", "1", "expert parallelism and load balancing", "set 0"),
        ("DEEPINFER_USE_MULTIMODAL_POOL", "1", "multimodal input", "set 0"),
    ],
)
def test_not_built(name: str, value: str, feature: str, instead: str) -> None:
    with pytest.raises(NotBuiltYetError) as raised:
        check(Settings.from_environment({name: value}), REFERENCE)
    assert isinstance(raised.value, UsageError)
    assert str(raised.value) == (
        f"{name} is {value!r}: {feature} is not built yet; unset it or {instead}"
    )


def test_every_missing_feature_is_named_at_once() -> None:
    environ = {"DEEPINFER_BATCH_INVARIANT": "1", "DEEPINFER_USE_NEXTN_DECODE": "2"}
    with pytest.raises(NotBuiltYetError) as raised:
        check(Settings.from_environment(environ), REFERENCE)
    assert {line.split()[0] for line in str(raised.value).splitlines()} == set(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEEPINFER_USE_NEXTN_DECODE", "0"),
        ("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "False"),
        ("DEEPINFER_ENABLE_MTP_VARLEN", ""),
        ("DEEPINFER_DISABLE_SYNC_GUARD", "1"),
        ("DEEPINFER_DISABLE_SYNC_GUARD", "0"),
        ("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "off"),
        ("DEEPINFER_PREFILL_ATTEMPT_INTERVAL", "70"),
        ("DEEPINFER_MULTI_MODAL_BUFFER_SIZE", "512"),
        ("DEEPINFER_ENABLE_MEMORY_TRACING", "0"),
        ("DEEPINFER_PREFILL_STORE_EXTRA_STATE", "0"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "none of ours"),
    ],
)
def test_a_value_that_changes_nothing_is_accepted(
    name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert checked({name: value}, caplog) == []


def of(variable: Variable, value: int) -> Reading:
    """A variable that is set to `value`."""
    return Reading(variable, value, Origin.ENVIRONMENT)


def test_status_alone_decides_what_becomes_of_a_value() -> None:
    kind = VARIABLES["DEEPINFER_GC_INTERVAL_STEP"].kind
    missing = Variable("DEEPINFER_X", kind, 0, Status.NOT_BUILT, "Does something.", "the thing")
    assert refusal(of(missing, 0)) is None
    assert refusal(of(missing, 1000)) == (
        "DEEPINFER_X is '1000': the thing is not built yet; unset it or set 0"
    )
    for status in set(Status) - {Status.NOT_BUILT}:
        assert refusal(of(replace(missing, status=status), 1000)) is None
    ignored = {Status.NO_MEANING, Status.NOT_NEEDED}
    for status in Status:
        warned = remark(of(replace(missing, status=status), 1000)) is not None
        assert warned == (status in ignored)


@pytest.mark.parametrize("status", [Status.NO_MEANING, Status.NOT_NEEDED])
def test_an_ignored_variable_warns_unless_it_is_switched_off(status: Status) -> None:
    off = replace(VARIABLES["DEEPINFER_USERBUFFER_COMM_SMS"], status=status)
    on = replace(VARIABLES["DEEPINFER_NCCL_NUM_SMS"], status=status)
    assert remark(of(off, 0)) is None
    assert remark(of(on, 32)) is not None
    assert remark(of(on, 0)) is not None


def test_no_meaning(caplog: pytest.LogCaptureFixture) -> None:
    assert checked({"DEEPINFER_NCCL_NUM_SMS": "8"}, caplog) == [
        "DEEPINFER_NCCL_NUM_SMS is ignored: it has no meaning on backend 'reference'"
    ]


def test_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    assert checked({"DEEPINFER_PREFILL_STORE_EXTRA_STATE": "1"}, caplog) == [
        "DEEPINFER_PREFILL_STORE_EXTRA_STATE is ignored: not needed, windows are paged"
    ]


def test_unknown_name_with_the_nearest_one(caplog: pytest.LogCaptureFixture) -> None:
    assert checked({"DEEPINFER_STRICT_OPERATOR": "1"}, caplog) == [
        "DEEPINFER_STRICT_OPERATOR is ignored: it is unknown to the core and to backend "
        "'reference'; did you mean DEEPINFER_STRICT_OPERATORS?"
    ]


def test_unknown_name_without_a_near_one(caplog: pytest.LogCaptureFixture) -> None:
    messages = checked({"DEEPINFER_QWXZ": "1"}, caplog)
    assert len(messages) == 1
    assert messages[0].endswith("`deepinfer env` lists all")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DEEPINFER_GC_INTERVAL", "DEEPINFER_GC_INTERVAL_STEP"),
        ("DEEPINFER_USE_NEXT_DECODE", "DEEPINFER_USE_NEXTN_DECODE"),
        ("DEEPINFER_ACCELARATOR", "DEEPINFER_ACCELERATOR"),
        ("DEEPINFER_LOGLEVEL", "DEEPINFER_LOG_LEVEL"),
        ("DEEPINFER_", None),
    ],
)
def test_nearest(name: str, expected: str | None) -> None:
    assert nearest(name, VARIABLES) == expected


def test_one_warning_a_process(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"DEEPINFER_NCCL_NUM_SMS": "8", "DEEPINFER_QWXZ": "1"}
    assert len(checked(environ, caplog)) == 2
    assert checked(environ, caplog) == []
    assert len(checked({**environ, "DEEPINFER_QWXY": "1"}, caplog)) == 1


def test_warnings_come_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"DEEPINFER_BATCH_INVARIANT": "1", "DEEPINFER_NCCL_NUM_SMS": "8"}
    with pytest.raises(NotBuiltYetError):
        check(Settings.from_environment(environ), REFERENCE)
    assert len(caplog.messages) == 1


def test_backend_knows_its_own(caplog: pytest.LogCaptureFixture) -> None:
    own = (
        Setting("DEEPINFER_NCCL_NUM_SMS", "32", "Bounds something."),
        Setting("DEEPINFER_CHIP_SPEED", "", "Makes it fast."),
    )
    settings = Settings.from_environment(
        {"DEEPINFER_NCCL_NUM_SMS": "8", "DEEPINFER_CHIP_SPEED": "9"}
    )
    check(settings, spec("chip", settings=own))
    assert caplog.messages == []
    check(settings, REFERENCE)
    assert len(caplog.messages) == 2


def test_backend_setting_can_be_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    own = (Setting("DEEPINFER_CHIP_SPEED", "", "Makes it fast."),)
    check(
        Settings.from_environment({"DEEPINFER_CHIP_SPEEDS": "9"}),
        spec("chip", settings=own),
    )
    assert caplog.messages[0].endswith("did you mean DEEPINFER_CHIP_SPEED?")
