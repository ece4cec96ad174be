"""Logs: lines on stderr, as text or as one JSON object each, with the id of the request.

Everything of DeepInfer logs below the logger `deepinfer`. Importing this module configures
nothing; a command calls `configure_logging` once it has its settings. An application that brings
its own logging does not call it, and sees the records as those of any library. stdout is never
written to.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

from deepinfer.errors import UsageError
from deepinfer.settings.settings import Origin, Settings
from deepinfer_launcher import json_line

ROOT = "deepinfer"
REQUEST_FIELD = "request_id"

LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


def configure_logging(settings: Settings) -> logging.Logger:
    """Send the records of `deepinfer` to stderr; returns that logger. May be called again.

    Format by DEEPINFER_LOG_FORMAT; level by DEEPINFER_LOG_LEVEL or, where only the vendor's
    spelling of it is set, by DEEPINFER_CPP_LOG_LEVEL. Records no longer reach the handlers of the
    root logger, which would print them again.
    """
    formatter = JsonFormatter() if _format(settings) == "json" else TextFormatter()
    handler = StderrHandler()
    handler.setFormatter(formatter)
    logger = logging.getLogger(ROOT)
    for previous in [old for old in logger.handlers if isinstance(old, StderrHandler)]:
        logger.removeHandler(previous)
    logger.addHandler(handler)
    logger.setLevel(LEVELS[_level(settings)])
    logger.propagate = False
    return logger


def _format(settings: Settings) -> str | None:
    return settings.text("DEEPINFER_LOG_FORMAT")


def _level(settings: Settings) -> str:
    level = settings.text("DEEPINFER_LOG_LEVEL")
    if settings.origin("DEEPINFER_LOG_LEVEL") is Origin.DEFAULT:
        level = settings.text("DEEPINFER_CPP_LOG_LEVEL")
    if level not in LEVELS:
        raise UsageError(f"the log level is {level!r}; allowed: {', '.join(LEVELS)}")
    return level


class RequestLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry the id of one request, beside what a call adds itself."""

    def __init__(self, logger: logging.Logger, request_id: str) -> None:
        super().__init__(logger, {REQUEST_FIELD: request_id})
        self.request_id = request_id

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the request id to the fields of a record."""
        added = {**(kwargs.get("extra") or {}), REQUEST_FIELD: self.request_id}
        return msg, {**kwargs, "extra": added}


class StderrHandler(logging.Handler):
    """Writes whole lines to what `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a closed stderr loses it, as `logging` does everywhere."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`, with the request in front of the message where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(request)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """One record as text; a traceback follows on lines of its own."""
        request_id = getattr(record, REQUEST_FIELD, None)
        record.request = "" if request_id is None else f"[request {request_id}] "
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, as `json_line` makes it, with request_id and exception (a traceback)
    where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One record as a JSON object without a line break."""
        fields = {}
        request_id = getattr(record, REQUEST_FIELD, None)
        if request_id is not None:
            fields[REQUEST_FIELD] = str(request_id)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        message, level = record.getMessage(), record.levelname.lower()
        return json_line(message, level, logger=record.name, seconds=record.created, **fields)
