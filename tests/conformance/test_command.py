"""`deepinfer golden` as it is called: output, flags and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import torch

import deepinfer_launcher
from tests.conformance.small_golden import MODEL, SmallGolden, stored

LOGITS = "logits.safetensors"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("--json", ...)`: status, output and error output of `deepinfer golden ...`."""

    def run(*arguments: object) -> tuple[int, str, str]:
        words = ["deepinfer", "golden", *map(str, arguments), "--accelerator", "reference"]
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        status = deepinfer_launcher.main()
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def short(with_model: SmallGolden) -> SmallGolden:
    """Two prompts of one model, and a component to come."""
    with_model.part(LOGITS, ["p1", "p2"])
    with_model.write(f"{MODEL}/vision.safetensors", {"one.ids": torch.ones(1)})
    return with_model


@pytest.mark.slow
def test_a_line_per_item_and_the_closing_line(run: Run, short: SmallGolden) -> None:
    status, output, errors = run(short.root)
    lines = output.splitlines()
    assert status == 0
    assert errors == ""
    assert (lines[-1], len(lines)) == ("covered 4, failed 0, not covered 1", 6)
    assert [line.split()[:3] for line in lines[:2]] == [
        ["passed", "fp32", f"{MODEL}/logits/p1"],
        ["passed", "fp32", f"{MODEL}/logits/p2"],
    ]
    assert "[max rel " in lines[0]
    assert " <= 0.0001]" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_one_precision(run: Run, short: SmallGolden, compute: str) -> None:
    status, output, _ = run(short.root, "--compute", compute)
    assert status == 0
    assert output.splitlines()[-1] == "covered 2, failed 0, not covered 1"
    assert {line.split()[1] for line in output.splitlines()[:2]} == {compute}


def test_all_may_be_required(run: Run, short: SmallGolden) -> None:
    status, output, _ = run(short.root, "--compute", "fp32", "--require", "all")
    assert status == 1
    assert output.splitlines()[-1] == "covered 2, failed 1, not covered 1"


@pytest.mark.slow
def test_json(run: Run, short: SmallGolden) -> None:
    wrong = torch.full_like(stored(f"{MODEL}/{LOGITS}", "p1.logits.fp32"), float("nan"))
    (short.model / LOGITS).unlink()
    short.part(LOGITS, ["p1", "p2"], p1__logits__fp32=wrong)
    status, output, _ = run(short.root, "--compute", "fp32", "--json")
    document = json.loads(output, parse_constant=pytest.fail)
    assert status == 1
    assert document["accelerator"] == "reference"
    assert document["summary"] == {"covered": 2, "failed": 1, "not_covered": 1}
    first = document["items"][0]
    assert first["name"] == f"{MODEL}/logits/p1"
    assert first["outcome"] == "failed"
    assert first["measures"] == [
        {"metric": "max rel", "value": "nan", "sense": "<=", "limit": 1e-4}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compute", "fp16"], "compute is 'fp16'; allowed: fp32, bf16"),
        (["--require", "some"], "--require is 'some'; allowed: \"all\""),
    ],
)
def test_wrong_flags(run: Run, short: SmallGolden, arguments: list[str], message: str) -> None:
    status, output, errors = run(short.root, *arguments)
    assert status == 2
    assert message in errors
    assert output == ""


def test_a_broken_file_is_an_error_without_stack_trace(run: Run, short: SmallGolden) -> None:
    path = short.model / "greedy.safetensors"
    path.write_bytes(b"\0" * 100)
    status, output, errors = run(short.root)
    assert status == 2
    assert f"{path} cannot be read as a safetensors file" in errors
    assert "Traceback" not in errors
    assert output == ""


def test_a_failed_check_ends_with_status_1(run: Run, short: SmallGolden) -> None:
    (short.model / LOGITS).unlink()
    short.part(LOGITS, ["p1", "p2"], p1__ids=torch.tensor([5000]))
    status, output, errors = run(short.root, "--compute", "fp32")
    assert status == 1
    assert "Traceback" not in output + errors
    assert output.splitlines()[0].startswith(f"failed      fp32 {MODEL}/logits/p1 (RequestError: ")
    assert output.splitlines()[-1] == "covered 2, failed 1, not covered 1"
