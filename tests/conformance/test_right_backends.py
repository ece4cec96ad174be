"""Backends without a fault pass, though they compute in another way than the reference."""

from __future__ import annotations

import pytest

from tests.conformance.mutants.catching import first_failure
from tests.conformance.mutants.experts import OtherSums
from tests.conformance.mutants.sampling import OwnProcess


def test_other_sums_pass() -> None:
    """Float64 sums, which change the last bits of float32 outputs and no other case."""
    changed = first_failure(
        OtherSums,
        "expert_mlp",
        among=lambda case: (case.dtype, case.numerics) == ("fp32", "ref"),
    )
    assert changed is None


@pytest.mark.slow
def test_a_second_implementation_passes() -> None:
    few = 2000
    failure = first_failure(OwnProcess, "process", among=lambda case: case.size("vocabulary") < few)
    assert failure is None
