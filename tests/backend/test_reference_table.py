"""Resolution with the real reference: on its own, and behind a backend that counts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from deepinfer.backend import OPERATORS, Activation, Backend, LinearSource
from deepinfer.backend.base import family_of
from deepinfer.backend.memory_source import MemorySource
from deepinfer.backend.registry import REFERENCE, select_backend
from deepinfer.backend.resolution import COMPOSED, FALLBACK, MISSING, NATIVE, Operators, resolve
from deepinfer.formats import Scheme

SPECULATION = {name for name in OPERATORS if family_of(name) == "speculation"}
LATER = {*SPECULATION, "residual", "verify"}


@pytest.fixture
def reference() -> Backend:
    return select_backend(REFERENCE).create()


@pytest.fixture
def table(reference: Backend) -> Operators:
    return resolve(REFERENCE, reference, reference, [])


def test_reference_implements_every_primitive_but_those_of_later_issues(table: Operators) -> None:
    primitives = {name for name, kind in OPERATORS.items() if kind == "primitive"}
    assert set(table.providers(MISSING)) == LATER
    assert set(table.providers(NATIVE)) == primitives - LATER


def test_reference_overrides_no_step(table: Operators) -> None:
    steps = {name for name, kind in OPERATORS.items() if kind == "step"}
    assert set(table.providers(COMPOSED)) == steps


def test_reference_never_falls_back(table: Operators) -> None:
    assert table.providers(FALLBACK) == []


def test_reference_states_batch_invariance_of_operators(reference: Backend) -> None:
    assert reference.batch_invariant == reference.native_operators()
    assert not reference.nondeterministic


def test_id_outside_a_table_is_an_index_error_behind_any_backend(reference: Backend) -> None:
    table = resolve("chip", Backend("cpu"), reference, [])
    packed = table.pack_table(LinearSource(MemorySource(torch.ones(3, 2))))
    with pytest.raises(IndexError):
        table.embed(packed, torch.tensor([0, 3]), torch.float32)


class Counting(Backend):
    """Doubles what a norm gives, and counts."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.ran: Counter[str] = Counter()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.ran["rms_norm"] += 1
        return 2 * x


def test_primitive_of_a_backend_inside_a_step_of_the_reference(reference: Backend) -> None:
    chip = Counting("cpu")
    table = resolve("chip", chip, reference, [])
    x = torch.arange(64, dtype=torch.float32).view(2, 32)
    out = table.norm_quantise(x, torch.ones(32), 1e-6, Scheme.FP8_BLOCK32)
    expected: Activation = reference.quantise(2 * x, Scheme.FP8_BLOCK32)
    assert chip.ran == {"rms_norm": 1}
    assert torch.equal(out.values, 2 * x)
    assert out.quantised is not None
    assert expected.quantised is not None
    assert torch.equal(out.quantised.codes, expected.quantised.codes)


def test_backend_that_overrides_nothing_gives_the_references_bits(reference: Backend) -> None:
    own = resolve(REFERENCE, reference, reference, [])
    x = torch.linspace(-3, 3, 64).view(2, 32)
    expected = own.norm_quantise(x, torch.ones(32), 1e-6, None).values
    behind = resolve("chip", Backend("cpu"), select_backend(REFERENCE).create(), [])
    assert torch.equal(behind.norm_quantise(x, torch.ones(32), 1e-6, None).values, expected)
