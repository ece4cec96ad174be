"""`TextStream`: decodes the text of one sequence token by token and finds stop strings.

A stop string may extend over several tokens, so text that could be the beginning of one is held
back until that is decided. The deltas concatenate to the text. Nothing behind a stop is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.text import StreamDecoder, Tokenizer


class TextStream:
    """The growing text of one sequence.

    stop: strings that end the text; include_stop keeps them in it. stopped: the stop string that
    was found, or None.
    """

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
        """Add a token; returns the text that can be emitted now, "" after a stop.

        may_stop False: no stop string is looked for in the text up to this token.
        """
        delta = self._decoder.push(token_id)
        if not may_stop and self.stopped is None:
            self._held += delta
            return self._release(len(self._held))
        return self._take(delta, final=False)

    def finish(self) -> str:
        """End the sequence; returns the text that was held back."""
        return self._take(self._decoder.finish(), final=True)

    def _take(self, delta: str, final: bool) -> str:
        if not self._stop:  # without stop strings nothing is held back
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
        """Place and text of the stop string that is complete first, of two at once the longer."""
        hits = [(self._held.find(stop), stop) for stop in self._stop]
        hits = [(place, stop) for place, stop in hits if place >= 0]
        return min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0])) if hits else None

    def _undecided(self) -> int:
        """Length of the longest suffix of the held text with which a stop string begins."""
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
