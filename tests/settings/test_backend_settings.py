"""Settings that backends register."""

from __future__ import annotations

import pytest

from deepinfer.backend import BackendSpec, Setting
from deepinfer.errors import BackendContractError
from deepinfer.settings.settings import Origin, Settings, known_variables
from deepinfer.settings.variables import Status
from tests.backend.plugins import spec

DEVICES = "CHIP_VISIBLE_DEVICES"


def chip(*settings: Setting, name: str = "chip") -> BackendSpec:
    return spec(name, settings=settings)


def test_value_default_and_owner() -> None:
    backend = chip(Setting(DEVICES, "all", "Chips that the process sees."))
    unset = Settings.from_environment({}, [backend])
    assert (unset.value(DEVICES), unset.origin(DEVICES)) == ("all", Origin.DEFAULT)
    assert Settings.from_environment({DEVICES: "0,1"}, [backend]).text(DEVICES) == "0,1"
    variable = unset.reading(DEVICES).variable
    assert (variable.owner, variable.status) == ("chip", Status.WORKS)
    assert variable.effect == "Chips that the process sees."


def test_own_name_is_not_unknown() -> None:
    backend = chip(Setting("DEEPINFER_CHIP_SPEED", "", "Makes it fast."))
    environ = {"DEEPINFER_CHIP_SPEED": "9"}
    assert Settings.from_environment(environ).unknown == ("DEEPINFER_CHIP_SPEED",)
    assert Settings.from_environment(environ, [backend]).unknown == ()


def test_a_backend_takes_over_what_has_no_meaning_to_the_core() -> None:
    backend = chip(Setting("DEEPINFER_NCCL_NUM_SMS", "16", "Bounds something."))
    settings = Settings.from_environment({}, [backend])
    variable = settings.reading("DEEPINFER_NCCL_NUM_SMS").variable
    assert (variable.owner, variable.status) == ("chip", Status.WORKS)
    assert settings.integer("DEEPINFER_NCCL_NUM_SMS") == 16


def test_an_empty_default_keeps_the_cores() -> None:
    backend = chip(
        Setting("DEEPINFER_NCCL_NUM_SMS", "", "Bounds something."),
        Setting("DEEPINFER_ENABLE_MEMORY_TRACING", "", "Dumps something."),
    )
    settings = Settings.from_environment({}, [backend])
    assert settings.integer("DEEPINFER_NCCL_NUM_SMS") == 32
    assert settings.flag("DEEPINFER_ENABLE_MEMORY_TRACING") is False


def test_a_default_of_another_kind_is_refused() -> None:
    backend = chip(Setting("DEEPINFER_NCCL_NUM_SMS", "many", "Bounds something."))
    with pytest.raises(BackendContractError, match="'many'; allowed: an integer of at least 0"):
        known_variables([backend])


@pytest.mark.parametrize("name", ["DEEPINFER_ACCELERATOR", "DEEPINFER_BATCH_INVARIANT"])
def test_what_is_the_cores_stays_the_cores(name: str) -> None:
    with pytest.raises(BackendContractError, match=f"backend 'chip' registers the setting {name}"):
        known_variables([chip(Setting(name, "", "Something else."))])


def test_several_backends_may_share_a_variable() -> None:
    setting = Setting(DEVICES, "", "Chips that the process sees.")
    known = known_variables([chip(setting), chip(setting, name="other")])
    assert known[DEVICES].owner == "chip, other"
