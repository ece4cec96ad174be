"""DeepInfer: an inference engine for DeepSeek-V4.1 on any accelerator.

`LLM` and `SamplingParams` are imported when they are first asked for, so that `import deepinfer`
stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]

_HOMES = {
    "LLM": "deepinfer.engine.llm",
    "SamplingParams": "deepinfer.engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
