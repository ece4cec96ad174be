"""Variables of features that a later version brings; a value that asks for one is an error.

Source: engine specification, sections 2.2, 2.3, 2.5, 2.7 and 2.8.
"""

from __future__ import annotations

from deepinfer.settings.kinds import (
    NUMBERS,
    PATH,
    SWITCH,
    TEXT,
    choice,
    integer,
    number,
    positive,
)
from deepinfer.settings.variables import Variable, not_built

GIB = 2**30

PARALLEL = "parallelism over several processes"
EXPERTS = "expert parallelism and load balancing"
DRAFTS = "speculative decoding"
REPLAY = "bounded replay"
GRAMMARS = "structured output"
OVERLAP = "zero-overhead scheduling"
IMAGES = "multimodal input"

PARALLELISM: tuple[Variable, ...] = (
    not_built(
        "DEEPINFER_GLOO_TIMEOUT",
        positive(),
        14400.0,
        "Seconds after which a collective between hosts' processes fails.",
        PARALLEL,
    ),
    not_built(
        "DEEPINFER_REARRANGE_P2P_GROUPS",
        integer(1),
        1,
        "Parts in which moved experts are sent.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_RINGBUFFER_WARNING_INTERVAL",
        integer(0),
        60,
        "Seconds between messages that the shared-memory ring is full.",
        PARALLEL,
    ),
    # Job launchers set these two for every process: they ask for nothing and are never judged.
    not_built(
        "MASTER_ADDR",
        TEXT,
        "localhost",
        "Host at which the processes of one engine meet; one process meets nobody.",
        PARALLEL,
        inert=True,
    ),
    not_built(
        "MASTER_PORT",
        TEXT,
        "23333",
        "Port at which the processes of one engine meet; one process meets nobody.",
        PARALLEL,
        inert=True,
    ),
    not_built(
        "DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS",
        integer(0),
        0,
        "Lower bound of the redundant experts of a layer.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_EXPERT_COUNT_WINDOW_SIZE",
        integer(0),
        100,
        "Steps over which the tokens of each expert are counted.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL",
        integer(0),
        0,
        "Steps between rearrangements of the experts; 0 is off.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE",
        SWITCH,
        False,
        "Counts prefill steps too, and rearranges experts after one.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_MOE_LB_STAT_INTERVAL",
        integer(1),
        128,
        "Steps between collections of load statistics.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_FORCE_IMBALANCE_RATIO",
        number("that is 0 or at least 1", lambda value: value == 0 or value >= 1),
        0.0,
        "Routes at random so that this rank gets so many times the others' load; 0 is off.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_FORCE_LOAD_BALANCE",
        SWITCH,
        False,
        "Routes every token at random, to measure a balanced load.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_SHOW_EPLB_DETAIL",
        SWITCH,
        False,
        "Prints a table of layers after each rearrangement.",
        EXPERTS,
    ),
    not_built(
        "DEEPINFER_PREFILL_ATTEMPT_INTERVAL",
        integer(1),
        70,
        "Decode steps between votes for a prefill that all replicas join.",
        PARALLEL,
    ),
    not_built(
        "DEEPINFER_PREFILL_ANY_ATTEMPT_INTERVAL",
        integer(1),
        100,
        "Decode steps between votes for a prefill that any replica asks for.",
        PARALLEL,
    ),
)

DECODING: tuple[Variable, ...] = (
    not_built(
        "DEEPINFER_USE_NEXTN_DECODE",
        integer(0),
        5,
        "Most drafts per sequence and step; 0 drafts nothing.",
        DRAFTS,
        0,
    ),
    not_built(
        "DEEPINFER_ENABLE_MTP_VARLEN",
        SWITCH,
        False,
        "Verifies as many drafts as their confidence and the measured cost justify.",
        DRAFTS,
    ),
    not_built(
        "DEEPINFER_MAX_BACKTRACKING_TOKENS",
        integer(0),
        0,
        "Tokens that can be rolled back, at least one more than drafts.",
        DRAFTS,
    ),
    not_built(
        "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE",
        NUMBERS,
        (1.0,),
        "Divides the confidence logits of the drafts, all alike or one number per draft.",
        DRAFTS,
    ),
    not_built(
        "DEEPINFER_DECODE_PERF_CACHE_DIR",
        PATH,
        None,
        "Directory that keeps measured costs of decode steps.",
        DRAFTS,
    ),
    not_built(
        "DEEPINFER_DECODE_PERF_CACHE_TTL_SEC",
        integer(0),
        3600,
        "Seconds for which a measured cost of decode steps is believed.",
        DRAFTS,
    ),
    not_built(
        "DEEPINFER_ZERO_OVERHEAD_SCHEDULING",
        SWITCH,
        True,
        "Plans a step while another is in flight.",
        OVERLAP,
        False,
    ),
    not_built(
        "DEEPINFER_DISABLE_SYNC_GUARD",
        SWITCH,
        False,
        "Turns off the guard against waiting for the device inside a step; there is no guard yet.",
        "the guard against waiting for the device",
        True,
        False,
    ),
    not_built(
        "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE",
        choice("off", "mask", "compact"),
        "off",
        "Runs the decoder layers of a prompt on its last tokens only.",
        REPLAY,
    ),
    not_built(
        "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS",
        integer(0),
        0,
        "Last tokens of a prompt that the decoder layers see in bounded replay.",
        REPLAY,
    ),
    not_built(
        "DEEPINFER_BATCH_INVARIANT",
        SWITCH,
        False,
        "Makes the bits of a row independent of the batch on every backend.",
        "batch invariance on request",
    ),
    not_built(
        "DEEPINFER_XGRAMMAR_DEBUG",
        SWITCH,
        False,
        "Logs what the grammar matcher does.",
        GRAMMARS,
    ),
    not_built(
        "DEEPINFER_XGRAMMAR_TIMEOUT",
        integer(1),
        20,
        "Seconds in which a request's grammar must be compiled.",
        GRAMMARS,
    ),
    not_built(
        "DEEPINFER_XGRAMMAR_DISABLE_CACHE",
        SWITCH,
        False,
        "Compiles every grammar anew.",
        GRAMMARS,
    ),
    not_built(
        "DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES",
        integer(),
        10 * GIB,
        "Bytes of compiled grammars that are kept; 0 or less sets no limit.",
        GRAMMARS,
    ),
    not_built(
        "DEEPINFER_SO_BUILDER_CPUS",
        integer(1),
        4,
        "Threads that compile grammars.",
        GRAMMARS,
    ),
)

MULTIMODAL: tuple[Variable, ...] = (
    not_built(
        "DEEPINFER_USE_MULTIMODAL_POOL",
        SWITCH,
        True,
        "Keeps image tensors in a shared pool of host memory.",
        IMAGES,
        False,
    ),
    not_built(
        "DEEPINFER_MULTIMODAL_POOL_SIZE_GB",
        integer(1),
        8,
        "Size of that pool, in gigabytes a rank.",
        IMAGES,
    ),
    not_built(
        "DEEPINFER_MULTI_MODAL_BUFFER_SIZE",
        integer(1),
        512,
        "Prepared images that may wait for the engine.",
        IMAGES,
    ),
    not_built(
        "DEEPINFER_MULTI_MODAL_WORKER_TIMEOUT",
        number(),
        1800.0,
        "Seconds without progress of the image worker after which its requests fail; 0 or less "
        "waits for ever.",
        IMAGES,
    ),
)
