"""Environment variables of the engine: each one changes what it says, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.cache import CacheLayout
from deepinfer.checkpoint import Checkpoint
from deepinfer.engine import Engine, EngineOptions, ModelRunner, SamplingParams
from deepinfer.engine.request import Sequence
from deepinfer.engine.sampler import SamplingRules
from deepinfer.errors import RequestError, UsageError
from deepinfer.settings.settings import Settings
from tests.conftest import BLOCK_TOKENS, PAGE_TOKENS
from tests.engine.runs import extend
from tests.engine.shadow import drain
from tests.engine.test_sampler import VOCABULARY, draw, running

Load = Callable[..., ModelRunner]


def settings(**values: str) -> Settings:
    return Settings.from_environment({f"DEEPINFER_{name}": text for name, text in values.items()})


@pytest.fixture(scope="module")
def load(small_directory: Path) -> Iterator[Load]:
    """`load(NAME="value", ...)`: an engine of the small checkpoint under these variables."""
    with Checkpoint.open(small_directory, progress=False) as checkpoint:
        layout = CacheLayout(
            checkpoint.config.text, block_tokens=BLOCK_TOKENS, page_tokens=PAGE_TOKENS
        )

        def loaded(options: dict[str, Any] | None = None, **values: str) -> ModelRunner:
            own = {"max_model_len": 96, "max_num_seqs": 4, **(options or {})}
            return ModelRunner.load(
                checkpoint,
                select_backend(REFERENCE),
                EngineOptions(**own),
                layout=layout,
                settings=settings(**values),
            )

        yield loaded


def test_slots_ratio(load: Load) -> None:
    assert load().cache.slots.capacity == 4  # int(4 * 1.2)
    runner = load(NUM_STATE_SLOTS_RATIO="2.5")
    assert runner.cache.slots.capacity == 10
    assert Engine(runner).limits.max_num_seqs == 4
    assert Engine(load(NUM_STATE_SLOTS_RATIO="0.5")).limits.max_num_seqs == 2


@pytest.mark.slow
def test_engram_pad_token(load: Load) -> None:
    """The id in front of a sequence: another one gives other n-grams, the same one the same."""
    plain, tokens = load(), np.array([5, 6, 7])
    own = plain.config.text.engram_pad_token_id
    history = plain.history
    assert history is not None

    def compressed(token: int) -> int:
        first = np.zeros(1, np.int64)
        return int(history.rows(np.array([[token]], np.int32), first, first)[0, 0])

    other = next(
        token
        for token in range(plain.config.text.vocab_size)
        if compressed(token) != compressed(own)
    )

    def logits(runner: ModelRunner) -> torch.Tensor:
        cache = runner.cache.open()
        got = extend(runner, cache, tokens)
        runner.cache.close(cache)
        return got

    same = load(ENGRAM_PAD_TOKEN=str(own))
    assert torch.equal(logits(plain), logits(same))
    assert not torch.equal(logits(plain), logits(load(ENGRAM_PAD_TOKEN=str(other))))


def test_engram_tables_in_memory(load: Load) -> None:
    """On the host's own device: read into memory instead of mapped, with the same values."""
    mapped, kept = load(), load(ENGRAM_FORCE_GPU_STORAGE="1")

    def tables(runner: ModelRunner) -> list[Any]:
        layers = runner.backbone.weights.layers
        return [layer.engram.table for layer in layers if layer.engram is not None]

    pairs = list(zip(tables(mapped), tables(kept), strict=True))
    assert pairs
    for before, after in pairs:
        assert (before.nbytes, after.mapped_bytes) == (0, 0)
        assert before.mapped_bytes == after.nbytes > 0
        assert torch.equal(before.weight, after.weight)
    share = kept.packing.shares["native"].resident - mapped.packing.shares["native"].resident
    assert share == sum(after.nbytes for _, after in pairs)


def test_engram_pad_token_outside_the_vocabulary(load: Load) -> None:
    with pytest.raises(UsageError, match="DEEPINFER_ENGRAM_PAD_TOKEN is 999999; allowed: 0 to"):
        load(ENGRAM_PAD_TOKEN="999999")


@pytest.mark.slow
def test_blacklist_and_forced_top_k_reach_the_sampler(load: Load) -> None:
    runner = load(DECODE_TOKEN_BLACKLIST="0..3,7", SAMPLER_FORCE_TOPK="5")
    engine = Engine(runner)
    assert engine.sampler.rules == SamplingRules(blacklist=(0, 1, 2, 3, 7), force_top_k=5)
    prompt = np.arange(5)
    request = engine.add(prompt, SamplingParams(max_tokens=20, temperature=100.0, ignore_eos=True))
    drain(engine)
    assert not set(request.sequences[0].output.tolist()) & {0, 1, 2, 3, 7}


def test_blacklist_outside_the_vocabulary() -> None:
    wrong = settings(DECODE_TOKEN_BLACKLIST="3,7..12")
    assert SamplingRules.from_settings(wrong, 13).blacklist[-1] == 12
    with pytest.raises(UsageError, match="BLACKLIST names id 12; allowed: 0 to 11"):
        SamplingRules.from_settings(wrong, 12)


def test_blacklist_of_the_whole_vocabulary() -> None:
    with pytest.raises(UsageError, match="leaves nothing to draw"):
        SamplingRules.from_settings(settings(DECODE_TOKEN_BLACKLIST="0..7"), 8)


def test_forced_top_k_keeps_the_highest_ties_to_the_lower_id() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, 4], row[0, 9] = 2.0, 1.0
    _, processed = draw(row, [running(1)], force_top_k=4)
    kept = [t for t, x in enumerate(processed[0].tolist()) if x > -torch.inf]
    assert kept == [0, 1, 4, 9]
    assert processed[0, 4] == 2
    assert processed[0, 0] == 0


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_forced_top_k_does_not_hide_what_is_no_number(value: str) -> None:
    rows = torch.zeros(2, VOCABULARY)
    rows[1, 5] = float(value)
    drawn, _ = draw(rows, [running(1), running(2)], force_top_k=3)
    assert drawn.ids.tolist() == [0, -1]


def below(row: torch.Tensor, token: int) -> float:
    """The mass of all tokens up to one, ascending by probability and id."""
    chances = row.double().softmax(-1).tolist()
    order = sorted(range(len(chances)), key=lambda t: (chances[t], t))
    return sum(chances[t] for t in order[: order.index(token) + 1])


def test_sum_smaller_probs_comes_with_every_token() -> None:
    rows = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(4)).round()
    sequences: list[Sequence] = [running(i + 1, temperature=1.0) for i in range(3)]
    drawn, processed = draw(rows, sequences, sum_smaller_probs=True)
    for place, (row, token) in enumerate(zip(processed, drawn.ids.tolist(), strict=True)):
        logprobs = drawn.logprobs[place]
        assert logprobs.top == {}
        assert logprobs.sum_smaller_probs == pytest.approx(below(row, token), abs=1e-6)
    plain, _ = draw(rows, [running(1, logprobs=True)] * 3)
    assert plain.logprobs[0].sum_smaller_probs is None


def test_sum_of_lengths(load: Load) -> None:
    """At most so many known tokens are admitted beside each other; a longer prompt is refused."""
    runner = load(PREFILL_MAX_SUM_SEQLEN_K="40")
    engine = Engine(runner)
    for _ in range(3):
        engine.add(np.arange(15), SamplingParams(max_tokens=1))
    engine.step()
    assert (engine.scheduler.num_preempted, len(engine.scheduler.waiting)) == (0, 1)
    drain(engine)
    with pytest.raises(RequestError, match="DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K allows 40"):
        engine.add(np.arange(41), SamplingParams(max_tokens=1))


@pytest.mark.slow
def test_memory_of_index_scores(load: Load) -> None:
    """Rows of a step times the longest context stay within the bytes; the text is the same."""
    texts, steps = [], []
    for limit in ("10000000", "500"):
        engine = Engine(load(INDEX_ATTN_MEMORY_LIMIT=limit))
        request = engine.add(np.arange(60), SamplingParams(max_tokens=4, seed=1))
        count = 0
        while engine.has_work:
            engine.step()
            count += 1
        texts.append(request.sequences[0].output.tolist())
        steps.append(count)
    assert texts[0] == texts[1]
    assert steps[0] == 4
    assert steps[1] > 10


def test_memory_of_index_scores_without_chunks(load: Load) -> None:
    engine = Engine(load({"chunked_prefill": False}, INDEX_ATTN_MEMORY_LIMIT="500"))
    with pytest.raises(RequestError, match=r"take DEEPINFER_INDEX_ATTN_MEMORY_LIMIT .500 bytes"):
        engine.add(np.arange(60), SamplingParams(max_tokens=1))


@pytest.mark.slow
def test_pieces_are_not_shorter_than_lookahead_tokens(load: Load) -> None:
    def rows(lookahead: int) -> list[int]:
        options = {"max_num_batched_tokens": 16, "lookahead_tokens": lookahead}
        engine = Engine(load(options))
        engine.add(np.arange(10), SamplingParams(max_tokens=2, ignore_eos=True))
        engine.add(np.arange(20), SamplingParams(max_tokens=1))
        counts = []
        plan = engine.scheduler.schedule

        def planned() -> Any:
            got = plan()
            counts.extend(got.rows.counts.tolist() if got else [])
            return got

        engine.scheduler.schedule = planned  # type: ignore[method-assign]
        drain(engine)
        return counts

    assert rows(0) == [10, 6, 1, 14]
    assert rows(8) == [10, 1, 15, 5]


@pytest.mark.slow
def test_seed_of_the_engine_makes_requests_repeatable(load: Load) -> None:
    def texts(seed: int | None) -> list[list[int]]:
        engine = Engine(load({"seed": seed}))
        params = SamplingParams(max_tokens=8, temperature=2.0)
        requests = [engine.add(np.arange(5), params) for _ in range(2)]
        drain(engine)
        return [request.sequences[0].output.tolist() for request in requests]

    first = texts(7)
    assert first == texts(7)
    assert first[0] != first[1]
    assert first != texts(8)
    assert texts(None) != texts(None)
