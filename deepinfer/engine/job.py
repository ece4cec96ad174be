"""`Job`: one request of the text interface, from its submission to its result."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from deepinfer.engine.outputs import (
    RequestDelta,
    RequestMetrics,
    RequestOutput,
    completion_of,
    failed_output,
)
from deepinfer.engine.request import FinishReason, Request, Sequence, TokenLogprobs
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.text_stream import TextStream
from deepinfer.errors import DeepInferError
from deepinfer.logs import RequestLogger
from deepinfer.text import Tokenizer

OnDelta = Callable[[RequestDelta], None]
OnDone = Callable[[RequestOutput], None]
_log = logging.getLogger(__name__)


class Job:
    """A request with the texts of its samples.

    All methods but `wait` and `done` are called in the engine's thread. Text is decoded during the
    run only if the request has stop strings or somebody reads its deltas; otherwise at its end.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        on_delta: OnDelta | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.ids = ids
        self.params = params
        self.log = RequestLogger(_log, request_id)
        self._tokenizer = tokenizer
        self._on_delta = on_delta
        self._on_done = on_done
        self._streams: dict[int, TextStream] = {}
        self._sent: dict[int, int] = {}
        self._closed: set[int] = set()
        self._result: RequestOutput | None = None
        self._event = threading.Event()

    @property
    def on_token(self) -> Callable[[Sequence], None] | None:
        """The callback for each token; None where no text is needed before the end."""
        return self._take if self.params.stop or self._on_delta is not None else None

    def done(self) -> bool:
        """Whether the result is there."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> RequestOutput | None:
        """Wait for the result up to `timeout` seconds; None when it is not there by then."""
        self._event.wait(timeout)
        return self._result

    def finish(self, request: Request) -> None:
        """Set the result of a request that has finished."""
        for sequence in request.sequences:
            if sequence.index not in self._closed:
                self._close(sequence)
        outputs = [completion_of(s, self._streams[s.index].text) for s in request.sequences]
        prompt_logprobs: list[TokenLogprobs | None] | None = None
        if self.params.prompt_logprobs:
            prompt_logprobs = [None, *request.prompt_logprobs]
        error = next((output.error for output in outputs if output.error), "")
        self._give(
            RequestOutput(
                self.request_id,
                self.prompt,
                self.ids,
                outputs,
                prompt_logprobs,
                error,
                RequestMetrics.of(request),
            )
        )

    def fail(self, error: Exception, reason: str = FinishReason.ERROR) -> None:
        """Set the result of a request that could not be queued, or whose engine has stopped."""
        text = (
            str(error) if isinstance(error, DeepInferError) else f"{type(error).__name__}: {error}"
        )
        output = failed_output(self.request_id, self.prompt, self.ids, reason, text)
        self.log.warning("failed: %s", text)
        self._tell(RequestDelta(self.request_id, 0, "", [], None, reason, None, text))
        self._give(output)

    def _take(self, sequence: Sequence) -> None:
        """Add the new token to the sequence's text, look for stop strings, send a delta."""
        stream = self._stream(sequence)
        text = "" if self._is_stop(sequence) else self._push(stream, sequence)
        if stream.stopped is not None:
            sequence.finish(FinishReason.STOP, stream.stopped)
        if sequence.finished:
            self._close(sequence, text)
        elif self._on_delta is not None:
            self._tell(self._delta(sequence, text))

    def _push(self, stream: TextStream, sequence: Sequence) -> str:
        may_stop = not self.params.min_tokens or sequence.output_length > self.params.min_tokens
        return stream.push(int(sequence.output[-1]), may_stop)

    def _is_stop(self, sequence: Sequence) -> bool:
        """Whether the last token is a stop id that is left out of the text."""
        return (
            sequence.finish_reason == FinishReason.STOP
            and isinstance(sequence.stop_reason, int)
            and not self.params.include_stop
        )

    def _stream(self, sequence: Sequence) -> TextStream:
        stream = self._streams.get(sequence.index)
        if stream is None:
            stream = self._streams[sequence.index] = TextStream(
                self._tokenizer,
                self.ids,
                self.params.stop,
                include_stop=self.params.include_stop,
                skip_special=self.params.skip_special_tokens,
            )
        return stream

    def _close(self, sequence: Sequence, text: str = "") -> None:
        """Complete the text of a finished sequence and send its last delta."""
        stream = self._stream(sequence)
        if self.on_token is None:
            shown = sequence.output[:-1] if self._is_stop(sequence) else sequence.output
            for token in shown.tolist():
                stream.push(token)
        text += stream.finish()
        self._closed.add(sequence.index)
        self._tell(self._delta(sequence, text))

    def _delta(self, sequence: Sequence, text: str) -> RequestDelta:
        sent = self._sent.get(sequence.index, 0)
        self._sent[sequence.index] = sequence.output_length
        return RequestDelta(
            self.request_id,
            sequence.index,
            text,
            sequence.output[sent:].tolist(),
            sequence.logprobs[sent:] if sequence.logprobs else None,
            sequence.finish_reason,
            sequence.stop_reason,
            sequence.error,
        )

    def _tell(self, delta: RequestDelta) -> None:
        if self._on_delta is not None:
            self._guarded(self._on_delta, delta)

    def _give(self, output: RequestOutput) -> None:
        self._result = output
        self._event.set()
        if self._on_done is not None:
            self._guarded(self._on_done, output)

    def _guarded(self, callback: Callable[[Any], None], value: Any) -> None:
        """Call a callback of the user; an exception of it is logged and ends no request."""
        try:
            callback(value)
        except Exception:
            self.log.exception("a callback of the request raised")
