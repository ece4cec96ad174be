"""Profiles: sets of operators that a backend can claim to run correctly.

A profile makes two claims. `works`: every case of its operators passed, whoever ran them. `native`:
the backend itself also ran the key operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deepinfer.backend import OPERATORS, Speculation
from deepinfer.backend.resolution import NATIVE
from deepinfer.conformance.case import Tier, Verdict
from deepinfer.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """A named set of operators. key: the operators that the native claim is about."""

    name: str
    meaning: str
    operators: frozenset[str]
    key: frozenset[str]


def _profile(name: str, meaning: str, operators: Iterable[str], key: Iterable[str]) -> Profile:
    return Profile(name, meaning, frozenset(operators), frozenset(key))


BATCH_INVARIANT = "batch-invariant"

LATER = frozenset({"verify", "residual"}) | {
    name for name in vars(Speculation) if not name.startswith("_")
}
"""Operators of drafts, which the reference does not have yet."""

PACKING = frozenset({"pack_vector", "pack_linear", "pack_table", "pack_experts"})
"""Operators that pack weights and have no rows."""

_STATE = (
    "stateful.chunks",
    "stateful.rollback",
    "stateful.resumed",
    "stateful.moved",
    "stateful.forked",
    "stateful.pair",
)
_MODELS = ("model.bundled", "model.vectors", "model.golden")
_ALL = frozenset({*OPERATORS, *_STATE, *_MODELS, "device"})
_CACHE = ("store", "load", "copy", "export", "import_", "compress")
_EXPERTS = ("pack_experts", "route", "dispatch", "swiglu", "expert_mlp", "combine")
_SAMPLING = ("mask", "process", "sample", "top_logprobs")

PROFILES = {
    profile.name: profile
    for profile in (
        _profile("core", "everything that the text model calls", _ALL, ()),
        _profile(
            "fp4-cache",
            "the paged FP4 and FP8 cache, written and read",
            (*_CACHE, *_STATE, "norm_rope_store", "update_context", "index_scores", "attend"),
            ("store", "index_scores", "attend"),
        ),
        _profile(
            "expert-dispatch",
            "routing, dispatch and the experts",
            (*_EXPERTS, "shared_mlp", "mixture"),
            ("expert_mlp",),
        ),
        _profile("sampling", "from logits to tokens", _SAMPLING, ("process", "sample")),
        _profile(
            BATCH_INVARIANT,
            "rows that do not depend on their batch, for every operator",
            _ALL,
            (),
        ),
        _profile(
            "full",
            "every operator of the contract",
            _ALL,
            (name for name, kind in OPERATORS.items() if kind == "primitive" and name not in LATER),
        ),
    )
}


def profile_named(name: str) -> Profile:
    """The profile of this name; UsageError where there is none."""
    if name not in PROFILES:
        raise UsageError(f"profile is {name!r}; allowed: {', '.join(PROFILES)}")
    return PROFILES[name]


@dataclass(frozen=True)
class Claims:
    """What a run showed about its profile.

    native_operators: those that the backend itself ran in every case. left_out: number of cases of
    the profile in this tier that were not run; if there are any, the run claims nothing.
    """

    profile: str
    tier: Tier
    works: bool
    native: bool
    native_operators: tuple[str, ...]
    missing_native: tuple[str, ...]
    undeclared: tuple[str, ...] = ()
    left_out: int = 0

    def sentence(self) -> str:
        """The line that a report ends with. Only a whole run of the full tier claims anything."""
        state = "works" if self.works else "does not work"
        state += f" (not declared: {', '.join(self.undeclared)})" if self.undeclared else ""
        how = f", {len(self.native_operators)} operators native" if self.native_operators else ""
        if self.tier is Tier.QUICK:
            return f"profile {self.profile}: {state}{how}; quick tier: no claim"
        if self.left_out:
            left = f"{self.left_out} of its cases not run: no claim"
            return f"profile {self.profile}: {state}{how}; {left}"
        native = "; native" if self.native else ""
        if not self.native and self.missing_native:
            native = f"; not native: {', '.join(self.missing_native)}"
        return f"claim: profile {self.profile} {state}{how}{native}"


def claims(
    profile: Profile,
    tier: Tier,
    verdicts: Iterable[Verdict],
    undeclared: Iterable[str] = (),
    left_out: int = 0,
) -> Claims:
    """Make the claims from the verdicts of a run.

    undeclared: operators that the backend runs itself and does not declare batch-invariant. Their
    rows were compared within tolerances only, so the profile of that name does not work with them.
    left_out: number of cases of the profile that were not run. A profile without any case that ran
    does not work: a backend that supports nothing passes nothing.
    """
    verdicts = list(verdicts)
    works = bool(verdicts) and all(verdict.passed for verdict in verdicts)
    lacking = sorted(set(undeclared)) if profile.name == BATCH_INVARIANT else []
    works = works and not lacking
    providers: dict[str, set[str]] = {}
    for verdict in verdicts:
        if verdict.case.operator in OPERATORS:  # a suite of several calls is no operator
            providers.setdefault(verdict.case.operator, set()).add(verdict.provider)
    native = tuple(sorted(name for name, by in providers.items() if by == {NATIVE}))
    missing = tuple(sorted(profile.key - set(native)))
    claimed = works and bool(native) and not missing
    return Claims(profile.name, tier, works, claimed, native, missing, tuple(lacking), left_out)
