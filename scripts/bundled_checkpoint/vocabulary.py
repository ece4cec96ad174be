"""The bundled tokenizer: byte-level BPE trained on `corpus.txt`, and the two files that hold it.

The training is plain counting with a fixed rule for ties, so the same corpus gives the same file on
every machine. The pre-tokenizer that splits the text is the one of the finished file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from bundled_checkpoint.json_file import json_bytes
from deepinfer.text.byte_level import BYTE_OF

CORPUS = Path(__file__).with_name("corpus.txt")

LEADING = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
"""BOS, EOS and pad: ids 0, 1, 2."""
ORDINARY = ("<think>", "</think>", "｜DSML｜")
"""Control tokens that stay in the text when special tokens are left out: markup for a parser."""
NOISE = "<｜draft▁slot｜>"
IMAGE = "<｜deepseek_image｜>"
TRAILING = (
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    *ORDINARY,
    "<｜ref｜>",
    "<｜/ref｜>",
    "<｜box｜>",
    "<｜/box｜>",
    "<｜point｜>",
    "<｜/point｜>",
    "<｜polygon｜>",
    "<｜/polygon｜>",
    NOISE,
    IMAGE,
)
"""The other added tokens, in the order of their ids, at the end of the vocabulary."""

SPLITS = (
    r"\p{N}{1,3}",  # digits, three to a piece
    r"[\u3040-\u30ff\u4e00-\u9fff]+",  # kana and ideographs, which know no spaces
    # a word or punctuation with the space before it, line ends, other white space
    r" ?\p{L}[\p{L}\p{M}]*| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


class Vocabulary(NamedTuple):
    """tokenizer: parsed tokenizer.json. size: number of ids. texts: the bytes of every id, in
    order; None for an added token."""

    tokenizer: dict[str, Any]
    size: int
    texts: list[bytes | None]

    def token_id(self, spelling: str) -> int:
        """Id of an added token."""
        added = {token["content"]: token["id"] for token in self.tokenizer["added_tokens"]}
        return int(added[spelling])

    def files(self) -> dict[str, bytes]:
        """Contents of tokenizer.json and tokenizer_config.json by file name."""
        bos, eos, pad = LEADING
        names = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": eos,
            "pad_token": pad,
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
        }
        return {
            "tokenizer.json": json_bytes(self.tokenizer),
            "tokenizer_config.json": json_bytes(names),
        }


def build_vocabulary(size: int, corpus: str | None = None) -> Vocabulary:
    """A vocabulary of exactly `size` ids: leading tokens, bytes, merges, trailing tokens.

    corpus: what the merges are counted on; None: `corpus.txt`.
    """
    character_of = {byte: character for character, byte in BYTE_OF.items()}
    tokens = [*LEADING, *(character_of[byte] for byte in range(256))]
    if corpus is None:
        corpus = CORPUS.read_text(encoding="utf-8")
    pieces = _pieces(_tokenizer(tokens, [], ()), corpus)
    merges = _train(pieces, size - len(tokens) - len(TRAILING))
    tokens += [left + right for left, right in merges]
    texts: list[bytes | None] = [
        bytes(BYTE_OF[character] for character in token) for token in tokens[len(LEADING) :]
    ]
    texts = [None] * len(LEADING) + texts + [None] * len(TRAILING)
    return Vocabulary(_tokenizer(tokens, merges, TRAILING), len(texts), texts)


def _pieces(values: dict[str, Any], text: str) -> Counter[str]:
    """How often each piece of the split text occurs, in the byte alphabet."""
    splitter = tokenizers.Tokenizer.from_str(json_bytes(values).decode()).pre_tokenizer
    return Counter(piece for piece, _ in splitter.pre_tokenize_str(text))


def _train(pieces: Counter[str], count: int) -> list[tuple[str, str]]:
    """`count` merges: each joins the most frequent pair, the first in code point order of several.

    A pair that occurs once is joined too, after all others, so a small corpus is enough.
    """
    words = [list(piece) for piece in pieces]
    weights = list(pieces.values())
    counts: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # words that have the pair
    for i, word in enumerate(words):
        for pair in pairwise(word):
            counts[pair] += weights[i]
            places[pair].add(i)
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        if not counts:
            raise ValueError(f"the corpus gives only {len(merges)} of {count} merges; add text")
        highest = max(counts.values())
        best = min(pair for pair, number in counts.items() if number == highest)
        merges.append(best)
        for i in places.pop(best):
            before, after = words[i], _joined(words[i], best)
            words[i] = after
            for pair in pairwise(before):
                counts[pair] -= weights[i]
            for pair in pairwise(after):
                counts[pair] += weights[i]
                places[pair].add(i)
            for pair in pairwise(before):
                if not counts[pair]:
                    del counts[pair]
    return merges


def _joined(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """The symbols with every occurrence of the pair, from the left, made one."""
    result: list[str] = []
    position = 0
    while position < len(symbols):
        if tuple(symbols[position : position + 2]) == pair:
            result.append(pair[0] + pair[1])
            position += 2
        else:
            result.append(symbols[position])
            position += 1
    return result


def _added(token_id: int, content: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": content not in ORDINARY,
    }


def _tokenizer(
    tokens: list[str], merges: list[tuple[str, str]], trailing: Iterable[str]
) -> dict[str, Any]:
    """tokenizer.json, parsed. Nothing adds BOS: the engine puts it in front by its id."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    splits = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in SPLITS
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(_added(i, content) for i, content in enumerate(LEADING)),
            *(_added(len(tokens) + i, content) for i, content in enumerate(trailing)),
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {**byte_level, "use_regex": False}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }
