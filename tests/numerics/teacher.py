"""Recomputing a recorded layer in float64, always from the engine's own value of the step before.

The identity of every input is checked bit for bit, so each comparison bears one operator's rounding
only, and no quantised code can flip between the engine and the test. Weights are read from the
checkpoint by name.
"""

from __future__ import annotations

from collections import defaultdict, deque

import torch
from torch import Tensor

from deepinfer.backend import OPERATORS, Activation, Numerics
from deepinfer.config import TextConfig
from tests.numerics import codes, plain
from tests.numerics.bounds import check, summed
from tests.numerics.codes import Blocks
from tests.numerics.recording import Call, LayerRecord
from tests.numerics.stored import Stored

SEEN_ELSEWHERE = ("linear", "grouped_linear")


def same(what: str, got: Tensor, expected: Tensor) -> None:
    """Equal bit for bit."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), what
    assert torch.equal(
        got.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    ), f"{what} is not what the step before returned"


class Teacher:
    """The calls of one layer, taken off in order. used: the worst share of each bound."""

    def __init__(
        self, record: LayerRecord, stored: Stored, text: TextConfig, numerics: Numerics
    ) -> None:
        self.record = record
        self.plan = record.weights.plan
        self.batch = record.batch
        self.stored = stored
        self.text = text
        self.numerics = numerics
        self.dtype = record.residual.streams.dtype
        self.used: dict[str, float] = {}
        self._left: dict[str, deque[Call]] = defaultdict(deque)
        self._matmuls = 0
        for call in record.recording.calls:
            if OPERATORS[call.operator] == "primitive":
                self._left[call.operator].append(call)

    def next(self, operator: str) -> Call:
        """The next call of an operator."""
        assert self._left[operator], f"{operator} was not called again"
        return self._left[operator].popleft()

    def finish(self) -> None:
        """Every primitive that ran was looked at."""
        matmuls = sum(len(self._left.pop(name, ())) for name in SEEN_ELSEWHERE)
        assert matmuls == self._matmuls
        assert not {name: len(calls) for name, calls in self._left.items() if calls}

    def close(self, what: str, got: Tensor, exact: Tensor, bound: Tensor | float) -> None:
        """Within the bound; see `bounds.check`."""
        used = check(f"layer {self.plan.index} {what}", got, exact, bound)
        self.used[what] = max(used, self.used.get(what, 0.0))

    def matmul(self, name: str, a: Tensor, blocks: Blocks | None, groups: int = 1) -> Tensor:
        """The matmul with a weight, of values `a` [T, (G,) K] or of their quantised form."""
        call = self.record.recording.matmul(name)
        self._matmuls += 1
        given: Activation = call.arguments[0]
        same(f"input of {name}", given.values, a)
        quantised = blocks is not None and self.stored.quantised(name)
        if quantised:
            assert given.quantised is not None, f"{name} saw no FP8"
            assert blocks is not None, f"{name} has no FP8 to be compared with"
            same(f"codes of {name}", given.quantised.codes, blocks.codes)
            same(f"scales of {name}", given.quantised.scales, blocks.scales)
        operand = codes.fp8_values(*blocks) if quantised and blocks else a.double()
        self.products(name, operand, call.result, groups)
        result: Tensor = call.result
        return result

    def products(self, name: str, operand: Tensor, result: Tensor, groups: int = 1) -> None:
        """Compare a product [T, M] or [T, G, M/G] of a float64 operand with a stored weight."""
        out, rows = result.dtype, self.stored.rows(name)
        per_group = rows // groups
        operand = operand.view(len(operand), groups, -1)
        result = result.flatten(1)
        for group in range(groups):
            x = operand[:, group]
            span = (group * per_group, (group + 1) * per_group)
            for piece in self.stored.pieces(name, *span, rounded=out == torch.bfloat16):
                exact = x @ piece.values.T
                bound = summed(exact, out, x.shape[1])
                self.close(name, result[:, piece.first : piece.stop], exact, bound)

    def norm(self, what: str, x: Tensor, weight: str) -> Tensor:
        """RMSNorm with a stored weight."""
        call = self.next("rms_norm")
        same(f"input of {what}", call.arguments[0], x)
        exact = plain.rms_norm(x.double(), self.stored.vector(weight))
        self.close(what, call.result, exact, summed(exact, self.dtype, x.shape[-1]))
        result: Tensor = call.result
        return result

    def rope(self, what: str, x: Tensor, positions: Tensor, inverse: bool = False) -> Tensor:
        """Rotation with the layer's frequencies."""
        call = self.next("rope")
        same(f"input of {what}", call.arguments[0], x)
        same(f"positions of {what}", call.arguments[1], positions)
        turned = plain.rope(x.double(), positions, self.frequencies(), inverse)
        self.close(what, call.result, turned, summed(turned, self.dtype, 4))
        result: Tensor = call.result
        return result

    def frequencies(self) -> Tensor:
        """The layer's, which the specification's formula gives within float32 rounding."""
        text, yarn = self.text, None
        theta = text.compress_rope_theta if self.plan.ratio else text.rope_theta
        if self.plan.ratio and text.rope_scaling is not None:
            scaling = text.rope_scaling
            yarn = (
                float(scaling.factor),
                int(scaling.original_max_position_embeddings),
                float(scaling.beta_fast),
                float(scaling.beta_slow),
            )
        exact = plain.frequencies(theta, text.qk_rope_head_dim, yarn)
        packed = self.record.weights.attention.frequencies
        self.close("frequencies", packed, exact, exact * 2.0**-20)
        return packed

    def quantised(self, what: str, x: Tensor) -> Blocks | None:
        """The FP8 form in front of a matmul; None in REF."""
        call = self.next("quantise")
        same(f"input of {what}", call.arguments[0], x)
        if self.numerics is Numerics.REF:
            assert call.result.quantised is None, what
            return None
        blocks = codes.fp8(x)
        same(f"codes of {what}", call.result.quantised.codes, blocks.codes)
        same(f"scales of {what}", call.result.quantised.scales, blocks.scales)
        return blocks

    def expand(self, what: str, out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """A sub-layer's output written back."""
        call = self.next("expand")
        same(f"output written by {what}", call.arguments[0], out)
        same(f"streams of {what}", call.arguments[1], streams)
        same(f"post of {what}", call.arguments[2].post, post)
        same(f"comb of {what}", call.arguments[2].comb, comb)
        exact = plain.expand(out.double(), streams.double(), post, comb)
        self.close(what, call.result, exact, summed(exact, self.dtype, 8))
        result: Tensor = call.result
        return result

    def enter(
        self, site: str, streams: Tensor, pre: Tensor
    ) -> tuple[plain.Mix, Tensor, Blocks | None]:
        """Mix, collapse by the carried pre mix, norm, quantise: what a sub-layer starts from."""
        call = self.next("mix")
        same(f"{site} streams", call.arguments[0], streams)
        parts = [self.stored.vector(f"hc_{site}_{part}") for part in ("fn", "base", "scale")]
        exact = plain.mix(streams.double(), *parts, self.text.hc_sinkhorn_iters, self.text.hc_eps)
        bound = 4 * streams[0].numel() ** 0.5 * 2.0**-24 * max(1.0, float(parts[2].abs().max()))
        for part in ("pre", "post", "comb"):
            assert getattr(call.result, part).dtype == torch.float32
            self.close(
                f"{site} mix {part}", getattr(call.result, part), getattr(exact, part), bound
            )
        collapsed = self.next("collapse")
        same(f"{site} pre mix", collapsed.arguments[1], pre)
        u = plain.collapse(streams.double(), pre)
        self.close(f"{site} collapse", collapsed.result, u, summed(u, self.dtype, 4))
        a = self.norm(f"{site} norm", collapsed.result, f"{site}_norm.weight")
        got = call.result
        return plain.Mix(got.pre, got.post, got.comb), a, self.quantised(f"{site} input", a)
