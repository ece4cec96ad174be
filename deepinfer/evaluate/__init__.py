"""Evaluate a checkpoint: accuracy on held-out questions with checkable answers, and perplexity."""

from deepinfer.evaluate.items import CLASSES, Question, Text, distance_class, heldout
from deepinfer.evaluate.report import Evaluation, Score
from deepinfer.evaluate.run import evaluate
from deepinfer.evaluate.terminal import render

__all__ = [
    "CLASSES",
    "Evaluation",
    "Question",
    "Score",
    "Text",
    "distance_class",
    "evaluate",
    "heldout",
    "render",
]
