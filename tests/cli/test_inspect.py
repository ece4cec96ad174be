"""`inspect` on a tiny checkpoint: both forms of the report and its usage errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepinfer.checkpoint import Checkpoint
from deepinfer.cli.inspection import (
    Inspection,
    Section,
    inspect_checkpoint,
    render,
    short_count,
)
from deepinfer.errors import UsageError
from tests.backend.plugins import write_plugin
from tests.checkpoint.writer import tiny_config, write_checkpoint
from tests.cli.conftest import Launch


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_checkpoint(directory, tiny_config())
    return directory


def inspected(
    directory: Path,
    components: tuple[str, ...] | None = None,
    *,
    batch: int = 1,
    length: int | None = None,
) -> Inspection:
    with Checkpoint.open(directory, components) as checkpoint:
        return inspect_checkpoint(checkpoint, batch=batch, length=length)


def test_json_tallies_add_up(tiny: Path, launch: Launch) -> None:
    done = launch("inspect", str(tiny), "--batch", "3", "--length", "100", "--json")
    report = json.loads(done.stdout)
    index = json.loads((tiny / "model.safetensors.index.json").read_text())
    assert report["stored_bytes"] == index["metadata"]["total_size"]
    assert report["tensors"] == len(index["weight_map"])
    assert sum(t["parameters"] for t in report["tallies"]) == report["parameters"]["total"]
    components = {t["component"] for t in report["tallies"]}
    assert components == {"text", "draft", "vision"} == set(report["memory"]["components"])
    assert report["cache"]["total_bytes"] == 3 * (
        report["cache"]["block_bytes"]
        + report["cache"]["slot_bytes"]
        + report["cache"]["pages_per_sequence"] * report["cache"]["page_bytes"]
    )


def test_components_choose_what_the_plan_covers(tiny: Path) -> None:
    text = inspected(tiny, ("text",)).as_dict()
    both = inspected(tiny, ("text", "draft")).as_dict()
    assert text["memory"]["components"] == ("text",)
    assert both["memory"]["mapped_bytes"] > text["memory"]["mapped_bytes"]
    assert both["cache"]["page_bytes"] > text["cache"]["page_bytes"]
    assert both["cache"]["slot_bytes"] > text["cache"]["slot_bytes"]


def test_text_lists_release_limits_and_extra_sections(tiny: Path) -> None:
    text = render(inspected(tiny), [Section("backend lacks", [("verify", "not built")])])
    assert "text_config.index_n_heads = 2: 32 index heads" in text
    assert text.endswith("backend lacks\n  verify  not built")


@pytest.mark.parametrize(
    ("batch", "length", "message"),
    [(0, 1, "batch = 0"), (1, 0, "length = 0: must be 1 to 4096"), (1, 4097, "length = 4097")],
)
def test_impossible_plans(tiny: Path, batch: int, length: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        inspected(tiny, batch=batch, length=length)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1_540, "1.54k"), (485_268_480, "485.27M"), (7_892_776_248, "7.89B")],
)
def test_short_count(count: int, text: str) -> None:
    assert short_count(count) == text


def test_command_lists_calls_and_what_the_backend_lacks(
    tiny: Path, launch: Launch, site: Path
) -> None:
    write_plugin(site, "bare")
    done = launch("inspect", str(tiny), "--calls", "--json", "--accelerator", "bare")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    calls = {call["operator"] for call in report["calls"]}
    assert {"embed", "attend_output", "attend", "linear", "sample"} <= calls
    attend = {"provider": "fallback", "reason": "not overridden", "bounds": {}, "remainder": ""}
    assert report["backend"]["lacks"]["attend"] == attend
    assert "attend_output" not in report["backend"]["lacks"]  # its default body runs
    packing = report["backend"]["packing"]
    assert packing["fallback"]["mapped"] > packing["fallback"]["resident"] > 0


def test_command_in_words(tiny: Path, launch: Launch) -> None:
    done = launch("inspect", str(tiny), "--batch", "2", DEEPINFER_ACCELERATOR="reference")
    assert done.returncode == 0, done.stderr
    assert "memory plan for a batch of 2 at 4,096 tokens" in done.stdout
    assert "release limits left" in done.stdout
    assert "packed weights: native " in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["lacks", "nothing"]
