"""The null backend: the reference's shapes and dtypes, no work, and only when it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer.backend.registry import discover, refuse_null, select_backend
from deepinfer.backend.resolution import MISSING, NATIVE, Operators, resolve
from deepinfer.checkpoint import Checkpoint
from deepinfer.checkpoint.source import FileSource
from deepinfer.engine import Engine, EngineOptions, ModelRunner, SamplingParams
from deepinfer.errors import UsageError
from deepinfer_null.plugin import NullBackend
from deepinfer_reference.backend import ReferenceBackend
from tests.engine.runs import extend

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def null_engine(small_runner: ModelRunner) -> ModelRunner:
    return load(small_runner.checkpoint, 8)


def load(checkpoint: Checkpoint, sequences: int) -> ModelRunner:
    options = EngineOptions(
        numerics="infer", max_model_len=64, max_num_batched_tokens=512, max_num_seqs=sequences
    )
    return ModelRunner.load(checkpoint, select_backend("null"), options)


def shapes(value: Any) -> Any:
    """Shapes and dtypes of all tensors in a result."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, tuple):
        return tuple(shapes(part) for part in value)
    if hasattr(value, "values") and hasattr(value, "scheme"):  # the quantised half is optional
        return shapes(value.values)
    if hasattr(value, "outputs"):
        return shapes(value.outputs)
    return None


def recorded(runner: ModelRunner, operators: Operators) -> list[tuple[str, Any]]:
    """What every operator of one step returned, in order."""
    found: list[tuple[str, Any]] = []

    def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        found.append((operator, shapes(result)))

    whole = runner.backbone.operators
    runner.backbone.operators = operators.tapped(tap)
    cache = runner.cache.open()
    try:
        extend(runner, cache, torch.arange(3, 20).numpy(), all_rows=True)
    finally:
        runner.cache.close(cache)
        runner.backbone.operators = whole
    return found


class NullPrimitives(NullBackend):
    """Its primitives alone, so that every one is called by the steps' default bodies."""

    @classmethod
    def native_operators(cls) -> frozenset[str]:
        return frozenset(name for name in super().native_operators() if name in PRIMITIVES)


PRIMITIVES = ReferenceBackend.native_operators()


def test_every_operator_that_the_model_calls_is_native(null_engine: ModelRunner) -> None:
    called = {name for name, one in null_engine.operators.bindings.items() if one.is_called}
    assert called <= set(null_engine.operators.providers(NATIVE))
    assert len(null_engine.operators.providers(MISSING)) == 8  # of later versions


def test_primitives_have_the_references_shapes(small_runner: ModelRunner) -> None:
    reference = resolve("r", small_runner.backend, small_runner.backend, [])
    chip = NullPrimitives("cpu")
    expected = recorded(small_runner, reference)
    found = recorded(small_runner, resolve("null", chip, small_runner.backend, []))
    assert found == expected
    assert len({name for name, _ in found}) > 30


def test_steps_have_the_shapes_of_their_definitions(small_runner: ModelRunner) -> None:
    outer = {"enter", "advance", "project", "select", "attend_output", "mixture", "engram"}
    outer |= {"logits", "update_context", "embed", "store", "expand", "collapse"}
    expected = recorded(small_runner, resolve("r", small_runner.backend, small_runner.backend, []))
    table = resolve("null", NullBackend("cpu"), small_runner.backend, [])
    found = recorded(small_runner, table)
    assert {name for name, _ in found} == outer
    for name in outer:
        assert {s for n, s in found if n == name} == {s for n, s in expected if n == name}, name


def test_loading_reads_no_weight(
    small_runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(source: FileSource) -> torch.Tensor:
        raise AssertionError(f"{source.name} is read")

    monkeypatch.setattr(FileSource, "read", read)
    monkeypatch.setattr(FileSource, "map", read)
    runner = load(small_runner.checkpoint, 2)
    assert runner.packing.device_bytes == 0


def test_256_sequences_at_once(small_runner: ModelRunner) -> None:
    engine = Engine(load(small_runner.checkpoint, 256))
    requests = [engine.add([5, 6 + number % 7], GREEDY) for number in range(256)]
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    assert steps == GREEDY.max_tokens
    outputs = {tuple(request.sequences[0].output.tolist()) for request in requests}
    assert outputs == {(2, 3, 4, 5)}  # the position of each token


def test_results_share_memory_that_does_not_grow_with_the_number_of_shapes() -> None:
    chip = NullBackend("cpu")
    large = chip._like(torch.float32, 100, 10)
    for rows in range(1, 100):
        chip._like(torch.float32, rows, 10)
    assert chip._like(torch.float32, 7, 10).data_ptr() == large.data_ptr()
    assert chip._like(torch.float32, 100, 10) is large


def test_null_is_usable_and_never_chosen_by_itself() -> None:
    (null,) = [one for one in discover() if one.name == "null"]
    assert null.usable
    assert null.availability is not None
    assert null.availability.rank < 0
    assert null.spec is not None
    assert not null.spec.computes


def test_null_is_refused_unless_allowed() -> None:
    selected = select_backend("null")
    with pytest.raises(UsageError, match=r"'null' computes nothing: .* --allow-null"):
        refuse_null(selected, False)
    refuse_null(selected, True)
    refuse_null(select_backend("reference"), False)
