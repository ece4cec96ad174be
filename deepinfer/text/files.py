"""Reads and checks the two tokenizer files of a checkpoint.

Only `tokenizer.json` and `tokenizer_config.json` are read, as data: code that a checkpoint names
(`auto_map`) is never loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from deepinfer.errors import TokenizerError
from deepinfer.strict_json import unique_keys

REMEDY = "copy the file from the published checkpoint"


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Errors: TokenizerError with the file and what to do."""
    try:
        values = json.loads(file.read_bytes().decode("utf-8"), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise TokenizerError(f"{file}: not found; {REMEDY}") from None
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}; {REMEDY}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file}: is not UTF-8 text; {REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: is not valid JSON ({error}); {REMEDY}") from error
    if not isinstance(values, dict):
        raise TokenizerError(f"{file}: must hold a JSON object; {REMEDY}")
    return values


def added_tokens(file: Path, values: Mapping[str, Any]) -> dict[str, tuple[int, bool]]:
    """Content -> (id, special) of every added token of a parsed tokenizer.json."""
    tokens: dict[str, tuple[int, bool]] = {}
    entries = values.get("added_tokens") or []
    if not isinstance(entries, list):
        raise TokenizerError(f"{file}: added_tokens must be a list; {REMEDY}")
    for entry in entries:
        content = entry.get("content") if isinstance(entry, dict) else None
        number = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or type(number) is not int or number < 0:
            raise TokenizerError(
                f"{file}: added_tokens has the entry {entry!r}, which needs a content and an id; "
                f"{REMEDY}"
            )
        tokens[content] = (number, bool(entry.get("special", False)))
    return tokens


def check_byte_level_bpe(file: Path, values: Mapping[str, Any]) -> None:
    """TokenizerError for every kind of tokenizer but byte-level BPE, the published one."""
    model = values.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE" or not isinstance(model.get("vocab"), dict):
        raise TokenizerError(f"{file}: the model is {kind!r} and must be a BPE model; {REMEDY}")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise TokenizerError(
                f"{file}: {key} is {model[key]!r} and must be empty in a byte-level BPE; {REMEDY}"
            )
    decoder = values.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        found = decoder.get("type") if isinstance(decoder, dict) else None
        raise TokenizerError(f"{file}: the decoder is {found!r} and must be 'ByteLevel'; {REMEDY}")


def build_tokenizer(file: Path, values: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A tokenizer of the `tokenizers` library without added ids, truncation, padding or dropout."""
    model = {**values["model"], "dropout": None}
    bare = {**values, "model": model, "post_processor": None, "truncation": None, "padding": None}
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(bare))
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # the library raises plain Exception, or a panic, which is a BaseException
        raise TokenizerError(f"{file}: the tokenizer cannot be built: {error}; {REMEDY}") from error


def without_tokens(values: Mapping[str, Any], removed: set[str]) -> dict[str, Any]:
    """Change a parsed tokenizer.json so that no text encodes to one of the `removed` tokens.

    The result has no added tokens. Removed tokens that are also in the BPE vocabulary are taken out
    of it, with all merges that make or use them.
    """
    model = values["model"]
    vocabulary = {token: number for token, number in model["vocab"].items() if token not in removed}
    merges = []
    for merge in model.get("merges") or []:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if not removed & {left, right, left + right}:
            merges.append([left, right])
    unknown = model.get("unk_token")
    unknown = unknown if unknown in vocabulary else None
    model = {**model, "vocab": vocabulary, "merges": merges, "unk_token": unknown}
    return {**values, "added_tokens": [], "model": model}
