"""`deepinfer env`: one table, as text and as JSON, fast and without the tensor library."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from deepinfer.backend import Setting
from deepinfer.backend.hooks import ENTRY_POINT_GROUP
from deepinfer.backend.registry import load
from deepinfer.cli import env
from deepinfer.settings.catalogue import VARIABLES
from tests.backend.plugins import spec, write_distribution
from tests.cli.conftest import Command, Launch

PLUGIN = """
from deepinfer.backend import CONTRACT_VERSION, Availability, BackendSpec, Mode, Setting, hookimpl

@hookimpl
def deepinfer_backend():
    return BackendSpec("tuned", CONTRACT_VERSION, "dist-tuned", (Mode("hardware", "chip", "cpu"),),
                       (Setting("DEEPINFER_TUNED_SPEED", "3", "Makes it fast."),))

@hookimpl
def deepinfer_probe():
    return Availability(False, reasons=("no chip",))
"""


@pytest.fixture
def tuned(site: Path) -> None:
    """An installed backend with a setting of its own."""
    write_distribution(site, "dist-tuned", {"tuned": "chip_tuned"})
    (site / "chip_tuned.py").write_text(PLUGIN)


def by_name(text: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(text)}


def test_json(launch: Launch) -> None:
    done = launch("env", "--json", DEEPINFER_STRICT_OPERATORS="yes")
    assert (done.returncode, done.stderr) == (0, "")
    rows = by_name(done.stdout)
    assert set(VARIABLES) <= set(rows)
    assert all(row["owner"] and row["effect"] and row["status"] for row in rows.values())
    assert rows["DEEPINFER_STRICT_OPERATORS"] == {
        "name": "DEEPINFER_STRICT_OPERATORS",
        "value": True,
        "origin": "environment",
        "owner": "core",
        "status": "works",
        "effect": "Makes a fallback to the reference an error.",
        "type": "switch",
        "default": False,
        "error": None,
        "warning": None,
    }


def test_text_has_one_variable_a_line(launch: Launch) -> None:
    done = launch("env", DEEPINFER_HF_MODEL_DIR="model")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["name", "value", "origin", "owner", "status", "effect"]
    assert [line.split()[0] for line in lines[1:]] == list(VARIABLES)
    line = next(line for line in lines if line.startswith("DEEPINFER_HF_MODEL_DIR"))
    assert line.split()[1:5] == ["model", "environment", "core", "works"]


def test_long_value_moves_no_other_line() -> None:
    short = env.render(env.Listing(tuple(env.rows({"DEEPINFER_HF_MODEL_DIR": "x"}))))
    long = env.render(env.Listing(tuple(env.rows({"DEEPINFER_HF_MODEL_DIR": "x" * 200}))))
    changed = [a for a, b in zip(short.splitlines(), long.splitlines(), strict=True) if a != b]
    assert [line.split()[0] for line in changed] == ["DEEPINFER_HF_MODEL_DIR"]


def test_unreadable_value_is_shown_and_refused(launch: Launch) -> None:
    done = launch("env", DEEPINFER_GC_INTERVAL_STEP="often")
    assert done.returncode == 2
    assert "often" in done.stdout
    assert done.stderr == (
        "error: DEEPINFER_GC_INTERVAL_STEP is 'often'; allowed: an integer of at least 0; unset "
        "it for the default\n"
    )


def test_missing_feature_is_refused(launch: Launch) -> None:
    done = launch("env", "--json", DEEPINFER_BATCH_INVARIANT="1")
    assert done.returncode == 2
    row = by_name(done.stdout)["DEEPINFER_BATCH_INVARIANT"]
    assert row["status"] == "not built"
    assert "not built yet" in row["error"]


def test_unknown_and_meaningless_names_are_listed_with_a_warning(launch: Launch) -> None:
    done = launch("env", "--json", DEEPINFER_GC_INTERVAL="1", DEEPINFER_NCCL_NUM_SMS="8")
    assert done.returncode == 0
    rows = by_name(done.stdout)
    row = rows["DEEPINFER_GC_INTERVAL"]
    assert (row["value"], row["owner"], row["status"]) == ("1", "nobody", "unknown")
    assert row["warning"].endswith("did you mean DEEPINFER_GC_INTERVAL_STEP?")
    assert rows["DEEPINFER_NCCL_NUM_SMS"]["status"] == "no meaning"
    assert done.stderr.count("warning: ") == 2


def test_rows_of_a_backend() -> None:
    chip = spec("chip", settings=(Setting("CHIP_SPEED", "3", "Makes it fast."),))
    row = next(row for row in env.rows({"CHIP_SPEED": "4"}, [chip]) if row.name == "CHIP_SPEED")
    assert (row.value, row.default, row.owner, row.status) == ("4", "3", "chip", "works")


@pytest.mark.usefixtures("tuned")
def test_settings_of_an_installed_backend(launch: Launch) -> None:
    done = launch("env", "--json", DEEPINFER_TUNED_SPEED="4")
    assert (done.returncode, done.stderr) == (0, "")
    row = by_name(done.stdout)["DEEPINFER_TUNED_SPEED"]
    assert (row["value"], row["default"], row["owner"]) == ("4", "3", "tuned")


@pytest.mark.usefixtures("tuned")
def test_skipped_backend_is_not_asked(launch: Launch) -> None:
    done = launch("env", "--json", DEEPINFER_SKIP_BACKENDS="tuned")
    assert "DEEPINFER_TUNED_SPEED" not in by_name(done.stdout)


def test_remarks_have_their_levels_where_logs_are_json(launch: Launch) -> None:
    done = launch(
        "env",
        DEEPINFER_LOG_FORMAT="json",
        DEEPINFER_BATCH_INVARIANT="1",
        DEEPINFER_GC_INTERVAL="1",
    )
    levels = [json.loads(line)["level"] for line in done.stderr.splitlines()]
    assert levels == ["error", "warning"]


def test_broken_backend_is_a_note(launch: Launch, site: Path) -> None:
    write_distribution(site, "dist-broken", {"broken": "chip_that_is_not_there"})
    done = launch("env")
    assert done.returncode == 0
    assert done.stderr.startswith("note: the variables of backend 'broken' are not listed: ")


def test_backend_that_claims_a_variable_of_the_core_is_a_note(launch: Launch, site: Path) -> None:
    write_distribution(site, "dist-tuned", {"tuned": "chip_tuned"})
    (site / "chip_tuned.py").write_text(PLUGIN.replace("TUNED_SPEED", "ACCELERATOR"))
    done = launch("env", "--json")
    assert done.returncode == 0
    assert "'tuned' are not listed: backend 'tuned' registers the setting" in done.stderr
    assert by_name(done.stdout)["DEEPINFER_ACCELERATOR"]["owner"] == "core"


def test_group_of_the_door() -> None:
    assert env.GROUP == ENTRY_POINT_GROUP


def test_backends_of_the_core_have_no_settings_of_their_own() -> None:
    entries = [entry for entry in entry_points(group=env.GROUP) if entry.dist]
    core = [entry for entry in entries if entry.dist and entry.dist.name == env.CORE_DISTRIBUTION]
    specs = [load(entry.name, [entry]).spec for entry in core]
    assert specs
    assert all(found is not None and found.settings == () for found in specs)


@pytest.mark.slow
def test_torch_is_neither_imported_nor_needed(command: Command, site: Path) -> None:
    (site / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    done = command("env", "--json")
    assert done.returncode == 0, done.stderr
    assert set(VARIABLES) <= set(by_name(done.stdout))


@pytest.mark.slow
@pytest.mark.usefixtures("tuned")
def test_without_torch_a_note_says_whose_settings_are_missing(command: Command, site: Path) -> None:
    (site / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = command("env")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "note: the variables of tuned are not listed: no torch here\n"
