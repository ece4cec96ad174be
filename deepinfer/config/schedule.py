"""Layer roles: which layers own compressed entries, select among them, or reuse a selection.

The KV source and the index source of a layer are the nearest such layers at or before it. Source:
model specification, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["window", "full", "reindex", "reuse"]


@dataclass(frozen=True)
class LayerPlan:
    """The role of one backbone layer.

    index: layer number. ratio: tokens per compressed entry, 0 for a window-only layer.
    role: "window" (ratio 0), "full" (owns compressed KV and index keys and selects), "reindex"
    (selects among the entries of its KV source), "reuse" (takes entries and selection).
    kv_source, index_source: numbers of these layers, possibly the layer itself; None for ratio 0.
    engram: the layer begins with an Engram. candidate_source: the layer produces candidate blocks.
    uses_candidates: the layer selects among the blocks of the layer that produces candidates.
    """

    index: int
    ratio: int
    role: Role
    kv_source: int | None
    index_source: int | None
    engram: bool
    candidate_source: bool
    uses_candidates: bool


def nearest(sources: Sequence[int], layer: int) -> int | None:
    """The last of the ascending `sources` that is at or before `layer`, or None."""
    found = None
    for source in sources:
        if source > layer:
            break
        found = source
    return found


def first_decoder_layer(ratios: Sequence[int]) -> int | None:
    """Index of the first backbone layer of ratio 1, or None (model specification, section 6.1)."""
    return next((i for i, ratio in enumerate(ratios) if ratio == 1), None)


def plan_layers(
    ratios: Sequence[int],
    kv_sources: Sequence[int],
    index_sources: Sequence[int],
    engram_layers: Sequence[int],
    candidate_source: int | None,
) -> tuple[LayerPlan, ...]:
    """The plan of every backbone layer. The arguments must obey the model rules."""
    plans = []
    for i, ratio in enumerate(ratios):
        role: Role
        if ratio == 0:
            role = "window"
        elif i in kv_sources:
            role = "full"
        elif i in index_sources:
            role = "reindex"
        else:
            role = "reuse"
        selects = role in ("full", "reindex")
        plans.append(
            LayerPlan(
                index=i,
                ratio=ratio,
                role=role,
                kv_source=nearest(kv_sources, i) if ratio else None,
                index_source=nearest(index_sources, i) if ratio else None,
                engram=i in engram_layers,
                candidate_source=i == candidate_source,
                uses_candidates=selects and candidate_source is not None and i > candidate_source,
            )
        )
    return tuple(plans)
