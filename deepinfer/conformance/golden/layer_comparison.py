"""Which metric and which limit apply to each stored value of a layer.

Limits are those of the data (its rule 3). For cache elements there is also a limit on the share
that may be rounded to the neighbouring code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import Tensor

from deepinfer.config import LayerPlan, TextConfig
from deepinfer.conformance.golden.comparison import compared, differing
from deepinfer.conformance.golden.data import Tensors
from deepinfer.conformance.golden.metrics import group_share, median, quantile, relative, worst
from deepinfer.conformance.golden.report import Item, Measure
from deepinfer.conformance.golden.seen import Seen
from deepinfer.conformance.golden.selections import (
    block_scores,
    entry_mask,
    kept_blocks,
    same_sets,
)
from deepinfer.formats import Scheme

FLIPPED_SHARE = {"fp32": 0.005, "bf16": 0.02}
"""Share of cache elements that may differ. An element at a rounding midpoint of FP8 or FP4 moves to
the neighbouring code when its input is off by the last bit.
"""

CODE_STEP = {Scheme.FP8_BLOCK32: 0.15, Scheme.MXFP4: 0.5, Scheme.NVFP4: 0.5}
"""How far a neighbouring code can be, as a share of the group's largest magnitude: steps of 32 in
at least 224 for FP8, of 2 in at least 4 for FP4."""

_SCHEMES = {
    "window_kv": Scheme.FP8_BLOCK32,
    "compressed_kv": Scheme.NVFP4,
    "index_keys": Scheme.MXFP4,
    "index_q": Scheme.MXFP4,
}


class LayerComparison:
    """Compares the values of the layers of one prompt with its stored ones."""

    def __init__(self, data: Tensors, text: TextConfig, prompt: str, compute: str) -> None:
        self.data, self.text, self.prompt, self.compute = data, text, prompt, compute

    def items(self, label: str, plan: LayerPlan, name: str, seen: Seen) -> Iterator[Item]:
        """One item for a stored value of a layer."""
        want = self.data.get(f"{self.prompt}.L{plan.index}.{name}")
        if name not in seen.values:
            yield Item.uncovered(label, "text", "no operator returned it: inside a native step?")
            return
        got = seen.values[name]
        if name in ("topk_indices", "candidates", "router_indices"):
            yield self._selected(label, plan, name, got, want, seen)
        elif name == "router_weights":
            yield self._router_weights(label, plan, got, want, seen)
        elif name in _SCHEMES:
            measure = functools.partial(self._flipped, _SCHEMES[name])
            yield compared(label, self.compute, got, want, measure)
        else:
            if name == "index_scores":
                got = got[:, : want.shape[1]]
            yield compared(label, self.compute, got, want, self.close)

    def close(self, got: Tensor, want: Tensor) -> list[Measure]:
        """The limits of a layer's streams, which apply to every value in the compute precision."""
        errors = relative(got, want)
        if self.compute == "fp32":
            return [
                Measure("median rel", median(errors), "<=", 1e-5),
                Measure("max rel", worst(errors), "<=", 0.01),
            ]
        return [
            Measure("median rel", median(errors), "<=", 3e-3),
            Measure("99% rel", quantile(errors, 0.99), "<=", 0.02),
        ]

    def _flipped(self, scheme: Scheme, got: Tensor, want: Tensor) -> list[Measure]:
        furthest = group_share(got, want, scheme.group_size)
        return [
            differing(got, want, FLIPPED_SHARE[self.compute]),
            Measure("max of group", furthest, "<=", CODE_STEP[scheme]),
        ]

    def _selected(
        self, label: str, plan: LayerPlan, name: str, got: Tensor, want: Tensor, seen: Seen
    ) -> Item:
        if name == "router_indices":
            scores = seen.router_scores
            return same_sets(label, self.compute, got, want, scores, ascending=False)
        scores = self._index_scores(plan)
        if name == "candidates":
            size = self.text.candidate_block_size
            want = kept_blocks(want, size, self.text.candidate_topk_blocks)
            scores = None if scores is None else block_scores(scores, size)
        return same_sets(label, self.compute, got, want, scores)

    def _index_scores(self, plan: LayerPlan) -> Tensor | None:
        """Stored scores, -inf outside the layer's candidates; None where there are none."""
        key = f"{self.prompt}.L{plan.index}.index_scores"
        if key not in self.data.keys:
            return None
        scores = self.data.peek(key)
        if not plan.uses_candidates:
            return scores
        source = self.text.candidate_source_layer_id
        mask = self.data.peek(f"{self.prompt}.L{source}.candidates")
        blocks = kept_blocks(mask, self.text.candidate_block_size, self.text.candidate_topk_blocks)
        allowed = entry_mask(blocks, self.text.candidate_block_size, scores.shape[1])
        return scores.masked_fill(~allowed, float("-inf"))

    def _router_weights(
        self, label: str, plan: LayerPlan, got: Tensor, want: Tensor, seen: Seen
    ) -> Item:
        """Compare weights by expert, in the rows that chose the same experts.

        `_selected` compares the choice of all rows.
        """
        ids = self.data.peek(f"{self.prompt}.L{plan.index}.router_indices")
        chosen, order = ids.sort(1)
        own = seen.values["router_indices"]
        if own.shape != ids.shape or want.shape != ids.shape:
            return compared(label, self.compute, got, want, self.close)
        same = (own == chosen).all(1)
        want = want.gather(1, order)
        return compared(label, self.compute, got[same], want[same], self.close)
