"""A plugin that cannot be loaded: each fault is reported with its name, none is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deepinfer.backend import CONTRACT_VERSION, Availability, hookimpl
from deepinfer.backend.registry import Installed, discover, select_backend
from deepinfer.errors import BackendContractError
from tests.backend.conftest import Install
from tests.backend.plugins import FakeEntry, entry, plugin, spec

MAJOR, MINOR = CONTRACT_VERSION


def loaded(install: Install, *entries: FakeEntry) -> Installed:
    install(*entries)
    (only,) = discover()
    return only


def test_valid_plugin_is_usable(install: Install) -> None:
    chip = loaded(install, entry("chip"))
    assert (chip.name, chip.distribution, chip.usable, chip.error) == (
        "chip",
        "dist-chip",
        True,
        "",
    )


def test_import_error_keeps_its_traceback(install: Install) -> None:
    chip = loaded(install, FakeEntry("chip", ImportError("libchip.so: no such file")))
    assert not chip.usable
    assert chip.error.startswith("Traceback (most recent call last)")
    assert chip.error.rstrip().endswith("ImportError: libchip.so: no such file")
    assert chip.reasons() == "ImportError: libchip.so: no such file"


def test_plugin_that_ends_the_process_is_an_error(install: Install) -> None:
    chip = loaded(install, FakeEntry("chip", SystemExit(7)))
    assert chip.reasons() == "SystemExit: 7"


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    first, second = entry("chip"), FakeEntry("chip", plugin("chip"), "other-chip")
    chip = loaded(install, first, second)
    assert "'chip'" in chip.error
    assert "dist-chip, other-chip" in chip.error
    assert "uninstall all but one" in chip.error
    assert first.loads == second.loads == 0


def test_one_distribution_with_a_name_twice(install: Install) -> None:
    chip = loaded(install, entry("chip"), entry("chip"))
    assert chip.error == (
        "2 entry points register a backend named 'chip', of dist-chip; expected one: "
        "uninstall all but one"
    )


@pytest.mark.parametrize("version", [(MAJOR + 1, MINOR), (MAJOR + 1, 0)])
def test_another_major_version_is_refused_with_both(
    install: Install, version: tuple[int, int]
) -> None:
    chip = loaded(install, entry("chip", answer=spec("chip", contract_version=version)))
    assert f"built for operator contract {version[0]}.{version[1]}" in chip.error
    assert f"this DeepInfer has {MAJOR}.{MINOR}" in chip.error
    assert "Traceback" not in chip.error


@pytest.mark.parametrize("minor", [0, 2])
def test_another_minor_version_is_refused_with_both_while_major_is_0(
    install: Install, monkeypatch: pytest.MonkeyPatch, minor: int
) -> None:
    monkeypatch.setattr("deepinfer.backend.registry.CONTRACT_VERSION", (0, 1))
    chip = loaded(install, entry("chip", answer=spec("chip", contract_version=(0, minor))))
    assert f"built for operator contract 0.{minor}, this DeepInfer has 0.1: another minor" in (
        chip.error
    )
    assert "install a matching dist-chip" in chip.error


def test_newer_minor_version_asks_for_an_update(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfer.backend.registry.CONTRACT_VERSION", (1, 2))
    chip = loaded(install, entry("chip", answer=spec("chip", contract_version=(1, 3))))
    assert "needs operator contract 1.3, this DeepInfer has 1.2" in chip.error
    assert "update deepinfer-core" in chip.error


def test_older_minor_version_loads(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer.backend.registry.CONTRACT_VERSION", (1, 3))
    assert loaded(install, entry("chip", answer=spec("chip", contract_version=(1, 2)))).usable


@pytest.mark.parametrize("version", ["0.1", 1, (1,), (0, 1, 2), None])
def test_unreadable_version(install: Install, version: object) -> None:
    chip = loaded(install, entry("chip", answer=spec("chip", contract_version=version)))
    assert f"states contract version {version!r}, expected (major, minor)" in chip.error


def _misspelt() -> Any:
    @hookimpl
    def deepinfer_prob() -> Availability:
        return Availability(True)

    return deepinfer_prob


def _extra_argument() -> Any:
    @hookimpl
    def deepinfer_probe(mode: str, colour: str) -> Availability:
        return Availability(True)

    return deepinfer_probe


@pytest.mark.parametrize(
    ("attribute", "make", "named"),
    [
        ("deepinfer_prob", _misspelt, "deepinfer_prob"),
        ("deepinfer_probe", _extra_argument, "colour"),
    ],
)
def test_hook_that_the_contract_does_not_have(
    install: Install, attribute: str, make: Callable[[], Any], named: str
) -> None:
    chip = loaded(install, entry("chip", hooks={attribute: make()}))
    assert "PluginValidationError" in chip.error
    assert named in chip.reasons()


def test_hooks_without_their_marker_are_no_hooks(install: Install) -> None:
    chip = loaded(install, entry("chip", hooks={"deepinfer_backend": lambda: spec("chip")}))
    assert chip.error == "deepinfer_backend returned NoneType, expected BackendSpec"


def test_backend_hook_of_the_wrong_type(install: Install) -> None:
    chip = loaded(install, entry("chip", answer={"name": "chip"}))
    assert chip.error == "deepinfer_backend returned dict, expected BackendSpec"


def test_probe_hook_of_the_wrong_type(install: Install) -> None:
    chip = loaded(install, entry("chip", availability=True))
    assert chip.error == "deepinfer_probe returned bool, expected Availability"


def test_probe_that_raises(install: Install) -> None:
    @hookimpl
    def deepinfer_probe() -> Availability:
        raise OSError("driver too old")

    chip = loaded(install, entry("chip", hooks={"deepinfer_probe": deepinfer_probe}))
    assert chip.reasons() == "OSError: driver too old"


def test_backend_without_modes(install: Install) -> None:
    chip = loaded(install, entry("chip", answer=spec("chip", modes=())))
    assert "names no mode" in chip.error


def test_name_must_be_the_entry_points(install: Install) -> None:
    chip = loaded(install, entry("chip", answer=spec("reference")))
    assert "calls itself 'reference' and its entry point is named 'chip'" in chip.error


def test_start_stops_at_a_broken_plugin_and_shows_how_to_skip_it(install: Install) -> None:
    install(entry("good"), FakeEntry("bad", ValueError("boom")))
    with pytest.raises(BackendContractError) as caught:
        select_backend(None)
    message = str(caught.value)
    assert "backend 'bad' (distribution dist-bad 1.5, file missing: no module 'chip_bad'" in message
    assert "Traceback" in message
    assert "ValueError: boom" in message
    assert "To skip it set DEEPINFER_SKIP_BACKENDS=bad," in message


def test_skipping_names_every_broken_plugin_and_what_is_skipped_already(install: Install) -> None:
    install(*(FakeEntry(name, ValueError(name)) for name in ("one", "two", "three")))
    with pytest.raises(BackendContractError, match="DEEPINFER_SKIP_BACKENDS=two,one,three,"):
        select_backend(None, skip=["two"])


def test_named_broken_plugin_shows_traceback_skip_and_the_others(install: Install) -> None:
    install(entry("good"), FakeEntry("bad", ValueError("boom")))
    with pytest.raises(BackendContractError) as caught:
        select_backend("bad")
    message = str(caught.value)
    assert "Traceback" in message
    assert "ValueError: boom" in message
    assert "unset DEEPINFER_ACCELERATOR and set DEEPINFER_SKIP_BACKENDS=bad" in message
    assert message.endswith("Other backends:\n  good: usable")
