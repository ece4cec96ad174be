"""Reports for people: text for a terminal, an HTML page, and the difference of two reports."""

from deepinfer.conformance.report.compared import compare_reports
from deepinfer.conformance.report.page import page
from deepinfer.conformance.report.terminal import terminal_text

__all__ = ["compare_reports", "page", "terminal_text"]
