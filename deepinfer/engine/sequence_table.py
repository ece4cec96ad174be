"""`SequenceTable`: tokens and bounds of every running sequence, in columns by slot.

A step of hundreds of sequences reads and writes these columns with a few array operations. While a
sequence runs, what is known of its tokens stands here and nowhere else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.arrays import Int64Array


class SequenceTable:
    """Columns by slot; slot 0 is the cache's dummy and never used.

    tokens [S, L] int32: prompt and output. known [S]: how many of them there are. prompt_length
    [S]: how many of those are the prompt. stop_at [S]: known tokens at which the sequence ends by
    its length. rows [S]: rows in the step that is being planned. stops_at_eos [S] bool: it ends
    with the end-of-sentence token. watched [S] bool: every token must be looked at (a first token,
    stop ids, a callback). L is max_model_len. Integers are int64 where nothing else is said.

    The memory of tokens is reserved, not used: the system gives pages of it as they are written.
    """

    def __init__(self, num_slots: int, max_model_len: int, eos_id: int) -> None:
        self.max_model_len = max_model_len
        self.tokens: npt.NDArray[np.int32] = np.zeros((num_slots, max_model_len), np.int32)
        self.known: Int64Array = np.zeros(num_slots, np.int64)
        self.prompt_length: Int64Array = np.zeros(num_slots, np.int64)
        self.stop_at: Int64Array = np.zeros(num_slots, np.int64)
        self.rows: Int64Array = np.zeros(num_slots, np.int64)
        self.stops_at_eos = np.zeros(num_slots, bool)
        self.watched = np.zeros(num_slots, bool)
        self._eos_id = eos_id

    def enter(
        self,
        slot: int,
        tokens: npt.NDArray[np.integer],
        *,
        prompt_length: int,
        max_tokens: int,
        stops_at_eos: bool,
        watched: bool,
    ) -> None:
        """A sequence with these known tokens [k] starts to run in a slot.

        max_tokens: output tokens at which it ends.
        """
        self.tokens[slot, : len(tokens)] = tokens
        self.known[slot] = len(tokens)
        self.prompt_length[slot] = prompt_length
        self.stop_at[slot] = min(prompt_length + max_tokens, self.max_model_len)
        self.rows[slot] = 0
        self.stops_at_eos[slot] = stops_at_eos
        self.watched[slot] = watched

    def tokens_of(self, slot: int) -> npt.NDArray[np.int32]:
        """The known tokens of a slot [k]: a view, which is true until the slot changes hands."""
        return self.tokens[slot, : self.known[slot]]

    def unwatch(self, slot: int) -> None:
        """Look no longer at every token of a slot."""
        self.watched[slot] = False

    def append(self, slots: Int64Array, tokens: Int64Array) -> npt.NDArray[np.bool_]:
        """One drawn token for each of `slots` [n], -1 where there was none to draw.

        Returns [n] bool: the sequences that must be looked at, because this token may end them or
        because it is missing.
        """
        drawn = tokens >= 0
        if not drawn.all():
            looked = ~drawn
            looked[drawn] = self.append(slots[drawn], tokens[drawn])
            return looked
        known = self.known[slots]
        self.tokens[slots, known] = tokens
        known += 1
        self.known[slots] = known
        looked = self.watched[slots] | (known >= self.stop_at[slots])
        looked |= self.stops_at_eos[slots] & (tokens == self._eos_id)
        return np.asarray(looked)
