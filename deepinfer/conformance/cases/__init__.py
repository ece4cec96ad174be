"""The suites of all operators, by name."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.conformance.cases.attention import ATTENTION
from deepinfer.conformance.cases.cache import CACHE
from deepinfer.conformance.cases.compressor import COMPRESSOR
from deepinfer.conformance.cases.context import CONTEXT
from deepinfer.conformance.cases.dense import DENSE
from deepinfer.conformance.cases.dense_steps import DENSE_STEPS
from deepinfer.conformance.cases.device import DEVICE
from deepinfer.conformance.cases.engram import ENGRAM
from deepinfer.conformance.cases.engram_step import ENGRAM_STEP
from deepinfer.conformance.cases.experts import ROUTING
from deepinfer.conformance.cases.hyper import HYPER
from deepinfer.conformance.cases.hyper_steps import HYPER_STEPS
from deepinfer.conformance.cases.mixture import MIXTURE
from deepinfer.conformance.cases.mlp import MLP
from deepinfer.conformance.cases.packing import PACKING
from deepinfer.conformance.cases.quantisers import QUANTISERS
from deepinfer.conformance.cases.rotations import ROTATIONS
from deepinfer.conformance.cases.sampling import SAMPLING
from deepinfer.conformance.cases.select import SELECT
from deepinfer.conformance.cases.selection import SELECTION
from deepinfer.conformance.cases.slots import SLOTS
from deepinfer.conformance.suite import OperatorSuite

SUITES: Mapping[str, OperatorSuite] = {
    suite.operator: suite
    for suite in (
        *PACKING,
        *DENSE,
        *QUANTISERS,
        *ROTATIONS,
        *DENSE_STEPS,
        *HYPER,
        *HYPER_STEPS,
        *ENGRAM,
        *ENGRAM_STEP,
        *CACHE,
        *COMPRESSOR,
        *CONTEXT,
        *SELECTION,
        *SELECT,
        *ATTENTION,
        *ROUTING,
        *MLP,
        *MIXTURE,
        *SLOTS,
        *SAMPLING,
        *DEVICE,
    )
}
