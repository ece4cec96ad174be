"""Signals to commands that run: partial results, the grace period, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = {"prompt": "x", "max_tokens": 200_000, "ignore_eos": True}
NULL = ["--accelerator", "null", "--allow-null", "--compute", "fp32"]
HANG = """
import deepinfer_null.plugin as null, time
def sample(self, logprobs, seeds, positions, purpose):
    print("hanging", file=__import__("sys").stderr, flush=True)
    time.sleep(1000)
null.NullBackend.sample = sample
"""


DEEPINFER = [str(Path(sysconfig.get_path("scripts")) / "deepinfer")]
RUN = [sys.executable, str(ROOT / "run.py")]


@contextmanager
def started(
    folder: Path, *command: str, stdin: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own."""
    environment = {k: v for k, v in os.environ.items() if "DEEPINFER" not in k}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=stdin,
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


def wait_for_results(process: subprocess.Popen[bytes], out: Path, count: int) -> None:
    """Wait until so many results are there."""
    while not out.exists() or out.read_bytes().count(b"\n") < count:
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.slow
def test_generate_writes_what_there_is(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{json.dumps({**LONG, 'max_tokens': 1})}\n{json.dumps(LONG)}\n")
    command = [*DEEPINFER, "generate", str(source), "-o", str(out), *NULL]
    with started(tmp_path, *command) as process:
        wait_for_results(process, out, 1)  # the second line runs on
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 143, errors.decode()
        assert nobody_is_left(process)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["finish_reason"] for record in records] == ["length", "abort"]
    assert 0 < len(records[1]["token_ids"]) < 200_000
    assert "SIGTERM: 1 requests are ended early" in errors.decode()
    assert "2 done, 0 failed" in errors.decode()
    assert "Traceback" not in errors.decode()


@pytest.mark.slow
def test_run_prints_what_there_is(tmp_path: Path) -> None:
    command = [*RUN, "x", "--max_tokens", "200000", "--ignore_eos", *NULL]
    with started(tmp_path, *command) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"> x\n"
        first = process.stdout.read(1)  # it is being answered
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors.decode()
        assert nobody_is_left(process)
    assert (first + output).endswith(b"\n")
    assert errors.decode().splitlines()[-1].startswith("prefill ")


@pytest.mark.slow
def test_an_input_that_does_not_come_keeps_nobody(tmp_path: Path) -> None:
    command = [*DEEPINFER, "generate", "-", "--grace", "1000", *NULL]
    reading, writing = os.pipe()
    with (
        open(writing, "wb"),
        open(reading, "rb") as pipe,
        started(tmp_path, *command, stdin=pipe) as process,
    ):
        wait_for(process, "was trained on")
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors.decode()
    assert "Fatal" not in errors.decode()


@pytest.mark.slow
def test_a_step_that_hangs_does_not_outlive_the_grace_period(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{json.dumps(LONG)}\n")
    script = f"import sys, deepinfer_launcher\n{HANG}\nsys.exit(deepinfer_launcher.main())"
    command = [sys.executable, "-c", script, "generate", str(source), "--grace", "0.5", *NULL]
    with started(tmp_path, *command) as process:
        wait_for(process, "hanging")
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == 143
        assert nobody_is_left(process)


@pytest.mark.slow
def test_kill_and_resume(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = [json.dumps({**LONG, "prompt": f"p{i}", "max_tokens": 30}) for i in range(80)]
    source.write_text("\n".join(texts))
    command = [*DEEPINFER, "generate", str(source), "-o", str(out), "--max_num_seqs", "4", *NULL]
    with started(tmp_path, *command) as process:
        wait_for_results(process, out, 1)
        process.kill()
        process.communicate(timeout=60)
    before = out.read_bytes().count(b"\n")
    assert 0 < before < 80
    with started(tmp_path, *command, "--resume") as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(record["index"] for record in records) == list(range(1, 81))
    assert f"{80 - before} done, 0 failed, {before} done before" in errors.decode()
