"""`deepinfer conformance`: which options go together, all backends at once, and dumped cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.cli.main import main
from deepinfer.conformance.command import run_all
from deepinfer.conformance.document import read_report
from deepinfer.conformance.dump import dump_case
from deepinfer.conformance.registry import by_id
from deepinfer.conformance.subject import Subject
from deepinfer.errors import UsageError
from deepinfer_reference.backend import ReferenceBackend

CASE = "rms_norm[eps=1e-06,rows=3,width=8,dtype=bf16,values=normal,seed=0]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--accelerator", "all", "--mode", "hardware"], "--mode is of one backend"),
        (["--accelerator", "all", "--dump", "x", "--case", CASE], "--dump is of one backend"),
        (["--accelerator", "reference", "--dump", "x"], "--dump needs the cases"),
        (["--accelerator", "reference", "--case", CASE, "--operator", "linear"], "use one of the"),
        (["--accelerator", "reference", "--limit", "0"], "limit is 0; allowed"),
        (["--accelerator", "reference", "--tier", "fast"], "tier is 'fast'; allowed"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(["conformance", *arguments])


@pytest.mark.slow
def test_all_backends_are_one_matrix_and_leave_their_reports(tmp_path: Path) -> None:
    rows, text = run_all(["--case", CASE, "--workers", "0"], (), str(tmp_path))
    results = {row["accelerator"]: row["result"] for row in rows}
    assert results["reference"] == "passed"
    assert len(text.splitlines()) == len(rows)
    assert "reference hardware" in text
    assert "quick tier: no claim" in text
    document = read_report(tmp_path / "reference-hardware" / "report.json")
    assert [case["id"] for case in document["cases"]] == [CASE]


class Raising(ReferenceBackend):
    """Its norm raises."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        raise RuntimeError("out of luck")


def test_a_dumped_case_has_inputs_both_outputs_and_a_script(tmp_path: Path) -> None:
    subject = Subject.of("chip", ReferenceBackend("cpu"))
    folder = dump_case(by_id(CASE), subject, tmp_path)
    inputs, expected, got = (_read(folder, name) for name in ("inputs", "expected", "got"))
    assert inputs["x"].shape == (3, 8)
    assert torch.equal(expected["out"], got["out"])
    assert len((folder / "replay.py").read_text().splitlines()) == 9


def test_a_dumped_case_of_a_backend_that_raises_says_what(tmp_path: Path) -> None:
    folder = dump_case(by_id(CASE), Subject.of("chip", Raising("cpu")), tmp_path)
    assert {"inputs.pt", "expected.pt", "replay.py"} <= {path.name for path in folder.iterdir()}
    assert "out of luck" in (folder / "got.txt").read_text()
    assert not (folder / "got.pt").exists()


def _read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    return found
