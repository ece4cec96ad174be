"""`EngineCore`: many requests on one model, one step at a time: plan, launch, commit.

Single-threaded: whoever owns it calls `add`, `abort` and `step`. One step is never in flight while
another is planned (asynchronous scheduling is not built yet).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.batching import Prompt
from deepinfer.engine.columns import TokenColumns
from deepinfer.engine.observe.observer import Observer
from deepinfer.engine.observe.stats import EngineStats
from deepinfer.engine.prompt_rows import PromptPart, prompt_parts
from deepinfer.engine.request import FinishReason, Request, Sequence, Status
from deepinfer.engine.sampler import Sampler, SamplingRules, nothing_to_draw
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.scheduler import Limits, Plan, Scheduler
from deepinfer.errors import PromptTooLongError, RequestError
from deepinfer.model.backbone import Residual
from deepinfer.settings.settings import Settings

if TYPE_CHECKING:
    from deepinfer.engine.engine import Engine

Int64Array = npt.NDArray[np.int64]
_log = logging.getLogger(__name__)


class EngineCore:
    """Scheduler, runner and sampler around one model.

    A step that raises ends the requests that ran in it with that error and takes their memory
    back; waiting requests and later ones are served as if nothing had happened.
    """

    def __init__(
        self,
        runner: Engine,
        limits: Limits | None = None,
        rules: SamplingRules | None = None,
        settings: Settings | None = None,
    ) -> None:
        """limits and rules: the runner's own by default.

        settings: those of `Observer`, which then acts on the process until `close`; None: it only
        counts.
        """
        self.runner = runner
        self.limits = limits = limits or runner.limits
        self.scheduler = Scheduler(runner.cache, limits)
        slots = len(runner.cache.length)
        self.sampler = Sampler(
            runner.operators, slots, runner.config.eos_token_id, rules or runner.rules
        )
        self.columns = TokenColumns(slots, runner.history, runner.config.eos_token_id)
        self.scheduler.on_enter = self._enter
        self.scheduler.on_preempt = lambda sequence: self.observer.preempted(sequence)
        self.observer = Observer(
            runner.cache,
            limits,
            self.scheduler,
            settings,
            log_stats=settings is not None and not runner.options.disable_log_stats,
            device_index=runner.operators.device.index or 0,
        )
        self._requests: dict[str, Request] = {}
        self._unforked: set[int] = set()
        self._numbers = itertools.count()

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        on_token: Callable[[Sequence], None] | None = None,
    ) -> Request:
        """Queue a request.

        RequestError when it is wrong; PromptTooLongError, with the numbers, when it can never fit.
        Stop strings are the business of on_token, which may finish the sequence it is called with.
        """
        tokens = self.runner.validate(prompt)
        params.check_vocabulary(self.runner.config.text.vocab_size)
        self._check_fit(len(tokens), params)
        number = next(self._numbers)
        request_id = request_id or f"request-{number}"
        if request_id in self._requests:
            raise RequestError(f"request id {request_id!r} is in use; give each request its own")
        request = Request(request_id, number, tokens, params, time.monotonic(), on_token=on_token)
        seed = self._seed(number) if params.seed is None else int(params.seed)
        for index in range(params.n):
            room = np.zeros(len(tokens) + min(params.max_tokens, 64), np.int64)
            room[: len(tokens)] = tokens
            own = (seed + index) & (2**64 - 1)
            request.sequences.append(Sequence(request, index, own, room, len(tokens), len(tokens)))
            if index:
                request.sequences[-1].status = Status.PLANNED
        self._requests[request_id] = request
        if params.n > 1:
            self._unforked.add(number)
        self.observer.arrived(request)
        self.scheduler.add(request.sequences[0])
        return request

    def abort(self, request_id: str) -> bool:
        """End a request at once with what it has; False when there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish([s for s in request.sequences if not s.finished], FinishReason.ABORT)
        return True

    def request(self, request_id: str) -> Request | None:
        """The unfinished request of this id, or None."""
        return self._requests.get(request_id)

    def stats(self) -> EngineStats:
        """What the engine is doing and has done; any thread may ask."""
        return self.observer.stats(self.runner.pools.slot_bytes)

    def close(self) -> None:
        """End what the observer does to the process; requests stay as they are.

        Call it in the thread that stepped. May be called again; steps may follow, unobserved.
        """
        self.observer.close()

    @property
    def has_work(self) -> bool:
        """Is any request unfinished?"""
        return bool(self._requests)

    def step(self) -> list[Request]:
        """Run one step; the requests that finished in it (also by preemption or error)."""
        self.observer.step_begins()
        try:
            return self._step()
        finally:
            self.observer.step_ends(idle=not self.has_work)

    def _step(self) -> list[Request]:
        with self.observer.timed("schedule"):
            plan = self.scheduler.schedule()
        without_memory = self.scheduler.take_ended()
        ended = self._retire(without_memory)
        if plan is None:
            assert without_memory or not self.has_work, "a step without effect while requests wait"
            return ended
        try:
            return ended + self._run(plan)
        except BaseException as error:
            failed = self._fail_running(error)
            if not isinstance(error, Exception):  # an interrupt is not the requests' error alone
                raise
            _log.error("a step failed, and %d requests with it", len(failed), exc_info=error)
            return ended + failed

    def _run(self, plan: Plan) -> list[Request]:
        """Launch and commit a planned step; the requests that finished in it."""
        timed = self.observer.timed
        with timed("prepare_input"):
            batch = self.columns.plan_batch(plan, self.runner.cache, self.runner.operators)
            if plan.copies:
                self.runner.pools.copy(self.runner.operators, plan.copies)
        with timed("forward"):
            residual = self.runner.backbone.run(batch, self.runner.pools)
        with timed("sample"):
            self._describe_prompts(prompt_parts(plan), residual)
            ids = self._sample(plan, residual)
        with timed("commit"):
            finished = self._commit(plan, ids)
        self.observer.stepped(plan, ids)
        return finished

    def _fail_running(self, error: BaseException) -> list[Request]:
        """End every running request: nothing of a step that raised is kept."""
        requests = {
            sequence.request.number: sequence.request for sequence in self.scheduler.running
        }
        sequences = [s for request in requests.values() for s in request.sequences]
        for sequence in sequences:
            if not sequence.finished:
                _spoil(sequence, error)
        return self._retire(sequences)

    def _seed(self, number: int) -> int:
        """The seed of a request that brings none: drawn, or made from the engine's."""
        if self.runner.options.seed is None:
            return secrets.randbits(64)
        text = f"{self.runner.options.seed}/{number}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def _enter(self, sequence: Sequence) -> None:
        if not sequence.request.scheduled_at:
            sequence.request.scheduled_at = time.monotonic()
        self.sampler.enter(sequence)
        self.columns.enter(sequence, self.runner.sizes.max_model_len)
        self.observer.entered(sequence)

    def _check_fit(self, length: int, params: SamplingParams) -> None:
        cache, limits = self.runner.cache, self.limits
        most = min(self.scheduler.most_rows, limits.rows_for(length))
        if not limits.chunked_prefill and length > most:
            if most == limits.max_num_batched_tokens:
                reason = f"max_num_batched_tokens is {most}"
            elif most == self.scheduler.most_rows:
                reason = f"the {cache.pages.capacity} window pages hold a step of {most} rows"
            else:
                reason = (
                    f"the index scores of {most} rows take DEEPINFER_INDEX_ATTN_MEMORY_LIMIT "
                    f"({limits.score_bytes} bytes)"
                )
            raise PromptTooLongError(
                f"the prompt has {length} tokens, {reason} and chunked_prefill is off; switch it "
                "on, shorten the prompt or raise that limit"
            )
        if length > limits.max_sum_length:
            raise PromptTooLongError(
                f"the prompt has {length} tokens and DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K allows "
                f"{limits.max_sum_length} in one step; shorten the prompt or raise the variable"
            )
        blocks, held = cache.layout.blocks_for(length + 1), cache.blocks.capacity
        if blocks > held:
            raise PromptTooLongError(
                f"the prompt has {length} tokens, which with one output token need {blocks} cache "
                f"blocks of {cache.layout.block_tokens} tokens; the engine has {held}. Shorten "
                "the prompt or raise num_blocks"
            )
        if params.n > limits.max_num_seqs:
            raise RequestError(
                f"n is {params.n} and max_num_seqs is {limits.max_num_seqs}; ask for fewer samples"
            )

    def _describe_prompts(self, parts: list[PromptPart], residual: Residual) -> None:
        """Log-probabilities of prompt tokens that were asked for, some rows at a time."""
        piece = self.limits.max_num_seqs
        for part in parts:
            request, tokens = part.sequence.request, part.sequence.tokens
            for first in range(part.first, part.last, piece):
                last = min(first + piece, part.last)
                logits = self._head(residual, np.arange(first, last) + part.shift)
                request.prompt_logprobs += self.sampler.describe(
                    self.sampler.raw_logprobs(logits),
                    tokens[first + 1 : last + 1],
                    request.params.top_logprobs,
                )

    def _head(self, residual: Residual, rows: Int64Array | None) -> torch.Tensor:
        """Logits of rows of the step's batch, None for all of them."""
        tensor = self.runner.operators.tensor
        chosen = None if rows is None else tensor(rows, torch.int64)
        return self.runner.backbone.head(residual, chosen)

    def _sample(self, plan: Plan, residual: Residual) -> Int64Array:
        """Token ids of the sequences that draw, -1 where there was nothing to draw from."""
        rows = plan.drawing
        if not rows:
            return np.zeros(0, np.int64)
        slots = plan.drawing_slots
        logits = self._head(residual, None if plan.only_draws else plan.last_rows[plan.samples])
        drawn = self.sampler.draw(logits, slots, rows, self.columns.known[slots])
        for place, logprobs in drawn.logprobs.items():
            rows[place].logprobs.append(logprobs)
        return drawn.ids

    def _commit(self, plan: Plan, ids: Int64Array) -> list[Request]:
        self._fork_siblings(plan)
        self.runner.cache.commit_rows(plan.slots, plan.stops)
        slots = plan.drawing_slots
        self.scheduler.advanced(slots)
        looked = np.flatnonzero(self.columns.advance(slots, ids)).tolist()
        if not looked:
            return []
        now = time.monotonic()
        drawing = plan.drawing
        return self._retire(
            [drawing[i] for i in looked if self._look(drawing[i], int(ids[i]), now)]
        )

    def _look(self, sequence: Sequence, token: int, now: float) -> bool:
        """Look at a sequence that got a token; has that finished it?"""
        if sequence.finished:
            return False  # another sequence's callback has aborted it
        if token < 0:
            sequence.error = nothing_to_draw(sequence.request.params)
            sequence.finish(FinishReason.ERROR)
            return True
        params = sequence.request.params
        if sequence.output_length == 1:
            sequence.first_token_at = now
            self.observer.first_token(sequence)
            if sequence.request.on_token is None and not params.stop_token_ids:
                assert sequence.cache is not None
                self.columns.unwatch(sequence.cache.slot)
        self._end_by_token(sequence, token)
        self._report(sequence)
        return sequence.finished

    def _end_by_token(self, sequence: Sequence, token: int) -> None:
        params = sequence.request.params
        if token == self.runner.config.eos_token_id and not params.ignore_eos:
            sequence.finish(FinishReason.STOP)
        elif params.stop_token_ids and token in params.stop_token_ids:
            sequence.finish(FinishReason.STOP, token)
        elif (
            sequence.output_length >= params.max_tokens
            or sequence.known >= self.runner.sizes.max_model_len
        ):
            sequence.finish(FinishReason.LENGTH)

    def _report(self, sequence: Sequence) -> None:
        """Call the request's callback; what it raises ends this sequence alone."""
        if sequence.request.on_token is None:
            return
        try:
            sequence.request.on_token(sequence)
        except Exception as error:
            _spoil(sequence, error)

    def _fork_siblings(self, plan: Plan) -> None:
        """Where a prompt is complete, its other samples share its cache up to the last token.

        They compute that token's row again, which gives the logits of their own first draw. A
        sample without a free place waits like a new request.
        """
        if not self._unforked:
            return
        for sequence, stop in zip(plan.sequences, plan.stops.tolist(), strict=True):
            if sequence.request.params.n == 1 or stop != sequence.prompt_length:
                continue
            siblings = [s for s in sequence.request.sequences if s.status is Status.PLANNED]
            if not siblings:
                continue
            assert sequence.cache is not None
            self._unforked.discard(sequence.request.number)
            self.runner.cache.commit(sequence.cache, stop - 1)
            for sibling in siblings:
                if self.scheduler.can_enter():
                    sibling.cache = self.runner.cache.fork(sequence.cache)
                    self.scheduler.enter(sibling)
                else:
                    self.scheduler.add(sibling)

    def _finish(self, sequences: list[Sequence], reason: str) -> list[Request]:
        for sequence in sequences:
            sequence.finish(reason)
        return self._retire(sequences)

    def _retire(self, done: list[Sequence]) -> list[Request]:
        """Release finished sequences; the requests that are complete with them."""
        if not done:
            return []
        self.scheduler.release(done)
        complete: list[Request] = []
        for sequence in done:
            request = sequence.request
            for sibling in request.sequences:  # samples that were to share this one's prompt
                if sibling.status is Status.PLANNED:
                    sibling.error, sibling.exception = sequence.error, sequence.exception
                    sibling.finish(sequence.finish_reason)
            if request.finished and self._requests.pop(request.request_id, None) is not None:
                complete.append(request)
                self._unforked.discard(request.number)
                self.observer.finished(request)
        return complete


def _spoil(sequence: Sequence, error: BaseException) -> None:
    """End a sequence with what was raised."""
    sequence.exception = error
    sequence.error = f"{type(error).__name__}: {error}"
    sequence.finish(FinishReason.ERROR)
