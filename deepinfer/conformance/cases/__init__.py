"""The suites of all operators, by name."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.conformance.cases.dense import DENSE
from deepinfer.conformance.cases.device import DEVICE
from deepinfer.conformance.cases.experts import ROUTING
from deepinfer.conformance.cases.mlp import MLP
from deepinfer.conformance.cases.sampling import SAMPLING
from deepinfer.conformance.cases.slots import SLOTS
from deepinfer.conformance.suite import OperatorSuite

SUITES: Mapping[str, OperatorSuite] = {
    suite.operator: suite for suite in (*DENSE, *ROUTING, *MLP, *SLOTS, *SAMPLING, *DEVICE)
}
