"""`TextStream`: the text of one sequence as it grows, cut at stop strings.

A stop string may straddle tokens, so text that could still become one is held back until it is
decided. Deltas concatenate to the text; nothing after a stop is ever emitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.text import StreamDecoder, Tokenizer


class TextStream:
    """Incremental text of one sequence. stop: strings that end it, left out of the text unless
    include_stop. `stopped` is the stop string that was found, or None."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, prompt, skip_special)
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""
        self.text = ""
        self.stopped: str | None = None

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """The text that this token releases; "" once stopped.

        may_stop False: text up to and with this token cannot be part of a stop string.
        """
        delta = self._decoder.push(token_id)
        if not may_stop and self.stopped is None:
            self._held += delta
            return self._release(len(self._held))
        return self._take(delta, final=False)

    def finish(self) -> str:
        """What was held back, at the end of the sequence."""
        return self._take(self._decoder.finish(), final=True)

    def _take(self, delta: str, final: bool) -> str:
        if not self._stop:  # nothing is ever held back
            self.text += delta
            return delta
        if self.stopped is not None:
            return ""
        self._held += delta
        found = self._earliest()
        if found is not None:
            place, self.stopped = found
            end = place + len(self.stopped) if self._include_stop else place
            return self._release(end)
        keep = 0 if final else self._undecided()
        return self._release(len(self._held) - keep)

    def _earliest(self) -> tuple[int, str] | None:
        """Place and text of the stop string that is complete first, the longer one at a tie."""
        hits = [(self._held.find(stop), stop) for stop in self._stop]
        hits = [(place, stop) for place, stop in hits if place >= 0]
        return min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0])) if hits else None

    def _undecided(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _release(self, end: int) -> str:
        released, self._held = self._held[:end], self._held[end:]
        self.text += released
        return released
