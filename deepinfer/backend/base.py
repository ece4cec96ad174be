"""`Backend`, the class that a plugin returns, and the list of all operators of the contract."""

from __future__ import annotations

import torch

from deepinfer.backend.attention import Attention
from deepinfer.backend.cache import Cache
from deepinfer.backend.dense import Dense
from deepinfer.backend.device import Device
from deepinfer.backend.engram import Engram
from deepinfer.backend.experts import Experts
from deepinfer.backend.hyper import HyperConnections
from deepinfer.backend.operators import CallSpec, Declaration, Support, declaration_of
from deepinfer.backend.sampling import Sampling
from deepinfer.backend.speculation import Speculation
from deepinfer.backend.values import Packing, Weights

FAMILIES: dict[str, type] = {
    "dense": Dense,
    "hyper": HyperConnections,
    "engram": Engram,
    "cache": Cache,
    "attention": Attention,
    "experts": Experts,
    "sampling": Sampling,
    "speculation": Speculation,
}


class Contract(HyperConnections, Engram, Cache, Attention, Experts, Sampling, Speculation, Device):
    """All families together: primitives without a body, steps with their default one."""


class Backend(Contract):
    """Base of every backend. Override the operators that the device has, nothing else.

    An operator that is not overridden is run by the step's default body or by the reference.
    `operators` holds all operators as they were resolved, for a native operator that wants to call
    others; it is set before the first call. `batch_invariant` names the operators whose rows do not
    depend on the rest of the batch. `nondeterministic` names the operators that may give other bits
    when they are repeated. All others give the same bits for the same call.
    """

    operators: Contract
    batch_invariant: frozenset[str] = frozenset()
    nondeterministic: frozenset[str] = frozenset()

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)

    def supports(self, call: CallSpec) -> Support:
        """Whether this backend's own operator runs the call. Asked before any weight is read."""
        return Support.yes()

    def supports_reference(self, call: CallSpec) -> Support:
        """Whether the reference runs the call on this device, in its plain torch operators.

        Asked where the reference would stand in for a missing operator; a refusal sends the call to
        the host. Override it where torch has gaps on the device (a dtype, a sort).
        """
        return Support.yes()

    def packing(self, operator: str, weights: Weights) -> Packing | None:
        """Memory that a packing operator of this backend will take; None where it is not known."""
        return None

    @classmethod
    def native_operators(cls) -> frozenset[str]:
        """Names of the operators that this class overrides."""
        return frozenset(
            name for name in OPERATORS if getattr(cls, name) is not getattr(Contract, name)
        )


def _collect() -> dict[str, Declaration]:
    found: dict[str, Declaration] = {}
    for name in dir(Contract):
        declaration = declaration_of(getattr(Contract, name))
        if declaration is not None:
            found[name] = declaration
    return found


DECLARATIONS: dict[str, Declaration] = _collect()
"""Every operator of the contract by name, as it is declared."""

OPERATORS: dict[str, str] = {name: one.kind for name, one in DECLARATIONS.items()}
"""Every operator of the contract by name: "primitive" or "step"."""


def family_of(operator: str) -> str:
    for family, cls in FAMILIES.items():
        if operator in cls.__dict__:
            return family
    raise KeyError(operator)
