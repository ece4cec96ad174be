"""`LLM`: text in, text out, for many requests at a time.

with LLM("DIRECTORY_OR_HUB_ID") as llm:
    for result in llm.generate(["One", "Two"], SamplingParams(max_tokens=8)):
        print(result.text)
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from deepinfer.backend.registry import Selected, select_backend
from deepinfer.checkpoint.progress import progress_bar
from deepinfer.engine.engine import Engine
from deepinfer.engine.job import Job, OnDelta, OnDone
from deepinfer.engine.loop import EngineLoop
from deepinfer.engine.observe.stats import EngineStats
from deepinfer.engine.open import open_engine
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.outputs import RequestDelta, RequestOutput
from deepinfer.engine.prompts import (
    Chat,
    Prompt,
    check_request_id,
    encode_prompt,
    params_list,
    prompt_list,
)
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.errors import DeepInferError, NotBuiltYetError, UsageError
from deepinfer.settings import environment
from deepinfer.settings.check import check
from deepinfer.settings.settings import Settings
from deepinfer.text import Tokenizer

Params = SamplingParams | Sequence[SamplingParams] | None


class RequestHandle:
    """A request that was submitted: wait for its result, or abort it."""

    def __init__(self, job: Job, loop: EngineLoop) -> None:
        self._job = job
        self._loop = loop

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self._job.request_id

    def done(self) -> bool:
        """Whether the result is there."""
        return self._job.done()

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the result; TimeoutError when it is not there within `timeout` seconds.

        UsageError when called in a callback of a request: callbacks run in the engine's thread, so
        the result could never come.
        """
        if not self._job.done():
            self._loop.refuse_wait()
        output = self._job.wait(timeout)
        if output is None:
            raise TimeoutError(f"request {self.request_id!r} has no result after {timeout} s")
        return output

    def abort(self) -> None:
        """End the request; its result has the tokens so far and finish_reason "abort"."""
        self._loop.abort_job(self._job)


class LLM:
    """A checkpoint on a backend, for use from any thread and any event loop.

    model: directory or Hub id; None: DEEPINFER_HF_MODEL_DIR, else the nano checkpoint of the
    package. accelerator, mode: choose the backend, as DEEPINFER_ACCELERATOR and --mode do. strict:
    an operator that the backend does not run itself is an error; None: DEEPINFER_STRICT_OPERATORS.
    allow_null: accept a backend that computes nothing. progress: show bars on stderr while loading.
    options: fields of `EngineOptions`, by name. Errors: subclasses of DeepInferError.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tokenizer: str | Path | None = None,
        accelerator: str | None = None,
        mode: str | None = None,
        revision: str | None = None,
        strict: bool | None = None,
        allow_null: bool = False,
        progress: bool = True,
        **options: Any,
    ) -> None:
        chosen = EngineOptions.from_names(options)
        if tokenizer is not None:
            raise NotBuiltYetError(
                "tokenizer is given: a tokenizer from elsewhere than the checkpoint is not built "
                "yet; leave it out"
            )
        selected = _selected(accelerator, mode)
        settings = Settings.from_environment(backends=(selected.spec,))
        check(settings, selected.spec)
        self._start(
            open_engine(
                model,
                selected,
                chosen,
                revision=revision,
                strict=strict,
                allow_null=allow_null,
                observed=True,
                progress=progress,
                settings=settings,
            )
        )

    @classmethod
    def of(cls, engine: Engine) -> LLM:
        """An `LLM` on an engine that is open already. `LLM.close` closes that engine too."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def _start(self, engine: Engine) -> None:
        self.engine = engine
        self._numbers = itertools.count()
        self._loop = EngineLoop(engine)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        multi_modal_data: object = None,
    ) -> list[RequestOutput]:
        """Answer prompts; returns one result per prompt, in the order of the prompts.

        prompts: a text, token ids, a chat, or a list of these. use_tqdm: show a progress bar where
        stderr is a terminal. A prompt that is wrong fails alone: its result says why.
        """
        if multi_modal_data is not None:
            raise NotBuiltYetError("multi_modal_data is given: images are not built yet")
        listed = prompt_list(prompts, prompt_token_ids)
        params = params_list(sampling_params, len(listed))
        handles: list[RequestHandle] = []
        with progress_bar("requests", len(listed), enabled=use_tqdm) as advance:
            try:
                for prompt, own in zip(listed, params, strict=True):
                    handles.append(self._submit(prompt, own, on_done=lambda output: advance(1)))
                return [handle.result() for handle in handles]
            except BaseException:
                for handle in handles:
                    handle.abort()
                raise

    def chat(
        self, messages: Chat | Sequence[Chat], sampling_params: Params = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """`generate` for one conversation or a list of them."""
        return self.generate(messages, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> Iterator[RequestDelta]:
        """Yield the deltas of one request as they come.

        The request is submitted by the first `next`. Closing the iterator early aborts it. If it
        fails, the last delta has finish_reason "error" and says why.
        """
        self._loop.refuse_wait()
        deltas: queue.SimpleQueue[RequestDelta | None] = queue.SimpleQueue()
        handle = self._submit(
            prompt, sampling_params, request_id, deltas.put, lambda output: deltas.put(None)
        )
        try:
            while (delta := deltas.get()) is not None:
                yield delta
        finally:
            handle.abort()

    async def generate_async(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        multi_modal_data: object = None,
    ) -> list[RequestOutput]:
        """`generate` without blocking the event loop; cancelling the call aborts its requests."""
        if multi_modal_data is not None:
            raise NotBuiltYetError("multi_modal_data is given: images are not built yet")
        listed = prompt_list(prompts, prompt_token_ids)
        params = params_list(sampling_params, len(listed))
        loop = asyncio.get_running_loop()
        handles: list[RequestHandle] = []
        futures: list[asyncio.Future[RequestOutput]] = []
        try:
            for prompt, own in zip(listed, params, strict=True):
                future: asyncio.Future[RequestOutput] = loop.create_future()
                futures.append(future)
                handles.append(self._submit(prompt, own, on_done=_resolver(loop, future)))
            return list(await asyncio.gather(*futures))
        finally:
            for handle in handles:
                handle.abort()

    async def stream_async(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[RequestDelta]:
        """`stream` without blocking the event loop."""
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[RequestDelta | None] = asyncio.Queue()

        def put(delta: RequestDelta | None) -> None:
            _in_loop(loop, lambda: deltas.put_nowait(delta))

        handle = self._submit(prompt, sampling_params, request_id, put, lambda output: put(None))
        try:
            while (delta := await deltas.get()) is not None:
                yield delta
        finally:
            handle.abort()

    def submit(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        on_delta: OnDelta | None = None,
        on_done: OnDone | None = None,
    ) -> RequestHandle:
        """Queue a request and return at once.

        on_delta and on_done are called in the engine's thread, so they must be quick; an exception
        of theirs is logged. UsageError when the `LLM` is closed.
        """
        return self._submit(prompt, sampling_params, request_id, on_delta, on_done)

    def _submit(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None,
        request_id: str | None = None,
        on_delta: OnDelta | None = None,
        on_done: OnDone | None = None,
    ) -> RequestHandle:
        tokenizer = self.engine.runner.tokenizer
        (params,) = params_list(sampling_params, 1)
        if request_id is None:
            request_id = f"request-{next(self._numbers)}"
        else:
            request_id = check_request_id(request_id)
        try:
            ids, text = encode_prompt(tokenizer, prompt)
        except DeepInferError as error:
            shown = prompt if isinstance(prompt, str) else None
            job = Job(request_id, shown, [], params, tokenizer, on_delta, on_done)
            job.fail(error)
        else:
            job = Job(request_id, text, ids, params, tokenizer, on_delta, on_done)
            self._loop.submit(job)
        return RequestHandle(job, self._loop)

    def abort(self, request_id: str) -> None:
        """End a request; it keeps its tokens so far. An unknown id is ignored."""
        self._loop.abort(request_id)

    def stats(self) -> EngineStats:
        """The counters and gauges of the engine."""
        return self.engine.stats()

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint."""
        return self.engine.runner.tokenizer

    def close(self) -> None:
        """Abort all requests, end the engine's thread and close the checkpoint."""
        self._loop.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _selected(accelerator: str | None, mode: str | None) -> Selected:
    """The backend of this process.

    UsageError for a mode that needs environment variables which this process was not started with.
    """
    name = accelerator or environment.text(environment.ACCELERATOR)
    selected = select_backend(name, mode, environment.names(environment.SKIP_BACKENDS))
    wanted = selected.mode.environment.items()
    missing = [f"{key}={value}" for key, value in wanted if os.environ.get(key) != value]
    if missing:
        raise UsageError(
            f"mode {selected.mode.name!r} of backend {selected.spec.name!r} needs a process that "
            f"was started with {' '.join(missing)}; set them before Python starts"
        )
    return selected


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have an event loop call something, from the engine's thread; a closed loop is ignored."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _resolver(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[RequestOutput]
) -> Callable[[RequestOutput], None]:
    def resolve(output: RequestOutput) -> None:
        _in_loop(loop, lambda: None if future.done() else future.set_result(output))

    return resolve
