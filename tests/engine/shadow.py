"""A stand-in for the model that is exact about memory: its logits depend on everything it reads.

Tokens are kept where a model would keep entries: in context blocks, window pages and slots. The
logits of a row are a function of the whole context and the window as read through the tables, so a
block that is shared, copied, freed or recomputed wrongly changes the text. Steps take about a
millisecond.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.backend import Batch, SamplingParameters
from deepinfer.backend.sampling import Purpose
from deepinfer.cache import CacheManager
from deepinfer.cache.copies import Copies
from deepinfer.engine import Engine
from deepinfer.engine.admission import Limits
from deepinfer.engine.batch import BatchBuilder, Rows
from deepinfer.engine.request import FinishReason, Request
from deepinfer.engine.sampler import NO_RULES
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.engine.sequence_table import SequenceTable
from deepinfer.settings.settings import Settings
from deepinfer_reference.backend import ReferenceBackend
from tests.cache.layouts import small_layout

Tokens = npt.NDArray[np.int64]
VOCABULARY, EOS = 24, 3
OPERATORS = ReferenceBackend("cpu")
WINDOW, PAGE, BLOCK = 8, 4, 16


def logits_of(context: Tokens, window: Tokens) -> torch.Tensor:
    """Logits [V] after a context, of which `window` is what the window holds."""
    seed = hash((context.tobytes(), window.tobytes())) & (2**63 - 1)
    return torch.from_numpy(np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32))


class ShadowRunner:
    """What an `Engine` needs of a `ModelRunner`."""

    def __init__(self, blocks: int, pages: int, slots: int, max_model_len: int = 96) -> None:
        layout = small_layout(0, 2, 1, window=WINDOW, page_tokens=PAGE)
        self.cache = CacheManager(layout, blocks, pages, slots, max_tokens=max_model_len)
        self.operators = OPERATORS
        text = SimpleNamespace(vocab_size=VOCABULARY)
        self.config = SimpleNamespace(eos_token_id=EOS, text=text)
        self.options = SimpleNamespace(seed=None, disable_log_stats=False)
        self.sizes = SimpleNamespace(max_model_len=max_model_len)
        self.batches = BatchBuilder(OPERATORS, None)
        self.pools = SimpleNamespace(slot_bytes=16)
        self.context = np.full((blocks + 1, BLOCK), -1)
        self.window = np.full((pages + 1, PAGE), -1)
        self.slots = np.full((slots + 1, 2), -1)
        self.raises: Exception | None = None
        self.num_rows: list[int] = []

    def new_table(self) -> SequenceTable:
        return SequenceTable(len(self.cache.length), self.sizes.max_model_len, EOS)

    def build_batch(self, table: SequenceTable, rows: Rows) -> Batch:
        return self.batches.build_batch(table, rows, self.cache)

    def copy(self, copies: Copies) -> None:
        for memory, pairs in (
            (self.context, copies.blocks),
            (self.window, copies.pages),
            (self.slots, copies.slots),
        ):
            if pairs:
                source, to = np.array(pairs).T
                memory[to] = memory[source]

    def run(self, batch: Batch) -> Any:
        """Writes the rows; returns what gives the logits of any of them."""
        self.num_rows.append(batch.num_rows)
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        tokens, positions = batch.token_ids.numpy(), batch.positions.numpy()
        sequence, blocks = batch.sequence.numpy(), batch.context.blocks.numpy()
        pages, first = batch.window.blocks.numpy(), batch.window.first.numpy()
        slots, starts = batch.slots.numpy(), batch.query_start.numpy()
        before = self.slots[slots].copy()
        block = blocks[sequence, positions // BLOCK]
        page = pages[sequence, positions // PAGE - first[sequence]]
        assert min(block.min(), page.min()) > 0, "a row is written into the dummy"
        self.context[block, positions % BLOCK] = tokens
        self.window[page, positions % PAGE] = tokens
        self.slots[slots[sequence], positions % 2] = tokens
        for place, start in enumerate(positions[starts[:-1]].tolist()):
            if start:
                last = self.context[blocks[place, (start - 1) // BLOCK], (start - 1) % BLOCK]
                assert before[place, (start - 1) % 2] == last, "the slot is another sequence's"
        return lambda r: self._row(int(positions[r]), int(sequence[r]), blocks, pages, first)

    def head(self, residual: Any, rows: Tokens | None) -> torch.Tensor:
        return torch.stack(
            [residual(r) for r in (range(self.num_rows[-1]) if rows is None else rows)]
        )

    def _row(
        self, position: int, sequence: int, blocks: Tokens, pages: Tokens, first: Tokens
    ) -> torch.Tensor:
        seen = np.arange(position + 1)
        context = self.context[blocks[sequence, seen // BLOCK], seen % BLOCK]
        near = seen[-WINDOW:]
        window = self.window[pages[sequence, near // PAGE - first[sequence]], near % PAGE]
        return logits_of(context, window)


def shadow_engine(
    blocks: int = 64,
    pages: int = 200,
    slots: int = 16,
    settings: Settings | None = None,
    **limits: Any,
) -> tuple[Engine, ShadowRunner]:
    """An engine over a `ShadowRunner`. limits: fields of `Limits`, generous by default."""
    runner = ShadowRunner(blocks, pages, slots)
    bounds = Limits(**{"max_num_seqs": slots, "max_num_batched_tokens": 64, **limits})
    return Engine(runner, bounds, NO_RULES, settings), runner  # type: ignore[arg-type]


def alone(prompt: Tokens, params: SamplingParams, index: int = 0) -> list[int]:
    """The text that sample `index` of a request must have, by plain computation."""
    tokens = list(prompt)
    seed = np.array([(int(params.seed or 0) + index) % 2**64], np.uint64).astype(np.int64)
    while len(tokens) < len(prompt) + params.max_tokens:
        known = np.array(tokens, np.int64)
        parameters = SamplingParameters(
            torch.tensor([params.temperature], dtype=torch.float32),
            torch.tensor([params.top_p], dtype=torch.float32),
            torch.tensor([max(params.top_k, 0)]),
            torch.tensor([params.min_p], dtype=torch.float32),
        )
        row = OPERATORS.process(logits_of(known, known[-WINDOW:])[None], parameters)
        position = torch.tensor([len(tokens)])
        drawn = OPERATORS.sample(row, torch.from_numpy(seed), position, Purpose.SAMPLE)
        tokens.append(int(drawn[0]))
        if tokens[-1] == EOS and not params.ignore_eos:
            break
    return [int(token) for token in tokens[len(prompt) :]]


def random_request(
    random: np.random.Generator, longest: int = 50, samples: int = 3
) -> tuple[Tokens, SamplingParams]:
    """A prompt and parameters; with `samples` up to that many samples."""
    prompt = random.integers(0, VOCABULARY, random.integers(1, longest + 1))
    params = SamplingParams(
        temperature=float(random.choice([0.0, 0.8, 1.5])),
        top_p=float(random.choice([0.9, 1.0])),
        max_tokens=int(random.integers(1, 24)),
        seed=int(random.integers(0, 2**62)),
        ignore_eos=bool(random.integers(0, 2)),
        n=int(random.integers(1, samples + 1)),
    )
    return prompt, params


def drain(engine: Engine, most_steps: int = 5000) -> list[Request]:
    """Run to the end; every finished request once, in order of finishing."""
    done: list[Request] = []
    for _ in range(most_steps):
        if not engine.has_work:
            return done
        done += engine.step()
    raise AssertionError(f"{most_steps} steps and still {len(engine.scheduler.running)} running")


def assert_as_at_the_start(engine: Engine) -> None:
    """No memory, no queue and no request is left."""
    cache, scheduler = engine.runner.cache, engine.scheduler
    used = [pool.num_used for pool in (cache.blocks, cache.pages, cache.slots)]
    shared = [pool.num_shared for pool in (cache.blocks, cache.pages)]
    assert (used, shared) == ([0, 0, 0], [0, 0])
    assert not (scheduler.running)
    assert not (scheduler.waiting)
    assert not (engine.has_work)
    assert not (cache.has_pending_copies)
    for column in (cache.length, cache.num_blocks, cache.num_pages, cache.first_page):
        assert not column.any()
    assert not cache.block_table.any()
    assert not cache.page_table.any()


def greedy(max_tokens: int = 4, **values: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **values)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def add(engine: Engine, *lengths: int, max_tokens: int = 4) -> list[Request]:
    """A greedy request for each length, with prompts of their own."""
    return [engine.add(prompt_of(n, i), greedy(max_tokens)) for i, n in enumerate(lengths)]


def committed(*requests: Request) -> list[int]:
    """Tokens that each request's first sequence has in the cache; -1 without one."""
    caches = [request.sequences[0].cache for request in requests]
    return [-1 if cache is None else cache.length for cache in caches]


def assert_alone(*requests: Request) -> None:
    """Every sample has the text of its request run alone, or the start of it."""
    for request in requests:
        for sequence in request.sequences:
            want = alone(request.prompt, request.params, sequence.index)
            got = sequence.output.tolist()
            assert "AssertionError" not in sequence.error, sequence.error
            if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert got == want, f"{request.request_id} sample {sequence.index}"
            else:
                assert got == want[: len(got)], f"{request.request_id} sample {sequence.index}"
