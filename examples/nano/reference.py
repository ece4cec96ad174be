"""The model as NVIDIA NeMo AutoModel builds it: all parameters live in its modules.

NeMo is an optional dependency of this recipe alone, imported only when the modules are built. Its
own forward pass is what `network.py` is checked against; it is too slow on a CPU to train with.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch

from examples.nano.config import TOKENIZER, published_configuration
from examples.nano.starting import set_starting_values


class Reference(NamedTuple):
    """target: the language model. draft: the DSpark stages. config: config.json, parsed."""

    target: Any
    draft: Any
    config: dict[str, Any]


def build_reference(seed: int, tokenizer_file: Path = TOKENIZER) -> Reference:
    """Both modules in float32 with the starting values of a seed."""
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
    from nemo_automodel.components.models.deepseek_v41.dspark import DeepseekV41DSparkBackbone
    from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
    from transformers import PreTrainedTokenizerFast

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
    set_starting_values(target, draft)
    return Reference(target, draft, config)
