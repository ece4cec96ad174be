"""The suites of all operators, by name."""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.conformance.cases.attention import ATTENTION
from deepinfer.conformance.cases.cache import CACHE
from deepinfer.conformance.cases.compressor import COMPRESSOR
from deepinfer.conformance.cases.dense import DENSE
from deepinfer.conformance.cases.select import SELECT
from deepinfer.conformance.cases.selection import SELECTION
from deepinfer.conformance.suite import OperatorSuite

SUITES: Mapping[str, OperatorSuite] = {
    suite.operator: suite
    for suite in (*DENSE, *CACHE, *COMPRESSOR, *SELECTION, *SELECT, *ATTENTION)
}
