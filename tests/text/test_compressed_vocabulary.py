"""The compressed vocabulary (model specification, section 8.2)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from deepinfer.config import ModelConfig
from deepinfer.errors import TokenizerError
from deepinfer.text import Tokenizer, compressed_token_map
from tests.text.small_tokenizer import small_config, write_tokenizer

GOLDEN = Path(os.environ.get("DEEPINFER_GOLDEN_DIR", ""), "ops.safetensors")


def folded(directory: Path, *tokens: str) -> list[int]:
    """Compressed ids of added tokens, renumbered from 0 in order of first appearance."""
    write_tokenizer(directory, ordinary=tokens)
    tokenizer = Tokenizer.from_directory(directory, small_config())
    token_map = compressed_token_map(tokenizer, 320)
    numbers: dict[int, int] = {}
    return [
        numbers.setdefault(int(token_map[tokenizer.token_id(token)]), len(numbers))
        for token in tokens
    ]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (("Hello", "hello", " HELLO "), [0, 0, 0]),  # case and outer blanks
        (("Ǎlan", "alan", "A\u030clan"), [0, 0, 0]),  # accents, composed or not
        (("\ufb01x", "fix"), [0, 0]),  # compatibility forms
        (("a \t\r\nb", "a b", "ab"), [0, 0, 1]),  # runs of blanks inside
        (("  ", "\t\n", " \r"), [0, 0, 0]),  # blanks alone are one space
        (("x\ue000y", "x y"), [0, 0]),  # the sentinel becomes a space
        (("\u0301", "\u0300"), [0, 1]),  # only accents: nothing is left, so the text itself
        (("\u00a0\u00a0qq", "qq"), [0, 0]),
    ],
)
def test_folding(tmp_path: Path, tokens: tuple[str, ...], expected: list[int]) -> None:
    assert folded(tmp_path, *tokens) == expected


def test_half_characters_are_folded_by_spelling(tokenizer: Tokenizer) -> None:
    token_map = compressed_token_map(tokenizer, tokenizer.vocab_size)
    halves = [i for i in range(3, 259) if tokenizer.token_bytes(i)[0] >= 0x80]
    assert len({int(token_map[i]) for i in halves}) == 128


def test_numbering_follows_first_appearance(tokenizer: Tokenizer) -> None:
    token_map = compressed_token_map(tokenizer, tokenizer.vocab_size)
    assert token_map.dtype == np.int32
    first = list(dict.fromkeys(token_map.tolist()))
    assert first == list(range(len(first)))
    assert token_map[:4].tolist() == [0, 1, 2, 3]


def test_ids_without_a_token_share_one_compressed_id(tokenizer: Tokenizer) -> None:
    token_map = compressed_token_map(tokenizer, 320)
    undefined = token_map[tokenizer.vocab_size :]
    assert set(undefined.tolist()) == {int(token_map.max())}


def test_size_is_checked(tokenizer: Tokenizer) -> None:
    size = int(compressed_token_map(tokenizer, 320).max()) + 1
    assert len(compressed_token_map(tokenizer, 320, size)) == 320
    with pytest.raises(TokenizerError, match=rf"into {size} compressed.* is {size + 1}"):
        compressed_token_map(tokenizer, 320, size + 1)


def test_a_path_gives_the_same_map(tokenizer: Tokenizer) -> None:
    from_path = compressed_token_map(tokenizer.file, 320)
    assert np.array_equal(from_path, compressed_token_map(tokenizer, 320))


@pytest.mark.skipif(not GOLDEN.is_file(), reason="DEEPINFER_GOLDEN_DIR names no golden data")
def test_golden_map() -> None:
    from safetensors import safe_open

    directory = GOLDEN.parent / "tiny-a" / "checkpoint"
    config = ModelConfig.from_file(directory)
    tokenizer = Tokenizer.from_directory(directory, config)
    with safe_open(GOLDEN, "np") as golden:
        expected = golden.get_tensor("engram.tiny.token_map")
    size = config.text.engram_compressed_vocab_size
    token_map = compressed_token_map(tokenizer, config.text.vocab_size, size)
    assert token_map.tolist() == expected.tolist()
