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
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Batch, Region, Selection
from deepinfer.config import LayerPlan
from deepinfer.conformance.golden.comparison import attempt, compared, equal
from deepinfer.conformance.golden.data import LOGITS, GoldenModel, Tensors
from deepinfer.conformance.golden.layer_comparison import LayerComparison
from deepinfer.conformance.golden.report import Item
from deepinfer.conformance.golden.seen import Seen
from deepinfer.conformance.golden.selections import kept_blocks
from deepinfer.engine import Engine, SamplingParams
from deepinfer.model import LayerWeights, Residual, Selections


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
    yield from _Prompt(engine, model, data, compute, prompt, ids).run()


class _Prompt:
    """One prompt as a request, whose step shows its layers to this tap."""

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
        self.runner = engine.runner
        self.name, self.ids = f"{model.name}/layers/{prompt}", ids
        self.text = self.runner.config.text
        self.dtype = self.runner.options.dtype
        self.pools = self.runner.pools
        self.operators = self.runner.operators  # without the tap that is set while a step runs
        self.hashes: dict[int, Tensor] = {}
        self.comparison = LayerComparison(data, self.text, prompt, compute)
        self.items: list[Item] = []
        self.done = 0  # layers that were compared, or named as broken
        self.started = False  # has this run reached a layer that is not done?
        self.layer: LayerWeights | None = None
        self.seen = Seen()

    def run(self) -> Iterator[Item]:
        """Items of all layers, in order.

        Every layer has stored inputs, so one that raises does not keep the later ones from being
        compared: the prompt runs again from the layer after it on.
        """
        layers = self.runner.backbone.weights.layers
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        with self.engine.tapped(self._on_operator, self):
            while self.done < len(layers):
                self.started = False
                request = self.engine.add(self.ids.numpy(), params)
                self.engine.drain()
                error = request.sequences[0].error or "the step ended before this layer"
                stop = self.done + 1 if self.started else len(layers)
                for layer in layers[self.done : stop]:
                    if self._wanted(layer):
                        name = f"{self.name}/L{layer.plan.index}"
                        self.items.append(Item.broken(name, self.compute, error))
                self.done = stop
        yield from self.items
        yield from attempt(self.name, self.compute, self._final)
        if self.hashes:
            yield from attempt(self.name, self.compute, self._hash_ids)

    def get(self, name: str) -> Tensor:
        return self.data.get(f"{self.prompt}.{name}")

    def before(
        self, layer: LayerWeights, residual: Residual, selections: Selections, batch: Batch
    ) -> Residual | None:
        """Put the stored inputs of a layer in place of those that the layer before it gave.

        A layer that is done, or whose inputs are not all stored, is left out.
        """
        self.batch, self.layer, self.seen = batch, None, Seen()
        if layer.plan.index < self.done:
            return None
        self.started = True
        inputs = [residual]

        def place() -> list[Item]:
            if layer.plan.index:
                inputs.append(self._inputs(layer.plan.index))
            self._sources(layer, selections)
            return []

        if self._wanted(layer):
            if not self._succeeds(layer, place):
                self.done += 1
                return None
            self.layer = layer
        return inputs[-1]

    def _succeeds(self, layer: LayerWeights, work: Callable[[], list[Item]]) -> bool:
        """Do something for a layer; what it raises, such as data that lack a value, is an item."""
        failed = list(attempt(f"{self.name}/L{layer.plan.index}", self.compute, work))
        self.items += failed
        return not failed

    def after(self, layer: LayerWeights, residual: Residual, batch: Batch) -> None:
        """Compare what the layer gave and what its operators returned on the way."""
        index, seen, checked = layer.plan.index, self.seen, self.layer is not None
        self.layer = None
        if not checked:
            self.done += 1
            return
        settled = self.runner.backbone.settle(residual)
        seen.values["streams"] = settled.streams
        seen.values["pre_mix_next"] = settled.pre
        if "engram_hash_ids" in seen.values:
            self.hashes[index] = seen.values.pop("engram_hash_ids")
        seen.values["window_kv"] = self._load(self.pools.window_region(index), len(self.ids))
        for name in self._wanted(layer):
            label = f"{self.name}/L{index}/{name}"
            check = functools.partial(self.comparison.items, label, layer.plan, name, seen)
            self.items += attempt(label, self.compute, check)
        self.done += 1

    def _wanted(self, layer: LayerWeights) -> list[str]:
        """Names of the intermediates that are stored for a layer, sorted."""
        prefix = f"{self.prompt}.L{layer.plan.index}."
        return sorted(key.removeprefix(prefix) for key in self.data.keys if key.startswith(prefix))

    def _on_operator(self, operator: str, arguments: tuple[Any, ...], result: Any) -> Any:
        """Record everything; put stored entries and selections in place of the layer's own."""
        layer = self.layer
        if layer is None:
            return None
        plan, replaced = layer.plan, []
        self.seen.record(operator, arguments, result)

        def replace() -> list[Item]:
            if operator == "update_context":
                self._replace_entries(plan)
            elif operator == "select":
                replaced.append(self._stored_selection(plan.index, plan.candidate_source))
            return []

        if not self._succeeds(layer, replace):
            self.layer = None
        return replaced[0] if replaced else None

    def _replace_entries(self, plan: LayerPlan) -> None:
        """Keep the entries that a layer has stored, and store the golden ones over them."""
        entries = len(self.ids) // plan.ratio
        for name, region in (
            ("compressed_kv", self.pools.main(plan.index)),
            ("index_keys", self.pools.index(plan.index)),
        ):
            self.seen.values[name] = self._load(region, entries)
            self._store(region, f"L{plan.index}.{name}")

    def _stored_selection(self, index: int, with_candidates: bool) -> Selection:
        indices = self.get(f"L{index}.topk_indices").to(torch.int32)
        missing = self.text.index_topk - indices.shape[1]
        indices = torch.nn.functional.pad(indices, (0, missing), value=-1)
        return Selection(indices, self._stored_candidates(index) if with_candidates else None)

    def _stored_candidates(self, index: int) -> Tensor:
        mask = self.get(f"L{index}.candidates")
        return kept_blocks(mask, self.text.candidate_block_size, self.text.candidate_topk_blocks)

    def _inputs(self, index: int) -> Residual:
        streams = self.get(f"L{index - 1}.streams").to(self.dtype)
        return Residual(streams, self.get(f"L{index - 1}.pre_mix_next"))

    def _sources(self, layer: LayerWeights, selections: Selections) -> None:
        """Put the stored entries and selections of earlier layers where the layer finds them."""
        plan = layer.plan
        selections.selection = selections.candidates = None
        if plan.kv_source is None:
            return
        if plan.kv_source < plan.index:
            source = f"L{plan.kv_source}"
            self._store(self.pools.main(plan.kv_source), f"{source}.compressed_kv")
            self._store(self.pools.index(plan.kv_source), f"{source}.index_keys")
        if plan.index_source is not None and plan.index_source < plan.index:
            selections.selection = self._stored_selection(plan.index_source, False)
        if plan.uses_candidates and self.text.candidate_source_layer_id is not None:
            selections.candidates = self._stored_candidates(self.text.candidate_source_layer_id)

    def _rows(self, count: int) -> tuple[Batch, Tensor]:
        entries = torch.arange(count, device=self.batch.positions.device)
        return dataclasses.replace(self.batch, sequence=torch.zeros_like(entries)), entries

    def _store(self, region: Region, name: str) -> None:
        values = self.get(name).to(self.dtype)
        rows, entries = self._rows(len(values))
        self.operators.store(values, region, entries, rows)

    def _load(self, region: Region, count: int) -> Tensor:
        rows, entries = self._rows(count)
        return self.operators.load(region, rows.sequence, entries, rows, self.dtype)

    def _final(self) -> Iterator[Item]:
        """Final collapse and final norm, each from stored inputs."""
        backbone = self.runner.backbone
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
