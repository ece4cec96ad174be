"""`deepinfer conformance` called wrongly: one line that says what to do, status 2, JSON as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import deepinfer_launcher
from deepinfer.conformance import command

NORM = "rms_norm[eps=1e-06,rows=1,width=64,dtype=bf16,values=normal,edge=one,seed=0]"
CALL = {"operator": "rms_norm", "facts": {"width": 64, "eps": 1e-6, "dtype": "bf16"}}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`run("--json", ...)`: status, output and error output, in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deepinfer", "conformance", *arguments])
        status = deepinfer_launcher.main()
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def case(run: Run, *arguments: str) -> tuple[int, str, str]:
    return run("--accelerator", "reference", "--workers", "0", "--case", NORM, *arguments)


def refused(found: tuple[int, str, str], said: str) -> None:
    status, output, errors = found
    assert (status, output) == (2, ""), errors
    assert said in errors
    assert errors.count("\n") == 1
    assert len(errors) < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file", "'file' cannot be written: it is a file"),
        ("file/x", "Not a directory"),
        ("", "the name is empty"),
        ("a\0b", "null byte"),
        ("x" * 300, "File name too long"),
        ("/proc/x", "No such file or directory"),
    ],
)
@pytest.mark.parametrize("flag", ["--report", "--dump"])
def test_a_directory_that_cannot_be_written_is_found_before_anything_runs(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flag: str, name: str, said: str
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(command, "run_suite", None)
    monkeypatch.setattr(command.Subject, "load", None)
    refused(case(run, flag, name), said)
    assert (tmp_path / "file").read_text() == "mine"


def test_json_of_an_error_a_comparison_and_a_dump(run: Run) -> None:
    status, output, errors = case(run, "--json", "--profile", "zzz")
    assert status == 2
    assert "error: profile is 'zzz'" in errors
    assert json.loads(output)["exit_code"] == 2
    assert "profile is 'zzz'" in json.loads(output)["error"]
    assert case(run, "--report", "a")[0] == 0
    status, output, _ = run("--json", "--compare", "a/report.json", "a/report.json")
    assert (status, json.loads(output)["same"]) == (0, True)
    status, output, _ = case(run, "--json", "--dump", "d")
    assert status == 0
    assert all(Path(folder, "replay.py").is_file() for folder in json.loads(output))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dump", "d", "--report", "r"), "--dump and --report exclude each other"),
        (("--compare", "a", "b", "--report", "r"), "exclude each other"),
        (("--limit", "nan"), "limit is nan"),
        (("--workers", "-1"), "workers is -1; allowed: 0"),
        (("--operator", "["), "no operator of the suite is named like '['"),
        (("--operator", "rms_norm", "--profile", "sampling"), "profile sampling has no case whose"),
    ],
)
def test_flags_that_mean_nothing(run: Run, arguments: tuple[str, ...], said: str) -> None:
    chosen = ("--case", NORM) if "--operator" not in arguments else ()
    status, output, errors = run("--accelerator", "reference", *chosen, *arguments)
    assert (status, output) == (2, "")
    assert said in errors


FILES: dict[str, tuple[str | bytes, str]] = {
    "deep": ("[" * 100000, "nested too deeply"),
    "binary": (b"\xff\xfe", "can't decode byte"),
    "nothing": ("", "Expecting value"),
    "lists": (json.dumps([[[["x" * 10**4]] * 100]] * 10), "call 0: it is [["),
    "below": (json.dumps([{**CALL, "ranges": {"rows": [-2, 5]}}]), "rows begins below 0"),
    "digits": ('[{"operator": "rms_norm", "facts": {"width": ' + "9" * 5000 + "}}]", "4300 digits"),
}


@pytest.mark.parametrize("name", FILES)
def test_case_files_that_are_none(run: Run, tmp_path: Path, name: str) -> None:
    text, said = FILES[name]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(run("--accelerator", "reference", "--case-file", name), said)


def test_a_file_without_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer.conformance.json_file.MOST_BYTES", 1000)
    refused(run("--compare", "/dev/zero", "/dev/zero"), "it has more than 1000 bytes")


@pytest.mark.slow
def test_the_same_call_a_million_times_is_one(run: Run, tmp_path: Path) -> None:
    call = {**CALL, "ranges": {"rows": [1, 8]}}
    (tmp_path / "many").write_text(json.dumps([call] * 20000))
    words = ("--accelerator", "reference", "--workers", "0", "--json", "--case-file", "many")
    status, output, errors = run(*words)
    assert status == 0, errors
    assert json.loads(output)["counts"] == {"passed": 2}


def test_reports_of_other_things_are_not_compared_in_silence(run: Run, tmp_path: Path) -> None:
    assert case(run, "--report", "a")[0] == 0
    document = json.loads((tmp_path / "a" / "report.json").read_text())
    (tmp_path / "other").write_text(json.dumps({**document, "accelerator": "chip", "tier": "full"}))
    status, output, _ = run("--compare", "a/report.json", "other")
    assert status == 0
    assert "not the same accelerator: reference and chip" in output
    assert "not the same tier: quick and full" in output
    (tmp_path / "empty").write_text(json.dumps({**document, "cases": []}))
    status, output, _ = run("--compare", "a/report.json", "empty")
    assert status == 1
    assert "no case is in both" in output
    (tmp_path / "twice").write_text(json.dumps({**document, "cases": document["cases"] * 2}))
    refused(run("--compare", "a/report.json", "twice"), "it has 2 cases with the id rms_norm")
