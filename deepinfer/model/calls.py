"""The operator calls that a model makes, listed from its configuration alone.

Asked of the backend once, before any weight is read, and printed by `deepinfer inspect --calls`.
Calls inside a step's default body carry the step's name: they are made only when no backend runs
the step as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deepinfer.backend import CallSpec, Fact, Numerics
from deepinfer.config import LayerPlan, ModelConfig, TextConfig
from deepinfer.formats import Scheme

Ranges = Mapping[str, tuple[int, int]]
Facts = Mapping[str, Fact]


@dataclass(frozen=True)
class CallLimits:
    """Bounds of what varies at run time: rows and sequences per step, tokens per sequence."""

    max_rows: int
    max_sequences: int
    max_length: int


def model_calls(
    config: ModelConfig,
    numerics: Numerics,
    dtype: str,
    limits: CallLimits,
    cache_dtype: str = "fp4",
) -> list[CallSpec]:
    """Every distinct call of the text model, in order of first use. dtype: "bf16", "fp32", ...

    cache_dtype: "fp4", or "bf16", which calls on main and index entries then have as the fact
    `cache`, and stores in the name of their format.

    A weight fact of "bf16" means unquantised: such a matrix may be stored in float32 as well.
    """
    seen: dict[CallSpec, None] = {}
    for call in ModelCalls(config, numerics, dtype, limits, cache_dtype).all():
        seen.setdefault(call)
    return list(seen)


class ModelCalls:
    """The calls of one model by part; `all` lists them in order, repeated ones included."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        dtype: str,
        limits: CallLimits,
        cache_dtype: str = "fp4",
    ) -> None:
        self.text: TextConfig = config.text
        self.numerics = numerics.value
        self.scheme = numerics.activation_scheme.value if numerics.activation_scheme else None
        self.dtype = dtype
        self.wide = "fp64" if dtype == "fp64" else "fp32"
        self.rows: Ranges = {"rows": (1, limits.max_rows)}
        self.heads: Ranges = {"rows": (1, min(limits.max_rows, limits.max_sequences))}
        self.pages: Ranges = {"rows": (1, limits.max_rows), "length": (1, limits.max_length)}
        quantised = config.quantization is not None
        self.fp8 = "fp8" if quantised else "bf16"
        self.fp4 = "fp4" if quantised else "bf16"
        plain = cache_dtype != "fp4"
        self.cache: Facts = {"cache": cache_dtype} if plain else {}
        self.entries = f"-{cache_dtype}" if plain else ""

    def all(self) -> Iterator[CallSpec]:
        text = self.text
        yield CallSpec.of(
            "embed",
            {"dtype": self.dtype, "vocabulary": text.vocab_size, "width": text.hidden_size},
            self.rows,
        )
        for plan in text.layers:
            yield from self.layer(plan)
        yield self.call("expand", self.streams(), None)
        yield self.call("collapse", self.streams(), None)
        yield from self.logits()
        yield from self.sampling()
        yield from self.copies()

    def call(
        self,
        operator: str,
        facts: Facts,
        step: str | None,
        ranges: Ranges | None = None,
    ) -> CallSpec:
        return CallSpec.of(operator, {"dtype": self.dtype, **facts}, ranges or self.rows, step)

    def streams(self) -> dict[str, int]:
        return {"streams": self.text.hc_mult, "width": self.text.hidden_size}

    def linear(
        self,
        inputs: int,
        outputs: int,
        kind: str,
        step: str,
        out: str | None = None,
        scheme: str | None = None,
        ranges: Ranges | None = None,
    ) -> CallSpec:
        """scheme: block scheme of the consumed input; by default what the numeric mode quantises.

        A matmul with unquantised weights consumes values and has none.
        """
        facts: dict[str, Fact] = {
            "inputs": inputs,
            "outputs": outputs,
            "weight": kind,
            "scheme": scheme or self.scheme if kind in ("fp8", "fp4") else None,
            "out": out or self.dtype,
        }
        return self.call("linear", facts, step, ranges)

    def norm(self, width: int, step: str, ranges: Ranges | None = None) -> CallSpec:
        return self.call("rms_norm", {"width": width, "eps": self.text.rms_norm_eps}, step, ranges)

    def quantise(self, width: int, scheme: str | None, step: str) -> CallSpec:
        return self.call("quantise", {"width": width, "scheme": scheme}, step)

    def norm_quantise(self, width: int, step: str) -> Iterator[CallSpec]:
        yield self.call("norm_quantise", {"width": width, "scheme": self.scheme}, step)
        yield self.norm(width, "norm_quantise")
        yield self.quantise(width, self.scheme, "norm_quantise")

    def rope(self, heads: int, width: int, inverse: bool, step: str) -> CallSpec:
        facts: dict[str, Fact] = {
            "heads": heads,
            "width": width,
            "rotated": self.text.qk_rope_head_dim,
            "inverse": inverse,
            "numerics": self.numerics,
        }
        return self.call("rope", facts, step)

    def store(self, kind: str, width: int, step: str | None) -> CallSpec:
        return self.call("store", {"format": kind, "width": width}, step, self.pages)

    def layer(self, plan: LayerPlan) -> Iterator[CallSpec]:
        if plan.engram:
            yield from self.engram(plan)
        yield from self.enter(plan)
        yield from self.project()
        yield self.store("window", self.text.head_dim, None)
        if plan.role == "full":
            yield from self.update_context(plan)
        if plan.role in ("full", "reindex"):
            yield from self.select(plan)
        yield from self.attend_output(plan)
        yield from self.mixture()

    def enter(self, plan: LayerPlan) -> Iterator[CallSpec]:
        streams: dict[str, Fact] = {**self.streams(), "scheme": self.scheme}
        if plan.index == 0 or plan.engram:
            yield self.call("enter", streams, None)
        yield self.call("advance", streams, None)
        yield self.call("enter", streams, "advance")
        yield self.call("expand", self.streams(), "advance")
        yield self.call(
            "mix", {**self.streams(), "iterations": self.text.hc_sinkhorn_iters}, "enter"
        )
        yield self.call("collapse", self.streams(), "enter")
        yield from self.norm_quantise(self.text.hidden_size, "enter")

    def project(self) -> Iterator[CallSpec]:
        text = self.text
        width = text.num_attention_heads * text.head_dim
        facts: dict[str, Fact] = {
            "heads": text.num_attention_heads,
            "head_dim": text.head_dim,
            "rank": text.q_lora_rank,
            "hidden": text.hidden_size,
            "rotated": text.qk_rope_head_dim,
            "weight": self.fp8,
            "numerics": self.numerics,
        }
        yield self.call("project", facts, None)
        yield self.linear(text.hidden_size, text.q_lora_rank, self.fp8, "project")
        yield from self.norm_quantise(text.q_lora_rank, "project")
        yield self.linear(text.q_lora_rank, width, self.fp8, "project")
        yield self.rope(text.num_attention_heads, text.head_dim, False, "project")
        yield self.linear(text.hidden_size, text.head_dim, self.fp8, "project")
        yield self.norm(text.head_dim, "project")
        yield self.rope(1, text.head_dim, False, "project")

    def update_context(self, plan: LayerPlan) -> Iterator[CallSpec]:
        text, step = self.text, "update_context"
        facts: dict[str, Fact] = {
            "ratio": plan.ratio,
            "head_dim": text.head_dim,
            "index_dim": text.index_head_dim,
            "hidden": text.hidden_size,
            "numerics": self.numerics,
            **self.cache,
        }
        yield self.call(step, facts, None, self.pages)
        out = self.wide if plan.ratio > 1 else self.dtype
        yield self.linear(text.hidden_size, text.head_dim, "bf16", step, out)
        yield self.call("compress", {"ratio": plan.ratio, "width": text.head_dim}, step)
        yield self.norm(text.head_dim, step)
        yield self.rope(1, text.head_dim, False, step)
        yield self.store(f"main{self.entries}", text.head_dim, step)
        yield self.linear(text.head_dim, text.index_head_dim, "bf16", step)
        yield self.call(
            "norm_rope_store",
            {
                "format": f"index{self.entries}",
                "width": text.index_head_dim,
                "numerics": self.numerics,
            },
            step,
            self.pages,
        )
        yield self.norm(text.index_head_dim, "norm_rope_store")
        yield self.rope(1, text.index_head_dim, False, "norm_rope_store")
        yield self.store(f"index{self.entries}", text.index_head_dim, "norm_rope_store")

    def select(self, plan: LayerPlan) -> Iterator[CallSpec]:
        text, step = self.text, "select"
        index: dict[str, Fact] = {"heads": text.index_n_heads, "width": text.index_head_dim}
        kept: dict[str, Fact] = {
            "top_k": text.index_topk,
            "candidates": plan.uses_candidates,
            "block": text.candidate_block_size if self._uses_blocks(plan) else None,
        }
        facts: dict[str, Fact] = {
            **index,
            **kept,
            "ratio": plan.ratio,
            "blocks": text.candidate_topk_blocks if plan.candidate_source else 0,
            "weight": self.fp8,
            "numerics": self.numerics,
            **self.cache,
        }
        yield self.call(step, facts, None, self.pages)
        outputs = text.index_n_heads * text.index_head_dim
        yield self.linear(text.q_lora_rank, outputs, self.fp8, step)
        yield self.rope(text.index_n_heads, text.index_head_dim, False, step)
        yield self.quantise(text.index_head_dim, "fp4-ue8m0-32", step)
        yield self.linear(text.hidden_size, text.index_n_heads, "bf16", step)
        yield self.call(
            "index_scores",
            {**index, "ratio": plan.ratio, "numerics": self.numerics, **self.cache},
            step,
            self.pages,
        )
        yield self.call("top", kept, step, self.pages)
        if plan.candidate_source:
            blocks: dict[str, Fact] = {
                "block": text.candidate_block_size,
                "blocks": text.candidate_topk_blocks,
            }
            yield self.call("best_blocks", blocks, step, self.pages)

    @staticmethod
    def _uses_blocks(plan: LayerPlan) -> bool:
        return plan.candidate_source or plan.uses_candidates

    def attend_output(self, plan: LayerPlan) -> Iterator[CallSpec]:
        text, step = self.text, "attend_output"
        selected = text.index_topk if plan.ratio else 0
        attend: dict[str, Fact] = {
            "heads": text.num_attention_heads,
            "head_dim": text.head_dim,
            "window": text.sliding_window,
            "selected": selected,
            "ratio": plan.ratio,
            **(self.cache if selected else {}),
        }
        output: dict[str, Fact] = {
            "groups": text.o_groups,
            "rank": text.o_lora_rank,
            "hidden": text.hidden_size,
            "weight": self.fp8,
            "numerics": self.numerics,
        }
        yield self.call(step, {**attend, **output}, None, self.pages)
        yield self.call("attend", attend, step, self.pages)
        yield self.rope(text.num_attention_heads, text.head_dim, True, step)
        inputs = text.num_attention_heads * text.head_dim // text.o_groups
        middle = text.o_groups * text.o_lora_rank
        yield self.quantise(inputs, self.scheme, step)
        yield self.call(
            "grouped_linear",
            {
                "groups": text.o_groups,
                "inputs": inputs,
                "outputs": text.o_lora_rank,
                "weight": self.fp8,
                "scheme": self.scheme if self.fp8 == "fp8" else None,
                "out": self.dtype,
            },
            step,
        )
        yield self.quantise(middle, self.scheme, step)
        yield self.linear(middle, text.hidden_size, self.fp8, step)

    def mixture(self) -> Iterator[CallSpec]:
        text, step = self.text, "mixture"
        hidden, inner = text.hidden_size, text.moe_intermediate_size
        experts: dict[str, Fact] = {
            "experts": text.n_routed_experts,
            "top_k": text.num_experts_per_tok,
            "hidden": hidden,
            "intermediate": inner,
            "weight": self.fp4,
        }
        modes: dict[str, Fact] = {"limit": text.swiglu_limit, "numerics": self.numerics}
        yield self.call(step, {**experts, **modes, "group": 1}, None)
        yield self.linear(hidden, text.n_routed_experts, "bf16", step, self.wide)
        route: dict[str, Fact] = {
            "experts": text.n_routed_experts,
            "top_k": text.num_experts_per_tok,
        }
        yield self.call("route", {**route, "scale": text.routed_scaling_factor}, step)
        yield self.call("dispatch", {**route, "hidden": hidden, "group": 1}, step)
        yield self.call("expert_mlp", {**experts, **modes}, step)
        yield self.call(
            "shared_mlp",
            {"hidden": hidden, "intermediate": inner, "weight": self.fp8, **modes},
            step,
        )
        yield self.linear(hidden, inner, self.fp8, "shared_mlp")
        yield self.call("swiglu", {"intermediate": inner, **modes}, "shared_mlp")
        yield self.linear(inner, hidden, self.fp8, "shared_mlp")
        facts: dict[str, Fact] = {
            "top_k": text.num_experts_per_tok,
            "hidden": hidden,
            "numerics": self.numerics,
        }
        yield self.call("combine", facts, step)

    def engram(self, plan: LayerPlan) -> Iterator[CallSpec]:
        text, step = self.text, "engram"
        columns, width = text.engram_columns, text.engram_head_dim
        table: dict[str, Fact] = {
            "columns": columns,
            "width": width,
            "table_rows": text.engram_hashes[plan.index].rows,
            "weight": self.fp8,
        }
        yield self.call("expand", self.streams(), None)
        yield self.call(step, {**self.streams(), "columns": columns, "table_width": width}, None)
        orders: dict[str, Fact] = {"orders": text.engram_max_ngram_size, "columns": columns}
        yield self.call("ngram_rows", orders, step)
        yield self.call("gather", table, step)
        outputs = (text.hc_mult + 1) * text.hidden_size
        # A gathered row is quantised as it is stored, in both numeric modes.
        stored = Scheme.FP8_BLOCK32.value
        yield self.linear(columns * width, outputs, self.fp8, step, scheme=stored)
        yield self.call("inject", self.streams(), step)

    def logits(self) -> Iterator[CallSpec]:
        text, step = self.text, "logits"
        facts: dict[str, Fact] = {"hidden": text.hidden_size, "vocabulary": text.vocab_size}
        yield self.call(step, facts, None, self.heads)
        yield self.norm(text.hidden_size, step, self.heads)
        inputs, outputs = text.hidden_size, text.vocab_size
        yield self.linear(inputs, outputs, "bf16", step, self.wide, ranges=self.heads)

    def sampling(self) -> Iterator[CallSpec]:
        facts: dict[str, Fact] = {"vocabulary": self.text.vocab_size}
        for operator in ("process", "sample", "top_logprobs"):
            yield CallSpec.of(operator, facts, self.heads)

    def copies(self) -> Iterator[CallSpec]:
        """Blocks and pages that sequences share are copied before one of them writes."""
        yield CallSpec.of("copy", {}, {"rows": (1, self.heads["rows"][1])})
