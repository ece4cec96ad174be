"""The tokenizer of a checkpoint: text to ids, ids to text, control tokens by name.

The ids of control tokens come from config.json, their spellings from tokenizer.json. Text of a user
never becomes a control token, because it is encoded by a second tokenizer without added tokens.
Source: model specification, section 12.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import tokenizers

from deepinfer.config import ModelConfig
from deepinfer.errors import RequestError, TokenizerError
from deepinfer.text import files
from deepinfer.text.byte_level import BYTE_OF, token_to_bytes

PROBE: Final = " a  B'1\t23\n\né 中🚀. "
"""A text with characters that other kinds of tokenizers drop when they split a text."""

IMAGE_SPELLINGS: Final = ("<｜deepseek_image｜>", "<｜image｜>")

CONTROL_SPELLINGS: Final = (
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜ref｜>",
    "<｜/ref｜>",
    "<｜box｜>",
    "<｜/box｜>",
    "<｜point｜>",
    "<｜/point｜>",
    "<｜polygon｜>",
    "<｜/polygon｜>",
    *IMAGE_SPELLINGS,
)


class TokenizerWarning(UserWarning):
    """tokenizer_config.json names another control token than config.json's id; the id is used."""


class Tokenizer:
    """Byte-level BPE over the two tokenizer files of a checkpoint.

    bos_id, eos_id, pad_id: from config.json. vocab_size: one more than the largest id of
    tokenizer.json. model_vocab_size: rows of the embedding, at least as many. Ids from vocab_size
    on have no text.
    """

    def __init__(self, file: Path, values: Mapping[str, Any], config: ModelConfig) -> None:
        """Use `from_directory`. values: the parsed tokenizer.json. file: its name for messages."""
        files.check_byte_level_bpe(file, values)
        self.file = file
        self.added_tokens = files.added_tokens(file, values)
        self.library_tokenizer = files.build_tokenizer(file, values)
        self.vocab_size = self._check_vocabulary(config.text.vocab_size)
        self.model_vocab_size = config.text.vocab_size
        self.bos_id = self._check_id("bos_token_id", config.bos_token_id)
        self.eos_id = self._check_id("eos_token_id", config.eos_token_id)
        self.pad_id = self._check_id("pad_token_id", config.pad_token_id)
        self.image_id = config.image_token_id
        self._special = {number for number, special in self.added_tokens.values() if special}
        self._plain = self._build_plain(values)
        self._loses_bytes = not BYTE_OF.keys() <= values["model"]["vocab"].keys()
        self._check_splitting()

    @classmethod
    def from_directory(cls, path: str | Path, config: ModelConfig) -> Tokenizer:
        """Read tokenizer.json and tokenizer_config.json in `path`.

        Errors: TokenizerError with the file, what is wrong and what to do. A file may be missing or
        malformed, be no byte-level BPE, have more ids than the vocabulary of the model, or lack an
        id that config.json names.
        """
        directory = Path(path)
        file = directory / "tokenizer.json"
        values = files.read_json_object(file)
        names = files.read_json_object(directory / "tokenizer_config.json")
        tokenizer = cls(file, values, config)
        tokenizer._compare_names(directory / "tokenizer_config.json", names)
        return tokenizer

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """The ids of a user's text, never a control token, whatever the text spells.

        add_bos: put the bos id in front. Errors: RequestError for text that is not valid Unicode or
        has bytes that the vocabulary cannot spell.
        """
        _utf8(text)
        ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        if self._loses_bytes and not self._spells(ids, text):
            raise RequestError(
                f"the text {text[:60]!r} has characters that {self.file} has no tokens for"
            )
        return [self.bos_id, *ids] if add_bos else ids

    def encode_with_control(self, text: str) -> list[int]:
        """The ids of a trusted text in which spellings of added tokens become those tokens.

        Both spellings of the image placeholder do. Never pass text of a user.
        """
        _utf8(text)
        spelling = self._image_spelling
        if spelling is not None:
            for other in IMAGE_SPELLINGS:
                text = text if other in self.added_tokens else text.replace(other, spelling)
        return list(self.library_tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids without a token are empty.

        skip_special: leave out the tokens that the file marks as special. Errors: RequestError for
        an id outside the vocabulary of the model.
        """
        kept = (i for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for; empty for an id that tokenizer.json does not define."""
        if not 0 <= token_id < self.model_vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary, 0..{self.model_vocab_size - 1}"
            )
        return self._bytes.get(token_id, b"")

    def is_special(self, token_id: int) -> bool:
        """Whether the file marks the id as a special token."""
        return token_id in self._special

    def token_id(self, spelling: str) -> int:
        """The id of a control token by its spelling; the image placeholder has two spellings.

        Errors: TokenizerError where the file has no such token.
        """
        known: str | None = spelling
        if spelling in IMAGE_SPELLINGS:
            known = self._image_spelling
        found = None if known is None else self.library_tokenizer.token_to_id(known)
        if found is None:
            raise TokenizerError(
                f"{self.file}: has no token {spelling!r}, which this prompt needs; "
                f"use the tokenizer.json of the published checkpoint"
            )
        if spelling in IMAGE_SPELLINGS and found != self.image_id:
            raise TokenizerError(
                f"{self.file}: {known!r} has id {found}, but image_token_id in config.json is "
                f"{self.image_id}; the two files must belong to one checkpoint"
            )
        return found

    def has_token(self, spelling: str) -> bool:
        """Whether the file has a token of this spelling; the image placeholder has two."""
        if spelling in IMAGE_SPELLINGS:
            return self._image_spelling is not None
        return self.library_tokenizer.token_to_id(spelling) is not None

    @cached_property
    def _image_spelling(self) -> str | None:
        """The spelling of the image placeholder in the file, preferably that of `image_id`."""
        ids = {name: self.library_tokenizer.token_to_id(name) for name in IMAGE_SPELLINGS}
        found = [name for name, number in ids.items() if number is not None]
        found.sort(key=lambda name: ids[name] != self.image_id)
        return found[0] if found else None

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        vocabulary = self.library_tokenizer.get_vocab(with_added_tokens=False)
        table = {number: token_to_bytes(token) for token, number in vocabulary.items()}
        for content, (number, _) in self.added_tokens.items():
            table[number] = content.encode("utf-8")
        return table

    def _spells(self, ids: Sequence[int], text: str) -> bool:
        """Whether the ids decode to the whole text, after the normaliser of the file."""
        normaliser = self._plain.normalizer
        whole = normaliser.normalize_str(text) if normaliser is not None else text
        return b"".join(map(self.token_bytes, ids)).endswith(_utf8(whole))

    def _check_splitting(self) -> None:
        """TokenizerError for a pre-tokenizer that drops characters, as those of other kinds do."""
        if self._loses_bytes:
            return
        ids = self._plain.encode(PROBE, add_special_tokens=False).ids
        if not self._spells(ids, PROBE):
            raise TokenizerError(
                f"{self.file}: the pre_tokenizer loses characters of a text; it must be that of a "
                f"byte-level BPE; {files.REMEDY}"
            )

    def _check_vocabulary(self, model_vocab_size: int) -> int:
        vocabulary = self.library_tokenizer.get_vocab(with_added_tokens=True)
        if len(set(vocabulary.values())) != len(vocabulary):
            raise TokenizerError(f"{self.file}: two tokens share an id; {files.REMEDY}")
        for content, (number, _) in self.added_tokens.items():
            if vocabulary.get(content) != number:
                raise TokenizerError(
                    f"{self.file}: the added token {content!r} says id {number}, but its place in "
                    f"the vocabulary gives {vocabulary.get(content)}; {files.REMEDY}"
                )
        size = max(vocabulary.values(), default=-1) + 1
        if size > model_vocab_size:
            raise TokenizerError(
                f"{self.file}: has ids up to {size - 1}, but vocab_size in config.json is "
                f"{model_vocab_size}; the two files must belong to one checkpoint"
            )
        return size

    def _check_id(self, key: str, token_id: int) -> int:
        if self.library_tokenizer.id_to_token(token_id) is None:
            raise TokenizerError(
                f"{self.file}: has no token of id {token_id}, which is {key} in config.json "
                f"(the file's ids end at {self.vocab_size - 1}); the two files must belong to one "
                "checkpoint"
            )
        return token_id

    def _build_plain(self, values: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The tokenizer for a user's text, which produces no added token and no control token."""
        for content in self.added_tokens:
            if content in BYTE_OF:
                raise TokenizerError(
                    f"{self.file}: the added token {content!r} is a character of the byte "
                    f"alphabet, so text with it could not be encoded; {files.REMEDY}"
                )
        removed = {*self.added_tokens, *CONTROL_SPELLINGS}
        return files.build_tokenizer(self.file, files.without_tokens(values, removed))

    def _compare_names(self, file: Path, names: Mapping[str, Any]) -> None:
        """Warn where tokenizer_config.json names another token than config.json's id."""
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        for key, token_id in ids.items():
            name = names.get(key)
            name = name.get("content") if isinstance(name, dict) else name
            token = self.library_tokenizer.id_to_token(token_id)
            if name is not None and name != token:
                warnings.warn(
                    f"{file}: {key} is {name!r}, but {key}_id {token_id} in config.json is "
                    f"{token!r}; the id of config.json is used",
                    TokenizerWarning,
                    stacklevel=3,
                )


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: a lone surrogate at character {error.start}"
        ) from error
