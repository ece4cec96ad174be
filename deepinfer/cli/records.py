"""Lines of `deepinfer generate`: what an input line asks for, and the record that answers it.

An input line is a JSON object with one of `prompt` (a text), `prompt_token_ids` and `messages`, and
optionally `id` and sampling parameters, by name beside them or in `sampling_params`. A result line
has the number of its input line (`index`, from 1) and a digest of it, by which a later run finds
the lines that are done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer.cli.input_lines import MOST_BYTES
from deepinfer.engine import SamplingParams
from deepinfer.engine.outputs import CompletionOutput, RequestOutput
from deepinfer.engine.request import TokenLogprobs
from deepinfer.errors import NotBuiltYetError, RequestError

PROMPTS = ("prompt", "prompt_token_ids", "messages")


@dataclass(frozen=True)
class Line:
    """An input line. number: from 1. error: why the line is wrong, "" if it is not."""

    number: int
    digest: str
    id: Any = None
    prompt: Any = None
    params: SamplingParams | None = None
    error: str = ""


def digest_of(data: bytes) -> str:
    """The digest that identifies an input line: the first half of its SHA-256."""
    return hashlib.sha256(data.strip()).hexdigest()[:32]


def read_line(number: int, data: bytes, defaults: Mapping[str, Any]) -> Line:
    """Read an input line. defaults: sampling parameters that the line may override.

    A wrong line raises nothing: `Line.error` says what is wrong.
    """
    digest, own = digest_of(data), None
    try:
        record = _object(data)
        own = record.pop("id", None)
        if own is not None and type(own) not in (str, int):
            raise RequestError(f"id is {own!r}; allowed: a text or an integer")
        prompt = _prompt(record)
        nested = record.pop("sampling_params", None)
        nested = {} if nested is None else nested
        if not isinstance(nested, dict):
            raise RequestError(f"sampling_params is {nested!r}; allowed: an object")
        twice = sorted(set(nested) & set(record))
        if twice:
            raise RequestError(f"{twice[0]!r} is in the line and in its sampling_params; give one")
        params = _params({**record, **nested}, defaults)
    except (RequestError, NotBuiltYetError) as error:
        return Line(number, digest, own, error=str(error))
    return Line(number, digest, own, prompt, params)


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise RequestError(f"the line is too long; allowed: {MOST_BYTES} bytes")
    try:
        record = json.loads(
            data.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_object_of
        )
    except RecursionError:
        raise RequestError("the line is no JSON object: it is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the line is no JSON object: {error}") from None
    if not isinstance(record, dict):
        raise RequestError(f"the line is {type(record).__name__}; allowed: a JSON object")
    return record


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its pairs; refuses a name that occurs twice, which dict would accept."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _prompt(record: dict[str, Any]) -> Any:
    given = [name for name in PROMPTS if name in record]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise RequestError(f"a line has one of {', '.join(PROMPTS)}; found: {found}")
    prompt = record.pop(given[0])
    wanted = str if given[0] == "prompt" else list
    if not isinstance(prompt, wanted):
        kind = "a text" if wanted is str else "a list"
        raise RequestError(f"{given[0]} is {type(prompt).__name__}; allowed: {kind}")
    if given[0] == "prompt_token_ids" and not all(type(one) is int for one in prompt):
        raise RequestError("prompt_token_ids is a list of integers; found something else in it")
    if given[0] == "messages" and not all(isinstance(one, dict) for one in prompt):
        raise RequestError("messages is a list of objects with role and content")
    return prompt


def _params(values: dict[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of a line; keys of logit_bias may be strings, as always in JSON."""
    bias = values.get("logit_bias")
    if isinstance(bias, dict):
        try:
            by_id = {int(token): value for token, value in bias.items()}
        except ValueError:
            raise RequestError(f"logit_bias is {bias!r}; allowed: ids and their biases") from None
        if len(by_id) < len(bias):
            raise RequestError(f"logit_bias is {bias!r}; it names one id twice")
        values["logit_bias"] = by_id
    return SamplingParams.from_names({**defaults, **values})


def outcome(output: RequestOutput) -> dict[str, Any]:
    """A finished request as plain values: its first sample, and with several all in `outputs`."""
    record = _sample(output.outputs[0])
    if len(output.outputs) > 1:
        record["outputs"] = [_sample(one) for one in output.outputs]
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [one and _logprobs(one) for one in output.prompt_logprobs]
    record["prompt_tokens"] = output.metrics.num_prompt_tokens
    return record


def metrics_of(output: RequestOutput) -> dict[str, Any]:
    """Times of a finished request in seconds; None for what it did not reach."""
    metrics = output.metrics
    return {
        "queue_time": metrics.queue_time,
        "time_to_first_token": metrics.time_to_first_token,
        "inter_token_latency": metrics.inter_token_latency,
        "total": metrics.total,
    }


def _sample(output: CompletionOutput) -> dict[str, Any]:
    """A sample as plain values, with log-probabilities where they were asked for."""
    record: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        record["logprobs"] = [_logprobs(one) for one in output.logprobs]
    return record


def _logprobs(one: TokenLogprobs) -> dict[str, Any]:
    """Log-probabilities of a token as plain values; ids are strings, as names in JSON must be."""
    record: dict[str, Any] = {
        "raw": one.raw,
        "processed": one.processed,
        "top": {str(token): value for token, value in one.top.items()},
    }
    if one.sum_smaller_probs is not None:
        record["sum_smaller_probs"] = one.sum_smaller_probs
    return record
