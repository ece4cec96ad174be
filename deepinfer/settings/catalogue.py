"""Every environment variable that the core knows, by subject: name, kind, default, effect.

Source: engine specification, section 2. A test finds the code that reads each variable under
`works`, and finds none that reads another one.

The names are the vendor's, kept to be recognised. Variables that the runtime of a device reads by
itself (which devices a process may see) are not here: the backend of that device registers them
with `BackendSpec.settings`. It registers a variable under `no_meaning` in the same way, and owns it
from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from deepinfer.settings.kinds import (
    NAMES,
    NUMBERS,
    PATH,
    SWITCH,
    TEXT,
    TOKEN_RANGES,
    choice,
    integer,
    number,
    positive,
)
from deepinfer.settings.variables import (
    Variable,
    no_effect,
    no_meaning,
    not_built,
    not_needed,
    works,
)

GIB = 2**30

# fmt: off
BACKENDS = works(
    ("DEEPINFER_ACCELERATOR", TEXT, None,
     "Names the backend that runs; unset, the best one that this machine can use."),
    ("DEEPINFER_SKIP_BACKENDS", NAMES, (),
     "Installed backends that are not even loaded."),
    ("DEEPINFER_STRICT_OPERATORS", SWITCH, False,
     "Makes a fallback to the reference an error."),
)

FILES = works(
    ("DEEPINFER_HF_MODEL_DIR", PATH, None,
     "Checkpoint that is loaded where none is named; unset, the nano checkpoint of the package."),
    ("DEEPINFER_GOLDEN_DIR", PATH, None,
     "Directory of the golden data where `deepinfer golden` is given none."),
)

LOGS = works(
    ("DEEPINFER_LOG_LEVEL", choice("off", "error", "warning", "info", "debug"), "info",
     "Least severe messages that are logged."),
    ("DEEPINFER_LOG_FORMAT", choice("text", "json"), "text",
     "Logs as lines of text or as one JSON object a line."),
    ("DEEPINFER_CPP_LOG_LEVEL", choice("off", "error", "warn", "info"), "info",
     "Vendor's spelling of DEEPINFER_LOG_LEVEL, which wins."),
    ("DEEPINFER_LOGGING_INTERVAL_STEP", integer(), 100,
     "Steps from one statistics line to the next; 0 or less prints none."),
)

MEMORY = [
    *works(
        ("DEEPINFER_INDEX_ATTN_MEMORY_LIMIT", integer(1), 10 * GIB,
         "Bytes that the scores of the sparse index may take; more rows run in several parts."),
        ("DEEPINFER_ENGRAM_FORCE_GPU_STORAGE", SWITCH, False,
         "Keeps the Engram tables in device memory."),
        ("DEEPINFER_NUM_STATE_SLOTS_RATIO", positive(), 1.2,
         "Slots for running sequences, as a multiple of max_num_seqs."),
        ("DEEPINFER_GC_INTERVAL_STEP", integer(0), 1000,
         "Collects Python's garbage every so many steps and at no other time; 0 leaves it to "
         "Python."),
    ),
    *not_needed(
        "windows are paged",
        ("DEEPINFER_PREFILL_STORE_EXTRA_STATE", SWITCH, False,
         "Enlarges the vendor's window rings so that an earlier state can be exported."),
        ("DEEPINFER_PREFILL_STORE_EXTRA_SIZE", integer(0), 128,
         "Extra tokens of those rings."),
    ),
    *no_meaning(
        ("DEEPINFER_PROFILE_TORCH_CUDA_MEMORY", TEXT, None,
         "Records the events of one device's allocator."),
        ("DEEPINFER_ENABLE_MEMORY_TRACING", SWITCH, False,
         "Dumps a snapshot of one device's allocator after the start."),
    ),
]

PROFILING = works(
    ("DEEPINFER_PROFILE_HTTP_ENABLE", SWITCH, False,
     "Serves the profiling endpoint on the loopback interface."),
    ("DEEPINFER_PROFILE_HTTP_PORT_BASE", integer(1, 65535), 6070,
     "Port of the profiling endpoint of device 0; others add their number."),
    ("DEEPINFER_TORCH_PROFILER_DIR", PATH, None,
     "Directory for profiler traces; unset, the system's temporary one."),
)

SCHEDULING = [
    *works(
        ("DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K", integer(1), None,
         "Bounds the summed lengths of the sequences whose prompts share a step; unset, no bound."),
    ),
    *not_built(
        "zero-overhead scheduling",
        ("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", SWITCH, False,  # on in the vendor's engine
         "Plans a step while another is in flight."),
    ),
    *no_effect(
        ("DEEPINFER_DISABLE_SYNC_GUARD", SWITCH, True,  # off in the vendor's engine
         "Turns off the guard against waiting for the device inside a step; there is no guard "
         "yet."),
    ),
    *not_built(
        "bounded replay",
        ("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", choice("off", "mask", "compact"), "off",
         "Runs the decoder layers of a prompt on its last tokens only."),
        ("DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", integer(0), 0,
         "Last tokens of a prompt that the decoder layers see in bounded replay."),
    ),
    *not_built(
        "batch invariance on request",
        ("DEEPINFER_BATCH_INVARIANT", SWITCH, False,
         "Makes the bits of a row independent of the batch on every backend."),
    ),
]

GRAPHS = [
    *no_effect(
        ("DEEPINFER_ENFORCE_EAGER", SWITCH, False,
         "Captures no graph of the model; no backend captures one yet."),
        ("DEEPINFER_DFLASH_ENFORCE_EAGER", SWITCH, False,
         "Captures no graph of the draft pass; no backend captures one yet."),
    ),
    *no_meaning(
        ("DEEPINFER_JIT_CACHE_DIR", PATH, None,
         "Root directory for compiled kernels of backends that compile any."),
        ("DEEPINFER_CUDAGRAPH_BATCH_SIZE_INTERVAL", integer(1), 8,
         "Distance of the batch sizes for which a graph of the model is captured."),
        ("DEEPINFER_DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL", integer(1), 8,
         "Distance of the batch sizes for which a graph of the draft pass is captured."),
    ),
]

SAMPLING = [
    *works(
        ("DEEPINFER_COMPUTE_SUM_SMALLER_PROBS", SWITCH, False,
         "Reports, beside each token, the probability mass of the less probable ones."),
        ("DEEPINFER_ENGRAM_PAD_TOKEN", integer(0), None,
         "Token id in front of a sequence in Engram's n-grams; unset, the checkpoint's."),
        ("DEEPINFER_SAMPLER_FORCE_TOPK", integer(0), 0,
         "Restricts every request to the k highest logits; 0 is off."),
        ("DEEPINFER_DECODE_TOKEN_BLACKLIST", TOKEN_RANGES, (),
         "Token ids that are never sampled."),
    ),
    *no_meaning(
        ("DEEPINFER_FUSED_SAMPLE_STRESS_TEST", SWITCH, False,
         "Test of one sampling kernel of the vendor's."),
        ("DEEPINFER_FUSED_SAMPLE_DETAIL_LOG", SWITCH, False,
         "Log of one sampling kernel of the vendor's."),
    ),
]

DRAFTS = not_built(
    "speculative decoding",
    ("DEEPINFER_USE_NEXTN_DECODE", integer(0), 0,  # 5 in the vendor's engine
     "Most drafts per sequence and step; 0 drafts nothing."),
    ("DEEPINFER_ENABLE_MTP_VARLEN", SWITCH, False,
     "Verifies as many drafts as their confidence and the measured cost justify."),
    ("DEEPINFER_MAX_BACKTRACKING_TOKENS", integer(0), 0,
     "Tokens that can be rolled back, at least one more than drafts."),
    ("DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", NUMBERS, (1.0,),
     "Divides the confidence logits of the drafts, all alike or one number per draft."),
    ("DEEPINFER_DECODE_PERF_CACHE_DIR", PATH, None,
     "Directory that keeps measured costs of decode steps."),
    ("DEEPINFER_DECODE_PERF_CACHE_TTL_SEC", integer(0), 3600,
     "Seconds for which a measured cost of decode steps is believed."),
)

GRAMMARS = not_built(
    "structured output",
    ("DEEPINFER_XGRAMMAR_DEBUG", SWITCH, False,
     "Logs what the grammar matcher does."),
    ("DEEPINFER_XGRAMMAR_TIMEOUT", integer(1), 20,
     "Seconds in which a request's grammar must be compiled."),
    ("DEEPINFER_XGRAMMAR_DISABLE_CACHE", SWITCH, False,
     "Compiles every grammar anew."),
    ("DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES", integer(), 10 * GIB,
     "Bytes of compiled grammars that are kept; 0 or less sets no limit."),
    ("DEEPINFER_SO_BUILDER_CPUS", integer(1), 4,
     "Threads that compile grammars."),
)

PROCESSES = [
    *not_built(
        "parallelism over several processes",
        ("DEEPINFER_GLOO_TIMEOUT", positive(), 14400.0,
         "Seconds after which a collective between hosts' processes fails."),
        ("DEEPINFER_RINGBUFFER_WARNING_INTERVAL", integer(0), 60,
         "Seconds between messages that the shared-memory ring is full."),
        ("DEEPINFER_PREFILL_ATTEMPT_INTERVAL", integer(1), 70,
         "Decode steps between votes for a prefill that all replicas join."),
        ("DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL", integer(1), 100,
         "Decode steps between votes for a prefill that any replica asks for."),
    ),
    *no_effect(  # job launchers set these two for every process
        ("MASTER_ADDR", TEXT, "localhost",
         "Host at which the processes of one engine meet; one process meets nobody."),
        ("MASTER_PORT", TEXT, "23333",
         "Port at which the processes of one engine meet; one process meets nobody."),
    ),
    *no_meaning(
        ("DEEPINFER_NCCL_NUM_SMS", integer(0), 32,
         "Compute units that one communication library may use."),
        ("DEEPINFER_USERBUFFER_COMM_SMS", integer(0), 0,
         "Compute units that exchange tokens between experts' devices."),
        ("DEEPINFER_NCCL_MEMORY_SAMPLE_INTERVAL_STEPS", integer(1), 1000,
         "Steps between reports of one communication library's memory."),
    ),
]

EXPERTS = not_built(
    "expert parallelism and load balancing",
    ("DEEPINFER_REARRANGE_P2P_GROUPS", integer(1), 1,
     "Parts in which moved experts are sent."),
    ("DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", integer(0), 0,
     "Lower bound of the redundant experts of a layer."),
    ("DEEPINFER_EXPERT_COUNT_WINDOW_SIZE", integer(0), 100,
     "Steps over which the tokens of each expert are counted."),
    ("DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", integer(0), 0,
     "Steps between rearrangements of the experts; 0 is off."),
    ("DEEPINFER_REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", SWITCH, False,
     "Counts prefill steps too, and rearranges experts after one."),
    ("DEEPINFER_MOE_LB_STAT_INTERVAL", integer(1), 128,
     "Steps between collections of load statistics."),
    ("DEEPINFER_FORCE_IMBALANCE_RATIO",
     number("that is 0 or at least 1", lambda value: value == 0 or value >= 1), 0.0,
     "Routes at random so that this rank gets so many times the others' load; 0 is off."),
    ("DEEPINFER_FORCE_LOAD_BALANCE", SWITCH, False,
     "Routes every token at random, to measure a balanced load."),
    ("DEEPINFER_SHOW_EPLB_DETAIL", SWITCH, False,
     "Prints a table of layers after each rearrangement."),
)

IMAGES = not_built(
    "multimodal input",
    ("DEEPINFER_USE_MULTIMODAL_POOL", SWITCH, False,  # on in the vendor's engine
     "Keeps image tensors in a shared pool of host memory."),
    ("DEEPINFER_MULTIMODAL_POOL_SIZE_GB", integer(1), 8,
     "Size of that pool, in gigabytes a rank."),
    ("DEEPINFER_MULTI_MODAL_BUFFER_SIZE", integer(1), 512,
     "Prepared images that may wait for the engine."),
    ("DEEPINFER_MULTI_MODAL_WORKER_TIMEOUT", number(), 1800.0,
     "Seconds without progress of the image worker after which its requests fail; 0 or less waits "
     "for ever."),
)
# fmt: on

SUBJECTS = (
    BACKENDS,
    FILES,
    LOGS,
    MEMORY,
    PROFILING,
    SCHEDULING,
    GRAPHS,
    SAMPLING,
    DRAFTS,
    GRAMMARS,
    PROCESSES,
    EXPERTS,
    IMAGES,
)

VARIABLES: Mapping[str, Variable] = MappingProxyType(
    {variable.name: variable for subject in SUBJECTS for variable in subject}
)
"""Every variable that the core knows, by name."""
