"""The catalogue of variables: complete, described, and no effect that is only claimed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepinfer.settings import environment
from deepinfer.settings.catalogue import SUBJECTS, VARIABLES
from deepinfer.settings.kinds import SWITCH, shown
from deepinfer.settings.variables import CORE, Status, Variable

ROOT = Path(__file__).resolve().parents[2]
EACH = pytest.mark.parametrize("variable", VARIABLES.values(), ids=lambda v: v.name)

# Engine specification, section 2. Those that a device runtime reads are registered by its backend.
OF_DEVICES = {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}
SPECIFIED = """
    ACCELERATOR JIT_CACHE_DIR COMPUTE_SUM_SMALLER_PROBS HF_MODEL_DIR CPP_LOG_LEVEL NCCL_NUM_SMS
    USERBUFFER_COMM_SMS GLOO_TIMEOUT REARRANGE_P2P_GROUPS RINGBUFFER_WARNING_INTERVAL
    OVERRIDE_NUM_EXTRA_EXPERTS EXPERT_COUNT_WINDOW_SIZE EXPERT_REARRANGEMENT_STEP_INTERVAL
    REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE MOE_LB_STAT_INTERVAL FORCE_IMBALANCE_RATIO
    FORCE_LOAD_BALANCE SHOW_EPLB_DETAIL PREFILL_MAX_SUM_SEQLEN_K INDEX_ATTN_MEMORY_LIMIT
    USE_NEXTN_DECODE ENABLE_MTP_VARLEN MAX_BACKTRACKING_TOKENS DFLASH_CONFIDENCE_HEAD_TEMPERATURE
    DECODE_PERF_CACHE_DIR DECODE_PERF_CACHE_TTL_SEC ENGRAM_PAD_TOKEN ENGRAM_FORCE_GPU_STORAGE
    SAMPLER_FORCE_TOPK DECODE_TOKEN_BLACKLIST ENFORCE_EAGER CUDAGRAPH_BATCH_SIZE_INTERVAL
    DFLASH_ENFORCE_EAGER DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL NUM_STATE_SLOTS_RATIO
    PREFILL_STORE_EXTRA_STATE PREFILL_STORE_EXTRA_SIZE XGRAMMAR_DEBUG XGRAMMAR_TIMEOUT
    XGRAMMAR_DISABLE_CACHE XGRAMMAR_CACHE_LIMIT_BYTES SO_BUILDER_CPUS PREFILL_ATTEMPT_INTERVAL
    PREFILL_ANY_ATTEMPT_INTERVAL ZERO_OVERHEAD_SCHEDULING LOGGING_INTERVAL_STEP
    NCCL_MEMORY_SAMPLE_INTERVAL_STEPS GC_INTERVAL_STEP YOCO_PREFILL_TRUNCATION_MODE
    YOCO_PREFILL_KEEP_TOKENS BATCH_INVARIANT DISABLE_SYNC_GUARD PROFILE_TORCH_CUDA_MEMORY
    ENABLE_MEMORY_TRACING PROFILE_HTTP_ENABLE PROFILE_HTTP_PORT_BASE TORCH_PROFILER_DIR
    USE_MULTIMODAL_POOL MULTIMODAL_POOL_SIZE_GB MULTI_MODAL_BUFFER_SIZE MULTI_MODAL_WORKER_TIMEOUT
    FUSED_SAMPLE_STRESS_TEST FUSED_SAMPLE_DETAIL_LOG
"""
OURS = {"SKIP_BACKENDS", "STRICT_OPERATORS", "GOLDEN_DIR", "LOG_LEVEL", "LOG_FORMAT"}


def test_every_specified_variable_is_in_the_table() -> None:
    expected = {f"DEEPINFER_{name}" for name in [*SPECIFIED.split(), *OURS]}
    assert set(VARIABLES) == expected | {"MASTER_ADDR", "MASTER_PORT"}
    assert not OF_DEVICES & set(VARIABLES)


@EACH
def test_owner_and_effect(variable: Variable) -> None:
    assert variable.owner == CORE
    assert variable.effect[0].isupper()
    assert variable.effect.endswith(".")
    assert ". " not in variable.effect


@EACH
def test_default_is_a_value_of_the_kind(variable: Variable) -> None:
    if variable.default is not None:
        assert variable.kind.read(shown(variable.default)) == variable.default


@EACH
def test_what_is_missing_has_a_name(variable: Variable) -> None:
    named = variable.status in (Status.NOT_BUILT, Status.NOT_NEEDED)
    assert bool(variable.feature) == named


@EACH
def test_a_missing_switch_may_be_off(variable: Variable) -> None:
    if variable.kind is SWITCH:
        assert variable.changes_nothing(False)


@EACH
def test_the_default_of_a_missing_feature_changes_nothing(variable: Variable) -> None:
    if variable.status is Status.NOT_BUILT:
        assert variable.changes_nothing(variable.default)


def test_a_variable_stands_under_one_subject() -> None:
    assert sum(len(subject) for subject in SUBJECTS) == len(VARIABLES)


def arguments_of_calls(file: Path) -> Iterator[str]:
    """Texts and constants of `environment` that a file passes to some call, as the names meant."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
            elif (
                isinstance(argument, ast.Attribute) and ast.unparse(argument.value) == "environment"
            ):
                yield str(getattr(environment, argument.attr))


@pytest.fixture(scope="module")
def read_by_the_code() -> set[str]:
    """Names that the code passes on to be read; the settings themselves do not count."""
    own = ROOT / "deepinfer" / "settings"
    files = [file for file in (ROOT / "deepinfer").rglob("*.py") if own not in file.parents]
    assert len(files) > 50
    return {name for file in files for name in arguments_of_calls(file)}


@EACH
def test_a_variable_works_where_code_reads_it(
    variable: Variable, read_by_the_code: set[str]
) -> None:
    works = variable.status is Status.WORKS
    assert works == (variable.name in read_by_the_code), (
        f"{variable.name} {variable.status}; change its status or the code that reads it"
    )


def test_constants_of_the_environment_module_are_registered() -> None:
    constants = {
        value
        for name, value in vars(environment).items()
        if name.isupper() and isinstance(value, str)
    }
    assert constants <= set(VARIABLES)
    assert all(VARIABLES[name].status is Status.WORKS for name in constants)
