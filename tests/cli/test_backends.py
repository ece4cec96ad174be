"""`deepinfer backends`: what is installed, what is usable, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.backend import CONTRACT_VERSION, Availability, Mode
from deepinfer.cli import backends
from deepinfer.cli.backends import backend_rows, render
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
    monkeypatch.setattr(backends, "reference_for", lambda selected, backend: reference)
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
    assert "attend" in operators["fallback"] and "attend_output" in operators["composed"]
    assert rows["absent"]["operators"] == {}
    assert rows["good"] == {
        "name": "good",
        "distribution": "dist-good",
        "usable": True,
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
        assert rows[name]["reasons"] and rows[name]["remedy"].startswith("Install the ")
    assert rows["reference"]["usable"]


def test_backend_that_cannot_be_created_says_why(install: Install) -> None:
    def create(mode: str, device: str) -> object:
        raise OSError("no context left")

    install(entry("chip", create=create))
    assert "  backend 'chip' (distribution dist-chip) raised in deepinfer_create: OSError: no" in (
        render(backend_rows())
    )
