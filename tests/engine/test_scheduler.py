"""What a step is made of: arrival order, budgets, chunks, preemption and admission.

The model is the shadow of `shadow.py`, so every text also shows that memory was right.
"""

from __future__ import annotations

import pytest

from deepinfer.engine import SamplingParams
from deepinfer.engine.request import FinishReason
from deepinfer.errors import RequestError, UsageError
from tests.engine.shadow import (
    add,
    assert_alone,
    assert_as_at_the_start,
    committed,
    drain,
    greedy,
    prompt_of,
    shadow_engine,
)


def test_prompts_fill_the_budget_in_order_of_arrival() -> None:
    engine, runner = shadow_engine(max_num_batched_tokens=10)
    requests = add(engine, 4, 9, 5)
    engine.step()
    assert runner.num_rows == [10]
    assert committed(*requests) == [4, 6, -1]
    engine.step()
    assert runner.num_rows == [10, 9]  # 1 row of output, 3 and 5 of prompts
    assert committed(*requests) == [5, 9, 5]
    drain(engine)
    assert_alone(*requests)


def test_decode_rows_and_chunks_share_a_step() -> None:
    engine, runner = shadow_engine(max_num_batched_tokens=8)
    first, long = add(engine, 3, 20, max_tokens=6)
    counts = []
    while engine.has_work:
        before = first.sequences[0].output_length
        engine.step()
        counts.append((first.sequences[0].output_length - before, runner.num_rows[-1]))
    assert counts[:4] == [(1, 8), (1, 8), (1, 8), (1, 2)]
    assert_alone(first, long)


def test_without_chunks_a_prompt_waits_for_a_step_of_its_own() -> None:
    engine, runner = shadow_engine(max_num_batched_tokens=10, chunked_prefill=False)
    requests = add(engine, 6, 6, 3, max_tokens=1)
    drain(engine)
    assert runner.num_rows == [6, 9]
    assert_alone(*requests)


def test_without_chunks_a_prompt_longer_than_a_step_is_refused() -> None:
    engine, _ = shadow_engine(max_num_batched_tokens=10, chunked_prefill=False)
    with pytest.raises(RequestError, match="11 tokens, max_num_batched_tokens is 10 and chunked"):
        engine.add(prompt_of(11), greedy())
    assert_as_at_the_start(engine)


def test_without_chunks_a_preempted_sequence_that_outgrew_a_step_comes_back() -> None:
    engine, _ = shadow_engine(blocks=3, max_num_batched_tokens=16, chunked_prefill=False)
    requests = add(engine, 15, 15, max_tokens=20)
    drain(engine, 200)
    assert engine.scheduler.num_preempted
    assert [r.sequences[0].finish_reason for r in requests] == [FinishReason.LENGTH] * 2
    assert_alone(*requests)


def test_no_request_is_overtaken() -> None:
    """A small one behind a large one waits, even when it would fit."""
    engine, _ = shadow_engine(blocks=4)
    requests = add(engine, 30, 40, 2, max_tokens=3)
    engine.step()
    assert committed(*requests) == [30, -1, -1]
    finished = [request.request_id for request in drain(engine)]
    assert finished[0] == requests[0].request_id
    assert_alone(*requests)


def test_only_so_many_run() -> None:
    engine, _ = shadow_engine(max_num_seqs=2)
    requests = add(engine, 3, 3, 3, 3)
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, len(engine.scheduler.running))
    assert most == 2
    assert_alone(*requests)


def test_the_sum_of_lengths_bounds_admission() -> None:
    engine, _ = shadow_engine(max_sum_length=20)
    requests = add(engine, 12, 12)
    engine.step()
    assert committed(*requests) == [12, -1]
    with pytest.raises(RequestError, match="21 tokens and DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K"):
        engine.add(prompt_of(21), greedy())
    drain(engine)
    assert_alone(*requests)


def test_the_latest_arrival_is_preempted_and_comes_back() -> None:
    engine, _ = shadow_engine(blocks=4)
    requests = add(engine, 28, 28, max_tokens=10)
    done = drain(engine)
    assert [r.request_id for r in done] == [r.request_id for r in requests]
    assert [r.sequences[0].preemptions for r in requests] == [0, 1]
    assert_alone(*requests)
    assert_as_at_the_start(engine)


def test_a_preempted_request_may_be_ended_instead() -> None:
    engine, _ = shadow_engine(blocks=4, stop_preempted_request=True)
    requests = add(engine, 28, 28, max_tokens=10)
    drain(engine)
    reasons = [request.sequences[0].finish_reason for request in requests]
    assert reasons == [FinishReason.LENGTH, FinishReason.NO_RESOURCES]
    assert requests[1].sequences[0].output_length == 5
    assert_alone(*requests)
    assert_as_at_the_start(engine)


def test_a_request_that_outgrows_all_memory_ends() -> None:
    engine, _ = shadow_engine(blocks=2)
    (request,) = add(engine, 30, max_tokens=10)
    drain(engine, 20)
    sequence = request.sequences[0]
    assert sequence.finish_reason == FinishReason.NO_RESOURCES
    assert sequence.output_length == 3  # rows 0 to 31 have a place
    assert "33 tokens: they need 3 context blocks" in sequence.error
    assert "the engine has 2 blocks" in sequence.error
    assert_alone(request)
    assert_as_at_the_start(engine)


def test_samples_that_outgrow_all_memory_end_one_by_one() -> None:
    engine, _ = shadow_engine(blocks=2)
    params = SamplingParams(n=2, seed=1, max_tokens=10, ignore_eos=True)
    request = engine.add(prompt_of(30), params)
    assert drain(engine, 30) == [request]
    reasons = [sequence.finish_reason for sequence in request.sequences]
    assert reasons == [FinishReason.NO_RESOURCES] * 2
    assert [sequence.output_length for sequence in request.sequences] == [3, 3]
    assert_alone(request)
    assert_as_at_the_start(engine)


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine, _ = shadow_engine(blocks=2)
    message = "32 tokens, which with one output token need 3 cache blocks of 16 tokens; .* has 2"
    with pytest.raises(RequestError, match=message):
        engine.add(prompt_of(32), greedy())
    engine.add(prompt_of(31), greedy())
    drain(engine)
    assert_as_at_the_start(engine)


@pytest.mark.parametrize("pages", [4, 5, 6])
def test_chunks_are_as_long_as_the_pages_allow(pages: int) -> None:
    """A page holds 4 tokens and the window 8: 4 pages are enough for 3 rows at any offset."""
    engine, runner = shadow_engine(pages=pages)
    requests = add(engine, 40, 17, max_tokens=3)
    drain(engine)
    assert max(runner.num_rows) >= (pages - 1) * 4 - 8 - 1
    assert all(r.sequences[0].finish_reason == FinishReason.LENGTH for r in requests)
    assert_alone(*requests)


def test_a_pool_without_pages_for_one_row_is_refused() -> None:
    with pytest.raises(UsageError, match="one row needs 4 window pages and the engine has 3"):
        shadow_engine(pages=3)


def test_when_slots_are_taken_by_others_the_request_ends() -> None:
    """Nothing runs and nothing can: an answer, not an endless loop."""
    engine, runner = shadow_engine(slots=2)
    taken = runner.cache.slots.allocate(2)
    requests = add(engine, 5, 6)
    drain(engine, 5)
    for request in requests:
        assert request.sequences[0].finish_reason == FinishReason.NO_RESOURCES
        assert "2 sequence slots, of which" in request.sequences[0].error
    runner.cache.slots.free(taken)
    assert_as_at_the_start(engine)


def test_n_computes_the_prompt_once() -> None:
    engine, runner = shadow_engine()
    request = engine.add(prompt_of(21), SamplingParams(n=4, seed=5, max_tokens=3, ignore_eos=True))
    drain(engine)
    # The prompt; its last row for each other sample; 2 further rows of each sample.
    assert sum(runner.num_rows) == 21 + 3 + 4 * 2
    assert_alone(request)
    assert len({tuple(s.output.tolist()) for s in request.sequences}) > 1
    assert_as_at_the_start(engine)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33])
def test_n_at_every_edge_of_the_prompt(length: int) -> None:
    engine, runner = shadow_engine()
    request = engine.add(prompt_of(length), SamplingParams(n=3, seed=1, max_tokens=9))
    engine.step()
    assert runner.cache.blocks.num_used == -(-length // 16)  # shared until they are written
    drain(engine)
    assert_alone(request)
    assert_as_at_the_start(engine)


def test_samples_without_a_place_wait_before_later_requests() -> None:
    engine, _ = shadow_engine(max_num_seqs=2)
    first = engine.add(prompt_of(5), SamplingParams(n=2, seed=1, max_tokens=4, ignore_eos=True))
    second = engine.add(prompt_of(6), greedy(max_tokens=8))
    third = engine.add(prompt_of(7), greedy(max_tokens=2))
    engine.step()
    assert [sequence.request for sequence in engine.scheduler.waiting] == [first, third]
    finished = drain(engine)
    assert finished == [first, second, third] or finished.index(first) < finished.index(third)
    assert_alone(first, second, third)


def test_more_samples_than_places_are_refused() -> None:
    engine, _ = shadow_engine(max_num_seqs=2)
    with pytest.raises(RequestError, match="n is 3 and max_num_seqs is 2"):
        engine.add(prompt_of(5), greedy(n=3))


def test_copies_are_counted_before_anything_is_admitted() -> None:
    """4 blocks: the prompt's 2, a copy of its last for each sample; the next request must wait."""
    engine, runner = shadow_engine(blocks=4)
    first = engine.add(prompt_of(20), SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True))
    second = engine.add(prompt_of(3), greedy(max_tokens=2))
    engine.step()
    engine.step()
    assert runner.cache.blocks.num_free == 0
    drain(engine)
    assert engine.scheduler.num_preempted <= 2
    assert_alone(first, second)
    assert_as_at_the_start(engine)
