"""The golden check catches mistakes: each of these backends is right but for one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_reference.backend import ReferenceBackend
from tests.conformance import faults
from tests.conformance.mutants import attention, cache, dense, experts, hyper, packing, slots
from tests.conformance.mutants.catching import backends_of
from tests.conformance.small_golden import MODEL, SmallGolden, failures

CAUGHT = [
    # fault, compute, items that must be among those that fail
    (attention.SinkIgnored, "fp32", ["ops/attn/r1.full.attended", "L0/attn_out"]),
    (attention.WindowShort, "fp32", ["ops/attn/r1.full.attended", "L0/attn_out"]),
    (attention.WindowLong, "fp32", ["ops/attn/r1.full.attended", "L0/attn_out"]),
    (attention.OutputNotRotatedBack, "fp32", ["ops/rope/plain.inverse", "L0/attn_out"]),
    (faults.RopeNotInverted, "fp32", ["ops/rope/plain.inverse", "L0/attn_out"]),
    (dense.HalvesPaired, "fp32", ["ops/rope/plain.out", "L0/window_kv"]),
    (dense.YarnIgnored, "fp32", ["ops/rope/yarn.out", "L2/compressed_kv"]),
    (faults.PlainTheta, "fp32", ["ops/rope/yarn.out", "L2/compressed_kv"]),
    (attention.CandidatesIgnored, "fp32", ["ops/attn/r1.reindex.topk_indices", "L5/topk_indices"]),
    (attention.TopKFewer, "fp32", ["ops/attn/r1.full.topk_indices", "L4/topk_indices"]),
    (faults.InvisibleSelected, "fp32", ["ops/attn/r1.full.topk_indices", "L2/topk_indices"]),
    (attention.LastBlockDropped, "fp32", ["ops/candidates.block4_top1", "L4/candidates"]),
    (faults.BlockFewer, "fp32", ["ops/candidates.block4_top1", "L4/candidates"]),
    (attention.ReluMissing, "fp32", ["ops/attn/r1.full.index_scores", "L2/index_scores"]),
    (cache.GatesIgnored, "fp32", ["ops/attn/r2.full.compressor_latent", "L2/compressed_kv"]),
    (faults.StoredTowardsZero, "fp32", ["ops/quant/fp8.edges.store", "L0/window_kv"]),
    (experts.BiasInWeights, "fp32", ["ops/router/r384.text.weights", "L0/router_weights"]),
    (faults.BiasIgnored, "fp32", ["ops/router/r384.text.indices", "L0/router_indices"]),
    (faults.ImageBiasForText, "fp32", ["ops/router/r384.text.indices", "L0/router_indices"]),
    (experts.ScaleOfWeightsMissing, "fp32", ["ops/router/r384.text.weights", "L0/router_weights"]),
    (experts.WeightAfterProjection, "bf16", ["L0/ffn_out"]),  # in fp32 it is no mistake
    (experts.ClampDropped, "bf16", ["ops/swiglu/limit1", "L0/ffn_out"]),
    (experts.GateClampedBelow, "bf16", ["ops/swiglu/limit1", "L0/ffn_out"]),
    (packing.ScaleOfNextBlock, "fp32", ["ops/dequant/fp8_block32", "L0/attn_out"]),
    (faults.ScaleRowLate, "fp32", ["ops/dequant/fp8_block32", "L0/attn_out"]),
    (slots.NibblesSwapped, "fp32", ["L0/ffn_out"]),
    (faults.EngramGateSign, "fp32", ["ops/engram/tiny.streams_out", "L1/engram_streams"]),
    (faults.EngramSkipped, "fp32", ["ops/engram/tiny.streams_out", "L1/engram_streams"]),
    (hyper.PreOfSameSite, "fp32", ["L0/ffn_in", "L0/streams"]),
    (hyper.SinkhornFewer, "fp32", ["ops/sinkhorn/out"]),
    (hyper.CombTransposed, "fp32", ["ops/mhc/comb", "L0/attn_mix.comb"]),
    (hyper.PostNotDoubled, "fp32", ["ops/mhc/post", "L0/attn_mix.post"]),
]


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> SmallGolden:
    """Operator vectors, and the layers of one prompt of 33 tokens."""
    golden = SmallGolden(tmp_path_factory.mktemp("golden"))
    golden.link("ops.safetensors")
    golden.link(f"{MODEL}/checkpoint")
    golden.part("logits.safetensors", ["p33"])
    for compute in ("fp32", "bf16"):
        golden.part(f"intermediates.{compute}.safetensors", ["p33"])
    return golden


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_the_reference_has_no_fault(layers: SmallGolden, compute: str) -> None:
    report = layers.run(computes=(compute,))
    assert failures(report) == []
    assert report.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "compute", "expected"), CAUGHT, ids=[fault.__name__ for fault, _, _ in CAUGHT]
)
def test_fault_is_caught(
    layers: SmallGolden, fault: type[ReferenceBackend], compute: str, expected: list[str]
) -> None:
    report = layers.run(fault, (compute,))
    prefix = f"{MODEL}/layers/p33"
    wanted = {name if name.startswith("ops/") else f"{prefix}/{name}" for name in expected}
    assert wanted <= set(failures(report))
    assert report.counts()[1] >= 1
    assert report.exit_code == 1


def test_every_fault_is_tried() -> None:
    assert set(backends_of(faults)) <= {fault for fault, _, _ in CAUGHT}


@pytest.mark.slow
def test_fault_of_cached_decoding_alone_is_caught_by_greedy_tokens(tmp_path: Path) -> None:
    golden = SmallGolden(tmp_path)
    golden.link(f"{MODEL}/checkpoint")
    prompts = ["p1", "p7"]
    golden.part("logits.safetensors", prompts)
    golden.part("greedy.safetensors", prompts)
    report = golden.run(cache.PendingForgotten)
    cached = {
        item.name: measure.value
        for item in report.items
        for measure in item.measures
        if measure.metric == "tokens equal from the cache"
    }
    assert cached.keys() == {f"{MODEL}/greedy/p1", f"{MODEL}/greedy/p7"}
    assert all(value < 1 for value in cached.values())
    assert report.exit_code == 1
