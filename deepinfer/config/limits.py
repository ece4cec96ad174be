"""Release limits: values of a configuration that one vendor's kernels were not written for.

They are no errors. A backend with such limits states them in `supports`; `deepinfer inspect` lists
them. Source: model specification, sections 1.2, 1.4 and appendix C.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.config.model import ModelConfig
from deepinfer.config.text import TextConfig


@dataclass(frozen=True)
class Limit:
    """A value outside of a release limit: its dotted key, the value, and the limit in words."""

    key: str
    value: object
    rule: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.rule}"


def _text_limits(text: TextConfig) -> list[Limit]:
    """Values of `text_config` outside of release limits; none in the released configuration."""
    limits = []

    def expect(holds: bool, key: str, rule: str) -> None:
        if not holds:
            limits.append(Limit(f"text_config.{key}", getattr(text, key), rule))

    expect(text.index_n_heads == 32, "index_n_heads", "32 index heads")
    if text.candidate_source_layer_id is not None:
        blocks = text.candidate_topk_blocks
        expect(text.candidate_block_size in (8, 16), "candidate_block_size", "8 or 16")
        expect(
            blocks % 8 == 0 and blocks <= 4096,
            "candidate_topk_blocks",
            "a multiple of 8, at most 4096",
        )
    decoder = text.first_decoder_layer
    if text.engram_layer_ids:
        expect(text.engram_head_dim % 128 == 0, "engram_head_dim", "a multiple of 128")
        if decoder is not None:
            expect(
                max(text.engram_layer_ids) < decoder,
                "engram_layer_ids",
                f"Engram in encoder layers only (below layer {decoder})",
            )
    if decoder is not None:
        expect(
            max(text.kv_source_layer_ids) <= decoder,
            "kv_source_layer_ids",
            f"no KV source after the first decoder layer {decoder} (compact prefill)",
        )
        if text.draft_layers:
            sides = {target >= decoder for target in text.dspark_target_layer_ids}
            expect(
                len(sides) == 1,
                "dspark_target_layer_ids",
                f"all on one side of the first decoder layer {decoder} (compact prefill)",
            )
    return limits


def release_limits(config: ModelConfig) -> list[Limit]:
    """Values of a configuration outside of release limits; none in the released one."""
    limits = _text_limits(config.text)
    if config.quantization is None:
        limits.append(Limit("quantization_config", None, "the released quantization_config"))
        return limits
    for key, released in config.quantization.RELEASED.items():
        value = getattr(config.quantization, key)
        if value != released:
            limits.append(Limit(f"quantization_config.{key}", value, f"{released}"))
    return limits
