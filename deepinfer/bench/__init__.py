"""Measuring speed: what `deepinfer bench` runs. Nothing here decides whether a number is good."""

from deepinfer.bench.report import Report, Series, render

__all__ = ["Report", "Series", "render"]
