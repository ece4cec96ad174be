"""How cases are drawn for operators on paged entries, and for selection among entries.

Batches are drawn row by row: any chunks of up to four sequences, and rows without a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from deepinfer.backend import Fact
from deepinfer.conformance.case import Case
from deepinfer.conformance.cases.attention import SINKS
from deepinfer.conformance.cases.selection import CHOSEN_VALUES

if TYPE_CHECKING:
    from deepinfer.conformance.properties.draws import Draws

RATIOS = (1, 2, 4)
STORED_VALUES = (
    "normal", "large", "extreme", "saturated", "subnormal", "ties", "zeros", "nan_row", "infinite",
)  # fmt: skip


def _entries(operator: str, values: tuple[str, ...]) -> Callable[[Draws], Case]:
    def drawn(d: Draws) -> Case:
        kind = d.pick("window", "main", "index")
        facts: dict[str, Fact] = {"format": kind, "width": d.multiple(32, 128)}
        facts |= {"ratio": 1 if kind == "window" else d.pick(*RATIOS), "pages": "small"}
        facts |= d.batch()
        return d.case(operator, facts, dtype=d.dtype(), values=d.pick(*values))

    return drawn


def _blocks(operator: str) -> Callable[[Draws], Case]:
    def drawn(d: Draws) -> Case:
        facts: dict[str, Fact] = {"blocks": d.integer(0, 20), "image": d.integer(1, 300)}
        facts["padding"] = d.integer(0, 40)
        return d.case(operator, facts)

    return drawn


def compress(d: Draws) -> Case:
    facts: dict[str, Fact] = {"ratio": d.pick(*RATIOS), "width": d.multiple(16, 80), **d.batch()}
    values = d.pick("normal", "large", "extreme", "ties", "zeros", "nan_row")
    return d.case("compress", facts, dtype=d.dtype(), values=values)


def norm_rope_store(d: Draws) -> Case:
    width = d.multiple(32, 128)
    facts: dict[str, Fact] = {"format": "index", "width": width, "ratio": d.pick(*RATIOS)}
    facts |= {"rotated": 2 * d.integer(1, width // 2), **d.batch()}
    values = d.pick("normal", "extreme", "zeros", "nan_row", "ties")
    return d.case("norm_rope_store", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def update_context(d: Draws) -> Case:
    width = d.multiple(32, 96)
    facts: dict[str, Fact] = {
        "ratio": d.pick(*RATIOS),
        "head_dim": width,
        "index_dim": d.multiple(32, 64),
        "hidden": d.multiple(32, 96),
        "rotated": 2 * d.integer(1, 16),
        "weight": d.pick("bf16", "fp32"),
        **d.batch(),
    }
    values = d.pick("normal", "large", "zeros", "nan_row")
    return d.case("update_context", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def index_scores(d: Draws) -> Case:
    facts: dict[str, Fact] = {
        "heads": d.integer(1, 8),
        "width": d.multiple(32, 96),
        "ratio": d.pick(*RATIOS),
        "seen": d.pick("causal", "none", "all"),
        **d.batch(),
        "columns": d.integer(0, 50),
    }
    values = d.pick("normal", "large", "ties", "zeros", "nan_row", "subnormal")
    return d.case("index_scores", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def _chosen(d: Draws) -> dict[str, Fact]:
    return {"rows": d.rows(), "columns": d.integer(0, 140), "block": d.pick(4, 8, 3)}


def top(d: Draws) -> Case:
    facts = {**_chosen(d), "top_k": d.integer(1, 60), "kept": d.integer(0, 6)}
    facts["beyond"] = d.pick("masked", "finite")
    return d.case("top", facts, dtype=d.dtype(), values=d.pick("normal", *CHOSEN_VALUES))


def best_blocks(d: Draws) -> Case:
    facts = {**_chosen(d), "blocks": d.integer(1, 20)}
    return d.case("best_blocks", facts, dtype=d.dtype(), values=d.pick("normal", *CHOSEN_VALUES))


def select(d: Draws) -> Case:
    source, candidates = d.pick((False, False), (True, False), (False, True))
    facts: dict[str, Fact] = {
        "heads": d.integer(1, 8),
        "width": d.multiple(32, 64),
        "rotated": 2 * d.integer(1, 16),
        "top_k": d.integer(1, 20),
        "block": d.pick(4, 8),
        "blocks": d.integer(1, 6) if source else 0,
        "candidates": candidates,
        "ratio": 1 if source or candidates else d.pick(*RATIOS),
        "rank": d.multiple(32, 96),
        "hidden": d.multiple(32, 96),
        "weight": d.pick("fp8", "bf16"),
        **d.batch(),
    }
    values = d.pick("normal", "zeros", "nan_row", "large")
    return d.case("select", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


def _attended(d: Draws) -> dict[str, Fact]:
    selected = d.integer(0, 24)
    return {
        "heads": d.integer(1, 5),
        "head_dim": d.multiple(32, 96),
        "window": d.integer(1, 20),
        "selected": selected,
        "ratio": d.pick(*RATIOS) if selected else 0,
        "sink": d.pick(*SINKS),
        "keys": d.pick("all", "window", "main", "none") if selected else "all",
        **d.batch(),
    }


def attend(d: Draws) -> Case:
    values = d.pick("normal", "large", "extreme", "ties", "zeros", "nan_entry")
    return d.case("attend", _attended(d), dtype=d.dtype(), values=values)


def attend_output(d: Draws) -> Case:
    facts, groups = _attended(d), d.integer(1, 3)
    facts |= {
        "heads": groups * d.integer(1, 2),
        "groups": groups,
        "rank": d.multiple(32, 64),
        "hidden": d.integer(8, 80),
        "rotated": 2 * d.integer(1, 16),
        "weight": d.pick("fp8", "bf16"),
    }
    values = d.pick("normal", "large", "zeros", "nan_entry")
    return d.case("attend_output", facts, dtype=d.dtype(), numerics=d.numerics(), values=values)


CACHED: Mapping[str, Callable[[Draws], Case]] = {
    "store": _entries("store", STORED_VALUES),
    "load": _entries("load", ("normal", "codes", "ties", "nan_row", "saturated")),
    **{name: _blocks(name) for name in ("copy", "export", "import_")},
    **{
        space.__name__: space
        for space in (
            compress, norm_rope_store, update_context, index_scores, top, best_blocks, select,
            attend, attend_output,
        )
    },
}  # fmt: skip
"""How a case of each operator is drawn."""
