"""JSON of others, read without trust: duplicate keys, NaN and deep nesting are errors."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, for `object_pairs_hook`; ValueError for a key that comes twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:200]!r} appears twice")
    return result


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def parse_object(data: bytes | str) -> dict[str, Any]:
    """One JSON object from UTF-8 bytes or from text.

    Errors: ValueError with the reason, whatever is wrong (encoding, syntax, a key twice, NaN,
    nesting too deep, an integer of thousands of digits, not an object).
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit in memory") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}, not an object")
    return value
