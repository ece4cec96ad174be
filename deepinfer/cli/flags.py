"""Flags of commands that run an engine, made from the fields of its options.

A field of `EngineOptions` or `SamplingParams` is a flag in both spellings, `--max_num_seqs` and
`--max-num-seqs`. A field that is added there becomes a flag here. A flag that is not given leaves
its field at the default.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from deepinfer.engine.options import EngineOptions
from deepinfer.engine.sampling_params import SamplingParams
from deepinfer.errors import RequestError, UsageError

_ALIASES = {"expert_parallel_size": ("--ep",)}
_NO_FLAGS = ("so_args", "eos_id", "seq_seed")
_RENAMED = {("engine_", "seed"): "engine_seed"}
"""Flags with another name than their field, because a field elsewhere has the same name."""

_HELP = {
    "engine_numerics": "auto, ref or infer.",
    "engine_compute": "bf16; fp32 or fp64 to debug.",
    "engine_cache_dtype": "fp4; bf16 keeps main and index entries in bfloat16, to compare.",
    "engine_max_model_len": "Tokens per sequence; default: as the model and the memory allow.",
    "engine_max_num_batched_tokens": "Rows per step; default: 2048 or more.",
    "engine_max_num_seqs": "Sequences that run at the same time; default: 256.",
    "engine_chunked_prefill": "Compute prompts longer than a step in chunks (default), or refuse.",
    "engine_lookahead_tokens": "Fewest rows of any chunk of a prompt but its last.",
    "engine_stop_preempted_request": "End a preempted request instead of computing it again.",
    "engine_num_blocks": "Context blocks of 128 tokens; default: what the memory holds.",
    "engine_gpu_memory_utilization": "Share of the device's memory for weights and cache.",
    "engine_tokens_per_block": "128, or -1 for the same.",
    "engine_seed": "Makes the seeds of requests without one repeatable.",
    "engine_load_format": "auto.",
    "engine_disable_log_stats": "No statistics line.",
    "engine_steps_in_flight": "0; more is not built yet.",
    "engine_engine_type": "normal; prompt and completion are not built yet.",
    "engine_expert_parallel_size": "1; more is not built yet.",
    "engine_data_parallel_size": "1; more is not built yet.",
    "engine_context_parallel_size": "1; more is not built yet.",
    "engine_engram_parallel_size": "1; more is not built yet.",
    "engine_engine_rank": "0; more is not built yet.",
    "engine_engine_group_rank": "0; more is not built yet.",
    "sampling_temperature": "0 takes the most probable token.",
    "sampling_top_p": "Nucleus mass, in (0, 1].",
    "sampling_top_k": "-1: no limit.",
    "sampling_min_p": "Least probability relative to the highest one.",
    "sampling_max_tokens": "Output tokens at most.",
    "sampling_seed": "64-bit seed; default: random.",
    "sampling_ignore_eos": "Go on after the end-of-sentence token.",
    "sampling_n": "Samples per prompt.",
    "sampling_stop": "A string that ends the text; may be given several times.",
    "sampling_stop_token_ids": "An id that ends the text; may be given several times.",
    "sampling_include_stop": "Keep the stop string or stop token in the text.",
    "sampling_min_tokens": "Nothing ends the text before so many output tokens.",
    "sampling_frequency_penalty": "Subtracted from a logit for each occurrence of its token.",
    "sampling_presence_penalty": "Subtracted once from a logit whose token has occurred.",
    "sampling_repetition_penalty": "Above 1, makes tokens that have occurred less probable.",
    "sampling_logit_bias": "ID=BIAS, added to a logit; may be given several times.",
    "sampling_allowed_token_ids": "Only these are drawn; may be given several times.",
    "sampling_banned_token_ids": "Never drawn; may be given several times.",
    "sampling_logprobs": "Report log-probabilities of output tokens.",
    "sampling_top_logprobs": "Also report those of so many best tokens.",
    "sampling_prompt_logprobs": "Also report those of the prompt's tokens.",
    "sampling_golden_token_ids": "Forces the first output tokens; may be given several times.",
    "sampling_first_n_token_no_eos": "No end of sentence among so many first output tokens.",
    "sampling_skip_special_tokens": "Leave special tokens out of the text (default).",
}


@dataclass
class Given:
    """The flags that were given, by field."""

    engine: dict[str, Any]
    sampling: dict[str, Any]

    def options(self) -> EngineOptions:
        """The options of the engine."""
        return EngineOptions(**self.engine)

    def params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """The sampling parameters; UsageError, not RequestError, as they concern every prompt."""
        try:
            return SamplingParams(**{**defaults, **self.sampling})
        except RequestError as error:
            raise UsageError(str(error)) from error


def with_engine_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: replace its parameter `given` by the flags of engine and sampling."""
    return _with_flags(function, sampling=True)


def with_engine_options(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that chooses sampling itself: replace `given` by the engine's flags."""
    return _with_flags(function, sampling=False)


def _with_flags(function: Callable[..., None], *, sampling: bool) -> Callable[..., None]:
    own = inspect.signature(function, eval_str=True)
    engine = _parameters(EngineOptions, "engine_", "Engine")
    drawn = _parameters(SamplingParams, "sampling_", "Sampling") if sampling else []

    def command(**values: Any) -> None:
        params = _taken(values, drawn, "sampling_")
        if "logit_bias" in params:
            params["logit_bias"] = _biases(params["logit_bias"])
        function(given=Given(_taken(values, engine, "engine_"), params), **values)

    kept = [parameter for name, parameter in own.parameters.items() if name != "given"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword) for one in (*kept, *engine, *drawn)]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command


def _parameters(options: type, prefix: str, panel: str) -> list[inspect.Parameter]:
    hints = get_type_hints(options)
    found = []
    for field in dataclasses.fields(options):
        if field.name in _NO_FLAGS:
            continue
        kind = _kind(hints[field.name])
        option = typer.Option(
            *_spellings(_RENAMED.get((prefix, field.name), field.name), kind, field.default),
            help=_HELP[f"{prefix}{field.name}"],
            rich_help_panel=panel,
            show_default=False,
        )
        found.append(
            inspect.Parameter(
                f"{prefix}{field.name}",
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, option],
            )
        )
    return found


def _kind(hint: Any) -> Any:
    """The type of a flag; a list is given by repeating the flag for each element."""
    text = str(hint)
    if "tuple[str" in text or "dict" in text:
        return list[str]
    if "tuple[int" in text:
        return list[int]
    for kind in (bool, float, int, str):
        if hint is kind or hint == (kind | None):
            return kind
    raise TypeError(f"no flag for a field of type {hint}")


def _spellings(name: str, kind: Any, default: Any) -> list[str]:
    """The spellings of a flag; a switch that is on by default has its negation too."""
    names = [name] if "_" not in name else [name, name.replace("_", "-")]
    if kind is bool and default is True:
        no = {name: f"no_{name}", name.replace("_", "-"): f"no-{name.replace('_', '-')}"}
        return [f"--{one}/--{no[one]}" for one in names]
    return [*(f"--{one}" for one in names), *_ALIASES.get(name, ())]


def _taken(values: dict[str, Any], flags: list[inspect.Parameter], prefix: str) -> dict[str, Any]:
    """Remove flags from the values of a command; returns those that were given, by field."""
    taken = {flag.name.removeprefix(prefix): values.pop(flag.name) for flag in flags}
    return {name: value for name, value in taken.items() if value is not None and value != []}


def _biases(pairs: list[str]) -> dict[int, float]:
    found = {}
    for pair in pairs:
        token, separator, bias = pair.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(f"logit_bias is {pair!r}; allowed: ID=BIAS, such as 17=-2.5")
    return found
