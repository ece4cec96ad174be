"""Variables of the vendor's engine that this one has no use for; a value gives one warning.

What the design does without (`not_needed`), and what tunes a device or library that the core
knows nothing of (`no_meaning`): a backend that has such a thing registers the variable with
`BackendSpec.settings` and owns it then. The names are the vendor's, kept to be recognised.

Source: engine specification, sections 2.1, 2.2 and 2.6 to 2.9.
"""

from __future__ import annotations

from deepinfer.settings.kinds import PATH, SWITCH, TEXT, integer
from deepinfer.settings.variables import Variable, no_meaning, not_needed

UNUSED: tuple[Variable, ...] = (
    not_needed(
        "DEEPINFER_PREFILL_STORE_EXTRA_STATE",
        SWITCH,
        False,
        "Enlarges the vendor's window rings so that an earlier state can be exported.",
        "windows are paged",
        False,
    ),
    not_needed(
        "DEEPINFER_PREFILL_STORE_EXTRA_SIZE",
        integer(0),
        128,
        "Extra tokens of those rings.",
        "windows are paged",
    ),
    no_meaning(
        "DEEPINFER_JIT_CACHE_DIR",
        PATH,
        None,
        "Root directory for compiled kernels of backends that compile any.",
    ),
    no_meaning(
        "DEEPINFER_CUDAGRAPH_BATCH_SIZE_INTERVAL",
        integer(1),
        8,
        "Distance of the batch sizes for which a graph of the model is captured.",
    ),
    no_meaning(
        "DEEPINFER_DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL",
        integer(1),
        8,
        "Distance of the batch sizes for which a graph of the draft pass is captured.",
    ),
    no_meaning(
        "DEEPINFER_NCCL_NUM_SMS",
        integer(0),
        32,
        "Compute units that one communication library may use.",
    ),
    no_meaning(
        "DEEPINFER_USERBUFFER_COMM_SMS",
        integer(0),
        0,
        "Compute units that exchange tokens between experts' devices.",
        0,
    ),
    no_meaning(
        "DEEPINFER_NCCL_MEMORY_SAMPLE_INTERVAL_STEPS",
        integer(1),
        1000,
        "Steps between reports of one communication library's memory.",
    ),
    no_meaning(
        "DEEPINFER_PROFILE_TORCH_CUDA_MEMORY",
        TEXT,
        None,
        "Records the events of one device's allocator.",
    ),
    no_meaning(
        "DEEPINFER_ENABLE_MEMORY_TRACING",
        SWITCH,
        False,
        "Dumps a snapshot of one device's allocator after the start.",
        False,
    ),
    no_meaning(
        "DEEPINFER_FUSED_SAMPLE_STRESS_TEST",
        SWITCH,
        False,
        "Test of one sampling kernel of the vendor's.",
        False,
    ),
    no_meaning(
        "DEEPINFER_FUSED_SAMPLE_DETAIL_LOG",
        SWITCH,
        False,
        "Log of one sampling kernel of the vendor's.",
        False,
    ),
)
