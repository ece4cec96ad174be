"""`SequenceTable`: the tokens and bounds of every running sequence, in arrays by slot.

A step of hundreds of sequences reads and writes these arrays with a few array operations. While a
sequence runs, its tokens stand here and nowhere else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.arrays import Int64Array, reserved_zeros


class SequenceTable:
    """Arrays with an element per slot; slot 0 is the cache's dummy and never used.

    tokens [S, L] int32: prompt and output; L is max_model_len. known [S]: number of tokens.
    prompt_length [S]: number of prompt tokens. stop_at [S]: number of tokens at which the sequence
    ends by its length. rows [S]: its rows in the step that is being planned. stops_at_eos [S] bool:
    the end-of-sentence token ends it. watched [S] bool: each token must be looked at, because it is
    the first one, or there are stop ids or a callback. Integers are int64 unless stated.

    The array of tokens takes address space only: the system provides its pages when written (see
    `reserved_zeros`).
    """

    def __init__(self, num_slots: int, max_model_len: int, eos_id: int) -> None:
        self.max_model_len = max_model_len
        self.tokens: npt.NDArray[np.int32] = reserved_zeros((num_slots, max_model_len), np.int32)
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
        """Fill a slot for a sequence that starts to run with these tokens [k].

        max_tokens: the most output tokens.
        """
        self.tokens[slot, : len(tokens)] = tokens
        self.known[slot] = len(tokens)
        self.prompt_length[slot] = prompt_length
        self.stop_at[slot] = min(prompt_length + max_tokens, self.max_model_len)
        self.rows[slot] = 0
        self.stops_at_eos[slot] = stops_at_eos
        self.watched[slot] = watched

    def tokens_of(self, slot: int) -> npt.NDArray[np.int32]:
        """The tokens of a slot [k], as a view that is valid while its sequence runs."""
        return self.tokens[slot, : self.known[slot]]

    def unwatch(self, slot: int) -> None:
        """Stop looking at each token of a slot."""
        self.watched[slot] = False

    def append(self, slots: Int64Array, tokens: Int64Array) -> npt.NDArray[np.bool_]:
        """Append one drawn token to each of `slots` [n]; -1 where none could be drawn.

        Returns [n] bool: which sequences must be looked at, because the token may end them, must be
        reported, or is missing.
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
