"""Measuring speed: what `deepinfer bench` runs. Nothing here decides whether a number is good."""

from deepinfer.bench.measurements import Measurements, Series, render

__all__ = ["Measurements", "Series", "render"]
