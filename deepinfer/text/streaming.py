"""Incremental detokeniser: token ids in, finished characters out."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from deepinfer.text.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # bytes of the longest UTF-8 character


class StreamDecoder:
    """Turns the ids of one generation into text deltas that never split a character.

    The deltas and `finish()` concatenate to the text of all ids pushed. A prompt may end inside a
    character (`prompt_ids`): if the generation completes it, the whole character is part of the
    text; if not, the prompt's stray bytes are not. Bytes that can never become a character turn
    into U+FFFD as soon as that is certain. `skip_special` leaves out special tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._prompt_tail = self._unfinished_end(prompt_ids)
        self._pending = b""

    def push(self, token_id: int) -> str:
        """The text that this id completes; often "" in the middle of a character.

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
        """The text of what is still pending (U+FFFD for half a character); "" when called again."""
        text = self._pending.decode("utf-8", errors="replace")
        self._pending = self._prompt_tail = b""
        return text

    def _join_prompt_tail(self) -> None:
        """Decide whether the pending bytes continue the prompt's last character."""
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
        """The bytes of a character that the prompt begins and does not end."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if self._skip_special and self._tokenizer.is_special(token_id):
                continue
            tail = self._tokenizer.token_bytes(token_id) + tail
            if len(tail) >= LONGEST_CHARACTER:
                break
        _, used = codecs.utf_8_decode(tail, "replace", False)
        return tail[used:]
