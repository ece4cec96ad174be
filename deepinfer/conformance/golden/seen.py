"""`Seen`: collects the results of the operators of a layer by the names of golden data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepinfer.backend import Activation, Routing, Selection
from deepinfer.formats import Scheme, dequantise


@dataclass
class Seen:
    """The results of one layer by name.

    router_scores [T, E]: the scores that experts are chosen by.
    Operators inside a native step are not seen, so their names are missing.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    router_scores: Tensor | None = None

    def record(self, operator: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Keep the result of an operator if golden data have a name for it."""
        recorder = getattr(self, f"_{operator}", None)
        if recorder is not None:
            recorder(arguments, result)

    def _enter(self, arguments: tuple[Any, ...], result: Any) -> None:
        site = "ffn" if "attn_in" in self.values else "attn"
        self.values[f"{site}_in"] = result.activation.values
        for part in ("pre", "post", "comb"):
            self.values[f"{site}_mix.{part}"] = getattr(result.mix, part)

    def _advance(self, arguments: tuple[Any, ...], result: Any) -> None:
        if "ffn_in" not in self.values:  # `advance` is native, so its inner `enter` was not seen
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
