"""Statistics of an engine: exact counts, exact bytes, and times that add up."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer import LLM
from deepinfer.engine import Engine
from deepinfer.engine.core import EngineCore
from deepinfer.engine.distribution import RECENT, Distribution, DistributionStats
from deepinfer.engine.scheduler import Limits
from tests.engine.runs import random_tokens
from tests.engine.shadow import VOCABULARY, add, drain, greedy, prompt_of, shadow_core


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
    core, _ = shadow_core(max_num_batched_tokens=16)
    add(core, 20, 5, max_tokens=3)
    stats = core.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 2)
    core.step()  # 16 of the first prompt
    stats = core.stats()
    assert (stats.num_requests_running, stats.num_requests_waiting) == (1, 1)
    assert (stats.prompt_tokens, stats.decode_tokens, stats.generation_tokens) == (16, 0, 0)
    core.step()  # the other 4, and the second prompt
    drain(core)
    stats = core.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.decode_tokens) == (25, 6, 4)
    assert stats.request_success == {"length": 2}
    assert stats.steps == stats.iteration_tokens.count == 4
    assert stats.iteration_tokens.total == 29
    assert stats.iteration_tokens.max == 16
    assert stats.num_requests_running == stats.num_requests_waiting == 0


def test_a_prompt_of_one_row_is_no_decoding() -> None:
    core, _ = shadow_core(max_num_batched_tokens=16)
    add(core, 17, max_tokens=1)
    drain(core)
    stats = core.stats()
    assert (stats.prompt_tokens, stats.decode_tokens) == (17, 0)
    assert stats.decode_seconds == 0 < stats.prefill_seconds


def test_one_value_per_sequence_and_gap() -> None:
    core, _ = shadow_core()
    core.add(prompt_of(9), greedy(5, n=2))
    core.add(prompt_of(4, 1), greedy(1))
    drain(core)
    stats = core.stats()
    assert stats.time_to_first_token_seconds.count == 3
    assert stats.inter_token_latency_seconds.count == 4 + 4
    assert stats.request_time_per_output_token_seconds.count == 2
    assert stats.request_prompt_tokens.total == 9 + 9 + 4
    assert stats.request_generation_tokens.total == 5 + 5 + 1
    assert stats.e2e_request_latency_seconds.count == 3


def test_the_times_of_a_request_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0  # moves between steps only: what is read twice in one is read as the same
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    core, _ = shadow_core(max_num_seqs=1)
    requests = add(core, 9, 4)
    while core.has_work:
        clock += 0.125
        core.step()
    stats = core.stats()
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
    core, _ = shadow_core(blocks=5, max_num_batched_tokens=40)
    add(core, 25, 25, 25, max_tokens=14)
    drain(core)
    stats = core.stats()
    assert stats.num_preemptions == core.scheduler.num_preempted > 0
    assert stats.prompt_tokens > 75
    assert stats.generation_tokens == 42
    assert stats.inter_token_latency_seconds.count == 3 * 13
    assert stats.time_to_first_token_seconds.count == 3


def test_how_requests_end() -> None:
    core, runner = shadow_core()
    add(core, 5, 6)
    core.step()
    core.abort("request-0")
    runner.raises = ValueError("broken")
    drain(core)
    stats = core.stats()
    assert stats.request_success == {"abort": 1, "error": 1}
    assert stats.steps == 1, "a step that raised is none"


def test_where_there_was_nothing_to_draw_no_token_is_counted() -> None:
    core, runner = shadow_core()
    nothing = torch.full((1, VOCABULARY), float("nan"))
    runner.head = lambda residual, rows: nothing  # type: ignore[method-assign]
    add(core, 5)
    drain(core)
    stats = core.stats()
    assert stats.request_success == {"error": 1}
    assert stats.generation_tokens == stats.time_to_first_token_seconds.count == 0


def test_bytes_are_those_of_the_tensors(small_engine: Engine) -> None:
    pools = small_engine.pools
    stats = EngineCore(small_engine, Limits(4, 64)).stats()
    assert stats.context.total_bytes == pools.context.data.nbytes
    assert stats.window.total_bytes == pools.window.data.nbytes
    layers = small_engine.layout.compressor_rings
    states = [state for state in map(pools.compressor, layers) if state is not None]
    assert len(states) == len(layers) > 0
    assert stats.state.total_bytes == sum(state.members.nbytes for state in states)
    total = stats.context.total_bytes + stats.window.total_bytes + stats.state.total_bytes
    assert total == pools.nbytes


def test_used_bytes_count_shared_blocks_once(small_engine: Engine) -> None:
    core = EngineCore(small_engine, Limits(4, 64))
    core.add(random_tokens(small_engine, 33), greedy(3, n=3))
    core.step()
    stats, layout = core.stats(), small_engine.layout
    assert stats.context.used == 3  # of 16 tokens; the samples share them
    assert stats.context.used_bytes == 3 * layout.block_bytes
    assert stats.kv_cache_usage_perc == 3 / small_engine.cache.blocks.capacity
    assert stats.window.used_bytes == small_engine.cache.pages.num_used * layout.page_bytes > 0
    assert stats.state.used == 3
    core.step()
    assert core.stats().context.used == 3 + 2  # two of three writers have copied the last block
    core.abort("request-0")
    stats = core.stats()
    assert stats.context.used_bytes == stats.window.used_bytes == stats.state.used_bytes == 0


def test_every_part_of_a_step_is_timed() -> None:
    core, _ = shadow_core()
    add(core, 5, max_tokens=3)
    drain(core)
    timers = core.stats().timers
    assert list(timers) == ["schedule", "prepare_input", "forward", "sample", "commit"]
    for name, one in timers.items():
        assert one.count == 3, name
        assert 0 < one.mean <= one.max <= one.total, name


def test_snapshots_from_another_thread_are_consistent() -> None:
    core, _ = shadow_core(max_num_batched_tokens=16)
    add(core, *[10] * 12, max_tokens=6)
    wrong: list[Any] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.0005):
            stats = core.stats()
            rows = stats.prompt_tokens + stats.decode_tokens
            if stats.iteration_tokens.total != rows or stats.iteration_tokens.count != stats.steps:
                wrong.append(stats)

    thread = threading.Thread(target=watch)
    thread.start()
    drain(core)
    stop.set()
    thread.join()
    assert not wrong


def test_the_text_interface_has_them(small_engine: Engine) -> None:
    with LLM.of(small_engine) as llm:
        llm.generate([[1, 2, 3], [4, 5]], greedy(2), use_tqdm=False)
        stats = llm.stats()
    assert stats.request_success == {"length": 2}
    assert (stats.prompt_tokens, stats.generation_tokens) == (5, 4)
