"""Which matmuls see a quantised input: the table of model specification 4.9, no more and no fewer.

What a product of the reference is given is looked at, not what it was meant to be given: an
operand is quantised when a round trip through FP8 blocks changes nothing in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.checkpoint import Checkpoint
from deepinfer.data import bundled_checkpoint
from deepinfer.model import LayerWeights
from tests.engine.runs import extend
from tests.numerics.checkpoints import small_config, write_filled
from tests.numerics.codes import on_fp8_grid
from tests.numerics.engines import random_prompt, record_step, runner_of
from tests.numerics.recording import LayerRecord

Table = dict[str, bool]  # matmul by weight -> quantised input in INFER

EVERY_LAYER: Table = {
    "attn.wq_a": True,
    "attn.wkv": True,
    "attn.wq_b": True,
    "attn.wo_a": True,
    "attn.wo_b": True,
    "ffn.gate": False,
    "ffn.shared_experts.w1": True,
    "ffn.shared_experts.w2": True,
    "ffn.shared_experts.w3": True,
    "ffn.experts.*.w1": True,
    "ffn.experts.*.w2": True,
    "ffn.experts.*.w3": True,
}
COMPRESSOR_R1: Table = {"attn.compressor.wkv": False, "attn.indexer.wk": False}
COMPRESSOR_R2: Table = {**COMPRESSOR_R1, "attn.compressor.wgate": False}
INDEXER: Table = {"attn.indexer.wq_b": True, "attn.indexer.weights_proj": False}
ENGRAM: Table = {"engram.wkv": True}
KINDS: dict[str, Table] = {
    "window": EVERY_LAYER,
    "full r1": {**EVERY_LAYER, **COMPRESSOR_R1, **INDEXER},
    "full r2": {**EVERY_LAYER, **COMPRESSOR_R2, **INDEXER},
    "reindex": {**EVERY_LAYER, **INDEXER},
    "reuse": EVERY_LAYER,
    "window, Engram": {**EVERY_LAYER, **ENGRAM},
    "full r1, Engram": {**EVERY_LAYER, **COMPRESSOR_R1, **INDEXER, **ENGRAM},
    "full r2, Engram": {**EVERY_LAYER, **COMPRESSOR_R2, **INDEXER, **ENGRAM},
    "reindex, Engram": {**EVERY_LAYER, **INDEXER, **ENGRAM},
    "reuse, Engram": {**EVERY_LAYER, **ENGRAM},
}
STORED_QUANTISED = {"engram.wkv"}
"""In REF no activation is quantised, but an Engram row is stored so and stays as it is."""


def kind_of(layer: LayerWeights) -> str:
    plan = layer.plan
    kind = f"full r{plan.ratio}" if plan.role == "full" else plan.role
    return f"{kind}, Engram" if plan.engram else kind


def without_number(name: str) -> str:
    first, _, rest = name.partition("ffn.experts.")
    return f"ffn.experts.*.{rest.partition('.')[2]}" if rest and not first else name


def seen(record: LayerRecord) -> Table:
    """Every product of a layer by its weight: did it see a quantised operand?"""
    found: Table = {}
    for product in record.recording.products:
        name = without_number(record.recording.names[id(product.weight)])
        quantised = on_fp8_grid(product.operand)
        assert found.setdefault(name, quantised) == quantised, f"{name} saw both"
    return found


def announced(record: LayerRecord) -> Table:
    """The same from the contract's side: did a quantised weight come with quantised values?"""
    found: Table = {}
    for call in record.recording.of("linear") + record.recording.of("grouped_linear"):
        activation, weight = call.arguments[:2]
        quantised = activation.quantised is not None and weight.kind in ("fp8", "fp4")
        found[record.recording.names[id(weight)]] = quantised
    return found


def golden_checkpoints() -> list[object]:
    directory = os.environ.get("DEEPINFER_GOLDEN_DIR")
    if not directory:
        skip = pytest.mark.skip("DEEPINFER_GOLDEN_DIR is not set: no golden checkpoints to run")
        return [pytest.param("golden", marks=skip)]
    return [str(path) for path in sorted(Path(directory).glob("*/checkpoint"))]


@pytest.fixture(scope="module", params=["bundled", "small", *golden_checkpoints()])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "bundled":
        return bundled_checkpoint()
    if request.param == "small":
        directory: Path = tmp_path_factory.mktemp("small")
        write_filled(directory, small_config())
        return directory
    return Path(request.param)


@pytest.fixture(scope="module")
def unquantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("unquantised")
    config = small_config()
    del config["quantization_config"]
    write_filled(directory, config)
    return directory


def records_of(path: Path, numerics: str) -> Iterator[LayerRecord]:
    with runner_of(path, numerics) as runner:
        yield from record_step(runner, random_prompt(runner, 40), 37)


def is_quantised(path: Path) -> bool:
    return "quantization_config" in json.loads((path / "config.json").read_text())


@pytest.mark.slow
def test_infer_quantises_what_the_table_lists(path: Path) -> None:
    quantised = is_quantised(path)
    for record in records_of(path, "infer"):
        kind = kind_of(record.weights)
        expected = {name: yes and quantised for name, yes in KINDS[kind].items()}
        assert seen(record) == expected, f"layer {record.weights.plan.index}, {kind}"


@pytest.mark.slow
def test_ref_quantises_nothing(path: Path) -> None:
    quantised = is_quantised(path)
    for record in records_of(path, "ref"):
        kind = kind_of(record.weights)
        expected = {name: quantised and name in STORED_QUANTISED for name in KINDS[kind]}
        assert seen(record) == expected, f"layer {record.weights.plan.index}, {kind}"


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["infer", "ref"])
def test_unquantised_checkpoint_sees_no_quantised_input(unquantised: Path, numerics: str) -> None:
    for record in records_of(unquantised, numerics):
        assert not any(seen(record).values())
        assert set(seen(record)) == set(KINDS[kind_of(record.weights)])
        assert not any(announced(record).values())


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["infer", "ref"])
def test_what_activations_carry_is_what_products_see(path: Path, numerics: str) -> None:
    for record in records_of(path, numerics):
        products = seen(record)
        for name, quantised in announced(record).items():
            assert products[name] == quantised, name


def test_both_checkpoints_hold_every_kind(tmp_path: Path) -> None:
    write_filled(tmp_path, small_config(), lambda name: False)
    kinds = set()
    for directory in (bundled_checkpoint(), tmp_path):
        with Checkpoint.open(directory, progress=False) as checkpoint:
            for plan in checkpoint.config.text.layers:
                kinds.add(f"full r{plan.ratio}" if plan.role == "full" else plan.role)
    assert kinds == {"window", "full r1", "full r2", "reindex", "reuse"}


def test_head_is_never_quantised() -> None:
    with runner_of(bundled_checkpoint(), "infer") as runner:
        inputs = []

        def tap(operator: str, arguments: tuple[object, ...], result: object) -> None:
            if operator == "linear" and arguments[1] is runner.backbone.weights.head:
                inputs.append(arguments[0])

        runner.backbone.operators = runner.operators.tapped(tap)
        cache = runner.cache.open()
        extend(runner, cache, random_prompt(runner, 5))
        assert len(inputs) == 1
        assert inputs[0].quantised is None
        assert not on_fp8_grid(inputs[0].values)
