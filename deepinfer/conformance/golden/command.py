"""`deepinfer golden DIR`: run everything that a golden directory holds, and say so per item."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deepinfer.backend.registry import Selected
from deepinfer.checkpoint import Checkpoint
from deepinfer.conformance.golden.data import GoldenData, GoldenModel, Tensors
from deepinfer.conformance.golden.layers import check_layers
from deepinfer.conformance.golden.logits import check_greedy, check_logits
from deepinfer.conformance.golden.operators import check_operators
from deepinfer.conformance.golden.report import Item, Report
from deepinfer.engine import Engine, EngineOptions
from deepinfer.errors import UsageError

COMPUTES = ("fp32", "bf16")
MAX_LENGTH = 512
MAX_SEQUENCES = 8
_DRAFT_FILES = ("dspark.safetensors",)
_VISION_FILES = ("vision.safetensors",)


def run_golden(
    directory: str,
    selected: Selected,
    computes: tuple[str, ...] = COMPUTES,
    *,
    require_all: bool = False,
    on_item: Callable[[Item], None] | None = None,
) -> Report:
    """Compare a backend with all golden data of a directory, always in REF numerics.

    computes: "fp32" and "bf16", or one of them. on_item is called as each comparison ends.
    """
    unknown = [compute for compute in computes if compute not in COMPUTES]
    if unknown:
        raise UsageError(f"compute is {unknown[0]!r}; allowed: {', '.join(COMPUTES)}")
    data = GoldenData.open(directory)
    report = Report(require_all=require_all)
    for item in _items(data, selected, computes):
        report.items.append(item)
        if on_item is not None:
            on_item(item)
    return report


def _items(data: GoldenData, selected: Selected, computes: tuple[str, ...]) -> Iterator[Item]:
    operators = data.operators()
    if operators is not None:
        yield from check_operators(data, operators, selected, computes)
        yield from _leftovers("ops", operators, "text", computes)
    for model in data.models:
        yield from _model_items(model, selected, computes)


def _model_items(
    model: GoldenModel, selected: Selected, computes: tuple[str, ...]
) -> Iterator[Item]:
    logits = model.tensors("logits.safetensors")
    greedy = model.tensors("greedy.safetensors")
    for compute in computes:
        engine = load_engine(model, selected, compute)
        layers = model.tensors(f"intermediates.{compute}.safetensors")
        if layers is not None:
            yield from check_layers(engine, model, layers, compute)
            yield from _leftovers(f"{model.name}/layers", layers, "text", computes)
        if logits is not None:
            yield from check_logits(engine, model, logits, compute)
        if greedy is not None and logits is not None:
            yield from check_greedy(engine, model, greedy, logits, compute)
    for name, tensors in (("logits", logits), ("greedy", greedy)):
        if tensors is not None:
            yield from _leftovers(f"{model.name}/{name}", tensors, "text", computes)
    for component, files in (("draft", _DRAFT_FILES), ("vision", _VISION_FILES)):
        for file in files:
            later = model.tensors(file)
            if later is not None:
                yield from _later(f"{model.name}/{component}", later, component)


def load_engine(model: GoldenModel, selected: Selected, compute: str) -> Engine:
    """The model's checkpoint in REF numerics, sized for golden prompts."""
    checkpoint = Checkpoint.open(model.checkpoint, progress=False)
    options = EngineOptions(
        numerics="ref",
        compute=compute,
        max_model_len=MAX_LENGTH,
        max_num_batched_tokens=MAX_LENGTH,
        max_num_seqs=MAX_SEQUENCES,
    )
    return Engine.load(checkpoint, selected, options)


def _leftovers(
    name: str, tensors: Tensors, component: str, computes: tuple[str, ...]
) -> Iterator[Item]:
    """Data that nothing compared, unless it belongs to a precision that was not asked for."""
    others = [compute for compute in COMPUTES if compute not in computes]
    for key in tensors.unused():
        if not any(f".{other}" in key for other in others):
            yield Item.uncovered(f"{name}/{key}", component, "no check reads it")


def _later(name: str, tensors: Tensors, component: str) -> Iterator[Item]:
    """One uncovered item per prompt or case of a component that is not built."""
    for case in sorted({key.split(".")[0] for key in tensors.keys}):
        yield Item.uncovered(f"{name}/{case}", component, f"{component} is not built yet")
