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
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, Region, Selection
from deepinfer.backend.resolution import Tap
from deepinfer.cache import SequenceCache
from deepinfer.conformance.golden.comparison import attempt, compared, equal
from deepinfer.conformance.golden.data import LOGITS, GoldenModel, Tensors
from deepinfer.conformance.golden.layer_comparison import LayerComparison
from deepinfer.conformance.golden.report import Item
from deepinfer.conformance.golden.seen import Seen
from deepinfer.conformance.golden.selections import kept_blocks
from deepinfer.engine import Chunk, Engine, build_batch
from deepinfer.model import Backbone, LayerWeights, Residual, Selections


def check_layers(engine: Engine, model: GoldenModel, data: Tensors, compute: str) -> Iterator[Item]:
    """Every layer of every prompt that has stored intermediates."""
    prompts = sorted({key.split(".")[0] for key in data.keys}, key=lambda name: (len(name), name))
    for prompt in prompts:
        check = functools.partial(_check_prompt, engine, model, data, compute, prompt)
        yield from attempt(f"{model.name}/layers/{prompt}", compute, check)


def _check_prompt(
    engine: Engine, model: GoldenModel, data: Tensors, compute: str, prompt: str
) -> Iterator[Item]:
    logits = model.tensors(LOGITS)
    if logits is None:
        raise ValueError(f"the ids of the prompt are in {LOGITS}, which is not there")
    ids = logits.get(f"{prompt}.ids").cpu()
    cache = engine.cache.open()
    try:
        yield from _Prompt(engine, model, data, compute, prompt, ids, cache).run()
    finally:
        engine.cache.close(cache)


class _Prompt:
    def __init__(
        self,
        engine: Engine,
        model: GoldenModel,
        data: Tensors,
        compute: str,
        prompt: str,
        ids: Tensor,
        cache: SequenceCache,
    ) -> None:
        self.engine, self.data, self.compute, self.prompt = engine, data, compute, prompt
        self.name, self.ids, self.cache = f"{model.name}/layers/{prompt}", ids, cache
        self.text = engine.config.text
        self.dtype = engine.options.dtype
        self.pools = engine.pools
        self.hashes: dict[int, Tensor] = {}
        self.comparison = LayerComparison(data, self.text, prompt, compute)

    def run(self) -> Iterator[Item]:
        self.engine.cache.reserve(self.cache, len(self.ids))
        chunk = Chunk(self.ids.numpy(), 0, len(self.ids), self.cache)
        self.batch = build_batch([chunk], self.engine.operators, self.engine.history)
        for layer in self.engine.backbone.weights.layers:
            name = f"{self.name}/L{layer.plan.index}"
            yield from attempt(name, self.compute, functools.partial(self._layer, layer))
        yield from attempt(self.name, self.compute, self._final)
        if self.hashes:
            yield from attempt(self.name, self.compute, self._hash_ids)

    def get(self, name: str) -> Tensor:
        return self.data.get(f"{self.prompt}.{name}")

    def _layer(self, layer: LayerWeights) -> Iterator[Item]:
        index = layer.plan.index
        prefix = f"{self.prompt}.L{index}."
        wanted = [key.removeprefix(prefix) for key in self.data.keys if key.startswith(prefix)]
        if not wanted:
            return
        seen = self._run_layer(layer)
        for name in sorted(wanted):
            label = f"{self.name}/L{index}/{name}"
            check = functools.partial(self.comparison.items, label, layer.plan, name, seen)
            yield from attempt(label, self.compute, check)

    def _run_layer(self, layer: LayerWeights) -> Seen:
        index, batch = layer.plan.index, self.batch
        seen = Seen()
        own = self.engine.backbone
        operators = self.engine.operators.tapped(self._tap(layer, seen))
        backbone = Backbone(own.text, own.weights, operators, own.numerics, own.dtype)
        residual = self._inputs(index)
        selections = self._sources(layer)
        residual = backbone.layer(layer, residual, selections, batch, self.pools)
        settled = backbone.settle(residual)
        seen.values["streams"] = settled.streams
        seen.values["pre_mix_next"] = settled.pre
        if "engram_hash_ids" in seen.values:
            self.hashes[index] = seen.values.pop("engram_hash_ids")
        seen.values["window_kv"] = self._load(self.pools.window_region(index), len(self.ids))
        return seen

    def _tap(self, layer: LayerWeights, seen: Seen) -> Tap:
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
                    seen.values[name] = self._load(region, entries)
                    self._store(region, f"L{index}.{name}")
            if operator == "select":
                return self._stored_selection(index, plan.candidate_source)
            return None

        return tap

    def _stored_selection(self, index: int, with_candidates: bool) -> Selection:
        indices = self.get(f"L{index}.topk_indices").to(torch.int32)
        missing = self.text.index_topk - indices.shape[1]
        indices = torch.nn.functional.pad(indices, (0, missing), value=-1)
        return Selection(indices, self._stored_candidates(index) if with_candidates else None)

    def _stored_candidates(self, index: int) -> Tensor:
        mask = self.get(f"L{index}.candidates")
        return kept_blocks(mask, self.text.candidate_block_size, self.text.candidate_topk_blocks)

    def _inputs(self, index: int) -> Residual:
        if index == 0:
            return self.engine.backbone.begin(self.batch)
        streams = self.get(f"L{index - 1}.streams").to(self.dtype)
        return Residual(streams, self.get(f"L{index - 1}.pre_mix_next"))

    def _sources(self, layer: LayerWeights) -> Selections:
        """Put the stored entries and selections of earlier layers where the layer finds them."""
        plan = layer.plan
        selections = Selections()
        if plan.kv_source is None:
            return selections
        if plan.kv_source < plan.index:
            source = f"L{plan.kv_source}"
            self._store(self.pools.main(plan.kv_source), f"{source}.compressed_kv")
            self._store(self.pools.index(plan.kv_source), f"{source}.index_keys")
        if plan.index_source is not None and plan.index_source < plan.index:
            selections.selection = self._stored_selection(plan.index_source, False)
        if plan.uses_candidates and self.text.candidate_source_layer_id is not None:
            selections.candidates = self._stored_candidates(self.text.candidate_source_layer_id)
        return selections

    def _rows(self, count: int) -> tuple[Batch, Tensor]:
        entries = torch.arange(count, device=self.batch.positions.device)
        return dataclasses.replace(self.batch, sequence=torch.zeros_like(entries)), entries

    def _store(self, region: Region, name: str) -> None:
        values = self.get(name).to(self.dtype)
        rows, entries = self._rows(len(values))
        self.engine.operators.store(values, region, entries, rows)

    def _load(self, region: Region, count: int) -> Tensor:
        rows, entries = self._rows(count)
        return self.engine.operators.load(region, rows.sequence, entries, rows, self.dtype)

    def _final(self) -> Iterator[Item]:
        """Final collapse and final norm, each from stored inputs."""
        backbone = self.engine.backbone
        residual = self._inputs(self.text.num_hidden_layers)
        got = backbone.operators.collapse(residual.streams, residual.pre)
        want = self.get("final_collapsed")
        yield self._close("final_collapsed", got, want)
        norm, eps = backbone.weights.norm, self.text.rms_norm_eps
        got = backbone.operators.rms_norm(want.to(self.dtype), norm, eps)
        yield self._close("final_hidden", got, self.get("final_hidden"))

    def _close(self, name: str, got: Tensor, want: Tensor) -> Item:
        return compared(f"{self.name}/{name}", self.compute, got, want, self.comparison.close)

    def _hash_ids(self) -> Iterator[Item]:
        got = torch.stack([self.hashes[layer] for layer in self.text.engram_layer_ids], dim=1)
        name = "engram_hash_ids"
        yield equal(f"{self.name}/{name}", self.compute, got, self.get(name))
