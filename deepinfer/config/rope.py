"""Rotary settings of `text_config`, in the published spelling and in the newer one.

Source: model specification, sections 1.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deepinfer.config.fields import Section

ROPE_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {"rope_type": ("type",)}


@dataclass(frozen=True)
class YarnConfig:
    """YaRN scaling of the rotary frequencies of layers with ratio > 0 (section 4.3)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


def read_rope(s: Section) -> tuple[float, YarnConfig | None]:
    """Read `rope_theta` and `rope_scaling`; newer files have both in `rope_parameters`."""
    rope = s.optional_section("rope_parameters", ROPE_ALIASES)
    if rope is not None and "rope_scaling" in s.values:
        raise s.error(
            "rope_parameters",
            rope.values,
            "absent where rope_scaling is given: they are two spellings of one setting",
        )
    if rope is None:
        theta = s.number("rope_theta", above=0)
        if "rope_scaling" in s.values and s.values["rope_scaling"] is None:
            s.ignore("rope_scaling")
            return theta, None
        rope = s.section("rope_scaling", " or null (no YaRN)", ROPE_ALIASES)
    elif rope.has("rope_theta"):
        theta = rope.number("rope_theta", above=0)
        if s.has("rope_theta") and s.number("rope_theta", above=0) != theta:
            raise s.error(
                "rope_theta", s.values["rope_theta"], f"equal to {rope.name('rope_theta')}"
            )
        s.ignore("rope_theta")
    else:
        theta = s.number("rope_theta", above=0)
    if rope.literal("rope_type", "yarn", "default") == "default":
        return theta, None
    yarn = YarnConfig(
        factor=rope.number("factor", low=1),
        beta_fast=rope.number("beta_fast", above=0),
        beta_slow=rope.number("beta_slow", above=0),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )
    if yarn.beta_fast < yarn.beta_slow:
        raise rope.error("beta_fast", yarn.beta_fast, f"at least beta_slow ({yarn.beta_slow:g})")
    return theta, yarn
