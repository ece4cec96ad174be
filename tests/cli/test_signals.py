"""Signals to commands that run: partial results, the grace period, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = {"prompt": "x", "max_tokens": 200_000, "ignore_eos": True}
NULL = ["--accelerator", "null", "--allow-null", "--compute", "fp32"]
HANG = """
import deepinfer_reference.null as null, time
def sample(self, logprobs, seeds, positions, purpose):
    print("hanging", file=__import__("sys").stderr, flush=True)
    time.sleep(1000)
null.NullBackend.sample = sample
"""


@contextmanager
def started(folder: Path, *arguments: str, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    script = f"import sys, deepinfer_launcher\n{before}\nsys.exit(deepinfer_launcher.main())"
    environment = {k: v for k, v in os.environ.items() if "DEEPINFER" not in k}
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[bytes], words: str) -> str:
    """Read stderr up to a line with these words."""
    assert process.stderr is not None
    text = ""
    for line in process.stderr:
        text += line.decode()
        if words in line.decode():
            return text
    raise AssertionError(f"ended without {words!r}:\n{text}")


def nobody_is_left(process: subprocess.Popen[bytes]) -> bool:
    """Has the process group no member any more?"""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_generate_writes_what_there_is(tmp_path: Path, number: int, status: int) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{json.dumps({**LONG, 'max_tokens': 1})}\n{json.dumps(LONG)}\n")
    with started(tmp_path, "generate", str(source), "-o", str(out), *NULL) as process:
        wait_for(process, "max_model_len")
        while not out.exists() or not out.read_bytes().count(b"\n"):
            time.sleep(0.01)  # until the first line is done; the second one runs on
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == status, errors.decode()
        assert nobody_is_left(process)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["finish_reason"] for record in records] == ["length", "abort"]
    assert 0 < len(records[1]["token_ids"]) < 200_000
    assert "1 requests are ended early" in errors.decode()
    assert "2 done, 0 failed" in errors.decode()


def test_run_prints_what_there_is(tmp_path: Path) -> None:
    arguments = ["run", "x", "--max_tokens", "200000", "--ignore_eos", "--json", *NULL]
    with started(tmp_path, *arguments) as process:
        wait_for(process, "meaningless")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 143, errors.decode()
    answer, summary = (json.loads(line) for line in output.decode().splitlines())
    assert answer["finish_reason"] == "abort" and len(answer["token_ids"]) < 200_000
    assert summary["summary"]["requests"] == {"abort": 1}


def test_a_step_that_hangs_does_not_outlive_the_grace_period(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{json.dumps(LONG)}\n")
    arguments = ["generate", str(source), "--grace", "0.5", *NULL]
    with started(tmp_path, *arguments, before=HANG) as process:
        wait_for(process, "hanging")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert nobody_is_left(process)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{json.dumps(LONG)}\n")
    arguments = ["generate", str(source), "--grace", "1000", *NULL]
    with started(tmp_path, *arguments, before=HANG) as process:
        wait_for(process, "hanging")
        process.send_signal(signal.SIGINT)
        wait_for(process, "ended early")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130


def test_kill_and_resume(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = [json.dumps({**LONG, "prompt": f"p{i}", "max_tokens": 30}) for i in range(80)]
    source.write_text("\n".join(texts))
    arguments = ["generate", str(source), "-o", str(out), "--max_num_seqs", "4", *NULL]
    with started(tmp_path, *arguments) as process:
        wait_for(process, "meaningless")
        while not out.read_bytes().count(b"\n"):
            time.sleep(0.01)  # until some line is done
        process.kill()
        process.communicate(timeout=60)
    before = out.read_bytes().count(b"\n")
    assert 0 < before < 80
    with started(tmp_path, *arguments, "--resume") as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(record["line"] for record in records) == list(range(1, 81))
    assert f"{80 - before} done, 0 failed, {before} done before" in errors.decode()
