"""`deepinfer backends`: what is installed, what is usable, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.backend import CONTRACT_VERSION, Availability, CallSpec, Mode, Support
from deepinfer.checkpoint import Checkpoint
from deepinfer.cli import installed_backends
from deepinfer.cli.installed_backends import backend_rows, render
from deepinfer.cli.main import main
from deepinfer_reference.backend import ReferenceBackend
from tests.backend.conftest import Install
from tests.backend.plugins import HARDWARE, FakeEntry, entry, spec, write_plugin
from tests.cli.conftest import Launch

VERSION = ".".join(map(str, CONTRACT_VERSION))
SIMULATED = Mode("simulated", "a simulator", "cpu", timing=False)


@pytest.fixture
def three(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A usable backend of two modes, one without its device, and a broken one."""
    reference = ReferenceBackend("cpu")
    monkeypatch.setattr(installed_backends, "reference_for", lambda selected, backend: reference)
    install(
        entry(
            "good",
            answer=spec("good", modes=(HARDWARE, SIMULATED)),
            availability=Availability(True, 7, ("2 chips",)),
        ),
        entry("absent", availability=Availability(False, 9, ("no chip",), "buy one")),
        FakeEntry("bad", ImportError("libbad.so")),
    )


def test_text(three: None) -> None:
    lines = render(backend_rows()).splitlines()
    assert lines[:6] == [
        f"operator contract {VERSION}",
        "good (dist-good): usable",
        "  mode hardware: a chip [cpu]",
        "  mode simulated: a simulator [cpu]",
        "  operators: 0 native, 12 composed, 35 fallback",
        lines[5],
    ]
    assert lines[5].startswith("  run by the reference: attend, ")
    assert lines[6:10] == [
        "  - 2 chips",
        "absent (dist-absent): not usable",
        "  mode hardware: a chip [cpu]",
        "  - no chip",
    ]
    assert lines[10] == "  to use it: buy one"
    assert lines[11] == "bad (dist-bad): error"
    assert "  ImportError: libbad.so" in lines
    assert lines[-1] == "  to start without it: DEEPINFER_SKIP_BACKENDS=bad"


def test_records(three: None) -> None:
    rows: dict[str, Any] = {row["name"]: row for row in backend_rows()}
    operators = rows["good"].pop("operators")
    assert operators["native"] == []
    assert "attend" in operators["fallback"]
    assert "attend_output" in operators["composed"]
    assert rows["absent"]["operators"] == {}
    assert rows["good"].pop("origin").startswith("distribution dist-good 1.5, file ")
    assert rows["good"] == {
        "name": "good",
        "distribution": "dist-good",
        "usable": True,
        "computes": True,
        "rank": 7,
        "reasons": ["2 chips"],
        "remedy": "",
        "error": "",
        "contract_version": list(CONTRACT_VERSION),
        "modes": [
            {"name": "hardware", "label": "a chip", "device": "cpu", "timing": True},
            {"name": "simulated", "label": "a simulator", "device": "cpu", "timing": False},
        ],
    }
    assert (rows["absent"]["usable"], rows["absent"]["remedy"]) == (False, "buy one")
    assert rows["bad"]["error"].startswith("Traceback")
    assert rows["bad"]["modes"] == []


def test_json_option_prints_the_records(three: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["usable"] for row in printed} == {
        "good": True,
        "absent": False,
        "bad": False,
    }
    assert {**printed[0], "error": ""} == {**backend_rows()[0], "error": ""}


def test_skipped_backends_are_not_listed(
    three: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPINFER_SKIP_BACKENDS", "bad, absent")
    assert main(["backends", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["good"]


def test_nothing_installed(install: Install) -> None:
    install()
    assert render(backend_rows()) == f"operator contract {VERSION}\nno backend is installed"


def test_installed_distributions_are_listed(launch: Launch, site: Path) -> None:
    write_plugin(site, "alpha")
    done = launch("backends")
    assert done.returncode == 0
    assert f"operator contract {VERSION}" in done.stdout
    assert "alpha (dist-alpha): usable" in done.stdout
    assert "reference (deepinfer-core): usable" in done.stdout


def test_first_party_backends_without_a_device_are_listed(
    launch: Launch, first_party: None
) -> None:
    done = launch("backends", "--json")
    assert done.returncode == 0
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    for name in ("nvidia", "ascend"):
        assert rows[name]["distribution"] == f"deepinfer-{name}"
        assert (rows[name]["usable"], rows[name]["error"]) == (False, "")
        assert rows[name]["reasons"]
        assert rows[name]["remedy"].startswith("Install the ")
    assert rows["reference"]["usable"]


def test_backend_that_cannot_be_created_says_why(install: Install) -> None:
    def create(mode: str, device: str) -> object:
        raise OSError("no context left")

    install(entry("chip", create=create))
    text = render(backend_rows())
    assert "  backend 'chip' (distribution dist-chip" in text
    assert "raised in deepinfer_create: OSError: no context left" in text


class Partial(ReferenceBackend):
    """One operator for a sub-range, one refused that the reference cannot run here either."""

    @classmethod
    def native_operators(cls) -> frozenset[str]:
        return frozenset({"rms_norm", "attend"})

    def supports(self, call: CallSpec) -> Support:
        if call.operator == "rms_norm":
            return Support.within("one tile", rows=(1, 16))
        return Support.no("no softmax")

    def supports_reference(self, call: CallSpec) -> Support:
        return Support.no("no exp") if call.operator == "attend" else Support.yes()


@pytest.fixture
def asked(
    install: Install, small_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, Any]]:
    """What two modes of a backend, one of which needs another process, and others answer."""
    monkeypatch.delenv("CHIP_SIMULATED", raising=False)
    elsewhere = Mode("elsewhere", "a simulator", "cpu", {"CHIP_SIMULATED": "1"})
    install(
        entry("reference", create=lambda mode, device: ReferenceBackend(device)),
        entry(
            "chip",
            answer=spec("chip", modes=(HARDWARE, elsewhere)),
            create=lambda mode, device: Partial(device),
        ),
        entry("absent", availability=Availability(False, 9, ("no chip",), "buy one")),
        FakeEntry("bad", ImportError("libbad.so")),
    )
    with Checkpoint.open(small_directory) as checkpoint:
        rows = backend_rows((), checkpoint)
    return {row["name"]: row for row in rows}


def answers(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [mode["checkpoint"] for mode in row["modes"]]


def test_checkpoint_is_asked_of_every_mode_that_can_be(asked: dict[str, dict[str, Any]]) -> None:
    hardware, elsewhere = answers(asked["chip"])
    operators = hardware["operators"]
    assert operators["rms_norm"]["provider"] == "native"
    assert operators["rms_norm"]["bounds"] == {"rows": [1, 16]}
    assert operators["rms_norm"]["remainder"] == "fallback"
    assert operators["attend"]["provider"] == "host"
    assert "no softmax; reference: attend(" in operators["attend"]["reason"]
    assert operators["enter"]["provider"] == "composed"
    assert operators["linear"] == {
        "provider": "fallback",
        "reason": "not overridden",
        "bounds": {},
        "remainder": "",
    }
    assert "verify" not in operators  # the model does not call it
    assert set(hardware["packing"]) == {"fallback"}
    assert elsewhere == {"not_asked": "a process of this mode starts with CHIP_SIMULATED=1"}


def test_checkpoint_is_not_asked_of_what_cannot_run(asked: dict[str, dict[str, Any]]) -> None:
    assert answers(asked["absent"]) == [
        {"not_asked": "not usable on this machine: no chip; buy one"}
    ]
    assert asked["bad"]["error"].startswith("Traceback")
    assert answers(asked["bad"]) == []


def test_answers_in_words(asked: dict[str, dict[str, Any]]) -> None:
    lines = [" ".join(line.split()) for line in render(list(asked.values())).splitlines()]
    assert any(
        line.startswith("operators that the model calls: 1 native, ") and line.endswith(", 1 host")
        for line in lines
    )
    assert any(
        line.startswith("rms_norm native for rows 1..16, else fallback: rms_norm(")
        for line in lines
    )
    assert "linear fallback: not overridden" in lines
    assert "not asked: a process of this mode starts with CHIP_SIMULATED=1" in lines
    assert "to start without it: DEEPINFER_SKIP_BACKENDS=bad" in lines
    assert not any(line.startswith("operators: ") for line in lines)


def test_mode_that_cannot_run_the_checkpoint_says_why(
    install: Install, small_directory: Path
) -> None:
    class Refusing(ReferenceBackend):
        def supports(self, call: CallSpec) -> Support:
            return Support.no("nothing at all")

    install(entry("reference", create=lambda mode, device: Refusing(device)))
    with Checkpoint.open(small_directory) as checkpoint:
        (row,) = backend_rows((), checkpoint)
    assert "cannot run: backend 'reference': embed(" in answers(row)[0]["error"]
    assert "    cannot run it: operator " in render([row])


def test_command_takes_a_checkpoint(launch: Launch, small_directory: Path) -> None:
    done = launch("backends", str(small_directory), "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    (answer,) = answers(rows["reference"])
    assert answer["operators"]["attend"]["provider"] == "native"
    assert answer["summary"].endswith(" composed, 0 fallback, 0 host")
    refused = launch("backends", "--revision", "main")
    assert refused.returncode == 2
    assert "give the id as CHECKPOINT" in refused.stderr
