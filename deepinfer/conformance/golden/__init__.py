"""Golden checks: results of a backend against stored numbers of an independent implementation."""

from deepinfer.conformance.golden.command import run_golden
from deepinfer.conformance.golden.data import COMPUTES
from deepinfer.conformance.golden.report import GoldenReport, Item, Measure

__all__ = ["COMPUTES", "GoldenReport", "Item", "Measure", "run_golden"]
