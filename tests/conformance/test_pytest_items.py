"""`pytest --pyargs deepinfer.conformance` takes the options of the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASE = "embed[kind=bf16,rows=1,vocabulary=61,width=24,dtype=bf16,values=normal,edge=one,seed=0]"
BEFORE = """
import sys
import deepinfer.conformance.plugin
print(sorted({"torch", "hypothesis", "deepinfer_reference"} & set(sys.modules)))
"""


def items(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--pyargs", "deepinfer.conformance", "-q"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--accelerator", "reference", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_the_entry_point_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_report_of_items_and_the_closing_line(tmp_path: Path) -> None:
    done = items("--case", CASE, "--report", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profile core: works, 1 operators native; quick tier: no claim" in done.stdout
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [case["id"] for case in document["cases"]] == [CASE]
    assert (tmp_path / "report" / "report.html").stat().st_size > 1000


@pytest.mark.slow
def test_native_fails_where_a_key_operator_did_not_run(tmp_path: Path) -> None:
    done = items("--case", CASE, "--native", "--profile", "full", "--workers", "0", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--workers", "2"), "--workers is 2; allowed: 1"),
        (("--limit", "0"), "--limit is 0; allowed: above 0"),
        (("--tier", "fast"), "tier is 'fast'; allowed"),
    ],
)
def test_an_option_out_of_range(tmp_path: Path, option: tuple[str, str], said: str) -> None:
    done = items("--case", CASE, *option, cwd=tmp_path)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


OTHER = """
def pytest_addoption(parser):
    parser.addoption("--report", default="theirs")
    parser.addoption("--workers", type=int, default=9)
"""


@pytest.mark.slow
def test_an_option_of_another_plugin_keeps_its_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours has its long name beside it; without one, no pytest of the environment would start."""
    (tmp_path / "other.py").write_text(OTHER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ("-p", "other", "--report", "theirs", "--deepinfer-report", "ours")
    done = items("--case", CASE, *words, "--deepinfer-workers", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ours" / "report.json").is_file()
    assert not (tmp_path / "theirs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--case", "rms_norm[rows=1]"), "its facts are rows; allowed: eps, rows, width"),
        (("--operator", "["), "no operator of the suite is named like"),
    ],
)
def test_what_cannot_be_collected_is_said_without_a_trace(
    tmp_path: Path, option: tuple[str, str], said: str
) -> None:
    done = items(*option, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stdout
    assert "deepinfer.errors" not in done.stdout
