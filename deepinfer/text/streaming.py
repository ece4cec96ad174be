"""`StreamDecoder`: decodes token ids one by one and emits whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from deepinfer.text.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # the most bytes of a UTF-8 character


class StreamDecoder:
    """Decodes the ids of one generation to pieces of text that never split a character.

    The pieces of `push` and `finish`, concatenated, are the text of all ids. prompt_ids: a prompt
    may end inside a character. If the generation completes it, the whole character is part of the
    text; otherwise those bytes of the prompt are not. Bytes that can no longer become a character
    become U+FFFD at once. skip_special: leave special tokens out.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._prompt_tail = self._unfinished_end(prompt_ids)
        self._pending = b""

    def push(self, token_id: int) -> str:
        """Add an id; returns the text that is complete now, "" in the middle of a character.

        Errors: RequestError for an id outside the model's vocabulary.
        """
        data = self._tokenizer.token_bytes(token_id)
        if not data or (self._skip_special and self._tokenizer.is_special(token_id)):
            return ""
        self._pending += data
        if self._prompt_tail:
            self._join_prompt_tail()
            if self._prompt_tail:
                return ""
        text, used = codecs.utf_8_decode(self._pending, "replace", False)
        self._pending = self._pending[used:]
        return text

    def finish(self) -> str:
        """The remaining text, with U+FFFD for a part of a character; "" when called again."""
        text = self._pending.decode("utf-8", errors="replace")
        self._pending = self._prompt_tail = b""
        return text

    def _join_prompt_tail(self) -> None:
        """Find out whether the pending bytes continue the last character of the prompt."""
        joined = self._prompt_tail + self._pending
        try:
            text, _ = codecs.utf_8_decode(joined, "strict", False)
        except UnicodeDecodeError as error:
            if error.start > 0:
                self._pending = joined
            self._prompt_tail = b""
            return
        if text:
            self._pending = joined
            self._prompt_tail = b""

    def _unfinished_end(self, prompt_ids: Sequence[int]) -> bytes:
        """The first bytes of a character at the end of the prompt that is not complete."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if self._skip_special and self._tokenizer.is_special(token_id):
                continue
            tail = self._tokenizer.token_bytes(token_id) + tail
            if len(tail) >= LONGEST_CHARACTER:
                break
        _, used = codecs.utf_8_decode(tail, "replace", False)
        return tail[used:]
