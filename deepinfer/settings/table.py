"""Variables of this version: what it has of its own, and what it takes from the vendor's engine.

Source: engine specification, sections 2.1, 2.4, 2.6, 2.7 and 2.8. `wired=True` marks those that
have their effect; a test finds the code that reads each of them.

Variables that the runtime of a device reads by itself (which devices a process may see) are not
in the core's table: the backend of that device registers them with `BackendSpec.settings`.
"""

from __future__ import annotations

from deepinfer.settings import environment
from deepinfer.settings.kinds import (
    NAMES,
    PATH,
    SWITCH,
    TEXT,
    TOKEN_RANGES,
    choice,
    integer,
    positive,
)
from deepinfer.settings.variables import Variable, works

GIB = 2**30
LOG_LEVELS = ("off", "error", "warning", "info", "debug")

GRAPHS = "graph capture"
LOGGING = "logging set-up"
PROFILING = "the profiling endpoint"

OWN: tuple[Variable, ...] = (
    works(
        environment.ACCELERATOR,
        TEXT,
        None,
        "Names the backend that runs; unset, the best one that this machine can use.",
        "selection of a backend",
        wired=True,
    ),
    works(
        environment.SKIP_BACKENDS,
        NAMES,
        (),
        "Installed backends that are not even loaded.",
        "selection of a backend",
        wired=True,
    ),
    works(
        environment.STRICT_OPERATORS,
        SWITCH,
        False,
        "Makes a fallback to the reference an error.",
        "strict resolution of operators",
        wired=True,
    ),
    works(
        environment.MODEL_DIRECTORY,
        PATH,
        None,
        "Checkpoint that is loaded where none is named; unset, the nano checkpoint of the package.",
        "loading of a checkpoint",
        wired=True,
    ),
    works(
        environment.GOLDEN_DIRECTORY,
        PATH,
        None,
        "Directory of the golden data where `deepinfer golden` is given none.",
        "golden checks",
        wired=True,
    ),
    works(
        "DEEPINFER_LOG_LEVEL",
        choice(*LOG_LEVELS),
        "info",
        "Least severe messages that are logged.",
        LOGGING,
        wired=True,
    ),
    works(
        "DEEPINFER_LOG_FORMAT",
        choice("text", "json"),
        "text",
        "Logs as lines of text or as one JSON object a line.",
        LOGGING,
        wired=True,
    ),
)

ENGINE: tuple[Variable, ...] = (
    works(
        "DEEPINFER_COMPUTE_SUM_SMALLER_PROBS",
        SWITCH,
        False,
        "Reports, beside each token, the probability mass of the less probable ones.",
        "the mass of less probable tokens",
        wired=True,
    ),
    works(
        "DEEPINFER_CPP_LOG_LEVEL",
        choice("off", "error", "warn", "info"),
        "info",
        "Vendor's spelling of DEEPINFER_LOG_LEVEL, which wins.",
        LOGGING,
        wired=True,
    ),
    works(
        "DEEPINFER_PREFILL_MAX_SUM_SEQLEN_K",
        integer(1),
        None,
        "Bounds the summed lengths of the sequences whose prompts share a step; unset, no bound.",
        "the bound on context per prefill step",
        wired=True,
    ),
    works(
        "DEEPINFER_INDEX_ATTN_MEMORY_LIMIT",
        integer(1),
        10 * GIB,
        "Bytes that the scores of the sparse index may take; more rows run in several parts.",
        "the bound on index scores",
        wired=True,
    ),
    works(
        "DEEPINFER_ENGRAM_PAD_TOKEN",
        integer(0),
        None,
        "Token id in front of a sequence in Engram's n-grams; unset, the checkpoint's.",
        "another Engram pad token",
        wired=True,
    ),
    works(
        "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE",
        SWITCH,
        False,
        "Keeps the Engram tables in device memory.",
        "placement of Engram tables",
        wired=True,
    ),
    works(
        "DEEPINFER_SAMPLER_FORCE_TOPK",
        integer(0),
        0,
        "Restricts every request to the k highest logits; 0 is off.",
        "a top-k for every request",
        wired=True,
    ),
    works(
        "DEEPINFER_DECODE_TOKEN_BLACKLIST",
        TOKEN_RANGES,
        (),
        "Token ids that are never sampled.",
        "a list of denied tokens for every request",
        wired=True,
    ),
    works(
        "DEEPINFER_ENFORCE_EAGER",
        SWITCH,
        False,
        "Captures no graph of the model; no backend captures one yet.",
        GRAPHS,
        False,
        True,
    ),
    works(
        "DEEPINFER_DFLASH_ENFORCE_EAGER",
        SWITCH,
        False,
        "Captures no graph of the draft pass; no backend captures one yet.",
        GRAPHS,
        False,
        True,
    ),
    works(
        "DEEPINFER_NUM_STATE_SLOTS_RATIO",
        positive(),
        1.2,
        "Slots for running sequences, as a multiple of max_num_seqs.",
        "spare state slots",
        wired=True,
    ),
    works(
        "DEEPINFER_LOGGING_INTERVAL_STEP",
        integer(),
        100,
        "Steps from one statistics line to the next; 0 or less prints none.",
        "the statistics line",
        0,
        -1,
        wired=True,
    ),
    works(
        "DEEPINFER_GC_INTERVAL_STEP",
        integer(0),
        1000,
        "Collects Python's garbage every so many steps and at no other time; 0 leaves it to "
        "Python.",
        "garbage collection by steps",
        0,
        wired=True,
    ),
    works(
        "DEEPINFER_PROFILE_HTTP_ENABLE",
        SWITCH,
        False,
        "Serves the profiling endpoint on the loopback interface.",
        PROFILING,
        wired=True,
    ),
    works(
        "DEEPINFER_PROFILE_HTTP_PORT_BASE",
        integer(1, 65535),
        6070,
        "Port of the profiling endpoint of device 0; others add their number.",
        PROFILING,
        wired=True,
    ),
    works(
        "DEEPINFER_TORCH_PROFILER_DIR",
        PATH,
        None,
        "Directory for profiler traces; unset, the system's temporary one.",
        PROFILING,
        wired=True,
    ),
)
