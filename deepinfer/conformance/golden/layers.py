"""Layer by layer: every layer of a model from stored inputs, against stored outputs.

The inputs of a layer are the streams and pre mix after the layer before it, and the stored
compressed entries, index keys and selections of earlier source layers. A Full or Reindex layer
computes its own; they are compared, and then the stored ones take their place, so that an exact tie
of scores or an FP4 rounding tie (the data divide by the scale where the cache multiplies by its
reciprocal) is judged once, where it arises, and hides nothing behind it. What the operators return
on the way is compared too, where the backend lets the steps be composed. This is the sharpest
golden check: it names the first layer and the first value that differ.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, Batch, Region, Routing, Selection
from deepinfer.backend.resolution import Tap
from deepinfer.cache import SequenceCache
from deepinfer.conformance.golden.data import GoldenModel, Tensors
from deepinfer.conformance.golden.metrics import median, quantile, relative
from deepinfer.conformance.golden.report import Item, Measure
from deepinfer.conformance.golden.selections import block_scores, kept_blocks, swapped_entries
from deepinfer.engine import Chunk, Engine, build_batch
from deepinfer.formats import Scheme, dequantise
from deepinfer.model import Backbone, LayerWeights, Residual, Selections

FLIPPED_SHARE = {"fp32": 0.005, "bf16": 0.02}
"""Share of cache elements that may differ: an input that is off by its last bit, lying at a
rounding midpoint of FP8 or FP4, moves to the neighbouring code."""


@dataclass
class Seen:
    """What the operators of one layer returned, by the golden data's names."""

    values: dict[str, Tensor] = field(default_factory=dict)
    router_scores: Tensor | None = None

    def record(self, operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Keep a result under the name that the golden data use."""
        recorder = getattr(self, f"_{operator}", None)
        if recorder is not None:
            recorder(arguments, result)

    def _enter(self, arguments: tuple[Any, ...], result: Any) -> None:
        site = "ffn" if "attn_in" in self.values else "attn"
        self.values[f"{site}_in"] = result.activation.values
        for part in ("pre", "post", "comb"):
            self.values[f"{site}_mix.{part}"] = getattr(result.mix, part)

    def _advance(self, arguments: tuple[Any, ...], result: Any) -> None:
        if "ffn_in" not in self.values:
            self._enter(arguments, result)

    def _engram(self, arguments: tuple[Any, ...], result: Tensor) -> None:
        self.values["engram_streams"] = result

    def _ngram_rows(self, arguments: tuple[Any, ...], result: Tensor) -> None:
        self.values["engram_hash_ids"] = result

    def _quantise(self, arguments: tuple[Any, ...], result: Activation) -> None:
        if result.scheme is Scheme.MXFP4 and result.quantised is not None:
            codes, scales = result.quantised
            self.values["index_q"] = dequantise(codes, scales, result.scheme, result.dtype)

    def _index_scores(self, arguments: tuple[Any, ...], result: Tensor) -> None:
        self.values["index_scores"] = result
        self.values["index_w"] = arguments[1] * arguments[2]

    def _select(self, arguments: tuple[Any, ...], result: Selection) -> None:
        self.values["topk_indices"] = result.indices
        if result.candidates is not None:
            self.values["candidates"] = result.candidates

    def _attend_output(self, arguments: tuple[Any, ...], result: Tensor) -> None:
        self.values["attn_out"] = result

    def _route(self, arguments: tuple[Any, ...], result: Routing) -> None:
        logits, bias, image_bias, image_mask = arguments[:4]
        scores = torch.nn.functional.softplus(logits).sqrt()
        self.router_scores = scores + torch.where(image_mask[:, None], image_bias, bias)
        order = result.ids.long().argsort(dim=1)
        self.values["router_indices"] = result.ids.gather(1, order)
        self.values["router_weights"] = result.weights.gather(1, order)

    def _mixture(self, arguments: tuple[Any, ...], result: Tensor) -> None:
        self.values["ffn_out"] = result


def check_layers(engine: Engine, model: GoldenModel, data: Tensors, compute: str) -> list[Item]:
    """Every layer of every prompt that has stored intermediates."""
    logits = model.tensors("logits.safetensors")
    if logits is None:
        return []
    items = []
    prompts = sorted({key.split(".")[0] for key in data.keys}, key=lambda name: (len(name), name))
    for prompt in prompts:
        ids = logits.get(f"{prompt}.ids")
        items += _Prompt(engine, model, data, compute, prompt, ids).run()
    return items


class _Prompt:
    def __init__(
        self,
        engine: Engine,
        model: GoldenModel,
        data: Tensors,
        compute: str,
        prompt: str,
        ids: Tensor,
    ) -> None:
        self.engine, self.data, self.compute, self.prompt = engine, data, compute, prompt
        self.model_name, self.ids = model.name, ids
        self.text = engine.config.text
        self.dtype = engine.options.dtype
        self.pools = engine.pools
        self.hashes: dict[int, Tensor] = {}

    def get(self, name: str) -> Tensor:
        return self.data.get(f"{self.prompt}.{name}")

    def stored(self, name: str) -> bool:
        return f"{self.prompt}.{name}" in self.data.keys

    def run(self) -> list[Item]:
        cache = self.engine.cache.open()
        try:
            return self._run(cache)
        finally:
            self.engine.cache.close(cache)

    def _run(self, cache: SequenceCache) -> list[Item]:
        self.engine.cache.reserve(cache, len(self.ids))
        chunk = Chunk(self.ids.numpy(), 0, len(self.ids), cache)
        batch = build_batch([chunk], self.engine.operators, self.engine.history)
        items: list[Item] = []
        for layer in self.engine.backbone.weights.layers:
            items += self._layer(layer, batch)
        items += self._final(batch)
        if self.hashes:
            items.append(self._hash_item())
        return items

    def _layer(self, layer: LayerWeights, batch: Batch) -> list[Item]:
        index = layer.plan.index
        seen = Seen()
        own = self.engine.backbone
        operators = self.engine.operators.tapped(self._tap(layer, seen, batch))
        backbone = Backbone(own.text, own.weights, operators, own.numerics, own.dtype)
        residual = self._inputs(backbone, index, batch)
        selections = self._sources(layer, batch)
        residual = backbone.layer(layer, residual, selections, batch, self.pools)
        settled = backbone.settle(residual)
        seen.values["streams"] = settled.streams
        seen.values["pre_mix_next"] = settled.pre
        if "engram_hash_ids" in seen.values:
            self.hashes[index] = seen.values.pop("engram_hash_ids")
        seen.values["window_kv"] = self._load(self.pools.window_region(index), len(self.ids), batch)
        return self._compare(layer, seen)

    def _tap(self, layer: LayerWeights, seen: Seen, batch: Batch) -> Tap:
        """Record everything; put stored entries and selections in place of the layer's own."""
        plan, index = layer.plan, layer.plan.index

        def tap(operator: str, arguments: tuple[Any, ...], result: Any) -> Any:
            seen.record(operator, arguments, result)
            if operator == "update_context":
                entries = len(self.ids) // plan.ratio
                for name, region in (
                    ("compressed_kv", self.pools.main(index)),
                    ("index_keys", self.pools.index(index)),
                ):
                    seen.values[name] = self._load(region, entries, batch)
                    self._store(region, f"L{index}.{name}", batch)
            if operator == "select":
                return self._stored_selection(index, plan.candidate_source)
            return None

        return tap

    def _stored_selection(self, index: int, with_candidates: bool) -> Selection:
        indices = self.get(f"L{index}.topk_indices").to(torch.int32)
        missing = self.text.index_topk - indices.shape[1]
        indices = torch.nn.functional.pad(indices, (0, missing), value=-1)
        if not with_candidates:
            return Selection(indices)
        return Selection(indices, self._candidate_blocks(self.get(f"L{index}.candidates")))

    def _inputs(self, backbone: Backbone, index: int, batch: Batch) -> Residual:
        if index == 0:
            return self.engine.backbone.begin(batch)
        streams = self.get(f"L{index - 1}.streams").to(self.dtype)
        return Residual(streams, self.get(f"L{index - 1}.pre_mix_next"))

    def _sources(self, layer: LayerWeights, batch: Batch) -> Selections:
        """Put the stored entries and selections of earlier layers where the layer finds them."""
        plan = layer.plan
        selections = Selections()
        if plan.kv_source is None:
            return selections
        if plan.kv_source < plan.index:
            source = f"L{plan.kv_source}"
            self._store(self.pools.main(plan.kv_source), f"{source}.compressed_kv", batch)
            self._store(self.pools.index(plan.kv_source), f"{source}.index_keys", batch)
        if plan.index_source is not None and plan.index_source < plan.index:
            selections.selection = self._stored_selection(plan.index_source, False)
        if plan.uses_candidates:
            mask = self.get(f"L{self.text.candidate_source_layer_id}.candidates")
            selections.candidates = self._candidate_blocks(mask)
        return selections

    def _rows(self, batch: Batch, count: int) -> tuple[Batch, Tensor]:
        sequence = torch.zeros(count, dtype=torch.int64)
        return dataclasses.replace(batch, sequence=sequence), torch.arange(count)

    def _store(self, region: Region, name: str, batch: Batch) -> None:
        values = self.get(name).to(self.dtype)
        rows, entries = self._rows(batch, len(values))
        self.engine.operators.store(values, region, entries, rows)

    def _load(self, region: Region, count: int, batch: Batch) -> Tensor:
        rows, entries = self._rows(batch, count)
        return self.engine.operators.load(region, rows.sequence, entries, rows, self.dtype)

    def _candidate_blocks(self, mask: Tensor) -> Tensor:
        return kept_blocks(mask, self.text.candidate_block_size, self.text.candidate_topk_blocks)

    def _compare(self, layer: LayerWeights, seen: Seen) -> list[Item]:
        items, index = [], layer.plan.index
        for key in sorted(self.data.keys):
            prefix = f"{self.prompt}.L{index}."
            if not key.startswith(prefix):
                continue
            name = key.removeprefix(prefix)
            label = f"{self.model_name}/layers/{self.prompt}/L{index}/{name}"
            if name not in seen.values:
                items.append(Item.uncovered(label, "text", "inside a native step"))
                self.data.mark(key)
                continue
            items.append(self._item(label, name, seen, self.data.get(key)))
        return items

    def _item(self, label: str, name: str, seen: Seen, want: Tensor) -> Item:
        got = seen.values[name]
        if name in ("topk_indices", "router_indices", "candidates"):
            scores = seen.values.get("index_scores")
            if name == "router_indices":
                scores = seen.router_scores
            elif name == "candidates":
                want = self._candidate_blocks(want)
                if scores is not None:
                    scores = block_scores(scores, self.text.candidate_block_size)
            unexplained = swapped_entries(got, want, scores, self.compute)
            return Item.of(
                label, self.compute, Measure("unexplained entries", unexplained, "<=", 0)
            )
        if name == "router_weights":
            order = self.data.get(label_key(self.prompt, label, "router_indices")).argsort(dim=1)
            want = want.gather(1, order)
        if name == "index_scores":
            got = got[:, : want.shape[1]]
        if name in ("window_kv", "compressed_kv", "index_keys", "index_q"):
            share = float((got.float() != want.float()).double().mean()) if want.numel() else 0.0
            limit = FLIPPED_SHARE[self.compute]
            return Item.of(label, self.compute, Measure("elements differing", share, "<=", limit))
        return Item.of(label, self.compute, *self._limits(relative(got, want)))

    def _limits(self, errors: Tensor) -> list[Measure]:
        if self.compute == "fp32":
            worst = float(errors.max()) if len(errors) else 0.0
            return [
                Measure("median rel", median(errors), "<=", 1e-5),
                Measure("max rel", worst, "<=", 0.01),
            ]
        return [
            Measure("median rel", median(errors), "<=", 3e-3),
            Measure("99% rel", quantile(errors, 0.99), "<=", 0.02),
        ]

    def _final(self, batch: Batch) -> list[Item]:
        """Final collapse, final norm, and the logits that follow from the stored streams."""
        backbone, last = self.engine.backbone, self.text.num_hidden_layers - 1
        residual = self._inputs(backbone, last + 1, batch)
        collapsed = backbone.operators.collapse(residual.streams, residual.pre)
        hidden = backbone.operators.rms_norm(
            self.get("final_collapsed").to(self.dtype),
            backbone.weights.norm,
            self.text.rms_norm_eps,
        )
        items = []
        for name, got in (("final_collapsed", collapsed), ("final_hidden", hidden)):
            errors = relative(got, self.get(name))
            label = f"{self.model_name}/layers/{self.prompt}/{name}"
            items.append(Item.of(label, self.compute, *self._limits(errors)))
        return items

    def _hash_item(self) -> Item:
        want = self.get("engram_hash_ids")
        got = torch.stack([self.hashes[layer] for layer in self.text.engram_layer_ids], dim=1)
        return Item.of(
            f"{self.model_name}/layers/{self.prompt}/engram_hash_ids",
            self.compute,
            Measure("ids differing", float((got != want).sum()), "<=", 0),
        )


def label_key(prompt: str, label: str, name: str) -> str:
    """The data's key of a sibling value of the layer that a label names."""
    return f"{prompt}.{label.split('/')[-2]}.{name}"
