"""JSON as this checkpoint writes it: one spelling per value, so that bytes can be compared."""

from __future__ import annotations

import json
from typing import Any


def json_bytes(values: dict[str, Any], *, indent: int | None = 2) -> bytes:
    """UTF-8 JSON, keys in the order given; `indent` None writes no white space at all."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(values, ensure_ascii=False, indent=indent, separators=separators)
    return (text + "\n" * (indent is not None)).encode("utf-8")
