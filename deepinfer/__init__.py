"""DeepInfer: an inference engine for DeepSeek-V4.1 on any accelerator.

`LLM`, `SamplingParams` and `__version__` are looked up when they are first asked for, so that
`import deepinfer` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.sampling_params import SamplingParams

    __version__: str

__all__ = ["LLM", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "deepinfer.engine.llm",
    "SamplingParams": "deepinfer.engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("deepinfer-core")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
