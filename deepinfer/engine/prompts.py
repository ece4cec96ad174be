"""Prompts of the text interface (texts, token ids, chats) and the parameters that go with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.errors import RequestError, UsageError
from deepinfer.text import Tokenizer, encode_chat

_OWN_ID = re.compile(r"request-\d+")

Chat = Sequence[Mapping[str, Any]]
Prompt = str | Sequence[int] | Chat


class Encoded(NamedTuple):
    """A prompt as token ids. text: the prompt if it was a text, else None."""

    ids: list[int]
    text: str | None


def encode_prompt(tokenizer: Tokenizer, prompt: Any) -> Encoded:
    """Token ids of a prompt: a text, token ids, or a chat.

    A text gets the beginning-of-sentence token in front. Errors: RequestError for anything else,
    and the errors of `encode_chat`.
    """
    if isinstance(prompt, str):
        return Encoded(tokenizer.encode(prompt, add_bos=True), prompt)
    if isinstance(prompt, np.ndarray):
        return Encoded(prompt.tolist() if prompt.ndim == 1 else _refuse(prompt), None)
    if not isinstance(prompt, list | tuple):
        _refuse(prompt)
    if any(isinstance(part, Mapping) for part in prompt):
        return Encoded(encode_chat(tokenizer, prompt), None)
    return Encoded(list(prompt), None)


def _refuse(prompt: object) -> Any:
    raise RequestError(
        f"a prompt is {type(prompt).__name__}; allowed: a text, a list of token ids, or a chat "
        '(a list of {"role": ..., "content": ...})'
    )


def prompt_list(prompts: Any, prompt_token_ids: Any) -> list[Any]:
    """The prompts of one call as a list; UsageError without any, or for lists of unequal length."""
    if prompts is None and prompt_token_ids is None:
        raise UsageError("neither prompts nor prompt_token_ids is given; give one of them")
    if isinstance(prompts, np.ndarray) and prompts.ndim == 2:
        prompts = list(prompts)
    if (prompts is not None and not isinstance(prompts, list | tuple)) or (
        prompts and _is_single(prompts)
    ):
        prompts = [prompts]
    if prompt_token_ids is None:
        return list(prompts)
    if not isinstance(prompt_token_ids, list | tuple | np.ndarray):
        raise UsageError(
            f"prompt_token_ids is {type(prompt_token_ids).__name__}; allowed: a list of token ids "
            "for each prompt"
        )
    rows = list(prompt_token_ids)
    if rows and isinstance(rows[0], int | np.integer):
        rows = [prompt_token_ids]
    if prompts is not None and len(prompts) != len(rows):
        raise UsageError(
            f"{len(prompts)} prompts and {len(rows)} lists of prompt_token_ids; give one of them, "
            "or as many of each"
        )
    return rows


def _is_single(prompts: Sequence[Any]) -> bool:
    """Whether this is one prompt (token ids, or a chat) rather than a list of prompts."""
    return isinstance(prompts[0], int | np.integer | Mapping) and not isinstance(prompts[0], bool)


def check_request_id(request_id: object) -> str:
    """Check the id that a user gives a request; UsageError for one like those made here."""
    if not isinstance(request_id, str) or not request_id:
        raise UsageError(f"request_id is {request_id!r}; allowed: a string that is not empty")
    if _OWN_ID.fullmatch(request_id):
        raise UsageError(
            f"request_id is {request_id!r}; ids of the form request-N are given to requests that "
            "come without one: use another"
        )
    return request_id


def params_list(params: Any, count: int) -> list[SamplingParams]:
    """Sampling parameters for each of `count` prompts.

    params: one for all prompts, a list with one for each, or None for the defaults. UsageError for
    anything else.
    """
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, list | tuple) or not all(
        isinstance(one, SamplingParams) for one in params
    ):
        raise UsageError(
            f"sampling_params is {type(params).__name__}; allowed: a SamplingParams, or a list "
            "with one for each prompt"
        )
    if len(params) != count:
        raise UsageError(f"{len(params)} sampling_params for {count} prompts; give one for each")
    return list(params)
