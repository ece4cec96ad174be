"""Where the model's sources differ: REF takes one side, INFER the other, by inputs made for it.

One test per row of model specification table 13.1 that tells the two modes apart (1, 4, 13, 17,
18), or that is the same in both (2, 3, and 14, where the reference keeps probabilities in float32).
Expected values are worked out in the comments. Row 8 belongs to drafts.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.backend import (
    Activation,
    Group,
    LinearSource,
    Numerics,
    Routed,
    Routing,
    Selection,
    WindowSpan,
)
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.resolution import Operators
from deepinfer.formats import Quantised, Scheme
from tests.reference.pools import Sizes, SmallCache

BF16 = torch.bfloat16
ONE = 0x38  # 1.0 in e4m3
both = pytest.mark.parametrize("numerics", list(Numerics))


def bf16(*values: float) -> Tensor:
    """Values that must be exact in bf16."""
    tensor = torch.tensor(values, dtype=BF16)
    assert tensor.double().tolist() == list(values)
    return tensor


# --- row 1: activations in front of FP8 matmuls -----------------------------------------------


def test_row_1_activation_is_rounded_to_fp8_in_infer_only(operators: Operators) -> None:
    weight = torch.eye(32).mul(ONE).to(torch.uint8)
    source = LinearSource(
        MemorySource(weight, dtype="F8_E4M3"),
        MemorySource(torch.tensor([[127]], dtype=torch.uint8), dtype="F8_E8M0"),
    )
    identity = operators.pack_linear(source)
    # The largest value 448 makes the scale 1. e4m3 has steps of 1/8 from 1 to 2: 1.0625 is a tie
    # and goes to 1, 1.09375 goes to 1.125. Steps of 2^-9 below 2^-6: 0.0009765625 = 2^-10 is a
    # tie and goes to 0.
    x = bf16(448.0, 1.0625, 1.09375, 2.0**-10, *[0.0] * 28).unsqueeze(0)
    results = {}
    for numerics in Numerics:
        a = operators.quantise(x, numerics.activation_scheme)
        results[numerics] = operators.linear(a, identity, BF16)[0, :4].tolist()
    assert results[Numerics.REF] == [448.0, 1.0625, 1.09375, 2.0**-10]
    assert results[Numerics.INFER] == [448.0, 1.0, 1.125, 0.0]


# --- rows 2 and 3: bytes of the main cache, the same in every mode ----------------------------


def main_bytes(operators: Operators, group: list[float], dtype: torch.dtype) -> tuple[int, int]:
    """First packed byte and first scale byte of a stored main entry."""
    cache = SmallCache(Sizes(width=32))
    batch = cache.batch([(0, 0, 1)])
    values = torch.tensor([group + [0.0] * (32 - len(group))], dtype=dtype)
    operators.store(values, cache.main, batch.positions, batch)
    data = cache.context_pool.data[cache.blocks[0, 0], cache.main.offset :]
    return int(data[0]), int(data[16])


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_row_2_main_cache_multiplies_by_the_reciprocal(
    operators: Operators, dtype: torch.dtype
) -> None:
    # amax / 6 = 1.875, exact in e4m3 (byte 0x3F). 2.34375 / 1.875 = 1.25 is a tie, which division
    # gives to 1 (code 2); times float32(1 / 1.875), which is rounded up, it is above the tie and
    # goes to 1.5 (code 3). 11.25 / 1.875 = 6 (code 7).
    assert main_bytes(operators, [2.34375, 11.25], dtype) == (0x73, 0x3F)


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_row_3_main_cache_scale_is_clamped(operators: Operators, dtype: torch.dtype) -> None:
    # amax / 6 = 896, beyond e4m3: the scale is 448 (byte 0x7E), not NaN (0x7F). 5376 / 448 = 12
    # saturates to 6 (code 7); -1344 / 448 = -3 (code 13).
    assert main_bytes(operators, [5376.0, -1344.0], dtype) == (0xD7, 0x7E)


# --- row 4: index scores ----------------------------------------------------------------------

UNIT = 2  # the e2m1 code of 1.0


def index_score(
    operators: Operators, dots: list[float], weights: list[float], numerics: Numerics
) -> float:
    """The score of one row and entry, heads having the given dot products with it.

    The key is 1 in channels 0 and 32. A query has the dot product's leading power of two in channel
    0 and what is left of it, which must be a power of two as well, in channel 32.
    """
    heads = len(dots)
    cache = SmallCache(Sizes(index_width=64))
    batch = cache.batch([(0, 0, 1)])
    key = torch.zeros(1, 64, dtype=BF16)
    key[0, [0, 32]] = 1
    operators.store(key, cache.index, batch.positions, batch)
    codes = torch.zeros(1, heads, 32, dtype=torch.uint8)
    codes[..., [0, 16]] = UNIT
    scales = torch.zeros(1, heads, 2, dtype=torch.uint8)
    for head, dot in enumerate(dots):
        leading = 2.0 ** torch.tensor(dot).log2().floor().item()
        for group, part in enumerate((leading, dot - leading)):
            if part == 0:
                codes[0, head, 16 * group] = 0
                continue
            exponent = torch.tensor(part).log2()
            assert exponent == exponent.floor()
            scales[0, head, group] = 127 + int(exponent)
    queries = Activation(
        torch.zeros(1, heads, 64, dtype=BF16), Quantised(codes, scales), Scheme.MXFP4
    )
    scores = operators.index_scores(
        queries,
        bf16(*weights).unsqueeze(0),
        (64 * 4) ** -0.5,  # a power of two, 1/16
        cache.index,
        torch.tensor([1]),
        1,
        batch,
        numerics,
    )
    assert scores.dtype == BF16
    return scores.item()


def both_scores(operators: Operators, dots: list[float], weights: list[float]) -> list[float]:
    """REF and INFER, the scale taken out of REF."""
    ref = index_score(operators, dots, weights, Numerics.REF) * 16
    return [ref, index_score(operators, dots, weights, Numerics.INFER)]


def test_row_4_sum_over_heads(operators: Operators) -> None:
    # Heads 0, 4, 8, 12, 16 share lane 0. Its bf16 chain starts at 1, where half a step is 2^-8:
    # four times 7/8 of that vanish one by one. In float32 they add up to 1 + 3.5 * 2^-8, which
    # bf16 rounds to 1 + 2 * 2^-7.
    dots = [1.0] + [0, 0, 0, 1.0] * 4
    weights = [1.0] + [0, 0, 0, 7 * 2.0**-11] * 4
    dots = [dot or 1.0 for dot in dots]
    assert both_scores(operators, dots, weights) == [1 + 2 * 2.0**-7, 1.0]


def test_row_4_lanes_are_added_in_pairs(operators: Operators) -> None:
    # Lanes 1, 0.75 * 2^-8, -1, 0.75 * 2^-8: (lane 0 + lane 2) + (lane 1 + lane 3) loses nothing.
    # Added in order, lane 1 would vanish in lane 0. Float32 loses nothing either.
    small = 0.75 * 2.0**-8
    expected = 1.5 * 2.0**-8
    assert both_scores(operators, [1.0] * 4, [1, small, -1, small]) == [expected, expected]


def test_row_4_product_is_rounded_in_ref_and_fused_in_infer(operators: Operators) -> None:
    # dot 1 + 2^-4, weight 1 + 2^-4: the product 1 + 2^-3 + 2^-8 is a tie of bf16 and REF's term is
    # 1 + 2^-3, to which the second head (lane 0 as well, at head 4) adds 2^-8: again a tie, again
    # to 1 + 2^-3. INFER has 2^-8 in the lane first and fuses: 1 + 2^-3 + 2^-7.
    dots = [1.0, 1.0, 1.0, 1.0, 1 + 2.0**-4]
    weights = [2.0**-8, 0, 0, 0, 1 + 2.0**-4]
    assert both_scores(operators, dots, weights) == [1 + 2.0**-3, 1 + 2.0**-3 + 2.0**-7]


def test_row_4_fused_multiply_add_rounds_once(operators: Operators) -> None:
    # 1.125 * 1.8125 = 261/128 lies midway between 260/128 (even) and 262/128; the lane's 2^-30
    # decides for 262/128. A float32 between would lose it, and REF does: its term is 260/128.
    weights = [2.0**-30, 0, 0, 0, 1.8125]
    assert both_scores(operators, [1, 1, 1, 1, 1.125], weights) == [260 / 128, 262 / 128]


def test_row_4_relu_does_not_apply_to_weights(operators: Operators) -> None:
    assert both_scores(operators, [1.0, 2.0], [-1.0, 0.5]) == [0.0, 0.0]


# --- row 13: rotation -------------------------------------------------------------------------


def test_row_13_rotation_is_fused_in_infer_only(operators: Operators) -> None:
    # Position 1, frequency 1: cos = 0x1.14a282p-1, sin = 0x1.aed548p-1 in float32. With
    # x0 = 204/128 and x1 = 131/128 the products nearly cancel. Both rounded to float32, their
    # difference is -0x1.69p-14, a tie of bf16; with the first one exact it is -0x1.691ap-14.
    x = bf16(204 / 128, 131 / 128).unsqueeze(0)
    got = {}
    for numerics in Numerics:
        turned = operators.rope(x, torch.tensor([1]), torch.tensor([1.0]), False, numerics)
        got[numerics] = turned[0, 0].item()
    assert got[Numerics.REF] == float.fromhex("-0x1.68p-14")
    assert got[Numerics.INFER] == float.fromhex("-0x1.6ap-14")


# --- row 14: probabilities stay in float32 ----------------------------------------------------


def test_row_14_probabilities_are_not_rounded_to_bf16(operators: Operators) -> None:
    # Keys +1 and -1 in channel 0 with logits +-2^-12: the result is tanh(2^-12) = 2^-12 to bf16's
    # precision. With exp(l - m) rounded to bf16 both are 1 and the result is 0; with normalised
    # probabilities rounded both are 1/2 and it is 0 as well.
    cache = SmallCache(Sizes(width=32))
    batch = cache.batch([(0, 0, 2)])
    keys = torch.zeros(2, 32, dtype=BF16)
    keys[:, 0] = bf16(1, -1)
    operators.store(keys, cache.window, batch.positions, batch)
    queries = torch.zeros(2, 1, 32, dtype=BF16)
    queries[:, 0, 0] = 2.0**-12
    span = WindowSpan(torch.tensor([0, 0]), torch.tensor([0, 1]), 2)
    sink = torch.tensor([-1e30])
    result = operators.attend(queries, cache.window, span, None, None, sink, 1.0, batch)
    assert (result[1, 0, 0].item(), result[0, 0, 0].item()) == (2.0**-12, 1.0)


def test_row_14_holds_for_selected_entries_too(operators: Operators) -> None:
    # A window key of -1 and a selected entry of 1, which NVFP4 stores as 6 * 0.171875 = 1.03125.
    # p * 1.03125 - (1 - p) with p a little above 1/2: rounded probabilities give 0.015625.
    cache = SmallCache(Sizes(width=32))
    batch = cache.batch([(0, 0, 2)])
    key = torch.zeros(2, 32, dtype=BF16)
    key[:, 0] = 1
    operators.store(-key, cache.window, batch.positions, batch)
    operators.store(key, cache.main, batch.positions, batch)
    queries = torch.zeros(2, 1, 32, dtype=BF16)
    queries[:, 0, 0] = 2.0**-11
    span = WindowSpan(torch.tensor([0, 1]), torch.tensor([0, 1]), 1)
    selection = Selection(torch.tensor([[-1, -1], [1, -1]], dtype=torch.int32))
    sink = torch.tensor([-1e30])
    result = operators.attend(queries, cache.window, span, cache.main, selection, sink, 1.0, batch)
    # p = 1 / (1 + exp(-2.03125 * 2^-11)) = 0.50024796; p * 2.03125 - 1 = 0.01612866, whose nearest
    # bf16 is 0x1.08p-6 = 0.01611328.
    assert result[1, 0, 0].item() == float.fromhex("0x1.08p-6")
    assert result[0, 0, 0].item() == -1.0


# --- row 17: sum of routed and shared experts -------------------------------------------------


def test_row_17_shared_output_is_added_before_rounding_in_infer(operators: Operators) -> None:
    # 1 + 0.75 * 2^-8 is 1 in bf16, and so is 1 plus the shared 0.75 * 2^-8: REF. The float32 sum
    # 1 + 1.5 * 2^-8 rounds up: INFER.
    small = 0.75 * 2.0**-8
    outputs = bf16(1.0, small).view(1, 2, 1)
    routing = Routing(torch.tensor([[0, 1]], dtype=torch.int32), torch.ones(1, 2))
    routed = Routed(Activation(bf16(0.0).view(1, 1)), routing, Group(), outputs)
    shared = bf16(small).view(1, 1)
    assert operators.combine(routed, shared, Numerics.REF).item() == 1.0
    assert operators.combine(routed, shared, Numerics.INFER).item() == 1 + 2.0**-7


@both
def test_row_17_expert_outputs_are_summed_in_float32(
    operators: Operators, numerics: Numerics
) -> None:
    # Three experts: 1 and twice 0.75 * 2^-8, which bf16 sums would lose.
    small = 0.75 * 2.0**-8
    outputs = bf16(1.0, small, small).view(1, 3, 1)
    routing = Routing(torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.ones(1, 3))
    routed = Routed(Activation(bf16(0.0).view(1, 1)), routing, Group(), outputs)
    assert operators.combine(routed, bf16(0.0).view(1, 1), numerics).item() == 1 + 2.0**-7


# --- row 18: what the down projection reads ---------------------------------------------------


GATE = torch.tensor([[8.0, 8.0] + [0.0] * 30], dtype=BF16)
UP = torch.tensor([[1.0, 10.0] + [0.0] * 30], dtype=BF16)


def weight_for(target: float) -> Tensor:
    """The routing weight [1] with which channel 0 of GATE and UP comes out as `target`."""
    silu = 8 / (1 + math.exp(-8))
    return torch.tensor([target / silu])


def test_row_18_infer_quantises_the_float32_result(operators: Operators) -> None:
    # The largest value 42.5 makes the scale 2^-3. In its units 4.25 is 34, the tie of 32 (code
    # 0x60, even) and 36 (code 0x61). The float32 value lies above the tie by 1e-5 and goes up;
    # bf16, whose steps are 2^-5 there, puts it on the tie, and it would go down.
    hidden = operators.swiglu(GATE, UP, 0.0, weight_for(4.25 * (1 + 1e-5)), Numerics.INFER)
    assert hidden.quantised is not None
    assert hidden.scheme is Scheme.FP8_BLOCK32
    assert hidden.quantised.scales.tolist() == [[127 - 3]]
    assert (hidden.quantised.codes[0, 0].item(), hidden.values[0, 0].item()) == (0x61, 4.25)
    from_bf16 = operators.quantise(hidden.values, Scheme.FP8_BLOCK32)
    assert from_bf16.quantised is not None
    assert from_bf16.quantised.codes[0, 0].item() == 0x60


def test_row_18_ref_rounds_to_bf16_and_does_not_quantise(operators: Operators) -> None:
    hidden = operators.swiglu(GATE, UP, 0.0, weight_for(4.25 * (1 + 1e-5)), Numerics.REF)
    assert hidden.quantised is None
    assert (hidden.values.dtype, hidden.values[0, 0].item()) == (BF16, 4.25)
