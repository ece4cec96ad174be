"""Reports of a run: a table for the terminal, a page for a browser, and two runs compared."""

from deepinfer.conformance.report.compared import compare_reports
from deepinfer.conformance.report.page import page
from deepinfer.conformance.report.terminal import terminal_text

__all__ = ["compare_reports", "page", "terminal_text"]
