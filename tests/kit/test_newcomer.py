"""The newcomer's path: from `deepinfer new-backend` to the first report, nothing edited."""

from __future__ import annotations

import json
import time

import pytest

from tests.kit.conftest import Shell

INSTALL = """
deepinfer new-backend mychip project
pip install --quiet --no-deps --no-build-isolation -e project
"""
REPORT = "deepinfer conformance --accelerator mychip --report report"


@pytest.mark.slow
def test_unchanged_project_installs_and_its_operator_is_native(shell: Shell) -> None:
    printed = shell.output(INSTALL)
    assert "project/deepinfer_mychip/backend.py" in printed
    assert "deepinfer conformance --accelerator mychip --profile core --tier quick" in printed

    printed = shell.output(f"{REPORT} --operator rms_norm --workers 0")
    assert "backend mychip, mode hardware (PyTorch on the CPU)" in printed
    assert "profile core: works, 1 operators native; quick tier: no claim" in printed
    report = json.loads((shell.folder / "report" / "report.json").read_text())
    assert {case["provider"] for case in report["cases"]} == {"native"}
    assert report["native_operators"] == ["rms_norm"]

    refused = shell.run("deepinfer new-backend mychip other")
    assert refused.returncode == 2
    assert "a backend named 'mychip' is installed (distribution deepinfer-mychip" in refused.stderr


@pytest.mark.soak
def test_core_works_in_the_quick_tier(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole path; its time is printed (under five minutes on two cores of one's own)."""
    started = time.monotonic()
    shell.output(INSTALL)
    printed = shell.output(f"{REPORT} --profile core --tier quick --workers 2")
    with capsys.disabled():
        print(f"\nfrom new-backend to the report: {time.monotonic() - started:.0f} s\n{printed}")
    assert "profile core: works, 1 operators native" in printed
