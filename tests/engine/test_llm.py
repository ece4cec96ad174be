"""The text interface: one result per prompt, streams, stops, threads, event loops, and its end."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest

import deepinfer
from deepinfer import LLM, SamplingParams
from deepinfer.engine import Engine, EngineOptions, ModelRunner
from deepinfer.engine.outputs import RequestDelta, RequestOutput
from deepinfer.errors import DeepInferError, NotBuiltYetError, UsageError
from tests.engine.runs import generate, nothing_is_held

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ONE = SamplingParams(temperature=0, max_tokens=1)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def engine_threads() -> int:
    return sum(thread.name == "deepinfer-engine" for thread in threading.enumerate())


@pytest.fixture
def llm(small_runner: ModelRunner) -> Iterator[LLM]:
    with LLM.of(Engine(small_runner, settings=small_runner.settings)) as made:
        yield made
    assert engine_threads() == 0
    assert nothing_is_held(small_runner)


@pytest.mark.slow
def test_one_result_per_prompt_in_order_with_bad_ones_between(llm: LLM) -> None:
    prompts: list[Any] = ["The first", [], "The \ud800 third", [5, 6, 7], [10**9], {"role": 1}]
    prompts += [
        [{"role": "user", "content": "Hi"}],
        [{"role": "nobody", "content": "x"}],
        [1] * 500,
    ]
    results = llm.generate(prompts, GREEDY)
    assert [len(r.outputs) for r in results] == [1] * len(prompts)
    reasons = [r.finish_reason for r in results]
    bad = "error"
    assert reasons == [
        *("length", bad, bad, "length", bad, bad),
        *("length", bad, "prompt_length_exceeded"),
    ]
    for result, reason in zip(results, reasons, strict=True):
        assert bool(result.error) == (reason != "length") == (result.token_ids == [])
    assert "500 tokens" in results[-1].error
    assert "max_model_len is 128" in results[-1].error
    assert results[0].prompt == "The first"
    assert results[3].prompt is None
    assert results[3].prompt_token_ids == [5, 6, 7]


@pytest.mark.slow
def test_tokens_are_those_of_the_engine(llm: LLM) -> None:
    ids = [5, 6, 7, 8]
    want = [token.token_id for token in generate(llm.engine.runner, ids, GREEDY)]
    together = llm.generate([ids, "something else", ids], GREEDY)
    assert together[0].token_ids == together[2].token_ids == want
    assert together[0].text == llm.get_tokenizer().decode(want)


@pytest.mark.slow
def test_metrics_and_logprobs(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0.7, seed=1, max_tokens=4, ignore_eos=True, top_logprobs=2, prompt_logprobs=True
    )
    before = time.time() - 1
    (result,) = llm.generate([[4, 5, 6]], params)
    assert result.logprobs is not None
    assert len(result.logprobs) == 4
    assert all(len(token.top) == 2 and token.raw < 0 for token in result.logprobs)
    total = sum(token.processed for token in result.logprobs)
    assert result.outputs[0].cumulative_logprob == pytest.approx(total)
    assert result.prompt_logprobs is not None
    assert [one is None for one in result.prompt_logprobs] == [True, False, False]
    metrics = result.metrics
    assert (metrics.num_prompt_tokens, metrics.num_generation_tokens) == (3, 4)
    assert metrics.arrival_time is not None
    assert before <= metrics.arrival_time <= time.time()
    times = metrics.queue_time, metrics.time_to_first_token, metrics.total
    assert None not in times
    assert 0 <= times[0] <= times[1] <= times[2]
    plain = llm.generate([[4, 5, 6]], GREEDY)[0]
    assert plain.logprobs is None
    assert plain.prompt_logprobs is None
    assert plain.outputs[0].cumulative_logprob is None


@pytest.mark.slow
def test_a_shared_object_without_a_seed_gives_different_samples(llm: LLM) -> None:
    params = SamplingParams(temperature=3.0, max_tokens=8, ignore_eos=True)
    first, second = llm.generate([[3, 4]] * 2, params)
    assert first.token_ids != second.token_ids
    params = SamplingParams(temperature=3.0, max_tokens=8, ignore_eos=True, seed=5)
    first, second = llm.generate([[3, 4]] * 2, params)
    assert first.token_ids == second.token_ids


@pytest.mark.slow
def test_samples_of_one_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=2.0, max_tokens=5, ignore_eos=True, seed=5, n=3)
    (result,) = llm.generate([[3, 4, 5]], params)
    assert [output.index for output in result.outputs] == [0, 1, 2]
    alone = SamplingParams(temperature=2.0, max_tokens=5, ignore_eos=True, seed=7)
    assert result.outputs[2].token_ids == llm.generate([[3, 4, 5]], alone)[0].token_ids


@pytest.mark.slow
def test_a_stop_string_that_straddles_tokens(llm: LLM) -> None:
    (plain,) = llm.generate([[9, 8, 7]], SamplingParams(temperature=0, max_tokens=12))
    pieces = [llm.get_tokenizer().decode([token]) for token in plain.token_ids]
    place = next(i for i in range(2, 11) if len(pieces[i]) > 1 and len(pieces[i + 1]) > 1)
    stop = pieces[place][-1] + pieces[place + 1][0]
    end = plain.text.index(stop)
    for include in (False, True):
        params = SamplingParams(temperature=0, max_tokens=12, stop=stop, include_stop=include)
        (result,) = llm.generate([[9, 8, 7]], params)
        assert (result.finish_reason, result.outputs[0].stop_reason) == ("stop", stop)
        assert result.text == plain.text[: end + len(stop) * include]
        assert len(result.token_ids) < 12
        deltas = list(llm.stream([9, 8, 7], params))
        assert "".join(delta.text for delta in deltas) == result.text


@pytest.mark.slow
def test_min_tokens_holds_stop_strings_back(llm: LLM) -> None:
    (plain,) = llm.generate([[9, 8, 7]], GREEDY)
    stop = llm.get_tokenizer().decode(plain.token_ids[:1])
    values: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "stop": stop}
    assert len(llm.generate([[9, 8, 7]], SamplingParams(**values))[0].token_ids) == 1
    (held,) = llm.generate([[9, 8, 7]], SamplingParams(min_tokens=3, **values))
    assert len(held.token_ids) > 3
    assert held.text.startswith(stop)


@pytest.mark.slow
def test_stop_ids_keep_their_token_and_leave_its_text_out(llm: LLM) -> None:
    (plain,) = llm.generate([[9, 8, 7]], GREEDY)
    last = plain.token_ids[2]
    decode = llm.get_tokenizer().decode
    for include in (False, True):
        params = SamplingParams(
            temperature=0, max_tokens=6, stop_token_ids=(last,), include_stop=include
        )
        (result,) = llm.generate([[9, 8, 7]], params)
        count = plain.token_ids.index(last) + 1
        assert result.token_ids == plain.token_ids[:count]
        assert result.outputs[0].stop_reason == last
        assert result.text == decode(plain.token_ids[: count - (not include)])


@pytest.mark.slow
def test_forced_tokens(llm: LLM) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=4, ignore_eos=True, golden_token_ids=[11, 12], logprobs=True
    )
    (result,) = llm.generate([[9, 8, 7]], params)
    assert result.token_ids[:2] == [11, 12]
    assert result.logprobs is not None
    forced = llm.generate([[9, 8, 7, 11, 12]], GREEDY)[0]
    assert result.token_ids[2:] == forced.token_ids[:2]
    assert result.logprobs[0].raw > -9999


@pytest.mark.slow
def test_stream_gives_the_text_of_generate(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=True)
    (whole,) = llm.generate(["A tale"], params)
    deltas = list(llm.stream("A tale", params))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [len(delta.logprobs or []) for delta in deltas] == [1] * 9
    assert [delta.finish_reason for delta in deltas] == [""] * 8 + ["length"]


def test_a_stream_that_fails_says_why(llm: LLM) -> None:
    deltas = list(llm.stream([], GREEDY))
    assert [(d.finish_reason, bool(d.error)) for d in deltas] == [("error", True)]


@pytest.mark.slow
def test_to_stop_reading_aborts(llm: LLM) -> None:
    stream = llm.stream([1, 2, 3], LONG)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert llm.generate([[1, 2]], GREEDY)[0].finish_reason == "length"
    assert llm.stats().request_success["abort"] == 1
    assert llm.stats().num_requests_running == 0


def test_abort_keeps_what_there_is(llm: LLM) -> None:
    tokens: list[int] = []
    enough = threading.Event()

    def on_delta(delta: RequestDelta) -> None:
        tokens.extend(delta.token_ids)
        if len(tokens) == 3:
            enough.set()

    handle = llm.submit([1, 2, 3], LONG, "mine", on_delta)
    assert enough.wait(60)
    llm.abort("mine")
    result = handle.result(60)
    assert (result.finish_reason, result.error, result.token_ids) == ("abort", "", tokens)
    assert 3 <= len(tokens) < 100
    assert result.text == llm.get_tokenizer().decode(tokens)


@pytest.mark.slow
def test_an_id_in_use_is_refused_and_harms_nobody(llm: LLM) -> None:
    first = llm.submit([1, 2, 3], GREEDY, "twice")
    second = llm.submit([1, 2, 3], GREEDY, "twice")
    assert "'twice' is in use" in second.result(60).error
    second.abort()
    assert first.result(60).finish_reason == "length"
    assert llm.submit([1, 2, 3], GREEDY, "twice").result(60).error == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampling_params": {"max_tokens": 2}}, "sampling_params is dict; allowed"),
        ({"request_id": ""}, "request_id is ''; allowed: a string that is not empty"),
        ({"request_id": 7}, "request_id is 7; allowed"),
        ({"request_id": "request-7"}, "ids of the form request-N are given"),
    ],
)
def test_a_wrong_submission_harms_nobody(llm: LLM, given: dict[str, Any], message: str) -> None:
    other = llm.submit([1, 2, 3], GREEDY)
    with pytest.raises(UsageError, match=message):
        llm.submit([1, 2], **given)
    with pytest.raises(UsageError, match=message):
        next(llm.stream([1, 2], **given))
    assert other.result(60).finish_reason == "length"


@pytest.mark.slow
def test_an_unforeseen_error_while_queueing_is_the_requests_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = llm._loop.engine.add

    def failing(prompt: Any, *rest: Any) -> Any:
        if prompt == [13]:
            raise KeyError("a programmer's error")
        return add(prompt, *rest)

    monkeypatch.setattr(llm._loop.engine, "add", failing)
    bad, good = llm.generate([[13], [14]], GREEDY)
    assert bad.finish_reason == "error"
    assert "programmer's error" in bad.error
    assert good.finish_reason == "length"


@pytest.mark.slow
def test_a_prompt_that_ends_inside_a_character(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    ids = [single[bytes([byte])] for byte in "a😀b😀".encode()]
    forced = tuple(ids[3:-1])  # the rest of the first emoji, and all but the last byte of the next
    params = SamplingParams(
        temperature=0, max_tokens=len(forced), ignore_eos=True, golden_token_ids=forced
    )
    deltas = list(llm.stream(ids[:3], params))
    (whole,) = llm.generate([ids[:3]], params)
    assert "".join(delta.text for delta in deltas) == whole.text == "😀b\ufffd"


@pytest.mark.slow
def test_callbacks_that_raise_harm_nothing(llm: LLM) -> None:
    def raising(value: object) -> None:
        raise RuntimeError("no")

    result = llm.submit([1, 2, 3], GREEDY, on_delta=raising, on_done=raising).result(60)
    assert (result.finish_reason, len(result.token_ids)) == ("length", 6)


def test_a_callback_that_would_wait_is_refused(llm: LLM) -> None:
    raised: list[str] = []

    def waiting(output: RequestOutput) -> None:
        with pytest.raises(UsageError, match="holds the engine's thread"):
            llm.submit([1, 2], ONE).result(5)
        with pytest.raises(UsageError, match="holds the engine's thread"):
            next(iter(llm.stream([1, 2], ONE)))
        raised.append(output.finish_reason)

    llm.submit([1, 2, 3], ONE, on_done=waiting).result(60)
    assert llm.generate([[4, 5]], ONE)[0].finish_reason == "length"
    assert raised == ["length"]


@pytest.mark.slow
def test_fifty_requests_from_eight_threads(llm: LLM) -> None:
    prompts = [[i + 1, 2, 3] for i in range(50)]
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda p: llm.generate([p], params)[0], prompts))
    assert [r.prompt_token_ids for r in results] == prompts
    assert all(len(r.token_ids) == 2 for r in results)
    assert len({r.request_id for r in results}) == 50


@pytest.mark.slow
def test_asynchronous_use(llm: LLM) -> None:
    async def use() -> tuple[list[RequestOutput], list[RequestDelta]]:
        async def read() -> list[RequestDelta]:
            return [delta async for delta in llm.stream_async([4, 5], GREEDY)]

        results, deltas = await asyncio.gather(
            llm.generate_async([[1, 2], [], [3]], GREEDY), read()
        )
        return results, deltas

    results, deltas = asyncio.run(use())
    assert [r.finish_reason for r in results] == ["length", "error", "length"]
    assert sum(len(d.token_ids) for d in deltas) == 6


@pytest.mark.slow
def test_cancelling_aborts(llm: LLM) -> None:
    async def use() -> None:
        started = asyncio.Event()

        async def read() -> None:
            async for _ in llm.stream_async([4, 5], LONG):
                started.set()

        tasks = [asyncio.create_task(read())]
        tasks.append(asyncio.create_task(llm.generate_async([[1], [2]], LONG)))  # type: ignore[arg-type]
        await started.wait()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)

    asyncio.run(use())
    assert llm.generate([[1, 2]], GREEDY)[0].finish_reason == "length"
    assert llm.stats().num_requests_running == 0


def test_close_answers_what_runs(small_runner: ModelRunner) -> None:
    llm = LLM.of(Engine(small_runner, settings=small_runner.settings))
    handles = [llm.submit([i + 1], LONG) for i in range(5)]
    llm.close()
    llm.close()
    assert {handle.result(1).finish_reason for handle in handles} <= {"abort", "error"}
    assert nothing_is_held(small_runner)
    assert engine_threads() == 0
    with pytest.raises(UsageError, match="this LLM is closed"):
        llm.generate([[1]], GREEDY)


def test_a_loop_that_dies_fails_every_request(small_runner: ModelRunner) -> None:
    llm = LLM.of(Engine(small_runner, settings=small_runner.settings))
    engine = llm._loop.engine
    step, count = engine.step, [0]

    def dying() -> Any:
        count[0] += 1
        if count[0] == 3:
            raise AssertionError("a programmer's error")
        return step()

    engine.step = dying  # type: ignore[method-assign]
    handles = [llm.submit([i + 1], LONG) for i in range(3)]
    for handle in handles:
        result = handle.result(60)
        assert result.finish_reason == "error"
        assert "programmer's error" in result.error
    with pytest.raises(DeepInferError, match="the engine has stopped: AssertionError"):
        llm.generate([[1]], GREEDY)
    llm.close()
    for request_id in list(engine._requests):
        engine.abort(request_id)


@pytest.mark.slow
def test_an_interrupt_aborts_the_call(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("deepinfer.engine.llm.RequestHandle.result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1], [2]], LONG)
    assert llm.generate([[1, 2]], GREEDY)[0].finish_reason == "length"
    assert llm.stats().num_requests_running == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither prompts nor prompt_token_ids"),
        ({"prompts": ["a", "b"], "prompt_token_ids": [[1]]}, "2 prompts and 1 lists"),
        ({"prompts": ["a", "b"], "sampling_params": [GREEDY]}, "1 sampling_params for 2 prompts"),
        ({"prompts": ["a"], "sampling_params": {"n": 1}}, "sampling_params is dict"),
        ({"prompt_token_ids": 7}, "prompt_token_ids is int; allowed: a list of token ids"),
        ({"prompt_token_ids": "ab"}, "prompt_token_ids is str"),
    ],
)
def test_wrong_calls(llm: LLM, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        llm.generate(**arguments)


def test_images_are_not_built_yet(llm: LLM) -> None:
    with pytest.raises(NotBuiltYetError, match="images are not built yet"):
        llm.generate(["a"], multi_modal_data={"image": 1})


@pytest.mark.slow
def test_kinds_of_prompts(llm: LLM) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    assert llm.generate([], ONE) == []
    assert len(llm.generate("one text", ONE)) == len(llm.generate([1, 2], ONE)) == 1
    assert len(llm.generate(prompt_token_ids=[[1, 2], [3]], sampling_params=ONE)) == 2
    rows = np.array([[1, 2], [3, 4]])
    for results in (llm.generate(rows, ONE), llm.generate(None, ONE, rows)):
        assert [result.prompt_token_ids for result in results] == rows.tolist()
    one, two = llm.chat(chat, ONE)[0], llm.chat([chat, chat], ONE)
    assert len(two) == 2
    assert one.token_ids == two[1].token_ids
    assert one.prompt_token_ids[0] == llm.get_tokenizer().bos_id


@pytest.mark.slow
def test_the_constructor(small_runner: ModelRunner) -> None:
    with LLM(accelerator="reference", max_num_seqs=2, max_model_len=64, numerics="ref") as llm:
        assert llm.engine.runner.sizes.max_model_len == 64
        assert llm.engine.runner.options == EngineOptions(
            max_num_seqs=2, max_model_len=64, numerics="ref"
        )
        assert llm.generate([[1, 2]], GREEDY)[0].finish_reason == "length"
    with pytest.raises(UsageError, match=r"use their .text or .token_ids"):
        LLM(decode_sequence=True)
    with pytest.raises(NotBuiltYetError, match="tokenizer"):
        LLM(tokenizer="x")


def test_the_package_exports_both() -> None:
    assert deepinfer.LLM is LLM
    assert deepinfer.SamplingParams is SamplingParams
    assert {"LLM", "SamplingParams", "__version__"} <= set(dir(deepinfer))
    assert deepinfer.__version__ == version("deepinfer-core")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        deepinfer.nothing  # noqa: B018


def test_the_package_is_light() -> None:
    code = "import deepinfer, sys; print(sorted({'torch', 'numpy', 'tokenizers'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("wanted", [True, False])
def test_use_tqdm_draws_on_a_terminal(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    params = SamplingParams(max_tokens=1)
    assert len(llm.generate([[1], [2]], params, use_tqdm=wanted)) == 2
    assert ("requests" in screen.getvalue()) == wanted
