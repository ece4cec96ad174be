"""The compressed vocabulary of Engram: token ids with equal normalised text share an id.

Source: model specification, section 8.2. The Unicode tables are those of the `tokenizers` library,
as in the implementations whose checkpoints we read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, normalizers

from deepinfer.errors import TokenizerError
from deepinfer.text import files
from deepinfer.text.tokenizer import Tokenizer

_SPACE_SENTINEL = "\ue000"


def compressed_token_map(
    source: Tokenizer | str | Path, vocab_size: int, compressed_vocab_size: int | None = None
) -> npt.NDArray[np.int32]:
    """The compressed id of every token id: int32 [vocab_size].

    source: the tokenizer, or the path of a tokenizer.json. vocab_size: rows of the embedding.
    compressed_vocab_size: `engram_compressed_vocab_size`, on which every hash multiplier depends. A
    map of another size is a TokenizerError with both numbers. None: the size is not checked.

    Ids that the file does not define have the empty text, and so share one compressed id, which
    counts towards the size.
    """
    if isinstance(source, Tokenizer):
        name, tokenizer = source.file, source.library_tokenizer
    else:
        name = Path(source)
        values = files.read_json_object(name)
        files.check_byte_level_bpe(name, values)
        tokenizer = files.build_tokenizer(name, values)
    normalise = _normaliser()
    numbers: dict[str, int] = {}
    token_map = np.empty(vocab_size, dtype=np.int32)
    for token_id in range(vocab_size):
        key = _key(tokenizer, normalise, token_id)
        token_map[token_id] = numbers.setdefault(key, len(numbers))
    if compressed_vocab_size is not None and len(numbers) != compressed_vocab_size:
        raise TokenizerError(
            f"{name}: folds {vocab_size} ids into {len(numbers)} compressed ids, but "
            f"engram_compressed_vocab_size in config.json is {compressed_vocab_size}; "
            "the two files must belong to one checkpoint"
        )
    return token_map


def _key(tokenizer: tokenizers.Tokenizer, normalise: normalizers.Normalizer, token_id: int) -> str:
    """The key that ids with equal compressed id share.

    It is the normalised text, or the spelling of a token whose bytes are no whole text.
    """
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\ufffd" in text:
        return tokenizer.id_to_token(token_id) or ""
    return normalise.normalize_str(text) or text


def _normaliser() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"\A \z"), _SPACE_SENTINEL),
            normalizers.Strip(),
            normalizers.Replace(_SPACE_SENTINEL, " "),
        ]
    )
