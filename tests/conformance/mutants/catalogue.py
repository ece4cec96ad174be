"""All mutants: a backend with one fault, the operator whose cases are to catch it, and how.

A mutant stands once for every operator at which it is to be seen. `docs/mutants.md` says which case
catches it first.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from deepinfer.conformance.case import Failure
from deepinfer.conformance.profiles import PROFILES
from deepinfer_reference.backend import ReferenceBackend
from tests.conformance.mutants import (
    attention,
    cache,
    dense,
    device,
    engram,
    experts,
    hyper,
    packing,
    sampling,
    slots,
    state,
)
from tests.conformance.mutants.catching import backends_of
from tests.conformance.mutants.variant import Variant

MODULES = (packing, dense, hyper, engram, cache, attention, experts, slots, sampling, device, state)
RIGHT = (engram.OwnGate, experts.OtherSums, sampling.OwnProcess)
"""Backends of these modules that have no fault."""


class Mutant(NamedTuple):
    """A backend that must fail a quick case of an operator, or of a suite of several calls."""

    backend: type[Variant]
    operator: str
    failure: Failure

    @property
    def name(self) -> str:
        """Its fault in a few words, as part of an id: "nibbles-swapped"."""
        return re.sub("(?<!^)(?=[A-Z])", "-", self.backend.__name__).lower()

    @property
    def id(self) -> str:
        """Name and operator, which no two mutants share."""
        return f"{self.name}-{self.operator}"

    @property
    def fault(self) -> str:
        """What is wrong with it, in a sentence."""
        return " ".join((inspect.getdoc(self.backend) or "").split())

    @property
    def twin(self) -> type[ReferenceBackend]:
        """The same backend without the fault: the reference, or what stands in for a part of it."""
        right = (*RIGHT, ReferenceBackend)
        return next(base for base in self.backend.__mro__ if base in right)

    @property
    def profile(self) -> str:
        """The smallest profile that claims its operator."""
        claiming = [one for one in PROFILES.values() if self.operator in one.operators]
        return min(claiming, key=lambda one: len(one.operators)).name


def mutants_of(module: ModuleType) -> Iterator[Mutant]:
    """The mutants that a module declares, in its order."""
    for backend in backends_of(module):
        for operator in backend.seen_at:
            failure = Failure.NUMBERS if "." in operator else backend.failure
            yield Mutant(backend, operator, failure)


MUTANTS = tuple(mutant for module in MODULES for mutant in mutants_of(module))
