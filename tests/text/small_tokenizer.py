"""A small byte-level BPE tokenizer with special and ordinary added tokens, written by the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from deepinfer.config import ModelConfig
from deepinfer.text import Tokenizer
from tests.config.released import released_config

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
IMAGE = "<｜deepseek_image｜>"
SPECIAL = ("<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>", IMAGE)
ORDINARY = ("<think>", "</think>", "｜DSML｜", "<fim>")
MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("l", "l"),
    ("Ġ", "the"),
    ("à¤", "\u00b8"),  # the three bytes of U+0938, as one token that is a whole character
    ("à", "¤"),  # its first two bytes
    ("ðŁ", "ĺ"),  # three of the four bytes of an emoji
    ("ð", "Ł"),
    ("th", "i"),
    ("thi", "n"),
    ("thin", "k"),
    ("<", "think"),
    ("<think", ">"),
)
TINY_VOCABULARY = 320


def write_tokenizer(
    directory: Path,
    special: tuple[str, ...] = SPECIAL,
    ordinary: tuple[str, ...] = ORDINARY,
    names: dict[str, Any] | None = None,
) -> Path:
    """tokenizer.json and tokenizer_config.json; ids 0, 1, 2 are bos, eos, pad."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = ["".join(pair) for pair in MERGES]
    vocabulary = {token: i for i, token in enumerate([BOS, EOS, PAD, *alphabet, *merged])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, PAD, *special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ordinary])
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD} if names is None else names
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return directory


def small_config(**changes: object) -> ModelConfig:
    """The released configuration without Engram, draft and vision, for a small vocabulary."""
    values = released_config()
    image = BASE_SIZE + SPECIAL.index(IMAGE)
    values |= {"image_token_id": image, "vision_config": {"num_hidden_layers": 0}}
    text = values["text_config"]
    text |= {"vocab_size": TINY_VOCABULARY, "engram_layer_ids": [], "num_nextn_predict_layers": 0}
    text["compress_ratios"] = text["compress_ratios"][:40]
    for key, value in changes.items():
        (text if key in text else values)[key] = value
    for key in [key for key in text if key.startswith(("engram_", "dspark_"))]:
        if key != "engram_layer_ids":
            del text[key]
    return ModelConfig.from_dict(values)


BASE_SIZE = 3 + 256 + len(MERGES)  # ids below are the BPE vocabulary


def small_tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(write_tokenizer(directory), small_config())


def edit(directory: Path, **changes: object) -> None:
    """Replace top-level keys of tokenizer.json."""
    file = directory / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
