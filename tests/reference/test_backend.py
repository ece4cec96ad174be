"""What the reference is made of: primitives only, its hooks, and what it declines."""

from __future__ import annotations

import pytest

from deepinfer.backend import CONTRACT_VERSION, OPERATORS, CallSpec
from deepinfer.backend.base import family_of
from deepinfer_reference import plugin
from deepinfer_reference.backend import ReferenceBackend

NOT_YET = {"verify", "residual"}


def test_it_overrides_every_primitive_but_those_of_a_later_version():
    primitives = {name for name, kind in OPERATORS.items() if kind == "primitive"}
    later = NOT_YET | {name for name in primitives if family_of(name) == "speculation"}
    assert ReferenceBackend.native_operators() == primitives - later


def test_it_overrides_no_step():
    own = ReferenceBackend.native_operators()
    assert [name for name in own if OPERATORS[name] == "step"] == []


def test_every_operator_is_declared_batch_invariant_and_none_nondeterministic():
    own = ReferenceBackend.native_operators()
    assert ReferenceBackend.batch_invariant == own
    assert ReferenceBackend.nondeterministic == frozenset()


def test_its_hooks():
    spec = plugin.deepinfer_backend()
    assert (spec.name, spec.distribution) == ("reference", "deepinfer-core")
    assert spec.contract_version == CONTRACT_VERSION
    mode = spec.mode(None)
    assert mode is not None
    assert (mode.name, mode.device) == ("hardware", "cpu")
    available = plugin.deepinfer_probe(None)
    assert (available.usable, available.rank) == (True, 0)
    assert str(plugin.deepinfer_create("hardware", "cpu").device) == "cpu"


def test_it_is_not_usable_without_torch(monkeypatch):
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    available = plugin.deepinfer_probe(None)
    assert not available.usable
    assert "torch" in available.remedy


@pytest.mark.parametrize(
    ("operator", "facts", "part"),
    [
        ("dispatch", {"group": 2}, "expert parallelism is not built yet"),
        ("quantise", {"scheme": "fp8-ue8m0-32", "width": 48}, "width=48"),
        ("linear", {"scheme": "fp8-ue8m0-32", "inputs": 80}, "inputs=80"),
        ("store", {"format": "main", "width": 24}, "width=24"),
        ("store", {"format": "int4", "width": 32}, "format=int4"),
        ("quantise", {"scheme": "int8", "width": 32}, "scheme=int8"),
        ("verify", {}, "primitives"),
        ("mixture", {}, "primitives"),
    ],
)
def test_what_it_declines_and_why(reference, operator, facts, part):
    support = reference.supports(CallSpec.of(operator, facts))
    assert not support.supported
    assert part in support.reason


@pytest.mark.parametrize(
    ("operator", "facts"),
    [
        ("dispatch", {"group": 1}),
        ("quantise", {"scheme": None, "width": 48}),
        ("store", {"format": "main", "width": 48}),
        ("linear", {"scheme": None, "inputs": 37}),
    ],
)
def test_what_it_accepts(reference, operator, facts):
    assert reference.supports(CallSpec.of(operator, facts)).supported
