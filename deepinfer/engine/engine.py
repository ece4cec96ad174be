"""`Engine`: serves many requests on one model, step by step.

A step is planned (which rows run), launched (the model runs and tokens are drawn) and committed.
One thread calls `add`, `abort` and `step`. No step runs while the next one is planned: asynchronous
scheduling is not built yet.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from deepinfer.arrays import Int64Array
from deepinfer.backend import accumulation_dtype
from deepinfer.backend.resolution import Tap
from deepinfer.cache import SequenceCache
from deepinfer.engine.admission import UNBOUNDED, Admission, Limits, Prompt
from deepinfer.engine.observe.observer import Observer
from deepinfer.engine.observe.stats import EngineStats
from deepinfer.engine.request import FinishReason, OnLogits, Request, Sequence, Status
from deepinfer.engine.row_spans import RowSpan, captured_spans, prompt_spans
from deepinfer.engine.runner import ModelRunner
from deepinfer.engine.sampler import Sampler, SamplingRules, nothing_to_draw
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.scheduler import ScheduledStep, Scheduler
from deepinfer.errors import RequestError
from deepinfer.model.backbone import LayerTap, Residual
from deepinfer.settings.settings import Settings

_log = logging.getLogger(__name__)


class Engine:
    """Runs requests on one model with a scheduler, a table of sequences and a sampler.

    If a step raises, the requests that ran in it end with that error and their memory is freed;
    waiting requests and later ones are served as if nothing had happened. Several engines may share
    a runner, and with it its cache memory, as long as one thread steps them all.
    """

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits | None = None,
        rules: SamplingRules | None = None,
        settings: Settings | None = None,
        *,
        owns_checkpoint: bool = False,
    ) -> None:
        """limits, rules: by default what the runner's options and settings say.

        settings: given to the `Observer`, which acts on the process until `close`; without them the
        observer only counts. owns_checkpoint: `close` closes the runner's checkpoint too.
        """
        config = runner.config
        self.runner = runner
        self.limits = limits = limits or limits_of(runner)
        self.table = runner.new_table()
        self.admission = Admission(
            runner.cache,
            limits,
            vocab_size=config.text.vocab_size,
            max_model_len=runner.sizes.max_model_len,
        )
        self.scheduler = Scheduler(runner.cache, self.admission, self.table)
        self.sampler = Sampler(
            runner.operators,
            len(runner.cache.length),
            config.eos_token_id,
            rules or SamplingRules.from_settings(runner.settings, config.text.vocab_size),
        )
        engine = weakref.proxy(self)  # in no cycle, so that the weights go with the last reference
        self.scheduler.on_enter = lambda sequence: engine._enter(sequence)
        self.scheduler.on_preempt = lambda sequence: engine.observer.preempted(sequence)
        self.observer = Observer(
            runner.cache,
            self.scheduler,
            settings,
            log_stats=settings is not None and not runner.options.disable_log_stats,
            device_index=runner.operators.device.index or 0,
        )
        self._owns_checkpoint = owns_checkpoint
        self._requests: dict[str, Request] = {}
        self._unforked: set[int] = set()
        self._capturing: set[int] = set()
        self._numbers = itertools.count()

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        on_token: Callable[[Sequence], None] | None = None,
        *,
        on_logits: OnLogits | None = None,
        cache: SequenceCache | None = None,
    ) -> Request:
        """Queue a request.

        RequestError when the request is wrong. PromptTooLongError, with the numbers, when it can
        never fit.

        on_token: called with a sequence after each of its tokens; it may finish the sequence. Stop
        strings are found there, since the engine itself knows no text. on_logits: called with the
        unmodified logits of every row of the request, of prompt and output, each position once; it
        may finish the sequence as well. The first sample gets the rows of the prompt, the others
        begin with its last row. cache: a cache that holds the first tokens of the prompt already,
        such as an imported one. The request takes it over and starts to run at once, and on_logits
        gets the rows that follow. RequestError where no more sequence can run, or where the cache
        is closed, was taken over before, or leaves no token of the prompt to compute.
        """
        tokens = self.admission.check(prompt, params)
        number = next(self._numbers)
        request_id = request_id or f"request-{number}"
        if request_id in self._requests:
            raise RequestError(f"request id {request_id!r} is in use; give each request its own")
        if cache is not None:
            self._check_cache(cache, len(tokens))
        request = Request(
            request_id,
            number,
            tokens,
            params,
            time.monotonic(),
            on_token=on_token,
            on_logits=on_logits,
        )
        seed = self._seed(number) if params.seed is None else int(params.seed)
        for index in range(params.n):
            own = (seed + index) & (2**64 - 1)
            sequence = Sequence(request, index, own, tokens, len(tokens))
            if index:
                sequence.status, sequence.captured = Status.PLANNED, len(tokens) - 1
            request.sequences.append(sequence)
        self._requests[request_id] = request
        if params.n > 1:
            self._unforked.add(number)
        if on_logits is not None:
            self._capturing.add(number)
        self.observer.arrived(request)
        first = request.sequences[0]
        if cache is None:
            self.scheduler.add(first)
        else:
            first.cache, first.captured = cache, cache.length
            self.scheduler.enter(first)
        return request

    def _check_cache(self, cache: SequenceCache, length: int) -> None:
        taken = any(sequence.slot == cache.slot for sequence in self.scheduler.running)
        if taken or not self.runner.cache.slots.num_owners(cache.slot):
            raise RequestError(
                f"the cache in slot {cache.slot} is closed, or a request has taken it over; open "
                "and fill one for each request"
            )
        if not 0 <= cache.length < length:
            raise RequestError(
                f"the cache holds {cache.length} tokens of a prompt of {length}; allowed: fewer "
                "than the prompt has, so that a row is left to compute"
            )
        running, most = len(self.scheduler.running), self.limits.max_num_seqs
        if running >= most:
            raise RequestError(
                f"{running} sequences run and max_num_seqs is {most}: a request that brings its "
                "cache cannot wait; add it when one has finished"
            )

    def abort(self, request_id: str) -> bool:
        """End a request at once; it keeps its tokens. False when there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._finish([s for s in request.sequences if not s.finished], FinishReason.ABORT)
        return True

    def request(self, request_id: str) -> Request | None:
        """The unfinished request of this id, or None."""
        return self._requests.get(request_id)

    def stats(self) -> EngineStats:
        """The counters and gauges of the engine; any thread may call this."""
        return self.observer.stats(self.runner.pools.slot_bytes)

    def close(self) -> None:
        """Stop what the observer does to the process, and close the checkpoint if it is owned.

        Call it in the thread that stepped. It may be called again. Steps may follow; the observer
        then only counts.
        """
        self.observer.close()
        if self._owns_checkpoint:
            self.runner.checkpoint.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def tapped(self, tap: Tap, layers: LayerTap | None = None) -> Iterator[None]:
        """Within the block, call `tap` at every operator and `layers` at every layer of a step.

        Both may replace the values that they are given: see `Operators.tapped` and `LayerTap`. A
        block within adds its `tap`; its `layers`, where given, replace those of the outer one.
        """
        runner, backbone = self.runner, self.runner.backbone
        kept = runner.operators, backbone.tap
        operators = runner.operators.tapped(tap)
        runner.operators = backbone.operators = self.sampler.operators = operators
        if layers is not None:
            backbone.tap = layers
        try:
            yield
        finally:
            runner.operators = backbone.operators = self.sampler.operators = kept[0]
            backbone.tap = kept[1]

    def drain(self) -> list[Request]:
        """Step until no request is left; returns the requests that finished."""
        finished: list[Request] = []
        while self.has_work:
            finished += self.step()
        return finished

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    def step(self) -> list[Request]:
        """Run one step; returns the requests that ended in it, failed ones included."""
        self.observer.step_begins()
        try:
            return self._step()
        finally:
            self.observer.step_ends(idle=not self.has_work)

    def _step(self) -> list[Request]:
        with self.observer.timed("schedule"):
            step = self.scheduler.schedule()
        without_memory = self.scheduler.take_ended()
        ended = self._retire(without_memory)
        if step is None:
            assert without_memory or not self.has_work, "a step without effect while requests wait"
            return ended
        try:
            return ended + self._run(step)
        except BaseException as error:
            failed = self._fail_running(error)
            if not isinstance(
                error, Exception
            ):  # such as KeyboardInterrupt: the caller must see it
                raise
            _log.error("a step failed, and %d requests with it", len(failed), exc_info=error)
            return ended + failed

    def _run(self, step: ScheduledStep) -> list[Request]:
        """Launch and commit a planned step; returns the requests that finished in it."""
        timed, runner = self.observer.timed, self.runner
        with timed("prepare_input"):
            batch = runner.build_batch(self.table, step.rows)
            runner.copy(step.copies)
        with timed("forward"):
            residual = runner.run(batch)
        with timed("sample"):
            self._describe_prompts(step, residual)
            ids = self._sample(step, residual)
        with timed("commit"):
            finished = self._commit(step, ids, residual)
        self.observer.stepped(step.rows, ids)
        return finished

    def _fail_running(self, error: BaseException) -> list[Request]:
        """End every running request with the error of a step; nothing of that step is kept."""
        requests = {
            sequence.request.number: sequence.request for sequence in self.scheduler.running
        }
        sequences = [s for request in requests.values() for s in request.sequences]
        for sequence in sequences:
            if not sequence.finished:
                sequence.fail(error)
        return self._retire(sequences)

    def _seed(self, number: int) -> int:
        """The seed of a request without one: derived from the engine's seed, or else random."""
        if self.runner.options.seed is None:
            return secrets.randbits(64)
        text = f"{self.runner.options.seed}/{number}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def _enter(self, sequence: Sequence) -> None:
        if not sequence.request.scheduled_at:
            sequence.request.scheduled_at = time.monotonic()
        self.sampler.enter(sequence)
        self.observer.entered(sequence)

    def _describe_prompts(self, step: ScheduledStep, residual: Residual) -> None:
        """Record the log-probabilities of prompt tokens for requests that ask for them."""
        for span in prompt_spans(step):
            request, tokens = span.sequence.request, span.sequence.tokens
            for first, logits in self._logits(span, residual):
                request.prompt_logprobs += self.sampler.describe(
                    self.sampler.raw_logprobs(logits),
                    tokens[first + 1 : first + 1 + len(logits)],
                    request.params.top_logprobs,
                )

    def _give_logits(self, step: ScheduledStep, residual: Residual) -> list[Sequence]:
        """Call on_logits of the requests that have it, after their rows were committed.

        Returns the sequences that ended by it: finished by their callback, or failed with what it
        raised. A failure concerns that sequence alone.
        """
        spans = captured_spans(step) if self._capturing else []
        return [
            span.sequence
            for span in spans
            if not span.sequence.finished and self._ended_by_logits(span, residual)
        ]

    def _ended_by_logits(self, span: RowSpan, residual: Residual) -> bool:
        """Call on_logits with the rows of a span; whether its sequence is to be released then."""
        sequence, on_logits = span.sequence, span.sequence.request.on_logits
        assert on_logits is not None
        sequence.captured = span.last
        try:
            for first, logits in self._logits(span, residual):
                on_logits(sequence, first, logits)
                if sequence.finished:
                    break
        except Exception as error:
            if not sequence.finished:
                sequence.fail(error)
        return sequence.finished and sequence.cache is not None  # an abort has released it

    def _logits(self, span: RowSpan, residual: Residual) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of a span in pieces [m, V], each with the position of its first row."""
        piece = self.limits.max_num_seqs
        for first in range(span.first, span.last, piece):
            rows = np.arange(first, min(first + piece, span.last)) + span.shift
            yield first, self.runner.head(residual, rows)

    def _sample(self, step: ScheduledStep, residual: Residual) -> Int64Array:
        """Draw the tokens of a step [n]: -1 where a row has no distribution to draw from."""
        sequences, rows = step.drawing, step.rows
        if not sequences:
            return np.zeros(0, np.int64)
        slots = rows.drawing_slots
        logits = self.runner.head(residual, None if rows.only_draws else rows.drawing_rows)
        drawn = self.sampler.draw(logits, slots, sequences, self.table.known[slots])
        for place, logprobs in drawn.logprobs.items():
            sequences[place].logprobs.append(logprobs)
        return drawn.ids

    def _commit(self, step: ScheduledStep, ids: Int64Array, residual: Residual) -> list[Request]:
        rows, drawing = step.rows, step.drawing
        self._fork_siblings(step)
        self.runner.cache.commit_rows(rows.slots, rows.stops)
        looked = np.flatnonzero(self.table.append(rows.drawing_slots, ids)).tolist()
        ended = self._give_logits(step, residual)
        now = time.monotonic()
        ended += [drawing[i] for i in looked if self._look(drawing[i], int(ids[i]), now)]
        return self._retire(ended)

    def _look(self, sequence: Sequence, token: int, now: float) -> bool:
        """Handle one token that may end its sequence; returns whether the sequence ended."""
        if sequence.finished:
            return False  # another sequence's callback has aborted it
        if token < 0:
            sequence.error = nothing_to_draw(sequence.request.params)
            sequence.finish(FinishReason.ERROR)
            return True
        if sequence.output_length == 1:
            sequence.got_first_token(now)
            self.observer.first_token(sequence)
        self._end_by_token(sequence, token)
        self._report(sequence)
        return sequence.finished

    def _end_by_token(self, sequence: Sequence, token: int) -> None:
        params = sequence.request.params
        if token == self.runner.config.eos_token_id and not params.ignore_eos:
            sequence.finish(FinishReason.STOP)
        elif params.stop_token_ids and token in params.stop_token_ids:
            sequence.finish(FinishReason.STOP, token)
        elif sequence.is_full:
            sequence.finish(FinishReason.LENGTH)

    def _report(self, sequence: Sequence) -> None:
        """Call the request's on_token; if it raises, this sequence alone fails."""
        if sequence.request.on_token is None:
            return
        try:
            sequence.request.on_token(sequence)
        except Exception as error:
            sequence.fail(error)

    def _fork_siblings(self, step: ScheduledStep) -> None:
        """Start the other samples of requests whose prompt is complete.

        They share the cache of the prompt up to its last token. Each computes the row of that token
        again, because its logits are those of the sample's own first draw. A sample that finds no
        free slot waits like a new request.
        """
        if not self._unforked:
            return
        for sequence, stop in zip(step.sequences, step.rows.stops.tolist(), strict=True):
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
        """Free the memory of finished sequences; returns the requests that are complete now."""
        if not done:
            return []
        self.scheduler.release(done)
        complete: list[Request] = []
        for sequence in done:
            request = sequence.request
            for sibling in (
                request.sequences
            ):  # samples that would have shared the prompt of a sequence that ended
                if sibling.status is Status.PLANNED:
                    sibling.error, sibling.exception = sequence.error, sequence.exception
                    sibling.finish(sequence.finish_reason)
            if request.finished and self._requests.pop(request.request_id, None) is not None:
                complete.append(request)
                self._unforked.discard(request.number)
                self._capturing.discard(request.number)
                self.observer.finished(request)
        return complete


def limits_of(runner: ModelRunner) -> Limits:
    """The limits that follow from a runner's options, sizes and settings."""
    options, sizes, settings = runner.options, runner.sizes, runner.settings
    most = settings.optional_integer("DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K")
    ratios = [ratio for ratio in runner.config.text.compress_ratios if ratio]
    element_bytes = accumulation_dtype(options.dtype).itemsize
    return Limits(
        max_num_seqs=min(options.max_num_seqs, sizes.num_slots),
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        chunked_prefill=options.chunked_prefill,
        stop_preempted_request=options.stop_preempted_request,
        max_sum_length=UNBOUNDED if most is None else most,
        lookahead_tokens=options.lookahead_tokens,
        score_bytes=settings.integer("DEEPINFER_INDEX_ATTN_MEMORY_LIMIT"),
        score_bytes_per_token=element_bytes / min(ratios) if ratios else 0.0,
    )
