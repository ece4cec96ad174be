"""All that the author of a backend needs: the hooks, the operators, and the values they take.

What only the core uses is imported from its module: `registry` finds and selects backends,
`resolution` binds operators.
"""

from deepinfer.backend.attention import Attention, IndexerWeights, OutputWeights, WindowSpan
from deepinfer.backend.base import OPERATORS, Backend, Contract
from deepinfer.backend.batch import Batch, Plan, Pool, Region, Table, block_of
from deepinfer.backend.cache import Cache, CompressorState, CompressorWeights
from deepinfer.backend.dense import AttentionWeights, Dense
from deepinfer.backend.device import Memory
from deepinfer.backend.engram import Engram, EngramWeights, NgramHash
from deepinfer.backend.experts import Experts, MlpWeights, RouterWeights
from deepinfer.backend.hooks import (
    CONTRACT_VERSION,
    Availability,
    BackendSpec,
    Mode,
    Setting,
    hookimpl,
)
from deepinfer.backend.hyper import Advanced, Entered, HyperConnections, MixSite, SubLayer
from deepinfer.backend.operators import CallSpec, Fact, Support
from deepinfer.backend.sampling import Sampling, SamplingParameters
from deepinfer.backend.speculation import Speculation
from deepinfer.backend.values import (
    Activation,
    Compressed,
    ExpertSource,
    Group,
    LinearSource,
    Mix,
    Numerics,
    PackedExperts,
    PackedLinear,
    PackedTable,
    Packing,
    Projection,
    Routed,
    Routing,
    Selection,
    Source,
    TopLogprobs,
    Weights,
    accumulation_dtype,
    stored_bytes,
)

# fmt: off
__all__ = [  # noqa: RUF022 - by purpose
    # the hooks of a plugin
    "CONTRACT_VERSION", "Availability", "BackendSpec", "Mode", "Setting", "hookimpl",
    # the operators, all together and by family
    "OPERATORS", "Attention", "Backend", "Cache", "CallSpec", "Contract", "Dense", "Engram",
    "Experts", "Fact", "HyperConnections", "Sampling", "Speculation", "Support",
    # values that operators and services take and return
    "Activation", "Advanced", "AttentionWeights", "Batch", "Compressed", "CompressorState",
    "CompressorWeights", "EngramWeights", "Entered", "ExpertSource", "Group", "IndexerWeights",
    "LinearSource", "Memory", "Mix", "MixSite", "MlpWeights", "NgramHash", "Numerics",
    "OutputWeights", "PackedExperts", "PackedLinear", "PackedTable", "Packing", "Plan", "Pool",
    "Projection", "Region", "Routed", "RouterWeights", "Routing", "SamplingParameters", "Selection",
    "Source", "SubLayer", "Table", "TopLogprobs", "Weights", "WindowSpan",
    # what several operators compute
    "accumulation_dtype", "block_of", "stored_bytes",
]
# fmt: on
