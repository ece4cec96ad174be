"""Statistics of an engine: exact counts, exact bytes, and times that add up."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer import LLM
from deepinfer.engine import Engine, ModelRunner
from deepinfer.engine.admission import Limits
from deepinfer.engine.observe.distribution import RECENT, Distribution, DistributionStats
from tests.engine.runs import random_tokens
from tests.engine.shadow import VOCABULARY, add, drain, greedy, prompt_of, shadow_engine


@pytest.mark.parametrize("sizes", [[5], [3, 0, 4], [RECENT - 1, 3], [RECENT + 7], [9000, 2]])
def test_a_distribution_is_that_of_its_values(sizes: list[int]) -> None:
    random, distribution = np.random.default_rng(0), Distribution()
    values = [random.random(size) for size in sizes]
    for part in values:
        distribution.extend(part)
    whole = np.concatenate(values)
    stats = distribution.stats()
    assert stats.count == len(whole)
    assert stats.max == whole.max()
    assert stats.total == pytest.approx(whole.sum())
    assert stats.mean == pytest.approx(whole.mean())
    wanted = np.percentile(whole[-RECENT:], (50, 90, 99))
    assert (stats.p50, stats.p90, stats.p99) == pytest.approx(tuple(wanted))


def test_single_values_and_arrays_are_the_same() -> None:
    one, many = Distribution(), Distribution()
    values = np.arange(RECENT + 10.0)
    many.extend(values)
    for value in values:
        one.add(value)
    assert one.stats() == many.stats()
    assert Distribution().stats() == DistributionStats()


def test_tokens_and_steps() -> None:
    engine, _ = shadow_engine(max_num_batched_tokens=16)
    add(engine, 20, 5, max_tokens=3)
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 2)
    engine.step()  # 16 of the first prompt
    stats = engine.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (1, 1)
    assert (stats.prompt_tokens, stats.decode_tokens, stats.generation_tokens) == (16, 0, 0)
    engine.step()  # the other 4, and the second prompt
    drain(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.decode_tokens) == (25, 6, 4)
    assert stats.request_success == {"length": 2}
    assert stats.steps == stats.iteration_tokens.count == 4
    assert (stats.iteration_tokens.total, stats.iteration_tokens.max) == (29, 16)
    assert stats.num_requests_running == stats.num_requests_waiting == 0


def test_a_prompt_of_one_row_is_no_decoding() -> None:
    engine, _ = shadow_engine(max_num_batched_tokens=16)
    add(engine, 17, max_tokens=1)
    drain(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.decode_tokens) == (17, 0)
    assert stats.decode_seconds == 0 < stats.prefill_seconds


def test_one_value_per_sequence_and_gap() -> None:
    engine, _ = shadow_engine()
    engine.add(prompt_of(9), greedy(5, n=2))
    engine.add(prompt_of(4, 1), greedy(1))
    drain(engine)
    stats = engine.stats()
    assert stats.time_to_first_token_seconds.count == 3
    assert stats.inter_token_latency_seconds.count == 4 + 4
    assert stats.request_time_per_output_token_seconds.count == 2
    assert stats.request_prompt_tokens.total == 9 + 9 + 4
    assert stats.request_generation_tokens.total == 5 + 5 + 1
    assert stats.e2e_request_latency_seconds.count == 3


def test_the_times_of_a_request_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0  # moves between steps only: what is read twice in one is read as the same
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    engine, _ = shadow_engine(max_num_seqs=1)
    requests = add(engine, 9, 4)
    while engine.has_work:
        clock += 0.125
        engine.step()
    stats = engine.stats()
    queue = stats.request_queue_time_seconds.total
    prefill, decode = stats.request_prefill_time_seconds, stats.request_decode_time_seconds
    inference = stats.request_inference_time_seconds.total
    assert inference == pytest.approx(prefill.total + decode.total)
    assert stats.e2e_request_latency_seconds.total == pytest.approx(queue + inference)
    second = requests[1].sequences[0]
    assert stats.request_queue_time_seconds.max == requests[1].scheduled_at - requests[1].arrival
    assert stats.e2e_request_latency_seconds.max == second.finished_at - requests[1].arrival
    assert stats.inter_token_latency_seconds.total == decode.total > 0


def test_preempted_rows_are_computed_again_and_gaps_are_kept() -> None:
    engine, _ = shadow_engine(blocks=5, max_num_batched_tokens=40)
    add(engine, 25, 25, 25, max_tokens=14)
    drain(engine)
    stats = engine.stats()
    assert stats.num_preemptions == engine.scheduler.num_preempted > 0
    assert stats.prompt_tokens > 75
    assert (stats.generation_tokens, stats.inter_token_latency_seconds.count) == (42, 3 * 13)
    assert stats.time_to_first_token_seconds.count == 3


def test_how_requests_end() -> None:
    engine, runner = shadow_engine()
    add(engine, 5, 6)
    engine.step()
    engine.abort("request-0")
    runner.raises = ValueError("broken")
    drain(engine)
    stats = engine.stats()
    assert stats.request_success == {"abort": 1, "error": 1}
    assert stats.steps == 1, "a step that raised is none"


def test_times_of_a_sequence_that_another_callback_ends_with_its_first_token() -> None:
    engine, _ = shadow_engine()
    engine.add(prompt_of(3), greedy(1), on_token=lambda sequence: engine.abort("second") and None)
    second = engine.add(prompt_of(4, 1), greedy(2), "second").sequences[0]
    drain(engine)
    assert second.output_length == 1
    assert second.first_token_at == second.finished_at > 0
    stats = engine.stats()
    assert stats.request_prefill_time_seconds.count == stats.time_to_first_token_seconds.count == 2
    assert 0 <= stats.request_prefill_time_seconds.p50 <= stats.request_prefill_time_seconds.total


def test_where_there_was_nothing_to_draw_no_token_is_counted() -> None:
    engine, runner = shadow_engine()
    nothing = torch.full((1, VOCABULARY), float("nan"))
    runner.head = lambda residual, rows: nothing  # type: ignore[method-assign]
    add(engine, 5)
    drain(engine)
    stats = engine.stats()
    assert stats.request_success == {"error": 1}
    assert stats.generation_tokens == stats.time_to_first_token_seconds.count == 0


def test_bytes_are_those_of_the_tensors(small_runner: ModelRunner) -> None:
    pools = small_runner.pools
    stats = Engine(small_runner, Limits(4, 64)).stats()
    assert stats.context.total_bytes == pools.context.data.nbytes
    assert stats.window.total_bytes == pools.window.data.nbytes
    layers = small_runner.layout.compressor_rings
    states = [state for state in map(pools.compressor, layers) if state is not None]
    assert len(states) == len(layers) > 0
    assert stats.state.total_bytes == sum(state.members.nbytes for state in states)
    total = stats.context.total_bytes + stats.window.total_bytes + stats.state.total_bytes
    assert total == pools.nbytes


def test_used_bytes_count_shared_blocks_once(small_runner: ModelRunner) -> None:
    engine = Engine(small_runner, Limits(4, 64))
    engine.add(random_tokens(small_runner, 33), greedy(3, n=3))
    engine.step()
    stats, layout = engine.stats(), small_runner.layout
    assert stats.context.used == 3  # of 16 tokens; the samples share them
    assert stats.context.used_bytes == 3 * layout.block_bytes
    assert stats.kv_cache_usage_perc == 3 / small_runner.cache.blocks.capacity
    assert stats.window.used_bytes == small_runner.cache.pages.num_used * layout.page_bytes > 0
    assert stats.state.used == 3
    engine.step()
    assert engine.stats().context.used == 3 + 2  # two of three writers have copied the last block
    engine.abort("request-0")
    stats = engine.stats()
    assert stats.context.used_bytes == stats.window.used_bytes == stats.state.used_bytes == 0


def test_every_part_of_a_step_is_timed() -> None:
    engine, _ = shadow_engine()
    add(engine, 5, max_tokens=3)
    drain(engine)
    timers = engine.stats().timers
    assert list(timers) == ["schedule", "prepare_input", "forward", "sample", "commit"]
    for name, one in timers.items():
        assert one.count == 3, name
        assert 0 < one.mean <= one.max <= one.total, name


def test_snapshots_from_another_thread_are_consistent() -> None:
    engine, _ = shadow_engine(max_num_batched_tokens=16)
    add(engine, *[10] * 12, max_tokens=6)
    wrong: list[Any] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.0005):
            stats = engine.stats()
            rows = stats.prompt_tokens + stats.decode_tokens
            if stats.iteration_tokens.total != rows or stats.iteration_tokens.count != stats.steps:
                wrong.append(stats)

    thread = threading.Thread(target=watch)
    thread.start()
    drain(engine)
    stop.set()
    thread.join()
    assert not wrong


def test_the_text_interface_has_them(small_runner: ModelRunner) -> None:
    with LLM.of(Engine(small_runner, settings=small_runner.settings)) as llm:
        llm.generate([[1, 2, 3], [4, 5]], greedy(2), use_tqdm=False)
        stats = llm.stats()
    assert stats.request_success == {"length": 2}
    assert (stats.prompt_tokens, stats.generation_tokens) == (5, 4)
