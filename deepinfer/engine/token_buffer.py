"""`TokenBuffer`: the newest tokens of running sequences, by slot.

A step appends one token to hundreds of sequences. Here that is one array operation; a sequence
takes its tokens over when somebody reads them, when its row is full, or when it leaves its slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from deepinfer.engine.request import Sequence

Int64Array = npt.NDArray[np.int64]
WIDTH = 64


class TokenBuffer:
    """tokens [S, 64] int64, of which the first count [S] of each slot are not taken yet."""

    def __init__(self, num_slots: int) -> None:
        self.tokens: Int64Array = np.zeros((num_slots, WIDTH), np.int64)
        self.count: Int64Array = np.zeros(num_slots, np.int64)
        self._owners: list[Sequence | None] = [None] * num_slots

    def enter(self, slot: int, sequence: Sequence) -> None:
        """Give a slot, which must be empty, to a sequence."""
        self.count[slot] = 0
        self._owners[slot] = sequence

    def leave(self, slot: int) -> None:
        """Take a slot from its sequence, which has taken its tokens."""
        self._owners[slot] = None

    def append(self, slots: Int64Array, tokens: Int64Array) -> None:
        """One token for each of these slots."""
        count = self.count[slots]
        self.tokens[slots, count] = tokens
        count += 1
        self.count[slots] = count
        for slot in slots[count == WIDTH].tolist():
            owner = self._owners[slot]
            assert owner is not None
            owner.take_tokens()

    def take(self, slot: int) -> Int64Array:
        """The tokens of a slot, which is empty afterwards."""
        taken = self.tokens[slot, : self.count[slot]].copy()
        self.count[slot] = 0
        return taken
