"""Workers of a run: nothing that a backend does in one blocks the run, ends it or outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.conformance import workers
from deepinfer.conformance.case import Case, Verdict
from deepinfer.conformance.registry import Check
from deepinfer.errors import BackendError, UsageError

TARGET = workers.Target("reference", "hardware", {})
CASE = "rms_norm[eps=1e-06,rows=3,width=64,dtype=bf16,values=normal,seed=0]"
# A job in the background of a shell ignores SIGINT, and so do its children unless they say not to.
SCRIPT = """
import signal, sys, deepinfer_launcher
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(deepinfer_launcher.main())
"""
COMMAND = [sys.executable, "-c", SCRIPT]

PATCH = """
from deepinfer_reference.backend import ReferenceBackend
plain = ReferenceBackend.rms_norm
def patched(self, x, weight, eps):
    return behave(x, lambda: plain(self, x, weight, eps))
ReferenceBackend.rms_norm = patched
"""
ODD = """
import os, resource, sys, time
class Speechless(Exception):
    def __str__(self):
        raise RuntimeError
def behave(x, right):
    rows = x.shape[0]
    if rows == 2:
        for stream in (1, 2):
            for _ in range(200):
                os.write(stream, b"x" * 65536)
    if rows == 5:
        raise Speechless
    if rows == 6:
        sys.exit(0)
    if rows == 7:
        most = 2 ** 34
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        held = []
        while True:
            held.append(bytes(2 ** 31))
    if rows == 9:
        raise ValueError("y" * 10 ** 6)
    if rows == 10 and os.fork() == 0:
        time.sleep(1000)
    if rows == 10:
        os._exit(3)
    if rows == 11:
        os.closerange(3, 100)
        time.sleep(1000)
    return right()
"""
HANGING = """
import os, time
def behave(x, right):
    os.fork()
    held = os.open("alive", os.O_WRONLY)
    os.write(held, b".")
    time.sleep(1000)
"""


def site(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python that is started from here begins with this text."""
    (folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def check(rows: int) -> Check:
    return Check(Case.of("rms_norm", {"rows": rows, "width": 64, "eps": 1e-6}))


@pytest.mark.slow
def test_whatever_a_backend_does_is_the_outcome_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(tmp_path, ODD + PATCH, monkeypatch)
    chosen = [check(rows) for rows in (2, 5, 6, 7, 9, 10, 11, 12)]
    found: dict[int, Verdict] = {}
    for verdict in workers.run_isolated(chosen, TARGET, 2, limit=60):
        found[verdict.case.size("rows")] = verdict
    passed = {rows for rows, verdict in found.items() if verdict.passed}
    assert passed == {2, 12}, [str(verdict) for verdict in found.values()]
    errors = {rows for rows, verdict in found.items() if verdict.outcome == "error"}
    assert errors == set(found) - passed
    assert "its text cannot be had" in found[5].message
    assert "SystemExit: 0" in found[6].message
    assert "MemoryError" in found[7].message
    assert "... (1000000 characters)" in found[9].message
    assert "the worker ended with status 3" in found[10].message
    assert "the worker closed its pipes" in found[11].message


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Neither a hanging worker nor what it started; an interrupted run writes no report."""
    site(tmp_path, HANGING + PATCH, monkeypatch)
    os.mkfifo(tmp_path / "alive")
    words = ["conformance", "--accelerator", "reference", "--case", CASE, "--report", "report"]
    with (
        subprocess.Popen(
            [*COMMAND, *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        (tmp_path / "alive").open("rb", buffering=0) as alive,
    ):
        assert alive.read(1) == b"."
        assert alive.read(1) == b"."
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert alive.read(1) == b""  # both that held it have ended
    assert process.returncode == (130 if number is signal.SIGINT else -number)
    assert output == ""
    assert "Traceback" not in errors
    assert not (tmp_path / "report" / "report.json").exists()


CREATE = """
import os, sys
from deepinfer_reference import plugin
if "deepinfer.conformance.worker" in " ".join(sys.orig_argv):
    import deepinfer.backend.registry as registry
    def create(self, device=None):
        {body}
    registry.Selected.create = create
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.abort()", "loading it ended the worker with signal SIGABRT"),
        ("import time; time.sleep(1000)", "it was not loaded after 3 s"),
    ],
)
def test_a_backend_that_ends_or_hangs_while_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    """It is found in a worker, before the command itself loads the backend."""
    site(tmp_path, CREATE.format(body=body), monkeypatch)
    if "sleep" in body:
        monkeypatch.setattr(workers, "START_LIMIT", 3)
    with pytest.raises(BackendError, match=f"backend 'reference', mode 'hardware': .*{said}"):
        workers.loaded(TARGET)


@pytest.mark.slow
def test_limits_without_end_are_waited_for() -> None:
    (found,) = workers.run_isolated([check(3)], TARGET, 1, limit=float("inf"))
    assert found.passed


@pytest.mark.parametrize("number", [-1, 100000])
def test_numbers_of_workers_that_no_run_takes(number: int) -> None:
    with pytest.raises(UsageError, match=f"workers is {number}; allowed: 0 .* to "):
        workers.check_workers(number)
