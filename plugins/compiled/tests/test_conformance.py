"""The conformance suite on this backend, one item per case: `pytest --operator rms_norm`."""

from deepinfer.conformance.test_suite import test_conformance

__all__ = ["test_conformance"]
