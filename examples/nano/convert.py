"""Write the published byte format: `python -m examples.nano.convert RUN OUT [--verify]`.

RUN holds target.pt and, if it was trained, draft.pt; OUT becomes a checkpoint directory. --verify
loads OUT with deepinfer (REF, float32) and compares its logits with those of NeMo's own forward
pass over the same stored weights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from bundled_checkpoint.json_file import json_bytes  # noqa: E402
from bundled_checkpoint.shards import shard_files  # noqa: E402
from bundled_checkpoint.weights import StoredTensor  # noqa: E402

from deepinfer.checkpoint import expected_tensors  # noqa: E402
from deepinfer.checkpoint.kinds import ExpectedTensor, Kind  # noqa: E402
from deepinfer.config import ModelConfig  # noqa: E402
from deepinfer.data import ABOUT_NAME  # noqa: E402
from deepinfer.formats import Scheme, fp4_weight, fp8_rows, fp8_weight, quantise  # noqa: E402
from examples.nano.config import HERE  # noqa: E402
from examples.nano.draft import target_digest  # noqa: E402
from examples.nano.quantisation import stored_value, tile_scales  # noqa: E402
from examples.nano.reference import Reference, build_reference  # noqa: E402

SHARDS = 3
VERIFIED_TOKENS = (40, 200, 384)
TOLERANCES = (1e-4, 0.05, 0.05)
"""Allowed median over positions of the relative difference, for each of them. A code or an entry
that is on the edge and falls on the other side moves all positions after it: long prompts have
some."""

_RENAMED = {
    "hc_attn_": "attn_hc.",
    "hc_ffn_": "ffn_hc.",
    "attn.attn_sink": "attn.sinks_param.weight",
    "ffn.gate.bias_vl": "ffn.gate.bias_vl",
    "ffn.gate.bias": "ffn.gate.e_score_correction_bias",
    "shared_experts.w1.": "shared_experts.gate_proj.",
    "shared_experts.w2.": "shared_experts.down_proj.",
    "shared_experts.w3.": "shared_experts.up_proj.",
}
_GLOBAL = {
    "embed.weight": "model.embed_tokens.weight",
    "head.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
}


def nemo_value(name: str, tensors: dict[str, Tensor]) -> Tensor:
    """The value of a published name, in its published orientation, from NeMo's tensors."""
    if name in _GLOBAL:
        return tensors[_GLOBAL[name]]
    name = name.replace("layers.", "model.layers.", 1) if name.startswith("layers.") else name
    prefix, found, expert = name.partition(".ffn.experts.")
    if found:
        number, matrix, _ = expert.split(".")
        if matrix == "w2":
            return tensors[f"{prefix}.ffn.experts.down_projs"][int(number)].mT
        both = tensors[f"{prefix}.ffn.experts.gate_and_up_projs"][int(number)]
        return both.chunk(2, 1)[0 if matrix == "w1" else 1].mT
    for published, own in _RENAMED.items():
        if published in name:
            name = name.replace(published, own)
            break
    return tensors[name]


def encode(item: ExpectedTensor, value: Tensor) -> Iterator[StoredTensor]:
    """A value as it is stored, with its scales."""
    value = value.float().contiguous()
    if tuple(value.shape) != item.shape:
        raise ValueError(f"{item.name} has shape {tuple(value.shape)}; it must be {item.shape}")
    if not item.kind.quantised:
        stored = value.bfloat16().view(torch.int16) if item.kind is Kind.BF16 else value
        yield StoredTensor(item.name, item.kind.code_dtype, item.shape, stored.numpy().tobytes())
        return
    if item.kind is Kind.FP8:
        factors = tile_scales(value)
        codes = (value / factors).to(torch.float8_e4m3fn).view(torch.uint8)
        scales = (factors[::32, ::32].contiguous().view(torch.int32) >> 23).to(torch.uint8)
    else:
        scheme = Scheme.MXFP4 if item.kind is Kind.FP4 else Scheme.FP8_BLOCK32
        codes, scales = quantise(value, scheme)
    assert tuple(codes.shape) == item.code_shape
    assert tuple(scales.shape) == item.scale_shape
    yield StoredTensor(item.name, item.kind.code_dtype, item.code_shape, codes.numpy().tobytes())
    yield StoredTensor(item.scale_name, "F8_E8M0", item.scale_shape, scales.numpy().tobytes())


_DECODERS: dict[Kind, Callable[..., Tensor]] = {
    Kind.FP8: fp8_weight,
    Kind.FP4: fp4_weight,
    Kind.TABLE: fp8_rows,
}


def decoded(item: ExpectedTensor, stored: list[StoredTensor]) -> Tensor:
    """The value that a reader of stored bytes sees."""
    first = stored[0]
    if item.kind is Kind.FP32:
        return torch.frombuffer(bytearray(first.data), dtype=torch.float32).view(item.shape)
    if item.kind is Kind.BF16:
        return torch.frombuffer(bytearray(first.data), dtype=torch.bfloat16).view(item.shape)
    codes, scales = (
        torch.frombuffer(bytearray(part.data), dtype=torch.uint8).view(part.shape)
        for part in stored
    )
    return _DECODERS[item.kind](codes, scales, torch.float32)


def load(reference: Reference, run: Path) -> dict[str, Any]:
    """Give both modules what a run trained, as stored; returns facts about the run."""
    facts: dict[str, Any] = {}
    for name, module in (("target", reference.target), ("draft", reference.draft)):
        path = run / f"{name}.pt"
        facts[name] = "random"
        if not path.exists():
            continue
        state = torch.load(path, weights_only=True)
        if name == "draft" and state["target"] != target_digest(run):
            raise SystemExit(f"{path} is of another target.pt; train the draft again")
        masters = state["optimiser"]["masters"]
        with torch.no_grad():
            for key, parameter in module.named_parameters():
                parameter.copy_(stored_value(key, masters[key]))
            for key, buffer in module.named_buffers():
                buffer.copy_(state["buffers"][key])
        facts[name] = {
            "steps_done": state["step"],
            "processor_seconds": round(state["seconds"]),
            "settings": state["settings"],
        }
    return facts


def checkpoint_files(reference: Reference, facts: dict[str, Any]) -> dict[str, bytes]:
    """Contents of all files of the checkpoint by name."""
    tensors = {
        name: value.detach()
        for module in (reference.target, reference.draft)
        for name, value in [*module.named_parameters(), *module.named_buffers()]
    }
    stored: list[StoredTensor] = []
    for item in expected_tensors(ModelConfig.from_dict(reference.config)):
        value = nemo_value(item.name, tensors)
        made = list(encode(item, value))
        if not torch.equal(decoded(item, made).float(), value.float()):
            raise ValueError(f"{item.name} is not what its bytes say; load it as stored first")
        stored += made
    about = {
        "model": "DeepSeek-V4.1 architecture at small sizes",
        "weights": "trained",
        "text": "short stories, recall, sums and JSON records in simple English",
        "made_by": "examples/nano",
        "training": facts,
    }
    return {
        "tokenizer.json": (HERE / "tokenizer.json").read_bytes(),
        "tokenizer_config.json": (HERE / "tokenizer_config.json").read_bytes(),
        "config.json": json_bytes(reference.config),
        ABOUT_NAME: json_bytes(about),
        **shard_files(stored, SHARDS),
    }


def verify(reference: Reference, directory: Path) -> list[float]:
    """Median relative difference of logits per prompt, deepinfer against NeMo."""
    import numpy as np

    from deepinfer.backend.registry import REFERENCE, select_backend
    from deepinfer.conformance.golden.logits import run_prompts
    from deepinfer.engine import EngineOptions, open_engine
    from examples.nano.batches import Batches, Mixture

    length = max(VERIFIED_TOKENS)
    options = EngineOptions(
        numerics="ref", compute="fp32", max_model_len=512, max_num_batched_tokens=512
    )
    ids = Batches(0, 512, "heldout").batch(0, Mixture(512, 400)).ids[0, :length]
    prompts = [ids[:tokens].numpy().astype(np.int64) for tokens in VERIFIED_TOKENS]
    found = []
    with open_engine(directory, select_backend(REFERENCE), options) as engine, torch.no_grad():
        for prompt, got in zip(prompts, run_prompts(engine, prompts), strict=True):
            expected = reference.target(ids[None, : len(prompt)]).logits[0]
            difference = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
            found.append(float(difference.median()))
    return found


def main() -> int:
    """Convert from the command line; the exit status is 1 where logits differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--verify", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    reference = build_reference(0)
    facts = load(reference, options.run)
    if facts["target"] == "random":
        parser.error(f"{options.run} has no target.pt; train first")
    for module in (reference.target, reference.draft):
        _store(module)
    files = checkpoint_files(reference, facts)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (options.out / name).write_bytes(data)
    print(f"{options.out}: {len(files)} files, {sum(map(len, files.values())):,} bytes")
    if not options.verify:
        return 0
    differences = verify(reference, options.out)
    print(json.dumps({"tokens": VERIFIED_TOKENS, "median_relative_difference": differences}))
    return int(any(a > b for a, b in zip(differences, TOLERANCES, strict=True)))


@torch.no_grad()
def _store(module: Any) -> None:
    """Round weights that no run gave (a draft that was not trained yet) as they are stored."""
    for name, parameter in module.named_parameters():
        parameter.copy_(stored_value(name, parameter))


if __name__ == "__main__":
    sys.exit(main())
