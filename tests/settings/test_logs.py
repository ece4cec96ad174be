"""Logs: on stderr, as text or JSON lines, with the id of the request."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from deepinfer.logs import LEVELS, RequestLogger, StderrHandler, configure_logging
from deepinfer.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


def configured(**environ: str) -> logging.Logger:
    return configure_logging(Settings.from_environment(environ))


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    configured()
    logging.getLogger("deepinfer.engine").info("step %d", 7)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(" INFO deepinfer.engine: step 7\n")


def test_text_with_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    RequestLogger(configured(), "r-1").warning("too long")
    assert capsys.readouterr().err.endswith(" WARNING deepinfer: [request r-1] too long\n")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    logger = configured(DEEPINFER_LOG_FORMAT="json")
    logger.info("one\ntwo é")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    record = json.loads(lines[0])
    assert datetime.fromisoformat(record.pop("time")).utcoffset() is not None
    assert record == {"level": "info", "logger": "deepinfer", "message": "one\ntwo é"}


def test_json_with_a_request_and_an_exception(capsys: pytest.CaptureFixture[str]) -> None:
    logger = RequestLogger(configured(DEEPINFER_LOG_FORMAT="json"), "r-1")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("failed")
    record = json.loads(capsys.readouterr().err)
    assert (record["request_id"], record["level"]) == ("r-1", "error")
    assert record["exception"].endswith("ValueError: broken")


def test_request_id_as_a_field_of_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    configured(DEEPINFER_LOG_FORMAT="json").info("done", extra={"request_id": 3})
    assert json.loads(capsys.readouterr().err)["request_id"] == "3"


def test_request_logger_keeps_other_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="deepinfer"):
        RequestLogger(logging.getLogger("deepinfer"), "r-1").info("done", extra={"tokens": 4})
    assert caplog.records[0].__dict__["tokens"] == 4
    assert caplog.records[0].__dict__["request_id"] == "r-1"


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, logging.INFO),
        ({"DEEPINFER_LOG_LEVEL": "debug"}, logging.DEBUG),
        ({"DEEPINFER_CPP_LOG_LEVEL": "warn"}, logging.WARNING),
        ({"DEEPINFER_LOG_LEVEL": "error", "DEEPINFER_CPP_LOG_LEVEL": "info"}, logging.ERROR),
        ({"DEEPINFER_CPP_LOG_LEVEL": "off"}, LEVELS["off"]),
    ],
)
def test_level(environ: dict[str, str], level: int) -> None:
    assert configured(**environ).level == level


def test_off_is_silent_even_for_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    configured(DEEPINFER_LOG_LEVEL="off").critical("the end")
    assert capsys.readouterr().err == ""


def test_configuring_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    configured()
    logger = configured(DEEPINFER_LOG_FORMAT="json")
    logger.info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert sum(isinstance(handler, StderrHandler) for handler in logger.handlers) == 1


def test_other_handlers_stay() -> None:
    kept = logging.NullHandler()
    logging.getLogger("deepinfer").addHandler(kept)
    assert kept in configured().handlers


def test_root_logger_is_left_alone() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    configured(DEEPINFER_LOG_LEVEL="debug")
    assert (list(root.handlers), root.level) == before


@pytest.mark.slow
def test_importing_configures_nothing() -> None:
    code = (
        "import logging, deepinfer.logs; logger = logging.getLogger('deepinfer'); "
        "print(logger.handlers, logger.level, logging.getLogger().handlers)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "[] 0 []\n", done.stderr
