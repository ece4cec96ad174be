"""The V4.1 text model: its weights, its layers, and the operator calls that it makes."""

from deepinfer.model.backbone import Backbone, Residual, Selections
from deepinfer.model.calls import model_calls
from deepinfer.model.packing import PackingPlan, plan_packing
from deepinfer.model.rotary import inverse_frequencies, layer_frequencies
from deepinfer.model.weights import BackboneWeights, LayerWeights, WeightLoader

__all__ = [
    "Backbone",
    "BackboneWeights",
    "LayerWeights",
    "PackingPlan",
    "Residual",
    "Selections",
    "WeightLoader",
    "inverse_frequencies",
    "layer_frequencies",
    "model_calls",
    "plan_packing",
]
