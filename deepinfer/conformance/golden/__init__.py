"""Golden checks: a backend against stored numbers of an independent implementation."""

from deepinfer.conformance.golden.command import run_golden
from deepinfer.conformance.golden.data import COMPUTES
from deepinfer.conformance.golden.report import Item, Measure, Report

__all__ = ["COMPUTES", "Item", "Measure", "Report", "run_golden"]
