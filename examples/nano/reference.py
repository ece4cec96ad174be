"""The model as NVIDIA NeMo AutoModel builds it: all parameters live in its modules.

NeMo is an optional dependency of this recipe alone. Its own forward pass is what `network.py` is
checked against; it is too slow on a CPU to train with.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.dspark import (
    DeepseekV41DSparkBackbone,
)
from nemo_automodel.components.models.deepseek_v41.model import (
    DeepseekV41ForCausalLM,
)
from transformers import PreTrainedTokenizerFast

from examples.nano.config import TOKENIZER, published_configuration


class Reference(NamedTuple):
    """target: the language model. draft: the DSpark stages. config: config.json, parsed."""

    target: Any
    draft: Any
    config: dict[str, Any]


def build_reference(seed: int, tokenizer_file: Path = TOKENIZER) -> Reference:
    """Both modules in float32 with fresh weights of a seed."""
    torch.manual_seed(seed)
    config = published_configuration(tokenizer_file)
    values = copy.deepcopy(config)
    values.pop("quantization_config")
    values["dtype"] = values["text_config"]["dtype"] = "float32"
    parsed = DeepseekV41Config(**values)
    backend = BackendConfig(
        attn="eager",
        linear="torch",
        rms_norm="torch_fp32",
        experts="torch",
        dispatcher="torch",
        rope="torch",
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file))
    target = DeepseekV41ForCausalLM(parsed, backend=backend, tokenizer=tokenizer)
    target.initialize_weights(dtype=torch.float32)
    draft = DeepseekV41DSparkBackbone(parsed.text_config, backend)
    draft.initialize_weights()
    _spread([*target.model.layers.values(), *draft.mtp])
    with torch.no_grad():
        target.model.embed_tokens.weight.normal_(std=0.1)
        target.lm_head.weight.copy_(0.5 * target.model.embed_tokens.weight)
    return Reference(target, draft, config)


@torch.no_grad()
def _spread(blocks: list[Any]) -> None:
    """Starting values for fast learning: matrices keep the size of their input, streams differ.

    NeMo's 0.02 for everything is for large models.
    """
    streams = blocks[0].attn_hc.streams
    for block in blocks:
        for name, parameter in block.named_parameters():
            if name.endswith(("gate_and_up_projs", "down_projs")):
                parameter.normal_(std=0.7 * parameter.shape[1] ** -0.5)
            elif parameter.dim() == 2 and "_hc." not in name and "engram" not in name:
                parameter.normal_(std=0.7 * parameter.shape[1] ** -0.5)
            elif name.endswith("engram.wkv.weight"):
                parameter.normal_(std=0.7 * parameter.shape[1] ** -0.5)
            elif name.endswith("engram.embed.weight"):
                parameter.normal_(std=0.3)
        for name, parameter in block.named_parameters():
            if name.endswith(("down_projs", "down_proj.weight")):
                parameter.mul_(0.3)
            elif name.endswith("ffn.gate.weight"):
                parameter.normal_(std=0.3 * parameter.shape[1] ** -0.5)
        for site in (block.attn_hc, block.ffn_hc):
            site.fn.normal_(std=0.3 * site.fn.shape[1] ** -0.5)
            site.base.zero_()
            site.base[2 * streams :] = 2.5 * torch.eye(streams).flatten()
            site.base[:streams] = torch.linspace(0.5, -1.5, streams)
            site.base[streams : 2 * streams] = torch.linspace(0.5, -0.5, streams)
