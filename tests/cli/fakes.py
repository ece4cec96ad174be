"""A text interface that answers when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from deepinfer.engine import SamplingParams
from deepinfer.engine.outputs import (
    CompletionOutput,
    RequestDelta,
    RequestMetrics,
    RequestOutput,
)


class FakeHandle:
    """A request. `end` completes it, in whatever thread that is called."""

    def __init__(self, llm: FakeLLM, prompt: Any, on_delta: Any, on_done: Any) -> None:
        self.prompt = prompt
        self.ended = False
        self._llm, self._on_delta, self._on_done = llm, on_delta, on_done

    def say(self, text: str) -> None:
        """Send some text."""
        if self._on_delta is not None:
            self._on_delta(RequestDelta("r", 0, text, [1]))

    def end(self, reason: str = "stop", text: str = "text", error: str = "") -> None:
        """Complete it."""
        if not self.ended:
            self.ended = True
            answer = CompletionOutput(0, text, [1, 2], reason, error=error)
            metrics = RequestMetrics(num_prompt_tokens=1, num_generation_tokens=2)
            self._on_done(RequestOutput("r", None, [0], [answer], None, error, metrics))

    def abort(self) -> None:
        """End it as the engine does at the next step."""
        self.end("abort", "cut")


class FakeLLM:
    """Requests in the order of their submission; `on_submit` is called with each."""

    def __init__(self, on_submit: Callable[[FakeHandle], None] = lambda handle: None) -> None:
        self.handles: list[FakeHandle] = []
        self.most_running = 0
        self._on_submit = on_submit
        self._lock = threading.Lock()

    def submit(
        self,
        prompt: Any,
        params: SamplingParams,
        on_delta: Callable[[RequestDelta], None] | None = None,
        on_done: Callable[[RequestOutput], None] | None = None,
    ) -> FakeHandle:
        """Take a request."""
        with self._lock:
            handle = FakeHandle(self, prompt, on_delta, on_done)
            self.handles.append(handle)
            running = sum(not handle.ended for handle in self.handles)
            self.most_running = max(self.most_running, running)
        self._on_submit(handle)
        return handle
