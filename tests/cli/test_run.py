"""The main job: prompts from everywhere, the bundled checkpoint, its summary, its failures."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from deepinfer.cli.run import DEFAULT_QUESTION
from deepinfer.data import bundled_checkpoint, nano_checkpoint
from tests.backend.plugins import write_plugin
from tests.cli.conftest import Ended, Launch

REFERENCE = {"DEEPINFER_ACCELERATOR": "reference"}


def answers(done: Ended) -> list[dict[str, Any]]:
    """The JSON lines of a run, the summary left out."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()][:-1]


def test_without_arguments(launch: Launch) -> None:
    done = launch("run", **REFERENCE)
    assert done.returncode == 0
    assert done.stdout == f"> {DEFAULT_QUESTION}\nThe lamp is in the kitchen.\n"
    lines = done.stderr.splitlines()
    assert lines[0] == f"checkpoint {nano_checkpoint()}"
    assert sum("was trained on 'short stories" in line for line in lines) == 1
    assert lines[-2].startswith("backend reference, mode hardware: operators ")
    assert " native, " in lines[-2]
    assert lines[-2].endswith("; fallbacks: none")
    assert lines[-1].startswith("prefill ")
    assert " tokens/s" in lines[-1]
    assert lines[-1].endswith(" bytes per token")


@pytest.mark.slow
def test_random_weights_are_said(launch: Launch) -> None:
    model = str(bundled_checkpoint())
    done = launch("run", "x", "--model", model, "--max_tokens", "1", **REFERENCE)
    lines = done.stderr.splitlines()
    assert sum("random weights: the text below is meaningless" in line for line in lines) == 1
    assert "was trained on" not in done.stderr


@pytest.mark.slow
def test_control_characters_of_names_do_not_reach_the_terminal(
    launch: Launch, tmp_path: Path
) -> None:
    model = copytree(bundled_checkpoint(), tmp_path / "a\x1b[31mb")
    done = launch("run", "x", "--model", str(model), "--max_tokens", "1", **REFERENCE)
    assert done.returncode == 0
    assert "a\\x1b[31mb" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_prompts_from_arguments_stdin_and_a_file(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("four\nfive\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"two\nthree\n")))
    arguments = ("one", "-", "--prompt_file", str(file), "--json", "--max_tokens", "1")
    done = launch("run", *arguments, **REFERENCE)
    found = answers(done)
    assert [answer["prompt"] for answer in found] == ["one", "two", "three", "four", "five"]
    assert [answer["index"] for answer in found] == [0, 1, 2, 3, 4]
    assert {answer["finish_reason"] for answer in found} <= {"length", "stop"}
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert (summary["backend"], summary["mode"]) == ("reference", "hardware")
    assert summary["fallback_operators"] == []
    assert "attend" in summary["native_operators"]
    assert summary["prefill_tokens_per_second"] > 0
    assert summary["cache_bytes_per_token"] > 0


@pytest.mark.slow
def test_model_name_wins_over_the_variable(launch: Launch, tmp_path: Path) -> None:
    variables = {**REFERENCE, "DEEPINFER_HF_MODEL_DIR": str(tmp_path / "none")}
    named = launch("run", "--model_name", str(bundled_checkpoint()), "--max_tokens=1", **variables)
    assert named.returncode == 0, named.stderr
    done = launch("run", "--max_tokens", "1", **variables)
    assert done.returncode == 4
    assert f"'{tmp_path / 'none'}': no such directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_sampling_options_reach_the_engine(launch: Launch) -> None:
    def ids(*arguments: str) -> list[int]:
        done = launch("run", "x", "--json", "--max_tokens", "3", *arguments, **REFERENCE)
        found: list[int] = answers(done)[0]["token_ids"]
        return found

    first = ids("--temperature", "1", "--seed", "1", "--ignore_eos")
    assert len(first) == 3
    assert ids("--temperature", "1", "--seed", "1", "--ignore_eos") == first
    assert ids("--temperature", "1", "--seed", "2", "--ignore_eos") != first
    only = ids("--temperature", "1", "--seed", "1", "--top_k", "1", "--ignore_eos")
    assert only == ids("--temperature", "0", "--ignore_eos")


@pytest.mark.slow
def test_chat_wraps_the_prompt(launch: Launch) -> None:
    common = ("run", "x", "--json", "--max_tokens", "1")
    plain = answers(launch(*common, **REFERENCE))[0]
    chat = answers(launch(*common, "--chat", **REFERENCE))[0]
    assert chat["prompt_tokens"] > plain["prompt_tokens"]


def test_a_failed_request_leaves_the_others(launch: Launch) -> None:
    arguments = ("word " * 40, "x", "--json", "--max_tokens", "1", "--max_model_len", "16")
    done = launch("run", *arguments, **REFERENCE)
    failed, answered, _ = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 1
    assert "max_model_len is 16" in failed["error"]
    assert len(answered["token_ids"]) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--prompt_file", "nowhere.txt"), 2, "prompt file 'nowhere.txt' cannot be read"),
        (("--numerics", "fast"), 2, "numerics is 'fast'; allowed: auto, ref, infer"),
        (("--compute", "fp16"), 2, "compute is 'fp16'; allowed: bf16, fp32, fp64"),
        (("--model_name", ""), 4, "'': no such directory, and not a Hub id"),
        (("--max_model_len", "8193"), 2, "max_model_len is 8193; allowed: 1 to 8192"),
        (("--max_model_len", str(10**30)), 2, "allowed: 1 to 8192 (max_position_embeddings"),
        (("--top_p", "2"), 2, "top_p is 2.0; allowed: a finite number in (0, 1]"),
        (("--model_name", "nowhere"), 4, "'nowhere': no such directory, and not a Hub id"),
    ],
)
def test_refused_options(
    launch: Launch, arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = launch("run", *arguments, **REFERENCE)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_a_model_with_fewer_positions_than_the_default(launch: Launch, tmp_path: Path) -> None:
    short = copytree(bundled_checkpoint(), tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 6
    (short / "config.json").write_text(json.dumps(config))
    arguments = ("a", "--model_name", str(short), "--json", "--ignore_eos")
    answer = answers(launch("run", *arguments, **REFERENCE))[0]
    assert answer["prompt_tokens"] + len(answer["token_ids"]) == 6
    inspected = launch("inspect", str(short), "--json", **REFERENCE)
    assert json.loads(inspected.stdout)["cache"]["length"] == 6


def test_json_lines_are_ascii(launch: Launch) -> None:
    done = launch("run", "é\u2028🚀\x85", "\udcff", "--json", "--max_tokens", "1", **REFERENCE)
    assert done.stdout.isascii()
    assert done.returncode == 1
    answered, failed, _ = (json.loads(line) for line in done.stdout.splitlines())
    assert answered["prompt"] == "é\u2028🚀\x85"
    assert "lone surrogate" in failed["error"]


def test_no_prompt_at_all_is_said(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    done = launch("run", "--prompt_file", str(tmp_path / "empty"), "--json", **REFERENCE)
    assert answers(done) == []
    assert "there is no prompt: what was to be read is empty\n" in done.stderr


@pytest.mark.slow
def test_fallbacks_are_named_and_may_be_forbidden(launch: Launch, site: Path) -> None:
    write_plugin(site, "bare", modes='Mode("hardware", "a chip", "cpu", timing=False),')
    done = launch("run", "--max_tokens", "1", DEEPINFER_ACCELERATOR="bare")
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-2:]
    assert "0 native" in last[0]
    assert "attend, " in last[0].partition("; fallbacks: ")[2]
    assert "(means nothing in this mode)" in last[1]
    strict = launch("run", DEEPINFER_ACCELERATOR="bare", DEEPINFER_STRICT_OPERATORS="1")
    assert strict.returncode == 3
    assert "DEEPINFER_STRICT_OPERATORS=1 forbids a fallback" in strict.stderr
    assert strict.stdout == ""


PARTIAL = """

class Chip(Backend):
    def rms_norm(self, x, weight, eps):
        return self.inner.rms_norm(x, weight, eps)

    def supports(self, call):
        return Support.within("one row", rows=(1, 1))

    def supports_reference(self, call):
        return Support.no("no exp") if call.operator == "attend" else Support.yes()

@hookimpl
def deepinfer_create(mode, device):
    from deepinfer_reference.backend import ReferenceBackend

    chip = Chip(device)
    chip.inner = ReferenceBackend(device)
    return chip
"""


@pytest.mark.slow
def test_host_and_sub_ranges_are_counted_apart(launch: Launch, site: Path) -> None:
    write_plugin(site, "partial")
    module = site / "chip_partial.py"
    module.write_text(f"from deepinfer.backend import Support\n{module.read_text()}{PARTIAL}")
    arguments = ("run", "x", "--max_tokens", "2", "--ignore_eos", "--accelerator", "partial")
    done = launch(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    (start,) = [line for line in done.stderr.splitlines() if "; operators: " in line]
    assert "operators: 1 native (1 in a sub-range), " in start
    assert start.endswith(", 1 host")
    assert "packed weights: fallback " in done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert summary["host_operators"] == ["attend"]
    counts = summary["calls_by_provider"]
    assert counts["attend"]["host"] > 0
    assert counts["rms_norm"]["native"] > 0
    assert counts["rms_norm"]["fallback"] > 0
    words = launch(*arguments)
    assert words.stderr.splitlines()[-2].endswith("; on the host: attend")
