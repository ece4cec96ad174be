"""Routing and experts: formula, ties, experts without rows, all rows on one expert, slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.backend import Activation, Group, Numerics, Routing
from deepinfer.errors import NotBuiltYetError
from deepinfer.formats import Scheme, fp4_weight, round_trip
from deepinfer_reference import packed
from deepinfer_reference.experts import _plan
from deepinfer_reference.packed import ReferenceExperts
from tests.reference.compare import assert_close, assert_same_bits
from tests.reference.sources import random_experts

HIDDEN, INTERMEDIATE, EXPERTS, LIMIT = 64, 96, 6, 1.5
BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
TEXT = torch.zeros(1, dtype=torch.bool)


def choose(reference, logits: list[float], bias: list[float], k: int, image: bool = False):
    row = torch.tensor([logits])
    routing = reference.route(
        row, torch.tensor(bias), torch.tensor(bias).flip(0), torch.tensor([image]), k, 1.5
    )
    return routing.ids[0].tolist(), routing.weights[0].tolist()


def test_scores_of_the_specification(reference):
    ids, weights = choose(reference, [0.0, 2, -2, 5], [0.0] * 4, 4)
    scores = torch.tensor([2.237569, 1.458399, 0.832555, 0.356270])
    assert ids == [3, 1, 0, 2]
    assert torch.allclose(torch.tensor(weights), scores / scores.sum() * 1.5, atol=1e-6)


def test_bias_chooses_and_does_not_weigh(reference):
    ids, weights = choose(reference, [1.0, 1, 1, 1], [0.0, 0, 3, 2], 2)
    assert (ids, weights) == ([2, 3], [0.75, 0.75])
    assert choose(reference, [1.0, 1, 1, 1], [0.0, 0, 3, 2], 2, image=True)[0] == [1, 0]


def test_equal_scores_choose_the_lower_expert(reference):
    assert choose(reference, [1.0] * 40, [0.0] * 40, 3)[0] == [0, 1, 2]
    assert choose(reference, [0.0, 1, 1, 0, 1], [0.0] * 5, 2)[0] == [1, 2]


def test_extreme_logits(reference):
    ids, weights = choose(reference, [1e30, -1e30, 100.0, -100.0], [0.0] * 4, 2)
    assert ids == [0, 2]
    assert weights[0] == pytest.approx(1.5)


def test_nan_logits_keep_ids_valid_and_their_row_only(reference):
    logits = torch.randn(3, 8)
    clean = reference.route(logits, torch.zeros(8), torch.zeros(8), TEXT.repeat(3), 2, 1.5)
    logits[1] = torch.nan
    routing = reference.route(logits, torch.zeros(8), torch.zeros(8), TEXT.repeat(3), 2, 1.5)
    assert routing.ids[1].tolist() == [0, 1]
    assert routing.weights[1].isnan().all()
    assert_same_bits(routing.weights[[0, 2]], clean.weights[[0, 2]])


def test_swiglu_clamps_gate_above_and_up_on_both_sides(reference):
    gate, up = torch.tensor([[-9.0, 9, 1, 1]]), torch.tensor([[1.0, 1, -9, 9]])
    hidden = reference.swiglu(gate, up, 2.0, None, Numerics.REF).values[0].double()
    silu = torch.nn.functional.silu(torch.tensor([-9.0, 2, 1, 1], dtype=FP64))
    assert torch.allclose(hidden, silu * torch.tensor([1.0, 1, -2, 2], dtype=FP64), rtol=1e-6)


def test_limit_0_does_not_clamp(reference):
    gate, up = torch.tensor([[50.0]]), torch.tensor([[-70.0]])
    assert reference.swiglu(gate, up, 0.0, None, Numerics.REF).values.item() == -3500


def test_infer_quantises_before_rounding(reference):
    gate, up = torch.randn(4, 64).bfloat16(), torch.randn(4, 64).bfloat16()
    wide = reference.swiglu(gate.float(), up.float(), LIMIT, None, Numerics.REF).values
    a = reference.swiglu(gate, up, LIMIT, None, Numerics.INFER)
    expected = reference.quantise(wide, Scheme.FP8_BLOCK32).quantised
    assert_same_bits(a.quantised.codes, expected.codes)
    assert_same_bits(a.quantised.scales, expected.scales)
    assert_same_bits(a.values, wide.bfloat16())


def naive(x: Tensor, ids: Tensor, weights: Tensor, sources, numerics: Numerics) -> Tensor:
    """Outputs [T, k, H] in float64 arithmetic, rounded where section 7.2 says so."""
    dtype = x.dtype
    outputs = torch.zeros(*ids.shape, HIDDEN, dtype=dtype)
    if numerics is Numerics.INFER:
        x = round_trip(x, Scheme.FP8_BLOCK32)
    for row in range(ids.shape[0]):
        for place in range(ids.shape[1]):
            expert = sources[int(ids[row, place])]
            w1, w2, w3 = (
                fp4_weight(part.weight.read(), part.scale.read(), FP64)
                for part in (expert.w1, expert.w2, expert.w3)
            )
            gate, up = ((w @ x[row].double()).to(dtype).double() for w in (w1, w3))
            hidden = torch.nn.functional.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
            hidden = hidden * weights[row, place].double()
            if numerics is Numerics.INFER:
                hidden = round_trip(hidden.float(), Scheme.FP8_BLOCK32)
            else:
                hidden = hidden.to(dtype)
            outputs[row, place] = (w2 @ hidden.double()).to(dtype)
    return outputs


def run(reference, experts, x, ids, weights, numerics):
    a = reference.quantise(x, numerics.activation_scheme)
    routed = reference.dispatch(a, Routing(ids.int(), weights), Group())
    return reference.expert_mlp(routed, experts, LIMIT, numerics)


@pytest.mark.parametrize(("dtype", "numerics"), [(FP32, Numerics.REF), (BF16, Numerics.REF)])
@pytest.mark.parametrize("rows", [1, 2, 16, 33])
def test_outputs_follow_the_formula(reference, rows, dtype, numerics):
    sources = random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4")
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, HIDDEN, generator=generator).to(dtype)
    ids = torch.rand(rows, EXPERTS, generator=generator).argsort(-1)[:, :3]
    weights = torch.rand(rows, 3, generator=generator)
    routed = run(reference, reference.pack_experts(sources), x, ids, weights, numerics)
    assert_close(routed.outputs, naive(x, ids, weights, sources, numerics), steps=2)


def test_infer_outputs_follow_the_formula_but_for_flipped_codes(reference):
    sources = random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4")
    x, ids = torch.randn(9, HIDDEN), torch.rand(9, EXPERTS).argsort(-1)[:, :2]
    weights = torch.rand(9, 2)
    experts = reference.pack_experts(sources)
    routed = run(reference, experts, x, ids, weights, Numerics.INFER)
    expected = naive(x, ids, weights, sources, Numerics.INFER)
    relative = (routed.outputs - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert relative.median() <= 1e-5
    assert relative.max() <= 0.02


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_all_rows_on_one_expert(reference, rows):
    sources = random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4")
    experts = reference.pack_experts(sources)
    x, ids = torch.randn(rows, HIDDEN), torch.full((rows, 1), 4)
    routed = run(reference, experts, x, ids, torch.ones(rows, 1), Numerics.REF)
    assert_close(routed.outputs, naive(x, ids, torch.ones(rows, 1), sources, Numerics.REF))


def test_an_expert_without_rows_is_not_read(reference):
    experts = reference.pack_experts(random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4"))
    for slot in (0, 2, 5):
        experts.experts[slot] = None  # type: ignore[call-overload]
    experts.experts[0] = experts.experts[1]
    ids = torch.tensor([[1, 3], [4, 1]])
    routed = run(reference, experts, torch.randn(2, HIDDEN), ids, torch.ones(2, 2), Numerics.REF)
    assert routed.outputs.isfinite().all()


def test_no_rows(reference):
    experts = reference.pack_experts(random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4"))
    ids = torch.zeros(0, 2, dtype=torch.int64)
    routed = run(reference, experts, torch.zeros(0, HIDDEN), ids, torch.zeros(0, 2), Numerics.REF)
    assert routed.outputs.shape == (0, 2, HIDDEN)
    out = reference.combine(routed, torch.zeros(0, HIDDEN), Numerics.REF)
    assert out.shape == (0, HIDDEN)
    routing = reference.route(torch.zeros(0, 4), torch.zeros(4), torch.zeros(4), TEXT[:0], 2, 1.5)
    assert routing.ids.shape == routing.weights.shape == (0, 2)


def test_nan_stays_in_its_row(reference):
    experts = reference.pack_experts(random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4"))
    x, ids, weights = torch.randn(5, HIDDEN), torch.full((5, 1), 2), torch.ones(5, 1)
    clean = run(reference, experts, x, ids, weights, Numerics.REF).outputs
    x[3] = torch.nan
    spoiled = run(reference, experts, x, ids, weights, Numerics.REF).outputs
    assert spoiled[3].isnan().all()
    others = torch.arange(5) != 3
    assert_same_bits(spoiled[others], clean[others])


def test_combine_sums_by_ascending_expert_and_rounds_by_numerics(reference):
    routed = reference.dispatch(
        Activation(torch.zeros(1, 1)), Routing(torch.tensor([[5, 1, 3]]), torch.ones(1, 3)), Group()
    )
    by_choice = [1.0, 2.0**25, -(2.0**25)]  # expert 5, 1, 3: cancel first, then add 1
    routed.outputs = torch.tensor(by_choice).view(1, 3, 1)
    assert reference.combine(routed, torch.zeros(1, 1), Numerics.REF).item() == 1
    routed.outputs = torch.tensor([1.0, 2.0**-8, 0]).bfloat16().view(1, 3, 1)
    shared = torch.tensor([[2.0**-8]]).bfloat16()
    assert reference.combine(routed, shared, Numerics.REF).item() == 1
    assert reference.combine(routed, shared, Numerics.INFER).item() == 1 + 2.0**-7


def test_a_group_of_processes_is_not_built_yet(reference):
    routing = Routing(torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
    with pytest.raises(NotBuiltYetError, match="not built yet"):
        reference.dispatch(Activation(torch.zeros(1, 1)), routing, Group(0, 2))


@pytest.mark.parametrize(("rows", "k", "experts"), [(1, 6, 384), (40, 3, 5), (16, 2, 2), (3, 1, 9)])
def test_the_plan_holds_every_pair_once_in_tiles_of_its_expert(rows, k, experts):
    k = min(k, experts)
    ids = torch.rand(rows, experts).argsort(-1)[:, :k]
    work = _plan(ids, experts)
    assert work.pairs.shape[0] == min(rows * k, rows * k // 16 + min(experts, rows * k))
    assert sorted(work.pairs[work.pairs < rows * k].tolist()) == list(range(rows * k))
    for expert, pairs in zip(work.experts.tolist(), work.pairs, strict=True):
        held = pairs[pairs < rows * k]
        assert (ids.flatten()[held] == expert).all()
        assert (expert >= 0) == (len(held) > 0)


def test_slots_move_between_experts_of_equal_shape(reference):
    first = reference.pack_experts(random_experts(3, HIDDEN, INTERMEDIATE, "fp4"))
    second = reference.pack_experts(random_experts(3, HIDDEN, INTERMEDIATE, "fp4", seed=50))
    assert (first.num_slots, first.hidden, first.intermediate) == (3, HIDDEN, INTERMEDIATE)
    stored = first.mapped_bytes
    data = second.export_slot(2)
    first.import_slot(0, data)
    assert_same_bits(first.export_slot(0), data)
    assert (first.nbytes, first.mapped_bytes) == (len(data), stored - len(data))
    x, weights = torch.randn(4, HIDDEN), torch.ones(4, 1)
    ours = run(reference, first, x, torch.zeros(4, 1), weights, Numerics.REF)
    theirs = run(reference, second, x, torch.full((4, 1), 2), weights, Numerics.REF)
    assert_same_bits(ours.outputs, theirs.outputs)


def test_slots_are_checked(reference):
    experts = reference.pack_experts(random_experts(2, HIDDEN, INTERMEDIATE, "fp4"))
    with pytest.raises(IndexError, match=r"outside 0\.\.1"):
        experts.export_slot(2)
    with pytest.raises(ValueError, match="a slot holds"):
        experts.import_slot(0, torch.zeros(3, dtype=torch.uint8))


def test_stacked_experts_of_another_device_give_the_same_bits(reference, monkeypatch):
    """The path of a foreign device, run on the CPU: experts chosen by `index_select`."""
    sources = random_experts(EXPERTS, HIDDEN, INTERMEDIATE, "fp4")
    x, ids = torch.randn(20, HIDDEN), torch.rand(20, EXPERTS).argsort(-1)[:, :2]
    weights = torch.rand(20, 2)
    mapped = reference.pack_experts(sources)
    expected = run(reference, mapped, x, ids, weights, Numerics.REF).outputs
    monkeypatch.setattr(packed, "placed", lambda source, device, resident: source.map())
    stacked = ReferenceExperts(sources, torch.device("meta"))
    assert (stacked.nbytes, stacked.mapped_bytes) == (mapped.mapped_bytes, 0)
    actual = run(reference, stacked, x, ids, weights, Numerics.REF).outputs
    assert_same_bits(actual, expected)
    stacked.import_slot(1, mapped.export_slot(0))
    assert_same_bits(stacked.export_slot(1), mapped.export_slot(0))
